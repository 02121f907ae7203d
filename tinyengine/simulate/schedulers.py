"""Schedulers for comparison, of the same family as the engine's, and simulated only."""

from tinyengine.scheduler import Paged, Plan


class PrefillFirst(Paged):
    """vLLM before its version 1: while a prompt can be admitted, an iteration has prompts only, and every decode waits;
    else it has every decode.

    max_num_batched_tokens: most prompt tokens of an iteration (one prompt may exceed it). None: no limit.
    watermark: share of the blocks that admission leaves free, so that the newcomer does not drive others out at once.

    Source: vLLM's scheduler as of PagedAttention (SOSP 2023), which Sarathi-Serve compares with (OSDI 2024, Algorithm
    2).
    """

    def __init__(self, *args, watermark: float = 0.01, **options):
        super().__init__(*args, **options)
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}, but must be at least 0 and below 1: a share of the blocks")
        self.kept_free = int(watermark * self.memory.n_blocks)

    def check_fits(self, request):
        """Raises ValueError if the request could never run; a prompt that only fits without the watermark could not."""
        super().check_fits(request)
        if self.memory.blocks(request.max_slots - 1) > self.memory.n_blocks - self.kept_free:
            raise ValueError(
                f"request {request.request_id!r} can come to need {request.max_slots} K/V slots, but the watermark "
                f"leaves {(self.memory.n_blocks - self.kept_free) * self.memory.block_size}: raise num_slots"
            )

    def schedule(self) -> Plan:
        return self._prompts() or self._decodes()

    def _prompts(self) -> Plan:
        plan: Plan = []
        budget = self.max_num_batched_tokens
        while self.waiting and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            length = len(request.tokens)
            if plan and budget is not None and length > budget:
                break
            if not self._admit_first(length, owed=self.kept_free):
                break
            plan.append((request, self._grow(request)))
            if budget is not None:
                budget -= length
        return plan

    def _decodes(self) -> Plan:
        plan: Plan = []
        while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if n_tokens := self._grow(request):
                plan.append((request, n_tokens))
            else:
                self._preempt(self.running[-1])
        return plan

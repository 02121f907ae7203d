"""A scheduler for comparison, of the same family as the engine's, and simulated only; and what the simulator knows of
all of them, so that it need not ask them in every iteration."""

from functools import cache
from math import inf

from tinyengine.ablation import Ablated
from tinyengine.budget import Adaptive
from tinyengine.extras import compose
from tinyengine.memory import Blocks
from tinyengine.priority import Prioritised
from tinyengine.request import Request
from tinyengine.scheduler import Chunked, Orca, Paged, Plan, Scheduler, Static


class PrefillFirst(Paged):
    """vLLM before its version 1: while a prompt can be admitted, an iteration has prompts only, and every decode waits;
    else it has every decode.

    max_num_batched_tokens: most prompt tokens of an iteration (one prompt may exceed it). None: no limit.
    watermark: share of the blocks that admission leaves free, so that the newcomer does not drive others out at once.

    Source: vLLM's scheduler as of PagedAttention (SOSP 2023), which Sarathi-Serve compares with (OSDI 2024, Algorithm
    2).
    """

    def __init__(
        self,
        memory: Blocks,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int | None = None,
        watermark: float = 0.01,
    ):
        super().__init__(memory, max_num_seqs)
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}, but must be at least 0 and below 1: a share of the blocks")
        self.max_num_batched_tokens = inf if max_num_batched_tokens is None else max_num_batched_tokens
        self.kept_free = int(watermark * memory.n_blocks)

    def add(self, request: Request):
        """Queues a request. Raises ValueError also for one that only fits without the watermark: it could never run."""
        allowed = self.memory.n_blocks - self.kept_free
        if self.memory.blocks(request.max_slots - 1) > allowed:
            raise ValueError(
                f"request {request.request_id!r} can come to need {request.max_slots} K/V slots, but the watermark "
                f"leaves {allowed * self.memory.block_size}: raise num_slots"
            )
        super().add(request)

    def schedule(self) -> Plan:
        return self._prompts() or super().schedule()

    def _prompts(self) -> Plan:
        plan, budget = [], self.max_num_batched_tokens
        while self.waiting and (not plan or len(self.waiting[0].tokens) <= budget) and self._admit_next():
            request = self.running[-1]
            self.memory.grow(request, len(request.tokens))
            plan.append((request, request.gap))
            budget -= request.gap
        return plan

    def _admit_next(self) -> bool:
        room = self.waiting and len(self.running) < self.max_num_seqs
        if not room or not self.memory.admit(self.waiting[0], self.kept_free):
            return False
        self.running.append(self.waiting.popleft())
        return True


KNOWN = {Static, Orca, Paged, Chunked, PrefillFirst, Prioritised, Adaptive, Ablated}


@cache
def is_known(kind: type) -> bool:
    """Whether the class is one of these, or put together from them and from nothing else."""
    return kind in KNOWN or (KNOWN.issuperset(kind.__bases__) and kind is compose(*kind.__bases__))


def by_priority(scheduler: Scheduler) -> bool:
    return isinstance(scheduler, Prioritised) and scheduler.policy == "priority"


def takes_turns(scheduler: Scheduler) -> bool:
    """Whether iterations of prompts and of decodes take turns."""
    return isinstance(scheduler, Ablated) and not scheduler.mixing


def learns(scheduler: Scheduler) -> bool:
    """Whether its budget changes after each iteration."""
    return isinstance(scheduler, Adaptive) and scheduler.budget is not None

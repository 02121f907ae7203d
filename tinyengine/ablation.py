"""What each half of chunked prefill is good for (Sarathi-Serve, OSDI 2024, table 4), and a preemption storm."""

from math import inf

from tinyengine.request import Request
from tinyengine.scheduler import Chunked, Plan


class Ablated(Chunked):
    """`Chunked` with a part taken out.

    chunking: False runs a prompt whole, past the budget if need be ("hybrid only").
    mixing: False lets iterations of prompts and of decodes take turns ("chunked only").
    admit_first_chunk: True admits a prompt when its first chunk fits, and not the whole: many requests are let in, and
        then preempt each other (a preemption storm, kept for lessons).

    Raises ValueError for a choice that is neither True nor False.
    """

    def __init__(self, *args, chunking: bool = True, mixing: bool = True, admit_first_chunk: bool = False, **options):
        super().__init__(*args, **options)
        for name, choice in {"chunking": chunking, "mixing": mixing, "admit_first_chunk": admit_first_chunk}.items():
            if not isinstance(choice, bool):
                raise ValueError(f"{name} is {choice!r}, but must be True or False")
        self.chunking = chunking
        self.mixing = mixing
        self.admit_first_chunk = admit_first_chunk
        self._prompts_next = True
        self._turn: bool | None = None  # without mixing: True in an iteration of prompts, False in one of decodes
        self._admits = True
        self._newcomer: Request | None = None

    def schedule(self) -> Plan:
        if self.mixing:
            return super().schedule()
        queued, self._newcomer = len(self.waiting), None
        for prompts in (self._prompts_next, not self._prompts_next):  # the other kind runs where one has nothing to do
            self._turn, self._admits = prompts, prompts and len(self.waiting) <= queued
            if plan := [(request, n_tokens) for request, n_tokens in super().schedule() if n_tokens]:
                self._prompts_next = not prompts
                break
        return plan

    def share(self, request: Request, budget: int) -> int:
        if self._turn is not None and self._turn != prefills(request) and request is not self._newcomer:
            return 0  # it sits this iteration out
        if not self.chunking and prefills(request):
            return request.gap
        return super().share(request, budget)

    def _admit_next(self) -> bool:
        if not self._admits or not self.waiting or len(self.running) >= self.max_num_seqs:
            return False
        request = self._newcomer = self.waiting[0]
        fits = self._admit_by_first_chunk if self.admit_first_chunk else self._admit_whole
        if not fits(request):
            return False
        self.running.append(self.waiting.popleft())
        return True

    def _admit_whole(self, request: Request) -> bool:
        """Leaves free what the requests that sit this iteration out need for their newest tokens."""
        owed = sum(self.memory.missing(other, len(other.tokens)) for other in self.running)
        return self.memory.admit(request, kept_free=owed)

    def _admit_by_first_chunk(self, request: Request) -> bool:
        self.memory.admit(request, kept_free=-inf)
        first_chunk = request.computed + min(request.gap, self.share(request, self.token_budget))
        if self.memory.grow(request, first_chunk):
            return True
        self.memory.release(request)
        request.computed = 0
        return False


def prefills(request: Request) -> bool:
    """Whether it has more to compute than its newest token: a prompt, or what a preemption lost."""
    return request.computed < max(request.num_prompt_tokens, len(request.tokens) - 1)

"""A run without a model: a stage's real scheduler and memory, with dummy tokens, in milliseconds. No torch."""

from collections import deque
from collections.abc import Iterable, Sequence

from tinyengine.extras import EXTRAS, assemble
from tinyengine.memory import Blocks, Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Chunked, Orca, Paged, Static
from tinyengine.trace import Trace

# As tinyengine.stages.STAGES, which needs torch. The last column: whether a batch is computed as a rectangle.
STAGES = {
    "static":    (Static,  Slots,  True),
    "orca":      (Orca,    Slots,  True),
    "selective": (Orca,    Slots,  False),
    "paged":     (Paged,   Blocks, False),
    "chunked":   (Chunked, Blocks, False),
}  # fmt: skip
WORD, STOP = 2, 3  # the dummy tokens of an output, and its last one


def dry_run(
    stage: str,
    work: Iterable[Sequence[float]],
    *,
    max_tokens: int = 0,
    shared: int = 0,
    urgent: int = 0,
    ridge: int = 0,
    num_slots: int = 4096,
    block_size: int = 16,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 512,
    **options,
) -> Trace:
    """The trace of a stage that serves requests r0, r1, ... of dummy tokens.

    work: (prompt, output) of each request in tokens, or (prompt, output, arrival). max_tokens: what each asks for,
    where that is more than its output. shared: how many tokens all prompts begin with. urgent: of so many requests in
    turn, the first has priority 0 and the others 1. ridge: rows that an iteration computes in one second; one with more
    takes longer, and without a ridge each takes 1. options: the stage's own, as for Engine.
    Raises ValueError for an unknown stage, an option that it does not take, and a request that can never fit.
    """
    if stage not in STAGES:
        raise ValueError(f"stage is {stage!r}, but the stages with dummy tokens are {', '.join(STAGES)}")
    if wrong := [name for name in options if name not in EXTRAS or stage not in EXTRAS[name][0]]:
        raise ValueError(f"{wrong[0]} is no option of stage {stage!r}: leave it out")
    kind, arena, is_padded = STAGES[stage]
    sizes = {"num_slots": num_slots, "block_size": block_size, "max_num_seqs": max_num_seqs}
    scheduler = assemble(kind, arena, options, **sizes, max_num_batched_tokens=max_num_batched_tokens)
    trace = Trace.of(stage, scheduler)
    coming = deque(sorted(_requests(work, max_tokens, shared, urgent), key=lambda one: one[0].arrival))
    lengths = {request.request_id: output for request, output in coming}
    now = 0.0
    while coming or scheduler.has_unfinished():
        while coming and coming[0][0].arrival <= now:
            _arrive(coming.popleft()[0], scheduler, trace)
        trace.hold(scheduler.memory.holders)
        budget, plan = scheduler.token_budget, scheduler.schedule()
        if not plan:
            now = coming[0][0].arrival
            continue
        computed = sum(n_tokens for _, n_tokens in plan)
        rows = max(n_tokens for _, n_tokens in plan) * scheduler.height(plan) if is_padded else computed
        times = {"time": now, "duration": max(1.0, rows / ridge) if ridge else 1.0}
        tokens = [_token(request, n_tokens, lengths) for request, n_tokens in plan]
        trace.record(plan, tokens, scheduler.memory, **times, padding=rows - computed, budget=budget)
        for request, _, finish_reason in scheduler.commit(plan, tokens):
            if finish_reason:
                trace.event("finish", request.request_id, finish_reason)
        now += times["duration"]
    return trace


def _requests(work, max_tokens: int, shared: int, urgent: int) -> Iterable[tuple[Request, int]]:
    """Each request with the length of its output."""
    for number, (prompt, output, *arrival) in enumerate(work):
        own = min(shared, prompt)
        tokens = [1] * own + [10 + number] * (prompt - own)
        params = SamplingParams(max_tokens=max(output, max_tokens), stop_token_ids=(STOP,), ignore_eos=True)
        priority = int(number % urgent > 0) if urgent else 0
        yield Request(f"r{number}", tokens, params, arrival=float(sum(arrival)), priority=priority), output


def _arrive(request: Request, scheduler, trace: Trace):
    scheduler.add(request)
    trace.arrive(request)
    trace.pieces[request.request_id] = []  # no token has a text


def _token(request: Request, n_tokens: int, lengths: dict[str, int]) -> int | None:
    if n_tokens < request.gap:
        return None
    is_last = len(request.tokens) - request.num_prompt_tokens + 1 == lengths[request.request_id]
    return STOP if is_last else WORD

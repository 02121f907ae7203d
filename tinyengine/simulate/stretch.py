"""Stretches: iterations that a scheduler would plan alike. A simulator may take them at once, with the same result.

Which plans repeat is read off a scheduler's public state, for the schedulers that are known (schedulers.KNOWN): a class
of one's own is simulated iteration by iteration.
"""

from math import inf

from tinyengine.memory import Blocks
from tinyengine.scheduler import Chunked, Orca, Plan, Scheduler, Static
from tinyengine.simulate.schedulers import PrefillFirst, by_priority, is_known, learns, takes_turns
from tinyengine.simulate.steady import Steady


def repeats(scheduler: Scheduler, plan: Plan, most: float, queued: int, steady: Steady) -> int:
    """How many more times `schedule` would give the plan that was just committed, if nothing arrives.

    most: how many times no request of the plan ends, nor comes to the last chunk of its prompt. queued: how many waited
    before the plan was made. steady: decodes beside the plan.
    """
    if most <= 0 or most == inf or not is_known(type(scheduler)):
        return 0
    if isinstance(scheduler, (Static, Orca)):
        return int(most)  # no request leaves, so none joins
    if len(scheduler.waiting) > queued:
        return 0  # after a preemption no request is admitted, and in the next iteration one may be
    if learns(scheduler):
        return 0
    if takes_turns(scheduler) and (scheduler.waiting or not _all_decode(scheduler, plan)):
        return 0
    if isinstance(scheduler, PrefillFirst) and len(scheduler.waiting) < queued:
        return 0  # a batch of prompts: more of them, or the decodes, come next
    return _while_blocks_last(scheduler.memory, plan, int(most), steady)


def is_deaf(scheduler: Scheduler, plan: Plan) -> bool:
    """Whether a plan that repeats goes on whatever arrives: a newcomer would wait behind a request that waits already,
    or find the batch or the budget full."""
    if isinstance(scheduler, Static) or len(scheduler.running) >= scheduler.max_num_seqs:
        return True
    mixes = isinstance(scheduler, Chunked) and not takes_turns(scheduler)
    if mixes and sum(n_tokens for _, n_tokens in plan) >= scheduler.token_budget:
        return True
    return bool(scheduler.waiting) and not by_priority(scheduler)


def repeat(scheduler: Scheduler, plan: Plan, times: int):
    """Commits the plan `times` times more. A request that caught up gets its `times` tokens here (`commit` appends
    one); then all of them but the last are computed, by one commit in which no token is due."""
    blocks, size = isinstance(scheduler.memory, Blocks), scheduler.memory.block_size
    computed = []
    for request, n_tokens in plan:
        if len(request.tokens) - request.computed == n_tokens:
            request.tokens += [0] * times
        n_tokens *= times
        end = request.computed + n_tokens
        if blocks and end > len(request.table) * size:
            scheduler.memory.grow(request, end)
        computed.append((request, n_tokens))
    scheduler.commit(computed, [None] * len(computed))


def _all_decode(scheduler: Scheduler, plan: Plan) -> bool:
    """Whether the plan was every running request's decode, and the next one can be."""
    return len(plan) == len(scheduler.running) and all(
        request.gap == 1 and request.computed > request.num_prompt_tokens for request, _ in plan
    )


def _while_blocks_last(memory: Blocks, plan: Plan, times: int, steady: Steady) -> int:
    """The largest of times, times / 2, times / 4 ... for which the free blocks are surely enough."""
    size, free = memory.block_size, len(memory.free) - steady.owed
    tokens, sequences = sum([n for _, n in plan]) + steady.size, len(plan) + steady.size
    while times:
        if times * tokens + sequences * (size - 1) <= free * size:
            break
        needed = sum(memory.missing(request, request.computed + times * n) for request, n in plan)
        if needed + steady.size * memory.blocks(times) <= free:
            break
        times //= 2
    return times

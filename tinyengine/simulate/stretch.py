"""Stretches: iterations that a scheduler would plan alike. A simulator may take them at once, with the same result.

Which plans repeat is read off a scheduler's public state, for the schedulers named here and no others: a class of one's
own is simulated iteration by iteration.
"""

from math import inf

from tinyengine.memory import Blocks
from tinyengine.scheduler import POLICIES, Chunked, Orca, Paged, Plan, Scheduler, Static
from tinyengine.simulate.schedulers import PrefillFirst
from tinyengine.simulate.steady import Steady


def repeats(scheduler: Scheduler, plan: Plan, most: float, queued: int, steady: Steady) -> int:
    """How many more times `schedule` would give the plan that was just committed, if nothing arrives.

    most: how many times no request of the plan ends, nor comes to the last chunk of its prompt. queued: how many waited
    before the plan was made. steady: decodes beside the plan.
    """
    kind = type(scheduler)
    if most <= 0 or most == inf or kind not in (Static, Orca, Paged, Chunked, PrefillFirst):
        return 0
    if kind in (Static, Orca):
        return int(most)  # nobody leaves, so nobody joins
    if len(scheduler.waiting) > queued or scheduler.memory.enable_prefix_caching:
        return 0  # after a preemption nobody is admitted, and in the next iteration somebody may be
    if kind is Chunked:
        if scheduler.budget:
            return 0  # it learns from every iteration
        if not scheduler.mixing and (scheduler.waiting or not _all_decode(scheduler, plan)):
            return 0  # it takes turns
    if kind is PrefillFirst and len(scheduler.waiting) < queued:
        return 0  # a batch of prompts: more of them, or the decodes, come next
    return _while_blocks_last(scheduler.memory, plan, int(most), steady)


def is_deaf(scheduler: Scheduler, plan: Plan) -> bool:
    """Whether a plan that repeats goes on whoever arrives: they would wait behind one that waits already, or find the
    batch or the budget full."""
    if type(scheduler) is Static or len(scheduler.running) >= scheduler.max_num_seqs:
        return True
    if type(scheduler) is Chunked:
        spent = sum(n_tokens for _, n_tokens in plan) >= scheduler.token_budget
        if scheduler.mixing and spent:
            return True
        return bool(scheduler.waiting) and scheduler.urgency is POLICIES["fcfs"]
    return bool(scheduler.waiting)


def repeat(scheduler: Scheduler, plan: Plan, times: int):
    """Commits the plan `times` times more. Each request that caught up has got `times` tokens; then all of them but the
    last are computed, by a commit that nobody is due in."""
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

"""Chunked without a model: a budget in every iteration, an order that decides three things, and Sarathi's ablation."""

from itertools import cycle

import pytest
from helpers.drive import Drive, chunked, make, paged, workloads
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyengine.ablation import Ablated
from tinyengine.budget import Adaptive
from tinyengine.extras import compose
from tinyengine.memory import Blocks
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.request import Slo
from tinyengine.scheduler import Chunked
from tinyengine.speculate import Speculative

BUDGETS = [1, 2, 3, 5, 8, 17, 64, 512, 4096]


def plans(drive: Drive) -> list[list[tuple[str, int]]]:
    return [step.plan for step in drive.steps]


def test_two_passes_by_hand():
    """Budget 6: decodes first, then the prompt under way, then the next one, each by min(gap, what is left)."""
    drive = chunked(20, 6).add(make(0, 4, 5), make(1, 10, 3), make(2, 3, 2)).run()
    assert plans(drive) == [
        [("r0", 4), ("r1", 2)],
        [("r0", 1), ("r1", 5)],
        [("r0", 1), ("r1", 3), ("r2", 2)],
        [("r0", 1), ("r1", 1), ("r2", 1)],
        [("r0", 1), ("r1", 1), ("r2", 1)],
    ]
    tokens = {
        request.request_id: [
            len(span.tokens)
            for iteration in drive.trace.iterations
            for span in iteration.spans
            if span.request_id == request.request_id
        ]
        for request in drive.requests
    }
    assert tokens == {"r0": [1] * 5, "r1": [0, 0, 1, 1, 1], "r2": [0, 1, 1]}  # a part of a prompt gives no token
    assert [iteration.budget for iteration in drive.trace.iterations] == [6] * 5


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_prompt_is_cut_by_the_budget_and_by_nothing_else(budget):
    drive = chunked(80, budget, block_size=16).add(make(0, 700, 1)).run()
    chunks = [n_tokens for ((_, n_tokens),) in plans(drive)]
    assert chunks == [budget] * (700 // budget) + [700 % budget] * bool(700 % budget)


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_a_budget_holds_also_where_the_decodes_alone_exceed_it(budget):
    drive = chunked(40, budget, max_num_seqs=5)
    drive.add(*(make(n, 1, 6) for n in range(5))).run()
    assert max(step.n_tokens for step in drive.steps) == budget
    assert drive.first_tokens() == [f"r{n}" for n in range(5)]


class Jumping:
    """A measured budget that is another one in every iteration."""

    def __init__(self, *budgets: int):
        self.budgets = cycle(budgets)
        self.tokens = next(self.budgets)

    def observe(self, n_tokens: int, seconds: float):
        self.tokens = next(self.budgets)


def test_a_budget_that_falls_below_the_number_of_decodes_holds_too():
    drive = chunked(40, 64, max_num_seqs=5, budget=Jumping(64, 64, 2, 1, 3, 64))
    drive.add(*(make(n, 1, 9) for n in range(5)))
    names = [[name for name, _ in drive.step().plan] for _ in range(6)]
    assert [len(group) for group in names] == [5, 5, 2, 1, 3, 5]
    assert names[2:5] == [["r0", "r1"], ["r0"], ["r0", "r1", "r2"]]
    drive.run()


def test_a_prompt_does_not_take_the_block_of_a_decode_that_sits_out():
    """Blocks of one slot: r0 lacks one for its newest token whenever it is the turn of prompts."""
    drive = chunked(6, 64, block_size=1, mixing=False).add(make(0, 2, 5))
    drive.step()
    drive.add(make(1, 3, 1)).run()
    assert drive.preemptions == 0 and [step.admitted for step in drive.steps[1:]].index(["r1"]) == 4


def test_those_that_run_come_before_those_that_wait():
    drive = chunked(40, 4, max_num_seqs=8).add(make(0, 9, 2), make(1, 2, 1))
    assert drive.step().plan == [("r0", 4)]
    drive.add(make(2, 1, 1))
    assert drive.step().plan == [("r0", 4)]
    assert drive.step().plan == [("r0", 1), ("r1", 2), ("r2", 1)]
    drive.run()


def test_a_prompt_is_admitted_by_all_of_it_though_its_first_chunk_would_fit():
    drive = chunked(5, 4).add(make(0, 12, 1), make(1, 12, 1))
    drive.step()
    assert drive.step().plan == [("r0", 4)] and len(drive.memory.free) == 3
    drive.run()


def test_what_prompts_under_way_still_need_is_theirs():
    """Six blocks. r0 has two of its four: four are free, but only two of those are for others."""
    drive = chunked(6, 7).add(make(0, 16, 1), make(1, 9, 1), make(2, 8, 1))
    step = drive.step()
    assert step.plan == [("r0", 7)]
    drive.add(make(3, 1, 1))
    assert drive.step().admitted == []  # r1 needs three
    assert drive.step().plan == [("r0", 2)]
    assert drive.step().admitted == ["r1", "r2"] or drive.steps[-1].admitted == ["r1"]
    drive.run()
    assert drive.preemptions == 0


def test_no_second_pass_in_a_step_that_preempted():
    drive = chunked(4, 64, max_num_seqs=2, policy="priority")
    drive.add(make(0, 7, 9, priority=0), make(1, 7, 9, priority=2))
    drive.step()
    drive.step()
    drive.add(make(2, 1, 1, priority=1))
    step = drive.step()
    assert step.preempted == ["r1"] and step.plan == [("r0", 1)] and step.admitted == []
    assert len(drive.memory.free) == 1  # r2 would fit into what r1 gave back
    assert drive.step().admitted == ["r2"]
    drive.run()


def test_a_recompute_is_cut_into_chunks_as_well():
    drive = chunked(4, 5, max_num_seqs=2).add(make(0, 5, 9), make(1, 5, 9)).run()
    spans = [span for iteration in drive.trace.iterations for span in iteration.spans if span.request_id == "r1"]
    seen = [(drive.trace.phase(span), span.start, span.n_tokens, len(span.tokens), span.recomputed) for span in spans]
    assert seen[:6] == [
        ("chunk", 0, 4, 0, 0),  # what r0's newest token leaves of the budget
        ("chunk", 4, 1, 1, 0),
        ("decode", 5, 1, 1, 0),
        ("recompute", 0, 5, 0, 5),
        ("recompute", 5, 2, 1, 1),  # the last of these was never computed
        ("decode", 7, 1, 1, 0),
    ]
    assert sum(tokens for *_, tokens, _ in seen) == 9


def test_equal_requests_get_their_first_tokens_in_the_order_of_arrival():
    drive = chunked(9, 5, max_num_seqs=4).add(*(make(n, 11, 9) for n in range(8))).run()
    assert drive.preemptions > 0
    assert drive.first_tokens() == [f"r{n}" for n in range(8)]


# priority


def prioritised(*priorities: int, prompt: int = 4, output: int = 4) -> list:
    return [make(n, prompt, output, priority=priority) for n, priority in enumerate(priorities)]


def test_a_small_priority_is_admitted_first():
    drive = chunked(40, 64, max_num_seqs=1, policy="priority").add(*prioritised(2, 0, 1, 0)).run()
    assert drive.first_tokens() == ["r1", "r3", "r2", "r0"]
    fair = chunked(40, 64, max_num_seqs=1).add(*prioritised(2, 0, 1, 0)).run()
    assert fair.first_tokens() == ["r0", "r1", "r2", "r3"]


def test_the_budget_goes_to_the_most_urgent_first():
    drive = chunked(40, 6, policy="priority").add(*prioritised(1, 0, prompt=5))
    assert drive.step().plan == [("r1", 5), ("r0", 1)]
    drive.add(make(2, 20, 1, priority=-1))
    assert drive.step().plan == [("r1", 1), ("r0", 4), ("r2", 1)]  # those that run before those that wait
    assert drive.step().plan == [("r2", 4), ("r1", 1), ("r0", 1)]  # and then it is the first
    drive.run()


def test_the_victim_is_the_least_urgent_and_of_those_the_newest():
    drive = chunked(10, 64, max_num_seqs=4, policy="priority").add(*prioritised(1, 0, 1, 0, prompt=8, output=9))
    drive.step()  # eight blocks are full, four more are wanted, two are free
    step = drive.step()
    assert step.preempted == ["r2"]  # priority 1, and newer than r0; its two blocks are enough for the rest
    assert step.plan == [("r1", 1), ("r3", 1), ("r0", 1)]
    drive.run()


def test_a_preempted_request_waits_in_the_place_that_its_urgency_gives():
    drive = chunked(4, 64, max_num_seqs=2, policy="priority").add(*prioritised(0, 1, prompt=7, output=9))
    drive.step()
    drive.add(make(2, 12, 1, priority=0), make(3, 1, 1, priority=2))
    while not drive.step().preempted:
        pass
    assert drive.steps[-1].preempted == ["r1"]
    assert [request.request_id for request in drive.scheduler.waiting] == ["r2", "r1", "r3"]
    drive.run()


def test_within_a_priority_the_first_deadline_then_the_arrival_decides():
    drive = chunked(40, 64, max_num_seqs=1, policy="priority")
    drive.add(
        make(0, 4, 1, arrival=0.0),  # never due
        make(1, 4, 1, arrival=0.0, slo=Slo(ttft=9.0)),
        make(2, 4, 1, arrival=3.0, slo=Slo(ttft=2.0)),
        make(3, 4, 1, arrival=1.0, slo=Slo(tbt=0.1)),  # a promise about later tokens is no deadline
        make(4, 4, 1, arrival=5.0, priority=-1),
        make(5, 4, 1, arrival=4.0, slo=Slo(ttft=5.0)),
        make(6, 4, 1, arrival=0.5),  # heard of late, but it came before r3
    )
    drive.run()
    assert drive.first_tokens() == ["r4", "r2", "r1", "r5", "r0", "r6", "r3"]


def test_fcfs_looks_at_nothing_but_the_order_of_arrival():
    drive = chunked(40, 64, max_num_seqs=1)
    drive.add(make(0, 4, 1), make(1, 4, 1, priority=-5), make(2, 4, 1, slo=Slo(ttft=0.1))).run()
    assert drive.first_tokens() == ["r0", "r1", "r2"]


@pytest.mark.parametrize("budget", [4, 5, 8, 64])
def test_an_urgent_prompt_does_not_stall_the_decodes_behind_it(budget):
    drive = chunked(60, budget, policy="priority").add(*prioritised(1, 1, 1, prompt=1, output=30))
    while len(drive.scheduler.running) < 3 or any(request.gap > 1 for request in drive.requests):
        drive.step()
    drive.add(make(3, 60, 2, priority=0))
    drive.step()
    while drive.requests[3].computed < 60 and not any(request.finished for request in drive.requests):
        step = drive.step()
        assert step.rows[0][0] == "r3" and {name for name, *_ in step.rows} == {"r0", "r1", "r2", "r3"}
        assert step.n_tokens == min(budget, 63) or drive.requests[3].computed == 60
    drive.run()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_urgent_requests_do_not_drive_out_others_but_for_memory(policy):
    drive = chunked(6, 64, max_num_seqs=1, policy=policy).add(make(0, 4, 9, priority=1))
    drive.step()
    drive.add(make(1, 4, 9, priority=0)).run()
    assert drive.preemptions == 0


# Sarathi's ablation


def test_without_chunking_a_prompt_runs_whole_past_the_budget():
    drive = chunked(60, 8, chunking=False).add(make(0, 3, 9), make(1, 50, 2), make(2, 5, 2)).run()
    assert plans(drive)[:3] == [[("r0", 3), ("r1", 50)], [("r0", 1), ("r1", 1), ("r2", 5)], [("r0", 1), ("r2", 1)]]


def test_without_chunking_guesses_stay_within_the_budget():
    drive = chunked(60, 6, chunking=False, num_speculative_tokens=4)
    drive.add(*(make(n, [0, 1, 2, 3] * 3, 20) for n in range(3))).run()
    assert any(guesses for step in drive.steps for *_, guesses in step.rows)
    assert max(step.n_tokens for step in drive.steps if not step.prompts) <= 6


def test_without_mixing_prompts_and_decodes_take_turns():
    drive = chunked(60, 8, mixing=False).add(make(0, 3, 6), make(1, 20, 3), make(2, 6, 2)).run()
    assert plans(drive) == [
        [("r0", 3), ("r1", 5)],
        [("r0", 1)],
        [("r1", 8)],
        [("r0", 1)],
        [("r1", 7), ("r2", 1)],
        [("r0", 1), ("r1", 1)],
        [("r2", 5)],
        [("r0", 1), ("r1", 1), ("r2", 1)],
        [("r0", 1)],
    ]


def test_without_mixing_a_recompute_past_its_prompt_still_runs_with_the_prompts():
    scheduler = Ablated(Blocks(40, 4), 2, 8, mixing=False)
    first, again = make(0, 2, 9), make(1, 2, 30)
    scheduler.add(first)
    scheduler.add(again)
    again.tokens += [0] * 12  # as if it had been preempted with twelve tokens of output
    assert scheduler.schedule() == [(first, 2), (again, 6)]
    scheduler.commit([(first, 2), (again, 6)], [0, None])
    assert scheduler.schedule() == [(first, 1)]


def test_without_mixing_a_newcomer_with_one_token_left_runs_with_the_prompts():
    """All but the last token of r1 is in the prefix cache: it decodes at once, in an iteration of prompts."""
    drive = chunked(20, 8, caching=True, mixing=False).add(make(0, 17, 9))
    while not drive.requests[0].output_token_ids:
        drive.step()
    drive.add(make(1, list(drive.requests[0].prompt_token_ids), 2))
    steps = [drive.step() for _ in range(2)]
    assert [step.plan for step in steps] == [[("r0", 1)], [("r1", 1)]]
    drive.run()


def test_without_mixing_a_newcomer_that_decodes_at_once_runs_with_the_prompts():
    """All but the newest token of one that was preempted is in the prefix cache."""
    scheduler, text = Ablated(CachedBlocks(40, 4), 2, 64, mixing=False), [0, 1, 2, 3] * 3 + [0]
    again = make(2, text[:8], 9)
    again.tokens += text[8:]  # its output, as if it had been preempted
    for request, planned in (make(0, text, 1), [13]), (make(1, 2, 9), [2, 1]):
        scheduler.add(request)
        for n_tokens in planned:
            assert scheduler.schedule() == [(request, n_tokens)]
            scheduler.commit([(request, n_tokens)], [0])
    scheduler.add(again)
    assert scheduler.schedule() == [(again, 1)]


def test_without_mixing_a_decode_that_is_preempted_is_not_readmitted_in_that_step():
    """It is the turn of decodes, and the only one gives way. So the prompt runs, and a first chunk of r0 would fit."""
    drive = chunked(5, 4, mixing=False, policy="priority", admit_first_chunk=True).add(make(0, 4, 6, priority=1))
    for _ in range(3):
        drive.step()
    drive.add(make(1, 12, 1, priority=0))
    while not drive.scheduler.waiting or drive.requests[1].gap == 12:
        step = drive.step()
    assert step.rows == [("r1", 2, 0)] and step.preempted == ["r0"]
    drive.run()


def test_without_mixing_no_kind_waits_while_the_other_kind_has_work():
    drive = chunked(60, 4, mixing=False).add(make(0, 12, 3)).run()
    assert plans(drive) == [[("r0", 4)], [("r0", 4)], [("r0", 4)], [("r0", 1)], [("r0", 1)]]
    late = chunked(60, 4, mixing=False).add(make(0, 2, 6)).run(later=((3, make(1, 8, 1)),))
    assert plans(late)[:6] == [[("r0", 2)], [("r0", 1)], [("r0", 1)], [("r1", 4)], [("r0", 1)], [("r1", 4)]]


def test_the_four_ways_side_by_side():
    """A long prompt among decodes: only chunking bounds an iteration, only mixing lets decodes run in every one."""
    longest, stalled = {}, {}
    for chunking in (True, False):
        for mixing in (True, False):
            drive = chunked(60, 16, chunking=chunking, mixing=mixing).add(make(0, 4, 12))
            drive.run(later=((2, make(1, 100, 2)),))
            longest[chunking, mixing] = max(step.n_tokens for step in drive.steps)
            before_its_end = drive.steps[
                : next(i for i, step in enumerate(drive.steps) if step.n_tokens == 1 and i > 9)
            ]
            stalled[chunking, mixing] = sum("r0" not in dict(step.plan) for step in before_its_end)
    assert longest == {(True, True): 16, (True, False): 16, (False, True): 101, (False, False): 100}
    assert stalled[True, True] == stalled[False, True] == 0 < stalled[True, False]
    assert stalled[False, False] == 1


# the storm


def test_admitting_by_the_first_chunk_lets_in_many_that_drive_each_other_out():
    counts, steps, lost = {}, {}, {}
    for admit_first_chunk in (False, True):
        drive = chunked(40, 64, block_size=16, max_num_seqs=16, admit_first_chunk=admit_first_chunk)
        drive.add(*(make(n, 200, 40) for n in range(16))).run()
        numbers = drive.metrics
        counts[admit_first_chunk], steps[admit_first_chunk] = numbers.preemptions, numbers.iterations
        lost[admit_first_chunk] = numbers.recomputed_tokens
    said = f"preemptions {counts}, iterations {steps}, recomputed tokens {lost}, by admit_first_chunk"
    assert counts[True] >= 5 * max(1, counts[False]), said
    assert lost[True] > 3 * lost[False], said


# speculation and prefix caching


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 64])
def test_guesses_stay_within_the_budget_and_change_no_output(budget):
    drive = chunked(60, budget, max_num_seqs=3, num_speculative_tokens=4)
    drive.add(*(make(n, [0, 1, 2, 3] * 4, 20) for n in range(3))).run()
    assert max(step.n_tokens for step in drive.steps) <= budget
    numbers = drive.metrics
    assert numbers.tokens_per_step > 1.2 if budget > 7 else numbers.tokens_per_step >= 1
    assert (numbers.draft_tokens > 0) == (budget > 1)


def test_guesses_never_take_the_tokens_of_a_decode_behind():
    drive = chunked(60, 4, max_num_seqs=3, num_speculative_tokens=8)
    drive.add(*(make(n, [0, 1, 2, 3] * 2, 20) for n in range(3)))
    while any(request.gap > 1 for request in drive.requests):
        drive.step()
    while not any(request.finished for request in drive.requests):
        assert len(drive.step().rows) == 3
    drive.run()


def test_guesses_leave_a_newcomer_its_tokens():
    """A budget of 8: r0 has one token and would have 7 guesses, but a prompt of 6 comes."""
    drive = chunked(60, 8, num_speculative_tokens=8).add(make(0, [0, 1, 2, 3] * 4, 20))
    while drive.requests[0].gap > 1:
        drive.step()
    drive.add(make(1, 6, 1))
    assert drive.step().rows == [("r0", 2, 1), ("r1", 6, 0)]
    drive.run()


def test_guesses_leave_a_prompt_that_sits_out_its_blocks():
    """Five blocks. While decodes have their turn, two are free, which r1 needs for the rest of its prompt."""
    drive = chunked(5, 4, mixing=False, num_speculative_tokens=4)
    drive.add(make(0, [0, 1, 2, 3], 6), make(1, 9, 1)).run()
    assert drive.metrics.draft_tokens and drive.preemptions == 0


def test_guesses_of_an_iteration_that_failed_leave_a_newcomer_its_tokens():
    drive = chunked(60, 8, num_speculative_tokens=8).add(make(0, [0, 1, 2, 3] * 4, 20))
    while drive.requests[0].gap > 1:
        drive.step()
    assert [n_tokens for _, n_tokens in drive.scheduler.schedule()] == [5]  # the model raises: nothing is committed
    drive.add(make(1, 6, 1))
    assert drive.step().rows == [("r0", 2, 1), ("r1", 6, 0)]
    drive.run()


def test_what_a_preemption_lost_is_computed_before_anything_is_guessed():
    scheduler = compose(Speculative, Chunked)(Blocks(20, 4), 1, 8, num_speculative_tokens=3)
    scheduler.add(request := make(0, 2, 30))
    request.tokens += [0, 1, 2, 3] * 3  # as if it had been preempted with twelve tokens of output
    assert scheduler.schedule() == [(request, 8)] and request.guesses == 0
    scheduler.commit([(request, 8)], [None])
    assert scheduler.schedule() == [(request, 6)] and request.guesses == 0  # past the prompt, and still behind
    scheduler.commit([(request, 6)], [0])
    assert scheduler.schedule() == [(request, 4)] and request.tokens[-request.guesses :] == [1, 2, 3]


def test_cached_tokens_take_nothing_of_the_budget():
    drive = chunked(20, 8, caching=True).add(make(0, 17, 1)).run()
    drive.add(make(1, [*drive.requests[0].prompt_token_ids[:16], 3, 3, 3], 1))
    assert drive.step().plan == [("r1", 3)]
    assert [event.cached for event in drive.trace.events if event.kind == "admit"] == [0, 16]
    assert drive.trace.phase(drive.trace.iterations[-1].spans[0]) == "chunk"


def test_a_first_chunk_behind_a_cached_prefix_that_does_not_fit_waits():
    drive = chunked(4, 8, caching=True, admit_first_chunk=True)
    drive.add(make(0, [0, 1, 2, 3, 0, 1, 2, 3, 0], 3))
    drive.step()
    drive.step()
    drive.add(make(1, [0, 1, 2, 3, 0, 1, 2, 3, 1, 1, 1, 1, 1, 1], 1)).run()


# options


def test_the_default_budget_is_512():
    assert Chunked(Blocks(9)).token_budget == 512


@pytest.mark.parametrize("budget", [0, -5, 1.5, True])
def test_a_budget_has_room_for_at_least_one_token(budget):
    with pytest.raises(ValueError, match=f"max_num_batched_tokens is {budget}, but must be a whole number of"):
        Chunked(Blocks(9), max_num_batched_tokens=budget)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "lifo"}, "policy is 'lifo', but the policies are fcfs, priority"),
        ({"policy": None}, "policy is None, but the policies are fcfs, priority"),
        ({"budget": 64}, "budget is 64, but must be an AdaptiveBudget: a number is max_num_batched_tokens"),
        ({"chunking": 1}, "chunking is 1, but must be True or False"),
        ({"mixing": "no"}, "mixing is 'no', but must be True or False"),
        ({"admit_first_chunk": None}, "admit_first_chunk is None, but must be True or False"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens is -1, but must be a whole number of at least 0"),
    ],
)
def test_an_option_outside_its_limits_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        chunked(9, 64, **options)


class Shrinking:
    """A budget that hears how long iterations took."""

    def __init__(self):
        self.tokens, self.heard = 9, []

    def observe(self, n_tokens, seconds):
        self.heard.append((n_tokens, seconds))
        self.tokens = max(2, self.tokens - 3)


def test_a_measured_budget_counts_and_max_num_batched_tokens_is_its_limit():
    budget = Shrinking()
    scheduler = compose(Adaptive, Chunked)(Blocks(20, 4), 4, 7, budget=budget)
    scheduler.add(make(0, 30, 1))
    seen = []
    while plan := scheduler.schedule():
        seen.append(plan[0][1])
        scheduler.commit(plan, [1 if n_tokens == request.gap else None for request, n_tokens in plan])
        scheduler.observe(plan[0][1], 0.5)
    assert seen[:4] == [7, 6, 3, 2] and sum(seen) == 30
    assert budget.heard[:2] == [(7, 0.5), (6, 0.5)]
    Chunked(Blocks(9)).observe(3, 0.5)  # it has no budget to learn


# any workload


CHOICES = {
    "num_speculative_tokens": [0, 0, 1, 4],
    "policy": ["fcfs", "priority"],
    "chunking": [True, False],
    "mixing": [True, False],
    "admit_first_chunk": [False, False, True],
    "budget": [None, (64,), (3, 1, 12), (1,), (2, 7)],
}


def draw_options(data) -> dict:
    """Any of them, each with any choice: so every class that an option may add, and every order of them, is met."""
    names = data.draw(st.lists(st.sampled_from(list(CHOICES)), unique=True, max_size=len(CHOICES)))
    options = {name: data.draw(st.sampled_from(CHOICES[name])) for name in names}
    return options | ({"budget": Jumping(*options["budget"])} if options.get("budget") else {})


@given(st.data(), workloads(), st.sampled_from(BUDGETS), st.integers(1, 5), st.booleans())
@settings(deadline=None, max_examples=400)
def test_every_rule_holds_for_any_workload(data, workload, budget, max_num_seqs, caching):
    sizes, arrivals, n_blocks, block_size = workload
    options = draw_options(data)
    drive = chunked(n_blocks, budget, block_size, max_num_seqs, caching, **options)
    requests = []
    for (number, prompt, output, eos), when in zip(sizes, arrivals):
        slo = data.draw(st.sampled_from([Slo(), Slo(), Slo(ttft=5.0), Slo(ttft=1.0, tbt=1.0)]))
        priority = data.draw(st.integers(-1, 1))
        requests.append(make(number, prompt, output, eos, arrival=float(when), priority=priority, slo=slo))
    drive.run(tuple(zip(arrivals, requests)))
    if not options.get("mixing", True):
        take_turns(drive)


def take_turns(drive: Drive):
    """An iteration is of one kind, and of the other kind than the last one where the other had work."""
    for before, step in zip(drive.steps, drive.steps[1:]):
        kinds = {name in step.prompts for name, *_ in step.rows if name not in step.admitted}
        assert len(kinds) <= 1
        was = {name in before.prompts for name, *_ in before.rows if name not in before.admitted}
        prefill, decode = step.could
        if prefill and decode and not step.preempted and len(was) == 1:
            assert kinds != was, "the same kind twice, though the other had work"


@given(st.data(), workloads(), st.sampled_from(BUDGETS), st.integers(1, 5))
@settings(deadline=None, max_examples=80)
def test_aborts_at_any_moment(data, workload, budget, max_num_seqs):
    sizes, _, n_blocks, block_size = workload
    drive = chunked(n_blocks, budget, block_size, max_num_seqs, data.draw(st.booleans()))
    drive.add(*(make(*size[:3], size[3]) for size in sizes))
    while drive.scheduler.has_unfinished():
        for _ in range(data.draw(st.integers(0, 3))):
            if drive.scheduler.has_unfinished():
                drive.step()
        victim = data.draw(st.sampled_from(drive.requests))
        if not victim.finished:
            drive.abort(victim)
    drive.run()


@given(workloads(), st.integers(1, 5), st.booleans(), st.sampled_from([None, 0, 3]))
@example(([(n, [n] * 7, 9, ()) for n in range(4)], [0] * 4, 4, 4), 4, False, 0)
@settings(deadline=None, max_examples=80)
def test_with_a_budget_that_never_binds_it_is_paged(workload, max_num_seqs, caching, guesses):
    sizes, arrivals, n_blocks, block_size = workload

    def run(drive: Drive) -> list:
        later = tuple((when, make(*size[:3], size[3])) for when, size in zip(arrivals, sizes))
        return [(step.rows, step.admitted, step.preempted) for step in drive.run(later).steps]

    options = {} if guesses is None else {"num_speculative_tokens": guesses}
    one = run(chunked(n_blocks, 4096, block_size, max_num_seqs, caching, **options))
    assert one == run(paged(n_blocks, block_size, max_num_seqs, caching, **options))


@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(0, 3), st.integers(1, 4),
    st.sampled_from(BUDGETS), st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_equal_requests_are_served_in_order(prompt, output, count, spare, max_num_seqs, budget, caching):
    n_blocks = -(-(prompt + output - 1) // 2) + spare
    drive = chunked(n_blocks, budget, 2, max_num_seqs, caching)
    drive.add(*(make(n, [n % 3] * prompt, output) for n in range(count))).run()
    assert drive.first_tokens() == [f"r{n}" for n in range(count)]

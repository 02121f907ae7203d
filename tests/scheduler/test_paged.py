"""Paged without a model: admission by the whole prompt, the newest makes room, what was lost is computed once more."""

import numpy as np
import pytest
from helpers.drive import make, paged, workloads
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinyengine.extras import compose
from tinyengine.memory import Blocks
from tinyengine.prefix_cache import CachedBlocks
from tinyengine.scheduler import Paged
from tinyengine.speculate import Speculative


def test_three_requests_by_hand():
    """5 blocks of 4. r0 and r1 need a third block each in iteration 4, when one is free: r1, the newer, makes room."""
    drive = paged(5).add(make(0, 5, 6), make(1, 5, 6), make(2, 5, 2)).run()
    assert [(step.plan, step.admitted, step.preempted) for step in drive.steps] == [
        ([("r0", 5), ("r1", 5)], ["r0", "r1"], []),  # r2 needs two blocks as well, and one is left
        ([("r0", 1), ("r1", 1)], [], []),
        ([("r0", 1), ("r1", 1)], [], []),
        ([("r0", 1), ("r1", 1)], [], []),
        ([("r0", 1)], [], ["r1"]),  # two blocks are free again, and r1 must not have them in this step
        ([("r0", 1)], [], []),  # nor later: it needs three for its nine tokens, and r2 stays behind it
        ([("r1", 9), ("r2", 5)], ["r1", "r2"], []),
        ([("r1", 1), ("r2", 1)], [], []),
    ]
    spans = [span for iteration in drive.trace.iterations for span in iteration.spans if span.request_id == "r1"]
    assert [span.recomputed for span in spans] == [0, 0, 0, 0, 8, 0]
    assert drive.metrics.preemptions == 1 and drive.metrics.recomputed_tokens == 8


def test_a_prompt_is_admitted_when_the_blocks_of_all_of_it_are_free():
    drive = paged(4).add(make(0, 9, 1), make(1, 5, 1), make(2, 1, 1))
    assert drive.step().plan == [("r0", 9)]  # one block is left: enough for r2, but r1 is before it
    assert drive.step().plan == [("r1", 5), ("r2", 1)]
    drive.run()


def test_an_output_takes_no_room_before_it_is_there():
    drive = paged(4, max_num_seqs=8).add(*(make(n, 4, 12) for n in range(4)))
    assert len(drive.step().plan) == 4  # with slots reserved to the end it would be one


def test_max_num_seqs_is_a_limit():
    drive = paged(40, max_num_seqs=2).add(*(make(n, 3, 2) for n in range(5))).run()
    assert [step.admitted for step in drive.steps] == [["r0", "r1"], [], ["r2", "r3"], [], ["r4"], []]


def test_the_newest_goes_to_the_front_of_the_queue():
    drive = paged(4, max_num_seqs=2).add(make(0, 7, 9), make(1, 7, 9), make(2, 4, 1), make(3, 4, 1))
    while not (step := drive.step()).preempted:
        pass
    assert step.preempted == ["r1"] and step.admitted == []
    assert [request.request_id for request in drive.scheduler.waiting] == ["r1", "r2", "r3"]
    drive.run()
    order = [name for _, kind, name in drive.events if kind == "admit"]
    assert order == ["r0", "r1", "r1", "r2", "r3"]


def test_victims_are_taken_one_at_a_time_from_the_end():
    """Three decode in full blocks; one block is free. r0 takes it, r2 makes room for r1."""
    drive = paged(7, max_num_seqs=3).add(make(0, 8, 9), make(1, 8, 9), make(2, 8, 9))
    drive.step()
    step = drive.step()
    assert step.plan == [("r0", 1), ("r1", 1)] and step.preempted == ["r2"]
    drive.run()


def test_one_that_needs_room_and_is_the_newest_gives_way_itself():
    drive = paged(5, max_num_seqs=2).add(make(0, 8, 9), make(1, 8, 9))
    drive.step()
    step = drive.step()
    assert step.plan == [("r0", 1)] and step.preempted == ["r1"]
    drive.run()


def test_recompute_covers_prompt_and_output_and_generates_no_more_than_was_asked():
    drive = paged(4, max_num_seqs=2).add(make(0, 7, 8), make(1, 7, 8)).run()
    again = [
        (drive.trace.phase(span), span.start, span.n_tokens, len(span.tokens))
        for iteration in drive.trace.iterations
        for span in iteration.spans
        if span.recomputed
    ]
    assert again == [("recompute", 0, 9, 1)]  # 7 of the prompt, and the two tokens that it had
    assert [len(request.output_token_ids) for request in drive.requests] == [8, 8]


def test_the_arena_may_be_as_small_as_the_largest_request():
    drive = (
        paged(4, block_size=4).add(make(0, 9, 8), make(1, 9, 8), make(2, 1, 16)).run()
    )  # 17 positions, of which the last needs no slot
    assert drive.preemptions > 0
    with pytest.raises(ValueError, match=r"'r3' can come to need 18 K/V slots .* the arena has 16"):
        drive.add(make(3, 10, 8))


def test_an_aborted_request_gives_its_blocks_back_wherever_it_is():
    drive = paged(5, max_num_seqs=2).add(make(0, 7, 9), make(1, 7, 9), make(2, 7, 9))
    first, second, third = drive.requests
    while not drive.step().preempted:
        pass
    for request in (second, first):  # one that was preempted, one that runs
        drive.abort(request)
        assert request.table == [] and request not in drive.scheduler.running
    assert len(drive.memory.free) == 5
    drive.run()
    assert third.finish_reason == "length"


def test_equal_requests_get_their_first_tokens_in_the_order_of_arrival():
    drive = paged(6, max_num_seqs=3).add(*(make(n, 7, 9) for n in range(8))).run()
    assert drive.preemptions > 0
    assert drive.first_tokens() == [f"r{n}" for n in range(8)]


# prefix caching


def test_a_second_request_computes_only_what_is_new():
    drive = paged(12, caching=True).add(make(0, 13, 3))
    drive.step()
    drive.add(make(1, [*drive.requests[0].prompt_token_ids[:10], 3, 3], 2))
    step = drive.step()
    assert step.plan == [("r0", 1), ("r1", 4)]  # 8 of 12 were found
    assert [event.cached for event in drive.trace.events if event.kind == "admit"] == [0, 8]
    drive.run()
    assert drive.metrics.cached_tokens == 8


def test_shared_blocks_are_held_once():
    """Two prompts of 16 tokens that differ in the last, in 7 blocks: 5 + 2, where 5 + 4 would not fit."""
    prompt = [n % 4 for n in range(16)]
    drive = paged(7, caching=True).add(make(0, prompt, 3))
    drive.step()
    drive.add(make(1, [*prompt[:15], 3], 3))
    drive.step()
    first, second = drive.requests
    assert second.table[:3] == first.table[:3] and second.table[3] != first.table[3]
    numbers = drive.run().metrics
    assert numbers.preemptions == 0 and numbers.kv_waste < 1 and numbers.kv_reserved <= 1
    apart = paged(7).add(make(0, prompt, 3))
    apart.step()
    assert apart.add(make(1, [*prompt[:15], 3], 3)).step().admitted == []


def test_a_preempted_request_finds_its_own_blocks_again():
    numbers = {}
    for caching in (False, True):
        drive = paged(8, max_num_seqs=2, caching=caching)
        drive.add(make(0, [0, 1, 2, 3] * 3, 9), make(1, [3, 2, 1, 0] * 3, 9)).run()
        numbers[caching] = drive.metrics
    assert numbers[False].preemptions == numbers[True].preemptions == 1
    assert numbers[False].cached_tokens == 0 and numbers[False].recomputed_tokens == 16
    assert numbers[True].cached_tokens > 0
    assert numbers[True].cached_tokens + numbers[True].recomputed_tokens == 16


# speculation

REPETITIVE = [0, 1, 2, 3] * 5


@pytest.mark.parametrize("guesses", [1, 2, 4, 8])
def test_guesses_make_steps_fewer_and_outputs_the_same(guesses):
    plain = paged(40).add(make(0, REPETITIVE, 30)).run()
    drive = paged(40, num_speculative_tokens=guesses).add(make(0, REPETITIVE, 30)).run()
    assert drive.requests[0].output_token_ids == plain.requests[0].output_token_ids
    numbers = drive.metrics
    assert plain.metrics.tokens_per_step == 1.0 and len(plain.steps) == 30
    assert numbers.tokens_per_step > 1.3 and len(drive.steps) < 25
    assert 0 < numbers.accepted_tokens < numbers.draft_tokens, "some guesses are right and some wrong"
    assert 1 < max(n_tokens for step in drive.steps[1:] for _, n_tokens, _ in step.rows) <= guesses + 1


def speculative(memory: Blocks, max_num_seqs: int, guesses: int) -> Paged:
    return compose(Speculative, Paged)(memory, max_num_seqs, num_speculative_tokens=guesses)


def test_a_wrong_guess_is_rolled_back_with_one_subtraction():
    scheduler = speculative(Blocks(20, 4), 1, 3)
    scheduler.add(request := make(0, REPETITIVE, 9))
    scheduler.commit(scheduler.schedule(), [0])
    (plan,) = scheduler.schedule()
    assert plan == (request, 4) and request.tokens[-4:] == [0, 1, 2, 3] and request.guesses == 3 and request.gap == 4
    events = scheduler.commit([plan], [[1, 9]])
    assert [tuple(event) for event in events] == [(request, 1, None), (request, 9, None)]
    assert request.tokens[-3:] == [0, 1, 9] and request.computed == len(request.tokens) - 1 and request.guesses == 0
    assert request.gap == 1


def test_a_prompt_is_never_guessed_at_and_neither_is_what_a_preemption_lost():
    drive = paged(4, max_num_seqs=2, num_speculative_tokens=3).add(make(0, 7, 9), make(1, 7, 9)).run()
    assert drive.preemptions > 0
    for iteration in drive.trace.iterations:
        for span in iteration.spans:
            assert not span.draft or drive.trace.phase(span) == "decode"


@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_guesses_end_where_the_output_ends(left):
    scheduler = speculative(Blocks(20, 4), 1, 8)
    scheduler.add(request := make(0, REPETITIVE, 1 + left))
    scheduler.commit(scheduler.schedule(), [0])
    scheduler.schedule()
    assert request.guesses == left - 1  # and one that needs no guess


@pytest.mark.parametrize(("n_blocks", "guesses"), [(3, 0), (4, 3)])
def test_no_request_is_preempted_for_a_guess(n_blocks, guesses):
    """r0's newest token fits into its block, and its guesses do not; r1 lacks a block for its newest token."""
    drive = paged(n_blocks, max_num_seqs=2, num_speculative_tokens=3)
    drive.add(make(0, [0, 1, 1], 6), make(1, [2, 3, 2, 3], 6))
    drive.step()
    assert [request.tokens for request in drive.requests] == [[0, 1, 1, 0], [2, 3, 2, 3, 2]]
    step = drive.step()
    assert step.preempted == [] and step.rows[0] == ("r0", 1 + guesses, guesses)
    drive.run()


@pytest.mark.parametrize(("newcomers", "guesses"), [(0, 4), (1, 0)])
def test_guesses_leave_a_newcomer_its_blocks(newcomers, guesses):
    """Three blocks. r0 fills one and has begun another, and its guesses would take the third: r1 gets that one."""
    drive = paged(3, max_num_seqs=2, num_speculative_tokens=8).add(make(0, [0, 1, 2, 3, 0], 6))
    drive.step()
    drive.add(*(make(number, 2, 1) for number in range(1, 1 + newcomers)))
    assert drive.step().rows == [("r0", 1 + guesses, guesses), ("r1", 2, 0)][: 1 + newcomers]
    drive.run()


def test_blocks_that_come_back_from_the_cache_are_no_room_for_guesses():
    """A preempted request finds all of its blocks again, and decodes at once: what it takes from the free ones, its
    guesses must not count on."""
    scheduler = speculative(CachedBlocks(20, 1), 2, 0)
    other, again = make(0, [10, 11, 12, 13, 14, 15, 16, 17], 9), make(1, [1, 2] * 3 + [1], 12)
    scheduler.add(other)
    scheduler.add(again)
    for tokens in ([18, 2], [19, 1]):
        scheduler.commit(scheduler.schedule(), tokens)
    scheduler.preempt(again)
    scheduler.num_speculative_tokens = 5
    assert scheduler.schedule() == [(other, 1), (again, 1)] and again.computed == 8 and again.guesses == 0


def test_a_request_that_was_preempted_is_not_readmitted_in_that_step_though_it_would_fit():
    """Nine blocks of one slot. r1 has five tokens, and six blocks, since a guess was wrong: r0 takes one of those, and
    the other five would be enough for r1."""
    scheduler = speculative(Blocks(9, 1), 2, 2)
    first, second = make(0, [10, 11], 5), make(1, [1, 2, 1], 5)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.commit(scheduler.schedule(), [12, 2])
    scheduler.commit(scheduler.schedule(), [13, [9]])
    assert (len(second.tokens), len(second.table)) == (5, 6) and not scheduler.memory.free
    assert scheduler.schedule() == [(first, 1)]
    assert list(scheduler.waiting) == [second] and len(scheduler.memory.free) == 5


@pytest.mark.parametrize("guesses", [-1, True, 1.5, None, "4"])
def test_a_number_of_guesses_is_a_whole_number_of_at_least_0(guesses):
    with pytest.raises(ValueError, match=f"num_speculative_tokens is {guesses!r}, but must be a whole number of at le"):
        speculative(Blocks(4), 2, guesses)


def prepared() -> tuple[Paged, list]:
    """One that has no guesses, since its text never repeats, and one that has two."""
    scheduler = speculative(Blocks(20, 4), 2, 2)
    scheduler.add(make(0, REPETITIVE, 9))
    scheduler.add(make(1, [4, 5, 6], 9))
    scheduler.commit(scheduler.schedule(), [0, 7])
    plan = scheduler.schedule()
    assert [(n_tokens, request.guesses) for request, n_tokens in plan] == [(3, 2), (1, 0)]
    return scheduler, plan


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([[], 7], "'r0' was given 0 tokens, but with 2 guesses it can get 1 to 3"),
        ([[1, 2, 3, 0], 7], "'r0' was given 4 tokens, but with 2 guesses it can get 1 to 3"),
        ([None, 7], "'r0' computes 3 of its 3 open tokens, so its token is owed"),
        ([[1, None], 7], "'r0' computes 3 of its 3 open tokens, so its token is owed"),
        ([[None, 1], 7], "'r0' was given None, but a token is a whole number"),
        ([[1, 2.0], 7], r"'r0' was given 2\.0, but a token is a whole number"),
        ([["1", 2], 7], "'r0' was given '1', but a token is a whole number"),
        ([[1, 2], None], "'r1' computes 1 of its 1 open tokens, so its token is owed"),
        ([[1, 2], [7]], r"'r1' was given \[7\], but a token is a whole number"),
        ([[1, 2], [7, 8]], r"'r1' was given \[7, 8\], but a token is a whole number"),
        ([[1, 2]], "tokens has 1 entries, but the plan has 2"),
        ([[1, 2], 7, 7], "tokens has 3 entries, but the plan has 2"),
    ],
)
def test_commit_refuses_wrong_tokens_before_it_changes_anything(tokens, words):
    scheduler, plan = prepared()
    requests = [request for request, _ in plan]
    before = [(list(request.tokens), request.guesses, request.computed, list(request.table)) for request in requests]
    with pytest.raises(ValueError, match=words):
        scheduler.commit(plan, tokens)
    assert [(r.tokens, r.guesses, r.computed, r.table) for r in requests] == before
    scheduler.commit(plan, [[1, 2, 3], 8])
    assert [request.computed for request in requests] == [len(request.tokens) - 1 for request in requests] == [23, 4]


def test_guesses_are_verified_in_one_iteration():
    scheduler, ((first, _), other) = prepared()
    with pytest.raises(ValueError, match="'r0' is planned with 2 tokens, but its 2 guesses are verified in one iterat"):
        scheduler.commit([(first, 2), other], [None, 7])
    assert first.guesses == 2 and first.computed == len(first.tokens) - 3


def test_one_token_behind_guesses_may_be_given_as_a_number():
    scheduler, plan = prepared()
    request = plan[0][0]
    assert [token.token_id for token in scheduler.commit(plan, [9, 8])] == [9, 8]
    assert request.guesses == 0 and request.computed == len(request.tokens) - 1


def test_tokens_of_numpy_are_tokens():
    scheduler, plan = prepared()
    events = scheduler.commit(plan, [list(np.array([1, 2, 3])), np.int32(8)])
    assert [(event.request.request_id, event.token_id) for event in events] == [
        ("r0", 1), ("r0", 2), ("r0", 3), ("r1", 8),
    ]  # fmt: skip
    assert {type(token) for request, _ in plan for token in request.tokens} == {int}


def test_an_iteration_that_failed_leaves_no_guesses_behind():
    scheduler, plan = prepared()
    again = scheduler.schedule()  # the model has raised: nothing was committed
    assert again == plan and again[0][0].guesses == 2 and len(again[0][0].tokens) == len(REPETITIVE) + 3


def test_a_request_that_ends_between_plan_and_commit_takes_its_guesses_with_it():
    scheduler, plan = prepared()
    first, other = (request for request, _ in plan)
    scheduler.abort(first)
    assert first.guesses == 0 and first.tokens == [*REPETITIVE, 0] and first.table == []
    events = scheduler.commit(plan, [[1, 2, 3], 8])
    assert [event.request for event in events] == [other] and first.tokens == [*REPETITIVE, 0]


# any workload


@given(
    workloads(), st.integers(1, 5), st.booleans(), st.sampled_from([None, 0, 1, 4]),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 6)), max_size=2),
)  # fmt: skip
@example(([(n, [n] * 7, 9, ()) for n in range(4)], [0] * 4, 4, 4), 4, False, 0, [])
@example(([(n, [0, 1, 2, 3] * 4, 9, ()) for n in range(4)], [0, 1, 2, 3], 7, 4), 4, True, 4, [])
@settings(deadline=None, max_examples=250)
def test_every_rule_holds_for_any_workload(workload, max_num_seqs, caching, guesses, aborts):
    sizes, arrivals, n_blocks, block_size = workload
    options = {} if guesses is None else {"num_speculative_tokens": guesses}
    drive = paged(n_blocks, block_size, max_num_seqs, caching, **options)
    requests = [make(*size[:3], size[3], arrival=float(when)) for size, when in zip(sizes, arrivals)]
    if not aborts:
        drive.run(tuple(zip(arrivals, requests)))
        return
    drive.add(*requests)
    for when, victim in sorted(aborts):
        while len(drive.steps) < when and drive.scheduler.has_unfinished():
            drive.step()
        if victim < len(requests) and not requests[victim].finished:
            drive.abort(requests[victim])
    drive.run()


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 7), st.integers(0, 3), st.integers(1, 4))
@settings(deadline=None, max_examples=60)
def test_equal_requests_are_served_in_order(prompt, output, count, spare, max_num_seqs):
    n_blocks = -(-(prompt + output - 1) // 2) + spare
    drive = paged(n_blocks, 2, max_num_seqs).add(*(make(n, [n % 3] * prompt, output) for n in range(count))).run()
    assert drive.first_tokens() == [f"r{n}" for n in range(count)]


def test_the_same_input_gives_the_same_run():
    runs = [paged(9, caching=True).add(*(make(n, 9, 9) for n in range(5))).run().steps for _ in range(2)]
    assert runs[0] == runs[1]

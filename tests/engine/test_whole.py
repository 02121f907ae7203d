"""A step happens whole or not at all: a real SIGINT at every line of what an engine does, every outside call raising.
Afterwards tokens and text are those of an undisturbed run, nothing is stuck or lost, and the trace tells what happened.
"""

import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.serve import assert_nothing_left

import tinyengine
from tinyengine import STAGES, Engine, SamplingParams, load_model
from tinyengine.clock import IterationClock
from tinyengine.guard import Guard
from tinyengine.model.untrained import save_random_model
from tinyengine.overlap import OverlappedEngine

FOLDER = str(Path(tinyengine.__file__).parent)
OURS = ("request", "memory", "queue", "scheduler", "batch", "sampler", "engine", "outputs", "stream", "guard", "checks")
LATER = ("inputs", "detokenizer", "trace", "prefix_cache", "speculate", "priority", "ablation", "budget", "overlap")
FILES = {f"{FOLDER}/{name}.py" for name in (*OURS, *LATER)}

SETUPS = {
    **{stage: (Engine, stage, {}) for stage in STAGES},
    "paged, little memory": (Engine, "paged", {"num_slots": 40, "block_size": 4}),
    "prefix cache": (Engine, "chunked", {"num_slots": 40, "block_size": 4, "enable_prefix_caching": True}),
    "guesses": (Engine, "chunked", {"num_speculative_tokens": 3}),
    "priority": (Engine, "chunked", {"num_slots": 40, "block_size": 4, "policy": "priority"}),
    "turns": (Engine, "chunked", {"mixing": False}),
    "a bounded trace": (Engine, "chunked", {"trace": 2}),
    "overlap": (OverlappedEngine, "chunked", {"num_slots": 40, "block_size": 4}),
    "overlap, orca": (OverlappedEngine, "orca", {}),
}


def long_enough(token_ids):
    """A stop_when, which is a user's function with lines of its own."""
    return len(token_ids) >= 7


JOBS = {  # every way to end: max_tokens, a stop string (see `expected`), stop_when; one arrives later
    "short": ("What is 23 + 45?", SamplingParams(max_tokens=4)),
    "count": ("Count from 7 to 31.", SamplingParams(max_tokens=12)),
    "stopped": ("Count from 7 to 31.", SamplingParams(max_tokens=12)),
    "drawn": ("Tell me a story.", SamplingParams(max_tokens=9, temperature=1.0, seed=5)),
    "asked": ("Count from 8 to 30.", SamplingParams(max_tokens=14, stop_when=long_enough)),
    "long": ("What is the capital of France? " * 2, SamplingParams(max_tokens=5)),
}


@pytest.fixture(autouse=True)
def interrupts_come():
    """Also in a background job, which a shell starts with interrupts ignored."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, usual)


@pytest.fixture(scope="module")
def tiny(tiny, tmp_path_factory):
    """A random model of one small layer, which speaks the embedded one's tokens: thousands of steps are run with it."""
    folder = tmp_path_factory.mktemp("one-layer")
    save_random_model(
        folder,
        vocab_size=tiny.config.vocab_size,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    model = load_model(folder, device="cpu")
    model.tokenizer = tiny.tokenizer
    return model


@pytest.fixture(scope="module")
def expected(tiny):
    def alone(prompt, params):
        return Engine(tiny, "static", max_num_seqs=1, num_slots=128, fast=False).generate(prompt, params)[0]

    text = alone(*JOBS["count"]).text
    JOBS["stopped"] = JOBS["stopped"][0], SamplingParams(max_tokens=12, stop=(text[len(text) // 2 :][:3],))
    outputs = {name: alone(*job) for name, job in JOBS.items()}
    assert outputs["stopped"].finish_reason == "stop" and len(outputs["stopped"].token_ids) < 12
    return outputs


def make(tiny, setup: str, fast: bool = False):
    kind, stage, options = SETUPS[setup]
    options = {"num_slots": 512, "max_num_seqs": 4, "max_num_batched_tokens": 12, **options}
    return kind(tiny, stage, clock=IterationClock(), fast=fast, **options)


class Lines:
    """Sends an interrupt at the first line of a call that has had none yet; `is_done` after a round of calls in which
    there was no such line. What runs after an interrupt, to clean up, is not interrupted again."""

    def __init__(self):
        self.hit: set[tuple[str, int]] = set()
        self.before = -1

    def is_done(self) -> bool:
        before, self.before = self.before, len(self.hit)
        return before == self.before

    def one(self, call, *args, **options):
        """Makes a call that gets at most one interrupt. A KeyboardInterrupt that comes out of it ends here."""
        sent = False

        def on_line(frame, event, argument):
            nonlocal sent
            line = frame.f_code.co_filename, frame.f_lineno
            if event == "line" and not sent and line not in self.hit:
                sent = True
                self.hit.add(line)
                signal.raise_signal(signal.SIGINT)
            return on_line

        def on_call(frame, event, argument):
            return on_line if frame.f_code.co_filename in FILES else None

        before = sys.gettrace()
        sys.settrace(on_call)
        try:
            return call(*args, **options)
        except KeyboardInterrupt:
            return None
        finally:
            sys.settrace(before)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def add_all(engine):
    for name, (prompt, params) in JOBS.items():
        engine.add_request(prompt, params, name, arrival=40.0 if name == "long" else 0.0)


def run(engine, disturbed):
    """Serves all jobs; `disturbed` makes every call of step."""
    steps = 0
    while engine.has_unfinished():
        disturbed(engine.step)
        engine.memory.check()
        steps += 1
        assert steps < 2000, "stuck"


def judge(engine, expected, errors=frozenset()):
    """All as in an undisturbed run, but for the requests in `errors`, whose own fault ended them."""
    for name, output in expected.items():
        got = engine.outputs[name]
        if name in errors:
            assert got.finish_reason == "error" and got.error is not None
            assert got.token_ids == output.token_ids[: len(got.token_ids)]
            continue
        assert (got.token_ids, got.text) == (output.token_ids, output.text), name
        assert got.finish_reason == output.finish_reason, name
    assert_nothing_left(engine)
    if engine.trace.keep is None:
        told: dict[str, list[int]] = {}
        for iteration in engine.trace.iterations:
            for span in iteration.spans:
                told.setdefault(span.request_id, []).extend(span.tokens)
        for name in expected:
            assert told[name] == engine.outputs[name].token_ids, f"the trace tells otherwise of {name}"
        ends = Counter(event.request_id for event in engine.trace.events if event.kind == "finish")
        assert all(ends[name] == 1 for name in expected)


@pytest.mark.parametrize("setup", SETUPS)
def test_an_interrupt_at_every_line_of_a_step_costs_nothing(tiny, expected, setup):
    lines, rounds = Lines(), 0
    while not lines.is_done():
        engine = make(tiny, setup)
        add_all(engine)
        run(engine, lines.one)
        judge(engine, expected)
        preempts = any(event.kind == "preempt" for event in engine.trace.events)
        assert preempts == ("block_size" in SETUPS[setup][2])
        rounds += 1
        assert rounds < 100
    print(f"{setup}: {len(lines.hit)} lines, {rounds} runs")
    assert len(lines.hit) > 250


@pytest.mark.parametrize("setup", ["static", "prefix cache", "overlap"])
def test_an_interrupt_at_every_line_of_add_and_abort_costs_nothing(tiny, expected, setup):
    lines, engine, rounds = Lines(), make(tiny, setup), 0
    while rounds < 40 or not lines.is_done():  # rounds take turns
        for name, (prompt, params) in JOBS.items():
            while not engine.outputs.knows(name):
                arrival = 40.0 if name == "long" else None
                lines.one(engine.add_request, prompt, params, name, arrival=arrival)
        for name in JOBS if rounds % 2 else ["count"]:  # waiting, running, or not arrived yet
            while engine.outputs[name].finish_reason is None:
                lines.one(engine.abort_request, name)
            engine.outputs.pop(name)
        engine.trace.requests.clear()  # the names are to be free again
        if not rounds % 2:
            engine.step()
            for name in JOBS:
                if name in engine.outputs.open:
                    engine.abort_request(name)
                engine.outputs.pop(name, None)
            engine.trace.requests.clear()
        engine.memory.check()
        rounds += 1
        assert rounds < 400
    print(f"{setup}: {len(lines.hit)} lines, {rounds} rounds")
    if setup == "overlap":
        engine.settle()
    assert_nothing_left(engine)
    engine = make(tiny, setup)
    add_all(engine)
    run(engine, passing)
    judge(engine, expected)


@pytest.mark.parametrize("setup", ["selective", "chunked", "guesses", "overlap"])
def test_an_interrupted_generate_leaves_nothing(tiny, expected, setup):
    lines, rounds = Lines(), 0
    prompts, params = zip(*JOBS.values())
    engine = make(tiny, setup)
    while not lines.is_done():
        outputs = lines.one(engine.generate, list(prompts), list(params))
        assert_nothing_left(engine)
        assert not engine.outputs, "what generate made it has to take back"
        for got, output in zip(outputs or (), expected.values()):
            assert (got.token_ids, got.text) == (output.token_ids, output.text)
        rounds += 1
        assert rounds < 3000
    assert rounds > 50


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("setup", ["static", "selective", "chunked", "guesses", "overlap"])
def test_interrupts_at_random_moments(tiny, expected, setup, fast):
    """As a user sends them: from a timer, whatever the engine is doing, inside of the model too."""
    delays = [0.0003 + 0.00037 * n for n in range(12)]
    engine = make(tiny, setup, fast)
    add_all(engine)
    run(engine, lambda call: call())  # loops are compiled now: LLVM does not survive an interrupt while it compiles
    engine = make(tiny, setup, fast)

    armed: list[bool] = []

    def on_alarm(number, frame):
        if armed:  # else it comes too late
            armed.clear()
            signal.raise_signal(signal.SIGINT)

    def timed(call):
        delays.append(delays.pop(0))
        try:
            armed.append(True)
            signal.setitimer(signal.ITIMER_REAL, delays[0])
            call()
            armed.clear()
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        delays[0] *= 1.2  # in the end every step gets through

    usual = signal.signal(signal.SIGALRM, on_alarm)
    try:
        add_all(engine)
        run(engine, timed)
    finally:
        signal.signal(signal.SIGALRM, usual)
    judge(engine, expected)


class Boom(Exception):
    """What an outside call raises."""


def raises_sometimes(monkeypatch, owner, name: str, every: int):
    """One call in `every` of owner.name raises, at random."""
    right, calls, chance = getattr(owner, name), Counter(), random.Random(every)

    def call(*args, **options):
        calls["all"] += 1
        if chance.random() < 1 / every:
            calls["raised"] += 1
            raise Boom(f"{name} was called {calls['all']} times")
        return right(*args, **options)

    monkeypatch.setattr(owner, name, call)
    return calls


def passing(call):
    with suppress(Boom):
        call()


OUTSIDE = {
    "the model": lambda engine: (engine.model, "forward"),
    "its logits": lambda engine: (engine.model, "logits"),
    "the layout": lambda engine: (engine.attention, "layout"),
    "the clock's now": lambda engine: (engine.clock, "now"),
    "the clock's iteration_done": lambda engine: (engine.clock, "iteration_done"),
    "the clock's wait_until": lambda engine: (engine.clock, "wait_until"),
    "the scheduler's observe": lambda engine: (engine.scheduler, "observe"),
    "the draw": lambda engine: (engine, "draw"),
}


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("setup", ["static", "selective", "chunked", "guesses", "overlap"])
def test_an_outside_call_that_raises_costs_nothing(tiny, expected, monkeypatch, setup, outside):
    for every in (2, 3, 5):
        engine = make(tiny, setup)
        with monkeypatch.context() as patch:
            owner, name = OUTSIDE[outside](engine)
            add_all(engine)
            calls = raises_sometimes(patch, owner, name, every)
            run(engine, passing)
        assert calls["raised"] or outside == "the clock's wait_until"
        judge(engine, expected)


@pytest.mark.parametrize("setup", ["static", "chunked", "guesses", "overlap"])
def test_a_tokenizer_that_raises_ends_its_own_request(tiny, expected, monkeypatch, setup):
    engine = make(tiny, setup)
    add_all(engine)
    broken = engine.outputs.open["count"].detokenizer
    right, calls = broken.push, Counter()

    def push(token):
        calls["all"] += 1
        if calls["all"] == 4:
            raise Boom("no text")
        return right(token)

    broken.push = push
    while engine.has_unfinished():
        engine.step()
    judge(engine, expected, errors={"count"})
    assert isinstance(engine.outputs["count"].error, Boom) and len(engine.outputs["count"].token_ids) == 4


@pytest.mark.parametrize("setup", ["static", "chunked", "guesses", "overlap"])
def test_a_flush_that_raises_ends_its_own_request(tiny, expected, setup):
    engine = make(tiny, setup)
    add_all(engine)

    def flush():
        raise Boom("no text")

    engine.outputs.open["count"].detokenizer.flush = flush
    while engine.has_unfinished():
        engine.step()
    judge(engine, expected, errors={"count"})


def test_a_stop_when_that_is_interrupted_is_asked_again(tiny):
    asked = []

    def stop_when(token_ids):
        asked.append(len(token_ids))
        if len(asked) == 3:
            signal.raise_signal(signal.SIGINT)
        return len(token_ids) == 5

    engine = Engine(tiny, num_slots=128)
    engine.add_request("Count from 7 to 31.", SamplingParams(max_tokens=12, stop_when=stop_when), "r")
    streamed, interrupts = [], 0
    while engine.has_unfinished():
        try:
            streamed += engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert interrupts == 1
    assert asked == [1, 2, 3, 3, 4, 5]
    output = engine.outputs["r"]
    assert [token.token_id for token in streamed] == output.token_ids and output.finish_reason == "stop"


def test_a_later_interrupt_stops_a_scheduler_that_never_returns(tiny, monkeypatch):
    """The third comes a second after the first; the second is the same key, pressed twice."""
    engine = Engine(tiny, num_slots=128)
    engine.add_request("What is 23 + 45?")
    received = []

    def endless():
        while True:
            received.append(1)
            now = 0.6 * len(received)
            monkeypatch.setattr("tinyengine.guard.time.monotonic", lambda now=now: now)
            signal.raise_signal(signal.SIGINT)
            assert len(received) < 5

    engine.scheduler.schedule = endless
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert len(received) == 3
    monkeypatch.undo()
    del engine.scheduler.schedule
    while engine.has_unfinished():
        engine.step()
    assert len(engine.outputs["r0"].token_ids) == 16


# ---- One thread at a time -------------------------------------------------------------------------------------


def in_a_thread(call):
    """What the call raises in a second thread."""
    raised = []

    def body():
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return raised[0] if raised else None


def test_a_second_thread_is_refused_in_one_sentence_and_changes_nothing(tiny, expected):
    engine, refused = make(tiny, "chunked"), {}
    calls = {
        "step": engine.step,
        "add_request": lambda: engine.add_request("What is 23 + 45?"),
        "abort_request": lambda: engine.abort_request("count"),
        "generate": lambda: engine.generate("What is 23 + 45?"),
        "stream": lambda: next(engine.stream("What is 23 + 45?")),
    }
    right = engine.model.forward

    def forward(*args):
        for name, call in calls.items():
            if name not in refused:
                refused[name] = in_a_thread(call)
        return right(*args)

    engine.model.forward = forward
    try:
        add_all(engine)
        while engine.has_unfinished():
            engine.step()
    finally:
        del engine.model.forward
    assert set(refused) == set(calls)
    for name, error in refused.items():
        assert isinstance(error, RuntimeError) and "another thread is using this engine" in str(error), name
    judge(engine, expected)


def test_threads_may_take_turns_and_close_streams_of_each_other(tiny, expected):
    engine = make(tiny, "chunked")
    stream = engine.stream("Count from 7 to 31.", SamplingParams(max_tokens=12))
    next(stream)
    assert in_a_thread(lambda: next(stream)) is None
    right, closed = engine.model.forward, []

    def forward(*args):
        closed.append(in_a_thread(stream.close))  # while this thread is at work
        return right(*args)

    engine.model.forward = forward
    try:
        engine.generate("What is 23 + 45?")
    finally:
        del engine.model.forward
    assert closed and set(closed) == {None}
    assert_nothing_left(engine)
    assert not engine.outputs


def test_another_thread_is_never_kept_from_its_interrupts():
    guard = Guard()

    def body():
        with guard, guard.window():
            pass

    assert in_a_thread(body) is None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_guards_stand_inside_each_other():
    outer, inner, seen = Guard(), Guard(), []
    with pytest.raises(KeyboardInterrupt), outer:
        with inner, inner, outer:
            signal.raise_signal(signal.SIGINT)
            seen.append("inner")
        seen.append("outer")
        with outer.window():
            seen.append("never")
    assert seen == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and not outer.is_held and not inner.is_held


def test_bursts_of_interrupts_leave_no_part_open():
    """However many come, and wherever: in the guard's own lines too, and while an earlier one is on its way out."""
    guard, other, done = Guard(), Guard(), threading.Event()
    chance, raised = random.Random(1), Counter()

    def work():
        with guard, other, guard:
            with guard.window(), guard, other.window():
                sum(range(20))
            sum(range(20))

    def on_interrupt(number, frame):
        while frame is not None:
            if frame.f_code is work.__code__:  # else it comes too late
                raised["all"] += 1
                raise KeyboardInterrupt
            frame = frame.f_back

    def send():
        while not done.wait(chance.random() * 0.0005):
            for _ in range(chance.randrange(1, 6)):
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
                done.wait(chance.random() * 0.00005)

    signal.signal(signal.SIGINT, on_interrupt)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        until = time.monotonic() + 20
        while raised["all"] < 100 and time.monotonic() < until:
            with suppress(KeyboardInterrupt):
                work()
            assert not guard.is_held and not guard.computes and signal.getsignal(signal.SIGINT) is on_interrupt
    finally:
        done.set()
        sender.join()
    assert raised["all"] >= 100

    def enter():
        with guard, other:
            pass

    assert in_a_thread(enter) is None

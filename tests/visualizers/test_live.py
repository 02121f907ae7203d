"""An engine drawn while it runs in a thread."""

import json
import time
from itertools import pairwise

import pytest
from helpers.traces import Stepper, requests

from tinyengine.scheduler import Orca
from visualizers import live


def until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


def engine(count=12) -> Stepper:
    return Stepper(Orca, requests(count))


def test_it_runs_to_the_end_and_draws_the_whole():
    player = live(engine(), interval=0)
    player.wait()
    assert not player.running and not player.engine.has_unfinished()
    (drawn,) = player.data["engines"]
    assert len(drawn["time"]) == len(player.engine.trace.iterations) == 51


def test_the_widget_is_sent_what_has_happened_so_far():
    player = live(engine(), interval=0, pace=0.03)
    seen = []
    player.widget.observe(lambda change: seen.append(len(json.loads(change["new"])["engines"][0]["time"])), "data")
    assert player.widget.running
    player.wait()
    assert seen == sorted(seen) and len(set(seen)) > 3 and seen[-1] == 51
    assert not player.widget.running


@pytest.mark.parametrize("press", ["method", "button"])
def test_pause_stops_the_engine_and_resume_goes_on(press):
    player = live(engine(), interval=0, pace=0.005)
    widget = player.widget
    until(lambda: len(player.engine.trace.iterations) > 3)
    player.pause() if press == "method" else setattr(widget, "paused", True)
    count = len(player.engine.trace.iterations)
    assert player.paused and widget.paused and 3 < count < 51
    time.sleep(0.1)
    assert len(player.engine.trace.iterations) == count  # it stands
    assert len(player.data["engines"][0]["time"]) == count  # and all of it is drawn
    player.engine.step()  # the engine is ours
    player.resume() if press == "method" else setattr(widget, "paused", False)
    player.wait()
    assert not widget.paused and len(player.engine.trace.iterations) == 51


def test_a_step_that_was_about_to_begin_does_not_begin_after_a_pause():
    player = live(engine(), pace=0.001)
    with player._step:  # the thread comes as far as this, and waits
        time.sleep(0.05)
        player._go.clear()
        count = len(player.engine.trace.iterations)
    time.sleep(0.05)
    assert len(player.engine.trace.iterations) == count
    player.stop()


def test_stop_leaves_the_rest_undone():
    player = live(engine(), pace=0.005)
    until(lambda: player.engine.trace.iterations)
    player.pause()
    player.stop()
    assert not player.running and player.engine.has_unfinished()


def test_what_the_engine_raises_is_raised_by_wait():
    broken = engine()
    steps = iter(range(5))
    sound = broken.step

    def step():
        if next(steps) == 4:
            raise ArithmeticError("the model is on fire")
        sound()

    broken.step = step
    player = live(broken, interval=100)
    with pytest.raises(ArithmeticError, match="on fire"):
        player.wait()
    assert len(player.data["engines"][0]["time"]) == 4  # what went before is drawn


def test_drawing_takes_a_small_part_of_the_time(monkeypatch):
    """However slow a picture is, it is followed by four times as long without one."""
    player = live(engine(60), interval=0, pace=0.003)
    draws, load = [], player.load

    def slow(*args):
        draws.append(time.monotonic())
        time.sleep(0.05)
        load(*args)

    monkeypatch.setattr(player, "load", slow)
    player.wait()
    assert len(draws) > 2
    assert all(later - sooner >= 0.05 + 0.2 for sooner, later in pairwise(draws[:-1]))  # the last one is the end's

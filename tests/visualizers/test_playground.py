"""The playground without a browser: its runs, its code, its words, its twin."""

import asyncio
import base64
import re

import pytest

from tinyengine.metrics import measure
from tinyengine.trace import Trace
from visualizers import Player, dry_run, playground, presets
from visualizers.dummy import STAGES
from visualizers.sandbox import WAIT


@pytest.fixture(autouse=True)
def no_loop():
    """The browser of other tests leaves its event loop running in this thread; here only a test's own may run."""
    running = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


def test_the_stages_are_those_of_the_engine():
    stages = pytest.importorskip("tinyengine.stages").STAGES
    for name, (scheduler, memory, is_padded) in STAGES.items():
        assert stages[name][:2] == (scheduler, memory)
        assert is_padded == (stages[name][2].__name__ == "Padded")


def test_a_dry_run_is_counted_in_iterations():
    """Worked by hand: A (2, 3) and B (1, 1) at once, C (1, 2) at 1, two batch slots."""
    trace = dry_run("orca", [(2, 3), (1, 1), (1, 2, 1)], max_num_seqs=2, num_slots=100)
    ran = [[span.request_id for span in iteration.spans] for iteration in trace.iterations]
    assert ran == [["r0", "r1"], ["r0", "r2"], ["r0", "r2"]]
    assert [iteration.padding for iteration in trace.iterations] == [1, 0, 0]
    assert [iteration.time for iteration in trace.iterations] == [0, 1, 2]
    assert measure(trace).ttft.mean == 1


def test_a_request_that_arrives_late_is_waited_for():
    trace = dry_run("orca", [(1, 1), (1, 1, 7)])
    assert [iteration.time for iteration in trace.iterations] == [0, 7]


def test_an_output_may_be_shorter_than_max_tokens():
    trace = dry_run("orca", [(4, 3), (4, 9)], max_tokens=6)
    assert [record.max_tokens for record in trace.requests.values()] == [6, 9]
    emitted = [sum(len(s.tokens) for i in trace.iterations for s in i.spans if s.request_id == r) for r in ("r0", "r1")]
    assert emitted == [3, 9]
    assert trace.iterations[0].memory["r0"].reserved == 10


def test_beyond_the_ridge_an_iteration_takes_longer():
    assert [one.duration for one in dry_run("paged", [(96, 2)], ridge=32).iterations] == [3, 1]


def test_a_shared_prefix_is_found_where_prefixes_are_cached():
    work = [(40, 3), (40, 3, 5)]
    assert measure(dry_run("paged", work, shared=32, enable_prefix_caching=True)).cached_tokens == 32
    assert measure(dry_run("paged", work, shared=32)).cached_tokens == 0


@pytest.mark.parametrize(
    ("stage", "options", "sentence"),
    [
        ("orco", {}, "stage is 'orco', but the stages with dummy tokens are static, orca"),
        ("orca", {"policy": "priority"}, "policy is no option of stage 'orca': leave it out"),
        ("orca", {"num_slots": 5}, "request 'r0' can come to need 8 K/V slots .* but the arena has 5"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(stage, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        dry_run(stage, [(4, 4)], **options)


def ran(trace: Trace) -> list:
    return [(iteration.spans, iteration.time, iteration.padding, iteration.memory) for iteration in trace.iterations]


SETTINGS = [
    {},
    {"shared": 16, "every": 3, "max_tokens": 40},
    {"long_prompt": 100, "num_slots": 1000, "policy": 3, "order": 2, "ridge": 16},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", presets.PRESETS)
def test_the_code_makes_the_same_run(name, settings):
    play = playground(name)
    play.settings |= settings
    play.stages = list(STAGES)
    play.widget.children[0]  # made
    play.run()
    *lines, last = play.code().split("\ncompare(")
    names: dict = {}
    exec(f"{lines[0]}\nplayer = compare({last}\n", names)
    assert isinstance(names["player"], Player) and names["player"].data["views"] == list(play.preset.views)
    without_axes = [[{**e, "tops": None} for e in one.data["engines"]] for one in (names["player"], play.player)]
    assert without_axes[0] == without_axes[1]
    assert len(play.code().splitlines()) < 22 and max(map(len, play.code().splitlines())) <= 130


@pytest.mark.parametrize("name", presets.PRESETS)
def test_each_preset_shows_its_pain(name):
    chosen = presets.preset(name)
    settings = presets.settings_of(chosen)
    rows = {key: presets.scores(trace) for key, trace in presets.traces(list(chosen.stages), settings, 0).items()}
    pains = {
        "00": lambda one: one["iterations"] > 20 and one["tbt"] == 1,
        "01": lambda one: one["idle"] > 20,
        "02": lambda static, orca: static["iterations"] > orca["iterations"] and static["idle"] > 2 * orca["idle"],
        "03": lambda orca, selective: orca["padding"] > 50 and selective["padding"] == 0,
        "04": lambda slots, blocks: slots["waste"] > 2 * blocks["waste"] and slots["iterations"] > blocks["iterations"],
        "05": lambda paged, chunked: paged["tbt"] > 4 * chunked["tbt"],
    }
    assert pains[name](*rows.values()), rows
    assert set(chosen.controls) <= set(presets.CONTROLS) and set(chosen.columns) <= set(presets.COLUMNS)
    for key, value in settings.items():
        control = presets.CONTROLS[key]
        assert value in [number for _, number in control.choices] or control.low <= value <= control.high


def test_the_stall_is_drawn_as_tall_as_it_is():
    engines = playground("05").player.data["engines"]
    assert [engine["tops"] for engine in engines] == [[243, 243 / 32]] * 2
    assert max(engines[0]["duration"]) == 243 / 32


def test_lessons_are_named_by_number_or_text():
    assert presets.preset(2) is presets.preset("02")
    with pytest.raises(ValueError, match="preset is '9', but the presets are 00, 01, 02"):
        playground("9")


def controls(play) -> dict:
    found, todo = {}, [play.widget]
    while todo:
        one = todo.pop()
        todo += getattr(one, "children", ())
        if getattr(one, "description", ""):
            found[one.description] = one
    return found


def test_a_slider_a_switch_and_a_button_change_the_run():
    play = playground("02")
    knobs, before = controls(play), play._scores.value
    knobs["batch slots"].value = 6
    assert play._scores.value != before and "batch slot" not in play._error.value
    knobs["paged"].value = True
    assert list(play.traces) == ["static", "orca", "paged"] and "paged" in play._scores.value
    work = play.code()
    knobs["other requests"].click()
    assert play.code() != work and play._copy.code == play.code()


def test_the_scoreboard_tells_what_the_traces_tell():
    play = playground("02")
    play.widget.children[0]
    rows = re.findall(r"<tr><th>(\w+)</th>(.*?)</tr>", play._scores.value)
    for name, cells in rows:
        numbers = measure(play.traces[name])
        told = re.findall(r"<td>(?:<b>)?([\d.,]+)", cells)
        assert told[:2] == [str(numbers.iterations), str(numbers.idle_slot_steps)]
        assert float(told[2]) == pytest.approx(numbers.ttft.mean, abs=0.06)


def test_an_error_is_a_sentence_and_leaves_the_last_run():
    play = playground("02")
    knobs = controls(play)
    scores = play._scores.value
    knobs["K/V slots"].value = 16
    assert "can come to need" in play._error.value and "te-stale" in play._result._dom_classes
    assert play._scores.value == scores
    knobs["K/V slots"].value = 320
    assert play._error.value == "" and "te-stale" not in play._result._dom_classes
    for stage in ("static", "orca"):
        knobs[stage].value = False
    assert "no engine is switched on: choose one" in play._error.value


def test_a_slider_that_is_dragged_runs_once():
    play = playground("02")
    knobs, runs, run = controls(play), [], play.run
    play.run = lambda: (runs.append(1), run())

    async def drag():
        for value in range(2, 12):
            knobs["batch slots"].value = value
        assert runs == []
        await asyncio.sleep(3 * WAIT)

    asyncio.run(drag())
    assert runs == [1] and play.traces["orca"].max_num_seqs == 11


def test_a_cell_output_carries_widget_and_png():
    play = playground("02")
    bundle = play._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]) == play.player.to_png()
    assert re.fullmatch(r"Playground\(static: \d+ iterations, orca: \d+ iterations\)", bundle["text/plain"])

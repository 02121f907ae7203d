"""The one-file page in a real Chromium: each control is used, and what it does is read off the picture."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.traces import CHUNKS, busy, cut, requests, run, sized, wander

from tinyengine.memory import Blocks, Slots
from tinyengine.metrics import token_times
from tinyengine.scheduler import Orca, Paged, Static
from tinyengine.trace import RequestRecord, Trace
from visualizers import compare, show
from visualizers.figures import composition, lives
from visualizers.figures import figures as at_playhead
from visualizers.memory_map import MemoryMap

pytestmark = pytest.mark.browser
GUTTER = 72  # px left of the cells, as in style.js

# The colour in the middle of each cell, by "row,iteration", found through the widget's own answer to "what is here?".
CELL_COLOURS = """root => {
    const strip = root.player.strips[0], {canvas} = strip, dpr = devicePixelRatio, cells = {};
    strip.view.labels = () => {}; // a name may stand beside its request, in cells that are idle
    root.player.draw();
    for (let x = 0; x < canvas.clientWidth; x += 1) for (let y = 0; y < canvas.clientHeight; y += 1) {
        const hit = strip.hit(x, y);
        if (!hit || hit.row < 0) continue;
        (cells[`${hit.row},${hit.i}`] ??= []).push([x, y]);
    }
    const middle = (points, n) => (points[0][n] + points.at(-1)[n]) / 2;
    return Object.fromEntries(Object.entries(cells).map(([key, points]) => [key,
        [...canvas.getContext("2d").getImageData(middle(points, 0) * dpr, middle(points, 1) * dpr, 1, 1).data]]));
}"""


@pytest.fixture
def open_page(browser, tmp_path):
    """open_page(player) -> a Playwright page, all controls in sight; any error in its console fails the test. rewind:
    its playhead is at the start, else at the end, unless the player says where."""
    pages, errors = [], []

    def open_(player, width=1000, scheme="light", rewind=True, more=True):
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(player.to_html(tmp_path / f"{len(pages)}.html").as_uri())
        pages.append(page)
        page.locator(".te-player").wait_for()
        settle(page)
        if more:
            page.locator('[data-act="more"]').click()
        if rewind or player.data["iteration"] is None:
            page.get_by_test_id("scrub").press("Home" if rewind else "End")
            settle(page)
        return page

    yield open_
    for page in pages:
        page.close()
    assert errors == []


@pytest.fixture
def two():
    return compare(static=run(Static, requests()), orca=run(Orca, requests()))


def settle(page):
    """Wait until what was asked for has been drawn."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def picture(page, number=0):
    settle(page)
    return page.locator(".te-engine canvas").nth(number).evaluate("canvas => canvas.toDataURL()")


def position(page) -> int:
    settle(page)
    return int(page.get_by_test_id("position").inner_text().removeprefix("iteration ")) - 1  # shown from 1 on


def press(page, name):
    page.locator(f'[data-act="{name}"]').click()
    settle(page)


def scrub(page, value):
    page.get_by_test_id("scrub").evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input')); }", value)
    settle(page)


def event_iterations(player) -> list[int]:
    kinds = ("admit", "finish", "preempt", "abort")
    return sorted({i for engine in player.data["engines"] for i, kind, *_ in engine["events"] if kind in kinds})


def open_as_it_is(browser, tmp_path, player):
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.goto(player.to_html(tmp_path / "as_it_is.html").as_uri())
    page.locator(".te-player").wait_for()
    settle(page)
    return page


def test_it_opens_at_iteration_1_with_few_controls(browser, tmp_path, two):
    page = open_as_it_is(browser, tmp_path, two)
    assert position(page) == 0
    shown = "all => all.filter(one => one.offsetParent).map(one => one.dataset.act ?? one.dataset.testid)"
    controls = page.locator(".te-player :is(button, select, input)")
    assert controls.evaluate_all(shown) == ["play", "scrub", "speed", "more"]
    page.locator('[data-act="more"]').click()
    assert len(controls.evaluate_all(shown)) == 19
    page.locator('[data-act="more"]').click()
    assert controls.evaluate_all(shown) == ["play", "scrub", "speed", "more"]
    page.close()


def test_it_opens_where_it_is_told_to(browser, tmp_path):
    page = open_as_it_is(browser, tmp_path, show(CHUNKS, iteration=4))
    assert position(page) == 3
    page.close()


def where_is(page, i, row=-1, strip=0):
    """Page coordinates of a cell of a strip, or of the marks above iteration i."""
    return page.evaluate(
        """([i, row, n]) => { const strip = document.querySelector(".te-player").player.strips[n];
            const box = strip.canvas.getBoundingClientRect();
            for (let x = 72; x < box.width; x++) for (let y = 1; y < box.height; y++) {
                const hit = strip.hit(x, y);
                if (hit?.i === i && hit.row === row) return [box.x + x + 3, box.y + y + 2];
            } }""",
        [i, row, strip],
    )


@pytest.mark.parametrize("row", [-1, 0])
def test_the_playhead_is_dragged_on_the_picture(open_page, two, row):
    page = open_page(two)
    page.mouse.move(*where_is(page, 2, row))
    page.mouse.down()
    page.mouse.move(*where_is(page, 20, row), steps=5)
    assert position(page) == 20
    page.mouse.move(*where_is(page, 9, row), steps=5)
    page.mouse.up()
    assert position(page) == 9 and page.get_by_test_id("follow").input_value() == ""
    page.mouse.move(*where_is(page, 30, row), steps=5)
    assert position(page) == 9


def test_the_playhead_is_dragged_in_a_window_that_scrolls(open_page, two):
    page = open_page(two)
    for _ in range(3):
        press(page, "in")
    page.mouse.move(*where_is(page, 1))
    page.mouse.down()
    page.mouse.move(*where_is(page, 6), steps=8)
    assert position(page) == 6  # the window stands still below the pointer
    page.mouse.move(995, 300, steps=2)
    page.mouse.up()
    assert position(page) > 8


def test_a_finger_drags_the_playhead(browser, tmp_path, two):
    context = browser.new_context(viewport={"width": 800, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(two.to_html(tmp_path / "touch.html").as_uri())
    page.locator(".te-player").wait_for()
    settle(page)
    session = context.new_cdp_session(page)
    touch = lambda kind, *points: session.send(  # noqa: E731
        "Input.dispatchTouchEvent", {"type": kind, "touchPoints": [{"x": x, "y": y} for x, y in points]}
    )
    touch("touchStart", where_is(page, 2, 0))
    for i in (4, 10, 25):
        touch("touchMove", where_is(page, i, 0))
    touch("touchEnd")
    assert position(page) == 25
    context.close()


IDLE = {
    "static": (
        run(Static, sized((2, 3), (2, 9), (2, 4), (2, 1)), 3), 5, 0,
        "static: the batch is not refilled until its longest request, r1, has ended (iteration 9)",
    ),
    "no hole": (
        run(Orca, sized((5, 15), (5, 5), (20, 55)), 3, Slots(80)), 2, 2,
        "r2 needs 75 K/V slots, the largest hole has 50",
    ),
    "pieces": (
        run(Orca, sized((5, 5), (5, 15), (5, 5), (5, 15), (10, 10)), 4, Slots(60)), 7, 0,
        "r4 needs 20 K/V slots, the largest hole has 10 (20 are free, but not in one piece)",
    ),
    "blocks": (
        run(Paged, sized((28, 20), (28, 20)), 2, Blocks(12, 4)), 3, 1,
        "r1 needs 7 blocks for its 28 tokens, 4 are free",
    ),
    "budget": (CHUNKS, 0, 1, "the token budget of 4 is used up"),
    "preempted": (CHUNKS, 4, 1, "r1 was preempted in this iteration, and then nobody joins"),
    "empty": (run(Orca, sized((2, 3), (2, 9)), 3), 5, 0, "nobody waits: the queue is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", IDLE)
def test_an_idle_cell_answers_why_nobody_is_in_it(open_page, case):
    trace, i, row, answer = IDLE[case]
    page = open_page(show(trace))
    x, y = where_is(page, i, row)
    page.mouse.move(x, y)
    told = page.locator(".te-tip div").all_inner_texts()
    assert told[0].startswith("idle") and told[2].startswith(answer), told
    page.mouse.click(x, y)
    assert position(page) == i
    assert page.get_by_test_id("note").inner_text().startswith(f"batch slot {row} is idle: {answer}")
    press(page, "back" if i else "forward")
    assert page.get_by_test_id("note").inner_text() == ""


NAMES = """() => {
    const strip = document.querySelector(".te-player").player.strips[0], g = strip.canvas.getContext("2d"), found = [];
    g.fillText = (text, x, y) => found.push(text);
    strip.view.labels(g, {...strip.pen((value) => 72 + value * strip.player.scale), now: 99});
    return found;
}"""


@pytest.mark.parametrize(("width", "named"), [(1400, 12), (1000, 12), (500, 6)])
def test_short_requests_are_named_too(open_page, two, width, named):
    page = open_page(two, width=width)
    assert len({name for name in page.evaluate(NAMES) if name.startswith("r")}) >= named


def test_prompts_stand_behind_the_names(open_page):
    records = {"r0": RequestRecord("r0", 6, 3, 0.0, prompt="<|user|>What is 2 + 2?<|assistant|>")}
    page = open_page(show(replace(CHUNKS, requests={**CHUNKS.requests, **records})))
    assert "What is 2 + 2?" in page.evaluate(NAMES)
    page.mouse.move(*where_is(page, 0, 0))
    assert page.locator(".te-tip div").all_inner_texts()[1] == "What is 2 + 2?"
    assert page.get_by_test_id("follow").locator("option").all_inner_texts()[1] == "r0: What is 2 + 2?"


def test_padding_that_no_model_told_is_not_called_0(open_page):
    trace = run(Orca, requests())
    untold = replace(trace, pieces={}, iterations=[replace(one, duration=1, padding=0) for one in trace.iterations])
    columns = lambda page: page.locator(".te-figures thead th").all_inner_texts()  # noqa: E731
    assert "padding rows so far" in columns(open_page(show(trace)))
    assert "padding rows so far" not in columns(open_page(show(untold)))
    page = open_page(compare(told=trace, untold=untold))
    assert page.get_by_test_id("padding").all_inner_texts()[1] == "not known"


def test_the_colours_are_right_after_a_change_out_of_the_page(open_page, two):
    page, dark = open_page(two), open_page(two, scheme="dark")
    page.locator(".te-player").evaluate("root => { window.taken = root; root.remove(); }")  # as a notebook does
    page.emulate_media(color_scheme="dark")
    page.evaluate("document.querySelector('main').append(taken)")
    page.wait_for_timeout(200)
    assert picture(page) == picture(dark)


def test_play_moves_picture_and_readout_of_both_engines_until_pause(open_page, two):
    page = open_page(two)
    before = [picture(page, 0), picture(page, 1)]
    press(page, "play")
    page.wait_for_function("document.querySelector('[data-testid=position]').textContent === 'iteration 5'")
    assert page.locator('[data-act="play"]').get_attribute("aria-label") == "Pause (Space)"
    press(page, "play")
    assert position(page) >= 4
    assert picture(page, 0) != before[0] and picture(page, 1) != before[1]
    stopped = position(page), picture(page)
    page.wait_for_timeout(500)
    assert (position(page), picture(page)) == stopped


def test_play_stops_at_the_end_and_then_starts_over(open_page):
    page = open_page(show(CHUNKS))
    page.get_by_test_id("speed").select_option("20")
    press(page, "play")
    page.wait_for_function("document.querySelector('[data-act=play]').title === 'Play (Space)'")
    assert position(page) == 5
    page.get_by_test_id("speed").select_option("1")
    press(page, "play")
    assert position(page) == 0


def test_speed(open_page, two):
    page, gone = open_page(two), {}
    for speed in ("2", "20"):
        scrub(page, 0)
        page.get_by_test_id("speed").select_option(speed)
        press(page, "play")
        page.wait_for_timeout(1000)
        press(page, "play")
        gone[speed] = position(page)
    assert 1 <= gone["2"] <= 4 and gone["20"] >= 4 * gone["2"]


def test_step_and_scrub(open_page, two):
    page = open_page(two)
    first = picture(page)
    press(page, "forward")
    assert position(page) == 1 and picture(page) != first
    press(page, "back")
    assert position(page) == 0 and picture(page) == first
    press(page, "back")
    assert position(page) == 0
    scrub(page, 30)
    assert position(page) == 30 and picture(page) != first
    assert page.get_by_test_id("scrub").get_attribute("aria-valuetext") == "iteration 31"


@pytest.mark.parametrize("target", ["root", "range", "button"])
def test_keyboard_wherever_the_focus_is_and_no_key_leaks_to_the_notebook(open_page, two, target):
    page = open_page(two)
    page.evaluate("window.leaked = []; document.addEventListener('keydown', e => leaked.push(e.key))")
    page.locator({"root": ".te-player", "range": "input", "button": '[data-act="forward"]'}[target]).focus()
    jumps = event_iterations(two)
    keys = [
        ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 55), ("Home", 0), ("b", 0),
        ("Shift+ArrowRight", jumps[1]), ("Shift+ArrowRight", jumps[2]), ("Shift+ArrowLeft", jumps[1]),
    ]  # fmt: skip
    for key, expected in keys:
        page.keyboard.press(key)
        assert position(page) == expected, key
    assert page.evaluate("leaked") == []
    assert page.locator(".te-player").get_attribute("data-lm-suppress-shortcuts") == "true"
    if target != "button":  # there, Space presses the button
        page.keyboard.press("Space")
        page.wait_for_timeout(600)
        assert position(page) > jumps[1]


def test_jumps_stop_at_every_event_and_nowhere_else(open_page, two):
    page, seen = open_page(two), [0]
    while True:
        press(page, "next")
        if position(page) == seen[-1]:
            break
        seen.append(position(page))
    assert seen == event_iterations(two)
    press(page, "previous")
    assert position(page) == seen[-2]


def test_follow_by_list_and_by_click(open_page, two):
    page = open_page(two)
    plain = picture(page)
    page.get_by_test_id("follow").select_option(label="r4")
    assert picture(page) != plain
    notes = page.get_by_test_id("note")
    assert notes.nth(0).inner_text() == "following r4: waiting, place 1 of the queue"
    press(page, "next")
    assert position(page) == 6  # orca admits r4 there
    assert "following r4: prefill, iteration 7, batch slot 1" in notes.nth(1).inner_text()
    scrub(page, 0)
    page.locator(".te-player").press("Escape")
    assert picture(page) == plain and notes.nth(0).inner_text() == ""
    where = page.evaluate(
        """() => { const strip = document.querySelector(".te-player").player.strips[0];
                   for (let x = 0; ; x++) if (strip.hit(x, 60)?.i === 3) return [x + 2, 60, strip.hit(x, 60).row]; }"""
    )
    page.locator(".te-engine canvas").first.click(position={"x": where[0], "y": where[1]})
    assert page.get_by_test_id("follow").input_value() == str(where[2])  # in iteration 3, slot n holds request n


def test_the_readouts_are_the_figures_of_the_trace(open_page, two):
    page = open_page(two)
    names = {"waiting": "waiting", "idle": "idle_slot_steps", "padding": "padding", "tokens": "tokens_out"}
    for at in (0, 7, 21, 22, 50, 55):
        scrub(page, at)
        for number, engine in enumerate(two.data["engines"]):
            here = min(at, len(engine["time"]) - 1)
            figures, row = at_playhead(engine, here), page.locator("tr[data-engine]").nth(number)
            shown = {name: row.get_by_test_id(name).inner_text() for name in ("iteration", "running", *names)}
            assert shown == {name: str(figures[key]) for name, key in names.items()} | {
                "iteration": f"{here + 1} of {len(engine['time'])}",
                "running": f"{figures['running']} of {engine['slots']}",
            }
            assert page.get_by_test_id("caption").nth(number).inner_text() == engine["captions"][here]


TRACES = {"chunks": CHUNKS, "static": run(Static, requests())} | {
    f"random {seed}": wander(["a", "</b>", "7", "猫", "e"], 4, 30, random.Random(seed)) for seed in range(6)
}


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_exactly_the_busy_cells_are_coloured(open_page, trace):
    player = show(trace)
    page, engine = open_page(player), player.data["engines"][0]
    page.locator(".te-player").press("End")
    settle(page)
    colours = page.locator(".te-player").evaluate(CELL_COLOURS)
    busy = {f"{run[0]},{i}" for run in engine["runs"] for i in range(run[3], run[3] + run[4])}
    held = {f"{row},{i}" for row, _, first, end in engine["held"] for i in range(first, end)}
    assert len(colours) == engine["slots"] * len(engine["time"])
    assert {cell for cell, colour in colours.items() if colour[3]} - held == busy
    assert page.get_by_test_id("idle").inner_text() == str(at_playhead(engine)["idle_slot_steps"])


def test_the_future_is_faint(open_page):
    page = open_page(show(CHUNKS))
    press(page, "forward")
    alpha = {cell: colour[3] for cell, colour in page.locator(".te-player").evaluate(CELL_COLOURS).items()}
    assert alpha["0,1"] == 255 and 0 < alpha["0,2"] < 128 and alpha["1,0"] == 0


def test_the_tooltip_tells_a_cell(open_page):
    page = open_page(show(CHUNKS))
    tip, canvas = page.locator(".te-tip"), page.locator(".te-engine canvas")
    expected = {
        (0, 2): ["r0: decode", "iteration 3, batch slot 0", "1 token, position 6", 'emitted token 72 "</script>"'],
        (2, 2): ["r2: chunk", "iteration 3, batch slot 2", "2 tokens, positions 0 to 1", "emitted no token"],
        (2, 3): ["r2: in the batch, but no tokens of the budget were left", "iteration 4, batch slot 2"],
        (1, 4): ["idle; r1 was preempted", "iteration 5, batch slot 1", IDLE["preempted"][-1]],
        (1, 0): ["idle", "iteration 1, batch slot 1", IDLE["budget"][-1]],
    }
    for (row, i), lines in expected.items():
        canvas.hover(position={"x": GUTTER + 96 * i + 40, "y": 27 + 24 * row + 12})
        assert tip.locator("div").all_inner_texts() == lines
    page.mouse.move(5, 5)
    assert tip.is_hidden()


TICKS_BELOW = """root => {
    const {player} = root, [strip] = player.strips, g = strip.canvas.getContext("2d"), found = [];
    g.fillText = (text, x) => found.push([text, strip.hit(x, 40)?.i]);
    strip.drawTicks(g, player.from, player.plot);
    return found;
}"""


@pytest.mark.parametrize(("trace", "numbers"), [(CHUNKS, range(1, 7)), (run(Orca, requests()), [1, *range(5, 51, 5)])])
def test_iterations_are_numbered_from_1_below_their_cells(open_page, trace, numbers):
    ticks = open_page(show(trace)).locator(".te-player").evaluate(TICKS_BELOW)
    assert ticks == [[str(number), number - 1] for number in numbers]


def test_the_clock_of_seconds(open_page, two):
    page = open_page(two)
    scrub(page, 30)
    by_iteration = picture(page)
    page.get_by_test_id("clock").select_option("time")
    settle(page)
    assert picture(page) != by_iteration
    assert page.get_by_test_id("position").inner_text().endswith(" ms")
    assert page.get_by_test_id("iteration").nth(0).inner_text() == "31 of 56"
    engine = two.data["engines"][1]
    now = two.data["engines"][0]["time"][30]
    here = max(i for i, time in enumerate(engine["time"]) if time <= now)
    assert page.get_by_test_id("iteration").nth(1).inner_text() == f"{here + 1} of 51"


def test_zoom_scrolls_the_window_with_the_playhead(open_page, two):
    page = open_page(two)
    press(page, "in")
    press(page, "in")
    start = picture(page)
    scrub(page, 55)
    assert picture(page) != start
    assert page.evaluate("document.querySelector('.te-player').player.from") > 20


def test_dark_scheme(open_page, two):
    light, dark = open_page(two), open_page(two, scheme="dark")
    luminance = "root => getComputedStyle(root).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    assert dark.locator(".te-player").get_attribute("data-theme") == "dark"
    assert dark.locator(".te-player").evaluate(luminance) < 120 < light.locator(".te-player").evaluate(luminance)
    assert picture(dark) != picture(light)
    dark.emulate_media(color_scheme="light")
    assert picture(dark) == picture(light)


@pytest.mark.parametrize("width", [360, 600, 1400])
def test_nothing_sticks_out_at_any_width(open_page, two, width):
    page = open_page(two, width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    inside = """root => [...root.querySelectorAll("*")].filter(e => e.offsetParent && !e.closest("svg"))
        .filter(e => e.getBoundingClientRect().right > root.getBoundingClientRect().right + 0.5)
        .map(e => e.outerHTML.slice(0, 80))"""
    assert page.locator(".te-player").evaluate(inside) == []


@pytest.mark.parametrize(
    "trace", [Trace(), Trace("", 3, requests={"a": RequestRecord("a", 1, 1, 0.0)})], ids=["empty", "no iterations"]
)
def test_a_trace_without_iterations(open_page, trace):
    page = open_page(show(trace))
    for act in ("play", "forward", "back", "next", "previous"):
        press(page, act)
    page.get_by_test_id("clock").select_option("time")
    settle(page)
    assert page.get_by_test_id("position").inner_text() == "no iterations"
    assert page.get_by_test_id("caption").inner_text() == "no iteration ran"


# The other views

ALL = ("slots", "batch", "requests", "memory", "text", "flat")
BUSY = busy(1, 12)


def seek(page, number):
    page.evaluate("number => document.querySelector('.te-player').player.jump(number)", number)
    settle(page)


def column(page, view, x) -> list[int]:
    """How opaque each pixel of a column of a view's first canvas is, from the top down; 1 device px = 1 CSS px."""
    return page.locator(f'.te-view[data-view="{view}"] canvas').first.evaluate(
        """(canvas, x) => [...canvas.getContext('2d').getImageData(x, 0, 1, canvas.height).data]
            .filter((_, n) => n % 4 === 3)""",
        x,
    )


def test_each_view_is_switched_on_and_off_by_its_button_and_its_key(open_page):
    page = open_page(show(BUSY))
    shown = lambda: page.locator(".te-view").evaluate_all("views => views.map(view => view.dataset.view)")  # noqa: E731
    assert shown() == ["slots"]
    for number, view in enumerate(ALL[1:], 2):
        button = page.locator(f'[data-act="view {view}"]')
        assert button.get_attribute("aria-pressed") == "false"
        button.click()
        settle(page)
        assert shown() == ["slots", view] and button.get_attribute("aria-pressed") == "true"
        node = page.locator(f'.te-view[data-view="{view}"]')
        assert node.bounding_box()["height"] > 40
        before = look(node)
        seek(page, 20)
        assert look(node) != before  # it follows the playhead
        seek(page, 0)
        page.locator(".te-player").press(str(number))
        assert shown() == ["slots"]


def look(node):
    return node.inner_text(), node.locator("canvas").evaluate_all("all => all.map(canvas => canvas.toDataURL())")


def test_batch_bars_are_as_high_as_the_batch(open_page):
    player = show(CHUNKS, views=["batch"])
    page, rows = open_page(player, rewind=False), composition(player.data["engines"][0])
    most = max(max(map(sum, rows)), *player.data["engines"][0]["budget"])
    for number, row in enumerate(rows):
        above = column(page, "batch", GUTTER + 96 * number + 40)[8 + 95 :: -1]  # from the base line up
        drawn = next(n for n, opaque in enumerate([*above, 0]) if opaque < 200)
        budget = 96 * player.data["engines"][0]["budget"][number] / most  # its line may lie on the bar
        assert abs(drawn - 96 * sum(row) / most) < 2.5 or abs(drawn - budget) < 2.5


MEMORIES = {
    "blocks": BUSY,
    "slots": run(Orca, requests(9, 9, 9), 3, Slots(60)),
    "anything": wander(["a", "b", "c", "d", "e"], 3, 25, random.Random(5)),
}


@pytest.mark.parametrize("trace", MEMORIES.values(), ids=MEMORIES)
def test_memory_in_numbers_and_in_colour(open_page, trace):
    player = show(trace, views=["memory"])
    page, engine = open_page(player), player.data["engines"][0]
    memory = MemoryMap(engine)
    for number in range(0, len(engine["time"]), 5):
        seek(page, number)
        figures, size = memory.figures(number), engine["num_slots"]
        text = page.get_by_test_id("memory").inner_text()
        assert f" {figures['held']} of {size} K/V slots (" in text and f"filled {figures['filled']} (" in text
        assert (f"{figures['lost']} free K/V slot" in text) == engine["contiguous"]
    # every address of the strip, in the last iteration that was looked at: coloured if and only if it is held
    held = {slot for holding in memory.at(number).values() for part in holding.ranges for slot in range(*part)}
    height = 170 / memory.shown
    x = page.evaluate(
        """number => { const {strips: [strip]} = document.querySelector(".te-player").player;
                      for (let x = 72; ; x++) if (strip.hit(x, 50)?.i === number) return x + 2; }""",
        number,
    )
    block, opaque = engine["block_size"], column(page, "memory", x)
    for slot in range(block // 2, memory.shown, block):  # its middle, where no outline is
        assert (opaque[int(6 + (slot + (block == 1) / 2) * height)] > 0) == (slot in held), slot


def test_requests_tell_ttft_and_the_longest_gap(open_page):
    player = show(BUSY, views=["requests"])
    page, measured = open_page(player, rewind=False), token_times(BUSY)
    canvas, lives_ = page.locator(".te-view canvas"), lives(player.data["engines"][0])
    ids = [name for name, _ in player.data["requests"]]
    for row, life in enumerate(lives_):
        canvas.hover(position={"x": GUTTER + 8, "y": 6 + 18 * row + 9})
        lines, moments = page.locator(".te-tip div").all_inner_texts(), measured[ids[life.request]]
        ttft = moments[0] - BUSY.requests[ids[life.request]].arrival
        assert f"{float(f'{ttft * 1e3:.3g}'):g} ms (TTFT), in iteration {life.first + 1}" in lines[2]
        if len(set(moments)) > 1:
            gap = max(later - sooner for sooner, later in pairwise(moments))
            assert f"longest gap (TBT) {float(f'{gap * 1e3:.3g}'):g} ms" in lines[3]


def test_the_text_grows_with_the_playhead_and_the_first_wrong_token_is_marked(open_page):
    right = {"r0": [70, 99, 74], "r1": [71, 73, 75, 77], "r2": [76, 78]}
    page = open_page(show(CHUNKS, views=["text"], expected=right))
    said = lambda name: page.locator(f'.te-said[data-request="{name}"] .te-text').inner_text()  # noqa: E731
    verdicts = page.locator(".te-verdict")
    assert said(0) == "" and verdicts.count() == 0
    seek(page, 1)
    assert (said(0), said(1), verdicts.count()) == (" Paris", "a", 0)
    seek(page, 2)
    assert verdicts.all_inner_texts() == ['first wrong token: number 2, "</script>" instead of token 99']
    assert page.locator(".te-wrong").inner_text() == "</script>"
    seek(page, 5)
    assert said(0).replace(" ", "") == "Paris</script>." and said(1) == "abc"
    assert page.locator('.te-said[data-request="0"] .te-state').inner_text() == "3 tokens, finished"


def test_a_trace_that_forgets_shows_the_text_that_it_had_before(open_page):
    page = open_page(show(cut(CHUNKS, 3), views=["text"], expected={"r1": [71, 73, 75, 78]}))
    said = lambda name: page.locator(f'.te-said[data-request="{name}"] .te-text').inner_text()  # noqa: E731
    seek(page, 0)
    assert said(0).replace(" ", "") == "Paris</script>." and said(1) == "abc" and said(2) == ""
    seek(page, 2)
    assert page.locator('.te-said[data-request="1"] .te-state').inner_text() == "4 tokens, finished"
    assert page.locator(".te-verdict").inner_text().startswith("first wrong token: number 4, ")


def test_the_queue_of_any_iteration_is_that_of_the_trace(open_page):
    """Not all of them are kept in the page."""
    trace = run(Orca, requests(200, 4, 8), 2)
    page = open_page(show(trace))
    index = {request.request_id: n for n, request in enumerate(trace.requests.values())}
    queues = [[index[request_id] for request_id in queue] for queue in trace.queues()]
    assert len({tuple(queue) for queue in queues}) > 150
    shown = page.locator(".te-player").evaluate(
        "(root, places) => places.map(i => root.player.engines[0].queue(i))",
        places := [*range(len(queues)), *random.Random(1).sample(range(len(queues)), 50), 0],
    )
    assert shown == [queues[place] for place in places]


def test_the_answers_stand_behind_their_prompts(open_page):
    records = {"a": RequestRecord("a", 3, 1, 0.0, prompt="<|user|>2 + 2?<|assistant|>")}
    records["b"] = RequestRecord("b", 3, 1, 0.0, prompt="x" * 99)
    trace = Trace("", 2, requests=records, iterations=CHUNKS.iterations[:0], pieces={})
    page = open_page(show(trace, views=["text"]), rewind=False)
    assert page.locator(".te-prompt").all_inner_texts() == ["2 + 2? ", "x" * 43 + "… "]
    page.locator('.te-said[data-request="1"]').click()
    settle(page)
    assert page.locator(".te-prompt").all_inner_texts() == ["2 + 2? ", "x" * 99 + " "]


def test_requests_of_one_hue_differ_in_lines(open_page):
    page = open_page(show(run(Orca, sized(*[(1, 3)] * 8), 8)), rewind=False)
    rows = {row: column(page, "slots", GUTTER + 96 + 40)[27 + 24 * row :][:24] for row in (0, 7)}
    assert all(map(all, rows.values()))
    colours = page.locator(".te-engine canvas").evaluate(
        "canvas => [0, 7].map(row => [...canvas.getContext('2d').getImageData(208, 27 + 24 * row + 19, 1, 1).data])"
    )
    assert colours[0] != colours[1]
    assert "same colour, underlined: another request" in page.locator(".te-legend").inner_text()


@pytest.mark.parametrize(("budget", "listed"), [(10, True), (11, False)])
def test_a_budget_that_is_not_drawn_is_not_in_the_legend(open_page, budget, listed):
    trace = replace(CHUNKS, iterations=[replace(one, budget=budget) for one in CHUNKS.iterations])
    page = open_page(show(trace, views=["batch"]))
    assert ("token budget" in page.locator(".te-legend").inner_text()) == listed


def test_the_integers_of_the_batch_are_explained(open_page):
    page = open_page(show(BUSY, views=["flat"]), rewind=False)
    terms = page.locator(".te-lines dt")
    titles = terms.evaluate_all("all => all.map(term => [term.textContent, term.title.length > 30])")
    assert titles == [["cu_seqlens", True], ["positions", True], ["slot_mapping", True], ["last rows", True]]


def test_an_output_that_ends_too_early_is_wrong_too(open_page):
    page = open_page(show(CHUNKS, views=["text"], expected={"r0": [70, 72, 74, 75]}), rewind=False)
    assert page.locator(".te-verdict").inner_text() == "first wrong token: number 4, the end instead of token 75"


def test_the_flat_batch_is_the_batch_that_the_engine_builds(open_page):
    """cu_seqlens, positions, slot_mapping and last rows, beside those of the real Batch of the same plan."""
    torch = pytest.importorskip("torch")
    from tinyengine.batch import flat

    expected = []

    def watch(plan, memory):
        batch = flat(plan, memory, 0, torch.device("cpu"))
        names = {"cu_seqlens": "cu_seqlens_q", "positions": "positions", "slot_mapping": "slot_mapping", "last": "last"}
        expected.append({name: getattr(batch, real).tolist() for name, real in names.items()})

    trace = busy(4, 12, watch=watch)
    page = open_page(show(trace, views=["flat"]))
    for number, batch in enumerate(expected):
        seek(page, number)
        shown = {name: page.get_by_test_id(name).inner_text() for name in ("cu_seqlens", "positions", "slot_mapping")}
        assert numbers(shown["cu_seqlens"]) == batch["cu_seqlens"], number
        assert numbers(shown["positions"]) == batch["positions"]
        assert numbers(shown["slot_mapping"]) == batch["slot_mapping"]
        assert numbers(page.get_by_test_id("last rows").inner_text()) == batch["last"]


def numbers(text: str) -> list[int]:
    """ "3 to 5, 9" -> [3, 4, 5, 9]."""
    parts = [part.split(" to ") for part in text.split(", ") if part[0].isdigit()]
    return [n for first, *last in parts for n in range(int(first), int((last or [first])[0]) + 1)]


def test_a_padded_batch_is_drawn_as_a_rectangle(open_page):
    page = open_page(show(run(Static, sized((2, 4), (6, 4), (3, 1))), views=["flat"]))
    assert page.get_by_test_id("rows").inner_text() == "3 x 6 = 18, 7 of them padding"
    assert page.get_by_test_id("last rows").inner_text() == "1, 11, 14"
    seek(page, 2)
    assert page.get_by_test_id("rows").inner_text() == "3 x 1 = 3, 1 of them padding"


@pytest.mark.parametrize("kind", ["admit", "finish abort", "preempt", "stall"])
def test_jump_to_one_kind_of_event(open_page, kind):
    player = show(CHUNKS if kind in ("preempt", "stall") else BUSY)
    page, engine = open_page(player), player.data["engines"][0]
    page.get_by_test_id("jump").select_option(kind)
    wanted = {i for i, what, *_ in engine["events"] if what in kind.split()}
    wanted |= {end for _, end, *_ in engine["stalls"]} if kind == "stall" else set()
    seen = set()
    if 0 in wanted:
        seen.add(0)
    while True:
        here = position(page)
        press(page, "next")
        if position(page) == here:
            break
        seen.add(position(page))
    assert wanted and seen == wanted


def test_following_dims_the_others_in_every_view(open_page):
    page = open_page(show(BUSY, views=ALL, iteration=13), rewind=False)
    before = {
        view: look(page.locator(f'.te-view[data-view="{view}"]'))[1] for view in ALL if view not in ("batch", "text")
    }
    page.get_by_test_id("follow").select_option(label="r2")
    settle(page)
    for view, canvases in before.items():
        assert look(page.locator(f'.te-view[data-view="{view}"]'))[1] != canvases, view
    assert page.locator(".te-said:not(.te-faint)").count() == 1


@pytest.mark.parametrize("trace", [CHUNKS, *list(TRACES.values())[2:5], Trace("", 3), cut(BUSY, 9), cut(CHUNKS, 6)])
def test_all_views_of_any_trace_at_every_iteration(open_page, trace):
    page = open_page(show(trace, views=ALL), width=420)
    page.get_by_test_id("clock").select_option("time")
    for _ in range(12):
        press(page, "forward")
    assert page.evaluate("document.documentElement.scrollWidth") <= 420

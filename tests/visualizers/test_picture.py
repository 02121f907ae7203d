"""The static twin: what stands in its PNG, and what a notebook stores of it."""

import base64
import io
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.traces import CHUNKS, busy, requests, run, sized
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from PIL import Image

from tinyengine.memory import Holding, Slots
from tinyengine.request import Request, SamplingParams
from tinyengine.scheduler import Orca, Static
from tinyengine.trace import Iteration, RequestRecord, Span, Trace
from visualizers import compare, picture, plots, show
from visualizers.figures import lives
from visualizers.player import VIEWS
from visualizers.twins import batch, memory, text
from visualizers.twins.common import LEFT, SHARE, fit, iteration_ticks, lines_of
from visualizers.twins.common import pale as mixed


def pixels(png: bytes) -> np.ndarray:
    return imread(io.BytesIO(png))


def test_it_is_as_wide_as_github_shows_it_and_stacks_engines():
    one = pixels(show(CHUNKS).to_png())
    two = pixels(compare(a=CHUNKS, b=CHUNKS).to_png())
    assert one.shape[1] == two.shape[1] == 1350  # 900 px at 1.5 dots per px
    assert two.shape[0] > one.shape[0] + 100


def test_the_title_carries_the_figures():
    static, orca = compare(static=run(Static, requests()), orca=run(Orca, requests())).data["engines"]
    busy = "% of batch slots busy"
    assert picture.title(static) == f"static: 56 iterations, 79 {busy}, 48 idle slot-steps, 68 padding rows"
    assert picture.title(orca) == f"orca: 51 iterations, 86 {busy}, 28 idle slot-steps, 152 padding rows"


def test_one_of_a_thing_is_not_plural():
    player = show(run(Orca, sized((1, 1)), 2))
    title = picture.title(player.data["engines"][0])
    assert title == "orca: 1 iteration, 50 % of batch slots busy, 1 idle slot-step, 0 padding rows"
    assert repr(player) == "Player(orca: 1 iteration)"


def test_the_same_trace_gives_the_same_bytes():
    assert show(CHUNKS).to_png() == show(CHUNKS).to_png()


def test_the_hues_of_the_requests_are_in_it():
    image = (pixels(show(CHUNKS).to_png())[..., :3] * 255).round().astype(int)
    for colour in show(CHUNKS).data["palette"][:3]:
        pale = [int(mixed(colour)[n : n + 2], 16) for n in (1, 3, 5)]
        assert (abs(image - pale).max(axis=-1) <= 1).sum() > 500


def test_a_cell_output_carries_widget_and_png_and_no_address():
    player = show(CHUNKS)
    bundle = player._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert base64.b64decode(bundle["image/png"]) == player.to_png()
    assert bundle["text/plain"] == repr(player) == "Player(chunked: 6 iterations)"
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == player.widget.model_id


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_has_a_twin_that_is_drawn(view):
    trace = busy(1, 12) if view == "memory" else run(Orca, requests(9, 9, 9), 3, Slots(60))
    nothing, start, later = (
        show(one, views=[view], iteration=number).to_png()
        for one, number in ((Trace("", 3), None), (trace, 1), (trace, 8))
    )
    assert start != later  # the playhead is drawn
    assert coloured(later) > coloured(nothing) + 500


def coloured(png: bytes) -> int:
    """Pixels that are not grey."""
    return (np.ptp(pixels(png)[..., :3], axis=-1) > 0.1).sum()


def test_a_wrong_view_or_iteration_is_refused_with_a_sentence():
    with pytest.raises(ValueError, match=r"views is \['maps'\], but the views are slots, batch"):
        show(CHUNKS, views="maps")
    with pytest.raises(ValueError, match="iteration is 7, but the traces have iterations 1 to 6"):
        show(CHUNKS, iteration=7)
    with pytest.raises(ValueError, match="iteration is '3', but the number of an iteration"):
        show(CHUNKS, iteration="3")


@pytest.mark.parametrize(
    ("expected", "sentence"),
    [
        (3, "expected is 3, but a Trace or {request id: token ids} is needed"),
        ({"r0": 3}, r"expected\['r0'\] is 3, but a list of token ids is needed"),
        ({"nope": [1]}, "expected names the request 'nope', but the traces have 'r0', 'r1', 'r2'"),
    ],
)
def test_expected_tokens_of_no_request_are_refused_with_a_sentence(expected, sentence):
    with pytest.raises(ValueError, match=sentence):
        show(CHUNKS, expected=expected)


def test_the_answers_stand_behind_their_prompts():
    records = {"a": RequestRecord("a", 3, 1, 0.0, prompt="<|user|>What is\n2 + 2?<|assistant|>")}
    records["b"] = RequestRecord("b", 3, 1, 0.0, prompt="x" * 99)
    engine = show(Trace(requests=records), views="text").data["engines"][0]
    assert text._prompt(engine, 0) == "What is↵2 + 2? "
    assert text._prompt(engine, 1) == "x" * 43 + "… "
    assert text._prompt(show(CHUNKS).data["engines"][0], 0) == ""


def test_requests_of_one_hue_differ_in_lines():
    data = {"palette": list(range(7))}
    assert [lines_of(data, request) for request in (0, 6, 7, 13, 14, 21, 99)] == [0, 0, 1, 1, 2, 3, 3]
    words = "same colour, underlined: another request"
    assert words not in legend_words(run(Orca, sized(*[(1, 1)] * 7)), "slots")
    assert words in legend_words(run(Orca, sized(*[(1, 1)] * 8)), "slots")


@pytest.mark.parametrize(("longest", "numbers"), [(1, [1]), (6, [1, 2, 3, 4, 5, 6]), (53, [1, *range(5, 51, 5)])])
def test_iterations_are_numbered_from_1_below_the_middle_of_their_cells(longest, numbers):
    axes = Figure().add_subplot()
    iteration_ticks(axes, longest)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(map(str, numbers))
    assert list(axes.get_xticks()) == [number - 0.5 for number in numbers]


def text_parts(expected: dict, iteration: int | None = None) -> list[tuple]:
    data = show(CHUNKS, views="text", expected=expected, iteration=iteration).data
    engine = data["engines"][0]
    return [text._parts(engine, data, life, 5 if iteration is None else iteration - 1) for life in lives(engine)]


def test_the_text_is_red_from_the_first_wrong_token_or_the_missing_one():
    words = "from the first token that is not the expected one"
    assert text_parts({"r0": [1]})[0] == ("", " Paris</script>.")
    assert text_parts({"r0": [70, 1]})[0] == (" Paris", "</script>.")
    assert text_parts({"r0": [70, 72, 74, 75]})[0] == (" Paris</script>.", " (more tokens expected)")
    assert text_parts({"r0": [70, 72, 74, 75]}, 3)[0] == (" Paris</script>", "")
    assert text_parts({"r0": [70, 72, 74]})[0] == (" Paris</script>.", "")
    for iteration, listed in ((1, False), (2, True)):
        data = show(CHUNKS, views="text", expected={"r0": [1]}, iteration=iteration).data
        assert any(words == name for name, _ in text.legend(data)) == listed


def test_a_wrong_first_token_stands_beside_its_name():
    """Red in the first row's middle, and none as high as the title."""
    image = pixels(show(CHUNKS, views="text", expected={"r0": [1]}).to_png())[..., :3]
    red = (image[..., 0] - image[..., 1:].max(axis=-1) > 0.4) & (np.arange(image.shape[1]) > 200)
    above, rows = picture.TITLE * 150, text.LINE * 150
    lines = np.flatnonzero(red[: int(above + 3 * rows)].any(axis=1))
    assert above < lines[0] and lines[-1] < above + rows and abs(lines.mean() - above - rows / 2) < rows / 6


def legend_words(trace: Trace, view: str, iteration: int | None = None) -> list[str]:
    data = show(trace, views=[view], iteration=iteration).data
    return [words for line in picture.legend_lines(data) for words, _ in line]


def test_the_legend_lists_what_is_drawn_and_nothing_else():
    full = run(Orca, sized((1, 1)), 1)  # one iteration: none idle, no wait, no gap between tokens, no token budget
    assert legend_words(full, "slots") == ["prefill"]
    assert legend_words(full, "requests") == ["prefill", "first token"]
    assert legend_words(full, "batch") == ["prefill", "duration"]
    assert legend_words(full, "flat") == ["prefill", "row whose logits are needed"]
    assert legend_words(CHUNKS, "flat", 1) == ["chunk"]
    assert legend_words(CHUNKS, "flat", 4) == ["decode", "padding", "row whose logits are needed"]
    assert legend_words(CHUNKS, "memory") == []
    assert "idle" in legend_words(CHUNKS, "slots") and "token budget" in legend_words(CHUNKS, "batch")
    assert {"waiting", "longest gap between two tokens"} < set(legend_words(CHUNKS, "requests"))


def test_durations_are_drawn_of_all_engines_or_of_none():
    untimed = replace(CHUNKS, iterations=[replace(one, duration=1) for one in CHUNKS.iterations])
    heights = [[batch.height(engine) for engine in compare(a=a, b=untimed).data["engines"]] for a in (CHUNKS, untimed)]
    assert heights == [[1.35, 1.35], [1.0, 1.0]]
    assert "duration" not in legend_words(untimed, "batch")


def test_chunks_of_one_size_stand_apart():
    """White lines in r0's row: between chunks, not between decodes."""
    spans = [Span("r0", 4 * n, 4, (5,) if n == 3 else ()) for n in range(4)]
    spans += [Span("r0", 16, 1, (5,)), Span("r0", 17, 1, (5,))]
    iterations = [Iteration(n, 1, (span,)) for n, span in enumerate(spans)]
    trace = Trace("", 1, requests={"r0": RequestRecord("r0", 16, 3, 0.0)}, iterations=iterations)
    image = pixels(show(trace).to_png())[..., :3]
    lines = range(int(150 * picture.TITLE) + 6, int(150 * (picture.TITLE + 0.24)) - 6)
    white = (image[lines].min(axis=-1) > 0.85).all(axis=0)
    cell = 1350 * SHARE / 6.006
    found = [any(white[round(1350 * LEFT + cell * n) - 2 :][:5]) for n in range(1, 6)]
    assert found == [True, True, True, False, False]


def test_the_numbers_of_iterations_have_room_wherever_text_stands():
    places, _ = picture.layout(show(CHUNKS, views=["requests", "text", "slots", "flat"]).data)
    assert [place.view for place in places if place.numbered] == ["slots"]
    for place, after in pairwise(places):
        assert after.top >= place.top + place.height + picture.AXIS * place.numbered


def test_a_long_name_ends_in_an_ellipsis_and_fits():
    for name in ("conversation-with-17", "M" * 14, "w"):
        shown = fit(name, 0.56, 8)
        assert shown == name or (shown.endswith("…") and name.startswith(shown[:-1]))
        assert len(shown) >= min(len(name), 4)
    assert fit("iiiiiiiiiiiiii", 0.56, 8) == "iiiiiiiiiiiiii" and len(fit("M" * 14, 0.56, 8)) < 7


def test_nothing_but_the_background_is_at_the_left_edge():
    named = [Request("M" * 20, [1], SamplingParams(max_tokens=2)), Request("long-name" * 9, [1])]
    image = pixels(show(run(Orca, named, 2), views=["requests"]).to_png())
    assert (image[20:-20, 6:9] == 1).all()


def test_it_is_a_white_card_with_round_corners():
    """So that it can be read on a dark page."""
    image = pixels(show(CHUNKS).to_png())
    assert (image[[0, 0, -1, -1], [0, -1, 0, -1], 3] == 0).all()
    assert (image[[30, -30]][:, [8, -8]] == 1).all()


def test_the_words_of_a_chart_are_read_on_a_white_page_and_on_a_dark_one():
    """A contrast of 3 or more (WCAG 2.1, 1.4.11: graphics) on both, and no ground of its own."""
    chart = plots.cdf({"a": [1, 2]}, x="seconds")
    image = pixels(chart.to_png()).reshape(-1, 4)
    assert (image[:, 3] == 0).mean() > 0.9
    axes = chart.axes[0]
    words = [axes.xaxis.label, axes.yaxis.label, *axes.get_xticklabels(), *axes.get_legend().get_texts()]
    for colour in {to_rgb(label.get_color()) for label in [*words, *axes.texts]}:
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        light = np.dot(linear, (0.2126, 0.7152, 0.0722))
        assert min(1.05 / (light + 0.05), (light + 0.05) / (0.0056 + 0.05)) > 3  # 0.0056: of #111111


def test_without_an_iteration_the_png_shows_the_whole_run():
    assert show(CHUNKS).data["iteration"] is None
    assert show(CHUNKS).to_png() != show(CHUNKS, iteration=6).to_png()


def test_the_title_counts_no_padding_that_nobody_told():
    untold = replace(CHUNKS, pieces={}, iterations=[replace(one, duration=1, padding=0) for one in CHUNKS.iterations])
    assert not picture.title(show(untold).data["engines"][0]).endswith("padding rows")
    assert picture.title(show(CHUNKS).data["engines"][0]).endswith("2 padding rows")


def test_thin_blocks_have_no_outline():
    """An outline is darker than what it surrounds: of 230 blocks, none is seen."""

    def dark(blocks: int) -> float:
        holdings = [Holding(((n, n + 1),), 1) for n in range(blocks)]
        iteration = Iteration(0.0, 1, (), memory={f"r{n}": held for n, held in enumerate(holdings)})
        records = {f"r{n}": RequestRecord(f"r{n}", 1, 1, 0.0) for n in range(blocks)}
        trace = Trace("", 1, blocks, 1, False, requests=records, iterations=[iteration])
        image = pixels(show(trace, views="memory").to_png())
        return (image[80:270, 120:1300, :3].sum(axis=-1) < 1.4).mean()

    assert dark(230) == 0 < dark(20)


def test_memory_in_words_has_one_style_of_number():
    trace = run(Orca, sized((1310, 2)), 1, Slots(131072))
    words = memory.words(show(trace).data["engines"][0], 0)
    assert words.startswith("iteration 1: 1 % of 131,072 K/V slots held, 1 % filled")


def test_drawing_leaves_pyplot_alone():
    before = "matplotlib.pyplot" in sys.modules
    show(CHUNKS).to_png()
    assert ("matplotlib.pyplot" in sys.modules) == before


@pytest.mark.parametrize("views", [["slots"], ["batch", "text"]])
def test_a_gif_has_a_frame_per_iteration_and_the_future_is_pale(tmp_path, views):
    path = show(CHUNKS, views=views).to_gif(tmp_path / "film.gif", fps=4)
    with Image.open(path) as film:
        frames = []
        for number in range(film.n_frames):
            film.seek(number)
            frames.append(np.asarray(film.convert("RGB")).astype(int))
            assert film.info["duration"] == (2000 if number == film.n_frames - 1 else 250)
    assert len(frames) == 6 and frames[0].shape[1] == 900
    colour = [int(np.ptp(frame, axis=-1).sum()) for frame in frames]
    assert colour[0] < 0.75 * colour[-1] and colour[-1] == max(colour)


def test_a_long_gif_has_no_more_frames_than_asked(tmp_path):
    path = show(run(Orca, requests())).to_gif(tmp_path / "film.gif", most_frames=5)
    with Image.open(path) as film:
        assert film.n_frames == 5
    for fps in (0, "x", float("nan")):
        with pytest.raises(ValueError, match=f"fps is {fps!r} and most_frames 120, but both must be numbers above 0"):
            show(CHUNKS).to_gif(tmp_path / "film.gif", fps=fps)


def test_a_gif_of_nothing(tmp_path):
    with Image.open(show(Trace()).to_gif(tmp_path / "film.gif")) as film:
        assert film.n_frames == 1

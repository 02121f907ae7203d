"""The learner's parts in the engine: kept, put in place of the package's, and blamed where they fail."""

from inspect import getsource

import pytest

from tinyengine import Engine, SamplingParams
from tinyengine.attention import one_request
from tinyengine.course import mine
from tinyengine.course.grader import graded_copy, manifest, part_source
from tinyengine.course.notebooks import PACKAGE_PARENT as ROOT
from tinyengine.course.notebooks import read
from tinyengine.course.referees import chunked, invariant, paged
from tinyengine.metrics import measure
from tinyengine.workload import Item, Workload, workload

PARTS = {  # right ones; every file can be imported alone
    "attend": f"""
import torch
import torch.nn.functional as F

{getsource(one_request).replace("one_request", "attend")}
""",
    "rectangle": """
import torch

def rectangle(chunks):
    width = max(len(ids) for ids, _ in chunks)
    shape = len(chunks), width
    tokens, positions = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    real = torch.zeros(shape, dtype=torch.bool)
    for row, (ids, first) in enumerate(chunks):
        tokens[row, : len(ids)] = torch.tensor(ids)
        positions[row, : len(ids)] = torch.arange(first, first + len(ids))
        real[row, : len(ids)] = True
    return tokens, positions, real, real.sum(1) - 1
""",
    "MyStatic": """
from tinyengine.scheduler import Scheduler

class MyStatic(Scheduler):
    batch_size = 0

    def schedule(self):
        if not self.running:
            while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
                self.running.append(self.waiting.popleft())
            self.batch_size = len(self.running)
        return [(request, request.gap) for request in self.running]
""",
    "MyOrca": """
from tinyengine.scheduler import Scheduler

class MyOrca(Scheduler):
    def schedule(self):
        while self.waiting and len(self.running) < self.max_num_seqs and self.memory.reserve(self.waiting[0]):
            self.running.append(self.waiting.popleft())
        return [(request, request.gap) for request in self.running]
""",
    "MySlots": """
from tinyengine.memory import Slots

class MySlots(Slots):
    def reserve(self, request):
        for number, hole in enumerate(self.holes):
            if len(hole) >= request.max_slots:
                request.table, rest = hole[: request.max_slots], hole[request.max_slots :]
                self.holes[number : number + 1] = [rest] if rest else []
                self.holders[request.request_id] = request
                return True
        return False
""",
    "flat": """
import torch

def flat(chunks):
    tokens, positions, starts = [], [], [0]
    for ids, first in chunks:
        tokens += ids
        positions += range(first, first + len(ids))
        starts.append(len(tokens))
    return torch.tensor(tokens), torch.tensor(positions), starts, torch.tensor(starts[1:]) - 1
""",
    "attend_each": """
import torch
from tinyengine.attention import one_request as attend

def attend_each(q, starts, keys, values):
    parts = [attend(q[a:b], k, v) for a, b, k, v in zip(starts, starts[1:], keys, values)]
    return torch.cat(parts)
""",
    "sample": """
import torch

def sample(logits, temperature, top_p, noise):
    scaled = logits / temperature.clamp(min=1e-6)[:, None]
    ordered, index = scaled.sort(dim=-1, descending=True)
    share = ordered.softmax(-1)
    cut = (share.cumsum(-1) - share >= top_p[:, None]) & (top_p < 1)[:, None]
    cut[:, 0] = False
    scaled = scaled.scatter(-1, index, ordered.masked_fill(cut, -torch.inf))
    return torch.where(temperature == 0, logits.argmax(-1), (scaled + noise).argmax(-1))
""",
}
OF = {"static": ["MyStatic", "MySlots", "rectangle", "sample"], "orca": ["MyOrca", "MySlots", "rectangle", "sample"]}
PARTS["MyPaged"] = f"from tinyengine.scheduler import Scheduler\n\n{getsource(paged.MyPaged)}"
PARTS["MyBlocks"] = f"from tinyengine.memory import Blocks\n\n{getsource(paged.MyBlocks)}"
PARTS["paged_attention"] = f"import torch\nfrom itertools import pairwise\n\n{getsource(paged.paged_attention)}"
PARTS["fixed_split_attention"] = (
    f"import torch\nimport torch.nn.functional as F\n\n{getsource(invariant.fixed_split_attention)}"
)
OF["invariant"] = ["MyChunked", "MyBlocks", "flat", "fixed_split_attention", "sample"]
PARTS["MyChunked"] = f"from tinyengine.scheduler import Scheduler\n\n{getsource(chunked.MyChunked)}"
OF["chunked"] = ["MyChunked", "MyBlocks", "flat", "paged_attention", "sample"]
OF["paged"] = ["MyPaged", "MyBlocks", "flat", "paged_attention", "sample"]
OF["selective"] = ["MyOrca", "MySlots", "flat", "attend", "attend_each", "sample"]
SIZES = {stage: dict(max_num_seqs=3, num_slots=320) for stage in OF}
SIZES["chunked"]["max_num_batched_tokens"] = 8  # prompts are cut
CASES = [(stage, [name]) for stage, names in OF.items() for name in names]
CASES += [(stage, names) for stage, names in OF.items()] + [("static", []), ("selective", ["attend", "attend_each"])]


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Writes parts to a work/ of their own."""
    monkeypatch.setenv("TINYENGINE_WORK", str(tmp_path / "work"))

    def write(*names, **sources):
        folder = tmp_path / "work" / "engine"
        folder.mkdir(parents=True, exist_ok=True)
        for name, source in {**{name: PARTS[name] for name in names}, **sources}.items():
            (folder / f"{name}.py").write_text(source)

    return write


def serve(engine, work):
    return [output.token_ids for output in work.replay(engine)], engine.trace


@pytest.fixture(scope="module")
def work():
    """The course's eight requests, every second one with a temperature."""
    load = workload("course")
    warm = [
        Item(item.prompt, type(item.params)(max_tokens=64, temperature=0.8 * (number % 2), top_p=0.9, seed=number))
        for number, item in enumerate(load.items)
    ]
    return Workload("course", 0, tuple(warm), load.max_num_seqs, load.num_slots)


@pytest.fixture(scope="module")
def of_the_package(tiny, work):
    return {stage: serve(Engine(tiny, stage, **SIZES[stage], fast=False), work) for stage in OF}


@pytest.fixture(scope="module")
def solved():
    """The parts as the solutions of the course have them, kept as a grade keeps them."""
    found = {}
    for stem, entry in manifest(ROOT).items():
        graded, _ = graded_copy(read(ROOT / "solutions" / f"{stem}.ipynb"), entry)
        found |= {one["part"]: part_source(one, graded) for one in entry["exercises"] if "part" in one}
    return found


def test_every_part_of_the_course_has_a_place_in_a_stage(solved):
    assert {name for names in OF.values() for name in names} == set(solved) == set(PARTS)
    assert {stage: set(names) for stage, (_, names) in mine.STAGE_PARTS.items()} == {
        stage: set(names) for stage, names in OF.items()
    }


@pytest.mark.parametrize("stage, names", CASES, ids=lambda value: value if isinstance(value, str) else "+".join(value))
def test_right_parts_give_the_tokens_and_the_batches_of_the_package(
    kept, solved, tiny, work, of_the_package, stage, names
):
    kept(**{name: solved[name] for name in names})
    engine = mine.engine(tiny, stage, **SIZES[stage])
    assert set(engine.parts) == set(names)
    outputs, trace = serve(engine, work)
    right, its_trace = of_the_package[stage]
    assert outputs == right
    assert [(step.spans, step.padding) for step in trace.iterations] == [
        (step.spans, step.padding) for step in its_trace.iterations
    ]


WRONG = {  # a part that fails, the stage, and the sentence
    "an error": (
        "MyOrca",
        PARTS["MyOrca"].replace("self.running]", "self.runing]"),
        "Your MyOrca stops the engine: AttributeError: 'MyOrca' object has no attribute 'runing' "
        "at line 8 of work/engine/MyOrca.py (`return [(request, request.gap) for request in self.runing]`).",
    ),
    "an endless loop": (
        "MyOrca",
        PARTS["MyOrca"].replace("        while ", "        while True:\n            pass\n        while "),
        "Your MyOrca stops the engine: Endless: a loop never ends",
    ),
    "an impossible plan": (
        "MyOrca",
        PARTS["MyOrca"].replace("request.gap)", "10)"),
        "Your MyOrca gives r0, whose gap is 9, a plan of 10 tokens, where 1 token up to its gap is needed.",
    ),
    "no plan": (
        "MyOrca",
        "from tinyengine.scheduler import Scheduler\n\nclass MyOrca(Scheduler):\n    def schedule(self):\n"
        "        pass\n",
        "The engine stops with your MyOrca: TypeError: 'NoneType' object is not iterable.",
    ),
    "no K/V slots": (
        "MyOrca",
        PARTS["MyOrca"].replace(" and self.memory.reserve(self.waiting[0])", ""),
        "Your MyOrca gives r0 a plan, and no K/V slots, where memory.reserve(request) is needed.",
    ),
    "another form": (
        "rectangle",
        PARTS["rectangle"].replace("return tokens, ", "return "),
        "where tokens, positions and real, [3, ",
    ),
    "too few rows are real": (
        "rectangle",
        PARTS["rectangle"].replace("real[row, : len(ids)]", "real[row, :1]"),
        "of them real, and last is needed.",
    ),
    "other starts": (
        "flat",
        PARTS["flat"].replace("starts.append(len(tokens))", "starts.append(len(ids))"),
        "Your flat gives (<Tensor of shape [28]>, <Tensor of shape [28]>, [0, 9, 9, 10], tensor([8, 8, 9])), where ",
    ),
    "a shape": ("attend", PARTS["attend"].replace("out[0].transpose(0, 1)", "out[0]"), "RuntimeError"),
    "none": ("attend_each", "def attend_each(*args):\n    pass\n", "Your attend_each gives None, where a tensor of "),
    "one token": ("sample", "def sample(logits, *args):\n    return 7\n", "Your sample gives 7, where a tensor of "),
    "no memory": (
        "MySlots",
        PARTS["MySlots"].replace("def reserve", "def __init__(self):\n        pass\n\n    def reserve"),
        "The engine stops with your MySlots: TypeError: ",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_part_that_fails_is_named_in_one_sentence(kept, tiny, work, name):
    part, source, words = WRONG[name]
    kept(**{part: source})
    stage = next(stage for stage in ("orca", "selective") if part in OF[stage])
    with pytest.raises(mine.PartError) as caught:
        work.replay(mine.engine(tiny, stage, max_num_seqs=3, num_slots=320))
    sentence = str(caught.value).replace(str(mine.folder()), "work/engine")
    assert words in sentence and part in sentence and "\n" not in sentence, sentence
    assert caught.value._render_traceback_() == [str(caught.value)]  # what a notebook shows


def test_a_part_that_cannot_be_imported_any_more_is_the_packages(kept, tiny, work, capsys):
    kept("MySlots", MyOrca="from tinyengine.scheduler import Gone\n")
    engine = mine.engine(tiny, "orca", max_num_seqs=3, num_slots=320)
    said = capsys.readouterr().out
    assert set(engine.parts) == {"MySlots"} and len(said.splitlines()) == 1
    assert "MyOrca.py cannot be used (ImportError: cannot import name 'Gone'" in said
    kept(MyOrca="class Other:\n    pass\n")
    assert mine.part("MyOrca") is None and "AttributeError" in capsys.readouterr().out
    kept("MyOrca")  # mended: it is read anew
    assert mine.part("MyOrca").__name__ == "MyOrca" and mine.part("flat") is None and not capsys.readouterr().out


@pytest.fixture(scope="module")
def of_the_course(tiny):
    return serve(Engine(tiny, "orca", max_num_seqs=3, num_slots=320), workload("course"))


def test_the_row_of_the_scoreboard(kept, capsys, monkeypatch, of_the_course):
    load = workload("course")
    numbers = {"MyOrca": "2.2", "MySlots": "2.4", "rectangle": "1.2", "flat": "3.1", "sample": "3.4"}
    monkeypatch.setattr(mine, "exercises", lambda: numbers)
    assert mine.row("orca", load, [[1], [2]]) is None
    assert capsys.readouterr().out == (
        "No part of this stage is yours yet. From the package: the rectangle (exercise 1.2), "
        "the scheduler (exercise 2.2), the arena (exercise 2.4).\n"
    )
    kept("MyOrca", "MySlots", "rectangle")
    outputs, trace = of_the_course
    counts = {
        "iterations": 53,
        "idle slot-steps": measure(trace).idle_slot_steps,
        "padded rows": measure(trace).padded_rows,
    }
    assert counts["padded rows"] > 0
    assert mine.row("orca", load, outputs) == {"stage": "yours: orca", **counts, "exact": "8/8"}
    assert capsys.readouterr().out == "Yours: rectangle, MyOrca, MySlots.\n"


def test_a_sampler_chooses_greedy_tokens_too_and_gets_the_settings_of_each_request(kept, tiny, work, capsys):
    load = workload("course")  # all of it at temperature 0
    right = serve(Engine(tiny, "selective", max_num_seqs=3, num_slots=320, fast=False), load)[0]
    kept(sample="def sample(logits, temperature, top_p, noise):\n    return logits.argmin(-1)\n")
    assert mine.row("selective", load, right)["exact"] == "0/8"
    assert "the first wrong token is token 1 of r0" in capsys.readouterr().out
    kept(sample=PARTS["sample"] + "\nseen = []\nlearners = sample\ndef sample(logits, temperature, top_p, noise):\n"
         "    seen.extend(zip(temperature.tolist(), top_p.tolist()))\n"
         "    return learners(logits, temperature, top_p, noise)\n")  # fmt: skip
    serve(mine.engine(tiny, "selective", max_num_seqs=3, num_slots=320), work)
    seen = {(round(heat, 3), round(share, 3)) for heat, share in mine.part("sample").__globals__["seen"]}
    assert seen == {(item.params.temperature, item.params.top_p) for item in work.items} and len(seen) == 2


@pytest.mark.parametrize("changed", [dict(top_k=3), dict(repetition_penalty=1.7)], ids=str)
def test_a_sampler_meets_logits_in_which_top_k_and_the_penalty_are(kept, solved, tiny, changed):
    params = SamplingParams(max_tokens=16, temperature=1.5, seed=4, **changed)
    kept(sample=solved["sample"])
    engines = mine.engine(tiny, "selective"), Engine(tiny, "selective", fast=False)
    one, two = (engine.generate(["Tell me a short story.", "Hi."], params) for engine in engines)
    assert [output.token_ids for output in one] == [output.token_ids for output in two]


def test_only_parts_that_have_run_are_named(kept, capsys, of_the_course):
    load, (outputs, _) = workload("course"), of_the_course
    kept("attend", attend_each=PARTS["attend_each"].replace("one_request as attend", "one_request as run").replace(
        "attend(q", "run(q"))  # fmt: skip
    assert mine.row("selective", load, outputs)["exact"] == "8/8"
    assert capsys.readouterr().out.startswith("Yours: attend_each. From the package: ")
    kept("attend_each")
    mine.row("selective", load, outputs)
    assert capsys.readouterr().out.startswith("Yours: attend, attend_each. From the package: ")


def test_the_first_wrong_token_is_told(kept, capsys, of_the_course):
    load, (outputs, _) = workload("course"), of_the_course
    kept(attend=PARTS["attend"].replace(".tril(length - n)", ".tril()"))  # aligned to the top left
    row = mine.row("selective", load, outputs)
    said = capsys.readouterr().out
    assert row["exact"] != "8/8" and "With your parts the first wrong token is token 2 of r0." in said, (row, said)
    assert "is token 2 of r1." in mine.first_wrong([[1, 2], [3]], [[1, 2], [3, 4]])
    kept(attend="def attend(q, keys, values):\n    return keys[len(keys)]\n")
    assert mine.row("selective", load, outputs) is None
    assert "Your attend stops the engine: IndexError" in capsys.readouterr().out


def test_a_stage_without_parts_is_refused(kept, tiny):
    kept()
    with pytest.raises(ValueError, match="stage is 'simulated', but the stages with parts of yours are static, orca,"):
        mine.engine(tiny, "simulated")


def test_a_budget_is_given_to_the_row_of_stage_chunked(kept, capsys, of_the_course):
    load, (outputs, _) = workload("course"), of_the_course
    kept("MyChunked")
    whole, cut = (mine.row("chunked", load, outputs, max_num_batched_tokens=size) for size in (512, 8))
    assert whole["exact"] == cut["exact"] == "8/8" and whole["iterations"] < cut["iterations"]
    assert cut["most tokens in one"] == 8 < whole["most tokens in one"]
    assert capsys.readouterr().out.count("Yours: MyChunked. From the package: ") == 2


def test_the_row_of_stage_paged_counts_what_is_held_and_empty(kept, of_the_course):
    load, (outputs, _) = workload("course"), of_the_course
    kept("MyBlocks")
    assert 0 < int(mine.row("paged", load, outputs)["K/V held and empty"].removesuffix("%")) < 50

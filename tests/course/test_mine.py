"""The learner's parts in the engine: kept, put in place of the package's, and blamed where they fail."""

from inspect import getsource

import pytest

from tinyengine.attention import one_request
from tinyengine.course import mine
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
OF["selective"] = ["MyOrca", "MySlots", "flat", "attend", "attend_each", "sample"]
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
    from tinyengine import Engine

    return {stage: serve(Engine(tiny, stage, max_num_seqs=3, num_slots=320, fast=False), work) for stage in OF}


@pytest.mark.parametrize("stage, names", CASES, ids=lambda value: value if isinstance(value, str) else "+".join(value))
def test_right_parts_give_the_tokens_and_the_batches_of_the_package(kept, tiny, work, of_the_package, stage, names):
    kept(*names)
    engine = mine.engine(tiny, stage, max_num_seqs=3, num_slots=320)
    assert set(engine.parts) == set(names)
    outputs, trace = serve(engine, work)
    right, its_trace = of_the_package[stage]
    assert outputs == right
    assert [(step.spans, step.padding) for step in trace.iterations] == [
        (step.spans, step.padding) for step in its_trace.iterations
    ]

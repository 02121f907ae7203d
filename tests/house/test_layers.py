"""The arrows of the house point down only; the core imports no torch; importing the package is cheap."""

import ast
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# without torch: a request's way through schedulers and memory, and what is said of it
CORE = "checks params request holding memory queue scheduler trace perfetto metrics workload".split()
CORE += "clock arrivals guard prefix_cache speculate priority ablation budget extras".split()
FRONT = {"cli.py", "__main__.py", "demo.py"}  # the front door: these call the course and the pictures, on demand
ENGINE = sorted(
    path
    for path in (ROOT / "tinyengine").rglob("*.py")
    if "course" not in path.relative_to(ROOT).parts and path.name not in FRONT
)
VISUALIZERS = sorted((ROOT / "visualizers").rglob("*.py"))
MAKES_TRACES = {  # the playground runs schedulers, without a model
    "dummy.py": ("tinyengine.extras", "tinyengine.memory", "tinyengine.scheduler"),
    "presets.py": ("tinyengine.metrics",),
}
ABOVE = ("tinyengine.course", "tinyengine.demo", "tinyengine.cli", "visualizers")
NOTEBOOK = ("matplotlib", "IPython", "ipywidgets", "anywidget", "ipykernel", "nbformat", "nbclient", "nbval")


def imports(path: Path, top_only: bool = False) -> set[str]:
    """Every module that the file names in an import: `from a import b` gives "a" and "a.b"."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = path.relative_to(ROOT).parent.parts
    found = set()
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return found


def touching(found: set[str], *modules: str) -> set[str]:
    return {name for name in found for module in modules if name == module or name.startswith(f"{module}.")}


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh Python has loaded by this statement, beyond those it starts with."""
    program = (
        "import json, sys\nbefore = set(sys.modules)\n"
        f"{statement}\nprint(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_the_import_reader_sees_what_it_must(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "pkg").mkdir()
    file = tmp_path / "pkg" / "a.py"
    file.write_text(
        "import x.y\nfrom z import b\nfrom . import c\nfrom .d import e\ndef f():\n    import matplotlib.pyplot\n"
    )
    assert imports(file) == {"x.y", "z", "z.b", "pkg", "pkg.c", "pkg.d", "pkg.d.e", "matplotlib.pyplot"}
    assert touching(imports(file), "matplotlib") and not touching(imports(file, top_only=True), "matplotlib")
    assert not touching({"timeit", "torchvision"}, "time", "torch")


def test_importing_the_core_loads_no_torch_and_no_notebook():
    loaded = loaded_after("\n".join(f"import tinyengine.{module}" for module in CORE))
    assert {f"tinyengine.{module}" for module in CORE} <= loaded
    heavy = touching(loaded, "torch", "transformers", "tokenizers", "safetensors", "numpy", "tqdm", "rich", *NOTEBOOK)
    assert not heavy, f"the core has loaded {sorted(heavy)[:5]}"


def test_importing_tinyengine_loads_nothing_but_itself():
    loaded = loaded_after("import tinyengine")
    assert touching(loaded, "tinyengine") == {"tinyengine"} and len(loaded) <= 5, sorted(loaded)


def test_names_that_need_no_torch_load_none():
    loaded = loaded_after("from tinyengine import SamplingParams, Trace\nimport tinyengine\ndir(tinyengine)")
    assert not touching(loaded, "torch", "transformers")


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    import tinyengine

    with pytest.raises(AttributeError, match="'Motor'"):
        tinyengine.Motor  # noqa: B018
    assert {"Engine", "SamplingParams", "load_model", "STAGES", "Trace"} <= set(dir(tinyengine))


def test_the_files_are_found():
    assert {"tinyengine/engine.py", "tinyengine/request.py", "tinyengine/model/load.py"} <= set(map(name, ENGINE))
    assert not any("course/" in name(path) for path in ENGINE) and len(VISUALIZERS) >= 3


@pytest.mark.parametrize("path", ENGINE, ids=name)
def test_the_engine_knows_no_course_no_picture_and_no_notebook(path):
    assert not touching(imports(path), *ABOVE, *NOTEBOOK)


@pytest.mark.parametrize("front", sorted(FRONT))
def test_the_front_door_loads_the_rooms_above_only_on_demand(front):
    assert not touching(
        imports(ROOT / "tinyengine" / front, top_only=True), "tinyengine.course", "visualizers", *NOTEBOOK
    )


@pytest.mark.parametrize("path", VISUALIZERS, ids=name)
def test_pictures_are_drawn_from_a_trace_alone(path):
    ours = touching(imports(path), "tinyengine")
    assert ours == touching(ours, "tinyengine.trace", "tinyengine.request", *MAKES_TRACES.get(path.name, ()))
    assert not touching(imports(path), "torch", "transformers")


@pytest.mark.parametrize("module", ["request", "memory", "scheduler", *CORE[-6:]])
def test_schedulers_and_memory_read_no_clock_and_draw_no_random_numbers(module):
    found = imports(ROOT / "tinyengine" / f"{module}.py")
    assert not touching(found, "time", "datetime", "tinyengine.clock", "random", "secrets", "torch", "numpy")


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_only_the_core(module):
    ours = touching(imports(ROOT / "tinyengine" / f"{module}.py"), "tinyengine")
    allowed = [*(f"tinyengine.{other}" for other in CORE), "tinyengine.model.text"]  # workload writes its questions
    assert ours == touching(ours, *allowed)


def test_numba_and_triton_are_named_only_inside_fast():
    """Whose folder may be deleted: every stage is then served by the textbook (tests/fast/test_accelerate.py)."""
    found = {name(path): touching(imports(path), "numba", "llvmlite", "triton") for path in ENGINE}
    users = [path for path, of in found.items() if of]
    assert users and all(path.startswith("tinyengine/fast/kernels/") for path in users)


def test_the_textbook_imports_nothing_fast():
    for path in (ROOT / "tinyengine").glob("*.py"):
        assert path.name in FRONT or not touching(imports(path), "tinyengine.fast"), path.name


def test_each_stage_differs_from_the_one_before_it_in_one_cell_and_paging_in_three():
    from tinyengine.stages import STAGES

    rows = list(STAGES.items())
    assert [stage for stage, _ in rows] == ["static", "orca", "selective", "paged", "chunked", "invariant"]
    assert all(len(row) == 3 for _, row in rows)
    changed = {
        stage: [column for column, old, new in zip(("scheduler", "memory", "attention"), before, row) if old is not new]
        for (_, before), (stage, row) in pairwise(rows)
    }
    assert changed == {
        "orca": ["scheduler"],
        "selective": ["attention"],
        "paged": ["scheduler", "memory", "attention"],
        "chunked": ["scheduler"],
        "invariant": ["attention"],
    }

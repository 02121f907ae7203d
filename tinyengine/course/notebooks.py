"""Notebooks as files: find the checkout, read, write in one fixed form, give cells lasting ids, store clean outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

# jsonschema would import it, a second and a half, to look at addresses, and a notebook's schema has none
_rest = sys.modules.setdefault("rfc3987_syntax", None)
import nbformat  # noqa: E402
from nbformat import NotebookNode, ValidationError  # noqa: E402

if _rest is None:
    del sys.modules["rfc3987_syntax"]

__all__ = ["NotebookNode", "nbformat"]

WIDGET = "application/vnd.jupyter.widget-view+json"
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


class CourseError(Exception):
    """One sentence for the person at the terminal: what, which value, which limit, what to do."""


def find_root(start: Path | None = None) -> Path:
    """The checkout: the first folder from `start` (or here) upward that holds the course, else the package's own."""
    start = Path(start or Path.cwd()).resolve()
    for folder in (start, *start.parents, PACKAGE_PARENT):
        exercises = folder / "exercises"
        if (exercises / "manifest.json").is_file() or (exercises.is_dir() and (folder / "solutions").is_dir()):
            return folder
    raise CourseError(
        f"No course was found in {start} or above it: run this inside a clone of the tinyengine "
        "repository, where the folder exercises/ is."
    )


def work_folder(root: Path) -> Path:
    """What learners write: work/ in the checkout, or the folder that TINYENGINE_WORK names."""
    return Path(os.environ.get("TINYENGINE_WORK") or root / "work").resolve()


def short(path: Path, root: Path) -> str:
    """A path as a person inside the checkout writes it."""
    path = Path(path).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def tags(cell) -> list[str]:
    found = cell.metadata.get("tags", [])
    return found if isinstance(found, list) else []


def read(path: Path):
    """Read a notebook of format 4."""
    try:
        nb = nbformat.reads(Path(path).read_text(encoding="utf-8"), as_version=4)
        if not (isinstance(nb.metadata, dict) and isinstance(nb.cells, list) and all(map(is_cell, nb.cells))):
            raise ValueError("metadata or a cell of another form")
        text_of(nb).encode()  # half a character cannot be written again
    except FileNotFoundError:
        raise CourseError(f"There is no notebook {path}: check the name.") from None
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, ValidationError) as error:
        reason = str(error).split("\n")[0][:200]
        raise CourseError(
            f"{path} cannot be read as a notebook ({type(error).__name__}: {reason}): save it again in "
            "JupyterLab, or start a fresh copy."
        ) from None
    return nb


def is_cell(cell) -> bool:
    kinds = {"cell_type": str, "source": str, "metadata": dict}
    if not isinstance(cell, dict) or not all(isinstance(cell.get(key), kind) for key, kind in kinds.items()):
        return False
    outputs = cell.get("outputs", [])
    return isinstance(outputs, list) and all(isinstance(output, dict) for output in outputs)


def text_of(nb) -> str:
    """The one text of a notebook: sorted keys, one space of indent, one newline at the end."""
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nbformat.writes(nb, version=nbformat.NO_CONVERT).rstrip("\n") + "\n"


def write(path: Path, text: str) -> None:
    """Write in one move, so an interrupted command never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def write_json(path: Path, data) -> None:
    write(path, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def name_cells(nb, names: dict[int, str] | None = None) -> None:
    """Give each cell an id that is the same at every build: `names` by position, else its kind and number."""
    for index, cell in enumerate(nb.cells):
        cell["id"] = (names or {}).get(index, f"{cell.cell_type}-{index:02d}")


def strip_widgets(nb) -> None:
    """Remove what only a live kernel can show, so GitHub and a fresh clone show the picture beside it.

    A widget view goes where anything else (an image, text) stands beside it; `metadata.widgets` goes always (without
    `state` it stops GitHub from rendering the whole notebook).
    """
    nb.metadata.pop("widgets", None)
    for cell in nb.cells:
        for output in cell.get("outputs", []):
            if len(output.get("data", {})) > 1:
                output.data.pop(WIDGET, None)


def tidy(nb) -> None:
    """The stored form of a notebook that was run: no widget state, no times, no version of this machine's Python."""
    strip_widgets(nb)
    nb.metadata["kernelspec"] = dict(KERNELSPEC)
    nb.metadata["language_info"] = {"name": "python"}
    for cell in nb.cells:
        for key in ("execution", "ExecuteTime", "collapsed"):
            cell.metadata.pop(key, None)


def untidy(nb) -> str:
    """Why a committed notebook should be run again, or nothing."""
    if "widgets" in nb.metadata:
        return "holds widget state"
    for index, cell in enumerate(nb.cells):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if cell.execution_count is None:
            return f"was not run (cell {index} has no execution count)"
        if any(WIDGET in output.get("data", {}) for output in cell.outputs):
            return f"holds a widget view in cell {index}"
        if "raises-exception" not in tags(cell) and any(output.output_type == "error" for output in cell.outputs):
            return f"ends in an error in cell {index}"
    return ""


def execute(nb, folder: Path, timeout: int = 600) -> None:
    """Run a notebook from its own folder, in this Python; its outputs and execution counts are stored in `nb`. What
    is in work/ cannot change them: the notebook finds an empty one."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

    class ThisPython(AsyncKernelManager):
        """Starts the Python that runs this, whatever kernels the machine has under the name python3."""

        def __init__(self, **settings):
            settings |= {"kernel_name": CURRENT_ENV_KERNEL_NAME, "kernel_spec_manager": NbvalKernelspecManager()}
            super().__init__(**settings)

    client = NotebookClient(
        nb,
        kernel_manager_class=ThisPython,
        timeout=timeout,
        store_widget_state=False,
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    try:
        with TemporaryDirectory(prefix="tinyengine-work-") as work:
            client.execute(env={**environment(), "TINYENGINE_WORK": work}, stderr=subprocess.DEVNULL)
    except CellExecutionError as error:
        raise CourseError(
            f"it stops with {error.ename}: {error.evalue.splitlines()[0] if error.evalue else ''}"
        ) from None
    except CellTimeoutError:
        raise CourseError(f"a cell did not end within {timeout} s") from None
    except DeadKernelError:
        raise CourseError("its kernel died") from None


def environment() -> dict[str, str]:
    """This process's environment for a kernel that must import the same tinyengine."""
    paths = [str(PACKAGE_PARENT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

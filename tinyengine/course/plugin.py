"""The pytest plugin that grades: nbval runs the notebook, this keeps it honest and keeps it going.

`grade` starts it as  pytest -p tinyengine.course.plugin -p nbval.plugin --nbval-lax --nbval-current-env
--tinyengine-job JOB.json graded.ipynb.  The job names the check cells, the time limits and the kernel's folder; what
happened in each cell is written to the job's `results` file, and grader.py turns that into points.

What nbval alone does not do: notice a dead kernel before the cell's timeout, go on after a timeout (later cells would
be expected failures), stop a cell that never stops printing. A cell that hangs or kills the kernel costs only its own
exercise: a new kernel replays the cells before it.
"""

import json
import re
import secrets
import time
from pathlib import Path
from queue import Empty

import psutil
import pytest

from tinyengine.course.checks import MIME, words
from tinyengine.course.notebooks import nbformat  # noqa: F401  (before nbval, which would import it in its slow way)

# isort: split
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile

POLL = 0.2  # seconds between two looks at whether the kernel still lives
GRACE = 3.0  # seconds a cell gets to stop once it is interrupted
STARTUP = 60.0  # seconds for a kernel to start
SLOWEST = 6  # a limit of so many seconds ends after so many times that, however busy the machine is
ANSI = re.compile(r"\x1b\[[0-9;]*m")
FRAME = re.compile(r"^-+> *(\d+) (.*)$", re.MULTILINE)  # the line of a frame that was running
IN_KERNEL = "__import__('tinyengine.course.in_kernel', fromlist=['prepare'])"


class KernelDied(Exception):
    """The kernel's process is gone."""


class WatchedKernel(RunningKernel):
    """A kernel whose death is noticed at once, and which has one limit for a cell, not one for each message.

    The limit is of seconds that the kernel computes, or does nothing at all: on a busy machine a right answer takes
    longer, and a wrong one is stopped as soon as on an idle one.
    """

    limit = None  # until the first cell
    over_since = None
    spent = 0.0

    def allow(self, seconds: float) -> None:
        """Begins to count."""
        self.limit, self.over_since = seconds, None
        self.began = self.quiet_since = time.monotonic()
        self.before = self.spent = self.computed()

    def computed(self) -> float:
        """Seconds of the processor that the kernel has had."""
        try:
            used = psutil.Process(self.km.provisioner.pid).cpu_times()
        except psutil.Error:
            return self.spent
        return used.user + used.system

    def is_over(self) -> bool:
        now, spent = time.monotonic(), self.computed()
        if spent > self.spent + 0.01:
            self.spent, self.quiet_since = spent, now
        computes = min(spent - self.before, now - self.began)
        return computes > self.limit or now - self.quiet_since > self.limit or now - self.began > SLOWEST * self.limit

    def await_reply(self, msg_id, timeout=None):
        give_up = time.monotonic() + (timeout or STARTUP)
        while True:
            try:
                return super().await_reply(msg_id, timeout=POLL)
            except Empty:
                if not self.is_alive():
                    raise KernelDied from None
                if self.is_over() if self.limit else time.monotonic() > give_up:
                    self.over_since = time.monotonic()
                    raise

    def get_message(self, stream, timeout=None):
        if stream == "iopub" and self.over_since:
            timeout = self.over_since + GRACE - time.monotonic()
            if timeout < 0:
                raise Empty  # interrupted, and still printing
        return super().get_message(stream, timeout)

    def run(self, code: str, seconds: float) -> None:
        """Run code without a look at its output."""
        self.allow(seconds)
        msg_id = self.kc.execute(code, silent=True, store_history=False, allow_stdin=False, stop_on_error=False)
        self.await_reply(msg_id, seconds)
        self.await_idle(msg_id, GRACE)

    def stop(self):
        if hasattr(self, "km"):  # nbval may have stopped it already
            super().stop()


def pytest_addoption(parser):
    parser.addoption(
        "--tinyengine-job", help="JSON file that says what to grade and how; written by `tinyengine grade`"
    )


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path, parent):
    """Take nbval's collector for the notebook and put the grading one in its place."""
    collectors = yield
    if not parent.config.option.tinyengine_job:
        return collectors
    return [GradedFile.from_parent(parent, path=file_path) if isinstance(c, IPyNbFile) else c for c in collectors]


class GradedFile(IPyNbFile):
    """nbval's notebook, with a kernel that is replaced when it hangs or dies."""

    def collect(self):
        self.job = json.loads(Path(self.config.option.tinyengine_job).read_text(encoding="utf-8"))
        self.outcomes = {}
        self.replay = []  # cells that ran, in order, for the next kernel
        self.unsafe = set()  # ids of the cells that must not run again
        cells = list(super().collect())
        self.last = cells[-1].cell["id"]
        for cell in cells:
            yield GradedCell.from_parent(
                self, name=cell.name, cell_num=cell.cell_num, cell=cell.cell, options=cell.options
            )

    def setup(self):
        self.setup_sanitize_files()
        self.start()

    def start(self):
        self.kernel = WatchedKernel(CURRENT_ENV_KERNEL_NAME, cwd=self.job["cwd"], startup_timeout=STARTUP)
        self.kernel.run(IN_KERNEL, STARTUP)

    def restart(self):
        """A new kernel in the state the old one had, without the cells that hang or kill it."""
        self.timed_out = False  # or nbval expects every later cell to fail
        while True:
            self.kernel.stop()
            self.start()
            for cell in self.replay:
                if cell["id"] in self.unsafe:
                    continue
                try:
                    self.kernel.run(cell.source, self.limit(cell))
                except (Empty, KernelDied, RuntimeError):
                    self.unsafe.add(cell["id"])
                    break
            else:
                return

    def limit(self, cell) -> float:
        return self.job["timeouts"].get(cell["id"], self.job["timeout"])

    def teardown(self):
        if self.kernel is not None:
            self.kernel.stop()
        Path(self.job["results"]).write_text(json.dumps(self.outcomes), encoding="utf-8")


class GradedCell(IPyNbCell):
    """One cell: run by nbval, then recorded as ok, error, timeout or died."""

    def runtest(self):
        file, cell_id = self.parent, self.cell["id"]
        self.options.clear()  # no marker of the learner's may skip or invert a cell
        is_check = cell_id in file.job["checks"]
        self.nonce = secrets.token_hex(16)
        self.test_outputs = []
        if not file.kernel.is_alive():  # exit() ends the kernel after its cell has ended
            self.blame_previous()
        state, failure = "ok", None
        try:
            if is_check:
                # modules anew: a scratch `math = None` changes no verdict
                lines = [f"{IN_KERNEL}.prepare({self.nonce!r})", *file.job["modules"]]
                file.kernel.run("\n".join(lines), STARTUP)
            file.kernel.allow(file.limit(self.cell))
            super().runtest()
        except KernelDied as error:
            state, failure = "died", error
        except Exception as error:
            state, failure = "timeout" if file.timed_out else "error" if file.kernel.is_alive() else "died", error
        file.outcomes[cell_id] = self.outcome(state, failure)
        if not is_check:  # a check defines nothing that later cells may use
            file.replay.append(self.cell)
        if state in ("timeout", "died"):
            file.unsafe.add(cell_id)
            if cell_id != file.last:
                file.restart()
        if failure:
            raise failure

    def blame_previous(self):
        file = self.parent
        for cell_id in list(file.outcomes)[-1:]:
            file.outcomes[cell_id]["state"] = "died"
            file.unsafe.add(cell_id)
        file.restart()

    def outcome(self, state, failure) -> dict:
        """What grader.py needs: the state, the error, and the results that this run's own check has signed."""
        found = {"state": state, "limit": self.parent.limit(self.cell)}
        reports = [output["data"][MIME] for output in self.test_outputs if MIME in output.get("data", {})]
        found["reports"] = [r for r in reports if isinstance(r, dict) and r.get("nonce") == self.nonce]
        for output in self.test_outputs:
            if output["output_type"] == "error":
                found["error"] = {
                    "type": output["ename"],
                    "text": output["evalue"][:2000],
                    "line": line_of(output["evalue"], output["traceback"], self.cell.source),
                }
        if state == "error" and "error" not in found:
            found["error"] = {"type": type(failure).__name__, "text": words(failure), "line": None}
        return found


def line_of(text: str, traceback: list[str], source: str) -> int | None:
    """The line of the cell that an error names, from a SyntaxError's sentence or from its last frame in that cell.

    All cells are numbered alike while they are graded, so a frame belongs to the cell where the line it shows does.
    """
    inside = re.search(r"\(\S+\.py, line (\d+)\)", text)
    if inside:
        return int(inside[1])
    own = dict(enumerate(map(str.strip, source.splitlines()), 1))
    frames = re.split(r"^(?=Cell In|File )", ANSI.sub("", "\n".join(traceback)), flags=re.MULTILINE)
    shown = [FRAME.search(frame) for frame in frames if frame.startswith("Cell In")]
    lines = [int(frame[1]) for frame in shown if frame and own.get(int(frame[1])) == frame[2].strip()]
    return lines[-1] if lines else None

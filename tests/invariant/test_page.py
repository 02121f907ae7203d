"""docs/invariance.md: its tables name every fault and every check, and no fault slips through."""

from tinyengine.invariant.sabotage import FAULTS
from tinyengine.verify.checks import CHECKS
from tinyengine.verify.docs import PAGE


def test_the_tables_of_faults_are_whole_and_every_fault_is_caught():
    text = PAGE.read_text(encoding="utf-8")
    for dtype in ("float32", "bfloat16"):
        part = text.split(f"<!-- {dtype} -->")[1].split(f"<!-- /{dtype} -->")[0]
        assert part.strip().startswith(f"Measured: {dtype}")
        rows = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| `")]
        assert [row[0].strip() for row in rows] == [f"`{name}`: {fault.title}" for name, fault in FAULTS.items()]
        assert all(len(row) == len(CHECKS) + 1 and any(cell.strip() != "·" for cell in row[1:]) for row in rows)
        assert all(f"{number} {check}" in part for number, check in enumerate(CHECKS, 1))

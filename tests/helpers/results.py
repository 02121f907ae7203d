"""What benchmarks could have found."""

SCHEDULED = {"running": 1, "steps": 1, "schedulers": {}}
USAGE = {
    "repeats": 9, "bare_s": 0.02, "import_s": 0.31, "engine_s": 1.9, "demos": 3, "demo_s": 50.0,
    "demo_peak_bytes": 0.5e9, "tests": None,
}  # fmt: skip

#!/usr/bin/env bash
# Everything that wants a CUDA GPU, in one command that needs no network: kernels and engine against their definitions,
# the tests, the notebooks, the benchmarks. It prints a short table last; JSON and logs go to the folder $OUT.
#
#   OUT=results tests/gpu_run.sh [PART...]      default: all, in the order below
#
# cuda       the tests that need a GPU: kernels, graphs, exactness
# suite      every test but those that need a browser
# notebooks  lessons and solutions through nbval
# demo       every stage on one workload, checked, as `make demo` does it; its page goes to $OUT too
# steps      one decode step and one prompt against what the GPU can do
# profile    where the time of a step goes on the host and on the GPU
# serving    nano-vllm's workload and short_long_mix, every switch on and off, transformers beside it
#
# Where a call may take ten minutes only, give suite, notebooks and serving a call each, with an $OUT of its own.
# Python packages that are not installed may lie as wheels in .whl/. COMMIT names the commit where there is no clone.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
: "${OUT:?is not set: name a folder for results, such as OUT=results}"
mkdir -p "$OUT"
parts=("$@")
[ $# -gt 0 ] || parts=(cuda suite notebooks demo steps profile serving)
for part in "${parts[@]}"; do
  case $part in
    cuda | suite | notebooks | demo | steps | profile | serving) ;;
    *) echo "part is '$part', but the parts are cuda, suite, notebooks, demo, steps, profile and serving" >&2; exit 2 ;;
  esac
done

if ! $PYTHON -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' 2>"$OUT/torch.log"; then
  echo "torch finds no CUDA GPU on this machine, and everything here measures one: run 'make test' on a CPU" >&2
  exit 2
fi

if compgen -G ".whl/*.whl" >/dev/null; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  $PYTHON -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target "$site" .whl/*.whl \
    >"$OUT/wheels.log" 2>&1 || echo "the wheels in .whl could not be installed: see $OUT/wheels.log" >&2
  export PATH=$site/bin:$PATH PYTHONPATH=$site:$PWD${PYTHONPATH:+:$PYTHONPATH}
else
  export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
fi

failed=0
part() { # NAME COMMAND...: its output goes to a log, its end to the table
  local name=$1 started=$SECONDS status
  shift
  "$@" >"$OUT/$name.log" 2>&1
  status=$?
  [ $status -eq 0 ] || failed=1
  printf '%s\t%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - started))" "$(grep -v '^ *$' "$OUT/$name.log" | tail -1 | cut -c1-90)" \
    >>"$OUT/parts.tsv"
}
bench() { $PYTHON -m tinyengine bench "$1" --device cuda --json "$OUT/$1.json"; }

: >"$OUT/parts.tsv"
for name in "${parts[@]}"; do
  case $name in
    cuda) part cuda $PYTHON -m pytest -q -p no:nbval -p no:cacheprovider tests -m cuda ;;
    suite) part suite $PYTHON -m pytest -q -p no:nbval -p no:cacheprovider tests -m "not browser" ;;
    notebooks) part notebooks $PYTHON -m pytest -q -p no:cacheprovider --nbval-lax --nbval-current-env lessons solutions ;;
    demo) part demo $PYTHON -m tinyengine demo --json "$OUT/demo.json" --html "$OUT/timeline.html" ;;
    steps) part steps bench gpu ;;
    profile) part profile bench profile ;;
    serving) part serving bench gpu_serving ;;
  esac
done

$PYTHON - "$OUT" <<'END'
import importlib, json, pathlib, sys
from rich.console import Console
out = pathlib.Path(sys.argv[1])
for name in ("gpu", "profile", "gpu_serving"):
    if (path := out / f"{name}.json").exists():
        record = json.loads(path.read_text())
        print(record["machine"]["gpu"], "torch", record["versions"]["torch"], "commit", record["commit"])
        importlib.import_module(f"tinyengine.bench.{name}").table(record["benchmarks"][name]).show(name, Console(width=110))
print(f"{'part':10} {'':6} {'seconds':>7}  last line")
for line in (out / "parts.tsv").read_text().splitlines():
    name, status, seconds, last = line.split("\t")
    print(f"{name:10} {'ok' if status == '0' else 'FAILED':6} {seconds:>7}  {last}")
END
exit $failed

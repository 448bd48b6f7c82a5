# `make demo` trains, evaluates, saves and films an agent; `make test` runs ruff, mypy, and a test of each behaviour.
# Both install what they need into .venv, once: again only when pyproject.toml or constraints.txt change.
# `make test-all` also runs the tests marked thorough, and `make test-thorough` only these: CONTRIBUTING.md.
# `make test-versions` also tests with other versions, each in an environment of its own: CONTRIBUTING.md.
# `make docs` builds the site of docs/ into site/.
# `make test-third-party` tests with the environments of other libraries, all of them: an hour.
# `make gpu` tests and measures on a machine with an NVIDIA GPU, which needs no network: docs/gpu.md.

PYTHON ?= python3
TRAINS := .venv/.trains
INSTALLED := .venv/.installed
PIP := .venv/bin/python -m pip --disable-pip-version-check
OTHER_VERSIONS := test-lowest test-newest test-gpu-image
WHEELS ?= wheels
# A worker begins with the neighbours of its tests, which share programs, and takes from another's when it has no more.
WORKERS := -n auto --dist worksteal

# gymnax by itself, without what it asks for: a Gymnasium that is older than ours.
LIBRARIES := brax,craftax,jaxmarl,jumanji,navix,pgx,playground,xminigrid,envpool-references,ray
GYMNAX := gymnax==1.0.1

.PHONY: demo test test-all test-thorough types tests test-versions $(OTHER_VERSIONS) test-third-party bench docs gpu gpu-wheels clean

define DEMO_ENDS_WITH

runs/demo/agent.gif            a film of the agent
runs/demo/learning_curve.png   its learning curve
runs/demo/model.zip            the agent, for jaxenvs.sb3.PPO.load or stable_baselines3.PPO.load

Next:
  . .venv/bin/activate
  jaxenvs evaluate runs/demo --episodes 1000
  jaxenvs train sac Pendulum-v1
  jaxenvs list
endef
export DEMO_ENDS_WITH

demo: $(TRAINS)
	rm -rf runs/demo
	.venv/bin/jaxenvs train ppo CartPole-v1 --seed 0 --out runs/demo
	.venv/bin/jaxenvs record runs/demo
	@echo "$$DEMO_ENDS_WITH"

test test-all: $(INSTALLED)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	$(MAKE) --no-print-directory --jobs 2 types tests WHICH='$(WHICH)'

# Side by side, as mypy takes one core.
types:
	.venv/bin/mypy

tests:
	.venv/bin/pytest $(WORKERS) $(WHICH)

test-all: WHICH := -m "not third_party"
test-all: export XLA_FLAGS :=  # what users compile themselves has no other options either

# What `make test-all` adds to `make test`.
test-thorough: $(INSTALLED)
	XLA_FLAGS= .venv/bin/pytest $(WORKERS) -m "thorough and not third_party"

test-versions: test $(OTHER_VERSIONS)

test-lowest: PYTHON = python3.11
test-newest test-gpu-image: PYTHON = python3.12
$(OTHER_VERSIONS): test-%: .venv-%/.installed
	.venv-$*/bin/pytest $(WORKERS)

# Every environment of other libraries: docs/environments/other-libraries.md, and EnvPool's: docs/environments/envpool.md.
# And Ray's cluster: docs/cluster-environments.md.
WITH_OTHERS := $(addprefix tests/bridge/,host_env/test_envpool.py host_env/test_envpool_atari.py app/test_native.py)
WITH_OTHERS += $(addprefix tests/bridge/app/,test_zoo.py test_environments.py)
WITH_OTHERS += tests/docs/test_coming_from.py
WITH_OTHERS += tests/bridge/host_env/vector_envs/test_ray_vector_env.py
PAGES := cluster-environments coming-from/brax coming-from/envpool reference/bridge-environments reference/third-party
WITH_OTHERS += $(patsubst %,"tests/docs/test_readme.py::test_the_code_of_a_page_runs[docs/%.md]",$(PAGES))
test-third-party: .venv-third-party/.installed
	.venv-third-party/bin/pytest $(WORKERS) tests/third_party $(WITH_OTHERS) -m ""

bench: $(INSTALLED)
	$(PIP) install --quiet -c constraints.txt -e ".[bench]"
	.venv/bin/python -m benchmarks

# In an environment of its own, which needs neither JAX nor PyTorch: the reference is read, not imported, as is the
# source of Stable-Baselines3 and sb3-contrib, which has the defaults of their algorithms.
docs: .venv-docs/.installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "The site is in site/. To look at it: python3 -m http.server --directory site"

.venv-docs/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt $$($(PYTHON) -c \
		'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	.venv-docs/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -c constraints.txt \
		stable-baselines3 sb3-contrib
	touch $@

# What the demo needs by itself, which is a part of what tests need.
$(TRAINS): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e ".[sb3]"
	touch $@

$(INSTALLED): $(TRAINS)
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	touch $@

.venv-third-party/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-third-party
	.venv-third-party/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt -e ".[dev,$(LIBRARIES)]"
	.venv-third-party/bin/python -m pip --disable-pip-version-check install --quiet absl-py seaborn six
	.venv-third-party/bin/python -m pip --disable-pip-version-check install --quiet --no-deps $(GYMNAX)
	touch $@

.venv-%/.installed: pyproject.toml constraints-%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip --disable-pip-version-check install --quiet -c constraints-$*.txt -e ".[dev]"
	touch $@

# In the Python that is there, which has JAX and PyTorch with CUDA; of the rest, what lies in $(WHEELS).
gpu: .gpu-site/.installed
	PYTHONPATH=$(CURDIR):$(CURDIR)/.gpu-site$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m benchmarks.gpu $(OPTIONS)

gpu-wheels:
	$(PYTHON) -m pip --disable-pip-version-check download --quiet --no-deps --only-binary=:all: \
		--python-version 3.12 --platform manylinux_2_28_x86_64 \
		-c constraints-gpu-image.txt -r benchmarks/gpu/wheels.txt -d $(WHEELS)

.gpu-site/.installed: $(wildcard $(WHEELS)/*.whl)
	rm -rf .gpu-site
	mkdir .gpu-site
	$(if $^,$(PYTHON) -m pip --disable-pip-version-check install --quiet --no-index --no-deps --target .gpu-site $^)
	touch $@

clean:
	rm -rf .venv .venv-* site .gpu-site .bench .jax_cache .pytest_cache .mypy_cache .ruff_cache runs

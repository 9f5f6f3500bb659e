# The commands of this repository; `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The order of the steps is that of the lists; cargo and vitest use all cores by themselves.
.NOTPARALLEL:

TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
# Tools that prerequisites.sh and the rules below install.
export PATH := $(TARGET)/tools/bin:$(PATH)
# The build that `make run` serves, the optimised build of packages, and the one that the tests make.
QUICK := $(TARGET)/quick/encke
RELEASED := $(TARGET)/release/encke
TESTED := $(TARGET)/debug/encke
BENCH := $(TARGET)/release/encke-bench
# The server of the tests; another one can be tested: `make browser ENCKE_BIN=...`.
export ENCKE_BIN ?= $(TESTED)
fleet bench-report: export ENCKE_BIN := $(RELEASED)
export CHROMIUM ?= /usr/bin/chromium

# Where `node_modules` must stand for each npm project; npm writes this file when it has installed one.
WEB := tests/web/node_modules/.package-lock.json
QUAKES := examples/quakes/node_modules/.package-lock.json
THUMBNAILS := examples/thumbnails/node_modules/.package-lock.json
CHAT_AI := examples/chat-ai/node_modules/.package-lock.json
PYRIGHT := clients/python/node_modules/.package-lock.json
CLIENT_JS := clients/js/node_modules/.package-lock.json
RUNTIMES := clients/js/test/runtimes/node_modules/.package-lock.json
# Adapters of other packages, over the client.
ADAPTERS := clients/resumable-stream clients/assistant-stream clients/pusher-replay

export NGINX ?= $(or $(shell PATH="$$PATH:/usr/sbin" command -v nginx),$(TARGET)/tools/usr/sbin/nginx)
export CADDY ?= $(or $(shell command -v caddy),$(TARGET)/tools/usr/bin/caddy)
export HAPROXY ?= $(or $(shell PATH="$$PATH:/usr/sbin" command -v haproxy),$(TARGET)/tools/usr/sbin/haproxy)
export LOGROTATE ?= $(or $(shell PATH="$$PATH:/usr/sbin" command -v logrotate),$(TARGET)/tools/usr/sbin/logrotate)
# With it a test sets the time of day of a server.
export LIBFAKETIME ?= $(or $(firstword $(wildcard /usr/lib/*/faketime/libfaketime.so.1)),$(TARGET)/tools/libfaketime.so.1)
H2SPEC := $(TARGET)/tools/h2spec
# A server that is compatible with S3, for backups to a bucket.
export S3_SERVER ?= $(TARGET)/tools/versitygw
PROMLINT := $(TARGET)/tools/promlint
export PROMRULES := $(TARGET)/tools/promrules
PUSHER_GO := $(TARGET)/tools/pusher-go
PYTHON := $(TARGET)/python
CLIENT_PYTHON := $(TARGET)/client-python
# The broker of fleets; the package has its binary.
export NATS_SERVER ?= $(or $(shell command -v nats-server),$(PYTHON)/bin/nats-server)
# What `make test` downloads before its first step, and what `make test-all` downloads besides.
DOWNLOADS := fetch $(LIBFAKETIME) $(WEB) $(CLIENT_JS) $(PYTHON)/installed
DOWNLOADS_ALL := $(PROMLINT) $(PROMRULES) $(PUSHER_GO) $(NGINX) $(CADDY) $(HAPROXY) $(LOGROTATE) $(H2SPEC) $(S3_SERVER) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) \
	$(CLIENT_PYTHON)/installed $(PYRIGHT) $(RUNTIMES) $(ADAPTERS:%=%/node_modules/.package-lock.json)

# A test that has failed may leave connections open, which its process would wait for.
NODE_TESTS := node --test --test-force-exit --test-timeout=600000 --test-reporter=spec

FUZZ_TARGETS := connection credentials log_recovery proxies request_head request_hyper tls_records
FUZZ_SECONDS := 60

section = @printf '\n=== %s (%s)\n' '$(1)' "$$(date +%T)"
# Runs a step and prints how long it took; `make test` ends with a table of them.
export STEPS := $(TARGET)/steps.txt
step = @scripts/step.sh '$(1)'

.PHONY: help
help: ## lists the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# Installs what is missing, or names it, before anything is built. Sub-makes skip the check.
prerequisites_of = @[ $(MAKELEVEL) != 0 ] || { mkdir -p $(TARGET) && scripts/prerequisites.sh $(1); }

.PHONY: prerequisites
prerequisites:
	$(call prerequisites_of,test)

.PHONY: prerequisites-all
prerequisites-all:
	$(call prerequisites_of,test-all)

.PHONY: prerequisites-run
prerequisites-run:
	$(call prerequisites_of,run)

.PHONY: run
run: prerequisites-run fetch ## builds a quick build and serves on 127.0.0.1:4437, data in ./encke-data
	$(call section,quick build)
	cargo build --locked --profile quick -p encke --no-default-features
	@exec $(QUICK) serve

.PHONY: dist
dist: prerequisites-run build ## makes packages of the optimised build: tarball, .deb, .rpm, debug symbols, checksums
	scripts/dist.sh $(RELEASED)

.PHONY: try-packages
try-packages: dist ## installs the packages in clean roots of Debian: start, upgrade, removal, systemd; needs root, debootstrap and systemd-nspawn
	scripts/try-packages.sh

.PHONY: image
image: prerequisites-run build ## makes a container image of the optimised build with buildah
	scripts/image.sh $(RELEASED)

.PHONY: fleet
fleet: prerequisites-run build $(PYTHON)/installed ## runs three brokers and three nodes of a fleet on this machine
	@exec scripts/fleet.sh

.PHONY: build
build: fetch ## builds the server, optimised
	$(call section,release build)
	cargo build --locked --release -p encke

.PHONY: instruments
instruments: build ## builds the load tools and experiments (bench/)
	cargo build --locked --release --manifest-path bench/Cargo.toml

# The checks and tests that each change must pass. The suites beside the Rust tests mostly wait.
.PHONY: test
test: prerequisites ## runs the checks and tests that each change must pass; installs missing tools first (10 minutes)
	@rm -f $(STEPS)
	$(call step,downloads) $(MAKE) --silent $(DOWNLOADS)
	@$(MAKE) fmt lint test-build
	@scripts/beside.sh $(TARGET)/beside.log '$(MAKE) conformance clients-js readme-commands' $(MAKE) unit
	@scripts/step.sh --summary 'everything in make test passes'

.PHONY: test-all
test-all: prerequisites-all ## runs the checks and tests that `make test` leaves out (25 minutes)
	@rm -f $(STEPS)
	$(call step,downloads) $(MAKE) --silent $(DOWNLOADS) $(DOWNLOADS_ALL)
	@$(MAKE) test-all-steps
	@scripts/step.sh --summary 'everything in make test-all passes'

.PHONY: test-all-steps
test-all-steps: test-build
	@scripts/beside.sh $(TARGET)/beside.log '$(MAKE) conformance-all browser' $(MAKE) unit-long
	@$(MAKE) reference-check metrics h2spec contrib docs-commands python go clients-python clients-js-browser clients-js-faults clients-js-runtimes clients-adapters clients-conformance crates doc instruments-check

.PHONY: fetch
fetch: # Quietly, so that later steps print only what they do themselves.
	@cargo fetch --locked --quiet

.PHONY: fmt
fmt: ## checks the formatting
	$(call step,formatting) cargo fmt --all --check
	@cargo fmt --check --manifest-path bench/Cargo.toml

.PHONY: lint
lint: fetch type-names import-cycles call-cycles doc-paths links budget ## checks what needs no build: type names, cycles, paths and links in texts, budgets
	@! git grep -nE '^(<{7}|>{7}) '

.PHONY: budget
budget: ## checks sizes and phrases against budget.toml, and the subjects of commits
	@scripts/test_budget.py
	$(call step,budgets) scripts/budget.py

# Clippy's driver is rustc with more lints: it compiles the tests, and a warning is an error.
CHECKED := env RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings CARGO_INCREMENTAL=0
# `make test` tests the features of `make run`; `make test-all` and its parts test those of packages.
FEATURES := --no-default-features
TESTS = --locked --workspace $(FEATURES)
LONG := unit-long conformance-all reference-check metrics h2spec browser contrib clients-js-browser clients-js-faults clients-js-runtimes clients-adapters docs-commands python go clients-python clients-conformance instruments-check
test-all-steps $(LONG): FEATURES :=

.PHONY: test-build
test-build: fetch
	$(call step,clippy and test build) $(CHECKED) cargo test $(TESTS) --no-run

.PHONY: server
server: fetch
ifeq ($(ENCKE_BIN),$(TESTED))
	@$(CHECKED) cargo test $(TESTS) --no-run --quiet
endif

.PHONY: type-names
type-names: ## checks that each public type name has one definition
	$(call step,type names) scripts/type-names.sh

.PHONY: import-cycles
import-cycles: ## checks that files of a crate do not import each other
	$(call step,import cycles) scripts/import-cycles.py
	@scripts/import-cycles.py bench

.PHONY: call-cycles
call-cycles: ## checks that files do not call each other, and the bounds of the reactor's design
	$(call step,call cycles) scripts/call-cycles.py

.PHONY: doc-paths
doc-paths: ## checks that the source files exist which texts and comments name
	$(call step,paths in texts) scripts/doc-paths.py

.PHONY: links
links: ## checks the links between documents, and that each document is a chapter of the site
	$(call step,links) scripts/site-links.py --check

MDBOOK_VERSION := 0.5.4
MDBOOK := $(TARGET)/tools/bin/mdbook
.PHONY: site
site: links ## makes the documentation one site, with a search, in target/site
	@[ "$$($(MDBOOK) --version 2> /dev/null)" = "mdbook v$(MDBOOK_VERSION)" ] || \
		cargo install --quiet --locked --root $(TARGET)/tools mdbook@$(MDBOOK_VERSION)
	$(MDBOOK) build --dest-dir $(TARGET)/site

.PHONY: doc
doc: fetch ## builds the documentation of the crates; every warning is an error
	$(call step,documentation) env RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps
	$(call step,tests in the documentation) cargo test --locked --workspace --doc
	$(call step,documentation of the instruments) env RUSTDOCFLAGS='-D warnings' cargo doc --locked --manifest-path bench/Cargo.toml --no-deps

.PHONY: crates
crates: fetch ## makes the crates as `cargo publish` would, without building them again
	$(call step,crates) cargo package --locked --workspace --no-verify --allow-dirty --quiet

# Most tests of the whole binary wait for servers and clocks, so three run for each processor.
TEST_THREADS := $(shell echo $$((3 * $$(nproc))))
# ARGS selects tests: make unit ARGS='-p encke-net frames'
.PHONY: unit
unit: prerequisites $(LIBFAKETIME) $(PYTHON)/installed ## runs the Rust tests of `make test`
	$(call step,Rust tests) $(CHECKED) cargo nextest run $(TESTS) --test-threads $(TEST_THREADS) $(ARGS)

.PHONY: unit-long
unit-long: prerequisites $(LIBFAKETIME) $(PYTHON)/installed $(S3_SERVER) ## runs the Rust tests that `make test` leaves out
	$(call step,longer Rust tests) $(CHECKED) cargo nextest run $(TESTS) --test-threads $(TEST_THREADS) --profile long --run-ignored only $(ARGS)

FLEET_SECONDS := 600
.PHONY: fleet-torture
fleet-torture: fetch $(PYTHON)/installed ## FLEET_SECONDS (600) of faults of nodes and brokers, and a check of what is left
	$(call section,a fleet under faults for $(FLEET_SECONDS) s)
	FLEET_SECONDS=$(FLEET_SECONDS) cargo test --locked -p encke --test fleet -- --include-ignored --nocapture

NEXT := target/next-format
.PHONY: rolling
rolling: fetch $(PYTHON)/installed ## upgrades the nodes of a fleet, one after the other, to a build as the next release may be
	$(call section,a rolling upgrade of a fleet)
	cargo build --locked -p encke --features next-format --target-dir $(NEXT)
	ENCKE_NEXT=$(abspath $(NEXT))/debug/encke cargo test --locked -p encke --test system fleet_rolling -- --ignored --nocapture

# Seeds differ each time. A failure prints its seed; ENCKE_CRASH_SEED=<seed> ENCKE_CRASH_ROUNDS=1 repeats it.
CRASH_ROUNDS := 2000
.PHONY: crash
crash: fetch ## runs CRASH_ROUNDS rounds (2,000) of the crash and fault tests
	$(call section,$(CRASH_ROUNDS) rounds of each crash test)
	ENCKE_CRASH_ROUNDS=$(CRASH_ROUNDS) ENCKE_CRASH_SEED=$${ENCKE_CRASH_SEED:-$$(date +%s)000000} \
		cargo test --locked --release --no-fail-fast -p encke-log --test crash --test crash_history --test kill
	ENCKE_CRASH_ROUNDS=$(CRASH_ROUNDS) ENCKE_CRASH_SEED=$${ENCKE_CRASH_SEED:-$$(date +%s)000000} \
		cargo test --locked --release -p encke-net --lib simulation
	ENCKE_CRASH_ROUNDS=$(CRASH_ROUNDS) ENCKE_CRASH_SEED=$${ENCKE_CRASH_SEED:-$$(date +%s)000000} \
		cargo test --locked --release -p encke --test system -- --include-ignored damaged_directory older_data
	PROPTEST_CASES=$(CRASH_ROUNDS) cargo test --locked --release --no-fail-fast \
		-p encke-stream --test model -p encke-jobs --test crashes

.PHONY: models
models: fetch ## checks mailbox and pool in every order of threads (loom)
	$(call section,models)
	RUSTFLAGS='--cfg encke_model' cargo test --locked --release -p encke-mailbox -p encke-pool --test model \
		--target-dir $(TARGET)/model

.PHONY: producer-load
producer-load: fetch ## appends 100,000 records over connections that are cut, and three kills of the server; prints records/s
	ENCKE_PRODUCER_RECORDS=100000 cargo test --locked --release -p encke --test system each_record_is_there_once -- --include-ignored --nocapture

.PHONY: pool-load
pool-load: fetch ## runs 100,000 jobs with dying workers and five kills of the server; prints jobs/s
	$(call section,200 workers)
	ENCKE_POOL_JOBS=100000 cargo test --locked --release -p encke --test system pools::every_job -- --include-ignored --nocapture

# Programs and a library of Debian whose packages are only unpacked: to install them would start servers.
$(TARGET)/tools/usr/sbin/nginx: PACKAGE := nginx
$(TARGET)/tools/usr/bin/caddy: PACKAGE := caddy
$(TARGET)/tools/usr/sbin/haproxy: PACKAGE := haproxy
$(TARGET)/tools/usr/sbin/logrotate: PACKAGE := logrotate
$(TARGET)/tools/libfaketime.so.1: PACKAGE := libfaketime
unpack = @mkdir -p $(TARGET)/tools && cd $(TARGET)/tools && rm -f $(PACKAGE)_*.deb && \
	(apt-get -qq download $(PACKAGE) || { $$([ "$$(id -u)" = 0 ] || echo sudo) apt-get -qq update && apt-get -qq download $(PACKAGE); }) && \
	dpkg -x $(PACKAGE)_*.deb .
# What it needs besides, such as libraries, as far as that is not installed.
unpack_needs = @cd $(TARGET)/tools && for needed in $$(apt-get -qq --simulate install --no-install-recommends $(PACKAGE) | sed -n 's/^Inst \([^ ]*\).*/\1/p'); do \
	rm -f $${needed}_*.deb && apt-get -qq download $$needed && dpkg -x $${needed}_*.deb .; done

$(TARGET)/tools/usr/sbin/nginx $(TARGET)/tools/usr/bin/caddy:
	$(unpack) && test -x $@ && touch $@

$(TARGET)/tools/usr/sbin/haproxy $(TARGET)/tools/usr/sbin/logrotate:
	$(unpack)
	$(unpack_needs)
	@test -x $@ && touch $@

# Its directory is named after the processor.
$(TARGET)/tools/libfaketime.so.1:
	$(unpack) && cp usr/lib/*/faketime/libfaketime.so.1 $@

.PHONY: reference
reference: prerequisites server ## writes docs/reference.md: settings, metrics, errors, exit codes
	scripts/reference.py $(ENCKE_BIN)

.PHONY: reference-check
reference-check: prerequisites server
	$(call step,reference) scripts/reference.py --check $(ENCKE_BIN)

.PHONY: metrics
metrics: prerequisites-all server $(PROMLINT) ## checks the server's metrics by the rules of promtool
	$(call step,metrics) scripts/check-metrics.sh $(ENCKE_BIN) $(PROMLINT)

# As tests/promlint/go.mod and go.sum pin it. Debian 13 has no promtool.
$(PROMLINT): tests/promlint/main.go tests/promlint/go.mod tests/promlint/go.sum | prerequisites-all
	@mkdir -p $(@D)
	cd tests/promlint && go build -buildvcs=false -o $@ .

# As tests/promrules/go.mod and go.sum pin it.
$(PROMRULES): $(wildcard tests/promrules/*.go) tests/promrules/go.mod tests/promrules/go.sum | prerequisites-all
	@mkdir -p $(@D)
	cd tests/promrules && go build -buildvcs=false -ldflags='-s -w' -o $@ .

# As tests/h2spec/go.mod and go.sum pin it.
$(H2SPEC): tests/h2spec/go.mod tests/h2spec/go.sum | prerequisites-all
	@mkdir -p $(@D)
	cd tests/h2spec && go build -buildvcs=false -o $@ github.com/summerwind/h2spec/cmd/h2spec

# As tests/s3/go.mod and go.sum pin it.
$(TARGET)/tools/versitygw: tests/s3/go.mod tests/s3/go.sum | prerequisites-all
	@mkdir -p $(@D)
	cd tests/s3 && go build -buildvcs=false -ldflags='-s -w' -o $@ github.com/versity/versitygw/cmd/versitygw

.PHONY: h2spec
h2spec: prerequisites-all server $(H2SPEC) ## checks the server's HTTP/2 with h2spec
	$(call step,HTTP/2) scripts/h2spec.sh $(ENCKE_BIN) $(H2SPEC)

.PHONY: conformance
conformance: prerequisites server $(WEB) ## runs the published conformance suite over HTTP/1.1
	$(call step,conformance) node tests/web/conformance/run.mjs --over plain

.PHONY: conformance-all
conformance-all: prerequisites server $(WEB) $(PYTHON)/installed ## runs the suite over TLS, HTTP/2, with access control, over kill -9, and against a fleet
	$(call step,conformance over other wires) node tests/web/conformance/run.mjs --over tls,http2,access,killed
	$(call step,conformance of a fleet) node tests/web/conformance/run.mjs --over node,fleet

.PHONY: browser
browser: prerequisites-all server $(WEB) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) ## tests the examples in headless Chromium, and clients of npm, against the server
	@# Most of it waits for pages and servers.
	$(call step,browser) $(NODE_TESTS) --test-concurrency=3 tests/web/browser/*.test.mjs tests/web/clients/*.test.mjs tests/web/adapters/*.test.mjs

.PHONY: contrib
contrib: prerequisites-all server $(PROMRULES) $(NGINX) $(CADDY) $(HAPROXY) $(LOGROTATE) $(WEB) $(PYTHON)/installed ## tests the dashboard, the alerts, and the configurations of proxies and logrotate
	$(call step,contrib) env LD_LIBRARY_PATH=$(wildcard $(TARGET)/tools/usr/lib/*-linux-gnu) $(NODE_TESTS) tests/contrib/*.test.mjs

.PHONY: clients-js-build
clients-js-build: $(CLIENT_JS)
	@cd clients/js && npm run --silent build

.PHONY: clients-js
clients-js: prerequisites server $(WEB) clients-js-build ## builds the JavaScript client, and tests it in Node
	$(call step,JavaScript client) npm test --silent --prefix clients/js

.PHONY: clients-js-browser
clients-js-browser: prerequisites-all server $(WEB) clients-js-build ## tests the JavaScript client in headless Chromium
	$(call step,JavaScript client in Chromium) npm run test:browser --silent --prefix clients/js

.PHONY: clients-js-runtimes
clients-js-runtimes: prerequisites-all server $(WEB) clients-js-build $(RUNTIMES) ## tests the JavaScript client in the runtimes, bundlers and compilers of its README
	$(call step,runtimes of the JavaScript client) $(NODE_TESTS) clients/js/test/runtimes/*.test.mjs

.PHONY: clients-js-faults
clients-js-faults: prerequisites-all server clients-js-build ## tests the JavaScript client with a server that is killed, stopped, upgraded and cut off
	$(call step,JavaScript client under faults) npm run test:faults --silent --prefix clients/js

.PHONY: clients-adapters
clients-adapters: prerequisites server clients-js-build $(ADAPTERS:%=%/node_modules/.package-lock.json) ## builds and tests the adapters of other packages
	$(call step,adapters) bash -euc 'for adapter in $(ADAPTERS); do npm run --silent --prefix $$adapter build; npm test --silent --prefix $$adapter; done'

# Default ports are free in a network of its own; where the system allows none, the commands get other ports.
COMMANDS := $(NODE_TESTS) tests/web/docs/*.test.mjs
.PHONY: docs-commands
docs-commands: prerequisites-all server $(WEB) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) ## runs every command of the documentation against a fresh server
	$(call step,commands of the documentation) scripts/own-network.sh $(TARGET)/docs-commands/system $(COMMANDS)

.PHONY: readme-commands
readme-commands: prerequisites server $(WEB) ## runs the commands of the README against a fresh server
	$(call step,commands of the README) env DOCUMENTS=README.md scripts/own-network.sh $(TARGET)/readme-commands/system $(COMMANDS)

# Virtual environments with exactly these packages.
$(PYTHON)/installed: tests/python/requirements.txt
$(CLIENT_PYTHON)/installed: clients/python/requirements.txt
$(PYTHON)/installed $(CLIENT_PYTHON)/installed: | prerequisites
	$(call section,Python packages of $(<D))
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.PHONY: python
python: prerequisites server $(PYTHON)/installed ## clients in Python against the server
	$(call step,clients in Python) bash -euc 'for test in tests/python/test_*.py; do $(PYTHON)/bin/python $$test; done'

# The tests as a program, with the libraries that tests/pusher-go/go.mod and go.sum pin.
$(PUSHER_GO): $(wildcard tests/pusher-go/*.go) tests/pusher-go/go.mod tests/pusher-go/go.sum | prerequisites-all
	@mkdir -p $(@D)
	cd tests/pusher-go && go vet . && go test -c -o $@ .

.PHONY: go
go: prerequisites-all server $(PUSHER_GO) ## a server in Go, with the library of Pusher, against the server
	$(call step,a server in Go) $(PUSHER_GO) -test.v

# The tests use the package as the wheel installs it.
.PHONY: clients-python
clients-python: prerequisites server $(CLIENT_PYTHON)/installed $(PYRIGHT) ## checks and builds our client in Python, and tests it against the server
	$(call step,our client in Python) scripts/test-python-client.sh $(CLIENT_PYTHON)

# The suite is in no registry; without its sources nothing runs, and that is no failure.
.PHONY: clients-conformance
clients-conformance: prerequisites-all $(WEB) clients-js-build $(CLIENT_PYTHON)/installed ## runs the client conformance suite of DURABLE_STREAMS (a clone of its repository) over our clients
	$(call step,client conformance) env CLIENT_PYTHON=$(CLIENT_PYTHON)/bin/python PYTHONPATH=clients/python/src node clients/conformance/run.mjs

# Locks packages: the folder, the file without its extension, and the interpreter that the packages must support.
define lock
	$(3) -m venv --clear $(PYTHON)-lock
	$(PYTHON)-lock/bin/pip install --quiet --disable-pip-version-check pip-tools
	cd $(1) && $(PYTHON)-lock/bin/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --no-header --strip-extras --output-file $(2).txt $(2).in
endef

.PHONY: python-lock clients-python-lock
python-lock: # Writes a requirements.txt anew.
	$(call lock,tests/python,requirements,python3)
clients-python-lock: # Writes requirements.txt anew, and requirements-tests.txt with the oldest version that the client supports.
	$(call lock,clients/python,requirements,python3)
	$(call lock,clients/python,requirements-tests,python3.9)

.PHONY: fuzz-minute
fuzz-minute: ## runs each fuzz target for a minute, on a nightly toolchain
	@cargo +nightly --version > /dev/null || { echo 'fuzzing needs a nightly toolchain: rustup toolchain install nightly'; exit 1; }
	@command -v cargo-fuzz > /dev/null || cargo install --locked --quiet cargo-fuzz
	@for target in $(FUZZ_TARGETS); do \
		printf '\n=== fuzzing %s for %s s\n' "$$target" $(FUZZ_SECONDS); \
		cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; \
	done

.PHONY: bench
bench: fetch ## runs the micro-benchmarks; docs/benchmarks.md describes how to measure the server
	cargo bench --locked --manifest-path bench/Cargo.toml

# A short round of each load tool, benchmark and experiment, with the server of the tests. Examples are only compiled.
.PHONY: instruments-check
instruments-check: prerequisites-all server
	$(call step,clippy and short rounds of the instruments) $(CHECKED) ENCKE_BIN=$(ENCKE_BIN) cargo test --locked --profile quick --manifest-path bench/Cargo.toml --all-targets --features synthetic

# The experiment of the third report, which ran for a day: memory must stay flat, every hang-up must be noticed, and no socket
# may be left. All values can be set, for example `make flood-hour FLOOD_TIME=24h`. The server's bounds are so small that recent
# records, segments of the global order and the cache are full in the first tenth of the hour.
FLOOD_TIME ?= 1h
FLOOD_CLIENTS ?= 10000
FLOOD_RATE ?= 1000
FLOOD_CHURN ?= 10
FLOOD_SERVE ?= --ring 32MiB --segment 8MiB --body-max 1MiB --order-size 64MiB --tuning history-cache=64KiB
FLOOD_OUT ?= $(TARGET)/flood-hour

.PHONY: flood-hour
flood-hour: instruments ## runs 10,000 clients that connect and leave, 1,000 messages/s, for an hour (FLOOD_TIME)
	$(call section,$(FLOOD_CLIENTS) clients for $(FLOOD_TIME); record and plot in $(FLOOD_OUT))
	@mkdir -p $(FLOOD_OUT); : > $(FLOOD_OUT)/server.txt; data=$$(mktemp -d $(FLOOD_OUT)/data.XXXXXX); \
	$(RELEASED) serve --listen 127.0.0.1:0 --data $$data --log warn $(FLOOD_SERVE) > $(FLOOD_OUT)/server.txt & server=$$!; \
	trap 'kill $$server 2> /dev/null; wait $$server; rm -rf $$data' EXIT; \
	until url=$$(sed -n 's/^listening on //p' $(FLOOD_OUT)/server.txt) && [ -n "$$url" ]; do kill -0 $$server; sleep 0.1; done; \
	$(BENCH) flood --url $$url/v1/stream -n $(FLOOD_CLIENTS) --rate 2000 \
		--duration $(FLOOD_TIME) --publish $(FLOOD_RATE) --churn $(FLOOD_CHURN) --server-pid $$server --endure --progress 10s \
		--record $(FLOOD_OUT)/run.csv --plot $(FLOOD_OUT)/run.svg | tee $(FLOOD_OUT)/report.txt

.PHONY: bench-report
bench-report: instruments ## repeats the experiments; writes docs/bench and docs/experiments.md (13 minutes, quiet machine)
	@mkdir -p docs/bench
	$(call section,the five experiments)
	$(BENCH) report --out docs/bench --insert docs/experiments.md
	$(call section,the mailbox beside other channels)
	cargo bench --locked --manifest-path bench/Cargo.toml --bench channels -- --discard-baseline | tee $(TARGET)/channels.txt
	awk -v cores="$$(nproc)" -f bench/benches/table.awk $(TARGET)/channels.txt > docs/bench/channels.md

# npm 9 copies linked packages unless .npmrc says otherwise.
clients/assistant-stream/node_modules/.package-lock.json clients/resumable-stream/node_modules/.package-lock.json: %/node_modules/.package-lock.json: %/.npmrc

# Node of PyPI has its own list of certificate authorities unless it is told to use that of the system.
%/node_modules/.package-lock.json: %/package-lock.json %/package.json
	$(call section,npm packages of $*)
	cd $* && NODE_USE_SYSTEM_CA=1 npm ci --loglevel=error
	@touch $@

# The commands of this repository; `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The order of the steps is that of the lists; cargo and vitest use all cores by themselves.
.NOTPARALLEL:

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
RELEASED := $(TARGET)/release/encke
# Another server can be tested: `make browser ENCKE_BIN=...` builds none.
export ENCKE_BIN ?= $(RELEASED)
BENCH := $(TARGET)/release/encke-bench
export CHROMIUM ?= /usr/bin/chromium

# Where `node_modules` must stand for each npm project; npm writes this file when it has installed one.
WEB := tests/web/node_modules/.package-lock.json
QUAKES := examples/quakes/node_modules/.package-lock.json
THUMBNAILS := examples/thumbnails/node_modules/.package-lock.json
CHAT_AI := examples/chat-ai/node_modules/.package-lock.json
CLIENT_JS := clients/js/node_modules/.package-lock.json
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
# What `make test` downloads, before its first step.
DOWNLOADS := fetch $(PROMLINT) $(PROMRULES) $(PUSHER_GO) $(NGINX) $(CADDY) $(HAPROXY) $(LOGROTATE) $(LIBFAKETIME) $(H2SPEC) $(S3_SERVER) $(WEB) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) $(PYTHON)/installed \
	$(CLIENT_PYTHON)/installed $(CLIENT_JS) $(ADAPTERS:%=%/node_modules/.package-lock.json)

# A test that has failed may leave connections open, which its process would wait for.
NODE_TESTS := node --test --test-force-exit --test-timeout=600000 --test-reporter=spec

FUZZ_TARGETS := connection credentials log_recovery proxies request_head request_hyper tls_records
FUZZ_SECONDS := 60

section = @printf '\n=== %s (%s)\n' '$(1)' "$$(date +%T)"

.PHONY: help
help: ## lists the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# What is missing is installed or named before anything is built.
.PHONY: prerequisites
prerequisites:
	@scripts/prerequisites.sh test

.PHONY: prerequisites-run
prerequisites-run:
	@scripts/prerequisites.sh run

.PHONY: run
run: prerequisites-run build ## builds and serves on 127.0.0.1:4437, data in ./encke-data
	@exec $(ENCKE_BIN) serve

.PHONY: dist
dist: prerequisites-run build ## makes packages of this build: tarball, .deb, .rpm, debug symbols, checksums
	scripts/dist.sh $(RELEASED)

.PHONY: try-packages
try-packages: dist ## installs the packages in clean roots of Debian: start, upgrade, removal; needs root and debootstrap
	scripts/try-packages.sh

.PHONY: image
image: prerequisites-run build ## makes a container image of this build with buildah
	scripts/image.sh $(RELEASED)

.PHONY: fleet
fleet: prerequisites-run build $(PYTHON)/installed ## runs three brokers and three nodes of a fleet on this machine
	@exec scripts/fleet.sh

.PHONY: build
build: fetch ## builds the server, optimised
ifeq ($(ENCKE_BIN),$(RELEASED))
	$(call section,release build)
	cargo build --locked --release -p encke
endif

.PHONY: instruments
instruments: build # The load tools and experiments.
	cargo build --locked --release -p encke-bench

.PHONY: test
test: prerequisites $(DOWNLOADS) fmt lint doc crates unit ## runs all checks and tests; installs missing tools first
	@$(MAKE) ENCKE_BIN=$(TARGET)/debug/encke of-the-binary
	$(call section,everything passes)

# Against the server that the Rust tests have built: an optimised one would take minutes more.
.PHONY: of-the-binary
of-the-binary: reference-check metrics h2spec browser
	@# The conformance suite mostly waits for clocks: the other tests run beside it.
	@$(MAKE) conformance > $(TARGET)/conformance.log 2>&1 & suite=$$!; status=0; \
	$(MAKE) contrib docs-commands python go clients-python clients-js clients-adapters || status=$$?; \
	wait $$suite || status=$$?; cat $(TARGET)/conformance.log; exit $$status

.PHONY: fetch
fetch: # Quietly, so that later steps print only what they do themselves.
	@cargo fetch --locked --quiet

.PHONY: fmt
fmt: ## checks the formatting
	$(call section,formatting)
	cargo fmt --all --check

.PHONY: lint
lint: fetch type-names import-cycles call-cycles doc-paths links ## clippy, conflict markers, type names, cycles, paths and links in texts; every warning is an error
	$(call section,clippy)
	@! git grep -nE '^(<{7}|>{7}) '
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: type-names
type-names: ## checks that each public type name has one definition
	$(call section,type names)
	@scripts/type-names.sh

.PHONY: import-cycles
import-cycles: ## checks that files of a crate do not import each other
	$(call section,import cycles)
	@scripts/import-cycles.py

.PHONY: call-cycles
call-cycles: ## checks that files do not call each other, and the bounds of the reactor's design
	$(call section,call cycles)
	@scripts/call-cycles.py

.PHONY: doc-paths
doc-paths: ## checks that the source files exist which texts and comments name
	$(call section,paths in texts)
	@scripts/doc-paths.py

.PHONY: links
links: ## checks the links between documents, and that each document is a chapter of the site
	$(call section,links)
	@scripts/site-links.py --check

MDBOOK_VERSION := 0.5.4
MDBOOK := $(TARGET)/tools/bin/mdbook
.PHONY: site
site: links ## makes the documentation one site, with a search, in target/site
	@[ "$$($(MDBOOK) --version 2> /dev/null)" = "mdbook v$(MDBOOK_VERSION)" ] || \
		cargo install --quiet --locked --root $(TARGET)/tools mdbook@$(MDBOOK_VERSION)
	$(MDBOOK) build --dest-dir $(TARGET)/site

.PHONY: doc
doc: fetch ## builds the documentation; every warning is an error
	$(call section,documentation)
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

.PHONY: crates
crates: fetch ## makes the crates as `cargo publish` would, without building them again
	$(call section,crates)
	cargo package --locked --workspace --exclude encke-bench --no-verify --allow-dirty --quiet

.PHONY: unit
unit: prerequisites fetch ## runs all Rust tests, including the system tests
	$(call section,Rust tests)
	scripts/unit.py

FLEET_SECONDS := 600
.PHONY: fleet-torture
fleet-torture: fetch $(PYTHON)/installed ## FLEET_SECONDS (600) of faults of nodes and brokers, and a check of what is left
	$(call section,a fleet under faults for $(FLEET_SECONDS) s)
	FLEET_SECONDS=$(FLEET_SECONDS) cargo test --locked -p encke --test fleet -- --nocapture

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
		cargo test --locked --release -p encke --test system -- damaged_directory older_data
	PROPTEST_CASES=$(CRASH_ROUNDS) cargo test --locked --release --no-fail-fast \
		-p encke-stream --test model -p encke-jobs --test crashes

.PHONY: models
models: fetch ## checks mailbox and pool in every order of threads (loom)
	$(call section,models)
	RUSTFLAGS='--cfg encke_model' cargo test --locked --release -p encke-mailbox -p encke-pool --test model \
		--target-dir $(TARGET)/model

.PHONY: producer-load
producer-load: fetch ## appends 100,000 records over connections that are cut, and three kills of the server; prints records/s
	ENCKE_PRODUCER_RECORDS=100000 cargo test --locked --release -p encke --test system each_record_is_there_once -- --nocapture

.PHONY: pool-load
pool-load: fetch ## runs 100,000 jobs with dying workers and five kills of the server; prints jobs/s
	$(call section,200 workers)
	ENCKE_POOL_JOBS=100000 cargo test --locked --release -p encke --test system pools::every_job -- --nocapture

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
reference: build ## writes docs/reference.md: settings, metrics, errors, exit codes
	scripts/reference.py $(ENCKE_BIN)

.PHONY: reference-check
reference-check: build
	$(call section,reference)
	scripts/reference.py --check $(ENCKE_BIN)

.PHONY: metrics
metrics: build $(PROMLINT) ## checks the server's metrics by the rules of promtool
	$(call section,metrics)
	scripts/check-metrics.sh $(ENCKE_BIN) $(PROMLINT)

# As tests/promlint/go.mod and go.sum pin it. Debian 13 has no promtool.
$(PROMLINT): tests/promlint/main.go tests/promlint/go.mod tests/promlint/go.sum | prerequisites
	@mkdir -p $(@D)
	cd tests/promlint && go build -buildvcs=false -o $@ .

# As tests/promrules/go.mod and go.sum pin it.
$(PROMRULES): $(wildcard tests/promrules/*.go) tests/promrules/go.mod tests/promrules/go.sum | prerequisites
	@mkdir -p $(@D)
	cd tests/promrules && go build -buildvcs=false -ldflags='-s -w' -o $@ .

# As tests/h2spec/go.mod and go.sum pin it.
$(H2SPEC): tests/h2spec/go.mod tests/h2spec/go.sum | prerequisites
	@mkdir -p $(@D)
	cd tests/h2spec && go build -buildvcs=false -o $@ github.com/summerwind/h2spec/cmd/h2spec

# As tests/s3/go.mod and go.sum pin it.
$(TARGET)/tools/versitygw: tests/s3/go.mod tests/s3/go.sum | prerequisites
	@mkdir -p $(@D)
	cd tests/s3 && go build -buildvcs=false -ldflags='-s -w' -o $@ github.com/versity/versitygw/cmd/versitygw

.PHONY: h2spec
h2spec: build $(H2SPEC) ## checks the server's HTTP/2 with h2spec
	$(call section,HTTP/2)
	scripts/h2spec.sh $(ENCKE_BIN) $(H2SPEC)

.PHONY: conformance
conformance: prerequisites build $(WEB) $(PYTHON)/installed ## runs the published conformance suite against the server and against a fleet
	$(call section,conformance)
	node tests/web/conformance/run.mjs --over node,fleet & fleet=$$!; status=0; \
	node tests/web/conformance/run.mjs --over plain,tls,http2,access,killed || status=$$?; \
	wait $$fleet || status=$$?; exit $$status

.PHONY: browser
browser: prerequisites build $(WEB) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) ## tests the examples in headless Chromium, and clients of npm, against the server
	$(call section,browser)
	@# Most of it waits for pages and servers.
	$(NODE_TESTS) --test-concurrency=3 tests/web/browser/*.test.mjs tests/web/clients/*.test.mjs tests/web/adapters/*.test.mjs

.PHONY: contrib
contrib: prerequisites build $(PROMRULES) $(NGINX) $(CADDY) $(HAPROXY) $(LOGROTATE) $(WEB) $(PYTHON)/installed ## tests the dashboard, the alerts, and the configurations of proxies and logrotate
	$(call section,contrib)
	LD_LIBRARY_PATH=$(wildcard $(TARGET)/tools/usr/lib/*-linux-gnu) $(NODE_TESTS) tests/contrib/*.test.mjs

.PHONY: clients-js
clients-js: prerequisites build $(WEB) $(CLIENT_JS) ## builds the JavaScript client, and tests it in Node and headless Chromium
	$(call section,JavaScript client)
	cd clients/js && npm run --silent build && npm test --silent

.PHONY: clients-adapters
clients-adapters: prerequisites clients-js $(ADAPTERS:%=%/node_modules/.package-lock.json) ## builds and tests the adapters of other packages
	$(call section,adapters)
	for adapter in $(ADAPTERS); do (cd $$adapter && npm run --silent build && npm test --silent); done

# Default ports are free in a network of its own; where the system allows none, the commands get other ports.
DOCS_COMMANDS := $(NODE_TESTS) tests/web/docs/*.test.mjs
.PHONY: docs-commands
docs-commands: prerequisites build $(WEB) $(QUAKES) $(THUMBNAILS) $(CHAT_AI) ## runs every command of the documentation against a fresh server
	$(call section,commands of the documentation)
	@mkdir -p $(TARGET)/docs-commands
	status=0; scripts/own-network.sh $(TARGET)/docs-commands/system $(DOCS_COMMANDS) || status=$$?; \
	if [ $$status = 77 ]; then $(DOCS_COMMANDS); else exit $$status; fi

# Virtual environments with exactly these packages.
$(PYTHON)/installed: tests/python/requirements.txt
$(CLIENT_PYTHON)/installed: clients/python/requirements.txt
$(PYTHON)/installed $(CLIENT_PYTHON)/installed: | prerequisites
	$(call section,Python packages of $(<D))
	python3 -m venv --clear $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

.PHONY: python
python: build $(PYTHON)/installed ## clients in Python against the server
	$(call section,clients in Python)
	$(PYTHON)/bin/python tests/python/test_event_streams.py
	$(PYTHON)/bin/python tests/python/test_pusher.py
	$(PYTHON)/bin/python tests/python/test_tokens.py
	$(PYTHON)/bin/python tests/python/test_websocket.py

# The tests as a program, with the libraries that tests/pusher-go/go.mod and go.sum pin.
$(PUSHER_GO): $(wildcard tests/pusher-go/*.go) tests/pusher-go/go.mod tests/pusher-go/go.sum | prerequisites
	@mkdir -p $(@D)
	cd tests/pusher-go && go vet . && go test -c -o $@ .

.PHONY: go
go: build $(PUSHER_GO) ## a server in Go, with the library of Pusher, against the server
	$(call section,a server in Go)
	$(PUSHER_GO) -test.v

# The tests use the package as the wheel installs it.
.PHONY: clients-python
clients-python: build $(CLIENT_PYTHON)/installed ## checks and builds our client in Python, and tests it against the server
	$(call section,our client in Python)
	cd clients/python && $(CLIENT_PYTHON)/bin/ruff format --check . && $(CLIENT_PYTHON)/bin/ruff check . && $(CLIENT_PYTHON)/bin/mypy
	rm -rf $(CLIENT_PYTHON)/dist
	$(CLIENT_PYTHON)/bin/python -m build --no-isolation --outdir $(CLIENT_PYTHON)/dist clients/python
	$(CLIENT_PYTHON)/bin/pip install --quiet --disable-pip-version-check --no-index --no-deps --force-reinstall $(CLIENT_PYTHON)/dist/*.whl
	$(CLIENT_PYTHON)/bin/python -m unittest discover --buffer --verbose --start-directory clients/python/tests

.PHONY: python-lock
python-lock: LOCKED := tests/python
.PHONY: clients-python-lock
clients-python-lock: LOCKED := clients/python
python-lock clients-python-lock: # Write a requirements.txt anew.
	python3 -m venv --clear $(PYTHON)-lock
	$(PYTHON)-lock/bin/pip install --quiet --disable-pip-version-check pip-tools
	cd $(LOCKED) && $(PYTHON)-lock/bin/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-emit-trusted-host --no-header --strip-extras --output-file requirements.txt requirements.in

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
	cargo bench --locked --workspace

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
	$(ENCKE_BIN) serve --listen 127.0.0.1:0 --data $$data --log warn $(FLOOD_SERVE) > $(FLOOD_OUT)/server.txt & server=$$!; \
	trap 'kill $$server 2> /dev/null; wait $$server; rm -rf $$data' EXIT; \
	until url=$$(sed -n 's/^listening on //p' $(FLOOD_OUT)/server.txt) && [ -n "$$url" ]; do kill -0 $$server; sleep 0.1; done; \
	$(BENCH) flood --url $$url/v1/stream -n $(FLOOD_CLIENTS) --rate 2000 \
		--duration $(FLOOD_TIME) --publish $(FLOOD_RATE) --churn $(FLOOD_CHURN) --server-pid $$server --endure --progress 10s \
		--record $(FLOOD_OUT)/run.csv --plot $(FLOOD_OUT)/run.svg | tee $(FLOOD_OUT)/report.txt

.PHONY: bench-report
bench-report: instruments ## repeats the experiments; writes docs/bench and the README's table (8 minutes, quiet machine)
	@mkdir -p docs/bench
	$(call section,the mailbox beside other channels)
	cargo bench --locked -p encke-mailbox --bench channels -- --discard-baseline | tee $(TARGET)/channels.txt
	awk -v cores="$$(nproc)" -f crates/encke-mailbox/benches/table.awk $(TARGET)/channels.txt > docs/bench/channels.md
	$(call section,the five experiments)
	$(BENCH) report --out docs/bench --insert README.md

%/node_modules/.package-lock.json: %/package-lock.json %/package.json
	$(call section,npm packages of $*)
	cd $* && npm ci --loglevel=error
	@touch $@

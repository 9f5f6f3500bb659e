# The commands of this repository. `make help` lists them; `make run` and `make test` are all that most people need.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
# The order of the steps is that of the lists; cargo and vitest use all cores by themselves.
.NOTPARALLEL:

TARGET := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
export ENCKE_BIN ?= $(TARGET)/release/encke
BENCH := $(TARGET)/release/encke-bench
export CHROMIUM ?= /usr/bin/chromium

# Where `node_modules` must stand for each npm project; npm writes this file when it has installed one.
WEB := tests/web/node_modules/.package-lock.json
QUAKES := examples/quakes/node_modules/.package-lock.json
THUMBNAILS := examples/thumbnails/node_modules/.package-lock.json

FUZZ_TARGETS := log_recovery proxies request_head request_hyper
FUZZ_SECONDS := 60

section = @printf '\n=== %s\n' '$(1)'
as_root := $(if $(filter-out 0,$(shell id -u)),sudo ,)

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: build ## build and serve on 127.0.0.1:4437, data in ./encke-data
	@exec $(ENCKE_BIN) serve

.PHONY: build
build: fetch ## the release build
	$(call section,release build)
	cargo build --locked --release -p encke

.PHONY: instruments
instruments: build # The load tools and experiments.
	cargo build --locked --release -p encke-bench

.PHONY: test
test: fmt lint doc unit build conformance browser ## everything, with what it needs installed first
	$(call section,everything passes)

.PHONY: fetch
fetch: # Quietly, so that later steps print only what they do themselves.
	@cargo fetch --locked --quiet

.PHONY: fmt
fmt: ## the formatting is rustfmt's
	$(call section,formatting)
	cargo fmt --all --check

.PHONY: lint
lint: fetch type-names ## clippy with every warning an error, no conflict markers, and one definition for each type name
	$(call section,clippy)
	@! git grep -nE '^(<{7}|>{7}) '
	cargo clippy --locked --workspace --all-targets -- -D warnings

.PHONY: type-names
type-names: ## a public type name has one definition in the workspace
	$(call section,type names)
	@scripts/type-names.sh

.PHONY: doc
doc: fetch ## the documentation builds, with every warning an error
	$(call section,documentation)
	RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps

.PHONY: unit
unit: fetch tools ## the Rust tests, those of the whole binary included
	$(call section,Rust tests)
	cargo test --locked --workspace

# Other seeds each time; what fails says its seed, and ENCKE_CRASH_SEED=<seed> ENCKE_CRASH_ROUNDS=1 repeats it.
CRASH_ROUNDS := 2000
.PHONY: crash
crash: fetch ## thousands of crashes and faults of the log's disk, of damaged directories, the streams and the pools; CRASH_ROUNDS=<n> says how many
	$(call section,$(CRASH_ROUNDS) rounds of each crash test)
	ENCKE_CRASH_ROUNDS=$(CRASH_ROUNDS) ENCKE_CRASH_SEED=$${ENCKE_CRASH_SEED:-$$(date +%s)000000} \
		cargo test --locked --release --no-fail-fast -p encke-log --test crash --test crash_history --test kill
	ENCKE_CRASH_ROUNDS=$(CRASH_ROUNDS) ENCKE_CRASH_SEED=$${ENCKE_CRASH_SEED:-$$(date +%s)000000} \
		cargo test --locked --release -p encke --test system damaged_directory
	PROPTEST_CASES=$(CRASH_ROUNDS) cargo test --locked --release --no-fail-fast \
		-p encke-stream --test model -p encke-jobs --test crashes

.PHONY: models
models: fetch ## mailbox and pool in every order in which threads can run, by loom
	$(call section,models)
	RUSTFLAGS='--cfg encke_model' cargo test --locked --release -p encke-mailbox -p encke-pool --test model \
		--target-dir $(TARGET)/model

.PHONY: pool-crowd
pool-crowd: fetch ## 100,000 jobs, 200 workers that die all the time, the server killed five times; tells jobs/s
	$(call section,a crowd of workers)
	ENCKE_POOL_JOBS=100000 cargo test --locked --release -p encke --test system pools::every_job -- --nocapture

.PHONY: conformance
conformance: build $(WEB) ## the published protocol suite against the release build
	$(call section,conformance)
	node tests/web/conformance/run.mjs

.PHONY: conformance-update
conformance-update: build $(WEB) ## the same, and write the list of expected failures anew
	node tests/web/conformance/run.mjs --update

.PHONY: browser
browser: build tools $(WEB) $(QUAKES) $(THUMBNAILS) ## the examples in headless Chromium against the release build
	$(call section,browser)
	node --test --test-reporter=spec tests/web/browser/

.PHONY: fuzz-minute
fuzz-minute: ## each fuzz target for a minute, on a nightly toolchain
	@cargo +nightly --version > /dev/null || { echo 'fuzzing needs a nightly toolchain: rustup toolchain install nightly'; exit 1; }
	@command -v cargo-fuzz > /dev/null || cargo install --locked --quiet cargo-fuzz
	@for target in $(FUZZ_TARGETS); do \
		printf '\n=== fuzzing %s for %s s\n' "$$target" $(FUZZ_SECONDS); \
		cargo +nightly fuzz run "$$target" -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; \
	done

.PHONY: bench
bench: fetch ## the micro-benchmarks; docs/benchmarks.md tells how to measure the server
	cargo bench --locked --workspace

# What the third report did for a day: the server's memory must stay flat, every hang-up must be noticed, no socket may be
# left. All of it can be set, such as `make flood-hour FLOOD_TIME=24h`. The server's bounds are such that what is meant to fill
# up (recent records, segments kept for the global order, the cache) is full in the first tenth of the hour.
FLOOD_TIME ?= 1h
FLOOD_CLIENTS ?= 10000
FLOOD_RATE ?= 1000
FLOOD_CHURN ?= 10
FLOOD_PORT ?= 4438
FLOOD_SERVE ?= --ring 32MiB --segment 8MiB --body-max 1MiB --order-size 64MiB --tuning history-cache=64KiB
FLOOD_OUT ?= $(TARGET)/flood-hour

.PHONY: flood-hour
flood-hour: instruments ## an hour of 10,000 clients that come and go, 1,000 messages/s; FLOOD_TIME and others in the Makefile
	$(call section,$(FLOOD_CLIENTS) clients for $(FLOOD_TIME); record and plot in $(FLOOD_OUT))
	@mkdir -p $(FLOOD_OUT); data=$$(mktemp -d $(FLOOD_OUT)/data.XXXXXX); \
	$(ENCKE_BIN) serve --listen 127.0.0.1:$(FLOOD_PORT) --data $$data --log warn $(FLOOD_SERVE) > /dev/null & server=$$!; \
	trap 'kill $$server 2> /dev/null; wait $$server; rm -rf $$data' EXIT; \
	until (exec 3<> /dev/tcp/127.0.0.1/$(FLOOD_PORT)) 2> /dev/null; do kill -0 $$server; sleep 0.1; done; \
	$(BENCH) flood --url http://127.0.0.1:$(FLOOD_PORT)/v1/stream -n $(FLOOD_CLIENTS) --rate 2000 \
		--duration $(FLOOD_TIME) --publish $(FLOOD_RATE) --churn $(FLOOD_CHURN) --server-pid $$server --endure --progress 10s \
		--record $(FLOOD_OUT)/run.csv --plot $(FLOOD_OUT)/run.svg | tee $(FLOOD_OUT)/report.txt

.PHONY: bench-report
bench-report: instruments ## repeat the experiments: writes docs/bench and the figures in the README (a quiet machine, 8 minutes)
	@mkdir -p docs/bench
	$(call section,the mailbox beside other channels)
	cargo bench --locked -p encke-mailbox --bench channels -- --discard-baseline | tee $(TARGET)/channels.txt
	awk -v cores="$$(nproc)" -f crates/encke-mailbox/benches/table.awk $(TARGET)/channels.txt > docs/bench/channels.md
	$(call section,the five experiments)
	$(BENCH) report --out docs/bench --insert README.md

# Debian's packages, only when a command is missing.
.PHONY: tools
tools:
	@missing=(); \
	[ -x "$(CHROMIUM)" ] || missing+=(chromium); \
	command -v strace > /dev/null || missing+=(strace); \
	if [ $${#missing[@]} -gt 0 ]; then \
		printf '\n=== installing %s\n' "$${missing[*]}"; \
		$(as_root)apt-get -qq update; \
		$(as_root)env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$${missing[@]}" > /dev/null; \
	fi

%/node_modules/.package-lock.json: %/package-lock.json %/package.json
	$(call section,npm packages of $*)
	cd $* && npm ci --loglevel=error
	@touch $@

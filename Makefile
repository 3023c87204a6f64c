# Thin calls into cargo and ci/. Build output lies outside the checkout, so that a fresh clone on a known machine is warm.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/armature/target
BIN := $(CARGO_TARGET_DIR)/debug/armature

.DEFAULT_GOAL := help
.PHONY: help run test bench bench-router fmt lint build chat images up down test-containers

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: ## build, fetch the model (98 MB, once), start everything in one process, print how to talk to it
	ci/setup.sh rust
	cargo build -p armature
	$(BIN) model fetch
	exec $(BIN) up $(ARGS)

chat: ## a conversation in this terminal with what `make run` started
	$(BIN) chat $(ARGS)

build: ## every service's binary, debug
	cargo build --workspace --bins

test: ## everything that CI runs
	ci/gate.sh

images: ## container images of every service, from the binaries of this machine; IMAGES=release builds from source
	ci/images.sh $(IMAGES)

up: ## every service in containers, on Consul and Redis; settings are in .env
	ci/up.sh $(ARGS)

down: ## end what `make up` started; volumes stay (ARGS=--volumes removes them)
	$$(ci/setup.sh compose) --profile llama --profile sim down --remove-orphans $(ARGS)

test-containers: ## compose under faults, and services against containers; needs a container engine
	ci/containers.sh

bench: ## benchmarks, as ratios against a baseline in the same run
	ci/bench.sh $(ARGS)

bench-router: ## the router's prefix index beside dynamo-kv-router's, in one run (its first build takes minutes)
	ci/setup.sh rust
	cargo run --release --locked --manifest-path ci/bench-router/Cargo.toml --target-dir $(CARGO_TARGET_DIR)/bench-router -- $(ARGS)

fmt: ## format
	cargo fmt --all

lint: ## formatting, clippy, contracts, licences
	ci/gate.sh lint

#!/usr/bin/env bash
# The one front door: what `make test` and CI run. Usage: ci/gate.sh [lint|test]   (both without an argument)
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/armature/target}
START=$SECONDS
step() { printf '\n== %s (%ds)\n' "$1" "$((SECONDS - START))"; }

lint() {
  step "formatting"
  cargo fmt --all --check
  step "contracts: buf lint"
  (cd proto && "$VENV/bin/buf" lint)
  step "contracts: changes that break what proto/baseline says (reported; an error from the first release on)"
  (cd proto && "$VENV/bin/buf" breaking --against baseline/armature.binpb) && echo "none" || echo "these would break peers"
  step "licences, bans, sources"
  if cargo deny --version >/dev/null 2>&1; then
    cargo deny --all-features check licenses bans sources
  else
    echo "cargo-deny is not installed (cargo install cargo-deny): only what ci/tidy/tests/packages.rs checks"
    cargo test --quiet -p armature-tidy --test packages
  fi
  step "clippy"
  cargo clippy --workspace --all-targets --quiet -- -D warnings
}

tests() {
  step "build"
  cargo build --workspace --bins --tests
  step "model"
  "$CARGO_TARGET_DIR/debug/armature" model fetch
  step "block hash: the vectors in another implementation"
  "$VENV/bin/python" proto/kv-hash/tests/replay_vectors.py
  step "client examples in C++, Go and Python"
  local backends clients engine
  clients=$(ci/clients.sh "$VENV")
  step "tests"
  backends=$(ci/setup.sh backends)
  engine=$(ci/setup.sh python ci/e2e/requirements.txt)
  ARMATURE_BACKENDS="$backends" ARMATURE_CLIENTS="$clients" ARMATURE_PYTHON="$VENV/bin/python" \
    ARMATURE_ENGINE_PYTHON="$engine/bin/python" cargo test --workspace --quiet
}

ci/setup.sh rust
VENV=$(ci/setup.sh python)
case ${1:-all} in
lint) lint ;;
test) tests ;;
all) tests; lint ;;
*) echo "usage: ci/gate.sh [lint|test]" >&2; exit 64 ;;
esac
step "done"

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
  step "tests"
  ARMATURE_PYTHON="$VENV/bin/python" cargo test --workspace --quiet
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

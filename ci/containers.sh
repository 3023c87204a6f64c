#!/usr/bin/env bash
# Tests that need a container engine: compose.yaml under faults, services against containers. Usage: ci/containers.sh [TEST FILTER]
# Without an engine it says what was skipped, and fails only where ARMATURE_CI says that nothing may be.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/armature/target}
START=$SECONDS
step() { printf '\n== %s (%ds)\n' "$1" "$((SECONDS - START))"; }

trap 'ci/engine.sh stop' EXIT
if ! engine=$(ci/engine.sh start); then
  echo "SKIPPED: compose.yaml, faults of whole containers, testcontainers: there is no container engine" >&2
  [ -z "${ARMATURE_CI:-}" ]
  exit
fi
eval "$engine"

step "images"
ci/images.sh
step "model"
"$CARGO_TARGET_DIR/debug/armature" model fetch
step "tests"
# One at a time: each brings up a fleet. Of the workspace, so that the dependencies are those that are compiled already.
ARMATURE_COMPOSE=$(ci/setup.sh compose) ARMATURE_MODEL_CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}/models \
  cargo test --workspace --features armature-containers/engine --test containers "$@" -- --test-threads=1
step "clippy"
cargo clippy --workspace --features armature-containers/engine --test containers --quiet -- -D warnings
step "done"

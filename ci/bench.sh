#!/usr/bin/env bash
# Measures, and prints one table of ratios. Usage: ci/bench.sh [GROUP...]; `ci/bench.sh --help` lists the groups.
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/armature/target}
ci/setup.sh rust
exec python3 ci/bench/run.py "$@"

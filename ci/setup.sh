#!/usr/bin/env bash
# Makes sure that what a step needs is there, or says what to do. Usage: ci/setup.sh rust|python [REQUIREMENTS]
set -euo pipefail
CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}

need() { # command, what to do
  command -v "$1" >/dev/null || { echo "ci/setup.sh: $1 is missing: $2" >&2; exit 1; }
}

case ${1:-} in
rust)
  need cargo "install Rust 1.91 or newer from https://rustup.rs"
  need cc "install a C toolchain, for the linker: apt-get install gcc libc6-dev"
  # Checkouts share the build folder, and cargo takes what is newer than the sources for theirs: whoever comes after
  # another checkout has its own crates rebuilt, and only those.
  target=${CARGO_TARGET_DIR:-$CACHE/target}
  if [ "$(cat "$target/.checkout" 2>/dev/null)" != "$PWD" ]; then
    find . -name target -prune -o -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.proto' -o -path '*/src/gen/*' \) -exec touch -c {} +
    mkdir -p "$target" && echo "$PWD" >"$target/.checkout"
  fi
  ;;
python)
  # The SDK tests and the contract lint: a virtual environment outside the checkout, keyed by what it holds.
  need python3 "install Python 3.9 or newer: apt-get install python3 python3-venv"
  wanted=${2:-$(dirname "$0")/requirements.txt}
  key=$(sha256sum "$wanted" | cut -c1-12)
  venv=$CACHE/venv-$key
  if [ ! -e "$venv/ready" ]; then
    echo "setting up Python packages in $venv (once)" >&2
    rm -rf "$venv"
    python3 -m venv "$venv" || { echo "ci/setup.sh: python3 -m venv failed: apt-get install python3-venv" >&2; exit 1; }
    "$venv/bin/pip" install --quiet --requirement "$wanted" || { echo "ci/setup.sh: pip could not install $wanted" >&2; exit 1; }
    touch "$venv/ready"
  fi
  echo "$venv"
  ;;
*) echo "usage: ci/setup.sh rust|python" >&2; exit 64 ;;
esac

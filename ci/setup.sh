#!/usr/bin/env bash
# Makes sure that what a step needs is there, or says what to do. Usage: ci/setup.sh rust|python [REQUIREMENTS]|backends|clients|compose|compose2
set -euo pipefail
CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}

need() { # command, what to do
  command -v "$1" >/dev/null || { echo "ci/setup.sh: $1 is missing: $2" >&2; exit 1; }
}

# Debian's packages of a list, pinned by content and never installed: unpacked into FOLDER/root.
unpack() { # list, folder, what to do where that cannot be done
  need curl "apt-get install curl"
  need dpkg-deb "it unpacks Debian's packages; elsewhere $3"
  [ "$(uname -m)" = x86_64 ] || { echo "ci/setup.sh: $1 pins x86-64 packages: $3" >&2; exit 1; }
  echo "fetching what $(basename "$1") lists into $2 (once)" >&2
  rm -rf "$2" && mkdir -p "$2/packages"
  while read -r sum urls; do
    case $sum in ''|'#'*) continue ;; esac
    file=$2/packages/$(basename "${urls%% *}")
    for url in $urls; do
      curl --silent --show-error --fail --location --retry 3 --retry-connrefused --output "$file" "$url" && break
    done
    echo "$sum  $file" | sha256sum --check --quiet - || { echo "ci/setup.sh: $(basename "$file") is not what $1 says, from any of: $urls" >&2; exit 1; }
    dpkg-deb -x "$file" "$2/root"
  done <"$1"
  rm -r "$2/packages"
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
backends)
  # Real Consul and Redis for the tests, unpacked from Debian's packages and never installed: prints the folder with
  # consul, redis-server and redis-cli. Pinned by content; who wants others puts ARMATURE_BACKENDS=a folder with those three.
  if [ -n "${ARMATURE_BACKENDS:-}" ]; then echo "$ARMATURE_BACKENDS"; exit; fi
  list=$(realpath "$(dirname "$0")/backends.txt")
  dir=$CACHE/backends-$(sha256sum "$list" | cut -c1-12)
  if [ ! -e "$dir/ready" ]; then
    unpack "$list" "$dir" "set ARMATURE_BACKENDS to a folder with consul, redis-server and redis-cli"
    mkdir "$dir/bin"
    for program in consul redis-server redis-cli; do
      # A script, so that the libraries beside it are found without being installed; it becomes the program, pid and all.
      printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$dir/root/usr/lib/x86_64-linux-gnu" "$dir/root/usr/bin/$program" >"$dir/bin/$program"
      chmod +x "$dir/bin/$program"
      "$dir/bin/$program" --version >/dev/null || { echo "ci/setup.sh: $program does not run here: apt-get install libssl3 libsystemd0" >&2; exit 1; }
    done
    touch "$dir/ready"
  fi
  echo "$dir/bin"
  ;;
clients)
  # What the client examples are built with: prints a folder that is laid out as / is. Who has Debian's packages of clients.txt installed, or
  # others like them, puts ARMATURE_CLIENT_TOOLS=/.
  if [ -n "${ARMATURE_CLIENT_TOOLS:-}" ]; then echo "$ARMATURE_CLIENT_TOOLS"; exit; fi
  list=$(realpath "$(dirname "$0")/clients.txt")
  dir=$CACHE/clients-$(sha256sum "$list" | cut -c1-12)
  if [ ! -e "$dir/ready" ]; then
    unpack "$list" "$dir" "install gRPC for C++ and Go as proto/examples/README.md says, and set ARMATURE_CLIENT_TOOLS=/"
    touch "$dir/ready"
  fi
  echo "$dir/root"
  ;;
compose)
  # Prints a command that is Docker Compose: what is installed, or version 2 of Debian, pinned and never installed.
  if [ -n "${ARMATURE_COMPOSE:-}" ]; then echo "$ARMATURE_COMPOSE"; exit; fi
  if docker compose version >/dev/null 2>&1; then echo "docker compose"; exit; fi
  if command -v docker-compose >/dev/null; then echo docker-compose; exit; fi
  "$0" compose2
  ;;
compose2)
  sum=47681197cb2b1ab88206b42a1a92fc75f50d9530a6322d03494a473eed0408ea
  dir=$CACHE/compose-${sum:0:12}
  if [ ! -e "$dir/ready" ]; then
    need curl "apt-get install curl"
    need dpkg-deb "it unpacks Debian's package; elsewhere install Docker Compose"
    [ "$(uname -m)" = x86_64 ] || { echo "ci/setup.sh: the pinned Docker Compose is for x86-64: install yours" >&2; exit 1; }
    echo "fetching Docker Compose into $dir (13 MB, once)" >&2
    rm -rf "$dir" && mkdir -p "$dir"
    curl --silent --show-error --fail --location --retry 3 --retry-connrefused --output "$dir/package.deb" \
      http://deb.debian.org/debian/pool/main/d/docker-compose/docker-compose_2.26.1-4_amd64.deb
    echo "$sum  $dir/package.deb" | sha256sum --check --quiet - || { echo "ci/setup.sh: that is not the pinned Docker Compose" >&2; exit 1; }
    dpkg-deb -x "$dir/package.deb" "$dir/root" && touch "$dir/ready"
  fi
  echo "$dir/root/usr/libexec/docker/cli-plugins/docker-compose"
  ;;
*) echo "usage: ci/setup.sh rust|python|backends|clients|compose|compose2" >&2; exit 64 ;;
esac

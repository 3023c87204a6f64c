#!/usr/bin/env bash
# Derives each service's Cargo.lock from the workspace's: what its folder and proto/ need, at the same versions. Cargo does not read it in the
# workspace; an image, or a repository of its own, builds with it by --locked. Usage: ci/lock.sh [FOLDER...]
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- *-svc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
git ls-files -z --cached --others --exclude-standard -- proto "$@" | tar --null --files-from=- -c | tar -C "$work" -x
for folder in "$@"; do
  cp Cargo.lock "$work/$folder/Cargo.lock"
  # Drops what nothing here needs; changes no version. Packages of other platforms may not be on this machine.
  cargo metadata --offline --filter-platform "$(uname -m)-unknown-linux-gnu" --format-version 1 --manifest-path "$work/$folder/Cargo.toml" >/dev/null
  cmp --quiet "$work/$folder/Cargo.lock" "$folder/Cargo.lock" || { cp "$work/$folder/Cargo.lock" "$folder/Cargo.lock"; echo "$folder/Cargo.lock: written"; }
done

#!/usr/bin/env bash
# Unpacks packages of Debian 12 and all that they need into a folder; nothing is installed and no script of theirs runs.
# Usage: ci/images/unpack.sh FOLDER PACKAGE...
set -euo pipefail
CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}/apt
root=$1 && shift

[ "$(uname -m)" = x86_64 ] && command -v apt-get dpkg-deb >/dev/null && [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || {
  echo "ci/images/unpack.sh: needs apt, dpkg and the package debian-archive-keyring on x86-64" >&2; exit 1; }
# Lists, cache and an empty status of its own: apt takes nothing for installed, needs no root, and checks every signature.
mkdir -p "$CACHE/lists/partial" "$CACHE/archives/partial" "$CACHE/empty/partial"
: >"$CACHE/status"
keyring='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
printf '%s\n' "deb $keyring http://deb.debian.org/debian bookworm main" \
  "deb $keyring http://deb.debian.org/debian-security bookworm-security main" >"$CACHE/sources.list"
apt=(apt-get -qq -o "Dir::State::lists=$CACHE/lists" -o "Dir::State::status=$CACHE/status" -o "Dir::Cache::archives=$CACHE/archives"
  -o "Dir::Etc::sourcelist=$CACHE/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null -o Dir::Cache::pkgcache=
  -o Dir::Cache::srcpkgcache= -o Debug::NoLocking=1 -o APT::Install-Recommends=false -o Acquire::Languages=none -o APT::Sandbox::User=)
# Once a day is enough.
[ -n "$(find "$CACHE/updated" -mtime -1 2>/dev/null)" ] || { "${apt[@]}" update && touch "$CACHE/updated"; }
"${apt[@]}" install --download-only -y "$@" >/dev/null

mkdir -p "$root/usr/bin" "$root/usr/sbin" "$root/usr/lib" "$root/usr/lib64"
for dir in bin sbin lib lib64; do [ -e "$root/$dir" ] || ln -s "usr/$dir" "$root/$dir"; done
# Only of what is not downloaded yet are the names printed.
"${apt[@]}" -o "Dir::Cache::archives=$CACHE/empty" install --print-uris -y "$@" | awk '{ print $2 }' | while read -r package; do
  dpkg-deb --fsys-tarfile "$CACHE/archives/$package" | tar -C "$root" -x --keep-directory-symlink --no-same-owner \
    --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' --exclude='./usr/share/info/*' --exclude='./usr/share/doc/*/*.gz'
done

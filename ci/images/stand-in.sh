#!/usr/bin/env bash
# Makes sure that public images are here: present, or pulled, or, where no registry can be reached, a stand-in of Debian packages under the
# same tag. A stand-in carries a label that says so; an image without it is never touched.
# Usage: ci/images/stand-in.sh TAG...   TAG: debian:bookworm-slim redis:7 hashicorp/consul:1.20 rust:1.95-bookworm
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
LABEL=armature.stand-in
# What a shell and a program built for Debian 12 need.
BASE=(base-files dash coreutils libc6 libgcc-s1)

built_of() { # what a stand-in is made of, as one digest
  cat "$here/stand-in.sh" "$here/unpack.sh" "$here/../backends.txt" | sha256sum | cut -c1-16
}

import() { # tag, folder, changes as `docker import` takes them
  local tag=$1 root=$2 && shift 2
  local changes=("LABEL $LABEL=$(built_of)" "$@")
  tar -C "$root" --owner=0 --group=0 --numeric-owner -c . | docker import "${changes[@]/#/--change=}" - "$tag" >/dev/null
}

trust() { # folder: gives it the authorities that this machine trusts
  mkdir -p "$1/etc/ssl/certs"
  cp -L /etc/ssl/certs/ca-certificates.crt "$1/etc/ssl/certs/ca-certificates.crt"
}

users() { # folder, name:uid...: root and these
  local root=$1 && shift
  printf 'root:x:0:0:root:/root:/bin/sh\n' >"$root/etc/passwd"
  printf 'root:x:0:\n' >"$root/etc/group"
  for user in "$@"; do
    printf '%s:x:%s:%s::/:/usr/sbin/nologin\n' "${user%:*}" "${user#*:}" "${user#*:}" >>"$root/etc/passwd"
    printf '%s:x:%s:\n' "${user%:*}" "${user#*:}" >>"$root/etc/group"
  done
}

stand_in() { # tag
  local root
  root=$(mktemp -d "${TMPDIR:-/tmp}/armature-image.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$root'" RETURN
  case $1 in
  debian:bookworm-slim)
    "$here/unpack.sh" "$root" "${BASE[@]}"
    trust "$root" && users "$root"
    import "$1" "$root" 'CMD ["sh"]'
    ;;
  redis:7)
    local backends
    backends=$("$here/../setup.sh" backends)
    "$here/unpack.sh" "$root" "${BASE[@]}" libssl3 libstdc++6 libsystemd0
    cp -a "$backends/../root/usr/bin/redis-server" "$backends/../root/usr/bin/redis-cli" "$backends/../root/usr/bin/redis-check-rdb" "$root/usr/bin/"
    cp -a "$backends/../root/usr/lib/x86_64-linux-gnu/." "$root/usr/lib/x86_64-linux-gnu/"
    users "$root" redis:999 && mkdir -p "$root/data"
    import "$1" "$root" 'USER redis' 'WORKDIR /data' 'EXPOSE 6379' 'CMD ["redis-server", "--protected-mode", "no"]'
    ;;
  hashicorp/consul:1.20)
    local backends
    backends=$("$here/../setup.sh" backends)
    "$here/unpack.sh" "$root" "${BASE[@]}"
    cp -a "$backends/../root/usr/bin/consul" "$root/usr/bin/"
    users "$root" consul:100 && mkdir -p "$root/consul/data" && chmod 1777 "$root/consul/data"
    import "$1" "$root" 'USER consul' 'EXPOSE 8500 8600' 'ENTRYPOINT ["consul"]' 'CMD ["agent", "-dev", "-client", "0.0.0.0"]'
    ;;
  rust:1.95-bookworm)
    local sysroot
    sysroot=$(rustc --print sysroot)
    "$here/unpack.sh" "$root" "${BASE[@]}" gcc libc6-dev
    # Links that the packages' own scripts would have made.
    ln -s gcc "$root/usr/bin/cc" && ln -sf dash "$root/usr/bin/sh"
    trust "$root" && users "$root" && mkdir -p "$root/tmp" "$root/root" && chmod 1777 "$root/tmp"
    mkdir -p "$root/usr/local/cargo"
    cp -a "$sysroot/bin" "$sysroot/lib" "$root/usr/local/cargo/"
    rm -rf "$root/usr/local/cargo/lib/rustlib/src"
    import "$1" "$root" 'ENV PATH=/usr/local/cargo/bin:/usr/sbin:/usr/bin' 'ENV CARGO_HOME=/usr/local/cargo' 'CMD ["sh"]'
    ;;
  *)
    echo "ci/images/stand-in.sh: $1 cannot be pulled and there is no recipe for a stand-in" >&2
    return 1
    ;;
  esac
}

for tag in "$@"; do
  here_label=$(docker image inspect --format "{{ index .Config.Labels \"$LABEL\" }}" "$tag" 2>/dev/null || echo absent)
  case $here_label in
  '' | '<no value>') echo "$tag: here" ;;
  "$(built_of)") echo "$tag: here, a stand-in made of Debian packages" ;;
  *)
    if docker pull --quiet "$tag" >/dev/null 2>&1; then
      echo "$tag: pulled"
    else
      echo "$tag: cannot be pulled, building a stand-in of Debian packages under this tag (remove it with: docker image rm $tag)"
      [ "$tag" != hashicorp/consul:1.20 ] || echo "$tag: the stand-in is Consul 1.8.7, the last one that Debian packaged"
      stand_in "$tag"
    fi
    ;;
  esac
done

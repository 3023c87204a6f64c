#!/usr/bin/env bash
# Builds the client examples of proto/examples from the .proto files. Usage: ci/clients.sh VENV; prints the folder with `cpp`, `go` and
# `python`, each a program. They are kept, named by what they are made of.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=$1
CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}
tools=$(ci/setup.sh clients)
key=$({ git ls-files -z --cached --others --exclude-standard -- proto/armature proto/examples/cpp proto/examples/go proto/examples/python ci/clients.sh ci/clients.txt ci/requirements.txt | sort -z | xargs -0 sha256sum; echo "$tools" "$VENV"; } | sha256sum | cut -c1-12)
out=$CACHE/client-examples/$key
if [ ! -e "$out/ready" ]; then
  echo "building the client examples into $out (once for these contracts)" >&2
  find "$CACHE/client-examples" -mindepth 1 -maxdepth 1 -mtime +7 -exec rm -r {} + 2>/dev/null || true
  rm -rf "$out" && mkdir -p "$out"
  libraries=$tools/usr/lib/$(uname -m)-linux-gnu
  export LD_LIBRARY_PATH=$libraries PATH=$tools/usr/bin:$PATH
  googleapis=$("$VENV/bin/python" -c 'import google.rpc; print(list(google.rpc.__path__)[0] + "/../..")')

  [ "$tools" = / ] || export CXXFLAGS="-isystem $tools/usr/include" LDFLAGS="-L$libraries -Wl,-rpath,$libraries"
  make --directory proto/examples/cpp --jobs 2 OUT="$out/cpp.build" GOOGLEAPIS="$googleapis" >"$out/cpp.log" 2>&1 || { cat "$out/cpp.log" >&2; exit 1; }
  printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$out/cpp.build/client" >"$out/cpp"

  # Where a Go is installed, it knows by itself where its files are.
  [ "$tools" = / ] || export GOROOT=$tools/usr/lib/go-1.19 PATH=$tools/usr/lib/go-1.19/bin:$PATH
  make --directory proto/examples/go OUT="$out/go.build" GOPATH="$tools/usr/share/gocode" \
    >"$out/go.log" 2>&1 || { cat "$out/go.log" >&2; exit 1; }
  ln -s go.build/client "$out/go"

  mkdir "$out/python.build"
  (cd proto && "$VENV/bin/python" -m grpc_tools.protoc -I . --python_out="$out/python.build" --grpc_python_out="$out/python.build" $(find armature -name '*.proto'))
  printf '#!/bin/sh\nPYTHONPATH=%s exec %s %s "$@"\n' "$out/python.build" "$VENV/bin/python" "$out/python.build/client.py" >"$out/python"
  cp proto/examples/python/client.py "$out/python.build/"
  chmod +x "$out/cpp" "$out/python"
  touch "$out/ready"
fi
echo "$out"

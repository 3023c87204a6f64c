#!/usr/bin/env bash
# The images of compose.yaml. Usage: ci/images.sh [prebuilt|release]
#   prebuilt  from the binaries that cargo makes on this machine, which has to be Debian 12 or older in its C library (the default)
#   release   from source, in a container with Rust: optimised, minutes for each service
set -euo pipefail
cd "$(dirname "$0")/.."
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/armature/target}
TARGET=${1:-prebuilt}
PREFIX=${ARMATURE_IMAGES:-armature} TAG=${ARMATURE_TAG:-dev}
SERVICES=(discovery router frontend worker)
START=$SECONDS
step() { printf '\n== %s (%ds)\n' "$1" "$((SECONDS - START))"; }

step "public images"
bases=(debian:bookworm-slim)
[ "$TARGET" = prebuilt ] || bases+=(rust:1.95-bookworm)
[ -n "${REDIS_IMAGE:-}" ] || bases+=(redis:7)
[ -n "${CONSUL_IMAGE:-}" ] || bases+=(hashicorp/consul:1.20)
ci/images/stand-in.sh "${bases[@]}"

if [ "$TARGET" = prebuilt ]; then
  step "binaries"
  ci/setup.sh rust
  # Tests among the targets, so that the dependencies are those that `make test` compiles, and are compiled once.
  cargo build --workspace --bins --test tree
  mkdir -p dist
  for service in "${SERVICES[@]}"; do
    # Stripped: 4 images of 15 MB instead of 60.
    objcopy --strip-all "$CARGO_TARGET_DIR/debug/armature-$service" "dist/armature-$service.new"
    cmp --quiet "dist/armature-$service.new" "dist/armature-$service" && rm "dist/armature-$service.new" \
      || mv "dist/armature-$service.new" "dist/armature-$service"
  done
fi

for service in "${SERVICES[@]}"; do
  step "$PREFIX/$service:$TAG"
  docker build --target "$TARGET" --file "$service-svc/Dockerfile" --tag "$PREFIX/$service:$TAG" .
  docker run --rm "$PREFIX/$service:$TAG" --version
done
step "done"
docker image ls --filter "reference=$PREFIX/*:$TAG" --format '{{.Repository}}:{{.Tag}}  {{.Size}}'

#!/usr/bin/env bash
# Starts compose.yaml, waits until a model is served, and says how to talk to it. Usage: ci/up.sh [ARGUMENTS OF `up`]
# For instance ci/up.sh --scale worker-decode=4. Its settings are those of .env; COMPOSE_PROFILES=sim needs no model.
set -euo pipefail
cd "$(dirname "$0")/.."
# Longest wait: a first start may download 98 MB and quantises them.
PATIENCE=600
CACHE=${ARMATURE_CACHE:-$HOME/.cache/armature}
MODEL=smollm2-135m-instruct-q4_1.gguf
read -ra compose <<<"$(ci/setup.sh compose)"

# What this machine has is not downloaded again.
[ ! -e "$CACHE/models/$MODEL" ] || export ARMATURE_MODEL_CACHE=${ARMATURE_MODEL_CACHE:-$CACHE/models}

"${compose[@]}" up -d --no-build "$@" || { echo "ci/up.sh: that failed; are the images there? make images" >&2; exit 1; }
frontend=$("${compose[@]}" ps -q frontend)
start=$SECONDS said=
while :; do
  state=$(docker inspect --format '{{.State.Health.Status}}' $frontend)
  # A service that has given up will not come back by waiting.
  for container in $("${compose[@]}" ps -q); do
    read -r name status code < <(docker inspect --format '{{.Name}} {{.State.Status}} {{.State.ExitCode}}' "$container")
    if [ "$status" = exited ] && [ "$code" != 0 ]; then
      docker logs --tail 20 "$container" >&2
      echo "ci/up.sh: ${name#/} has ended with exit code $code" >&2
      exit 1
    fi
  done
  [ "$state" != healthy ] || break
  if [ $((SECONDS - start)) -gt $PATIENCE ]; then
    docker logs --tail 20 $frontend >&2
    echo "ci/up.sh: no model is served after $PATIENCE s: ${compose[*]} logs" >&2
    exit 1
  fi
  [ "$said" = "$state" ] || { said=$state; echo "waiting for a model to be served (frontend: $state)"; }
  sleep 1
done
http=$(docker port $frontend 8000/tcp | head -n1)
model=$(curl --silent "http://$http/v1/models" | grep -o '"id":"[^"]*"' | head -n1 | cut -d'"' -f4)
grpc=$(docker port $frontend 8001/tcp | head -n1)
cat <<END

ready after $((SECONDS - start)) s
OpenAI HTTP  http://$http/v1
gRPC         $grpc  (armature.inference.v1.InferenceService)

curl http://$http/v1/chat/completions -H 'content-type: application/json' -d '
  {"model": "$model", "messages": [{"role": "user", "content": "What is a river?"}], "max_tokens": 64}'
END

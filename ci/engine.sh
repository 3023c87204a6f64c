#!/usr/bin/env bash
# A container engine for the tests. Usage: ci/engine.sh start|stop
#   start  prints shell lines to evaluate: nothing where an engine answers already; otherwise starts one, if this is root and dockerd is
#          installed, and prints how to reach it. Exit code 2: there is none and none can be started, with the reason on standard error
#   stop   ends what start has started, and nothing else
set -euo pipefail
dir=${ARMATURE_CACHE:-$HOME/.cache/armature}/engine
socket=$dir/docker.sock

case ${1:-} in
start)
  command -v docker >/dev/null || { echo "the docker command is missing: apt-get install docker.io" >&2; exit 2; }
  if docker info >/dev/null 2>&1; then exit; fi
  command -v dockerd >/dev/null || { echo "no engine answers, and dockerd is not installed: apt-get install docker.io" >&2; exit 2; }
  [ "$(id -u)" = 0 ] || { echo "no engine answers, and only root can start one" >&2; exit 2; }
  mkdir -p "$dir"
  # A session of its own, so that Ctrl-C in this terminal does not end it under running containers.
  setsid nohup dockerd --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/docker.pid" --host "unix://$socket" \
    >"$dir/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 100); do
    if DOCKER_HOST=unix://$socket docker info >/dev/null 2>&1; then
      echo "export DOCKER_HOST=unix://$socket"
      exit
    fi
    sleep 0.2
  done
  tail -n 5 "$dir/dockerd.log" >&2
  echo "dockerd does not come up: $dir/dockerd.log" >&2
  exit 2
  ;;
stop)
  [ -e "$dir/docker.pid" ] || exit 0
  pid=$(cat "$dir/docker.pid")
  kill "$pid"
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  ;;
*) echo "usage: ci/engine.sh start|stop" >&2; exit 64 ;;
esac

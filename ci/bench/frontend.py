"""CPU time that a frontend process spends on a request and on a streamed token, over loopback, beside the least that an
HTTP server can do (frontend-svc/examples/bare_sse.rs).

Two loads: requests of one token, and requests of TOKENS; the difference is what tokens cost. Every service is its own
process, the engine is simulated, so that the frontend alone is measured: user and system time from /proc/PID/stat.
"""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import socket
import statistics
import subprocess
import tempfile
import time

STREAMS = 16
REQUESTS = 1600
LONG_REQUESTS = 64
TOKENS = 256
ROUNDS = 3
# Divides the times of the simulated engine; a decode step then takes about as long as the baseline's period.
SPEEDUP = 4
PERIOD_MICROSECONDS = 1500
# About 1 KiB, as a chat with some history.
PROMPT = "All human beings are born free and equal in dignity and rights. " * 16
TICKS = os.sysconf("SC_CLK_TCK")


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def complete(connection, tokens):
    body = {"model": "sim", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": tokens,
            "stream": True, "temperature": 0}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200 or not answer.endswith(b"data: [DONE]\n\n"):
        raise RuntimeError(f"{response.status}: {answer[-500:]}")
    return answer.count(b"\n\n")


def load(address, requests, tokens):
    """Sends `requests` over STREAMS connections that stay open; returns the number of events."""
    def stream(share):
        connection = http.client.HTTPConnection(address, timeout=60)
        events = sum(complete(connection, tokens) for _ in range(share))
        connection.close()
        return events
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        return sum(pool.map(stream, [requests // STREAMS] * STREAMS))


def cost(address, pid, requests, tokens):
    """CPU seconds per request, what an idle process would have used aside."""
    start, before = time.monotonic(), cpu_seconds(pid)
    events = load(address, requests, tokens)
    used, elapsed = cpu_seconds(pid) - before, time.monotonic() - start
    if tokens > 1 and events < requests * tokens * 0.9:
        raise RuntimeError(f"{events} events for {requests * tokens} tokens: they arrived merged, so this measures less")
    return used / requests, elapsed / requests


def idle(pid, seconds=2.0):
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def measure(address, pid):
    """CPU seconds per request of one token, and per further token: medians of ROUNDS."""
    load(address, STREAMS * 4, 16)
    rest = idle(pid)
    per_request, per_token = [], []
    for _ in range(ROUNDS):
        short, short_elapsed = cost(address, pid, REQUESTS, 1)
        long, long_elapsed = cost(address, pid, LONG_REQUESTS, TOKENS)
        short, long = short - rest * short_elapsed, long - rest * long_elapsed
        per_request.append(short)
        per_token.append((long - short) / (TOKENS - 1))
    return statistics.median(per_request), statistics.median(per_token)


def wait_until_served(address, processes):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in processes:
            if process.poll() is not None:
                raise RuntimeError(f"{process.args[0]} ended with {process.returncode}")
        with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
            complete(http.client.HTTPConnection(address, timeout=5), 1)
            return
        time.sleep(0.05)
    raise RuntimeError(f"{address} serves nothing after 60 s")


@contextlib.contextmanager
def processes(commands):
    """The commands as processes, ended afterwards; their output is kept for failures."""
    with tempfile.TemporaryFile("w+") as log, contextlib.ExitStack() as stack:
        running = []
        for command in commands:
            running.append(subprocess.Popen(command, stdout=log, stderr=log))
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        try:
            yield running
        except Exception:
            log.seek(0)
            print(log.read()[-4000:])
            raise


def ours(binaries):
    discovery, address = free_address(), free_address()
    common = {"admin": "127.0.0.1:0", "discovery": f'["{discovery}"]', "telemetry.log_level": "warn"}
    any_port = "127.0.0.1:0"
    with tempfile.TemporaryDirectory() as sockets:
        services = {
            "discovery": {"listen": discovery, "admin": any_port, "telemetry.log_level": "warn"},
            "router": {**common, "listen": any_port},
            "worker": {**common, "listen": any_port, "kv_listen": any_port, "shm_dir": sockets, "engine": "sim",
                       "kv_blocks": "8192", "sim.speedup": SPEEDUP, "sim.verify": "last"},
            "frontend": {**common, "http": address, "grpc": any_port},
        }
        commands = [
            [binaries[f"armature-{name}"], *(word for key, value in sets.items() for word in ("--set", f"{key}={value}"))]
            for name, sets in services.items()
        ]
        with processes(commands) as running:
            wait_until_served(address, running)
            return measure(address, running[-1].pid)


def bare(binaries):
    address = free_address()
    with processes([[binaries["bare_sse"], address, str(PERIOD_MICROSECONDS)]]) as running:
        wait_until_served(address, running)
        return measure(address, running[0].pid)

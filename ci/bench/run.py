#!/usr/bin/env python3
"""Runs benchmarks and prints one table: ours, a baseline measured in the same run, and ours / baseline.

Rates (tok/s, GiB/s): a higher ratio is better. Times: a lower one is.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

import frontend
from cargo import ROOT, Bench, binaries

MODEL = pathlib.Path.home() / ".cache/armature/models/smollm2-135m-instruct-q4_1.gguf"


class Row:
    """A line of the table."""

    def __init__(self, name, unit, ours, baseline, against, command, ratio=None):
        self.name, self.against, self.command = name, against, command
        self.ours = f"{ours:,.4g} {unit}"
        self.baseline = "-" if baseline is None else f"{baseline:,.4g} {unit}"
        if ratio is None and baseline is not None:
            ratio = ours / baseline
        self.ratio = "-" if ratio is None else f"{ratio:.3g}"


def skipped(what):
    print(f"\nSKIPPED: {what}\n", file=sys.stderr)
    return []


def llama():
    model = pathlib.Path(os.environ.get("ARMATURE_MODEL", MODEL))
    if not model.is_file():
        return skipped(f"llama: no {model}; `armature model fetch` gets it, or name one with ARMATURE_MODEL")
    requirements = "ci/bench/requirements.txt"
    venv = subprocess.run(["ci/setup.sh", "python", requirements], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if venv.returncode:
        return skipped(f"llama: the packages of {requirements} cannot be installed, so there is nothing to compare with")
    script = "worker-svc/benches/llama_cpp.py"
    python = pathlib.Path(venv.stdout.strip()) / "bin/python"
    run = subprocess.run([python, script, model, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        return skipped(f"llama: {script} failed")
    theirs = json.loads(run.stdout.splitlines()[-1])["llama.cpp"]
    bench = Bench("armature-worker", "llama", "prefill_512|decode_batch_1", {"ARMATURE_MODEL": str(model.resolve())})
    ours = {"prefill": 512 / bench.seconds("llama/prefill_512"), "decode": 1 / bench.seconds("llama/decode_batch_1")}
    return [
        Row(f"llama {phase}", "tok/s", ours[phase], theirs[phase], "llama.cpp, 1 thread", f"{script} --with-engine")
        for phase in ("prefill", "decode")
    ]


def transfer():
    bench = Bench("armature-worker", "transfer")
    gib = 64 / 1024
    rows = []
    for ours, baseline in (("tcp", "two plain sockets"), ("shm", "memcpy")):
        rate = {name: gib / bench.seconds(f"transfer of 64 MiB/{name}") for name in (ours, baseline)}
        # Measured in rounds that alternate, so that a busy machine slows both alike.
        ratio = float(re.search(rf"{ours} reaches ([\d.]+) of {baseline}", bench.output).group(1))
        rows.append(Row(f"transfer {ours}, 64 MiB", "GiB/s", rate[ours], rate[baseline], baseline, bench.command, ratio))
    return rows


def scheduler():
    bench = Bench("armature-worker", "scheduler")
    step, empty = (bench.seconds(f"scheduler/{name}") * 1e6 for name in ("decode_step_256", "empty_step"))
    report = bench.seconds("scheduler/report_256") * 1e6
    return [
        Row("scheduler step, 256 running", "us", step, empty, "step of none", bench.command),
        Row("scheduler load report, 256 running", "us", report, None, "-", bench.command),
    ]


def kv_hash():
    bench = Bench("armature-kv-hash", "hash")
    one_pass = bench.seconds("200k tokens/baseline: one pass over the bytes") * 1e6
    return [
        Row(f"block hashes, 200k tokens, blocks of {size}", "us",
            bench.seconds(f"200k tokens/sequence hashes, blocks of {size}") * 1e6, one_pass, "one XXH3 pass", bench.command)
        for size in (16, 64)
    ]


def router():
    bench = Bench("armature-router", "decision")
    kv, round_robin, with_map = (
        bench.seconds(f"decision of 64 workers, 512 blocks/{case}") * 1e6 for case in ("kv", "round-robin", "kv with the map")
    )
    name = "router decision, 64 workers, 512 blocks"
    return [
        Row(name, "us", kv, round_robin, "round-robin", bench.command),
        Row(name, "us", kv, with_map, "with the index of hash maps", bench.command),
    ]


def token():
    bench = Bench("armature-frontend", "token")
    plain, stops = (bench.seconds(f"token/{name}") * 1e6 for name in ("plain", "four_stop_strings"))
    return [
        Row("frontend, token id to event", "us", plain, None, "-", bench.command),
        Row("frontend, the same with 4 stop strings", "us", stops, plain, "none", bench.command),
    ]


def frontend_cpu():
    (request, token), (bare_request, bare_token) = frontend.ours(binaries()), frontend.bare(binaries())
    against, command = "bare axum SSE", "ci/bench.sh frontend"
    return [
        Row("frontend CPU per request", "us", request * 1e6, bare_request * 1e6, against, command),
        Row("frontend CPU per streamed token", "us", token * 1e6, bare_token * 1e6, against, command),
    ]


GROUPS = {
    "llama": llama,
    "transfer": transfer,
    "scheduler": scheduler,
    "kv-hash": kv_hash,
    "router": router,
    "token": token,
    "frontend": frontend_cpu,
}


def table(rows):
    cells = [["name", "ours", "baseline", "ratio", "baseline is", "command"]]
    cells += [[row.name, row.ours, row.baseline, row.ratio, row.against, row.command] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; without one, all")
    wanted = parser.parse_args().groups or list(GROUPS)
    if unknown := set(wanted) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    load = os.getloadavg()[0]
    rows = []
    for name in wanted:
        print(f"== {name}", file=sys.stderr, flush=True)
        rows += GROUPS[name]()
    now = datetime.date.today().isoformat()
    print(f"\n{now}, {os.cpu_count()} x {processor()}, load {load:.1f} before and {os.getloadavg()[0]:.1f} after\n")
    print(table(rows))


if __name__ == "__main__":
    main()

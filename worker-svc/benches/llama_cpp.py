#!/usr/bin/env python3
"""Speed of llama.cpp (PyPI: xllamacpp) on one thread: prefill of 512 tokens, decode after them.

    python=$(ci/setup.sh python ci/bench/requirements.txt)/bin/python
    $python worker-svc/benches/llama_cpp.py [MODEL.gguf] [--with-engine]

With --with-engine the engine's own benchmark runs next, on the same file, and the ratio is printed; with --json all of it as
one line. Theirs is the best of a few runs, ours the median; theirs decodes the 64 tokens after the prompt, ours the first.
"""

import argparse
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import urllib.request

PROMPT, DECODE, REPEATS = 512, 64, 3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def llama_cpp(model):
    """Best of a few runs: tokens per second of prefill and of decode."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 2 * PROMPT
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.port = free_port()
    params.verbosity = 0
    server = xllamacpp.Server(params)
    timings = []
    for repeat in range(REPEATS):
        prompt = [17 + (i * 7919 + repeat) % 40000 for i in range(PROMPT)]
        body = {"prompt": prompt, "n_predict": DECODE, "cache_prompt": False, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        timings.append(json.loads(urllib.request.urlopen(request).read())["timings"])
    return (max(t["prompt_per_second"] for t in timings), max(t["predicted_per_second"] for t in timings))


def engine(model):
    """Median tokens per second of prefill and of decode, from `cargo bench`."""
    command = ["cargo", "bench", "-p", "armature-worker", "--bench", "llama", "--", "prefill_512|decode_batch_1"]
    with tempfile.TemporaryDirectory() as home:
        env = {**os.environ, "ARMATURE_MODEL": str(model), "CRITERION_HOME": home}
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL)
        def seconds(name):
            estimates = pathlib.Path(home) / "llama" / name / "new" / "estimates.json"
            return json.loads(estimates.read_text())["median"]["point_estimate"] * 1e-9
        return PROMPT / seconds("prefill_512"), 1 / seconds("decode_batch_1")


def main():
    usual = pathlib.Path.home() / ".cache/armature/models/smollm2-135m-instruct-q4_1.gguf"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=os.environ.get("ARMATURE_MODEL", usual))
    parser.add_argument("--with-engine", action="store_true", help="also run the engine and print the ratio")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    model = pathlib.Path(arguments.model).resolve(strict=True)
    rates = {"llama.cpp": llama_cpp(model)}
    if arguments.with_engine:
        rates["llama"] = engine(model)
    if arguments.json:
        print(json.dumps({name: dict(zip(("prefill", "decode"), rate)) for name, rate in rates.items()}))
        return
    for name, (prefill, decode) in rates.items():
        print(f"{name}: prefill {prefill:.1f} tok/s, decode {decode:.1f} tok/s")
    if arguments.with_engine:
        prefill, decode = (ours / theirs for ours, theirs in zip(rates["llama"], rates["llama.cpp"]))
        print(f"ratio: prefill {prefill:.2f}, decode {decode:.2f}")


if __name__ == "__main__":
    main()

"""Builds the benchmarks with cargo, once, and reads what criterion wrote."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Always all of them: the features of what is shared follow from the set, and another set would be another build.
PACKAGES = {
    f"armature-{name}": folder
    for name, folder in {
        "kv-hash": "proto/kv-hash",
        "discovery": "discovery-svc",
        "router": "router-svc",
        "worker": "worker-svc",
        "frontend": "frontend-svc",
    }.items()
}


def _build(*command):
    """Paths of the executables, by name of the target."""
    words = ["cargo", *command, "--message-format", "json-render-diagnostics"]
    words += [word for package in PACKAGES for word in ("-p", package)]
    output = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = map(json.loads, filter(lambda line: line.startswith("{"), output.splitlines()))
    return {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}


@functools.cache
def benches():
    return _build("bench", "--no-run", "--benches")


@functools.cache
def binaries():
    """The services, and the example that is their baseline."""
    benches()
    return _build("build", "--profile", "bench", "--bins", "--example", "bare_sse")


class Bench:
    """One run of a criterion benchmark."""

    def __init__(self, package, name, pattern="", env=None):
        self.command = f"cargo bench -p {package} --bench {name}"
        executable = benches()[name]
        with tempfile.TemporaryDirectory() as home:
            run = subprocess.run(
                [executable, "--bench", *filter(None, [pattern])],
                cwd=ROOT / PACKAGES[package], env={**os.environ, **(env or {}), "CRITERION_HOME": home},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            self.output = run.stdout
            if run.returncode:
                sys.stderr.write(self.output)
                raise SystemExit(f"{self.command} failed")
            self._medians = dict(self._read(pathlib.Path(home)))

    @staticmethod
    def _read(home):
        for path in home.glob("**/new/benchmark.json"):
            identity = json.loads(path.read_text())["full_id"]
            estimates = json.loads((path.parent / "estimates.json").read_text())
            yield identity, estimates["median"]["point_estimate"] * 1e-9

    def seconds(self, identity):
        """Median time of one iteration."""
        return self._medians[identity]

"""llama.cpp's own HTTP server, from the package xllamacpp: MODEL PORT. Runs until it is killed."""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_ctx, params.n_parallel = 4096, 2
params.endpoint_metrics = True
params.warmup = False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)
print("listening on", server.listening_address, flush=True)
signal.pause()

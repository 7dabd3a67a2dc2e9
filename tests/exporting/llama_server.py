"""`llama-server` of llama.cpp by its library, with the options that the README of an export names."""

import argparse
import signal

import xllamacpp

parser = argparse.ArgumentParser(prog="llama-server")
for name in ("model", "host"):
    parser.add_argument(f"--{name}", required=True)
for name in ("top-k", "n-predict", "ctx-size", "port"):
    parser.add_argument(f"--{name}", type=int, required=True)
for name in ("temp", "top-p", "min-p"):
    parser.add_argument(f"--{name}", type=float, required=True)
parser.add_argument("--jinja", action="store_true", required=True)
asked = parser.parse_args()

params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_predict, params.port = (
    asked.model,
    asked.ctx_size,
    asked.n_predict,
    asked.port,
)
params.use_jinja, params.warmup, params.n_parallel, params.cpuparams.n_threads = True, False, 1, 1
sampling = params.sampling
sampling.temp, sampling.top_p, sampling.top_k, sampling.min_p = asked.temp, asked.top_p, asked.top_k, asked.min_p
server = xllamacpp.Server(params)
signal.pause()

"""Times llama.cpp (through llama-cpp-python) on one file: a prompt in one batch, then single tokens. Prints JSON.

    python peer_llama_cpp.py MODEL --prompt 512 --generate 128 --threads 2 --repeat 3
"""

import argparse
import ctypes
import json
import time

import llama_cpp as lc


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--prompt", type=int, default=512)
    p.add_argument("--generate", type=int, default=128)
    p.add_argument("--depth", type=int, default=0)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    args = p.parse_args()

    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    start = time.perf_counter()
    model = lc.llama_model_load_from_file(args.model.encode(), lc.llama_model_default_params())
    params = lc.llama_context_default_params()
    params.n_ctx = args.depth + max(args.prompt, args.generate) + 32
    params.n_batch = params.n_ubatch = max(512, args.prompt)
    params.n_threads = params.n_threads_batch = args.threads
    context = lc.llama_init_from_model(model, params)
    vocab = lc.llama_n_vocab(lc.llama_model_get_vocab(model))
    load = time.perf_counter() - start

    def decode(ids):
        array = (ctypes.c_int32 * len(ids))(*ids)  # the batch only points to it
        if lc.llama_decode(context, lc.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")

    def clear():
        lc.llama_memory_clear(lc.llama_get_memory(context), True)

    def fill(n):
        for at in range(0, n, 512):
            decode([(7 * i + 1) % vocab for i in range(at, min(at + 512, n))])

    decode([1])
    prompts, tokens = [], []
    for _ in range(args.repeat):
        if args.prompt:
            clear()
            fill(args.depth)
            start = time.perf_counter()
            decode([(7 * i + 1) % vocab for i in range(args.prompt)])
            prompts.append(args.prompt / (time.perf_counter() - start))
        if args.generate:
            clear()
            fill(args.depth)
            start = time.perf_counter()
            for i in range(args.generate):
                decode([(7 * i + 1) % vocab])
            tokens.append(args.generate / (time.perf_counter() - start))
    print(json.dumps({"version": lc.__version__, "load_s": load, "prompt": prompts, "generate": tokens}))


if __name__ == "__main__":
    main()

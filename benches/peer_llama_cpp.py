"""Times llama.cpp (through llama-cpp-python) on one file: a prompt in one batch, then single tokens. Prints JSON.

    python peer_llama_cpp.py MODEL --prompt 512 --generate 128 --depth 0 --threads 2 --repeat 3

Each test is run once to warm up. Only needs llama-cpp-python; `peers.py` runs it beside cupola.
"""

import argparse
import ctypes
import json
import time

import llama_cpp as lc

# Numbers of ggml's types.
KV_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}


def peak_bytes():
    """The largest resident size of this process so far, where the system says it."""
    try:
        import resource
        import sys
    except ImportError:
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--prompt", type=int, default=512, help="tokens of the prompt; 0: none")
    p.add_argument("--generate", type=int, default=128, help="tokens to generate; 0: none")
    p.add_argument("--first", type=int, default=1, help="tokens of the prompt whose first answer is timed")
    p.add_argument("--depth", type=int, default=0, help="tokens in the cache before a test")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--kv-type", choices=KV_TYPES, default="f16")
    args = p.parse_args()

    quiet = lc.llama_log_callback(lambda *_: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    before = peak_bytes()
    start = time.perf_counter()
    model = lc.llama_model_load_from_file(args.model.encode(), lc.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp does not load {args.model}")
    params = lc.llama_context_default_params()
    params.n_ctx = args.depth + max(args.prompt, args.generate, args.first) + 32
    params.n_batch = max(512, args.prompt, args.first)
    params.n_ubatch = 512  # llama.cpp's default; a long prompt in one piece is slower
    params.n_threads = params.n_threads_batch = args.threads
    params.type_k = params.type_v = KV_TYPES[args.kv_type]
    context = lc.llama_init_from_model(model, params)
    if not context:
        raise SystemExit("llama.cpp makes no context with these settings")
    vocab = lc.llama_n_vocab(lc.llama_model_get_vocab(model))
    load = time.perf_counter() - start

    def decode(ids):
        array = (ctypes.c_int32 * len(ids))(*ids)  # the batch only points to it
        if lc.llama_decode(context, lc.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        lc.llama_get_logits_ith(context, -1)  # waits for the result

    def tokens(n):
        return [(7 * i + 1) % vocab for i in range(n)]

    def rewind(depth):
        lc.llama_memory_seq_rm(lc.llama_get_memory(context), 0, depth, -1)

    start = time.perf_counter()
    decode(tokens(args.first))
    first = time.perf_counter() - start
    rewind(0)
    before_test = tokens(args.depth)
    for at in range(0, args.depth, 512):
        decode(before_test[at : at + 512])

    def measure(n, run):
        rates = []
        for _ in range(args.repeat + 1 if n else 0):
            ids = tokens(n)
            start = time.perf_counter()
            run(ids)
            rates.append(n / (time.perf_counter() - start))
            rewind(args.depth)
        return rates[1:]

    prompt = measure(args.prompt, decode)
    generate = measure(args.generate, lambda ids: [decode([i]) for i in ids])
    result = {
        "version": lc.__version__,
        "system": lc.llama_print_system_info().decode(),
        "load_seconds": load,
        "first_token_seconds": first,
        "prompt": prompt,
        "generate": generate,
        "peak_bytes_before_load": before,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

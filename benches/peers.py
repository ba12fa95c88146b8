#!/usr/bin/env python3
"""Runs cupola and llama.cpp in turn on the same files, prints how many times faster cupola is, keeps the raw results.

    cargo build --release
    python3 benches/make_models.py
    python3 benches/peers.py target/bench-models/*.gguf
    python3 benches/peers.py target/bench-models/random-1b-Q4_0.gguf --depth 0,4096,8192 --pairs 7

Per file: speed of the prompt and of generation (of the latter at every depth), time from start to first token, and peak
memory. Every measurement is a process of its own; the two programs take turns, and which one begins alternates. A ratio is the
median of the pairs' ratios. See benches/README.md.

llama.cpp is that of llama-cpp-python in the interpreter that --python names; without it, it is installed into
target/peers, where it is compiled for this machine, which takes about a quarter of an hour.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEER = pathlib.Path(__file__).resolve().parent / "peer_llama_cpp.py"
LEAST_PAIRS = 5


def peer_python():
    """An interpreter with llama-cpp-python compiled for this machine."""
    folder = ROOT / "target" / "peers"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if subprocess.run([python, "-c", "import llama_cpp"], capture_output=True).returncode != 0:
        environment = os.environ | {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
        command = [python, "-m", "pip", "install", "--no-binary", "llama-cpp-python", "llama-cpp-python"]
        subprocess.run(command, check=True, env=environment)
    return str(python)


def run(command):
    """What the command prints as JSON, and its largest resident size in bytes where the system says it."""
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE)
    with process.stdout:
        output = process.stdout.read()
    peak = None
    if hasattr(os, "wait4"):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if process.wait() != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}")
    return json.loads(output), peak


def in_turn(pairs, ours, theirs):
    """Results of both, as lists of equal length."""
    found = ([], [])
    for pair in range(pairs):
        order = [(0, ours), (1, theirs)]
        for which, measure in order if pair % 2 == 0 else reversed(order):
            found[which].append(measure())
    return found


def compare(ours, theirs, **more):
    """Two lists of numbers with the pairs' ratios."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    medians = {"cupola_median": statistics.median(ours), "llama_cpp_median": statistics.median(theirs)}
    return {"cupola": ours, "llama_cpp": theirs, "ratios": ratios, "ratio": statistics.median(ratios), **medians, **more}


class Bench:
    def __init__(self, args):
        self.args = args
        self.versions = {"cupola": version(args.cupola)}

    def cupola(self, model, prompt, generate, depth, *more):
        a = self.args
        sizes = ["-p", prompt, "-n", generate, "-d", depth, "-r", 1, "-t", a.threads]
        options = ["--kv-type", a.kv_type, *(["--activations", a.activations] if a.activations else [])]
        return run([a.cupola, "bench", model, *sizes, *options, "--json", *more])

    def llama_cpp(self, model, prompt, generate, depth, *more):
        a = self.args
        sizes = ["--prompt", prompt, "--generate", generate, "--depth", depth, "--repeat", 1, "--threads", a.threads]
        result, peak = run([a.python, PEER, model, *sizes, "--kv-type", a.kv_type, *more])
        self.versions["llama-cpp-python"] = result["version"]
        self.versions["llama.cpp"] = result["system"]
        return result, peak

    def speeds(self, model, prompt, generate, depth):
        """Prompt and generation of the same processes: both programs load a file once for the two."""
        ours, theirs = in_turn(
            self.args.pairs,
            lambda: self.cupola(model, prompt, generate, depth)[0]["tests"],
            lambda: self.llama_cpp(model, prompt, generate, depth)[0],
        )
        phases = [(phase, tokens) for phase, tokens in (("prompt", prompt), ("generate", generate)) if tokens]
        return [
            self.speed(model, phase, tokens, depth, [tests[at] for tests in ours], [result[phase][0] for result in theirs])
            for at, (phase, tokens) in enumerate(phases)
        ]

    def speed(self, model, phase, tokens, depth, ours, theirs):
        keys = ["read_gb_per_second", "gb_per_second", "share_of_reading", "gop_per_second", "arithmetic", "share_of_arithmetic"]
        more = {key: [test[key] for test in ours] for key in keys}
        rates = [test["tokens_per_second"]["median"] for test in ours]
        share = statistics.median(more["share_of_reading" if phase == "generate" else "share_of_arithmetic"])
        found = {"test": phase, "tokens": tokens, "depth": depth, **compare(rates, theirs), "share": share, **more}
        label = f"{phase} {tokens}" + (f" at {depth}" if depth else "")
        self.row(model, label, found, "tokens/s", 1, f"{100 * share:.0f} %")
        return found

    def start(self, model):
        """Seconds from the start of loading, with a warm file cache, to the first token. The first start of cupola, which
        has no packed copy of the weights yet, is kept apart."""
        a = self.args
        options = ["--raw", "--max-tokens", 1, "--temp", 0, "-t", a.threads, "--kv-type", a.kv_type, "--json"]
        with tempfile.TemporaryDirectory(dir=ROOT / "target") as packed:
            command = [a.cupola, "run", model, "Once", *options, "--packed", packed]
            first = run(command)[0]
            tokens = first["usage"]["prompt_tokens"]

            def seconds(result):
                return result["timings"]["load_seconds"] + result["timings"]["prompt_seconds"]

            def theirs():
                result = self.llama_cpp(model, 0, 0, 0, "--first", tokens)[0]
                return result["load_seconds"] + result["first_token_seconds"]

            pairs = in_turn(a.pairs, lambda: seconds(run(command)[0]), theirs)
        found = compare(*pairs, first_start=seconds(first))
        self.row(model, "load to first token", found, "ms", 1e3)
        return found

    def memory(self, model):
        """Peak resident bytes of a prompt and a generation. llama.cpp's process also holds Python: that is subtracted."""
        a = self.args
        ours = self.cupola(model, a.prompt, a.generate, 0, "--no-limits")[1]
        result, whole = self.llama_cpp(model, a.prompt, a.generate, 0)
        before = result["peak_bytes_before_load"]
        if None in (ours, whole, before):
            return None
        found = compare([ours], [whole - before], llama_cpp_whole=whole, python=before)
        self.row(model, "peak memory", found, "MiB", 1 / 2**20)
        return found

    def row(self, model, label, found, unit, scale, share=""):
        ours, theirs = (f"{found[key] * scale:.1f}" for key in ["cupola_median", "llama_cpp_median"])
        spread = f"{min(found['ratios']):.2f} to {max(found['ratios']):.2f}"
        cells = [model.stem, label, unit, ours, theirs, f"{found['ratio']:.2f}", spread, share]
        print(f"| {' | '.join(cells)} |", flush=True)

    def model(self, model):
        a = self.args
        # Once through, so that the file is in memory.
        with open(model, "rb") as f:
            while f.read(1 << 24):
                pass
        tests = []
        depths = a.depth
        if a.prompt and 0 in depths:
            tests += self.speeds(model, a.prompt, a.generate, 0)
            depths = [depth for depth in depths if depth]
        elif a.prompt:
            tests += self.speeds(model, a.prompt, 0, 0)
        for depth in depths if a.generate else []:
            tests += self.speeds(model, 0, a.generate, depth)
        found = {"file": model.name, "bytes": model.stat().st_size, "tests": tests}
        if not a.speed_only:
            found |= {"load_to_first_token_seconds": self.start(model), "peak_memory_bytes": self.memory(model)}
        return found


def version(cupola):
    return subprocess.run([cupola, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def machine(cupola):
    """The processor as cupola names it, and the system."""
    devices, _ = run([cupola, "devices", "--json"])
    cpus = [device for kind in devices for device in kind["devices"] if device["kind"] == "cpu"]
    return {"cpu": cpus[0] if cpus else None, "system": platform.platform(), "python": platform.python_version()}


def commit():
    command = ["git", "-C", ROOT, "describe", "--always", "--dirty"]
    found = subprocess.run(command, capture_output=True, text=True)
    return found.stdout.strip() if found.returncode == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=pathlib.Path, help="GGUF files")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt; 0: none (default 512)")
    parser.add_argument("--generate", type=int, default=128, help="tokens to generate; 0: none (default 128)")
    parser.add_argument("--depth", default="0", help="tokens in the cache before generation, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help=f"at least {LEAST_PAIRS}")
    parser.add_argument("--trial", action="store_true", help="one pair, nothing kept: to see whether everything works")
    parser.add_argument("--kv-type", default="f16", help="of both: f16, bf16, f32, q8_0")
    parser.add_argument("--speed-only", action="store_true", help="neither load time nor memory")
    parser.add_argument("--activations", help="bits of cupola's activations, 16 or 8")
    parser.add_argument("--cupola", default=str(ROOT / "target" / "release" / "cupola"), help="the program")
    parser.add_argument("--python", help="an interpreter with llama-cpp-python")
    parser.add_argument("--out", type=pathlib.Path, help="file for the raw results (default: benches/results/peers-DATE.json)")
    args = parser.parse_args()
    if args.pairs < LEAST_PAIRS:
        parser.error(f"fewer than {LEAST_PAIRS} pairs say nothing")
    if args.trial:
        args.pairs = 1
    args.depth = [int(n) for n in args.depth.split(",")]
    args.python = args.python or peer_python()

    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    out = args.out or ROOT / "benches" / "results" / f"peers-{now:%Y-%m-%d-%H%M%S}.json"
    bench = Bench(args)
    result = {
        "date": now.isoformat(),
        "machine": machine(args.cupola),
        "versions": bench.versions,
        "commit": commit(),
        "settings": {"threads": args.threads, "kv_type": args.kv_type, "activations": args.activations, "pairs": args.pairs},
        "models": [],
    }
    print("| file | test | unit | cupola | llama.cpp | ratio | of the pairs | share of the limit |")
    print("|---|---|---|---|---|---|---|---|")
    for model in args.models:
        result["models"].append(bench.model(model))
        if not args.trial:
            # After each, so that nothing is lost if it is stopped.
            out.write_text(json.dumps(result, indent=1) + "\n")
    if not args.trial:
        print(f"\nRaw results: {out}")


if __name__ == "__main__":
    main()

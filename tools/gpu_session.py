"""Some minutes on a machine with an NVIDIA GPU: are the kernels right, how fast, what is learned?

    make gpu PYTHON=python3    # nine minutes; gpu-124M and gpu-32k take twelve
    python -m tools.gpu_session --only=benchmark,step --schemes=nope,t5 --lengths=4096
    python -m tools.gpu_session --rehearse    # without a GPU: tiny shapes, interpreted kernels

It needs JAX for CUDA; all stages but the first Flax and Optax, a part of the second PyTorch, the
last two what `experiments` needs. What lacks its package is left out and named. Nothing is
installed or fetched. The stages, of which the first three run without --only:

    agreement    each scheme with a kernel, by the kernels and by the dense engine: outputs, row
                 sums and every gradient; float32 and bfloat16; odd lengths, documents, windows,
                 grouped heads
    benchmark    attention, forward and backward: ms, TFLOP/s and share of the peak; next to
                 cuDNN, jax.nn with a materialised bias, and FlexAttention
    step         a training step of 25M parameters at 512 and 8,192 tokens, and its ratio to NoPE's
    larger       a comparison of six encodings at 124M parameters (configs/extrapolation_field.py)
    longer       SmolLM2-135M trained for 32,768 tokens by three methods (configs/pose.py), and read

Each has a share of the budget; what it leaves goes to the next one. In --out are results.jsonl,
with a line for each result as soon as it is there, about.json and summary.md. The same command
continues an interrupted session. The exit status is 1 where kernels disagree or a stage fails, 2
without a GPU.
"""

import dataclasses
import os
import sys
import threading
from typing import Any

import jax
from absl import flags

from experiments.measuring.timing import reason
from experiments.running.command import launch
from experiments.running.files.provenance import about, save_json
from pe_jax.encodings import parse
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError
from tools.gpu_stages import agreement, summary
from tools.gpu_stages.results import Clock, Results

SHARES = {"agreement": 0.4, "benchmark": 0.7, "step": 1.0}  # of the time that is left
PROGRAMS = ("larger", "longer")  # stages that train, with all of the time
DTYPES = ("float32", "bfloat16")
PACKAGES = ("pe_jax", "jax", "jaxlib", "triton", "torch", "flax", "optax", "numpy")
GRACE = 25  # seconds beyond the budget, after which even a call that hangs is ended


def run(name: str, options: Any, results: Results, clock: Clock) -> None:
    """Runs a stage, whose modules are imported when it begins."""
    schemes, processes = options.schemes, options.processes
    if name == "agreement":
        names = [n for n in schemes if n not in agreement.ONLY_TIMED] or agreement.names()
        agreement.run(results, clock, processes, names, options.dtypes, options.rehearse)
    elif name in PROGRAMS:
        from tools.gpu_stages import training

        commands = getattr(training, name)(options, results.path.parent)
        training.run(name, commands, results, clock)
    else:
        from tools.gpu_stages import speed

        scale = speed.TINY if options.rehearse else speed.LARGE
        chosen = {"schemes": tuple(schemes), "lengths": tuple(map(int, options.lengths))}
        scale = dataclasses.replace(scale, **{k: v for k, v in chosen.items() if v})
        stage = speed.benchmark if name == "benchmark" else speed.steps
        stage(results, clock, processes, scale)


def main() -> None:
    """Runs the stages; writes and prints their results."""
    options = flags.FLAGS
    begin = Clock(options.budget)
    if unknown := {*options.only} - {*SHARES, *PROGRAMS}:
        raise ConfigError(f"only={','.join(unknown)}: stages are {', '.join((*SHARES, *PROGRAMS))}")
    if not all(length.isdecimal() for length in options.lengths):
        raise ConfigError(f"lengths={','.join(options.lengths)}: pass integers, as 1024,4096")
    for name in {*options.schemes} - {*agreement.ONLY_TIMED}:
        parse(name)
    backend = jax.default_backend()
    if backend != "gpu" and not options.rehearse:
        raise ConfigError(f"no GPU: JAX has {backend} here; --rehearse needs none")
    out = local("out", options.out)
    results = Results(out / "results.jsonl")
    capability = str(getattr(jax.devices()[0], "compute_capability", ""))
    facts = about("tools.gpu_session", PACKAGES) | {"capability": capability}
    save_json(out / "about.json", facts)
    watch = threading.Timer(options.budget + GRACE, os._exit, (124,))
    watch.daemon = True
    watch.start()
    stopped = []
    for name in (*SHARES, *PROGRAMS):
        if name not in options.only:
            continue
        part = begin.share(SHARES.get(name, 1.0))
        try:
            run(name, options, results, part)
        except ImportError as error:
            results.add({"stage": name, "note": f"not run: {error}"})
        except Exception as error:  # other stages may run
            stopped.append(f"{name}: {reason(error)}")
            results.add({"stage": name, "note": f"stopped: {reason(error)}"})
        print(f"{name}: {begin.left:.0f} s are left", flush=True)
        (out / "summary.md").write_text(summary.text(results), encoding="utf-8")
    print(summary.text(results))
    for line in (wrong := agreement.failures(results) + stopped):
        print(line, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(bool(wrong))  # does not wait for threads that still compile


if __name__ == "__main__":
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # processes share the device
    flags.DEFINE_list("only", [*SHARES], "stages")
    flags.DEFINE_float("budget", 510.0, "seconds for all of them")
    flags.DEFINE_list("schemes", [], "names; none: all")
    flags.DEFINE_list("lengths", [], "tokens, of the benchmark; none: 4096,1024,16384,65536")
    flags.DEFINE_string("data", "text:novels", "what `larger` and `longer` train on and read")
    flags.DEFINE_integer("seeds", 1, "of `larger`: one more than before adds a seed")
    flags.DEFINE_list("dtypes", [*DTYPES], "of the agreement")
    flags.DEFINE_integer("processes", min(16, os.cpu_count() or 1), "that compile side by side")
    flags.DEFINE_bool("rehearse", False, "tiny shapes and interpreted kernels, on any machine")
    flags.DEFINE_string("out", "runs/gpu_session", "folder of the results")
    launch.run_flags(main)

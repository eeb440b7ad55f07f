"""Programs that train, one after the other, each until it ends or time is up.

Their files are in folders beside results.jsonl; a program that is stopped saves first, and the same
command continues it.
"""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tools.gpu_stages.results import Clock, Results

METHODS = ("yarn", "linear", "llama3")  # of configs/pose.py
TO_SAVE = 25  # seconds that a program has to save when time is up
LEAST = 60  # seconds with which a program is worth starting
TINY_124M = """--encodings=rope --encodings=alibi --config.length=32 --config.batch=2
  --config.steps=4 --config.rate_steps=2 --config.optimizer.warmup=1 --config.log_every=2
  --config.eval.windows=1 --config.eval.lengths=32,64 --config.eval.batch_tokens=64
  --config.eval.stride=32
  --config.model.width=32 --config.model.layers=2 --config.model.heads=2
  --config.model.mlp_width=48 --config.timing_repeats=5""".split()
TINY_TRAIN = """--config.length=64 --config.batch=1 --config.steps=2 --config.optimizer.warmup=1
  --config.log_every=1 --config.eval.lengths=64 --config.eval.windows=1
  --config.eval.batch_tokens=64 --config.eval.stride=64""".split()
TINY_READ = """--config.length=64 --config.factor=2 --config.lengths=64,128 --config.targets=32
  --config.documents=1 --config.windows=1 --config.tasks=()""".split()


def larger(options: Any, out: Path) -> dict[str, list[str]]:
    """Six encodings at 124M parameters, as many seeds as the flag says."""
    flags = ["--config=configs/extrapolation_field.py:124M", f"--config.data={options.data}"]
    flags += [f"--config.workdir={out / '124M'}", f"--config.seeds={options.seeds}"]
    flags += TINY_124M if options.rehearse else []
    return {f"{options.seeds} seeds": ["compare", *flags]}


def longer(options: Any, out: Path) -> dict[str, list[str]]:
    """SmolLM2-135M for 32,768 tokens by short training, three methods; each is read at once."""
    commands, text = {}, f"--config.data={options.data}"
    reading = ["extend", "--config=configs/extend.py:released_32k", text]
    reading += TINY_READ if options.rehearse else []
    for name in METHODS:
        model, workdir = out / f"{name}_model", out / f"{name}_training"
        flags = [f"--config=configs/pose.py:gpu_{name}", text, f"--config.workdir={workdir}"]
        flags += [f"--export={model}", *(TINY_TRAIN if options.rehearse else ())]
        commands[f"{name}, trained"] = ["train", *flags]
        flags = [f"--checkpoint={model}", "--encodings=rope", f"--config.workdir={out / name}"]
        commands[f"{name}, read"] = [*reading, *flags]
    untrained = ["--checkpoint=smollm2", f"--config.workdir={out / 'untrained'}"]
    commands["untrained, read"] = [*reading, *untrained]
    return commands


def run(stage: str, commands: dict[str, list[str]], results: Results, clock: Clock) -> None:
    """Runs what has not ended well yet: a result for each, with its exit status and seconds.

    Raises:
      RuntimeError: one of them failed; the others ran.
    """
    failed: list[str] = []
    done = {row.get("case") for row in results.of(stage) if row.get("exit") == 0}
    for case, (program, *flags) in commands.items():
        if case in done or clock.left < LEAST:
            continue
        begin, note = time.monotonic(), ""
        process = subprocess.Popen([sys.executable, "-m", f"experiments.{program}", *flags])
        try:
            if process.wait(clock.left - TO_SAVE):
                failed.append(case)
                note = "failed"
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            note = "stopped when time was up"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TO_SAVE)
            process.kill()
        seconds, status = time.monotonic() - begin, process.wait()
        row = {"stage": stage, "case": case, "exit": status, "seconds": seconds}
        results.add(row | ({"note": note} if note else {}))
    if failed:
        raise RuntimeError(f"failed: {'; '.join(failed)}")

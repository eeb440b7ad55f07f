"""A program of two lists of work whose runs wait for a file: for tests of the cluster."""

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import jax

from experiments.running.configs.sweep import Sweep
from experiments.running.files import own_code
from experiments.running.schedule import cluster, driver
from experiments.running.schedule.work import Run, Work
from pe_jax.training import sharding
from pe_jax.training.metrics import Progress

NAMES = ("a", "b", "c")
GO = "go"  # the file
SIGNS = "signs"  # of life, where the folder of data should be


def waited(folder, value, worker):
    """Waits for the file, then gives a value; fails if that is negative."""
    until = time.monotonic() + 30
    worker.report(Progress(worker.label, 0, 1, None, None))
    log = folder / worker.label.split()[0] / f"{worker.label}.log"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    while not (folder / GO).exists() and time.monotonic() < until:
        if worker.stop.signal is not None:
            return None
        time.sleep(0.02)
    if value < 0:
        raise MemoryError("RESOURCE_EXHAUSTED")
    return {
        **{"status": "ok", "value": value, "process": os.getpid()},
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def runs(folder, name, values):
    found = yield [
        Run(
            f"{name} {k}",
            folder / name / f"{k}.json",
            1,
            lambda worker, value=value: waited(folder, value, worker),
        )
        for k, value in enumerate(values)
    ]
    total = sum(result.get("value", 0) for result in found)
    (last,) = yield [
        Run(f"{name} sum", folder / name / "sum.json", 1, lambda w: waited(folder, total, w))
    ]
    return last["value"]


@dataclasses.dataclass(frozen=True)
class Config(Sweep):
    """Of the program."""

    workdir: str = ""


def main(config: Config) -> Any:
    folder = Path(config.workdir)
    if cluster.HOST is not None and "private" in config.encodings:
        folder = folder / "of a node"
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:1])
    about = {"digests": SIGNS, "code": own_code.digests(config.encodings)}
    with driver.opened(main, config, folder / "config.json", about, [mesh]) as opened:
        works = [Work(name, [1] * 3, runs(folder, name, (1, 2))) for name in NAMES]
        sums = opened.run(works)
        values = [*sums.values(), *[-1] * ("fails" in config.encodings)]
        return opened.run([Work("all", [1], runs(folder, "all", values))])

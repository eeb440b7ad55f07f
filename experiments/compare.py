"""The comparison: every encoding with every seed, then speed and memory, then one report.

    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR

Interrupted, the same command goes on where it was; what is finished is not repeated.
"""

import contextlib
import dataclasses
import importlib.metadata
import json
import platform
import re
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rich
from absl import logging
from jax.sharding import Mesh

from experiments import launch, report, results, speed
from experiments.lanes import lanes, spread
from experiments.lock import Lock
from experiments.provenance import commit, save_json
from experiments.train import (
    Diverged,
    Source,
    batches,
    evaluate,
    meta,
    open_source,
    prepare,
    train,
)
from pe_jax.encodings.base import Params
from pe_jax.training.checkpoint import BINDING, check_same
from pe_jax.training.config import CompareConfig, Config, from_json
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.sharding import path_name
from pe_jax.training.step import Trainer

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def slug(spec: str) -> str:
    """A folder's name for an encoding: `rope(base=5e5)` → rope-base-5e5."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", spec.replace("_", "-")).strip("-.")[:64] or "encoding"


def names(config: CompareConfig) -> dict[str, str]:
    """Name → spec: the scheme's name where that tells them apart, else the whole spec's slug."""
    specs = config.specs()
    plain = [re.fullmatch(r"(\w+)(\(.*\))?", spec) for spec in specs]
    short = [match[1] if match else "" for match in plain]
    found = [
        name if name and short.count(name) == 1 else slug(spec)
        for name, spec in zip(short, specs, strict=True)
    ]
    if len(set(found)) < len(found):
        raise ValueError(f"encodings={config.encodings}: two of them have the same name {found}")
    for field in ("baseline", "reference"):
        if getattr(config, field) not in found:
            raise ValueError(f"{field}={getattr(config, field)!r}: must be one of {found}")
    return dict(zip(found, specs, strict=True))


def manifest(config: CompareConfig, source: Source, encodings: dict[str, str]) -> dict:
    """What the report says about the comparison besides its results."""
    name = source.corpus.name
    return {
        "name": f"{len(encodings)} positional encodings on {name}",
        "train_length": config.length,
        "lengths": sorted({config.length, *config.eval.lengths}),
        "baseline": config.baseline,
        "reference": config.reference,
        "primary": {"protocol": config.protocol, "length": config.eval.lengths[-1]},
        "encodings": [{"name": n, "spec": s} for n, s in encodings.items()],
        "seeds": [config.seed + k for k in range(config.seeds)],
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "dims": dataclasses.asdict(config.model.dims),
        "corpus": {
            "name": name,
            "digest": source.corpus.digest,
            "tokens": source.tokens and source.tokens.digest,
            "describe": source.corpus.describe(),
        },
        "versions": {
            "python": platform.python_version(),
            **{p: importlib.metadata.version(p) for p in PACKAGES},
        },
        "commit": commit(),
        "device": f"{len(jax.devices())} × {jax.devices()[0].device_kind}",
        "command": shlex.join(["python", "-m", "experiments.compare", *sys.argv[1:]]),
        "steps": config.steps,
        "batch": config.batch,
        "learning_rate": config.optimizer.learning_rate,
        "note": "A demonstration: one stated learning rate for all schemes.",
    }


def save_encoding(folder: Path, trainer: Trainer, params: Any) -> None:
    """The trained parameters of the encoding of layer 0, for its picture."""
    model = trainer.model(params)
    first = jax.tree.map(lambda x: x[0], model.blocks[0].attention.params)
    leaves = jax.tree.leaves(Params(model.shared[model.which[0]], first))
    np.savez(folder / "encoding.npz", **{str(i): np.asarray(x) for i, x in enumerate(leaves)})


def count_parameters(trainer: Trainer) -> dict:
    """How many parameters, and how many of them the encodings'."""
    leaves = jax.tree_util.tree_leaves_with_path(trainer.shapes)
    sizes = [(path_name(path), leaf.size) for path, leaf in leaves]
    own = [n for path, n in sizes if path.startswith("shared") or "/attention/params/" in path]
    return {"parameters": sum(n for _, n in sizes), "encoding_parameters": sum(own)}


def one(
    config: Config, source: Source, evaluator: Evaluator, label: str, stop: launch.Stop
) -> None:
    """Trains and evaluates one run, and writes its `evaluation.json`, unless a signal came."""
    folder = Path(config.workdir)
    begin, trainer = time.monotonic(), evaluator.trainer
    found: dict = count_parameters(trainer)
    save_json(folder / "config.json", meta(config, source))
    try:
        state = train(config, source, trainer, label, stop)
    except Diverged as error:
        save_json(folder / "evaluation.json", {**found, "status": "diverged", "reason": str(error)})
        return
    if stop.signal is not None:
        return
    found |= {"status": "ok", "reason": "", "flops_per_token": flops_per_token(config, trainer)}
    found |= evaluate(evaluator, source, state)
    save_encoding(folder, trainer, state.params)
    rows, _, _ = results.read_metrics(folder / "metrics.jsonl")
    last = next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None)
    found |= {"seconds": time.monotonic() - begin, "train_loss": last}
    save_json(folder / "evaluation.json", found)


def flops_per_token(config: Config, trainer: Trainer) -> float | None:
    """Of a training step, by the compiler's count (loops count once, so long contexts are low)."""
    cost = trainer.compile(config.batch, config.length).cost_analysis()
    flops = (cost or {}).get("flops")
    return flops and flops / (config.batch * config.length)


def check_resumable(config: CompareConfig, now: dict) -> None:
    """Raises ValueError if the workdir holds another comparison, naming the difference."""
    path = Path(config.workdir) / "manifest.json"
    if not path.exists():
        return
    saved = json.loads(path.read_text())
    of = lambda m: {"corpus": m["corpus"]["digest"], "tokens": m["corpus"]["tokens"]}  # noqa: E731
    join = lambda m: {**m["config"], **of(m)}  # noqa: E731
    check_same(join(saved), join(now), (*BINDING, "steps", "eval"))
    before = {e["name"]: e["spec"] for e in saved["encodings"]}
    for name, spec in ((e["name"], e["spec"]) for e in now["encodings"]):
        if before.get(name, spec) != spec:
            raise ValueError(
                f"encodings: {name!r} is {spec!r} here and {before[name]!r} in the workdir;"
                " use a new --config.workdir"
            )


class Jobs:
    """Every run that is missing: encodings side by side, the seeds of one after another.

    There is a thread for each of `meshes`; threads share the data, and XLA lets go of Python's lock
    while it compiles and computes.
    """

    def __init__(self, config: CompareConfig, source: Source, evaluators, seeds, meshes, stop):
        self.config, self.source, self.evaluators = config, source, evaluators
        self.seeds, self.meshes, self.stop = seeds, meshes, stop
        self.total, self.done, self.repeated = len(evaluators) * len(seeds), 0, 0
        self.begin, self.lock = time.monotonic(), threading.Lock()

    def run(self) -> None:
        """Returns when all is done, or a signal came; the first error of a run ends it too."""
        spread(self._seeds, self.evaluators, self.meshes)

    def _seeds(self, name: str, mesh: Mesh) -> None:
        try:
            self._each_seed(name, mesh)
        except BaseException:
            self.stop.signal = self.stop.signal or signal.SIGTERM  # the others save and end
            raise

    def _each_seed(self, name: str, mesh: Mesh) -> None:
        evaluator = self._on(mesh, self.evaluators[name])
        for seed in self.seeds:
            if self.stop.signal is not None:
                return
            folder = Path(self.config.workdir) / "runs" / name / f"seed{seed}"
            finished = (folder / "evaluation.json").exists()
            if not finished:
                run = from_json(Config, dataclasses.asdict(self.config))
                run.model = dataclasses.replace(evaluator.trainer.config)
                run.seed, run.workdir = seed, str(folder)
                one(run, self.source, evaluator, f"{name} seed {seed}", self.stop)
            self._count(f"{name} seed {seed}", finished)

    def _on(self, mesh: Mesh, evaluator: Evaluator) -> Evaluator:
        """The evaluator, on these devices."""
        trainer = evaluator.trainer
        if trainer.mesh == mesh:
            return evaluator
        model, config = dataclasses.replace(trainer.config), self.config
        there = prepare(dataclasses.replace(config, model=model), model.vocab, mesh)
        return Evaluator(there, config.eval)

    def _count(self, label: str, finished: bool) -> None:
        if self.stop.signal is not None:
            return
        with self.lock:
            self.done += 1
            self.repeated += finished
            new, left = self.done - self.repeated, self.total - self.done
            minutes = (time.monotonic() - self.begin) / max(new, 1) * left / 60
            what = "was finished" if finished else f"is finished; about {minutes:.1f} minutes left"
            logging.info("[%d/%d runs] %s %s", self.done, self.total, label, what)


def main(config: CompareConfig) -> None:
    """Runs what is missing, then measures speed, then writes the report."""
    workdir = Path(config.workdir)
    with launch.one_line_errors():
        meshes = lanes(config)
        encodings = names(config)
        source = open_source(config)
        batches(config, source, meshes[0])  # raises what training would, before anything is written
        about = manifest(config, source, encodings)
        check_resumable(config, about)
        model = dataclasses.replace(config.model)
        evaluators = {}
        for name, spec in encodings.items():
            config.model = dataclasses.replace(model, encoding=spec)
            evaluators[name] = Evaluator(prepare(config, source.vocab, meshes[0]), config.eval)
        lock = Lock(workdir)
    with contextlib.closing(lock):
        _run(config, source, evaluators, meshes, about)


def _run(
    config: CompareConfig, source: Source, evaluators: dict, meshes: list[Mesh], about: dict
) -> None:
    workdir = Path(config.workdir)
    save_json(workdir / "manifest.json", about)
    with launch.Stop() as stop:
        jobs = Jobs(config, source, evaluators, about["seeds"], meshes, stop)
        jobs.run()
        if stop.signal is not None:
            logging.info("Stopped; the same command continues here.")
            sys.exit(128 + stop.signal)
    timed = workdir / "speed.json"
    if not timed.exists() or {*json.loads(timed.read_text())["encodings"]} != {*evaluators}:
        logging.info("Measuring speed and memory, all schemes in turn")
        save_json(timed, speed.measure(config, evaluators))
    logging.info("Writing the report")
    page = report.build(workdir)
    rich.print(report.summary(workdir))
    print(f"Report: {page}")


if __name__ == "__main__":
    launch.run(main, "configs/compare.py", CompareConfig)

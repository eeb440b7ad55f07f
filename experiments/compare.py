"""The comparison: every encoding with every seed, then speed and memory, then one report.

    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR

With `--config.rates` each encoding is first trained for `rate_steps` at each of these learning
rates, and then, with every seed, at the one whose loss on validation text was the least. With
`--config.encoding_rates` its own parameters are tried at each of these multiples of each rate.

Interrupted, the same command goes on where it was; what is finished is not repeated.
"""

import contextlib
import dataclasses
import importlib.metadata
import itertools
import json
import platform
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags, logging
from jax.sharding import Mesh

from experiments.measuring import flops, model_speed
from experiments.measuring.loop_counts import tiles
from experiments.reporting import comparison_report, join_comparisons, results
from experiments.running import launch, signals
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import lanes, spread
from experiments.running.provenance import command, made, save_json
from experiments.running.run_names import short, slug
from experiments.running.sweep_configs import CompareConfig, rate_pairs
from experiments.running.training_loop import (
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
from pe_jax.training.checkpoint import check_same
from pe_jax.training.config import Config, EvalConfig, from_json
from pe_jax.training.evaluate import Evaluator, windows
from pe_jax.training.sharding import path_name
from pe_jax.training.step import Trainer, is_encoding

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def names(config: CompareConfig) -> dict[str, str]:
    """Name → spec: the scheme's name where that tells them apart, else the whole spec's slug."""
    specs = config.specs()
    brief = [short(spec) for spec in specs]
    found = [
        x if x.isidentifier() and brief.count(x) == 1 else slug(spec)
        for x, spec in zip(brief, specs, strict=True)
    ]
    if len(set(found)) < len(found):
        raise ValueError(f"encodings={config.encodings}: two of them have the same name {found}")
    for field in ("baseline", "reference"):
        if getattr(config, field) not in found:
            raise ValueError(f"{field}={getattr(config, field)!r}: must be one of {found}")
    return dict(zip(found, specs, strict=True))


def checks(config: CompareConfig, spec: str) -> list[tuple[float, float]]:
    """The (learning rate, encoding rate) to check for a scheme; none where there is no choice."""
    pairs = rate_pairs(config, spec)
    return pairs if len(pairs) > 1 else []


def near(config: CompareConfig) -> EvalConfig:
    """The evaluation of a learning rate: validation text at the training length.

    It has as many targets as the evaluation of a run.
    """
    count = max(1, config.eval.windows * config.eval.lengths[-1] // config.length)
    lengths, tokens = (config.length,), config.eval.batch_tokens
    return EvalConfig(lengths, count, config.length, "validation", tokens)


def manifest(config: CompareConfig, source: Source, encodings: dict[str, str]) -> dict:
    """What the report says about the comparison besides its results."""
    name = source.corpus.name
    note = "A demonstration: one stated learning rate for all schemes."
    if config.rates:
        note = f"The learning rate of each scheme is the best of {len(config.rates)}."
    if config.encoding_rates:
        count = len(config.encoding_rates)
        note += f" Parameters of encodings learn at the best of {count} multiples of it."
    return {
        "name": f"{len(encodings)} positional encodings on {name}",
        "train_length": config.length,
        "lengths": sorted({config.length, *config.eval.lengths}),
        "baseline": config.baseline,
        "reference": config.reference,
        "primary": {"protocol": config.protocol, "length": config.eval.lengths[-1]},
        "secondary": {"protocol": config.protocol, "length": config.length},
        "smallest_effect": float(config.smallest_effect),
        "encodings": [
            {"name": n, "spec": s, "checks": checks(config, s)} for n, s in encodings.items()
        ],
        "seeds": [config.seed + k for k in range(config.seeds)],
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "dims": dataclasses.asdict(config.model.dims),
        "corpus": {
            "name": name,
            "digest": source.corpus.digest,
            "tokens": source.tokens and source.tokens.digest,
            "describe": source.corpus.describe(),
            "warning": source.corpus.warning,
        },
        "versions": {
            "python": platform.python_version(),
            **{p: importlib.metadata.version(p) for p in PACKAGES},
        },
        **made(),
        "command": command("compare"),
        "steps": config.steps,
        "batch": config.batch,
        "learning_rate": config.optimizer.learning_rate,
        "encoding_rate": config.optimizer.encoding_rate,
        "rates": [float(rate) for rate in config.rates],
        "encoding_rates": [float(multiple) for multiple in config.encoding_rates],
        "rate_steps": config.rate_steps,
        "note": note,
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
    own = [n for path, n in sizes if is_encoding(path)]
    return {"parameters": sum(n for _, n in sizes), "encoding_parameters": sum(own)}


def one(
    config: Config, source: Source, evaluator: Evaluator, label: str, stop: signals.Stop
) -> None:
    """Trains and evaluates one run, and writes its `evaluation.json`, unless a signal came."""
    folder = Path(config.workdir)
    begin, trainer = time.monotonic(), evaluator.trainer
    found: dict = count_parameters(trainer)
    for field in ("learning_rate", "encoding_rate"):
        found[field] = getattr(config.optimizer, field)
    save_json(folder / "config.json", meta(config, source))
    try:
        state = train(config, source, evaluator, label, stop)
    except Diverged as error:
        found |= {"status": "diverged", "reason": str(error), **made()}
        save_json(folder / "evaluation.json", found)
        return
    if stop.signal is not None:
        return
    found |= {"status": "ok", "reason": "", "flops_per_token": flops_per_token(config, trainer)}
    found |= evaluate(evaluator, source, state)
    save_encoding(folder, trainer, state.params)
    rows, _, _ = results.read_metrics(folder / "metrics.jsonl")
    last = next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None)
    found |= {"seconds": time.monotonic() - begin, "train_loss": last, **made()}
    save_json(folder / "evaluation.json", found)


def flops_per_token(config: Config, trainer: Trainer) -> float:
    """Of the matrix products in a training step, counted in the traced program."""
    trainer.compile(config.batch, config.length)
    given = config.batch, config.length, trainer.layout, trainer.mesh.size
    masked = tiles(trainer.config, *given)
    return flops.count(trainer.jaxpr, *masked).total / (config.batch * config.length)


def check_resumable(config: CompareConfig, now: dict) -> None:
    """Raises ValueError if the workdir holds another comparison, naming the difference."""
    path = Path(config.workdir) / "manifest.json"
    if not path.exists():
        return
    saved = json.loads(path.read_text())
    check_same(results.binding(saved), results.binding(now), results.SAME)
    for name, spec in ((e["name"], e["spec"]) for e in now["encodings"]):
        runs = (path.parent.glob(f"{kind}/{name}/*/config.json") for kind in ("runs", "rates"))
        for run in itertools.chain(*runs):
            before = json.loads(run.read_text())["model"]["encoding"]
            if before != spec:
                raise ValueError(
                    f"encodings: {name!r} is {spec!r} here and {before!r} in {run.parent};"
                    " use a new --config.workdir"
                )


class Jobs:
    """Every run that is missing: encodings side by side, of each its rates, then its seeds.

    There is a thread for each of `meshes`; threads share the data, and XLA lets go of Python's lock
    while it compiles and computes.
    """

    def __init__(
        self, config: CompareConfig, source: Source, nearby: Source, evaluators, seeds, meshes, stop
    ):
        self.config, self.source, self.nearby = config, source, nearby
        self.evaluators, self.seeds, self.meshes, self.stop = evaluators, seeds, meshes, stop
        self.checks = {n: checks(config, e.trainer.config.encoding) for n, e in evaluators.items()}
        tried = sum(map(len, self.checks.values()))
        self.total, self.done = tried + len(evaluators) * len(seeds), 0
        steps = tried * config.rate_steps + len(evaluators) * len(seeds) * config.steps
        self.ran, self.left = 0, steps
        self.begin, self.lock = time.monotonic(), threading.Lock()

    def run(self) -> None:
        """Returns when all is done, or a signal came; the first error of a run ends it too."""
        spread(self._seeds, self.evaluators, self.meshes, self.stop)

    def _seeds(self, name: str, mesh: Mesh) -> None:
        pair = self._best(name, mesh)
        evaluator = None
        for seed in self.seeds:
            if self.stop.signal is not None:
                return
            label, folder = f"{name} seed {seed}", Path("runs", name, f"seed{seed}")
            run = self._config(name, folder, pair, seed=seed)
            if not (finished := self._finished(run)):
                evaluator = evaluator or self._evaluator(name, run, mesh)
                one(run, self.source, evaluator, label, self.stop)
            self._count(label, run.steps, finished)

    def _best(self, name: str, mesh: Mesh) -> results.Pair:
        """The rates of an encoding and its parameters: the best to check, after running them."""
        config, tried = self.config, self.checks[name]
        if not tried:
            return rate_pairs(config, self.evaluators[name].trainer.config.encoding)[0]
        for pair in tried:
            if self.stop.signal is not None:
                break
            label = f"{name} at {pair[0]:g}" + f" (encoding × {pair[1]:g})" * (pair[1] != 1)
            fields: Any = dict(steps=config.rate_steps, eval=near(config))
            run = self._config(name, results.rate_folder(name, *pair), pair, **fields)
            if not (finished := self._finished(run)):
                one(run, self.nearby, self._evaluator(name, run, mesh), label, self.stop)
            if self._finished(run):  # nothing continues from here
                shutil.rmtree(Path(run.workdir) / "checkpoints", ignore_errors=True)
            self._count(label, run.steps, finished)
        found = results.read_checks(Path(config.workdir), name, tried, config.seed)
        return results.best_rate(results.rate_losses(found, config.length))

    def _config(self, name: str, folder: Path, pair: results.Pair, **fields: Any) -> Config:
        """That of one run."""
        run = from_json(Config, dataclasses.asdict(self.config))
        run.workdir = str(Path(self.config.workdir) / folder)
        run.model = dataclasses.replace(self.evaluators[name].trainer.config)
        run.optimizer.learning_rate, run.optimizer.encoding_rate = pair
        return dataclasses.replace(run, **fields)

    def _finished(self, run: Config) -> bool:
        return (Path(run.workdir) / "evaluation.json").exists()

    def _evaluator(self, name: str, run: Config, mesh: Mesh) -> Evaluator:
        """The evaluator of a run on these devices: the one that is there, or another."""
        there = self.evaluators[name]
        usual = all(
            getattr(run, f) == getattr(self.config, f) for f in ("optimizer", "steps", "eval")
        )
        if usual and there.trainer.mesh == mesh:
            return there
        return Evaluator(prepare(run, run.model.vocab, mesh), run.eval)

    def _count(self, label: str, steps: int, finished: bool) -> None:
        if self.stop.signal is not None:
            return
        with self.lock:
            self.done += 1
            self.left -= steps
            self.ran += 0 if finished else steps
            minutes = (time.monotonic() - self.begin) / max(self.ran, 1) * self.left / 60
            what = "was finished" if finished else f"is finished; about {minutes:.1f} minutes left"
            logging.info("[%d/%d runs] %s %s", self.done, self.total, label, what)


def main(config: CompareConfig) -> None:
    """Runs what is missing, then measures speed, then writes the report."""
    workdir = Path(config.workdir)
    with one_line_errors():
        meshes = lanes(config)
        encodings = names(config)
        source = open_source(config)
        nearby = dataclasses.replace(source, asked=1)
        chosen = any(checks(config, spec) for spec in encodings.values())
        if chosen and source.text is not None:
            text = windows(source.corpus, source.tokens, near(config))
            nearby = dataclasses.replace(source, text=text)
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
        _run(config, source, nearby, evaluators, meshes, about)


def _run(
    config: CompareConfig,
    source: Source,
    nearby: Source,
    evaluators: dict,
    meshes: list[Mesh],
    about: dict,
) -> None:
    workdir = Path(config.workdir)
    save_json(workdir / "manifest.json", about)
    with signals.Stop() as stop:
        jobs = Jobs(config, source, nearby, evaluators, about["seeds"], meshes, stop)
        jobs.run()
        stop.leave()
    timed = workdir / "speed.json"
    of = model_speed.subject(config, evaluators)
    if not timed.exists() or json.loads(timed.read_text()).get("of") != of:
        logging.info("Measuring speed and memory, all schemes in turn")
        save_json(timed, model_speed.measure(config, evaluators))
    show(workdir)


def show(workdir: Path) -> None:
    """Writes the report, and the verdicts to the terminal."""
    logging.info("Writing the report")
    page = comparison_report.build(workdir)
    launch.show(comparison_report.summary(workdir))
    print(f"Report: {page}")


def start(config: CompareConfig) -> None:
    """Joins comparisons, or runs one."""
    if not flags.FLAGS.join:
        return main(config)
    workdir = Path(config.workdir)
    with one_line_errors():
        join_comparisons.join([Path(folder) for folder in flags.FLAGS.join], workdir)
    show(workdir)


if __name__ == "__main__":
    flags.DEFINE_list("join", [], "workdirs of comparisons to report as one; nothing is run")
    launch.run(start, "configs/compare.py", CompareConfig)

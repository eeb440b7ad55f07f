"""The comparison: trains what is missing, measures speed and memory, writes the report."""

import contextlib
import dataclasses
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments.measuring import flops, model_speed
from experiments.measuring.hlo_trip_counts import tiles
from experiments.reporting import comparison_report, join_comparisons, results
from experiments.running import launch, rate_search, signals
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import command, environment, save_json
from experiments.running.references import with_references
from experiments.running.run_names import folder, short_names
from experiments.running.run_table import RunTable
from experiments.running.sweep_configs import CompareConfig
from experiments.running.training_loop import (
    Diverged,
    Source,
    batches,
    evaluate,
    open_source,
    prepare,
    run_metadata,
    train,
    with_vocab,
)
from pe_jax.encodings.base import Params
from pe_jax.training import tasks
from pe_jax.training.checkpoint import check_same
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig
from pe_jax.training.evaluate import Evaluator, windows
from pe_jax.training.metrics import Progress
from pe_jax.training.optimizer import is_encoding
from pe_jax.training.paths import local
from pe_jax.training.sharding import path_name
from pe_jax.training.step import Trainer
from pe_jax.validation import ConfigError

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def names(config: CompareConfig) -> dict[str, str]:
    """Short name → spec."""
    return {name: spec for spec, name in short_names(config.specs()).items()}


def checks(config: CompareConfig, spec: str) -> list[rate_search.Pair]:
    """The (learning rate, encoding rate) pairs to try for a scheme; empty if there is only one."""
    pairs = rate_search.grid(config, spec)
    return pairs if len(pairs) > 1 else []


def check_evaluation(config: CompareConfig) -> EvalConfig:
    """Of learning rates: validation text at the training length, with as many targets as a run."""
    return dataclasses.replace(
        config.eval,
        lengths=(config.length,),
        windows=max(1, config.eval.windows * config.eval.lengths[-1] // config.length),
        stride=config.length,
        split="validation",
    )


def seeds(config: CompareConfig) -> list[int]:
    """The seeds of each encoding's runs."""
    return [config.seed + k for k in range(config.seeds)]


def with_encoding(config: CompareConfig, spec: str) -> CompareConfig:
    """The config with a model of this encoding."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, encoding=spec))


def with_rates(optimizer: OptimizerConfig, pair: rate_search.Pair) -> OptimizerConfig:
    """The optimizer with a learning rate, and a multiple of it for parameters of encodings."""
    learning_rate, encoding_rate = pair
    return dataclasses.replace(optimizer, learning_rate=learning_rate, encoding_rate=encoding_rate)


def manifest(config: CompareConfig, source: Source, encodings: dict[str, str]) -> dict:
    """What the report says about the comparison besides its results."""
    name, config = source.corpus.name, with_references(config, [*encodings.values()])
    short = {spec: name for name, spec in encodings.items()}
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
        "baseline": short[config.baseline],
        "reference": short[config.reference],
        "primary": {"protocol": config.protocol, "length": config.eval.lengths[-1]},
        "secondary": {"protocol": config.protocol, "length": config.length},
        "smallest_effect": float(config.smallest_effect),
        "encodings": [
            {"name": n, "spec": s, "folder": folder(s), "checks": checks(config, s)}
            for n, s in encodings.items()
        ],
        "seeds": seeds(config),
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
        **environment(),
        "command": command("compare"),
        "steps": config.steps,
        "batch": config.batch,
        "learning_rate": config.optimizer.learning_rate,
        "encoding_rate": config.optimizer.encoding_rate,
        "rates": [float(rate) for rate in config.rates],
        "encoding_rates": [float(multiple) for multiple in config.encoding_rates],
        "rate_steps": config.rate_steps,
        "rate_rounds": config.rate_rounds,
        "note": note,
    }


def save_encoding(folder: Path, trainer: Trainer, params: Any) -> None:
    """The trained parameters of the encoding of layer 0, for its picture."""
    model = trainer.model(params)
    first = jax.tree.map(lambda x: x[0], model.blocks[0].attention.params)
    leaves = jax.tree.leaves(Params(model.shared[model.which[0]], first))
    arrays: dict[str, Any] = {str(i): np.asarray(x) for i, x in enumerate(leaves)}
    np.savez(folder / "encoding.npz", **arrays)


def count_parameters(trainer: Trainer) -> dict:
    """The number of parameters, and of the encodings' parameters among them."""
    leaves = jax.tree_util.tree_leaves_with_path(trainer.shapes)
    sizes = [(path_name(path), leaf.size) for path, leaf in leaves]
    own = [n for path, n in sizes if is_encoding(path)]
    return {"parameters": sum(n for _, n in sizes), "encoding_parameters": sum(own)}


def train_run(
    config: Config,
    source: Source,
    validation: Source,
    evaluator: Evaluator,
    label: str,
    stop: signals.Stop,
    report: Callable[[Progress], None],
) -> None:
    """Trains one run and writes its `evaluation.json`, unless a signal came.

    Losses during training are those of `validation`, the last ones of `source`.
    """
    folder = Path(config.workdir)
    begin, trainer = time.monotonic(), evaluator.trainer
    result: dict = count_parameters(trainer)
    result["learning_rate"] = config.optimizer.learning_rate
    result["encoding_rate"] = config.optimizer.encoding_rate
    save_json(folder / "config.json", run_metadata(config, source))
    try:
        state = train(config, validation, evaluator, label, stop, report=report)
    except Diverged as error:
        result |= {"status": "diverged", "reason": str(error), **environment()}
        save_json(folder / "evaluation.json", result)
        return
    if stop.signal is not None:
        return
    result |= {"status": "ok", "reason": "", "flops_per_token": flops_per_token(config, trainer)}
    result |= evaluate(evaluator, source, state)
    save_encoding(folder, trainer, state.params)
    rows, _, _ = results.read_metrics(folder / "metrics.jsonl")
    last = next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None)
    result |= {"seconds": time.monotonic() - begin, "train_loss": last, **environment()}
    save_json(folder / "evaluation.json", result)


def flops_per_token(config: Config, trainer: Trainer) -> float:
    """Operations of the matrix products in a training step, counted in the traced program."""
    sizes = config.batch, config.length, trainer.layout, trainer.mesh.size
    masked = tiles(trainer.config, *sizes)
    jaxpr = trainer.trace(config.batch, config.length).jaxpr
    return flops.count(jaxpr, *masked).total / (config.batch * config.length)


def check_resumable(config: CompareConfig, now: dict) -> None:
    """Raises ConfigError if the workdir holds another comparison, naming the difference."""
    path = Path(config.workdir) / "manifest.json"
    if not path.exists():
        return
    saved = json.loads(path.read_text())
    check_same(results.binding(saved), results.binding(now), results.SAME)


def check_questions(config: CompareConfig, source: Source) -> None:
    """Raises ConfigError where no question of a task is as long as the declared ones ask for."""
    task = source.corpus
    for length in (config.length, config.eval.lengths[-1]):
        if isinstance(task, tasks.Task) and task.longest and not task.fills(length + 1):
            raise ConfigError(
                f"eval.lengths={config.eval.lengths}, length={config.length}: rows of {task.name}"
                f" have at most {task.decoded(task.longest) - 1} tokens; pass no more"
            )


def warn_of_reference(about: dict, evaluators: dict[str, Evaluator]) -> None:
    """Says where the reference has no loss, so that no scheme can be compared with it."""
    name = about["reference"]
    for length in sorted({about[question]["length"] for question in ("primary", "secondary")}):
        if not evaluators[name].defined(length):
            text = "reference=%r is not defined at %d tokens: no verdict there; choose another"
            logging.warning(text, name, length)


class MissingRuns:
    """Trains every missing run: encodings in parallel, for each its rates, then its seeds.

    One thread per mesh; threads share the data, and XLA releases Python's lock while it compiles
    and computes.

    Attributes:
      config: of the comparison, with the vocabulary.
      source: data of the runs.
      validation: other text, or questions: for learning rates, and for losses during training.
      evaluators: one per encoding, by its name, on the first mesh.
      meshes: the devices of each concurrent run.
      stop: whether a signal came.
      table: shows the runs.
    """

    def __init__(
        self,
        config: CompareConfig,
        source: Source,
        validation: Source,
        evaluators: dict[str, Evaluator],
        meshes: list[Mesh],
        stop: signals.Stop,
    ):
        self.config, self.source, self.validation = config, source, validation
        self.evaluators, self.meshes, self.stop = evaluators, meshes, stop
        self.programs = {(n, config.steps, meshes[0]): e for n, e in evaluators.items()}
        self.checks = {n: checks(config, e.trainer.config.encoding) for n, e in evaluators.items()}
        jobs = {
            name: [config.rate_steps] * len(pairs)
            + [0 if self._is_checked(name, seed) else config.steps for seed in seeds(config)]
            for name, pairs in self.checks.items()
        }
        self.table = RunTable(jobs, len(meshes))

    def train(self) -> None:
        """Trains until all runs are finished or a signal came; raises the first error of a run."""
        most_runs_first = sorted(self.evaluators, key=lambda name: -len(self.checks[name]))
        with self.table:
            run_in_parallel(self._train_encoding, most_runs_first, self.meshes, self.stop)

    def _train_encoding(self, name: str, mesh: Mesh) -> None:
        """Chooses the rates of an encoding, then trains it with every seed."""
        pair = self._best_rates(name, mesh)
        for seed in seeds(self.config):
            path = Path("runs", self._folder(name), f"seed{seed}")
            run = self._run(name, path, pair, seed=seed)
            if self._is_checked(name, seed):
                self._continue_check(name, pair, run)
            self._finish(name, run, f"{name} seed {seed}", self.source, mesh)
        if self.stop.signal is None:
            self._remove_checkpoints(name)

    def _best_rates(self, name: str, mesh: Mesh) -> rate_search.Pair:
        """Tries all rates of an encoding; returns the best (learning rate, encoding rate)."""
        config, pairs = self.config, self.checks[name]
        if not pairs:
            return rate_search.grid(config, self.evaluators[name].trainer.config.encoding)[0]
        fields: Any = {"steps": config.rate_steps, "eval": check_evaluation(config)}

        def loss(pair: rate_search.Pair) -> float:
            path = results.rate_folder(self._folder(name), *pair)
            run = self._run(name, path, pair, **fields)
            label = f"{name} at {pair[0]:g}" + f" (encoding × {pair[1]:g})" * (pair[1] != 1)
            if pair not in pairs:
                self.table.add(name, config.rate_steps)
            self._finish(name, run, label, self.validation, mesh)
            place = Path(config.workdir), self._folder(name)
            return results.rate_loss(results.read_check(*place, pair, config.seed), config.length)

        losses = rate_search.search(pairs, loss, config.rate_rounds)
        self.checks[name] = [*losses]
        return rate_search.best(losses)

    def _is_checked(self, name: str, seed: int) -> bool:
        """Whether the check of the best rates is this seed's run: same steps, data, weights."""
        config = self.config
        same_run = seed == config.seed and config.rate_steps == config.steps
        return bool(self.checks[name]) and same_run

    def _continue_check(self, name: str, pair: rate_search.Pair, run: Config) -> None:
        """Lets a run begin where the check at its rates ended, so that only evaluation is left.

        A run that was interrupted, or whose check has no checkpoint, trains as any other.
        """
        target = Path(run.workdir)
        check = Path(self.config.workdir) / results.rate_folder(self._folder(name), *pair)
        checkpoints = check / "checkpoints"
        if self.stop.signal is not None or target.exists() or not checkpoints.exists():
            return
        copy = target.with_name(f"{target.name}.copy")  # renamed once it is complete
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(check, copy, ignore=shutil.ignore_patterns("evaluation.json"))
        copy.rename(target)

    def _remove_checkpoints(self, name: str) -> None:
        """Of the checks, once nothing continues from them."""
        for pair in self.checks[name]:
            check = Path(self.config.workdir) / results.rate_folder(self._folder(name), *pair)
            shutil.rmtree(check / "checkpoints", ignore_errors=True)

    def _folder(self, name: str) -> str:
        return folder(self.evaluators[name].trainer.config.encoding)

    def _finish(self, name: str, run: Config, label: str, source: Source, mesh: Mesh) -> None:
        """Trains a run to its end, unless it is finished or a signal comes."""
        if self.stop.signal is not None:
            return
        if is_finished(run):
            self.table.skip(name, label)
            return
        self.table.start(name, label)
        evaluator = self._evaluator(name, run, mesh)
        data = source, self.validation
        train_run(run, *data, evaluator, label, self.stop, self.table.report)
        if self.stop.signal is None:
            self.table.finish(label)

    def _run(self, name: str, path: Path, pair: rate_search.Pair, **fields: Any) -> Config:
        config = self.config
        common = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
        common |= {
            "workdir": str(Path(config.workdir) / path),
            "model": self.evaluators[name].trainer.config,
            "optimizer": with_rates(config.optimizer, pair),
        }
        return Config(**common | fields)

    def _evaluator(self, name: str, run: Config, mesh: Mesh) -> Evaluator:
        """The evaluator of a run; its programs serve all seeds and learning rates."""
        key = name, run.steps, mesh
        if key not in self.programs:  # an encoding is trained by one thread
            self.programs[key] = Evaluator(prepare(run, mesh), run.eval)
        return self.programs[key].with_config(run.eval)


def is_finished(run: Config) -> bool:
    """Whether the run was evaluated."""
    return (Path(run.workdir) / "evaluation.json").exists()


def validation_source(config: CompareConfig, source: Source) -> Source:
    """The data for learning rates and losses during training: other questions, or other text."""
    other = dataclasses.replace(source, question_set=1)
    needed = config.eval.every or any(checks(config, spec) for spec in config.specs())
    if not needed or source.text is None:
        return other
    text = windows(source.corpus, source.tokens, check_evaluation(config))
    return dataclasses.replace(other, text=text)


def main(config: CompareConfig) -> None:
    """Trains missing runs, measures speed and writes the report."""
    workdir = Path(config.workdir)
    with one_line_errors():
        meshes = run_meshes(config)
        encodings = names(config)
        source = open_source(config)
        check_questions(config, source)
        sources = source, validation_source(config, source)
        batches(config, source, meshes[0])  # raises any data error before anything is written
        about = manifest(config, source, encodings)
        check_resumable(config, about)
        config = with_vocab(config, source.vocab)
        evaluators = {
            name: Evaluator(prepare(with_encoding(config, spec), meshes[0]), config.eval)
            for name, spec in encodings.items()
        }
        warn_of_reference(about, evaluators)
        lock = Lock(workdir)
    with contextlib.closing(lock):
        save_json(workdir / "manifest.json", about)
        with signals.Stop() as stop:
            MissingRuns(config, *sources, evaluators, meshes, stop).train()
            stop.leave()
        measure_speed(config, evaluators)
        show(workdir)


def measure_speed(config: CompareConfig, evaluators: dict[str, Evaluator]) -> None:
    """Writes speed.json, unless it is there for these encodings, lengths and repeats."""
    path = Path(config.workdir) / "speed.json"
    subject = model_speed.subject(config, evaluators)
    if not path.exists() or json.loads(path.read_text()).get("of") != subject:
        logging.info("Measuring speed and memory, all schemes in turn")
        save_json(path, model_speed.measure(config, evaluators))


def show(workdir: Path) -> None:
    """Writes the report, and the verdicts to the terminal."""
    logging.info("Writing the report")
    page = comparison_report.build(workdir)
    launch.show(comparison_report.summary(workdir))
    print(f"Report: {page}")


def join(config: CompareConfig, folders: list[str]) -> None:
    """Joins comparisons in the workdir, and writes the report."""
    workdir = Path(config.workdir)
    with one_line_errors():
        join_comparisons.join([local("join", name) for name in folders], workdir)
    show(workdir)

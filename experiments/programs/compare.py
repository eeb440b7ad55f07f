"""The comparison: trains what is missing, measures speed and memory, writes the report."""

import dataclasses
import json
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments.measuring import flops, model_speed
from experiments.measuring.hlo_trip_counts import tiles
from experiments.reporting import comparison_report, join_comparisons, results
from experiments.reporting.plotting import write_csv
from experiments.running import launch, rate_search, trained_run
from experiments.running.configs.compare import CompareConfig
from experiments.running.errors import one_line_errors
from experiments.running.parallel_runs import run_meshes
from experiments.running.provenance import command, environment, save_json, versions
from experiments.running.references import with_references
from experiments.running.run_names import folder, short_names
from experiments.running.sweep_runs import RATES, Job, locked, run_jobs
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
from pe_jax.training.config import Config, EvalConfig
from pe_jax.training.evaluate import Evaluator, windows
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
    """The evaluation of short runs: validation text, the training length, as many targets."""
    return dataclasses.replace(
        config.eval,
        lengths=(config.length,),
        windows=max(1, config.eval.windows * config.eval.lengths[-1] // config.length),
        stride=config.length,
        split="validation",
        kept=(),
    )


def run_path(spec: str, seed: int) -> Path:
    """The folder of a run, in the workdir."""
    return Path("runs", folder(spec), f"seed{seed}")


def seeds(config: CompareConfig) -> list[int]:
    """The seeds of each encoding's runs."""
    return [config.seed + k for k in range(config.seeds)]


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
        "name": results.title(len(encodings), name),
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
        "versions": versions(PACKAGES),
        **environment(),
        "command": command("experiments.compare"),
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
    """Saves the trained parameters of layer 0's encoding, for its picture."""
    model = trainer.model(params)
    first = jax.tree.map(lambda x: x[0], model.blocks[0].attention.params)
    leaves = jax.tree.leaves(Params(model.shared[model.which[0]], first))
    arrays: dict[str, Any] = {str(i): np.asarray(x) for i, x in enumerate(leaves)}
    np.savez(folder / "encoding.npz", **arrays)


def count_parameters(trainer: Trainer) -> dict:
    """The number of parameters, and of the encodings' parameters among them."""
    leaves = jax.tree_util.tree_leaves_with_path(trainer.shapes)
    sizes = [(path_name(path), leaf.size) for path, leaf in leaves]
    encoding_sizes = [n for path, n in sizes if is_encoding(path)]
    return {"parameters": sum(n for _, n in sizes), "encoding_parameters": sum(encoding_sizes)}


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
    """Warns where the reference has no loss, so that no scheme can be compared with it."""
    name = about["reference"]
    for length in sorted({about[question]["length"] for question in ("primary", "secondary")}):
        if not evaluators[name].defined(length):
            text = "reference=%r is not defined at %d tokens: no verdict there; choose another"
            logging.warning(text, name, length)


def planned_steps(config: CompareConfig, spec: str) -> list[int]:
    """The steps of each run of a scheme: of its rates, then of its seeds.

    A seed whose check ran as long continues there, so that only evaluation is left.
    """
    pairs = checks(config, spec)
    seed_steps = [0 if is_checked(config, pairs, seed) else config.steps for seed in seeds(config)]
    return [config.rate_steps] * len(pairs) + seed_steps


def is_checked(config: CompareConfig, pairs: list[rate_search.Pair], seed: int) -> bool:
    """Whether the check of the best rates is this seed's run: same steps, data, weights."""
    return bool(pairs) and seed == config.seed and config.rate_steps == config.steps


class SchemeRuns:
    """The runs of a scheme: chooses its rates, then trains every seed.

    Attributes:
      config: of the comparison, with the vocabulary.
      sources: data of the runs; and other text, or questions, for choosing learning rates and for
        losses during training.
      model: with the scheme.
      job: runs them; its name is the scheme's.
      programs: evaluators, by steps and devices; each serves all seeds and learning rates.
    """

    def __init__(
        self, config: CompareConfig, sources: tuple[Source, Source], evaluator: Evaluator, job: Job
    ):
        self.config, self.sources, self.job = config, sources, job
        self.model = evaluator.trainer.config
        self.programs = {(config.steps, evaluator.trainer.mesh): evaluator}

    def train(self) -> None:
        """Trains until all runs are finished or a signal came."""
        source, validation = self.sources
        tried = self._try_rates(validation)
        pair = rate_search.best(tried)
        checked = checks(self.config, self.model.encoding)
        for seed in seeds(self.config):
            path = run_path(self.model.encoding, seed)
            run = self._config(path, pair, seed=seed)
            if is_checked(self.config, checked, seed):
                self._continue_check(pair, run)
            self._finish(run, f"{self.job.name} seed {seed}", source)
        if checked and self.job.stop.signal is None:
            for pair in tried:  # nothing continues from their checkpoints any more
                shutil.rmtree(self._check_folder(pair) / "checkpoints", ignore_errors=True)

    def _try_rates(self, validation: Source) -> dict[rate_search.Pair, float]:
        """(learning rate, encoding rate) → loss; a single pair is not trained: 0."""
        config, name = self.config, self.job.name
        pairs = rate_search.grid(config, self.model.encoding)
        if len(pairs) == 1:
            return {pairs[0]: 0.0}
        fields: Any = {"steps": config.rate_steps, "eval": check_evaluation(config)}

        def loss(pair: rate_search.Pair) -> float:
            encoding = folder(self.model.encoding)
            run = self._config(results.rate_folder(encoding, *pair), pair, **fields)
            label = f"{name} at {pair[0]:g}" + f" (encoding × {pair[1]:g})" * (pair[1] != 1)
            self._finish(run, label, validation)
            check = results.read_check(Path(config.workdir), encoding, pair, config.seed)
            return results.rate_loss(check, config.length)

        return self.job.search(pairs, loss, config.rate_rounds, config.rate_steps)

    def _check_folder(self, pair: rate_search.Pair) -> Path:
        return Path(self.config.workdir) / results.rate_folder(folder(self.model.encoding), *pair)

    def _continue_check(self, pair: rate_search.Pair, run: Config) -> None:
        """Lets a run begin where the check at its rates ended, so that only evaluation is left.

        A run that was interrupted, or whose check has no checkpoint, trains as any other.
        """
        target, check = Path(run.workdir), self._check_folder(pair)
        missing = not (check / "checkpoints").exists()
        if self.job.stop.signal is not None or target.exists() or missing:
            return
        copy = target.with_name(f"{target.name}.copy")  # renamed once it is complete
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(check, copy, ignore=shutil.ignore_patterns("evaluation.json"))
        copy.rename(target)

    def _finish(self, run: Config, label: str, source: Source) -> None:
        """Trains a run to its end, unless it is finished or a signal comes."""
        evaluation = Path(run.workdir) / "evaluation.json"
        self.job.run(label, [evaluation], lambda: self.train_run(run, label, source))

    def train_run(self, run: Config, label: str, source: Source) -> None:
        """Trains one run and writes its `evaluation.json`, unless a signal came.

        Losses during training are on the second of the sources, the final ones on `source`.
        """
        workdir, evaluator, job = Path(run.workdir), self.evaluator(run), self.job
        begin, trainer = time.monotonic(), evaluator.trainer
        result: dict = count_parameters(trainer)
        result["learning_rate"] = run.optimizer.learning_rate
        result["encoding_rate"] = run.optimizer.encoding_rate
        save_json(workdir / "config.json", run_metadata(run, source))
        try:
            during, report = self.sources[1], job.table.report
            state = train(run, during, evaluator, label, job.stop, report=report)
        except Diverged as error:
            result |= {"status": "diverged", "reason": str(error), **environment()}
            save_json(workdir / "evaluation.json", result)
            return
        if job.stop.signal is not None:
            return
        result |= {"status": "ok", "reason": "", "flops_per_token": flops_per_token(run, trainer)}
        result |= evaluate(evaluator, source, state)
        save_encoding(workdir, trainer, state.params)
        rows, _, _ = results.read_metrics(workdir / "metrics.jsonl")
        last = next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None)
        result |= {"seconds": time.monotonic() - begin, "train_loss": last, **environment()}
        save_json(workdir / "evaluation.json", result)

    def _config(self, path: Path, pair: rate_search.Pair, **fields: Any) -> Config:
        config, rates = self.config, dict(zip(RATES, pair, strict=True))
        common = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
        common |= {
            "workdir": str(Path(config.workdir) / path),
            "model": self.model,
            "optimizer": dataclasses.replace(config.optimizer, **rates),
        }
        return Config(**common | fields)

    def evaluator(self, run: Config) -> Evaluator:
        """The evaluator of a run, with the programs of others of as many steps."""
        key = run.steps, self.job.mesh
        if key not in self.programs:
            self.programs[key] = Evaluator(prepare(run, self.job.mesh), run.eval)
        return self.programs[key].with_config(run.eval)


def train_missing(
    config: CompareConfig,
    sources: tuple[Source, Source],
    evaluators: dict[str, Evaluator],
    meshes: list[Mesh],
) -> None:
    """Trains every missing run: schemes in parallel, those with most runs first.

    One thread per mesh; threads share the data, and XLA releases Python's lock while it compiles
    and computes.
    """
    jobs = {n: planned_steps(config, e.trainer.config.encoding) for n, e in evaluators.items()}
    most_runs_first = sorted(jobs, key=lambda name: -len(jobs[name]))
    run_jobs(
        {name: jobs[name] for name in most_runs_first},
        lambda job: SchemeRuns(config, sources, evaluators[job.name], job).train(),
        meshes,
    )


def validation_source(config: CompareConfig, source: Source) -> Source:
    """The data for learning rates and losses during training: other questions, or other text."""
    other = dataclasses.replace(source, question_set=1)
    needed = config.eval.every or any(checks(config, spec) for spec in config.specs())
    if not needed or source.text is None:
        return other
    text = windows(source.corpus, source.tokens, check_evaluation(config))
    return dataclasses.replace(other, text=text)


def main(config: CompareConfig, last_look: bool = False) -> None:
    """Trains missing runs, measures speed and writes the report.

    With `last_look` nothing is trained: finished runs are evaluated on the files that
    `config.eval.kept` names, and the manifest counts the look.
    """
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
        models = zip(encodings, config.models(), strict=True)
        configs = {name: dataclasses.replace(config, model=model) for name, model in models}
        evaluators = {n: Evaluator(prepare(c, meshes[0]), c.eval) for n, c in configs.items()}
        warn_of_reference(about, evaluators)
        kept = kept_text(config, source) if last_look else None
        about["looks"] = looks(config)
        if kept is not None:
            about["looks"].append({"command": about["command"], "windows": len(kept)})
    with locked(workdir, "manifest.json", about):
        if kept is not None:
            return look(config, evaluators, kept)
        train_missing(config, sources, evaluators, meshes)
        measure_speed(config, evaluators)
        show(workdir)


def looks(config: CompareConfig) -> list[dict]:
    """The looks at the kept files so far, from the manifest."""
    path = Path(config.workdir) / "manifest.json"
    return json.loads(path.read_text()).get("looks", []) if path.exists() else []


def kept_text(config: CompareConfig, source: Source) -> np.ndarray:
    """Windows of the kept files.

    Raises:
      ConfigError: no files are kept, or a run is missing.
    """
    if not config.eval.kept:
        raise ConfigError("eval.kept=(): no files were kept for a last look; name them before runs")
    for path in (run_path(spec, seed) for spec in config.specs() for seed in seeds(config)):
        if not Path(config.workdir, path, results.EVALUATION).exists():
            raise ConfigError(
                f"workdir={config.workdir!r}: {path} is not finished; finish it first"
            )
    _, kept = source.corpus.apart(config.eval.split, config.eval.kept)
    return windows(kept, source.tokens, dataclasses.replace(config.eval, kept=()))


def look(config: CompareConfig, evaluators: dict[str, Evaluator], text: np.ndarray) -> None:
    """Evaluates finished runs on the kept files; shows the verdicts, writes the losses."""
    workdir = Path(config.workdir)
    for name, evaluator in evaluators.items():
        for seed in seeds(config):
            path = workdir / run_path(evaluator.trainer.config.encoding, seed)
            saved = json.loads((path / results.EVALUATION).read_text())
            result = {field: saved[field] for field in ("status", "reason", "parameters")}
            if saved["status"] == "ok":
                state = trained_run.restore(path, evaluator.trainer)
                result |= evaluator.by_length(state.params, text)
            save_json(path / results.LAST_LOOK, {**result, **environment()})
            logging.info("%s seed %d: looked at the kept files", name, seed)
    looked = results.read(workdir, results.LAST_LOOK)
    head, *lines = looked.table()
    write_csv(workdir / "last_look.csv", head, lines)
    launch.show(comparison_report.summary(looked))
    print(f"Losses of the kept files: {workdir / 'last_look.csv'}")


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
    launch.show(comparison_report.summary(results.read(workdir)))
    print(f"Report: {page}")


def join(config: CompareConfig, folders: list[str]) -> None:
    """Joins comparisons in the workdir, and writes the report."""
    workdir = Path(config.workdir)
    with one_line_errors():
        join_comparisons.join([local("join", name) for name in folders], workdir)
    show(workdir)

"""The comparison: trains what is missing, measures speed and memory, writes the report."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh

from experiments.measuring import flops, model_speed
from experiments.measuring.hlo_trip_counts import tiles
from experiments.reporting import results
from experiments.reporting.comparison import report
from experiments.running.command import launch
from experiments.running.configs.compare import CompareConfig
from experiments.running.files import manifest, own_code, table
from experiments.running.files.provenance import environment, save_json
from experiments.running.files.run_names import folder, short_names
from experiments.running.process.devices import run_meshes
from experiments.running.process.errors import one_line_errors
from experiments.running.schedule import driver, rate_search
from experiments.running.schedule.rate_search import RATES, Pair
from experiments.running.schedule.work import Run, Runs, Work, Worker, failing
from experiments.running.training import trained_run
from experiments.running.training.training_loop import (
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
from pe_jax.encodings.windowed import attention_layers
from pe_jax.training import data, tasks
from pe_jax.training.checkpoint import check_same
from pe_jax.training.config import Config, EvalConfig
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.optimizer import is_encoding
from pe_jax.training.sharding import path_name
from pe_jax.training.step import Trainer
from pe_jax.validation import refuse


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


def described(source: Source) -> dict[str, Any]:
    """What a manifest says of the corpus."""
    return {
        "name": source.corpus.name,
        "digest": source.corpus.digest,
        "tokens": source.tokens and source.tokens.digest,
        "describe": source.corpus.describe(),
        "warning": source.corpus.warning,
    }


def save_encoding(folder: Path, trainer: Trainer, params: Any) -> None:
    """Saves the trained parameters of the first attention's encoding, for its picture."""
    if jax.process_count() > 1:  # each may have a part
        params = jax.jit(lambda x: x, out_shardings=trainer.shardings.step)(params)
    model = trainer.model(params)
    slot = next(iter(attention_layers(model.encodings)), 0)
    first = jax.tree.map(lambda x: x[0], model.blocks[slot].attention.params)
    leaves = jax.tree.leaves(Params(model.shared[model.which[slot]], first))
    if jax.process_index() > 0:
        return
    arrays: dict[str, Any] = {str(i): np.asarray(x) for i, x in enumerate(leaves)}
    np.savez(folder / "encoding.npz", **arrays)


def count_parameters(trainer: Trainer) -> dict:
    """The number of parameters, and of the encodings' parameters among them."""
    leaves = jax.tree_util.tree_leaves_with_path(trainer.shapes)
    sizes = [(path_name(path), leaf.size) for path, leaf in leaves]
    encoding_sizes = [n for path, n in sizes if is_encoding(path)]
    return {"parameters": sum(n for _, n in sizes), "encoding_parameters": sum(encoding_sizes)}


def traced_flops_per_token(config: Config, trainer: Trainer) -> float:
    """Operations of the matrix products in a training step, counted in the traced program."""
    sizes = config.batch, config.length, trainer.layout, trainer.mesh.size
    masked = tiles(trainer.config, *sizes)
    jaxpr = trainer.trace(config.batch, config.length).jaxpr
    return flops.count(jaxpr, *masked).total / (config.batch * config.length)


def looks(config: CompareConfig, source: Source) -> list[dict]:
    """The looks at the kept files so far, from the manifest in the workdir.

    Raises:
      ConfigError: it is another comparison's, naming the difference.
    """
    workdir = Path(config.workdir)
    if not (workdir / manifest.NAME).exists():
        return []
    saved = manifest.read(workdir)
    digests = {"corpus": source.corpus.digest, "tokens": source.tokens and source.tokens.digest}
    digests["code"] = own_code.digests(config.encodings)
    check_same(saved.binding, {**dataclasses.asdict(config), **digests}, results.SAME)
    return [*saved.looks]


def check_questions(config: CompareConfig, source: Source) -> None:
    """Raises ConfigError where no question of a task is as long as the declared ones ask for."""
    task = source.corpus
    for length in (config.length, config.eval.lengths[-1]):
        if isinstance(task, tasks.Task) and task.longest and not task.fills(length + 1):
            most = task.decoded(task.longest) - 1
            fix = f"rows of {task.name} have at most {most} tokens; pass no more"
            refuse(f"eval.lengths={config.eval.lengths}, length", config.length, fix)


class SchemeRuns:
    """The runs of a scheme: chooses its rates, then trains every seed.

    Attributes:
      sources: data of the runs; and other text, or questions, for choosing learning rates and for
        losses during training.
      pairs: (learning rate, encoding rate) to try; one is not tried but used.
      programs: evaluators, by steps and devices; each serves all seeds and learning rates.
      unsure: whether the run of a rate has failed.
    """

    def __init__(
        self,
        config: CompareConfig,
        sources: tuple[Source, ...],
        name: str,
        pairs: list[Pair],
        evaluator: Evaluator,
    ):
        self.config, self.sources, self.name, self.pairs = config, sources, name, pairs
        self.model = evaluator.trainer.config
        self.programs = {(config.steps, evaluator.trainer.mesh): evaluator}
        self.unsure = False

    @property
    def work(self) -> Work:
        """All runs; it comes to whether one of them failed."""
        steps = [self.config.rate_steps] * len(self.pairs) * (len(self.pairs) > 1)
        steps += [self._steps(seed) for seed in self.config.every_seed]
        return Work(self.name, steps, self())

    def _is_checked(self, seed: int) -> bool:
        """Whether the check of the best rates is this seed's run: same steps, data, weights."""
        config = self.config
        same = seed == config.seed and config.rate_steps == config.steps
        return same and len(self.pairs) > 1

    def _steps(self, seed: int) -> int:
        """The steps of a seed's run; where its check ran as long, only evaluation is left."""
        return 0 if self._is_checked(seed) else self.config.steps

    def __call__(self) -> Runs[bool]:
        """The runs: those that try rates, then all seeds."""
        losses, pair = {}, self.pairs[0]
        if len(self.pairs) > 1:
            losses = yield from rate_search.search(self.pairs, self._tried, self.config.rate_rounds)
            pair = rate_search.best(losses)
        runs = [self._seed(seed, pair) for seed in self.config.every_seed]
        failed = any(result.get("status") == "failed" for result in (yield runs))
        if not self.unsure:
            for pair in losses:  # nothing continues from their checkpoints any more
                shutil.rmtree(self._check_folder(pair) / "checkpoints", ignore_errors=True)
        return failed

    def _seed(self, seed: int, pair: Pair) -> Run:
        """The run of a seed at a pair of rates."""
        run = self._config(run_path(self.model.encoding, seed), pair, seed=seed)
        check = self._check_folder(pair) if self._is_checked(seed) else None
        label = f"{self.name} seed {seed}"
        planned = self._run(run, label, self.sources[0], self._steps(seed), check)
        if not self.unsure:
            return planned
        # Tried again, the rate that failed may be the best: seeds would not share one.
        train = functools.partial(failing, "the run of a rate failed: none is chosen")
        return planned._replace(train=train)

    def _tried(self, pairs: list[Pair]) -> Runs[list[float]]:
        """The short runs at pairs of rates, which come to their losses."""
        config, runs = self.config, []
        fields: Any = {"steps": config.rate_steps, "eval": check_evaluation(config)}
        for pair in pairs:
            path = results.rate_folder(folder(self.model.encoding), *pair)
            label = f"{self.name} at {pair[0]:g}" + f" (encoding × {pair[1]:g})" * (pair[1] != 1)
            run = self._config(path, pair, **fields)
            runs.append(self._run(run, label, self.sources[1], config.rate_steps))
        found = [results.evaluated(config.seed, result) for result in (yield runs)]
        self.unsure |= any(run.status == "failed" for run in found)
        return [results.rate_loss(run, config.length) for run in found]

    def _check_folder(self, pair: Pair) -> Path:
        return Path(self.config.workdir) / results.rate_folder(folder(self.model.encoding), *pair)

    def _continue(self, check: Path, target: Path) -> None:
        """Lets a run begin where the check at its rates ended, so that only evaluation is left.

        A run that was interrupted, or whose check has no checkpoint, trains as any other.
        """
        if target.exists() or not (check / "checkpoints").exists():
            return
        copy = target.with_name(f"{target.name}.copy")  # renamed once it is complete
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(check, copy, ignore=shutil.ignore_patterns("evaluation.json"))
        copy.rename(target)

    def _run(
        self, run: Config, label: str, source: Source, steps: int, check: Path | None = None
    ) -> Run:
        train = functools.partial(self.train_run, run, source, check)
        return Run(label, Path(run.workdir, results.EVALUATION), steps, train)

    def train_run(
        self, run: Config, source: Source, check: Path | None, worker: Worker
    ) -> dict | None:
        """Trains one run, and returns its evaluation; None if a signal came.

        Losses during training are on the second of the sources, the final ones on `source`. It
        continues a `check` of its rates, if there is one.
        """
        is_first = jax.process_index() == 0
        if check is not None and is_first:
            self._continue(check, Path(run.workdir))
        workdir, key = Path(run.workdir), (run.steps, worker.mesh)
        if key not in self.programs:
            self.programs[key] = Evaluator(prepare(run, worker.mesh), run.eval)
        evaluator = self.programs[key].with_config(run.eval).heeding(worker.stop.check)
        result: dict = count_parameters(evaluator.trainer)
        result["learning_rate"] = run.optimizer.learning_rate
        result["encoding_rate"] = run.optimizer.encoding_rate
        if is_first:
            save_json(workdir / "config.json", run_metadata(run, source))
        try:
            state = train(run, self.sources[1], evaluator, worker)
        except Diverged as error:
            return {**result, "status": "diverged", "reason": str(error)}
        if worker.stop.signal is not None:
            return None
        flops = traced_flops_per_token(run, evaluator.trainer)
        result |= {"status": "ok", "reason": "", "flops_per_token": flops}
        result |= evaluate(evaluator, source, state)
        save_encoding(workdir, evaluator.trainer, state.params)
        rows, _, _ = results.read_metrics(workdir / "metrics.jsonl")
        last = next((row["loss"] for row in reversed(rows) if row["loss"] is not None), None)
        return {**result, "train_loss": last}

    def _config(self, path: Path, pair: Pair, **fields: Any) -> Config:
        config, rates = self.config, dict(zip(RATES, pair, strict=True))
        common = {f.name: getattr(config, f.name) for f in dataclasses.fields(Config)}
        common |= {
            "workdir": str(Path(config.workdir) / path),
            "model": self.model,
            "optimizer": dataclasses.replace(config.optimizer, **rates),
        }
        return Config(**common | fields)


class Opened(NamedTuple):
    """A comparison whose data are open and whose models are built; nothing is written yet.

    `sources` are those of `SchemeRuns`, `grids` are by encoding, `evaluators` by scheme's name on
    the first of the meshes, and the manifest has the looks so far.
    """

    config: CompareConfig
    sources: tuple[Source, ...]
    grids: dict[str, list[Pair]]
    evaluators: dict[str, Evaluator]
    manifest: dict
    meshes: list[Mesh]


def opened(config: CompareConfig) -> Opened:
    """Checks all that can be checked before anything compiles, on one line each."""
    config = config.resolved()
    short = check_evaluation(config)
    grids = {spec: rate_search.grid(config, spec) for spec in config.encodings}
    needed = config.eval.every or any(len(pairs) > 1 for pairs in grids.values())
    meshes = run_meshes(config)
    sources = open_source(config, config.eval, short if needed else config.eval)
    sized = with_vocab(config, sources[0].vocab)
    batches(config, sources[0], meshes[0])  # raises any data error before anything is written
    check_questions(config, sources[0])
    about = manifest.saved(config, described(sources[0]), grids, looks(config, sources[0]))
    names, evaluators = short_names(config.encodings), {}
    for spec, name in names.items():
        model = dataclasses.replace(sized.model, encoding=spec)
        trainer = prepare(dataclasses.replace(sized, model=model), meshes[0])
        evaluators[name] = Evaluator(trainer, config.eval)
    reference = names[config.reference]
    for length in sorted({config.length, config.eval.lengths[-1]}):
        if not evaluators[reference].defined(length):
            text = "reference=%r is not defined at %d tokens: no verdict there; choose another"
            logging.warning(text, reference, length)
    return Opened(sized, sources, grids, evaluators, about, meshes)


def main(config: CompareConfig) -> None:
    """Trains missing runs, measures speed and writes the report."""
    workdir, given = Path(config.workdir), config
    with one_line_errors():
        config, sources, grids, evaluators, about, meshes = opened(config)
    with driver.opened(main, given, workdir / manifest.NAME, about, meshes) as runs:
        works = [
            SchemeRuns(config, sources, name, grids[e.trainer.config.encoding], e).work
            for name, e in evaluators.items()
        ]
        failed = runs.run(sorted(works, key=lambda work: -len(work.steps)))
        timed = {name: e for name, e in evaluators.items() if not failed[name]}
        if timed:
            runs.run([speed(config, timed)])
        show(workdir)


def show(workdir: Path) -> None:
    """Writes the report, and the verdicts to the terminal."""
    logging.info("Writing the report")
    found = results.read(workdir)
    page = report.build(found)
    launch.show(report.summary(found))
    print(f"Report: {page}")


def speed(config: CompareConfig, evaluators: dict[str, Evaluator]) -> Work:
    """Writes speed.json, unless it is there for these encodings, lengths and repeats.

    One run, for all schemes are timed in turn, on one device. Encodings of which a run failed are
    not among them.
    """
    path = Path(config.workdir, "speed.json")
    specs = {name: e.trainer.config.encoding for name, e in evaluators.items()}
    lengths, repeats = config.timing_lengths, config.timing_repeats
    subject = {"specs": specs, "lengths": list(lengths), "repeats": repeats}

    def measure(worker: Worker) -> dict | None:
        logging.info("Measuring speed and memory, all schemes in turn")
        sizes = config.batch, config.length, lengths, repeats
        timings = model_speed.measure(evaluators, *sizes, lambda _: worker.stop.signal is None)
        return None if worker.stop.signal is not None else {**timings, "of": subject}

    def runs() -> Runs[None]:
        if path.exists() and json.loads(path.read_text()).get("of") != subject:
            path.unlink()
        yield [Run("speed and memory", path, 0, measure)]

    return Work("speed", [0], runs())


def look(config: CompareConfig) -> None:
    """Evaluates finished runs on the files that `config.eval.kept` names, and nothing else.

    It shows the verdicts, writes the losses, and counts the look in the manifest.
    """
    workdir = Path(config.workdir)
    with one_line_errors():
        if config.cluster:
            refuse("cluster", config.cluster, "a last look is one process; leave it out")
        config, (source, _), _, evaluators, about, meshes = opened(config)
        text = kept_text(config, source)
        about["looks"].append({"command": about["command"], "windows": len(text)})
    with driver.opened(main, config, workdir / manifest.NAME, about, meshes):
        for name, evaluator in evaluators.items():
            for seed in config.every_seed:
                path = workdir / run_path(evaluator.trainer.config.encoding, seed)
                saved = json.loads((path / results.EVALUATION).read_text())
                result = {field: saved[field] for field in ("status", "reason", "parameters")}
                if saved["status"] == "ok":
                    state = trained_run.restore(path, evaluator.trainer)
                    result |= evaluator.by_length(state.params, text)
                save_json(path / results.LAST_LOOK, {**result, **environment()})
                logging.info("%s seed %d: looked at the kept files", name, seed)
        looked = results.read(workdir, results.LAST_LOOK)
        table.write(workdir / "last_look.csv", looked.rows())
        launch.show(report.summary(looked))
        print(f"Losses of the kept files: {workdir / 'last_look.csv'}")


def kept_text(config: CompareConfig, source: Source) -> np.ndarray:
    """Windows of the kept files.

    Raises:
      ConfigError: no files are kept, or a run is missing.
    """
    if not config.eval.kept:
        refuse("eval.kept", (), "no files were kept for a last look; name them before runs")
    for path in (run_path(spec, seed) for spec in config.encodings for seed in config.every_seed):
        if not Path(config.workdir, path, results.EVALUATION).exists():
            refuse("workdir", config.workdir, f"{path} is not finished; finish it first")
    _, kept = source.corpus.apart(config.eval.split, config.eval.kept)
    return data.windows(kept, source.tokens, dataclasses.replace(config.eval, kept=()))

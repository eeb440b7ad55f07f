"""Longer contexts: applies each method to each trained run, shows and writes the results."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import Mesh

from experiments.reporting import extension_report, plotting
from experiments.running import launch, longrope_search, signals, trained_run
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import run_in_parallel, run_meshes
from experiments.running.provenance import command, environment, environments, save_json
from experiments.running.references import with_references
from experiments.running.run_names import folder, short_names
from experiments.running.run_table import RunTable
from experiments.running.sweep_configs import ExtendConfig
from experiments.running.training_loop import (
    Diverged,
    Source,
    batches,
    evaluate,
    open_source,
    prepare,
    train,
)
from pe_jax.encodings import Encoding, Sum, parse
from pe_jax.encodings.base import Dims, abstract_terms, adds_to_input
from pe_jax.encodings.lerope import LeRoPE
from pe_jax.encodings.registry import format_encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.encodings.terms import Rotation
from pe_jax.training import data, manifest, passkeys, sharding
from pe_jax.training.checkpoint import BINDING, check_same
from pe_jax.training.config import Config
from pe_jax.training.evaluate import Evaluator
from pe_jax.training.step import State, Trainer
from pe_jax.validation import ConfigError

SHARED = (*(field for field in BINDING if field != "seed"), "steps")  # the same in all runs
BINDS = (
    *("factor", "steps", "batch", "optimizer", "eval", "depths", "trials", "search", "base"),
    "reference",
)
OTHER_DATA = 2**30  # added to a run's seed, so that the fine-tune gets other rows


class Base(NamedTuple):
    """A trained run; `digest` is that of its last checkpoint, `saved` its config.json."""

    folder: Path
    config: Config
    saved: dict
    digest: str


def read_base(folder: Path) -> Base:
    """Reads a finished run of a RoPE model on text.

    Raises:
      ConfigError: the folder does not hold one.
    """
    config, saved = trained_run.read(folder, "runs")
    with trained_run.last(folder) as (checkpoints, step):
        digest = hashlib.sha256((checkpoints.path(step) / manifest.NAME).read_bytes()).hexdigest()
    where = f"runs={str(folder)!r}"
    if step != config.steps:
        raise ConfigError(f"{where}: is at step {step} of {config.steps}; finish it first")
    if config.data.startswith("synthetic:") or config.positions != "contiguous":
        what = f"data={config.data!r}, positions={config.positions!r}"
        raise ConfigError(f"{where}: {what}; use a run on text at contiguous positions")
    kinds = {type(encoding) for encoding in config.model.pattern}
    scaled = any(getattr(encoding, "scaling", None) for encoding in config.model.pattern)
    if RoPE not in kinds or not kinds <= {RoPE, Encoding} or scaled:
        what = f"model.encoding={config.model.encoding!r}"
        raise ConfigError(f"{where}: {what} is not plain RoPE; train with rope, or rope and nope")
    return Base(folder, config, saved, digest)


def check_comparable(bases: list[Base]) -> None:
    """Raises ConfigError unless the runs differ in their seed only."""
    first = bases[0]
    for other in bases[1:]:
        for field in SHARED:
            ours, theirs = first.saved.get(field), other.saved.get(field)
            if ours != theirs:
                raise ConfigError(
                    f"runs: {other.folder} has {field}={theirs!r}, {first.folder} {ours!r}; compare"
                    " runs that differ in their seed only"
                )
    seeds = [base.config.seed for base in bases]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"runs: their seeds are {seeds}; pass each once")


def target(config: ExtendConfig, length: int) -> int:
    """The target length.

    Raises:
      ConfigError: it is not an integer, or it or the trained length is not evaluated.
    """
    target_length = config.factor * length
    if target_length != int(target_length):
        raise ConfigError(f"factor={config.factor}: times the run's length={length} must be whole")
    for needed in (length, int(target_length)):
        if needed not in config.eval.lengths:
            raise ConfigError(
                f"eval.lengths={config.eval.lengths}: add {needed}; the run's length is {length},"
                f" the target {int(target_length)}"
            )
    return int(target_length)


class Placeholders(NamedTuple):
    """Values of the names in braces in the encodings of a config, for one layer's RoPE.

    Attributes:
      factor: the target length over the trained length.
      length: the trained length.
      window: half of the trained length.
      group: the least group with which Self-Extend, with that window, reaches the target.
      chunk: three quarters of the trained length, dual chunk attention's chunk size.
      local: a sixteenth of it, at least 1, its local size.
      ones: one 1.0 per frequency.
      searched: the factors of LongRoPE's search; ones before it.
    """

    factor: float
    length: int
    window: int
    group: int
    chunk: int
    local: int
    ones: tuple[float, ...]
    searched: tuple[float, ...]

    @classmethod
    def of(
        cls, rope: RoPE, config: ExtendConfig, base: Config, searched: tuple[float, ...] | None
    ) -> "Placeholders":
        """The values for a layer of a trained run."""
        window = max(base.length // 2, 1)
        beyond_window = config.factor * base.length - window
        group = math.ceil(beyond_window / max(base.length - window, 1))
        ones = (1.0,) * rope.frequencies(base.model.dims.head_dim).size
        chunk, local = max(base.length * 3 // 4, 2), max(base.length // 16, 1)
        sizes = config.factor, base.length, window, group, chunk, local
        return cls(*sizes, ones, searched or ones)

    def fill(self, spec: str) -> str:
        """The spec with the values filled in."""
        for name, value in self._asdict().items():
            spec = spec.replace(f"{{{name}}}", repr(value))
        return spec


def replacement(spec: str, rope: RoPE, placeholders: Placeholders, dims: Dims) -> Encoding:
    """What replaces `rope`: fields that the spec leaves at their defaults are copied from it.

    Raises:
      ConfigError: the spec cannot be read, or adds something else than rotations.
    """
    spec = placeholders.fill(spec)
    encoding, *others = parse(spec)
    rotates = all(isinstance(term, Rotation) for term in abstract_terms(encoding, dims))
    if others or not rotates or adds_to_input(encoding, dims):
        fix = "pass nope or what rotates, as rope(…), dual_chunk(…) or rope+temperature"
        raise ConfigError(f"encodings: {spec!r} is not for a trained RoPE; {fix}")
    keeps = any(isinstance(part, LeRoPE) for part in parts_of(encoding))
    if isinstance(rope, LeRoPE) and not keeps:
        fix = "the run's frequencies are learned; pass lerope(…)"
        raise ConfigError(f"encodings: {spec!r} drops parameters: {fix}")
    parts = [
        _with_fields_of(rope, part) if isinstance(part, RoPE) else part
        for part in parts_of(encoding)
    ]
    return parts[0] if len(parts) == 1 else Sum(tuple(parts))


def _with_fields_of(rope: RoPE, part: RoPE) -> RoPE:
    """The part with RoPE's fields, where it has their defaults, from `rope`."""
    fields = dataclasses.fields(RoPE)
    unset = [f.name for f in fields if getattr(part, f.name) == f.default]
    return dataclasses.replace(part, **{name: getattr(rope, name) for name in unset})


def parts_of(encoding: Encoding) -> tuple[Encoding, ...]:
    """Those of a sum, or the encoding alone."""
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def drops_rope(pattern: str) -> bool:
    """Whether no layer has RoPE any more: DroPE (Gelberg et al., arXiv 2512.12167)."""
    every = [part for encoding in parse(pattern) for part in parts_of(encoding)]
    return not any(isinstance(part, RoPE) for part in every)


def extended(
    spec: str, config: ExtendConfig, base: Config, searched: tuple[float, ...] | None = None
) -> str:
    """The run's encodings, all layers, with the method instead of each RoPE."""
    layers = [
        replacement(
            spec, encoding, Placeholders.of(encoding, config, base, searched), base.model.dims
        )
        if isinstance(encoding, RoPE)
        else encoding
        for encoding in base.model.pattern
    ]
    return ",".join(map(format_encoding, layers))


def names(config: ExtendConfig) -> dict[str, str]:
    """Short name → spec; `rope` alone is the unchanged model."""
    short = short_names(["rope", *config.encodings])
    return {short[spec]: spec for spec in config.encodings}


def longer(config: ExtendConfig, base: Base, encoding: str, folder: Path) -> Config:
    """The run that continues a trained one at the target length.

    Where RoPE is dropped it goes on at the trained length, as in DroPE, with more rows: each method
    reads as many tokens.
    """
    length, batch = target(config, base.config.length), config.batch
    if drops_rope(encoding):
        length, batch = base.config.length, batch * length // base.config.length
    return dataclasses.replace(
        base.config,
        workdir=str(folder),
        seed=(base.config.seed + OTHER_DATA) % 2**31,
        length=length,
        batch=batch,
        microbatches=1,
        steps=max(config.steps, 1),  # 0 disables training
        log_every=config.log_every,
        save_every=config.save_every,
        model=dataclasses.replace(base.config.model, encoding=encoding),
        optimizer=config.optimizer,
        mesh=config.mesh,
        eval=config.eval,
    )


def questions(config: ExtendConfig, source: Source) -> dict[int, tuple | None]:
    """By length, questions for passkeys; None where a length is too short for one."""
    by_length: dict[int, tuple | None] = {}
    for length in config.eval.lengths:
        by_length[length] = None
        if length + 1 >= passkeys.room(source.tokens):
            text = data.eval_windows(
                source.corpus,
                source.tokens,
                split=config.eval.split,
                count=config.trials,
                length=length + 1,
                field="trials",
            )
            by_length[length] = passkeys.questions(text, source.tokens, config.depths, seed=length)
    return by_length


def answers(config: ExtendConfig, evaluator: Evaluator, params, questions: dict) -> dict:
    """By length and depth, the fraction of passkeys and of their tokens that are right.

    Each token is the likeliest after the question and the true answer so far, so that an answer is
    right if greedy decoding gives it.
    """
    by_length: dict = {}
    for length, rows_and_targets in questions.items():
        by_length[str(length)] = None
        if rows_and_targets is not None:
            rows, target = rows_and_targets
            _, right = evaluator.run(params, rows)
            exact = (right | ~target).all(1).reshape(config.depths, -1).mean(1)
            tokens = ((right & target).sum(1) / target.sum(1)).reshape(config.depths, -1).mean(1)
            by_length[str(length)] = {"exact": exact.tolist(), "tokens": tokens.tolist()}
    return by_length


class Methods:
    """Applies every method to every run: methods in parallel, runs one after another.

    Attributes:
      parts: "plain", and "tuned" if there is a fine-tune.
    """

    def __init__(
        self,
        config: ExtendConfig,
        bases: list[Base],
        source: Source,
        passkeys: dict,
        stop: signals.Stop,
    ):
        self.config, self.bases, self.source, self.stop = config, bases, source, stop
        self.passkeys = passkeys
        self.parts = ("plain", "tuned") if config.steps else ("plain",)

    def searched_factors(self, mesh: Mesh) -> tuple[float, ...] | None:
        """LongRoPE's factors, searched once on the first run; None if a signal came.

        All results in a workdir share them, also after runs are added.
        """
        path = Path(self.config.workdir) / "factors.json"
        if not path.exists():
            tried = self._search(mesh, path.parent)
            if self.stop.signal is not None:
                return None
            loss, best = tried[0]
            save_json(path, {"factors": best, "loss": loss, "tried": tried})
        return tuple(json.loads(path.read_text())["factors"])

    def _search(self, mesh: Mesh, folder: Path) -> list[tuple[float, list[float]]]:
        """(loss, factors) of all lists that were tried on the first run, the best first."""
        logging.info("Searching LongRoPE's factors: about %d lists", self.config.search)
        base, factor = self.bases[0], self.config.factor
        model, length = base.config.model, base.config.length
        rope = next(e for e in model.pattern if isinstance(e, RoPE))
        run = longer(self.config, base, model.encoding, folder)
        trainer = prepare(run, mesh)
        batch = trainer.put(next(batches(run, self.source, mesh)))
        params = trained_run.restore(base.folder, trainer).params
        gain = LongRoPE((1.0,), (1.0,), length, factor=factor).attention_factor
        loss = longrope_search.losses(trainer, gain)
        return longrope_search.search(
            lambda factors: loss(params, jnp.asarray(factors, jnp.float32), batch),
            longrope_search.first(rope, model.dims.head_dim, factor, length),
            factor,
            self.config.search,
            lambda: self.stop.signal is None,
        )

    def run(self, table: RunTable, method: tuple[str, str], mesh: Mesh) -> dict[int, dict]:
        """A method, (name, encoding), on every run: seed → "plain" and "tuned" → its results."""
        (name, encoding), by_seed, evaluator = method, {}, None
        for base in self.bases:
            if self.stop.signal is not None:
                break
            spec = names(self.config)[name]
            path = Path(self.config.workdir, "runs", folder(spec), f"seed{base.config.seed}")
            paths = {part: path / f"{part}.json" for part in self.parts}
            label = f"{name} seed {base.config.seed}"
            if all(path.exists() for path in paths.values()):
                table.skip(name, label)
            else:
                table.start(name, label)
                run = longer(self.config, base, encoding, path)
                evaluator = evaluator or Evaluator(prepare(run, mesh), self.config.eval)
                self._run_parts(label, base, run, evaluator, paths, table)
                if self.stop.signal is not None:
                    break
                table.finish(label)
            by_seed[base.config.seed] = _read_parts(name, encoding, paths)
        return by_seed

    def _run_parts(
        self,
        label: str,
        base: Base,
        run: Config,
        evaluator: Evaluator,
        paths: dict[str, Path],
        table: RunTable,
    ) -> None:
        """Evaluates a run with a method, and again after the fine-tune, unless a signal came."""
        state = self._restored(base, run, evaluator.trainer)
        for part, path in paths.items():
            if self.stop.signal is not None or path.exists():
                continue
            begin = time.monotonic()
            result: dict = {"encoding": run.model.encoding, "status": "ok", "reason": ""}
            try:
                if part == "tuned":
                    given = self.source, evaluator, label, self.stop, state.params
                    state = train(run, *given, report=table.report)
                    if self.stop.signal is not None:
                        return
                result |= evaluate(evaluator, self.source, state)
                result["passkeys"] = answers(self.config, evaluator, state.params, self.passkeys)
            except Diverged as error:
                result |= {"status": "diverged", "reason": str(error)}
            save_json(path, result | {"seconds": time.monotonic() - begin, **environment()})
            logging.info("%s: %s after %.0f s", label, part, time.monotonic() - begin)

    def _restored(self, base: Base, run: Config, trainer: Trainer) -> State:
        """The last state of a trained run; what a method adds to it has its initial values."""
        plain = dataclasses.replace(run, model=base.config.model)
        own = prepare(plain, trainer.mesh)
        if jax.tree.structure(own.shapes) == jax.tree.structure(trainer.shapes):
            return trained_run.restore(base.folder, trainer)
        fresh, trained = trainer.init(run.seed), trained_run.restore(base.folder, own)
        return fresh._replace(params=with_trained(fresh.params, trained.params))


def with_trained(fresh: Any, trained: Any) -> Any:
    """Parameters of a model, from a trained one that has some of them."""
    known = dict(jax.tree.leaves_with_path(trained))
    return jax.tree.map_with_path(lambda path, x: known.get(path, x), fresh)


def _read_parts(name: str, encoding: str, paths: dict[str, Path]) -> dict[str, dict]:
    """The results of a run with a method; ConfigError if they are another encoding's."""
    results = {part: json.loads(path.read_text()) for part, path in paths.items()}
    for part, result in results.items():
        if result["encoding"] != encoding:
            raise ConfigError(
                f"encodings: {name!r} is {encoding!r} here, {result['encoding']!r} in"
                f" {paths[part]}; use a new --config.workdir"
            )
    return results


def check(config: ExtendConfig, bases: list[Base], mesh: Mesh) -> Source:
    """Checks everything before anything is compiled or written; returns the data."""
    check_comparable(bases)
    base, specs = bases[0], list(names(config).values())
    models = [extended(spec, config, base.config) for spec in specs]
    runs = [longer(config, base, model, base.folder) for model in models]
    for run in runs:
        run.model.check()
    searched = [spec for spec in specs if "{searched}" in spec]
    twice = [s for s, m in zip(specs, models, strict=True) if models.count(m) > 1]
    if twice:
        raise ConfigError(f"encodings: {' and '.join(twice)} are the same here; name each once")
    ropes = [e for e in base.config.model.pattern if isinstance(e, RoPE)]
    if searched and len({e.fraction for e in ropes}) > 1:
        raise ConfigError(f"encodings: {searched[0]}: the run's layers rotate different widths")
    source = open_source(runs[0])
    now = {"corpus": source.corpus.digest, "tokens": source.tokens.digest}
    for field, digest in now.items():
        if digest != base.saved.get(field):
            raise ConfigError(
                f"{field}={digest!r}: {base.folder} was trained with {base.saved.get(field)!r};"
                f" restore data={base.config.data!r}"
            )
    lengths = {f"eval.lengths: {n}": n for n in config.eval.lengths}
    for run in {run.batch: run for run in runs}.values():
        sharding.check_fits(run.model, run.batch, mesh, lengths)
        batches(run, source, mesh)  # raises any data error
    return source


def described(config: ExtendConfig, bases: list[Base]) -> dict:
    """The configuration and checkpoints of the results, as JSON."""
    description = dataclasses.asdict(config)
    description["base"] = {field: bases[0].saved.get(field) for field in SHARED}
    description["checkpoints"] = {str(base.config.seed): base.digest for base in bases}
    return json.loads(json.dumps(description))


def check_resumable(config: ExtendConfig, now: dict) -> dict[str, str]:
    """The checkpoints, by seed, of the results in the workdir.

    Raises:
      ConfigError: they are of another configuration, naming the difference.
    """
    path = Path(config.workdir) / "config.json"
    if not path.exists():
        return {}
    saved = json.loads(path.read_text())
    check_same(saved, now, BINDS)
    for seed in {*saved["checkpoints"]} & {*now["checkpoints"]}:
        check_same(saved["checkpoints"], now["checkpoints"], (seed,))
    return saved["checkpoints"]


def main(config: ExtendConfig) -> None:
    """Applies the methods that are missing, then shows and writes the results."""
    workdir = Path(config.workdir)
    with one_line_errors():
        config = with_references(config, config.encodings)
        meshes = run_meshes(config)
        bases = [read_base(Path(folder).absolute()) for folder in config.runs]
        source = check(config, bases, meshes[0])
        passkeys_by_length = questions(config, source)
        now = described(config, bases)
        now["checkpoints"] = check_resumable(config, now) | now["checkpoints"]
        lock = Lock(workdir)
    with contextlib.closing(lock), signals.Stop() as stop:
        save_json(workdir / "config.json", now)
        with one_line_errors():
            methods = Methods(config, bases, source, passkeys_by_length, stop)
            entries = run_methods(methods, meshes)
        stop.leave()
    write_results(config, bases[0].config.length, now, entries)


def run_methods(methods: Methods, meshes: list[Mesh]) -> list[dict]:
    """Every method's name, encoding and results by seed, for results.json."""
    config, base = methods.config, methods.bases[0].config
    specs = names(config)
    needs_search = any("{searched}" in spec for spec in specs.values())
    searched = methods.searched_factors(meshes[0]) if needs_search else None
    models = {name: extended(spec, config, base, searched) for name, spec in specs.items()}
    jobs = {name: [max(config.steps, 1)] * len(methods.bases) for name in models}
    with RunTable(jobs, len(meshes)) as table:
        run = functools.partial(methods.run, table)
        results = run_in_parallel(run, models.items(), meshes, methods.stop)
    return [
        {"name": name, "encoding": model, "seeds": by_seed}
        for (name, model), by_seed in zip(models.items(), results, strict=True)
    ]


def write_results(config: ExtendConfig, length: int, now: dict, entries: list[dict]) -> None:
    """Writes results.json, tables and figures of runs that were trained at `length`."""
    workdir = Path(config.workdir)
    parts = [part for e in entries for parts in e["seeds"].values() for part in parts.values()]
    page = extension_report.Page(config, length, target(config, length), entries)
    verdicts = {part: {v.name: v.words for v in page.verdicts(part)} for part in page.parts}
    save_json(
        workdir / "results.json",
        {
            "command": command("extend"),
            **environments(parts),
            "length": page.length,
            "target": page.target,
            "config": now,
            "verdicts": verdicts,
            "encodings": entries,
        },
    )
    for drawing in page.drawings():
        plotting.write(drawing, workdir)
    for table in page.tables():
        launch.show(table)
    print(f"Results: {workdir / 'results.json'}, and figures in the same folder")

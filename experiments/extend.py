"""Longer contexts from a trained RoPE model: loss against length, and passkeys by depth and length.

    python -m experiments.extend --config=configs/extend.py --config.runs="('runs/train',)"

Every method is applied to the last checkpoint of `experiments.train`, without and with a short
fine-tune at the target length. Results, CSV and PNG files go into the workdir. Interrupted,
the same command goes on where it was, method by method.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from absl import logging
from jax.sharding import Mesh

from experiments.reporting import extension_report, plotting
from experiments.running import launch, longrope_search, signals, trained_run
from experiments.running.errors import one_line_errors
from experiments.running.lock import Lock
from experiments.running.parallel_runs import lanes, spread
from experiments.running.provenance import command, made, save_json, together
from experiments.running.run_names import slug
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
from pe_jax.encodings import ENCODINGS, Encoding, parse
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.training import data, manifest, passkeys, sharding
from pe_jax.training.checkpoint import BINDING, check_same
from pe_jax.training.config import Config, from_json
from pe_jax.training.evaluate import Evaluator

SHARED = (*(field for field in BINDING if field != "seed"), "steps")  # by all of the runs
BINDS = (
    *("factor", "steps", "batch", "optimizer", "eval", "depths", "trials", "search", "base"),
    "reference",
)
NAMES: dict[type, str] = {kind: name for name, kind in {**ENCODINGS, **SCALINGS}.items()}
OTHER_DATA = 2**30  # added to a run's seed: rows that it did not begin with


class Base(NamedTuple):
    """A run that was trained; `digest` is that of its last checkpoint, `saved` its config.json."""

    folder: Path
    config: Config
    saved: dict
    digest: str


def read_base(folder: Path) -> Base:
    """A finished run of a RoPE model on text.

    Raises:
      ValueError: it is none.
    """
    config, saved = trained_run.read(folder)
    with trained_run.last(folder) as (checkpoints, step):
        digest = hashlib.sha256((checkpoints.path(step) / manifest.NAME).read_bytes()).hexdigest()
    where = f"runs={str(folder)!r}"
    if step != config.steps:
        raise ValueError(f"{where}: is at step {step} of {config.steps}; finish it first")
    if config.data.startswith("synthetic:") or config.positions != "contiguous":
        what = f"data={config.data!r}, positions={config.positions!r}"
        raise ValueError(f"{where}: {what}; use a run on text at contiguous positions")
    kinds = {type(encoding) for encoding in config.model.pattern}
    scaled = any(getattr(encoding, "scaling", None) for encoding in config.model.pattern)
    if RoPE not in kinds or not kinds <= {RoPE, Encoding} or scaled:
        what = f"model.encoding={config.model.encoding!r}"
        raise ValueError(f"{where}: {what} is no plain RoPE; train with rope, or rope and nope")
    return Base(folder, config, saved, digest)


def check_comparable(bases: list[Base]) -> None:
    """Raises ValueError unless the runs differ in their seed, and in nothing else."""
    first = bases[0]
    for other in bases[1:]:
        for field in SHARED:
            ours, theirs = first.saved.get(field), other.saved.get(field)
            if ours != theirs:
                raise ValueError(
                    f"runs: {other.folder} has {field}={theirs!r}, {first.folder} {ours!r}; compare"
                    " runs that differ in their seed alone"
                )
    seeds = [base.config.seed for base in bases]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"runs: their seeds are {seeds}; pass each once")


def target(config: ExtendConfig, length: int) -> int:
    """The target length.

    Raises:
      ValueError: it is no whole number, or it or the trained length is not evaluated.
    """
    found = config.factor * length
    if found != int(found):
        raise ValueError(f"factor={config.factor}: times the run's length={length} must be whole")
    for needed in (length, int(found)):
        if needed not in config.eval.lengths:
            raise ValueError(
                f"eval.lengths={config.eval.lengths}: add {needed}; the run's length is {length},"
                f" the target {int(found)}"
            )
    return int(found)


def write(value: Any) -> str:
    """The spec of an encoding or a scaling, as `parse` reads it."""
    if type(value) not in NAMES:
        return repr(value)
    fields = dataclasses.fields(value)
    given = [
        (f.name, getattr(value, f.name)) for f in fields if getattr(value, f.name) != f.default
    ]
    listed = ",".join(f"{name}={write(field)}" for name, field in given)
    return NAMES[type(value)] + (f"({listed})" if given else "")


def replaced(spec: str, rope: RoPE, config: ExtendConfig, base: Config, found=None) -> RoPE:
    """What takes the place of `rope`, its placeholders filled in; `found` are searched factors.

    Raises:
      ValueError: it cannot be read, or is not of RoPE's family.
    """
    count = rope.frequencies(base.model.dims.head_dim).size
    window = max(base.length // 2, 1)
    reach = config.factor * base.length - window
    values = {
        "factor": config.factor,
        "length": base.length,
        "window": window,
        "group": math.ceil(reach / max(base.length - window, 1)),
        "ones": (1.0,) * count,
        "searched": found or (1.0,) * count,
    }
    for name, value in values.items():
        spec = spec.replace(f"{{{name}}}", repr(value))
    pattern = parse(spec)
    new = pattern[0]
    if len(pattern) > 1 or not isinstance(new, RoPE):
        raise ValueError(f"encodings: {spec!r} is no rope(…), rerope(…) or self_extend(…)")
    own = [f for f in dataclasses.fields(RoPE) if getattr(new, f.name) == f.default]
    return dataclasses.replace(new, **{f.name: getattr(rope, f.name) for f in own})


def extended(spec: str, config: ExtendConfig, base: Config, found=None) -> str:
    """The run's encodings, all layers, with the method in the place of each RoPE."""
    pattern = base.model.pattern
    new = [replaced(spec, e, config, base, found) if isinstance(e, RoPE) else e for e in pattern]
    return ",".join(map(write, new))


def names(config: ExtendConfig) -> dict[str, str]:
    """Name → spec: that of the scaling or scheme where it tells them apart, else the whole spec.

    `rope` is the model as it is: with fields of its own it keeps them in its name.
    """
    last = [(re.findall(r"(\w+)\(", spec) or [spec])[-1] for spec in config.encodings]
    short = [s if name == "rope" else name for name, s in zip(last, config.encodings, strict=True)]
    pairs = zip(short, config.encodings, strict=True)
    found = {name if short.count(name) == 1 else spec: spec for name, spec in pairs}
    if len({*map(slug, found)}) < len(config.encodings):
        raise ValueError(f"encodings={config.encodings}: two of them have the same name in a path")
    return found


def longer(config: ExtendConfig, base: Base, encoding: str, folder: Path) -> Config:
    """The run that continues a trained one at the target length."""
    run = from_json(Config, dataclasses.asdict(base.config))
    run.model.encoding, run.length = encoding, target(config, base.config.length)
    run.seed, run.workdir = (base.config.seed + OTHER_DATA) % 2**31, str(folder)
    run.steps = max(config.steps, 1)  # 0: there is no training
    run.batch, run.log_every, run.save_every = config.batch, config.log_every, config.save_every
    run.optimizer, run.mesh, run.eval = config.optimizer, config.mesh, config.eval
    return run


def questions(config: ExtendConfig, source: Source) -> dict[int, tuple | None]:
    """By length, passkeys to ask for; None where a length is too short for one."""
    found: dict[int, tuple | None] = {}
    for length in config.eval.lengths:
        found[length] = None
        if length + 1 >= passkeys.room(source.tokens):
            given = {"split": config.eval.split, "count": config.trials, "length": length + 1}
            text = data.eval_windows(source.corpus, source.tokens, **given)
            found[length] = passkeys.questions(text, source.tokens, config.depths, seed=length)
    return found


def answers(config: ExtendConfig, evaluator: Evaluator, params, asked: dict) -> dict:
    """By length and depth, the part of passkeys and of their tokens that the model has right.

    Each token is the likeliest one after the question and the answer so far, so that an answer is
    right where greedy decoding gives it.
    """
    found: dict = {}
    for length, given in asked.items():
        found[str(length)] = None
        if given is not None:
            rows, where = given
            _, right = evaluator.run(params, rows)
            exact = (right | ~where).all(1).reshape(config.depths, -1).mean(1)
            tokens = ((right & where).sum(1) / where.sum(1)).reshape(config.depths, -1).mean(1)
            found[str(length)] = {"exact": exact.tolist(), "tokens": tokens.tolist()}
    return found


class Work:
    """Every method on every run that is missing, methods side by side, runs one after another."""

    def __init__(
        self,
        config: ExtendConfig,
        bases: list[Base],
        source: Source,
        asked: dict,
        stop: signals.Stop,
    ):
        self.config, self.bases, self.source, self.stop = config, bases, source, stop
        self.asked = asked
        self.parts = ("plain", "tuned") if config.steps else ("plain",)

    def search(self, mesh: Mesh) -> tuple[float, ...] | None:
        """LongRoPE's factors, searched once for all runs, on the first; None: a signal came.

        What was searched on another run stays what it is: all results in a workdir share factors.
        """
        path, base = Path(self.config.workdir) / "factors.json", self.bases[0]
        if not path.exists():
            logging.info("Searching LongRoPE's factors: %d lists or so", self.config.search)
            ropes = [e for e in base.config.model.pattern if isinstance(e, RoPE)]
            run = longer(self.config, base, base.config.model.encoding, path.parent)
            trainer = prepare(run, self.source.vocab, mesh)
            batch = trainer.put(next(batches(run, self.source, mesh)))
            params = trained_run.restore(base.folder, trainer).params
            length, factor = base.config.length, self.config.factor
            gain = LongRoPE((1.0,), (1.0,), length, factor=factor).attention_factor
            loss = longrope_search.losses(trainer, gain)
            found = longrope_search.search(
                lambda x: loss(params, jnp.asarray(x, jnp.float32), batch),
                longrope_search.first(ropes[0], base.config.model.dims.head_dim, factor, length),
                factor,
                self.config.search,
                lambda: self.stop.signal is None,
            )
            if self.stop.signal is not None:
                return None
            save_json(path, {"factors": found[0][1], "loss": found[0][0], "tried": found})
        return tuple(json.loads(path.read_text())["factors"])

    def run(self, job: tuple[str, str], mesh: Mesh) -> dict[int, dict]:
        """Seed → "plain" and "tuned" → what was found; (name, encoding) → job."""
        (name, encoding), found, evaluator = job, {}, None
        for base in self.bases:
            if self.stop.signal is not None:
                break
            folder = Path(self.config.workdir) / "runs" / slug(name) / f"seed{base.config.seed}"
            paths = {part: folder / f"{part}.json" for part in self.parts}
            if not all(path.exists() for path in paths.values()):
                run = longer(self.config, base, encoding, folder)
                if evaluator is None:
                    trainer = prepare(run, self.source.vocab, mesh)
                    evaluator = Evaluator(trainer, self.config.eval)
                self._one(name, base, run, evaluator, paths)
            if self.stop.signal is not None:
                break
            given = {part: json.loads(path.read_text()) for part, path in paths.items()}
            for part, before in ((p, x["encoding"]) for p, x in given.items()):
                if before != encoding:
                    raise ValueError(
                        f"encodings: {name!r} is {encoding!r} here, {before!r} in"
                        f" {paths[part]}; use a new --config.workdir"
                    )
            found[base.config.seed] = given
        return found

    def _one(self, name: str, base: Base, run: Config, evaluator: Evaluator, paths: dict) -> None:
        """Evaluates a run with a method, and again after the fine-tune, unless a signal came."""
        label = f"{name} seed {base.config.seed}"
        state = trained_run.restore(base.folder, evaluator.trainer)
        for part, path in paths.items():
            if self.stop.signal is not None or path.exists():
                continue
            begin = time.monotonic()
            found: dict = {"encoding": run.model.encoding, "status": "ok", "reason": ""}
            try:
                if part == "tuned":
                    given = self.source, evaluator, label, self.stop
                    state = train(run, *given, params=state.params)
                    if self.stop.signal is not None:
                        return
                found |= evaluate(evaluator, self.source, state)
                found["passkeys"] = answers(self.config, evaluator, state.params, self.asked)
            except Diverged as error:
                found |= {"status": "diverged", "reason": str(error)}
            save_json(path, found | {"seconds": time.monotonic() - begin, **made()})
            logging.info("%s: %s after %.0f s", label, part, time.monotonic() - begin)


def check(config: ExtendConfig, bases: list[Base], mesh: Mesh) -> Source:
    """The data, once all fits: what is wrong is an error before anything is compiled or written."""
    check_comparable(bases)
    base, specs = bases[0], list(names(config).values())
    models = [extended(spec, config, base.config) for spec in specs]
    runs = [longer(config, base, model, base.folder) for model in models]
    for run in runs:
        run.model.check()
    searched = [spec for spec in specs if "{searched}" in spec]
    twice = [s for s, m in zip(specs, models, strict=True) if models.count(m) > 1]
    if twice:
        raise ValueError(f"encodings: {' and '.join(twice)} are the same here; name each once")
    ropes = [e for e in base.config.model.pattern if isinstance(e, RoPE)]
    if searched and len({e.fraction for e in ropes}) > 1:
        raise ValueError(f"encodings: {searched[0]}: the run's layers rotate different widths")
    source = open_source(runs[0])
    now = {"corpus": source.corpus.digest, "tokens": source.tokens.digest}
    for field, found in now.items():
        if found != base.saved.get(field):
            raise ValueError(
                f"{field}={found!r}: {base.folder} was trained with {base.saved.get(field)!r};"
                f" restore data={base.config.data!r}"
            )
    run = runs[0]
    lengths = {f"eval.lengths: {n}": n for n in config.eval.lengths}
    sharding.check_fits(run.model, run.batch, mesh, lengths)
    batches(run, source, mesh)  # raises what training would
    return source


def described(config: ExtendConfig, bases: list[Base]) -> dict:
    """What the results belong to, as JSON has it."""
    found = dataclasses.asdict(config)
    found["base"] = {field: bases[0].saved.get(field) for field in SHARED}
    found["checkpoints"] = {str(base.config.seed): base.digest for base in bases}
    return json.loads(json.dumps(found))


def check_resumable(config: ExtendConfig, now: dict) -> dict[str, str]:
    """The checkpoints, by seed, that results in the workdir belong to.

    Raises:
      ValueError: it holds results of something else, naming the difference.
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
    """Runs what is missing, then shows and writes what was found."""
    workdir = Path(config.workdir)
    with one_line_errors():
        meshes = lanes(config)
        bases = [read_base(Path(folder).absolute()) for folder in config.runs]
        source = check(config, bases, meshes[0])
        asked = questions(config, source)
        now = described(config, bases)
        now["checkpoints"] = check_resumable(config, now) | now["checkpoints"]
        lock = Lock(workdir)
    if config.reference not in names(config):
        logging.warning("reference=%r is not among %s", config.reference, [*names(config)])
    with contextlib.closing(lock), signals.Stop() as stop:
        save_json(workdir / "config.json", now)
        with one_line_errors():
            work, specs = Work(config, bases, source, asked, stop), names(config)
            searched = any("{searched}" in spec for spec in specs.values())
            found = work.search(meshes[0]) if searched else None
            models = {n: extended(s, config, bases[0].config, found) for n, s in specs.items()}
            seeds = spread(work.run, models.items(), meshes, stop)
        stop.leave()
    entries = [
        {"name": name, "encoding": models[name], "seeds": found}
        for name, found in zip(models, seeds, strict=True)
    ]
    about = {
        "command": command("extend"),
        **together(part for found in seeds for parts in found.values() for part in parts.values()),
        "length": bases[0].config.length,
        "target": target(config, bases[0].config.length),
    }
    page = extension_report.Page(config, about["length"], about["target"], entries)
    words = {part: {v.name: v.words for v in page.verdicts(part)} for part in page.parts}
    about |= {"config": now, "verdicts": words, "encodings": entries}
    save_json(workdir / "results.json", about)
    for drawing in page.drawings():
        plotting.save(drawing, workdir)
    for table in page.tables():
        launch.show(table)
    print(f"Results: {workdir / 'results.json'}, and figures beside it")


if __name__ == "__main__":
    launch.run(main, "configs/extend.py", ExtendConfig)

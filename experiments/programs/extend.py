"""Longer contexts: applies each method to each trained run, shows and writes the results."""

import dataclasses
import itertools
import json
from pathlib import Path

from jax.sharding import Mesh

from experiments.reporting import extension_report, outputs
from experiments.running.configs.extend import ExtendConfig
from experiments.running.extension import longrope_search
from experiments.running.extension.bases import SHARED, Base, check_comparable, read_runs
from experiments.running.extension.methods import extended, names
from experiments.running.extension.runs import Methods, longer, needles, target
from experiments.running.process.devices import run_meshes
from experiments.running.process.errors import one_line_errors
from experiments.running.schedule import driver
from experiments.running.training.training_loop import (
    Source,
    batches,
    check_defined,
    open_source,
)
from pe_jax.encodings.registry import Spec
from pe_jax.encodings.rope import RoPE
from pe_jax.training import data, passkeys, sharding
from pe_jax.training.checkpoint import check_same
from pe_jax.validation import ConfigError

BINDING = (
    *("factor", "steps", "batch", "optimizer", "eval", "depths", "trials", "search", "base"),
    *("reference", "primary", "positions"),
)


def check(
    config: ExtendConfig, bases: list[Base], others: dict[str, list[Base]], mesh: Mesh
) -> Source:
    """Checks everything before anything is compiled or written; returns the data."""
    check_comparable(bases, others)
    base, specs = bases[0], list(names(config).values())
    models = [extended(spec, base.trained(config.factor)) for spec in specs]
    runs = [longer(config, base, model, base.folder) for model in models]
    for name, (other, *_) in others.items():
        if Spec(other.config.model.encoding).layers in [model.layers for model in models]:
            fix = "leave it out of the methods"
            raise ConfigError(f"encodings: {name} was trained in {config.trained} too; {fix}")
        runs.append(longer(config, other, other.config.model.encoding, other.folder))
    for run in runs:
        run.model.check()
        check_defined(run)
    searched = [spec for spec in specs if "{searched}" in spec]
    equal = [s for s, m in zip(specs, models, strict=True) if models.count(m) > 1]
    if equal:
        raise ConfigError(f"encodings: {' and '.join(equal)} are the same here; name each once")
    ropes = [e for e in base.config.model.pattern if isinstance(e, RoPE)]
    if searched and len({e.fraction for e in ropes}) > 1:
        raise ConfigError(f"encodings: {searched[0]}: the run's layers rotate different widths")
    (source,) = open_source(dataclasses.replace(runs[0], workdir=config.workdir), config.eval)
    now = {"corpus": source.corpus.digest, "tokens": source.tokens.digest}
    for field, digest in now.items():
        if digest != base.saved.get(field):
            raise ConfigError(
                f"{field}={digest!r}: {base.folder} was trained with {base.saved.get(field)!r};"
                f" restore data={base.config.data!r}"
            )
    if searched:
        needles(config, source, base.config.length)
    if config.primary == "passkeys":
        passkeys.check(target(config, base.config.length) + 1, source.tokens)
    lengths = {f"eval.lengths: {n}": n for n in config.eval.lengths}
    for run in {run.batch: run for run in runs}.values():
        sharding.check_fits(run.model, run.batch, mesh, lengths)
        batches(run, source, mesh)  # raises any data error
    return source


def passkey_questions(config: ExtendConfig, source: Source) -> dict[int, tuple | None]:
    """Length → questions for passkeys; None where a length is too short for one."""
    by_length: dict[int, tuple | None] = {}
    corpus, _ = source.corpus.apart(config.eval.split, config.eval.kept)
    for length in config.eval.lengths:
        by_length[length] = None
        if length + 1 >= passkeys.room(source.tokens):
            text = data.eval_windows(
                corpus,
                source.tokens,
                split=config.eval.split,
                count=config.trials,
                length=length + 1,
                field="trials",
            )
            by_length[length] = passkeys.questions(text, source.tokens, config.depths, seed=length)
    return by_length


def described(config: ExtendConfig, bases: list[Base], others: dict[str, list[Base]]) -> dict:
    """The configuration and checkpoints of the results, as JSON."""
    description = dataclasses.asdict(config)
    description["base"] = {field: bases[0].saved.get(field) for field in SHARED}
    description["checkpoints"] = {str(base.config.seed): base.digest for base in bases} | {
        f"{run.config.model.encoding} seed {run.config.seed}": run.digest
        for run in itertools.chain(*others.values())
    }
    return json.loads(json.dumps(description))


def check_resumable(config: ExtendConfig, now: dict) -> dict[str, str]:
    """The checkpoints of the results in the workdir: by seed, of others by encoding and seed.

    Raises:
      ConfigError: they are of another configuration, naming the difference.
    """
    path = Path(config.workdir) / "config.json"
    if not path.exists():
        return {}
    saved = json.loads(path.read_text())
    older = {"primary": "loss", "positions": "contiguous"}  # results without a choice
    check_same({**older, **saved}, now, BINDING)
    for run in {*saved["checkpoints"]} & {*now["checkpoints"]}:
        check_same(saved["checkpoints"], now["checkpoints"], (run,))
    return saved["checkpoints"]


def main(config: ExtendConfig) -> None:
    """Applies the methods that are missing, then shows and writes the results."""
    workdir = Path(config.workdir)
    with one_line_errors():
        config = config.resolved()
        meshes = run_meshes(config)
        bases, others = read_runs(config)
        source = check(config, bases, others, meshes[0])
        passkeys_by_length = passkey_questions(config, source)
        now = described(config, bases, others)
        now["checkpoints"] = check_resumable(config, now) | now["checkpoints"]
    with driver.opened(main, config, workdir / "config.json", now, meshes) as runs:
        methods = Methods(config, bases, others, source, passkeys_by_length)
        entries = run_methods(methods, runs)
        write_results(config, bases[0].config.length, now, entries)


def run_methods(methods: Methods, runs: driver.Driver) -> list[dict]:
    """Every entry's name, encoding and results by seed, for results.json: methods come first."""
    config, trained = methods.config, methods.bases[0].trained(methods.config.factor)
    factors = longrope_search.needed(config, methods.search, runs)
    methods.has_factors = factors is not None
    models = {name: extended(spec, trained, factors) for name, spec in names(config).items()}
    models |= {name: runs[0].config.model.encoding for name, runs in methods.others.items()}
    results = runs.run(methods.work(name, encoding) for name, encoding in models.items())
    return [{"name": n, "encoding": models[n], "seeds": seeds} for n, seeds in results.items()]


def write_results(config: ExtendConfig, length: int, now: dict, entries: list[dict]) -> None:
    """Writes results.json, tables and figures of runs that were trained at `length`."""
    workdir = Path(config.workdir)
    names = ("plain", "tuned") if config.steps else ("plain",)
    schemes = {part: extension_report.schemes(entries, part) for part in names}
    page = extension_report.Page(config, length, target(config, length), schemes)
    verdicts = {part: {x.name: x.words for x in page.judged(part)} for part in page.parts}
    results: dict = {"verdicts": verdicts}
    if config.primary == "passkeys":
        results["differences"] = {part: page.passkey_differences(part) for part in page.parts}
    about = {"length": page.length, "target": page.target, "config": now}
    outputs.write(
        workdir,
        "experiments.extend",
        [part for e in entries for parts in e["seeds"].values() for part in parts.values()],
        {**about, **results, "encodings": entries},
        page.rows(),
        page.drawings(),
        page.tables(),
    )

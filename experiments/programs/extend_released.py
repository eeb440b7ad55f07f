"""Longer contexts of a released model: applies each method, shows and writes the results."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

from absl import logging

from experiments.reporting import outputs
from experiments.reporting.released_report import ReleasedPage
from experiments.running.configs.released import ReleasedConfig
from experiments.running.extension import documents, longrope_search
from experiments.running.extension.documents import Document
from experiments.running.extension.haystacks import TASKS, Maker, vocabulary, with_answers
from experiments.running.extension.methods import extended, filled
from experiments.running.extension.released_runs import (
    Released,
    ReleasedMethods,
    make_texts,
    open_checkpoint,
)
from experiments.running.files.run_names import short_names
from experiments.running.process.devices import run_meshes
from experiments.running.process.errors import one_line_errors
from experiments.running.schedule import driver
from pe_jax.training.checkpoint import check_same
from pe_jax.training.corpus import Corpus
from pe_jax.validation import ConfigError

ENTRY = ("name", "spec", "encoding")  # of a method in results.json; numbers are in results.csv
BINDING = ("model", "corpus", "dtype", "factor", "lengths", "targets", "windows", "documents_read")
BINDING += ("samples", "search", "seed")


def check(config: ReleasedConfig, released: Released) -> Mapping[str, str]:
    """Checks everything before anything is compiled; the encoding of each spec.

    Raises:
      ConfigError: a method cannot be applied, or is the same as another; lengths without the
        target.
    """
    trained = released.trained
    target = config.factor * trained.length
    if target not in config.lengths:
        fix = f"add {target:g}, {config.factor:g} times the trained length, or pass another factor"
        raise ConfigError(f"lengths={config.lengths}: {fix}")
    encodings = {spec: extended(spec, trained) for spec in config.encodings}
    for spec, encoding in encodings.items():
        dataclasses.replace(trained.model, encoding=encoding).check()
        same = [other for other, x in encodings.items() if x == encoding and other != spec]
        if same:
            both = f"{spec} and {same[0]}"
            raise ConfigError(f"encodings: {both} are the same here; name each once")
    return encodings


def described(
    config: ReleasedConfig, released: Released, corpus: Corpus, read: list[Document]
) -> dict:
    """The configuration, and what it was applied to, as JSON."""
    return json.loads(
        json.dumps(
            {
                **dataclasses.asdict(config),
                "model": released.digest,
                "trained_length": released.trained.length,
                "corpus": corpus.digest,
                "documents_read": {str(d.number): d.name for d in read},
            }
        )
    )


def main(config: ReleasedConfig) -> None:
    """Applies the methods that are missing, then shows and writes the results."""
    workdir = Path(config.workdir)
    with one_line_errors():
        config = config.resolved()
        meshes = run_meshes(config)
        released = open_checkpoint(config)
        check(config, released)
        corpus = documents.load(config)
        logging.info("data: %s", corpus.describe())
        read = documents.read(config, released.checkpoint.tokenizer, corpus, "test")
        now = described(config, released, corpus, read)
        if (workdir / "config.json").exists():
            check_same(json.loads((workdir / "config.json").read_text()), now, BINDING)
        asked = make_texts(config, released.checkpoint.tokenizer, read)
        needles = None
        if any("{searched}" in spec for spec in config.encodings):
            own = dataclasses.replace(config, lengths=(released.trained.target,), documents=1)
            tokenizer, target = released.checkpoint.tokenizer, released.trained.target
            (document,) = documents.read(own, tokenizer, corpus, "validation")
            words = vocabulary([document.text])
            maker = Maker(document, words, tokenizer, target, config.samples, config.seed)
            needles = with_answers(maker, target + 1)
    with driver.opened(main, config, workdir / "config.json", now, meshes) as runs:
        methods = ReleasedMethods(config, released, read, asked, needles)
        entries = run_methods(methods, runs)
        write_results(config, released, now, entries)


def run_methods(methods: ReleasedMethods, runs: driver.Driver) -> list[dict]:
    """Every method's name, spec, encoding and results by document."""
    config, trained = methods.config, methods.released.trained
    factors = longrope_search.needed(config, methods.search, runs, methods.search_steps)
    methods.has_factors = factors is not None
    names = short_names(["rope", *(filled(spec, trained) for spec in config.encodings)])
    listed = [(names[filled(spec, trained)], spec) for spec in config.encodings]
    encodings = {spec: extended(spec, trained, factors) for spec in config.encodings}
    results = runs.run(methods.work(name, spec, encodings[spec]) for name, spec in listed)
    return [
        {"name": name, "spec": spec, "encoding": encodings[spec], "documents": results[name]}
        for name, spec in listed
    ]


def write_results(config: ReleasedConfig, released: Released, now: dict, entries: list) -> None:
    """Writes results.json, tables and figures."""
    by_spec = {entry["spec"]: entry["name"] for entry in entries}
    length, reference = released.trained.length, by_spec.get(config.reference, config.reference)
    tests = tuple(test for task in config.tasks for test in TASKS[task].tests)
    page = ReleasedPage.of(config, length, entries, reference, tests)
    results: dict = {"verdicts": {v.name: v.words for v in page.verdicts()}}
    if page.tasks:
        results["differences"] = page.differences()
    about = {"length": length, "target": page.target, "config": now}
    every = (by_test for e in entries for by_test in e["documents"].values())
    outputs.write(
        Path(config.workdir),
        "experiments.extend",
        [x for by_test in every for by_length in by_test.values() for x in by_length.values()],
        {**about, **results, "encodings": [{k: e[k] for k in ENTRY} for e in entries]},
        page.rows(),
        page.drawings(),
        page.tables(),
    )

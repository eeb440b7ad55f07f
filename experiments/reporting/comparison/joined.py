"""Several comparisons as one: their tables together, if they are comparable.

    python -m experiments.report --join=runs/a,runs/b --workdir=runs/joined

Each may hold other encodings, or other seeds of the same. Everything that affects a loss (corpus,
tokens, model, steps, optimizer, evaluation) must be the same in all, as must the questions and the
reference. Commits, versions and devices may differ, and the report says so. Of a run that several
hold, the first is used.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.reporting import results
from experiments.reporting.results import Results, Run, Scheme
from experiments.running.configs.sweep import REFERENCES
from experiments.running.files import manifest
from experiments.running.files.run_names import short_names
from experiments.running.schedule.rate_search import RATES
from pe_jax.validation import ConfigError

NOTED = ("commit", "device", "versions")


def read(folders: Sequence[Path], workdir: Path) -> Results:
    """The comparison of these folders' runs, with `workdir` for its report.

    Raises:
      ConfigError: one of the folders has no manifest; they are not comparable, saying why; the
        workdir holds a comparison.
    """
    if (workdir / manifest.NAME).exists():
        raise ConfigError(f"workdir={str(workdir)!r} holds a comparison; choose another")
    parts = [results.read(folder) for folder in folders]
    for pair in itertools.combinations(parts, 2):
        check_comparable(*pair)
    first = parts[0].manifest
    by_folder: dict[str, list[Scheme]] = {}
    for scheme in (scheme for part in parts for scheme in part.schemes):
        by_folder.setdefault(scheme.folder, []).append(scheme)
    names = short_names([same[0].spec for same in by_folder.values()])
    seeds = sorted({seed for part in parts for seed in part.manifest.seeds})
    schemes = []
    for index, (folder, same) in enumerate(by_folder.items()):
        found = {k: r for s in same[::-1] for k, r in s.runs.items() if r.status != "missing"}
        runs = {seed: found.get(seed, Run(seed, "missing", "in none of them")) for seed in seeds}
        checks = {pair: run for s in same[::-1] for pair, run in s.checks.items()}
        schemes.append(Scheme(names[same[0].spec], same[0].spec, index, runs, checks, folder))
    before = [
        entry
        for m in (part.manifest for part in parts)
        for entry in (*m.before, {"commit": m.commit, "command": m.command})
    ]
    folders_listed = ",".join(str(part.workdir) for part in parts)
    about = dataclasses.replace(
        first,
        name=manifest.title(len(schemes), first.corpus["name"]),
        **{f: names[s.spec] for f in REFERENCES if (s := parts[0].scheme(getattr(first, f)))},
        seeds=seeds,
        config={
            **first.config,
            **{"workdir": str(workdir), "seed": seeds[0]},
            **{"encodings": [*names], "seeds": len(seeds)},
        },
        commit=", ".join(dict.fromkeys(part.manifest.commit for part in parts)),
        device=", ".join(dict.fromkeys(part.manifest.device for part in parts)),
        before=before,
        command=f"python -m experiments.report --join={folders_listed} --workdir={workdir}",
        notes=[*_notes(parts)],
    )
    speed = next((_timings(part, names) for part in parts if part.speed), None)
    earlier = [*results.reports(workdir), *_earlier(parts, seeds)]
    reported = tuple(x for i, x in enumerate(earlier) if x not in earlier[:i])
    return Results(workdir, about, results.told_apart(schemes), speed, reported)


def _earlier(parts: Sequence[Results], seeds: list[int]) -> Iterator[dict[str, Any]]:
    """The subjects of reports made before the seeds and schemes of the join were decided.

    These are earlier states of a part that grew, and parts with other seeds than the join. A part
    with the same seeds does not count: each host may take some of the encodings, and Holm's
    procedure counts all of them in the join.
    """
    for part in parts:
        grown = sorted(part.manifest.seeds) != seeds
        yield from (subject for subject in part.reported if subject != part.subject or grown)


def check_comparable(first: Results, other: Results) -> None:
    """Raises ConfigError with the first difference that makes them incomparable."""

    def trained(part: Results) -> dict[str, Any]:
        specs = {f"spec of {s.folder} is": s.spec for s in part.schemes}
        facts = {(f, s.name): s.fact(f) for f in RATES for s in part.schemes}
        rates = {f"{f} of {name} is": x for (f, name), x in facts.items() if x is not None}
        return specs | rates

    results.check_comparable(first, other, results.FREE)
    ours, theirs = trained(first), trained(other)
    for what in sorted(ours.keys() & theirs.keys()):
        if (a := ours[what]) != (b := theirs[what]):
            raise ConfigError(
                f"{other.workdir}: {what} {b!r}, and {first.workdir} has {a!r}: not comparable"
            )


def _timings(part: Results, names: dict[str, str]) -> dict[str, Any]:
    """The timings of a comparison by the names of the join."""
    renamed, speed = {s.name: names[s.spec] for s in part.schemes}, part.speed or {}

    def with_names(timed: dict) -> dict:
        return {**timed, "encodings": {renamed.get(n, n): x for n, x in timed["encodings"].items()}}

    lengths = {n: with_names(timed) for n, timed in speed.get("lengths", {}).items()}
    return {**with_names(speed), "lengths": lengths}


def _notes(parts: Sequence[Results]) -> Iterator[str]:
    """Notes on which part each scheme comes from, and how the parts differ."""
    losses_of: dict[tuple[str, Any], Any] = {}
    for part in parts:
        listed = [s.name for s in part.schemes], part.manifest.seeds
        names, seeds = (", ".join(map(str, x)) for x in listed)
        yield f"From {part.workdir.name}: {names}; seeds {seeds}."
        done = ((s, r) for s in part.schemes for r in s.runs.values() if r.status != "missing")
        for scheme, run in done:
            losses = run.evaluation.get("losses")
            if losses != losses_of.setdefault((scheme.folder, run.seed), losses):
                at = f"{scheme.name}, seed {run.seed}"
                yield f"{at}: {part.workdir.name} has other numbers; the first are used."
    for field in NOTED:
        values = [getattr(part.manifest, field) for part in parts]
        if any(value != values[0] for value in values):
            listed = "; ".join(f"{p.workdir.name}: {v}" for p, v in zip(parts, values, strict=True))
            yield f"Not the same {field} in all: {listed}."
    if len(measured := [part.workdir.name for part in parts if part.speed]) > 1:
        yield f"Speed and memory are those of {measured[0]}: ratios hold within one process."

"""Joins comparisons: copies their runs into one workdir, if they are comparable.

    python -m experiments.compare --join=runs/a,runs/b --config.workdir=runs/joined

Each may hold other encodings, or other seeds of the same. Everything that affects a loss (corpus,
tokens, model, steps, optimizer, evaluation) must be the same in all, as must the questions and the
reference. Commits, versions and devices may differ, and the report says so. Of a run that several
hold, the first is used.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from experiments.reporting import results
from experiments.reporting.results import Results, Scheme
from experiments.running.configs.compare import title
from experiments.running.configs.sweep import REFERENCES
from experiments.running.provenance import command, save_json
from experiments.running.run_names import short_names
from pe_jax.validation import ConfigError

# May differ: seeds are joined, the corpus is compared by digest, the others do not affect losses.
FREE = ("seed", "data", "model.encoding", "eval.batch_tokens")
NOTED = ("commit", "device", "versions")
RUN = ("evaluation.json", "metrics.jsonl", "config.json", "encoding.npz")


def join(folders: Sequence[Path], target: Path) -> None:
    """Writes a workdir with the runs of all comparisons.

    Raises:
      ConfigError: one of the folders has no manifest; they are not comparable, saying why; the
        target holds another comparison.
    """
    manifest_path = target / "manifest.json"
    is_joined = manifest_path.exists()
    if is_joined and "joined" not in json.loads(manifest_path.read_text(encoding="utf-8")):
        raise ConfigError(
            f"workdir={str(target)!r} holds a comparison; choose another for the join"
        )
    parts = [results.read(folder) for folder in folders]
    if target.resolve() in [folder.resolve() for folder in folders]:
        raise ConfigError(f"workdir={str(target)!r} is one of those to join; choose another")
    for pair in itertools.combinations(parts, 2):
        check_comparable(*pair)
    before = results.read(target).reported if is_joined else ()
    manifest = joined(parts, target)
    for name in ("runs", "rates"):
        shutil.rmtree(target / name, ignore_errors=True)
    (target / "speed.json").unlink(missing_ok=True)
    for part in parts:
        for scheme in part.schemes:
            _copy(part, scheme, target)
    if timed := next((part for part in parts if part.speed), None):
        save_json(target / "speed.json", _timings(timed, manifest["encodings"]))
    save_json(target / results.REPORTED, [*_earlier(parts, manifest["seeds"], before)])
    save_json(manifest_path, manifest)


def _earlier(
    parts: Sequence[Results], seeds: list[int], before: Sequence[dict]
) -> Iterator[dict[str, Any]]:
    """The subjects of reports made before the seeds and schemes of the join were decided.

    These are earlier joins in the same workdir, earlier states of a part that grew, and parts with
    other seeds than the join. A part with the same seeds does not count: each host may take some of
    the encodings, and Holm's procedure counts all of them in the join.
    """
    subjects = list(before)
    for part in parts:
        grown = {*part.manifest["seeds"]} != {*seeds}
        subjects += [x for x in part.reported if x != part.subject or grown]
    return (x for i, x in enumerate(subjects) if x not in subjects[:i])


def _copy(part: Results, scheme: Scheme, target: Path) -> None:
    """Copies the small files of a scheme's runs that no earlier part has."""
    folders = [Path("runs", scheme.folder, f"seed{seed}") for seed in scheme.runs]
    folders += [results.check_folder(part.workdir, scheme.folder, pair) for pair in scheme.checks]
    for folder in folders:
        if (target / folder / RUN[0]).exists():
            continue
        (target / folder).mkdir(parents=True, exist_ok=True)
        for name in RUN:
            if (part.workdir / folder / name).exists():
                shutil.copy(part.workdir / folder / name, target / folder)


def check_comparable(first: Results, other: Results) -> None:
    """Raises ConfigError with the first difference that makes them incomparable."""

    def bound(part: Results) -> dict[str, Any]:
        fields = results.binding(part.manifest)
        flat = dict(results.flat({field: fields[field] for field in results.SAME}))
        return {name: value for name, value in flat.items() if name not in FREE}

    def check(what: str, joint: str, ours: Any, theirs: Any) -> None:
        if ours != theirs:
            raise ConfigError(
                f"{other.workdir}: {what}{joint}{theirs!r}, and {first.workdir} has {ours!r}: not"
                " comparable"
            )

    ours, theirs = bound(first), bound(other)
    for field in {**ours, **theirs}:
        check(field, "=", ours.get(field), theirs.get(field))
    for scheme in other.schemes:
        same = next((s for s in first.schemes if s.folder == scheme.folder), scheme)
        check(f"spec of {scheme.name}", " is ", same.spec, scheme.spec)
        for rate in ("learning_rate", "encoding_rate"):
            a, b = (s.fact(rate) for s in (same, scheme))
            if None not in (a, b):
                check(f"{rate} of {scheme.name}", " is ", a, b)


def joined(parts: Sequence[Results], target: Path) -> dict:
    """The joint manifest, with the differences as notes."""
    manifests = [part.manifest for part in parts]
    first = manifests[0]
    encodings = renamed(manifests)
    names = {e["name"]: encodings[_folder(e)]["name"] for e in first["encodings"]}
    seeds = sorted({seed for m in manifests for seed in m["seeds"]})
    specs = [e["spec"] for e in encodings.values()]
    references = {field: names[first[field]] for field in REFERENCES if first[field] in names}
    sources = [m for manifest in manifests for m in (*manifest.get("before", ()), manifest)]
    config = {"workdir": str(target), "encodings": specs, "seed": seeds[0], "seeds": len(seeds)}
    return {
        **{field: value for field, value in first.items() if field != "grids"},  # of one part
        "name": title(len(encodings), first["corpus"]["name"]),
        "encodings": [*encodings.values()],
        **references,
        "seeds": seeds,
        "config": {**first["config"], **config},
        "commit": ", ".join(dict.fromkeys(m["commit"] for m in manifests)),
        "device": ", ".join(dict.fromkeys(m["device"] for m in manifests)),
        "before": [{field: m[field] for field in ("commit", "command")} for m in sources],
        "command": command("experiments.compare"),
        "notes": [*_notes(parts)],
        "joined": [str(part.workdir) for part in parts],
    }


def renamed(manifests: Sequence[dict]) -> dict[str, dict]:
    """Folder → entry of every scheme, with the short name that it has among all of them."""
    entries = {_folder(e): e for m in manifests for e in m["encodings"]}
    names = short_names([e["spec"] for e in entries.values()])
    return {
        folder: {**e, "name": names[e["spec"]]} if "folder" in e else e
        for folder, e in entries.items()
    }


def _folder(entry: dict) -> str:
    return entry.get("folder", entry["name"])


def _timings(part: Results, encodings: list[dict]) -> dict:
    """The timings of a comparison by the names of the join."""
    joined = {_folder(entry): entry["name"] for entry in encodings}
    names, speed = {s.name: joined[s.folder] for s in part.schemes}, part.speed or {}

    def with_names(timed: dict) -> dict:
        return {**timed, "encodings": {names.get(n, n): x for n, x in timed["encodings"].items()}}

    lengths = {n: with_names(timed) for n, timed in speed.get("lengths", {}).items()}
    return {**with_names(speed), "lengths": lengths}


def _notes(parts: Sequence[Results]) -> Iterator[str]:
    """Notes on which part each scheme comes from, and how the parts differ."""
    for part in parts:
        names = ", ".join(scheme.name for scheme in part.schemes)
        seeds = ", ".join(map(str, part.manifest["seeds"]))
        yield f"From {part.workdir.name}: {names}; seeds {seeds}."
    for field in NOTED:
        values = [part.manifest[field] for part in parts]
        if any(value != values[0] for value in values):
            listed = "; ".join(f"{p.workdir.name}: {v}" for p, v in zip(parts, values, strict=True))
            yield f"Not the same {field} in all: {listed}."
    losses_of: dict[tuple[str, int], dict] = {}
    for part in parts:
        for scheme in part.schemes:
            for seed, run in scheme.runs.items():
                if run.status == "missing":
                    continue
                losses = run.evaluation.get("losses", {})
                if (earlier := losses_of.setdefault((scheme.folder, seed), losses)) is not losses:
                    how = "the same numbers" if earlier == losses else "with other numbers"
                    at = f"{scheme.name}, seed {seed}"
                    yield f"{at}: also in {part.workdir.name}, {how}; the first is used."
    measured = [part.workdir.name for part in parts if part.speed]
    if len(measured) > 1:
        yield f"Speed and memory are those of {measured[0]}: ratios hold within one process."

"""The speedrun's table: entries from a finished comparison, a check of one, and the page.

    python -m experiments.compare --config=configs/speedrun.py --encodings=rope --encodings=t5
    python -m tools.speedrun add --workdir=runs/speedrun
    python -m tools.speedrun check docs/speedrun/t5.json
    python -m tools.speedrun table

`add` writes docs/speedrun/NAME.json for each encoding of the comparison, and the table of
docs/speedrun.md. `check` trains an entry's first seed again, at its learning rates, and compares
both losses: exit status 1 if one is further from the entry's than `TOLERANCE`.
"""

import argparse
import dataclasses
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.reporting.results import Results, Scheme, read
from experiments.running.command import config_files
from experiments.running.configs.compare import CompareConfig
from experiments.running.files.provenance import ROOT, processor, save_json
from experiments.running.files.run_names import folder
from experiments.running.process.errors import one_line_errors
from pe_jax.validation import ConfigError

ENTRIES, PAGE = ROOT / "docs" / "speedrun", ROOT / "docs" / "speedrun.md"
BEGIN, END = "<!-- entries: begin -->\n", "<!-- entries: end -->"
FREE = ("workdir", "encodings", "baseline", "reference", "workers", "devices", "cluster", "mesh")
ADDED = {
    "eval": ("kept",),
    "model": ("attention_cap", "attention_scale", "bias_of", "block", "embed_norm", "embed_scale")
    + ("logit_cap", "logit_scale", "norm_epsilon", "qk_norm_over"),
}
PROTOCOL = "non-overlapping"
# Nats per byte for one seed at the trained length and at eight times it: rounding differs between
# machines and grows in 1,000 steps; the losses of encodings that fail at 512 move most.
TOLERANCE = (0.03, 0.15)


def frozen(config: dict) -> dict:
    """The fields of a comparison's config that every entry shares.

    Without those that were added after entries were made (`ADDED`), where they have their defaults.
    """
    defaults = json.loads(json.dumps(dataclasses.asdict(CompareConfig())))
    shared = {name: value for name, value in config.items() if name not in FREE}
    for field, names in ADDED.items():
        known, usual = shared[field], defaults[field]
        kept = {k: x for k, x in known.items() if k not in names or x != usual[k]}
        shared[field] = kept
    if not shared.get("checkpoint"):
        shared.pop("checkpoint", None)
    return shared


def target() -> dict:
    """The shared fields, as configs/speedrun.py has them, as JSON."""
    config = config_files.load(str(ROOT / "configs" / "speedrun.py"), CompareConfig)
    return frozen(json.loads(json.dumps(dataclasses.asdict(config_files.final(config)))))


def digest(data: Any) -> str:
    """SHA-256 of a file's bytes, or of a value as JSON with sorted keys."""
    if not isinstance(data, bytes):
        data = json.dumps(data, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def losses(results: Results, scheme: Scheme) -> dict[str, list[float] | None]:
    """Each seed's loss at the trained length and at the longest; None where it is not defined.

    Raises:
      ConfigError: a seed is missing or diverged.
    """
    by_length = {}
    for length in (results.manifest.train_length, results.longest):
        windows, problem = scheme.measured(PROTOCOL, length)
        if problem not in ("", "not defined"):
            raise ConfigError(f"{results.workdir}: {scheme.name} at {length}: {problem}")
        by_length[str(length)] = [statistics.fmean(w) for w in windows.values()] or None
    return by_length


def entry(results: Results, scheme: Scheme) -> dict:
    """The entry of one encoding of a comparison.

    Raises:
      ConfigError: a field that is fixed differs, a seed is missing, RoPE was not timed.
    """
    workdir, manifest, fixed = results.workdir, results.manifest, target()
    config = frozen(manifest.config)
    if differing := [name for name in fixed if config.get(name) != fixed[name]]:
        raise ConfigError(f"{workdir}: {', '.join(differing)} differ from configs/speedrun.py")
    by_length = losses(results, scheme)
    rope = next((s for s in results.schemes if s.spec == "rope"), None)
    timed = (results.speed or {}).get("encodings", {})
    if rope is None or "train_ms" not in timed.get(rope.name, {}):
        raise ConfigError(f"{workdir}: pass --encodings=rope too: time is relative to RoPE's")
    rounds = zip(timed[scheme.name]["train_ms"], timed[rope.name]["train_ms"], strict=True)
    folders = [workdir / "runs" / scheme.folder / f"seed{n}" for n in scheme.runs]
    return {
        "encoding": scheme.spec,
        "losses": by_length,
        "time": statistics.median(own / rope for own, rope in rounds),
        "parameters": scheme.fact("parameters"),
        "learning_rate": scheme.fact("learning_rate"),
        "encoding_rate": scheme.fact("encoding_rate"),
        "seeds": manifest.seeds,
        "config": digest(fixed),
        "text": manifest.corpus["digest"],
        "commit": manifest.commit,
        "lock": digest((ROOT / "requirements.txt").read_bytes()),
        "versions": manifest.versions,
        "machine": processor(),
        "date": time.strftime("%Y-%m-%d"),
        "logs": [digest((run / "metrics.jsonl").read_bytes()) for run in folders],
    }


def add(workdir: Path) -> None:
    """Writes the entries of a finished comparison, and the page."""
    results = read(workdir)
    for scheme in results.schemes:
        path = ENTRIES / f"{folder(scheme.spec)}.json"
        save_json(path, entry(results, scheme))
        print(path)
    write_page()


def mean(values: list[float] | None) -> float:
    """The mean over seeds; infinite where the encoding is not defined."""
    return float("inf") if values is None else statistics.fmean(values)


def table(entries: list[dict]) -> str:
    """A row per entry, by the loss at the longest length.

    Bold: no other is lower in both. †: the learning rate is an edge of the grid.
    """
    rates = target()["rates"]
    scores = [tuple(mean(seeds) for seeds in e["losses"].values()) for e in entries]
    lines = []
    for near, far, e in sorted(
        ((*score, e) for score, e in zip(scores, entries, strict=True)),
        key=lambda row: (row[1], row[0]),
    ):
        losses = ["—" if x == float("inf") else f"{x:.3f}" for x in (near, far)]
        first = [f"`{e['encoding']}`", *losses]
        if not any(a <= near and b <= far and (a, b) != (near, far) for a, b in scores):
            first = [f"**{cell}**" for cell in first]
        rate = f"{e['learning_rate']:g}" + " †" * (e["learning_rate"] in (min(rates), max(rates)))
        rate += f" (× {e['encoding_rate']:g})" * (e["encoding_rate"] != 1)
        cells = [*first, f"{e['time']:.2f}", rate, e["date"], e["commit"][:7]]
        lines.append(f"| {' | '.join(cells)} |\n")
    head = "| encoding | 64 | 512 | time | rate | date | commit |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(lines)


def page() -> str:
    """docs/speedrun.md with the table of all entries."""
    entries = [json.loads(path.read_text()) for path in sorted(ENTRIES.glob("*.json"))]
    before, after = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}{table(entries)}{END}{after.split(END)[1]}"


def write_page() -> None:
    """Writes docs/speedrun.md."""
    PAGE.write_text(page(), encoding="utf-8")


def check(path: Path) -> bool:
    """Whether the first seed, trained again, has the losses of an entry within the tolerance.

    Raises:
      ConfigError: the file is not an entry, of another config or of other text.
    """
    try:
        claimed = json.loads(path.read_text())
        config, lengths = claimed["config"], claimed["losses"].items()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no entry: {error}") from None
    if config != digest(target()):
        raise ConfigError(f"{path} was made with another configs/speedrun.py")
    spec = claimed["encoding"]
    with tempfile.TemporaryDirectory() as workdir:
        fields = {
            "workdir": workdir,
            "baseline": spec,
            "reference": spec,
            "seeds": 1,
            "rates": f"({claimed['learning_rate']},)",
            "encoding_rates": f"({claimed['encoding_rate']},)",
        }
        command = [sys.executable, "-m", "experiments.compare", "--config=configs/speedrun.py"]
        command += [f"--encodings={spec}", *(f"--config.{k}={v}" for k, v in fields.items())]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        results = read(Path(workdir))
    here = losses(results, results.schemes[0])
    if results.manifest.corpus["digest"] != claimed["text"]:
        raise ConfigError("the embedded text differs: install the versions of requirements.txt")
    agree = True
    for (length, before), tolerance in zip(lengths, TOLERANCE, strict=True):
        now = here[length]
        if before is None or now is None:
            same = before is now
            print(f"{length}: not defined in {'both' if same else 'one of them'}")
        else:
            same = abs(now[0] - before[0]) <= tolerance
            what = "agrees" if same else "DIFFERS"
            print(f"{length}: {before[0]:.4f} claimed, {now[0]:.4f} here: {what} (± {tolerance})")
        agree = agree and same
    return agree


def main() -> None:
    """Runs one of the three commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add", help="write the entries of a finished comparison")
    adding.add_argument("--workdir", type=Path, default=Path("runs/speedrun"))
    checking = commands.add_parser("check", help="train an entry's first seed again")
    checking.add_argument("entry", type=Path)
    commands.add_parser("table", help="write the page's table")
    options = parser.parse_args()
    with one_line_errors():
        if options.command == "add":
            add(options.workdir)
        elif options.command == "table":
            write_page()
        elif not check(options.entry):
            sys.exit(1)


if __name__ == "__main__":
    main()

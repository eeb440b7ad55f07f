"""The results of a comparison: its manifest, each run's evaluation and metrics, the timings.

`read` takes them from the folder that the comparison filled, `of_table` from a table of results,
as loss_by_length.csv is one. Statistics, figures and pages take either.

Missing values are never filled in: a run that is missing, diverged or cannot be read stays in the
results as such, and a cell that needs it says so, instead of a mean over the others.
"""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.reporting import statistics
from experiments.reporting.scheme_styles import Style, styles
from experiments.running.files import manifest as manifests
from experiments.running.files import table
from experiments.running.files.manifest import Manifest
from experiments.running.files.run_names import rates_name
from experiments.running.files.table import Numbers, Row, Test
from experiments.running.schedule import rate_search
from experiments.running.schedule.rate_search import RATES, Pair
from experiments.running.schedule.work import FAILED
from pe_jax.training.checkpoint import BINDING, difference
from pe_jax.training.config import PROTOCOLS
from pe_jax.validation import ConfigError

REPORTED = "reported.json"  # the subjects of all reports so far
EVALUATION = "evaluation.json"  # of a run
LAST_LOOK = "last_look.json"  # the same on the files that `eval.kept` names

# All runs of a comparison share these; the questions and the reference are declared before them.
SAME = (*BINDING, "steps", "eval", "rates", "encoding_rates", "rate_rounds", "rate_steps")
SAME += ("protocol", "reference", "smallest_effect")
# Which may differ: seeds are joined, text and tokens are compared by digest, schemes one by one.
FREE = ("seed", "data", "tokenizer", "model.encoding", "eval.batch_tokens")


@dataclasses.dataclass(frozen=True)
class Run:
    """One scheme, one seed. `status` is "ok", or says why there are no numbers.

    Attributes:
      seed: None for what no run gave, as a fixed answer.
      numbers: what was measured, by (test, length).
      evaluation: other fields of the file of results.
      metrics: rows by step.
      torn: lines of the metrics that could not be read.
      repeated: steps that were logged again.
    """

    seed: int | None
    status: str = "ok"
    reason: str = ""
    numbers: Numbers = dataclasses.field(default_factory=dict)
    evaluation: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: tuple[dict[str, Any], ...] = ()
    torn: int = 0
    repeated: int = 0
    folder: Path = Path()

    def measured(self, test: str, length: int) -> np.ndarray | str:
        """The numbers of a test, as the loss of every window in nats, or why there are none."""
        if self.status != "ok":
            return self.status
        return self.numbers.get((test, length), "not evaluated")

    def by_position(self) -> np.ndarray | str:
        """Loss at each position of the longest context, or why there is none."""
        saved = (self.evaluation.get("by_position") or {}).get("loss")
        return self.status if self.status != "ok" else _finite(saved)

    def by_step(self) -> dict[int, float] | str:
        """Step → loss at the training length during training, or why there is none."""
        losses = {row["step"]: row.get("eval_loss") for row in self.metrics}
        evaluated = {step: float(x) for step, x in losses.items() if x is not None}
        if self.status != "ok":
            return self.status
        finite = all(map(math.isfinite, evaluated.values()))
        return (evaluated or "not evaluated") if finite else "not finite"


def _finite(saved: Sequence[float] | None) -> np.ndarray | str:
    if saved is None:
        return "not defined"
    losses = np.asarray(saved, np.float64)
    return losses if losses.size and np.isfinite(losses).all() else "not finite"


def losses(evaluation: dict[str, Any]) -> Numbers:
    """The loss of each window, by protocol and length, of a file of results."""
    by_protocol = evaluation.get("losses") or {}
    return {(p, int(n)): _finite(x) for p, by in by_protocol.items() for n, x in by.items()}


def brief(problem: str) -> str:
    """A problem of a cell in one or two words, without its seeds."""
    return re.split(" in (?:seed|document)", problem)[0]


class Cell(NamedTuple):
    """A number over all seeds, or `problem`: why there is none."""

    values: dict[Any, float]
    problem: str
    estimate: statistics.Estimate | None


@dataclasses.dataclass(frozen=True)
class Scheme:
    """One encoding with its runs, by seed, and its short runs, by (rate, multiple).

    `folder` is that of its runs, below `runs` and `rates`; `style` is how figures draw it, None for
    the style of its name. `unit` is what a run is a sample of: one released model has documents
    where trainings have seeds.
    """

    name: str
    spec: str
    index: int
    runs: dict[Any, Run]
    checks: dict[Pair, Run] = dataclasses.field(default_factory=dict)
    folder: str = ""
    style: Style | None = None
    unit: str = "seed"

    def by_seed(self, read: Callable[[Run], Any]) -> tuple[dict[Any, Any], str]:
        """Seed → what `read` finds in its run; and the problems, texts, of the other seeds.

        A problem has its seeds after it; "not defined" has none if it is that of all seeds.
        """
        outcomes = {seed: read(run) for seed, run in self.runs.items()}
        good = {seed: x for seed, x in outcomes.items() if not isinstance(x, str)}
        parts = []
        for trouble in dict.fromkeys(x for x in outcomes.values() if isinstance(x, str)):
            seeds = [seed for seed, x in outcomes.items() if isinstance(x, str) and x == trouble]
            if len(seeds) == len(outcomes) and trouble == "not defined":
                parts.append(trouble)
            else:
                listed = f"{self.unit}{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
                parts.append(f"{trouble} {'in ' * (trouble != 'missing')}{listed}")
        return good, "; ".join(parts)

    def measured(self, test: str, length: int) -> tuple[dict[Any, np.ndarray], str]:
        """Seed → numbers of a test, for the seeds that have them; the problems of the others."""
        return self.by_seed(lambda run: run.measured(test, length))

    def means(self, tests: Iterable[Test]) -> tuple[dict[Any, float], str]:
        """Seed → its mean over tests; or, without all of them, a problem."""
        cells = [self.cell(*test) for test in tests]
        if problems := [cell.problem for cell in cells if cell.problem]:
            return {}, problems[0]
        return {k: float(np.mean([cell.values[k] for cell in cells])) for k in cells[0].values}, ""

    def outcome(self, tests: Sequence[Test]) -> tuple:
        """All numbers of these tests: equal for two schemes only if the computation is the same."""
        runs = ((k, [self.runs[k].measured(*test) for test in tests]) for k in sorted(self.runs))
        return tuple((k, *(x if isinstance(x, str) else x.tobytes() for x in f)) for k, f in runs)

    def by_position(self) -> tuple[dict[int, np.ndarray], str]:
        """Seed → loss at each position of the longest context; the problems of other seeds."""
        return self.by_seed(Run.by_position)

    def by_step(self) -> tuple[dict[int, dict[int, float]], str]:
        """Seed → step → loss at the training length during training; problems of other seeds."""
        return self.by_seed(Run.by_step)

    def cell(self, test: str, length: int) -> Cell:
        """The mean of a test, as the loss at a length, over seeds."""
        good, problem = self.measured(test, length)
        values = {seed: float(w.mean()) for seed, w in good.items()}
        done = not problem and bool(values)
        return Cell(values, problem, statistics.estimate([*values.values()]) if done else None)

    def mean(self, test: str, length: int) -> float | None:
        """The mean of a test; None unless all seeds have one."""
        good, problem = self.measured(test, length)
        return None if problem or not good else float(np.mean([w.mean() for w in good.values()]))

    def fact(self, field: str) -> Any:
        """A field that does not depend on the seed, from the first run that has it."""
        values = (run.evaluation.get(field) for run in self.runs.values())
        return next((value for value in values if value is not None), None)


def told_apart(schemes: Iterable[Scheme]) -> tuple[Scheme, ...]:
    """The schemes of one comparison, or of one figure, each with a style that no other has."""
    schemes = tuple(schemes)
    chosen = styles([(scheme.name, scheme.spec) for scheme in schemes])
    pairs = zip(schemes, chosen, strict=True)
    return tuple(dataclasses.replace(scheme, style=style) for scheme, style in pairs)


class Question(NamedTuple):
    """A question that verdicts answer: losses at a length, declared before the runs."""

    role: str
    protocol: str
    length: int


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a comparison."""

    workdir: Path
    manifest: Manifest
    schemes: tuple[Scheme, ...]
    speed: dict[str, Any] | None
    reported: tuple[dict[str, Any], ...] = ()

    @property
    def subject(self) -> dict[str, Any]:
        """Seeds and schemes of a report, to which more may be added later.

        Schemes are called by their folders: short names change as variants are added.
        """
        return {"seeds": self.manifest.seeds, "encodings": [s.folder for s in self.schemes]}

    @property
    def changes(self) -> str:
        """Describes what was added or left out after a report; "" if nothing was."""
        changes, names = [], {s.folder: s.name for s in self.schemes}
        for field, now in self.subject.items():
            before = [subject[field] for subject in self.reported]
            added = [x for x in now if any(x not in then for then in before)]
            removed = [x for x in dict.fromkeys(itertools.chain(*before)) if x not in now]
            for values, what in ((added, "added"), (removed, "left out")):
                if values:
                    listed = ", ".join(str(names.get(x, x)) for x in values)
                    plural = "s" * (len(values) > 1)
                    changes.append(f"{field.removesuffix('s')}{plural} {listed} {what}")
        return "; ".join(changes)

    def rows(self) -> Iterator[Row]:
        """The table of losses: `parts` has that of every window, from which verdicts follow."""
        lengths = self.manifest.lengths
        return rows(self.schemes, [(p, n) for p in PROTOCOLS for n in lengths])

    def scheme(self, name: str) -> Scheme | None:
        """The scheme of that name."""
        return next((s for s in self.schemes if s.name == name), None)

    @property
    def reference(self) -> Scheme | None:
        """The scheme that the others are compared with, if it was run."""
        return self.scheme(self.manifest.reference)

    @property
    def primary(self) -> tuple[str, int]:
        """(protocol, length) of the primary metric."""
        primary = self.manifest.primary or {}
        return primary.get("protocol", PROTOCOLS[0]), primary.get("length", self.longest)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The primary question, and the secondary one if it was declared."""
        primary, other = Question("primary", *self.primary), self.manifest.secondary
        if not other or (other["protocol"], other["length"]) == self.primary:
            return (primary,)
        return primary, Question("secondary", other["protocol"], other["length"])

    @property
    def effect(self) -> float:
        """The smallest difference of interest, nats per token."""
        return float(self.manifest.smallest_effect)

    @property
    def windows(self) -> int:
        """The most windows of any run at the longest length; 0 without one."""
        runs = (run for scheme in self.schemes for run in scheme.runs.values())
        found = (run.measured(self.primary[0], self.longest) for run in runs)
        return max((x.size for x in found if not isinstance(x, str)), default=0)

    @property
    def longest(self) -> int:
        """The longest length of the evaluation."""
        return max(self.manifest.lengths)


def rows(
    schemes: Iterable[Scheme],
    tests: Sequence[Test],
    variant: str = "",
    positions: Sequence[float] = (),
) -> Iterator[Row]:
    """The table of these tests: a row per seed, or one for each of several positions in a test."""
    for scheme, (test, length) in itertools.product(schemes, tests):
        for seed, run in scheme.runs.items():
            rate, multiple = (run.evaluation.get(name) for name in RATES)
            row = Row(scheme.name, variant, seed, rate, multiple, test, length, None, None)
            found = run.measured(test, length)
            if isinstance(found, str):
                yield row._replace(status=found)
            elif positions:
                for at, value in zip(positions, found.tolist(), strict=True):
                    yield row._replace(position=at, value=value)
            else:
                parts = tuple(found.tolist()) if found.size > 1 else ()
                yield row._replace(value=float(found.mean()), parts=parts)


def of_table(found: Iterable[Row], specs: Mapping[str, str] | None = None) -> tuple[Scheme, ...]:
    """The schemes of a table, of one variant; `specs` by name, where these are others."""
    schemes = []
    for index, (name, by_seed) in enumerate(table.grouped(found).items()):
        runs = {seed: Run(seed, numbers=numbers) for seed, numbers in by_seed.items()}
        schemes.append(Scheme(name, (specs or {}).get(name, name), index, runs))
    return told_apart(schemes)


def check_comparable(
    first: Results, other: Results, may_differ: Container[str], fix: str = "not comparable"
) -> None:
    """Raises ConfigError with the first field that differs between two comparisons.

    The error names `other` first and ends with `fix`; `may_differ` are dotted names of fields that
    are not compared.
    """
    fields = first.manifest.binding, other.manifest.binding
    if found := difference(*fields, SAME, may_differ):
        name, ours, theirs = found
        raise ConfigError(
            f"{other.workdir}: {name}={theirs!r}, and {first.workdir} has {ours!r}: {fix}"
        )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error})") from None


def read_metrics(path: Path) -> tuple[tuple[dict[str, Any], ...], int, int]:
    """(rows by step, torn lines, repeated steps); of a repeated step, the last row is used."""
    lines = path.read_text("utf-8", "replace").splitlines() if path.is_file() else []
    rows, torn, count = {}, 0, 0
    for line in filter(str.strip, lines):
        try:
            row = json.loads(line)
            rows[int(row["step"])] = row
            count += 1
        except (ValueError, TypeError, KeyError):
            torn += 1
    return tuple(rows[step] for step in sorted(rows)), torn, count - len(rows)


def _run(folder: Path, seed: int, name: str = EVALUATION) -> Run:
    """One run; a missing or unreadable file is a status, not an error."""
    metrics = read_metrics(folder / "metrics.jsonl")
    path, about = folder / name, ({}, {}, *metrics, folder)
    if not path.is_file():
        if (failed := path.with_suffix(FAILED)).is_file():
            return Run(seed, "failed", str(_json(failed).get("reason")), *about)
        return Run(seed, "missing", f"no {name}: not finished, or it failed", *about)
    try:
        return evaluated(seed, _json(path), *metrics, folder)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Run(seed, "unreadable", f"{name}: {type(error).__name__}", *about)


def evaluated(seed: int, evaluation: dict[str, Any], *about: Any) -> Run:
    """The run of an evaluation, and what else is known `about` it, from its metrics on."""
    status, reason = str(evaluation["status"]), str(evaluation.get("reason") or "")
    numbers = losses(evaluation) if status != "failed" else {}
    loss = evaluation.get("train_loss")
    if status == "ok" and loss is not None and not math.isfinite(loss):
        status, reason = "diverged", f"the training loss is {loss}"
    return Run(seed, status, reason, numbers, evaluation, *about)


def rate_folder(folder: str, rate: float, encoding_rate: float) -> Path:
    """The folder of a short run at a learning rate and its multiple, under the workdir."""
    return Path("rates", folder, rates_name(rate, encoding_rate))


def read_check(workdir: Path, folder: str, pair: Pair, seed: int) -> Run:
    """The short run of an encoding with a (rate, multiple)."""
    path = workdir / rate_folder(folder, *pair)
    old = workdir / "rates" / folder / repr(float(pair[0]))  # before encoding rates existed
    return _run(old if pair[1] == 1 and not path.exists() and old.exists() else path, seed)


def rate_loss(check: Run, length: int) -> float:
    """Loss at the training length; infinite if the run gave none."""
    windows = check.measured(PROTOCOLS[0], length)
    return math.inf if isinstance(windows, str) else float(windows.mean())


def _read_checks(workdir: Path, folder: str, manifest: Manifest, entry: dict) -> dict[Pair, Run]:
    """The short runs of an encoding, by (rate, multiple): its grid's, and those tried after it."""
    checks: dict[Pair, Run] = {}
    grid = entry.get("checks")
    if grid is None:
        grid = [(rate, 1.0) for rate in manifest.rates]

    pairs = [(float(rate), float(multiple)) for rate, multiple in grid]
    losses: rate_search.Losses = {}
    while missing := rate_search.untried(pairs, losses, manifest.rate_rounds):
        for pair in missing:
            checks[pair] = read_check(workdir, folder, pair, manifest.seeds[0])
            losses[pair] = rate_loss(checks[pair], manifest.train_length)
    return checks


def read(workdir: Path, evaluation: str = EVALUATION) -> Results:
    """Reads a comparison, its losses from these files of its runs.

    Raises:
      ConfigError: there is no manifest; it or the timings cannot be read, or lack a field; a name
        leaves `runs/`.
    """
    manifest = manifests.read(workdir)
    workdir = workdir.resolve()
    schemes = []
    for index, entry in enumerate(manifest.encodings):
        name = str(entry["name"])
        folder = str(entry.get("folder", name))  # the first comparisons had names for folders
        path = workdir / "runs" / folder  # which may be a link, to a larger disk
        if "\0" in folder or folder in ("", ".", "..") or Path(folder).name != folder:
            raise ConfigError(f"encoding {name!r}: its folder {folder!r} would be outside runs/")
        runs = {seed: _run(path / f"seed{seed}", seed, evaluation) for seed in manifest.seeds}
        checks = _read_checks(workdir, folder, manifest, entry)
        schemes.append(Scheme(name, str(entry["spec"]), index, runs, checks, folder))
    path = workdir / "speed.json"
    speed = _json(path) if path.is_file() else None
    return Results(workdir, manifest, told_apart(schemes), speed, reports(workdir))


def reports(workdir: Path) -> tuple[dict[str, Any], ...]:
    """The subjects of the reports that were written to a folder."""
    path = workdir / REPORTED
    return tuple(_json(path)) if path.is_file() else ()

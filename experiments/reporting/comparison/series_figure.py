"""Paired differences to the reference against the size of the model, or the steps of training.

Each size, or number of steps, is a separate comparison: the same text, length, batch and
evaluation, and rates that were chosen for it. A difference is the mean over the seeds of one
comparison with its 95 % t interval, paired by seed over the same windows, without correction:
verdicts are in the report of each comparison. A trend is the slope of such differences.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table
from rich.text import Text

from experiments.reporting import results, statistics
from experiments.reporting.comparison import sentences
from experiments.reporting.comparison.figures import band, each_seed
from experiments.reporting.plotting import (
    POINTS,
    Drawing,
    canvas,
    label,
    log2_axis,
    look,
    name_lines,
    styled,
)
from experiments.reporting.results import Results, Scheme, told_apart
from experiments.reporting.statistics import CLAIM_SEEDS, Estimate, number
from experiments.reporting.verdicts import paired_difference
from experiments.running.files.run_names import short_names
from experiments.running.schedule.rate_search import RATES
from pe_jax.validation import ConfigError

FREE = {*results.FREE, "steps", "optimizer.warmup", *(f"optimizer.{name}" for name in RATES)}
FREE |= {"rates", "encoding_rates", "rate_rounds", "rate_steps", "smallest_effect"}
FREE |= {f"model.{name}" for name in ("vocab", "width", "layers", "heads", "kv_heads")}
FREE |= {"model.head_dim", "model.mlp_width"}
AXES = {"parameters": "size", "steps": "number of steps"}  # what varies, and what that is
HEADER = ("encoding", "parameters", "steps", "length", "mean", "low", "high", "p", "each_seed")


class Point(NamedTuple):
    """The difference of one scheme to the reference, in one comparison.

    `parameters` are those of the reference's model, so that the schemes of a size share an x value;
    `seeds` are those of the difference's values.
    """

    scheme: Scheme
    parameters: int
    steps: int
    length: int
    difference: Estimate
    seeds: tuple[int, ...]


def read(folders: Sequence[Path]) -> list[Results]:
    """The comparisons, the smallest model first; those of one size by their steps.

    Raises:
      ConfigError: two of them differ in more than size, steps, seeds, schemes and rates; some but
        not all have one size, or two of one size the same steps; one has no finished run of its
        reference.

    Schemes have the names that tell them apart in all of these comparisons.
    """
    about = {"parameters": parameters, "steps": lambda x: x.manifest.steps}
    series = sorted(map(results.read, folders), key=lambda x: [get(x) for get in about.values()])
    varied = _varied(map(parameters, series))
    value = about[varied]
    specs = [scheme.spec for part in series for scheme in part.schemes]
    names = short_names([*dict.fromkeys(specs)])
    series = [_renamed(part, names) for part in series]
    for first, other in itertools.pairwise(series):
        ours, theirs = (x.reference and x.reference.spec for x in (first, other))
        if ours != theirs:
            raise ConfigError(
                f"{other.workdir}: its reference is {theirs}, that of {first.workdir} is {ours}"
            )
        results.check_comparable(first, other, FREE, "only sizes, or steps, may differ")
        if value(first) == value(other):
            raise ConfigError(
                f"{other.workdir}: {value(other):,} {varied}, as in {first.workdir}; in a series"
                " every comparison has another size, or with one size other steps"
            )
    return series


def _renamed(comparison: Results, names: dict[str, str]) -> Results:
    """The comparison with these names of its schemes, by their config strings."""
    assert comparison.reference is not None  # `parameters` has asked for it
    reference = names[comparison.reference.spec]
    manifest = dataclasses.replace(comparison.manifest, reference=reference)
    schemes = (dataclasses.replace(s, name=names[s.spec]) for s in comparison.schemes)
    return dataclasses.replace(comparison, manifest=manifest, schemes=tuple(schemes))


def _varied(sizes: Iterable[int]) -> str:
    """What the comparisons differ in: "parameters", or "steps" if all have one size."""
    return "parameters" if len({*sizes}) > 1 else "steps"


def parameters(comparison: Results) -> int:
    """Parameters of the reference's model."""
    count = comparison.reference and comparison.reference.fact("parameters")
    if count is None:
        raise ConfigError(f"{comparison.workdir}: no finished run of its reference")
    return count


def draw(folders: Sequence[Path]) -> tuple[Drawing, Table]:
    """The figure of the comparisons in these folders, and its slopes for the terminal.

    Raises:
      ConfigError: as `read` does; no scheme has losses to compare with the reference.
    """
    series = read(folders)
    reference, compared = series[0].reference, points(series)
    assert reference is not None
    if not compared:
        raise ConfigError(
            f"{series[0].workdir}: no scheme has losses to compare with its reference"
        )
    return differences(compared, reference), slope_table(compared, reference)


def points(comparisons: Sequence[Results]) -> list[Point]:
    """Every difference at the trained and at the longest length, where there is one."""
    series = []
    for part in comparisons:
        reference = part.reference
        assert reference is not None
        about = parameters(part), part.manifest.steps
        for length in sorted({part.manifest.train_length, part.longest}):
            for scheme in part.schemes:
                d = paired_difference(scheme, reference, part.primary[0], length)
                if scheme is not reference and isinstance(d, Estimate):
                    seeds = tuple(sorted(scheme.measured(part.primary[0], length)[0]))
                    series.append(Point(scheme, *about, length, d, seeds))
    return series


def slopes(found: Sequence[Point]) -> dict[tuple[int, str], Estimate]:
    """(length, scheme) → change of its difference per doubling of what varies.

    The slope of a straight line by least squares, for each seed that all comparisons share, so that
    the interval is over seeds as that of a difference is. At least three comparisons, all of which
    have the scheme, and as many seeds as a claim needs: a line through two sizes shows no trend.
    """
    varied = _varied(p.parameters for p in found)
    lines: dict[tuple[int, str], list[Point]] = {}
    for p in found:
        lines.setdefault((p.length, p.scheme.name), []).append(p)
    sizes = {getattr(p, varied) for p in found}
    trends = {}
    for key, line in sorted(lines.items(), key=lambda item: item[0][0]):
        seeds = sorted(set.intersection(*(set(p.seeds) for p in line)))
        if len(line) == len(sizes) >= 3 and len(seeds) >= CLAIM_SEEDS:
            doublings = np.log2([getattr(p, varied) for p in line])
            values = [[p.difference.values[p.seeds.index(k)] for k in seeds] for p in line]
            trends[key] = statistics.estimate(np.polyfit(doublings, values, 1)[0].tolist())
    return trends


def slope_table(found: Sequence[Point], reference: Scheme) -> Table:
    """The slopes with their 95 % t intervals, each of one scheme and length, without correction."""
    varied = _varied(p.parameters for p in found)
    minus = f"Difference to {reference.name} per doubling of the {varied} (nats per token)"
    table = Table(title=Text(minus), title_justify="left")
    for column in ("encoding", "length", "slope", "95 %", "seeds"):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    for (length, name), d in slopes(found).items():
        low, high = (number(x, 3, signed=True) for x in (d.low, d.high))
        cells = name, f"{length:,}", number(d.mean, 3, signed=True), f"[{low}, {high}]", str(d.n)
        table.add_row(*map(Text, cells))
    return table


@styled
def differences(found: Sequence[Point], reference: Scheme) -> Drawing:
    """One panel per length; a line per scheme with its 95 % interval, the reference at 0."""
    lengths = sorted({p.length for p in found})
    varied = _varied(p.parameters for p in found)
    values = sorted({getattr(p, varied) for p in found})
    by_length: dict[int, dict[str, dict[int, Estimate]]] = {length: {} for length in lengths}
    for p in found:
        by_length[p.length].setdefault(p.scheme.name, {})[getattr(p, varied)] = p.difference
    title = sentences.series_title(by_length, reference.name, AXES[varied])
    figure, panels = canvas(4.9 * len(lengths), 4.4, columns=len(lengths), title=title)
    schemes = {p.scheme.name: p.scheme for p in found}
    reference, *others = told_apart([reference, *schemes.values()])
    for axes, length in zip(panels, lengths, strict=True):
        ends: list[tuple[Scheme, float, float]] = []
        for scheme in others:
            line = by_length[length].get(scheme.name, {})
            parts = [[*x] for there, x in itertools.groupby(values, line.__contains__) if there]
            drawn = [band(axes, scheme, at, [line[x] for x in at]) for at in parts]
            ends += drawn[-1:]  # a line has a gap where a comparison lacks its scheme
        axes.plot(values, np.zeros(len(values)), **POINTS, **look(reference))
        log2_axis(axes, values)
        if varied == "parameters":
            axes.set_xticks(values, [f"{n / 1e6:.2g}M" for n in values])
        axes.set(xlabel=f"{varied}; loss at {length:,} tokens")
        name_lines(axes, [*ends, (reference, values[-1], 0.0)])
    panels[0].set_ylabel(f"loss minus that of {label(reference.name)} (nats per token)")
    alt = (
        f"Paired difference of each scheme's loss to {reference.name} against {varied}, with 95 %"
        f" intervals over seeds. {title}"
    )
    rows = [
        (p.scheme.name, p.parameters, p.steps, p.length, d.mean, d.low, d.high, d.p, each_seed(d))
        for p in found
        for d in [p.difference]
    ]
    return Drawing(f"differences-by-{varied}", figure, HEADER, rows, alt)

"""The report of a comparison on images: a table and a figure of accuracies."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import rich.table

from experiments.reporting import plotting, statistics
from experiments.reporting.accuracy_differences import judged, line
from experiments.reporting.results import Scheme, brief
from experiments.running.configs.images import IMAGES, ImagesConfig
from experiments.running.files.run_names import title
from experiments.running.files.table import Row
from experiments.running.schedule.rate_search import pair_words


class View(NamedTuple):
    """Images of one size: "trained", "wider" or "finer"."""

    kind: str
    side: int
    zoom: float

    @property
    def name(self) -> str:
        """The title of its column."""
        return f"{self.kind} {self.side}"

    @property
    def test(self) -> tuple[str, int]:
        """Its test in the table."""
        return self.kind, self.side


def views(config: ImagesConfig) -> list[View]:
    """The training size, then the larger ones as a wider and as a finer view."""
    first, *larger = config.sides
    wider = [View("wider", side, 1.0) for side in larger]
    return [View("trained", first, 1.0), *wider, *(View("finer", s, s / first) for s in larger)]


def names(config: ImagesConfig) -> list[str]:
    """The name of each of the config's entries."""
    entries = config.entries
    return [title(spec, convention, entries, "index") for spec, convention in entries]


def rows(config: ImagesConfig, runs: dict) -> Iterator[Row]:
    """The table of all entries; `runs`: (spec, convention) → seed → its result."""
    for name, (spec, convention) in zip(names(config), config.entries, strict=True):
        for view in views(config):
            for seed, run in runs[spec, convention].items():
                rates = run["learning_rate"], run["encoding_rate"]
                row = Row(name, convention, seed, *rates, *view.test, None, None)
                if run["status"] != "ok":
                    yield row._replace(status=run["status"])
                elif (value := run["accuracy"][convention][view.name]) is None:
                    yield row._replace(status="not defined")
                else:
                    yield row._replace(value=value)


def cell(scheme: Scheme, view: View) -> str:
    """Mean ± standard deviation over seeds, or why there is no number."""
    values, problem, _ = scheme.cell(*view.test)
    return brief(problem) or statistics.shown([*values.values()], 3)


def table(config: ImagesConfig, schemes: Sequence[Scheme], rows: Sequence[Row]) -> rich.table.Table:
    """Accuracy of each encoding in each view, and the learning rate of it (of its parameters)."""
    chance = IMAGES[config.images].CHANCE
    caption = f"Chance is {chance:g}. Mean ± standard deviation over {config.seeds} seeds."
    accuracies = rich.table.Table("encoding", "rate", title="Accuracy", caption=caption)
    rates = {r.scheme: (r.learning_rate or 0.0, r.encoding_rate or 1.0) for r in rows}
    for view in views(config):
        accuracies.add_column(view.name, justify="right")
    for scheme in schemes:
        used = pair_words(rates[scheme.name])
        accuracies.add_row(scheme.name, used, *(cell(scheme, view) for view in views(config)))
    return accuracies


def differences(config: ImagesConfig, schemes: Sequence[Scheme]) -> dict[str, list[dict]]:
    """Each scheme minus `reference`, by kind of view, mean over its sides; a kind is a family."""
    reference = schemes[config.encodings.index(config.reference)]
    compared = [(scheme, reference) for scheme in schemes if scheme is not reference]
    kinds: dict[str, dict] = {}
    for view in views(config):
        kinds.setdefault(view.kind, {})[view.name] = [view.test]
    return {kind: judged(compared, tests, "images") for kind, tests in kinds.items()}


def lines(differences: dict[str, list[dict]]) -> list[str]:
    """The differences for the terminal."""
    return [f"{kind}: {line(row)}" for kind, family in differences.items() for row in family]


def best(config: ImagesConfig, schemes: Sequence[Scheme]) -> str:
    """Which encoding has the highest mean on the widest and on the finest view."""
    side, words = config.sides[-1], []
    for view in (view for view in views(config) if view.side == side):
        means = {s.name: x for s in schemes if (x := s.mean(*view.test)) is not None}
        if means:
            name = max(means, key=means.__getitem__)
            words.append(f"{name} {means[name]:.2f} ({view.kind})")
    return f"Highest mean at {side} pixels: {'; '.join(words)}"


@plotting.styled
def figure(config: ImagesConfig, schemes: Sequence[Scheme]) -> plotting.Drawing:
    """Accuracy against the side of the image: wider views above, finer below; one dot per seed."""
    drawn, all_axes = plotting.canvas(6.4, 7.8, 2, title=best(config, schemes))
    for axes, kind in zip(all_axes, ("wider", "finer"), strict=True):
        visible, ends = [view for view in views(config) if view.kind in ("trained", kind)], []
        for scheme in schemes:
            ends += plotting.seeds(axes, scheme, {v.side: scheme.cell(*v.test) for v in visible})
        axes.axhline(IMAGES[config.images].CHANCE, color=plotting.MUTED, lw=0.9, zorder=0.5)
        axes.set(xlabel="side of the image (pixels)", ylabel="accuracy", ylim=(0, 1.12))
        axes.set(title=f"A {kind} view", xticks=config.sides, yticks=np.linspace(0, 1, 6))
        plotting.mark_length(axes, config.sides[0])
        plotting.name_lines(axes, ends)
    alt = "Accuracy of each encoding against the side of the image, wider and finer views"
    return plotting.Drawing("accuracy", drawn, alt=alt)

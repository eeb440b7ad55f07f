"""The report of a comparison on images: a table and a figure of accuracies."""

from typing import NamedTuple

import numpy as np
import rich.table

from experiments.reporting import plotting, statistics
from experiments.reporting.accuracy_differences import difference, judged, line
from experiments.reporting.results import Scheme, told_apart
from experiments.running.configs.images import IMAGES, ImagesConfig
from experiments.running.run_names import find

HEADER = (
    *("encoding", "positions", "view", "side", "seed", "accuracy"),
    *("learning_rate", "encoding_rate"),
)


class View(NamedTuple):
    """Images of one size: "trained", "wider" or "finer"."""

    kind: str
    side: int
    zoom: float

    @property
    def name(self) -> str:
        """The title of its column."""
        return f"{self.kind} {self.side}"


def views(config: ImagesConfig) -> list[View]:
    """The training size, then the larger ones as a wider and as a finer view."""
    first, *larger = config.sides
    wider = [View("wider", side, 1.0) for side in larger]
    return [View("trained", first, 1.0), *wider, *(View("finer", s, s / first) for s in larger)]


def cell(entry: dict, view: View) -> str:
    """Mean ± standard deviation over seeds, or why there is no number."""
    accuracy = _by_seed(entry, view.name)
    return accuracy if isinstance(accuracy, str) else statistics.shown([*accuracy.values()], 3)


def table(config: ImagesConfig, entries: list[dict]) -> rich.table.Table:
    """Accuracy of each encoding in each view, and the learning rate of it (of its parameters)."""
    chance = IMAGES[config.images].CHANCE
    caption = f"Chance is {chance:g}. Mean ± standard deviation over {config.seeds} seeds."
    accuracies = rich.table.Table("encoding", "rate", title="Accuracy", caption=caption)
    for view in views(config):
        accuracies.add_column(view.name, justify="right")
    for entry in entries:
        rate, multiple = entry["rates"]
        used = f"{rate:g}" + (f" (× {multiple:g})" if multiple != 1 else "")
        accuracies.add_row(entry["name"], used, *(cell(entry, view) for view in views(config)))
    return accuracies


def differences(config: ImagesConfig, entries: list[dict]) -> dict[str, list[dict]]:
    """Each entry minus `reference`, by kind of view, mean over its sides; a kind is a family."""
    spec = find("reference", config.reference, config.encodings)
    reference = entries[config.encodings.index(spec)]
    compared = [e for e in entries if e is not reference]
    judgements = {}
    for kind in dict.fromkeys(view.kind for view in views(config)):
        names = [view.name for view in views(config) if view.kind == kind]
        paired = [difference(e, reference, names, _by_seed) for e in compared]
        numbers = {d.of: e["accuracy"] for d, e in zip(paired, compared, strict=True) if d.estimate}
        texts = {of: repr([x[name] for name in names]) for of, x in numbers.items()}
        reference_text = repr([reference["accuracy"][name] for name in names])
        judgements[kind] = judged(paired, "images", statistics.copies(texts, reference_text))
    return judgements


def _by_seed(entry: dict, view: str) -> dict | str:
    """The accuracy of each seed in a view, or why there is none."""
    if lost := [status for status in entry["status"].values() if status != "ok"]:
        return lost[0]
    accuracy = entry["accuracy"][view]
    return "not defined" if None in accuracy.values() else accuracy


def lines(differences: dict[str, list[dict]]) -> list[str]:
    """The differences for the terminal."""
    return [f"{kind}: {line(row)}" for kind, family in differences.items() for row in family]


def best(config: ImagesConfig, entries: list[dict]) -> str:
    """Which encoding has the highest mean on the widest and on the finest view."""
    side, words = config.sides[-1], []
    for view in (view for view in views(config) if view.side == side):
        values = {e["name"]: [*e["accuracy"][view.name].values()] for e in entries}
        means = {name: float(np.mean(v)) for name, v in values.items() if None not in v}
        if means:
            name = max(means, key=means.__getitem__)
            words.append(f"{name} {means[name]:.2f} ({view.kind})")
    return f"Highest mean at {side} pixels: {'; '.join(words)}"


@plotting.styled
def figure(config: ImagesConfig, entries: list[dict], rows: list[tuple]) -> plotting.Drawing:
    """Accuracy against the side of the image: wider views above, finer below; one dot per seed."""
    drawn, all_axes = plotting.canvas(6.4, 7.8, 2, title=best(config, entries))
    schemes = told_apart(Scheme(e["name"], e["spec"], k, {}) for k, e in enumerate(entries))
    for axes, kind in zip(all_axes, ("wider", "finer"), strict=True):
        ends = []
        for scheme, entry in zip(schemes, entries, strict=True):
            points, dots = [], plotting.look(scheme, line=False)
            for view in views(config):
                values = [*entry["accuracy"][view.name].values()]
                if view.kind in ("trained", kind) and None not in values:
                    points.append((view.side, float(np.mean(values))))
                    axes.plot([view.side] * len(values), values, ms=2.5, alpha=0.5, **dots)
            if points:
                line = plotting.look(scheme)
                axes.plot(*zip(*points, strict=True), lw=1.7, ms=5.5, **line)
                ends.append((scheme, *points[-1]))
        axes.axhline(IMAGES[config.images].CHANCE, color=plotting.MUTED, lw=0.9, zorder=0.5)
        axes.set(xlabel="side of the image (pixels)", ylabel="accuracy", ylim=(0, 1.12))
        axes.set(title=f"A {kind} view", xticks=config.sides, yticks=np.linspace(0, 1, 6))
        plotting.mark_length(axes, config.sides[0])
        plotting.name_lines(axes, ends)
    alt = "Accuracy of each encoding against the side of the image, wider and finer views"
    return plotting.Drawing("accuracy", drawn, HEADER, rows, alt)

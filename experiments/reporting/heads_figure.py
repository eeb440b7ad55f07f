"""What the heads of a model do with positions, as one figure and a table of all numbers."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from experiments.measuring.heads import Findings, bands
from experiments.reporting import plotting

HEADER = ("measure", "layer", "head", "at", "value")  # `at`: a wavelength, distances, or nothing


def wavelengths(findings: Findings) -> list[np.ndarray]:
    """Tokens per turn of each rotated pair, by layer: float64 [F]."""
    return [2 * np.pi / layer.frequencies for layer in findings.layers]


def turns(findings: Findings, trained: int) -> np.ndarray:
    """Turns of each layer's strongest pair within what the layer sees: float64 [N].

    That is its window, or `trained` tokens; NaN where nothing rotates.
    """
    found = np.full(len(findings.layers), np.nan)
    for n, layer in enumerate(findings.layers):
        if len(layer.frequencies):
            strongest = layer.frequencies[layer.pair_norms.mean(0).argmax()]
            found[n] = (layer.span or trained) * strongest / (2 * np.pi)
    return found


def rows(findings: Findings, tokens: int, trained: int) -> Iterator[tuple[Any, ...]]:
    """All numbers: a row for each measure, layer and head."""
    waves, seen = wavelengths(findings), turns(findings, trained)
    for n, layer in enumerate(findings.layers):
        for head in range(len(layer.first)):
            for tokens_per_turn, value in zip(waves[n], layer.pair_norms[head], strict=True):
                yield "pair norms", n, head, f"{tokens_per_turn:.4g}", f"{value:.5g}"
            for band, value in zip(bands(tokens), layer.by_distance[head], strict=True):
                yield "weight by distance", n, head, band, f"{value:.5g}"
            yield "weight on the first token", n, head, "", f"{layer.first[head]:.5g}"
        if not np.isnan(seen[n]):
            yield "turns of the strongest pair in what the layer sees", n, "", "", f"{seen[n]:.4f}"
        if not np.isnan(findings.without[n]):
            yield "loss without its encoding", n, "", "", f"{findings.without[n]:.5f}"


@plotting.styled
def draw(findings: Findings, name: str, tokens: int, trained: int) -> plotting.Drawing:
    """Four panels: pairs by frequency, weight by distance, the first token, layers left out."""
    title, count = f"{name}, {tokens:,} tokens", len(findings.layers)
    figure, panels = plotting.canvas(11.5, max(6.5, 2.4 + 0.26 * count), 2, 2)
    say = [_pairs(panels[0], findings, trained), _distances(panels[1], findings, tokens)]
    say += [_first(panels[2], findings), _without(panels[3], findings)]
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    kinds = "Rotated pairs", "Weight by distance", "First token", "Without positions"
    told = "; ".join(f"{kind}: {x}" for kind, x in zip(kinds, say, strict=True) if x)
    alt = f"{title}. {told}."
    return plotting.Drawing("heads", figure, HEADER, [*rows(findings, tokens, trained)], alt)


def _map(axes: Axes, values: np.ndarray, unit: str, title: str, ticks: dict[int, str]) -> None:
    """A map with a row for each layer."""
    plotting.heat(axes, values, unit)
    axes.set_aspect("auto")
    axes.set_title(title, fontsize=9.5)
    axes.set_ylabel("layer")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xticks([*ticks], [*ticks.values()], fontsize=7.5)


def _pairs(axes: Axes, findings: Findings, trained: int) -> str:
    """Mean over heads of each pair's norms; columns are tokens per turn, of the first rotation."""
    width = max(len(layer.frequencies) for layer in findings.layers)
    if not width:
        axes.set_axis_off()
        return ""
    values = np.full((len(findings.layers), width), np.nan)
    for n, layer in enumerate(findings.layers):
        values[n, : len(layer.frequencies)] = layer.pair_norms.mean(0)
    waves, seen = wavelengths(findings), turns(findings, trained)
    low, middle, high = np.nanpercentile(seen, (25, 50, 75))
    said = f"strongest {middle:.2f} turns ({low:.2f}–{high:.2f}) in what a layer sees"
    same = all(len(x) in (0, width) and np.array_equal(x, waves[0][: len(x)]) for x in waves)
    words = "tokens per turn" if same else "pair of channels; bases differ by layer"
    named = [f"{x:,.0f}" for x in waves[0]] if same else [str(i) for i in range(width)]
    ticks = {i: named[i] for i in range(0, width, max(1, width // 8))}
    _map(axes, np.nan_to_num(values), "|q|·|k|, in scores", f"Rotated pairs: {said}", ticks)
    axes.set_xlabel(f"{words}; trained to {trained:,} tokens")
    return said


def _distances(axes: Axes, findings: Findings, tokens: int) -> str:
    names = bands(tokens)
    values = np.stack([layer.by_distance.mean(0) for layer in findings.layers])
    near = values[:, :5].sum(1)  # up to 15 tokens back
    layer = int(np.argmax(near))
    said = f"in layer {layer} {near[layer]:.0%} within 16"
    ticks = dict(enumerate(names))
    _map(axes, values, "weight", f"How far back, but the first token: {said}", ticks)
    axes.set_xlabel("tokens back")
    axes.tick_params(axis="x", labelrotation=45)
    return said


def _first(axes: Axes, findings: Findings) -> str:
    values = np.stack([layer.first for layer in findings.layers])
    share = values.mean(1)
    said = f"over a third of the weight in {np.sum(share > 1 / 3)} of {len(share)} layers"
    _map(
        axes,
        values,
        "weight",
        f"The first token: {said}",
        {n: str(n) for n in range(values.shape[1])},
    )
    axes.set_xlabel("head")
    return said


def _without(axes: Axes, findings: Findings) -> str:
    lost = findings.without - findings.loss
    if np.isnan(lost).all():
        axes.set_axis_off()
        return ""
    worst = int(np.nanargmax(lost))
    said = f"{lost[worst]:.2f} nats in layer {worst}"
    axes.barh(np.arange(len(lost)), np.nan_to_num(lost), color=plotting.SHADES[1], height=0.7)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(len(lost) - 0.5, -0.5)
    axes.grid(axis="x")
    axes.grid(visible=False, axis="y")
    axes.set_title(f"One layer without positions: {said}", fontsize=9.5)
    axes.set(ylabel="layer", xlabel=f"nats per token added to {findings.loss:.2f}")
    return said

"""Draws RoPE, ALiBi and T5 as they are defined, before any training: a page and figures."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import markupsafe
import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes

from experiments.reporting import html_page, plotting, statistics
from experiments.reporting.plotting import Drawing, canvas, log2_axis, name_lines, styled
from experiments.reporting.results import Scheme
from experiments.reporting.scheme_styles import KNOWN
from pe_jax.encodings import alibi, rope, rope_scaling, t5

COMMAND = "python -m experiments.explore"
SCRIPTS = ("formulas.js", "widgets.js", "explore.js")
SHADES = 9  # of a map's colours, between which the page blends
HEAD_DIM = 128  # of Llama
BASES = {"base 1e4": 1e4, "base 5e5": 5e5, "base 1e6": 1e6}
THETA = 0.1  # radians per token, the same for all pairs: a turn in 63 tokens
SHARED = f"all θ = {THETA}"
NEAR = np.arange(257)
FAR = np.arange(1, 2**15 + 1)
HEADS = (8, 12, 16)
# Phi-3-mini-128k (its published config): a head of 96, base 1e4, 4,096 tokens stretched 32 times
PHI = {"dim": 96, "base": 1e4}
TRAINED, FACTOR = 4096, 32.0
PHI_LONG = (
    *(1.03, 1.05, 1.05, 1.08, 1.23, 1.23, 1.3, 1.45, 1.6, 1.65, 1.9, 2.86, 3.69, 5.42, 5.49, 5.49),
    *(9.09, 11.58, 15.66, 15.77, 15.79, 18.36, 21.99, 23.08, 30.01, 32.35, 32.59, 35.56, 39.95),
    *(53.84, 56.2, 57.95, 59.29, 59.77, 59.92, 61.19, 61.96, 62.5, 63.37, 63.48, 63.48, 63.66),
    *(63.85, 64.08, 64.76, 64.8, 64.81, 64.81),
)


def mean_product(theta: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """E[q·R_d q]/E[q·q] over normal q: the mean of cos(d·θ_i) over the pairs."""
    return np.cos(distance[:, None] * theta).mean(1)


def bound(theta: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """The mean of |S_i|, S_i = Σ_{j<i} e^{i·d·θ_j}, over i ≤ E/2, relative to its value at 0.

    It bounds |q·R_d k| up to a factor of q and k alone: RoFormer (arXiv 2104.09864), §3.4.3.
    """
    sums = np.zeros(distance.size, complex)
    total = np.zeros(distance.size)
    for angle in theta:
        sums += np.exp(1j * distance * angle)
        total += np.abs(sums)
    return total / np.arange(1, theta.size + 1).sum()


def _lines(
    axes: Axes, x: np.ndarray, curves: dict[str, np.ndarray], width: Sequence[float] = (), **style
) -> list[tuple]:
    """Draws lines, each named at its end; returns (name, x, y) of every point.

    Different widths keep overlapping lines visible.
    """
    named = [Scheme(name, "", i, {}) for i, name in enumerate(curves)]
    widths = width or (1.3,) * len(named)
    shades = [*plotting.SHADES] if len(named) <= len(plotting.SHADES) else _ramp(len(named))

    def dress(line: Scheme) -> dict[str, Any]:
        if line.name in KNOWN:
            return plotting.look(line) | {"gid": None}
        return {"color": shades[line.index], "gid": None, "marker": "o"}

    for scheme, y, lw in zip(named, curves.values(), widths, strict=True):
        axes.plot(x, y, color=dress(scheme)["color"], lw=lw, **style)
    name_lines(axes, [(s, x[-1], curves[s.name][-1]) for s in named], dress=dress)
    return [(name, *point) for name, y in curves.items() for point in zip(x, y, strict=True)]


def _ramp(count: int) -> list[str]:
    """Shades from dark to pale."""
    return [*map(colors.to_hex, plotting.FALLING(np.linspace(0, 0.75, count)))]


@styled
def rope_decay() -> Drawing:
    """How q·k falls with the distance: its mean where q = k, and RoFormer's bound on it."""
    theta = {SHARED: np.full(HEAD_DIM // 2, THETA)}
    theta |= {n: np.asarray(rope.frequencies(HEAD_DIM, b), float) for n, b in BASES.items()}
    figure, (mean, most) = canvas(6.2, 6.4, 2)
    mean.set(title=f"mean of q·k where q = k is random, head of {HEAD_DIM}")
    mean.set(xlabel="distance (tokens)")
    mean.set(ylabel="relative to its value at 0")
    curves = {name: mean_product(t, NEAR) for name, t in theta.items()}
    rows = [("mean", *row) for row in _lines(mean, NEAR, curves)]
    log2_axis(most, 8.0 ** np.arange(6))
    most.set(
        title=f"RoFormer's bound on q·k, head of {HEAD_DIM}",
        xlabel="distance (tokens; means of log bins)",
    )
    most.set(ylabel="relative to its value at 0", ylim=(0, 1.05))
    smooth = {name: statistics.log_bins(bound(t, FAR)) for name, t in theta.items()}
    centres = smooth[SHARED][0]
    points = _lines(most, centres, {name: y for name, (_, y) in smooth.items()})
    rows += [("bound", *row) for row in points]
    alt = "Decay of rotary dot products with distance, for one angle and three bases"
    return Drawing("rope-decay", figure, ("quantity", "frequencies", "distance", "part"), rows, alt)


@styled
def alibi_slopes() -> Drawing:
    """The slope of each head, and the bias that it gives."""
    figure, (slope, bias) = canvas(6.2, 6.4, 2)
    rows = []
    for i, heads in enumerate(HEADS):
        h, m = np.arange(1, heads + 1), np.asarray(alibi.slopes(heads))
        style: Any = {"color": plotting.SHADES[i], "marker": "os^"[i], "ls": "", "mfc": "none"}
        slope.plot(h, m, ms=6 + 2 * (len(HEADS) - i), mew=1.3, **style)
        slope.plot([], [], ms=6, label=f"{heads} heads", **style)
        rows += [("slope", heads, f"head {n}", None, x) for n, x in zip(h, m, strict=True)]
    slope.set_yscale("log", base=2)
    slope.set_yticks(0.5 ** np.arange(1, 9), [f"1/{2**n}" for n in range(1, 9)])
    slope.set_xticks(np.arange(2, max(HEADS) + 1, 2))
    slope.legend(frameon=False, fontsize=9, loc="lower left")
    slope.set(title="slope of each head", xlabel="head", ylabel="lost per token")
    bias.set(title="bias with 8 heads", xlabel="distance (tokens)", ylabel="added to the score")
    far = np.arange(65)
    values = np.asarray(alibi.bias(far, HEADS[0]))
    points = _lines(bias, far, {f"head {h + 1}": row for h, row in enumerate(values)})
    rows += [("bias", HEADS[0], *row) for row in points]
    alt = "ALiBi: slopes for 8, 12 and 16 heads, and the bias of each of 8 heads against distance"
    header = ("quantity", "heads", "head", "distance", "value")
    return Drawing("alibi", figure, header, rows, alt)


@styled
def t5_buckets() -> Drawing:
    """The bucket of each distance, and where each bucket begins."""
    distance, rows = np.arange(-200, 201), []
    figure, panels = canvas(6.2, 6.4, 2)
    for axes, bidirectional in zip(panels, (False, True), strict=True):
        kind = "bidirectional" if bidirectional else "unidirectional"
        buckets = np.asarray(t5.bucket(distance, bidirectional=bidirectional))
        axes.step(distance, buckets, where="mid", lw=1.4, color=plotting.SHADES[0])
        first = distance[1:][np.diff(buckets) != 0]  # seen from the left; buckets begin near 0
        first = np.where(first > 0, first, first - 1)
        ticks = {"ms": 7, "mew": 0.8, "color": plotting.SHADES[2]}
        axes.plot(first, np.full(first.size, -2.2), "|", **ticks)
        low, high = t5.T5(bidirectional=bidirectional).horizon()
        for edge, text, side in ((low, "up to", "right"), (high, "from", "left")):
            if edge == 0:
                continue
            axes.annotate(
                f"one bucket {text} {edge}".replace("-", "−"),
                (edge, buckets[distance == edge][0]),
                (0, 4),
                textcoords="offset points",
                ha=side,
                fontsize=9,
                color=plotting.MUTED,
            )
        axes.set(title=f"{kind}: 32 buckets", ylabel="bucket", ylim=(-4, 36))
        axes.set_xlabel("distance, query − key (red: where a bucket begins)")
        rows += [(kind, d, b) for d, b in zip(distance, buckets, strict=True)]
    alt = "T5's bucket of each distance, one direction and two"
    return Drawing("t5-buckets", figure, ("kind", "distance", "bucket"), rows, alt)


@styled
def stretched_waves() -> Drawing:
    """How much each scaling lengthens each wave, with Phi-3-mini's settings."""
    longest = int(FACTOR * TRAINED)
    kinds = {
        "linear": rope_scaling.Linear(FACTOR),
        "ntk": rope_scaling.NTK(FACTOR),
        "yarn": rope_scaling.YaRN(factor=FACTOR, original_length=TRAINED),
        "llama3": rope_scaling.Llama3(factor=FACTOR, original_length=TRAINED),
        "longrope": rope_scaling.LongRoPE(
            short_factor=(1.0,) * len(PHI_LONG),
            long_factor=PHI_LONG,
            original_length=TRAINED,
            length=longest,
            factor=FACTOR,
        ),
    }
    plain = np.asarray(rope.frequencies(**PHI), float)
    ratio = {n: plain / np.asarray(rope.frequencies(**PHI, scaling=s)) for n, s in kinds.items()}
    figure, (axes,) = canvas(6.2, 4.4)
    log2_axis(axes, 8.0 ** np.arange(1, 6))
    axes.set_yscale("log", base=2)
    axes.set_yticks(2.0 ** np.arange(7), [f"{2**n}×" for n in range(7)])
    axes.set(xlabel="wavelength before (tokens)", ylabel="wavelength after, as a multiple")
    axes.set_title(f"waves of a head of {PHI['dim']}, stretched from {TRAINED:,} to {longest:,}")
    axes.set_ylim(0.9, 90)
    width = (3.6, 1.2, 3.0, 1.2, 1.2)
    rows = _lines(axes, 2 * np.pi / plain, ratio, width, marker="o", ms=2.5)
    plotting.mark_length(axes, TRAINED)
    alt = f"Stretch of each rotary wave from {TRAINED} to {longest} tokens, five ways"
    return Drawing("rope-scaling", figure, ("method", "wavelength", "ratio"), rows, alt)


FIGURES: tuple[Callable[[], Drawing], ...] = (rope_decay, alibi_slopes, t5_buckets, stretched_waves)


def write(out: Path, figures: Iterable[Callable[[], Drawing]] = FIGURES) -> list[Path]:
    """Writes the figures and the page into a folder; returns the SVG files and the page."""
    written, pictures = [], []
    for draw in figures:
        drawing = draw()
        plotting.write(drawing, out)
        svg = plotting.vector(drawing)
        written.append(out / f"{drawing.stem}.svg")
        written[-1].write_text(svg, encoding="utf-8")
        pictures.append({"svg": markupsafe.Markup(svg), "alt": drawing.alt})
    written.append(out / "explore.html")
    written[-1].write_text(explorer(pictures), encoding="utf-8")
    return written


def explorer(pictures: Sequence[dict[str, str]] = ()) -> str:
    """The page, with the static pictures at its end."""
    ramps = {
        name: " ".join(map(colors.to_hex, ramp(np.linspace(0, 1, SHADES))))
        for name, ramp in (("rising", plotting.RISING), ("signed", plotting.SIGNED))
    }
    colours = " ".join(plotting.SHADES[::2])
    return html_page.render(
        "explore.html.j2", SCRIPTS, pictures=pictures, command=COMMAND, colours=colours, **ramps
    )

"""A picture of each scheme: what it adds to the scores, taken from attention itself.

One experiment for all: an engine that returns the scores is passed to `attention`, and the scores
of the same tokens without any encoding are subtracted. No scheme gets special code. q, k and the
layer's input are the tokens' vectors themselves, after `embed`. `draw` is for the page of all
schemes, with initial parameters; `draw_trained` for a report, with those of its runs.
"""

import dataclasses
import functools
import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import markupsafe
import numpy as np
from matplotlib.axes import Axes
from PIL import Image, ImageColor

import pe_jax
from experiments.reporting import plotting
from experiments.reporting.plotting import SHADES
from experiments.reporting.results import Results, Scheme
from pe_jax import Dims, Encoding, Params, Sum, ValueRotation, positions
from pe_jax.encodings import terms
from pe_jax.encodings.base import abstract_terms
from pe_jax.encodings.windowed import attention_layers, without_window
from pe_jax.engines import block, reference
from pe_jax.validation import ConfigError

DIMS = Dims(width=256, heads=4, kv_heads=4, head_dim=64)
REACH, TOKENS = 128, 48  # tokens of the curve, of the map
LONGEST = 1024  # tokens of the curve of a trained scheme, at most
HEADER = ("panel", "series", "query_or_distance", "key", "value")  # of a trained scheme's data
SIDE, SMALL = 13, 7  # patches per side, where positions have several axes
COLOURS = 64  # of a file
NEAR = 16  # of 255: a pixel this close has the colour of a line
NEARBY = 64  # a scheme that is constant from there on is drawn on a linear axis up to there
UNIT = "added to the score"
ALIKE, RANDOM = "One token, repeated", "Random tokens"
# Settings under which a scheme's effect shows within these few tokens.
DRAWN = {
    "xpos": "xpos(scale_base=64)",
    "temperature": "temperature(floor_scale=16)",
    "rerope": "rerope(window=32)",
    "self_extend": "self_extend(group=8,window=32)",
    "dual_chunk": "dual_chunk(chunk_size=40,local_size=8)",
    "dape": "alibi+dape",
    "inkling": "inkling(extent=64)",
    "liere": "liere(initial=0.3)",
}


def _params(encoding: Encoding) -> Params:
    """Initial parameters; those that are zero, which would show nothing, drawn from N(0, 1/4)."""

    def fill(number: int, leaf: jax.Array) -> jax.Array:
        draw = np.random.default_rng([1, number]).normal(scale=0.5, size=leaf.shape)
        return leaf if leaf.any() else jnp.asarray(draw, leaf.dtype)

    shared, layer = jax.random.split(jax.random.key(0))
    fresh = Params(encoding.init_shared(shared, DIMS), encoding.init_layer(layer, DIMS))
    leaves, tree = jax.tree.flatten(fresh)
    return jax.tree.unflatten(tree, [fill(n, leaf) for n, leaf in enumerate(leaves)])


@dataclasses.dataclass(frozen=True)
class _OfScores(Sum):
    """A sum without the terms that act on outputs: here the output of an engine is the scores."""

    def terms(self, params, dims):
        outside = ValueRotation, terms.Sink
        return tuple(t for t in super().terms(params, dims) if not isinstance(t, outside))


def _scores(spec, terms, q, k, v) -> tuple[jax.Array, jax.Array]:
    """An engine that returns the scores [B, H, T, S] as its output, of rows that add up to 1."""
    pairs = block.visible(spec, terms, q.tokens, k.tokens)
    scores = jnp.where(pairs, reference.scores(spec, terms, q, k, pairs), jnp.nan)
    return scores, jnp.zeros((*scores.shape[:3], 1))


def _look(encoding: Encoding, dims: Dims, causal: bool, params: Params, x, places) -> jax.Array:
    """Scores [B, H, T, T] of tokens x [B, T, D] at positions `places`."""
    x = encoding.embed(params, x, places[None])
    channels = np.arange(dims.heads * dims.head_dim) % dims.width
    q = x[..., channels].reshape(*x.shape[:-1], dims.heads, dims.head_dim)
    k = q[..., :: dims.heads // dims.kv_heads, :]
    call = functools.partial(pe_jax.attention, q, k, k, x=x, causal=causal)
    encoding = without_window(encoding)
    if not isinstance(encoding, Sum):
        encoding, params = Sum((encoding,)), Params((params.shared,), (params.layer,))
    encoding = _OfScores(encoding.parts)
    options = {"encoding": encoding, "params": params, "q_positions": places, "dims": dims}
    scores = call(**options, embedded=True, implementation=_scores)
    return jnp.swapaxes(scores, 1, 2)  # undo attention's transpose of its output


def added(
    encoding: Encoding,
    x: jax.Array,
    places: jax.Array,
    causal: bool = True,
    params: Params | None = None,
    dims: Dims = DIMS,
) -> np.ndarray:
    """What the scheme adds to each score, NaN where the mask hides it: [B, H, T, T].

    The scale that it sets is applied to the scores without it too. x are tokens [B, T, D] at
    positions `places`, [T] or [T, axes]; without `params` they are initial ones.
    """
    # traced, so that undefined pairs are NaN instead of an error
    look = jax.jit(functools.partial(_look, encoding, dims, causal))
    scores = look(_params(encoding) if params is None else params, x, places)
    contiguous = positions.contiguous(x.shape[1])
    bare = _look(Encoding(), dims, causal, Params({}, {}), x, contiguous)
    scale = terms.scale(abstract_terms(encoding, dims), dims.head_dim)
    return np.asarray(scores - bare * (scale * dims.head_dim**0.5))


def _grid(side: int, axes: int) -> jax.Array:
    """Positions of side × side patches on the last two axes, and 0 on any before them."""
    zeros = jnp.zeros((side * side, axes - 2), jnp.int32)
    return jnp.concatenate([zeros, positions.grid(side, side)], axis=-1)


def tokens(count: int, width: int = DIMS.width) -> jax.Array:
    """A fixed row of random vectors: [1, count, D]."""
    draws = np.random.default_rng(0).standard_normal((1, count, width))
    return jnp.asarray(draws, jnp.float32)


def repeated(count: int, width: int = DIMS.width) -> jax.Array:
    """A row that repeats one random vector: [1, count, D]."""
    return jnp.broadcast_to(tokens(1, width), (1, count, width))


def by_distance(added_scores: np.ndarray) -> dict[str, np.ndarray]:
    """What is added to the scores of the last token, by head, for at most four heads."""
    heads = np.unique(np.linspace(0, len(added_scores) - 1, len(SHADES)).round().astype(int))
    return {f"head {head + 1}": added_scores[head, -1, ::-1] for head in heads}


def curves(axes: Axes, lines: dict[str, np.ndarray]) -> None:
    """Draws the lines of `by_distance`: to where they end if that is near, else to log distance."""
    for (name, values), shade in zip(lines.items(), SHADES, strict=False):
        axes.plot(values, lw=1.3, color=shade, label=name)
    stacked = np.stack([*lines.values()])
    if np.nanmax(stacked) - np.nanmin(stacked) < 1e-3:  # rounding errors only
        axes.set_ylim(-1, 1)
    end, last = settled(stacked), stacked.shape[1] - 1
    if 0 < end <= NEARBY < last:
        axes.set_xlim(0, 1.25 * end)
    else:
        axes.set_xscale("symlog", base=2, linthresh=1)
        ticks = [0, *(2**k for k in range(0, int(np.log2(max(last, 1))) + 1, 2))]
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(0, last)
    axes.set(xlabel="distance", ylabel=UNIT)
    axes.set_title(ALIKE, fontsize=10)


def settled(every: np.ndarray) -> int:
    """The distance from which no line [lines, distances] changes any more."""
    size = np.nanmax(every) - np.nanmin(every)
    moves = np.abs(every - every[:, -1:]) > 1e-3 * size
    return int(np.flatnonzero(moves.any(0)).max(initial=-1)) + 1


def pairs(axes: Axes, values: np.ndarray) -> None:
    """What is added to the score of each query and key, [T, T]."""
    plotting.heat(axes, np.where(np.abs(values) < 1e-4, 0, values), UNIT)
    axes.set(xlabel="key", ylabel="query")
    axes.set_title(RANDOM, fontsize=10)


def _few_colours(full: Image.Image) -> Image.Image:
    """The picture in COLOURS colours, a third of the bytes; white and line colours are kept."""
    exact = np.array([ImageColor.getrgb(colour) for colour in ("white", *SHADES)])
    small = full.quantize(COLOURS - len(exact))
    palette = (small.getpalette() or [])[: 3 * (COLOURS - len(exact))]
    pixels, index = np.asarray(full, int), np.array(small)
    for n, colour in enumerate(exact):
        off = np.abs(pixels - colour).max(-1)
        index[off < (NEAR if n else 1)] = len(palette) // 3 + n  # nearly white is not white
    image = Image.fromarray(index)
    image.putpalette(palette + exact.ravel().tolist())
    return image


@plotting.styled
def draw(name: str, folder: Path) -> None:
    """Writes NAME.png: left for a repeated token, right for random tokens.

    With one axis, the left panel has a line for each of four heads; with more, a map from the patch
    in the middle of an image.
    """
    encoding = pe_jax.parse(DRAWN.get(name, name))[0]
    figure, (left, right) = plotting.canvas(6.6, 2.6, 1, columns=2)
    if encoding.claims.axes == 1:
        (scores,) = added(encoding, repeated(REACH), positions.contiguous(REACH))
        curves(left, by_distance(scores))
        (scores,) = added(encoding, tokens(TOKENS), positions.contiguous(TOKENS))
    else:
        places = _grid(SIDE, encoding.claims.axes)
        (scores,) = added(encoding, repeated(SIDE * SIDE), places, causal=False)
        plotting.heat(left, scores[:, SIDE * SIDE // 2].mean(0).reshape(SIDE, SIDE), UNIT)
        left.set(xticks=[0, SIDE // 2, SIDE - 1], yticks=[0, SIDE // 2, SIDE - 1])
        left.set(xlabel="column of the key", ylabel="row of the key")
        left.set_title("One patch, repeated", fontsize=10)
        places = _grid(SMALL, encoding.claims.axes)
        (scores,) = added(encoding, tokens(SMALL * SMALL), places, causal=False)
    pairs(right, scores.mean(0))
    for axes in (left, right):
        axes.tick_params(labelsize=8)
        axes.xaxis.label.set_fontsize(9)
        axes.yaxis.label.set_fontsize(9)
    folder.mkdir(parents=True, exist_ok=True)
    full = io.BytesIO()
    figure.savefig(full, dpi=100)
    small = _few_colours(Image.open(full).convert("RGB"))
    small.save(folder / f"{name}.png", optimize=True)


def _first_attention(pattern: tuple[Encoding, ...]) -> Encoding:
    return pattern[next(iter(attention_layers(pattern)), 0)]


def _trained(results: Results, scheme: Scheme, longest: int) -> tuple[Encoding, Params, str]:
    """The scheme of the first attention at a length, its trained parameters, a note on them.

    Raises:
      ConfigError: the saved parameters do not fit it, or are not finite.
    """
    m = results.manifest
    pattern = pe_jax.parse(scheme.spec)
    encoding = _first_attention(pattern)
    dims = encoding.layer_dims(Dims(**m.dims))
    init = functools.partial(encoding.init, jax.random.key(0), dims)
    shapes, tree = jax.tree.flatten(jax.eval_shape(init))
    notes = ["first scheme of the pattern"] if len(set(pattern)) > 1 else []
    path = scheme.runs[m.seeds[0]].folder / "encoding.npz"
    leaves = []
    if shapes and path.is_file():
        with np.load(path, allow_pickle=False) as arrays:
            leaves = [jnp.asarray(arrays[str(i)]) for i in range(len(arrays.files))]
        if [x.shape for x in leaves] != [x.shape for x in shapes]:
            raise ConfigError("encoding.npz holds other parameters than the scheme has")
    elif shapes:
        leaves = jax.tree.leaves(init())
        notes.append("initial parameters: there is no encoding.npz")
    if not all(np.isfinite(x).all() for x in leaves):
        raise ConfigError("its parameters are not finite")
    return encoding.at_length(longest), jax.tree.unflatten(tree, leaves), "; ".join(notes)


@plotting.styled
def draw_trained(results: Results, scheme: Scheme, stem: str) -> tuple[plotting.Drawing, str]:
    """(the picture, a caption): by distance for a repeated token, by pair for random tokens.

    Raises:
      ConfigError: the scheme cannot be built; its parameters do not fit it or are not finite.
    """
    encoding = _first_attention(pe_jax.parse(scheme.spec))
    reach = min(results.longest, encoding.limit() or results.longest, LONGEST)
    dims = encoding.layer_dims(Dims(**results.manifest.dims))
    encoding, params, note = _trained(results, scheme, reach)
    x = jnp.concatenate([repeated(reach, dims.width), tokens(reach, dims.width)])
    same, random = added(encoding, x, positions.contiguous(reach), True, params, dims)
    lines, values = by_distance(same), random.mean(0)[:TOKENS, :TOKENS]
    figure, (above, below) = plotting.canvas(plotting.NARROW, 4.9, 2)
    curves(above, lines)
    trained = results.manifest.train_length
    if trained < above.get_xlim()[1]:
        above.axvline(trained, color=plotting.MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
        above.set_xlabel("distance (dashes: training length)")
    low, high = above.get_ylim()
    above.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    above.legend(fontsize=8, frameon=False, loc="upper right", handlelength=1.2, ncols=2)
    pairs(below, values)
    for axes in (above, below):
        axes.tick_params(labelsize=8.5)
    rows = [
        (ALIKE, name, d, None, value)
        for name, line in lines.items()
        for d, value in enumerate(line)
        if not np.isnan(value)
    ]
    rows += [
        (RANDOM, "mean of the heads", i, j, values[i, j])
        for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True)
    ]
    caption = f"{note[0].upper()}{note[1:]}." if note else ""
    alt = f"What {scheme.name} adds to the scores, by distance and by pair of tokens"
    return plotting.Drawing(stem, figure, HEADER, rows, alt), caption


def stem(scheme: Scheme) -> str:
    """A file name that is safe for any scheme's name."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in scheme.name)
    return f"scheme-{scheme.index:02d}-{safe[:40]}"


def draw_or_explain(results: Results, scheme: Scheme, folder: Path) -> dict[str, Any]:
    """Draws a scheme into a folder: svg, alt, caption and stem, for a page.

    If it cannot be drawn, the svg is "" and the caption says why.
    """
    name = stem(scheme)
    try:
        drawing, caption = draw_trained(results, scheme, name)
        plotting.write(drawing, folder)
        svg = markupsafe.Markup(plotting.themed(plotting.vector(drawing)))
        return {
            "svg": svg,
            "alt": drawing.alt,
            "caption": caption,
            "stem": name,
            "table": drawing.table,
        }
    except Exception as error:  # the code of an encoding may raise anything
        return {"svg": "", "alt": "", "caption": f"No picture: {error}", "stem": name}

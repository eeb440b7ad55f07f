"""A picture of each scheme of a report: what it adds to the scores, with its trained parameters.

The experiment is that of `scheme_pictures`, with the sizes of the comparison's model.
"""

import functools
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.reporting import plotting, scheme_pictures
from experiments.reporting.results import Results, Scheme
from pe_jax import positions
from pe_jax.encodings import Dims, Encoding, Params, parse
from pe_jax.validation import ConfigError

HEADER = ("panel", "series", "query_or_distance", "key", "value")
REACH, TOKENS = 1024, 48  # tokens of the curve at most, of the map


class Subject(NamedTuple):
    """A scheme with its parameters and a note on which ones these are."""

    encoding: Encoding
    params: Params
    dims: Dims
    note: str


def _subject(results: Results, scheme: Scheme, longest: int) -> Subject:
    """The scheme of layer 0 at a length, with its trained parameters.

    Raises:
      ConfigError: the saved parameters do not fit it, or are not finite.
    """
    m = results.manifest
    pattern, dims = parse(scheme.spec), Dims(**m["dims"])
    encoding = pattern[0]
    init = functools.partial(encoding.init, jax.random.key(0), dims)
    shapes, tree = jax.tree.flatten(jax.eval_shape(init))
    notes = ["first scheme of the pattern"] if len(set(pattern)) > 1 else []
    path = results.workdir / "runs" / scheme.folder / f"seed{m['seeds'][0]}" / "encoding.npz"
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
    params = jax.tree.unflatten(tree, leaves)
    return Subject(encoding.at_length(longest), params, dims, "; ".join(notes))


@plotting.styled
def draw(results: Results, scheme: Scheme, stem: str) -> tuple[plotting.Drawing, str]:
    """(the picture, a caption): by distance for a repeated token, by pair for random tokens.

    Raises:
      ConfigError: the scheme cannot be built; its parameters do not fit it or are not finite.
    """
    limit = parse(scheme.spec)[0].limit() or results.longest
    reach = min(results.longest, limit, REACH)
    encoding, params, dims, note = _subject(results, scheme, reach)
    x = jnp.concatenate(
        [scheme_pictures.repeated(reach, dims.width), scheme_pictures.tokens(reach, dims.width)]
    )
    places = positions.contiguous(reach)
    same, random = scheme_pictures.added(encoding, x, places, True, params, dims)
    lines, values = scheme_pictures.by_distance(same), random.mean(0)[:TOKENS, :TOKENS]
    figure, (above, below) = plotting.canvas(plotting.NARROW, 4.9, 2)
    scheme_pictures.curves(above, lines)
    trained = results.manifest["train_length"]
    if trained < above.get_xlim()[1]:
        above.axvline(trained, color=plotting.MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
        above.set_xlabel("distance (dashes: training length)")
    low, high = above.get_ylim()
    above.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    above.legend(fontsize=8, frameon=False, loc="upper right", handlelength=1.2, ncols=2)
    scheme_pictures.pairs(below, values)
    for axes in (above, below):
        axes.tick_params(labelsize=8.5)
    rows = [
        (scheme_pictures.ALIKE, name, d, None, value)
        for name, line in lines.items()
        for d, value in enumerate(line)
        if not np.isnan(value)
    ]
    rows += [
        (scheme_pictures.RANDOM, "mean of the heads", i, j, values[i, j])
        for i, j in zip(*np.nonzero(~np.isnan(values)), strict=True)
    ]
    caption = f"{note[0].upper()}{note[1:]}." if note else ""
    alt = f"What {scheme.name} adds to the scores, by distance and by pair of tokens"
    return plotting.Drawing(stem, figure, HEADER, rows, alt), caption


def stem(scheme: Scheme) -> str:
    """A file name that is safe for any scheme's name."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in scheme.name)
    return f"scheme-{scheme.index:02d}-{safe[:40]}"


class Picture(NamedTuple):
    """The picture of a scheme: its SVG or "", and the name of its files."""

    svg: str
    alt: str
    caption: str
    stem: str


def draw_or_explain(results: Results, scheme: Scheme, folder: Path) -> Picture:
    """Draws a scheme into a folder; if it cannot be drawn, the caption says why."""
    name = stem(scheme)
    try:
        drawing, caption = draw(results, scheme, name)
        plotting.write(drawing, folder)
        svg = plotting.themed(plotting.vector(drawing))
        return Picture(svg, drawing.alt, caption, name)
    except (ValueError, OSError, KeyError, TypeError) as error:
        return Picture("", "", f"No picture: {error}", name)

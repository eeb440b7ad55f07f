"""One picture of what each scheme does, drawn from the slots that it overrides.

Nothing here knows a scheme by name: a panel belongs to a slot, so a new scheme, or a sum of
several, is drawn by what it uses. What uses no slot is NoPE: the causal mask alone.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes

from experiments import plotting
from experiments.results import Results, Scheme
from pe_jax.encodings import Dims, Encoding, Params, parse

LINES = ("#0b3c5d", "#c8553d", "#2a9d8f")
HEADER = ("panel", "series", "query_or_distance", "key", "value")


@dataclasses.dataclass(frozen=True)
class Subject:
    """A scheme with its parameters, and how far it is drawn."""

    encoding: Encoding
    params: Params
    dims: Dims
    tokens: int  # of a heat map
    reach: int  # of a curve
    trained: int

    def positions(self, count: int) -> jax.Array:
        """0 … count - 1 along the last axis of a position, 0 along any other: [count(, A)]."""
        line = jnp.arange(count)
        if self.encoding.axes == 1:
            return line
        return jnp.zeros((count, self.encoding.axes), line.dtype).at[:, -1].set(line)

    def draws(self, *shape: int) -> jax.Array:
        """Fixed random vectors, N(0, 1)."""
        return jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.float32)


def embeddings(s: Subject) -> jax.Array:
    """Dot products of the vectors that the scheme adds to the embeddings: [T, T]."""
    zeros = jnp.zeros((1, s.tokens, s.dims.width), jnp.float32)
    added = s.encoding.embed(s.params, zeros, s.positions(s.tokens)[None])[0]
    return jnp.matmul(added, added.T, precision=jax.lax.Precision.HIGHEST)


def biases(s: Subject) -> jax.Array:
    """The bias that the scheme adds to the scores, averaged over heads: [T, S]."""
    at = s.positions(s.tokens)
    by_distance = s.encoding.distance_bias(s.params, at[:, None] - at[None], s.dims)
    by_position = s.encoding.bias(s.params, at[None], at[None], s.dims)
    found = [by_distance.mean(0)] if by_distance is not None else []
    found += [by_position.mean((0, 1))] if by_position is not None else []
    return sum(found[1:], found[0])


def relative(s: Subject) -> dict[str, jax.Array]:
    """Mean size of each term of a relative vector r(d), against the distance."""
    x, at = s.draws(64, s.dims.head_dim), s.positions(s.reach)
    scale = s.encoding.scale(s.dims.head_dim)
    curves = {}
    for slot, words in (("relative_keys", "|q·r|, keys"), ("relative_queries", "|k·r|, queries")):
        vectors = getattr(s.encoding, slot)(s.params, at)
        if vectors is not None:
            curves[words] = scale * jnp.abs(vectors @ x.T).mean((0, 2))
    vectors = s.encoding.relative_values(s.params, at)
    if vectors is not None:
        curves["‖r‖, values"] = jnp.linalg.norm(vectors, axis=-1).mean(0)
    return curves


def rotations(s: Subject) -> dict[str, jax.Array]:
    """The score of fixed random vectors, the query moved away from the key: head 0."""
    at, dims = s.positions(s.reach), s.dims
    pair = s.draws(2, dims.head_dim)
    wide = jnp.broadcast_to(pair[0], (1, s.reach, dims.heads, dims.head_dim))
    q = s.encoding.rotate_q(s.params, wide, at[None])[0, :, 0]
    curves = {}
    for words, vector in (("k = q", pair[0]), ("k drawn apart", pair[1])):
        narrow = jnp.broadcast_to(vector, (1, 1, dims.kv_heads, dims.head_dim))
        k = s.encoding.rotate_k(s.params, narrow, at[None, :1])[0, 0, 0]
        curves[words] = s.encoding.scale(dims.head_dim) * (q @ k)
    return curves


def mask(s: Subject) -> jax.Array:
    """All that NoPE has: what a token may see."""
    return jnp.ones((s.tokens, s.tokens))


@dataclasses.dataclass(frozen=True)
class Panel:
    """What is drawn where a scheme overrides one of the slots."""

    slots: tuple[str, ...]
    title: str
    compute: Callable
    unit: str = ""


PANELS = (
    Panel(("embed",), "added vectors, dot products", embeddings, "p(query)·p(key)"),
    Panel(("bias", "distance_bias"), "score bias, mean of heads", biases, "added to the score"),
    Panel(
        ("relative_keys", "relative_queries", "relative_values"),
        "relative vectors r(distance)",
        relative,
        "mean size",
    ),
    Panel(("rotate_q", "rotate_k"), "score of two fixed vectors", rotations, "q·k, scaled"),
)
BARE = Panel((), "nothing but the causal mask", mask)


def _heat(axes: Axes, panel: Panel, values: np.ndarray) -> list[tuple]:
    """A query × key map, the lower triangle; returns its data."""
    seen = np.tril(np.ones_like(values, bool))
    plotting.heat(axes, np.where(seen, values, np.nan), panel.unit)
    axes.set(xlabel="key", ylabel="query")
    mean = "query × key"
    return [(panel.title, mean, i, j, values[i, j]) for i, j in zip(*np.nonzero(seen), strict=True)]


def _curves(axes: Axes, panel: Panel, curves: dict[str, np.ndarray], trained: int) -> list[tuple]:
    """Lines against the distance; returns their data."""
    rows = []
    for (words, values), colour in zip(curves.items(), LINES, strict=False):
        axes.plot(values, lw=1.4, color=colour, label=words)
        rows += [(panel.title, words, d, None, value) for d, value in enumerate(values)]
    axes.axvline(trained, color=plotting.MUTED, lw=0.9, ls=(0, (4, 3)), zorder=0.5)
    axes.legend(fontsize=8, frameon=False, loc="upper right", handlelength=1.2, ncols=2)
    axes.set(xlabel="distance (dashes: training length)", ylabel=panel.unit)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.25 * (high - low))  # room for the legend
    return rows


def _subject(results: Results, scheme: Scheme) -> tuple[Subject, str]:
    """(the scheme with its trained parameters, a note on where they come from)."""
    m = results.manifest
    pattern, dims = parse(scheme.spec), Dims(**m["dims"])
    encoding = pattern[0]

    init = lambda: encoding.init(jax.random.key(0), dims)  # noqa: E731
    shapes, tree = jax.tree.flatten(jax.eval_shape(init))
    note = "first scheme of the pattern" if len(set(pattern)) > 1 else ""
    path = results.workdir / "runs" / scheme.name / f"seed{m['seeds'][0]}" / "encoding.npz"
    if not shapes:
        leaves = []
    elif path.is_file():
        with np.load(path, allow_pickle=False) as arrays:
            leaves = [jnp.asarray(arrays[str(i)]) for i in range(len(arrays.files))]
        if [x.shape for x in leaves] != [x.shape for x in shapes]:
            raise ValueError("encoding.npz holds other parameters than the scheme has")
    else:
        leaves = jax.tree.leaves(init())
        note = "; ".join(filter(None, [note, "as drawn at first: there is no encoding.npz"]))
    longest = min(results.longest, encoding.limit() or results.longest)
    tokens = min(2 * m["train_length"], longest, 128)
    params = jax.tree.unflatten(tree, leaves)
    return Subject(encoding, params, dims, tokens, longest, m["train_length"]), note


def words(encoding: Encoding) -> str:
    """What the scheme says of itself: the first line of its docstring, or of its parts'."""
    parts = getattr(encoding, "parts", (encoding,))
    lines = [(type(part).__doc__ or "").strip().splitlines()[:1] for part in parts]
    return " ".join(line.replace("`", "") for first in lines for line in first)


def _compute(subject: Subject, panels: list[Panel]) -> list:
    """The values of all panels, in one compilation."""

    def values(params):
        return [p.compute(dataclasses.replace(subject, params=params)) for p in panels]

    return jax.tree.map(np.asarray, jax.jit(values)(subject.params))


@plotting.styled
def draw(results: Results, scheme: Scheme, stem: str) -> tuple[plotting.Drawing, str]:
    """(the picture, a caption): one panel for every kind of slot that the scheme overrides.

    Raises:
      ValueError: the scheme cannot be built, or its parameters are not its own or not finite.
    """
    subject, note = _subject(results, scheme)
    used = [p for p in PANELS if any(map(subject.encoding.overrides, p.slots))] or [BARE]
    computed = list(zip(used, _compute(subject, used), strict=True))
    height = sum(2.9 if isinstance(v, np.ndarray) else 2.3 for _, v in computed)
    figure, all_axes = plotting.canvas(3.7, height, len(computed))
    rows = []
    for axes, (panel, found) in zip(all_axes, computed, strict=True):
        if not all(np.isfinite(x).all() for x in jax.tree.leaves(found)):
            raise ValueError("its parameters are not finite")
        axes.set_title(panel.title, fontsize=9.5)
        axes.tick_params(labelsize=8.5)
        heat = isinstance(found, np.ndarray)
        rows += _heat(axes, panel, found) if heat else _curves(axes, panel, found, subject.trained)
    caption = words(subject.encoding) + (f" ({note}.)" if note else "")
    alt = f"What {scheme.name} does: {', '.join(p.title for p in used)}"
    return plotting.Drawing(stem, figure, HEADER, rows, alt), caption


def stem(scheme: Scheme) -> str:
    """A file name that any scheme's name is safe in."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in scheme.name)
    return f"scheme-{scheme.index:02d}-{safe[:40]}"


def draw_all(results: Results, folder: Path) -> list[dict]:
    """Draws every scheme: for each, its name, spec, caption, SVG and file; or why there is none."""
    cards = []
    for scheme in results.schemes:
        card = {"name": scheme.name, "spec": scheme.spec, "svg": "", "stem": stem(scheme)}
        try:
            drawing, card["caption"] = draw(results, scheme, card["stem"])
            card |= {"svg": plotting.save(drawing, folder), "alt": drawing.alt}
        except (ValueError, OSError, KeyError, TypeError) as error:
            card["caption"] = f"No picture: {error}"
        cards.append(card)
    return cards

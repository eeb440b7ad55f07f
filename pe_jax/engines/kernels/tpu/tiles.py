"""One tile of the scores: what is added to q·k, what is hidden, and the gradients of what is added.

Rows of a tile are queries and columns keys; `transposed`, the reverse. Where all of a tile
is beyond the horizon of what is read by distance (`easy`), queries meet one vector and one number:
that moves the row maxima and not the scores.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.engines.kernels.tpu import shear
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan, Tile
from pe_jax.engines.kernels.tpu.shear import as_column, dot, lane_sums, repeat_columns
from pe_jax.engines.reference import LOWEST


class Scores(NamedTuple):
    """The scores of a tile, masked."""

    pairs: jax.Array  # [block, block], without `rest`
    # to add to all pairs of a query: [block or 1, lanes] with equal columns, [1, block] if
    # transposed, or 0
    rest: Any
    slope: Any = None  # the derivative of the capped scores by the uncapped ones, or None


def scores(plan: Plan, x: Arrays, tile: Tile) -> Scores:
    """The scores of a tile."""
    a, b = (x.k, x.q) if tile.transposed else (x.q, x.k)
    s, slope = dot(a[...], b[...], 1), None
    rest: Any = 0.0
    if plan.scale != 1:
        s *= plan.scale
    if plan.formula:
        formula, values = formula_of(plan, x, tile)
        s += formula(values)
    if plan.of_tokens:
        pair = numbers(x, tile)
        pair = plan.of_tokens(*(pair[::-1] if tile.transposed else pair))
        s += jnp.broadcast_to(pair, (plan.block, plan.block))
    if x.columns is not None:
        of_keys = x.columns[...], x.column_vectors, tile.easy, not tile.transposed
        s += spread(plan, multiply(plan, *of_keys))
    if x.bias is not None:
        bias = x.bias[...]
        s += bias.T if tile.transposed else bias
    added = of_queries(plan, x, tile)
    if tile.easy and plan.cap is None:
        rest = added
    elif not isinstance(added, float):
        s += spread(plan, added)
    if plan.cap is not None:  # a bias of -inf hides a pair, whatever the cap
        bent = jnp.tanh(s * (1 / plan.cap))
        s, slope = jnp.where(s < LOWEST, LOWEST, bent * plan.cap), 1 - bent * bent
    pairs = visible(plan, x, tile)
    if pairs is not None and slope is not None:  # a hidden score may be NaN: 0 · NaN is no 0
        slope = jnp.where(pairs, slope, 0)
    return Scores(s if pairs is None else jnp.where(pairs, s, LOWEST), rest, slope)


def of_queries(plan: Plan, x: Arrays, tile: Tile) -> Any:
    """What is read by distance, except for keys: a tile or, if easy, as `Scores.rest`."""
    added: list[Any] = []
    if x.bands is not None:
        far = x.bands[:, : plan.block if tile.transposed else plan.lanes]
        added.append(far if tile.easy else shear.shear(x.bands[...]))
    if x.rows is not None:
        added.append(multiply(plan, x.rows[...], x.row_vectors, tile.easy, tile.transposed))
    return functools.reduce(jnp.add, added) if added else 0.0


def multiply(plan: Plan, own: jax.Array, vectors, easy: bool, across: bool) -> jax.Array:
    """Tokens [block, X] times the vectors of their distances, `across`: along the columns.

    A tile or, if easy, one number per token: equal columns [block, lanes], or a row [1, block].
    """
    if not easy:
        pairs = shear.multiply(own, vectors)
        return pairs.T if across else pairs
    if across:  # one vector would do, sixteen fill a register
        return dot(vectors[: min(16, plan.lanes)], own, 1)[:1]
    return dot(own, vectors[: plan.lanes], 1)


def spread(plan: Plan, x: jax.Array) -> jax.Array:
    """Equal columns, repeated to as many as a tile has; a row or a tile unchanged."""
    return repeat_columns(x, plan.block) if x.shape[1] < plan.block else x


class Gradient(NamedTuple):
    """The gradient of a tile's scores, not transposed: [block, block] each."""

    p: jax.Array  # the weights
    d_s: jax.Array  # the gradient of the scores before a cap


def gradient(plan: Plan, x: Arrays, tile: Tile) -> Gradient:
    """The weights of a tile, whose rows are queries, and the gradient of its scores."""
    s, rest, slope = scores(plan, x, tile)
    rest = rest[:, :1] if jnp.ndim(rest) else rest
    p = jnp.exp(s - (as_column(x.lse[...]) - rest))
    d_p = dot(x.d_out[...], x.v[...], 1) - as_column(x.inner[...])
    d_s = p * with_value_vectors(plan, x, tile, d_p)
    return Gradient(p, d_s if slope is None else d_s * slope)


def with_value_vectors(plan: Plan, x: Arrays, tile: Tile, d_p: jax.Array) -> jax.Array:
    """The gradient of the weights, with that through the vectors that are averaged by distance."""
    if x.value_vectors is None:
        return d_p
    more = multiply(plan, x.d_out[...], x.value_vectors, tile.easy, tile.transposed)
    return d_p + spread(plan, more)


def add_by_distance(plan: Plan, x: Arrays, grads: Arrays, tile: Tile, of_scores: Gradient) -> None:
    """Adds to the gradients of what is read by distance, if they are wanted."""
    band, easy, (p, d_s) = plan.band(tile.gap), tile.easy, of_scores
    if grads.bands is not None:
        add_to_band(plan, grads.bands, band, d_s, easy)
    if grads.row_vectors is not None:
        add_to_vectors(plan, grads.row_vectors, band, x.rows[...], d_s, easy)
    if grads.column_vectors is not None:
        add_to_vectors(plan, grads.column_vectors, band, x.columns[...], d_s, easy, across=True)
    if grads.value_vectors is not None:
        add_to_vectors(plan, grads.value_vectors, band, x.d_out[...], p, easy)


def own_gradient(plan: Plan, vectors, d: jax.Array, easy: bool) -> jax.Array:
    """The gradient of tokens [block, X] from that of what `multiply` gave, tokens along rows."""
    if easy:
        return dot(lane_sums(d).astype(vectors.dtype), vectors[: plan.lanes], 0)
    rows = (dot(w.astype(vectors.dtype), vectors[n], 0) for _, n, w in shear.windows(d))
    return jnp.concatenate(list(rows))


def add_to_vectors(
    plan: Plan, grads, band, own: jax.Array, d: jax.Array, easy: bool, across: bool = False
) -> None:
    """Adds to the gradient of a band of vectors, which `own` [block, X] were dotted with."""
    if easy:  # the first entries of the band stand for all
        sums = row_sums(plan, d) if across else lane_sums(d)
        sums = dot(sums.astype(own.dtype), own, 0, of=1 if across else 0)
        grads[band, : plan.lanes] += sums
        return
    for tokens, entries, window in shear.windows(d.T if across else d):
        grads[band, entries] += dot(window.astype(own.dtype), own[tokens], 0, 0)


def add_to_band(plan: Plan, grads, band, d_s: jax.Array, easy: bool) -> None:
    """Adds the score gradients of a tile to those of its band."""
    if easy:  # the first entry of the band stands for all
        first = jax.lax.broadcasted_iota(jnp.int32, grads.shape[1:], 1) == 0
        grads[band] += jnp.where(first, d_s.sum(), 0)
    else:
        grads[band] += shear.unshear(d_s)


def numbers(x: Arrays, tile: Tile) -> tuple[list[jax.Array], list[jax.Array]]:
    """The numbers of the tokens along rows [block, 1] and along columns [1, block]."""
    sides = (x.q_numbers, x.k_numbers)
    own, other = sides[::-1] if tile.transposed else sides
    count = own.shape[0]
    rows = [as_column(own[c : c + 1]) for c in range(count)]
    return rows, [other[c : c + 1] for c in range(count)]


def add_number_gradients(plan: Plan, x: Arrays, tile: Tile, grads, d_s: jax.Array) -> None:
    """Adds the gradients of the numbers along rows to `grads` [block, lanes], one per lane."""
    own, other = numbers(x, tile)
    lane = jax.lax.broadcasted_iota(jnp.int32, grads.shape, 1)
    total = grads[...]
    for c, d in enumerate(plan.number_gradients(own, other, tile.transposed, d_s)):
        total += jnp.where(lane == c, d, 0)
    grads[...] = total


def visible(plan: Plan, x: Arrays, tile: Tile) -> jax.Array | None:
    """Which pairs are visible; None if all are."""
    tests = []
    if not tile.easy:
        distance = distances(plan, tile)
        tests += [distance <= plan.back] if plan.back is not None else []
        tests += [distance >= -plan.ahead] if plan.ahead is not None else []
        if plan.padded:
            index = jax.lax.broadcasted_iota(jnp.int32, distance.shape, int(not tile.transposed))
            tests.append(tile.k_first + index < plan.tokens)
    if x.q_ids is not None:
        a, b = x.q_ids[...], x.k_ids[...]
        tests.append(as_column(b) == a if tile.transposed else as_column(a) == b)
    return functools.reduce(jnp.logical_and, tests) if tests else None


def formula_of(plan: Plan, x: Arrays, tile: Tile):
    """The biases that are computed from distances: a function, and its coefficients."""
    coefficients = [x.coefficients[c] for c in range(x.coefficients.shape[0])]
    return functools.partial(plan.formula, distance=distances(plan, tile)), coefficients


def distances(plan: Plan, tile: Tile) -> jax.Array:
    """Query - key of each pair of a tile, int32."""
    shape = (plan.block, plan.block)
    queries = jax.lax.broadcasted_iota(jnp.int32, shape, int(tile.transposed))
    keys = jax.lax.broadcasted_iota(jnp.int32, shape, int(not tile.transposed))
    return queries + tile.gap - keys


def row_sums(plan: Plan, d: jax.Array) -> jax.Array:
    """[block, block] → [lanes, block]: as `lane_sums`, over rows."""
    firsts = range(0, plan.block, plan.lanes)
    return functools.reduce(jnp.add, (d[n : n + plan.lanes] for n in firsts))

"""One new token against a cache whose row j holds position j: what a scheme costs beside NoPE.

Row j is at distance t - j from the token at row t, so what depends on the distance alone lies along
the rows in order. Each distance slot is evaluated for the n distances that differ (`tables`): up to
the scheme's horizon, or as many as there are rows. Beyond the horizon

* biases and q·relative_keys are one constant a head;
* k·relative_queries is one scalar a key and head, known when the key is written (`far`);
* relative values are one vector, for the sum of the far weights.

A bias that is arithmetic (`coefficients`) is computed in place and has no table.
B batch, S rows, K key heads, H query heads, E and F widths of keys and values.
Distances descend along tables, as they do along rows: from n - 1 to 0.
"""

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Dims, Encoding, Params
from pe_jax.engines import dense
from pe_jax.engines.dense import Rules
from pe_jax.numerics.arrays import align

SIDES = {"k", "k_raw", "v", "far", "k_state"}  # operands of S rows


def tables(encoding: Encoding, params: Params, dims: Dims, rows: int) -> dict[str, jax.Array]:
    """The distance slots that a scheme uses, by name: float32 [H, n] or [H or 1, n, E].

    None where a position has several axes: such positions are never contiguous.
    """
    if encoding.axes > 1:
        return {}
    horizon = encoding.horizon()
    n = rows if horizon is None else min(rows, max(horizon[1], 0) + 1)
    away = jnp.arange(n - 1, -1, -1, dtype=jnp.int32)
    found = {slot: getattr(encoding, slot)(params, away) for slot in DISTANCE_SLOTS[1:]}
    if encoding.coefficients(params, dims) is None:
        found["distance_bias"] = encoding.distance_bias(params, away, dims)
    return {slot: x.astype(jnp.float32) for slot, x in found.items() if x is not None}


def far(table: jax.Array, k_raw: jax.Array, heads: int) -> jax.Array:
    """k·relative_queries beyond the horizon: float32 [B, H, T] for k_raw [B, K, T, E]."""
    vectors = _split(table[:, 0], heads, k_raw.shape[1])
    found = jnp.einsum("bkte,kge->bkgt", k_raw.astype(jnp.float32), vectors)
    return found.reshape(len(k_raw), heads, -1)


def attend(rules: Rules, params: Params, operands: dict, held: dict, at) -> jax.Array:
    """What the token at row `at` reads from its own row and those before it: float32 [B, H, F].

    Args:
      rules: the scheme, the sizes, the window.
      params: the scheme's parameters (read by `bias` and `coefficients` alone).
      operands: "q", "q_raw" [B, H, E]; "k", "k_raw" [B, K, S, E]; "v" [B, K, S, F]; "far"
        [B, H, S] where the scheme has relative queries and its horizon is within S; "q_state"
        [B, H, C] and "k_state" [B, H, S, C] where it has a state.
      held: what `tables` gives for S rows.
      at: int32 [].
    """
    places, at_row, operands = _view(rules, operands, held, at)
    q, k, v = (operands[name] for name in "qkv")
    split = len(q), k.shape[1], -1  # [B, K, H/K, …]
    s = _products(rules.encoding.split(), q, k, at - places)
    s = _scores(rules, s, operands, held, at_row)
    seen = places <= at
    if rules.window is not None:
        seen &= (places > at - rules.window) | (places < rules.sinks)
    s += _bias(rules, params, at, places)
    if rules.encoding.overrides("state_bias"):
        states = operands["q_state"][:, :, None], operands["k_state"]
        s += dense.state_bias(rules.encoding, *states)[:, :, 0]
    s = jnp.where(seen, s, -jnp.inf)
    weights = jnp.exp(s - s.max(-1, keepdims=True))  # a token sees itself: the maximum is finite
    out = jnp.einsum(
        "bkgs,bksf->bkgf",
        weights.astype(v.dtype).reshape(*split, s.shape[-1]),
        v,
        preferred_element_type=jnp.float32,
    ).reshape(*q.shape[:2], -1)
    total = weights.sum(-1, keepdims=True)
    return (out + _values(weights, total, held, at_row)) / total


def _products(split: int | None, q: jax.Array, k: jax.Array, away: jax.Array) -> jax.Array:
    """Rotated q [B, H, E] · k [B, K, S, E]: float32 [B, H, S], in the view of each distance [S]."""
    if split is None:
        views = q[:, :, None]
    else:  # the keys are read once, whole, by a query for each view
        near = align(jnp.arange(q.shape[-1]) < q.shape[-1] // 2, q)
        views = jnp.stack([jnp.where(near, q, 0), jnp.where(near, 0, q)], axis=2)
    rows = views.reshape(len(q), k.shape[1], -1, q.shape[-1])
    s = jnp.einsum("bkge,bkse->bkgs", rows, k, preferred_element_type=jnp.float32)
    s = s.reshape(*views.shape[:3], -1)
    return s[:, :, 0] if split is None else jnp.where(away < split, s[:, :, 0], s[:, :, 1])


def _reach(held: dict) -> int:
    """How many distances the tables hold: n."""
    return max((x.shape[1] for x in held.values()), default=1)


def _view(rules: Rules, operands: dict, held: dict, at):
    """The rows that may count: their places, which of them is row `at`, and the operands there.

    A window costs its width and the sinks theirs. Sinks come first; while the window still holds
    them, their rows are doubles, which a place beyond every token hides.
    """
    rows, sinks = operands["k"].shape[2], rules.sinks
    size = rows if rules.window is None else max(rules.window, _reach(held))
    if sinks + size >= rows:
        return jnp.arange(rows, dtype=jnp.int32), at, operands
    first = jnp.maximum(at - size + 1, 0)

    def cut(x):
        x, lead = jax.lax.dynamic_slice_in_dim(x, first, size, 2), x[:, :, :sinks]
        return jnp.concatenate([lead, x], axis=2) if sinks else x

    kept = {name: cut(operands[name]) for name in operands.keys() & SIDES}
    lead = jnp.arange(sinks, dtype=jnp.int32)
    lead = jnp.where(lead < first, lead, rows)
    places = jnp.concatenate([lead, first + jnp.arange(size, dtype=jnp.int32)])
    return places, at - first + sinks, operands | kept


def _split(table: jax.Array, heads: int, groups: int) -> jax.Array:
    """[H or 1, …] → [K, H/K, …]: query heads by the key head that they share."""
    whole = jnp.broadcast_to(table, (heads, *table.shape[1:]))
    return whole.reshape(groups, -1, *table.shape[1:])


def _by_distance(x: jax.Array, n: int, at) -> jax.Array:
    """The n rows up to `at` of x [B, H, S, …], zeros before the first row: [B, H, n, …]."""
    begin = jnp.maximum(at - n + 1, 0)
    rows = jax.lax.dynamic_slice_in_dim(x, begin, n, 2)
    rows = jnp.pad(rows, [(n - 1 if axis == 2 else 0, 0) for axis in range(x.ndim)])
    return jax.lax.dynamic_slice_in_dim(rows, at - begin, n, 2)


def _by_row(near: jax.Array, beyond: jax.Array, rows: int, at) -> jax.Array:
    """[B, H, n] by distance → [B, H, S] by row, `beyond` [B, H, 1] in the rows farther away."""
    n = near.shape[-1]
    wide = jnp.broadcast_to(beyond, (*near.shape[:2], rows + n - 1))
    return jax.lax.dynamic_update_slice_in_dim(wide, near, at, 2)[..., n - 1 :]


def _contract(form: str, x: jax.Array, table: jax.Array) -> jax.Array:
    """Contracts x with a table [H or 1, n, E]; `*` is the heads' axis, left out if shared."""
    shared = len(table) == 1
    form = form.replace("*", "" if shared else "h")
    return jnp.einsum(form, x.astype(jnp.float32), table[0] if shared else table)


def _scores(rules: Rules, s: jax.Array, operands: dict, held: dict, at) -> jax.Array:
    """Scales q·k [B, H, S] and adds all that has a table."""
    scale, n = rules.encoding.scale(rules.dims.head_dim), _reach(held)
    near = jnp.zeros((1, 1, n), jnp.float32)
    if "relative_keys" in held:
        near += scale * _contract("bhe,*ne->bhn", operands["q_raw"], held["relative_keys"])
    if "relative_state" in held:
        near += _contract("bhe,*ne->bhn", operands["q_state"], held["relative_state"])
    if "distance_bias" in held:
        near += held["distance_bias"][None]
    beyond = near[..., :1]
    if "relative_queries" in held:
        k = _by_distance(operands["k_raw"], n, at).astype(jnp.float32)
        vectors = _split(held["relative_queries"], s.shape[1], k.shape[1])
        # A product with ones takes a fifth of the time of a sum over the last axis (CPU).
        products = (k[:, :, None] * vectors[None]) @ jnp.ones(k.shape[-1], jnp.float32)
        near += scale * products.reshape(len(s), -1, n)
    s *= scale
    if "far" in operands:
        s += scale * operands["far"]
        near -= scale * _by_distance(operands["far"], n, at)
    return s + _by_row(near, beyond, s.shape[-1], at) if held else s


def _bias(rules: Rules, params: Params, at, places: jax.Array) -> jax.Array | float:
    """Biases without a table, of rows at `places` [S]: [B or 1, H, S], or 0."""
    encoding, found = rules.encoding, 0.0
    rows = encoding.coefficients(params, rules.dims)
    if rows is not None:
        found += encoding.profile(list(rows.T[..., None]), (at - places)[None])[None]
    if encoding.overrides("bias"):
        found += encoding.bias(params, at[None, None], places[None], rules.dims)[:, :, 0]
    return found


def _values(weights: jax.Array, total: jax.Array, held: dict, at) -> jax.Array | float:
    """Σ weights·relative_values for weights [B, H, S] of sum `total`: [B, H, F], or 0."""
    if "relative_values" not in held:
        return 0.0
    near = _by_distance(weights, _reach(held), at)
    near = near.at[..., 0].add((total - near.sum(-1, keepdims=True))[..., 0])
    return _contract("bhn,*nf->bhf", near, held["relative_values"])

"""The dense engine: every formula in full, one L×L matrix a head. The oracle of all others.

Heads lead here and in every engine: q [B, H, T, E], k [B, K, S, E], v [B, K, S, F]; each of the K
key heads serves H/K query heads. Positions, indices and segments are [B or 1, T] and [B or 1, S],
with a trailing axis A where the scheme has more than one.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Dims, Encoding, Params
from pe_jax.engines.mask import allowed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tokens:
    """All that an engine knows of queries or keys besides the vectors: arrays [B or 1, T]."""

    positions: jax.Array
    index: jax.Array
    segments: jax.Array | None
    rank: jax.Array | None = None  # the place within the segment, where there are sinks


@dataclasses.dataclass(frozen=True)
class Rules:
    """What is static: the scheme, the sizes, the mask."""

    encoding: Encoding
    dims: Dims
    causal: bool
    window: int | None
    aligned: bool = False  # query i and key i are one token, of index i
    contiguous: bool = False  # the distance of query i and key j is i - j (within a segment)
    sinks: int = 0

    def mask(self, q: Tokens, k: Tokens) -> jax.Array:
        """Bool [B or 1, 1, T, S]."""
        seen = allowed(
            q.index,
            k.index,
            q.segments,
            k.segments,
            causal=self.causal,
            window=self.window,
            sinks=self.sinks,
            k_rank=k.rank,
        )
        return seen[:, None]

    def beyond_kernels(self) -> str | None:
        """What no kernel knows of this call, in a few words; None where there is nothing."""
        if self.encoding.overrides("state"):
            return "the scheme reads the layer's input"
        if self.encoding.split() is not None:
            return "the scheme has two views of each key"
        if self.encoding.overrides("rescore"):
            return "the scheme needs whole rows of scores"
        return "attention sinks" if self.sinks else None


def pairwise(rules: Rules, q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """`q_pos - k_pos` of all pairs: [B or 1, T, S], with a trailing [A] if axes > 1."""
    if rules.encoding.axes > 1:
        return q_pos[:, :, None, :] - k_pos[:, None, :, :]
    return q_pos[:, :, None] - k_pos[:, None, :]


class Pairs:
    """The distance slots, evaluated for every pair of a tile: any positions, any axes.

    `own` picks, of an array of all heads [H or 1, …], those that the tile has.
    """

    def __init__(self, rules: Rules, params: Params, q_pos, k_pos, own: Callable = lambda x: x):
        self.encoding, self.params, self.dims = rules.encoding, params, rules.dims
        self.own = own
        self.distance = pairwise(rules, q_pos, k_pos)

    def _contract(self, slot: str, x: jax.Array, form: str) -> jax.Array | float:
        """Sums x times the slot's vectors [H or 1, B or 1, T, S, E] as `form` says, or gives 0."""
        found = getattr(self.encoding, slot)(self.params, self.distance)
        if found is None:
            return 0.0
        found = self.own(found)
        one = [axis for axis in (0, 1) if found.shape[axis] == 1]  # shared: leave it out
        axes = "".join(name for axis, name in enumerate("hb") if axis not in one)
        vectors = found.astype(jnp.float32).squeeze(tuple(one))
        return jnp.einsum(form.replace("*", axes), x.astype(jnp.float32), vectors)

    def bias(self) -> jax.Array | float:
        """[B or 1, H, T, S], or 0 where the scheme has none (likewise below)."""
        found = self.encoding.distance_bias(self.params, self.distance, self.dims)
        return 0.0 if found is None else jnp.moveaxis(self.own(found), 0, 1)

    def keys(self, q: jax.Array) -> jax.Array | float:
        """q·relative_keys: [B, H, T, S]."""
        return self._contract("relative_keys", q, "bhte,*tse->bhts")

    def queries(self, k: jax.Array) -> jax.Array | float:
        """k·relative_queries: [B, H, T, S]."""
        return self._contract("relative_queries", k, "bhse,*tse->bhts")

    def states(self, q_state: jax.Array) -> jax.Array | float:
        """q_state·relative_state: [B, H, T, S]."""
        return self._contract("relative_state", q_state, "bhte,*tse->bhts")

    def values(self, weights: jax.Array) -> jax.Array | float:
        """Σ weights·relative_values: [B, H, T, E]."""
        return self._contract("relative_values", weights, "bhts,*tse->bhte")


def state_bias(encoding: Encoding, q_state: jax.Array, k_state: jax.Array) -> jax.Array:
    """The slot for states [B, H, T, C] and [B, H, S, C]: float32 [B, H, T, S]."""
    numbers = range(encoding.state_width)
    rows = [q_state[..., :, None, n] for n in numbers]
    return encoding.state_bias(rows, [k_state[..., None, :, n] for n in numbers])


def fit(x: jax.Array, axis: int, length: int) -> jax.Array:
    """Cuts or pads one axis of x to `length`."""
    if x.shape[axis] >= length:
        return jax.lax.slice_in_dim(x, 0, length, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths)


def repeat_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, K, S, E] → [B, H, S, E]."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def products(encoding: Encoding, q: jax.Array, k: jax.Array, distance: jax.Array) -> jax.Array:
    """Rotated q·k: float32 [B, H, T, S], each pair in the view that its distance calls for."""

    def one(q, k):
        form, k = "bhte,bhse->bhts", repeat_heads(k, q.shape[1])
        return jnp.einsum(form, q, k, preferred_element_type=jnp.float32)

    split = encoding.split()
    if split is None:
        return one(q, k)
    views = (jnp.split(x, 2, axis=-1) for x in (q, k))
    near, far = (one(*view) for view in zip(*views, strict=True))
    return jnp.where(distance[:, None] < split, near, far)


def scores(rules: Rules, params: Params, terms: Any, operands: dict, q: Tokens, k: Tokens, seen):
    """All score terms of a tile before the mask: float32 [B, H, T, S].

    Args:
      rules: the scheme and sizes.
      params: the scheme's parameters (read by `bias` and `rescore` alone).
      terms: evaluates the distance slots (`Pairs` here).
      operands: "q", "k" as rotated; where the scheme has relative keys or queries, also "q_raw",
        "k_raw" as they were before; where it has a state, "q_state" and, for `state_bias`,
        "k_state"; for `rescore`, "q_raw".
      q: the queries' positions, for `bias`.
      k: the keys'.
      seen: bool [B or 1, H or 1, T, S], what the mask shows, for `rescore`.
    """
    enc, heads = rules.encoding, operands["q"].shape[1]
    scale = enc.scale(rules.dims.head_dim)
    s, bias = products(enc, operands["q"], operands["k"], terms.distance), terms.bias()
    if "q_raw" in operands:
        s += terms.keys(operands["q_raw"])
    if "k_raw" in operands:
        s += terms.queries(repeat_heads(operands["k_raw"], heads))
    s = s * scale
    if enc.overrides("bias"):
        bias += enc.bias(params, q.positions, k.positions, rules.dims)
    if "q_state" in operands:
        bias += terms.states(operands["q_state"])
    if "k_state" in operands:
        bias += state_bias(enc, operands["q_state"], operands["k_state"])
    if enc.overrides("rescore"):
        bias = jnp.broadcast_to(jnp.asarray(bias, jnp.float32), s.shape)
        raw = operands["q_raw"].astype(jnp.float32)
        bias += enc.rescore(params, s, bias, scale * raw, seen, rules.dims)
    return s + bias


def average(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Weights [B, H, T, S] times vectors [B, K, S, F]: float32 [B, H, T, F]."""
    return jnp.einsum(
        "bhts,bhsf->bhtf",
        weights.astype(v.dtype),
        repeat_heads(v, weights.shape[1]),
        preferred_element_type=jnp.float32,
    )


def check_values(encoding: Encoding, params: Params, width: int) -> None:
    """Raises ValueError where v is not as wide as the vectors that the scheme adds to it."""
    if encoding.overrides("relative_values"):
        one = jax.ShapeDtypeStruct((1,) * (1 + (encoding.axes > 1)), jnp.int32)
        need = jax.eval_shape(encoding.relative_values, params, one)
        if need is not None and need.shape[-1] != width:
            raise ValueError(f"v has width {width}; relative values need {need.shape[-1]}")


def attend(
    rules: Rules,
    params: Params,
    operands: dict,
    q: Tokens,
    k: Tokens,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    change: Callable[[jax.Array], jax.Array] | None = None,
) -> jax.Array:
    """Attention with everything written out; `operands` also holds "v". Float32 [B, H, T, F].

    Only this engine takes what has no form but that of a matrix, of a shape that broadcasts to
    [B, H, T, S]: `mask` (bool) hides more than `rules` do, `bias` is added to the scores. `change`
    maps the weights [B, H, T, S] before they average the values: dropout.
    """
    terms = Pairs(rules, params, q.positions, k.positions)
    seen = rules.mask(q, k) if mask is None else rules.mask(q, k) & mask
    s = scores(rules, params, terms, operands, q, k, seen)
    s = s if bias is None else s + bias
    s = jnp.where(seen, s, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))
    e = jnp.where(seen, jnp.exp(s - jnp.where(jnp.isfinite(top), top, 0)), 0)
    total = e.sum(-1, keepdims=True)
    weights = e / jnp.where(total > 0, total, 1)
    weights = weights if change is None else change(weights)
    return average(weights, operands["v"]) + terms.values(weights)

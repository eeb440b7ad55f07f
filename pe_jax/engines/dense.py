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


@dataclasses.dataclass(frozen=True)
class Rules:
    """What is static: the scheme, the sizes, the mask."""

    encoding: Encoding
    dims: Dims
    causal: bool
    window: int | None
    aligned: bool = False  # query i and key i are one token, of index i
    contiguous: bool = False  # the distance of query i and key j is i - j (within a segment)

    def mask(self, q: Tokens, k: Tokens) -> jax.Array:
        """Bool [B or 1, 1, T, S]."""
        seen = allowed(
            q.index, k.index, q.segments, k.segments, causal=self.causal, window=self.window
        )
        return seen[:, None]


def pairwise(rules: Rules, q_pos: jax.Array, k_pos: jax.Array) -> jax.Array:
    """`q_pos - k_pos` of all pairs: [B or 1, T, S], with a trailing [A] if axes > 1."""
    if rules.encoding.axes > 1:
        return q_pos[:, :, None, :] - k_pos[:, None, :, :]
    return q_pos[:, :, None] - k_pos[:, None, :]


class Pairs:
    """The distance slots, evaluated for every pair of a tile: any positions, any axes."""

    def __init__(self, rules: Rules, params: Params, q_pos: jax.Array, k_pos: jax.Array):
        self.encoding, self.params, self.dims = rules.encoding, params, rules.dims
        self.distance = pairwise(rules, q_pos, k_pos)

    def _contract(self, slot: str, x: jax.Array, form: str) -> jax.Array | float:
        """Sums x times the slot's vectors [H or 1, B or 1, T, S, E] as `form` says, or gives 0."""
        found = getattr(self.encoding, slot)(self.params, self.distance)
        if found is None:
            return 0.0
        one = [axis for axis in (0, 1) if found.shape[axis] == 1]  # shared: leave it out
        axes = "".join(name for axis, name in enumerate("hb") if axis not in one)
        vectors = found.astype(jnp.float32).squeeze(tuple(one))
        return jnp.einsum(form.replace("*", axes), x.astype(jnp.float32), vectors)

    def bias(self) -> jax.Array | float:
        """[B or 1, H, T, S], or 0 where the scheme has none (likewise below)."""
        found = self.encoding.distance_bias(self.params, self.distance, self.dims)
        return 0.0 if found is None else jnp.moveaxis(found, 0, 1)

    def keys(self, q: jax.Array) -> jax.Array | float:
        """q·relative_keys: [B, H, T, S]."""
        return self._contract("relative_keys", q, "bhte,*tse->bhts")

    def queries(self, k: jax.Array) -> jax.Array | float:
        """k·relative_queries: [B, H, T, S]."""
        return self._contract("relative_queries", k, "bhse,*tse->bhts")

    def values(self, weights: jax.Array) -> jax.Array | float:
        """Σ weights·relative_values: [B, H, T, E]."""
        return self._contract("relative_values", weights, "bhts,*tse->bhte")


def fit(x: jax.Array, axis: int, length: int, value=0) -> jax.Array:
    """Cuts or pads one axis of x to `length`."""
    if x.shape[axis] >= length:
        return jax.lax.slice_in_dim(x, 0, length, axis=axis)
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, constant_values=value)


def repeat_heads(x: jax.Array, heads: int) -> jax.Array:
    """[B, K, S, E] → [B, H, S, E]."""
    return x if x.shape[1] == heads else jnp.repeat(x, heads // x.shape[1], axis=1)


def scores(rules: Rules, params: Params, terms: Any, operands: dict, q_pos, k_pos) -> jax.Array:
    """All score terms of a tile before the mask: float32 [B, H, T, S].

    Args:
      rules: the scheme and sizes.
      params: the scheme's parameters (read by `bias` alone).
      terms: evaluates the distance slots (`Pairs` here).
      operands: "q", "k" as rotated; where the scheme has relative keys or queries, also "q_raw",
        "k_raw" as they were before.
      q_pos: positions of the queries, for `bias`.
      k_pos: positions of the keys, for `bias`.
    """
    q, heads = operands["q"], operands["q"].shape[1]
    s = jnp.einsum(
        "bhte,bhse->bhts",
        q,
        repeat_heads(operands["k"], heads),
        preferred_element_type=jnp.float32,
    )
    if "q_raw" in operands:
        s += terms.keys(operands["q_raw"])
    if "k_raw" in operands:
        s += terms.queries(repeat_heads(operands["k_raw"], heads))
    s = s * rules.encoding.scale(rules.dims.head_dim) + terms.bias()
    if rules.encoding.overrides("bias"):
        s += rules.encoding.bias(params, q_pos, k_pos, rules.dims)
    return s


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
    s = scores(rules, params, terms, operands, q.positions, k.positions)
    s = s if bias is None else s + bias
    seen = rules.mask(q, k) if mask is None else rules.mask(q, k) & mask
    s = jnp.where(seen, s, -jnp.inf)
    top = jax.lax.stop_gradient(jnp.max(s, axis=-1, keepdims=True))
    e = jnp.where(seen, jnp.exp(s - jnp.where(jnp.isfinite(top), top, 0)), 0)
    total = e.sum(-1, keepdims=True)
    weights = e / jnp.where(total > 0, total, 1)
    weights = weights if change is None else change(weights)
    return average(weights, operands["v"]) + terms.values(weights)

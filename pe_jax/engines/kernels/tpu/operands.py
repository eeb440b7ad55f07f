"""What the TPU kernels read: arrays made of terms and tokens, and the schedule of blocks.

Letters are those of `plan`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, select
from pe_jax.engines import block as blocks
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.tpu.plan import VECTORS, Arrays, Plan, Schedule
from pe_jax.numerics.arrays import repeat_heads

MAX_SCHEDULE = 2**18  # bytes of bounds


def with_products(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> tuple[Side, Side, jax.Array]:
    """q and k with the channels of products, v repeated to the heads that keys then have."""
    q, k = blocks.with_products(spec, terms, q, k)
    return q, k, repeat_heads(v, k.x.shape[1])


def make_arrays(
    plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array, bias: jax.Array | None = None
) -> Arrays:
    """What the kernels read, padded; q and k have the channels of products already.

    With a `bias` of all pairs, as in `Arrays`, q may be some of the tokens.
    """
    x, y, v = (common.pad(x, 2, plan.block) for x in (q.x, k.x, v))
    # The distances of each band: [R, 2·block], falling. From 1 - 2·block to 0 they rise.
    first = (jnp.asarray(plan.diagonals, jnp.int32) + 1) * plan.block - 1
    falling = first[:, None] - jnp.arange(2 * plan.block, dtype=jnp.int32)
    bands = common.distance_bias(terms, falling, plan.scale)
    numbers = common.coefficients(terms)
    return Arrays(
        q=x,
        k=y,
        v=v,
        bias=bias,
        coefficients=None if numbers is None else numbers[:, :, None, None],
        bands=None if bands is None else bands[:, :, None],
        q_numbers=common.token_numbers(terms, q, plan.block),
        k_numbers=common.token_numbers(terms, k, plan.block),
        q_ids=_ids(plan, q.tokens.segments, -1),
        k_ids=_ids(plan, k.tokens.segments, -2),
        q_first=q.tokens.index[0, :: plan.block],
        k_first=k.tokens.index[0, :: plan.block],
        **_vectors(plan, terms, q, k, falling, v.dtype),
    )


def _vectors(plan: Plan, terms: tuple, q: Side, k: Side, falling: jax.Array, dtype: Any) -> dict:
    """Vectors of distances, side by side, and what queries and keys dot with them, rounded."""
    rising = falling[:, ::-1] + 1
    arrays: dict[str, list] = {name: [] for name in ("rows", "row_vectors", "columns", *VECTORS)}

    def at(term, distance):
        vectors = term.at(distance)
        return jnp.broadcast_to(vectors, (q.x.shape[1], *vectors.shape[1:]))

    for term, *states in zip(terms, q.states, k.states, strict=True):
        if not isinstance(term, kinds.DistanceProducts):
            continue
        side, factors = term.dotted_with(q, k, states)
        name, of, distance = {"q": ("row", q, falling), "k": ("column", k, rising)}[side]
        shape = *of.x.shape[:3], factors.shape[3]
        factors = jnp.broadcast_to(repeat_heads(factors, shape[1]), shape)
        vectors = at(term, distance) * (plan.scale if term.scaled else 1)
        if term.state is not None and dtype == jnp.bfloat16:
            # Numbers, not projections: sums of two lose next to nothing.
            factors, vectors = _in_two(factors, (0, 0, 1)), _in_two(vectors, (0, 1, 0))
        arrays[f"{name}s"].append(common.pad(factors, 2, plan.block).astype(dtype))
        arrays[f"{name}_vectors"].append(vectors.astype(dtype))
    values = [at(term, falling) for term in select(terms, kinds.RelativeValues)]
    if values:
        arrays["value_vectors"] = [functools.reduce(jnp.add, values).astype(dtype)]
    return {name: jnp.concatenate(array, axis=-1) for name, array in arrays.items() if array}


def _in_two(x: jax.Array, which: tuple[int, ...]) -> jax.Array:
    """Float32 as a sum of two bfloat16 numbers, of which those in `which` lie side by side."""
    high = x.astype(jnp.bfloat16)
    halves = high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)
    return jnp.concatenate([halves[n] for n in which], axis=-1)


def _ids(plan: Plan, segments: Any, hidden: int) -> Any:
    """Segments; padding, which must not see even itself, gets `hidden`, another id per side."""
    if segments is None:
        return None
    ids = jnp.where(segments < 0, hidden, segments)
    return common.pad(ids, 1, plan.block, constant_values=hidden)[:, None]


def make_schedule(plan: Plan, x: Arrays, by_keys: bool) -> Schedule:
    """The schedule of blocks, and which blocks each visits.

    These are visible under the mask, share a segment, and matter where biases decay.
    """
    batch, heads, _, _ = x.q.shape
    visible = plan.any_visible(x.q_first[:, None] - x.k_first)[None, None]
    if x.q_ids is not None and _fits(visible, len(x.q_ids)):
        (q_low, q_high), (k_low, k_high) = (_range(plan, ids) for ids in (x.q_ids, x.k_ids))
        visible &= q_high[..., None] >= k_low[..., None, :]
        visible &= q_low[..., None] <= k_high[..., None, :]
    if plan.decays and _fits(visible, batch * heads):
        numbers = None if x.coefficients is None else x.coefficients[..., 0, 0]
        arrays = x.q, x.k, numbers, x.q_numbers, x.k_numbers
        visible &= common.blocks_that_matter(plan, *arrays, (plan.block, plan.block))
    first, end = common.block_range(visible, by_keys)
    return Schedule(x.q_first, x.k_first, first, end - 1)


def _fits(visible: jax.Array, count: int) -> bool:
    """Whether the bounds of these rows and heads fit a core's scalar memory."""
    return 8 * count * max(128, *visible.shape[2:]) <= MAX_SCHEDULE


def _range(plan: Plan, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least id that is not hidden, and the largest id, of each block: [B or 1, 1, blocks]."""
    blocks = ids.reshape(*ids.shape[:2], -1, plan.block)
    return jnp.where(blocks < 0, jnp.int32(2**30), blocks).min(3), blocks.max(3)

"""Attention on TPUs (`implementation="tpu"`): Pallas kernels with score terms.

The result is that of `reference`; `refusal` names the calls that this engine cannot run. Terms
reach the kernels in these forms, never as a matrix in memory:

* functions of `DistanceFormula`s are traced into the kernel (ALiBi), and so are `TokenBias`es,
  with the numbers of the tokens of both sides (FoX);
* a `TokenProduct` is further channels of q and k, rounded as these are (TUPE);
* `DistanceBias`es are evaluated outside, once for each block diagonal: a band of the distances
  that occur there, which a tile shears into place by rotating lanes (T5);
* so are vectors of distances. A tile multiplies them with what its tokens have for them, q, k or a
  state, and shears the products (Shaw, DeBERTa, Inkling);
* a bias of pairs of positions, or of distances of several axes or at explicit positions, is an
  array for one chunk of queries after the other (`query_chunks`: FIRE, Swin).

Beyond the horizon of all that is read by distance a tile takes one number per query, which moves
the row maxima and not the scores, so that a far tile costs what it costs without a bias. Where
only biases that decay are added, tiles in which no key can matter are left out.

`kernels` holds what runs on a core, `passes` the grids; this file chooses which terms they compute.

Letters: B batch, T tokens (of queries and of keys, except in a chunk), H query heads, K key heads,
E width of q and k, F width of v, C numbers, R block diagonals, X width of what meets vectors. i is
a query block, j a key block.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceTerm, Side, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common, query_chunks
from pe_jax.engines.kernels.tpu import operands, passes
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan
from pe_jax.engines.reference import LOWEST

MAX_BLOCK, LANES = 512, 128  # the most and, by default, the fewest tokens of a block
MAX_BANDS = 2**22  # bytes of a head's bands, or their gradients, that may stay in a core's memory
MAX_VECTORS = 2**23  # the same for bands of vectors, whose kernels have more of it
MAX_PAIRS = 2**24  # of a chunk, unless a block has more; a gather takes 16 times their memory
MAX_NUMBERS = 8  # per token, of all `TokenBias`es


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why this engine cannot run the call, in a few words; None where it can."""
    dtypes = {"float32", "bfloat16"}
    if (why := common.unsupported(spec, terms, q, k, v, dtypes)) is not None:
        return why
    if not spec.aligned:
        return "queries and keys are not the same tokens in order"
    vectors = select(terms, kinds.DistanceVectors)
    if vectors and not spec.in_order:
        return "vectors of distances at explicit positions"
    numbers = sum(term.state.width for term in select(terms, kinds.TokenBias))
    if numbers > MAX_NUMBERS:
        return f"{numbers} numbers per token (at most {MAX_NUMBERS})"
    plan, distance = make_plan(spec, terms, q), jax.ShapeDtypeStruct((1,), jnp.int32)
    widths = (jax.eval_shape(term.at, distance).shape[-1] for term in vectors)
    lanes = sum(pl.cdiv(width, LANES) * LANES for width in widths)
    size = 8 * plan.block * len(plan.diagonals) if plan.by_distance else 0
    if size <= MAX_BANDS and size * lanes <= MAX_VECTORS:
        return None
    what = "vectors" if vectors else "a bias"
    if plan.horizon is None:
        return f"{what} without a horizon over {plan.tokens} tokens"
    return f"{what} of distances from {plan.horizon[0]} to {plan.horizon[1]}"


def in_chunks(spec: AttentionSpec, terms: tuple) -> tuple[bool, ...]:
    """Whether each term is computed in chunks of queries."""
    explicit = () if spec.in_order else (kinds.DistanceFormula, kinds.DistanceBias)
    return tuple(isinstance(term, (kinds.PairBias, *explicit)) for term in terms)


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Number of tokens for whole blocks, a part of one, and pairs past the horizon of biases."""
    plan = make_plan(spec, terms, q)
    near = min(max(map(abs, plan.horizon or (0,))), plan.block)
    return query_chunks.sample_length(in_chunks(spec, terms), plan.block, near)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    block: int | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, Any]:
    """As `reference.attend`, where `refusal` gives None; rounded to v's dtype, then float32.

    `block` is a number of tokens, a power of two; None: chosen here. `interpret` runs the kernels
    without a TPU, slowly, for tests.
    """
    plan = make_plan(spec, terms, q, block, interpret)
    q, k, v = operands.with_products(spec, terms, q, k, v)
    if any(chunked := in_chunks(spec, terms)):
        of_chunk = functools.partial(_attend_chunk, counted(plan))
        rows = query_chunks.length(plan.block, q, k, MAX_PAIRS)
        # A function of two positions may need many times the memory of its result.
        key_chunk = query_chunks.BLOCKS * plan.block if select(terms, kinds.PairBias) else None
        return query_chunks.attend(of_chunk, rows, chunked, spec, terms, q, k, v, key_chunk)
    out, lse = _attention(counted(plan), operands.make_arrays(plan, terms, q, k, v))
    return out[:, :, : plan.tokens].astype(jnp.float32), lse[:, :, : plan.tokens]


def _attend_chunk(
    whole: Plan, terms: tuple, q: Side, k: Side, v: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """As `attend`, of some of the queries, where all other terms are in a bias of pairs.

    The plan is that of all queries; the bias is in one piece or in chunks of keys.
    """
    bias = common.pad(bias, 3, whole.block)[None] if bias.ndim == 4 else bias
    q_blocks, k_blocks = (n // whole.block for n in (q.x.shape[2], len(bias) * bias.shape[4]))
    share = q_blocks / pl.cdiv(whole.tokens, whole.block)
    plan = dataclasses.replace(
        whole,
        decays=False,  # because of the bias
        steps=(k_blocks, q_blocks),
        tiles=whole.tiles * share,
        near=whole.near * share,
    )
    out, lse = _attention(plan, operands.make_arrays(plan, terms, q, k, v, bias))
    return out.astype(jnp.float32), lse


def make_plan(spec: AttentionSpec, terms: tuple, q: Side, block=None, interpret=False) -> Plan:
    """The plan of a call, for the terms that kernels compute.

    Its tiles are not `counted` yet.
    """
    terms = query_chunks.kept(in_chunks(spec, terms), terms)
    tokens = q.x.shape[2]
    block = block or min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens)))
    return Plan(
        **common.ScorePlan.fields(spec, terms),
        by_distance=bool(select(terms, DistanceTerm)),
        horizon=common.horizon(terms),
        tokens=tokens,
        block=block,
        steps=(0, 0),
        tiles=0,
        near=0,
        interpret=interpret,
    )


def counted(plan: Plan) -> Plan:
    """The plan for whole rows, with its tiles counted."""
    first = np.arange(0, plan.tokens, plan.block)
    gap = first[:, None] - first
    visible = plan.any_visible(gap)
    near = visible & np.logical_not(plan.is_far(gap))
    steps = int(visible.sum(1).max()), int(visible.sum(0).max())
    return dataclasses.replace(plan, steps=steps, tiles=int(visible.sum()), near=int(near.sum()))


def _forward(plan: Plan, x: Arrays):
    """Output [B, H, T, F], logarithms of rows' sums [B, H, T, 1]; what is saved.

    The output is in v's dtype; with a bias of pairs in float32: the gradients of its parameters are
    sums over rows that add up to 0, as far as `inner` is exact.
    """
    dtype = x.v.dtype if x.bias is None else jnp.float32
    result = passes.forward(plan, x, dtype)
    out, kernel_lse = (checkpoint_name(array, common.SAVED) for array in (result.out, result.lse))
    lse = jnp.where(kernel_lse == -LOWEST, LOWEST, kernel_lse)
    return (out, jnp.swapaxes(lse, 2, 3)), (x, out, kernel_lse)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    x, *results = saved
    grads = passes.backward(plan, x, tuple(results), cotangents, learned)
    return Arrays(*map(common.sum_shared, grads, x))


_attention = common.differentiable(_forward, _backward)

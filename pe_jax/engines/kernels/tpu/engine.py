"""Attention on TPUs (`implementation="tpu"`): Pallas kernels with score terms.

The result is that of `reference`; `refusal` names the calls that this engine cannot run. Terms
reach the kernels in these forms, never as a matrix in memory:

* functions of `DistanceFormula`s are traced into the kernel (ALiBi), and so are `TokenBias`es,
  with the numbers of the tokens of both sides (FoX);
* a `TokenProduct` is further channels of q and k, rounded as these are (TUPE);
* `DistanceBias`es are evaluated outside, once for each block diagonal: a band of the distances
  that occur there, which a tile shears into place by rotating lanes (T5);
* so are vectors of distances. A tile multiplies them with what its tokens have for them, q, k or a
  state, and shears the products (Shaw, DeBERTa, Inkling). Those without a horizon get gradients
  from a kernel that goes along block diagonals (Transformer-XL);
* FIRE's network is a table of lines and numbers of the queries: a tile takes one line, and the
  knots that lie within it (`piecewise`);
* any other bias of pairs of positions, or of distances of several axes or at explicit positions, is
  an array for one chunk of queries after the other (`query_chunks`: Swin).

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
from pe_jax.engines.kernels.tpu import operands, passes, piecewise
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan
from pe_jax.engines.reference import LOWEST

MAX_BLOCK, LANES = 512, 128  # the most and, by default, the fewest tokens of a block
MAX_BANDS = 2**22  # bytes of a head's bands, or their gradients, that may stay in a core's memory
MAX_VECTORS = 2**23  # the same for bands of vectors; larger ones are treated as without a horizon
MAX_PAIRS = 2**24  # of a chunk, unless a block has more; a gather takes 16 times their memory
MAX_KNOTS = 127  # of a bias in pieces, whose lines are the lanes of a register
MAX_NUMBERS = 8  # per token, of all `TokenBias`es


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why this engine cannot run the call, in a few words; None where it can."""
    dtypes = {"float32", "bfloat16"}
    if (why := common.unsupported(spec, terms, q, k, v, dtypes)) is not None:
        return why
    if not spec.aligned:
        return "queries and keys are not the same tokens in order"
    if select(terms, *kinds.RELATIVE) and not spec.in_order:
        return "vectors of distances at explicit positions"
    numbers = sum(term.state.width for term in select(terms, kinds.TokenBias))
    if numbers > MAX_NUMBERS:
        return f"{numbers} numbers per token (at most {MAX_NUMBERS})"
    plan = make_plan(spec, terms, q)
    in_bands = plan.by_distance and not plan.by_diagonal
    if not in_bands or 8 * plan.block * len(plan.diagonals) <= MAX_BANDS:
        return None
    if plan.horizon is None:
        return f"a bias without a horizon over {plan.tokens} tokens"
    return f"a bias of distances from {plan.horizon[0]} to {plan.horizon[1]}"


def strategies(spec: AttentionSpec, terms: tuple) -> tuple[str, ...]:
    """The strategy of each term, as in `query_chunks`: "pairs" or ""."""
    distances, pairs = (kinds.DistanceFormula, kinds.DistanceBias), select(terms, kinds.PairBias)
    alone = spec.in_order and spec.causal and len(pairs) == 1

    def of_pairs(term):
        if alone and isinstance(term, kinds.PairBias) and (fire := piecewise.network(term.fn)):
            return fire.width > MAX_KNOTS
        explicit = isinstance(term, distances) and not spec.in_order
        return isinstance(term, kinds.PairBias) or explicit

    return tuple("pairs" if of_pairs(term) else "" for term in terms)


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Number of tokens for whole blocks, a part of one, and pairs past the horizon of biases."""
    plan = make_plan(spec, terms, q)
    near = min(max(map(abs, plan.horizon or (0,))), plan.block)
    return query_chunks.sample_length(strategies(spec, terms), plan.block, near)


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
    if any(chosen := strategies(spec, terms)):
        of_chunk = functools.partial(_attend_chunk, counted(plan))
        rows = query_chunks.length(plan.block, q, k, MAX_PAIRS)
        # A function of two positions may need many times the memory of its result.
        key_chunk = query_chunks.BLOCKS * plan.block if select(terms, kinds.PairBias) else None
        return query_chunks.attend(of_chunk, rows, chosen, spec, terms, q, k, v, key_chunk)
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
    terms = query_chunks.kept(strategies(spec, terms), terms)
    tokens = q.x.shape[2]
    block = block or min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens)))
    horizon = _horizon(spec, terms, block)
    return Plan(
        **common.ScorePlan.fields(spec, terms),
        real_distances=all(map(_takes_reals, select(terms, kinds.DistanceFormula))),
        by_distance=bool(select(terms, DistanceTerm)),
        by_diagonal=bool(select(terms, *kinds.RELATIVE)) and horizon is None,
        horizon=horizon,
        tokens=tokens,
        block=block,
        steps=(0, 0),
        tiles=0,
        near=0,
        interpret=interpret,
    )


def _horizon(spec: AttentionSpec, terms: tuple, block: int) -> tuple[int, int] | None:
    """The distances beyond which all is constant; None: there are none, or they are too far.

    They are too far if the gradients of vectors within them do not fit a core's memory. That must
    not depend on the length, because a small case has to be computed as the call is.
    """
    limits, vectors = common.horizon(terms), select(terms, *kinds.RELATIVE)
    if limits is None or not vectors:
        return limits
    distance = jax.ShapeDtypeStruct((1,), jnp.int32)
    widths = (jax.eval_shape(term.at, distance).shape[-1] for term in vectors)
    width = sum(pl.cdiv(n, LANES) * LANES for n in widths)
    diagonals = (limits[1] - (0 if spec.causal else limits[0])) // block + 3
    return limits if 8 * block * diagonals * width <= MAX_VECTORS else None


def counted(plan: Plan) -> Plan:
    """The plan for whole rows, with its tiles counted."""
    first = np.arange(0, plan.tokens, plan.block)
    gap = first[:, None] - first
    visible = plan.any_visible(gap)
    near = visible & np.logical_not(plan.is_far(gap))
    steps = int(visible.sum(1).max()), int(visible.sum(0).max())
    return dataclasses.replace(plan, steps=steps, tiles=int(visible.sum()), near=int(near.sum()))


def _takes_reals(term: kinds.DistanceFormula) -> bool:
    """Whether the function of a formula takes float32 distances too."""
    try:
        jax.eval_shape(term.at, jax.ShapeDtypeStruct((1,), jnp.float32))
    except TypeError:
        return False
    return True


def _forward(plan: Plan, x: Arrays):
    """Output [B, H, T, F], logarithms of rows' sums [B, H, T, 1]; what is saved.

    The output is in v's dtype; with a bias of pairs, or in pieces, in float32: the gradients of
    these are sums over rows that add up to 0, as far as `inner` is exact.
    """
    dtype = x.v.dtype if x.bias is None and x.pieces is None else jnp.float32
    result = passes.forward(plan, x, dtype)
    out, kernel_lse = (checkpoint_name(array, common.SAVED) for array in (result.out, result.lse))
    lse = jnp.where(kernel_lse == -LOWEST, LOWEST, kernel_lse)
    return (out, jnp.swapaxes(lse, 2, 3)), (x, out, kernel_lse)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    x, *results = saved
    grads = passes.backward(plan, x, tuple(results), cotangents, learned)
    return Arrays(*map(common.sum_shared, grads, x))


_attention = common.differentiable(_forward, _backward)

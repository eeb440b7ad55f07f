"""Attention on NVIDIA GPUs (`implementation="fused"`): Pallas kernels, forward and backward.

FlashAttention-2 (Dao, arXiv 2307.08691) with score terms. `kernels` holds what runs on the GPU,
`passes` launches it; `refusal` says which calls it cannot run. What the kernels read (`operands`):

* a `DistanceFormula` is traced into the kernel, and so is a `TokenBias`, for which it loads the
  numbers of the tokens of both sides;
* a `TokenProduct` is further channels of q and k, rounded as these are;
* other terms of distances are tables, at contiguous positions, over the distances within their
  horizon, which vectors must have. XLA evaluates them once, adds up those of one kind, and
  multiplies vectors with q, k or a state. A tile near the diagonal loads its entries from there; a
  tile past the horizon takes one number per head, row or column;
* at contiguous positions a bias that has linear `pieces` (FIRE) is evaluated by them (`pieces`);
* any other bias of two positions is an array of biases for one chunk of queries after the other
  (`query_chunks`). So are biases of distances at explicit positions, products with vectors of more
  distances than a table holds (Transformer-XL has no horizon), and what is beside any of these;
* a `RowSum` (CoPE, GRAPE-AP, stick-breaking) is carried along rows (`row_sums`), with a number per
  query and block of keys; where these are many, one chunk of queries comes after the other;
* a `ChannelDecay` (WALL) fades q and k within their blocks first, and tiles from block to block
  (`fades`); a `PathProduct` (PaTH) maps them within longer chunks, and queries past chunks
  (`paths`); XLA multiplies the tokens of one block or chunk (`chunks`);
* a `PhaseProduct` (TAPA) is two products and a cosine (`phases`);
* several views of a token, and the sinks of a window, are a call for each band of distances
  (`bands`);
* where only biases that decay are added, each block skips the blocks of keys that cannot matter
  (`common.blocks_that_matter`).

Gradients are deterministic, without atomics: a table's are sums over rows, each of which one
program owns. A table without a horizon gets its gradient from one program per block diagonal.

Letters: B batch, T queries, S keys, H query heads, K key heads, E width of q and k, F width of v,
n distances of a table, C coefficients of the formulas. Arrays that kernels read lead with a batch
and a head axis, either of which may be 1.

The kernels are written in Pallas and tested as such. Triton itself compiles them where it is
installed (`triton_call`), from source that `triton_source` writes; else JAX's own copy of it does,
which JAX has deprecated since 0.11 and still has in 0.12. `launches` has blocks, warps and stages.
"""

import dataclasses
import functools
from typing import Any

import jax

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, select
from pe_jax.encodings.terms.rows import interpolate
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import of_moved, side_by_side, with_products
from pe_jax.engines.first_order import call_in_reverse
from pe_jax.engines.kernels import common, query_chunks
from pe_jax.engines.kernels.gpu import bands, launches, operands, passes, paths, tiles
from pe_jax.engines.kernels.gpu.operands import MAX_DISTANCES

MAX_WIDTH = 256  # of a head
MAX_CHANGED = 128  # of one of `IN_CHUNKS`, whose queries and keys take more memory of a block
IN_CHUNKS = {kinds.ChannelDecay: "channels that fade", kinds.PathProduct: "maps between tokens"}
SUMMED = 32  # keys of a block, for each of which sums along rows keep a number of each query
LONGEST_NEAR = 512  # most tokens that a check adds for pairs within a horizon


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why the kernels cannot run this call, or None if they can. Arguments as those of `attend`."""
    if divided := bands.find(spec, terms, k):
        if (why := bands.refusal(spec, terms, q)) is not None:
            return why
        calls = (bands.abstract(band, spec, terms, q, k, v) for band in divided)
        return next((why for call in calls if (why := refusal(*call)) is not None), None)
    if _moves_documents(terms, q):
        spec = of_moved(spec)
    dtypes = {"float32", "bfloat16", "float16"}
    more_kinds = *IN_CHUNKS, kinds.RowSum, kinds.Mask, kinds.PhaseProduct
    if (why := common.unsupported(spec, terms, q, k, v, dtypes, more_kinds)) is not None:
        return why
    changed = " and ".join(IN_CHUNKS[type(term)] for term in select(terms, *IN_CHUNKS))
    sums, masks = select(terms, kinds.RowSum), select(terms, kinds.Mask)
    beside = select(terms, kinds.TokenProduct, kinds.RelativeValues)
    products = sum(term.state.width // 2 for term in select(terms, kinds.TokenProduct))
    width = max(q.x.shape[-1] + products, v.shape[-1])
    relative = bool(select(terms, kinds.DistanceVectors))
    values = bool(select(terms, kinds.RelativeValues))
    chunked = any(in_chunks(spec, terms, q, k))
    axes = q.tokens.positions.shape[2:]
    reasons = {
        "a GPU that is not NVIDIA's": launches.architecture() is None,
        "triton is not installed, and this jax has no copy of it": tiles.triton is None
        and passes.triton_route() is None,
        f"formulas of distances of {axes[-1] if axes else 1} axes": bool(axes)
        and bool(select(terms, kinds.DistanceFormula)),
        f"heads of width {width} (at most {MAX_WIDTH})": width > MAX_WIDTH,
        "vectors of distances at explicit positions": relative and not spec.in_order,
        "masks of more than indices": not all(term.of_index for term in masks),
        "several sums along rows": len(sums) > 1,
        "sums along rows beside products of tokens, or values by distance": bool(sums and beside),
        "phases beside products of tokens, or sums along rows": bool(
            select(terms, kinds.PhaseProduct) and (sums or select(terms, kinds.TokenProduct))
        ),
        f"{changed}, without a causal mask or at a few of the tokens": bool(changed)
        and not (spec.aligned and spec.causal),
        f"{changed}, beside products of tokens, sums along rows or biases of pairs": bool(changed)
        and bool(sums or chunked or select(terms, kinds.TokenProduct)),
        f"{changed}, of several documents in a window or beside masks": _moves_documents(terms, q)
        and bool(masks or spec.window is not None),
        f"{changed}, of heads wider than {MAX_CHANGED}": bool(changed) and width > MAX_CHANGED,
        f"{changed}, with over {paths.MOST} numbers of queries and chunks": _many_maps(terms, q),
        "sums along rows, without the package triton": bool(sums)
        and jax.devices()[0].platform == "gpu"
        and passes.triton_route() is None,
        "several numbers of a query for its sums": any(term.fn is not interpolate for term in sums)
        and operands.sum_numbers(spec, terms, q, k) > 1,
        f"vectors of values beside biases of pairs, or of over {MAX_DISTANCES} distances": values
        and chunked,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def in_chunks(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> tuple[bool, ...]:
    """Whether each term is computed in chunks of queries.

    Where one term is computed in chunks of queries, so are those of distances: kernels find these
    by the indices of tokens in the row.
    """
    low, high = operands.table_span(spec, terms, q.x.shape[2], k.x.shape[2])
    is_wide = common.horizon(terms) is None or high - low >= MAX_DISTANCES
    of_two = select(terms, kinds.PairBias)
    chunked = (
        not spec.in_order
        or _many_sums(terms, q, k)
        or len(of_two) > 1
        or not all(term.pieces for term in of_two)
        or (is_wide and bool(select(terms, kinds.DistanceVectors)))
    )
    of_pairs = (kinds.PairBias, kinds.DistanceBias, kinds.DistanceProducts)
    return tuple(chunked and isinstance(term, of_pairs) for term in terms)


def _of_chunk(spec: AttentionSpec) -> AttentionSpec:
    """The spec of a chunk: some of the queries, at any positions."""
    return dataclasses.replace(spec, aligned=False, contiguous=False, restarts=False)


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Number of tokens for whole blocks, a part of one, and pairs past the horizon of tables."""
    if divided := bands.find(spec, terms, k):
        calls = (bands.abstract(band, spec, terms, q, k, v) for band in divided)
        return max(sample_length(*call) for call in calls)
    longest = _launches(spec, terms, q, k, v).longest
    if select(terms, kinds.PathProduct):
        return paths.sample_length(q, longest)
    chunked = in_chunks(spec, terms, q, k)
    near = max(map(abs, common.horizon(query_chunks.kept(chunked, terms)) or (0,)))
    return query_chunks.sample_length(chunked, longest, min(near, LONGEST_NEAR))


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    sizes: tuple[int, ...] | None = None,
    arch: int | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, for calls without a `refusal`.

    `sizes` make the `Launch` of all kernels; None: the table's, for an architecture `arch` (90 for
    sm_90; None: this machine's). `interpret` runs the kernels as plain JAX, on any machine.
    """
    if divided := bands.find(spec, terms, k):
        by_kernels = functools.partial(attend, sizes=sizes, arch=arch, interpret=interpret)
        return bands.attend(by_kernels, divided, spec, terms, q, k, v)
    if select(terms, kinds.PathProduct):
        return _of_paths(spec, terms, q, k, v, sizes=sizes, arch=arch, interpret=interpret)
    q, k = with_products(spec, terms, q, k)
    by_kernels = functools.partial(_attend, sizes=sizes, arch=arch, interpret=interpret)
    if (rows := chunk_length(spec, terms, q, k, v, sizes, arch)) is None:
        return by_kernels(spec, terms, q, k, v)
    of_chunk = functools.partial(by_kernels, _of_chunk(spec))
    chunked = in_chunks(spec, terms, q, k)
    return query_chunks.attend(of_chunk, rows, chunked, spec, terms, q, k, v)


def _of_paths(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """`attend` where tokens map each other: the backward pass maps them again.

    The tokens of each document are side by side.
    """

    def attend_adjacent(spec, terms, q, k, v):
        run = functools.partial(_attend, spec, **options)
        saved = jax.checkpoint_policies.save_only_these_names(common.SAVED)
        return call_in_reverse(jax.checkpoint(run, policy=saved), terms, q, k, v)

    if _moves_documents(terms, q):
        return side_by_side(attend_adjacent, spec, terms, q, k, v)
    return attend_adjacent(spec, terms, q, k, v)


def _moves_documents(terms: tuple, q: Side) -> bool:
    """Whether the tokens of each document are moved side by side: for maps between tokens."""
    return bool(select(terms, kinds.PathProduct)) and q.tokens.segments is not None


def _many_maps(terms: tuple, q: Side) -> bool:
    """Whether the queries of all chunks are too many numbers for tokens that map each other."""
    return bool(select(terms, kinds.PathProduct)) and paths.numbers(q) > paths.MOST


def chunk_length(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    sizes: tuple[int, ...] | None,
    arch: int | None,
) -> int | None:
    """Queries of a chunk, for a call that is computed in chunks of them; None: at once.

    Sums along rows keep a number for each query and block of keys, which chunks limit.
    """
    longest = _launches(spec, terms, q, k, v, sizes, arch).longest
    if any(in_chunks(spec, terms, q, k)):
        return query_chunks.length(longest, q, k)
    if not _many_sums(terms, q, k):
        return None
    most = query_chunks.MOST // (q.x.shape[0] * q.x.shape[1] * -(-k.x.shape[2] // SUMMED))
    return max(1, most // longest) * longest


def _many_sums(terms: tuple, q: Side, k: Side) -> bool:
    """Whether the numbers that sums along rows keep are too many for a call at once."""
    batch, heads, queries, _ = q.x.shape
    numbers = batch * heads * queries * -(-k.x.shape[2] // SUMMED)
    return bool(select(terms, kinds.RowSum)) and numbers > query_chunks.MOST


def _launches(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    sizes: tuple[int, ...] | None = None,
    arch: int | None = None,
) -> launches.Launches:
    """The launches of a call, whether or not it is computed in chunks of queries."""
    chunked = in_chunks(spec, terms, q, k)
    spec = _of_chunk(spec) if any(chunked) else spec
    terms, q, k = query_chunks.of_kernels(chunked, terms, q, k)
    return operands.make_plan(spec, terms, q, k, v, sizes, False, arch, any(chunked)).launches


def _attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    bias: jax.Array | None = None,
    *,
    sizes: tuple[int, ...] | None,
    arch: int | None,
    interpret: bool,
) -> tuple[jax.Array, jax.Array]:
    """As `attend`, where all other terms are in a `bias` [B or 1, H or 1, T, S]."""
    plan = operands.make_plan(spec, terms, q, k, v, sizes, interpret, arch, bias is not None)
    arrays = operands.make_arrays(plan, terms, q, k, v, bias)
    out, lse, weights = passes.attention(plan, arrays)
    queries, width = plan.lengths[0], v.shape[-1]
    out, distance = out[:, :, :queries, :width], operands.table_distances(plan)
    for term in select(terms, kinds.RelativeValues):
        out = out + common.multiply(weights[:, :, :queries], term.at(distance), "bhtn,hne->bhte")
    return out, lse[:, :, :queries, None]

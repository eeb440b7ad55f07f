"""Attention on NVIDIA GPUs (`implementation="fused"`): Pallas kernels, forward and backward.

FlashAttention-2 (Dao, arXiv 2307.08691) with score terms. `kernels` holds what runs on the GPU;
here is which calls it cannot run (`refusal`) or need not (`stock`), what the kernels read, and what
becomes of their results:

* a `Profile` is traced into the kernel;
* the other terms are tables over the distances within their horizon. XLA evaluates them once, adds
  up those of one kind, and multiplies vectors with q or k. A tile near the diagonal loads its
  entries from there; a tile past the horizon takes one number per head, row or column;
* where nothing but a bias that decays is added, each block begins where keys cannot matter yet
  (`matters_below`).

Gradients are deterministic, without atomics: a table's are sums over rows, each of which one
program owns. A table without a horizon gets its gradient from one program per block diagonal.

Letters: B batch, T queries, S keys, H query heads, K key heads, E width of q and k, F width of v,
n distances of a table, C coefficients of the profiles. Arrays that kernels read lead with a batch
and a head axis, either of which may be 1. (jax 0.12 warns that Pallas will drop its Triton backend;
`refusal` notices.)
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceTerm,
    Profile,
    RelativeKeys,
    RelativeQueries,
    RelativeValues,
    ScoreTerm,
    Side,
    Sink,
    Tokens,
    repeat_heads,
    select,
    static,
)
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.gpu.kernels import (
    FLOOR,
    LOG2E,
    Bounds,
    Inputs,
    Operands,
    Output,
    PerToken,
    Plan,
    diagonal_kernel,
    forward_kernel,
    keys_kernel,
    queries_kernel,
    triton,
)
from pe_jax.engines.kernel_terms import (
    ProfileSum,
    coefficients,
    distance_bias,
    horizon,
    unsupported,
)
from pe_jax.engines.reference import LOWEST

RELATIVE = (RelativeKeys, RelativeQueries, RelativeValues)
KINDS = (Profile, DistanceBias, *RELATIVE)  # these exact kinds
MAX_WIDTH = 256  # of a head
MAX_DISTANCES = 2048  # within a horizon: that many entries per row are written out
NEGLIGIBLE = -30.0  # logarithm of a weight that may be left out: below 2^-43
HALVES = (jnp.bfloat16, jnp.float16)


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why the kernels cannot run this call, or None if they can. Arguments as those of `attend`."""
    why = unsupported(spec, terms, KINDS)
    if why is not None:
        return why
    relative, tables = bool(select(terms, *RELATIVE)), bool(select(terms, DistanceTerm))
    dtypes = {str(x.dtype) for x in (q.x, k.x, v)}
    width = max(q.x.shape[-1], v.shape[-1])
    low, high = _span(spec, terms, q.x.shape[2], k.x.shape[2])
    axes = q.tokens.positions.shape[2:]
    reasons = {
        "this jax has no Pallas for Triton": triton is None,
        f"positions of {axes[-1] if axes else 1} axes": bool(axes),
        f"operands in {' and '.join(sorted(dtypes))}": len(dtypes) > 1
        or not dtypes <= {"float32", "bfloat16", "float16"},
        f"heads of width {width} (at most {MAX_WIDTH})": width > MAX_WIDTH,
        "a table of distances at explicit positions": tables and not spec.contiguous,
        "relative vectors without a horizon": relative and horizon(terms) is None,
        f"relative vectors of {high - low + 1} distances (at most {MAX_DISTANCES})": relative
        and high - low + 1 > MAX_DISTANCES,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    sizes: tuple[int, int] | None = None,
    interpret: bool = False,
) -> tuple[jax.Array, Any]:
    """As `reference.attend`, for calls without a `refusal`; by cuDNN where that suffices.

    `sizes` are tokens of blocks (owned, visited), powers of two from 16 on; None: chosen here.
    `interpret` runs the kernels as plain JAX, on any machine. In the place of row sums cuDNN gives
    None: its own have no gradient, and without a `Sink` nothing reads them.
    """
    if not interpret and jax.default_backend() == "gpu" and stock(spec, terms, q, k, v):
        return _cudnn(spec, terms, q, k, v), None
    plan = _plan(spec, terms, q, k, v, sizes, interpret)
    operands = _operands(plan, terms, q, k, v)
    numbers = _per_token(plan, q.tokens), _per_token(plan, k.tokens)
    bounds = _all_bounds(plan, terms, operands, *numbers)
    out, lse, weights = _attention(plan, operands, *numbers, bounds)
    queries, width = plan.lengths[0], v.shape[-1]
    out, distance = out[:, :, :queries, :width], _distances(plan)
    for term in select(terms, RelativeValues):
        out = out + _multiply(weights[:, :, :queries], term.at(distance), "bhtn,hne->bhte")
    return out, lse[:, :, :queries, None]


# Without our kernels.


def stock(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> bool:
    """Whether cuDNN's own attention gives the same: no score but q·k, no segments, aligned.

    It does give the logarithms of rows' sums, but no gradient through them: not for a `Sink`.
    """
    return (
        not select(terms, ScoreTerm, RelativeValues, Sink)
        and spec.aligned
        and (spec.causal or spec.window is None)
        and q.tokens.segments is None
        and q.x.dtype in HALVES
        and q.x.dtype == k.x.dtype == v.dtype
        and q.x.shape[-1] == v.shape[-1] <= 128
        and q.x.shape[-1] % 8 == 0
    )


def _cudnn(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> jax.Array:
    out = jax.nn.dot_product_attention(
        *(jnp.swapaxes(x, 1, 2) for x in (q.x, k.x, v)),
        scale=kinds.scale(terms, spec.dims.head_dim),
        is_causal=spec.causal,
        local_window_size=None if spec.window is None else (spec.window - 1, 0),
        implementation="cudnn",
    )
    return jnp.swapaxes(out, 1, 2).astype(jnp.float32)


# Before the kernels: the plan.


def _plan(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v, sizes, interpret: bool) -> Plan:
    lengths = q.x.shape[2], k.x.shape[2]
    span = _span(spec, terms, *lengths)
    forward, backward = (sizes, sizes) if sizes else _block_sizes(q.x, v)
    most = _power_of_two(max(lengths))
    forward, backward = ((min(own, most), min(other, most)) for own, other in (forward, backward))
    return Plan(
        spec=spec,
        scale=kinds.scale(terms, spec.dims.head_dim),
        profile=ProfileSum.of(terms),
        lengths=lengths,
        sizes=forward,
        backward_sizes=backward,
        span=span,
        far=horizon(terms) is not None and span[1] - span[0] < MAX_DISTANCES,
        values=bool(select(terms, RelativeValues)),
        interpret=interpret,
    )


def _span(spec: AttentionSpec, terms: tuple, queries: int, keys: int) -> tuple[int, int]:
    """The distances that a table has to hold: those that occur, are seen, and differ."""
    low, high = 1 - keys, queries - 1
    if spec.aligned and spec.contiguous:
        low = 0 if spec.causal else low
        if spec.window is not None:
            low, high = max(low, 1 - spec.window), min(high, spec.window - 1)
    if (limits := horizon(terms)) is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
    return low, max(high, low + 1)


def _block_sizes(q: jax.Array, v: jax.Array) -> tuple[tuple[int, int], tuple[int, int]]:
    """Blocks (owned, visited), forward and backward: they fit an H100, but no clock chose them."""
    width = max(q.shape[-1], v.shape[-1])
    if q.dtype == jnp.float32:
        return (64 if width <= 64 else 32, 32), (32, 32)
    if width > 128:
        return (64, 64), (64, 32)
    return (128, 64), (128, 64) if width > 64 else (64, 64)


def _power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


# Before the kernels: what they read.


def _operands(plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array) -> Operands:
    """What has gradients, padded."""
    tokens, distance = max(*plan.sizes, *plan.backward_sizes), _distances(plan)
    x, y, v = (_grow(_grow(x, tokens), 1, _power_of_two(x.shape[-1])) for x in (q.x, k.x, v))
    rows, columns = [], []
    for term in select(terms, RelativeKeys):
        raw = term.queries(_grow(q.raw, tokens))
        rows.append(_multiply(raw, term.at(distance), "bhte,hne->bhtn") * plan.scale)
    for term in select(terms, RelativeQueries):
        raw = repeat_heads(_grow(k.raw, tokens), q.x.shape[1]).astype(jnp.float32)
        columns.append(_multiply(raw, term.at(distance), "bhte,hne->bhtn") * plan.scale)
    numbers, table = coefficients(terms), distance_bias(terms, distance, plan.scale)
    return Operands(
        q=x,
        k=y,
        v=v,
        coefficients=None if numbers is None else numbers[None],
        table=None if table is None else table[None],
        rows=functools.reduce(jnp.add, rows) if rows else None,
        columns=functools.reduce(jnp.add, columns) if columns else None,
    )


def _per_token(plan: Plan, tokens: Tokens) -> PerToken:
    """Positions, indices and segments as far as the kernels read them."""
    length = max(*plan.sizes, *plan.backward_sizes)

    def padded(numbers, read: bool):
        return _grow(numbers[:, None], length, mode="edge") if read else None

    return PerToken(
        positions=padded(tokens.positions, bool(plan.profile) and not plan.spec.contiguous),
        index=padded(tokens.index, plan.indexed),
        segments=padded(tokens.segments, tokens.segments is not None),
    )


def _distances(plan: Plan) -> jax.Array:
    """The distances of the tables."""
    return jnp.arange(plan.span[0], plan.span[1] + 1, dtype=jnp.int32)


def _grow(x: jax.Array, length: int, width: int = 0, mode: str = "constant") -> jax.Array:
    """Pads axis 2 to a multiple of `length` and the last axis to `width`."""
    widths = [(0, 0)] * x.ndim
    widths[2] = (0, -x.shape[2] % length)
    if width:
        widths[-1] = (0, width - x.shape[-1])
    return jnp.pad(x, widths, mode=mode) if any(map(any, widths)) else x


def _multiply(x: jax.Array, vectors: jax.Array, form: str) -> jax.Array:
    """An einsum in float32 of x [B, H, …] and vectors [H or 1, n, E], named hne in `form`."""
    if len(vectors) == 1:
        return jnp.einsum(form.replace("hne", "ne"), x, vectors[0])
    return jnp.einsum(form, x, vectors)


# Before the kernels: which blocks can matter.


class AllBounds(NamedTuple):
    """The bounds of each pass: None where all blocks are visited that the mask leaves."""

    forward: Bounds | None
    of_queries: Bounds | None
    of_keys: Bounds | None


def _all_bounds(plan: Plan, terms: tuple, operands: Operands, q: PerToken, k: PerToken):
    backward = dataclasses.replace(plan, sizes=plan.backward_sizes)
    terms, operands = jax.lax.stop_gradient((terms, operands))
    return AllBounds(
        forward=_bounds(plan, terms, operands, q, k),
        of_queries=_bounds(backward, terms, operands, q, k),
        of_keys=_bounds(backward, terms, operands, q, k, keys_own=True),
    )


def _bounds(
    plan: Plan, terms: tuple, operands: Operands, q: PerToken, k: PerToken, keys_own: bool = False
) -> Bounds | None:
    """The first block to visit and one past the last, for each owned block; None: all of them."""
    spec = plan.spec
    q_size, k_size = plan.sizes[::-1] if keys_own else plan.sizes
    tests = []
    if plan.indexed:
        most, least = _differences(q.index, k.index, q_size, k_size)
        tests += [most >= 0] if spec.causal else []
        tests += [(least < spec.window) & (most > -spec.window)] if spec.window else []
    if q.segments is not None:
        most, least = _differences(q.segments, k.segments, q_size, k_size)
        tests += [most >= 0, least <= 0]
    if _decays(terms) and spec.aligned and spec.contiguous:
        q_first, k_first = (
            jnp.arange(0, x.shape[2], size, dtype=jnp.int32)
            for x, size in ((operands.q, q_size), (operands.k, k_size))
        )
        below = matters_below(plan, terms, operands, q_size)[..., None]
        apart = q_first[:, None] - k_first[None, :]
        tests += [apart - k_size + 1 < below, -apart - q_size + 1 < below]
    if not tests:
        return None
    pairs = functools.reduce(jnp.logical_and, tests)
    pairs = jnp.swapaxes(pairs, -1, -2) if keys_own else pairs
    count = jnp.arange(pairs.shape[-1], dtype=jnp.int32)
    first = jnp.where(pairs, count, pairs.shape[-1]).min(-1)
    return Bounds(first, jnp.where(pairs, count + 1, 0).max(-1))


def _differences(q: jax.Array, k: jax.Array, q_size: int, k_size: int):
    """The largest and the least q - k of each pair of blocks: [B or 1, 1, q blocks, k blocks]."""
    rows, columns = (x.reshape(*x.shape[:2], -1, size) for x, size in ((q, q_size), (k, k_size)))
    most = rows.max(-1)[..., :, None] - columns.min(-1)[..., None, :]
    return most, rows.min(-1)[..., :, None] - columns.max(-1)[..., None, :]


def _decays(terms: tuple) -> bool:
    """Whether all that is added to the scores is a bias that decays."""
    added = select(terms, ScoreTerm)
    return bool(added) and all(isinstance(term, Profile) and term.decays for term in added)


def matters_below(plan: Plan, terms: tuple, operands: Operands, size: int) -> jax.Array:
    """The distance from which on keys cannot matter to any row of a query block: int32 [B, H, -].

    A row's sum holds its own score. A key whose score is less by -NEGLIGIBLE at the least (by
    Cauchy and Schwarz, and as the bias decays) is left out, with all that are farther away.
    """
    heads = operands.q.shape[1]
    q, k = (repeat_heads(x.astype(jnp.float32), heads) for x in (operands.q, operands.k))
    norms = [jnp.sqrt((x * x).sum(-1)) for x in (q, k)]
    gap = norms[0] * norms[1].max(-1, keepdims=True) - (q * k).sum(-1)
    gap = plan.scale * gap.reshape(*gap.shape[:2], -1, size).max(-1)
    step = min(plan.sizes)
    far = jnp.arange(0, q.shape[2] + step, step, dtype=jnp.int32)

    def bias(distance):
        return functools.reduce(jnp.add, [term.at(distance) for term in select(terms, Profile)])

    fall = bias(far) if plan.spec.causal else jnp.maximum(bias(far), bias(-far))
    matters = ~(gap[..., None] + (fall - bias(far[:1]))[:, None] < NEGLIGIBLE)  # or is no number
    return jnp.where(matters, far + step, 0).max(-1)


# Around the kernels: a differentiable function.


def _run(plan: Plan, operands: Operands, q: PerToken, k: PerToken, bounds: AllBounds):
    """Output [B, H, T, F], logarithms of rows' sums [B, H, T], weights by distance [B, H, T, n].

    The weights are None unless the plan wants them.
    """
    out, lse, weights = _forward(plan, operands, q, k, bounds)
    return out, _natural(lse), weights


def _natural(lse: jax.Array) -> jax.Array:
    """From the kernel's base 2, in which a row that sees nothing has -FLOOR."""
    return jnp.where(lse >= -FLOOR, LOWEST, lse / LOG2E)


def _forward(plan: Plan, operands: Operands, q: PerToken, k: PerToken, bounds: AllBounds):
    length, width = operands.q.shape[2], operands.v.shape[3]
    shapes = Output(
        out=jax.ShapeDtypeStruct((length, width), jnp.float32),
        lse=jax.ShapeDtypeStruct((length,), jnp.float32),
    )
    blank = _blank(plan, operands, operands.q, -jnp.inf) if plan.values else None
    x = Inputs(operands, q, k, bounds.forward)
    entries, result = _launch(plan, forward_kernel, length // plan.sizes[0], x, shapes, blank)
    weights = jnp.exp2(entries - result.lse[..., None]) if plan.values else None
    return result.out, result.lse, weights


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Saved:
    """What the backward pass reads; `learned` names the operands whose gradient is wanted."""

    operands: Operands
    q: PerToken
    k: PerToken
    bounds: AllBounds
    out: jax.Array
    lse: jax.Array
    weights: Any
    learned: tuple[str, ...] = static()


def _forward_save(plan: Plan, operands: Operands, q: PerToken, k: PerToken, bounds: AllBounds):
    named = operands._asdict().items()
    learned = [name for name, x in named if x is not None and x.perturbed]
    operands, q, k, bounds = custom_vjp_primal_tree_values((operands, q, k, bounds))
    out, lse, weights = _forward(plan, operands, q, k, bounds)
    saved = Saved(operands, q, k, bounds, out, lse, weights, tuple(learned))
    return (out, _natural(lse), weights), saved


def _backward(plan: Plan, saved: Saved, cotangents):
    """The tiles again: for the queries, for the keys, and for tables that are nowhere constant."""
    plan = dataclasses.replace(plan, sizes=plan.backward_sizes)
    operands, learned = saved.operands, saved.learned
    d_out, d_lse, d_weights = cotangents
    d_out = jnp.zeros_like(saved.out) if isinstance(d_out, SymbolicZero) else d_out
    delta = (d_out * saved.out).sum(-1)
    if plan.values:
        zero = isinstance(d_weights, SymbolicZero)
        d_weights = jnp.zeros_like(saved.weights) if zero else d_weights
        delta = delta + (d_weights * saved.weights).sum(-1)
    if not isinstance(d_lse, SymbolicZero):
        delta = delta - d_lse
    x = Inputs(
        operands=operands,
        q=saved.q._replace(lse=saved.lse, delta=delta),
        k=saved.k,
        bounds=saved.bounds.of_queries,
        d_out=d_out.astype(operands.v.dtype),
        d_weights=d_weights,
    )
    grads, by_row = _queries_backward(plan, x, learned)
    of_keys, by_column = _keys_backward(plan, x._replace(bounds=saved.bounds.of_keys), learned)
    grads = grads._replace(k=of_keys.k, v=of_keys.v)
    if "rows" in learned:
        grads = grads._replace(rows=by_row)
    if "columns" in learned:
        grads = grads._replace(columns=by_column)
    if "table" in learned:
        table = by_row.sum(2) if plan.far else _of_diagonals(plan, x)
        grads = grads._replace(table=table)
    return Operands(*map(_fold, grads, operands)), None, None, None


def _queries_backward(plan: Plan, x: Inputs, learned: tuple[str, ...]):
    """Gradients of queries and coefficients; those of the scores by distance, or None."""
    operands = x.operands
    shapes = Operands(q=_unbatched(operands.q))
    if "coefficients" in learned:
        rows = operands.coefficients.shape[2], operands.q.shape[2]
        shapes = shapes._replace(coefficients=jax.ShapeDtypeStruct(rows, jnp.float32))
    by_row = "rows" in learned or ("table" in learned and plan.far)
    blank = _blank(plan, operands, operands.q, 0.0) if by_row else None
    blocks = operands.q.shape[2] // plan.sizes[0]
    entries, grads = _launch(plan, queries_kernel, blocks, x, shapes, blank)
    if "coefficients" in learned:
        grads = grads._replace(coefficients=grads.coefficients.sum(3))
    return grads, entries


def _keys_backward(plan: Plan, x: Inputs, learned: tuple[str, ...]):
    """Gradients of keys and values; those of the scores by distance, or None."""
    operands = x.operands
    shared = operands.k.shape[1] < operands.q.shape[1]  # to be added up over heads: in float32
    dtype = jnp.float32 if shared else None
    shapes = Operands(k=_unbatched(operands.k, dtype), v=_unbatched(operands.v, dtype))
    blank = _blank(plan, operands, operands.k, 0.0) if "columns" in learned else None
    blocks = operands.k.shape[2] // plan.sizes[0]
    entries, grads = _launch(plan, keys_kernel, blocks, x, shapes, blank)
    return grads, entries


def _of_diagonals(plan: Plan, x: Inputs) -> jax.Array:
    """The gradient of a table from the sums of the block diagonals: [1, H, n]."""
    size, (low, high) = min(plan.sizes), plan.span
    plan = dataclasses.replace(plan, sizes=(size, size))
    queries, keys = x.operands.q.shape[2], x.operands.k.shape[2]
    count = (queries + keys) // size - 1
    shapes = jax.ShapeDtypeStruct((count, size, size), jnp.float32)
    _, tiles = _launch(plan, diagonal_kernel, count, x._replace(bounds=None), shapes, None)
    tiles = tiles.sum(0)
    # With its columns flipped and each row begun one later than the last, a tile has one column per
    # distance, the least first; neighbouring diagonals then overlap by half.
    wide = jnp.pad(tiles[..., ::-1], [(0, 0)] * 3 + [(0, size)])
    wide = wide.reshape(*tiles.shape[:2], -1)[..., :-size].reshape(*tiles.shape[:2], size, -1)
    lower, upper = jnp.split(jnp.pad(wide.sum(2), [(0, 0), (0, 0), (0, 1)]), 2, axis=-1)
    line = jnp.pad(lower, [(0, 0), (0, 1), (0, 0)]) + jnp.pad(upper, [(0, 0), (1, 0), (0, 0)])
    line = line.reshape(len(line), -1)  # from distance 1 - S on
    begin, end = low + keys - 1, high + keys
    inside = line[:, begin:end].at[:, 0].add(line[:, :begin].sum(1))
    return inside.at[:, -1].add(line[:, end:].sum(1))[None]


def _fold(grad: Any, like: Any) -> Any:
    """Sums over the batch rows and query heads that shared an array."""
    if grad is None:
        return None
    batch, heads = like.shape[:2]
    parts = grad.reshape(batch, -1, heads, grad.shape[1] // heads, *grad.shape[2:])
    return parts.sum((1, 3)).astype(like.dtype)


_attention: Any = jax.custom_vjp(_run, nondiff_argnums=(0,))
_attention.defvjp(_forward_save, _backward, symbolic_zeros=True)


# Around the kernels: a launch.


def _launch(plan: Plan, kernel, blocks: int, x: Inputs, shapes: Any, blank: Any):
    """One program per block, head and batch row.

    Args:
      plan: the call.
      kernel: `kernel(plan, x, blank, entries, result)`.
      blocks: how many.
      x: what it reads.
      shapes: what it writes, without batch and heads.
      blank: what the entries by distance are stored over, or None.

    Returns:
      The entries and the result.
    """
    batch, heads = x.operands.q.shape[:2]

    def block_spec(array):
        b, h, *rest = array.shape

        def place(i, j, k):
            return jax.lax.div(k, batch // b), jax.lax.div(j, heads // h), *[0] * len(rest)

        return pl.BlockSpec((None, None, *rest), place)

    def batched(shape):
        return jax.ShapeDtypeStruct((batch, heads, *shape.shape), shape.dtype)

    operands, outs = x.operands, jax.tree.map(batched, shapes)
    width = max(operands.q.shape[-1], operands.v.shape[-1])
    tables = (operands.table, operands.rows, operands.columns, x.d_weights)
    gathers = any(table is not None for table in tables)
    crowded = plan.sizes[0] * width > 128 * 64 or (gathers and plan.sizes[0] == 128)
    entries = None if blank is None else jax.ShapeDtypeStruct(blank.shape, blank.dtype)
    return pl.pallas_call(
        functools.partial(kernel, plan),
        grid=(blocks, heads, batch),
        in_specs=jax.tree.map(block_spec, (x, blank)),
        out_specs=jax.tree.map(block_spec, (blank, outs)),
        out_shape=(entries, outs),
        input_output_aliases={} if blank is None else {len(jax.tree.leaves(x)): 0},
        compiler_params=triton.CompilerParams(
            num_warps=8 if crowded else 4,
            num_stages=3 if operands.q.dtype in HALVES and width <= 128 else 2,
        ),
        interpret=plan.interpret,
    )(x, blank)


def _blank(plan: Plan, operands: Operands, side: jax.Array, value: float) -> jax.Array:
    """[B, H, T or S, n]: what a kernel stores entries by distance over."""
    batch, heads = operands.q.shape[:2]
    return jnp.full((batch, heads, side.shape[2], plan.distances), value, jnp.float32)


def _unbatched(x: jax.Array, dtype: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape[2:], dtype or x.dtype)

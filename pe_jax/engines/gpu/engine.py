"""Attention on NVIDIA GPUs (`implementation="fused"`): Pallas kernels, forward and backward.

FlashAttention-2 (Dao, arXiv 2307.08691) with score terms. `kernels` holds what runs on the GPU;
here is which calls it cannot run (`refusal`) or need not (`stock`), what the kernels read, and what
becomes of their results:

* a `DistanceFormula` is traced into the kernel, and so is a `TokenBias`, for which it loads the
  numbers of the tokens of both sides;
* a `TokenProduct` is further channels of q and k, rounded as these are;
* the other terms are tables over the distances within their horizon. XLA evaluates them once, adds
  up those of one kind, and multiplies vectors with q, k or a state. A tile near the diagonal loads
  its entries from there; a tile past the horizon takes one number per head, row or column;
* where nothing but biases that decay is added, each block begins where keys cannot matter yet
  (`common.Matters`).

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
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, repeat_heads, select
from pe_jax.engines import kernel_common as common
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.gpu import kernels, launches
from pe_jax.engines.gpu.kernels import LOG2E, Arrays, PerToken, Plan
from pe_jax.engines.reference import LOWEST

RELATIVE = (
    *(kinds.RelativeKeys, kinds.RelativeQueries, kinds.RelativeValues),
    kinds.RelativeState,
)
KINDS = (  # these exact kinds
    *(kinds.DistanceFormula, kinds.DistanceBias, *RELATIVE),
    *(kinds.TokenBias, kinds.TokenProduct, kinds.LogitCap),
)
MAX_WIDTH = 256  # of a head
MAX_DISTANCES = 2048  # within a horizon: that many entries per row are written out
LONGEST_NEAR = 512  # tokens that a check has for what lies within a horizon
KERNELS = {  # by their names in `Launches`; each is called with plan, x, blank, entries and *outs
    "forward": kernels.forward_kernel,
    "queries": kernels.queries_kernel,
    "keys": kernels.keys_kernel,
    "diagonal": kernels.diagonal_kernel,
}
HALVES = (jnp.bfloat16, jnp.float16)


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why the kernels cannot run this call, or None if they can. Arguments as those of `attend`."""
    dtypes = {"float32", "bfloat16", "float16"}
    if (why := common.unsupported(spec, terms, q, k, v, KINDS, dtypes, sinks=True)) is not None:
        return why
    relative, tables = bool(select(terms, *RELATIVE)), bool(select(terms, kinds.DistanceTerm))
    width = max(q.x.shape[-1] + common.product_width(terms), v.shape[-1])
    low, high = _span(spec, terms, q.x.shape[2], k.x.shape[2])
    axes = q.tokens.positions.shape[2:]
    reasons = {
        "a GPU that is not NVIDIA's": launches.architecture() is None,
        "triton is not installed, and this jax has none of its own": kernels.triton is None
        and _triton() is None,
        f"distances of {axes[-1] if axes else 1} axes": bool(axes)
        and (tables or bool(select(terms, kinds.DistanceFormula))),
        f"heads of width {width} (at most {MAX_WIDTH})": width > MAX_WIDTH,
        "a table of distances at explicit positions": tables and not spec.contiguous,
        "attention sinks of windows in several documents": bool(spec.sinks)
        and not (spec.aligned and q.tokens.segments is None),
        "relative vectors without a horizon": relative and common.horizon(terms) is None,
        f"relative vectors of {high - low + 1} distances (at most {MAX_DISTANCES})": relative
        and high - low + 1 > MAX_DISTANCES,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Tokens that meet whole blocks, a part of one, and what lies past the horizon of tables."""
    plan = _plan(spec, terms, q, k, v, None, False)
    near = max(map(abs, common.horizon(terms) or (0,)))
    return 2 * plan.launches.longest + min(near, LONGEST_NEAR) + 61


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
) -> tuple[jax.Array, Any]:
    """As `reference.attend`, for calls without a `refusal`; by cuDNN where that suffices.

    `sizes` make the `Launch` of all kernels; None: the table's, for an architecture `arch` (90 for
    sm_90; None: this machine's). `interpret` runs the kernels as plain JAX, on any machine. In the
    place of row sums cuDNN gives None: its own have no gradient, and it runs where nothing reads
    them.
    """
    if not interpret and jax.default_backend() == "gpu" and stock(spec, terms, q, k, v):
        return _cudnn(spec, terms, q, k, v), None
    q, k = common.with_products(spec, terms, q, k)
    plan = _plan(spec, terms, q, k, v, sizes, interpret, arch)
    out, lse, weights = _attention(plan, _arrays(plan, terms, q, k, v))
    queries, width = plan.lengths[0], v.shape[-1]
    out, distance = out[:, :, :queries, :width], _distances(plan)
    for term in select(terms, kinds.RelativeValues):
        out = out + _multiply(weights[:, :, :queries], term.at(distance), "bhtn,hne->bhte")
    return out, lse[:, :, :queries, None]


def stock(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> bool:
    """Whether cuDNN's own attention gives the same: no score but q·k, no segments, aligned.

    It does give the logarithms of rows' sums, no gradient through them: not for `spec.lse`.
    """
    return (
        not select(terms, kinds.ScoreTerm, kinds.RelativeValues)
        and not spec.lse
        and spec.aligned
        and (spec.causal or spec.window is None)
        and not spec.sinks
        and kinds.logit_cap(terms) is None
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


def _plan(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    sizes: tuple[int, ...] | None,
    interpret: bool,
    arch: int | None = None,
) -> Plan:
    lengths = q.x.shape[2], k.x.shape[2]
    span = _span(spec, terms, *lengths)
    arch = arch or launches.architecture() or launches.DEFAULT
    if sizes is None:
        width = max(q.x.shape[-1], v.shape[-1])
        chosen = launches.choose(arch, _reads(terms), str(q.x.dtype), width)
    else:
        chosen = launches.alike(launches.Launch(*sizes))
    chosen = chosen.at_most(_power_of_two(max(lengths)))
    return Plan(
        spec=spec,
        scale=kinds.scale(terms, spec.dims.head_dim),
        formula=common.FormulaSum.of(terms),
        of_tokens=common.TokenSum.of(terms),
        decays=common.decays(spec, terms),
        cap=kinds.logit_cap(terms),
        lengths=lengths,
        launches=chosen,
        launch=chosen.forward,
        arch=arch,
        span=span,
        far=common.horizon(terms) is not None and span[1] - span[0] < MAX_DISTANCES,
        values=bool(select(terms, kinds.RelativeValues)),
        interpret=interpret,
    )


def _span(spec: AttentionSpec, terms: tuple, queries: int, keys: int) -> tuple[int, int]:
    """The distances that a table has to hold: those that occur, are seen, and differ."""
    low, high = 1 - keys, queries - 1
    if spec.aligned and spec.contiguous:
        low = 0 if spec.causal else low
        if spec.window is not None and not spec.sinks:
            low, high = max(low, 1 - spec.window), min(high, spec.window - 1)
    if (limits := common.horizon(terms)) is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
    return low, max(high, low + 1)


def _reads(terms: tuple) -> str:
    """The most that a tile loads beside q, k and v, of `launches.READS`."""
    if select(terms, *RELATIVE):
        return "vectors"
    return "table" if select(terms, kinds.DistanceTerm) else "scores"


def _power_of_two(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def _arrays(plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array) -> Arrays:
    """What the kernels read, padded."""
    tokens, distance = plan.launches.longest, _distances(plan)
    x, y, v = (
        common.pad(common.pad(x, 2, tokens), 3, _power_of_two(x.shape[3])) for x in (q.x, k.x, v)
    )
    rows, columns = [], []
    for term, state in zip(terms, q.states, strict=True):
        if isinstance(term, kinds.RelativeState):
            state = common.pad(state, 2, tokens)
            rows.append(_multiply(state, term.at(distance), "bhte,hne->bhtn"))
    for term in select(terms, kinds.RelativeKeys):
        raw = term.queries(common.pad(q.raw, 2, tokens))
        rows.append(_multiply(raw, term.at(distance), "bhte,hne->bhtn") * plan.scale)
    for term in select(terms, kinds.RelativeQueries):
        raw = repeat_heads(common.pad(k.raw, 2, tokens), q.x.shape[1]).astype(jnp.float32)
        columns.append(_multiply(raw, term.at(distance), "bhte,hne->bhtn") * plan.scale)
    numbers = common.coefficients(terms)
    table = common.distance_bias(terms, distance, plan.scale)
    return Arrays(
        q=x,
        k=y,
        v=v,
        coefficients=None if numbers is None else numbers[None],
        table=None if table is None else table[None],
        rows=functools.reduce(jnp.add, rows) if rows else None,
        columns=functools.reduce(jnp.add, columns) if columns else None,
        q_numbers=common.token_numbers(terms, q, tokens),
        k_numbers=common.token_numbers(terms, k, tokens),
        of_query=_per_token(plan, q.tokens, tokens),
        of_key=_per_token(plan, k.tokens, tokens),
    )


def _per_token(plan: Plan, tokens: kinds.Tokens, multiple: int) -> PerToken:
    """Positions, indices and segments as far as the kernels read them."""
    numbers = PerToken(
        positions=tokens.positions if plan.formula and not plan.spec.contiguous else None,
        index=tokens.index if plan.indexed else None,
        segments=tokens.segments,
    )
    return jax.tree.map(lambda x: common.pad(x[:, None], 2, multiple, mode="edge"), numbers)


def _distances(plan: Plan) -> jax.Array:
    """The distances of the tables."""
    return jnp.arange(plan.span[0], plan.span[1] + 1, dtype=jnp.int32)


def _multiply(x: jax.Array, vectors: jax.Array, form: str) -> jax.Array:
    """An einsum in float32 of x [B, H, …] and vectors [H or 1, n, E], named hne in `form`."""
    if len(vectors) == 1:
        return jnp.einsum(form.replace("hne", "ne"), x, vectors[0])
    return jnp.einsum(form, x, vectors)


def _bounds(plan: Plan, x: Arrays, keys_own: bool = False) -> tuple | None:
    """The first block to visit and one past the last, for each owned block; None: all of them."""
    spec, (q_size, k_size) = plan.spec, plan.sizes[::-1] if keys_own else plan.sizes
    tests = []
    if plan.indexed:
        most, least = _differences(x.of_query.index, x.of_key.index, q_size, k_size)
        tests += [most >= 0] if spec.causal else []
        tests += [(least < spec.window) & (most > -spec.window)] if spec.window else []
    if x.of_query.segments is not None:
        most, least = _differences(x.of_query.segments, x.of_key.segments, q_size, k_size)
        tests += [most >= 0, least <= 0]
    if plan.decays:
        numbers = None if x.coefficients is None else x.coefficients[0]
        matters = common.Matters(plan.scale, plan.formula, plan.of_tokens)
        tests.append(matters(x.q, x.k, numbers, x.q_numbers, x.k_numbers, (q_size, k_size)))
    if not tests:
        return None
    pairs = functools.reduce(jnp.logical_and, tests)
    pairs = jnp.swapaxes(pairs, -1, -2) if keys_own else pairs
    count = jnp.arange(pairs.shape[-1], dtype=jnp.int32)
    first = jnp.where(pairs, count, pairs.shape[-1]).min(-1)
    return first, jnp.where(pairs, count + 1, 0).max(-1)


def _differences(q: jax.Array, k: jax.Array, q_size: int, k_size: int):
    """The largest and the least q - k of each pair of blocks: [B or 1, 1, q blocks, k blocks]."""
    rows, columns = (x.reshape(*x.shape[:2], -1, size) for x, size in ((q, q_size), (k, k_size)))
    most = rows.max(-1)[..., :, None] - columns.min(-1)[..., None, :]
    return most, rows.min(-1)[..., :, None] - columns.max(-1)[..., None, :]


def _forward(plan: Plan, x: Arrays):
    """Output [B, H, T, F], logarithms of rows' sums [B, H, T], weights by distance [B, H, T, n].

    The weights are None unless the plan wants them. Also returns what the backward pass reads.
    """
    length, width = x.q.shape[2], x.v.shape[3]
    outs, fill = [_shape(x, length, width), _shape(x, length)], -jnp.inf if plan.values else None
    entries, out, lse = _launch(plan, "forward", x, outs, fill)
    weights = jnp.exp2(entries - lse[..., None]) if plan.values else None
    # From the kernel's base 2, in which a row that sees nothing has -LOWEST.
    natural = jnp.where(lse >= -LOWEST, LOWEST, lse / LOG2E)
    return (out, natural, weights), (x, out, lse, weights)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    """The tiles again: for the queries, for the keys, and for tables that are nowhere constant."""
    (x, out, lse, weights), (d_out, d_lse, d_weights) = saved, cotangents
    delta = (d_out * out).sum(-1)
    if plan.values:
        delta = delta + (d_weights * weights).sum(-1)
    of_query = x.of_query._replace(lse=lse, delta=delta - d_lse)
    x = x._replace(of_query=of_query, d_out=d_out.astype(x.v.dtype), d_weights=d_weights)
    outs = [_shape(x, *x.q.shape[2:], dtype=x.q.dtype), None, None]
    if "coefficients" in learned:
        outs[1] = _shape(x, x.coefficients.shape[2], x.q.shape[2])
    if "q_numbers" in learned:
        outs[2] = _shape(x, *x.q_numbers.shape[2:])
    fill = 0.0 if "rows" in learned or ("table" in learned and plan.far) else None
    d_rows, d_q, d_coefficients, of_rows = _launch(plan, "queries", x, outs, fill)
    shared = x.k.shape[1] < x.q.shape[1]
    dtype = jnp.float32 if shared else x.k.dtype  # to be added up over heads
    numbers = _shape(x, *x.k_numbers.shape[2:]) if "k_numbers" in learned else None
    outs = [*(_shape(x, *side.shape[2:], dtype=dtype) for side in (x.k, x.v)), numbers]
    fill = 0.0 if "columns" in learned else None
    d_columns, d_k, d_v, of_columns = _launch(plan, "keys", x, outs, fill)
    grads = Arrays(q=d_q, k=d_k, v=d_v, columns=d_columns)
    grads = grads._replace(q_numbers=of_rows, k_numbers=of_columns)
    if "coefficients" in learned:
        grads = grads._replace(coefficients=d_coefficients.sum(3))
    if "rows" in learned:
        grads = grads._replace(rows=d_rows)
    if "table" in learned:
        grads = grads._replace(table=d_rows.sum(2) if plan.far else _of_diagonals(plan, x))
    return Arrays(*map(_fold, grads, x))


def _of_diagonals(plan: Plan, x: Arrays) -> jax.Array:
    """The gradient of a table from the sums of the block diagonals: [1, H, n]."""
    size, (low, high) = plan.launches.diagonal.own, plan.span
    queries, keys = x.q.shape[2], x.k.shape[2]
    count = (queries + keys) // size - 1
    outs = [_shape(x, count, size, size)]
    _, tiles = _launch(plan, "diagonal", x, outs, None, count)
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


def _shape(x: Arrays, *rest: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((*x.q.shape[:2], *rest), dtype)  # [B, H, …]


_attention = common.differentiable(_forward, _backward)


def _launch(plan: Plan, name: str, x: Arrays, outs: list, fill: float | None, blocks: int = 0):
    """Entries by distance and `outs`, which a kernel, by its name in `KERNELS`, writes.

    One program per block, head and batch row; unless told, the blocks are those of the side that
    owns them. `outs` are given as shapes, None for one that is not wanted; `fill` is what entries
    are stored over, None: there are none.
    """
    batch, heads = x.q.shape[:2]
    plan = dataclasses.replace(plan, launch=getattr(plan.launches, name))
    if not blocks:
        keys_own = name == "keys"
        blocks = (x.k if keys_own else x.q).shape[2] // plan.sizes[0]
        x = x._replace(bounds=_bounds(plan, x, keys_own))

    def block_spec(array):
        b, h, *rest = array.shape

        def place(i, j, k):
            return jax.lax.div(k, batch // b), jax.lax.div(j, heads // h), *[0] * len(rest)

        return pl.BlockSpec((None, None, *rest), place)

    entries = blank = None
    if fill is not None:
        entries = _shape(x, blocks * plan.sizes[0], plan.distances)
        blank = jnp.full(entries.shape, fill, jnp.float32)
    backend = None
    if kernels.triton is not None:
        backend = kernels.triton.CompilerParams(
            num_warps=plan.launch.warps, num_stages=plan.launch.stages
        )
    call = pl.pallas_call(
        functools.partial(KERNELS[name], plan),
        grid=(blocks, heads, batch),
        in_specs=jax.tree.map(block_spec, (x, blank)),
        out_specs=jax.tree.map(block_spec, (entries, *outs)),
        out_shape=(entries, *outs),
        input_output_aliases={} if blank is None else {len(jax.tree.leaves(x)): 0},
        compiler_params=backend,
        interpret=plan.interpret,
    )
    return _run(plan, name, call, (x, blank))


def _run(plan: Plan, name: str, call: Callable, args: tuple) -> Any:
    """What the call gives: by Triton itself where it is installed, else by JAX's copy of it."""
    if plan.interpret or (triton := _triton()) is None:
        return call(*args)
    return triton.run(call, args, name, plan.launch, plan.arch)


def _triton() -> Any:
    """The way through Triton itself; None where it is not installed."""
    from pe_jax.engines.gpu import triton_call

    return triton_call if triton_call.available() else None

"""The fused engine: the scores of `dense` in kernels for NVIDIA GPUs, forward and backward.

FlashAttention-2 (Dao, arXiv 2307.08691) for the slots in general. `fused_kernels` holds what runs
on the GPU; here is what it cannot run (`refusal`) or need not (`stock`), what the kernels read, and
what becomes of their results:

* a bias that is arithmetic (`coefficients`, `profile`) is traced into the kernel;
* every other distance slot is a table over the distances within the horizon. XLA evaluates it
  once, and multiplies it with q or k where it holds vectors; a tile near the diagonal loads its
  entries from there, a tile beyond the horizon takes one number a head, row or column;
* where a bias decays, each block begins where keys cannot matter yet (`_reach`).

Gradients are deterministic, without atomics: a table's are sums over rows, each of which one
program owns. A table without a horizon gets its gradient from one program a block diagonal.

Legend: B batch, T queries, S keys, H query heads, E width of q and k, F width of v, n distances of
a table, C coefficients of a profile. Arrays that kernels read lead with a batch and a head axis,
either of which may be 1. (jax 0.12 warns that Pallas will drop its Triton backend; `refusal`
notices.)
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines.dense import Rules, Tokens, repeat_heads
from pe_jax.engines.fused_kernels import (
    SIDE,
    Plan,
    backward_kernel,
    diagonal_kernel,
    forward_kernel,
    triton,
)

WIDEST = 256  # head width
MOST = 2048  # distances within a horizon: that many entries a row are written out
NEGLIGIBLE = -30.0  # logarithm of a weight that may be left out: below 2^-43
HALVES = (jnp.bfloat16, jnp.float16)


def refusal(rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens) -> str | None:
    """Why the kernels cannot run this call, or None if they can. Arguments as those of `attend`."""
    if (why := rules.beyond_kernels()) is not None:
        return why
    enc = rules.encoding
    relative = any(map(enc.overrides, DISTANCE_SLOTS[1:]))
    table = enc.overrides("distance_bias") and enc.coefficients(params, rules.dims) is None
    dtypes = {str(operands[name].dtype) for name in "qkv"}
    width = max(operands[name].shape[-1] for name in "qv")
    lo, hi = _span(rules, *_lengths(operands))
    reasons = {
        "this jax has no Pallas for Triton": triton is None,
        "a bias of absolute positions": enc.overrides("bias"),
        f"positions of {enc.axes} axes": enc.axes > 1,
        f"operands in {' and '.join(sorted(dtypes))}": len(dtypes) > 1
        or not dtypes <= {"float32", "bfloat16", "float16"},
        f"heads of width {width} (at most {WIDEST})": width > WIDEST,
        "a table of distances at explicit positions": (relative or table) and not rules.contiguous,
        "relative vectors without a horizon": relative and enc.horizon() is None,
        f"relative vectors of {hi - lo + 1} distances (at most {MOST})": relative
        and hi - lo + 1 > MOST,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def stock(rules: Rules, operands: dict, q: Tokens, k: Tokens) -> bool:
    """Whether cuDNN's own attention gives the same: no score but q·k, no segments, aligned."""
    query, value = operands["q"], operands["v"]
    return (
        not any(map(rules.encoding.overrides, (*DISTANCE_SLOTS, "bias")))
        and rules.aligned
        and (rules.causal or rules.window is None)
        and q.segments is None
        and query.dtype in HALVES
        and query.dtype == operands["k"].dtype == value.dtype
        and query.shape[-1] == value.shape[-1] <= 128
        and query.shape[-1] % 8 == 0
    )


def _cudnn(rules: Rules, operands: dict) -> jax.Array:
    out = jax.nn.dot_product_attention(
        *(jnp.swapaxes(operands[name], 1, 2) for name in "qkv"),
        scale=rules.encoding.scale(rules.dims.head_dim),
        is_causal=rules.causal,
        local_window_size=None if rules.window is None else (rules.window - 1, 0),
        implementation="cudnn",
    )
    return jnp.swapaxes(out, 1, 2).astype(jnp.float32)


# Around the kernels.


def _call(plan: Plan, kernel, blocks: int, x: dict, shapes: dict, blank: dict) -> dict:
    """One program a block, head and batch row: its outputs, and what it dealt over `blank`."""
    batch, heads = x["q"].shape[:2]

    def spec(array):
        b, h, *rest = array.shape
        place = lambda i, j, k: (  # noqa: E731
            jax.lax.div(k, batch // b),
            jax.lax.div(j, heads // h),
            *[0] * len(rest),
        )
        return pl.BlockSpec((None, None, *rest), place)

    outs = {n: jax.ShapeDtypeStruct((batch, heads, *s), d) for n, (s, d) in shapes.items()}
    width, gathers = max(x["q"].shape[-1], x["v"].shape[-1]), x.keys() & {"table", *SIDE}
    crowded = plan.sizes[0] * width > 128 * 64 or (gathers and plan.sizes[0] == 128)
    dealt, found = pl.pallas_call(
        kernel,
        grid=(blocks, heads, batch),
        in_specs=jax.tree.map(spec, (x, blank)),
        out_specs=jax.tree.map(spec, (blank, outs)),
        out_shape=(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), blank), outs),
        input_output_aliases={len(x) + i: i for i in range(len(blank))},
        compiler_params=triton.CompilerParams(
            num_warps=8 if crowded else 4,
            num_stages=3 if x["q"].dtype in HALVES and width <= 128 else 2,
        ),
        interpret=plan.interpret,
    )(x, blank)
    return dealt | found


def _forward(plan: Plan, diff: dict, fixed: dict, bounds: dict):
    """Output [B, H, T, F], log2 of each row's sum [B, H, T], weights by distance [B, H, T, n]."""
    x = diff | fixed | bounds["forward"]
    length, width = diff["q"].shape[2], diff["v"].shape[3]
    shapes = {"out": ((length, width), jnp.float32), "lse": ((length,), jnp.float32)}
    blank = {"weights": _blank(plan, diff, "q", -jnp.inf)} if plan.values else {}
    kernel = functools.partial(forward_kernel, plan)
    found = _call(plan, kernel, length // plan.sizes[0], x, shapes, blank)
    weights = jnp.exp2(found["weights"] - found["lse"][..., None]) if plan.values else None
    return found["out"], found["lse"], weights


def _blank(plan: Plan, diff: dict, side: str, value: float) -> jax.Array:
    """[B, H, T or S, n]: what a kernel deals entries by distance over."""
    n = plan.span[1] - plan.span[0] + 1
    return jnp.full((*diff["q"].shape[:2], diff[side].shape[2], n), value, jnp.float32)


def _forward_save(plan: Plan, diff: dict, fixed: dict, bounds: dict):
    out, lse, weights = _forward(plan, diff, fixed, bounds)
    return (out, weights), (diff, fixed, bounds, out, lse, weights)


def _backward(plan: Plan, saved, cotangents):
    """The tiles again: for the queries, for the keys, and for tables without far ends."""
    diff, fixed, bounds, out, lse, weights = saved
    d_out, d_weights = cotangents
    plan = dataclasses.replace(plan, sizes=plan.back)
    x = {**diff, **fixed, "q_lse": lse, "d_out": d_out.astype(diff["v"].dtype)}
    x["q_delta"] = (d_out * out).sum(-1)
    if plan.values:
        x |= {"d_weights": d_weights, "q_delta": x["q_delta"] + (d_weights * weights).sum(-1)}
    shared = diff["k"].shape[1] < diff["q"].shape[1]  # gradients to be added up: in float32
    shape = lambda name, as32: (diff[name].shape[2:], jnp.float32 if as32 else diff[name].dtype)  # noqa: E731
    of_queries, of_keys = {"q": shape("q", False)}, {name: shape(name, shared) for name in "kv"}
    if "coefficients" in diff:
        rows = diff["coefficients"].shape[2], diff["q"].shape[2]
        of_queries["coefficients"] = (rows, jnp.float32)
    by_row = "rows" in diff or ("table" in diff and plan.far)
    blank = (
        {"rows": _blank(plan, diff, "q", 0.0)} if by_row else {},
        ({"columns": _blank(plan, diff, "k", 0.0)} if "columns" in diff else {}),
    )
    grads = {}
    for side, shapes, over in zip("qk", (of_queries, of_keys), blank, strict=True):
        kernel = functools.partial(backward_kernel, side == "k", plan)
        blocks = diff[side].shape[2] // plan.sizes[0]
        grads |= _call(plan, kernel, blocks, x | bounds[side], shapes, over)
    if "coefficients" in diff:
        grads["coefficients"] = grads["coefficients"].sum(3)
    if "table" in diff:
        grads["table"] = grads["rows"].sum(2) if plan.far else _of_diagonals(plan, x)
    return {name: _fold(grads[name], a) for name, a in diff.items()}, None, None


def _fold(grad: jax.Array, like: jax.Array) -> jax.Array:
    """Sums over the batch rows and query heads that shared an array."""
    batch, heads = like.shape[:2]
    parts = grad.reshape(batch, -1, heads, grad.shape[1] // heads, *grad.shape[2:])
    return parts.sum((1, 3)).astype(like.dtype)


def _of_diagonals(plan: Plan, x: dict) -> jax.Array:
    """The gradient of a table from the sums of the block diagonals: [1, H, n]."""
    size, (lo, hi) = min(plan.sizes), plan.span
    plan = dataclasses.replace(plan, sizes=(size, size))
    count = (x["q"].shape[2] + x["k"].shape[2]) // size - 1
    shapes = {"tiles": ((count, size, size), jnp.float32)}
    kernel = functools.partial(diagonal_kernel, plan)
    tiles = _call(plan, kernel, count, x, shapes, {})["tiles"].sum(0)
    # With its columns flipped and each row begun one later than the last, a tile has one column a
    # distance, the least first; neighbouring diagonals then overlap by half.
    wide = jnp.pad(tiles[..., ::-1], [(0, 0)] * 3 + [(0, size)])
    wide = wide.reshape(*tiles.shape[:2], -1)[..., :-size].reshape(*tiles.shape[:2], size, -1)
    low, high = jnp.split(jnp.pad(wide.sum(2), [(0, 0), (0, 0), (0, 1)]), 2, axis=-1)
    line = jnp.pad(low, [(0, 0), (0, 1), (0, 0)]) + jnp.pad(high, [(0, 0), (1, 0), (0, 0)])
    line = line.reshape(len(line), -1)  # from distance 1 - S on
    begin, end = lo + x["k"].shape[2] - 1, hi + x["k"].shape[2]
    inside = line[:, begin:end].at[:, 0].add(line[:, :begin].sum(1))
    return inside.at[:, -1].add(line[:, end:].sum(1))[None]


_fused: Any = jax.custom_vjp(lambda *args: _forward(*args)[::2], nondiff_argnums=(0,))
_fused.defvjp(_forward_save, _backward)


# Before the kernels.


def _lengths(operands: dict) -> tuple[int, int]:
    return operands["q"].shape[2], operands["k"].shape[2]


def _span(rules: Rules, queries: int, keys: int) -> tuple[int, int]:
    """The distances that a table has to hold: those that occur, are seen, and differ."""
    lo, hi = 1 - keys, queries - 1
    if rules.aligned and rules.contiguous:
        lo = 0 if rules.causal else lo
        if rules.window is not None:
            lo, hi = max(lo, 1 - rules.window), min(hi, rules.window - 1)
    horizon = rules.encoding.horizon()
    if horizon is not None:
        lo, hi = max(lo, horizon[0]), min(hi, horizon[1])
    return lo, max(hi, lo + 1)


def _power(n: int) -> int:
    return max(16, 1 << (n - 1).bit_length())


def _sizes(operands: dict) -> tuple[tuple[int, int], tuple[int, int]]:
    """Blocks (owned, visited), forward and backward: they fit an H100, but no clock chose them."""
    width = max(operands["q"].shape[-1], operands["v"].shape[-1])
    if operands["q"].dtype == jnp.float32:
        return (64 if width <= 64 else 32, 32), (32, 32)
    if width > 128:
        return (64, 64), (64, 32)
    return (128, 64), (128, 64) if width > 64 else (64, 64)


def _grow(x: jax.Array, length: int, width: int = 0, mode: str = "constant") -> jax.Array:
    """Pads axis 2 to a multiple of `length` and the last axis to `width`."""
    widths = [(0, 0)] * x.ndim
    widths[2] = (0, -x.shape[2] % length)
    if width:
        widths[-1] = (0, width - x.shape[-1])
    return jnp.pad(x, widths, mode=mode) if any(map(any, widths)) else x


def _product(x: jax.Array, vectors: jax.Array, form: str) -> jax.Array:
    """An einsum in float32 of x [B, H, …] and vectors [H or 1, n, E], named hne in `form`."""
    if len(vectors) == 1:
        return jnp.einsum(form.replace("hne", "ne"), x, vectors[0].astype(jnp.float32))
    return jnp.einsum(form, x, vectors.astype(jnp.float32))


def _terms(plan: Plan, params: Params, operands: dict, distance: jax.Array) -> dict:
    """The distance slots that enter the scores, as the kernels read them."""
    enc, dims, found = plan.rules.encoding, plan.rules.dims, {}
    if enc.overrides("distance_bias"):
        found = {"coefficients": enc.coefficients(params, dims)}
        if found["coefficients"] is None:
            found = {"table": enc.distance_bias(params, distance, dims)}
    for name, slot, side in (
        ("rows", "relative_keys", "q_raw"),
        ("columns", "relative_queries", "k_raw"),
    ):
        if side in operands and (vectors := getattr(enc, slot)(params, distance)) is not None:
            x = repeat_heads(operands[side], operands["q"].shape[1]).astype(jnp.float32)
            found[name] = _product(x, vectors, "bhte,hne->bhtn") * enc.scale(dims.head_dim)
    found = {name: x.astype(jnp.float32) for name, x in found.items() if x is not None}
    return {name: x if name in SIDE else x[None] for name, x in found.items()}


def _tokens(plan: Plan, q: Tokens, k: Tokens) -> dict:
    """Positions, indices and segments as far as the kernels read them: [B or 1, 1, T or S]."""
    names = ["index"] * plan.indexed + ["segments"] * (q.segments is not None)
    if plan.rules.encoding.overrides("distance_bias") and not plan.rules.contiguous:
        names.append("positions")
    found = {
        f"{side}_{name}": getattr(tokens, name)[:, None]
        for side, tokens in {"q": q, "k": k}.items()
        for name in names
    }
    return {name: _grow(x, max(*plan.sizes, *plan.back), mode="edge") for name, x in found.items()}


def _reach(plan: Plan, params: Params, diff: dict, size: int) -> jax.Array:
    """The distance from which on keys cannot matter to any row of a query block: int32 [B, H, -].

    A row's sum holds its own score. A key whose score is less by -NEGLIGIBLE at the least (by
    Cauchy and Schwarz, and as the bias decays) is left out, with all that are farther away.
    """
    enc, dims, heads = plan.rules.encoding, plan.rules.dims, diff["q"].shape[1]
    q, k = (repeat_heads(diff[name].astype(jnp.float32), heads) for name in "qk")
    norm = lambda x: jnp.sqrt((x * x).sum(-1))  # noqa: E731
    gap = norm(q) * norm(k).max(-1, keepdims=True) - (q * k).sum(-1)
    gap = enc.scale(dims.head_dim) * gap.reshape(*gap.shape[:2], -1, size).max(-1)
    step = min(plan.sizes)
    far = jnp.arange(0, q.shape[2] + step, step, dtype=jnp.int32)
    bias = functools.partial(enc.distance_bias, params, dims=dims)
    fall = bias(far) if plan.rules.causal else jnp.maximum(bias(far), bias(-far))
    matters = ~(gap[..., None] + (fall - bias(far[:1]))[:, None] < NEGLIGIBLE)  # or is no number
    return jnp.where(matters, far + step, 0).max(-1)


def _bounds(plan: Plan, params: Params, diff: dict, tokens: dict, turned: bool) -> dict:
    """The first block to visit and one past the last, for each owned block; {} where all are."""
    sizes, rules = dict(zip("kq" if turned else "qk", plan.sizes, strict=True)), plan.rules
    blocks = {name: x.reshape(*x.shape[:2], -1, sizes[name[0]]) for name, x in tokens.items()}
    low, high = ({n: f(x, axis=-1) for n, x in blocks.items()} for f in (jnp.min, jnp.max))
    less = lambda a, b: a[..., :, None] - b[..., None, :]  # noqa: E731
    seen = []
    if plan.indexed:
        most, least = less(high["q_index"], low["k_index"]), less(low["q_index"], high["k_index"])
        seen += [most >= 0] if rules.causal else []
        seen += [(least < rules.window) & (most > -rules.window)] if rules.window else []
    if "q_segments" in tokens:
        seen.append(less(high["q_segments"], low["k_segments"]) >= 0)
        seen.append(less(low["q_segments"], high["k_segments"]) <= 0)
    if rules.encoding.decays and rules.aligned and rules.contiguous and not SIDE.keys() & diff:
        begins = (jnp.arange(0, diff[s].shape[2], sizes[s], dtype=jnp.int32) for s in "qk")
        reach, apart = _reach(plan, params, diff, sizes["q"])[..., None], less(*begins)
        seen += [apart - sizes["k"] + 1 < reach, -apart - sizes["q"] + 1 < reach]
    if not seen:
        return {}
    pairs = functools.reduce(jnp.logical_and, seen)
    pairs = jnp.swapaxes(pairs, -1, -2) if turned else pairs
    count = jnp.arange(pairs.shape[-1], dtype=jnp.int32)
    first = jnp.where(pairs, count, pairs.shape[-1]).min(-1)
    return {"first": first, "last": jnp.where(pairs, count + 1, 0).max(-1)}


def _plan(rules: Rules, params: Params, operands: dict, sizes, interpret: bool) -> Plan:
    enc, lengths = rules.encoding, _lengths(operands)
    span = _span(rules, *lengths)
    table = enc.overrides("distance_bias") and enc.coefficients(params, rules.dims) is None
    far = enc.horizon() is not None and span[1] - span[0] < MOST
    ahead, back = (sizes, sizes) if sizes else _sizes(operands)
    most = _power(max(lengths))
    ahead, back = ((min(own, most), min(other, most)) for own, other in (ahead, back))
    far &= table or any(map(enc.overrides, DISTANCE_SLOTS[1:]))
    values = enc.overrides("relative_values")
    return Plan(rules, lengths, ahead, back, span, far, values, interpret)


def attend(
    rules: Rules,
    params: Params,
    operands: dict,
    q: Tokens,
    k: Tokens,
    *,
    sizes: tuple[int, int] | None = None,
    interpret: bool = False,
) -> jax.Array:
    """As `dense.attend`, for calls without a `refusal`; on a GPU, by cuDNN where that suffices.

    Args:
      rules: the scheme and the mask.
      params: parameters of the scheme.
      operands: "q", "k", "v" and, where the scheme reads them, "q_raw" and "k_raw".
      q: what is known of the queries.
      k: what is known of the keys.
      sizes: lengths of blocks (owned, visited), powers of two from 16 on; None: chosen here.
      interpret: run the kernels as plain JAX, on any machine.
    """
    if not interpret and jax.default_backend() == "gpu" and stock(rules, operands, q, k):
        return _cudnn(rules, operands)
    plan = _plan(rules, params, operands, sizes, interpret)
    distance = jnp.arange(plan.span[0], plan.span[1] + 1, dtype=jnp.int32)
    width, vectors = operands["v"].shape[-1], None
    if plan.values:
        vectors = rules.encoding.relative_values(params, distance)
        plan = dataclasses.replace(plan, values=vectors is not None)
    if vectors is not None and vectors.shape[-1] != width:
        raise ValueError(f"v has width {width}; relative values need {vectors.shape[-1]}")
    grown = {name: _grow(x, max(*plan.sizes, *plan.back)) for name, x in operands.items()}
    diff = {name: _grow(grown[name], 1, _power(grown[name].shape[-1])) for name in "qkv"}
    diff |= _terms(plan, params, grown, distance)
    fixed = _tokens(plan, q, k)
    back = dataclasses.replace(plan, sizes=plan.back)
    known = jax.lax.stop_gradient((params, diff))
    bounds = {
        name: _bounds(of, *known, fixed, name == "k")
        for name, of in {"forward": plan, "q": back, "k": back}.items()
    }
    if not jax.tree.leaves(params) and "coefficients" in diff:  # constants
        fixed["coefficients"] = diff.pop("coefficients")
    out, weights = _fused(plan, diff, fixed, bounds)
    out = out[:, :, : plan.lengths[0], :width]
    if vectors is None:
        return out
    return out + _product(weights[:, :, : plan.lengths[0]], vectors, "bhtn,hne->bhte")

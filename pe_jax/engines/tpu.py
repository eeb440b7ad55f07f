"""Attention on a TPU: splash where a mask suffices, else a Pallas kernel that computes the bias.

The result is that of `dense` and `tiled`; what this engine cannot run, `refusal` names. Splash
takes q as scaled. Where that would round a bfloat16 q once more (E = 32, 96, 128, …: any but a
power of 4), the other kernel runs, without a bias: it scales float32 scores. A bias of distances
reaches it in one of two forms, never as a matrix in memory:

* `coefficients` [H, C]: the scheme's `profile` is traced into the kernel (ALiBi);
* `strips` [H, R, 2·block]: any other function of the distance is evaluated outside, once for each
  block diagonal. A tile shears its strip into place by rotating lanes. Beyond the scheme's horizon
  a strip is constant: the tile takes one number, which moves the row maxima and not the scores, so
  a far tile costs what it costs without a bias.

`tpu_kernels` holds what runs on a core; here is who runs what, the bias in either form, and the
calls: one kernel forward, two backward, each over a grid of the tiles that the mask leaves.
Gradients of a bias add up in the order of the grid, which a TPU runs in sequence: no atomics, the
same bits each time. Splash is jax's own.

Legend: B batch, T tokens (queries and keys alike), H query heads, K key heads, E width of q and k,
F width of v, C coefficients, R block diagonals. i is a query block, j a key block.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pe_jax.encodings.base import Params
from pe_jax.engines.dense import Rules, Tokens
from pe_jax.engines.tpu_kernels import Plan, forward_kernel, keys_kernel, queries_kernel

BLOCK, LANES = 512, 128  # the most and (but for tests) the fewest tokens a side; powers of two
STRIPS = 2**22  # bytes of strips that may stay in a core's memory
SLOTS = ("bias", "relative_keys", "relative_queries", "relative_values")  # none of these
ALONG_KEYS = ("k", "v", "k_ids", "bias")  # what each tile of a query block reads anew
ALONG_QUERIES = ("q", "d_out", "lse", "inner", "q_ids", "bias")  # … of a key block


def refusal(rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens) -> str | None:
    """Why this engine cannot run the call, in a few words; None where it can."""
    if (why := rules.beyond_kernels()) is not None:
        return why
    if used := [slot for slot in SLOTS if rules.encoding.overrides(slot)]:
        return f"the scheme uses {' and '.join(used)}"
    if not rules.aligned:
        return "queries and keys are not the same tokens in order"
    dtypes = {operands[name].dtype for name in "qkv"}
    if len(dtypes) > 1 or not dtypes <= {jnp.dtype("float32"), jnp.dtype("bfloat16")}:
        return f"q, k, v are {', '.join(sorted(map(str, dtypes)))}, not all float32 or bfloat16"
    if not rules.encoding.overrides("distance_bias"):
        return None
    if not rules.contiguous:
        return "a bias of distances with explicit positions"
    plan = _plan(rules, params, operands)
    if plan.bias == "strips" and 8 * plan.block * len(plan.diagonals) > STRIPS:
        return f"a bias without a horizon over {plan.tokens} tokens"
    return None


def attend(
    rules: Rules,
    params: Params,
    operands: dict,
    q: Tokens,
    k: Tokens,
    *,
    interpret: bool = False,
) -> jax.Array:
    """As `dense.attend`, where `refusal` gives None; rounded to v's dtype, then float32.

    `interpret` runs the kernels without a TPU, slowly, for tests.
    """
    plain = not rules.encoding.overrides("distance_bias") and _scales_exactly(rules, operands)
    run = _with_splash if plain else _with_kernel
    return run(rules, params, operands, q.segments, interpret).astype(jnp.float32)


def _scales_exactly(rules: Rules, operands: dict) -> bool:
    """Whether q times the scale is no further rounding: in float32, or by a power of two."""
    power = math.frexp(rules.encoding.scale(rules.dims.head_dim))[0] == 0.5
    return power or operands["q"].dtype == jnp.float32


def _block(tokens: int) -> int:
    return min(BLOCK, max(LANES, pl.next_power_of_2(tokens)))


def _pad(x: jax.Array, axis: int, block: int, value: int = 0) -> jax.Array:
    """Grows one axis to a multiple of `block`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, widths, constant_values=value)


# Splash: the scores are q·k and nothing else.


def _with_splash(rules: Rules, params, operands: dict, ids, interpret: bool) -> jax.Array:
    """[B, H, T, F] in v's dtype."""
    batch, heads, tokens, _ = operands["q"].shape
    block = _block(tokens)
    scaled = operands["q"] * rules.encoding.scale(rules.dims.head_dim)
    q, k, v = (_pad(x, 2, block) for x in (scaled, operands["k"], operands["v"]))
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask([_mask(rules, q.shape[2])] * heads),
        block_sizes=splash.BlockSizes(block, block, block, block, block, block, block, block),
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if ids is None and tokens % block and not rules.causal:  # padding keys must not be seen
        ids = jnp.zeros((batch, tokens), jnp.int32)
    if ids is None:
        return jax.vmap(kernel)(q, k, v)[:, :, :tokens]
    ids = jnp.broadcast_to(_pad(ids, 1, block, -1), (batch, q.shape[2]))
    out = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(ids, ids)))(q, k, v, ids)
    # Splash needs a key in each row: padding sees padding, and nothing of it passes here.
    return jnp.where(ids[:, None, :, None] >= 0, out, 0)[:, :, :tokens]


def _mask(rules: Rules, length: int) -> masks.Mask:
    """The mask as a rule, which splash evaluates block by block."""
    shape = (length, length)
    if rules.window is not None and rules.window < length:
        back = rules.window - 1
        return masks.LocalMask(shape, (back, 0 if rules.causal else back), offset=0)
    return masks.CausalMask(shape) if rules.causal else masks.FullMask(shape)


# A kernel of ours: the scores have a bias of distances, or a scale that splash would round.


def _plan(rules: Rules, params: Params, operands: dict, interpret: bool = False) -> Plan:
    batch, heads, tokens, width = operands["q"].shape
    bias = None
    if rules.encoding.overrides("distance_bias"):
        arithmetic = rules.encoding.coefficients(params, rules.dims) is not None
        bias = "coefficients" if arithmetic else "strips"
    return Plan(
        rules=rules,
        batch=batch,
        heads=heads,
        groups=heads // operands["k"].shape[1],
        widths=(width, operands["v"].shape[-1]),
        tokens=tokens,
        block=_block(tokens),
        bias=bias,
        learned=bias is not None and bool(jax.tree.leaves(params)),
        interpret=interpret,
    )


def _with_kernel(rules: Rules, params: Params, operands: dict, ids, interpret: bool) -> jax.Array:
    """[B, H, T, F] in v's dtype."""
    plan = _plan(rules, params, operands, interpret)
    diff = {name: _pad(operands[name], 2, plan.block) for name in "qkv"}
    if ids is not None:  # negative ids must differ even from their like: -1 sees no -2
        q_ids, k_ids = (_pad(jnp.where(ids < 0, n, ids), 1, plan.block, n) for n in (-1, -2))
        ids = {"q_ids": q_ids[:, None], "k_ids": k_ids[:, None]}
    return _attention(plan, diff | {"bias": _bias(plan, params)}, ids)[:, :, : plan.tokens]


def _bias(plan: Plan, params: Params) -> jax.Array | None:
    """Coefficients [H, C, 1, 1] or strips [H, R, 1, 2·block], float32."""
    encoding, dims = plan.rules.encoding, plan.rules.dims
    if plan.bias is None:
        return None
    if plan.bias == "coefficients":
        return encoding.coefficients(params, dims).astype(jnp.float32)[:, :, None, None]
    first = (jnp.asarray(plan.diagonals, jnp.int32) + 1) * plan.block - 1
    distance = first[:, None] - jnp.arange(2 * plan.block, dtype=jnp.int32)
    return encoding.distance_bias(params, distance, dims).astype(jnp.float32)[:, :, None]


# Calls.


def _grid(plan: Plan, turned: bool):
    """The grid, and (batch, head, i, j) of a place in it; a tile outside the mask fetches none."""
    steps = max(plan.spans)

    def along_keys(h, b, i, step):
        first, last = plan.reach(i, plan.back, plan.ahead)
        return b, h, i, jnp.minimum(first + step, last)

    def along_queries(b, kv, j, group, step):
        first, last = plan.reach(j, plan.ahead, plan.back)
        return b, kv * plan.groups + group, jnp.minimum(first + step, last), j

    if turned:
        kv_heads = plan.heads // plan.groups
        return (plan.batch, kv_heads, plan.blocks, plan.groups, steps), along_queries
    return (plan.heads, plan.batch, plan.blocks, steps), along_keys


def _specs(plan: Plan, operands: dict, at) -> dict:
    """How each operand and result is cut into blocks."""
    side, (query, value) = plan.block, plan.widths

    def spec(shape, place):
        return pl.BlockSpec(shape, lambda *grid: place(*at(*grid)))

    def vectors(width, block_of):
        return spec((None, None, side, width), block_of)

    rows = lambda b, h, i, j: (b, h, i, 0)  # noqa: E731
    columns = lambda b, h, i, j: (b, jax.lax.div(h, plan.groups), j, 0)  # noqa: E731
    specs = {"q": vectors(query, rows), "k": vectors(query, columns)}
    specs |= {"out": vectors(value, rows), "v": vectors(value, columns)}
    specs["d_out"] = specs["out"]
    specs["lse"] = specs["inner"] = spec((None, None, 1, side), lambda b, h, i, j: (b, h, 0, i))
    if "q_ids" in operands:
        row = (lambda b: 0) if len(operands["q_ids"]) == 1 else (lambda b: b)  # the batch shares it
        specs["q_ids"] = spec((None, 1, side), lambda b, h, i, j: (row(b), 0, i))
        specs["k_ids"] = spec((None, 1, side), lambda b, h, i, j: (row(b), 0, j))
    if "bias" in operands:
        head = (None, *operands["bias"].shape[1:])
        specs["bias"] = specs["d_bias"] = spec(head, lambda b, h, i, j: (h, 0, 0, 0))
    if plan.bias == "strips":
        place = lambda b, h, i, j: (h, plan.strip(i, j), 0, 0)  # noqa: E731
        specs["bias"] = spec((None, None, 1, 2 * side), place)
    return specs


def _run(plan: Plan, kernel, operands: dict, outs: dict, scratch: dict, columns: int) -> dict:
    """One kernel on named operands, results and scratch; `columns`: those of all its products."""
    turned = kernel is keys_kernel
    grid, at = _grid(plan, turned)
    operands = {name: x for name, x in operands.items() if x is not None}
    specs = _specs(plan, operands, at)
    call = pl.pallas_call(
        functools.partial(kernel, plan),
        grid=grid,
        in_specs=[{name: specs[name] for name in operands}],
        out_specs={name: specs[name] for name in outs},
        out_shape=outs,
        scratch_shapes=[{n: pltpu.VMEM((plan.block, w), jnp.float32) for n, w in scratch.items()}],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) + ("arbitrary",) * (len(grid) - 1)
        ),
        cost_estimate=_cost(plan, operands, outs, specs, columns, turned),
        interpret=plan.interpret,
    )
    return call(operands)


def _cost(plan: Plan, operands, outs, specs, columns: int, turned: bool) -> pl.CostEstimate:
    """Of the tiles visited: products, one exponential a pair, the bias; and what is read."""
    tiles = plan.batch * plan.heads * sum(plan.spans)
    flops, powers, moved = 2 * columns, 1, 0
    if plan.bias == "strips":
        flops += 2
    elif plan.bias == "coefficients":
        some = [jnp.zeros((1, 1))] * operands["bias"].shape[1], jnp.zeros((128, 128), jnp.int32)
        one = pl.estimate_cost(plan.rules.encoding.profile, *some)
        flops, powers = flops + one.flops // 128**2, powers + one.transcendentals // 128**2
    anew = ALONG_QUERIES if turned else ALONG_KEYS
    for name, x in [*operands.items(), *outs.items()]:
        block = math.prod(n for n in specs[name].block_shape if n)
        often = name in anew and name not in outs
        moved += x.dtype.itemsize * (tiles * block if often else math.prod(x.shape))
    pairs = tiles * plan.block**2
    return pl.CostEstimate(
        flops=pairs * flops, transcendentals=pairs * powers, bytes_accessed=moved
    )


def _forward(plan: Plan, diff: dict, ids: dict | None):
    """Output [B, H, T, F] in v's dtype, and the logarithm of each row's sum [B, H, 1, T]."""
    (query, value), lanes = plan.widths, min(LANES, plan.block)
    lead, length = diff["q"].shape[:2], diff["q"].shape[2]
    outs = {
        "out": jax.ShapeDtypeStruct((*lead, length, value), diff["v"].dtype),
        "lse": jax.ShapeDtypeStruct((*lead, 1, length), jnp.float32),
    }
    scratch = {"out": value, "top": lanes, "total": lanes}
    found = _run(plan, forward_kernel, diff | (ids or {}), outs, scratch, query + value)
    return found["out"], found["lse"]


def _forward_save(plan: Plan, diff: dict, ids: dict | None):
    out, lse = _forward(plan, diff, ids)
    return out, (diff, ids, out, lse)


def _backward(plan: Plan, saved, d_out: jax.Array):
    """Gradients of q, k, v and the bias; both kernels compute each tile again."""
    diff, ids, out, lse = saved
    query, value = plan.widths
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)[:, :, None]
    operands = diff | {"d_out": d_out, "lse": lse, "inner": inner} | (ids or {})
    shape = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in diff.items() if x is not None}
    outs = {"q": shape["q"]} | ({"d_bias": shape["bias"]} if plan.learned else {})
    queries = _run(plan, queries_kernel, operands, outs, {"q": query}, 2 * query + value)
    if plan.bias == "strips":  # seen from the keys, distances run backwards
        operands["bias"] = jnp.roll(diff["bias"][..., ::-1], -1, axis=-1)
    outs, scratch = {"k": shape["k"], "v": shape["v"]}, {"k": query, "v": value}
    keys = _run(plan, keys_kernel, operands, outs, scratch, 2 * (query + value))
    nothing = None if diff["bias"] is None else jnp.zeros_like(diff["bias"])
    return {"q": queries["q"], **keys, "bias": queries.get("d_bias", nothing)}, None


_attention: Any = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(0,))
_attention.defvjp(_forward_save, _backward)

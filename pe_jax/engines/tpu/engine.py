"""Attention on TPUs: jax's splash where a mask suffices, else Pallas kernels that add biases.

The result is that of `reference`; what this engine cannot run, `refusal` names. Splash takes q as
scaled. Where that would round a bfloat16 q once more (E = 32, 96, 128, …: any but a power of 4),
our kernels run, without a bias: they scale float32 scores. They also run where a call reads the
logarithms of rows' sums. A bias reaches them in one of two forms, never as a matrix in memory:

* `coefficients` [H, C]: functions of `DistanceFormula`s are traced into the kernel (ALiBi);
* `strips` [H, R, 2·block]: the sum of `DistanceBias` terms is evaluated outside, once for each
  block diagonal. A tile shears its strip into place by rotating lanes. Beyond the terms' horizon a
  strip is constant: the tile takes one number, which moves the row maxima and not the scores, so a
  far tile costs what it costs without a bias.

`kernels` holds what runs on a core; here is who runs what, the biases in either form, and the
calls: one kernel forward, two backward, each over a grid of the tiles that the mask leaves.
Gradients of biases add up in the order of the grid, which a TPU runs in sequence: no atomics, the
same bits each time.

Letters: B batch, T tokens (queries and keys alike), H query heads, K key heads, E width of q and k,
F width of v, C coefficients, R block diagonals. i is a query block, j a key block.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceBias, DistanceFormula, Side, select
from pe_jax.engines import kernel_common as common
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.tpu import kernels
from pe_jax.engines.tpu.kernels import Arrays, Plan

KINDS = (DistanceFormula, DistanceBias)  # these exact kinds
MAX_BLOCK, LANES = 512, 128  # the most and, unless told, the fewest tokens of a block
MAX_STRIPS = 2**22  # bytes of strips that may stay in a core's memory


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why this engine cannot run the call, in a few words; None where it can."""
    dtypes = {"float32", "bfloat16"}
    if (why := common.unsupported(spec, terms, q, k, v, KINDS, dtypes)) is not None:
        return why
    if not spec.aligned:
        return "queries and keys are not the same tokens in order"
    if select(terms, *KINDS) and not spec.contiguous:
        return "a bias of distances with explicit positions"
    plan = _plan(spec, terms, q, k, v)
    if plan.strips and 8 * plan.block * len(plan.diagonals) > MAX_STRIPS:
        return f"a bias without a horizon over {plan.tokens} tokens"
    return None


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Tokens that meet whole blocks, a part of one, and what lies past the horizon of biases."""
    plan = _plan(spec, terms, q, k, v)
    return 2 * plan.block + min(max(map(abs, plan.horizon or (0,))), plan.block) + 61


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
    without a TPU, slowly, for tests. In the place of row sums splash gives None: its own have no
    gradient, and it runs where nothing reads them.
    """
    plan = _plan(spec, terms, q, k, v, block, interpret)
    # Times q the scale must be no further rounding: in float32, or by a power of two.
    exact = q.x.dtype == jnp.float32 or math.frexp(plan.scale)[0] == 0.5
    if exact and not spec.lse and not select(terms, *KINDS):
        return _with_splash(plan, q.x, k.x, v, q.tokens.segments).astype(jnp.float32), None
    out, lse = _attention(plan, _arrays(plan, terms, q, k, v))
    return out[:, :, : plan.tokens].astype(jnp.float32), lse[:, :, : plan.tokens]


def _plan(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v, block=None, interpret=False):
    tokens = q.x.shape[2]
    return Plan(
        spec=spec,
        scale=kinds.scale(terms, spec.dims.head_dim),
        formula=common.FormulaSum.of(terms),
        real_distances=all(map(_takes_reals, select(terms, DistanceFormula))),
        strips=bool(select(terms, DistanceBias)),
        horizon=common.horizon(terms),
        tokens=tokens,
        block=block or min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens))),
        interpret=interpret,
    )


def _takes_reals(term: DistanceFormula) -> bool:
    """Whether the function of a formula takes float32 distances too."""
    try:
        jax.eval_shape(term.at, jax.ShapeDtypeStruct((1,), jnp.float32))
    except TypeError:
        return False
    return True


def _with_splash(plan: Plan, q: jax.Array, k: jax.Array, v: jax.Array, ids: Any) -> jax.Array:
    """[B, H, T, F] in v's dtype."""
    (batch, heads, tokens, _), block = q.shape, plan.block
    q, k, v = (common.pad(x, 2, block) for x in (q * plan.scale, k, v))
    mask = masks.MultiHeadMask([_mask(plan.spec, q.shape[2])] * heads)
    blocks = splash.BlockSizes(block, block, block, block, block, block, block, block)
    kernel: Any = splash.make_splash_mha(
        mask, block_sizes=blocks, head_shards=1, q_seq_shards=1, interpret=plan.interpret
    )
    if ids is None and tokens % block and not plan.spec.causal:  # padding keys must not be seen
        ids = jnp.zeros((batch, tokens), jnp.int32)
    if ids is None:
        return jax.vmap(kernel)(q, k, v)[:, :, :tokens]
    ids = jnp.broadcast_to(common.pad(ids, 1, block, constant_values=-1), (batch, q.shape[2]))
    out = jax.vmap(lambda q, k, v, ids: kernel(q, k, v, splash.SegmentIds(ids, ids)))(q, k, v, ids)
    # Splash needs a key in each row: padding sees padding, and nothing of it passes here.
    return jnp.where(ids[:, None, :, None] >= 0, out, 0)[:, :, :tokens]


def _mask(spec: AttentionSpec, length: int) -> masks.Mask:
    """The mask as a rule, which splash evaluates block by block."""
    shape = (length, length)
    if spec.window is not None and spec.window < length:
        back = spec.window - 1
        return masks.LocalMask(shape, (back, 0 if spec.causal else back), offset=0)
    return masks.CausalMask(shape) if spec.causal else masks.FullMask(shape)


def _arrays(plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array) -> Arrays:
    """What the kernels read, padded."""
    x, y, v = (common.pad(x, 2, plan.block) for x in (q.x, k.x, v))
    # The distances of each strip: [R, 2·block], falling.
    first = (jnp.asarray(plan.diagonals, jnp.int32) + 1) * plan.block - 1
    distance = first[:, None] - jnp.arange(2 * plan.block, dtype=jnp.int32)
    strips = common.distance_bias(terms, distance, plan.scale)
    numbers = common.coefficients(terms)
    return Arrays(
        q=x,
        k=y,
        v=v,
        coefficients=None if numbers is None else numbers[:, :, None, None],
        strips=None if strips is None else strips[:, :, None],
        q_ids=_ids(plan, q.tokens.segments, -1),
        k_ids=_ids(plan, q.tokens.segments, -2),  # the keys are the same tokens
    )


def _ids(plan: Plan, segments: Any, hidden: int) -> Any:
    """Segments; of `hidden` tokens, which must not see even their like, another for each side."""
    if segments is None:
        return None
    ids = jnp.where(segments < 0, hidden, segments)
    return common.pad(ids, 1, plan.block, constant_values=hidden)[:, None]


def _forward(plan: Plan, x: Arrays):
    """Output [B, H, T, F] in v's dtype, logarithms of rows' sums [B, H, T, 1]; what is saved."""
    (batch, heads, tokens, query), value = x.q.shape, x.v.shape[3]
    outs = Arrays(
        out=jax.ShapeDtypeStruct((batch, heads, tokens, value), x.v.dtype),
        lse=jax.ShapeDtypeStruct((batch, heads, 1, tokens), jnp.float32),
    )
    scratch = [value, *[min(LANES, plan.block)] * 2]
    result = _launch(plan, kernels.forward_kernel, x, outs, scratch, query + value)
    lse = jnp.where(result.lse == -LOWEST, LOWEST, result.lse)  # of rows that see nothing
    return (result.out, jnp.swapaxes(lse, 2, 3)), (x, result.out, result.lse)


def _backward(plan: Plan, saved: tuple, learned: dict, cotangents: tuple) -> Arrays:
    """Gradients of q, k, v and the biases; both kernels compute each tile again."""
    (x, out, lse), (d_out, d_lse) = saved, cotangents
    query, value = x.q.shape[3], x.v.shape[3]
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)[:, :, None]
    x = x._replace(d_out=d_out, lse=lse, inner=inner - jnp.swapaxes(d_lse, 2, 3))
    outs = _like(x, "q", *(name for name in ("coefficients", "strips") if name in learned))
    of_queries = _launch(plan, kernels.queries_kernel, x, outs, [query], 2 * query + value)
    if x.strips is not None:  # seen from the keys, distances run backwards
        x = x._replace(strips=jnp.roll(x.strips[..., ::-1], -1, axis=-1))
    outs, columns = _like(x, "k", "v"), 2 * (query + value)
    of_keys = _launch(plan, kernels.keys_kernel, x, outs, [query, value], columns)
    return of_queries._replace(k=of_keys.k, v=of_keys.v)


def _like(x: Arrays, *names: str) -> Arrays:
    arrays = {name: getattr(x, name) for name in names}
    return Arrays(**{name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays.items()})


_attention = common.differentiable(_forward, _backward)


def _launch(
    plan: Plan, kernel: Callable, x: Arrays, outs: Arrays, scratch: list[int], columns: int
) -> Arrays:
    """Runs `kernel(plan, x, outs, *scratch)`; `outs` are given as shapes.

    `scratch` are widths of what lasts from tile to tile, [block, width] each; `columns` are those
    of all matrix products, for the cost.
    """
    by_keys = kernel is kernels.keys_kernel
    grid, at = _grid(plan, x, by_keys)
    of_x, of_outs = (_specs(plan, x, arrays, at) for arrays in (x, outs))
    (result,) = pl.pallas_call(
        functools.partial(kernel, plan),
        grid=grid,
        in_specs=[of_x],
        out_specs=[of_outs],
        out_shape=[outs],
        scratch_shapes=[pltpu.VMEM((plan.block, width), jnp.float32) for width in scratch],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) + ("arbitrary",) * (len(grid) - 1)
        ),
        cost_estimate=_cost(plan, x, of_x, outs, columns, by_keys),
        interpret=plan.interpret,
    )(x)
    return result


def _grid(plan: Plan, x: Arrays, by_keys: bool):
    """The grid, and (batch, head, i, j) of a place in it; a tile outside the mask fetches none."""
    (batch, heads), kv_heads, steps = x.q.shape[:2], x.k.shape[1], max(plan.spans)
    groups = heads // kv_heads

    def along_keys(h, b, i, step):
        first, last = plan.reach(i, plan.back, plan.ahead)
        return b, h, i, jnp.minimum(first + step, last)

    def along_queries(b, kv, j, group, step):
        first, last = plan.reach(j, plan.ahead, plan.back)
        return b, kv * groups + group, jnp.minimum(first + step, last), j

    if by_keys:
        return (batch, kv_heads, plan.blocks, groups, steps), along_queries
    return (heads, batch, plan.blocks, steps), along_keys


def _specs(plan: Plan, x: Arrays, arrays: Arrays, at: Callable) -> Arrays:
    """How arrays are cut into blocks: those that a kernel reads, which are x, or writes."""
    block, query, value = plan.block, x.q.shape[3], x.v.shape[3]
    groups = x.q.shape[1] // x.k.shape[1]

    def spec(shape, place):
        return pl.BlockSpec(shape, lambda *grid: place(*at(*grid)))

    def of_queries(width):
        return spec((None, None, block, width), lambda b, h, i, j: (b, h, i, 0))

    def of_keys(width):
        heads = (None, None, block, width)
        return spec(heads, lambda b, h, i, j: (b, jax.lax.div(h, groups), j, 0))

    def of_head(bias):
        shape = None if bias is None else (None, *bias.shape[1:])
        return spec(shape, lambda b, h, i, j: (h, 0, 0, 0))

    def row(b):
        return 0 if x.q_ids is not None and len(x.q_ids) == 1 else b  # the batch may share ids

    strip = spec((None, None, 1, 2 * block), lambda b, h, i, j: (h, plan.strip(i, j), 0, 0))
    per_query = spec((None, None, 1, block), lambda b, h, i, j: (b, h, 0, i))
    specs = Arrays(
        q=of_queries(query),
        k=of_keys(query),
        v=of_keys(value),
        coefficients=of_head(arrays.coefficients),
        strips=strip if arrays is x else of_head(arrays.strips),
        q_ids=spec((None, 1, block), lambda b, h, i, j: (row(b), 0, i)),
        k_ids=spec((None, 1, block), lambda b, h, i, j: (row(b), 0, j)),
        out=of_queries(value),
        lse=per_query,
        d_out=of_queries(value),
        inner=per_query,
    )
    pairs = zip(specs, arrays, strict=True)
    return Arrays(*(None if array is None else spec for spec, array in pairs))


def _cost(plan: Plan, x: Arrays, specs: Arrays, outs: Arrays, columns: int, by_keys: bool):
    """Of the tiles visited: products, one exponential per pair, the biases; and what is moved."""
    tiles = math.prod(x.q.shape[:2]) * sum(plan.spans)
    pairs = tiles * plan.block**2
    flops, powers = 2 * columns + 2 * plan.strips, 1
    if plan.formula:
        numbers = [jnp.zeros((1, 1))] * x.coefficients.shape[1]
        bias = pl.estimate_cost(plan.formula, numbers, jnp.zeros((128, 128), jnp.int32))
        flops, powers = flops + bias.flops // 128**2, powers + bias.transcendentals // 128**2
    visited = ("q", "d_out", "lse", "inner", "q_ids") if by_keys else ("k", "v", "k_ids")
    moved = sum(out.dtype.itemsize * out.size for out in outs if out is not None)
    for name, array, spec in zip(x._fields, x, specs, strict=True):
        if array is not None:
            anew = name in (*visited, "coefficients", "strips")  # in each tile
            block = math.prod(n for n in spec.block_shape if n)
            moved += array.dtype.itemsize * (tiles * block if anew else array.size)
    flops, powers = pairs * flops, pairs * powers
    return pl.CostEstimate(flops=flops, transcendentals=powers, bytes_accessed=moved)

"""Attention on TPUs: jax's splash where a mask suffices, else Pallas kernels that add biases.

The result is that of `reference`; what this engine cannot run, `refusal` names. Splash takes q as
scaled. Where that would round a bfloat16 q once more (E = 32, 96, 128, …: any but a power of 4),
our kernels run, without a bias: they scale float32 scores. They also run where a `Sink` wants the
logarithms of rows' sums. A bias reaches them in one of two forms, never as a matrix in memory:

* `coefficients` [H, C]: the functions of `Profile` terms are traced into the kernel (ALiBi);
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

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import DistanceBias, Profile, Side, Sink, select, static
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernel_terms import (
    ProfileSum,
    coefficients,
    distance_bias,
    horizon,
    unsupported,
)
from pe_jax.engines.tpu.kernels import (
    LOWEST,
    Arrays,
    Plan,
    Softmax,
    forward_kernel,
    keys_kernel,
    queries_kernel,
)

KINDS = (Profile, DistanceBias)  # these exact kinds
MAX_BLOCK, LANES = 512, 128  # the most and, unless told, the fewest tokens of a block
MAX_STRIPS = 2**22  # bytes of strips that may stay in a core's memory


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why this engine cannot run the call, in a few words; None where it can."""
    why = unsupported(spec, terms, KINDS)
    if why is not None:
        return why
    if not spec.aligned:
        return "queries and keys are not the same tokens in order"
    dtypes = {x.dtype for x in (q.x, k.x, v)}
    if len(dtypes) > 1 or not dtypes <= {jnp.dtype("float32"), jnp.dtype("bfloat16")}:
        return f"q, k, v are {', '.join(sorted(map(str, dtypes)))}, not all float32 or bfloat16"
    if select(terms, *KINDS) and not spec.contiguous:
        return "a bias of distances with explicit positions"
    plan = _plan(spec, terms, q, k, v)
    if plan.strips and 8 * plan.block * len(plan.diagonals) > MAX_STRIPS:
        return f"a bias without a horizon over {plan.tokens} tokens"
    return None


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
    gradient, and without a `Sink` nothing reads them.
    """
    plan = _plan(spec, terms, q, k, v, block, interpret)
    if not select(terms, *KINDS, Sink) and _scales_exactly(plan, q.x):
        return _with_splash(plan, q.x, k.x, v, q.tokens.segments).astype(jnp.float32), None
    out, lse = _attention(plan, _operands(plan, terms, q, k, v))
    return out[:, :, : plan.tokens].astype(jnp.float32), lse[:, :, : plan.tokens]


def _plan(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    block: int | None = None,
    interpret: bool = False,
) -> Plan:
    batch, heads, tokens, width = q.x.shape
    return Plan(
        spec=spec,
        scale=kinds.scale(terms, spec.dims.head_dim),
        profile=ProfileSum.of(terms),
        real_distances=all(map(_takes_reals, select(terms, Profile))),
        strips=bool(select(terms, DistanceBias)),
        horizon=horizon(terms),
        batch=batch,
        heads=heads,
        groups=heads // k.x.shape[1],
        widths=(width, v.shape[-1]),
        tokens=tokens,
        block=block or min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens))),
        interpret=interpret,
    )


def _takes_reals(term: Profile) -> bool:
    """Whether the function of a profile takes float32 distances too."""
    try:
        jax.eval_shape(term.at, jax.ShapeDtypeStruct((1,), jnp.float32))
    except TypeError:
        return False
    return True


def _scales_exactly(plan: Plan, q: jax.Array) -> bool:
    """Whether q times the scale is no further rounding: in float32, or by a power of two."""
    return math.frexp(plan.scale)[0] == 0.5 or q.dtype == jnp.float32


def _pad(x: jax.Array, axis: int, block: int, value: int = 0) -> jax.Array:
    """Grows one axis to a multiple of `block`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % block)
    return jnp.pad(x, widths, constant_values=value)


# Splash: the scores are q·k and nothing else.


def _with_splash(plan: Plan, q: jax.Array, k: jax.Array, v: jax.Array, ids: Any) -> jax.Array:
    """[B, H, T, F] in v's dtype."""
    block, tokens = plan.block, plan.tokens
    q, k, v = (_pad(x, 2, block) for x in (q * plan.scale, k, v))
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask([_mask(plan.spec, q.shape[2])] * plan.heads),
        block_sizes=splash.BlockSizes(block, block, block, block, block, block, block, block),
        head_shards=1,
        q_seq_shards=1,
        interpret=plan.interpret,
    )
    if ids is None and tokens % block and not plan.spec.causal:  # padding keys must not be seen
        ids = jnp.zeros((plan.batch, tokens), jnp.int32)
    if ids is None:
        return jax.vmap(kernel)(q, k, v)[:, :, :tokens]
    ids = jnp.broadcast_to(_pad(ids, 1, block, -1), (plan.batch, q.shape[2]))
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


# Our kernels: the scores have a bias of distances, or a scale that splash would round.


def _operands(plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array) -> Arrays:
    """What the kernels read, padded."""
    x, y, v = (_pad(x, 2, plan.block) for x in (q.x, k.x, v))
    q_ids, k_ids = _ids(plan, q.tokens.segments)
    numbers, strips = coefficients(terms), distance_bias(terms, _diagonals(plan), plan.scale)
    return Arrays(
        q=x,
        k=y,
        v=v,
        coefficients=None if numbers is None else numbers[:, :, None, None],
        strips=None if strips is None else strips[:, :, None],
        q_ids=q_ids,
        k_ids=k_ids,
    )


def _ids(plan: Plan, segments: Any) -> tuple[Any, Any]:
    """Segments of queries and keys; negative ones must differ even from their like: -1 and -2."""
    if segments is None:
        return None, None
    sides = (jnp.where(segments < 0, n, segments) for n in (-1, -2))
    q_ids, k_ids = (_pad(ids, 1, plan.block, n) for ids, n in zip(sides, (-1, -2), strict=True))
    return q_ids[:, None], k_ids[:, None]


def _diagonals(plan: Plan) -> jax.Array:
    """The distances of each strip: [R, 2·block], falling."""
    first = (jnp.asarray(plan.diagonals, jnp.int32) + 1) * plan.block - 1
    return first[:, None] - jnp.arange(2 * plan.block, dtype=jnp.int32)


# A differentiable function.


def _run_kernels(plan: Plan, x: Arrays) -> tuple[jax.Array, jax.Array]:
    """Output [B, H, T, F] in v's dtype, and logarithms of rows' sums [B, H, T, 1]."""
    out, lse = _forward(plan, x)
    return out, _of_rows(lse)


def _of_rows(lse: jax.Array) -> jax.Array:
    """[B, H, 1, T] → [B, H, T, 1]; rows that see nothing have LOWEST and not -LOWEST."""
    return jnp.swapaxes(jnp.where(lse == -LOWEST, LOWEST, lse), 2, 3)


def _forward(plan: Plan, x: Arrays) -> tuple[jax.Array, jax.Array]:
    """Output, and the logarithm of each row's sum [B, H, 1, T]."""
    (query, value), lanes = plan.widths, min(LANES, plan.block)
    lead, length = x.q.shape[:2], x.q.shape[2]
    outs = Arrays(
        out=jax.ShapeDtypeStruct((*lead, length, value), x.v.dtype),
        lse=jax.ShapeDtypeStruct((*lead, 1, length), jnp.float32),
    )
    scratch = Softmax(*(_scratch(plan, width) for width in (value, lanes, lanes)))
    result = _launch(plan, forward_kernel, x, outs, [scratch], query + value)
    return result.out, result.lse


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Saved:
    """What the backward pass reads; `learned` names the biases whose gradient is wanted."""

    x: Arrays
    out: jax.Array
    lse: jax.Array
    learned: tuple[str, ...] = static()


def _forward_save(plan: Plan, x: Arrays):
    biases = {"coefficients": x.coefficients, "strips": x.strips}
    learned = [name for name, bias in biases.items() if bias is not None and bias.perturbed]
    x = custom_vjp_primal_tree_values(x)
    out, lse = _forward(plan, x)
    return (out, _of_rows(lse)), Saved(x, out, lse, tuple(learned))


def _backward(plan: Plan, saved: Saved, cotangents) -> tuple[Arrays]:
    """Gradients of q, k, v and the biases; both kernels compute each tile again."""
    x, out = saved.x, saved.out
    d_out, d_lse = cotangents
    d_out = jnp.zeros_like(out) if isinstance(d_out, SymbolicZero) else d_out
    inner = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)[:, :, None]
    if not isinstance(d_lse, SymbolicZero):
        inner = inner - jnp.swapaxes(d_lse, 2, 3)
    x = x._replace(d_out=d_out, lse=saved.lse, inner=inner)
    of_queries = _queries_backward(plan, x, saved.learned)
    of_keys = _keys_backward(plan, x)
    return (of_queries._replace(k=of_keys.k, v=of_keys.v),)


def _queries_backward(plan: Plan, x: Arrays, learned: tuple[str, ...]) -> Arrays:
    (query, value), wanted = plan.widths, ("q", *learned)
    outs = Arrays(**{name: _like(getattr(x, name)) for name in wanted})
    return _launch(plan, queries_kernel, x, outs, [_scratch(plan, query)], 2 * query + value)


def _keys_backward(plan: Plan, x: Arrays) -> Arrays:
    query, value = plan.widths
    if x.strips is not None:  # seen from the keys, distances run backwards
        x = x._replace(strips=jnp.roll(x.strips[..., ::-1], -1, axis=-1))
    scratch = [_scratch(plan, query), _scratch(plan, value)]
    outs = Arrays(k=_like(x.k), v=_like(x.v))
    return _launch(plan, keys_kernel, x, outs, scratch, 2 * (query + value))


def _like(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


_attention: Any = jax.custom_vjp(_run_kernels, nondiff_argnums=(0,))
_attention.defvjp(_forward_save, _backward, symbolic_zeros=True)


# Launches.


def _scratch(plan: Plan, width: int):
    return pltpu.VMEM((plan.block, width), jnp.float32)


def _launch(
    plan: Plan, kernel: Callable, x: Arrays, outs: Arrays, scratch: list, columns: int
) -> Arrays:
    """Runs one kernel.

    Args:
      plan: the call.
      kernel: `kernel(plan, x, outs, *scratch)`.
      x: what it reads.
      outs: what it writes, as shapes.
      scratch: memory that lasts from tile to tile.
      columns: those of all its products, for the cost.
    """
    by_keys = kernel is keys_kernel
    grid, at = _grid(plan, by_keys)
    specs = _specs(plan, x, at)
    of_inputs, of_outs = (_where_present(s, a) for s, a in zip(specs, (x, outs), strict=True))
    cost = _cost(plan, _sizes(x, of_inputs), _sizes(outs, of_outs), columns, by_keys)
    call = pl.pallas_call(
        functools.partial(kernel, plan),
        grid=grid,
        in_specs=[of_inputs],
        out_specs=[of_outs],
        out_shape=[outs],
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel",) + ("arbitrary",) * (len(grid) - 1)
        ),
        cost_estimate=cost,
        interpret=plan.interpret,
    )
    (result,) = call(x)
    return result


def _grid(plan: Plan, by_keys: bool):
    """The grid, and (batch, head, i, j) of a place in it; a tile outside the mask fetches none."""
    steps = max(plan.spans)

    def along_keys(h, b, i, step):
        first, last = plan.reach(i, plan.back, plan.ahead)
        return b, h, i, jnp.minimum(first + step, last)

    def along_queries(b, kv, j, group, step):
        first, last = plan.reach(j, plan.ahead, plan.back)
        return b, kv * plan.groups + group, jnp.minimum(first + step, last), j

    if by_keys:
        kv_heads = plan.heads // plan.groups
        return (plan.batch, kv_heads, plan.blocks, plan.groups, steps), along_queries
    return (plan.heads, plan.batch, plan.blocks, steps), along_keys


def _specs(plan: Plan, x: Arrays, at: Callable) -> tuple[Arrays, Arrays]:
    """How each input and each result is cut into blocks."""
    block, (query, value) = plan.block, plan.widths

    def spec(shape, place):
        return pl.BlockSpec(shape, lambda *grid: place(*at(*grid)))

    def of_queries(width):
        return spec((None, None, block, width), lambda b, h, i, j: (b, h, i, 0))

    def of_keys(width):
        heads = (None, None, block, width)
        return spec(heads, lambda b, h, i, j: (b, jax.lax.div(h, plan.groups), j, 0))

    def of_head(bias):
        if bias is None:
            return None
        return spec((None, *bias.shape[1:]), lambda b, h, i, j: (h, 0, 0, 0))

    def row(b):
        return 0 if x.q_ids is not None and len(x.q_ids) == 1 else b  # the batch may share ids

    per_query = spec((None, None, 1, block), lambda b, h, i, j: (b, h, 0, i))
    one_strip = spec((None, None, 1, 2 * block), lambda b, h, i, j: (h, plan.strip(i, j), 0, 0))
    inputs = Arrays(
        q=of_queries(query),
        k=of_keys(query),
        v=of_keys(value),
        coefficients=of_head(x.coefficients),
        strips=one_strip,
        q_ids=spec((None, 1, block), lambda b, h, i, j: (row(b), 0, i)),
        k_ids=spec((None, 1, block), lambda b, h, i, j: (row(b), 0, j)),
        out=of_queries(value),
        lse=per_query,
        d_out=of_queries(value),
        inner=per_query,
    )
    return inputs, inputs._replace(strips=of_head(x.strips))


def _where_present(specs: Arrays, arrays: Arrays) -> Arrays:
    pairs = zip(specs, arrays, strict=True)
    return Arrays(*(None if array is None else spec for spec, array in pairs))


# Costs, for the compiler's schedule.

READ_ALONG_KEYS = (
    "k",
    "v",
    "k_ids",
    "coefficients",
    "strips",
)  # anew in each tile of a query block
READ_ALONG_QUERIES = ("q", "d_out", "lse", "inner", "q_ids", "coefficients", "strips")


def _sizes(arrays: Arrays, specs: Arrays) -> dict[str, tuple[int, int]]:
    """Bytes of each array, and of one of its blocks, by name."""
    sizes = {}
    for name, x in arrays._asdict().items():
        if x is not None:
            block = math.prod(n for n in getattr(specs, name).block_shape if n)
            sizes[name] = x.dtype.itemsize * math.prod(x.shape), x.dtype.itemsize * block
    return sizes


def _cost(plan: Plan, read: dict, written: dict, columns: int, by_keys: bool) -> pl.CostEstimate:
    """Of the tiles visited: products, one exponential per pair, the biases; and what is moved."""
    tiles = plan.batch * plan.heads * sum(plan.spans)
    flops, powers = 2 * columns + 2 * plan.strips, 1
    if plan.profile:
        numbers = [jnp.zeros((1, 1))] * sum(size for _, size in plan.profile.parts)
        bias = pl.estimate_cost(plan.profile, numbers, jnp.zeros((128, 128), jnp.int32))
        flops, powers = flops + bias.flops // 128**2, powers + bias.transcendentals // 128**2
    anew = READ_ALONG_QUERIES if by_keys else READ_ALONG_KEYS
    moved = sum(whole for whole, _ in written.values())
    moved += sum(tiles * block if name in anew else whole for name, (whole, block) in read.items())
    pairs = tiles * plan.block**2
    return pl.CostEstimate(
        flops=pairs * flops, transcendentals=pairs * powers, bytes_accessed=moved
    )

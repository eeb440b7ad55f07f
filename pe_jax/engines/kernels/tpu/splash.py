"""Attention by JAX's splash on TPUs (`implementation="splash"`), which has masks and a cap.

It computes q·k of any channels. Terms that are products become channels (`with_products`),
and so do biases of keys, as ALiBi, FoX and CABLE have under a causal mask
(`with_key_biases`). It takes q already scaled: calls in which that would round a bfloat16 q
once more (E = 32, 96, 128, …: any but a power of 4) are refused, and run by our kernels, which
scale float32 scores. So are calls with sinks: they read row sums, of which splash has no gradient.

B batch, T tokens, H query heads, K key heads, E width of q and k, F width of v.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import with_products
from pe_jax.engines.kernels import common
from pe_jax.engines.tiled import skipping
from pe_jax.numerics.arrays import repeat_heads
from pe_jax.numerics.running_sums import exactly, pieces

MAX_BLOCK, LANES = 512, 128  # the most and the fewest tokens of a block; channels of a register
PIECES = 4  # numbers of bfloat16's precision that sum to one number in `with_key_biases`
# Tokens up to which splash, which visits every tile, is taken where our kernels would skip some: of
# ALiBi's with 8 heads they visit about 0.6 at 2,048 tokens and 0.5 at 4,096.
SKIPS_LITTLE = 2048


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why splash cannot run the call, in a few words; None where it can."""
    dtypes = {"float32", "bfloat16"}
    others = tuple(term for term in terms if not is_key_bias(term))
    if (why := common.unsupported_by_stock(spec, others, q, k, v, dtypes)) is not None:
        return why
    if len(others) < len(terms) and not (spec.causal and spec.in_order):
        return "biases of keys that are seen from both sides, or at explicit positions"
    scale = spec.scale_of(terms)
    if q.x.dtype != jnp.float32 and math.frexp(scale)[0] != 0.5:
        return f"times the scale {scale:.3g}, q would be rounded once more"
    return None


def is_faster(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> bool:
    """Whether splash is chosen over our kernels, for calls without a `refusal`.

    It is where nothing is added. Biases of keys must fit beside q in the channels that it computes
    anyway; our kernels must not skip much; and learned biases are left to ours in half precision.
    Their gradient is a sum over tokens, most of which cancels: with the sums of columns in
    bfloat16, FoX's weights got theirs with an error of 2 % at 512 tokens and of 5 % at 2,048, with
    ours of 0.2 %.
    """
    width = q.x.shape[-1]
    if not any(map(is_key_bias, terms)):
        return True
    fits = (width + 2 * PIECES - 1) // LANES == (width - 1) // LANES
    skips = skipping.can_skip(spec, terms) and q.x.shape[2] > SKIPS_LITTLE
    learned = kinds.select(terms, kinds.TokenBias)
    return fits and not skips and not (learned and q.x.dtype != jnp.float32)


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Number of tokens for whole blocks and a part of one."""
    return 2 * _block(q.x.shape[2]) + 61


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, None]:
    """As `reference.attend`, where `refusal` gives None; no row sums, which have no gradient.

    Rounded to v's dtype, then float32. `interpret` runs it without a TPU, slowly, for tests.
    """
    (batch, heads, tokens, _), ids = q.x.shape, q.tokens.segments
    block = _block(tokens)
    q, k = with_products(spec, terms, q, k)
    q = q._replace(x=q.x * spec.scale_of(terms))
    q, k = with_key_biases(1.0, terms, q, k)
    x, y, v = (common.pad(a, 2, block) for a in (q.x, k.x, repeat_heads(v, k.x.shape[1])))
    shape = x.shape[2], x.shape[2]
    mask: masks.Mask = masks.CausalMask(shape) if spec.causal else masks.FullMask(shape)
    if spec.window is not None:
        back = spec.window - 1
        mask = masks.LocalMask(shape, (back, 0 if spec.causal else back), offset=0)
    kernel: Any = splash.make_splash_mha(
        masks.MultiHeadMask([mask] * heads),
        block_sizes=splash.BlockSizes(block, block, block, block, block, block, block, block),
        attn_logits_soft_cap=spec.logit_cap,
        head_shards=1,
        q_seq_shards=1,
        interpret=interpret,
    )
    if ids is None and tokens % block and not spec.causal:  # padding keys must not be visible
        ids = jnp.zeros((batch, tokens), jnp.int32)
    if ids is None:
        return jax.vmap(kernel)(x, y, v)[:, :, :tokens].astype(jnp.float32), None
    ids = jnp.broadcast_to(common.pad(ids, 1, block, constant_values=-1), (batch, x.shape[2]))
    out = jax.vmap(lambda x, y, v, ids: kernel(x, y, v, splash.SegmentIds(ids, ids)))(x, y, v, ids)
    # Splash needs a key in each row: padding sees padding, and its results are dropped here.
    out = jnp.where(ids[:, None, :, None] >= 0, out, 0)[:, :, :tokens]
    return out.astype(jnp.float32), None


def is_key_bias(term: kinds.Term) -> bool:
    """Whether a term depends on the key alone, as far as the softmax sees."""
    return type(term) in common.KINDS and getattr(term, "is_key_bias", False)


def with_key_biases(scale: float, terms: tuple, q: Side, k: Side) -> tuple[Side, Side]:
    """q and k with 8 channels more in front, whose products are the key biases.

    As u_j - u_i (`key_bias`) a bias is a product of channels: the softmax needs u_j alone, but with
    u_i scores stay small and their sums exact: the pieces of u_j and u_i cancel in turn, the
    largest first, before q·k is added. With bfloat16 inputs and float32 sums, in the order of the
    channels, scores of weights above 10⁻⁶ are off by 4·10⁻⁶ at 4,096 and at 32,768 tokens for the
    slope 2^-0.72, by 2·10⁻³ and 2·10⁻² without u_i; where the scale is no power of two, by 2·10⁻⁴
    and 1·10⁻³. The first piece of each has the gradient: of u_j the sums of columns, of u_i those
    of rows, which are 0 but for rounding that cancels that of columns. Each head gets its own keys.
    """
    biased = [
        [term.key_bias(side, state) for side, state in zip((q, k), states, strict=True)]
        for term, *states in zip(terms, q.states, k.states, strict=True)
        if is_key_bias(term)
    ]
    if not biased:
        return q, k
    unit = 2.0 ** round(-math.log2(scale))  # exact in any dtype

    def numbers(n: int) -> list[jax.Array]:  # of queries or keys, pieces [B or 1, H, T]
        high, rest = biased[0][n]
        for more in biased[1:]:
            high, low = exactly(high, more[n][0])
            rest = low + rest + more[n][1]
        high, rest = exactly(high / (scale * unit), rest / (scale * unit))
        return pieces(high, PIECES, rest)

    def widened(x: jax.Array, channels: list[jax.Array]) -> jax.Array:
        shape = *x.shape[:3], len(channels)
        first = [jnp.broadcast_to(y, shape[:3]) for y in channels]
        return jnp.concatenate([jnp.stack(first, axis=-1).astype(x.dtype), x], axis=-1)

    units = jnp.full((1, 1, 1), unit, jnp.float32)
    rows = [y for piece in numbers(0) for y in (units, -piece)]
    columns = [y for piece in numbers(1) for y in (piece, units)]
    keys = repeat_heads(k.x, q.x.shape[1])
    return q._replace(x=widened(q.x, rows)), k._replace(x=widened(keys, columns))


def _block(tokens: int) -> int:
    return min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens)))

"""Attention by JAX's splash on TPUs (`implementation="splash"`), which has masks and a cap.

It computes q·k of any channels. Terms that are products become channels (`with_products`),
and so do biases of keys, as ALiBi, FoX and CABLE have under a causal mask
(`common.with_key_biases`). It takes q already scaled: calls in which that would round a bfloat16 q
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

from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import with_products
from pe_jax.engines.kernels import common
from pe_jax.numerics.arrays import repeat_heads

MAX_BLOCK, LANES = 512, 128  # the most and the fewest tokens of a block; channels of a register


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why splash cannot run the call, in a few words; None where it can."""
    dtypes = {"float32", "bfloat16"}
    if (why := common.unsupported_by_stock(spec, terms, q, k, v, dtypes)) is not None:
        return why
    scale = spec.scale_of(terms)
    if q.x.dtype != jnp.float32 and math.frexp(scale)[0] != 0.5:
        return f"times the scale {scale:.3g}, q would be rounded once more"
    return None


def is_faster(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> bool:
    """Whether splash is chosen over our kernels, for calls without a `refusal`."""
    return common.stock_is_faster(spec, terms, q, k, v, LANES)


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
    q, k = common.with_key_biases(1.0, terms, q, k)
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


def _block(tokens: int) -> int:
    return min(MAX_BLOCK, max(LANES, pl.next_power_of_2(tokens)))

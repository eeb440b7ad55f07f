"""Attention by cuDNN on NVIDIA GPUs (`implementation="cudnn"`), through `jax.nn`.

It computes q·k of any channels. Terms that are products become channels (`with_products`). Heads
of q, k and v are padded with zeros to one width, a multiple of 8 (MLA). Packed rows stay with our
kernels: `jax.nn` takes the lengths of rows, not the offsets of documents.

B batch, T tokens, H query heads, K key heads, E width of q and k, F width of v.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import with_products
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.gpu import launches
from pe_jax.numerics.arrays import repeat_heads

HOPPER, WIDEST = 90, (128, 256)  # widths of heads before this architecture, and from it on
MULTIPLE = 8  # widths of heads are padded to multiples
# Channels with zeros ÷ without, up to which it is chosen: Triton's kernels run at 0.66 of its speed
# on an H100 (395 and 595 TFLOP/s, FlashAttention-3's paper).
MOST_FILLED = 1.5
SAMPLE = 2 * 128 + 62  # tokens of a check: several blocks and a part of one


def refusal(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> str | None:
    """Why cuDNN cannot run this call, or None if it can. Arguments as those of `attend`."""
    dtypes = {"bfloat16", "float16"}
    if (why := common.unsupported_by_stock(spec, terms, q, k, v, dtypes)) is not None:
        return why
    architecture = launches.architecture()
    if architecture is None:
        return "a GPU that is not NVIDIA's"
    operands = functools.partial(_operands, spec)
    width = jax.eval_shape(operands, terms, q, k, v)[0].shape[-1]
    widest = WIDEST[architecture >= HOPPER]
    reasons = {
        f"heads of width {width} (at most {widest})": width > widest,
        "a window both ways": spec.window is not None and not spec.causal,
        "it has no logit_cap": spec.logit_cap is not None,
        "it has no segments": q.tokens.segments is not None,
        # jax (to 0.11.2 at least) takes its empty placeholder for a bias, which has this limit.
        "an odd number of tokens": q.x.shape[2] % 2 == 1,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_faster(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> bool:
    """Whether cuDNN is chosen over our kernels, for calls without a `refusal`.

    On an H200 training with it took 0.84 to 0.89 of our kernels' time.
    """
    widths = q.x.shape[-1], v.shape[-1]
    return 2 * max(widths) / sum(widths) <= MOST_FILLED


def sample_length(spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array) -> int:
    """Number of tokens for whole blocks and a part of one."""
    return SAMPLE


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    implementation: str = "cudnn",
) -> tuple[jax.Array, None]:
    """As `reference.attend`, for calls without a `refusal`; no row sums, which have no gradient.

    `implementation` is that of `jax.nn`: "xla" computes the same on any machine, for tests.
    """
    window = None if spec.window is None else (spec.window - 1, 0)
    options: Any = {"local_window_size": window, "implementation": implementation}
    tokens_first = (jnp.swapaxes(x, 1, 2) for x in _operands(spec, terms, q, k, v))
    scale = spec.scale_of(terms)
    out = jax.nn.dot_product_attention(*tokens_first, scale=scale, is_causal=spec.causal, **options)
    return jnp.swapaxes(out, 1, 2)[..., : v.shape[-1]].astype(jnp.float32), None


def _operands(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> tuple[jax.Array, ...]:
    """q [B, H, T, X], k and v [B, K or H, T, X] of one width; products are channels of q and k."""
    q, k = with_products(spec, terms, q, k)
    v = repeat_heads(v, k.x.shape[1])
    width = max(x.shape[-1] for x in (q.x, v))
    width += -width % MULTIPLE
    return tuple(common.pad(x, 3, width) for x in (q.x, k.x, v))

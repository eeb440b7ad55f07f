"""Options of `attention` that are terms, masks and biases that are arrays, and unknown arguments.

B batch (any number of axes), T queries, S keys, H query heads.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Term
from pe_jax.engines import reference
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.sharded.layout import Contiguous
from pe_jax.numerics.arrays import require_key
from pe_jax.validation import is_real, require, shown

NAMES = {  # of `jax.nn.dot_product_attention`, Flax and PyTorch, and what to pass here
    "is_causal": "causal=",
    "attn_mask": "mask=",
    "dropout_p": "dropout_rate= and dropout_key=",
    "dropout_rng": "dropout_key=",
    "deterministic": "dropout_key=None to disable dropout",
    "local_window_size": "window=, how many tokens back are seen, oneself included",
    "query_seq_lengths": "q_segments=, with negative ids for padding",
    "key_value_seq_lengths": "k_segments=, with negative ids for padding",
    "enable_gqa": "k and v with fewer heads: nothing else is needed",
    "softcap": "logit_cap=",
    "logits_soft_cap": "logit_cap=",
    "sm_scale": "scale=",
    "return_residual": "return_lse=",
    "segment_ids": "q_segments=",
    "positions": "q_positions=",
}


def no_others(others: dict[str, Any]) -> None:
    """Raises TypeError for an unknown argument, naming the equivalent argument of `attention`."""
    for name in others:
        names = f"pass {NAMES[name]}" if name in NAMES else "see help(pe_jax.attention)"
        raise TypeError(f"{name}: attention has no such argument; {names}")


def positive(name: str, value: Any) -> float | None:
    """A scale or a cap as a float, or None; raises ValueError unless it is a number above 0."""
    if value is None:
        return None
    kinds.require_positive(name, value)
    return float(value)


def mask_terms(mask, q, k) -> tuple[Term, ...]:
    """A `Mask` as a term of the call; nothing for an array, see `matrices`.

    Raises:
      ValueError: it is for another number of rows or tokens.
    """
    if not isinstance(mask, kinds.Mask):
        return ()
    batch, keys = math.prod(q.shape[:-3]), k.shape[-3]
    for leaf in jax.tree.leaves(mask.arrays):
        fix = f"its arrays are of {len(leaf)} rows, q has {batch}; pass one for each, or one"
        require(len(leaf) in (1, batch), "mask", leaf.shape, fix)
    fix = f"k has {keys} tokens; make it of as many"
    require(mask.length in (None, keys), "mask.length", mask.length, fix)
    return (mask,)


def dropout(q, rate, key) -> Dropout | None:
    """The draws of a call; None where nothing is dropped.

    Raises:
      ValueError: a rate out of range.
    """
    fix = "pass a fraction from 0 up to, but not, 1"
    require(is_real(rate) and 0 <= rate < 1, "dropout_rate", rate, fix)
    if key is None:
        return None
    require_key("dropout_key", key)
    if not rate:
        return None
    seeds = jax.random.bits(key, (math.prod(q.shape[:-3]), q.shape[-2]), jnp.uint32)
    return Dropout(seeds, rate=float(rate))


def matrices(q, k, mask, bias, implementation: Any, layout: Contiguous) -> Any:
    """The implementation, which is the dense engine where a mask or a bias is an array.

    Raises:
      ValueError: shapes that do not broadcast; another engine was asked for.
    """
    if isinstance(mask, kinds.Mask):
        mask = None
    if mask is None and bias is None:
        return implementation
    shape = (*q.shape[:-3], q.shape[-2], q.shape[-3], k.shape[-3])
    name = "bias" if mask is None else "mask"
    fix = "an array takes all scores at once: leave it out, pass 'dense', or a pe_jax.Mask"
    require(
        implementation in (None, "dense"), "implementation", implementation, f"{name}= as {fix}"
    )
    require(type(layout) is Contiguous, "layout", type(layout).__name__, f"{name}= as {fix}")
    if mask is not None:
        dtype = _dtype("mask", mask, "booleans, or a pe_jax.Mask")
        if not jnp.issubdtype(dtype, jnp.bool_):
            raise TypeError(f"mask has dtype {dtype}; pass booleans (an additive mask is a bias)")
        mask = pair_array("mask", mask, shape)
    if bias is not None:
        dtype = _dtype("bias", bias, "floats")
        if not jnp.issubdtype(dtype, jnp.floating):
            raise TypeError(f"bias has dtype {dtype}; pass floats (booleans are a mask)")
        bias = pair_array("bias", bias, shape).astype(jnp.float32)
    return functools.partial(reference.attend, mask=mask, bias=bias)


def _dtype(name: str, x: Any, fix: str) -> Any:
    """That of an array, or of what makes one; TypeError for what makes none."""
    try:
        dtype = x.dtype if hasattr(x, "ndim") else np.asarray(x).dtype
    except ValueError:
        dtype = np.dtype(object)
    if not any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.number)):
        raise TypeError(f"{name}={shown(x, 80)}: pass an array of {fix}")
    return dtype


def pair_array(name: str, x: Any, shape: tuple[int, ...]) -> jax.Array:
    """An array that broadcasts to `shape` [*B, H, T, S], with one axis B: [B, H or 1, …]."""
    x = jnp.asarray(x)
    fits = x.ndim <= len(shape) and all(
        n in (1, m) for n, m in zip(x.shape[::-1], shape[::-1], strict=False)
    )
    require(fits, name, x.shape, f"pass a shape that broadcasts to {shape}")
    x = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)
    whole = jnp.broadcast_to(x, (*shape[:-3], *x.shape[-3:]))
    return whole.reshape(math.prod(shape[:-3]), *x.shape[-3:])

"""PyTorch's FlexAttention, to compare with; imported only if torch is installed.

Its `score_mod` sees indices only, so it supports schemes that are a bias of the distance and
nothing else. On CPU it has no backward pass.
"""

import jax
import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch.nn.attention.flex_attention import (  # pyright: ignore[reportMissingImports]
    create_block_mask,
    flex_attention,
)

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims, Encoding, Params


def device() -> torch.device:
    """Torch's name of the device that JAX runs on.

    Raises:
      ValueError: this torch does not support it.
    """
    backend = jax.default_backend()
    if backend == "cpu":
        return torch.device("cpu")
    if backend == "gpu" and torch.cuda.is_available():
        return torch.device("cuda")
    raise ValueError(f"this torch has no device of JAX's back end {backend!r}")


def _is_past(batch, head, q_index, k_index):
    return q_index >= k_index


def program(
    encoding: Encoding,
    params: Params,
    operands: list[np.ndarray],
    dims: Dims,
    *,
    dtype: str,
    causal: bool,
    backward: bool,
):
    """A function without arguments that runs attention, and its gradients, to completion.

    Args:
      encoding: a bias of the distance, or NoPE.
      params: its parameters.
      operands: q, k, v and the cotangent of the output, each [B, L, H, E].
      dims: the sizes.
      dtype: of q, k and v.
      causal: whether later tokens are hidden.
      backward: whether gradients are computed, for q, k, v and the table of the bias.
    """
    place, length = device(), operands[0].shape[1]
    if backward and place.type == "cpu":
        raise ValueError("FlexAttention has no backward pass on CPU")

    def to(x) -> torch.Tensor:
        return torch.tensor(np.array(x, np.float32), device=place)

    q, k, v, cotangent = (to(x).transpose(1, 2).to(getattr(torch, dtype)) for x in operands)
    leaves = [x.contiguous().requires_grad_(backward) for x in (q, k, v)]
    terms = encoding.terms(params, dims)
    distance = jnp.arange(1 - length, length, dtype=jnp.int32)
    biases = [
        term.at(distance) for term in kinds.select(terms, kinds.DistanceBias, kinds.DistanceFormula)
    ]
    bias = to(sum(biases)).requires_grad_(backward and bool(params[0])) if biases else None
    mask = None
    if causal:
        mask = create_block_mask(_is_past, None, None, length, length, device=place.type)

    def add(score, b, h, i, j):
        return score if bias is None else score + bias[h, i - j + length - 1]

    scale = kinds.scale(terms, dims.head_dim)
    fast = torch.compile(flex_attention, dynamic=False)

    def call():
        with torch.set_grad_enabled(backward):
            score_mod = None if bias is None else add
            out = fast(*leaves, score_mod=score_mod, block_mask=mask, scale=scale)
            if backward:
                inputs = [*leaves, *([bias] if bias is not None and bias.requires_grad else [])]
                torch.autograd.grad(out, inputs, cotangent)
        if place.type == "cuda":
            torch.cuda.synchronize()
        return np.float32(0) if backward else out

    return call

"""PyTorch's attention, to compare with; imported only if torch is installed.

FlexAttention's `score_mod` sees indices only, and `scaled_dot_product_attention` takes a matrix of
biases: both have only the schemes that are a bias of the distance. On CPU FlexAttention
has no backward pass.
"""

import dataclasses
from collections.abc import Callable

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


@dataclasses.dataclass(frozen=True)
class Operands:
    """The inputs of PyTorch's attention.

    q, k and v are [B, H, T, E]; `bias` is that of the distances 1 - T … T - 1, float32 [H, 2T - 1],
    or None for NoPE; `scale` multiplies dot products.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    causal: bool
    scale: float


def flex(x: Operands) -> Callable[[], torch.Tensor]:
    """FlexAttention, compiled, which looks the bias of a pair up.

    Raises:
      ValueError: it has no backward pass here.
    """
    if x.q.requires_grad and x.q.device.type == "cpu":
        raise ValueError("FlexAttention has no backward pass on CPU")
    length, mask = x.q.shape[2], None
    if x.causal:
        mask = create_block_mask(_is_past, None, None, length, length, device=x.q.device.type)

    def add(score, b, h, i, j):
        return score if x.bias is None else score + x.bias[h, i - j + length - 1]

    score_mod = None if x.bias is None else add
    fast = torch.compile(flex_attention, dynamic=False)
    return lambda: fast(x.q, x.k, x.v, score_mod=score_mod, block_mask=mask, scale=x.scale)


def sdpa(x: Operands) -> Callable[[], torch.Tensor]:
    """`scaled_dot_product_attention`, with a bias as a matrix [1, H, T, T], made in each call."""
    attend = torch.nn.functional.scaled_dot_product_attention
    length, by_distance = x.q.shape[2], x.bias
    if by_distance is None:
        return lambda: attend(x.q, x.k, x.v, is_causal=x.causal, scale=x.scale)
    index = torch.arange(length, device=x.q.device)
    distance = index[:, None] - index

    def run():
        bias = by_distance[:, distance + length - 1].to(x.q.dtype)
        if x.causal:
            bias = bias.masked_fill(distance < 0, -torch.inf)
        return attend(x.q, x.k, x.v, attn_mask=bias[None], scale=x.scale)

    return run


ENGINES = {"flex": flex, "sdpa": sdpa}


def program(
    engine: str,
    encoding: Encoding,
    params: Params,
    operands: list[np.ndarray],
    dims: Dims,
    *,
    dtype: str,
    causal: bool,
    backward: bool,
) -> Callable:
    """A function without arguments that runs attention to completion: the output, or gradients.

    `encoding` is a bias of the distance, or NoPE; `operands` are q, k, v and the cotangent of the
    output, each [B, T, H, E]. With `backward` it gives the gradients of q, k, v and of a learned
    bias.

    Raises:
      ValueError: the engine has no backward pass here.
    """
    target, length = device(), operands[0].shape[1]

    def tensor(x) -> torch.Tensor:
        return torch.tensor(np.array(x, np.float32), device=target)

    q, k, v, cotangent = (tensor(x).transpose(1, 2).to(getattr(torch, dtype)) for x in operands)
    q, k, v = (x.contiguous().requires_grad_(backward) for x in (q, k, v))
    terms = encoding.terms(params, dims)
    distance = jnp.arange(1 - length, length, dtype=jnp.int32)
    biases = [
        term.at(distance) for term in kinds.select(terms, kinds.DistanceBias, kinds.DistanceFormula)
    ]
    learned = backward and bool(jax.tree.leaves(params))
    bias = tensor(sum(biases)).requires_grad_(learned) if biases else None
    scale = kinds.scale(terms, dims.head_dim)
    run = ENGINES[engine](Operands(q, k, v, bias, causal, scale))

    def call():
        with torch.set_grad_enabled(backward):
            result = run()
            if backward:
                inputs = [x for x in (q, k, v, bias) if x is not None and x.requires_grad]
                result = torch.autograd.grad(result, inputs, cotangent)
        if target.type == "cuda":
            torch.cuda.synchronize()
        return result

    return call

"""Inputs, weights and masks that several oracles share."""

import numpy as np
import pytest
import torch
from torch import nn

BATCH, HEAD_DIM = 1, 8


def normal(rng, *shape, scale=1.0):
    return torch.from_numpy(scale * rng.standard_normal(shape, np.float32))


def fill(module: nn.Module, rng, width: int) -> nn.Module:
    """Random weights that keep the variance; evaluation mode, so that dropout does nothing."""
    for parameter in module.parameters():
        projection = parameter.ndim > 1 and width in parameter.shape
        parameter.copy_(normal(rng, *parameter.shape, scale=width**-0.5 if projection else 0.5))
    return module.eval()


def set_identity(linear: nn.Linear) -> None:
    linear.weight.copy_(torch.eye(*linear.weight.shape))
    if linear.bias is not None:
        linear.bias.zero_()


def by_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(-1, (heads, -1))


def any_places(rng, length: int) -> torch.Tensor:
    """Positions in any order, 0 and 255 among them."""
    return torch.from_numpy(np.append(rng.integers(0, 256, length - 2), [0, 255]))


def rotary_inputs(rng, length, dim=HEAD_DIM):
    """Queries, keys (entries within ±1, so that errors are absolute) and positions."""
    q, k = (torch.from_numpy(rng.uniform(-1, 1, (BATCH, length, 2, dim)).astype("f")) for _ in "qk")
    return {"q": q, "k": k, "positions": any_places(rng, length)}


def x_transformers():
    """x-transformers' one file of models; the test is skipped where it is missing."""
    return pytest.importorskip("x_transformers.x_transformers", exc_type=ImportError)


def random_qkv(rng, length, heads, kv_heads) -> dict[str, torch.Tensor]:
    shapes = {"q": heads, "k": kv_heads, "v": kv_heads}
    return {n: normal(rng, BATCH, length, count, HEAD_DIM) for n, count in shapes.items()}


def attended(scores: torch.Tensor, v: torch.Tensor, causal: bool) -> dict[str, torch.Tensor]:
    """Weights and output for scores [B, H, T, T] and values [B, T, H, E]."""
    if causal:
        scores = scores + causal_mask(scores.shape[-1])
    probabilities = scores.softmax(-1)
    output = torch.einsum("bhts,bshe->bthe", probabilities, v)
    return {"weights": probabilities, "output": output}


def scaled_products(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.einsum("bthe,bshe->bhts", inputs["q"], inputs["k"]) / HEAD_DIM**0.5


def causal_mask(length: int) -> torch.Tensor:
    ahead = torch.ones(length, length, dtype=torch.bool).triu(1)
    return torch.zeros(1, 1, length, length).masked_fill(ahead, torch.finfo(torch.float32).min)

"""The training step of `plain_jax` in PyTorch; imported only if torch is installed.

Its fused attention, its fused AdamW, eager or compiled.
"""

from collections.abc import Callable

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.measuring.plain_jax import BASE, EPSILON
from experiments.measuring.torch_attention import device
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import OptimizerConfig


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        width, hidden, dims = config.width, config.hidden, config.dims
        inner = dims.heads * dims.head_dim
        self.heads = dims.heads
        self.attention_norm = nn.RMSNorm(width, EPSILON)
        self.q, self.k, self.v = (nn.Linear(width, inner, bias=False) for _ in "qkv")
        self.out = nn.Linear(inner, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, EPSILON)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        """[B, T, D] → [B, T, D]."""

        def rotate(x):
            a, b = x.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

        y = self.attention_norm(x)
        rows = (*y.shape[:2], self.heads, -1)
        q, k, v = (p(y).view(rows).transpose(1, 2) for p in (self.q, self.k, self.v))
        y = functional.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    """The mean loss of a batch; its parameters are named as in `plain_jax`, and `.weight`."""

    def __init__(self, config: ModelConfig, length: int):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.width, EPSILON)
        half = config.dims.head_dim // 2
        angle = torch.arange(length)[:, None] * BASE ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        """Mean cross entropy of the next token, nats: tokens [B, T + 1]."""
        table = self.embedding.weight
        x = self.embedding(tokens[:, :-1]) * table.shape[1] ** 0.5
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = functional.linear(self.final_norm(x) * table.shape[1] ** -0.5, table)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def product(a: np.ndarray, b: np.ndarray) -> Callable[[], None]:
    """The matrix product of two float32 arrays, without arguments."""
    x, y = (torch.tensor(array, device=device()) for array in (a, b))

    def multiply():
        torch.mm(x, y)
        if x.is_cuda:
            torch.cuda.synchronize()

    return multiply


def program(
    config: ModelConfig,
    optimizer: OptimizerConfig,
    weights: dict[str, np.ndarray],
    tokens: np.ndarray,
    *,
    fused: bool,
) -> tuple[Callable, Callable]:
    """Two functions without arguments: a training step, its loss; and the weights it has reached.

    Weights are by name, of the shapes in `plain_jax`; tokens are int32 [B, T + 1]; the learning
    rate is constant. With `fused`, `torch.compile` compiles the model, forward and backward.
    """
    target = device()
    model = Model(config, tokens.shape[1] - 1)
    transposed = {name: x.T if _is_matrix(name) else x for name, x in weights.items()}
    state = {f"{name}.weight": torch.tensor(np.array(x)) for name, x in transposed.items()}
    model.load_state_dict(state)
    model = model.to(target)
    names = dict(model.named_parameters())
    matrices = [p for name, p in names.items() if _is_matrix(name)]
    undecayed = [p for name, p in names.items() if not _is_matrix(name)]
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": optimizer.weight_decay},
            {"params": undecayed, "weight_decay": 0.0},
        ],
        lr=optimizer.learning_rate,
        betas=(optimizer.b1, optimizer.b2),
        fused=True,
    )
    loss_of = torch.compile(model) if fused else model
    batch = torch.tensor(tokens, dtype=torch.int64, device=target)

    def step():
        loss = loss_of(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(names.values(), optimizer.clip)
        adamw.step()
        adamw.zero_grad()
        if target.type == "cuda":
            torch.cuda.synchronize()
        return np.float32(loss.item())

    def current_weights() -> dict[str, np.ndarray]:
        arrays = {n.removesuffix(".weight"): p.numpy(force=True) for n, p in names.items()}
        return {name: x.T if _is_matrix(name) else x for name, x in arrays.items()}

    return step, current_weights


def _is_matrix(name: str) -> bool:
    """Whether a parameter is that of a `Linear`, which holds it transposed and decays it."""
    return name.startswith("layers") and "norm" not in name

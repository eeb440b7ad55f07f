"""One training step of the same model by several libraries: forward, backward, clipping, AdamW.

Each begins with the same float32 weights and sees the same tokens at every step. The model is that
of `ModelConfig()` with RoPE; vocabulary of 257 bytes.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from experiments.measuring import flops, plain_jax
from experiments.measuring.timing import DENSE, OURS
from pe_jax.models.config import ModelConfig
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig, OptimizerConfig
from pe_jax.training.step import Trainer

SIDE = 2048  # of a large matrix product
OPTIMIZER = OptimizerConfig(warmup=0, final=1.0)  # a constant learning rate


class Size(NamedTuple):
    """A model and the shape of its batch: rows × length tokens."""

    model: ModelConfig
    rows: int
    length: int

    def tokens(self) -> np.ndarray:
        """Random tokens: int32 [rows, length + 1]."""
        shape = self.rows, self.length + 1
        return np.random.default_rng(0).integers(0, self.model.vocab, shape, np.int32)

    @property
    def products(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Two matrix products, as [m, k] × [k, n]: a large square one, and the MLP's."""
        return (SIDE, SIDE, SIDE), (self.rows * self.length, self.model.width, self.model.hidden)

    @property
    def operations(self) -> float:
        """Operations of the products of one step, with every score of attention."""
        shapes = _trainer(self).state_shapes.params
        params = jax.eval_shape(lambda params: plain_weights(self, params), shapes)
        gradient = jax.value_and_grad(plain_jax.loss)
        traced = jax.jit(gradient, static_argnums=2).trace(params, self.tokens(), self.model.heads)
        return flops.count(traced.jaxpr).total


def _size(width: int, layers: int, heads: int, rows: int, length: int) -> Size:
    return Size(ModelConfig(vocab=257, width=width, layers=layers, heads=heads), rows, length)


SIZES = {
    "0.1M": _size(64, 2, 4, rows=16, length=64),
    "1M": _size(128, 5, 4, rows=16, length=128),
    "3.2M": _size(256, 4, 4, rows=8, length=512),
    "10M": _size(384, 6, 6, rows=8, length=256),
}


def title(name: str) -> str:
    """The mode of the table of a size."""
    return f"training step, {name} × {SIZES[name].rows}"


class Running(NamedTuple):
    """A training run without arguments.

    `step` returns its loss; `weights` gives the parameters reached, by their names in `plain_jax`.
    """

    step: Callable[[], Any]
    weights: Callable[[], dict[str, np.ndarray]]
    temp_bytes: int | None = None


def _trainer(size: Size, attention: str = "auto") -> Trainer:
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    model = dataclasses.replace(size.model, attention=attention)
    return Trainer(model, OPTIMIZER, 1000, mesh)


def plain_weights(size: Size, params: Any) -> dict:
    """Our parameters, as `plain_jax` has them."""
    of_layers = {
        sharding.path_name(path).split("/")[-2]: x
        for path, x in jax.tree_util.tree_leaves_with_path(params["blocks"])
    }
    return {
        "embedding": params["embed"]["embedding"],
        "final_norm": params["final_norm"]["scale"],
        "layers": [{n: x[i] for n, x in of_layers.items()} for i in range(size.model.layers)],
    }


def _named(params: dict) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(p, simple=True, separator="."): np.asarray(x) for p, x in leaves}


def ours(size: Size, attention: str = "auto") -> Running:
    """`Trainer`, as the programs run it: packed rows, skipped steps, warm-up and decay."""
    trainer, tokens = _trainer(size, attention), size.tokens()
    memory = trainer.compile(size.rows, size.length).memory_analysis()
    ones = np.ones(tokens.shape)
    packed = {"segments": ones.astype(np.int32), "weights": ones.astype(np.float32)}
    state, batch = trainer.init(0), trainer.put({"tokens": tokens, **packed})

    def step():
        nonlocal state
        state, metrics = trainer.step(state, batch, np.int32(0))
        return metrics.loss

    temp_bytes = memory.temp_size_in_bytes if memory else None
    return Running(step, lambda: _named(plain_weights(size, state.params)), temp_bytes)


def plain(size: Size) -> Running:
    """Plain JAX and optax."""
    tokens, params = size.tokens(), plain_weights(size, _trainer(size).init(0).params)
    decayed = jax.tree.map(lambda x: x.ndim == 2, params) | {"embedding": False}
    config = OPTIMIZER
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            config.learning_rate,
            config.b1,
            config.b2,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )
    state, tokens = optimizer.init(params), jax.device_put(tokens)
    call = plain_jax.step(optimizer, size.model.heads).lower(params, state, tokens).compile()

    def step():
        nonlocal params, state
        params, state, loss = call(params, state, tokens)
        return loss

    memory = call.memory_analysis()
    return Running(step, lambda: _named(params), memory.temp_size_in_bytes if memory else None)


def in_torch(size: Size, fused: bool) -> Running:
    """PyTorch, eager or with `torch.compile`."""
    from experiments.measuring import torch_model

    weights, tokens = _named(plain_weights(size, _trainer(size).init(0).params)), size.tokens()
    return Running(*torch_model.program(size.model, OPTIMIZER, weights, tokens, fused=fused))


LIBRARIES: dict[str, Callable[[Size], Running]] = {
    OURS: ours,
    DENSE: functools.partial(ours, attention="dense"),
    "tiled": functools.partial(ours, attention="tiled"),
    "jax": plain,
    "torch": functools.partial(in_torch, fused=False),
    "torch.compile": functools.partial(in_torch, fused=True),
}
OTHERS = ("jax", "torch", "torch.compile")  # than ours

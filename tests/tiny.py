"""Tiny models and rows of tokens for the tests of models and training.

L tokens a row, R rows, V token ids. Parameters are noise of the model's shapes: no program is
compiled to draw them, and no term is zero, as a fresh table of biases would be.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax.models.config import ModelConfig
from pe_jax.models.transformer import Transformer
from pe_jax.training.sharding import path_name
from tests.util import SMALL, noise

L, R, V = 12, 8, 20


def _spec(name: str) -> str:
    fields = {f: x for f, x in SMALL.get(name, [{}])[0].items() if f != "causal"}
    return f"{name}({', '.join(f'{field}={value!r}' for field, value in fields.items())})"


# A scheme of each kind of parameter, slot and engine. The laws of tests/contract/ are for every
# scheme; a model of each, compiled for one device and for eight, would take many minutes.
KINDS = "nope learned shaw transformer_xl t5 deberta rope alibi tupe fox wavlm rerope dape"
SPECS = {name: _spec(name) for name in KINDS.split()}


def few(names: str, specs: dict):
    """Parametrises `spec` over the values; those not named are left to `pytest -m slow`."""
    assert {*names.split()} <= {*specs}
    params = []
    for name, spec in specs.items():
        marks = () if name in names.split() else pytest.mark.slow
        params.append(pytest.param(spec, id=name, marks=marks))
    return pytest.mark.parametrize("spec", params)


def config(encoding: str = "rope", **fields) -> ModelConfig:
    """A model of 2 layers and 4 heads of 4, in 2 groups."""
    sizes = {"vocab": V, "width": 16, "layers": 2, "heads": 4, "kv_heads": 2}
    return ModelConfig(encoding=encoding, **{**sizes, **fields})


@functools.cache
def abstract_terms(model: ModelConfig):
    """The graph of a model, and the shapes of its parameters."""
    graph, shapes = nnx.eval_shape(lambda: nnx.split(Transformer(model, rngs=nnx.Rngs(0))))
    return graph, nnx.as_pure(shapes)


def like(shapes):
    """Noise of these shapes; biases are small, or every row would say the same."""

    def leaf(path, x):
        scale = 0.03 if path_name(path).endswith("bias") else 0.3
        return jnp.asarray(scale * noise(*x.shape), x.dtype)

    return jax.tree.map_with_path(leaf, shapes)


def build(model: ModelConfig) -> tuple[Transformer, dict]:
    """The model and its parameters."""
    graph, shapes = abstract_terms(model)
    params = like(shapes)
    return nnx.merge(graph, params), params


@functools.cache
def forward(model: ModelConfig):
    """(params, tokens, segments) → logits, compiled once for all tests."""
    graph, _ = abstract_terms(model)
    return jax.jit(lambda params, tokens, ids: nnx.merge(graph, params)(tokens, segments=ids))


def tokens(*shape: int, seed: int = 0) -> np.ndarray:
    """Token ids of any value: int32."""
    return np.random.default_rng(seed).integers(0, V, shape, dtype=np.int32)


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Rows of two documents and some padding, as `data.train_iterator` gives them."""
    shape = R, L + 1
    column = np.broadcast_to(np.arange(L + 1, dtype=np.int32), shape)
    cut = np.arange(R)[:, None] % 4 + 3
    ids = np.where(column < cut, 1, np.where(column < L - 1, 2, 0)).astype(np.int32)
    weights = np.zeros(shape, np.float32)
    weights[:, 1:] = (ids[:, 1:] == ids[:, :-1]) & (ids[:, 1:] > 0)
    return {"tokens": tokens(*shape, seed=seed), "segments": ids, "weights": weights}

"""Other encodings in a model that has its weights: surgery without training.

half = with_encoding(model, "rope(base=1e5,fraction=0.5)")      # the same in all layers
fourth = with_encoding(model, "rope(base=1e5)*3,nope")          # NoPE in every fourth layer
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.models.transformer import Transformer
from pe_jax.validation import ConfigError


def with_encoding(model: Transformer, encoding: str) -> Transformer:
    """The model with other encodings, and all its weights.

    Args:
      model: whose parameters are shared, and copied only where the pattern has another length.
      encoding: a pattern over its layers, as in `ModelConfig`.

    Raises:
      ConfigError: the encodings have parameters, for which the model has no values; or do not fit
        its layers.
    """
    config = dataclasses.replace(model.config, encoding=encoding)
    config.check()
    graph, abstract = nnx.eval_shape(lambda: nnx.split(Transformer(config, rngs=nnx.Rngs(0))))
    wanted, weights = dict(nnx.to_flat_state(abstract)), dict(nnx.to_flat_state(nnx.state(model)))
    if added := [path for path in wanted if path[0] == "shared" or "params" in path]:
        name = "/".join(map(str, added[0]))
        raise ConfigError(f"encoding={encoding!r}: the weights have no {name} for it")
    old, new = len(model.blocks), len(config.pattern)

    def stacked(slot: int, rest: tuple) -> jax.Array:
        """A weight of the layers slot, slot + P, …, with a leading axis for repeats."""
        layers = range(slot, config.layers, new)
        return jnp.stack([weights["blocks", n % old, *rest][...][n // old] for n in layers])

    def value(path: tuple) -> Any:
        if path[0] != "blocks" or new == old:
            return weights[path]
        return wanted[path].replace(stacked(path[1], path[2:]))

    filled = nnx.from_flat_state({path: value(path) for path in wanted})
    return nnx.merge(graph, filled)

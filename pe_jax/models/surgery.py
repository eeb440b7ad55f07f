"""Other encodings in a model that has its weights; and its layers one by one.

half = with_encoding(model, "rope(base=1e5,fraction=0.5)")      # the same in all layers
fourth = with_encoding(model, over(model.config, "rope*3,nope"))  # NoPE in every fourth layer
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.encodings.base import Encoding, Recurrent
from pe_jax.encodings.registry import Spec, format_encoding, format_pattern
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.sums import parts_of, sum_of
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.models.config import ModelConfig
from pe_jax.models.transformer import Transformer
from pe_jax.validation import ConfigError


def over(config: ModelConfig, encoding: str) -> Spec:
    """The shortest pattern of a model's layers with other encodings, which need not fit them.

    Args:
      config: of the model.
      encoding: a pattern that is repeated over the layers, and cut at the last. Where RoPE takes
        the place of RoPE, fields at their defaults are those of the layer, as a base; a layer keeps
        its window or chunks unless the encoding has its own.
    """
    old, new = Spec(config.encoding).layers, Spec(encoding).layers
    pairs = ((old[n % len(old)], new[n % len(new)]) for n in range(config.layers))
    layers = [in_layer(a, with_fields_of(without_window(a), b)) for a, b in pairs]
    return Spec(format_pattern(layers))


def in_layer(layer: Encoding, new: Encoding) -> Encoding:
    """The new encoding with the window or chunks of a layer, unless it has its own."""
    own = isinstance(new, Windowed) or not isinstance(layer, Windowed)
    return new if own else dataclasses.replace(layer, encoding=new)


def with_fields_of(rope: Encoding, new: Encoding) -> Encoding:
    """The new encoding whose parts that are RoPE have the fields of `rope` for their defaults."""
    if not isinstance(rope, RoPE):
        return new
    fields, parts = dataclasses.fields(RoPE), []
    for part in parts_of(without_window(new)):
        if isinstance(part, RoPE):
            unset = [f.name for f in fields if getattr(part, f.name) == f.default]
            part = dataclasses.replace(part, **{name: getattr(rope, name) for name in unset})
        parts.append(part)
    return in_layer(new, sum_of(parts))


def require_same_heads(config: ModelConfig, old: Encoding, new: Encoding) -> None:
    """Raises ConfigError unless a layer has the same projections with both encodings (RoPE++)."""

    def heads(encoding: Encoding) -> str:
        dims = encoding.layer_dims(config.dims)
        queries = encoding.query_heads(dims)
        return f"{queries} queries for {dims.heads} heads, {dims.kv_heads} key heads"

    fix = f"the weights, of {old!r}, have {heads(old)}; pass an encoding that has these"
    if heads(old) != heads(new):
        raise ConfigError(f"encoding={new!r} has {heads(new)}: {fix}")


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
    for layer in range(config.layers):
        pair = [c.pattern[layer % len(c.pattern)] for c in (model.config, config)]
        if pair[0] != pair[1] and any(isinstance(e, Recurrent) for e in pair):
            both = all(isinstance(e, Recurrent) for e in pair)
            fix = "attention and a recurrent layer have no weights in common; keep what it is"
            fix = "a recurrent layer keeps its fields, which its weights are for" if both else fix
            was = format_encoding(pair[0])
            raise ConfigError(f"encoding={encoding!r}: layer {layer} is {was}; {fix}")
    graph, abstract = nnx.eval_shape(lambda: nnx.split(Transformer(config, rngs=nnx.Rngs(0))))
    wanted, weights = dict(nnx.to_flat_state(abstract)), dict(nnx.to_flat_state(nnx.state(model)))
    old, new, layers = len(model.blocks), len(config.pattern), range(config.layers)
    for n in layers:
        require_same_heads(model.config, model.config.windows[n % old], config.windows[n % new])
    kept = all(model.config.windows[n % old] == config.windows[n % new] for n in layers)
    added = [path for path in wanted if path[0] == "shared" or "params" in path]
    if added and not kept:
        name = "/".join(map(str, added[0]))
        raise ConfigError(f"encoding={encoding!r}: the weights have no {name} for it")

    def stacked(slot: int, rest: tuple) -> jax.Array:
        """A weight of the layers slot, slot + P, …, with a leading axis for repeats."""
        chosen = layers[slot::new]
        return jnp.stack([weights["blocks", n % old, *rest][...][n // old] for n in chosen])

    def value(path: tuple) -> Any:
        if path[0] != "blocks" or new == old:
            return weights[path]
        return wanted[path].replace(stacked(path[1], path[2:]))

    filled = nnx.from_flat_state({path: value(path) for path in wanted})
    return nnx.merge(graph, filled)


def layer_by_layer(model: Transformer) -> Transformer:
    """The model with the weights of each layer apart, for decoding; they are copied.

    A token that is decoded reads every weight once, so that taking a layer's weights out of the
    stack of all, which copies them, takes longer than using them (SmolLM2-135M on two busy CPU
    cores: 0.73 and 0.26 s per token). Compiling a full pass takes longer, as no layers share a
    program.
    """
    if len(model.blocks) == model.config.layers:
        return model
    repeats = model.config.layers // len(model.blocks)
    apart = with_encoding(model, Spec.of(list(model.config.windows) * repeats))
    for layer, block in enumerate(apart.blocks):  # with the length that they are set for
        block.attention.encoding = model.encodings[layer % len(model.blocks)]
    return apart

"""transformers' configs and modules, and our side of a layer that `pe_jax.hf` read of them."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings.terms import Rotation
from pe_jax.hf.layers import parts

LENGTH = 23
INDEX = np.arange(LENGTH)
DISTANCE = INDEX[:, None] - INDEX


def tiny(kind, **settings):
    """A config of that type, and its modelling module."""
    import importlib

    from transformers import AutoConfig

    name = kind.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return AutoConfig.for_model(kind, **settings), module


def rotated(layer, x, side, positions, sorted_pairs=False):
    """Our rotation of x [1, H, T, E]; DeepSeek-V3 sorts the pairs of x into halves beforehand."""
    dims = pe_jax.Dims(x.shape[1] * x.shape[3], x.shape[1], x.shape[1], x.shape[3])
    encoding = layer.encoding.at_length(LENGTH)
    params = encoding.init(jax.random.key(0), dims)
    x = jnp.asarray(x.transpose(0, 2, 1, 3))
    if layer.rotary_last:
        rope = parts(encoding)[0]  # the second may be a sink
        turned = rope.rotary_dim(x.shape[-1])
        first, rest = x[..., -turned:], x[..., :-turned]
        if sorted_pairs and rope.layout == "interleaved":
            first = jnp.stack(jnp.split(first, 2, axis=-1), axis=-1).reshape(first.shape)
        x = jnp.concatenate([first, rest], axis=-1)
    for term in encoding.terms(params, dims):
        turn = getattr(term, side) if isinstance(term, Rotation) else None
        x = x if turn is None else turn(term.arrays, x, positions)
    return np.asarray(x, np.float64).transpose(0, 2, 1, 3)


def bias_of(layer, params, distance):
    """What a layer's encoding adds to the scores at distances [T, S]: [H, T, S]."""
    heads = len(params)
    dims = pe_jax.Dims(heads * layer.head_dim, heads, heads, layer.head_dim)
    own = pe_jax.Params({"table": params}, {"table": params})
    (term,) = [t for t in layer.encoding.terms(own, dims) if hasattr(t, "at")]
    return np.asarray(term.at(jnp.asarray(distance)))

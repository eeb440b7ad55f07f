"""transformers' configs and modules, and our side of a layer that `pe_jax.hf` read of them."""

import jax.numpy as jnp
import numpy as np

import pe_jax
from tools.hf_types import LENGTH

INDEX = np.arange(LENGTH)
DISTANCE = INDEX[:, None] - INDEX


def tiny(kind, **settings):
    """A config of that type, and its modelling module."""
    import importlib

    from transformers import AutoConfig

    name = kind.replace("-", "_")
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return AutoConfig.for_model(kind, **settings), module


def bias_of(layer, params, distance):
    """What a layer's encoding adds to the scores at distances [T, S]: [H, T, S]."""
    heads = len(params)
    dims = pe_jax.Dims(heads * layer.head_dim, heads, heads, layer.head_dim)
    own = pe_jax.Params({"table": params}, {"table": params})
    (term,) = [t for t in layer.encoding.terms(own, dims) if hasattr(t, "at")]
    return np.asarray(term.at(jnp.asarray(distance)))

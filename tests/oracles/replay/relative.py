"""Biases and vectors of the distance."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import deberta, t5
from pe_jax.hf import weights as hf_weights
from tests import util
from tests.oracles.replay.common import attend, both, weights


def shaw_key(settings, inputs, implementation):
    """Theirs clips key - query to [-left, right]; ours, distance = query - key, to ±clip."""
    left, right = settings["left"], settings["right"]
    clip = max(left, right)
    params = {}, {"keys": hf_weights.mirrored(inputs["keys"], left=left, right=right)}
    return both(inputs, pe_jax.make("shaw", clip=clip, values=False), implementation, params=params)


def shaw_key_value(settings, inputs, implementation):
    """Theirs is a table over key - query: the mirror image of ours."""
    clip = settings["window"]
    layer = {"keys": inputs["keys"][:, ::-1], "values": inputs["values"][:, ::-1]}
    shaw, keys = (pe_jax.make("shaw", clip=clip, values=values) for values in (True, False))
    alone = {"keys": layer["keys"]}
    return {
        "weights": weights(inputs, keys, implementation, params=({}, alone)),
        "output": attend(inputs, shaw, implementation, params=({}, layer)),
    }


def transformer_xl(settings, inputs, implementation):
    layer = {"u": inputs["u"], "v": inputs["v_bias"], "w_r": hf_weights.swapped(inputs["w_r"])}
    options = {"params": ({}, layer), "causal": settings["causal"]}
    return both(inputs, pe_jax.make("transformer_xl"), implementation, **options)


def t5_bucket(settings, inputs, implementation):
    return {"buckets": t5.bucket(inputs["distance"], **settings)}


def t5_attention(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("num_buckets", "max_distance", "bidirectional")}
    encoding, params = pe_jax.make("t5", **fields), ({"table": inputs["table"].T}, {})
    causal = not settings["bidirectional"]
    place = np.arange(inputs["q"].shape[1])
    heads = inputs["q"].shape[2]
    dims = pe_jax.Dims(heads, heads, heads, 1)
    found = jax.tree.map(jnp.asarray, pe_jax.Params(*params))
    bias = util.distance_bias(encoding, found, place[:, None] - place[None], dims)
    return {"bias": bias} | both(inputs, encoding, implementation, params=params, causal=causal)


def deberta_bucket(settings, inputs, implementation):
    return {"rows": deberta.bucket(inputs["distance"], **settings)}


def deberta_attention(settings, inputs, implementation):
    """The biases of their projections of positions are zero, and left out here."""
    fields = {name: settings[name] for name in ("buckets", "max_distance")}
    names, head_dim = ("w_k", "w_q"), inputs["q"].shape[-1]
    layer = {name: hf_weights.by_head(inputs[name], head_dim=head_dim)[:, :-1] for name in names}
    options = {"params": ({"table": inputs["table"]}, layer), "causal": settings["causal"]}
    return both(inputs, pe_jax.make("deberta", **fields), implementation, **options)


def alibi(settings, inputs, implementation):
    return both(inputs, pe_jax.make("alibi"), implementation, causal=True)


def sandwich(settings, inputs, implementation):
    encoding = pe_jax.make("sandwich", width=settings["width"])
    return both(inputs, encoding, implementation, causal=settings["causal"])


def dynamic(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("hidden", "depth", "log_distance")}
    shared = {name: x for name, x in inputs.items() if name not in ("q", "k", "v")}
    options = {"params": (shared, {}), "causal": settings["causal"]}
    return both(inputs, pe_jax.make("dpb", **fields), implementation, **options)

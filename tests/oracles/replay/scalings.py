"""Scaled frequencies of RoPE."""

import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import rope, rope_scaling
from tests import util


def _log(theta) -> np.ndarray:
    return np.log(np.asarray(theta, np.float64) + 1e-30)


def rope_scaled(settings, inputs, implementation):
    head_dim, longest = settings["head_dim"], settings["longest"]
    found = rope_scaling.from_hf(
        settings["parameters"], head_dim=head_dim, max_position_embeddings=longest
    ).at_length(settings["target"])
    none, places = pe_jax.Params({}, {}), inputs["positions"]
    return {
        "log_theta": _log(found.frequencies(head_dim)),
        "attention_factor": np.float32(found.attention_factor),
        "q": util.rotate(found, "q", none, jnp.asarray(inputs["q"]), places),
        "k": util.rotate(found, "k", none, jnp.asarray(inputs["k"]), places),
    }


def rope_hunyuan(settings, inputs, implementation):
    theta = rope.frequencies(settings["head_dim"], 1e4, rope_scaling.NTK(settings["alpha"]))
    parameters = {"type": "dynamic", "factor": 1.0, "alpha": settings["alpha"], "beta_fast": 32}
    read = rope_scaling.from_hf(parameters, head_dim=settings["head_dim"])
    np.testing.assert_array_equal(read.frequencies(settings["head_dim"]), theta)
    return {"log_theta": _log(theta)}


def rope_gemma3(settings, inputs, implementation):
    factor = settings["factor"]
    scaling = f", scaling=linear(factor={factor})" if factor else ""
    pattern = pe_jax.parse(f"rope(base=1e4)*5,rope(base=1e6{scaling})")
    none, places = pe_jax.Params({}, {}), inputs["positions"]
    q, k = (jnp.asarray(inputs[name]) for name in "qk")
    outputs = {f"q{i}": util.rotate(enc, "q", none, q, places) for i, enc in enumerate(pattern)}
    return outputs | {
        f"k{i}": util.rotate(enc, "k", none, k, places) for i, enc in enumerate(pattern)
    }

"""Rotations, and what goes along with them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings import mla, rope, rope_scaling
from tests import util
from tests.oracles.replay.common import both, turned


def rotary(settings, inputs, implementation):
    return turned(pe_jax.make("rope", **settings), inputs, inputs["positions"])


def rotary_function(settings, inputs, implementation):
    dim = inputs["q"].shape[-1]
    own = {"positions": inputs["positions"], "frequencies": rope.frequencies(dim)} | settings
    turn = util.jit(functools.partial(rope.rotate, **own))
    return {name: turn(inputs[name]) for name in "qk"}


@functools.partial(jax.jit, static_argnames=("settings", "implementation"))
def _latent(inputs, settings, implementation):
    """Attention weights and output of latent attention."""
    content, interleave = settings
    parts = (inputs[f"{side}_{part}"] for side in "qk" for part in ("content", "rotary"))
    q, k = mla.join(*parts)
    encoding = mla.scheme(content, 6, layout="interleaved" if interleave else "half")
    places, index = inputs["positions"], np.arange(q.shape[1])
    unit = jnp.eye(q.shape[1])[None, :, None] * jnp.ones((len(q), 1, q.shape[2], 1))
    given = {"encoding": encoding, "q_positions": places, "q_index": index, "k_index": index}
    run = functools.partial(pe_jax.attention, q, k, implementation=implementation, **given)
    return {"weights": run(unit).transpose(0, 2, 1, 3), "output": run(inputs["v"])}


def latent(settings, inputs, implementation):
    inputs = jax.tree.map(jnp.asarray, inputs)
    return _latent(inputs, (settings["content"], settings["interleave"]), implementation)


@functools.partial(jax.jit, static_argnames=("window", "implementation"))
def _rotated_values(q, k, sinks, window, implementation):
    """Theirs rotates the last channels of a head, ours the first."""
    fields = "fraction=0.5,layout='interleaved'"
    encoding = pe_jax.parse(f"rope({fields})+rotated_values({fields})")[0]
    turned = q.shape[-1] // 2
    q, k = (jnp.roll(x, turned, axis=-1) for x in (q, k))
    options = {"terms": (pe_jax.Sink(sinks),), "window": window, "implementation": implementation}
    out = pe_jax.attention(q, k, k, encoding=encoding, **options)
    unit = jnp.eye(q.shape[1])[None, :, None] * jnp.ones((len(q), 1, 1, 1))
    weights = pe_jax.attention(q, k, unit, encoding=encoding.parts[0], **options)
    return {"weights": weights.transpose(0, 2, 1, 3), "output": jnp.roll(out, -turned, axis=-1)}


def rotated_values(settings, inputs, implementation):
    arrays = (jnp.asarray(inputs[name]) for name in ("q", "k", "sinks"))
    return _rotated_values(*arrays, settings["window"], implementation)


def learned_frequencies(settings, inputs, implementation):
    """Theirs puts the first channels of all pairs before the second ones."""
    found = rope_scaling.from_hf(settings["parameters"], head_dim=inputs["q"].shape[-1])
    fields = {"base": found.base, "scaling": found.scaling, "layout": "interleaved"}
    encoding = pe_jax.make("lerope", **fields)
    params = pe_jax.Params({"alpha": jnp.asarray(inputs["alpha"])}, {})
    turned = (
        util.rotate(encoding, name, params, inputs[name], inputs["positions"]) for name in "qk"
    )
    apart = (jnp.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1) for x in turned)
    return dict(zip("qk", apart, strict=True))


def polar(settings, inputs, implementation):
    encoding = pe_jax.make("pope", **settings)
    params = pe_jax.Params({}, {"phase": jnp.asarray(inputs["phase"])})
    q, k = (util.rotate(encoding, n, params, inputs[n], inputs["positions"]) for n in "qk")
    return {"scores": jnp.einsum("bthe,bshe->bhts", q, k)}


def xpos(settings, inputs, implementation):
    return both(inputs, pe_jax.make("xpos", **settings), implementation, causal=True)

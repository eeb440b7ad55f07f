"""What the input decides: gates, states, sinks, sums along the row."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from tests import util
from tests.oracles.replay.common import attend, both


def wavlm(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("num_buckets", "max_distance")}
    layer = {name: inputs[name] for name in ("weight", "bias", "scale")}
    encoding, params = pe_jax.make("wavlm", **fields), ({"table": inputs["table"].T}, layer)
    place = np.arange(inputs["q"].shape[1])
    found = jax.tree.map(jnp.asarray, pe_jax.Params(*params))
    (term,) = encoding.terms(found, util.DIMS)
    return {
        "bias": term.at(place[:, None] - place[None])[..., 0],
        "output": attend(inputs, encoding, implementation, params=params),
    }


def _profiles(inputs):
    """The projection of r by head, and the profiles."""
    heads, width = inputs["q"].shape[2], inputs["x"].shape[-1]
    rows = inputs["weight"].reshape(heads, -1, width)
    return {"weight": rows.transpose(2, 0, 1), "profiles": inputs["profiles"]}


def inkling(settings, inputs, implementation):
    """Its q and k are normalised: the scale is 1/E, of which q has one half."""
    fields = {"extent": settings["extent"], "width": settings["states"]}
    encoding = pe_jax.make("inkling", **fields, floor=settings["floor"])
    inputs = inputs | {"q": inputs["q"] * inputs["q"].shape[-1] ** -0.5}
    params = ({}, _profiles(inputs))
    return both(inputs, encoding, implementation, causal=True, params=params)


def inkling_2(settings, inputs, implementation):
    names = ("extent", "floor", "clip_states", "clip_qk")
    fields = {name: settings[name] for name in names} | {"width": settings["states"]}
    sink = {"logit": np.zeros(inputs["q"].shape[2], np.float32), "weight": inputs["sink"].T}
    parts = pe_jax.make("inkling", **fields), pe_jax.make("sink", from_input=True)
    params = ({}, {}), (_profiles(inputs), sink)
    return both(inputs, pe_jax.Sum(parts), implementation, causal=True, params=params)


def sink(settings, inputs, implementation):
    params = ({}, {"logit": inputs["sinks"]})
    return both(inputs, pe_jax.make("sink"), implementation, causal=True, params=params)


def forgetting(settings, inputs, implementation):
    params = {}, {name: inputs[name] for name in ("weight", "bias")}
    options = {"params": params, "causal": settings["causal"]}
    return both(inputs, pe_jax.make("fox"), implementation, **options)


def forgetting_causal(settings, inputs, implementation):
    """Without the weights, which fla-core's does not give."""
    return {"output": forgetting({"causal": True}, inputs, implementation)["output"]}


def wall(settings, inputs, implementation):
    """The weight copies x, the logits of all gates, into their places."""
    heads, width = inputs["q"].shape[2:]
    weight = np.eye(heads * width, dtype=np.float32).reshape(-1, heads, width)
    layer = {"weight": weight, "bias": np.zeros((heads, width), np.float32)}
    options = {"params": ({}, layer), "causal": True}
    return {"output": attend(inputs, pe_jax.make("wall"), implementation, **options)}


def path(settings, inputs, implementation):
    """Dense alone."""
    layer = {name: inputs[name] for name in ("directions", "weight", "bias")}
    options = {"params": ({}, layer), "causal": True}
    return {"output": attend(inputs, pe_jax.make("path"), "dense", **options)}


def cope(settings, inputs, implementation):
    encoding = pe_jax.make("cope", positions=settings["positions"])
    options = {"params": ({}, {"vectors": inputs["vectors"]}), "causal": True}
    return both(inputs, encoding, implementation, **options)


def stick_breaking(settings, inputs, implementation):
    """What is left is what values of 1 lack."""
    encoding = pe_jax.make("stick_breaking", attend_current=settings["attend_current"])
    ones = np.ones_like(inputs["v"])
    taken = attend(inputs, encoding, implementation, causal=True, v=ones)
    out = attend(inputs, encoding, implementation, causal=True)
    return {"output": out, "left": 1 - taken[..., 0]}

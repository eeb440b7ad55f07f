"""What is added to the input, NoPE among layers that rotate, temperatures."""

import jax.numpy as jnp

import pe_jax
from pe_jax import positions
from pe_jax.encodings import learned, learned_grid, sinusoidal, sinusoidal_2d
from tests import util
from tests.oracles.replay.common import attend, both


def nope(settings, inputs, implementation):
    return {"output": attend(inputs, pe_jax.Encoding(), implementation, causal=settings["causal"])}


def smollm3(settings, inputs, implementation):
    pattern = pe_jax.parse("rope*3,nope")
    return both(inputs, pattern[settings["layer"] % 4], implementation, causal=True)


def sinusoid(settings, inputs, implementation):
    layout = settings["layout"]
    return {"table": sinusoidal.sinusoid(inputs["positions"], settings["dim"], layout=layout)}


def lookup(settings, inputs, implementation):
    return {"rows": learned.lookup(jnp.asarray(inputs["table"]), inputs["positions"])}


def axial_sinusoid(settings, inputs, implementation):
    grid = positions.grid(settings["height"], settings["width"])
    return {"table": sinusoidal_2d.sinusoid_2d(grid, settings["dim"])}


def learned_2d(settings, inputs, implementation):
    size = settings["height"], settings["width"]
    encoding = pe_jax.make("learned_2d", height=size[0], width=size[1])
    params = pe_jax.Params({name: jnp.asarray(x) for name, x in inputs.items()}, {})
    places = {"table": positions.grid(*size), "resized": positions.resized(*settings["to"], size)}
    return {n: encoding.embed(params, jnp.zeros((len(p), 8)), p) for n, p in places.items()}


def resized_grid(settings, inputs, implementation):
    how = {name: x for name, x in settings.items() if name not in ("size", "to")}
    return {"resized": learned_grid.resize(inputs["table"], *settings["to"], **how)}


def log_length(settings, inputs, implementation):
    layer = {name: jnp.asarray(inputs[name]) for name in ("scale", "bias")}
    params, encoding = pe_jax.Params({}, layer), pe_jax.make("log_length")
    return {"q": util.rotate(encoding, "q", params, inputs["q"], inputs["positions"])}


def llama4(settings, inputs, implementation):
    scales = f"attn_scale={settings['attn_scale']}, floor_scale={settings['floor_scale']}"
    pattern = pe_jax.parse(f"rope(layout='interleaved')*3,temperature({scales})")
    return both(inputs, pattern[settings["layer"] % 4], implementation, causal=True)


def ministral3(settings, inputs, implementation):
    scales = f"attn_scale={settings['beta']}, floor_scale={settings['original']}, offset=0"
    encoding = pe_jax.parse(f"rope+temperature({scales})")[0]
    return both(inputs, encoding, implementation, causal=True, params=((), ()))

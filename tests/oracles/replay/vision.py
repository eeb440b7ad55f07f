"""Positions of several axes: images, videos, documents."""

import jax.numpy as jnp

import pe_jax
from pe_jax import positions
from pe_jax.encodings import rope_mixed, swin
from tests.oracles.replay.common import both, turned, weights


def rotary_2d(settings, inputs, implementation):
    fields = {name: settings[name] for name in ("base", "spectrum")}
    return turned(pe_jax.make("rope_2d", **fields), inputs, inputs["positions"])


def rotary_pixels(settings, inputs, implementation):
    size, prefix = (settings["height"], settings["width"]), settings.get("prefix", 0)
    grid = positions.grid(*size, normalized=True, prefix=prefix)
    encoding = pe_jax.make("rope_2d", base=settings["base"], normalized=True)
    return turned(encoding, inputs, grid)


def rotary_mixed(settings, inputs, implementation):
    """Theirs has the column's frequencies first, then the row's."""
    grid = positions.grid(settings["height"], settings["width"])
    frequencies = jnp.asarray(inputs["frequencies"][::-1])
    return {n: rope_mixed.rotate(jnp.asarray(inputs[n]), grid, frequencies) for n in ("q", "k")}


def of_parameters(settings, inputs, implementation):
    """A scheme whose parameters are inputs besides q, k and positions."""
    name = "liere" if "generators" in inputs else "cayley_string"
    layer = {n: jnp.asarray(x) for n, x in inputs.items() if n not in ("q", "k", "positions")}
    return turned(pe_jax.make(name, **settings), inputs, inputs["positions"], layer)


def rotary_nd(settings, inputs, implementation):
    encoding = pe_jax.make("rope_nd", base=settings["base"])
    return turned(encoding, inputs, inputs["positions"])


def rotary_3d(settings, inputs, implementation):
    return turned(pe_jax.make("mrope", **settings), inputs, inputs["positions"])


def multimodal(settings, inputs, implementation):
    spans = [span[0] if len(span) == 1 else tuple(span) for span in settings["spans"]]
    return {"positions": positions.multimodal(spans)}


def swin_bias(settings, inputs, implementation):
    """Theirs is the same table, a column a head."""
    size = settings["height"], settings["width"]
    grid = positions.grid(*size)
    return {"bias": swin.lookup(inputs["table"].T, grid[:, None] - grid[None], *size)}


def swin_class(settings, inputs, implementation):
    """Theirs is the same table, a column a head, resized in each call."""
    side, (height, width) = settings["side"], settings["to"]
    table = swin.resize(inputs["table"].T, (side, side), (height, width))
    places = positions.grid(height, width, prefix=1, numbered=True)
    return {"bias": swin.class_lookup(table, places, places, height, width)}


def cpb(settings, inputs, implementation):
    height, width = settings["trained"]
    encoding = pe_jax.make("cpb", height=height, width=width, hidden=len(inputs["b1"]))
    layer = {name: inputs[name] for name in ("w1", "b1", "w2")}
    options = {"params": ({}, layer), "at": positions.grid(*settings["window"])}
    return {"weights": weights(inputs, encoding, implementation, **options)}


def layoutlmv3(settings, inputs, implementation):
    tables = {name: inputs[name] for name in ("index", "x", "y")}
    options = {"params": (tables, {}), "at": inputs["positions"]}
    return both(inputs, pe_jax.make("layoutlmv3", **settings), implementation, **options)

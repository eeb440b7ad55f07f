"""Every scheme in float64 NumPy, written from its paper: references to test against.

Nothing here is fast or shared with `pe_jax.encodings`. A scheme is a function of a row of tokens,
its parameters and its settings, all named as the encoding names them:

    row = naive.make_row(q, k)                                  # q [T, H, E], k [T, K, E]
    scores = naive.bias.t5(row, table, max_distance=64)         # [H, T, T], before the mask
    out = naive.attention("t5", q, k, v, {"table": table}, {"max_distance": 64})    # [T, H, F]

Legend: T tokens, H query heads, K key heads, E head width, F value width, D model width, A axes of
a position, n any shape. `distance = q_pos - k_pos`, everywhere.
"""

import inspect
from collections.abc import Callable, Mapping

import numpy as np

from pe_jax.naive import absolute, bias, contextual, recurrent, relative, rotary
from pe_jax.naive.rows import Array, Row, exponentials, make_row, products, softmax

__all__ = [
    "INPUTS",
    "SCORES",
    "SINKS",
    "VALUES",
    "Row",
    "attention",
    "inputs",
    "make_row",
    "recurrent",
    "softmax",
]

_FAMILIES = {
    bias: "alibi alibi_2d t5 layoutlmv3 buckets clipped kerple sandwich fire dpb swin cpb",
    contextual: "fox cable grape_ap wall selective_rope repo tapa path wavlm inkling cope"
    " stick_breaking dape",
    relative: "shaw transformer_xl deberta tupe",
    rotary: "rope rope_pp rope_heads rope_inner lerope pope fope rerope self_extend dual_chunk xpos"
    " temperature log_length key_offset bipe rope_2d rope_mixed cayley_string liere prope rayrope"
    " rope_nd mrope",
}
_ADDED = "sinusoidal learned sinusoidal_2d learned_2d learned_grid bipe"
# Functions by name, of positions and D, of a row, of a row and its weights, and of a row.
INPUTS: dict[str, Callable] = {name: getattr(absolute, name) for name in _ADDED.split()}
SCORES: dict[str, Callable] = {
    **dict.fromkeys(("nope", "sink", "rotated_values", *INPUTS), products),
    **{name: getattr(file, name) for file, names in _FAMILIES.items() for name in names.split()},
}
VALUES: dict[str, Callable] = {"shaw": relative.shaw_values}
SINKS: dict[str, Callable] = {"sink": contextual.sink}
# Instead of Σ weights·v: functions of a row, its weights and v [H, T, F].
AVERAGES: dict[str, Callable] = {
    "rotated_values": rotary.rotated_values,
    "prope": rotary.prope_values,
    "rayrope": rotary.rayrope_values,
}
UNNORMALIZED = {"stick_breaking"}  # no softmax: the weights are exp(score)
# Settings that only give the sizes and initial values of parameters, as `stddev`, and of which
# schemes: any other that a form does not take is an error.
_UNREAD = {
    "length": "learned tupe bipe",
    "num_buckets": "t5 wavlm layoutlmv3",
    "shared": "t5 wavlm swin fire",
    "hidden": "dape cpb dpb repo",
    "width": "grape_ap inkling fire",
    "height width": "learned_2d learned_grid",
    "prefix method antialias": "learned_grid",
    "spatial_buckets": "layoutlmv3",
    "gain learned": "fope",
    "pos_att_type": "deberta",
    "from_input": "sink",
    "positions": "cope",
    "rank": "selective_rope",
    "reset": "tupe",
}


def attention(
    name, q, k, v, params=None, settings=None, *, positions=None, x=None, causal=True
) -> Array:
    """Attention of one row with a scheme: [T, H, F] for q [T, H, E], k [T, K, E], v [T, K, F].

    Args:
      name: as in `pe_jax.ENCODINGS`.
      q: queries, projected from an input to which `inputs` was added.
      k: keys; each key head serves H/K query heads.
      v: values.
      params: those of the encoding, `{**params.shared, **params.layer}`.
      settings: those of the encoding, `vars(encoding)`, or some of them.
      positions: [T] or [T, A]; None: 0, 1, 2, …
      x: the layer's input [T, D], for schemes that read it.
      causal: whether a query sees no later key.

    Raises:
      KeyError: an unknown scheme.
      TypeError: a parameter or setting that the scheme does not have; a missing parameter.
      ValueError: q or k is not that of one row.
    """
    if np.ndim(q) != 3 or np.ndim(k) != 3:
        shapes = f"q {np.shape(q)}, k {np.shape(k)}"
        raise ValueError(f"{shapes}: pass those of one row, [T, H, E] and [T, K, E]")
    row, named = make_row(q, k, positions, x, causal), _named(name, params, settings)
    scores = _call(SCORES[name], named, row)
    logit = _call(SINKS[name], named, row) if name in SINKS else None
    unnormalized = name in UNNORMALIZED
    weights = exponentials(scores, causal) if unnormalized else softmax(scores, causal, logit)
    v = np.moveaxis(np.asarray(v, np.float64), 1, 0)
    v = np.repeat(v, len(weights) // len(v), axis=0)
    out = _call(AVERAGES[name], named, row, weights, v) if name in AVERAGES else weights @ v
    if name in VALUES:
        out = out + _call(VALUES[name], named, row, weights)
    return np.moveaxis(out, 0, 1)


def inputs(name, positions, dim: int, params=None, settings=None) -> Array:
    """What a scheme adds to the input of the first layer: [T, D] for D = `dim`; else as above."""
    positions, named = np.asarray(positions), _named(name, params, settings)
    if name not in INPUTS and name in SCORES:
        return np.zeros((len(positions), dim))
    return _call(INPUTS[name], named, positions, dim)


def _named(name: str, params: Mapping | None, settings: Mapping | None) -> dict:
    """Parameters in float64 and settings, by argument name."""
    named = dict(settings or {}) | {n: np.asarray(x, float) for n, x in (params or {}).items()}
    tables = SCORES, INPUTS, VALUES, AVERAGES, SINKS
    functions = [table[name] for table in tables if name in table]
    sizes = (settings for settings, names in _UNREAD.items() if name in names.split())
    known = {"stddev", *" ".join(sizes).split()}.union(*map(_arguments, functions))
    if unknown := named.keys() - known:
        raise TypeError(f"naive {name} has no {' and no '.join(sorted(unknown))}")
    return named


def _call(function: Callable, named: dict, *args) -> Array:
    return function(*args, **{n: x for n, x in named.items() if n in _arguments(function)})


def _arguments(function: Callable) -> set[str]:
    names = {*inspect.signature(function).parameters}
    return names if "of_rope" not in names else names | _arguments(rotary.rope) - {"distance"}

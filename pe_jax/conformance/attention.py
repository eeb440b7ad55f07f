"""An attention function beside the encoding that it should have: each property that can be read.

H query heads, K key heads, E head width.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np

from pe_jax import masks
from pe_jax.conformance.attention_reader import read_attention
from pe_jax.conformance.report import Row
from pe_jax.encodings.base import Dims, Encoding
from pe_jax.engines.api import attention
from pe_jax.hf.layers import LayerEncoding
from pe_jax.validation import refuse

LENGTH = 40
CAUSES = {
    "rotated": "another fraction of the head turns",
    "layout": "pairs of the other layout: permute the columns of W_q and W_k",
    "direction": "the sine's sign",
    "base": "another base, or a scaling that is not applied",
    "decay": "a decay by distance",
    "scale": "another scale, or an attention factor left out",
    "scale_of_rest": "another scale",
    "temperature": "a factor by position",
    "logit_cap": "a cap of the scores",
    "window": "a window that counts otherwise",
    "bias": "another bias by distance",
    "sink": "a sink",
    "causal": "the mask",
}
TOLERANCE = 2e-3  # of a reading


def compared(
    attend: Callable, layers: tuple[LayerEncoding, ...], heads: int, kv_heads: int
) -> tuple[Row, ...]:
    """One row per property; without layers each is a note.

    Raises:
      ValueError: layers that differ.
    """
    if len(set(layers)) > 1:
        refuse("config", layers, "pass that of one layer, such as pe_jax.hf.encodings(config)[0]")
    width = layers[0].head_dim
    read = read_attention(attend, heads, width, LENGTH, kv_heads)
    want, learned = declared_reading(layers[0], heads, kv_heads)
    return tuple(_row(name, read.get(name), want.get(name), learned) for name in CAUSES)


@functools.lru_cache(16)
def declared_reading(layer: LayerEncoding, heads: int, kv_heads: int) -> tuple[dict, bool]:
    """What is read from `pe_jax.attention` with a layer's encoding, and whether it has parameters.

    Parameters are those of a new model.
    """
    encoding = (layer.encoding or Encoding()).at_length(LENGTH)
    dims = Dims(heads * layer.head_dim, heads, kv_heads, layer.head_dim)
    params = encoding.init(jax.random.key(0), dims)
    options = {"window": layer.window, "scale": layer.scale, "logit_cap": layer.logit_cap}
    options |= {"mask": None if layer.chunk is None else masks.chunks(layer.chunk)}
    options |= {"causal": layer.causal, "dims": dims, "implementation": "dense"}

    @jax.jit
    def ours(q, k, v):
        return attention(q, k, v, encoding=encoding, params=params, **options)

    read = read_attention(ours, heads, layer.head_dim, LENGTH, kv_heads)
    return read, bool(jax.tree.leaves(params))


def _row(name: str, read: object, want: object, learned: bool) -> Row:
    numbers, declared = _numbers(read, want)
    if (read is None) != (want is None) or not np.allclose(numbers, declared, TOLERANCE, 1e-3):
        loose = learned and read is not None and want is not None
        words = f"reads {_short(read)}; declared {_short(want)}"
        verdict = "note" if loose and name in ("bias", "sink") else "broken"
        return Row(name, verdict, cause=f"{words}: {CAUSES[name]}")
    return Row(name, "held", cause=_short(read))


def _numbers(*values: object) -> list[np.ndarray]:
    """Readings as numbers: a word is its index among them, a hidden distance -1e9."""
    words = [value for value in values if isinstance(value, str)]
    indices = [words.index(x) if isinstance(x, str) else 0 if x is None else x for x in values]
    return [np.maximum(np.asarray(x, np.float64), -1e9) for x in indices]


def _short(value: object) -> str:
    array = np.asarray(value)
    if array.ndim:
        return f"{np.array2string(array.ravel()[:4], precision=3)} …"
    return "none" if value is None else str(value)

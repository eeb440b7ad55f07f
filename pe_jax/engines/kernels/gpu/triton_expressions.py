"""Expressions of the Triton language: types, numbers, operations, arrays in other shapes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

TYPES = {  # of elements, in the Triton language
    "float32": "tl.float32",
    "bfloat16": "tl.bfloat16",
    "float16": "tl.float16",
    "int32": "tl.int32",
    "uint32": "tl.uint32",
    "int8": "tl.int8",
    "bool": "tl.int1",
}
FORMULAS = {  # operations that are one expression of their operands
    "add": "{0} + {1}",
    "add_any": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "max": "tl.maximum({0}, {1})",
    "min": "tl.minimum({0}, {1})",
    "rem": "{0} % {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "square": "{0} * {0}",
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "log2": "tl.log2({0})",
    # the logarithm of the rounded sum, and what was rounded off
    "log1p": "tl.log(1.0 + {0}) + ({0} - ((1.0 + {0}) - 1.0)) / (1.0 + {0})",
    "sqrt": "tl.sqrt({0})",
    "rsqrt": "tl.rsqrt({0})",
    "sin": "tl.sin({0})",
    "cos": "tl.cos({0})",
    "tanh": "1.0 - 2.0 / (tl.exp(2.0 * {0}) + 1.0)",
    "one_minus_square": "1.0 - {0} * {0}",
    "logistic": "1.0 / (1.0 + tl.exp(-{0}))",
    "pow": "tl.exp2({1} * tl.log2({0}))",
    "floor": "tl.floor({0})",
    "sign": "tl.where({0} > 0, 1, 0) - tl.where({0} < 0, 1, 0)",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "and": "{0} & {1}",
    "or": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not": "{0} == 0",
    "clamp": "tl.minimum(tl.maximum({1}, {0}), {2})",
    "copy": "{0}",
    "stop_gradient": "{0}",
}


class Value(NamedTuple):
    """An expression, and the shape of what it gives."""

    text: str
    shape: tuple[int, ...] = ()

    @property
    def ndim(self) -> int:
        """How many axes it has: JAX's own classes of indices ask."""
        return len(self.shape)


def element(dtype: Any) -> str:
    """The name of a type."""
    return TYPES[str(np.dtype(dtype))]


def literal(x: Any) -> str:
    """A number as Python writes it."""
    x = np.asarray(x).item()
    if isinstance(x, float) and not math.isfinite(x):
        return f"float({str(x)!r})"
    return f"({x!r})" if isinstance(x, int | float) and x < 0 else repr(x)


def along(x: Value, axes: Sequence[int], ndim: int) -> Value:
    """An array whose axes become these of `ndim`, the others being of length 1."""
    axes = tuple(axes)
    if len(x.shape) == ndim:
        return x
    index = ", ".join(":" if axis in axes else "None" for axis in range(ndim))
    shape = tuple(x.shape[axes.index(axis)] if axis in axes else 1 for axis in range(ndim))
    return Value(f"{x.text}[{index}]", shape)


def broadcast(x: Value, shape: Sequence[int]) -> str:
    """Repeated along axes of length 1."""
    return x.text if x.shape == tuple(shape) else f"tl.broadcast_to({x.text}, {list(shape)})"


def reshaped(x: Value, shape: Sequence[int]) -> str:
    """In another shape of as many numbers."""
    if x.shape == tuple(shape):
        return x.text
    if not shape:
        return f"tl.sum({x.text})" if len(x.shape) == 1 else f"tl.sum(tl.reshape({x.text}, [1]))"
    if not x.shape:
        return f"tl.reshape({x.text}, {list(shape)})"
    ones = [axis for axis, n in enumerate(shape) if n == 1]
    if len(shape) == len(x.shape) + 1 and len(ones) >= 1:
        axes = [axis for axis in range(len(shape)) if axis != ones[-1 if x.shape[-1] != 1 else 0]]
        if tuple(shape[axis] for axis in axes) == x.shape:
            return along(x, axes, len(shape)).text
    return f"tl.reshape({x.text}, {list(shape)})"

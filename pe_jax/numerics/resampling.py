"""Weights that resize a row of numbers as `torch.nn.functional.interpolate` does.

Pixel centres are aligned (`align_corners=False`). `jax.image.resize` has the same linear weights,
but always antialiases when it shrinks unless told otherwise, and its cubic constant is -1/2.
"""

import numpy as np

from pe_jax.validation import is_int, is_real, python_ints, require, require_bool

METHODS = ("bilinear", "bicubic")


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys's cubic convolution (1981, eq. 4): 1 at 0, 0 at the other integers and from 2 on."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x**2 + 1
    far = a * (((x - 5) * x + 8) * x - 4)
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


@python_ints
def weights(
    size: int, to: int, method: str = "bicubic", antialias: bool = False, offset: float = 0.0
) -> np.ndarray:
    """Row i has the weights of the old numbers in the i-th new one: float64 [to, size].

    Args:
      size: how many numbers there are.
      to: how many there will be.
      method: "bilinear" or "bicubic" (constant -3/4, with `antialias` -1/2: PyTorch's and PIL's).
      antialias: where numbers get fewer, average over all that one replaces; weights beyond the
        ends are left out. Without it they go to the last number on that side.
      offset: added to `to` where the ratio is computed, and nowhere else (DINOv2: 0.1).

    Raises:
      ValueError: a size below 1, an unknown method, an offset below 0.
    """
    require(is_int(size, 1), "size", size, "pass an integer of at least 1")
    require(is_int(to, 1), "to", to, "pass an integer of at least 1")
    require(method in METHODS, "method", method, f"choose one of {METHODS}")
    require_bool("antialias", antialias)
    ok = is_real(offset) and offset >= 0
    require(ok, "offset", offset, "pass a finite number of at least 0")
    same = size == to and (antialias or method == "bilinear")  # PyTorch leaves such a side alone
    ratio = 1.0 if same else size / (to + offset)
    centres = ratio * (np.arange(to) + 0.5) - 0.5  # of the new numbers, in units of the old
    filter_scale = max(ratio, 1.0) if antialias else 1.0
    margin = 0 if antialias else 2
    taps = np.arange(-margin, size + margin)
    away = (taps - centres[:, None]) / filter_scale
    kernel = np.maximum(1 - np.abs(away), 0)
    if method == "bicubic":
        kernel = _cubic(away, -0.5 if antialias else -0.75)
    matrix = np.zeros((to, size))
    np.add.at(matrix.T, np.clip(taps, 0, size - 1), kernel.T)
    return matrix / matrix.sum(1, keepdims=True)

"""Vectors that are added to the input of the first layer: [T, D] for positions and D."""

import math

import numpy as np

from pe_jax.naive.rows import Array, inside


def sinusoid(position: float, dim: int, base=1e4, layout="interleaved") -> Array:
    """The vector [D] of one position: Vaswani et al., arXiv 1706.03762, §3.5.

    PE(pos, 2i) = sin(pos/base^(2i/D)), PE(pos, 2i+1) = cos(pos/base^(2i/D)). The other layouts,
    "concatenated" and "tensor2tensor", have all sines first; the latter divides 2i by D - 2.
    """
    over = max(dim - 2, 1) if layout == "tensor2tensor" else dim
    angles = [position / base ** (2 * i / over) for i in range(dim // 2)]
    waves = np.array([[math.sin(angle), math.cos(angle)] for angle in angles])
    return waves.ravel() if layout == "interleaved" else waves.T.ravel()


def sinusoidal(positions, dim: int, *, base=1e4, layout="interleaved", amplitude=1.0) -> Array:
    """`sinusoid` of each position, times the amplitude."""
    return amplitude * np.array([sinusoid(p, dim, base, layout) for p in positions.tolist()])


def learned(positions, dim: int, table) -> Array:
    """Rows of a table [L, D], as in BERT: Devlin et al., arXiv 1810.04805."""
    return table[inside(positions, len(table))]


def sinusoidal_2d(positions, dim: int, *, base=1e4, layout="concatenated") -> Array:
    """Sinusoids of row and column side by side: He et al., "MAE", arXiv 2111.06377, App. A.1."""
    halves = [sinusoidal(axis, dim // 2, base=base, layout=layout) for axis in positions.T]
    return np.hstack(halves)


def interpolated(table: Array, positions) -> Array:
    """A table [L, C] at any positions [T] from 0 to L - 1, linear between two rows: [T, C]."""
    positions, rows = inside(positions, len(table)), np.arange(len(table))
    return np.stack([np.interp(positions, rows, channel) for channel in table.T], axis=-1)


def learned_2d(positions, dim: int, rows: Array, columns: Array, *, combine="concatenate") -> Array:
    """Vectors of row and column: Dosovitskiy et al., "ViT", arXiv 2010.11929, App. D.4.

    `combine` "sum" adds them (arXiv 2307.06304), else they are side by side.
    """
    row, column = interpolated(rows, positions[:, 0]), interpolated(columns, positions[:, 1])
    return row + column if combine == "sum" else np.hstack([row, column])


def learned_grid(positions, dim: int, table: Array, front=None) -> Array:
    """table[row, column]: Dosovitskiy et al., "ViT", arXiv 2010.11929, eq. 1, before flattening.

    (-k, -k) is the k-th of the tokens in front, counted from the patches back.
    """
    front = np.zeros((0, dim)) if front is None else front
    rows = []
    for row, column in positions.tolist():
        if row < 0 and row == column:
            rows.append(front[inside(len(front) + np.array(row), len(front))])
        else:
            rows.append(
                table[inside(np.array(row), len(table)), inside(np.array(column), len(table[0]))]
            )
    return np.array(rows).reshape(-1, dim)


def bipe(positions, dim: int, table=None, *, absolute="learned") -> Array:
    """Vectors of the position in (piece, position): He et al., "BiPE", arXiv 2401.16421."""
    inner = positions[:, 1]
    return sinusoidal(inner, dim) if absolute == "sinusoidal" else learned(inner, dim, table)

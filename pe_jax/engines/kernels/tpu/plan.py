"""What a TPU kernel gets: its arrays, the schedule of blocks, and the static part of a call.

B batch, T queries, S keys, H query heads, K key heads, E width of q and k, F width of v, C numbers,
R block diagonals, X width of what is dotted with vectors of distances. i is a query block, j a key
block; the gap of a tile is the distance of its first query and first key. Queries and keys are the
same tokens, or the queries some of them, in whole blocks.
"""

import dataclasses
import functools
import operator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.engines.kernels.common import ScorePlan


class Arrays(NamedTuple):
    """What kernels read and write: arrays, their blocks or references; None where there is none."""

    q: Any = None  # [B, H, T, E], or its gradient
    k: Any = None  # [B, K, S, E], or its gradient
    v: Any = None  # [B, K, S, F], or its gradient
    bias: Any = None  # of all pairs, [chunks, B or 1, H or 1, T, keys of one], or its gradient
    coefficients: Any = None  # the numbers of all formulas, [H, C, 1, 1], or their gradient
    bands: Any = None  # biases by distance, [H, R, 1, 2·block], or their gradient
    q_numbers: Any = None  # of queries, which biases of two tokens read, [B or 1, H, C, T]
    k_numbers: Any = None  # the same of keys, [B or 1, H, C, S]
    rows: Any = None  # what queries dot with vectors of distances, [B, H, T, X]
    row_vectors: Any = None  # these, [H, R, 2·block, X]: distances fall
    columns: Any = None  # what keys dot with others, [B, H or K, S, X]
    column_vectors: Any = None  # these, [H, R, 2·block, X]: distances rise
    value_vectors: Any = None  # what is averaged as values are, [H, R, 2·block, F]: distances fall
    q_ids: Any = None  # segments of queries, [B or 1, 1, T]
    k_ids: Any = None  # segments of keys, [B or 1, 1, S]
    q_first: Any = None  # index of the first query of each block, int32 [blocks]
    k_first: Any = None  # the same of keys
    out: Any = None  # [B, H, T, F]
    lse: Any = None  # logarithms of rows' sums, [B, H, 1, T]
    d_out: Any = None  # cotangent of the output, [B, H, T, F]
    inner: Any = None  # subtracted from the gradient of each weight of a row, [B, H, 1, T]


VECTORS = ("row_vectors", "column_vectors", "value_vectors")
BY_DISTANCE = ("bands", *VECTORS)  # a band for each block diagonal
OF_HEADS = ("coefficients", *BY_DISTANCE)  # the same for all tokens


class Schedule(NamedTuple):
    """Where blocks are, and which of them to visit: int32, read before tiles are fetched."""

    q_first: Any  # index of the first query of each block
    k_first: Any  # index of the first key of each block
    first: Any  # the first block that each owned one visits, [B or 1, H or 1, blocks]
    last: Any  # the last one; below the first: none

    def gap(self, i, j):
        """The gap of tile (i, j)."""
        return self.q_first[i] - self.k_first[j]

    def bounds(self, b, h, own) -> tuple[Any, Any]:
        """The first and the last block that block `own` visits, for a batch row and a head."""
        rows, heads, _ = self.first.shape
        at = (b if rows > 1 else 0, h if heads > 1 else 0, own)
        return self.first[at], self.last[at]


class Tile(NamedTuple):
    """Where a tile is, and facts about it."""

    gap: Any  # the distance of its first query and first key
    k_first: Any  # the index of its first key
    easy: bool  # as `Plan.easy`
    transposed: bool = False


@dataclasses.dataclass(frozen=True)
class Plan(ScorePlan):
    """The static part of a call."""

    by_distance: bool  # whether bands or vectors are read by distance
    horizon: tuple[int, int] | None  # distances beyond which what is read is constant
    tokens: int  # of a row, without padding
    block: int  # tokens of a block
    steps: tuple[int, int]  # the most blocks that any query block visits, that any key block does
    tiles: float  # how many tiles of a row of tokens the mask leaves, for costs
    near: float  # of these, how many reach within the horizon
    interpret: bool  # whether the kernels run as plain JAX

    @property
    def lanes(self) -> int:
        """Columns of what is the same in all columns of a tile."""
        return min(128, self.block)

    @property
    def back(self) -> int | None:
        """How far back a query sees; None: to the first token."""
        window = self.spec.window
        return None if window is None or window >= self.tokens else window - 1

    @property
    def ahead(self) -> int | None:
        """How far ahead a query sees; None: to the last token."""
        return 0 if self.spec.causal else self.back

    @property
    def padded(self) -> bool:
        """Whether padding keys must be masked: a causal mask hides them as it is."""
        return not self.spec.causal and self.tokens % self.block > 0

    def any_visible(self, gap):
        """Whether any pair of a tile is visible, segments aside."""
        tests = [gap == gap]
        if self.back is not None:
            tests.append(gap - (self.block - 1) <= self.back)
        if self.ahead is not None:
            tests.append(gap + self.block - 1 >= -self.ahead)
        return functools.reduce(operator.and_, tests)

    @property
    def far(self) -> tuple[int, int] | None:
        """Tiles of gap ≤ the first or ≥ the second lie beyond the horizon; None: no tile does."""
        if self.horizon is None:
            return None
        low, high = self.horizon
        return low - self.block + 1, high + self.block - 1

    def is_far(self, gap):
        """Whether a tile is beyond the horizon."""
        return False if self.far is None else (gap <= self.far[0]) | (gap >= self.far[1])

    @property
    def diagonals(self) -> range:
        """The gaps, in blocks, that have a band; other gaps take the nearest."""
        most = pl.cdiv(self.tokens, self.block) - 1
        ends = (self.ahead, self.back)
        ahead, back = (most if n is None else min(most, pl.cdiv(n, self.block)) for n in ends)
        first, last = -ahead, back
        if self.far is not None:
            first, last = self.far[0] // self.block, -(-self.far[1] // self.block)
        return range(max(-ahead, min(first, back)), min(back, max(last, -ahead)) + 1)

    def band(self, gap):
        """Which band a tile takes."""
        rows = self.diagonals
        least, most = rows[0] * self.block, rows[-1] * self.block
        return jax.lax.div(jnp.clip(gap, least, most) - least, self.block)

    def easy(self, gap, k_first):
        """Whether a tile has no pair masked (segments aside) and needs no shear."""
        tests = []
        if self.back is not None:
            tests.append(gap + self.block - 1 <= self.back)
        if self.ahead is not None:
            tests.append(gap - self.block + 1 >= -self.ahead)
        if self.padded:
            tests.append(k_first + self.block <= self.tokens)
        if self.by_distance:
            if self.far is None:
                return False
            tests.append(self.is_far(gap))
        return functools.reduce(operator.and_, tests) if tests else True

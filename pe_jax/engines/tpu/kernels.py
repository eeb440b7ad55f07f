"""The TPU kernels: what a core computes for one tile of the scores, and for which tiles.

Here are the tiles that a mask leaves (`Plan`), one forward kernel and two backward ones (queries
and biases; keys and values), and the scores of a tile with a bias of distances. Kernels take
references: what they read, what they write, and scratch memory. The last grid axis runs over the
tiles that add up to one block of the results. Rows of a tile are queries and columns keys;
`transposed`, the other way round. Grids and operands come from `engine`, as letters do.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernel_common import FormulaSum
from pe_jax.engines.reference import LOWEST

FLOOR = -1e29  # where row maxima begin, above masked scores: exp(LOWEST - FLOOR) is 0


class Arrays(NamedTuple):
    """What kernels read and write: arrays, their blocks or references; None where there is none."""

    q: Any = None  # [B, H, T, E], or its gradient
    k: Any = None  # [B, K, T, E], or its gradient
    v: Any = None  # [B, K, T, F], or its gradient
    coefficients: Any = None  # the numbers of all formulas, [H, C, 1, 1], or their gradient
    strips: Any = None  # biases by distance, [H, R, 1, 2·block], or their gradient
    q_ids: Any = None  # segments of queries, [B or 1, 1, T]
    k_ids: Any = None  # segments of keys, [B or 1, 1, T]
    out: Any = None  # [B, H, T, F], in v's dtype
    lse: Any = None  # logarithms of rows' sums, [B, H, 1, T]
    d_out: Any = None  # cotangent of the output, [B, H, T, F]
    inner: Any = None  # what is subtracted from the gradient of each weight of a row, [B, H, 1, T]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static about a call."""

    spec: AttentionSpec
    scale: float  # what q·k is multiplied by
    formula: FormulaSum  # the biases that are computed in place
    real_distances: bool  # whether these take float32 distances, which saves conversions
    strips: bool  # whether other biases of distances are read from strips
    horizon: tuple[int, int] | None  # distances beyond which the strips are constant
    tokens: int  # T without padding
    block: int  # tokens of a block
    interpret: bool  # whether the kernels run as plain JAX

    @property
    def blocks(self) -> int:
        """How many blocks the tokens fill."""
        return pl.cdiv(self.tokens, self.block)

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

    def reach(self, at, back: int | None, ahead: int | None) -> tuple[Any, Any]:
        """The first and last block within reach of block `at` (an int or a traced one)."""
        least, most, over = min, max, operator.floordiv
        if not isinstance(at, int):
            least, most, over = jnp.minimum, jnp.maximum, jax.lax.div
        first, last = 0, self.blocks - 1
        if back is not None:
            first = over(most(at * self.block - back, 0), self.block)
        if ahead is not None:
            last = least(over((at + 1) * self.block - 1 + ahead, self.block), last)
        return first, last

    @property
    def spans(self) -> list[int]:
        """How many key blocks each query block visits (key blocks: the same, reversed)."""
        ends = [self.reach(i, self.back, self.ahead) for i in range(self.blocks)]
        return [last - first + 1 for first, last in ends]

    @property
    def far(self) -> tuple[int, int] | None:
        """Strips are constant in a tile with i - j ≤ the first or ≥ the second; None: nowhere."""
        if self.horizon is None:
            return None
        low, high = self.horizon
        return (low - self.block + 1) // self.block, -((1 - self.block - high) // self.block)

    @property
    def diagonals(self) -> range:
        """The i - j that have a strip; what lies outside takes the nearest."""
        most = self.blocks - 1
        ends = (self.ahead, self.back)
        ahead, back = (most if n is None else min(most, pl.cdiv(n, self.block)) for n in ends)
        first, last = self.far or (-ahead, back)
        return range(max(-ahead, min(first, back)), min(back, max(last, -ahead)) + 1)

    def strip(self, i, j):
        """Which strip tile (i, j) takes."""
        rows = self.diagonals
        return jnp.clip(i - j, rows[0], rows[-1]) - rows[0]

    def easy(self, i, j):
        """Whether tile (i, j) has no pair masked (segments aside) and needs no shear."""
        tests = []
        if self.back is not None:
            tests.append((i - j + 1) * self.block - 1 <= self.back)
        if self.ahead is not None:
            tests.append((i - j - 1) * self.block + 1 >= -self.ahead)
        if self.padded:
            tests.append(j < self.blocks - 1)
        if self.strips:
            if self.far is None:
                return False
            tests.append((i - j <= self.far[0]) | (i - j >= self.far[1]))
        return functools.reduce(jnp.logical_and, tests) if tests else True


def forward_kernel(plan: Plan, x: Arrays, result: Arrays, out, top, total) -> None:
    """`out` and `lse`: online softmax over key blocks. `top` and `total` have equal columns."""
    i, step = pl.program_id(2), pl.program_id(3)
    first, last = plan.reach(i, plan.back, plan.ahead)
    j = first + step
    fill(step == 0, 0, out, total)
    fill(step == 0, FLOOR, top)

    def tile(easy: bool):
        s, rest = scores(plan, x, i, j, easy)
        rest = rest if isinstance(rest, float) else rest[:, : top.shape[1]]
        new_top = jnp.maximum(top[...], s.max(1, keepdims=True) + rest)
        p = jnp.exp(s - repeat_columns(new_top - rest, plan.block))
        fade, v = jnp.exp(top[...] - new_top), x.v[...]
        out[...] = out[...] * repeat_columns(fade, v.shape[1]) + dot(p.astype(v.dtype), v, 0)
        total[...] = total[...] * fade + p.sum(1, keepdims=True)
        top[...] = new_top

    visit(plan, i, j, j <= last, tile)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        empty = total[...] == 0  # a row that sees nothing: zeros, and its weights vanish again
        safe = jnp.where(empty, 1, total[...])
        rows = out[...] * repeat_columns(1 / safe, out.shape[1])
        result.out[...] = rows.astype(result.out.dtype)
        result.lse[...] = jnp.where(empty, -LOWEST, top[...] + jnp.log(safe)).T[:1]


def queries_kernel(plan: Plan, x: Arrays, grads: Arrays, d_q) -> None:
    """Gradients of a query block, and of biases if wanted: those stay for all tiles of a head."""
    i, step = pl.program_id(2), pl.program_id(3)
    first, last = plan.reach(i, plan.back, plan.ahead)
    j = first + step
    fill(step == 0, 0, d_q)
    for bias in (grads.coefficients, grads.strips):
        if bias is not None:
            fill((pl.program_id(1) == 0) & (i == 0) & (step == 0), 0, bias)

    def tile(easy: bool):
        s, rest = scores(plan, x, i, j, easy)
        p = jnp.exp(s - as_column(x.lse[...] - rest))
        d_p = dot(x.d_out[...], x.v[...], 1)
        d_s, k = p * (d_p - as_column(x.inner[...])), x.k[...]
        d_q[...] += dot(d_s.astype(k.dtype), k, 0)
        if grads.coefficients is not None:
            for c, part in enumerate(jax.vjp(*formula_of(plan, x, i, j))[1](d_s)[0]):
                grads.coefficients[c] += part
        if grads.strips is not None:
            add_to_strip(plan, grads.strips, d_s, i, j, easy)

    visit(plan, i, j, j <= last, tile)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        grads.q[...] = (d_q[...] * plan.scale).astype(grads.q.dtype)


def keys_kernel(plan: Plan, x: Arrays, grads: Arrays, d_k, d_v) -> None:
    """Gradients of a block of keys and values, from all query heads that read it."""
    j, group, step = pl.program_id(2), pl.program_id(3), pl.program_id(4)
    first, last = plan.reach(j, plan.ahead, plan.back)
    i = first + step
    fill((group == 0) & (step == 0), 0, d_k, d_v)

    def tile(easy: bool):
        s, rest = scores(plan, x, i, j, easy, transposed=True)
        p = jnp.exp(s - (x.lse[...] - rest))
        d_out, q = x.d_out[...], x.q[...]
        d_v[...] += dot(p.astype(d_out.dtype), d_out, 0)
        d_s = p * (dot(x.v[...], d_out, 1) - x.inner[...])
        d_k[...] += dot(d_s.astype(q.dtype), q, 0)

    visit(plan, i, j, i <= last, tile)

    @pl.when((group == pl.num_programs(3) - 1) & (step == pl.num_programs(4) - 1))
    def _():
        grads.k[...] = (d_k[...] * plan.scale).astype(grads.k.dtype)
        grads.v[...] = d_v[...].astype(grads.v.dtype)


def visit(plan: Plan, i, j, inside, tile: Callable[[bool], None]) -> None:
    """Runs `tile(easy)` on tile (i, j) if it is `inside` the mask."""
    easy = plan.easy(i, j)
    if isinstance(easy, bool):
        pl.when(inside)(lambda: tile(easy))
    else:
        pl.when(inside & easy)(lambda: tile(True))
        pl.when(inside & jnp.logical_not(easy))(lambda: tile(False))


def fill(when, value: float, *refs) -> None:
    """Sets all entries to a value."""

    @pl.when(when)
    def _():
        for ref in refs:
            ref[...] = jnp.full_like(ref, value)


def scores(plan: Plan, x: Arrays, i, j, easy: bool, transposed: bool = False):
    """Scores of tile (i, j), masked, and what all of them still lack: a row of equals, or 0."""
    a, b = (x.k, x.q) if transposed else (x.q, x.k)
    s = dot(a[...], b[...], 1)
    rest: Any = 0.0
    if plan.scale != 1:
        s *= plan.scale
    if plan.formula:
        formula, values = formula_of(plan, x, i, j, transposed)
        s += formula(values)
    if plan.strips and easy:
        rest = x.strips[:, : plan.block]
    elif plan.strips:
        s += shear(x.strips[...])
    seen = visible(plan, x, i, j, easy, transposed)
    return (s if seen is None else jnp.where(seen, s, LOWEST)), rest


def visible(plan: Plan, x: Arrays, i, j, easy: bool, transposed: bool) -> jax.Array | None:
    """Which pairs are seen; None if all are."""
    tests = []
    if not easy:
        distance = distances(plan, i, j, transposed)
        tests += [distance <= plan.back] if plan.back is not None else []
        tests += [distance >= -plan.ahead] if plan.ahead is not None else []
        if plan.padded:
            place = jax.lax.broadcasted_iota(jnp.int32, distance.shape, int(not transposed))
            tests.append(j * plan.block + place < plan.tokens)
    if x.q_ids is not None:
        a, b = x.q_ids[...], x.k_ids[...]
        tests.append(as_column(b) == a if transposed else as_column(a) == b)
    return functools.reduce(jnp.logical_and, tests) if tests else None


def formula_of(plan: Plan, x: Arrays, i, j, transposed: bool = False):
    """The biases of tile (i, j) that are computed in place: a function, and its coefficients."""
    dtype = jnp.float32 if plan.real_distances else jnp.int32
    distance = distances(plan, i, j, transposed, dtype)
    coefficients = [x.coefficients[c] for c in range(x.coefficients.shape[0])]
    return functools.partial(plan.formula, distance=distance), coefficients


def add_to_strip(plan: Plan, grads, d_s, i, j, easy: bool) -> None:
    """Adds the score gradients of tile (i, j) to those of its strip."""
    if easy:  # the first entry of the strip stands for all
        first = jax.lax.broadcasted_iota(jnp.int32, grads.shape[1:], 1) == 0
        grads[plan.strip(i, j)] += jnp.where(first, d_s.sum(), 0)
    else:
        grads[plan.strip(i, j)] += unshear(d_s)


def distances(plan: Plan, i, j, transposed: bool, dtype: Any = jnp.int32) -> jax.Array:
    """Query - key of each pair in tile (i, j)."""
    shape = (plan.block, plan.block)
    queries = jax.lax.broadcasted_iota(jnp.int32, shape, int(transposed))
    keys = jax.lax.broadcasted_iota(jnp.int32, shape, int(not transposed))
    return (queries + (i - j) * plan.block).astype(dtype) - keys.astype(dtype)


def shear(strip: jax.Array) -> jax.Array:
    """y[r, c] = strip[0, rows - 1 - r + c]: [1, 2·rows] → [rows, rows].

    The rows so far, rotated as a whole, are the next ones. (A strided rotation does it in one
    instruction, for the same cost, from v5 on; and there is none the other way.)
    """
    rows = strip.shape[1] // 2
    wide = pltpu.roll(strip, rows + 1, 1)
    while wide.shape[0] < rows:
        wide = jnp.concatenate([wide, pltpu.roll(wide, wide.shape[0], 1)])
    return wide[:, :rows]


def unshear(y: jax.Array) -> jax.Array:
    """The transpose of `shear`, sums along diagonals: [rows, rows] → [1, 2·rows]."""
    rows = y.shape[0]
    turn, wide = rows - 1, jnp.concatenate([y, jnp.zeros_like(y)], axis=1)
    while rows > 1:
        rows //= 2
        wide = wide[:rows] + pltpu.roll(wide[rows:], wide.shape[1] - rows, 1)
    return pltpu.roll(wide, turn, 1)


def as_column(row: jax.Array) -> jax.Array:
    """[1, n] → [n, 1]."""
    return jnp.expand_dims(row[0], -1)


def repeat_columns(x: jax.Array, width: int) -> jax.Array:
    """Columns, all equal: as many as asked."""
    return jnp.tile(x, (1, -(-width // x.shape[1])))[:, :width]


def dot(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """The product over the last axis of a matrix and `axis` of another, in float32."""
    axes = (((1,), (axis,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)

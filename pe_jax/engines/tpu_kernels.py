"""The kernels of the TPU engine: what a core computes for one tile of the scores, and of which.

Here are the tiles that a mask leaves (`Plan`), their scores with a bias of distances, and what the
one forward kernel and the two backward ones (queries and bias; keys and values) make of them. The
grids, the operands and the bias that they read come from `tpu`; the letters are those of `tpu`.
Operands, results and scratch are references by name.
"""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pe_jax.engines.dense import Rules

LOWEST, FLOOR = -1e30, -1e29  # a masked score; where row maxima begin: exp(LOWEST - FLOOR) is 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is static of a call. `back` and `ahead` bound the distances seen; None: no bound."""

    rules: Rules
    batch: int
    heads: int
    groups: int  # query heads that share a key head
    widths: tuple[int, int]  # E, F
    tokens: int  # without padding
    block: int
    bias: str | None  # "coefficients", "strips" or None
    learned: bool  # whether the bias has a gradient
    interpret: bool

    blocks = property(lambda self: -(-self.tokens // self.block))
    scale = property(lambda self: self.rules.encoding.scale(self.rules.dims.head_dim))
    ahead = property(lambda self: 0 if self.rules.causal else self.back)

    @property
    def back(self) -> int | None:
        """The farthest that a query sees; None: all."""
        window = self.rules.window
        return None if window is None or window >= self.tokens else window - 1

    @property
    def padded(self) -> bool:
        """Whether padding keys must be masked: a causal mask hides them as it is."""
        return not self.rules.causal and self.tokens % self.block > 0

    def reach(self, at, back: int | None, ahead: int | None) -> tuple[Any, Any]:
        """The first and last block within reach of block `at` (an int or a traced one)."""
        known = isinstance(at, int)
        least, most, over = (
            (min, max, operator.floordiv) if known else (jnp.minimum, jnp.maximum, jax.lax.div)
        )
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
        """The bias is constant in a tile with i - j ≤ the first or ≥ the second; None: nowhere."""
        horizon = self.rules.encoding.horizon()
        if horizon is None:
            return None
        low, high = horizon
        return (low - self.block + 1) // self.block, -((1 - self.block - high) // self.block)

    @property
    def diagonals(self) -> range:
        """The i - j that have a strip; what lies outside takes the nearest."""
        most = self.blocks - 1
        ahead, back = (
            most if d is None else min(most, -(-d // self.block)) for d in (self.ahead, self.back)
        )
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
        if self.bias == "strips":
            if self.far is None:
                return False
            tests.append((i - j <= self.far[0]) | (i - j >= self.far[1]))
        return functools.reduce(jnp.logical_and, tests) if tests else True


# Tiles. Rows are queries and columns keys; `turned`, the other way round.


def _shear(strip: jax.Array) -> jax.Array:
    """y[r, c] = strip[0, rows - 1 - r + c]: [1, 2·rows] → [rows, rows].

    The rows so far, rotated as a whole, are the next ones. (A strided rotation does it in one
    instruction, for the same cost, from v5 on; and there is none the other way.)
    """
    rows = strip.shape[1] // 2
    wide = pltpu.roll(strip, rows + 1, 1)
    while wide.shape[0] < rows:
        wide = jnp.concatenate([wide, pltpu.roll(wide, wide.shape[0], 1)])
    return wide[:, :rows]


def _unshear(y: jax.Array) -> jax.Array:
    """The transpose of `_shear`, sums along diagonals: [rows, rows] → [1, 2·rows]."""
    rows = y.shape[0]
    turn, wide = rows - 1, jnp.concatenate([y, jnp.zeros_like(y)], axis=1)
    while rows > 1:
        rows //= 2
        wide = wide[:rows] + pltpu.roll(wide[rows:], wide.shape[1] - rows, 1)
    return pltpu.roll(wide, turn, 1)


def _distance(plan: Plan, i, j, turned: bool, dtype=jnp.int32) -> jax.Array:
    """Query - key of each pair in tile (i, j)."""
    shape = (plan.block, plan.block)
    queries = jax.lax.broadcasted_iota(jnp.int32, shape, int(turned))
    keys = jax.lax.broadcasted_iota(jnp.int32, shape, int(not turned))
    return (queries + (i - j) * plan.block).astype(dtype) - keys.astype(dtype)


def _profile(plan: Plan, refs: dict, i, j, turned: bool = False):
    """The bias of tile (i, j) as a function of the coefficients, and these."""
    encoding = plan.rules.encoding
    dtype = jnp.float32 if encoding.real_positions else jnp.int32  # float32 saves conversions
    distance = _distance(plan, i, j, turned, dtype)
    values = [refs["bias"][c] for c in range(refs["bias"].shape[0])]
    return (lambda coefficients: encoding.profile(coefficients, distance)), values


def _column(row: jax.Array) -> jax.Array:
    """[1, n] → [n, 1]."""
    return jnp.expand_dims(row[0], -1)


def _columns(x: jax.Array, width: int) -> jax.Array:
    """Columns, all equal: as many as asked."""
    return jnp.tile(x, (1, -(-width // x.shape[1])))[:, :width]


def _dot(a: jax.Array, b: jax.Array, over_a: int, over_b: int) -> jax.Array:
    """The product of two matrices over one axis of each, in float32."""
    axes = (((over_a,), (over_b,)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


def _seen(plan: Plan, refs: dict, i, j, easy: bool, turned: bool) -> jax.Array | None:
    """Which pairs are seen; None if all are."""
    tests = []
    if not easy:
        distance = _distance(plan, i, j, turned)
        if plan.back is not None:
            tests.append(distance <= plan.back)
        if plan.ahead is not None:
            tests.append(distance >= -plan.ahead)
        if plan.padded:
            place = jax.lax.broadcasted_iota(jnp.int32, distance.shape, int(not turned))
            tests.append(j * plan.block + place < plan.tokens)
    if "q_ids" in refs:
        a, b = refs["q_ids"][...], refs["k_ids"][...]
        tests.append(_column(b) == a if turned else _column(a) == b)
    return functools.reduce(jnp.logical_and, tests) if tests else None


def _scores(plan: Plan, refs: dict, i, j, easy: bool, turned: bool = False):
    """Scores of tile (i, j), masked, and what all of them still lack: a row of equals, or 0."""
    a, b = (refs["k"], refs["q"]) if turned else (refs["q"], refs["k"])
    s = _dot(a[...], b[...], 1, 1)
    rest: Any = 0.0
    if plan.scale != 1:
        s *= plan.scale
    if plan.bias == "coefficients":
        profile, values = _profile(plan, refs, i, j, turned)
        s += profile(values)
    elif plan.bias == "strips" and easy:
        rest = refs["bias"][:, : plan.block]
    elif plan.bias == "strips":
        s += _shear(refs["bias"][...])
    seen = _seen(plan, refs, i, j, easy, turned)
    return (s if seen is None else jnp.where(seen, s, LOWEST)), rest


# Kernels. The last grid axis runs over the tiles that add up to one block of the results.


def _visit(plan: Plan, i, j, inside, tile) -> None:
    """Runs `tile(easy)` on tile (i, j) if it is `inside` the mask."""
    easy = plan.easy(i, j)
    if isinstance(easy, bool):
        pl.when(inside)(lambda: tile(easy))
    else:
        pl.when(inside & easy)(lambda: tile(True))
        pl.when(inside & jnp.logical_not(easy))(lambda: tile(False))


def _clear(when, *refs) -> None:
    @pl.when(when)
    def _():
        for ref in refs:
            ref[...] = jnp.zeros_like(ref)


def forward_kernel(plan: Plan, refs: dict, outs: dict, scratch: dict) -> None:
    """An online softmax over the key blocks of a query block."""
    i, step = pl.program_id(2), pl.program_id(3)
    first, last = plan.reach(i, plan.back, plan.ahead)
    out, top, total = scratch["out"], scratch["top"], scratch["total"]  # the latter: equal columns
    _clear(step == 0, out, total)

    @pl.when(step == 0)
    def _():
        top[...] = jnp.full_like(top, FLOOR)

    def tile(easy: bool):
        s, rest = _scores(plan, refs, i, first + step, easy)
        rest = rest if isinstance(rest, float) else rest[:, : top.shape[1]]
        new_top = jnp.maximum(top[...], s.max(1, keepdims=True) + rest)
        p = jnp.exp(s - _columns(new_top - rest, plan.block))
        fade, v = jnp.exp(top[...] - new_top), refs["v"][...]
        out[...] = out[...] * _columns(fade, v.shape[1]) + _dot(p.astype(v.dtype), v, 1, 0)
        total[...] = total[...] * fade + p.sum(1, keepdims=True)
        top[...] = new_top

    _visit(plan, i, first + step, first + step <= last, tile)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        empty = total[...] == 0  # a row that sees nothing: zeros, and its weights vanish again
        safe = jnp.where(empty, 1, total[...])
        outs["out"][...] = (out[...] * _columns(1 / safe, out.shape[1])).astype(outs["out"].dtype)
        outs["lse"][...] = jnp.where(empty, -LOWEST, top[...] + jnp.log(safe)).T[:1]


def queries_kernel(plan: Plan, refs: dict, outs: dict, scratch: dict) -> None:
    """Gradients of a query block, and of the bias: its block stays for all tiles of a head."""
    i, step = pl.program_id(2), pl.program_id(3)
    first, last = plan.reach(i, plan.back, plan.ahead)
    j, d_q = first + step, scratch["q"]
    _clear(step == 0, d_q)
    if plan.learned:
        _clear((pl.program_id(1) == 0) & (i == 0) & (step == 0), outs["d_bias"])

    def tile(easy: bool):
        s, rest = _scores(plan, refs, i, j, easy)
        p = jnp.exp(s - _column(refs["lse"][...] - rest))
        d_p = _dot(refs["d_out"][...], refs["v"][...], 1, 1)
        d_s, k = p * (d_p - _column(refs["inner"][...])), refs["k"][...]
        d_q[...] += _dot(d_s.astype(k.dtype), k, 1, 0)
        if plan.learned:
            _add_to_bias(plan, refs, outs["d_bias"], d_s, i, j, easy)

    _visit(plan, i, j, j <= last, tile)

    @pl.when(step == pl.num_programs(3) - 1)
    def _():
        outs["q"][...] = (d_q[...] * plan.scale).astype(outs["q"].dtype)


def _add_to_bias(plan: Plan, refs: dict, d_bias, d_s, i, j, easy: bool) -> None:
    """Adds what tile (i, j) gives to the gradient of the coefficients or of its strip."""
    if plan.bias == "coefficients":
        for c, part in enumerate(jax.vjp(*_profile(plan, refs, i, j))[1](d_s)[0]):
            d_bias[c] += part
    elif easy:  # the first entry of the strip stands for all
        first = jax.lax.broadcasted_iota(jnp.int32, d_bias.shape[1:], 1) == 0
        d_bias[plan.strip(i, j)] += jnp.where(first, d_s.sum(), 0)
    else:
        d_bias[plan.strip(i, j)] += _unshear(d_s)


def keys_kernel(plan: Plan, refs: dict, outs: dict, scratch: dict) -> None:
    """Gradients of a block of keys and values, from all query heads that read it."""
    j, group, step = pl.program_id(2), pl.program_id(3), pl.program_id(4)
    first, last = plan.reach(j, plan.ahead, plan.back)
    i, d_k, d_v = first + step, scratch["k"], scratch["v"]
    _clear((group == 0) & (step == 0), d_k, d_v)

    def tile(easy: bool):
        s, rest = _scores(plan, refs, i, j, easy, turned=True)
        p = jnp.exp(s - (refs["lse"][...] - rest))
        d_out, q = refs["d_out"][...], refs["q"][...]
        d_v[...] += _dot(p.astype(d_out.dtype), d_out, 1, 0)
        d_s = p * (_dot(refs["v"][...], d_out, 1, 1) - refs["inner"][...])
        d_k[...] += _dot(d_s.astype(q.dtype), q, 1, 0)

    _visit(plan, i, j, i <= last, tile)

    @pl.when((group == pl.num_programs(3) - 1) & (step == pl.num_programs(4) - 1))
    def _():
        outs["k"][...] = (d_k[...] * plan.scale).astype(outs["k"].dtype)
        outs["v"][...] = d_v[...].astype(outs["v"].dtype)

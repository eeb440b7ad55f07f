"""The tiled engine: the scores of `dense`, block by block, forward and backward, in O(L) memory.

An online softmax over key blocks (Milakov & Gimelshein, arXiv 1805.02867; FlashAttention, arXiv
2205.14135), with a custom VJP that recomputes each tile. Two ways to evaluate the distance slots:

* contiguous positions: each slot is evaluated once for the T + S - 1 distances that occur; a tile
  takes a window of them and shears it into place (`Windows`). The gradient comes back the same way,
  so a table pays for its distances once, not once a pair;
* any other positions: pair by pair within the tile (`dense.Pairs`).

Blocks that the mask empties are not visited: each query block knows its first and last key block.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines.dense import Pairs, Rules, Tokens, average, scores

TILE = 2**21  # scores in a tile (batch and heads included): 8 MB of float32 stays near the cores
WIDEST, NARROWEST = 512, 64
LOWEST = -1e30  # below any score; finite, so that differences are never NaN


def block_sizes(pairs: int, queries: int, keys: int) -> tuple[int, int]:
    """Block lengths over queries and keys for `pairs` = batch × heads: the widest that TILE allows.

    512 × 512 was the fastest on CPU where it fits; from there both sides halve down to 64.
    """
    size = WIDEST
    while size > NARROWEST and pairs * min(size, queries) * min(size, keys) > TILE:
        size //= 2
    return max(1, min(size, queries)), max(1, min(size, keys))


def shear(x: jax.Array) -> jax.Array:
    """y[…, r, c] = x[…, r, rows - 1 - r + c]: [..., rows, rows + columns - 1] → [..., r, c].

    A slice and two reshapes: each row begins one element earlier than the row above.
    """
    *lead, rows, width = x.shape
    if rows == 1:
        return x
    flat = x.reshape(*lead, rows * width)[..., rows - 1 : -1]
    return flat.reshape(*lead, rows, width - 1)[..., : width - rows + 1]


def unshear(y: jax.Array) -> jax.Array:
    """The transpose of `shear`, zeros elsewhere: [..., r, c] → [..., rows, rows + columns - 1]."""
    *lead, rows, columns = y.shape
    if rows == 1:
        return y
    width = rows + columns - 1
    wide = _pad(y, y.ndim - 1, width - 1).reshape(*lead, rows * (width - 1))
    return jnp.pad(wide, [(0, 0)] * len(lead) + [(rows - 1, 1)]).reshape(*lead, rows, width)


class Windows:
    """The distance slots of a tile, cut from tables over all distances.

    `tables` holds, by slot, the window [H, W] or [H or 1, W, E] of the W = rows + columns - 1
    distances that occur in the tile, the largest first: that of row r and column c is at
    rows - 1 - r + c.
    """

    def __init__(self, tables: dict, rows: int):
        self.tables, self.rows = tables, rows

    def bias(self) -> jax.Array | float:
        """[1, H, T, S]."""
        table = self.tables.get("distance_bias")
        if table is None:
            return 0.0
        return shear(jnp.repeat(table[:, None], self.rows, axis=1))[None]

    def keys(self, q: jax.Array) -> jax.Array | float:
        """q·relative_keys: [B, H, T, S]."""
        table = self.tables.get("relative_keys")
        if table is None:
            return 0.0
        return shear(jnp.matmul(q.astype(jnp.float32), jnp.swapaxes(table, -1, -2)))

    def queries(self, k: jax.Array) -> jax.Array | float:
        """k·relative_queries: [B, H, T, S]; seen from the keys, the distances run backwards."""
        table = self.tables.get("relative_queries")
        if table is None:
            return 0.0
        products = jnp.matmul(k.astype(jnp.float32), jnp.swapaxes(table[:, ::-1], -1, -2))
        return jnp.swapaxes(shear(products), -1, -2)

    def values(self, weights: jax.Array) -> jax.Array | float:
        """Σ weights·relative_values: [B, H, T, E]."""
        table = self.tables.get("relative_values")
        return 0.0 if table is None else jnp.matmul(unshear(weights), table)


def _pad(x: jax.Array, axis: int, length: int, value=0) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, constant_values=value) if length > x.shape[axis] else x


def _cut(x: jax.Array, axis: int, start, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _accumulate(total: jax.Array, part: jax.Array, axis: int, start) -> jax.Array:
    old = _cut(total, axis, start, part.shape[axis])
    return jax.lax.dynamic_update_slice_in_dim(total, old + part, start, axis)


class _Plan:
    """The blocks of one call: how to cut every operand, and which tiles to visit."""

    def __init__(self, rules: Rules, sizes: tuple[int, int], q: Tokens, k: Tokens):
        self.rules, self.q, self.k = rules, q, k
        self.bq, self.bk = sizes
        self.nq, self.nk = q.index.shape[1] // self.bq, k.index.shape[1] // self.bk
        self.first, self.last = self._reach()

    def _reach(self):
        """For each query block, the first key block that it sees any of, and one past the last."""
        q_lo, q_hi = self._ends(self.q, self.nq)
        k_lo, k_hi = self._ends(self.k, self.nk)
        seen = jnp.ones((self.nq, self.nk), bool)
        if self.rules.causal:
            seen &= q_hi["index"][:, None] >= k_lo["index"][None]
        if self.rules.window is not None:
            seen &= q_lo["index"][:, None] - k_hi["index"][None] < self.rules.window
            seen &= k_lo["index"][None] - q_hi["index"][:, None] < self.rules.window
        if self.q.segments is not None:
            seen &= q_hi["segments"][:, None] >= k_lo["segments"][None]
            seen &= q_lo["segments"][:, None] <= k_hi["segments"][None]
        first = jnp.argmax(seen, axis=1)
        return first, jnp.where(seen.any(1), self.nk - jnp.argmax(seen[:, ::-1], axis=1), 0)

    def _ends(self, tokens: Tokens, blocks: int):
        named = {"index": tokens.index, "segments": tokens.segments}
        cut = {n: x.reshape(len(x), blocks, -1) for n, x in named.items() if x is not None}
        low = {n: x.min((0, 2)) for n, x in cut.items()}
        return low, {n: x.max((0, 2)) for n, x in cut.items()}

    def tokens(self, tokens: Tokens, block, size: int) -> Tokens:
        """One block of `tokens`."""
        return jax.tree.map(lambda x: _cut(x, 1, block * size, size), tokens)

    def window(self, i, j):
        """Where the distances of tile (i, j) begin in the tables."""
        return (self.nq - 1 - i) * self.bq + j * self.bk

    def tile(self, diff: dict, i, j) -> dict:
        """The differentiable operands of tile (i, j)."""
        width = self.bq + self.bk - 1
        cuts = {
            "queries": lambda x: _cut(x, 2, i * self.bq, self.bq),
            "keys": lambda x: _cut(x, 2, j * self.bk, self.bk),
            "tables": lambda x: _cut(x, 1, self.window(i, j), width),
            "params": lambda x: x,
        }
        return {name: jax.tree.map(cuts[name], part) for name, part in diff.items()}

    def terms(self, tile: dict, q: Tokens, k: Tokens) -> Any:
        """What evaluates the distance slots in a tile."""
        if tile["tables"] or tile["params"] is None:  # without tables: nothing to add
            return Windows(tile["tables"], self.bq)
        return Pairs(self.rules, tile["params"], q.positions, k.positions)

    def scores(self, tile: dict, q: Tokens, k: Tokens) -> jax.Array:
        """Scores before the mask, as `dense.scores` has them."""
        operands = {**tile["queries"], **tile["keys"]}
        terms = self.terms(tile, q, k)
        return scores(self.rules, tile["params"], terms, operands, q.positions, k.positions)

    def average(self, tile: dict, weights, q: Tokens, k: Tokens) -> jax.Array:
        """Weights·values, as `dense.average` has it."""
        return average(self.terms(tile, q, k), weights, tile["keys"]["v"])


def _shapes(diff: dict):
    q, v = diff["queries"]["q"], diff["keys"]["v"]
    return q.shape[0], q.shape[1], v.shape[-1]


def _forward(rules, sizes, diff, q, k):
    """Output [B, H, T, F] and the logarithm of each row's sum [B, H, T, 1], both float32."""
    plan = _Plan(rules, sizes, q, k)
    batch, heads, width = _shapes(diff)

    def query_block(i):
        qt = plan.tokens(q, i, plan.bq)

        def key_block(j, carry):
            out, top, total = carry
            tile, kt = plan.tile(diff, i, j), plan.tokens(k, j, plan.bk)
            seen = rules.mask(qt, kt)
            s = jnp.where(seen, plan.scores(tile, qt, kt), LOWEST)
            new_top = jnp.maximum(top, s.max(-1, keepdims=True))
            p = jnp.where(seen, jnp.exp(s - new_top), 0)
            fade = jnp.exp(top - new_top)
            out = out * fade + plan.average(tile, p, qt, kt)
            return out, new_top, total * fade + p.sum(-1, keepdims=True)

        row = (batch, heads, plan.bq, 1)
        start = jnp.zeros((*row[:-1], width)), jnp.full(row, LOWEST), jnp.zeros(row)
        out, top, total = jax.lax.fori_loop(plan.first[i], plan.last[i], key_block, start)
        # A row that sees nothing gets zeros, and a sum so large that its weights vanish again.
        empty = total == 0
        total = jnp.where(empty, 1, total)
        return out / total, jnp.where(empty, -LOWEST, top + jnp.log(total))

    out, lse = jax.lax.map(query_block, jnp.arange(plan.nq))
    join = lambda x: jnp.moveaxis(x, 0, 2).reshape(batch, heads, -1, x.shape[-1])  # noqa: E731
    return join(out), join(lse)


def _forward_save(rules, sizes, diff, q, k):
    out, lse = _forward(rules, sizes, diff, q, k)
    return out, (diff, q, k, out, lse)


def _backward(rules, sizes, saved, d_out):
    """One pass over the tiles; each is recomputed, and its cotangents go back where it was cut."""
    diff, q, k, out, lse = saved
    plan = _Plan(rules, sizes, q, k)
    inner = (d_out * out).sum(-1, keepdims=True)
    zeros = functools.partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.float32))

    def query_block(carry, i):
        cut = lambda x: _cut(x, 2, i * plan.bq, plan.bq)  # noqa: E731
        d_o, d_in, row_lse, qt = cut(d_out), cut(inner), cut(lse), plan.tokens(q, i, plan.bq)

        def key_block(j, carry):
            d_queries, rest = carry
            tile, kt = plan.tile(diff, i, j), plan.tokens(k, j, plan.bk)
            s, pull_scores = jax.vjp(lambda t: plan.scores(t, qt, kt), tile)
            p = jnp.where(rules.mask(qt, kt), jnp.exp(jnp.minimum(s - row_lse, 0)), 0)
            _, pull_average = jax.vjp(lambda t, w: plan.average(t, w, qt, kt), tile, p)
            d_values, d_p = pull_average(d_o)
            (d_scores,) = pull_scores(p * (d_p - d_in))
            part = jax.tree.map(lambda a, b: a.astype(jnp.float32) + b, d_values, d_scores)
            starts = {"keys": (2, j * plan.bk), "tables": (1, plan.window(i, j)), "params": (0, 0)}
            rest = {
                name: jax.tree.map(
                    lambda t, p: (t + p) if name == "params" else _accumulate(t, p, *starts[name]),  # noqa: B023
                    rest[name],
                    part[name],
                )
                for name in rest
            }
            return jax.tree.map(jnp.add, d_queries, part["queries"]), rest

        start = zeros(jax.tree.map(cut, diff["queries"])), carry
        d_queries, carry = jax.lax.fori_loop(plan.first[i], plan.last[i], key_block, start)
        return carry, d_queries

    rest = {name: zeros(diff[name]) for name in ("keys", "tables", "params")}
    rest, d_queries = jax.lax.scan(query_block, rest, jnp.arange(plan.nq))
    join = lambda x: jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1, x.shape[-1])  # noqa: E731
    grads = {"queries": jax.tree.map(join, d_queries), **rest}
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, diff), None, None


_tiled: Any = jax.custom_vjp(lambda *args: _forward(*args)[0], nondiff_argnums=(0, 1))
_tiled.defvjp(_forward_save, _backward)


def _tables(rules: Rules, params: Params, queries: int, keys: int) -> dict:
    """Every distance slot over the distances of contiguous positions, float32, descending."""
    distance = jnp.arange(queries - 1, -keys, -1, dtype=jnp.int32)
    enc = rules.encoding
    found = {
        slot: getattr(enc, slot)(
            params, distance, *([rules.dims] if slot == "distance_bias" else [])
        )
        for slot in DISTANCE_SLOTS
    }
    return {slot: x.astype(jnp.float32) for slot, x in found.items() if x is not None}


def attend(
    rules: Rules,
    params: Params,
    operands: dict,
    q: Tokens,
    k: Tokens,
    *,
    sizes: tuple[int, int] | None = None,
) -> jax.Array:
    """As `dense.attend`, in blocks of `sizes` (queries, keys), chosen by `block_sizes` if None."""
    batch, heads, queries, _ = operands["q"].shape
    keys = operands["k"].shape[2]
    bq, bk = sizes or block_sizes(batch * heads, queries, keys)
    lengths = {"queries": -(-queries // bq) * bq, "keys": -(-keys // bk) * bk}
    side = {"q": "queries", "q_raw": "queries", "k": "keys", "k_raw": "keys", "v": "keys"}
    diff: dict = {"queries": {}, "keys": {}}
    for name, x in operands.items():
        diff[side[name]][name] = _pad(x, 2, lengths[side[name]])
    diff["tables"] = _tables(rules, params, *lengths.values()) if rules.contiguous else {}
    # Where tables stand for the distance slots, parameters enter a tile by `bias` alone.
    needed = not rules.contiguous or rules.encoding.overrides("bias")
    diff["params"] = params if needed else None
    if lengths != {"queries": queries, "keys": keys}:
        q, k = _pad_tokens(q, lengths["queries"]), _pad_tokens(k, lengths["keys"])
    return _tiled(rules, (bq, bk), diff, q, k)[:, :, :queries]


def _pad_tokens(tokens: Tokens, length: int) -> Tokens:
    """Padding repeats the last position and, with a negative segment id, sees nothing."""
    grow = (0, length - tokens.index.shape[1])
    last = lambda x: jnp.pad(x, [(0, 0), grow] + [(0, 0)] * (x.ndim - 2), mode="edge")  # noqa: E731
    segments = tokens.segments
    if segments is None:
        segments = jnp.zeros(tokens.index.shape, jnp.int32)
    return Tokens(last(tokens.positions), last(tokens.index), _pad(segments, 1, length, -1))

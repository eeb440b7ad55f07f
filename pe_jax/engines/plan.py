"""Which tiles the tiled engine visits, in what order, and how large they are.

On CPU a tile holds two heads or more (XLA splits elementwise loops over the leading axes only, so
one for each core) of 512 × 512 scores, and the heads take turns: what a tile needs stays in the
caches. On other devices, and on several, a tile holds all heads, so that a sharded batch or head
axis is never looped over; its sides halve until it fits TILE scores a device.

Rows and columns of tiles are i and j; b, h batch and heads of a group, T queries. Where a scheme
has two views of q and k, each column of tiles counts twice, once in each view: a tile is visited in
the views that score any of its pairs. n is a column and its view in one.
"""

import dataclasses
import math
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.base import DISTANCE_SLOTS, Params
from pe_jax.engines.dense import Rules, Tokens, fit, pairwise, repeat_heads
from pe_jax.engines.terms import Terms, Tile

TILE = 2**21  # scores in a tile that holds all heads: 8 MB of float32
AREA = 2**19  # scores in a tile that holds some: two heads of 512 × 512
NARROWEST = 64
LOWEST = -1e30  # below any score; finite, so that differences are never NaN
NEGLIGIBLE = -30.0  # a key whose score is so far below another's has a weight below 2⁻⁴³


def block_sizes(shape: tuple[int, int], pairs: int, queries: int, keys: int) -> tuple[int, int]:
    """Rows and columns of a tile of `pairs` = batch × heads, starting from `shape`."""
    rows, columns = shape
    while pairs * min(rows, queries) * min(columns, keys) > TILE and max(rows, columns) > NARROWEST:
        rows, columns = max(rows // 2, 1), max(columns // 2, 1)
    return _even(queries, rows), _even(keys, columns)


def _even(length: int, widest: int) -> int:
    """A block length that cuts `length` with little to spare, in 64s where there are several."""
    blocks = -(-length // widest)
    return length if blocks == 1 else min(widest, -(-length // (blocks * NARROWEST)) * NARROWEST)


def group_sizes(batch: int, heads: int, kv_heads: int, area: int) -> tuple[int, int]:
    """How much of the batch and of the heads one tile of `area` scores a pair takes.

    The heads of a group share one key head, or bring all queries of several.
    """
    most = max(AREA // area, min(os.cpu_count() or 1, 8))
    shared = heads // kv_heads
    fits = [h for h in range(1, min(heads, most) + 1) if heads % h == 0]
    h = max(h for h in fits if shared % h == 0 or h % shared == 0)
    if h < heads:
        return 1, h
    return max(b for b in range(1, batch + 1) if batch % b == 0 and b * h <= max(most, h)), h


def devices(*arrays) -> int:
    """How many devices share what is computed from these arrays.

    The mesh in force says so (`jax.set_mesh`; a shard_map, whose manual axes do not count); where
    there is none, the mesh that the arrays lie on, which their types tell under jit too. Neither:
    one device, however many the process sees. The engine and the sizes of tiles follow from it, and
    never a result: XLA divides whatever it is given.

    What is not seen is a mesh that `in_shardings` alone know, of a jit whose arguments lie on no
    mesh. Enter the mesh (`jax.set_mesh`), as the trainer does, or heads take turns that could run
    side by side.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        meshes = [jax.typeof(x).sharding.mesh for x in arrays]
        return max((mesh.size for mesh in meshes if not mesh.empty), default=1)
    return mesh.size // math.prod(mesh.shape[axis] for axis in mesh.manual_axes)


def alone(count: int) -> bool:
    """Whether heads may take turns: on a CPU, where `count` devices share a call."""
    return jax.default_backend() == "cpu" and count == 1


class Groups(NamedTuple):
    """Parts of batch and heads that take turns: how many of each, and how large."""

    batch: int
    heads: int
    b: int
    h: int

    @property
    def total(self) -> int:
        """How many groups."""
        return self.batch * self.heads

    def cut(self, tree: dict, u) -> dict:
        """Group `u` of operands [B, H or K, …], tables [H or 1, …], tokens [B or 1, …]."""
        if self.total == 1:
            return tree
        at = u // self.heads, u % self.heads
        heads = self.heads * self.h

        def side(x):
            count = x.shape[1] * self.h // heads  # key heads of a group, 0 if it has part of one
            start = at[1] * self.h * x.shape[1] // heads
            x = jax.lax.dynamic_slice_in_dim(x, at[0] * self.b, self.b, 0)
            return jax.lax.dynamic_slice_in_dim(x, start, max(count, 1), 1)

        def table(x):
            return x if len(x) == 1 else jax.lax.dynamic_slice_in_dim(x, at[1] * self.h, self.h, 0)

        def token(x):
            return x if len(x) == 1 else jax.lax.dynamic_slice_in_dim(x, at[0] * self.b, self.b, 0)

        how = {"tables": table, "reach": table, "q_tokens": token, "k_tokens": token}
        whole = lambda x: x  # noqa: E731
        sides = ["q", "k", "v", "own", "out", "lse", "d_out"]
        sides += [f"{side}_{what}" for side in "qk" for what in ("raw", "state", "factor")]
        how |= dict.fromkeys(sides, side)
        return {name: jax.tree.map(how.get(name, whole), part) for name, part in tree.items()}

    def join(self, name: str, stacked, like) -> jax.Array:
        """Puts the groups' results [groups, …] together into the shape of `like`."""
        x = stacked.reshape(self.batch, self.heads, *stacked.shape[1:])
        if name in ("tables", "params"):
            x = x.sum(0)
            apart = name == "tables" and len(like) > 1
            return x.reshape(like.shape) if apart else x.sum(0)
        count = like.shape[1] // x.shape[3]  # groups with key heads of their own
        x = x.reshape(self.batch, count, -1, *x.shape[2:]).sum(2)
        return jnp.swapaxes(x, 1, 2).reshape(like.shape)


class Order(NamedTuple):
    """The tiles of a row: their n, first `whole` of them, then `partial`; the rest unseen."""

    tiles: jax.Array
    whole: jax.Array
    partial: jax.Array


class Ends(NamedTuple):
    """The smallest and the largest value in each block: [blocks]."""

    low: jax.Array
    high: jax.Array


def _ends(x: jax.Array, blocks: int) -> Ends:
    x = jnp.asarray(x).reshape(len(x), blocks, -1)
    return Ends(x.min((0, 2)), x.max((0, 2)))


def skips(rules: Rules) -> bool:
    """Whether tiles out of reach can be told: a decaying bias alone, each token seeing itself."""
    enc = rules.encoding
    slots = [s for s in (*DISTANCE_SLOTS, "bias", "state_bias") if enc.overrides(s)]
    same = rules.aligned and rules.contiguous
    return enc.decays and same and slots == ["distance_bias"] and enc.split() is None


def own(rules: Rules, gain: float, q: jax.Array, k: jax.Array) -> Any:
    """Score of each query [B, H, T, E] and its own key: float32 [B, H, T, 1]; None if unused."""
    if not skips(rules):
        return None
    q, k = (jax.lax.stop_gradient(x).astype(jnp.float32) for x in (q, k))
    k = fit(repeat_heads(k, q.shape[1]), 2, q.shape[2])
    return gain * (q * k).sum(-1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The tiles of one group of heads: `rows` × `columns` scores, `nq` × `nk` of them."""

    rules: Rules
    terms: Terms
    gain: float
    q: Tokens
    k: Tokens
    nq: int
    nk: int

    def gaps(self, i, j) -> jax.Array:
        """The distance of the first row and the first column of tile (i, j), if contiguous."""
        q, k = self.q.positions[0, :: self.terms.rows], self.k.positions[0, :: self.terms.columns]
        return q[i] - k[j]

    def corners(self) -> jax.Array:
        """Likewise of each pair of runs: int32 [runs, runs]."""
        runs = np.arange(self.terms.runs)
        i, j = (runs * (blocks // len(runs)) for blocks in (self.nq, self.nk))
        return self.gaps(i[:, None], j[None])

    def distances(self, i) -> Ends:
        """The smallest and largest distance in each tile of block row i, if contiguous: [nk]."""
        corner = self.gaps(i, np.arange(self.nk))
        return Ends(corner - (self.terms.columns - 1), corner + self.terms.rows - 1)

    def reach(self, params: Params) -> Any:
        """The most that a tile's bias exceeds that of distance 0 by: [H, nq, nk], or None."""
        if not skips(self.rules):
            return None
        low, high = jax.vmap(self.distances)(jnp.arange(self.nq, dtype=jnp.int32))
        nearest = jnp.where(low > 0, low, jnp.minimum(high, 0))
        bias = lambda d: self.rules.encoding.distance_bias(params, d, self.rules.dims)  # noqa: E731
        return jax.lax.stop_gradient(bias(nearest) - bias(jnp.zeros((1, 1), jnp.int32)))

    def out_of_reach(self, part: dict) -> Any:
        """Tiles in which each key is negligible beside the query's own: bool [nq, nk], or None.

        As q·k ≤ |q|·max|k|, each scores 30 or more below the query's own key there.
        """
        if part["reach"] is None:
            return None
        q, k = (jnp.linalg.norm(part[name].astype(jnp.float32), axis=-1) for name in "qk")
        longest = repeat_heads(k.max(-1, keepdims=True), q.shape[1])
        over = self.gain * q * longest - part["own"][..., 0]
        over = over.reshape(*over.shape[:2], self.nq, -1).max((0, 3))
        return (over[..., None] + part["reach"] < NEGLIGIBLE).all(0)

    def _mask(self, i) -> tuple[jax.Array, jax.Array]:
        """Of block row i: which tiles show any pair, and which show all, [nk] each."""
        rules = self.rules

        def pairs(name):
            q, k = _ends(getattr(self.q, name), self.nq), _ends(getattr(self.k, name), self.nk)
            return Ends(q.low[i], q.high[i]), k

        q, k = pairs("index")
        some = whole = jnp.ones(self.nk, bool)
        if rules.causal:
            some, whole = some & (q.high >= k.low), whole & (q.low >= k.high)
        if rules.window is not None:
            near = (q.low - k.high < rules.window) & (k.low - q.high < rules.window)
            inside = (q.high - k.low < rules.window) & (k.high - q.low < rules.window)
            if rules.sinks:
                rank = _ends(self.k.index if self.k.rank is None else self.k.rank, self.nk)
                near, inside = near | (rank.low < rules.sinks), inside | (rank.high < rules.sinks)
            some, whole = some & near, whole & inside
        if self.q.segments is not None:
            q, k = pairs("segments")
            some &= (q.high >= k.low) & (q.low <= k.high) & (q.high >= 0)
            whole &= (q.low == k.high) & (q.high == k.low) & (q.low >= 0)
        return some, whole

    @property
    def views(self) -> int:
        """How many views of q and k there are."""
        return 1 if self.rules.encoding.split() is None else 2

    def _by_view(self, i, some, whole) -> tuple[jax.Array, jax.Array]:
        """What `_mask` gives, for either view: [2·nk]."""
        q, k = _ends(self.q.positions, self.nq), _ends(self.k.positions, self.nk)
        split: Any = self.rules.encoding.split()
        near, far = q.low[i] - k.high < split, q.high[i] - k.low >= split
        some = jnp.concatenate([some & near, some & far])
        return some, jnp.concatenate([whole & ~far, whole & ~near])

    def mask(self, tile: Tile) -> jax.Array:
        """Which pairs of a tile its view scores: bool [b or 1, 1, r, c]."""
        seen, split = self.rules.mask(tile.q, tile.k), self.rules.encoding.split()
        if split is None:
            return seen
        distance = pairwise(self.rules, tile.q.positions, tile.k.positions)
        return seen & ((distance >= split) == (tile.view == 1))[:, None]

    def columns(self, k: jax.Array) -> jax.Array:
        """Keys [b, k, S, E] in the order of n: the near views, then the far ones."""
        return k if self.views == 1 else jnp.concatenate(jnp.split(k, 2, axis=-1), axis=2)

    def uncolumns(self, k: jax.Array) -> jax.Array:
        """The inverse of `columns`."""
        return k if self.views == 1 else jnp.concatenate(jnp.split(k, 2, axis=2), axis=-1)

    def half(self, q: jax.Array, view) -> jax.Array:
        """One view of queries [b, h, r, E]."""
        size = q.shape[-1] // self.views
        return q if self.views == 1 else jax.lax.dynamic_slice_in_dim(q, view * size, size, 3)

    def unhalf(self, q: jax.Array, view) -> jax.Array:
        """The inverse of `half`, with zeros in the other view."""
        if self.views == 1:
            return q
        return jnp.concatenate([jnp.where(view == n, q, 0) for n in range(2)], axis=-1)

    def sees(self) -> jax.Array:
        """Whether the mask shows any tile at all."""
        return jax.vmap(lambda i: self._mask(i)[0])(jnp.arange(self.nq, dtype=jnp.int32)).any()

    def order(self, i, skip) -> Order:
        """The tiles of block row i; those in `skip` [nq, nk] are left out."""
        some, whole = self._mask(i)
        if skip is not None:
            some &= ~skip[i]
        beyond = self.terms.beyond(*self.distances(i)) if self.rules.contiguous else None
        whole = whole if beyond is None else whole & beyond
        if self.views > 1:
            some, whole = self._by_view(i, some, whole)
        kind = jnp.where(some, jnp.where(whole & self.terms.cheap, 0, 1), 2)
        tiles = jnp.argsort(kind, stable=True).astype(jnp.int32)
        return Order(tiles, *((kind == n).sum(dtype=jnp.int32) for n in (0, 1)))

    def visit(self, order: Order, f, carry):
        """Carry = f(general, n, carry) for every tile of a row, whole ones first."""
        end = order.whole + order.partial
        if self.terms.cheap:
            carry = jax.lax.fori_loop(
                0, order.whole, lambda t, c: f(False, order.tiles[t], c), carry
            )
        return jax.lax.fori_loop(order.whole, end, lambda t, c: f(True, order.tiles[t], c), carry)

    def tile(self, i, n) -> Tile:
        """Tile (i, n)."""
        view, j = (0, n) if self.views == 1 else (n // self.nk, n % self.nk)
        cut = lambda x, at, size: jax.lax.dynamic_slice_in_dim(x, at * size, size, 1)  # noqa: E731
        q = jax.tree.map(lambda x: cut(x, i, self.terms.rows), self.q)
        k = jax.tree.map(lambda x: cut(x, j, self.terms.columns), self.k)
        return Tile(i, j, q, k, view, self.gaps(i, j) if self.rules.contiguous else 0)

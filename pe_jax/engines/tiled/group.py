"""A group of heads that one pass visits: its operands, and what a tile of it takes of them.

b, h batch and heads of the group, k its key heads, r, c rows and columns of a tile, T queries,
S keys, E width of keys.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import TokenBias, repeat_heads
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.tiled import negligible, schedule
from pe_jax.engines.tiled.grid import Tile, cut_block
from pe_jax.engines.tiled.in_place import InPlace
from pe_jax.engines.tiled.leaves import Leaves
from pe_jax.engines.tiled.setup import Fixed, Operands, Setup


class Group(NamedTuple):
    """A group of heads: the tiles of a call for some of the heads."""

    setup: Setup  # what is static
    q: jax.Array  # queries [b, h, T, E], in full precision times the scale
    k: jax.Array  # keys [b, k, S, E], in the order of `TileViews.keys`
    fixed: Fixed  # the tokens
    skip: Any  # bool [q_blocks, k_blocks], negligible tiles; or None
    reach: Any  # what no product of a query exceeds: [b, h, T, 1], where rows can be left; or None

    @property
    def prescale(self) -> float:
        """The factor that `q` already has: in half precision it would be rounded once more."""
        return self.setup.scale if self.q.dtype == jnp.float32 else 1.0

    @property
    def gain(self) -> float:
        """The factor that q·k still needs."""
        return 1.0 if self.q.dtype == jnp.float32 else self.setup.scale

    def rows(self, tree: Any, i) -> Any:
        """Block row i of arrays [b, h, T, …]."""
        return jax.tree.map(lambda x: cut_block(x, i, self.setup.grid.rows), tree)

    def tile(self, i, n) -> Tile:
        """The tile of block row i and n, a block column and its view."""
        grid = self.setup.grid
        view, j = self.setup.views.place(n, grid.k_blocks)
        return grid.tile(self.fixed.q, self.fixed.k, i, j, view, self.setup.spec.contiguous)

    def key_block(self, n):
        """Which block of `k` the tile of n meets."""
        return self.setup.views.key_block(n, self.setup.grid.k_blocks)

    def order(self, i) -> schedule.Order:
        """The tiles of block row i that count."""
        return schedule.order(self.setup, self.fixed.q, self.fixed.k, i, self.skip)

    def cuts(self, tile: Tile) -> tuple[Leaves, ...]:
        """What a tile takes of the leaves of each way."""
        return tuple(way.cuts(tile) for way in self.setup.ways)

    def products(self, q: jax.Array, turned: jax.Array, tile: Tile) -> Any:
        """Scaled q·k of a tile: [b, h, r, c] for rows of `q` and keys [b, k, E, c]; or None."""
        if not self.setup.has_products:
            return None
        return self.gain * multiply(self.setup.views.queries(q, tile.view), turned)

    def cap(self, scores: jax.Array) -> tuple[jax.Array, Any]:
        """Scores within the cap, and their derivative by what they were; None: it is 1."""
        cap = self.setup.cap
        if cap is None:
            return scores, None
        bounded = jnp.tanh(scores / cap)
        return cap * bounded, 1 - bounded**2

    def mask(self, scores: jax.Array, tile: Tile) -> jax.Array:
        """Scores, `LOWEST` where a pair is not seen or is scored by another view."""
        return jnp.where(self.seen(tile), scores, LOWEST)

    def seen(self, tile: Tile) -> jax.Array:
        """Which pairs are seen, and not scored by another view: bool [b or 1, 1, r, c]."""
        seen = self.setup.spec.mask(tile.q, tile.k)
        for term in self.fixed.masks:
            seen = seen & term.shows(tile.q, tile.k)
        return self.setup.views.restrict(seen, tile.q, tile.k, tile.view)

    def drop(self, weights: jax.Array, tile: Tile) -> jax.Array:
        """Weights, or gradients by them, of a tile after dropout."""
        for term in self.fixed.dropout:
            weights = weights * term.factors(tile.q, tile.k)
        return weights


def make_group(setup: Setup, operands: Operands, fixed: Fixed) -> Group:
    """What a pass reads of these operands."""
    q, k, skip = operands.q.x, operands.k.x, None
    if setup.skips:
        bounds = _max_biases(setup, operands, fixed)
        own = fixed.own_scores
        skip = negligible.negligible_tiles(setup.grid, q, k, own, bounds, setup.scale)
    reach = negligible.reach(q, k, setup.scale) if setup.stops else None
    q = setup.scale * q if q.dtype == jnp.float32 else q
    return Group(setup, q, setup.views.keys(k), fixed, skip, reach)


def _max_biases(setup: Setup, operands: Operands, fixed: Fixed) -> list[jax.Array]:
    """Bounds of the biases in each tile, where all of them decay."""
    grid, heads, biases = setup.grid, operands.q.x.shape[:2], []
    for way, terms in zip(setup.ways, operands.tables, strict=True):
        if not isinstance(way, InPlace):
            continue
        q, k = way.own(operands.q), way.own(operands.k)
        each = zip(terms, q.states, k.states, strict=True)
        biases += [of for of in each if isinstance(of[0], TokenBias)]
    bounds = [] if fixed.max_bias is None else [fixed.max_bias[None]]
    if biases:
        bounds.append(negligible.max_token_bias(grid, biases, fixed.q, fixed.k, heads))
    return bounds


def multiply(x: jax.Array, turned: jax.Array) -> jax.Array:
    """Rows [b, h, r, E] times columns [b, k, E, c]: float32 [b, h, r, c]."""
    turned = repeat_heads(turned, x.shape[1])
    return jnp.einsum("bhre,bhec->bhrc", x, turned, preferred_element_type=jnp.float32)

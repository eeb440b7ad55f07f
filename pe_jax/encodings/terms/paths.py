"""Products of the maps of all tokens between a key and a query: as defined, and in tiles.

B batch, T queries, S keys, H query heads, K key heads, E head width, c tokens of a tile.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.export
import jax.numpy as jnp

from pe_jax.encodings.terms.term import ProductTerm, RowTerm, Side, State, Tokens, kind
from pe_jax.numerics import products
from pe_jax.numerics.arrays import align, repeat_heads, write_rows
from pe_jax.numerics.linear_algebra import inverse_unit_lower, solve_unit_lower
from pe_jax.numerics.products import einsum, matmul

CHUNK = 64  # tokens whose maps are multiplied by the UT transform; longer runs by doubling,
# and in a cache in turn


multiply = functools.partial(products.multiply, None)


class Mapped(NamedTuple):
    """What a cache keeps of a `PathProduct`.

    Attributes:
      keys: as the tokens so far leave them, float32 [B, H, S, E].
      maps: the state of each token, float32 [B, H, S, C].
      length: how many tokens there were then, int32 [B]; -1 since some were taken back.
    """

    keys: jax.Array
    maps: jax.Array
    length: jax.Array


jax.export.register_namedtuple_serialization(Mapped, serialized_name="pe_jax.Mapped")


@kind
class PathProduct(ProductTerm):
    """Replaces q·k: q after the maps of all tokens between the two, times k.

        q_i·k_j  →  q_iᵀ H_i H_{i-1} … H_{j+1} k_j,    H_t = I - w_t u_tᵀ

    For causal attention; maps of other documents are left out. The state has u ‖ w, 2E numbers.
    """

    along_rows = True
    cache_step = CHUNK

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def key_width(self):
        return 0

    def products(self, q: Side, k: Side, states: Any) -> jax.Array:
        """Products of all pairs whose key is not later: float32 [B, H, T, S] for k.x [B, K, S, E].

        The state of the keys is None, or in a cache these keys as mapped by all tokens before the
        queries, [B, H, S, E]: those that map them further are the queries' own.
        """
        (maps, keys), tokens, solve = states, q.tokens, _solve_few
        if keys is None:
            keys, tokens = repeat_heads(k.x, q.x.shape[1]).astype(jnp.float32), k.tokens
            solve = solve_unit_lower
        x, w = q.x.astype(jnp.float32), maps[..., self.state.width // 2 :]
        q_w = jnp.where(_order(q.tokens, tokens, 0), einsum("bhie,bhse->bhis", x, w), 0)
        lost = einsum("bhis,bhsj->bhij", q_w, _lost(solve, keys, k.tokens, maps, tokens))
        return einsum("bhie,bhje->bhij", x, keys) - lost

    def empty(self, batch, rows, width, dims):
        """Keys that tokens map, and their maps."""
        shape = batch, dims.heads, rows
        keys, maps = (jnp.zeros((*shape, n), jnp.float32) for n in (width, self.state.width))
        return Mapped(keys, maps, jnp.zeros(batch, jnp.int32))

    def read(self, kept, state, k, new, length):
        """Keys as the tokens before the new ones leave them; they are mapped further then."""
        start, capacity = length.max(initial=0), k.x.shape[2]

        def of_heads(x):
            return repeat_heads(x.astype(k.x.dtype), kept.keys.shape[1]).astype(jnp.float32)

        def part(n, keys):
            keys = jnp.where(n == 0, of_heads(k.x), keys)
            rows = n * CHUNK + jnp.arange(CHUNK, dtype=jnp.int32)
            take = functools.partial(jnp.take, indices=rows, mode="clip")
            segments = k.tokens.segments
            segments = None if segments is None else take(segments, axis=1)
            tokens = Tokens(rows, take(k.tokens.index, axis=1), segments)
            filled = (rows < start)[None, None, :, None]
            return _mapped(keys, k.tokens, jnp.where(filled, take(kept.maps, axis=2), 0), tokens)

        # anew, if tokens were taken back; a `cond` would copy the keys in each step
        parts = jnp.where((kept.length == length).all(), 0, -(-capacity // CHUNK))
        keys = jax.lax.fori_loop(0, parts, part, kept.keys)
        keys = write_rows(keys, of_heads(new.x), start, 2)
        maps, then = write_rows(kept.maps, state, start, 2), length + new.x.shape[2]
        return keys, Mapped(_mapped(keys, k.tokens, state, new.tokens), maps, then)

    def whole_rows(self, spec: Any) -> bool:
        """Tiles take queries and keys that are the same tokens in order, under a causal mask."""
        return not (spec.causal and spec.aligned)

    def in_tiles(self, spec):
        return PathTiles(self.state)


def _mapped(keys: jax.Array, k: Tokens, maps: jax.Array, tokens: Tokens) -> jax.Array:
    """Keys [B, H, S, E] after the maps u ‖ w [B, H, T, 2E] of those tokens that are later."""
    w = maps[..., keys.shape[-1] :]
    return keys - einsum("bhse,bhsj->bhje", w, _lost(_solve_few, keys, k, maps, tokens))


def _lost(solve, keys, k: Tokens, maps, tokens: Tokens) -> jax.Array:
    """Σ_{t > j} T_st (u_t·k_j), [B, H, T, S]: q_i·k_j loses it times q_i·w_s for each s ≤ i.

    T is the inverse of I + the part of u_s·w_t below the diagonal (the UT transform; Joffrain et
    al., 2006).
    """
    u, w = jnp.split(maps, 2, axis=-1)
    u_w = jnp.where(_order(tokens, tokens, 1), einsum("bhse,bhte->bhst", u, w), 0)
    u_k = jnp.where(_order(tokens, k, 1), einsum("bhte,bhje->bhtj", u, keys), 0)
    return solve(jnp.broadcast_to(u_w, (len(u_k), *u_w.shape[1:])), u_k)


def _solve_few(lower: jax.Array, right: jax.Array) -> jax.Array:
    """`solve_unit_lower` of few rows, without the costs of calling LAPACK for each head."""
    return right if lower.shape[-1] == 1 else matmul(inverse_unit_lower(lower), right)


def _order(rows: Tokens, columns: Tokens, least: int) -> jax.Array:
    """Pairs of one document whose row is `least` tokens later or more: bool [B or 1, 1, T, S]."""
    pairs = rows.index[:, :, None] - columns.index[:, None] >= least
    if rows.segments is not None and columns.segments is not None:
        pairs = pairs & (rows.segments[:, :, None] == columns.segments[:, None])
    return pairs[:, None]


@kind
class PathTiles(RowTerm):
    """`PathProduct` in tiles (arXiv 2505.16381, §3.3), for documents whose tokens are adjacent.

    Each query is mapped back to the first token of its tile, each key on to the last of its own; P
    is the product of all maps of a tile. A row carries its queries: those of the tile on the
    diagonal, times P of each tile that they pass. Their products with the keys are the scores.
    """

    has_tile_states = True
    replaces = True
    passes_hidden = True

    state: State  # pyright: ignore[reportIncompatibleVariableOverride]

    prepare = PathProduct.prepare

    @property
    def carry(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """E: the mapped query."""
        return self.state.width // 2

    def tile_states(self, q: Side, k: Side, states: Any, side: int) -> Any:
        """Mapped queries and the products within their tile; mapped keys and Pᵀ of their tile.

        Two runs of tokens become one of twice the length: the queries of the right one are mapped
        by P of the left one, and the keys of the left one by P of the right one.
        """
        length = side
        while length > CHUNK and length % 2 == 0:
            length //= 2
        u, w = jnp.split(states[0], 2, axis=-1)
        ids = k.tokens.segments
        ids = None if ids is None else ids.reshape(len(ids), 1, -1, length)
        queries, keys, u, w = (
            x.reshape(*x.shape[:2], -1, length, x.shape[-1])
            for x in (q.x, repeat_heads(k.x, q.x.shape[1]), u, w)
        )
        queries, keys, own, maps = _of_chunks(queries, keys, u, w, ids)
        while length < side:
            (left, right), (left_q, right_q) = _halves(maps), _halves(queries)
            (left_k, right_k), (first, last) = _halves(keys), _halves(own)
            first = jnp.concatenate([first, jnp.zeros_like(first)], -1)
            last = jnp.concatenate([_product(right_q, left_k), last], -1)
            own = jnp.concatenate([first, last], -2)
            queries = jnp.concatenate([left_q, matmul(right_q, left)], -2)
            keys = jnp.concatenate([_product(left_k, right), right_k], -2)
            maps, length = matmul(right, left), 2 * length
        maps = jnp.swapaxes(maps, 3, 4).reshape(*maps.shape[:3], -1)
        by_token = (x.reshape(*x.shape[:2], -1, x.shape[-1]) for x in (queries, own, keys))
        queries, own, keys = by_token
        return (queries, own), (keys, maps)

    def row(self, q, k, states, products, visible, before):
        """Carries the mapped queries."""
        (queries, own), (keys, maps) = states
        diagonal = q.tokens.index[0, 0] == k.tokens.index[0, 0]
        scores = jax.lax.cond(diagonal, lambda: own, lambda: multiply(before, keys))
        passed = multiply(before, maps.reshape(*maps.shape[:2], self.carry, self.carry))
        return scores, jnp.where(diagonal, queries, passed)


def _of_chunks(q: jax.Array, k: jax.Array, u: jax.Array, w: jax.Array, ids: Any) -> tuple:
    """Queries mapped back to the start of their chunk, keys on to its end; products, maps.

    Of vectors [B, H, n, c, E] and ids of documents [B or 1, 1, n, c] or None: two of these vectors,
    the products of each chunk's queries and keys [B, H, n, c, c], and the product of all of its
    maps [B, H, n, E, E]: 0 where there are several documents, as nothing left of it is then seen.
    """
    index = jnp.arange(q.shape[-2], dtype=jnp.int32)
    ahead = align(index[:, None] - index[None], q)
    same = True if ids is None else ids[..., :, None] == ids[..., None, :]
    inverse = inverse_unit_lower(jnp.where((ahead > 0) & same, _product(u, w), 0))
    u_k = matmul(inverse, jnp.where((ahead > 0) & same, _product(u, k), 0))
    q_w, u = jnp.where((ahead >= 0) & same, _product(q, w), 0), matmul(inverse, u)
    w_t, u_k_t = jnp.swapaxes(w, 3, 4), jnp.swapaxes(u_k, 3, 4)
    maps = align(jnp.eye(q.shape[-1], dtype=jnp.float32), q) - matmul(w_t, u)
    if ids is not None:
        maps = jnp.where((ids.min(-1) == ids.max(-1))[..., None, None], maps, 0)
    own = _product(q, k) - matmul(q_w, u_k)
    return q - matmul(q_w, u), k - matmul(u_k_t, w), own, maps


def _product(x: jax.Array, y: jax.Array) -> jax.Array:
    """x yᵀ: [..., r, E] and [..., c, E] → [..., r, c]."""
    return matmul(x, jnp.swapaxes(y, -1, -2))


def _halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The left and the right one of each two runs: [B, H, n, …] → twice [B, H, n/2, …]."""
    pairs = x.reshape(*x.shape[:2], -1, 2, *x.shape[3:])
    return pairs[:, :, :, 0], pairs[:, :, :, 1]

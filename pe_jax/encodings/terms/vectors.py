"""Kinds that act on the input, on queries, keys and values, and the factor of their products.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings.terms.term import (
    AroundEngine,
    Rotates,
    Side,
    State,
    Term,
    kind,
    require_positive,
    static,
)
from pe_jax.numerics.arrays import align


@kind
class Input(AroundEngine):
    """Adds `fn(arrays, positions, width)` [*B, T, D] to the input of the first layer, D = width."""

    fn: Callable = static()
    arrays: Any = None


@kind
class QueryBias(AroundEngine):
    """Adds u [H, E] to every query, before any rotation."""

    u: jax.Array

    def shift(self, q: jax.Array) -> jax.Array:
        """Queries [*B, T, H, E] plus u."""
        return q + align(self.u.astype(q.dtype), q)

    def for_heads(self, share):
        return QueryBias(share(self.u, 0))


@kind
class KeyOffset(AroundEngine):
    """Takes some `channels` of each key from the key before it in its document, before rotations.

    The first key of a document keeps its own. Keys that a mask of booleans hides from every query
    of a call are padding: give a window as `window`, or one query has another key at its edge than
    many. At most one.
    """

    offsets_keys = True

    channels: tuple[int, ...] = static()

    def offset(self, k: jax.Array, before: jax.Array, follows: jax.Array) -> jax.Array:
        """Keys [*B, S, K, E] with channels of those `before` them, where one `follows` [*B, S]."""
        taken = np.isin(np.arange(k.shape[-1]), self.channels)
        taken = follows[..., None, None] & align(taken, k)
        return jnp.where(taken, before.astype(k.dtype), k)

    def empty(self, batch, rows, width, dims):
        """The last key before rotations."""
        return jnp.zeros((batch, dims.kv_heads, 1, dims.head_dim), jnp.float32)

    def offset_new(self, k, kept, is_token, rank):
        """From the key of the token before each; that of the first is kept, as the last will be."""
        keys = jnp.concatenate([jnp.swapaxes(kept, 1, 2).astype(k.dtype), k], 1)
        row = jnp.arange(1, k.shape[1] + 1, dtype=jnp.int32)[None]
        at = jax.lax.cummax(jnp.where(is_token, row, 0), axis=1)[..., None, None]
        before = jnp.take_along_axis(keys, jnp.pad(at, ((0, 0), (1, 0), (0, 0), (0, 0))), 1)
        last = jnp.swapaxes(before[:, -1:], 1, 2)
        return self.offset(k, before[:, :-1], is_token & (rank > 0)), last


@dataclasses.dataclass(frozen=True)
class Views:
    """Which of several views of the tokens scores a pair, by its distance in blocks.

    View n scores pairs at least `edges[n - 1]` and less than `edges[n]` blocks apart; the first one
    also scores later keys, the last one all that are farther. With edges (512,) and blocks of one
    position there is a view below a distance of 512 and one from there on; with (1, 2) and blocks
    of 64 one for pairs in a block, one for neighbouring blocks and one for others.

    Attributes:
      edges: rising numbers of blocks.
      unit: positions in a block.
      shared_keys: keys have one view, which all views of queries share.
    """

    edges: tuple[int, ...]
    unit: int = 1
    shared_keys: bool = False

    @property
    def count(self) -> int:
        """How many views queries have."""
        return len(self.edges) + 1

    def block(self, positions: jax.Array) -> jax.Array:
        """The block of each of the positions [*n]."""
        return positions if self.unit == 1 else jnp.floor_divide(positions, self.unit)

    def of(self, q_positions: jax.Array, k_positions: jax.Array) -> jax.Array:
        """The view that scores each pair, int32, for positions whose shapes broadcast."""
        return self._of_apart(self.block(q_positions) - self.block(k_positions))

    def _of_apart(self, apart: jax.Array) -> jax.Array:
        """The view of pairs by their distance in blocks, int32."""
        return sum(((apart >= edge).astype(jnp.int32) for edge in self.edges), jnp.int32(0))

    @functools.partial(jax.jit, static_argnums=(0, 1))  # its branches are compiled once
    def products(self, multiply: Callable, q: Side, k: Side) -> jax.Array:
        """q·k of each pair in its view: [B, H, T, S]; `multiply(q.x, k.x)` computes one view.

        A block that lies in one view takes one product.
        """
        if q.x.shape[2] == 1:
            return self._products_of_one(multiply, q, k)

        def of_view(q_x, k_x, n):
            keys = k_x if self.shared_keys else _part(k_x, n, self.count)
            return multiply(_part(q_x, n, self.count), keys)

        def by_pair(q_x, k_x, _):
            view = self.of(q.tokens.positions[:, :, None], k.tokens.positions[:, None])[:, None]
            scores = of_view(q_x, k_x, 0)
            for n in range(1, self.count):
                scores = jnp.where(view == n, of_view(q_x, k_x, n), scores)
            return scores

        rows, columns = self.block(q.tokens.positions), self.block(k.tokens.positions)
        least, most = rows.min() - columns.max(), rows.max() - columns.min()
        first, last = self._of_apart(least), self._of_apart(most)
        return jax.lax.cond(first == last, of_view, by_pair, q.x, k.x, first)

    def _products_of_one(self, multiply: Callable, q: Side, k: Side) -> jax.Array:
        """The same for one query: its views become queries, which read the keys once."""
        queries = q.x[:, :, 0].reshape(*q.x.shape[:2], self.count, -1)
        if not self.shared_keys:  # each in its own channels, zeros elsewhere
            placed = jnp.eye(self.count, dtype=q.x.dtype)[None, None, :, :, None]
            queries = placed * queries[:, :, :, None]
        queries = queries.reshape(len(q.x), -1, 1, k.x.shape[-1])
        products = multiply(queries, k.x).reshape(*q.x.shape[:2], self.count, -1)
        view = self.of(q.tokens.positions[:, :, None], k.tokens.positions[:, None])
        scores = products[:, :, 0]
        for n in range(1, self.count):
            scores = jnp.where(view == n, products[:, :, n], scores)
        return scores[:, :, None]


def _part(x: jax.Array, n: Any, count: int) -> jax.Array:
    """Part n of the channels, of `count` side by side."""
    width = x.shape[-1] // count
    return jax.lax.dynamic_slice_in_dim(x, n * width, width, -1)


@kind
class Rotation(Rotates):
    """Maps each query and each key by its position: `q(arrays, x, positions)`, `k(…)`.

    x is [*B, T, H or K, E]; the result keeps its dtype and may be wider. A cache keeps the mapped
    keys. In a sum rotations act in order.

    Attributes:
      q: the function of queries; None leaves them unchanged.
      k: the function of keys.
      arrays: their parameters.
      views: q gives several views of each token side by side, [*B, T, H, n·E], and k as many, or
        one for all; one of them scores each pair.
      state: a state of the tokens, [*B, T, H, C], passed to the functions as the last argument.
      heads: the axis of the arrays that counts heads; None: they are the same for all.
      by_length: the functions take the length of each token's document, [*B, T], last.
    """

    q: Callable | None = static()
    k: Callable | None = static()
    arrays: Any = None
    views: Views | None = static(default=None)
    state: State | None = None
    heads: int | None = static(default=None)
    by_length: bool = static(default=False)

    @property
    def is_summed(self) -> bool:
        """Whether its angles are sums of the input along the row, from any token on."""
        return self.state is not None and self.state.after is not None

    def for_heads(self, share):
        axis = self.heads
        if axis is None:
            return self
        arrays = jax.tree.map(lambda x: share(x, axis), self.arrays)
        return dataclasses.replace(self, arrays=arrays)


@kind
class ValueRotation(Rotates):
    """Rotates each value by its position, and each output back by the query's position.

    What a value adds to an output then depends on the distance only. Both functions are
    `(arrays, x, positions)` of x [*B, T, K or H, F] and give its shape and dtype; a cache keeps
    the mapped values. In a sum outputs are mapped in the opposite order.

    Attributes:
      v: the function of values.
      out: the function of outputs.
      arrays: their parameters.
      by_length: as for `Rotation`.
    """

    v: Callable = static()
    out: Callable = static()
    arrays: Any = None
    by_length: bool = static(default=False)


@kind
class Scale(AroundEngine):
    """The factor of q·k and the scaled kinds, instead of 1/sqrt(E); at most one."""

    value: float = static()

    def __post_init__(self):
        require_positive("scale", self.value)


@kind
class TracedScalars(Term):
    """The scale and the cap of a call if they are traced, float32 [1], with gradients."""

    scale: jax.Array | None = None
    logit_cap: jax.Array | None = None

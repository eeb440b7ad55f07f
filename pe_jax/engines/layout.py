"""Where the tokens of a row lie: in order, or in blocks that are dealt to devices (`ring`).

What a call leaves out (positions, indices) and what depends on the order (running sums, positions
that restart in each document) comes from here. B batch, T tokens, D width, H heads, C numbers a
state, P blocks, c = T/P tokens in each.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax import positions as pos
from pe_jax.encodings.terms import State


@dataclasses.dataclass(frozen=True)
class InOrder:
    """Token i is at place i."""

    def order(self, length: int) -> jax.Array:
        """The index of the token at each place: int32 [T]."""
        return pos.contiguous(length)

    def spread(self, x: jax.Array) -> jax.Array:
        """Rows in order [B, T, …] as they lie here."""
        return x

    def restore(self, x: jax.Array) -> jax.Array:
        """The inverse of `spread`."""
        return x

    def per_segment(self, segments) -> jax.Array:
        """`positions.per_segment` of segments [B, T] that lie as they do here."""
        return self.spread(pos.per_segment(self.restore(jnp.asarray(segments))))

    def state(self, state: State, x: jax.Array, positions) -> jax.Array:
        """The states [*B, T, H, C] of tokens that lie as they do here."""
        return state(x, positions)


IN_ORDER = InOrder()


@dataclasses.dataclass(frozen=True)
class Dealt(InOrder):
    """Rows cut into P equal blocks, in another order.

    `spread` and `restore` move whole tokens between devices: they are for ids, positions and
    losses, a few bytes a token, once a step. Everything between stays as it lies.
    """

    @property
    def blocks(self) -> np.ndarray:
        """The number of the block at each place: int [P]."""
        raise NotImplementedError

    def _cut(self, x, axis: int):
        """[..., T, …] → [..., P, c, …].

        Raises:
          ValueError: T is no multiple of P.
        """
        length, parts = x.shape[axis], len(self.blocks)
        if length % parts:
            raise ValueError(f"{length} tokens: must divide into {parts} blocks, for the ring")
        return x.reshape(*x.shape[:axis], parts, length // parts, *x.shape[axis + 1 :])

    def order(self, length):
        """Block by block."""
        return self._cut(pos.contiguous(length), 0)[self.blocks].reshape(-1)

    def spread(self, x):
        """Block by block."""
        return self._cut(x, 1)[:, self.blocks].reshape(x.shape)

    def restore(self, x):
        """Block by block."""
        return self._cut(x, 1)[:, np.argsort(self.blocks)].reshape(x.shape)

    def state(self, state, x, positions):
        """Of each block by itself, then moved to where those before it end: no token travels."""
        if state.after is None:
            return state(x, positions)
        batch = x.ndim - 2
        states = state(self._cut(x, batch), None)  # [*B, P, c, H, C]
        ends = jnp.moveaxis(states[..., -1, :, :], batch, 0)

        def step(before, end):
            after = state.after(before, end[..., None, :, :])
            return after[..., 0, :, :], before

        inverse = np.argsort(self.blocks)
        _, before = jax.lax.scan(step, jnp.zeros_like(ends[0]), ends[inverse])
        moved = state.after(jnp.moveaxis(before[self.blocks], 0, batch), states)
        return moved.reshape(*x.shape[:-1], *moved.shape[-2:])

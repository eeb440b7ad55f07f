"""Kinds whose score of a pair depends on other tokens of the row.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from pe_jax.encodings.terms.term import RowTerm, State, halves, kind, static
from pe_jax.numerics.arrays import varying_like
from pe_jax.numerics.products import einsum, matmul

BLOCK = 32  # columns that are summed by one small matrix product


@kind
class RowSum(RowTerm):
    """A bias from the sum of a row's gates, taken from the end of the row to each key.

        p_ij    = Σ_l gate(product_il)      over the visible keys l > j (l ≥ j: `own`)
        bias_ij = fn(numbers_i, p_ij)

    The product is q·k after rotations times the scale, without any other term, or the product of
    the two halves of a state, as for `TokenProduct`. Keys count in the order of the array.

    Attributes:
      gate: the function of products, elementwise.
      fn: the function of numbers [B or 1, H, T, C] (None: there are none) and sums [B, H, T, S].
        Elementwise if C is 1, as kernels have keys and queries the other way round too; of several
        numbers they have `interpolate` alone.
      numbers: `numbers(arrays, q)` gives C numbers per query, float32 [B or 1, H, T, C], from the
        queries before rotations times the scale, float32 [B, H, T, E]; or None.
      arrays: parameters, which lead with an axis of heads, H or 1.
      own: whether the sum at a key counts the key itself.
      limit: gates are never negative and `fn` is constant for sums from here on; None: no limit.
        Only tiles in which a sum is below it then pay for the gates.
      decays: gates are never positive, and the bias is 0 for a sum of 0 and never rises as the sum
        falls. Engines then stop in a row where all further keys are negligible.
      state: 2C numbers of each token; None: the product is q·k.
    """

    gate: Callable = static()
    fn: Callable = static()
    numbers: Callable | None = static(default=None)
    arrays: Any = None
    own: bool = static(default=False)
    limit: float | None = static(default=None)
    decays: bool = static(default=False)  # pyright: ignore[reportIncompatibleVariableOverride]
    state: State | None = None

    @property
    def costly_near(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether rows settle, or fade, within few keys, as where gates are of q·k."""
        return self.state is None

    @property
    def key_width(self):
        return 0 if self.state is None else self.state.width // 2

    @property
    def reads_raw(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return "q" if self.numbers is not None else ""

    def of_queries(self, q: jax.Array | None) -> jax.Array | None:
        """The numbers [B or 1, H, T, C] of queries [B, H, T, E] before rotations, scaled."""
        return None if self.numbers is None else self.numbers(self.arrays, q)

    def prepare(self, q, k, states, scale):
        """The queries' numbers and half of their state, and the keys' half."""
        raw = None if q.raw is None else scale * q.raw.astype(jnp.float32)
        left, right = (None, None) if self.state is None else halves(self.state, states)
        return (self.of_queries(raw), left), right

    def row(self, q, k, states, products, visible, before):
        """Carries the sums of the gates. Beyond the limit none are computed."""
        return self._row(states, products, visible, before)

    @jax.jit  # its branches are compiled once
    def _row(self, states, products, visible, before):
        if self.limit is None:
            return self._counted(states, products, visible, before)
        before = varying_like(before, products)
        settled = self.settled(before) | ~visible.any(-1, keepdims=True)
        return jax.lax.cond(
            settled.all(),
            lambda: (jnp.broadcast_to(self.bias_of(states, before), products.shape), before),
            lambda: self._counted(states, products, visible, before),
        )

    def _counted(self, states, products, visible, before):
        """`row` with the gates of the block."""
        (numbers, left), right = states
        if left is not None:
            product = einsum("...tc,...sc->...ts", left, right)
            products = jnp.broadcast_to(product, products.shape)
        gates = jnp.where(visible, self.gate(products), 0)
        bias = self.fn(numbers, before + suffix_sums(gates, self.own))
        return bias, before + gates.sum(-1, keepdims=True)

    def settled(self, before):
        return super().settled(before) if self.limit is None else before >= self.limit

    def bias_of(self, states, before):
        return self.fn(states[0][0], before)

    def for_heads(self, share):
        return dataclasses.replace(self, arrays=jax.tree.map(lambda x: share(x, 0), self.arrays))


def interpolate(values: jax.Array, indices: jax.Array) -> jax.Array:
    """`values` at fractional indices, linear in between: [..., T, S].

    Args:
      values: float32 [..., T, P].
      indices: float32 [..., T, S], at least 0; beyond P - 1 they are P - 1.
    """
    indices = jnp.minimum(indices, values.shape[-1] - 1)
    whole = jnp.floor(indices)
    low = whole.astype(jnp.int32)
    high = jnp.minimum(low + 1, values.shape[-1] - 1)
    below, above = (jnp.take_along_axis(values, at, axis=-1) for at in (low, high))
    share = indices - whole
    return (1 - share) * below + share * above


def suffix_sums(x: jax.Array, own: bool) -> jax.Array:
    """The sum over all later columns, with `own` also over the column itself: [..., c] → [..., c].

    Blocks, and columns within a block, are summed by products with triangles of ones: XLA's
    cumulative sums take several times as long on a CPU.
    """
    *lead, columns = x.shape
    if jax.export.is_symbolic_dim(columns) or columns <= BLOCK:
        return _triangle_sums(x, own)
    padded = jnp.pad(x, [(0, 0)] * len(lead) + [(0, -columns % BLOCK)])
    blocks = padded.reshape(*lead, -1, BLOCK)
    later = suffix_sums(blocks.sum(-1), False)
    sums = _triangle_sums(blocks, own) + later[..., None]
    return sums.reshape(padded.shape)[..., :columns]


def _triangle_sums(x: jax.Array, own: bool) -> jax.Array:
    index = jnp.arange(x.shape[-1], dtype=jnp.int32)
    later = index[:, None] >= index[None] + int(not own)
    return matmul(x, later.astype(x.dtype))

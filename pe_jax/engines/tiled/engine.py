"""Attention tile by tile, forward and backward, in O(L) memory.

An online softmax over key blocks (Milakov & Gimelshein, arXiv 1805.02867; FlashAttention, arXiv
2205.14135), with a custom VJP that recomputes each tile: `passes` visits the tiles.

T queries, F value width.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.first_order import call_in_reverse, first_order
from pe_jax.engines.tiled import passes
from pe_jax.engines.tiled.setup import (
    FIXED,
    OPERANDS,
    RESULT,
    Fixed,
    Operands,
    Result,
    Setup,
    lay_out,
    set_up,
)
from pe_jax.engines.tiled.tiles import CHOSEN, Partition, TileSizes, devices
from pe_jax.numerics.arrays import varying_like


@dataclasses.dataclass(frozen=True)
class Tiled:
    """The tiled engine with tiles of given sizes: `attention(…, implementation=Tiled(sizes))`."""

    sizes: TileSizes = CHOSEN

    def __call__(
        self,
        spec: AttentionSpec,
        terms: tuple,
        q: Side,
        k: Side,
        v: jax.Array,
        *,
        dropout: Dropout | None = None,
    ):
        """As `reference.attend`."""
        return attend(spec, terms, q, k, v, self.sizes, dropout=dropout)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    sizes: TileSizes = CHOSEN,
    *,
    dropout: Dropout | None = None,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, in tiles; gradients reach vectors, states and terms, not positions.

    Raises:
      ValueError: a kind of term that it does not know.
    """
    partition = Partition(devices=devices(q.x, k.x, v))
    setup = set_up(spec, terms, q.x, k.x, partition, sizes)
    own = setup.own_terms(terms)
    operands, fixed = lay_out(setup, terms, q, k, v, partition, dropout)
    operands = operands._replace(tables=setup.tables(own))
    operands = varying_like(operands, operands)
    fixed = fixed._replace(max_bias=setup.max_bias(own, fixed.q, fixed.k))
    queries = q.x.shape[2]
    result = call_in_reverse(_attend, setup, operands, fixed)
    lse = setup.whole_lse(own, q, result.lse[:, :, :queries])
    return result.out[:, :, :queries], lse


def forward(setup: Setup, operands: Operands, fixed: Fixed) -> Result:
    """Attention over these keys alone."""
    q, v = operands.q.x, operands.v
    out, lse = (jax.ShapeDtypeStruct((*q.shape[:3], n), jnp.float32) for n in (v.shape[-1], 1))
    run = functools.partial(passes.forward, setup)
    return setup.groups.map(run, (OPERANDS, FIXED), (operands, fixed), RESULT, Result(out, lse))


def backward(
    setup: Setup, operands: Operands, fixed: Fixed, result: Result, cotangent: Result
) -> Operands:
    """Gradients, where `result` is that over all keys, of which these may be some."""
    run = functools.partial(passes.backward, setup)
    axes = (OPERANDS, FIXED, RESULT, RESULT)
    return setup.groups.map(run, axes, (operands, fixed, result, cotangent), OPERANDS, operands)


def _attend_forward(setup: Setup, operands: Operands, fixed: Fixed):
    result = forward(setup, operands, fixed)
    return result, (operands, fixed, result)


def _attend_backward(setup: Setup, saved, cotangent: Result):
    (operands, fixed, result), cotangent = first_order((saved, cotangent))
    grads = backward(setup, operands, fixed, result, cotangent)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, operands), None


_attend: Any = jax.custom_vjp(forward, nondiff_argnums=(0,))
_attend.defvjp(_attend_forward, _attend_backward)

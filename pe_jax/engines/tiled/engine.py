"""Attention tile by tile, forward and backward, in O(L) memory.

An online softmax over blocks of keys (Milakov & Gimelshein, arXiv 1805.02867; FlashAttention, arXiv
2205.14135), with a custom VJP that computes each tile again.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines import block
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.first_order import call_in_reverse, first_order
from pe_jax.engines.tiled import passes
from pe_jax.engines.tiled.plan import (
    NONDIFF,
    OPERANDS,
    RESULT,
    NonDiff,
    Operands,
    Plan,
    Result,
    lay_out,
    make_plan,
    with_tables,
)
from pe_jax.engines.tiled.sizes import CHOSEN, TileSizes, devices
from pe_jax.numerics.arrays import varying_like


@dataclasses.dataclass(frozen=True)
class Tiled:
    """The tiled engine with tiles of given sizes: `attention(…, implementation=Tiled(sizes))`."""

    sizes: TileSizes = CHOSEN

    def __call__(
        self, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array, **options: Any
    ) -> tuple[jax.Array, jax.Array]:
        """As `reference.attend`."""
        return attend(spec, terms, q, k, v, sizes=self.sizes, **options)


def attend(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    dropout: Any = None,
    sizes: TileSizes = CHOSEN,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, in tiles; gradients reach vectors, states and terms, not positions.

    Raises:
      ValueError: a kind of term that this engine does not support, or not in such a call.
    """
    block.require_known(terms, "the tiled engine")
    for term in terms:
        if term.whole_rows(spec):
            name = type(term).__name__
            raise ValueError(f"{name} in tiles: {NEEDS}; pass implementation='dense' or None")
    terms = tuple(term.in_tiles(spec) for term in terms)
    run = functools.partial(_in_order, dropout=dropout, sizes=sizes)
    if any(term.has_tile_states for term in terms) and q.tokens.segments is not None:
        return block.side_by_side(run, spec, terms, q, k, v)
    return run(spec, terms, q, k, v)


NEEDS = "queries and keys must be the same tokens in order, under a causal mask"


def _in_order(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    *,
    dropout: Any,
    sizes: TileSizes,
) -> tuple[jax.Array, jax.Array]:
    """`attend` with terms as tiles evaluate them."""
    options = {"devices": devices(q.x, k.x, v), "segments": q.tokens.segments is not None}
    (batch, heads, queries, _), (_, kv_heads, keys, _) = q.x.shape, k.x.shape
    shapes = (batch, heads, queries), (kv_heads, keys)
    terms, q, k = block.products_as_channels(spec, terms, q, k)
    plan = make_plan(spec, terms, *shapes, sizes, **options)
    q, k = block.prepare(spec, terms, q, k)
    operands, nondiff = lay_out(plan, terms, q, k, v, dropout)
    operands = with_tables(plan, operands)
    operands = varying_like(operands, operands)
    result = call_in_reverse(_attend, plan, operands, nondiff)
    return result.out[:, :, :queries], result.lse[:, :, :queries]


# Eager calls of one kind share a program: without jit, loops over new closures compile each time.
@functools.partial(jax.jit, static_argnums=0, inline=True)
def forward(plan: Plan, operands: Operands, nondiff: NonDiff) -> Result:
    """Attention over these keys alone."""
    q, v = operands.q.x, operands.v
    out, lse = (jax.ShapeDtypeStruct((*q.shape[:3], n), jnp.float32) for n in (v.shape[-1], 1))
    run = functools.partial(passes.forward, plan)
    axes = OPERANDS, NONDIFF
    return plan.groups.map(run, axes, (operands, nondiff), RESULT, Result(out, lse))


@functools.partial(jax.jit, static_argnums=0, inline=True)
def backward(
    plan: Plan, operands: Operands, nondiff: NonDiff, result: Result, cotangent: Result
) -> Operands:
    """Gradients, float32; `result` is over all keys, of which these may be a part."""
    run = functools.partial(passes.backward, plan)
    axes = (OPERANDS, NONDIFF, RESULT, RESULT)
    return plan.groups.map(run, axes, (operands, nondiff, result, cotangent), OPERANDS, operands)


def _attend_forward(plan: Plan, operands: Operands, nondiff: NonDiff):
    result = forward(plan, operands, nondiff)
    return result, (operands, nondiff, result)


def _attend_backward(plan: Plan, saved, cotangent: Result):
    (operands, nondiff, result), cotangent = first_order((saved, cotangent))
    grads = backward(plan, operands, nondiff, result, cotangent)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, operands), None


_attend: Any = jax.custom_vjp(forward, nondiff_argnums=(0,))
_attend.defvjp(_attend_forward, _attend_backward)

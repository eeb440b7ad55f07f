"""What a device of a ring computes in one hop, in tiles of XLA: any scheme, any number of tokens.

A hop is the queries of a device and the keys that visit it, one or two runs of contiguous tokens
each. A tile lies within two runs, so its distances follow from the indices of their first tokens.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines import block
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.block import LOWEST
from pe_jax.engines.tiled import engine as tiled
from pe_jax.engines.tiled import schedule
from pe_jax.engines.tiled.passes import join_rows, zeros_for
from pe_jax.engines.tiled.plan import (
    NonDiff,
    Operands,
    Plan,
    Result,
    lay_out,
    make_plan,
    with_tables,
)
from pe_jax.engines.tiled.sizes import TileSizes
from pe_jax.numerics.arrays import varying_like


class Partition(NamedTuple):
    """How devices share a call."""

    runs_per_row: int  # contiguous runs of tokens that a row is cut into
    runs: int  # those that one device holds
    batch: int  # devices that share the batch, each with separate rows
    heads: int  # devices that share the heads, each with separate heads


class TileHops(NamedTuple):
    """The static part of a call."""

    plan: Plan  # of two runs
    split: Partition

    @classmethod
    def begin(
        cls,
        sizes: TileSizes,
        split: Partition,
        spec: AttentionSpec,
        terms: tuple,
        q: Side,
        k: Side,
        v: jax.Array,
    ) -> tuple["TileHops", Operands, NonDiff]:
        """The hops of a call, and its operands.

        Each hop makes tables of its distances: tables of all distances of a row would not shrink
        with the number of devices.
        """
        block.require_known(terms, "a ring", block.PAIRS)
        (batch, heads, length, _), kv_heads = q.x.shape, k.x.shape[1]
        run = length // split.runs_per_row
        queries = batch // split.batch, heads // split.heads, run
        keys = kv_heads // split.heads, run
        segments = q.tokens.segments is not None
        plan = make_plan(spec, terms, queries, keys, sizes, segments=segments, on_ring=True)
        q, k = block.prepare(spec, terms, q, k)
        operands, nondiff = lay_out(plan, terms, q, k, v, runs=split.runs_per_row)
        return cls(plan, split), operands, nondiff

    def whole(self, result: Result) -> tuple[jax.Array, jax.Array]:
        """The output and the logarithms of rows' sums, without padding."""
        runs, run = self.split.runs_per_row, self.plan.lengths[0]

        def cut(x):
            x = x.reshape(*x.shape[:2], runs, -1, x.shape[3])[:, :, :, :run]
            return x.reshape(*x.shape[:2], runs * run, x.shape[4])

        return cut(result.out), cut(result.lse)

    def forward(self, operands: Operands, nondiff: NonDiff) -> Result:
        """Attention over the keys of a hop; the terms are those of the device's heads."""
        of_q, of_k = self._runs(operands, nondiff)

        def of_queries(queries):
            def meet(result, keys):
                x, pair = _pair(operands, queries, keys)

                def run():
                    return tiled.forward(self.plan, with_tables(self.plan, x, pair.base), pair)

                return result.merged(self._unless_hidden(pair, run, nothing, x)), None

            shape = *queries[0].x.shape[:3], operands.v.shape[-1]
            nothing = Result(
                jnp.zeros(shape, jnp.float32), jnp.full((*shape[:3], 1), LOWEST, jnp.float32)
            )
            nothing = varying_like(nothing, operands)
            return jax.lax.scan(meet, nothing, of_k)[0]

        return jax.tree.map(join_rows, jax.lax.map(of_queries, of_q))

    def backward(
        self, operands: Operands, nondiff: NonDiff, result: Result, cotangent: Result
    ) -> Operands:
        """Gradients, float32; `result` is over all keys."""
        of_q, of_k = self._runs(operands, nondiff)

        zeros = functools.partial(zeros_for, operands)

        def of_queries(carry, of_run):
            queries, result, cotangent = of_run

            def meet(carry, keys):
                d_q, d_terms = carry
                x, pair = _pair(operands, queries, keys)

                def run():
                    def tabled(terms):
                        return with_tables(self.plan, x._replace(terms=terms), pair.base)[3:]

                    outputs, pull = jax.vjp(tabled, x.terms)
                    inputs = Operands(x.q, x.k, x.v, *outputs)
                    grads = tiled.backward(self.plan, inputs, pair, result, cotangent)
                    d_outputs = jax.tree.map(lambda g, y: g.astype(y.dtype), grads[3:], outputs)
                    (terms,) = pull(d_outputs)
                    return grads._replace(tables=None, terms=terms)

                nothing = zeros(x._replace(tables=None))
                grads = self._unless_hidden(pair, run, nothing, x)
                d_q, d_terms = jax.tree.map(jnp.add, (d_q, d_terms), (grads.q, grads.terms))
                return (d_q, d_terms), (grads.k, grads.v)

            d_terms, d_keys = carry
            start = zeros(queries[0]), d_terms
            (d_q, d_terms), d_of_run = jax.lax.scan(meet, start, of_k)
            return (d_terms, jax.tree.map(jnp.add, d_keys, d_of_run)), d_q

        start = zeros(operands.terms), zeros(of_k[:2])
        runs = of_q, *jax.tree.map(self._split, (result, cotangent))
        (d_terms, d_keys), d_q = jax.lax.scan(of_queries, start, runs)
        d_q, (d_k, d_v) = jax.tree.map(join_rows, (d_q, d_keys))
        return Operands(d_q, d_k, d_v, tables=None, terms=d_terms)

    def _split(self, x: jax.Array, axis: int = 2) -> jax.Array:
        """The runs along an axis, as the first axis."""
        x = x.reshape(*x.shape[:axis], self.split.runs, -1, *x.shape[axis + 1 :])
        return jnp.moveaxis(x, axis, 0)

    def _runs(self, x: Operands, nondiff: NonDiff) -> tuple[tuple, tuple]:
        """Runs of queries (vectors, own scores, tokens) and of keys (vectors, values, tokens)."""
        of_q, of_k = jax.tree.map(self._split, ((x.q, nondiff.own_scores), (x.k, x.v)))
        tokens = jax.tree.map(lambda x: self._split(x, 1), (nondiff.q, nondiff.k))
        return (*of_q, tokens[0]), (*of_k, tokens[1])

    def _unless_hidden(self, nondiff: NonDiff, f: Any, nothing: Any, like: Any):
        """f(); or `nothing`, with the same types, where the mask hides all of two runs."""
        visible = schedule.visible(self.plan, nondiff.q, nondiff.k)[0].any()
        return jax.lax.cond(visible, f, lambda: varying_like(nothing, like))


def _pair(operands: Operands, queries: tuple, keys: tuple) -> tuple[Operands, NonDiff]:
    """The operands of two runs, as `_runs` gives them."""
    (q, own_scores, q_tokens), (k, v, k_tokens) = queries, keys
    base = q_tokens.index[0, 0] - k_tokens.index[0, 0]
    nondiff = NonDiff(q_tokens, k_tokens, base, own_scores=own_scores)
    return operands._replace(q=q, k=k, v=v), nondiff

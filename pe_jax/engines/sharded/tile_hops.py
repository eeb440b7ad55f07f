"""What a device of a ring computes in one hop, in tiles of XLA: any scheme, any number of tokens.

A hop is the queries of a device and the keys that visit it.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.tiled import engine as tiled
from pe_jax.engines.tiled import schedule
from pe_jax.engines.tiled.padding import stretch
from pe_jax.engines.tiled.setup import Fixed, Operands, Result, Setup, lay_out, set_up
from pe_jax.engines.tiled.tiles import Partition, TileSizes
from pe_jax.numerics.arrays import varying_like


class TileHops(NamedTuple):
    """What is static about a call. `KernelHops` of the TPU's engine has the same methods."""

    setup: Setup
    split: Partition

    typed = True  # results say along which mesh axes they vary

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
    ) -> tuple["TileHops", Operands, Fixed]:
        """The hops of a call, and its operands, with terms in the place of their tables.

        Tables are made in each hop, for the distances that occur in it: over all that occur in a
        row they would not shrink with the number of devices.
        """
        setup = set_up(spec, terms, q.x, k.x, split, sizes)
        operands, fixed = lay_out(setup, terms, q, k, v, split)
        return cls(setup, split), operands._replace(tables=setup.own_terms(terms)), fixed

    def whole(self, terms: tuple, q: Side, result: Result) -> tuple[jax.Array, jax.Array]:
        """The output and the logarithms of rows' sums, without padding."""
        runs, length = self.split.runs_per_row, q.x.shape[2]
        out, lse = (stretch(x, 2, length // runs, runs) for x in result)
        return out, self.setup.whole_lse(self.setup.own_terms(terms), q, lse)

    def forward(self, operands: Operands, fixed: Fixed) -> Result:
        """Attention over the keys of a hop; the tables are terms of the device's heads."""
        operands, fixed, _ = self._with_tables(operands, fixed)
        shape = operands.q.x.shape[:3]
        nothing = Result(
            jnp.zeros((*shape, operands.v.shape[-1]), jnp.float32),
            jnp.full((*shape, 1), LOWEST, jnp.float32),
        )
        run = functools.partial(tiled.forward, self.setup, operands, fixed)
        return self._unless_hidden(operands, fixed, run, nothing)

    def backward(
        self, operands: Operands, fixed: Fixed, result: Result, cotangent: Result
    ) -> Operands:
        """Gradients, float32, where `result` is that over all keys."""
        terms = operands.tables
        operands, fixed, pull = self._with_tables(operands, fixed)

        def gradients():
            grads = tiled.backward(self.setup, operands, fixed, result, cotangent)
            (of_terms,) = pull(grads.tables)
            vectors = jax.tree.map(lambda x: x.astype(jnp.float32), grads._replace(tables=None))
            return vectors._replace(tables=of_terms)

        vectors = operands._replace(tables=None)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), vectors)
        nothing = nothing._replace(tables=jax.tree.map(jnp.zeros_like, terms))
        return self._unless_hidden(operands, fixed, gradients, nothing)

    def _with_tables(self, operands: Operands, fixed: Fixed):
        """The same with tables, and what pulls the gradient of these back to the terms."""
        setup, terms = self.setup, operands.tables
        run_gaps = setup.grid.run_gaps(fixed.q, fixed.k) if setup.spec.contiguous else None
        made, pull = jax.vjp(lambda terms: setup.tables(terms, run_gaps), terms)
        max_bias = setup.max_bias(terms, fixed.q, fixed.k)
        return operands._replace(tables=made), fixed._replace(max_bias=max_bias), pull

    def _unless_hidden(self, operands: Operands, fixed: Fixed, f, nothing: Any):
        """f(); or `nothing`, typed alike, where the mask hides the whole hop."""
        seen = schedule.shows_any(self.setup, fixed.q, fixed.k)
        return jax.lax.cond(seen, f, lambda: varying_like(nothing, operands.q))

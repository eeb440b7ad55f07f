"""What a device of a ring computes in one hop, in the TPU's kernels.

Tokens lie in runs, of which a device has one or two. A block is within a run, so that the distances
of a tile follow from where its first query and its first key are.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import query_chunks
from pe_jax.engines.kernels.tpu import engine, operands, passes
from pe_jax.engines.kernels.tpu.plan import Arrays, Plan
from pe_jax.engines.reference import LOWEST
from pe_jax.engines.sharded.ring import Partition
from pe_jax.engines.tiled.plan import Fixed, Operands, Result


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The kernels with a given block: `attention(…, implementation=Kernels(block=16))`."""

    block: int | None = None
    interpret: bool = False

    def __call__(self, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array):
        """As `reference.attend`."""
        return engine.attend(spec, terms, q, k, v, block=self.block, interpret=self.interpret)

    def begin(
        self, split: Partition, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
    ) -> tuple["KernelHops", Operands, Fixed]:
        """As `TileHops.begin`, for calls without a `refusal`."""
        run = q.x.shape[2] // split.runs_per_row
        q, k, v = operands.with_products(spec, terms, q, k, v)
        plan = engine.make_plan(spec, terms, q, self.block or block_of(run), self.interpret)
        # Products are channels of q and k by now.
        elsewhere = tuple(isinstance(term, kinds.Outside | kinds.TokenProduct) for term in terms)
        terms, q, k = query_chunks.of_kernels(elsewhere, terms, q, k)

        def vectors(side):
            def of_rows(x):
                return jnp.broadcast_to(x, (len(side.x), *x.shape[1:]))

            return Side(side.x, side.raw, jax.tree.map(of_rows, side.states))

        terms = tuple(term.without_state_arrays() for term in terms)
        x = Operands(vectors(q), vectors(k), v, tables=None, terms=terms)
        fixed = Fixed(q.tokens, k.tokens)
        return KernelHops(_shared(plan, split)), x, fixed


def refusal(
    split: Partition, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
) -> str | None:
    """Why the kernels cannot run in a ring; None where they can."""
    run = q.x.shape[2] // split.runs_per_row
    if block_of(run) < engine.LANES:
        return f"devices have runs of {run} tokens: not of whole blocks of {engine.LANES}"
    if (why := engine.refusal(spec, terms, q, k, v)) is not None:
        return why
    if any(engine.in_chunks(spec, terms)):
        return "in a ring it has no biases of pairs of positions"
    return None


def block_of(run: int) -> int:
    """The tokens of a block: the largest power of two, up to `MAX_BLOCK`, that divides a run."""
    return min(engine.MAX_BLOCK, run & -run)


def _shared(plan: Plan, split: Partition) -> Plan:
    """The plan for one hop; its numbers of tiles are means over hops."""
    whole, devices = engine.counted(plan), split.runs_per_row // split.runs
    blocks, hops = plan.tokens // devices // plan.block, devices * (split.hops + 1)
    # Which blocks matter is only known for whole rows.
    tiles, near = whole.tiles / hops, whole.near / hops
    return dataclasses.replace(plan, steps=(blocks, blocks), tiles=tiles, near=near, decays=False)


class KernelHops(NamedTuple):
    """The static part of a call; the methods are those of `TileHops`."""

    plan: Plan

    typed = False  # kernels do not say along which mesh axes their results vary

    def whole(self, result: Result) -> tuple[jax.Array, jax.Array]:
        """The output and the logarithms of rows' sums."""
        return result.out, result.lse

    def forward(self, x: Operands, fixed: Fixed) -> Result:
        """Attention over the keys of a hop; the terms are those of the device's heads."""
        arrays = self._arrays(fixed, x.terms, x.q, x.k, x.v)
        result = passes.forward(self.plan, arrays, jnp.float32)
        lse = jnp.where(result.lse == -LOWEST, LOWEST, result.lse)
        return Result(result.out, jnp.swapaxes(lse, 2, 3))

    def backward(self, x: Operands, fixed: Fixed, result: Result, cotangent: Result) -> Operands:
        """Gradients, float32; `result` is over all keys."""

        def arrays_of(*x):
            return self._arrays(fixed, *x)

        arrays, pull = jax.vjp(arrays_of, x.terms, x.q, x.k, x.v)
        lse = jnp.swapaxes(jnp.where(result.lse == LOWEST, -LOWEST, result.lse), 2, 3)
        learned = [name for name, a in zip(Arrays._fields, arrays, strict=True) if a is not None]
        results = result.out, lse
        grads = passes.backward(self.plan, arrays, results, cotangent, learned, jnp.float32)
        of_q, of_k, of_v = grads[:3]
        # q, k and v are operands as they are: their gradients need no rounding.
        others = grads._replace(q=None, k=None, v=None)
        terms, q, k, _ = pull(Arrays(*map(_cotangent, others, arrays)))
        vectors = jax.tree.map(lambda x: x.astype(jnp.float32), (q, k))
        q, k = vectors[0]._replace(x=of_q), vectors[1]._replace(x=of_k)
        return Operands(q, k, of_v, tables=None, terms=terms)

    def _arrays(self, fixed: Fixed, terms: tuple, q: Side, k: Side, v: jax.Array) -> Arrays:
        """What the kernels read; none of it is padded."""
        q, k = q._replace(tokens=fixed.q), k._replace(tokens=fixed.k)
        return operands.make_arrays(self.plan, terms, q, k, v)


def _cotangent(grad: Any, x: Any) -> Any:
    """The gradient of an array x as `jax.vjp` takes it: in its dtype, float0 for integers."""
    if x is None:
        return None
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return np.zeros(x.shape, jax.dtypes.float0)
    return jnp.zeros_like(x) if grad is None else grad.astype(x.dtype)

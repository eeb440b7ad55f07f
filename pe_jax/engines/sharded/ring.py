"""Ring attention, for rows whose tokens several devices share.

Liu et al., "Ring Attention with Blockwise Transformers", arXiv 2310.01889: each device keeps its
queries, and keys and values travel round the ring, one device per hop. A hop computes tiles with
the positions, indices and segments of the tokens that it meets (`tile_hops`); hops are merged by
the logarithms of their sums. The backward pass sends keys and values round once more, and their
gradients with them. Memory is linear in the tokens of a device, forward and backward. A window
stops the ring at the farthest device that it reaches.

b, h batch and heads on a device, n devices on the ring, T tokens of a row, F value width.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pe_jax.encodings.terms import AroundEngine, Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.first_order import first_order
from pe_jax.engines.sharded.heads import HeadsOfDevice
from pe_jax.engines.sharded.layout import BlockPermuted
from pe_jax.engines.sharded.tile_hops import Partition, TileHops
from pe_jax.engines.tiled.groups import Axes, map_by_axes
from pe_jax.engines.tiled.plan import NONDIFF, OPERANDS, RESULT, NonDiff, Operands, Result
from pe_jax.engines.tiled.sizes import TileSizes
from pe_jax.numerics.arrays import varying_like


def attend(
    layout: BlockPermuted,
    sizes: TileSizes,
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`, for tokens that lie as `layout` says; under jit.

    Raises:
      ValueError: a kind of term that a hop does not support; rows or tokens that do not divide
        among the devices.
    """
    split, (batch, _, length, _), kv_heads = partition(layout), q.x.shape, k.x.shape[1]
    if batch % split.batch:
        axes = f"{layout.batch}={split.batch}"
        raise ValueError(f"{batch} rows: must divide over the mesh axes {axes}")
    if kv_heads % split.heads:
        raise ValueError(f"{kv_heads} key heads: must divide over the mesh axis {layout.heads!r}")
    layout.order(length)  # raises where the tokens do not divide
    each, operands, nondiff = TileHops.begin(sizes, split, spec, terms, q, k, v)
    farthest = hops(layout, spec, length)
    return each.whole(_attend(Ring(layout, each, farthest), operands, nondiff))


def partition(layout: BlockPermuted) -> Partition:
    """Each device's part of a call."""
    rows = math.prod(layout.mesh.shape[axis] for axis in layout.batch)
    heads = layout.mesh.shape[layout.heads] if layout.heads else 1
    blocks = len(layout.blocks)
    return Partition(blocks, blocks // layout.devices, rows, heads)


def hops(layout: BlockPermuted, spec: AttentionSpec, length: int) -> int:
    """The largest number of devices, back along the ring, from a query to a key that it sees."""
    size = length // len(layout.blocks)
    first = size * layout.blocks.reshape(layout.devices, -1)
    ahead = first[:, None, :, None] - first[None, :, None, :]  # of the first tokens: [n, n, …]
    visible = np.ones(ahead.shape, bool)
    if spec.causal:
        visible &= ahead + size > 0
    if spec.window is not None and not spec.sinks:
        visible &= (ahead - size < spec.window - 1) & (-ahead - size < spec.window - 1)
    device, other = np.nonzero(visible.any((2, 3)))
    return int(((device - other) % layout.devices).max())


class Ring(NamedTuple):
    """The static part of a call on devices that share rows."""

    layout: BlockPermuted
    each: TileHops  # computes a hop
    hops: int

    def send(self, tree, distance: int = 1):
        """`ppermute`s each device's part `distance` steps around the ring."""
        n = self.layout.devices
        pairs = [(i, (i + distance) % n) for i in range(n)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.layout.axis, pairs), tree)

    def for_heads(self, terms: tuple) -> tuple:
        """The terms of the device's heads."""
        axis = self.layout.heads
        if axis is None:
            return terms
        share = HeadsOfDevice(axis)  # terms outside the engine have no arrays here
        return tuple(t if isinstance(t, AroundEngine) else t.for_heads(share) for t in terms)

    def on_devices(self, f, axes: tuple, args: tuple, out_axes: Any) -> Any:
        """f(*args) on each device, which has its part by `axes` (`HEADS`: terms, which are whole).

        The heads are not left to the compiler either: the TPU's would gather all on each device.
        """
        return jax.shard_map(
            f,
            mesh=self.layout.mesh,
            in_specs=map_by_axes(self._spec, axes, args),
            out_specs=jax.tree.map(self._spec, out_axes),
        )(*args)

    def _spec(self, axes: Axes, x: Any = None) -> PartitionSpec:
        batch, heads, tokens = self.layout.batch, self.layout.heads, self.layout.axis
        if axes is Axes.BATCH_AND_HEADS:
            return PartitionSpec(batch, heads, tokens)
        if axes is Axes.BATCH:
            return PartitionSpec(None if len(x) == 1 else batch, tokens)
        return PartitionSpec()


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(ring: Ring, operands: Operands, nondiff: NonDiff) -> Result:
    return _forward(ring, operands, nondiff)[0]


def _forward(ring: Ring, operands: Operands, nondiff: NonDiff):
    def device(operands, nondiff):
        operands, local = _begin(operands, nondiff)
        operands = operands._replace(terms=ring.for_heads(operands.terms))

        def hop(keys):
            return ring.each.forward(*_meet(operands, nondiff, keys))

        return _round(ring, local, lambda result, keys: result.merged(hop(keys)), hop(local))

    args = operands, nondiff
    result = ring.on_devices(device, (OPERANDS, NONDIFF), args, RESULT)
    return result, (operands, nondiff, result)


def _backward(ring: Ring, saved: tuple, cotangent: Result):
    saved, cotangent = first_order((saved, cotangent))

    def device(operands, nondiff, result, cotangent):
        operands, local = _begin(operands, nondiff)
        terms, pull = jax.vjp(ring.for_heads, operands.terms)
        operands = operands._replace(terms=terms)

        def hop(keys):
            return ring.each.backward(*_meet(operands, nondiff, keys), result, cotangent)

        def visit(grads, keys):
            k, v = ring.send((grads.k, grads.v))
            return _add(grads._replace(k=k, v=v), hop(keys))

        grads = hop(local)
        home = grads.k, grads.v  # gradients of this device's keys, by its queries
        k, v = varying_like(jax.tree.map(jnp.zeros_like, home), home)
        grads = _round(ring, local, visit, grads._replace(k=k, v=v))
        if ring.hops:
            home = _add(home, ring.send((grads.k, grads.v), -ring.hops))
        (terms,) = pull(grads.terms)
        terms = jax.lax.psum(terms, ring.layout.axes)
        return Operands(grads.q, k=home[0], v=home[1], tables=None, terms=terms)

    axes = OPERANDS, NONDIFF, RESULT, RESULT
    grads = ring.on_devices(device, axes, (*saved, cotangent), OPERANDS)
    return jax.tree.map(lambda g, x: g.astype(x.dtype), grads, saved[0]), None


_attend.defvjp(_forward, _backward)


class Visitor(NamedTuple):
    """The keys and values that a device sends round, and their tokens."""

    k: Side
    v: jax.Array
    tokens: Tokens


def _begin(operands: Operands, nondiff: NonDiff) -> tuple[Operands, Visitor]:
    """The operands, typed as varying over devices, and what this one sends round."""
    terms = varying_like(operands.terms, operands._replace(terms=None))
    return operands._replace(terms=terms), Visitor(operands.k, operands.v, nondiff.k)


def _round(ring: Ring, local: Visitor, visit, carry):
    """The carry after visit(carry, keys of another device) in each hop; hops send the next keys."""

    def step(state, _):
        carry, visitor = state
        coming = ring.send(visitor)
        return (visit(carry, visitor), coming), None

    if not ring.hops:
        return carry
    # Unrolled, the send of the last hop is eliminated, which pays in the short rings of windows.
    start, unroll = (carry, ring.send(local)), ring.hops < 3
    return jax.lax.scan(step, start, length=ring.hops, unroll=unroll)[0][0]


def _meet(operands: Operands, nondiff: NonDiff, keys: Visitor) -> tuple[Operands, NonDiff]:
    """The operands of a hop: the queries of a device and the keys that visit it."""
    return operands._replace(k=keys.k, v=keys.v), nondiff._replace(k=keys.tokens)


def _add(a, b):
    return jax.tree.map(jnp.add, a, b)

"""Rows that lie whole on devices: each device runs the engine that it would run alone.

XLA cannot divide a kernel: left to itself it gathers the rows of all devices on each.
"""

import math
from collections.abc import Callable

import jax
from jax.sharding import PartitionSpec

from pe_jax.encodings.terms import Mask, Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.sharded.layout import RowSharded


def attend(
    layout: RowSharded,
    engine: Callable,
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    **options: Dropout,
):
    """`engine(spec, terms, q, k, v, **options)` on each device with its own rows.

    Raises:
      ValueError: rows that do not divide among the devices.
    """
    rows, devices = len(v), math.prod(layout.mesh.shape[axis] for axis in layout.batch)
    if rows % devices:
        raise ValueError(f"{rows} rows: must divide over the mesh axes {layout.batch}={devices}")

    def partition(x):
        return PartitionSpec(None if len(x) < rows else layout.batch)

    def of_term(term):  # masks have arrays of rows, the others of parameters
        each = partition if isinstance(term, Mask) else lambda x: PartitionSpec()
        return jax.tree.map(each, term)

    operands = (q, k, v), options
    return jax.shard_map(
        lambda terms, operands: engine(spec, terms, *operands[0], **operands[1]),
        mesh=layout.mesh,
        in_specs=(tuple(map(of_term, terms)), jax.tree.map(partition, operands)),
        out_specs=PartitionSpec(layout.batch),
        check_vma=False,  # kernels do not say along which axes their results vary
    )(terms, operands)

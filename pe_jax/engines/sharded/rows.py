"""Rows that lie whole on devices: each device runs the engine that it would run alone.

XLA cannot divide a kernel: left to itself it gathers the rows of all devices on each.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pe_jax.engines.attention_spec import Call
from pe_jax.engines.sharded.layout import RowSharded


def attend(
    layout: RowSharded, choose: Callable[[Call], Callable], *operands: Any, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """As `reference.attend`: on each device the engine that `choose` has for its own rows.

    Raises:
      ValueError: rows that do not divide among the devices.
    """
    call = Call(*operands, **options)
    rows, devices = len(call.v), math.prod(layout.mesh.shape[axis] for axis in layout.batch)
    if rows % devices:
        raise ValueError(f"{rows} rows: must divide over the mesh axes {layout.batch}={devices}")

    def partition(x):
        return PartitionSpec(None if len(x) < rows else layout.batch)

    def of_term(term):  # masks have arrays of rows, the others of parameters
        return jax.tree.map(partition if term.hides else lambda x: PartitionSpec(), term)

    def run(terms, arrays):
        own = arrays._replace(spec=call.spec, terms=terms)
        return choose(own)(*own.operands, **own.options)

    arrays = call._replace(spec=None, terms=None)
    return jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(tuple(map(of_term, call.terms)), jax.tree.map(partition, arrays)),
        out_specs=PartitionSpec(layout.batch),
        check_vma=False,  # kernels do not say along which axes their results vary
    )(call.terms, arrays)

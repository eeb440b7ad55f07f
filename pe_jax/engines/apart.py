"""Rows shared by devices, each row whole on one of them: every device runs what it would alone.

XLA cannot divide a kernel: left to itself it gathers the rows of all devices on each. `ring` is for
rows whose tokens several devices share.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from pe_jax.encodings.terms import Side
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.layout import InOrder


@dataclasses.dataclass(frozen=True)
class Apart(InOrder):
    """How rows lie on a mesh: `attention(…, implementation=Apart(mesh, ("data",)))`, under jit.

    Attributes:
      mesh: the devices; its axes are Auto.
      batch: mesh axes that share the rows. Along the others each device computes the same.
    """

    mesh: Mesh
    batch: tuple[str, ...]

    def run(
        self, engine: Callable, spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array
    ) -> tuple[jax.Array, Any]:
        """`engine`, called as `reference.attend` is, on each device with its own rows.

        Raises:
          ValueError: rows that do not divide among the devices.
        """
        rows, parts = len(q.x), math.prod(self.mesh.shape[axis] for axis in self.batch)
        if rows % parts:
            raise ValueError(f"{rows} rows: must divide over the mesh axes {self.batch}={parts}")

        def divided(x):
            return PartitionSpec(None if len(x) < rows else self.batch)

        sides = q, k, v
        return jax.shard_map(
            lambda terms, sides: engine(spec, terms, *sides),
            mesh=self.mesh,
            in_specs=(PartitionSpec(), jax.tree.map(divided, sides)),
            out_specs=PartitionSpec(self.batch),
            check_vma=False,  # kernels do not say along which axes their results vary
        )(terms, sides)

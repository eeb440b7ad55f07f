"""Rows shared by devices, each row whole on one of them: every device runs what it would alone.

XLA cannot divide a kernel: left to itself it gathers the rows of all devices on each. `ring` is for
rows whose tokens several devices share.
"""

import dataclasses
import math
from collections.abc import Callable

import jax
from jax.sharding import Mesh, PartitionSpec

from pe_jax.encodings.base import Params
from pe_jax.engines.dense import Rules, Tokens
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
        self, engine: Callable, rules: Rules, params: Params, operands: dict, q: Tokens, k: Tokens
    ) -> jax.Array:
        """`engine`, called as `dense.attend` is, on each device with its own rows.

        Raises:
          ValueError: rows that do not divide among the devices.
        """
        rows, parts = len(operands["q"]), math.prod(self.mesh.shape[axis] for axis in self.batch)
        if rows % parts:
            raise ValueError(f"{rows} rows: must divide over the mesh axes {self.batch}={parts}")

        def spec(x):
            return PartitionSpec(None if len(x) < rows else self.batch)

        given = operands, q, k
        return jax.shard_map(
            lambda params, given: engine(rules, params, *given),
            mesh=self.mesh,
            in_specs=(PartitionSpec(), jax.tree.map(spec, given)),
            out_specs=PartitionSpec(self.batch),
            check_vma=False,  # kernels do not say along which axes their results vary
        )(params, given)

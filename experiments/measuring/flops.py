"""Floating-point operations of the matrix products in a traced program, over all devices.

XLA's count is of one turn of each loop; here a scan counts by its length, and a Pallas kernel by
what it declares, or by its grid.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Work(NamedTuple):
    """Operations in all, and those of them that are in Pallas kernels."""

    total: float = 0.0
    kernels: float = 0.0

    def times(self, often: float) -> "Work":
        """So many of it."""
        return Work(often * self.total, often * self.kernels)

    def plus(self, other: "Work") -> "Work":
        """Both."""
        return Work(self.total + other.total, self.kernels + other.kernels)


def count(jaxpr: Any, turns: Sequence[float] = (), share: float = 1.0) -> Work:
    """Twice the multiplications of all products.

    Args:
      jaxpr: as `jit(f).trace(…).jaxpr` has it; a program's parts are counted within.
      turns: of the loops of one part whose bound is not known, in order; the last ones where a part
        has fewer, once where it has more.
      share: of the tiles of a kernel that declares no cost (jax's splash), those that its mask
        leaves.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    open_loops = [id(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    given = dict(zip(open_loops[::-1], reversed(turns), strict=False))
    total = Work()
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        parts = [count(part, turns, share) for part in _parts(params)]
        whole = max(parts, default=Work()) if name == "cond" else _sum(parts)
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shared = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            whole = Work(2.0 * shared * eqn.outvars[0].aval.size)
        elif name == "pallas_call":
            cost = params["cost_estimate"]
            steps = math.prod(params["grid_mapping"].grid)
            own = steps * share * whole.total if cost is None else float(cost.flops)
            whole = Work(own, own)
        elif name == "shard_map":  # its part is of one device
            whole = whole.times(params["mesh"].size)
        elif name == "scan":
            whole = whole.times(params["length"])
        elif name == "while":
            whole = whole.times(given.get(id(eqn), 1))
        total = total.plus(whole)
    return total


def _sum(parts: list[Work]) -> Work:
    total = Work()
    for part in parts:
        total = total.plus(part)
    return total


def _parts(params: dict) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(part, "jaxpr", part), "eqns"):
                yield part

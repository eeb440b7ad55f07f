"""Floating-point operations of the matrix products in a traced program, over all devices.

XLA counts one iteration of each loop; here a scan counts with its length, and a Pallas kernel with
the cost that it declares, or with its grid.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Work(NamedTuple):
    """All operations, and those of them in Pallas kernels."""

    total: float = 0.0
    kernels: float = 0.0

    def times(self, factor: float) -> "Work":
        """The work of `factor` repetitions."""
        return Work(factor * self.total, factor * self.kernels)


def count(jaxpr: Any, turns: Sequence[float] = (), share: float = 1.0) -> Work:
    """Twice the multiplications of all products.

    Args:
      jaxpr: of `jit(f).trace(…)`; nested jaxprs are counted.
      turns: iterations of the while loops of one jaxpr, in order. One with fewer loops takes the
        last of them; further loops count once.
      share: the fraction of tiles that the mask leaves, for kernels that declare no cost (splash).
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    open_loops = [id(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    iterations = dict(zip(open_loops[::-1], reversed(turns), strict=False))
    works = []
    for eqn in jaxpr.eqns:
        name, params = eqn.primitive.name, eqn.params
        parts = [count(part, turns, share) for part in _parts(params)]
        work = max(parts, default=Work()) if name == "cond" else _sum(parts)
        if name == "dot_general":
            (contracted, _), _ = params["dimension_numbers"]
            shared = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            work = Work(2.0 * shared * eqn.outvars[0].aval.size)
        elif name == "pallas_call":
            cost = params["cost_estimate"]
            steps = math.prod(params["grid_mapping"].grid)
            flops = steps * share * work.total if cost is None else float(cost.flops)
            work = Work(flops, flops)
        elif name == "shard_map":  # its jaxpr is that of one device
            work = work.times(params["mesh"].size)
        elif name == "scan":
            work = work.times(params["length"])
        elif name == "while":
            work = work.times(iterations.get(id(eqn), 1))
        works.append(work)
    return _sum(works)


def _sum(parts: list[Work]) -> Work:
    return Work(*map(sum, zip(*parts, strict=True)))


def _parts(params: dict) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(part, "jaxpr", part), "eqns"):
                yield part

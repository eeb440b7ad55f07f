"""Floating-point operations of the matrix products in a traced program, over all devices.

XLA's count is of one turn of each loop; here a scan counts by its length.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any


def count(jaxpr: Any, loops: Sequence[float] = ()) -> float:
    """Twice the multiplications of all products, and what Pallas kernels say of themselves.

    Args:
      jaxpr: as `jit(f).trace(…).jaxpr` has it; a program's parts are counted within.
      loops: turns of the loops of one part whose bound is not known, in order; the last ones where
        a part has fewer, once where it has more.
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    open_loops = [id(eqn) for eqn in jaxpr.eqns if eqn.primitive.name == "while"]
    given = dict(zip(open_loops[::-1], reversed(loops), strict=False))
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shared = math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * shared * eqn.outvars[0].aval.size
        elif name == "pallas_call":
            cost = eqn.params["cost_estimate"]
            total += 0 if cost is None else cost.flops
        else:
            parts = [count(part, loops) for part in _parts(eqn.params)]
            often = eqn.params["length"] if name == "scan" else given.get(id(eqn), 1)
            total += often * (max(parts, default=0) if name == "cond" else sum(parts))
    return total


def _parts(params: dict) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(part, "jaxpr", part), "eqns"):
                yield part

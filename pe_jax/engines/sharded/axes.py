"""Attention under a mesh of Explicit axes: computed under Auto axes, its result laid out as q.

Under Explicit axes every operation must say how its result is divided. In jax 0.10 that would put a
sharding into each gather, reshape, scan and loop carry of the engines; GSPMD finds them all.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, cast, overload

import jax
from jax.sharding import AxisType, PartitionSpec

P = ParamSpec("P")


class Attention(Protocol[P]):
    """The type of f as wrapped: its own arguments, and an output, or two with `return_lse`."""

    @overload
    def __call__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, *, return_lse: Literal[True], **options: Any
    ) -> tuple[jax.Array, jax.Array]: ...

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> jax.Array: ...


def under_auto_axes(f: Callable[P, Any]) -> Attention[P]:
    """Wraps f(q, k, v, **options): [*B, T, H, E] → [*B, T, H, F] so that it runs under Auto axes.

    The result is divided as q is, and whole in its width; with `return_lse` there are two. Without
    Explicit axes nothing changes.
    """
    call: Any = f

    @functools.wraps(f)
    def run(q, k, v, **options) -> Any:
        if AxisType.Explicit not in jax.sharding.get_abstract_mesh().axis_types:
            return call(q, k, v, **options)
        # Non-array options bypass the wrapper and stay static.
        arrays = {n: x for n, x in options.items() if _has_arrays(x)}
        rest = {n: x for n, x in options.items() if n not in arrays}
        spec: Any = jax.typeof(q).sharding.spec
        layout: Any = PartitionSpec(*spec[:-1], None)
        if options.get("return_lse"):
            layout = layout, PartitionSpec(*spec[:-1])

        def inner(qkv, arrays):
            return call(*qkv, **arrays, **rest)

        auto: Any = jax.sharding.auto_axes(inner, out_sharding=layout)
        return auto((q, k, v), arrays)

    return cast(Attention[P], run)


def _has_arrays(x) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))

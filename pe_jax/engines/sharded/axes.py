"""Attention and decoding under a mesh of Explicit axes: computed under Auto axes, laid out as q.

Under Explicit axes every operation must say how its result is sharded. In jax 0.10 that would put a
sharding into each gather, reshape, scan and loop carry of the engines; GSPMD infers them all.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

import jax
from jax.sharding import PartitionSpec

from pe_jax.numerics.arrays import explicit_axes

P = ParamSpec("P")
R = TypeVar("R")


class Attention(Protocol[P]):
    """The type of the wrapped f: the same arguments, and one output, or two with `return_lse`."""

    @overload
    def __call__(
        self, q: jax.Array, k: jax.Array, v: jax.Array, *, return_lse: Literal[True], **options: Any
    ) -> tuple[jax.Array, jax.Array]: ...

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> jax.Array: ...


def under_auto_axes(f: Callable[P, Any]) -> Attention[P]:
    """Wraps f(q, k, v, **options): [*B, T, H, E] → [*B, T, H, F] so that it runs under Auto axes.

    The result is sharded as q is, except along its width; with `return_lse` there are two. Without
    Explicit axes nothing changes.
    """
    plain: Any = f

    @functools.wraps(f)
    def run(q, k, v, **options) -> Any:
        if not explicit_axes():
            return plain(q, k, v, **options)
        spec = jax.typeof(q).sharding.spec
        layout: Any = PartitionSpec(*spec[:-1], None)
        if options.get("return_lse"):
            layout = layout, PartitionSpec(*spec[:-1])
        return call(f, layout, q, k, v, **options)

    return cast(Attention[P], run)


def step_under_auto_axes(f: Callable[P, R]) -> Callable[P, R]:
    """The same for f(cache, q, k, v, **options), which gives an output and a cache.

    The cache keeps its sharding.
    """
    plain: Any = f

    @functools.wraps(f)
    def run(cache, q, *args, **options) -> Any:
        if not explicit_axes():
            return plain(cache, q, *args, **options)
        layout = PartitionSpec(*jax.typeof(q).sharding.spec[:-1], None)
        layouts = layout, jax.tree.map(lambda x: jax.typeof(x).sharding.spec, cache)
        return call(f, layouts, cache, q, *args, **options)

    return cast(Callable[P, R], run)


def call(f: Callable, layouts: Any, *args: Any, **options: Any) -> Any:
    """f(*args, **options) under Auto axes, its result laid out by `layouts`: specs, or a prefix.

    Without Explicit axes this is a plain call.
    """
    if not explicit_axes():
        return f(*args, **options)
    # Non-array options bypass the wrapper and stay static.
    arrays = {n: x for n, x in options.items() if _has_arrays(x)}
    static = {n: x for n, x in options.items() if n not in arrays}

    def inner(args, arrays):
        return f(*args, **arrays, **static)

    auto: Any = jax.sharding.auto_axes(inner, out_sharding=layouts)
    return auto(args, arrays)


def _has_arrays(x) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(x))

"""What the kernels of either device share: refusals, how terms add up, padding, a gradient.

H query heads, C numbers of all formulas, n any shape.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero, custom_vjp_primal_tree_values

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, select
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.first_order import call_in_reverse, first_order

# Before or after an engine.


def unsupported(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    taken: tuple,
    dtypes: set,
    *,
    sinks: bool = False,
) -> str | None:
    """What kernels that take these exact kinds and dtypes lack for a call; None: nothing.

    Subclasses of a kind may mean something else: they are not taken. `sinks`: whether the kernels
    have windows with attention sinks.
    """
    others = [type(term).__name__ for term in terms if type(term) not in kinds.OUTSIDE + taken]
    if others:
        return f"it has no {' or '.join(dict.fromkeys(others))}"
    if kinds.views(terms) is not None:
        return "it has no Rotation with several views of each token"
    if spec.sinks and not sinks:
        return "it has no attention sinks of a window"
    given = {str(x.dtype) for x in (q.x, k.x, v)}
    mixed = len(given) > 1 or not given <= dtypes
    return f"operands in {' and '.join(sorted(given))}" if mixed else None


def horizon(terms: tuple) -> tuple[int, int] | None:
    """Distances beyond which all distance terms are constant; None: one never is, or none is."""
    horizons = [term.horizon for term in select(terms, kinds.DistanceTerm)]
    if not horizons or None in horizons:
        return None
    return min(low for low, _ in horizons), max(high for _, high in horizons)


def distance_bias(terms: tuple, distance: jax.Array, scale: float) -> jax.Array | None:
    """The sum of the biases by distance: float32 [H, *n] for distances [*n], or None."""
    biases = []
    for term in select(terms, kinds.DistanceBias):
        bias = term.at(distance)
        biases.append(bias * scale if term.scaled else bias)
    return functools.reduce(jnp.add, biases) if biases else None


def coefficients(terms: tuple) -> jax.Array | None:
    """The numbers of all formulas: float32 [H, C], or None."""
    numbers = [term.numbers.astype(jnp.float32) for term in select(terms, kinds.DistanceFormula)]
    return jnp.concatenate(numbers, axis=1) if numbers else None


@dataclasses.dataclass(frozen=True)
class FormulaSum:
    """The sum of formulas as one function, static and compared by value."""

    parts: tuple[tuple[Callable, int], ...]  # each function, and how many coefficients it takes

    @classmethod
    def of(cls, terms: tuple) -> "FormulaSum":
        """Of all formulas among the terms."""
        return cls(tuple((t.fn, t.numbers.shape[1]) for t in select(terms, kinds.DistanceFormula)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, coefficients: list[Any], distance: jax.Array) -> jax.Array:
        """The bias of one head from its C coefficients, each of a shape that broadcasts."""
        biases, first = [], 0
        for fn, size in self.parts:
            biases.append(fn(coefficients[first : first + size], distance))
            first += size
        return functools.reduce(jnp.add, biases)


@dataclasses.dataclass(frozen=True)
class TokenSum:
    """The sum of biases of two tokens' numbers as one function, static and compared by value."""

    parts: tuple[tuple[Callable, int], ...]  # each function, and how many numbers it takes

    @classmethod
    def of(cls, terms: tuple) -> "TokenSum":
        """Of all `TokenBias` among the terms."""
        return cls(tuple((t.fn, t.state.width) for t in select(terms, kinds.TokenBias)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, of_query: list[Any], of_key: list[Any]) -> jax.Array:
        """The bias of one head from the numbers of either side, of shapes that broadcast."""
        biases, first = [], 0
        for fn, size in self.parts:
            own = slice(first, first + size)
            biases.append(fn(of_query[own], of_key[own]))
            first += size
        return functools.reduce(jnp.add, biases)


def pad(x: jax.Array, axis: int, multiple: int, **how: Any) -> jax.Array:
    """Pads one axis to a multiple of a size: with zeros, or as `jnp.pad` does by `how`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths, **how) if widths[axis][1] else x


def differentiable(forward: Callable, backward: Callable) -> Callable:
    """`f(plan, x)` of a NamedTuple x, whose gradient need not be computed for constants.

    `forward(plan, x)` gives the results, and what the backward pass reads. `backward(plan, what it
    reads, learned, cotangents)` gives gradients like x, None for zero; `learned` has the names of
    the fields that are not constant.
    """

    def run(plan, x):
        return forward(plan, x)[0]

    def save(plan, x):
        learned = [name for name in x._fields if getattr(getattr(x, name), "perturbed", False)]
        results, saved = forward(plan, custom_vjp_primal_tree_values(x))
        return results, (saved, dict.fromkeys(learned))  # as keys, for only arrays can be values

    def pull(plan, saved, cotangents):
        saved, cotangents = first_order((saved, jax.tree.map(dense, cotangents)))
        return (backward(plan, *saved, cotangents),)

    def dense(x):
        zero = isinstance(x, SymbolicZero)
        return jnp.zeros_like(x) if zero else x  # pyright: ignore[reportArgumentType]

    f = jax.custom_vjp(run, nondiff_argnums=(0,))
    f.defvjp(save, pull, symbolic_zeros=True)
    return functools.partial(call_in_reverse, f)

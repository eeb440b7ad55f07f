"""What kernels make of terms, whatever the device: which they take, and how those of a kind add up.

H query heads, C numbers of all profiles, n any shape.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceTerm,
    Input,
    Profile,
    QueryBias,
    Rotation,
    Scale,
    Sink,
    select,
    split,
)
from pe_jax.engines.attention_spec import AttentionSpec

APPLIED_ELSEWHERE = (Input, QueryBias, Rotation, Scale, Sink)  # before or after an engine


def unsupported(spec: AttentionSpec, terms: tuple, kinds: tuple[type, ...]) -> str | None:
    """What a kernel that takes these exact kinds lacks for a call, in a few words; None: nothing.

    Subclasses of a kind may mean something else: they are not taken.
    """
    taken = (*APPLIED_ELSEWHERE, *kinds)
    others = [type(term).__name__ for term in terms if type(term) not in taken]
    if others:
        return f"it has no {' or '.join(dict.fromkeys(others))}"
    if split(terms) is not None:
        return "it has no Rotation with two views of each key"
    return "it has no attention sinks of a window" if spec.sinks else None


def horizon(terms: tuple) -> tuple[int, int] | None:
    """Distances beyond which all distance terms are constant; None: one never is, or none is."""
    horizons = [term.horizon for term in select(terms, DistanceTerm)]
    if not horizons or None in horizons:
        return None
    return min(low for low, _ in horizons), max(high for _, high in horizons)


def distance_bias(terms: tuple, distance: jax.Array, scale: float) -> jax.Array | None:
    """The sum of the biases by distance: float32 [H, *n] for distances [*n], or None."""
    biases = []
    for term in select(terms, DistanceBias):
        bias = term.at(distance)
        biases.append(bias * scale if term.scaled else bias)
    return functools.reduce(jnp.add, biases) if biases else None


def coefficients(terms: tuple) -> jax.Array | None:
    """The numbers of all profiles: float32 [H, C], or None."""
    numbers = [term.numbers.astype(jnp.float32) for term in select(terms, Profile)]
    return jnp.concatenate(numbers, axis=1) if numbers else None


@dataclasses.dataclass(frozen=True)
class ProfileSum:
    """The sum of profiles as one function, static and compared by value.

    Attributes:
      parts: the function of each profile, and how many of the coefficients it takes.
    """

    parts: tuple[tuple[Callable, int], ...]

    @classmethod
    def of(cls, terms: tuple) -> "ProfileSum":
        """Of all profiles among the terms."""
        return cls(tuple((term.fn, term.numbers.shape[1]) for term in select(terms, Profile)))

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, coefficients: list[Any], distance: jax.Array) -> jax.Array:
        """The bias of one head from its C coefficients, each of a shape that broadcasts."""
        biases, first = [], 0
        for fn, size in self.parts:
            biases.append(fn(coefficients[first : first + size], distance))
            first += size
        return functools.reduce(jnp.add, biases)

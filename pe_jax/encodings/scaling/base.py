"""What all scalings of RoPE share: `rope_scaling` has the scalings themselves."""

import dataclasses
from typing import Any

import jax
import numpy as np

from pe_jax.config_fields import checked
from pe_jax.numerics.position_arrays import PADDING, concrete
from pe_jax.validation import PlainFields, is_int, is_real, require


@dataclasses.dataclass(frozen=True)
class Scaling(PlainFields):
    """A function from frequencies to frequencies, for longer contexts than trained on; hashable.

    `attention_factor` multiplies the rotated channels of both q and k.
    """

    attention_factor = 1.0

    def __call__(self, theta: np.ndarray, base: float | None = None) -> np.ndarray:
        """The scaled frequencies: float64 [dim/2] for θ = angles.geometric(dim, base)."""
        raise NotImplementedError

    def of_lengths(self, theta: np.ndarray, lengths: jax.Array) -> jax.Array:
        """The frequencies in sequences of several lengths: float32 [..., dim/2] for lengths [...].

        A scaling that overrides `at_length` overrides this too.
        """
        raise NotImplementedError

    def factors(self, lengths: jax.Array) -> float | jax.Array:
        """The attention factors in sequences of several lengths: a number, or float32 [...]."""
        return self.attention_factor

    def at_length(self, length: int) -> "Scaling":
        """The scaling for sequences of `length` tokens: itself unless it depends on the length."""
        return self

    def valid_length(self) -> int | None:
        """Positions below this are correct with this scaling; see `Encoding.valid_length`."""
        return None


def length_field() -> Any:
    """The field `length` of a scaling that depends on it; None until `at_length` sets it."""
    return checked(None, "pass an integer of at least 1", lambda v: v is None or is_int(v, 1))


def with_length(self: Any, length: int) -> Any:
    """`at_length` of a scaling with such a field.

    Raises:
      ValueError: `length` is not a positive integer.
    """
    require(is_int(length, 1), "length", length, "pass an integer of at least 1")
    return dataclasses.replace(self, length=length)


def require_factor(value: Any) -> None:
    """Raises ValueError unless it is a number of at least 0."""
    ok = is_real(value) and value >= 0
    require(ok, "attention_factor", value, "pass a number of at least 0, or None for the paper's")


def by_axis(scaling: Any, axes: int) -> tuple[Scaling | None, ...]:
    """The scaling of each axis: one is for all, a tuple has one or None for each.

    Raises:
      ValueError: neither; a scaling that depends on the length of its axis and has none.
    """
    each = tuple(scaling) if isinstance(scaling, tuple | list) else (scaling,) * axes
    ok = len(each) == axes and all(x is None or isinstance(x, Scaling) for x in each)
    fix = f"pass one scaling of rope_scaling for all axes, or one or None for each of {axes}"
    require(ok, "scaling", scaling, fix)
    fix = "it depends on the length: pass length=…, in positions of its axis"
    for own in each:
        require(own is None or own.valid_length() != 0, "scaling", own, fix)
    return each


def require_within(scalings: tuple[Scaling | None, ...], positions: Any) -> None:
    """Raises ValueError where a known position is beyond the length that its axis is scaled for."""
    known = concrete(positions)
    if known is None or known.shape[-1:] != (len(scalings),):
        return
    for axis, own in enumerate(scalings):
        valid = None if own is None else own.valid_length()
        if valid is not None:
            at = known[..., axis][known[..., axis] != PADDING]
            fix = f"the scaling of axis {axis} is set for {valid} positions; pass a greater length"
            farthest = at.max(initial=0).item()
            require(farthest < valid, "positions", farthest, fix)

"""Rotary position embedding: Su et al., "RoFormer", arXiv 2104.09864, §3.2 and §3.4.2.

    (R_m q)·(R_n k) = q·R_{n-m} k,      pair i turns by θ_i = base^(-2i/d) per position

Each pair of channels of q and k turns by position × frequency, so that a dot product depends on
the distance alone.

Two layouts of the pairs are in use and do not mix: "half" pairs channel i with i + d/2 (Llama,
GPT-NeoX); "interleaved" pairs 2i with 2i + 1 (the paper, GPT-J). Base 1e4 is the paper's, 5e5 that
of Llama 2 Long (arXiv 2309.16039), 1e6 that of Code Llama (arXiv 2308.12950). Gemma 3 has two
(arXiv 2503.19786, §2): the pattern `rope(base=1e4)*5,rope(base=1e6)`, five local layers and a
global one. `rope_scaling` has the scalings of the frequencies for longer contexts.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings.base import Claims, Encoding
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.encodings.terms import Rotation, Term
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import align, require_array
from pe_jax.validation import is_real, require

LAYOUTS = ("half", "interleaved")


def frequencies(dim: int, base: float = 1e4, scaling: Callable | None = None) -> jax.Array:
    """θ_i = base^(-2i/dim): float32 [dim/2], radians per position.

    Args:
      dim: even number of channels to rotate.
      base: > 1.
      scaling: one of `rope_scaling`, or any function from frequencies (NumPy float64 [dim/2]) to
        frequencies. Its `attention_factor` (YaRN and LongRoPE have one) is not in the frequencies:
        pass it to `rotate`.

    Raises:
      ValueError: odd `dim`; `base` ≤ 1; a scaling that does not fit `dim`, or that depends on the
        length of the sequence and has none (`scaling.at_length(total_length)` has).
      TypeError: a scaling that returns half precision.
    """
    return jnp.asarray(scaled(angles.geometric(dim, base), base, scaling), jnp.float32)


def scaled(theta: np.ndarray, base: float, scaling: Callable | None) -> np.ndarray:
    """The frequencies of a base after a scaling, as `frequencies` takes it: float64 [dim/2].

    Raises:
      ValueError: `scaling` is not a scaling, waits for a length, or does not fit the other fields.
      TypeError: it returns half precision.
    """
    if scaling is None:
        return theta
    if isinstance(scaling, Scaling):
        fix = "it depends on the length of the sequence; call at_length(total_length) first"
        require(scaling.valid_length() != 0, "scaling", scaling, fix)
        return scaling(theta, base)
    ok = callable(scaling) and not isinstance(scaling, type)
    fix = "pass a scaling of rope_scaling, such as YaRN(4.0, 2048), or None"
    require(ok, "scaling", scaling, fix)
    theta = scaling(theta)
    angles.require_exact("scaling's frequencies", theta)
    return theta


def rotate(
    x: jax.Array,
    positions,
    frequencies: jax.Array,
    layout: str = "half",
    attention_factor: float | jax.Array = 1.0,
) -> jax.Array:
    """Rotates the first 2·len(frequencies) channels of each head; the others pass unchanged.

    Args:
      x: [..., T, H, E].
      positions: integers or float32 [T] or [..., T], any sign; of A axes [T, A] or [..., T, A].
      frequencies: float32 [F], 2F ≤ E; for positions of A axes [A, F]: the angles of the axes add;
        for each token separately [..., T, 1, F].
      layout: "half" or "interleaved".
      attention_factor: multiplies the rotated channels: that of the scaling (YaRN and LongRoPE
        have one, `scaling.attention_factor`), or one for each frequency, float32 [F],
        or for each token, [..., T, 1, 1].

    Returns:
      The shape and dtype of x (the angles and the rotation are float32).

    Raises:
      ValueError: unknown layout, 2F > E, |position| ≥ 2**24, positions that do not fit x.
      TypeError: half-precision positions or frequencies; x or frequencies that are not arrays
        of floats.
    """
    require_array("x", x, 3)
    require_array("frequencies", frequencies, 1)
    ok = is_real(attention_factor) or hasattr(attention_factor, "ndim")
    require(ok, "attention_factor", attention_factor, "pass a finite number")
    require(layout in LAYOUTS, "layout", layout, f"choose one of {', '.join(LAYOUTS)}")
    rotary_dim = 2 * np.shape(frequencies)[-1]
    fix = f"x has {x.shape[-1]} channels per head"
    require(rotary_dim <= x.shape[-1], "frequencies", rotary_dim // 2, fix)
    angle = angles.angles(positions, frequencies)[..., None, :]  # [..., T, 1, F]
    lead, tokens = angle.shape[:-2], x.shape[:-2]
    ok = len(lead) <= len(tokens) and (len(lead) > 0 or jnp.ndim(frequencies) != 2)
    ok = ok and all(n in (1, m) for n, m in zip(lead[::-1], tokens[::-1], strict=False))
    if not ok:
        raise ValueError(f"positions of shape {lead} do not fit x {x.shape}; pass [T] or [..., T]")
    return turn(x, *waves(angle, attention_factor), layout)


def waves(
    angle: jax.Array, attention_factor: float | jax.Array = 1.0
) -> tuple[jax.Array, jax.Array]:
    """The cosine and the sine of angles, times the factor, computed once for all heads."""
    # The barrier keeps XLA from computing every sine again for each head; not on a CPU, where it is
    # removed before fusion (jax 0.10): 3 % of a training step of 1M parameters.
    pair = attention_factor * jnp.cos(angle), attention_factor * jnp.sin(angle)
    return jax.lax.optimization_barrier(pair)


@functools.partial(jax.jit, static_argnames="layout", inline=True)  # outside of jit one program
def turn(x: jax.Array, cos: jax.Array, sin: jax.Array, layout: str = "half") -> jax.Array:
    """The first 2F channels of x [..., T, H, E], in pairs as complex numbers, times cos + i·sin.

    These are [..., T, H or 1, F], and may have fewer leading axes than x.
    """
    cos, sin, rotary_dim = align(cos, x), align(sin, x), 2 * cos.shape[-1]
    head, rest = x[..., :rotary_dim].astype(jnp.float32), x[..., rotary_dim:]
    if layout == "half":
        a, b = jnp.split(head, 2, axis=-1)
        out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    else:
        a, b = head[..., 0::2], head[..., 1::2]
        out = jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(head.shape)
    return jnp.concatenate([out.astype(x.dtype), rest], axis=-1)


class Scaled(Encoding):
    """A rotation of a `fraction` of each head, at frequencies of a `base` after a `scaling`."""

    base: float
    fraction: float
    scaling: Scaling | None

    @property
    def attention_factor(self) -> float:
        """Factor on the rotated channels of both q and k: 1 without a scaling."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor

    def rotary_dim(self, head_dim: int) -> int:
        """How many channels of the E = `head_dim` are rotated.

        Raises:
          ValueError: an odd number of them.
        """
        size = round(head_dim * self.fraction, 6)
        ok = size == int(size) and size % 2 == 0 and size > 0
        if self.fraction == 1:
            require(ok, "head_dim", head_dim, "RoPE rotates pairs: use an even head width")
        fix = f"it leaves {size:g} of {head_dim} channels; choose one that leaves an even number"
        require(ok, "fraction", self.fraction, fix)
        return int(size)

    def check(self, dims):
        """The rotated part of a head must be even, and fit the scaling."""
        theta = angles.geometric(self.rotary_dim(dims.head_dim), self.base)
        if self.scaling is not None:
            self.scaling(theta, self.base)
        super().check(dims)

    def at_length(self, length):
        """With the scaling of that length."""
        if self.scaling is None:
            return self
        return dataclasses.replace(self, scaling=self.scaling.at_length(length))

    def valid_length(self):
        """That of the scaling."""
        return None if self.scaling is None else self.scaling.valid_length()


def fraction_field(default: float = 1.0) -> Any:
    """The field `fraction` of `Scaled`."""
    return checked(default, "pass a number in (0, 1]", lambda v: is_real(v) and 0 < v <= 1)


def scaling_field() -> Any:
    """The field `scaling` of `Scaled`."""
    fix = "pass a scaling of rope_scaling, such as yarn(…), or None"
    return checked(None, fix, lambda v: v is None or isinstance(v, Scaling))


@dataclasses.dataclass(frozen=True)
class RoPE(Scaled):
    """Rotates q and k. `fraction` < 1 rotates only that part of each head (partial rotary).

    `scaling` (one of `rope_scaling`) acts on the frequencies of the part that is rotated, and its
    attention factor multiplies that part.
    """

    base: float = above_field(1e4, 1)
    fraction: float = fraction_field()
    layout: str = one_of_field("half", LAYOUTS)
    scaling: Scaling | None = scaling_field()

    claims = Claims(real_positions=True)

    def frequencies(self, head_dim: int, lengths: Any = None) -> jax.Array:
        """Frequencies of a head: float32 [n/2] for n rotated channels of E = `head_dim`.

        With `lengths` [..., T] of the tokens' documents, a scaling that waits for `at_length` gives
        each token separate ones: [..., T, 1, n/2].

        Raises:
          ValueError: n is odd; the scaling does not fit it, or waits for `at_length`.
        """
        dim = self.rotary_dim(head_dim)
        if lengths is None or self.scaling is None:
            return frequencies(dim, self.base, self.scaling)
        theta = self.scaling.of_lengths(angles.geometric(dim, self.base), lengths)
        return theta[..., None, :]

    def factors(self, lengths: Any = None) -> float | jax.Array:
        """The attention factor, or one for each token of documents of `lengths`: [..., T, 1, 1]."""
        if lengths is None or self.scaling is None:
            return self.attention_factor
        factors = self.scaling.factors(lengths)
        return factors[..., None, None] if isinstance(factors, jax.Array) else factors

    def terms(self, params, dims) -> tuple[Term, ...]:
        return (Rotation(self.rotate, self.rotate, by_length=self.waits),)

    @property
    def waits(self) -> bool:
        """Whether the scaling still needs a length: that of each document is then used."""
        return self.valid_length() == 0

    def rotate(self, _, x, positions, lengths=None):
        """R_m x: [..., T, H, E], in documents of `lengths` [..., T]."""
        return _rotate(self, x, angles.checked(positions), lengths)


@functools.partial(jax.jit, static_argnums=0, inline=True)  # outside of jit one program, not twenty
def _rotate(encoding: RoPE, x: jax.Array, positions: jax.Array, lengths: Any) -> jax.Array:
    angle = angles.angles(positions, encoding.frequencies(x.shape[-1], lengths))
    return turn(x, *waves(angle[..., None, :], encoding.factors(lengths)), encoding.layout)

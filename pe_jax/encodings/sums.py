"""Several encodings at once, as `t5+rope` in a config: their terms, one after the other."""

import dataclasses
import functools
from collections.abc import Sequence

import jax

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Claims, Encoding, Params, abstract_terms
from pe_jax.encodings.windowed import Windowed


@dataclasses.dataclass(frozen=True)
class Sum(Encoding):
    """Several encodings at once: everything adds up, rotations act in order.

    Parameters are tuples, one entry per part. At most one part may change the scale, which then
    multiplies every term that has the factor 1/sqrt(E) in its paper: `transformer_xl+t5` scales
    none of Transformer-XL's four terms. A scheme with several views of each token comes after other
    rotations.
    """

    parts: tuple[Encoding, ...] = ()

    def __post_init__(self):
        if not isinstance(self.parts, tuple | list):
            raise TypeError(f"parts={self.parts!r}: pass a tuple of encodings")
        for part in self.parts:
            if not isinstance(part, Encoding):
                raise TypeError(f"Sum: {part!r} is not an encoding; pass what pe_jax.make gives")
            if isinstance(part, Windowed):
                fix = "a window or chunks are of the whole layer; pass Windowed(Sum(…), …)"
                raise TypeError(f"Sum: {part!r}: {fix}")
        flat = [p for part in self.parts for p in parts_of(part)]
        object.__setattr__(self, "parts", tuple(flat))
        axes = [p.claims.axes for p in flat if type(p) is not Encoding]
        if len(set(axes)) > 1:
            raise ValueError(f"Sum: axes={axes}; the parts must agree")

    @functools.cached_property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """What input all parts support."""
        claims = [part.claims for part in self.parts]
        return Claims(
            axes=max((c.axes for c in claims), default=1),
            real_positions=all(c.real_positions for c in claims),
            causal_only=any(c.causal_only for c in claims),
            one_sided=any(c.one_sided for c in claims),
            absolute_rotation=any(c.absolute_rotation for c in claims),
        )

    def check(self, dims):
        for part in self.parts:
            part.check(dims)
        try:
            kinds.check(abstract_terms(self, dims))
        except ValueError as error:
            names = " and ".join(type(part).__name__ for part in self.parts)
            raise ValueError(f"Sum of {names}: {error}") from None

    def layer_dims(self, dims):
        return functools.reduce(lambda sizes, part: part.layer_dims(sizes), self.parts, dims)

    def query_heads(self, dims):
        return min((part.query_heads(dims) for part in self.parts), default=dims.heads)

    def at_length(self, length):
        return Sum(tuple(part.at_length(length) for part in self.parts))

    def valid_length(self):
        return min((n for p in self.parts if (n := p.valid_length()) is not None), default=None)

    def limit(self):
        return min((n for p in self.parts if (n := p.limit()) is not None), default=None)

    def init_shared(self, key, dims):
        """A tuple, one entry per part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_shared(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def init_layer(self, key, dims):
        """A tuple, one entry per part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_layer(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def inputs(self, shared):
        pairs = zip(self.parts, shared, strict=True)
        return tuple(term for part, arrays in pairs for term in part.inputs(arrays))

    def terms(self, params, dims):
        none = ({},) * len(self.parts)  # parameters left out: `Params({}, {})`
        split = map(Params, params.shared or none, params.layer or none)
        pairs = zip(self.parts, split, strict=True)
        return tuple(term for part, arrays in pairs for term in part.terms(arrays, dims))


def parts_of(encoding: Encoding) -> tuple[Encoding, ...]:
    """The parts of a sum, or the encoding itself."""
    return encoding.parts if isinstance(encoding, Sum) else (encoding,)


def sum_of(parts: Sequence[Encoding]) -> Encoding:
    """The encoding with these parts: NoPE of none, and one part itself."""
    return Sum(tuple(parts)) if len(parts) > 1 else parts[0] if parts else Encoding()

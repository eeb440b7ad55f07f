"""Several encodings at once: `t5+rope` in a config.

Slots as in `base`, with its legend.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import DISTANCE_SLOTS, Dims, Encoding, Params


@dataclasses.dataclass(frozen=True)
class Sum(Encoding):
    """Several encodings at once, as `t5+rope`: biases add, `embed` and rotations chain in order.

    Order matters where a part adds to the queries (Transformer-XL): it comes before those that
    rotate, or the sum would not be relative. Parameters are tuples, one entry a part. At most one
    part may change the scale, which then multiplies every term that has the factor 1/sqrt(E) in its
    paper: `transformer_xl+t5` multiplies none of Transformer-XL's four. ValueError otherwise.
    """

    parts: tuple[Encoding, ...] = ()

    def __post_init__(self):
        for part in self.parts:
            if not isinstance(part, Encoding):
                raise TypeError(f"Sum: {part!r} is no encoding; pass what pe_jax.make gives")
        flat = [
            p for part in self.parts for p in (part.parts if isinstance(part, Sum) else (part,))
        ]
        object.__setattr__(self, "parts", tuple(flat))
        scales = {p.scale(64) for p in flat} - {64**-0.5}
        if len(scales) > 1 or sum(p.scale(64) in scales for p in flat) > 1:
            changed = [type(p).__name__ for p in flat if p.scale(64) in scales]
            raise ValueError(f"Sum: {' and '.join(changed)} each set a scale; keep at most one")
        views = [i for i, p in enumerate(flat) if p.split() is not None]
        after = [p for p in flat[views[0] + 1 :] if p.overrides("rotate_q")] if views else []
        if after:
            first, then = type(flat[views[0]]).__name__, type(after[0]).__name__
            raise ValueError(
                f"Sum: {then} cannot rotate two views; put {first} after it, or leave one"
            )
        if len({p.axes for p in flat if type(p) is not Encoding}) > 1:
            raise ValueError(f"Sum: axes={[p.axes for p in flat]}; the parts must agree")
        for i, part in enumerate(flat):
            turns = [p for p in flat[:i] if p.overrides("rotate_q") and not p.adds_to_q]
            if part.adds_to_q and turns:
                late, early = type(part).__name__, type(turns[0]).__name__
                raise ValueError(f"Sum: {late} adds to the queries; put it before {early}")

    @property
    def axes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Axes of a position, the same for every part."""
        return max((p.axes for p in self.parts), default=1)

    @property
    def real_positions(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every part takes float32 positions."""
        return all(p.real_positions for p in self.parts)

    @property
    def anchored(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether any part is."""
        return any(p.anchored for p in self.parts)

    @property
    def causal_only(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a part is for causal attention alone."""
        return any(p.causal_only for p in self.parts)

    @property
    def one_sided(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether a part is."""
        return any(p.one_sided for p in self.parts)

    @property
    def state_width(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All parts' numbers, one after the other."""
        return sum(p.state_width for p in self.parts)

    @property
    def decays(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether every bias decays."""
        biased = [p for p in self.parts if p.overrides("distance_bias")]
        return bool(biased) and all(p.decays for p in biased)

    def _split(self, params: Params) -> list[Params]:
        none = ({},) * len(self.parts)  # `embed` comes before the layers and has `shared` alone
        return list(map(Params, params.shared or none, params.layer or none))

    def _each(self, params: Params):
        return zip(self.parts, self._split(params), strict=True)

    def _add(self, slot: str, params: Params, *args) -> Any:
        terms = [getattr(part, slot)(p, *args) for part, p in self._each(params)]
        terms = [t for t in terms if t is not None]
        return sum(terms[1:], terms[0]) if terms else None

    def check(self, dims: Dims) -> None:
        """Checks every part."""
        for part in self.parts:
            part.check(dims)

    def at_length(self, length):
        """Every part at that length."""
        return Sum(tuple(part.at_length(length) for part in self.parts))

    def valid_length(self):
        """The smallest of the parts."""
        return min((n for p in self.parts if (n := p.valid_length()) is not None), default=None)

    def init_shared(self, key, dims):
        """A tuple, one entry a part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_shared(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def init_layer(self, key, dims):
        """A tuple, one entry a part."""
        keys = jax.random.split(key, len(self.parts))
        return tuple(p.init_layer(k, dims) for p, k in zip(self.parts, keys, strict=True))

    def embed(self, params, x, positions):
        """Chains in order."""
        for part, p in self._each(params):
            x = part.embed(p, x, positions)
        return x

    def rotate_q(self, params, q, positions):
        """Chains in order."""
        for part, p in self._each(params):
            q = part.rotate_q(p, q, positions)
        return q

    def rotate_k(self, params, k, positions):
        """Chains in order."""
        for part, p in self._each(params):
            k = part.rotate_k(p, k, positions)
        return k

    def split(self):
        """That of the one part with two views."""
        return next((n for p in self.parts if (n := p.split()) is not None), None)

    def scale(self, head_dim):
        """The scale of the one part that changes it."""
        default = head_dim**-0.5
        return next((s for p in self.parts if (s := p.scale(head_dim)) != default), default)

    def bias(self, params, q_pos, k_pos, dims):
        """Adds."""
        return self._add("bias", params, q_pos, k_pos, dims)

    def factors(self, params, q_pos, k_pos, dims):
        """The parts' side by side; None if one of them has a bias without."""
        biased = [(part, p) for part, p in self._each(params) if part.overrides("bias")]
        found = [part.factors(p, q_pos, k_pos, dims) for part, p in biased]
        if not found or any(pair is None for pair in found):
            return None
        return tuple(jnp.concatenate(side, axis=-1) for side in zip(*found, strict=True))

    def _gain(self, part: Encoding, dims: Dims) -> float:
        """What the `distance_bias` of a part lacks: it knows its own scale, not the sum's."""
        width = dims.head_dim
        return self.scale(width) / part.scale(width) if part.scaled_bias else 1.0

    def distance_bias(self, params, distance, dims):
        """Adds, each multiplied by the sum's scale where the part multiplies it by its own."""
        found = []
        for part, p in self._each(params):
            bias, gain = part.distance_bias(p, distance, dims), self._gain(part, dims)
            if bias is not None:
                found.append(bias if gain == 1 else gain * bias)
        return sum(found[1:], found[0]) if found else None

    def _biased(self):
        """The place of the one part with a `distance_bias`; None where there are more, or none."""
        found = [i for i, p in enumerate(self.parts) if p.overrides("distance_bias")]
        return found[0] if len(found) == 1 else None

    def coefficients(self, params, dims):
        """Those of the one part with a distance bias; None if several have one, or it is scaled."""
        at = self._biased()
        if at is None or self._gain(self.parts[at], dims) != 1:
            return None
        return self.parts[at].coefficients(self._split(params)[at], dims)

    def profile(self, coefficients, distance):
        """That of the one part with a distance bias."""
        at = self._biased()
        assert at is not None  # or `coefficients` gave None
        return self.parts[at].profile(coefficients, distance)

    def relative_keys(self, params, distance):
        """Adds."""
        return self._add("relative_keys", params, distance)

    def relative_queries(self, params, distance):
        """Adds."""
        return self._add("relative_queries", params, distance)

    def relative_values(self, params, distance):
        """Adds."""
        return self._add("relative_values", params, distance)

    def _places(self):
        """Where each part's numbers lie among the state's: a slice a part."""
        ends = list(itertools.accumulate(p.state_width for p in self.parts))
        return [slice(end - p.state_width, end) for p, end in zip(self.parts, ends, strict=True)]

    def state(self, params, x, before=None):
        """The parts' side by side."""
        found = [
            part.state(p, x, None if before is None else before[..., place])
            for (part, p), place in zip(self._each(params), self._places(), strict=True)
        ]
        found = [s for s in found if s is not None]
        return jnp.concatenate(found, axis=-1) if found else None

    def state_after(self, before, state):
        """Each part's."""
        pairs = zip(self.parts, self._places(), strict=True)
        found = [part.state_after(before[..., at], state[..., at]) for part, at in pairs]
        return jnp.concatenate(found, axis=-1)

    def state_bias(self, q_state, k_state):
        """Adds."""
        pairs = zip(self.parts, self._places(), strict=True)
        pairs = [(part, place) for part, place in pairs if part.overrides("state_bias")]
        terms = [part.state_bias(q_state[at], k_state[at]) for part, at in pairs]
        return sum(terms[1:], terms[0])

    def relative_state(self, params, distance):
        """The parts' side by side; zeros where a part has a state and no vectors."""
        if not self.overrides("relative_state"):
            return None
        found = []
        for part, p in self._each(params):
            vectors = part.relative_state(p, distance)
            if vectors is None:
                shape = distance.shape[: distance.ndim - (self.axes > 1)]
                vectors = jnp.zeros((1, *shape, part.state_width), jnp.float32)
            found.append(vectors)
        heads = max(len(x) for x in found)
        return jnp.concatenate([jnp.broadcast_to(x, (heads, *x.shape[1:])) for x in found], axis=-1)

    def rescore(self, params, scores, bias, q, seen, dims):
        """Adds; each part sees the scores without what the others add."""
        return self._add("rescore", params, scores, bias, q, seen, dims)

    def horizon(self):
        """The widest of the parts that look at distances; None if one of them has none."""
        relative = [p for p in self.parts if any(map(p.overrides, DISTANCE_SLOTS))]
        found = [h for p in relative if (h := p.horizon()) is not None]
        if not relative or len(found) < len(relative):
            return None
        return min(lo for lo, _ in found), max(hi for _, hi in found)

    def limit(self):
        """The smallest limit of the parts."""
        return min((n for p in self.parts if (n := p.limit()) is not None), default=None)

    def overrides(self, slot):
        """Whether any part uses the slot."""
        return any(p.overrides(slot) for p in self.parts)

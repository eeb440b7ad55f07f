"""The terms of a scheme that is written with slots: engines move to terms first, schemes after."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings.base import Dims, Params
from pe_jax.encodings.terms import (
    DistanceBias,
    PairBias,
    Profile,
    QueryBias,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
    Rotation,
    RowRescore,
    Scale,
    State,
    TokenBias,
    TokenProduct,
)


@dataclasses.dataclass(frozen=True)
class Slot:
    """A slot of a scheme as a function of its parameters and what else it takes, by value."""

    encoding: Any
    name: str
    dims: Any = None

    def __call__(self, params, *args):
        """What the slot gives."""
        more = () if self.dims is None else (self.dims,)
        return getattr(self.encoding, self.name)(params, *args, *more)


@dataclasses.dataclass(frozen=True)
class Pure:
    """A slot without parameters."""

    encoding: Any
    name: str

    def __call__(self, *args):
        """What the slot gives."""
        return getattr(self.encoding, self.name)(*args)


@dataclasses.dataclass(frozen=True)
class BothFactors:
    """The factors of queries and keys as one state of positions: [*B, T, H, 2C]."""

    encoding: Any
    dims: Any

    def __call__(self, params, positions):
        """[*B, T, H, 2C]."""
        both = self.encoding.factors(params, positions, positions, self.dims)
        return jnp.moveaxis(jnp.concatenate(both, axis=-1), -3, -2)


def from_slots(encoding, params: Params, dims: Dims) -> tuple:
    """What each slot adds, as terms."""
    from pe_jax.encodings.sums import Sum

    if isinstance(encoding, Sum):
        parts = [part.terms(own, dims) for part, own in encoding._each(params)]
        return sum(parts, ())
    has = encoding.overrides
    terms: list[Any] = []
    if encoding.scale(dims.head_dim) != dims.head_dim**-0.5:
        terms.append(Scale(encoding.scale(dims.head_dim)))
    if encoding.adds_to_q:  # Transformer-XL
        own = params.layer
        terms.append(QueryBias(own["u"]))
        terms.append(RelativeKeys(Slot(encoding, "relative_keys"), params, u=own["v"]))
        return tuple(terms)
    if has("rotate_q") or has("rotate_k"):
        q, k = (Slot(encoding, f"rotate_{s}") if has(f"rotate_{s}") else None for s in "qk")
        terms.append(Rotation(q, k, params, split=encoding.split()))
    numbers = encoding.coefficients(params, dims)
    horizon = encoding.horizon()
    if numbers is not None:
        terms.append(Profile(Pure(encoding, "profile"), numbers, decays=encoding.decays))
    elif has("distance_bias"):
        terms.append(DistanceBias(Slot(encoding, "distance_bias", dims), params, horizon=horizon))
    one = jax.ShapeDtypeStruct((1,) * (1 + (encoding.axes > 1)), jnp.int32)
    kinds = {
        "relative_keys": RelativeKeys,
        "relative_queries": RelativeQueries,
        "relative_values": RelativeValues,
    }
    for name, kind in kinds.items():
        slot = getattr(encoding, name)
        if has(name) and jax.eval_shape(slot, params, one) is not None:
            terms.append(kind(Slot(encoding, name), params, horizon=horizon))
    if has("state"):
        after = Pure(encoding, "state_after") if has("state_after") else None
        state = State(Slot(encoding, "state"), params, width=encoding.state_width, after=after)
        if has("state_bias"):
            terms.append(TokenBias(Pure(encoding, "state_bias"), state))
        if has("relative_state"):
            slot = Slot(encoding, "relative_state")
            terms.append(RelativeState(slot, params, horizon=horizon, state=state))
    if has("factors"):
        width = jax.eval_shape(
            lambda p: BothFactors(encoding, dims)(p, jnp.zeros((1, 1), jnp.int32)), params
        ).shape[-1]
        state = State(BothFactors(encoding, dims), params, width=width, of="positions")
        terms.append(TokenProduct(state))
    elif has("bias"):
        terms.append(PairBias(Slot(encoding, "bias", dims), params))
    if has("rescore"):
        terms.append(RowRescore(Slot(encoding, "rescore", dims), params))
    return tuple(terms)

"""Which term of a call is evaluated in which way."""

import re

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.bands import Bands
from pe_jax.engines.tiled.channels import Channels
from pe_jax.engines.tiled.distance_biases import DistanceBiases
from pe_jax.engines.tiled.in_place import InPlace
from pe_jax.engines.tiled.pairwise import Pairwise
from pe_jax.engines.tiled.row_sums import RowSums
from pe_jax.engines.tiled.ways import Way
from pe_jax.engines.tiled.windows import Windows

WAYS = (Bands, Windows, DistanceBiases, Pairwise, InPlace, Channels, RowSums)
OF_ALL_WAYS = (*kinds.OUTSIDE, kinds.Mask)  # `passes` has these
IN_PLACE = (kinds.DistanceFormula, kinds.TokenBias, kinds.TokenProduct)
# operations of a formula that take longer than to read its bias from memory
SLOW = set("cos erf exp exp2 expm1 log log1p logistic pow sin tan tanh".split())
BY_DISTANCE = (kinds.DistanceBias, *kinds.RELATIVE)


def assign(
    spec: AttentionSpec, terms: tuple, bands: bool = True
) -> dict[type[Way], tuple[int, ...]]:
    """The places of the terms that each way evaluates; ways without terms are left out.

    Args:
      spec: the mask, and whether positions are contiguous.
      terms: those of the call; kinds and horizons alone are read.
      bands: whether tiles lie so that bands can serve them; else windows do.

    Raises:
      ValueError: no way knows a kind; sums along rows of products with several views or that fade.
    """
    if kinds.select(terms, kinds.RowSum) and not kinds.has_plain_products(terms):
        what = "RowSum of several views or fading channels"
        raise ValueError(f"the tiled engine has no {what}; pass 'dense'")
    # Bands leave a constant out of each row's scores, which a cap would not.
    bands &= spec.logit_cap is None
    # Beside windows no tile is plain, and they take what has a horizon for next to nothing.
    bands &= all(term.horizon is not None for term in terms if type(term) in BY_DISTANCE)
    ways = [_way(spec, term, bands) for term in terms]
    assigned = {way: tuple(i for i, of in enumerate(ways) if of is way) for way in WAYS}
    return {way: places for way, places in assigned.items() if places}


def _way(spec: AttentionSpec, term: kinds.Term, bands: bool) -> type[Way] | None:
    """The way for one term; None: it acts before or after an engine."""
    if isinstance(term, OF_ALL_WAYS):
        return None
    if isinstance(term, kinds.ChannelDecay):
        return Channels
    if type(term) in IN_PLACE:
        return DistanceBiases if spec.contiguous and _takes_long(term) else InPlace
    if type(term) is kinds.RowSum:
        return RowSums
    if type(term) in BY_DISTANCE and spec.contiguous:
        others = DistanceBiases if type(term) is kinds.DistanceBias else Windows
        return Bands if bands else others
    if isinstance(term, kinds.ScoreTerm | kinds.RelativeValues):
        return Pairwise
    raise ValueError(f"the tiled engine has no {type(term).__name__}")


def _takes_long(term: kinds.Term) -> bool:
    """Whether to evaluate a term in each tile takes longer than to read its bias from memory."""
    if type(term) is not kinds.DistanceFormula:
        return False
    distance = jax.ShapeDtypeStruct((1,), jnp.int32)
    program = str(jax.make_jaxpr(lambda term, x: term.at(x))(term, distance))
    return not SLOW.isdisjoint(re.findall(r"\w+", program))

"""What engines ask of a tuple of terms.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

from typing import Any

from pe_jax.encodings.terms.scores import PairBias
from pe_jax.encodings.terms.softmax import Sink, Unnormalized
from pe_jax.encodings.terms.term import AroundEngine, ProductTerm, ResultTerm, select
from pe_jax.encodings.terms.vectors import KeyOffset, Rotation, Scale, TracedScalars, Views


def reads_lse(terms: tuple) -> bool:
    """Whether the logarithms of rows' sums change the output."""
    return bool(select(terms, ResultTerm))


def in_engine(terms: tuple) -> list:
    """The terms that engines evaluate."""
    return [term for term in terms if not isinstance(term, AroundEngine)]


def sums_rows(terms: tuple) -> bool:
    """Whether a score depends on other keys of its row: devices cannot share rows."""
    return any(term.along_rows for term in terms)


def scale(terms: tuple, head_dim: int) -> Any:
    """What dot products are multiplied by, unless a call says otherwise (`AttentionSpec.scale`)."""
    for term in select(terms, TracedScalars):
        if term.scale is not None:
            return term.scale[0]
    return next((term.value for term in select(terms, Scale)), head_dim**-0.5)


def logit_cap(terms: tuple) -> Any:
    """The cap of the scores if it is traced, else None (`AttentionSpec.logit_cap`)."""
    caps = (term.logit_cap for term in select(terms, TracedScalars))
    return next((cap[0] for cap in caps if cap is not None), None)


def views(terms: tuple) -> Views | None:
    """The views of queries and keys; None: there is one."""
    return next((t.views for t in select(terms, Rotation) if t.views is not None), None)


def reads_positions(terms: tuple) -> bool:
    """Whether an engine reads the positions of two tokens, not only their distance."""
    several = views(terms)
    return bool(select(terms, PairBias)) or (several is not None and several.unit > 1)


def reads_input(terms: tuple) -> bool:
    """Whether a state is computed from the layer's input."""
    return any(term.state is not None and term.state.of != "positions" for term in terms)


def is_absolute(terms: tuple, absolute_rotation: bool = False) -> bool:
    """Whether more than the distance counts, so that positions restart in each segment.

    Rotations of different planes do not commute: q·k after two of them depends on both positions.
    What replaces q·k may read more of rotated vectors than their product.
    """
    of_positions = (term.state is not None and term.state.of != "x" for term in terms)
    several = len(select(terms, Rotation, ProductTerm)) > 1 and bool(select(terms, Rotation))
    return absolute_rotation or several or any(of_positions) or reads_positions(terms)


def check(terms: tuple, logit_cap: Any = None) -> None:
    """Raises ValueError where terms cannot be combined, or not with a call's cap."""
    if len(terms) < 2 and logit_cap is None:
        return
    for kind, what in (
        (Scale, "set a scale"),
        (Unnormalized, "leave weights unnormalized"),
        (ProductTerm, "replace q·k"),
        (KeyOffset, "offset keys"),
    ):
        if (count := len(select(terms, kind))) > 1:
            raise ValueError(f"{count} terms {what}; keep at most one")
    rotations = select(terms, Rotation)
    if summed := [n for n, rotation in enumerate(rotations) if rotation.is_summed]:
        what = "a rotation by sums along the row, of which only differences may count"
        if others := select(terms, ProductTerm):
            name = type(others[0]).__name__
            raise ValueError(f"{what}: leave out it or the {name}, which reads more")
        if summed[0] < len(rotations) - 1:
            raise ValueError(f"{what}, cannot come before another: put it last")
    if any(rotation.views is not None for rotation in rotations[:-1]):
        raise ValueError("a rotation cannot follow one with several views; put that one last")
    if views(terms) is not None and (others := select(terms, ProductTerm)):
        name = type(others[0]).__name__
        raise ValueError(f"{name} replaces q·k, which several views have each; leave one out")
    other = "Sink" if select(terms, Sink) else "logit_cap" if logit_cap is not None else None
    if select(terms, Unnormalized) and other:
        raise ValueError(f"weights that no softmax normalizes have no {other}; leave one out")

"""What terms ask of a call: arrays that fit them, the layer's input, states, rotations.

B batch (any number of axes), T queries, S keys, H query heads, D model width, C width of a state.
"""

from typing import Any

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.base import Dims
from pe_jax.encodings.terms import Term, select
from pe_jax.numerics.arrays import align, require_array
from pe_jax.validation import shown


def terms(terms: Any, dims: Dims | None = None, axes: int = 1) -> tuple[Term, ...]:
    """The terms as they are.

    Raises:
      TypeError: not a tuple of terms of scores.
      ValueError: arrays for other heads or head widths than `dims` has (None: not checked).
    """
    ok = isinstance(terms, tuple) and all(isinstance(t, Term) for t in terms)
    if not ok or select(terms, kinds.Input):
        fix = "pass a tuple of terms of scores, as (pe_jax.Sink(b),)"
        raise TypeError(f"terms={shown(terms, 80)}: {fix}")
    for term in terms if dims is not None else ():
        _check_heads(term, dims, axes)  # pyright: ignore[reportArgumentType]
    return terms


def _check_heads(term: Term, dims: Dims, axes: int) -> None:
    """Raises ValueError where what a term gives is of other heads or of another head width."""
    name, heads, width = f"terms: {type(term).__name__}", dims.heads, dims.head_dim
    if isinstance(term, kinds.Sink):
        require_array(name, term.logit)
        check_shape(name, term.logit, (heads,))
    if isinstance(term, kinds.QueryBias):
        require_array(name, term.u)
        check_shape(name, term.u, (heads, width))
    if not isinstance(term, kinds.DistanceTerm | kinds.DistanceFormula):
        return
    distance = jax.ShapeDtypeStruct((7, axes) if axes > 1 else (7,), jnp.int32)
    given = jax.eval_shape(term.at, distance)
    vectors = isinstance(term, kinds.RelativeKeys | kinds.RelativeQueries)
    tail = (width,) * vectors or given.shape[2:]
    number = isinstance(term, kinds.DistanceBias | kinds.DistanceFormula)
    allowed = [(n, 7, *(() if number else tail)) for n in (heads, 1)]
    check_shape(f"{name} of 7 distances", given, *allowed)


def layer_input(terms: tuple, name: str, x, rows: tuple[int, ...], dims: Dims) -> None:
    """Raises ValueError where terms that read the layer's input are not given `rows` of it."""
    if not reads_input(terms):
        return
    if x is None:
        raise ValueError(f"x=None: {name} reads the layer's input; pass x=[*B, T, D]")
    if x.shape != (*rows, dims.width):
        raise ValueError(f"x has shape {x.shape}; pass {[*rows, dims.width]}")


def reads_input(terms: tuple) -> bool:
    """Whether a state is computed from the layer's input."""
    return any(term.state is not None and term.state.of != "positions" for term in terms)


def absolute(terms: tuple, absolute_rotation: bool = False) -> bool:
    """Whether more than the distance counts, so that positions restart in each segment."""
    of_positions = (t.state is not None and t.state.of != "x" for t in terms)
    return absolute_rotation or any(of_positions) or kinds.reads_places(terms)


def rotate(terms: tuple, side: str, x: jax.Array, positions, states: tuple) -> jax.Array:
    """Queries (`side` "q") or keys ("k") [*B, T, H or K, E] after query biases and rotations."""
    if side == "q":
        for term in select(terms, kinds.QueryBias):
            x = x + align(term.u.astype(x.dtype), x)
    for term, state in zip(terms, states, strict=True):
        if isinstance(term, kinds.Rotation):
            x = term.rotate(side, x, positions, state)
    return x


def rotate_values(terms: tuple, v: jax.Array, positions) -> jax.Array:
    """Values [*B, S, K, F] as engines take them and a cache keeps them."""
    for term in select(terms, kinds.ValueRotation):
        v = term.v(term.arrays, v, positions)
    return v


def rotate_output(terms: tuple, out: jax.Array, positions) -> jax.Array:
    """Outputs [*B, T, H, F] of rotated values, turned by the queries' positions."""
    for term in reversed(select(terms, kinds.ValueRotation)):
        out = term.out(term.arrays, out, positions)
    return out


def read_raw(terms: tuple, q_raw: jax.Array, k_raw: jax.Array) -> tuple[Any, Any]:
    """Queries and keys before rotations where terms read them, else None."""
    summed = [term for term in select(terms, kinds.RowSum) if term.numbers is not None]
    of_queries = summed + select(terms, kinds.RelativeKeys, kinds.RowRescore)
    of_keys = select(terms, kinds.RelativeQueries)
    return q_raw if of_queries else None, k_raw if of_keys else None


def check_states(terms: tuple, q_states, k_states, q: jax.Array, k: jax.Array) -> list[tuple]:
    """The states of queries and keys for each term, heads first: [B or 1, H, T, C] or None.

    Raises:
      ValueError: one is missing or of another shape.
    """
    if k_states is None and q.shape[-3] == k.shape[-3]:
        k_states = q_states
    sides = []
    for name, states, rows in (("q_states", q_states, q), ("k_states", k_states, k)):
        shape = *rows.shape[:-2], q.shape[-2]
        states = (None,) * len(terms) if states is None else states
        readers = [t.state is not None and (name[0] == "q" or reads_keys(t)) for t in terms]
        sides.append(
            tuple(
                _check_state(f"{name}[{i}]", term, state, shape) if readers[i] else None
                for i, (term, state) in enumerate(zip(terms, states, strict=True))
            )
        )
    return sides


def _check_state(name: str, term: Term, state: Any, rows: tuple[int, ...]) -> jax.Array:
    """The state of a term [*B, T, H, C] for `rows` (*B, T, H), or for one row of them."""
    widths = {term.state.width}  # pyright: ignore[reportOptionalMemberAccess]
    if isinstance(term, kinds.TokenProduct | kinds.RowSum) and name[0] == "k":
        widths.add(term.state.width // 2)  # pyright: ignore[reportOptionalMemberAccess] a cache keeps it
    leads = {rows, rows[-2:], (1, *rows[-2:])}
    if state is None or state.shape[:-1] not in leads or state.shape[-1] not in widths:
        shown = None if state is None else list(state.shape)
        fix = f"pass {[*rows, max(widths)]}, what the term's State gives"
        raise ValueError(f"{name} has shape {shown}; {fix}")
    return jnp.swapaxes(state.reshape(-1, *state.shape[-3:]), 1, 2)


def reads_keys(term: Any) -> bool:
    """Whether a term reads the states of keys, and not of queries alone."""
    if isinstance(term, kinds.RowSum):
        return term.state is not None
    products = kinds.TokenProduct | kinds.ChannelDecay | kinds.PathProduct
    return isinstance(term, kinds.TokenBias | products)


def check_values(terms: tuple, width: int, axes: int = 1) -> None:
    """Raises ValueError where v is not as wide as the vectors that are added to it."""
    distance = jax.ShapeDtypeStruct((1, axes)[: 1 + (axes > 1)], jnp.int32)
    for term in select(terms, kinds.RelativeValues):
        need = jax.eval_shape(term.at, distance).shape[-1]
        if need != width:
            raise ValueError(f"v has width {width}; relative values need {need}")


def check_shape(name: str, x, *allowed: tuple[int, ...]) -> None:
    """Raises ValueError where x has none of these shapes."""
    if x.shape not in allowed:
        fix = " or ".join(str(list(shape)) for shape in dict.fromkeys(allowed))
        raise ValueError(f"{name} has shape {list(x.shape)}; pass {fix}")

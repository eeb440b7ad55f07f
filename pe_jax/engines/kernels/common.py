"""Shared by the kernels for GPUs and TPUs: refusals, sums of terms, padding, a gradient.

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
from pe_jax.engines.tiled import skipping

KINDS = (  # these exact kinds
    *(kinds.DistanceFormula, kinds.DistanceBias, kinds.PairBias, kinds.TokenBias),
    *(kinds.TokenProduct, kinds.RelativeKeys, kinds.RelativeQueries, kinds.RelativeState),
    kinds.RelativeValues,
)
SAVED = "pe_jax_attention"  # `jax.checkpoint` may save it, so that no forward kernel runs twice


def unsupported(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    dtypes: set,
    more_kinds: tuple = (),
) -> str | None:
    """What kernels for these dtypes, and of more kinds than `KINDS`, lack for a call; or None.

    Subclasses of a kind may mean something else: they are refused.
    """
    inside = map(type, kinds.in_engine(terms))
    missing = [kind.__name__ for kind in inside if kind not in (*KINDS, *more_kinds)]
    if missing:
        return f"it has no {' or '.join(dict.fromkeys(missing))}"
    if kinds.views(terms) is not None:
        return "it has no Rotation with several views of each token"
    if spec.sinks:
        return "it has no attention sinks of a window"
    present = {str(x.dtype) for x in (q.x, k.x, v)}
    mixed = len(present) > 1 or not present <= dtypes
    return f"operands in {' and '.join(sorted(present))}" if mixed else None


def horizon(terms: tuple) -> tuple[int, int] | None:
    """Distances beyond which all distance terms are constant; None: one never is, or no term."""
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
class FunctionSum:
    """A sum of functions of one head's numbers, static and compared by value."""

    parts: tuple[tuple[Callable, int], ...]  # each function, and how many numbers it takes

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, *numbers: list[Any], distance: Any = None) -> jax.Array:
        """The sum of the functions, each of its slice of every list, and of the distance if any.

        All have shapes that broadcast.
        """
        biases, first = [], 0
        for fn, size in self.parts:
            slices: list[Any] = [x[first : first + size] for x in numbers]
            biases.append(fn(*slices, *(() if distance is None else (distance,))))
            first += size
        return functools.reduce(jnp.add, biases)


def formula_sum(terms: tuple) -> FunctionSum:
    """The sum of all formulas: a function of C `coefficients` and the distance."""
    formulas = select(terms, kinds.DistanceFormula)
    return FunctionSum(tuple((term.fn, term.numbers.shape[1]) for term in formulas))


@dataclasses.dataclass(frozen=True)
class ScorePlan:
    """The static part of the scores of a call."""

    spec: AttentionSpec
    scale: float  # factor on q·k
    formula: FunctionSum  # the biases that are computed in place from distances
    of_tokens: FunctionSum  # those that are computed from numbers of both tokens
    decays: bool  # whether these fall with the distance, and nothing else is added
    cap: float | None  # the cap of the scores

    def number_gradients(self, own: list, other: list, by_keys: bool, d_s: jax.Array) -> list:
        """The gradients of the numbers of a tile's tokens along rows, [rows, 1] each.

        `d_s` is that of its scores, `other` the numbers along columns; `by_keys`: rows are keys.
        """

        def bias(own):
            pair = (other, own) if by_keys else (own, other)
            return jnp.broadcast_to(self.of_tokens(*pair), d_s.shape)

        return jax.vjp(bias, own)[1](d_s)[0]

    @classmethod
    def fields(cls, spec: AttentionSpec, terms: tuple) -> dict[str, Any]:
        """The fields above by name, for plans that have more."""
        of_tokens = select(terms, kinds.TokenBias)
        return {
            "spec": spec,
            "scale": spec.scale_of(terms),
            "formula": formula_sum(terms),
            "of_tokens": FunctionSum(tuple((term.fn, term.state.width) for term in of_tokens)),
            "decays": skipping.can_skip(spec, terms),
            "cap": spec.logit_cap,
        }


def unsupported_by_stock(
    spec: AttentionSpec, terms: tuple, q: Side, k: Side, v: jax.Array, dtypes: set
) -> str | None:
    """What a kernel that only computes q·k, of any channels, lacks for a call; None: nothing."""
    if (why := unsupported(spec, terms, q, k, v, dtypes)) is not None:
        return why
    inside = map(type, select(terms, *KINDS))
    missing = [kind.__name__ for kind in inside if kind is not kinds.TokenProduct]
    reasons = {
        f"it has no {' or '.join(dict.fromkeys(missing))}": bool(missing),
        "it has no gradient of row sums": spec.lse,
        "queries and keys are not the same tokens in order": not spec.aligned,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def token_numbers(terms: tuple, side: Side, multiple: int) -> jax.Array | None:
    """What all `TokenBias`es read of one side: float32 [B or 1, H, C, T], or None.

    The padding repeats the last token, as a constant: blocks end with the number of a real token.
    """
    states = [
        jnp.swapaxes(state, 2, 3)
        for term, state in zip(terms, side.states, strict=True)
        if isinstance(term, kinds.TokenBias)
    ]
    if not states:
        return None
    rows = max(len(x) for x in states)
    states = [jnp.broadcast_to(x, (rows, *x.shape[1:])) for x in states]
    numbers = jnp.concatenate(states, axis=2)
    repeated = pad(jax.lax.stop_gradient(numbers), 3, multiple, mode="edge")
    return repeated.at[..., : numbers.shape[3]].set(numbers)


def blocks_that_matter(
    plan: ScorePlan,
    q: jax.Array,
    k: jax.Array,
    coefficients: Any,
    q_numbers: Any,
    k_numbers: Any,
    sizes: tuple[int, int],
) -> jax.Array:
    """Which blocks of keys matter to a block of queries, where only biases that decay are added.

    A row's sum includes the score of its own key. A key is left out if its score is lower by at
    least -NEGLIGIBLE (by Cauchy–Schwarz, and as the bias falls from the nearest pair of two blocks
    on).

    Args:
      plan: of a call that `decays`.
      q: [B, H, T, E], whole blocks.
      k: [B, K, S, E], the same tokens.
      coefficients: of the formulas, [H, C], or None.
      q_numbers: of the queries, [B or 1, H, C, T], or None.
      k_numbers: of the keys, [B or 1, H, C, S], or None.
      sizes: tokens of a block of queries, of keys.

    Returns:
      bool [B, H, q blocks, k blocks].
    """
    excess = skipping.largest_product(q, k, plan.scale) - skipping.own_scores(q, k, plan.scale)

    def ends(numbers, size, end):  # of the first or last token of each block
        return list(jnp.moveaxis(numbers[..., end % size :: size], 2, 0))

    def bound(distance, row, column):
        fall = jnp.zeros((), jnp.float32)
        if plan.formula:
            columns = list(jnp.moveaxis(coefficients, 1, 0)[..., None, None])  # [C, H, 1, 1]
            fall = plan.formula(columns, distance=distance[None])
            fall = fall - plan.formula(columns, distance=jnp.zeros_like(distance[None]))
        if plan.of_tokens:
            of_query = [x[..., :, None] for x in ends(q_numbers, sizes[0], row)]
            of_key = [x[..., None, :] for x in ends(k_numbers, sizes[1], column)]
            fall = fall + plan.of_tokens(of_query, of_key)
        return fall

    most = skipping.block_bounds(excess, sizes, k.shape[2] // sizes[1], bound)
    return ~(most < skipping.NEGLIGIBLE)  # NaN counts as one that matters


def block_range(pairs: jax.Array, by_keys: bool) -> tuple[jax.Array, jax.Array]:
    """The first block that each block meets, and one past the last: int32 [*n, blocks] each.

    `pairs` [*n, q blocks, k blocks] says who meets. The blocks are those of keys that each block of
    queries meets or, `by_keys`, the reverse; an end of 0: none.
    """
    pairs = jnp.swapaxes(pairs, -1, -2) if by_keys else pairs
    count = jnp.arange(pairs.shape[-1], dtype=jnp.int32)
    first = jnp.where(pairs, count, pairs.shape[-1]).min(-1)
    return first, jnp.where(pairs, count + 1, 0).max(-1)


def multiply(x: jax.Array, vectors: jax.Array, form: str = "bhte,hne->bhtn") -> jax.Array:
    """An einsum in float32 of x [B, H, …] and vectors [H or 1, n, E], named hne in `form`."""
    if len(vectors) == 1:
        return jnp.einsum(form.replace("hne", "ne"), x, vectors[0])
    return jnp.einsum(form, x, vectors)


def pad(x: jax.Array, axis: int, multiple: int, **how: Any) -> jax.Array:
    """Pads one axis to a multiple of a size: with zeros, or as `jnp.pad` does by `how`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % multiple)
    return jnp.pad(x, widths, **how) if widths[axis][1] else x


def sum_shared(grad: Any, like: Any) -> Any:
    """The sum of a gradient over the batch rows and heads that shared an array, in its dtype."""
    if grad is None:
        return None
    sizes = zip(like.shape, grad.shape, strict=True)
    split = [length for shared, size in sizes for length in (shared, size // shared)]
    return grad.reshape(split).sum(tuple(range(1, 2 * grad.ndim, 2))).astype(like.dtype)


def differentiable(forward: Callable, backward: Callable) -> Callable:
    """`f(plan, x)` of a NamedTuple x, whose gradient need not be computed for constants.

    `forward(plan, x)` returns the results, and `saved` for the backward pass. `backward(plan,
    saved, learned, cotangents)` returns gradients like x, None for zero; `learned` has the names of
    the fields that are not constant.
    """

    def run(plan, x):
        return forward(plan, x)[0]

    def save(plan, x):
        learned = [name for name in x._fields if getattr(getattr(x, name), "perturbed", False)]
        results, saved = forward(plan, first_order(custom_vjp_primal_tree_values(x)))
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

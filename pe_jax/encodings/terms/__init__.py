"""Where a position can enter attention: the kinds of terms, each defined by its formula for a pair.

    x      + Input                                                    (once, before the first layer)
    q', k' = Rotation(q + QueryBias), Rotation(k);    v' = ValueRotation(v)
    score  = scale·(q'·k' + (q + u)·RelativeKeys + k·RelativeQueries)     (q'·k' or ChannelDecay
                                                                            or PathProduct)
             + DistanceFormula + DistanceBias + PairBias                      (from positions)
             + TokenBias + TokenProduct + state·RelativeState         (from each token's state)
             + RowSum                                    (from sums of gates along the row)
             + RowRescore                                             (from whole rows of scores)
    score  = logit_cap·tanh(score / logit_cap), where every Mask leaves the pair visible
    out    = dropout(weights)·v' + Σ weights·RelativeValues, times σ(lse - Sink) or Unnormalized
    out    = ValueRotation(out), by the query's position

`encoding.terms(params, dims)` is a tuple of these: what it adds, and where. NoPE is the empty
tuple, a sum of encodings is concatenation, and the order does not matter except among rotations. A
term is a pytree. Its leaves are float arrays, gathered from the parameters and not computed; all
else is static and compares by value: functions are module functions or methods of frozen
dataclasses, so that jit does not trace them again. Costly maps belong in the function: at
contiguous positions engines evaluate it once, for the distances that occur. Scores, biases and
states are float32. `scale` is 1/sqrt(E) unless the call or a `Scale` says otherwise; engines apply
it to q·k and the scaled kinds. `logit_cap` and dropout are options of a call.

B batch, T queries, S keys, H query heads, K key heads, E head width, F value width, D model width,
A axes of a position, C numbers of a state or a formula, n any shape. `distance = q_pos - k_pos`.
"""

from pe_jax.encodings.terms.distances import (
    DistanceBias,
    DistanceTerm,
    RelativeKeys,
    RelativeQueries,
    RelativeState,
    RelativeValues,
)
from pe_jax.encodings.terms.rows import PathProduct, RowRescore, RowSum
from pe_jax.encodings.terms.scores import (
    ChannelDecay,
    DistanceFormula,
    PairBias,
    TokenBias,
    TokenProduct,
    fade,
)
from pe_jax.encodings.terms.softmax import Mask, Sink, Unnormalized
from pe_jax.encodings.terms.term import (
    Method,
    OfSomeHeads,
    ScoreTerm,
    Side,
    State,
    Term,
    Tokens,
    halves,
    kind,
    pair_distance,
    require_positive,
    select,
    static,
)
from pe_jax.encodings.terms.tuples import (
    OUTSIDE,
    RELATIVE,
    check,
    is_absolute,
    logit_cap,
    reads_input,
    reads_lse,
    reads_positions,
    scale,
    sums_rows,
    views,
)
from pe_jax.encodings.terms.vectors import (
    Input,
    QueryBias,
    Rotation,
    Scale,
    TracedScalars,
    ValueRotation,
    Views,
)

__all__ = [
    "ChannelDecay",
    "DistanceBias",
    "DistanceFormula",
    "DistanceTerm",
    "Input",
    "Mask",
    "Method",
    "OUTSIDE",
    "OfSomeHeads",
    "PairBias",
    "PathProduct",
    "QueryBias",
    "RELATIVE",
    "RelativeKeys",
    "RelativeQueries",
    "RelativeState",
    "RelativeValues",
    "Rotation",
    "RowRescore",
    "RowSum",
    "Scale",
    "ScoreTerm",
    "Side",
    "Sink",
    "State",
    "Term",
    "TokenBias",
    "TokenProduct",
    "Tokens",
    "TracedScalars",
    "Unnormalized",
    "ValueRotation",
    "Views",
    "check",
    "fade",
    "halves",
    "kind",
    "logit_cap",
    "pair_distance",
    "is_absolute",
    "reads_input",
    "reads_lse",
    "reads_positions",
    "require_positive",
    "scale",
    "select",
    "static",
    "sums_rows",
    "views",
]

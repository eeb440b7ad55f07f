"""Where a position can enter attention: the kinds of terms, each defined by its formula for a pair.

    x      + Input                                                    (once, before the first layer)
    q', k' = Rotation(q + QueryBias), Rotation(KeyOffset(k));    v' = ValueRotation(v)
    score  = scale·(q'·k' + (q + u)·RelativeKeys + k·RelativeQueries)     (q'·k', or ChannelDecay,
                                                              PathProduct or PhaseProduct)
             + DistanceFormula + DistanceBias + PairBias                      (from positions)
             + TokenBias + TokenProduct + state·RelativeState         (from each token's state)
             + RowSum                                    (from sums of gates along the row)
             + PairRescore                                  (from the scores of all heads of a pair)
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

# ruff: noqa: I001 (it would write one statement per name)
from pe_jax.encodings.terms.distances import (
    ByDistance as ByDistance,
    DistanceBias as DistanceBias,
    DistanceProducts as DistanceProducts,
    DistanceScores as DistanceScores,
    DistanceTerm as DistanceTerm,
    DistanceVectors as DistanceVectors,
    RelativeKeys as RelativeKeys,
    RelativeQueries as RelativeQueries,
    RelativeState as RelativeState,
    RelativeValues as RelativeValues,
)
from pe_jax.encodings.terms.paths import PathProduct as PathProduct
from pe_jax.encodings.terms.rows import RowSum as RowSum
from pe_jax.encodings.terms.scores import (
    ChannelDecay as ChannelDecay,
    DistanceFormula as DistanceFormula,
    PairBias as PairBias,
    PairRescore as PairRescore,
    PhaseProduct as PhaseProduct,
    Pieces as Pieces,
    TokenBias as TokenBias,
    TokenProduct as TokenProduct,
)
from pe_jax.encodings.terms.softmax import Mask as Mask, Sink as Sink, Unnormalized as Unnormalized
from pe_jax.encodings.terms.term import (
    OfSomeHeads as OfSomeHeads,
    AroundEngine as AroundEngine,
    ProductTerm as ProductTerm,
    ResultTerm as ResultTerm,
    Rotates as Rotates,
    RowTerm as RowTerm,
    ScoreTerm as ScoreTerm,
    Side as Side,
    State as State,
    Term as Term,
    Tokens as Tokens,
    halves as halves,
    kind as kind,
    pair_distance as pair_distance,
    require_positive as require_positive,
    select as select,
    static as static,
)
from pe_jax.encodings.terms.tuples import (
    check as check,
    in_engine as in_engine,
    is_absolute as is_absolute,
    logit_cap as logit_cap,
    reads_input as reads_input,
    reads_lse as reads_lse,
    reads_positions as reads_positions,
    scale as scale,
    sums_rows as sums_rows,
    views as views,
)
from pe_jax.encodings.terms.vectors import (
    Input as Input,
    KeyOffset as KeyOffset,
    QueryBias as QueryBias,
    Rotation as Rotation,
    Scale as Scale,
    TracedScalars as TracedScalars,
    ValueRotation as ValueRotation,
    Views as Views,
)

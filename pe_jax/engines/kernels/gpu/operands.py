"""The static part of a call of the GPU kernels, the arrays that they read, the blocks to visit.

Letters are those of `engine`.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, select
from pe_jax.encodings.terms.rows import interpolate
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import common
from pe_jax.engines.kernels.gpu import fades, launches, paths
from pe_jax.engines.kernels.gpu.launches import Launch, Launches
from pe_jax.engines.kernels.gpu.phases import Phase
from pe_jax.engines.kernels.gpu.row_sums import RowSums
from pe_jax.numerics.arrays import repeat_heads

LOG2E = math.log2(math.e)
MAX_DISTANCES = 2048  # within a horizon: the most entries by distance that a row has


@dataclasses.dataclass(frozen=True)
class Plan(common.ScorePlan):
    """The static part of a call."""

    lengths: tuple[int, int]  # T and S before padding
    launches: Launches  # of every kernel
    launch: Launch  # of this kernel
    arch: int  # the architecture, 90 for sm_90
    span: tuple[int, int]  # the least and the largest distance of the tables, if there are any
    far: bool  # whether there are tables that are constant beyond the span, and few distances
    values: bool  # whether weights by distance are wanted
    sums: Any  # `RowSums`, if a term sums along rows; at most one does
    phase: Phase | None  # of a product in the place of q·k
    chunk: int  # tokens of a chunk where `chunks` has the products; 0 where they are q·k
    masks: tuple  # functions of indices that hide pairs
    interpret: bool  # whether the kernels run as plain JAX

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens of an owned block, of a visited one."""
        return self.launch[:2]

    @property
    def distances(self) -> int:
        """How many distances a table holds."""
        return self.span[1] - self.span[0] + 1

    @property
    def indexed(self) -> bool:
        """Whether the mask reads index arrays."""
        by_index = self.spec.causal or self.spec.window is not None or bool(self.masks)
        return not self.spec.aligned and by_index

    @property
    def padded(self) -> bool:
        """Whether keys of the padding could be visible: not if causality hides them."""
        hidden = self.spec.aligned and self.spec.causal
        return not hidden and self.lengths[1] % self.sizes[1] != 0


class PerToken(NamedTuple):
    """One number per query or key, [B or 1, 1, T or S]; None where kernels do not read it."""

    positions: Any = None
    index: Any = None
    segments: Any = None
    lse: Any = None  # log2 of each row's sum, for gradients, [B, H, T]
    delta: Any = None  # subtracted from the gradient of each weight, [B, H, T]


class Arrays(NamedTuple):
    """What kernels read, and its gradients: arrays or references; None where there is none."""

    q: Any = None  # [B, H, T, E]
    k: Any = None  # [B, K, S, E]
    v: Any = None  # [B, K, S, F]
    coefficients: Any = None  # the numbers of all formulas, [1, H, C]
    table: Any = None  # the sum of the biases by distance, [1, H, n]
    rows: Any = None  # what each query adds to its scores, by distance, [B, H, T, n]
    columns: Any = None  # what each key adds to its scores, by distance, [B, H, S, n]
    bias: Any = None  # what is added to the scores of all pairs, [B or 1, H or 1, T, S]
    q_numbers: Any = None  # of queries, which biases of two tokens read, [B or 1, H, C, T]
    k_numbers: Any = None  # the same of keys, [B or 1, H, C, S]
    sum_numbers: Any = None  # of queries, for the bias of their sums, [B or 1, H, T, C]
    # of queries and of keys, whose products sums along rows, phases or chunks read
    left: Any = None  # [B or 1, H, T, C]; for each chunk of keys [B, H, T, N, C]
    right: Any = None  # [B or 1, H or K, S, C]
    # where channels are at the first token of each chunk, and at the last, as powers of two
    ends: Any = None  # [B, H, 2, N, E]
    near: Any = None  # the products of a query and the keys of its chunk, [B, H, T, keys]
    carried: Any = None  # the sums of all blocks of keys farther right, [B, H, T, blocks]
    pending: Any = None  # the gradient of the sums of all blocks farther left, [B, H, T, blocks]
    rate: Any = None  # the fields of `Pieces`, of all queries: [1, 1, 1]
    scale: Any = None  # [B or 1, 1, T]
    knots: Any = None  # [1, 1, K]
    bends: Any = None  # [1, H, K]
    line: Any = None  # [1, H, 2]
    of_query: Any = None  # `PerToken` of the queries
    of_key: Any = None  # `PerToken` of the keys
    bounds: tuple | None = None  # first block to visit, one past the last: [B or 1, H or 1, blocks]
    d_out: Any = None  # cotangent of the output, [B, H, T, F]
    d_weights: Any = None  # cotangent of the weights by distance, [B, H, T, n]


class Outs(NamedTuple):
    """What kernels write: of a block that a program owns, by row; None where it is not wanted."""

    entries: Any = None  # by distance: scores, or their gradients, [B, H, T or S, n]
    carried: Any = None  # as in `Arrays`, as are the following
    pending: Any = None
    out: Any = None  # the output, [B, H, T, F]
    lse: Any = None  # log2 of each row's sum of exponentials, [B, H, T]
    q: Any = None
    k: Any = None
    v: Any = None
    coefficients: Any = None  # of each row, [B, H, C, T]
    q_numbers: Any = None
    k_numbers: Any = None
    bias: Any = None
    near: Any = None
    left: Any = None
    right: Any = None
    sum_numbers: Any = None
    pieces: Any = None  # `pieces.Totals`: sums of a block of queries, [B, H, blocks, SUMS, K]
    scale: Any = None  # and of each query, [B, H, 2, T]
    tiles: Any = None  # the sums of each block diagonal, [B, H, diagonals, side, side]


def make_plan(
    spec: AttentionSpec,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    sizes: tuple[int, ...] | None,
    interpret: bool,
    arch: int | None = None,
    biased: bool = False,
) -> Plan:
    """The plan of a call; `sizes` and `arch` as for `engine.attend`.

    `biased`: whether there is an array of biases of all pairs.
    """
    lengths = q.x.shape[2], k.x.shape[2]
    span = table_span(spec, terms, *lengths)
    arch = arch or launches.architecture() or launches.DEFAULT
    if sizes is None:
        width = max(q.x.shape[-1], v.shape[-1])
        chosen = launches.choose(arch, _reads(terms, biased), str(q.x.dtype), width)
    else:
        chosen = launches.alike(launches.Launch(*sizes))
    chosen = chosen.at_most(max(16, pl.next_power_of_2(max(lengths))))
    chunk, sums = 0, None
    if select(terms, kinds.ChannelDecay):
        chosen = chosen.of_one_block()
        chunk = chosen.longest
    elif select(terms, kinds.PathProduct):
        chunk = paths.chunk_length(lengths[0], q.x.shape[3], chosen.longest)
    if of_rows := select(terms, kinds.RowSum):
        chosen = chosen.of_one_key_block()
        sums = RowSums.of(of_rows[0], sum_numbers(spec, terms, q, k), chosen.forward.other)
    return Plan(
        **common.ScorePlan.fields(spec, terms),
        lengths=lengths,
        launches=chosen,
        launch=chosen.forward,
        arch=arch,
        span=span,
        far=common.horizon(terms) is not None and span[1] - span[0] < MAX_DISTANCES,
        values=bool(select(terms, kinds.RelativeValues)),
        sums=sums,
        phase=next((Phase.of(x, q.x.shape[-1]) for x in select(terms, kinds.PhaseProduct)), None),
        chunk=chunk,
        masks=tuple(term.fn for term in select(terms, kinds.Mask)),
        interpret=interpret,
    )


def table_span(spec: AttentionSpec, terms: tuple, queries: int, keys: int) -> tuple[int, int]:
    """The distances that a table has to hold: those that occur, are visible, and differ."""
    limits, low, high = common.horizon(terms), 1 - keys, queries - 1
    if spec.aligned:
        low = 0 if spec.causal else low
        if spec.window is not None:
            low, high = max(low, 1 - spec.window), min(high, spec.window - 1)
    if limits is not None:
        low, high = max(low, limits[0]), min(high, limits[1])
    return low, max(high, low + 1)


def _reads(terms: tuple, biased: bool) -> str:
    """The most that a tile reads besides q, k and v, of `launches.READS`."""
    if sums := select(terms, kinds.RowSum):
        return "lookups" if sums[0].fn is interpolate else "sums"
    if select(terms, kinds.PhaseProduct):
        return "sums"
    if select(terms, kinds.ChannelDecay):
        return "fades"
    if select(terms, kinds.DistanceVectors):
        return "vectors"
    if select(terms, kinds.PathProduct):
        return "maps"
    if biased:
        return "bias"
    if select(terms, kinds.PairBias):
        return "pieces"
    if select(terms, kinds.DistanceTerm):
        return "table"
    return "formulas" if select(terms, kinds.DistanceFormula, kinds.TokenBias) else "scores"


def make_arrays(
    plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array, bias: jax.Array | None = None
) -> Arrays:
    """What the kernels read, padded; `bias` [B or 1, H or 1, T, S] is added to the scores."""
    tokens = max(plan.launches.longest, plan.chunk)
    distance = table_distances(plan)
    read = _of_sums(plan, terms, q, k, tokens) | _of_pieces(terms, q, tokens)
    if plan.phase is not None:
        n = plan.phase.amplitude
        for name, x in (("left", q.x), ("right", k.x)):
            read[name] = _widened(common.pad(x[..., n:], 2, tokens), 16)
        q, k = (side._replace(x=side.x[..., :n]) for side in (q, k))
    for term, state in zip(terms, q.states, strict=True):
        if isinstance(term, kinds.ChannelDecay):
            read |= fades.prepare(q.x, k.x, state, tokens)
        if isinstance(term, kinds.PathProduct):
            read |= paths.prepare(term, q, k, state, tokens)
    if plan.chunk:
        channels = {name: x for name, x in read.items() if name in ("left", "right", "ends")}
        read |= {name: _widened(x, 16) for name, x in channels.items()}
    x, y, v = (_widened(common.pad(x, 2, tokens), 16) for x in (q.x, k.x, v))
    rows, columns = [], []
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.DistanceProducts):
            side, factors = term.dotted_with(q, k, states)
            factors = common.pad(repeat_heads(factors, q.x.shape[1]), 2, tokens)
            product = common.multiply(factors, term.at(distance))
            product = product * plan.scale if term.scaled else product
            (rows if side == "q" else columns).append(product)
    numbers = common.coefficients(terms)
    table = common.distance_bias(terms, distance, plan.scale)
    return Arrays(
        q=x,
        k=y,
        v=v,
        coefficients=None if numbers is None else numbers[None],
        table=None if table is None else table[None],
        rows=functools.reduce(jnp.add, rows) if rows else None,
        columns=functools.reduce(jnp.add, columns) if columns else None,
        bias=None if bias is None else common.pad(common.pad(bias, 2, tokens), 3, tokens),
        q_numbers=common.token_numbers(terms, q, tokens),
        k_numbers=common.token_numbers(terms, k, tokens),
        **read,
        of_query=_per_token(plan, q.tokens, tokens),
        of_key=_per_token(plan, k.tokens, tokens),
    )


def sum_numbers(spec: AttentionSpec, terms: tuple, q: Side, k: Side) -> int:
    """How many numbers of a query the bias of its sums along rows reads."""
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.RowSum):
            (numbers, _), _ = jax.eval_shape(
                lambda *args, term=term: term.prepare(*args, spec.scale_of(terms)), q, k, states
            )
            return 0 if numbers is None else numbers.shape[3]
    return 0


def _of_pieces(terms: tuple, q: Side, tokens: int) -> dict[str, Any]:
    """What biases of linear pieces read, by the names of `Arrays`; of at most one term."""
    for term in select(terms, kinds.PairBias):
        found = term.pieces(term.arrays, q.tokens.positions)
        count = pl.next_power_of_2(found.knots.shape[1] + 1)  # the last is past all knots
        more = [(0, 0), (0, count - found.knots.shape[1])]
        found = found._replace(
            scale=common.pad(jnp.swapaxes(found.scale, 0, 1), 2, tokens, mode="edge"),
            knots=jnp.pad(found.knots, more, constant_values=jnp.inf),
            bends=jnp.pad(found.bends, more),
        )
        return {n: x if n == "scale" else x[None] for n, x in found._asdict().items()}
    return {}


def _of_sums(plan: Plan, terms: tuple, q: Side, k: Side, tokens: int) -> dict[str, Any]:
    """What sums along rows read, by the names of `Arrays`; factors are rounded as q and k are."""
    found: dict[str, Any] = {}
    for term, *states in zip(terms, q.states, k.states, strict=True):
        if isinstance(term, kinds.RowSum):
            (numbers, left), right = term.prepare(q, k, states, plan.scale)
            if numbers is not None:
                rows = (*numbers.shape[:2], q.x.shape[2], numbers.shape[3])
                numbers = common.pad(jnp.broadcast_to(numbers, rows), 2, tokens)
                found["sum_numbers"] = _widened(numbers, 1)
            if left is not None:
                factors = {"left": (left, q), "right": (right, k)}
                for name, (x, side) in factors.items():
                    found[name] = _widened(common.pad(x.astype(side.x.dtype), 2, tokens), 16)
    return found


def _widened(x: jax.Array, least: int) -> jax.Array:
    """Padded to a power of two of channels, at least so many."""
    return common.pad(x, x.ndim - 1, max(least, pl.next_power_of_2(x.shape[-1])))


def _per_token(plan: Plan, tokens: kinds.Tokens, multiple: int) -> PerToken:
    """Positions, indices and segments as far as the kernels read them."""
    by_distance = plan.formula or plan.phase
    numbers = PerToken(
        positions=tokens.positions if by_distance and not plan.spec.in_order else None,
        index=tokens.index if plan.indexed else None,
        segments=tokens.segments,
    )
    return jax.tree.map(lambda x: common.pad(x[:, None], 2, multiple, mode="edge"), numbers)


def table_distances(plan: Plan) -> jax.Array:
    """The distances of the tables."""
    return jnp.arange(plan.span[0], plan.span[1] + 1, dtype=jnp.int32)


def find_bounds(plan: Plan, x: Arrays, by_keys: bool = False) -> Arrays:
    """The arrays with `bounds` for the blocks of one side; None: all blocks."""
    spec, (q_size, k_size), tests = plan.spec, plan.sizes[::-1] if by_keys else plan.sizes, []
    if plan.indexed:
        most, least = _differences(x.of_query.index, x.of_key.index, q_size, k_size)
        tests += [most >= 0] if spec.causal else []
        tests += [(least < spec.window) & (most > -spec.window)] if spec.window else []
    if x.of_query.segments is not None:
        most, least = _differences(x.of_query.segments, x.of_key.segments, q_size, k_size)
        tests += [most >= 0, least <= 0]
    if plan.decays:
        numbers = None if x.coefficients is None else x.coefficients[0]
        arrays = x.q, x.k, numbers, x.q_numbers, x.k_numbers
        tests.append(common.blocks_that_matter(plan, *arrays, (q_size, k_size)))
    if not tests:
        return x
    bounds = common.block_range(functools.reduce(jnp.logical_and, tests), by_keys)
    return x._replace(bounds=bounds)


def _differences(q: jax.Array, k: jax.Array, q_size: int, k_size: int):
    """The largest and the least q - k of each pair of blocks: [B or 1, 1, q blocks, k blocks]."""
    rows, columns = (x.reshape(*x.shape[:2], -1, size) for x, size in ((q, q_size), (k, k_size)))
    most = rows.max(-1)[..., :, None] - columns.min(-1)[..., None, :]
    return most, rows.min(-1)[..., :, None] - columns.max(-1)[..., None, :]

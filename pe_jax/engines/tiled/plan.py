"""A call before its tiles are visited: its static plan, and its operands.

B batch, T queries, S keys, H query heads, K key heads, E and F widths of keys and values, n
distances.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled import skipping
from pe_jax.engines.tiled.groups import Axes, Groups
from pe_jax.engines.tiled.sizes import CHOSEN, SHORT, Grid, TileSizes, alone, arrange


class Operands(NamedTuple):
    """The inputs of a call that get gradients, padded to whole tiles; or these gradients."""

    q: Any  # a `Side` without tokens, with states as `Term.prepare` gives them
    k: Any  # the same of keys
    v: Any
    tables: Any  # for each term its values by distance, the greatest first, [H or 1, n, …]; or None
    terms: Any  # without the arrays that tables and states hold


class NonDiff(NamedTuple):
    """The inputs of a call that get no gradients."""

    q: Any  # the tokens of the queries
    k: Any  # those of the keys
    base: Any = None  # the distance of the first query and the first key; None: 0
    masks: Any = ()  # the terms that hide pairs
    dropout: Any = None
    own_scores: Any = None  # of each query and its own key, [B, H, T, 1], if tiles are left out


class Result(NamedTuple):
    """The output [B, H, T, F] and the logarithm of each row's sum [B, H, T, 1], float32.

    A row that sees nothing has zeros, and `LOWEST`.
    """

    out: Any
    lse: Any

    def merged(self, other: "Result") -> "Result":
        """This and the result over other keys as one over both."""
        top = jnp.maximum(self.lse, other.lse)
        x, y = (jnp.exp(result.lse - top) for result in (self, other))
        return Result((x * self.out + y * other.out) / (x + y), top + jnp.log(x + y))


SIDES, HEADS, BATCH = Axes.BATCH_AND_HEADS, Axes.HEADS, Axes.BATCH
OPERANDS = Operands(SIDES, SIDES, SIDES, HEADS, HEADS)
NONDIFF = NonDiff(BATCH, BATCH, Axes.NONE, BATCH, SIDES, SIDES)
RESULT = Result(SIDES, SIDES)


class Plan(NamedTuple):
    """The static part of a call."""

    spec: AttentionSpec  # sizes and options
    grid: Grid  # the tiles
    groups: Groups  # the heads that take turns
    lengths: tuple[int, int]  # tokens of queries and of keys, without padding
    # distances of a tile's first query and first key in near tiles, the greatest first
    gaps: tuple[int, ...]
    # whether in all other tiles a term of distances has the same value for every pair
    uniform: bool
    # whether each near tile is compiled for its distances: if they are the diagonal and its
    # neighbours
    one_by_one: bool
    partial: bool  # whether the mask may hide a part of a tile off the diagonal
    hides: bool  # whether terms hide pairs, so that no tile is known to be visible as a whole
    sums: bool  # whether a term carries something along rows
    passes_hidden: bool  # whether past tiles that the mask hides, too
    skips: bool  # whether negligible tiles are left out
    stops: bool  # whether a row ends where sums along it make all further keys negligible
    alone: bool  # whether one CPU computes the call: batch rows may then be evaluated one by one

    @property
    def one_sided(self) -> bool:
        """Whether the mask hides every distance below 0."""
        return self.spec.causal and self.spec.aligned

    def range_of(self, term: kinds.DistanceTerm) -> tuple[int, int]:
        """The lowest and the highest distance in a term's table, if tables end at horizons."""
        queries, keys = self.lengths
        low, high = term.horizon or (1 - keys, queries - 1)
        low = max(low, 0 if self.one_sided else 1 - keys)
        high = min(max(high, low), max(queries - 1, low))
        return min(low, high), high


def make_plan(
    spec: AttentionSpec,
    terms: tuple,
    queries: tuple[int, int, int],
    keys: tuple[int, int],
    sizes: TileSizes = CHOSEN,
    *,
    devices: int = 1,
    segments: bool = True,
    on_ring: bool = False,
) -> Plan:
    """The plan of a call; no array is read.

    Args:
      spec: sizes and options.
      terms: those of the call.
      queries: B, H, T.
      keys: K, S.
      sizes: of tiles.
      devices: how many share batch and heads.
      segments: whether tokens have segments.
      on_ring: whether these tokens are a device's part, with distances known only at run time.
    """
    inside = kinds.in_engine(terms)
    by_head = not on_ring and all(has_table(spec, term) or term.by_head for term in inside)
    costly = any(term.costly_near or term.all_heads for term in inside)
    all_heads = any(term.all_heads for term in inside)
    square = any(term.has_tile_states for term in inside)
    needs = {"costly": costly, "all_heads": all_heads, "square": square}
    grid, groups = arrange(queries, keys, sizes, devices, by_head, _reach(terms), **needs)
    lengths = queries[2], keys[1]
    sums, hides = (bool(kinds.select(terms, kind)) for kind in (kinds.RowTerm, kinds.Mask))
    padded = grid.lengths != lengths
    few = sizes == CHOSEN and max(lengths) <= SHORT and not on_ring
    plan = Plan(
        spec,
        grid,
        groups,
        lengths,
        gaps=(),
        uniform=False,
        one_by_one=True,
        partial=segments or hides or spec.window is not None or (padded and not spec.causal),
        hides=hides,
        sums=sums,
        passes_hidden=any(term.passes_hidden for term in kinds.select(terms, kinds.RowTerm)),
        skips=skipping.can_skip(spec, terms) and not few,
        stops=skipping.can_stop(spec, terms),
        alone=alone(devices),
    )
    if sums or on_ring or not (spec.in_order and spec.aligned and grid.rows == grid.columns):
        return plan
    return _near_and_far(plan, terms)


def has_table(spec: AttentionSpec, term: kinds.Term) -> bool:
    """Whether tiles read a term from a table of its values by distance."""
    return spec.in_order and isinstance(term, kinds.DistanceTerm)


def _reach(terms: tuple) -> int:
    """The greatest distance within which vectors of distances differ."""
    ends = [term.horizon or () for term in kinds.select(terms, kinds.DistanceVectors)]
    return max((abs(end) for horizon in ends for end in horizon), default=0)


def _near_and_far(plan: Plan, terms: tuple) -> Plan:
    """The plan with the gaps of tiles within the horizons; without a horizon, of the diagonal."""
    tabled = kinds.select(terms, kinds.DistanceTerm)
    if any(term.horizon is None for term in tabled):
        return plan._replace(gaps=(0,))
    side, most = plan.grid.rows, plan.grid.q_blocks - 1
    ranges = [plan.range_of(term) for term in tabled]
    # up to a horizon off the diagonal too: the tiles in between read its near end
    ahead = max([0, *(-(-(high + side - 1) // side) - 1 for _, high in ranges)])
    behind = max([0, *(-(-(side - 1 - low) // side) - 1 for low, _ in ranges)])
    behind = 0 if plan.one_sided else behind
    gaps = tuple(side * n for n in range(min(ahead, most), -min(behind, most) - 1, -1))
    return plan._replace(gaps=gaps, uniform=True, one_by_one=max(map(abs, gaps)) <= side)


def lay_out(
    plan: Plan, terms: tuple, q: Side, k: Side, v: jax.Array, dropout: Any = None, runs: int = 1
) -> tuple[Operands, NonDiff]:
    """The inputs of a call, padded to whole tiles; `with_tables` adds the tables.

    On a ring rows consist of `runs` runs of tokens, each as long as the plan says.
    """
    q_tokens, k_tokens = fill_tokens(plan, q.tokens, k.tokens, runs)
    operands = Operands(
        _fill(q, plan.grid.lengths[0], runs),
        _fill(k, plan.grid.lengths[1], runs),
        pad(v, 2, plan.grid.lengths[1], runs),
        None,
        tuple(
            jax.tree.map(lambda _: None, term)  # no tile reads its arrays
            if isinstance(term, kinds.AroundEngine | kinds.Mask)
            else term.without_state_arrays()
            for term in terms
        ),
    )
    own_scores = None
    if plan.skips:
        x, y = operands.q.x, operands.k.x
        own_scores = skipping.own_scores(x, y, plan.spec.scale_of(terms))
    masks = tuple(kinds.select(terms, kinds.Mask))
    return operands, NonDiff(q_tokens, k_tokens, None, masks, dropout, own_scores)


def with_tables(plan: Plan, operands: Operands, base: Any = None) -> Operands:
    """The operands with tables of terms of distances, evaluated once; `base` as in `NonDiff`."""
    tables, terms = [], []
    for term in operands.terms:
        tabled = has_table(plan.spec, term)
        tables.append(_table(plan, term, base) if tabled else None)
        terms.append(term.without_function_arrays() if tabled else term)
    return operands._replace(tables=tuple(tables), terms=tuple(terms))


def _table(plan: Plan, term: Any, base: Any) -> jax.Array:
    """Values by distance, the greatest first: [H or 1, n, …].

    They end at the horizon, or cover near tiles or all tiles, plus one entry, so that each tile
    cuts rows + columns.
    """
    (queries, keys), lengths, (rows, columns) = plan.lengths, plan.grid.lengths, plan.grid[:2]
    if plan.uniform and not plan.one_by_one:
        count = plan.gaps[0] - plan.gaps[-1] + rows + columns
        distance = plan.gaps[0] + rows - 1 - jnp.arange(count, dtype=jnp.int32)
        return term.at(jnp.maximum(distance, 0) if plan.one_sided else distance)
    if plan.uniform:
        low, high = plan.range_of(term)
        return term.at(jnp.arange(high, low - 1, -1, dtype=jnp.int32))
    one_sided = plan.one_sided and base is None
    ahead = columns + rows - math.gcd(rows, columns)  # of tiles that end below the diagonal
    count = lengths[0] + (ahead if one_sided else lengths[1])
    if base is not None:
        distance = base + lengths[0] - 1 - jnp.arange(count, dtype=jnp.int32)
        return term.at(jnp.maximum(distance, 0) if plan.one_sided else distance)
    lowest = 0 if one_sided else 1 - keys
    table = term.at(jnp.arange(queries - 1, lowest - 1, -1, dtype=jnp.int32))
    before = lengths[0] - queries
    widths = [(0, 0), (before, count - before - table.shape[1])] + [(0, 0)] * (table.ndim - 2)
    return jnp.pad(table, widths, mode="edge")


# Padding.


def pad(x: jax.Array, axis: int, length: int, runs: int = 1, **how: Any) -> jax.Array:
    """Pads each of `runs` along an axis to a length, with zeros or as `jnp.pad` does by `how`."""
    short = x.shape[axis] // runs
    if short == length:
        return x
    x = x.reshape(*x.shape[:axis], runs, short, *x.shape[axis + 1 :])
    widths = [(0, (length - short) * (n == axis + 1)) for n in range(x.ndim)]
    x = jnp.pad(x, widths, **how)
    return x.reshape(*x.shape[:axis], runs * length, *x.shape[axis + 2 :])


def _fill(side: Side, length: int, runs: int) -> Side:
    """A side without its tokens; padding repeats the last state, the least if states fall."""
    last = functools.partial(pad, axis=2, length=length, runs=runs, mode="edge")
    states = jax.tree.map(
        lambda x: last(jnp.broadcast_to(x, (len(side.x), *x.shape[1:]))), side.states
    )
    x, raw = jax.tree.map(lambda x: pad(x, 2, length, runs), (side.x, side.raw))
    return Side(x, raw, states)


def fill_tokens(plan: Plan, q: Tokens, k: Tokens, runs: int = 1) -> list[Tokens]:
    """Tokens padded to the end of the last tile of each of `runs`.

    Padding comes later than every token, or has a segment that sees nothing.
    """
    if plan.grid.lengths == plan.lengths:
        return [q, k]
    later = plan.one_sided and bool(plan.gaps) and q.segments is None
    return [_fill_side(x, n, later, runs) for x, n in zip((q, k), plan.grid.lengths, strict=True)]


def _fill_side(tokens: Tokens, length: int, later: bool, runs: int) -> Tokens:
    last = functools.partial(pad, axis=1, length=length, runs=runs, mode="edge")
    extra = length - tokens.index.shape[1]
    index, segments = last(tokens.index), tokens.segments
    if later:
        index = index.at[:, length - extra :].add(jnp.arange(1, extra + 1, dtype=index.dtype))
    elif segments is None:
        segments = jnp.zeros(tokens.index.shape, jnp.int32)
    if segments is not None:
        segments = pad(segments, 1, length, runs, constant_values=-1)
    rank, row = (x if x is None else last(x) for x in (tokens.rank, tokens.row))
    return Tokens(last(tokens.positions), index, segments, rank, row)

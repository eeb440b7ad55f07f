"""What is known of a call before its tiles are visited: what is static, and the operands."""

import dataclasses
from typing import Any, NamedTuple

import jax

from pe_jax.encodings import terms as kinds
from pe_jax.encodings.terms import Side, Tokens
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.dropout import Dropout
from pe_jax.engines.tiled import negligible
from pe_jax.engines.tiled.assignment import assign
from pe_jax.engines.tiled.bands import Bands
from pe_jax.engines.tiled.channels import SIDE, Channels
from pe_jax.engines.tiled.grid import Grid
from pe_jax.engines.tiled.groups import Axes, Groups
from pe_jax.engines.tiled.padding import fill_tokens, fill_vectors, stretch
from pe_jax.engines.tiled.row_sums import RowSums, limited
from pe_jax.engines.tiled.tiles import CHOSEN, Partition, TileSizes, arrange
from pe_jax.engines.tiled.views import TileViews
from pe_jax.engines.tiled.ways import Vectors, Way, add_up, without_state_arrays
from pe_jax.engines.tiled.windows import Windows

# In rows of so few tokens to look for negligible tiles took longer than those that it leaves out.
FEW = 512


class Setup(NamedTuple):
    """What is static about a call."""

    spec: AttentionSpec
    ways: tuple[Way, ...]
    views: TileViews
    scale: float  # what dot products are multiplied by
    grid: Grid
    groups: Groups
    skips: bool  # whether negligible tiles are left out
    stops: bool  # whether rows are left where sums along them make the rest negligible
    limited: bool  # whether all sums along rows have limits
    cap: float | None  # what bounds the scores
    masks: bool  # whether terms hide pairs, so that no tile is known to be whole

    @property
    def sums(self) -> int | None:
        """Which of the ways sums along rows; None: none does."""
        return self._place(RowSums)

    @property
    def row_products(self) -> int | None:
        """Which of the ways may have products of rows; None: none has."""
        return self._place(Windows)

    def _place(self, kind: type[Way]) -> int | None:
        places = [n for n, way in enumerate(self.ways) if isinstance(way, kind)]
        return places[0] if places else None

    @property
    def cheap(self) -> bool:
        """Whether plain tiles have a loop of their own."""
        return all(way.cheap for way in self.ways)

    @property
    def has_products(self) -> bool:
        """Whether scores begin with q·k, and no way stands for it."""
        return not any(way.for_products for way in self.ways)

    def own_terms(self, terms: tuple) -> tuple:
        """The terms that the engine evaluates, at their places; None for the others."""
        places = {place for way in self.ways for place in way.places}
        return tuple(
            without_state_arrays(term) if place in places else None
            for place, term in enumerate(terms)
        )

    def tables(self, terms: tuple, run_gaps: Any = None) -> tuple:
        """What each way evaluates once per call."""
        each = zip(self.ways, self._of_each_way(terms), strict=True)
        return tuple(way.tables(own, run_gaps) for way, own in each)

    def _of_each_way(self, terms: tuple) -> list[tuple]:
        return [tuple(terms[place] for place in way.places) for way in self.ways]

    def whole_lse(self, terms: tuple, q: Side, lse: jax.Array) -> jax.Array:
        """The logarithm of each row's sum [B, H, T, 1], with all that ways leave out of scores."""
        vectors = Vectors(q.x, q.raw, q.states)
        each = zip(self.ways, self._of_each_way(terms), strict=True)
        left_out = [way.left_out(own, way.own(vectors)) for way, own in each]
        return add_up([lse, *left_out])

    def max_bias(self, terms: tuple, q: Tokens, k: Tokens) -> Any:
        """For each head and tile, how much its bias can exceed that of distance 0; or None."""
        formulas = [term for term in terms if isinstance(term, kinds.DistanceFormula)]
        return negligible.max_bias(self.grid, formulas, q, k) if self.skips else None

    def own_scores(self, q: Vectors, k: Vectors) -> Any:
        """The score of each query and its own key: [B, H, T, 1]; or None."""
        return negligible.own_scores(q.x, k.x, self.scale) if self.skips else None


class Operands(NamedTuple):
    """What a call has gradients for, padded to whole tiles; or these gradients."""

    q: Any
    k: Any
    v: Any
    tables: Any


class Fixed(NamedTuple):
    """What it has none for: tokens, two bounds (`Setup.own_scores`, `max_bias`), masks, dropout."""

    q: Any
    k: Any
    own_scores: Any
    max_bias: Any
    masks: Any
    dropout: Any


class Result(NamedTuple):
    """The output [B, H, T, F] and the logarithm of each row's sum [B, H, T, 1], float32.

    A row that sees nothing has zeros, and `LOWEST`.
    """

    out: Any
    lse: Any


SIDES, HEADS, BATCH = Axes.BATCH_AND_HEADS, Axes.HEADS, Axes.BATCH
OPERANDS = Operands(SIDES, SIDES, SIDES, HEADS)
FIXED = Fixed(BATCH, BATCH, SIDES, HEADS, masks=BATCH, dropout=SIDES)
RESULT = Result(SIDES, SIDES)


def set_up(
    spec: AttentionSpec,
    terms: tuple,
    q: jax.Array,
    k: jax.Array,
    partition: Partition,
    sizes: TileSizes,
) -> Setup:
    """What is static about a call.

    Args:
      spec: the sizes and the mask.
      terms: those of the call; no array in them is read.
      q: [B, H, T, E]; the shape alone is read.
      k: [B, K, S, E], likewise.
      partition: how devices share the call.
      sizes: of tiles.
    """
    assigned = assign(spec, terms)
    if Channels in assigned:
        sides = {"rows": sizes.rows or SIDE, "columns": sizes.columns or SIDE}
        sizes = dataclasses.replace(sizes, **sides)
    apart = all(way.heads_apart for way in assigned)
    grid, groups = arrange(q, k, partition, sizes, apart, _reach(terms) if Bands in assigned else 0)
    runs = partition.runs_per_row
    if Bands in assigned and runs > 1 and grid.lengths[0] * runs != q.shape[2]:
        assigned = assign(spec, terms, bands=False)  # runs begin off the tiles
    scale = spec.scale_of(terms)
    ways = tuple(
        way.of(tuple(terms[i] for i in places), places, spec, grid, scale, sizes)
        for way, places in assigned.items()
    )
    views = TileViews(kinds.views(terms))
    few = sizes == CHOSEN and max(grid.lengths) * runs <= FEW
    skips = negligible.can_skip(spec, terms) and not few
    leaves_out = skips, negligible.can_stop(terms) and spec.logit_cap is None, limited(terms)
    cap, masks = spec.logit_cap, bool(kinds.select(terms, kinds.Mask))
    return Setup(spec, ways, views, scale, grid, groups, *leaves_out, cap, masks)


def _reach(terms: tuple) -> int:
    """The greatest distance within which vectors of distances differ."""
    horizons = [term.horizon or () for term in kinds.select(terms, *kinds.RELATIVE)]
    return max((abs(end) for ends in horizons for end in ends), default=0)


def lay_out(
    setup: Setup,
    terms: tuple,
    q: Side,
    k: Side,
    v: jax.Array,
    partition: Partition,
    dropout: Dropout | None = None,
) -> tuple[Operands, Fixed]:
    """The vectors and the tokens, padded to whole tiles; tables and bounds are made from these."""
    q, k = _halve_products(terms, q, k)
    places = {place for way in setup.ways for place in way.places}
    runs, lengths = partition.runs_per_row, setup.grid.lengths
    operands = Operands(
        fill_vectors(q, places, lengths[0], runs),
        fill_vectors(k, places, lengths[1], runs),
        stretch(v, 2, lengths[1], runs),
        None,
    )
    q_tokens, k_tokens = fill_tokens(q.tokens, k.tokens, lengths, runs)
    masks = tuple(kinds.select(terms, kinds.Mask))
    own_scores = setup.own_scores(operands.q, operands.k)
    return operands, Fixed(
        q_tokens, k_tokens, own_scores, None, masks, () if dropout is None else (dropout,)
    )


def _halve_products(terms: tuple, q: Side, k: Side) -> tuple[Side, Side]:
    """Sides whose states for products of tokens are the half that they are multiplied by.

    The other half has no gradient, which is known here, before tiles add it up.
    """
    halved = kinds.TokenProduct | kinds.RowSum
    states = [
        kinds.halves(term.state, own) if isinstance(term, halved) and term.state else own
        for term, own in zip(terms, zip(q.states, k.states, strict=True), strict=True)
    ]
    rows, columns = zip(*states, strict=True) if states else ((), ())
    return q._replace(states=rows), k._replace(states=columns)

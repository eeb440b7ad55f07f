"""The ways to evaluate terms in tiles, and what they have in common; `assignment` deals them.

* `Bands`: terms of distances with a horizon, contiguous positions. A tile beyond the horizon gets
  constants; nearer ones read a band of products, made once per call.
* `Windows`: vectors of distances without a horizon, contiguous positions. A tile cuts the window of
  the distances that occur in it from tables over all of them, or its part of products that are made
  once per row of tiles (`row_products`).
* `DistanceBiases`: biases without a horizon, and formulas that take long, from such windows.
* `Pairwise`: any kind at any positions, evaluated pair by pair, once for rows that are alike.
* `InPlace`: plain arithmetic on distances or on the states of two tokens.
* `Channels`: what stands for q·k itself.

A way makes `tables` once per call and `prepare`s, for a group of heads, the `Leaves` of which a
tile cuts what it needs (`cuts`). Both are differentiable: the gradient of a tile is added to that
of the leaves where it was cut and, at the end, goes back through `prepare` and `tables`.

b, h batch and heads of the group, r, c rows and columns of a tile, n distances, E head width.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import jax

from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.tiled.grid import Grid, Range, Tile
from pe_jax.engines.tiled.leaves import Cut, Leaves
from pe_jax.engines.tiled.tiles import TileSizes


class Vectors(NamedTuple):
    """What queries or keys bring along, `Side` without its tokens: [B, H or K, T, …]."""

    x: Any  # after rotations
    raw: Any  # before rotations, or None
    states: tuple[Any, ...]  # for each term, or None


@dataclasses.dataclass(frozen=True)
class Way:
    """How some terms of a call are evaluated in tiles; hashable."""

    places: tuple[int, ...]  # those of its terms among all terms of the call
    spec: AttentionSpec  # the sizes and the mask
    grid: Grid  # the tiles
    scale: float  # what the scaled kinds are multiplied by
    sizes: TileSizes  # of tiles

    heads_apart: ClassVar[bool] = True  # a tile may hold some of the heads
    for_products: ClassVar[bool] = False  # its scores take the place of q·k
    cheap: ClassVar[bool] = True  # worth a second copy in the program, for plain tiles

    @classmethod
    def of(cls, terms: tuple, places: tuple[int, ...], *how) -> "Way":
        """The way for `terms` (without their arrays), which are at these places of the call."""
        return cls(places, *how)

    @property
    def one_sided(self) -> bool:
        """Whether the mask hides every distance below 0."""
        return self.spec.causal and self.spec.aligned

    def own(self, vectors: Vectors) -> Vectors:
        """With the states of this way's terms alone."""
        return vectors._replace(states=tuple(vectors.states[i] for i in self.places))

    def tables(self, terms: tuple, run_gaps: Any = None) -> Any:
        """What is evaluated once per call, the terms as they are where nothing is: [H or 1, …].

        Args:
          terms: those of this way.
          run_gaps: int32 [runs, runs], the distance between the first tokens of each run of queries
            and each run of keys; None: there is one run of either, both from 0.
        """
        return terms

    def left_out(self, terms: tuple, q: Vectors) -> Any:
        """What each row's scores lack, and its softmax with it: [B or 1, H, T or 1, 1], or None."""
        return None

    def prepare(self, tables: Any, q: Vectors, k: Vectors) -> Leaves:
        """The leaves of a group of heads; `q` and `k` have the states of this way's terms."""
        raise NotImplementedError

    def cuts(self, tile: Tile) -> Leaves:
        """What a tile takes: a `Cut` for each part of `prepare`'s leaves; None: all of it."""
        raise NotImplementedError

    def past_horizon(self, distances: Range) -> Any:
        """Whether tiles with these distances are beyond the horizon; None: there is none."""
        return None

    def scores(self, near: Any, always: Any, tile: Tile) -> Any:
        """What is added to the scores of a tile: float32 [b or 1, h or 1, r or 1, c], or None."""
        raise NotImplementedError

    def plain_scores(self, always: Any, tile: Tile) -> Any:
        """The same in a tile beyond the horizon."""
        return self.scores(None, always, tile)

    def values(self, values: Any, weights: jax.Array, tile: Tile) -> Any:
        """What the weights [b, h, r, c] add to the output: float32 [b, h, r, E], or None."""
        return None

    def plain_values(self, values: Any, weights: jax.Array, tile: Tile) -> Any:
        """The same in a tile beyond the horizon."""
        return self.values(values, weights, tile)

    def row_cut(self, tile: Tile) -> Cut:
        """Of leaves [b, h, T, …], the rows of a tile."""
        return Cut(2, tile.i * self.grid.rows, self.grid.rows)

    def column_cut(self, tile: Tile) -> Cut:
        """Of leaves [b, h, S, …], the columns of a tile."""
        return Cut(2, tile.j * self.grid.columns, self.grid.columns)


def add_up(parts: Iterable[Any]) -> Any:
    """The sum of those that are not None; None where there are none."""
    parts = [part for part in parts if part is not None]
    return sum(parts[1:], parts[0]) if parts else None


def unbroadcast(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sums over the axes along which `shape` was broadcast."""
    axes = tuple(a for a, n in enumerate(shape) if n == 1 and x.shape[a] > 1)
    return x.sum(axes, keepdims=True) if axes else x


def without_state_arrays(term: Any) -> Any:
    """The term without the parameters of its state, which is computed before an engine runs."""
    if term.state is None:
        return term
    return dataclasses.replace(term, state=dataclasses.replace(term.state, arrays=None))

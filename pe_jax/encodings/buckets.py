"""Relative bias from a table, with the distances grouped by the user: a scalar per head and group.

    score = q·k/sqrt(E) + table[h, bucket(distance)]

`Buckets` takes any edges: (0, 1, 4, 16) makes the groups 0 | 1 | 2–4 | 5–16 | >16. `Clipped` is the
plain table r[clip(distance, -clip, clip)], the scalar form of Shaw et al. (arXiv 1803.02155, §3.2).
Both follow the scheme of T5 (arXiv 1910.10683, §2.1) with other groups, and one table per model.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from pe_jax.config_fields import flag_field, int_field, stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.arrays import align, take
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, python_ints, require, require_bool


def _check_edges(edges) -> None:
    ok = isinstance(edges, tuple | list | range) and len(edges) > 0
    ok = ok and all(is_int(e, 0) for e in edges)
    ok = ok and all(a < b for a, b in zip(edges, edges[1:], strict=False))
    require(ok, "edges", edges, "pass increasing integers from 0 on, such as (0, 1, 4, 16)")


@python_ints
def bucket(distance, edges=(0, 1, 4, 16), directional: bool = False) -> jax.Array:
    """The group of each distance: int32, the shape of `distance`.

    Group g holds edges[g-1] < |distance| ≤ edges[g]; the last group, all beyond. With
    `directional`, negative distances (keys to the right) take len(edges) + 1 + their group.

    Args:
      distance: `q_pos - k_pos`, integers of any shape.
      edges: increasing integers ≥ 0, each the last |distance| of its group.
      directional: whether each side has its own groups.

    Raises:
      ValueError: edges that are not increasing integers from 0 on.
      TypeError: distances that are not integers.
    """
    _check_edges(edges)
    require_bool("directional", directional)
    distance = as_positions(distance, name="distance")
    size = jnp.abs(distance)[..., None]
    group = jnp.sum(size > align(jnp.asarray(edges, jnp.int32), size), axis=-1, dtype=jnp.int32)
    return group + jnp.where(distance < 0, len(edges) + 1, 0) if directional else group


@python_ints
def clipped(distance, clip: int) -> jax.Array:
    """clip(distance, -clip, clip) + clip: int32 in [0, 2·clip], the shape of `distance`.

    Raises:
      ValueError: `clip` is not a positive integer.
      TypeError: distances that are not integers.
    """
    require(is_int(clip, 1), "clip", clip, "pass an integer of at least 1")
    return jnp.clip(as_positions(distance, name="distance"), -clip, clip) + clip


@dataclasses.dataclass(frozen=True)
class _Table(Encoding):
    """A table [H, rows] shared by all layers, indexed by a function of the distance."""

    _: dataclasses.KW_ONLY
    stddev: float = stddev_field()

    def _groups(self) -> tuple[int, int, Callable]:
        """How many rows, the distance from which on they do not change, and the row of each."""
        raise NotImplementedError

    def init_shared(self, key, dims):
        """Table [H, rows]."""
        shape = (dims.heads, self._groups()[0])
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims):
        _, last, _ = self._groups()
        return (DistanceBias(self.lookup, params.shared["table"], horizon=(-last, last)),)

    def lookup(self, table, distance):
        """table[h, index(d)]: [H, *n]."""
        rows, _, index = self._groups()
        return take(table, index(distance), 1, rows)


@dataclasses.dataclass(frozen=True)
class Buckets(_Table):
    """One scalar per head and group of distances, given by `edges` (as T5, arXiv 1910.10683)."""

    edges: tuple[int, ...] = (0, 1, 2, 4, 8, 16, 32, 64, 128)
    directional: bool = flag_field(False)

    def __post_init__(self):
        _check_edges(self.edges)

    def _groups(self):
        rows = (len(self.edges) + 1) * (2 if self.directional else 1)
        index = functools.partial(bucket, edges=self.edges, directional=self.directional)
        return rows, self.edges[-1] + 1, index


@dataclasses.dataclass(frozen=True)
class Clipped(_Table):
    """One scalar per head and distance, clipped to ±clip (as Shaw et al., arXiv 1803.02155)."""

    clip: int = int_field(64, 1)

    def _groups(self):
        return 2 * self.clip + 1, self.clip, functools.partial(clipped, clip=self.clip)

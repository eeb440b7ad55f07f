"""T5's relative bias: Raffel et al., "Exploring the Limits…", arXiv 1910.10683, §2.1.

    score = q·k + table[h, bucket(distance)]            (no 1/sqrt(E); one table for all layers)

Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`.
`bidirectional` gives each side half of the buckets; keys to the right (distance < 0) take the upper
half. The authors write key - query; here distance = query - key, as everywhere in this project.

The logarithm is never taken: bucket j begins at the first integer n with

    exact·(max_distance/exact)^(j/large) ≤ n   ⇔   max_distance^j · exact^large ≤ n^large · exact^j

which is decided in whole numbers, once. (In bfloat16 the logarithm errs at 76 and 112.)
"""

import bisect
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import flag_field, stddev_field
from pe_jax.encodings.base import Claims, Shareable
from pe_jax.encodings.terms import DistanceBias, Scale, Term
from pe_jax.numerics.arrays import align, take
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, python_ints, require, require_bool


@functools.cache
def thresholds(num_buckets: int, max_distance: int) -> np.ndarray:
    """The first distance of buckets 1, 2, …: int32 [num_buckets - 1], for one side."""
    exact = num_buckets // 2
    large = num_buckets - exact

    def first(j: int) -> int:  # n^large · exact^j ≥ max_distance^j · exact^large
        reached, edge = (lambda n: n**large * exact**j), max_distance**j * exact**large
        return exact + bisect.bisect_left(range(exact, max_distance), edge, key=reached)

    return np.asarray([*range(1, exact), *map(first, range(large))], np.int32)


def _side(num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """How many buckets one side has, checked."""
    require_bool("bidirectional", bidirectional)
    fix = "pass an even integer of at least 4" if bidirectional else "pass an integer of at least 2"
    ok = is_int(num_buckets, 4 if bidirectional else 2) and not (bidirectional and num_buckets % 2)
    require(ok, "num_buckets", num_buckets, fix)
    side = num_buckets // 2 if bidirectional else num_buckets
    ok = is_int(max_distance, side // 2 + 1)
    require(ok, "max_distance", max_distance, f"must exceed the {side // 2} exact buckets")
    return side


@python_ints
def bucket(
    distance, num_buckets: int = 32, max_distance: int = 128, bidirectional: bool = False
) -> jax.Array:
    """The bucket of each distance: int32, the shape of `distance`.

    Args:
      distance: `q_pos - k_pos`, integers of any shape. Without `bidirectional`, negative ones
        (the future) fall in bucket 0.
      num_buckets: in total; even if bidirectional.
      max_distance: from here on all distances share the last bucket.
      bidirectional: whether keys on the right have their own buckets (the upper half).

    Raises:
      ValueError: too few buckets, or `max_distance` not above the exact buckets.
      TypeError: distances that are not integers.
    """
    side = _side(num_buckets, max_distance, bidirectional)
    distance = as_positions(distance, name="distance")
    size = (jnp.abs(distance) if bidirectional else jnp.maximum(distance, 0))[..., None]
    starts = align(jnp.asarray(thresholds(side, max_distance), jnp.int32), size)
    index = jnp.sum(size >= starts, axis=-1, dtype=jnp.int32)
    return index + jnp.where(distance < 0, side, 0) if bidirectional else index


@dataclasses.dataclass(frozen=True)
class T5(Shareable):
    """One scalar per head and bucket, shared by all layers; scores are not scaled.

    `shared=False` gives each layer its own table (UMT5).
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = False
    stddev: float = stddev_field()
    shared: bool = flag_field(True)

    def __post_init__(self):
        _side(self.num_buckets, self.max_distance, self.bidirectional)

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """One-sided unless it is bidirectional."""
        return Claims(one_sided=not self.bidirectional)

    def _init(self, key, dims):
        """Table [H, num_buckets]."""
        shape = (dims.heads, self.num_buckets)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def terms(self, params, dims) -> tuple[Term, ...]:
        # T5 folds 1/sqrt(E) into the initial weights
        table = self.arrays(params)["table"]
        return Scale(1.0), DistanceBias(self.lookup, table, horizon=self.horizon())

    def lookup(self, table, distance):
        """table[h, bucket(d)]: [H, *n]."""
        index = bucket(distance, self.num_buckets, self.max_distance, self.bidirectional)
        return take(table, index, 1, self.num_buckets)

    def horizon(self) -> tuple[int, int]:
        """From the last threshold on (each side), the bucket no longer changes."""
        side = _side(self.num_buckets, self.max_distance, self.bidirectional)
        last = int(thresholds(side, self.max_distance)[-1])
        return (-last if self.bidirectional else 0, last)

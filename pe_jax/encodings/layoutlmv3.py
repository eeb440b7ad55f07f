"""Buckets of index and position on the page: Huang et al., "LayoutLMv3", arXiv 2204.08387, §2.1.

    score = (q·k + a[h, bucket(d_index)] + x[h, bucket(d_x)] + y[h, bucket(d_y)]) / sqrt(E)

T5's two-sided buckets of the token's index and of the left and lower edge of its box on the page
(the released code's choice of edges), three tables for all layers. The released code divides the
biases by sqrt(E) too, and takes key - query; here distance = query - key.
"""

import dataclasses

import jax

from pe_jax.config_fields import stddev_field
from pe_jax.encodings import t5
from pe_jax.encodings.base import Claims, Encoding, normal
from pe_jax.encodings.terms import DistanceBias
from pe_jax.numerics.arrays import take
from pe_jax.numerics.position_arrays import as_positions, check_axes

TABLES = ("index", "x", "y")


def bias(tables, distance, reaches) -> jax.Array:
    """The sum over axes of table[h, bucket(d)]: [H, *n] for distances [*n, A].

    Args:
      tables: one per axis, [H, buckets], with an even number of buckets.
      distance: query - key, integers [*n, A].
      reaches: for each axis, the distance from which on distances share a bucket.

    Raises:
      ValueError: as `t5.bucket`; another number of axes than tables.
      TypeError: distances that are not integers.
    """
    distance = as_positions(distance, name="distance")
    check_axes(distance, len(tables), "distance")
    biases = []
    for axis, (table, reach) in enumerate(zip(tables, reaches, strict=True)):
        bucket = t5.bucket(distance[..., axis], table.shape[1], reach, bidirectional=True)
        biases.append(take(table.astype("float32"), bucket, 1, table.shape[1]))
    return sum(biases[1:], biases[0])


@dataclasses.dataclass(frozen=True)
class LayoutLMv3(Encoding):
    """Biases of three bucketed distances; positions are (index, x, y), in thousandths of a page."""

    num_buckets: int = 32
    max_distance: int = 128
    spatial_buckets: int = 64
    spatial_distance: int = 256
    stddev: float = stddev_field()

    claims = Claims(axes=3)

    def __post_init__(self):
        for buckets, reach in (
            ("num_buckets", "max_distance"),
            ("spatial_buckets", "spatial_distance"),
        ):
            try:
                t5.T5(getattr(self, buckets), getattr(self, reach), bidirectional=True)
            except ValueError as error:
                text = str(error).replace("num_buckets", buckets).replace("max_distance", reach)
                raise ValueError(text) from None

    def init_shared(self, key, dims):
        """Tables: index [H, num_buckets], x and y [H, spatial_buckets]."""
        index, spatial = (dims.heads, self.num_buckets), (dims.heads, self.spatial_buckets)
        return normal(key, self.stddev, index=index, x=spatial, y=spatial)

    def terms(self, params, dims):
        tables = tuple(params.shared[name] for name in TABLES)
        return (DistanceBias(self.bias, tables, scaled=True),)

    def bias(self, tables, distance):
        """The sum of the three biases: [H, *n]."""
        reaches = (self.max_distance, self.spatial_distance, self.spatial_distance)
        return bias(tables, distance, reaches)

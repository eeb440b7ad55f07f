"""DeBERTa: He et al., arXiv 2006.03654, §3.1 (eq. 4); log buckets: DeBERTa-v2/v3 (2111.09543).

    score = [q_i·k_j + q_i·K^r_{δ(i,j)} + k_j·Q^r_{δ(i,j)}]/sqrt(3E)         (c2c, c2p, p2c)

K^r = P W_K and Q^r = P W_Q project one table P of relative positions that the whole model shares.
Unlike the paper, as in the released code: the third term takes δ(i,j), where eq. 4 writes
δ(j,i). δ is the distance clipped to ±max_distance (v1), or its bucket (v2): exact up to half of
`buckets`, then logarithmic, rounded up. The projections have no bias here; v2's code adds one.
With one position term alone the divisor is sqrt(2E): the scale counts the terms.

The logarithm is never taken: the thresholds of ceil(log(n/mid)/log((max_distance-1)/mid)·(mid-1))
are found in whole numbers. (Written with float logs, torch and jitted JAX disagree at 511.)
"""

import bisect
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import stddev_field
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import RelativeKeys, RelativeQueries, Scale, Term
from pe_jax.numerics.arrays import align, take
from pe_jax.numerics.position_arrays import as_positions
from pe_jax.validation import is_int, python_ints, require

TYPES = ("c2p", "p2c")
WEIGHTS = {"c2p": "w_k", "p2c": "w_q"}


def _check(buckets: int | None, max_distance: int) -> None:
    if buckets is None:
        ok, fix = is_int(max_distance, 1), "pass an integer of at least 1"
    else:
        ok = is_int(buckets, 4) and buckets % 2 == 0
        require(ok, "buckets", buckets, "pass an even integer of at least 4, or None for v1")
        fix = f"must exceed the {buckets // 2} exact buckets by at least 2"
        ok = is_int(max_distance, buckets // 2 + 2)
    require(ok, "max_distance", max_distance, fix)


@functools.cache
def thresholds(buckets: int, max_distance: int) -> np.ndarray:
    """The first distance of buckets mid + 1, mid + 2, … 2·mid: int64 [mid] (mid = buckets/2)."""
    mid = buckets // 2

    def first(j: int) -> int:
        """The smallest n with ceil(log(n/mid)/log((max-1)/mid)·(mid-1)) > j."""
        reached, edge = (lambda n: n ** (mid - 1) * mid**j), (max_distance - 1) ** j
        distances = range(mid + 1, max_distance**2)
        return mid + 1 + bisect.bisect_right(distances, edge * mid ** (mid - 1), key=reached)

    return np.asarray([first(j) for j in range(mid)], np.int64)


@python_ints
def bucket(distance, buckets: int | None = 256, max_distance: int = 512) -> jax.Array:
    """The row of the table for each distance: int32 in [0, 2·span), the shape of `distance`.

    span = `buckets`, or `max_distance` where `buckets` is None (v1: clipped). The row of distance 0
    is `span`.

    Args:
      distance: `q_pos - k_pos`, integers of any shape.
      buckets: even number of buckets on each side (v2), or None.
      max_distance: the distance at which the logarithm reaches bucket buckets - 1.

    Raises:
      ValueError: `buckets` or `max_distance` out of range.
      TypeError: distances that are not integers.
    """
    _check(buckets, max_distance)
    distance = as_positions(distance, name="distance")
    span = max_distance if buckets is None else buckets
    if buckets is not None:
        mid = buckets // 2
        size = jnp.abs(distance)
        starts = jnp.asarray(np.minimum(thresholds(buckets, max_distance), 2**31 - 1), jnp.int32)
        beyond = size[..., None] >= align(starts, size[..., None])
        far = mid + jnp.sum(beyond, axis=-1, dtype=jnp.int32)
        distance = jnp.sign(distance) * jnp.where(size <= mid, size, far)
    return jnp.clip(distance + span, 0, 2 * span - 1)


@dataclasses.dataclass(frozen=True)
class DeBERTa(Encoding):
    """Disentangled attention: content–position and position–content terms besides content–content.

    `buckets=None` is v1 (clipped at `max_distance`), a number v2 (log buckets). `pos_att_type` says
    which terms there are: "c2p" (q·K^r) and "p2c" (k·Q^r), or one of them.
    """

    buckets: int | None = 256
    max_distance: int = 512
    stddev: float = stddev_field()
    pos_att_type: tuple[str, ...] = TYPES

    def __post_init__(self):
        _check(self.buckets, self.max_distance)
        ok = isinstance(self.pos_att_type, tuple) and self.pos_att_type in (TYPES, *zip(TYPES))
        fix = f"choose {TYPES}, ('c2p',) or ('p2c',)"
        require(ok, "pos_att_type", self.pos_att_type, fix)

    def init_shared(self, key, dims):
        """P [2·span, D]."""
        shape = (2 * (self.buckets or self.max_distance), dims.width)
        return {"table": self.stddev * jax.random.normal(key, shape, jnp.float32)}

    def init_layer(self, key, dims):
        """W_K (for c2p) and W_Q (for p2c) [H, D, E]."""
        shape = (dims.heads, dims.width, dims.head_dim)
        w = dims.width**-0.5 * jax.random.normal(key, (2, *shape), jnp.float32)
        return {WEIGHTS[kind]: proj for kind, proj in zip(TYPES, w, strict=True) if self._has(kind)}

    def terms(self, params, dims):
        table, layer, horizon = params.shared["table"], params.layer, self._horizon()
        scale = ((1 + len(self.pos_att_type)) * dims.head_dim) ** -0.5  # they share the variance
        terms: list[Term] = [Scale(scale)]
        for name, kind in (("c2p", RelativeKeys), ("p2c", RelativeQueries)):
            if self._has(name):
                terms.append(kind(self.project, (table, layer[WEIGHTS[name]]), horizon=horizon))
        return tuple(terms)

    def _has(self, kind: str) -> bool:
        return kind in self.pos_att_type

    def project(self, arrays, distance):
        """The rows of P W at δ: [H, *n, E] for P [2·span, D] and W [H, D, E]."""
        table, w = arrays
        count = 2 * (self.buckets or self.max_distance)
        require(len(table) == count, "table", table.shape, f"axis 0 must have {count}")
        rows = jnp.einsum("rd,hde->hre", table.astype(jnp.float32), w)
        return take(rows, bucket(distance, self.buckets, self.max_distance), axis=1)

    def _horizon(self) -> tuple[int, int]:
        """Where the row reaches the table's ends; later than `max_distance` for v2."""
        if self.buckets is None:
            return -self.max_distance, self.max_distance - 1
        starts = thresholds(self.buckets, self.max_distance)
        return -int(starts[-1]), int(starts[-2])

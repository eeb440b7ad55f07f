"""Groups of distances, one distance at a time; logarithms in 50 digits."""

import decimal
import math

import numpy as np

from pe_jax.naive.rows import Array


def of_each(function, distance: Array) -> Array:
    """`function` of every integer of an array: integers of the same shape."""
    values, inverse = np.unique(distance, return_inverse=True)
    return np.array([function(d) for d in values.tolist()])[inverse.reshape(distance.shape)]


def log_ratio(distance: int, first: int, last: int) -> decimal.Decimal:
    """ln(distance/first)/ln(last/first)."""
    with decimal.localcontext(prec=50):
        far, whole = (decimal.Decimal(x) / first for x in (distance, last))
        return far.ln() / whole.ln()


TINY = decimal.Decimal("1e-30")  # for a logarithm that is not exact


def t5(distance: int, num_buckets: int, max_distance: int, bidirectional: bool) -> int:
    """T5's bucket: Raffel et al., arXiv 1910.10683, §2.1.

    Half the buckets are of one distance each, then logarithmic, "beyond which all the same". With
    `bidirectional`, keys ahead (distance < 0) have the upper half.
    """
    upper = 0
    if bidirectional:
        num_buckets //= 2
        upper = num_buckets if distance < 0 else 0
        distance = abs(distance)
    distance, exact = max(distance, 0), num_buckets // 2
    if distance < exact:
        return upper + distance
    steps = int(log_ratio(distance, exact, max_distance) * (num_buckets - exact) + TINY)
    return upper + min(exact + steps, num_buckets - 1)


def deberta_log(distance: int, buckets: int, max_distance: int) -> int:
    """DeBERTa-v2's bucket, arXiv 2111.09543: exact up to mid = buckets/2, then logarithmic.

    mid + ceil(ln(d/mid)/ln((max - 1)/mid)·(mid - 1)), with the sign of the distance.
    """
    mid, far = buckets // 2, abs(distance)
    if far <= mid:
        return distance
    steps = math.ceil(log_ratio(far, mid, max_distance - 1) * (mid - 1) - TINY)
    return (mid + steps) * (1 if distance > 0 else -1)


def deberta(distance: int, buckets: int | None, max_distance: int) -> int:
    """DeBERTa's δ(i, j): arXiv 2006.03654, eq. 3; v2's where there are buckets."""
    if buckets is not None:
        return max(0, min(2 * buckets - 1, deberta_log(distance, buckets, max_distance) + buckets))
    if distance <= -max_distance:
        return 0
    return 2 * max_distance - 1 if distance >= max_distance else distance + max_distance

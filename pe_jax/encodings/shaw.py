"""Shaw et al., "Self-Attention with Relative Position Representations", arXiv 1803.02155, §3.1–3.2.

    e_ij = q_i·(k_j + a^K_r)/sqrt(E)        (eq. 4)
    z_i  = Σ_j α_ij (v_j + a^V_r)           (eq. 3)         r = clip(distance, -clip, clip)

The vectors are shared by the heads of a layer. The paper indexes by key - query; our table is its
mirror image, which makes no difference to training.
"""

import dataclasses

import jax

from pe_jax.config_fields import flag_field, int_field
from pe_jax.encodings.base import Encoding, normal
from pe_jax.encodings.buckets import clipped
from pe_jax.encodings.terms import RelativeKeys, RelativeValues
from pe_jax.numerics.arrays import require_array, take
from pe_jax.validation import require


def relative(table: jax.Array, distance) -> jax.Array:
    """a_r: [..., *n, E] for a table [..., 2·clip + 1, E] and integer distances [*n].

    Raises:
      ValueError: the table's number of rows is even.
      TypeError: distances that are not integers.
    """
    require_array("table", table, 2)
    rows = table.shape[-2]
    require(rows % 2 == 1, "rows", rows, "a table has 2·clip + 1 rows, distance 0 in the middle")
    clip = (table.shape[-2] - 1) // 2
    return take(table, clipped(distance, clip), table.ndim - 2)


@dataclasses.dataclass(frozen=True)
class Shaw(Encoding):
    """A learned vector per clipped distance, added to keys and (unless switched off) to values."""

    clip: int = int_field(16, 1)
    values: bool = flag_field(True)

    def init_layer(self, key, dims):
        """Tables [1, 2·clip + 1, E], of the scale of a key."""
        shape = (1, 2 * self.clip + 1, dims.head_dim)
        names = ("keys", "values") if self.values else ("keys",)
        return normal(key, dims.head_dim**-0.5, **dict.fromkeys(names, shape))

    def terms(self, params, dims):
        layer, horizon = params.layer, (-self.clip, self.clip)
        keys = RelativeKeys(self.lookup, layer["keys"], horizon=horizon)
        if not self.values:
            return (keys,)
        return keys, RelativeValues(self.lookup, layer["values"], horizon=horizon)

    def lookup(self, table, distance):
        """a_r: [1, *n, E]."""
        return take(table, clipped(distance, self.clip), table.ndim - 2, 2 * self.clip + 1)

"""Heads that turn by one axis each, or by none: Huang et al., "MHRoPE", arXiv 2510.23095.

    angle_i = position[axis(h)] · θ_i for key head h,    θ_i = base^(-2i/E),  i < E/2

M-RoPE divides the frequencies of every head among time, row and column; here a head has all of them
for one axis. Heads that are named no axis do not turn: NoPE beside RoPE in one layer. Query heads
turn as the key head that they share. `heads` has one entry for as many key heads each:

    rope_heads(axes=3,heads=(0,0,1,1,1,2,2,2))   MHRoPE: 2 heads of time, 3 of rows, 3 of columns
    rope_heads(heads=(0,None))                   RoPE in the first half of the heads, NoPE after it

Text has the same position on all axes, where a layer whose heads all turn equals RoPE. Heads of a
trained model that lose their rotation are a way to longer texts in DoPE (arXiv 2511.09146): list
them here; its entropy of keys, by which it finds them, and its noise instead of them are not here.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, checked, one_of_field
from pe_jax.encodings import rope, rope_mixed
from pe_jax.encodings.base import OnAxes
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.numerics.arrays import align
from pe_jax.validation import is_int, require


@dataclasses.dataclass(frozen=True)
class RoPEHeads(OnAxes, rope.Scaled):  # pyright: ignore[reportIncompatibleVariableOverride]
    """Rotates q and k, each head by its axis of `heads`; None leaves a head as it is.

    K key heads are divided among the entries: the first K/len(heads) have the first entry.
    `fraction`, `layout` and `scaling` are those of RoPE, for heads that turn.
    """

    base: float = above_field(1e4, 1)
    fraction: float = rope.fraction_field()
    layout: str = one_of_field("half", rope.LAYOUTS)
    scaling: Scaling | None = rope.scaling_field()
    axes: int = checked(1, "pass an integer of at least 1", lambda v: is_int(v, 1))
    heads: tuple[int | None, ...] = (0, None)

    def __post_init__(self):
        ok = isinstance(self.heads, tuple) and len(self.heads) > 0
        ok = ok and all(n is None or (is_int(n, 0) and n < self.axes) for n in self.heads)
        fix = f"pass a tuple of axes from 0 to {self.axes - 1}, or None for heads without positions"
        require(ok, "heads", self.heads, fix)

    def check(self, dims):
        """Entries must divide the key heads; the rest is as for RoPE."""
        super().check(dims)
        fix = f"pass one entry for each of {dims.kv_heads} key heads, or a divisor of that"
        require(dims.kv_heads % len(self.heads) == 0, "heads", self.heads, fix)

    def terms(self, params, dims):
        theta = angles.geometric(self.rotary_dim(dims.head_dim), self.base)
        theta = rope.scaled(theta, self.base, self.scaling)
        axis = np.repeat(  # of each key head; what does not turn has one that is not there
            [self.axes if own is None else own for own in self.heads],
            dims.kv_heads // len(self.heads),
        )
        table = (np.arange(self.axes)[:, None] == axis)[..., None] * theta  # [A, K, F]
        table = jnp.asarray(table, jnp.float32)
        return (Rotation(self.rotate, self.rotate, table, heads=1),)

    def rotate(self, table, x, positions):
        """R_position x in the heads that turn: [..., T, H, E]."""
        turned = rope_mixed.rotate(
            x, self.with_axis(positions), table, self.layout, self.attention_factor
        )
        turns = jnp.repeat((table > 0).any((0, 2)), x.shape[-2] // table.shape[1])
        return jnp.where(align(turns[:, None], x), turned, x)

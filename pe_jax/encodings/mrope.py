"""M-RoPE, on time, row and column: Wang et al., "Qwen2-VL", arXiv 2409.12191, §2.1.

    angle_i = position[axis(i)] · θ_i,      θ_i = base^(-2i/E),  i < E/2

One series of frequencies; each belongs to one axis. Qwen2-VL gives the axes consecutive sections;
Qwen3-VL (arXiv 2511.21631) interleaves them: time, row, column in turn until rows and columns are
used up, then time. VideoRoPE (arXiv 2502.05173, §4) and Ling 3.0 VL give rows and columns the
first frequencies in turn (row, column, row, …), and time the lowest, at which the angles of distant
frames do not coincide. Text has the same position on all axes, where M-RoPE equals RoPE.
`positions.multimodal` makes the positions of a sequence of text, images and videos. The rotated 64
channels of Ling 3.0 VL:

    mrope(base=6e6, sections=(8, 12, 12), time_last=True, layout="interleaved")
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.config_fields import above_field, flag_field, one_of_field
from pe_jax.encodings import rope
from pe_jax.encodings.base import Claims
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.encodings.terms import Rotation
from pe_jax.numerics import angles
from pe_jax.validation import is_int, python_ints, require, require_bool


@python_ints
def axis_of(
    sections: Sequence[int], interleaved: bool = False, time_last: bool = False
) -> np.ndarray:
    """The axis that each frequency belongs to: int [F], F = sum(sections).

    Args:
      sections: how many frequencies time, row and column have.
      interleaved: Qwen3-VL's order, else Qwen2-VL's.
      time_last: VideoRoPE's order.

    Raises:
      ValueError: not three positive integers; sections that cannot take turns; both orders.
    """
    ok = isinstance(sections, Sequence) and len(sections) == 3
    ok = ok and all(is_int(n, 1) for n in sections)
    require(ok, "sections", sections, "pass three integers of at least 1: time, row, column")
    require_bool("interleaved", interleaved)
    require_bool("time_last", time_last)
    require(not (interleaved and time_last), "time_last", True, "pass interleaved=False with it")
    if time_last:
        time, rows, columns = sections
        require(rows == columns, "sections", sections, "rows and columns that alternate are equal")
        return np.concatenate([np.tile([1, 2], rows), np.zeros(time, int)])
    if not interleaved:
        return np.repeat(np.arange(3), sections)
    axes = np.zeros(sum(sections), int)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    fits = np.bincount(axes, minlength=3).tolist() == list(sections)
    require(fits, "sections", sections, "interleaved rows and columns may not outnumber time")
    return axes


def frequencies(
    dim: int,
    sections: Sequence[int],
    base: float = 1e6,
    interleaved: bool = False,
    scaling: Scaling | None = None,
    time_last: bool = False,
) -> jax.Array:
    """Radians per position of each axis, for `rope.rotate`: float32 [3, dim/2].

    Args:
      dim: even number of channels to rotate.
      sections: frequencies of time, row and column; their sum is dim/2.
      base: > 1.
      interleaved: see `axis_of`.
      scaling: one of `rope_scaling`, or None; its `attention_factor` is for `rope.rotate`.
      time_last: see `axis_of`.

    Raises:
      ValueError: odd `dim`, `base` ≤ 1, sections or a scaling that do not fit, a scaling that waits
        for `at_length`.
    """
    theta, axis = angles.geometric(dim, base), axis_of(sections, interleaved, time_last)
    theta = rope.scaled(theta, base, scaling)
    ok = len(axis) == len(theta)
    require(ok, "sections", tuple(sections), f"their sum must be half of {dim} channels")
    return jnp.asarray(np.where(axis == np.arange(3)[:, None], theta, 0), jnp.float32)


@dataclasses.dataclass(frozen=True)
class MRoPE(rope.Scaled):
    """Rotates q and k by time, row and column.

    `sections` None divides the head in the proportion of Qwen2-VL's (16, 24, 24) or, interleaved,
    of Qwen3-VL's (24, 20, 20). `fraction`, `scaling` and `layout` are those of RoPE; the sections
    divide the rotated channels. `time_last` is VideoRoPE's order of the frequencies.
    """

    base: float = above_field(1e6, 1)
    sections: tuple[int, int, int] | None = None
    interleaved: bool = flag_field(False)
    fraction: float = rope.fraction_field()
    scaling: Scaling | None = rope.scaling_field()
    time_last: bool = flag_field(False)
    layout: str = one_of_field("half", rope.LAYOUTS)

    claims = Claims(axes=3, real_positions=True)

    def __post_init__(self):
        if self.sections is not None:
            ok = isinstance(self.sections, tuple)
            require(ok, "sections", self.sections, "pass a tuple (time, row, column), or None")
        axis_of(self.sections or (1, 1, 1), self.interleaved, self.time_last)

    def check(self, dims):
        """The rotated part of a head must be even, and as wide as the sections say."""
        super().check(dims)
        self._sections(self.rotary_dim(dims.head_dim))

    def _sections(self, head_dim: int) -> tuple[int, int, int]:
        fix = "M-RoPE rotates pairs on three axes: use an even head width of at least 6"
        require(head_dim % 2 == 0 and head_dim >= 6, "head_dim", head_dim, fix)
        pairs = head_dim // 2
        share = max(1, (20 if self.interleaved else 24) * pairs // 64)
        sections = self.sections or (pairs - 2 * share, share, share)
        ok = sum(sections) == pairs
        require(ok, "sections", sections, f"their sum must be half of {head_dim} channels")
        return sections

    def _frequencies(self, head_dim: int) -> jax.Array:
        dim = self.rotary_dim(head_dim)
        order = {"interleaved": self.interleaved, "time_last": self.time_last}
        return frequencies(dim, self._sections(dim), self.base, scaling=self.scaling, **order)

    def terms(self, params, dims):
        return (Rotation(self.rotate, self.rotate),)

    def rotate(self, _, x, positions):
        """R_(time, row, column) x: [..., T, H, E]."""
        theta = self._frequencies(x.shape[-1])
        return rope.rotate(x, positions, theta, self.layout, self.attention_factor)

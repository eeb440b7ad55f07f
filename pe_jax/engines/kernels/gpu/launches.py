"""How kernels are launched, by device: tokens of blocks, warps, stages of the pipeline.

From launches.json: of launches in the order of expected speed, the first that compiled to machine
code without spills. Only those of Hopper in half precision for heads of 64 were timed
(tools/compile_gpu.py has them).
"""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import jax

KERNELS = ("forward", "queries", "keys", "diagonal")
DTYPES = ("half", "float32")
# the most that a tile reads besides q, k and v
READS = (
    *("scores", "formulas", "table", "vectors", "bias", "maps", "pieces"),
    *("sums", "lookups", "fades"),
)
WIDTHS = (64, 128, 256)
DEFAULT = 90  # the architecture where there is no GPU: Hopper
SMALL = 89  # represents all whose blocks have 99 KiB of shared memory …
OTHERS = (86, 87, 120, 121)  # … as these have too


class Launch(NamedTuple):
    """One kernel's launch. Blocks are powers of two from 16 on."""

    own: int  # tokens of a block that a program owns
    other: int  # tokens of a block that it visits
    warps: int = 4
    stages: int = 2


class Launches(NamedTuple):
    """The launches of a call's kernels."""

    forward: Launch
    queries: Launch
    keys: Launch
    diagonal: Launch

    @property
    def longest(self) -> int:
        """Tokens of the longest block."""
        return max(max(launch[:2]) for launch in self)

    def of_one_key_block(self) -> "Launches":
        """The same launches, all with the shortest of their blocks of keys."""
        launches = self.forward, self.queries, self.diagonal
        keys = min(self.keys.own, *(launch.other for launch in launches))
        forward, queries, diagonal = (launch._replace(other=keys) for launch in launches)
        return Launches(forward, queries, self.keys._replace(own=keys), diagonal._replace(own=keys))

    def of_one_block(self) -> "Launches":
        """The same launches, all with the shortest of their blocks."""
        side = min(min(launch[:2]) for launch in self)
        return Launches(*(launch._replace(own=side, other=side) for launch in self))

    def at_most(self, tokens: int) -> "Launches":
        """The same launches, with blocks of at most this many tokens."""
        return Launches(
            *(x._replace(own=min(x.own, tokens), other=min(x.other, tokens)) for x in self)
        )


def alike(launch: Launch) -> Launches:
    """One launch for all kernels; that of diagonals has square blocks."""
    side = min(launch[:2])
    return Launches(launch, launch, launch, launch._replace(own=side, other=side))


def choose(arch: int, reads: str, dtype: str, width: int) -> Launches:
    """The launches for an architecture (90 for sm_90).

    `reads` is of `READS`, `dtype` that of the operands, `width` their largest width.
    """
    by_arch = table()
    arch = nearest(arch, tuple(by_arch))
    by_kernel = by_arch[arch]["float32" if dtype == "float32" else "half"]
    fits = next(w for w in WIDTHS if width <= w)
    return Launches(*(Launch(*by_kernel[kernel][reads][str(fits)]) for kernel in KERNELS))


def architecture() -> int | None:
    """Ten times the compute capability of the first device: 90 for Hopper.

    `DEFAULT` where there is no GPU; None for a GPU that is not NVIDIA's.
    """
    capability = str(getattr(jax.devices()[0], "compute_capability", DEFAULT / 10))
    digits = capability.replace(".", "")
    return int(digits) if digits.isdecimal() else None


def nearest(arch: int, known: tuple[int, ...]) -> int:
    """The architecture of the table that is nearest to this one."""
    if arch in known:
        return arch
    if arch in OTHERS and SMALL in known:
        return SMALL
    older = [a for a in known if a <= arch and a != SMALL]
    return max(older, default=min(known))


@functools.cache
def table() -> dict[int, dict]:
    """Architecture → dtype → kernel → what it reads → width → launch."""
    text = Path(__file__).with_name("launches.json").read_text()
    return {int(arch): rows for arch, rows in json.loads(text)["launches"].items()}

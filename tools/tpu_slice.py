"""An absent TPU slice: its devices, from libtpu, and its published figures."""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
from collections.abc import Iterator
from unittest import mock

import jax
from jax.experimental import topologies

from pe_jax.training.utilization import PEAKS
from pe_jax.validation import ConfigError

GIB = 2**30
HOST = {  # with these, libtpu compiles on a machine without a TPU
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Published figures of a chip (cloud.google.com/tpu/docs/system-architecture-tpu-vm).

    Attributes:
      hbm: bytes of memory.
      peak: floating-point operations per second, bfloat16.
      links: bytes per second to and from other chips, over all links.
      clock: cycles per second, derived from `peak` and the size of the matrix units.
      smallest: the smallest slice; a slice of one chip is one chip of it.
    """

    hbm: float
    peak: float
    links: float
    clock: float
    smallest: str


CHIPS = {
    "v4": Chip(32 * GIB, PEAKS["TPU v4"], 300e9, 1.05e9, "2x2x1"),
    "v5e": Chip(16 * GIB, PEAKS["TPU v5e"], 200e9, 1.5e9, "2x2"),
    "v5p": Chip(95 * GIB, PEAKS["TPU v5p"], 600e9, 1.75e9, "2x2x1"),
    "v6e": Chip(32 * GIB, PEAKS["TPU v6e"], 448e9, 1.75e9, "2x2"),
}


def check(topology: str) -> Chip:
    """The chip of a slice such as `v5e:16x16`.

    Raises:
      ConfigError: an unknown slice, or libtpu is missing.
    """
    kind, _, shape = topology.partition(":")
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+){1,2}", shape):
        raise ConfigError(
            f"topology={topology!r}: write CHIP:SHAPE, as v5e:16x16 or v5p:4x4x4; chips: {[*CHIPS]}"
        )
    if importlib.util.find_spec("libtpu") is None:
        raise ConfigError(f"topology={topology!r}: libtpu is missing; pip install -e '.[tpu]'")
    return CHIPS[kind]


def devices(topology: str) -> list:
    """The devices of a slice.

    Raises:
      ConfigError: as `check`; a shape that libtpu does not know.
    """
    chip = check(topology)
    os.environ.update(HOST)
    kind, _, shape = topology.partition(":")
    count = math.prod(map(int, shape.split("x")))
    name = f"{kind}:{chip.smallest}" if count == 1 else topology
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except Exception as error:  # libtpu raises exceptions of many kinds
        text = " ".join(str(error).split())[:200]
        raise ConfigError(f"topology={topology!r}: libtpu does not know it: {text}") from error
    return list(description.devices)[:count]


@contextlib.contextmanager
def tracing_for(devices: list) -> Iterator[None]:
    """Traces as on these devices: JAX reports their platform.

    Engine and tile sizes of `attention(implementation=None)` follow from the platform and from the
    mesh in force, which the caller sets, so that the program is the one that a machine with these
    devices would compile.
    """
    with mock.patch.object(jax, "default_backend", lambda: devices[0].platform):
        yield

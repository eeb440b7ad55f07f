"""How the runs of a sweep share the devices: one each, in parallel, or all of them in turn."""

import itertools
import os

import jax
from absl import logging
from jax.sharding import Mesh

from experiments.running.configs.sweep import Sweep
from pe_jax.training import sharding
from pe_jax.validation import ConfigError, refuse


def cores() -> int:
    """The CPU cores of this process, which may be some, as under taskset or in a container."""
    return len(getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0))


def check_alone() -> None:
    """Raises ConfigError if this is one of several processes, as of SLURM."""
    if jax.process_count() > 1:
        raise ConfigError(
            f"{jax.process_count()} processes: a comparison starts in one; with"
            " --config.cluster=ray it uses the machines of a cluster (docs/launching.md)"
        )


def run_meshes(config: Sweep) -> list[Mesh]:
    """The meshes of concurrent runs; logs how they share the devices.

    Devices "one": each run has one device. There is one mesh per TPU core, or per core of a CPU: a
    small model keeps one core busy. On GPUs there is one, as XLA and cuDNN record CUDA graphs and
    what other threads do in the meantime ends the recording with an error. Devices "all": the mesh
    of the configuration, for one run after another, since programs with collectives must not be
    started from several threads.

    Raises:
      ConfigError: several processes; settings that contradict each other.
    """
    if config.devices == "one":
        check_alone()
    if config.cluster:
        count = len(jax.devices()) if config.devices == "all" else 1
        return [sharding.make_mesh(config.mesh, jax.devices()[:count])]
    devices = jax.devices()
    described = f"{len(devices)} × {devices[0].device_kind}"
    if config.devices == "all":
        if config.workers > 1:
            fix = "runs that take all devices go one after the other; leave it 0, or pass"
            refuse("workers", config.workers, f"{fix} --config.devices=one")
        mesh = sharding.make_mesh(config.mesh)
        logging.info("Each run takes all of %s, one run after the other", described)
        return [mesh]
    for axis in sharding.AXES:
        if (size := getattr(config.mesh, axis)) not in (1, -1):
            refuse(f"mesh.{axis}", size, "each run has one device; pass --config.devices=all")
    default = {"cpu": cores(), "gpu": 1}.get(devices[0].platform, len(devices))
    count = config.workers or default
    if devices[0].platform == "gpu" and max(count, len(devices)) > 1:
        other = "pass --config.cluster=local, for a process per GPU, or --config.devices=all"
        if count > 1:
            refuse("workers", count, f"on GPUs a process has one run at a time; {other}")
        logging.warning("One of %s is used: %s", described, other)
    logging.info("%d runs side by side, each on one of %s", count, described)
    chosen = itertools.islice(itertools.cycle(devices), count)
    return [sharding.make_mesh(config.mesh, [device]) for device in chosen]

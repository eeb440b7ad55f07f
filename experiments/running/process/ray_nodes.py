"""Ray: starting it on this machine, or joining a cluster; what a run takes of its nodes."""

import os
from typing import Any

import jax

from experiments.running.configs.sweep import Sweep
from experiments.running.files.provenance import ROOT
from experiments.running.process.devices import cores, least_devices
from pe_jax.validation import ConfigError

ACCELERATORS = ("GPU", "TPU")  # of Ray's resources
PASSED_ON = ("JAX_", "XLA_", "GLIBC_TUNABLES")  # variables that processes of a cluster get
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


def library() -> Any:
    """Ray; ConfigError if it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise ConfigError("cluster: Ray is not installed; pip install 'pe_jax[cluster]'") from None
    return ray


def leave_to_cluster(config: Sweep) -> None:
    """Connects to the cluster, and keeps devices free for it: this process builds and checks.

    Before JAX starts threads, as Ray forks.
    """
    if not library().is_initialized():
        connect(config)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", least_devices(config.mesh))


def connect(config: Sweep) -> None:
    """Starts Ray on this machine, or connects to the cluster that runs."""
    ray = library()
    if config.cluster == "local":
        ray.init("local", num_cpus=cores(), include_dashboard=False, **QUIET)
        return
    try:
        ray.init("auto", **QUIET)
    except ConnectionError as error:
        fix = "set RAY_ADDRESS, or start one with `ray start --head`; or --config.cluster=local"
        raise ConfigError(f"cluster='ray': no cluster is running here ({error}); {fix}") from None


def shares(config: Sweep, nodes: list[dict[str, float]]) -> tuple[dict[str, Any], int]:
    """What a run takes of the nodes' resources, as Ray's options, and how many there are.

    A run takes a GPU, a TPU core or a CPU core; with devices="all", those of a whole node.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS", "") == "cpu"
    kinds = [] if on_cpu else [k for k in ACCELERATORS if any(n.get(k) for n in nodes)]
    kind = kinds[0] if kinds else "CPU"
    counts = [int(n[kind]) for n in nodes if n.get(kind, 0) >= 1]
    if not counts:
        raise ConfigError(f"cluster={config.cluster!r}: none of its nodes has a {kind}")
    each, count = (1, sum(counts)) if config.devices == "one" else (min(counts), len(counts))
    option: dict[str, Any] = {
        "GPU": {"num_gpus": each},
        "TPU": {"resources": {"TPU": each}},
        "CPU": {"num_cpus": each},
    }[kind]
    variables = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    if kind == "CPU":  # else each process has a thread for every core
        variables |= {"JAX_PLATFORMS": "cpu", "NPROC": str(each)}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    option["runtime_env"] = {"env_vars": variables}
    return option, min(count, config.workers or count)

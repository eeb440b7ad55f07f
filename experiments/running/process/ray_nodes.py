"""Ray: starting it on this machine, or joining a cluster; what a run takes of its nodes."""

import os
import secrets
from typing import Any, NamedTuple

import jax

from experiments.running.configs.sweep import Sweep
from experiments.running.files.provenance import ROOT
from experiments.running.process.devices import cores
from pe_jax.validation import ConfigError

ACCELERATORS = ("GPU", "TPU")  # of Ray's resources
PASSED_ON = ("JAX_", "XLA_", "GLIBC_TUNABLES")  # variables that processes of a cluster get
SETTINGS = {
    "local": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)},
    "ray": {"RAY_NUM_REDIS_GET_RETRIES": "1"},  # of joining it: 40 seconds each
}
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


class Share(NamedTuple):
    """What a run takes of a cluster.

    `resources`, `variables` and `devices` are of one of the `processes` of a run, each on another
    node; `slots` is how many runs there are at a time.
    """

    resources: dict[str, float]
    variables: dict[str, str]
    slots: int
    processes: int
    devices: int


def ray_module() -> Any:
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
    found = connected(config)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", found.processes * found.devices)


def connected(config: Sweep) -> Share:
    """Connects to the cluster, if that is not done: what a run takes of it.

    Raises:
      ConfigError: Ray is not installed, no cluster is running, or it has no devices.
    """
    connect(config)
    return share(config, [node["Resources"] for node in ray_module().nodes() if node["Alive"]])


def connect(config: Sweep) -> None:
    """Starts Ray on this machine, or connects to the cluster that runs; does so once.

    Ray would keep a token for this machine in the home folder, and then `ray start` would ask for
    it, but not pass it on to other nodes: this cluster has one of its own.
    """
    for name, value in SETTINGS[config.cluster].items():  # which Ray reads when it is imported
        os.environ.setdefault(name, value)
    ray = ray_module()
    if ray.is_initialized():
        return
    if config.cluster == "local":
        ray.init("local", num_cpus=cores(), include_dashboard=False, **QUIET)
        return
    try:
        ray.init("auto", **QUIET)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason, fix = f"{error} {error.__cause__ or ''}", "start one with `ray start --head`"
        fix = f"{fix} here, or set RAY_ADDRESS; or --config.cluster=local"
        if "auth" in reason.lower():
            fix = "it asks for a token: set RAY_AUTH_MODE=token, with the token of its head"
        raise ConfigError(f"cluster='ray': cannot join a cluster ({error}); {fix}") from None


def share(config: Sweep, nodes: list[dict[str, float]]) -> Share:
    """What a run takes of nodes with these resources.

    A run takes a GPU, a TPU core or a CPU core; with devices="all", those of all nodes that have
    one, in a process on each.

    Raises:
      ConfigError: there is none.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS", "") == "cpu"
    kinds = [] if on_cpu else [k for k in ACCELERATORS if any(n.get(k) for n in nodes)]
    kind = kinds[0] if kinds else "CPU"
    counts = [int(n[kind]) for n in nodes if n.get(kind, 0) >= 1]
    if not counts:
        raise ConfigError(f"cluster={config.cluster!r}: none of its nodes has a {kind}")
    variables = {k: v for k, v in os.environ.items() if k.startswith(PASSED_ON)}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    each = 1 if config.devices == "one" else min(counts)
    devices = each
    if kind == "CPU":  # the last bits of a result depend on the number of threads: the head's
        variables |= {"JAX_PLATFORMS": "cpu", "NPROC": str(cores())}
        devices = int(os.environ.get("JAX_NUM_CPU_DEVICES", 1))
    if config.devices == "all":
        return Share({kind: each}, variables, 1, len(counts), devices)
    slots = min(sum(counts), config.workers or sum(counts))
    return Share({kind: each}, variables, slots, 1, devices)

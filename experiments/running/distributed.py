"""One program in several processes: connecting, waiting for each other, failing together."""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Iterator

import jax
from absl import flags

from experiments.running.errors import one_line_errors
from experiments.running.signals import STOP_SIGNALS
from pe_jax.validation import ConfigError

FLAG_NAMES = ("coordinator", "processes", "process")
# Seconds until all hosts must be connected, and until a silent one counts as dead.
CONNECT_SECONDS, HEARTBEAT_SECONDS = 300, 20


def define_flags() -> None:
    """Flags for processes outside a cluster that JAX detects."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, if no cluster is detected")
    flags.DEFINE_integer("processes", None, "number of processes, with --coordinator")
    flags.DEFINE_integer("process", None, "index of this process, with --coordinator")


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Connects to the other processes, if any; the first that fails ends all of them.

    A normal exit would wait for the others, which wait for this one in a collective.
    """
    with one_line_errors():
        connect(*(flags.FLAGS[name].value for name in FLAG_NAMES))
        jax.devices()  # says here that there is none: later calls fail with less
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        status = error.code if isinstance(error, SystemExit) else 1
        if status in (None, 0, *(128 + n for n in STOP_SIGNALS)):  # all processes exit like this
            raise
        me = f"process {jax.process_index()} of {jax.process_count()}"
        if isinstance(error, jax.errors.JaxRuntimeError):
            reason = str(error).strip().partition("\n")[0][:300]
            text = f"lost another process, whose own error came first, or the device: {reason}"
            print(f"error: {me}: {text}", file=sys.stderr)
        elif not isinstance(error, SystemExit):  # that one has printed its reason
            traceback.print_exception(error)
            print(f"error: {me}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def connect(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Connects to the other processes: those of the flags, of a TPU pod, SLURM or MPI, or none.

    Raises:
      ConfigError: some flags, but not all; a cluster's variables that contradict each other.
      OSError: some processes did not connect.
    """
    values = coordinator, processes, process
    initialize = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=CONNECT_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    missing = [name for name, value in zip(FLAG_NAMES, values, strict=True) if value is None]
    if missing and len(missing) < len(FLAG_NAMES):
        raise ConfigError(f"--{missing[0]} is missing: pass all of --{', --'.join(FLAG_NAMES)}")
    try:
        if missing:
            initialize()
        else:
            initialize(coordinator, processes, process, cluster_detection_method="deactivate")
    except ValueError as error:
        if not missing or "coordinator_address should be defined" not in str(error):
            raise ConfigError(f"--{FLAG_NAMES[0]}: {error}") from error
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"not all processes came within {CONNECT_SECONDS} s: {reason}") from error


def wait_for_all() -> None:
    """Waits for all processes before the first collective; call it once per program.

    On CPUs a collective times out after 30 seconds, and compile times may differ by more.
    """
    import orbax.checkpoint  # not at the top: `--help` imports this module

    barrier = orbax.checkpoint.multihost.get_barrier_sync_fn()
    barrier(key="meet", timeout_ms=1000 * CONNECT_SECONDS)

"""One program in several processes: how they find each other, wait, and fail together."""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Iterator

import jax
import orbax.checkpoint
from absl import flags

from experiments.running.errors import one_line_errors
from experiments.running.signals import STOP_SIGNALS

FLAG_NAMES = ("coordinator", "processes", "process")
# Seconds: for the other hosts to come, and until one that says nothing counts as dead.
CONNECT_SECONDS, HEARTBEAT_SECONDS = 300, 20


def define_flags() -> None:
    """The flags of a process that no cluster tells about the others."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, where no cluster says it")
    flags.DEFINE_integer("processes", None, "how many processes there are, with --coordinator")
    flags.DEFINE_integer("process", None, "which of them this is, with --coordinator")


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Connects the other processes, where there are any; the first that fails ends all of them.

    An exit as usual would wait for the others, which wait for this one's part of a computation.
    """
    with one_line_errors():
        connect(*(flags.FLAGS[name].value for name in FLAG_NAMES))
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        status = error.code if isinstance(error, SystemExit) else 1
        if status in (None, 0, *(128 + number for number in STOP_SIGNALS)):  # all of them end so
            raise
        me = f"process {jax.process_index()} of {jax.process_count()}"
        if isinstance(error, jax.errors.JaxRuntimeError):
            reason = str(error).strip().partition("\n")[0][:300]
            text = f"lost another process, whose own error came first, or the device: {reason}"
            print(f"error: {me}: {text}", file=sys.stderr)
        elif not isinstance(error, SystemExit):  # which has said why
            traceback.print_exception(error)
            print(f"error: {me}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def connect(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Connects the other processes: those of the flags, or of a TPU pod, SLURM or MPI.

    Raises:
      ValueError: some flags, but not all; a cluster's variables that contradict each other. That
        there is no cluster is no error.
      OSError: some processes did not come.
    """
    given = coordinator, processes, process
    initialize = functools.partial(
        jax.distributed.initialize,
        initialization_timeout=CONNECT_SECONDS,
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
    )
    missing = [name for name, value in zip(FLAG_NAMES, given, strict=True) if value is None]
    if missing and len(missing) < len(FLAG_NAMES):
        raise ValueError(f"--{missing[0]} is missing: pass all of --{', --'.join(FLAG_NAMES)}")
    try:
        if missing:
            initialize()
        else:
            initialize(coordinator, processes, process, cluster_detection_method="deactivate")
    except ValueError as error:
        if not missing or "coordinator_address should be defined" not in str(error):
            raise
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"not all processes came within {CONNECT_SECONDS} s: {reason}") from error


def wait_for_all() -> None:
    """Waits until all processes are here; once in a program.

    Before the first collective: on CPUs it gives up after 30 seconds, and compiling may take one
    process that much longer than another.
    """
    barrier = orbax.checkpoint.multihost.get_barrier_sync_fn()
    barrier(key="meet", timeout_ms=1000 * CONNECT_SECONDS)

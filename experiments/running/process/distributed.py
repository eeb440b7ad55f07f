"""One program in several processes: connecting, waiting for each other, failing together."""

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Iterator

import jax
from absl import flags

from experiments.running.process.errors import one_line_errors
from experiments.running.process.signals import STOP_SIGNALS
from pe_jax.validation import ConfigError

FLAG_NAMES = ("coordinator", "processes", "process")
# Seconds until all hosts must be connected, and until a silent one counts as dead.
CONNECT_SECONDS, HEARTBEAT_SECONDS = 300, 20
TASKS = ("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # number of processes
FIRST_PORT, PORTS = 61440, 4096  # the range that JAX uses under SLURM


def define_flags() -> None:
    """Flags for processes outside a cluster that JAX detects."""
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, if no cluster is detected")
    flags.DEFINE_integer("processes", None, "number of processes, with --coordinator")
    flags.DEFINE_integer("process", None, "index of this process, with --coordinator")
    flags.DEFINE_bool("detect", True, "connect to the processes of a TPU pod, SLURM or MPI")


@contextlib.contextmanager
def connected() -> Iterator[None]:
    """Connects to the other processes, if any; the first that fails ends all of them.

    A normal exit would wait for the others, which wait for this one in a collective.
    """
    with one_line_errors():
        values = (flags.FLAGS[name].value for name in FLAG_NAMES)
        connect(*values, detect=bool(flags.FLAGS["detect"].value))
        jax.devices()  # raises here if there is none: later errors say less
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
        elif not isinstance(error, SystemExit):  # SystemExit has printed its reason
            traceback.print_exception(error)
            print(f"error: {me}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 1)


def connect(
    coordinator: str | None, processes: int | None, process: int | None, detect: bool = True
) -> None:
    """Connects to the other processes: those of the flags, of a TPU pod, SLURM or MPI, or none.

    A single task connects to nobody: its coordinator would take the port of another such task of
    the job, and end that one.

    Raises:
      ConfigError: some flags, but not all; a cluster's variables that contradict each other.
      OSError: some processes did not connect; a cluster that JAX detected, as by a variable that
        every pod of Kubernetes has, cannot be asked.
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
    alone = {os.environ[name] for name in TASKS if name in os.environ} == {"1"}
    if missing and (alone or not detect):
        return
    try:
        if missing:
            _choose_port()
            initialize()
        else:
            initialize(coordinator, processes, process, cluster_detection_method="deactivate")
    except ValueError as error:
        if not missing or "coordinator_address should be defined" not in str(error):
            raise ConfigError(f"--{FLAG_NAMES[0]}: {error}") from error
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        fix = "; pass --nodetect if it is to run alone" if missing else ""
        text = f"not all processes came within {CONNECT_SECONDS} s: {reason}{fix}"
        raise OSError(text) from error
    except Exception as error:  # of a detector, which asks a cluster's own library
        if not missing:
            raise
        reason = str(error).strip().partition("\n")[0]
        fix = "pass --nodetect if it is to run alone, or --" + ", --".join(FLAG_NAMES)
        text = f"a cluster was detected and does not answer: {type(error).__name__}: {reason}"
        raise OSError(f"{text}; {fix}") from error


def _choose_port() -> None:
    """Gives each step of a SLURM job a port: JAX takes one per job, and steps run side by side."""
    job, step = (os.environ.get(f"SLURM_{name}", "") for name in ("JOB_ID", "STEP_ID"))
    if job.isdecimal() and step.isdecimal():
        port = FIRST_PORT + (int(job) + 61 * int(step)) % PORTS
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(port))


def wait_for_all() -> None:
    """Waits for all processes before the first collective; call it once per program.

    On CPUs a collective times out after 30 seconds, and compile times may differ by more.
    """
    import orbax.checkpoint  # not at the top: `--help` imports this module

    barrier = orbax.checkpoint.multihost.get_barrier_sync_fn()
    barrier(key="meet", timeout_ms=1000 * CONNECT_SECONDS)

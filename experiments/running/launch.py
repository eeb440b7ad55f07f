"""How every program starts: flags and a config file to a checked config; errors on one line."""

import contextlib
import difflib
import functools
import logging as std_logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint
import rich.console
from absl import app, flags, logging
from jax.experimental import multihost_utils
from ml_collections import config_flags

from pe_jax.training import config as configs

JOIN = ("coordinator", "processes", "process")  # flags
# Seconds: for the other hosts to come, and until one that says nothing counts as dead.
WAIT, SILENCE = 300, 20
STOPS = (signal.SIGINT, signal.SIGTERM)
LOUD = ("jax", "orbax", "grain")  # libraries that log each step of their work


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns a ValueError or OSError of the preparation into one line and exit status 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        text = " ".join(str(error).split())
        print(f"error: {text}", file=sys.stderr)
        sys.exit(2)


def show(*parts: Any) -> None:
    """Prints tables as wide as they are, wider than a narrow terminal if need be."""
    console = rich.console.Console()
    console.width = max(console.width, 130)
    console.print(*parts, sep="\n")


def run(main: Callable[[Any], None], default: str, kind: type) -> None:
    """Parses the command line, checks the config and calls `main(config)`.

    Args:
      main: the program.
      default: the config file that `--config` has if it is not given.
      kind: of config.
    """
    if not hasattr(kind, "encodings"):
        flags.DEFINE_string("encoding", None, "short for --config.model.encoding")
    flags.DEFINE_string("coordinator", None, "HOST:PORT of process 0, where no cluster says it")
    flags.DEFINE_integer("processes", None, "how many processes there are, with --coordinator")
    flags.DEFINE_integer("process", None, "which of them this is, with --coordinator")
    quiet_libraries()
    try:
        config_flags.DEFINE_config_file(
            "config", default, "a file with get_config()", lock_config=False
        )
    except KeyError as error:  # it reads the overrides of the default file at once
        _explain_unknown(kind(), sys.argv, error)
        sys.exit(2)
    parse = functools.partial(_parse, kind())
    app.run(lambda rest: _start(main, rest[1:]), flags_parser=parse)


def quiet_libraries() -> None:
    """Shows our own log lines, and of the libraries only warnings and errors."""
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    ours = lambda r: r.levelno > std_logging.INFO or not {*LOUD} & {*Path(r.pathname).parts}  # noqa: E731
    logging.get_absl_handler().addFilter(ours)


def _start(main: Callable[[Any], None], rest: Sequence[str]) -> None:
    with one_line_errors():
        if rest:
            raise ValueError(f"{rest[0]!r} is no flag; write --config.FIELD=VALUE")
        config = flags.FLAGS.config
        if "encoding" in flags.FLAGS and flags.FLAGS.encoding is not None:
            config.model.encoding = flags.FLAGS.encoding
        config.check()
        config.workdir = str(Path(config.workdir).absolute())
        writable(Path(config.workdir))
    with together():
        main(config)


def _parse(known: Any, argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong name or type is one line that names the nearest or the range."""
    try:
        return flags.FLAGS(argv)
    except KeyError as error:
        _explain_unknown(known, argv, error)
    except flags.UnrecognizedFlagError as error:
        print(f"error: {error}", file=sys.stderr)
    except flags.Error as error:
        name = str(error).partition("--config.")[2].partition("=")[0]
        field = configs.find(known, name)
        need = f"; pass {field.metadata['need']}" if field and "need" in field.metadata else ""
        print(f"error: {' '.join(str(error).split())}{need}", file=sys.stderr)
    sys.exit(2)


def _explain_unknown(config: Any, argv: Sequence[str], error: KeyError) -> None:
    known = configs.paths(config)
    for argument in argv:
        name = argument.removeprefix("--config.").partition("=")[0]
        if argument.startswith("--config.") and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            text = f"--config.{name} is unknown; did you mean --config.{near}?"
            print(f"error: {text}", file=sys.stderr)
            return
    print(f"error: {error}", file=sys.stderr)


def writable(folder: Path) -> None:
    """Raises OSError if files cannot be written there; makes nothing."""
    there = next(path for path in (folder, *folder.parents) if not _missing(path))
    if not os.path.isdir(there) or not os.access(there, os.W_OK | os.X_OK, effective_ids=True):
        raise OSError(f"workdir={str(folder)!r} is not writable; choose another --config.workdir")


def _missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:  # it may be there, behind a door that is closed
        return False
    return False


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Joins the other processes, where there are any; the first that fails ends all of them.

    An exit as usual would wait for the others, which wait for this one's part of a computation.
    """
    with one_line_errors():
        join(*(flags.FLAGS[name].value for name in JOIN))
    try:
        yield
    except BaseException as error:
        if jax.process_count() == 1:
            raise
        status = error.code if isinstance(error, SystemExit) else 1
        if status in (None, 0, *(128 + number for number in STOPS)):  # all of them end so
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


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the other processes: those that the flags tell of, or a TPU pod, SLURM or MPI does.

    Raises:
      ValueError: some flags, but not all; a cluster's variables that contradict each other. That
        there is no cluster is no error.
      OSError: some processes did not come.
    """
    given = coordinator, processes, process
    how = {"initialization_timeout": WAIT, "heartbeat_timeout_seconds": SILENCE}
    missing = [name for name, value in zip(JOIN, given, strict=True) if value is None]
    if missing and len(missing) < len(JOIN):
        raise ValueError(f"--{missing[0]} is missing: pass all of --{', --'.join(JOIN)}")
    try:
        if missing:
            jax.distributed.initialize(**how)
        else:
            jax.distributed.initialize(*given, cluster_detection_method="deactivate", **how)
    except ValueError as error:
        if not missing or "coordinator_address should be defined" not in str(error):
            raise
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        raise OSError(f"not all processes came within {WAIT} s: {reason}") from error


def meet() -> None:
    """Waits until all processes are here; once in a program.

    Before the first collective: on CPUs it gives up after 30 seconds, and compiling may take one
    process that much longer than another.
    """
    orbax.checkpoint.multihost.get_barrier_sync_fn()(key="meet", timeout_ms=1000 * WAIT)


class Stop:
    """Notes SIGINT and SIGTERM, so that a run can save before it ends with the signal's status.

    Attributes:
      signal: the one that came, or None; of several processes, once all have agreed to stop.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.noted: int | None = None

    def __enter__(self) -> "Stop":
        # Of several processes, JAX itself catches SIGTERM, to have them all stop at one step.
        mine = STOPS if jax.process_count() == 1 else (signal.SIGINT,)
        self.before = {number: signal.signal(number, self._note) for number in mine}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def after(self, step: int) -> bool:
        """Whether to stop after this step; to be asked after each, and processes answer alike."""
        if jax.process_count() > 1 and multihost_utils.reached_preemption_sync_point(step):
            self.signal = self.noted or signal.SIGTERM
        return self.signal is not None

    def leave(self) -> None:
        """Ends the program with the signal's status, if one came."""
        if self.signal is not None:
            logging.info("Stopped; the same command continues here.")
            sys.exit(128 + self.signal)

    def _note(self, number: int, _: object) -> None:
        if self.noted is not None:  # the second one means now
            os._exit(128 + number)
        self.noted = number
        logging.info("Signal %d: saving, then stopping. Once more stops at once.", number)
        if jax.process_count() == 1:
            self.signal = number
        else:
            os.kill(os.getpid(), signal.SIGTERM)

"""How every program starts: flags and a config file to a checked config; errors on one line."""

import contextlib
import difflib
import functools
import logging as std_logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging
from ml_collections import config_flags

from pe_jax.training import config as configs

JOIN = ("coordinator", "processes", "process")  # flags
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


def run(main: Callable[[Any], None], default: str, kind: type = configs.CompareConfig) -> None:
    """Parses the command line, checks the config and calls `main(config)`.

    Args:
      main: the program.
      default: the config file that `--config` has if it is not given.
      kind: whose fields errors name.
    """
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
        if flags.FLAGS.encoding is not None:
            config.model.encoding = flags.FLAGS.encoding
        config.check()
        config.workdir = str(Path(config.workdir).absolute())
        writable(Path(config.workdir))
        join(*(flags.FLAGS[name].value for name in JOIN))
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
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise OSError(f"workdir={str(folder)!r} is not writable; choose another --config.workdir")


def join(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Joins the other processes: those that the flags tell of, or a TPU pod, SLURM or MPI does.

    Raises:
      ValueError: some flags, but not all; a cluster's variables that contradict each other. That
        there is no cluster is no error.
    """
    given = coordinator, processes, process
    if missing := [name for name, value in zip(JOIN, given, strict=True) if value is None]:
        if len(missing) < len(JOIN):
            raise ValueError(f"--{missing[0]} is missing: pass all of --{', --'.join(JOIN)}")
        try:
            jax.distributed.initialize()
        except ValueError as error:
            if "coordinator_address should be defined" not in str(error):
                raise
    else:
        jax.distributed.initialize(*given, cluster_detection_method="deactivate")


class Stop:
    """Notes SIGINT and SIGTERM, so that a run can save before it ends with the signal's status."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __enter__(self) -> "Stop":
        self.before = {s: signal.signal(s, self._note) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if self.signal is not None:  # the second one means now
            os._exit(128 + number)
        self.signal = number
        logging.info("Signal %d: saving, then stopping. Once more stops at once.", number)

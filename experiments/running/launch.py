"""Start of every program: flags and a config file become a checked config; one-line errors."""

import dataclasses
import functools
import importlib.util
import logging as std_logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import rich.console
from absl import app, flags, logging
from ml_collections import config_flags

from experiments.running import distributed, signals
from experiments.running.errors import exit_with, one_line_errors
from pe_jax.training import config as configs
from pe_jax.validation import nearest

VERBOSE_LIBRARIES = ("jax", "orbax", "grain")
COMPILED_PROGRAMS = Path(__file__).parents[2] / ".jax_cache"


def run(main: Callable[[Any], None], default: str, kind: type) -> None:
    """Parses the command line, checks the config and calls `main(config)`.

    Args:
      main: the program.
      default: the config file used without `--config`.
      kind: class of the config.
    """
    if not hasattr(kind, "encodings"):
        flags.DEFINE_string("encoding", None, "short for --config.model.encoding")
    distributed.define_flags()
    quiet_libraries()
    keep_programs()
    has_config = any(re.match(r"--?config(=|$)", argument) for argument in sys.argv)
    with one_line_errors():
        first = draft(kind()) if has_config else load(default)
    try:  # it reads the overrides of the default file at once
        config_flags.DEFINE_config_dataclass(
            "config", first, "a file with get_config()", parse_fn=load
        )
    except KeyError as error:
        exit_with(_unknown_field(kind(), sys.argv, error))
    parse = functools.partial(_parse, kind())
    app.run(lambda rest: _start(main, rest[1:]), flags_parser=parse)


def load(source: str) -> Any:
    """A draft of the config of FILE, or FILE:ARGUMENT.

    Raises:
      OSError: there is no such file.
    """
    path, *argument = source.split(":", 1)
    spec = importlib.util.spec_from_file_location("config_file", path)
    if spec is None or spec.loader is None:
        raise OSError(f"config={path!r}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return draft(module.get_config(*argument))


def draft(config: Any) -> Any:
    """A mutable copy of a config and of nested ones, for flags to write to."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    copy = object.__new__(_draft_type(type(config)))
    for field in dataclasses.fields(config):
        setattr(copy, field.name, draft(getattr(config, field.name)))
    return copy


@functools.cache
def _draft_type(kind: type) -> type:
    return type(kind.__name__, (kind,), {"__setattr__": object.__setattr__})


def final(config: Any) -> Any:
    """The frozen config of a draft."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    fields = {f.name: final(getattr(config, f.name)) for f in dataclasses.fields(config)}
    kind = type(config).__mro__[1]  # a draft is an instance of a subclass
    return kind(**fields)


def keep_programs() -> None:
    """Keeps compiled programs in the checkout, so that what runs again does not compile again.

    JAX's own settings (`JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=0`) come first.
    """
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(COMPILED_PROGRAMS))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def quiet_libraries() -> None:
    """Shows our own log lines, but only warnings and errors of the libraries."""
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    logging.get_absl_handler().addFilter(_is_ours_or_warning)


def _is_ours_or_warning(record: std_logging.LogRecord) -> bool:
    from_library = {*VERBOSE_LIBRARIES} & {*Path(record.pathname).parts}
    return record.levelno > std_logging.INFO or not from_library


def show(*parts: Any) -> None:
    """Prints tables without folding them to a narrow terminal."""
    console = rich.console.Console()
    console.width = max(console.width, 130)
    console.print(*parts, sep="\n")


@signals.quiet_interrupt()
def _start(main: Callable[[Any], None], rest: Sequence[str]) -> None:
    with one_line_errors():
        if rest:
            raise ValueError(f"{rest[0]!r} is not a flag; write --config.FIELD=VALUE")
        config = final(flags.FLAGS.config)
        if "encoding" in flags.FLAGS and flags.FLAGS.encoding is not None:
            model = dataclasses.replace(config.model, encoding=flags.FLAGS.encoding)
            config = dataclasses.replace(config, model=model)
        config.check()
        config = dataclasses.replace(config, workdir=str(Path(config.workdir).absolute()))
        check_writable(Path(config.workdir))
    with distributed.connected():
        main(config)


def _parse(known: Any, argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong name or type is one line that names the nearest or the range."""
    with one_line_errors():
        try:
            return flags.FLAGS(argv)
        except KeyError as error:
            raise ValueError(_unknown_field(known, argv, error)) from error
        except flags.UnrecognizedFlagError as error:
            raise ValueError(str(error)) from error
        except flags.Error as error:
            name = str(error).partition("--config.")[2].partition("=")[0]
            field = configs.find(known, name)
            need = f"; pass {field.metadata['need']}" if field and "need" in field.metadata else ""
            raise ValueError(f"{error}{need}") from error


def _unknown_field(config: Any, argv: Sequence[str], error: KeyError) -> str:
    known = configs.paths(config)
    for argument in argv:
        name = argument.removeprefix("--config.").partition("=")[0]
        if argument.startswith("--config.") and name not in known:
            return f"--config.{name} is unknown; did you mean --config.{nearest(name, known)}?"
    return str(error)


def check_writable(folder: Path) -> None:
    """Raises OSError if files cannot be written in a folder; creates nothing."""
    parent = next(path for path in (folder, *folder.parents) if not _missing(path))
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK, effective_ids=True):
        raise OSError(f"workdir={str(folder)!r} is not writable; choose another --config.workdir")


def _missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except PermissionError:  # it may exist in a folder that cannot be read
        return False
    return False

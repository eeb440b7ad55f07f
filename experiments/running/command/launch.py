"""Start of every program: flags and a config file become a checked config; one-line errors."""

import ast
import contextlib
import dataclasses
import functools
import io
import logging as std_logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import rich.console
from absl import app, flags, logging

from experiments.running.command import config_files, help_text
from experiments.running.configs.sweep import REFERENCES, Sweep
from experiments.running.process import distributed, ray_nodes, signals
from experiments.running.process.errors import one_line_errors
from pe_jax import config_fields
from pe_jax.training import paths
from pe_jax.training.config import Config
from pe_jax.validation import ConfigError, nearest

VERBOSE_LIBRARIES = ("jax", "orbax", "grain", "fsspec", "gcsfs")
COMPILED_PROGRAMS = Path(__file__).parents[3] / ".jax_cache"
DAMAGED_PROGRAM = r"Error reading persistent compilation cache entry for '(\w+)'"
ADVICE = "write --config.FIELD=VALUE; --list=fields has them"


def run(main: Callable[[Any], None], default: str, *kinds: type) -> None:
    """Parses the command line, checks the config and calls `main(config)`.

    `--help` and `--list=WHAT` are answered before anything else. `default` is the config file
    without `--config`; of several `kinds` of config the file's decides.
    """
    from ml_collections import config_flags  # programs without a config do without it

    prepare_process()

    def load(source: str) -> Any:
        return config_files.load(source, *kinds)

    with one_line_errors():
        source, kind = _config_file(sys.argv), kinds[0]
        if len(kinds) > 1:
            kind = config_files.kind_of(load(source or default))
    repeated = [f.name for f in dataclasses.fields(kind) if help_text.is_strings(f.default)]
    if "encodings" not in repeated:
        flags.DEFINE_string("encoding", None, "short for --config.model.encoding")
    for name in repeated:
        flags.DEFINE_multi_string(name, None, f"short for --config.{name}")
    if hasattr(kind, "checkpoint"):
        flags.DEFINE_string("checkpoint", None, "short for --config.checkpoint")
    flags.DEFINE_enum("list", None, [*help_text.LISTS], "prints what there is of a kind")
    distributed.define_flags()
    with one_line_errors():
        exists = os.path.isfile(os.path.expanduser(source or default))
        if what := help_text.asked(sys.argv[1:]):
            _show_help(
                what, main, load(source or default) if exists else config_files.draft(kind())
            )
        first = config_files.draft(kind()) if source else load(default)
        check_names(kind(), repeated, sys.argv)
        # this reads the overrides of the default file immediately
        config_flags.DEFINE_config_dataclass("config", first, "a file of configs/", parse_fn=load)
    parse = functools.partial(_parse, kind())
    with signals.Stop(saves=False):  # runs that save have their own in it
        app.run(lambda arguments: _start(main, arguments[1:], repeated), flags_parser=parse)


def run_flags(main: Callable[[], None]) -> None:
    """Parses the flags of a program without a config, and calls `main()`."""
    prepare_process()
    with one_line_errors():
        if help_text.asked(sys.argv[1:]):
            _show_help("help", main, None)

    def start(arguments: Sequence[str]) -> None:
        with one_line_errors():
            if arguments[1:]:
                raise ConfigError(f"{arguments[1]!r} is not a flag; write --FLAG=VALUE")
            main()

    with signals.Stop(saves=False):
        app.run(start, flags_parser=functools.partial(_parse, None))


def _show_help(what: str, main: Callable, config: Any) -> NoReturn:
    """Prints the help of the program that `main` is in, or a list, and exits."""
    text = help_text.program(sys.modules[main.__module__].__doc__ or "", config)
    try:
        print(text if what == "help" else "\n".join(help_text.LISTS[what](config)), flush=True)
    except BrokenPipeError:  # the reader, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def keep_programs() -> None:
    """Keeps compiled programs in the checkout, so that a second run does not compile again.

    JAX's own settings (`JAX_COMPILATION_CACHE_DIR`, `JAX_ENABLE_COMPILATION_CACHE=0`) come first.
    """
    import jax

    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(COMPILED_PROGRAMS))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def replace_damaged_programs() -> None:
    """Removes compiled programs that JAX cannot read, such as half-written ones.

    JAX warns, compiles, and keeps the file that is there: it would warn at every start.
    """
    import jax

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        match = re.match(DAMAGED_PROGRAM, str(message))
        if match is None:
            return original(message, *args, **kwargs)
        cache = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
        for path in Path(cache or "").glob(f"{match[1]}-*-cache"):
            with contextlib.suppress(OSError):  # a cache that cannot be written stays as it is
                path.unlink()
        logging.info("A compiled program of %s was damaged: it is compiled again", match[1])

    original, warnings.showwarning = warnings.showwarning, show


def prepare_process() -> None:
    """Sets what output, logs and compiled programs need, before anything else is imported.

    Characters that a terminal or a log cannot show are replaced, instead of ending the program. A
    notebook passes its matplotlib back end to programs that it starts, and matplotlib fails if that
    one is not installed: figures are drawn without one.
    """
    os.environ.pop("MPLBACKEND", None)
    quiet_libraries()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    replace_damaged_programs()


def quiet_libraries() -> None:
    """Shows our own log lines, but only warnings and errors of the libraries."""
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    logging.get_absl_handler().addFilter(_is_ours_or_warning)
    # tasks of orbax whose error is reported once, by the main thread
    std_logging.getLogger("asyncio").setLevel(std_logging.CRITICAL)


def _is_ours_or_warning(record: std_logging.LogRecord) -> bool:
    from_library = {*VERBOSE_LIBRARIES} & {*Path(record.pathname).parts}
    return record.levelno > std_logging.INFO or not from_library


def show(*parts: Any) -> None:
    """Prints tables without folding them to a narrow terminal."""
    console = rich.console.Console()
    console.width = max(console.width, 160)
    console.print(*parts, sep="\n")


def _config_file(argv: Sequence[str]) -> str | None:
    """The value of `--config`, if it is given.

    Raises:
      ConfigError: it is given twice, as by an alias that has one already.
    """
    given = []
    for argument, following in zip(argv, [*argv[1:], ""], strict=True):
        if match := re.fullmatch(r"--?config(?:=(.*))?", argument):
            given.append(following if match[1] is None else match[1])
    if len(given) > 1:
        raise ConfigError(f"--config is given {len(given)} times, {', '.join(given)}: pass one")
    return given[0] if given else None


def _start(main: Callable[[Any], None], arguments: Sequence[str], repeated: Sequence[str]) -> None:
    with one_line_errors():
        if arguments:
            raise ConfigError(f"{arguments[0]!r} is not a flag; {ADVICE}")
        config = overridden(config_files.final(flags.FLAGS.config), repeated)
        config = config.check()
        if type(config) is Config and paths.is_bucket(config.workdir):  # others need a folder
            paths.check_bucket(paths.folder(config.workdir))
        else:
            workdir = paths.local("workdir", config.workdir).absolute()
            check_writable(workdir)
            check_compiles()
            config = dataclasses.replace(config, workdir=str(workdir))
    if isinstance(config, Sweep) and config.cluster:
        with one_line_errors():
            ray_nodes.leave_to_cluster(config)
        flags.FLAGS.detect = False
    keep_programs()
    with distributed.connected(), one_line_errors():  # a disk may fill at any moment
        main(config)


def overridden(config: Any, repeated: Sequence[str]) -> Any:
    """The config with the values of `--encoding` or `--checkpoint`, and of flags that repeat."""
    if "encoding" in flags.FLAGS and flags.FLAGS.encoding is not None:
        if "config.model.encoding" in flags.FLAGS:
            both = f"encoding={flags.FLAGS.encoding!r} and config.model.encoding"
            raise ConfigError(f"{both} are the same field; give one of them")
        model = dataclasses.replace(config.model, encoding=flags.FLAGS.encoding)
        return dataclasses.replace(config, model=model)
    if "checkpoint" in flags.FLAGS and flags.FLAGS.checkpoint is not None:
        config = dataclasses.replace(config, checkpoint=flags.FLAGS.checkpoint)
    values_of = {name: tuple(flags.FLAGS[name].value or ()) for name in repeated}
    values_of = {name: values for name, values in values_of.items() if values}
    encodings = values_of.get("encodings", ())
    if len(encodings) == 1 and len(pattern_parts(encodings[0])) > 1:
        logging.warning("encodings: %s", _one_or_many("encodings", encodings[0]))
    chosen = {name for name in REFERENCES if f"config.{name}" in flags.FLAGS}
    return config.with_encodings(chosen, **values_of) if values_of else config


def _parse(config: Any, argv: Sequence[str]) -> list[str]:
    """Parses flags; a wrong name or type is one line that names the nearest or the range."""
    with one_line_errors():
        try:
            return flags.FLAGS(argv)
        except flags.UnrecognizedFlagError as error:
            names = [name for name in flags.FLAGS if not name.startswith("config.")]
            paths = [f"config.{path}" for path in config_fields.paths(config)] if config else []
            near = nearest(error.flagname, names, cutoff=0.8)
            near = near or _nearest_path(error.flagname, names + paths, cutoff=0.6)
            hint = f"did you mean --{near}?" if near else "--help lists them"
            raise ConfigError(f"--{error.flagname} is not a flag; {hint}") from error
        except flags.Error as error:
            ours = isinstance(error.__context__, ConfigError)
            text = str(error.__context__) if ours else _explained(config, str(error))
            raise ConfigError(text) from error


def _explained(config: Any, error: str) -> str:
    """absl's error with what the flag takes: `flag --config.steps=1e4: invalid literal …`."""
    flag = re.match(r"flag (--\S+?)=(.*?): ", error, re.DOTALL)
    path = re.search(r"--config\.([\w.]+)", error)
    field = config_fields.find(config, path[1]) if path and config is not None else None
    need = field.metadata.get("need") if field else None
    if flag and need is None:
        need = flags.FLAGS[flag[1].removeprefix("--")].parser.syntactic_help
    if flag and need:
        return f"{flag[1]}={flag[2]}: pass {need}"
    return f"{error}; pass {need}" if need else error


def check_names(config: Any, repeated: Sequence[str], argv: Sequence[str]) -> None:
    """Raises ConfigError for a flag without a field, or one string where a field takes several."""
    fields = config_fields.paths(config)
    for argument in argv:
        match = re.fullmatch(r"--?(?:no)?config\.([^=]*)(?:=(.*))?", argument, re.DOTALL)
        if match is None:
            continue
        name, value = match[1], match[2]
        if name not in fields:
            raise ConfigError(_unknown_field(name, fields))
        if name in repeated and value is not None and not _is_tuple(value):
            raise ConfigError(f"--config.{name}={value}: {_one_or_many(name, value)}")


def _unknown_field(name: str, fields: Sequence[str]) -> str:
    if inner := [path for path in fields if path.startswith(f"{name}.")]:
        return f"--config.{name} has fields; pass one of them, such as --config.{inner[0]}"
    parent = name.rpartition(".")[0]
    near = parent if parent in fields else _nearest_path(name, fields)
    return f"--config.{name} is unknown; did you mean --config.{near}?"


def _nearest_path(name: str, paths: Sequence[str], cutoff: float = 0.0) -> str:
    """The path that ends in a name, else the most similar; "" if none is similar enough."""
    ending = [path for path in paths if path.rpartition(".")[2] == name]
    return ending[0] if ending else nearest(name, paths, cutoff)


def _is_tuple(value: str) -> bool:
    try:
        return isinstance(ast.literal_eval(value), tuple)
    except (ValueError, SyntaxError):
        return False


def _one_or_many(name: str, value: str) -> str:
    """How to pass none, one value, or the parts of a pattern, with the flag that repeats."""
    if not value.strip():
        return f"pass --config.{name}='()' for none, or --{name}=… for one"
    parts = pattern_parts(value)
    fix = f"pass --{name}={shlex.quote(value)}"
    if len(parts) > 1:
        listed = " ".join(f"--{name}={shlex.quote(part)}" for part in parts)
        fix = f"that is one pattern over layers, for which {fix}; for {len(parts)}, pass {listed}"
    return fix


def pattern_parts(spec: str) -> list[str]:
    """The parts of a text that commas outside brackets separate."""
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except SyntaxError:
        return [spec]
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return [ast.get_source_segment(spec.strip(), part) or spec for part in parts]


def check_compiles() -> None:
    """Raises ConfigError where JAX is told to compile nothing, as for debugging."""
    import jax

    if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        raise ConfigError("JAX_DISABLE_JIT: programs are compiled before they run; unset it")


def check_writable(folder: Path) -> None:
    """Raises OSError if files cannot be written in a folder, or checkpoints read; creates nothing.

    tensorstore does not find below a name with a bracket or a backslash what it wrote there, and
    orbax writes nothing below one that is not UTF-8.
    """
    name = str(folder)
    if re.search(r"\[.*\]|\\", name) or name.encode(errors="replace").decode() != name:
        raise OSError(
            f"workdir={name!r}: checkpoints cannot be read from a path with [], a backslash or"
            " bytes that are not UTF-8; choose another --config.workdir"
        )
    if lost := [p for p in (folder, *folder.parents) if os.path.islink(p) and _missing(p)]:
        raise OSError(f"workdir={name!r}: {lost[0]} is a link to nothing; is its disk mounted?")
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

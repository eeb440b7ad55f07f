"""What `--help` and `--list` print: flags, fields of configs, encodings, positions and tasks.

Nothing is written twice: a field's meaning is that of the class' docstring, its range that of its
check, an encoding's line the first of its docstring.
"""

import dataclasses
import inspect
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_type_hints

from absl import flags

from pe_jax import position_schemes, spec_strings
from pe_jax.encodings.registry import ENCODINGS, RECURRENT
from pe_jax.encodings.rope_scaling import SCALINGS
from pe_jax.training import tasks
from pe_jax.validation import require

try:
    import docstring_parser
except ImportError:  # optional: without it flags work, and their help is shorter
    docstring_parser: Any = None

WIDTH = 90
ASKS = ("help", "helpfull", "helpshort", "h", "?")


def meanings(kind: type) -> dict[str, str]:
    """Field → what it means, from the docstrings of a dataclass and of those it inherits from."""
    by_field: dict[str, str] = {}
    for base in kind.__mro__ if docstring_parser else ():
        for item in docstring_parser.parse(base.__doc__ or "").meta:
            if item.args[0] == "attribute":
                by_field.setdefault(item.args[1], " ".join((item.description or "").split()))
    return by_field


def entry(head: str, *texts: str) -> str:
    """A line, and what it means below, indented."""
    words = "; ".join(text.rstrip(".") for text in texts if text)
    first = textwrap.wrap(head, WIDTH - 6, subsequent_indent="  ", break_on_hyphens=False)
    below = textwrap.wrap(words, WIDTH - 6, initial_indent="    ", subsequent_indent="    ")
    return textwrap.indent("\n".join([*first, *below]), "  ")


def fields(config: Any, prefix: str = "") -> Iterator[str]:
    """Every field as a flag with its value, type, meaning and range; nested configs at the end."""
    meaning, nested = meanings(_kind(config)), []
    types = get_type_hints(_kind(config))
    if prefix:
        first = (inspect.getdoc(_kind(config)) or "").partition("\n")[0]
        yield "\n" + textwrap.fill(f"--config.{prefix}…: {first}", WIDTH, subsequent_indent="  ")
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            nested.append((value, f"{prefix}{field.name}."))
            continue
        path = f"--config.{prefix}{field.name}"
        short = f"--{field.name}" if not prefix and is_strings(value) else ""
        head = " ".join(f"{short}={shlex.quote(x)}" for x in value) if short else _set(path, value)
        need = field.metadata.get("need", "")
        if field.metadata.get("ok") is bool:  # any text: the meaning says of what
            need = ""
        words = meaning.get(field.name, "")
        yield entry(f"{_fit(head, short)}  ({_type(types[field.name])})", words, need)
    for inner, path in nested:
        yield from fields(inner, path)


def is_strings(value: Any) -> bool:
    """Whether a field's value is a tuple of strings, which has a flag that repeats."""
    return isinstance(value, tuple) and bool(value) and all(isinstance(x, str) for x in value)


def _kind(config: Any) -> type:
    """The class of a config; of a draft, that of the config it copies."""
    return next(kind for kind in type(config).__mro__ if "__doc__" in vars(kind) and kind.__doc__)


def _set(path: str, value: Any) -> str:
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) + "," * (len(value) == 1)
    return f"{path}={shlex.quote(str(value)) if value != '' else ''}"


def _fit(head: str, repeated: str) -> str:
    """The head within the width; of a flag given many times, the first few."""
    if not repeated or len(head) <= WIDTH - 20:
        return head
    return textwrap.shorten(head, WIDTH - 20, placeholder=" …", break_on_hyphens=False)


def _type(annotation: Any) -> str:
    items = get_args(annotation)
    return f"{items[0].__name__}, …" if items else annotation.__name__


def own_flags() -> Iterator[str]:
    """The flags that the program and this project's modules define, the program's first."""
    by_module = flags.FLAGS.flags_by_module_dict()
    ours = [name for name in by_module if name.startswith("experiments.")]
    for module in (sys.argv[0], *sorted(ours)):  # absl's name for the program
        for flag in by_module.get(module, ()):
            if flag.name.partition(".")[0] != "config":
                default = "" if flag.default is None else f"={flag.default_as_str}"
                yield entry(
                    f"--{flag.name}{default.replace(chr(39), '')}",
                    " ".join((flag.help or "").split()),
                )


def signature(name: str, kind: type) -> str:
    """A call with every field at its default, as a config writes it."""
    defaults = {
        f.name: "…" if f.default is dataclasses.MISSING else repr(f.default)
        for f in dataclasses.fields(kind)
    }
    return spec_strings.format_call(name, defaults, ", ")


def _calls(table: dict[str, type]) -> Iterator[str]:
    for name, kind in table.items():
        yield entry(signature(name, kind), (inspect.getdoc(kind) or "").partition("\n")[0])


def _encodings(_: Any) -> Iterator[str]:
    yield from _calls(ENCODINGS)
    yield "\nscalings of rope, as rope(scaling=yarn(factor=4, original_length=2048)):"
    yield from _calls(SCALINGS)
    yield "\nlayers in the place of attention, as gated_delta*3,nope:"
    yield from _calls(RECURRENT)
    yield "\na sum is t5+rope, a pattern over layers rope*3,nope"


def _positions(_: Any) -> Iterator[str]:
    yield from _calls(position_schemes.SCHEMES)


def _tasks(_: Any) -> Iterator[str]:
    for name, task in tasks.TASKS.items():
        longest = f"to {task.longest}" if task.longest else "or more"
        lengths = f"questions of {task.shortest} {longest} symbols"
        yield entry(name, f"{lengths}, {task.symbols} different ones")


LISTS: dict[str, Callable[[Any], Iterator[str]]] = {
    "encodings": _encodings,
    "fields": fields,
    "positions": _positions,
    "tasks": _tasks,
}


def program(doc: str, config: Any) -> str:
    """The text of `--help`: the program's docstring, its flags, and what its config has.

    `config` is the one whose values are shown, None for a program without one.
    """
    parts = [inspect.cleandoc(doc), "\nflags:", *own_flags()]
    if config is not None:
        parts += ["\nfields of the config, from --config=FILE, each a flag:", *fields(config)]
        parts += ["\nencodings (--list=encodings has their fields):", _names(ENCODINGS)]
        parts += ["\nscalings, as rope(scaling=NAME(…)):", _names(SCALINGS)]
    return "\n".join(parts)


def _names(table: Iterable[str]) -> str:
    return textwrap.fill(", ".join(table), WIDTH, initial_indent="  ", subsequent_indent="  ")


def asked(arguments: Iterable[str]) -> str | None:
    """What to print instead of running: "help", a name in `LISTS`, or None.

    Raises:
      ConfigError: there is no such list.
    """
    for argument in arguments:
        name, _, value = argument.lstrip("-").partition("=")
        if argument.startswith("-") and name in ASKS:
            return "help"
        if argument.startswith("-") and name == "list":
            require(value in LISTS, "--list", value, f"pass one of {', '.join(LISTS)}")
            return value
    return None

"""Config strings, read and written: `rope(base=5e5)`, a sum `t5+rope`, a pattern `rope*3,nope`.

A layer of a pattern may also have settings: `rope@window=512*3,nope`.

Reading gives a syntax tree of `Call`s; `build` makes an object of one, with a table of classes. The
classes are frozen dataclasses, whose fields are the settings; `format_spec` writes one back.
"""

import ast
import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pe_jax.validation import ConfigError, is_int, nearest, plain, require, shown

LONGEST = 10_000  # layers of a pattern
MANY = 30  # names in a message


class Call(NamedTuple):
    """`name(field=value, …)`, or a name alone; a value is a literal, a word or another call."""

    name: str
    fields: dict[str, Any]


class Layer(NamedTuple):
    """The summands of one layer, and its settings: numbers by name."""

    summands: tuple[Call, ...]
    settings: dict[str, int]


Pattern = tuple[Layer, ...]


def parse_call(spec: str) -> Call:
    """Reads a name, or `name(field=value, …)` with literals.

    Raises:
      ConfigError: anything else.
    """
    try:
        return _call(ast.parse(spec.strip(), mode="eval").body, nested=None)
    except (SyntaxError, ValueError):
        raise ConfigError("write name, or name(field=value)") from None


def parse_pattern(spec: str, example: str, nested: str, settings: tuple[str, ...] = ()) -> Pattern:
    """Reads names, `name(field=value, …)`, sums `a+b`, repetitions `a*3` and sequences `a,b`.

    `a@setting=3` gives the layer, or each layer of a pattern in parentheses, one of the `settings`,
    a number of at least 0; in a sum it is one of the whole sum. In error messages, `example` is a
    valid spec and `nested` says what a field may hold besides a literal.

    Raises:
      ConfigError: a spec that cannot be read, with the piece at fault.
    """
    try:
        # Python has no `a@b=3`; `a@b(3)` binds as it should: as `*` does, before `+`
        calls = re.sub(r"@\s*(\w+)\s*=\s*(-?[\w.]+)", r"@\1(\2)", spec.strip())
        layers = _pattern(ast.parse(calls, mode="eval").body, nested, settings)
    except (SyntaxError, RecursionError, MemoryError):
        raise ConfigError(f"not a valid expression, such as {example!r}") from None
    require(len(layers) > 0, "layers", 0, f"write at least one, such as {example!r}")
    return layers


def _pattern(node: ast.expr, nested: str, known: tuple[str, ...]) -> Pattern:
    match node:
        case ast.Name() | ast.Call(func=ast.Name(), args=[]):
            return (Layer((_call(node, nested=nested),), {}),)
        case ast.Tuple(elts=elements):
            return tuple(layer for item in elements for layer in _pattern(item, nested, known))
        case ast.BinOp(left=left, op=ast.Mult(), right=ast.Constant(value=int(times))) if times > 0:
            layers = _pattern(left, nested, known)
            count = len(layers) * times
            require(count <= LONGEST, "layers", count, f"repeat to at most {LONGEST} layers")
            return layers * times
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            a, b = _pattern(left, nested, known), _pattern(right, nested, known)
            if len(a) == len(b) == 1:
                return (Layer(a[0].summands + b[0].summands, _merged(a[0].settings, b[0])),)
        case ast.BinOp(
            left=left, op=ast.MatMult(), right=ast.Call(func=ast.Name(id=name), args=[value])
        ) if known:
            new = {name: _number(name, value, known)}
            layers = _pattern(left, nested, known)
            return tuple(Layer(layer.summands, _merged(new, layer)) for layer in layers)
    forms = "name, name(field=value), a+b, a*3, or a,b" + f" or a@{known[0]}=3" * bool(known)
    written = re.sub(r" @ (\w+)\(([^()]*)\)", r"@\1=\2", ast.unparse(node))
    raise ConfigError(f"cannot read {shown(written, 80)}; write {forms}")


def _number(name: str, value: ast.expr, known: tuple[str, ...]) -> int:
    """A setting of a layer, which is an integer of at least 0."""
    if name not in known:
        hint = _suggestion(name, dict.fromkeys(known))
        raise ConfigError(f"a layer has no setting {shown(name, 80)}; {hint}")
    try:
        number = ast.literal_eval(value)
    except ValueError:
        number = ast.unparse(value)
    require(is_int(number, 0), f"@{name}", number, "write an integer of at least 0")
    return int(number)


def _merged(settings: dict[str, int], layer: Layer) -> dict[str, int]:
    """The settings of a layer with more of them; each may be given once."""
    for name in settings.keys() & layer.settings.keys():
        both = f"@{name}={layer.settings[name]} and @{name}={settings[name]}"
        raise ConfigError(f"{both} are of one layer; keep one of them")
    return {**layer.settings, **settings}


def _call(node: ast.expr, nested: str | None) -> Call:
    match node:
        case ast.Name(id=name):
            return Call(name, {})
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords):
            return Call(name, _fields(keywords, nested))
    raise ConfigError(f"cannot read {ast.unparse(node)!r}; write name, or name(field=value)")


def _fields(keywords: list[ast.keyword], nested: str | None) -> dict[str, Any]:
    fields = {}
    for keyword in keywords:
        text = ast.unparse(keyword)
        if keyword.arg is None or keyword.arg in fields:
            fix = "write field=value" if keyword.arg is None else "give each field once"
            raise ConfigError(f"cannot read {text!r}; {fix}")
        fields[keyword.arg] = _value(keyword.value, text, nested)
    return fields


def _value(node: ast.expr, text: str, nested: str | None) -> Any:
    """What a field is given in `text`, or an item of its tuple."""
    match node:
        case ast.Call(func=ast.Name(), args=[]) if nested:
            return _call(node, nested)
        case ast.Name(id=word):  # a choice without quotes, which a shell would take away
            return word
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return tuple(_value(item, text, nested) for item in items)
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ConfigError(f"{text}: pass a literal, or {nested}") from None


def build(kind: str, table: Mapping[str, type], name: str, fields: Mapping[str, Any]) -> Any:
    """An object of the dataclass that `table` has under `name`; sequences become tuples.

    `kind` says what the classes are, for error messages: "encoding".

    Raises:
      ConfigError: unknown name or field (naming the nearest), or a value out of range.
      TypeError: the name is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"{kind}={shown(name, 80)}: pass a name, such as {next(iter(table))!r}")
    if name not in table:
        own = f"; pe_jax.ENCODINGS[{name[:40]!r}] = its class registers your own"
        own = own if kind == "encoding" else ""
        raise ConfigError(f"{kind} {shown(name, 80)} is unknown; {_suggestion(name, table)}{own}")
    defaults = {f.name: f.default for f in dataclasses.fields(table[name])}
    for field in fields:
        if field not in defaults:
            hint = _suggestion(field, defaults)
            raise ConfigError(f"{kind} {name!r} has no field {shown(field, 80)}; {hint}")
    required = [f for f, default in defaults.items() if default is dataclasses.MISSING]
    if missing := [f for f in required if f not in fields]:
        raise ConfigError(f"{kind} {name!r} needs {', '.join(missing)}")
    try:
        return table[name](**{field: plain(value) for field, value in fields.items()})
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{kind} {name!r}: {error}") from error


def _suggestion(name: str, known: Mapping[str, Any]) -> str:
    if close := nearest(name.lower(), known, cutoff=0.65):
        return f"did you mean {close!r}?"
    shortened = ", ".join([*known][:MANY]) + ", …" * (len(known) > MANY)
    return f"known: {shortened}" if known else "it has none"


def format_call(name: str, fields: Mapping[str, str], separator: str = ",") -> str:
    """`name(field=value,…)` of values that are formatted already; a name alone without fields."""
    listed = separator.join(f"{field}={value}" for field, value in fields.items())
    return f"{name}({listed})" if fields else name


def format_spec(value: Any, names: Mapping[type, str]) -> str:
    """The spec from which a parser makes an equal object: fields at their defaults are left out.

    `names` has the names of classes; a value of another class is a literal, or a tuple of values.
    """
    if type(value) in names:
        fields = {
            f.name: format_spec(getattr(value, f.name), names)
            for f in dataclasses.fields(value)
            if getattr(value, f.name) != f.default
        }
        return format_call(names[type(value)], fields)
    if isinstance(value, tuple):
        items = ", ".join(format_spec(item, names) for item in value)
        return f"({items}{',' * (len(value) == 1)})"
    return repr(value)

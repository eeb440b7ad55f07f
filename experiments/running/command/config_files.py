"""Config files: `FILE` or `FILE:ARGUMENT` becomes a draft that flags write to, then a config."""

import dataclasses
import functools
import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from typing import Any

from pe_jax.training.paths import local
from pe_jax.validation import ConfigError, nearest

NAME = "config_file"  # of its module


def load(source: str, *kinds: type) -> Any:
    """A draft of the config of FILE, or FILE:ARGUMENT.

    Raises:
      ConfigError: there is no such file, it has no `get_config` or none for the argument, or its
        config is of none of the `kinds`.
    """
    path, *argument = [source] if Path(source).is_file() else source.split(":", 1)
    if argument and not local("--config", path).is_file():  # its folder may have a colon
        path, *argument = source.rsplit(":", 1)
    path = str(local("--config", path))
    module = imported(path)
    if module is None:
        raise ConfigError(f"--config={source}: {_missing(path)}")
    if not callable(getattr(module, "get_config", None)):
        raise ConfigError(f"--config={source}: the file has no get_config(); see configs/train.py")
    try:
        inspect.signature(module.get_config).bind(*argument)
    except TypeError as error:
        fix = f"pass {path} alone" if argument else f"pass {path}:PART; its docstring has the parts"
        raise ConfigError(f"--config={source}: get_config {error}; {fix}") from error
    try:
        config = module.get_config(*argument)
    except KeyError as error:
        where = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not argument or where != Path(path).absolute():  # of something else, as os.environ
            raise
        text = f"there is no part {error}; the file's docstring has them"
        raise ConfigError(f"--config={source}: {text}") from error
    if not isinstance(config, kinds):
        wanted = " or a ".join(kind.__name__ for kind in kinds)
        what = f"is a {type(config).__name__}, this program takes a {wanted}"
        raise ConfigError(f"--config={source}: it {what}; see configs/")
    return draft(config)


def imported(path: str, name: str = NAME) -> Any:
    """The module of a config file, which may register encodings; None if there is no such file."""
    spec = importlib.util.spec_from_file_location(name, path)
    if not Path(path).is_file() or spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def _missing(path: str) -> str:
    """The error of a missing file, with the nearest name, or all."""
    folder = Path("configs")
    stems = sorted(file.stem for file in folder.glob("*.py"))
    near = nearest(Path(path).stem, stems, cutoff=0.6)
    listed = f"{folder} has {', '.join(stems) or 'none here'}"
    return f"no such Python file; {f'did you mean {folder / near}.py?' if near else listed}"


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
    return kind_of(config)(**fields)


def kind_of(config: Any) -> type:
    """The class of the config that this is a draft of."""
    return type(config).__mro__[1]  # a draft is an instance of a subclass

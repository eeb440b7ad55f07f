"""Keys of transformers' configs that its attention, masks and positions do not read.

    python -m tools.hf_keys > pe_jax/hf/harmless_keys.txt

A key counts as read if a class or function whose name says attention, mask, position or rotation
takes it from a config, or if it is passed to one. Every other key of a config class is written: a
reader of positions may leave it unread. `git diff` then shows what a new transformers adds.
"""

import ast
import itertools
import pathlib
import re
import sys
import warnings
from collections.abc import Iterator

CONFIGS = ("config", "text_config", "vision_config", "audio_config")
CONCERNS = r"att(entio)?n|rotary|rope|mask|position|relative|alibi|bucket|query|qk"


def read_keys(node: ast.AST) -> Iterator[str]:
    """The keys that code takes from a config: `config.key`, `getattr(config, "key", …)`."""
    for x in ast.walk(node):
        if isinstance(x, ast.Attribute):
            of = x.value
            name = of.id if isinstance(of, ast.Name) else getattr(of, "attr", "")
            if name in CONFIGS:
                yield x.attr
        elif isinstance(x, ast.Call) and getattr(x.func, "id", "") == "getattr" and len(x.args) > 1:
            yield str(getattr(x.args[1], "value", ""))


def concerned(tree: ast.AST) -> Iterator[ast.AST]:
    """The classes, functions, calls and assignments whose name says that they concern positions."""
    for x in ast.walk(tree):
        if isinstance(x, ast.ClassDef | ast.FunctionDef):
            name = x.name
        elif isinstance(x, ast.Call):
            name = getattr(x.func, "id", getattr(x.func, "attr", ""))
        elif isinstance(x, ast.Assign):
            name = ast.unparse(x.targets[0])
        else:
            continue
        if re.search(CONCERNS, name, re.IGNORECASE):
            yield x


def keys(config: dict) -> Iterator[str]:
    """The keys of a config and of the dicts in it."""
    for key, value in config.items():
        if isinstance(key, str):
            yield key
            yield from keys(value) if isinstance(value, dict) else ()


def main() -> None:
    """Prints the keys, one per line."""
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers.models.auto.configuration_auto import (  # pyright: ignore[reportMissingImports]
        CONFIG_MAPPING,
    )

    root, read = pathlib.Path(str(transformers.__file__)).parent, set()
    files = (root.glob(glob) for glob in ("models/*/modeling_*.py", "*mask*.py", "*rope*.py"))
    for file in itertools.chain(*files):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        whole = [tree] if file.parent == root else concerned(tree)
        read |= {key for node in whole for key in read_keys(node)}
    every = set()
    for model_type in CONFIG_MAPPING.keys():
        try:
            every |= {*keys(CONFIG_MAPPING[model_type]().to_dict())}
        except Exception as error:  # of any library: it has no config without arguments
            print(f"{model_type}: {error!r}", file=sys.stderr)
    print("\n".join(sorted(key for key in every - read if key.isidentifier())))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()

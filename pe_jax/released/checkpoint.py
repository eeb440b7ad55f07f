"""What a released checkpoint holds, whichever format it was read from."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pe_jax.validation import ConfigError, nearest

EXTRA = "pip install 'pe_jax[checkpoints]'"


def refuse(path: Path, problem: str, fix: str) -> NoReturn:
    """Raises ConfigError, whose line names the file, what is wrong with it, and the fix."""
    raise ConfigError(f"{path}: {problem}; {fix}") from None


@dataclasses.dataclass(frozen=True)
class Stored:
    """One tensor of a file."""

    shape: tuple[int, ...]  # of the array
    kind: str  # how the file stores it, such as "BF16" or "Q4_K"
    load: Callable[[], np.ndarray]  # reads it


class Tensors(Mapping[str, np.ndarray]):
    """Arrays by the names of transformers' state dict; each is read anew when it is asked for.

    Attributes:
      shapes: the shape of each, without reading it.
      kinds: how the file stores each.
    """

    def __init__(self, stored: Mapping[str, Stored]):
        self._stored = dict(stored)
        self.shapes = {name: tensor.shape for name, tensor in stored.items()}
        self.kinds = {name: tensor.kind for name, tensor in stored.items()}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._stored:
            raise KeyError(f"{name}: the nearest is {nearest(name, self._stored)}")
        return self._stored[name].load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A released model as files hold it."""

    path: Path  # the folder or file that was read
    config: dict[str, Any]  # Hugging Face's `config.json`, as `pe_jax.hf.encodings` takes it
    tensors: Tensors  # the weights; linear ones are [outputs, inputs]
    # a `tokenizers.Tokenizer`, or None if the checkpoint has none that it reads
    tokenizer: Any = None
    # "chat_template", a Jinja template; "bos_token" and "eos_token", which templates name; "stop",
    # the ids that end a text. Absent where the checkpoint does not say
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

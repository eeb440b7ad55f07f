"""The config of `experiments.extend` for released checkpoints, checked before anything compiles."""

import dataclasses
from typing import Self

from experiments.running.configs.extend import SCALED
from experiments.running.configs.sweep import Sweep, encodings_field
from pe_jax.config_fields import (
    ascending,
    check_fields,
    choice_field,
    different,
    int_field,
    ranged,
    real_field,
    seed_field,
)
from pe_jax.models.config import DTYPES
from pe_jax.validation import ConfigError

SHORT = 512  # tokens of a short text


@dataclasses.dataclass(frozen=True)
class ReleasedConfig(Sweep):
    """Ways to read longer contexts with a released model, without training.

    Attributes:
      workdir: where results go; made absolute at the start.
      checkpoint: a folder of the Hub, a .gguf file, or the name of an embedded checkpoint
        (`pe_jax.released.files.PACKAGES`).
      data: `text:DIR`, whose documents of the split `test` are read; LongRoPE's factors are
        searched on one of the split `validation`.
      documents: how many; those that are shorter than the longest context are left out. 0: all.
      encodings: what replaces the model's `rope`, which stands for the model as it is and has to be
        among them; a field of RoPE left at its default is the model's. A pattern is one over the
        model's layers. `{length}` stands for the trained length, `{factor}` for the factor,
        `{window}` for half of the trained length, `{group}` for the least group with which
        Self-Extend then reaches the target, `{chunk}` for three quarters and `{local}` for a
        sixteenth of the trained length, `{larger_base}` for ten times the layer's base, `{ones}`
        for one 1.0 per frequency and `{searched}` for the factors of LongRoPE's search. Layers with
        a window within the trained length stay as they are.
      reference: the method that the others are compared with. Its spec or its short name; empty:
        the first.
      length: that the model was trained on; 0: what the checkpoint's config says.
      factor: the target length over the trained one.
      lengths: contexts in tokens, with the target among them.
      targets: the loss is that of this many last tokens, the same ones after each context.
      windows: short texts of each document, of 512 tokens each.
      tasks: texts that questions are asked about (`experiments.running.extension.haystacks`), each
        as long as each context.
      samples: questions of a kind about a text, and needles in the text of LongRoPE's search.
      search: lists of factors that LongRoPE's search tries.
      seed: of what is hidden in texts.
      dtype: of weights and activations.
      workers: methods in parallel, each with a copy of its caches.
    """

    workdir: str = ranged("runs/extend_released", "a path", bool)
    checkpoint: str = ranged("smollm2", "a path, or the name of an embedded checkpoint", bool)
    data: str = ranged("text:novels", "text:DIR", lambda v: v.startswith("text:"))
    documents: int = int_field(0, 0)
    encodings: tuple[str, ...] = encodings_field(
        "rope",
        "rope(base={larger_base})",
        *SCALED,
        "rerope(window={window})",
        "self_extend(window={window},group={group})",
        "dual_chunk(chunk_size={chunk},local_size={local})",
        "rerope(window={length})@window={length}@sinks=4",
        "nope",
        "rope*3,nope",
    )
    reference: str = ""
    length: int = int_field(0, 0)
    factor: float = real_field(2.0, 1, 1024)
    lengths: tuple[int, ...] = ranged(
        (2048, 4096, 8192, 16384, 32768),
        "ascending integers of at least 2",
        lambda v: len(v) > 0 and ascending(v, 2),
    )
    targets: int = int_field(1024, 1)
    windows: int = int_field(8, 1)
    tasks: tuple[str, ...] = ranged(
        ("noise", "text", "keys", "common", "frequent", "facts"),
        "different names",
        lambda v: not v or different(v),
    )
    samples: int = int_field(6, 1)
    search: int = int_field(64, 1)
    seed: int = seed_field()
    dtype: str = choice_field("float32", DTYPES)
    workers: int = int_field(1, 1)

    def check(self) -> Self:
        """The resolved config; ConfigError names the field, its value and its range."""
        check_fields(self, "")
        if not different(self.encodings):
            raise ConfigError(f"encodings={self.encodings}: name each once")
        if "rope" not in self.encodings:
            raise ConfigError("encodings: add 'rope', the model as it is; it finds the key tokens")
        if self.targets >= self.lengths[0]:
            fix = f"pass fewer than the shortest of lengths, {self.lengths[0]}"
            raise ConfigError(f"targets={self.targets}: {fix}")
        return self.resolved()

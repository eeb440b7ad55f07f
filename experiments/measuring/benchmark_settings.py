"""The flags of the benchmark, and their checks."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from absl import flags

from experiments.measuring import training_steps
from experiments.measuring.timing import DENSE, NAIVE, OURS
from experiments.measuring.workloads import ENGINES, IN_TORCH, MODES, SCHEMES, Sizes, scheme
from experiments.running.command import help_text
from pe_jax.config_fields import (
    bool_field,
    check_fields,
    choice_field,
    different,
    int_field,
    ranged,
)
from pe_jax.engines import checks
from pe_jax.training.paths import local
from pe_jax.validation import ConfigError, is_int, nearest, require


def _names(default: tuple[str, ...], known: Iterable[str]) -> Any:
    """A field for some of the known names."""
    return ranged(default, f"some of {', '.join(known)}", bool)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The flags of `experiments.benchmark`, where lists are separated by commas.

    Attributes:
      lengths: tokens, for all modes but train.
      train_sizes: models, for mode train.
      schemes: encodings; alibi_plain skips no tiles, shaw_keys adds no vectors at the values.
      modes: what is timed; cold is a first call and a first training step, compilation included.
      engines: what computes it; `ours` is pe_jax with its default engine, `sdpa` PyTorch's
        scaled_dot_product_attention.
      heads: of attention.
      head_dim: width of a head.
      batch: sequences per call.
      dtype: of q, k and v.
      causal: whether later tokens are hidden.
      repeats: rounds of timing.
      dense_limit: the greatest length for the dense engine.
      naive_limit: the greatest length for jax.nn, which needs gigabytes beyond it.
      out: folder of the results.
    """

    lengths: tuple[int, ...] = ranged(
        (512, 1024, 4096, 8192),
        "integers of at least 2, each once, as 512,1024",
        lambda v: different(v) and all(is_int(n, 2) for n in v),
    )
    train_sizes: tuple[str, ...] = _names(tuple(training_steps.SIZES), training_steps.SIZES)
    schemes: tuple[str, ...] = _names(SCHEMES, SCHEMES)
    modes: tuple[str, ...] = _names(tuple(m for m in MODES if m != "cold"), MODES)
    engines: tuple[str, ...] = _names(
        (OURS, DENSE, NAIVE, *IN_TORCH, *training_steps.OTHERS), ENGINES
    )
    heads: int = int_field(8, 1)
    head_dim: int = int_field(64, 1)
    batch: int = int_field(1, 1)
    dtype: str = choice_field("float32", ("float32", "bfloat16"))
    causal: bool = bool_field(True)
    repeats: int = int_field(5, 5)
    dense_limit: int = int_field(1024, 1)
    naive_limit: int = int_field(4096, 1)
    out: str = ranged("runs/benchmark", "a folder", bool)

    @property
    def sizes(self) -> Sizes:
        """The sizes of all programs."""
        return Sizes(self.batch, self.heads, self.head_dim, self.dtype, self.causal)

    @property
    def groups(self) -> list[tuple[int, str]]:
        """Every (length, mode): the programs of each are timed in turn."""
        modes = [m for m in self.modes if m != "train"]
        groups = [(n, title) for n in self.lengths for m in modes for title in MODES[m]]
        if "train" in self.modes:
            sizes = {name: training_steps.SIZES[name] for name in self.train_sizes}
            groups += [(size.length, training_steps.title(name)) for name, size in sizes.items()]
        return groups

    def check(self) -> None:
        """Raises ConfigError, naming the flag, its value and the fix, before anything compiles."""
        choices = {"modes": MODES, "engines": ENGINES, "schemes": SCHEMES}
        choices |= {"train_sizes": training_steps.SIZES}
        for field, known in choices.items():
            for name in getattr(self, field):
                near = nearest(name, known)
                require(name in known, field, name, f"did you mean {near!r}? {', '.join(known)}")
        check_fields(self, "")
        require("nope" in self.schemes, "schemes", self.schemes, "add nope: ratios are to it")
        decodes = self.causal or "decode" not in self.modes
        require(decodes, "causal", self.causal, "decoding is causal: take it out of --modes")
        for name in self.schemes:
            try:
                encoding = scheme(name, self.lengths[0])
                encoding.check(self.sizes.dims)
                checks.causal(encoding, self.causal)
            except ValueError as error:
                raise ConfigError(f"schemes={name!r}: {error}") from error
        for name in ("benchmark.csv", "benchmark.json"):
            exists = (Path(self.out) / name).exists()
            require(not exists, "out", self.out, f"it has a {name} already; choose another folder")


def define() -> None:
    """A flag for every field of Settings, with its default, meaning and range."""
    kinds = {int: flags.DEFINE_integer, bool: flags.DEFINE_bool, tuple: flags.DEFINE_list}
    meanings = help_text.meanings(Settings)
    for field in dataclasses.fields(Settings):
        default = field.default
        kind = kinds.get(type(default), flags.DEFINE_string)
        text = [str(x) for x in default] if isinstance(default, tuple) else default
        meaning = meanings.get(field.name, field.name).rstrip(".")
        kind(field.name, text, f"{meaning}; {field.metadata['need']}")


def settings() -> Settings:
    """The settings of the parsed flags.

    Raises:
      ConfigError: one is out of its range.
    """
    values = {f.name: getattr(flags.FLAGS, f.name) for f in dataclasses.fields(Settings)}
    words = values["lengths"]
    fine = all(word.strip().isdecimal() for word in words)
    require(fine, "lengths", ",".join(words), "pass integers of at least 2, as 512,1024")
    values["lengths"] = tuple(map(int, words))
    for field in ("schemes", "modes", "engines", "train_sizes"):
        values[field] = tuple(dict.fromkeys(word.strip() for word in values[field]))
    values["out"] = values["out"] and str(local("out", values["out"]))
    chosen = Settings(**values)
    chosen.check()
    return chosen

"""What configs of programs that train many models have in common."""

import dataclasses
from typing import Any

from pe_jax.config_fields import (
    check_fields,
    choice_field,
    int_field,
    ranged,
    seed_field,
)
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import MeshConfig, OptimizerConfig
from pe_jax.validation import ConfigError


@dataclasses.dataclass(frozen=True)
class Sweep:
    """How the runs of a sweep share the devices.

    Attributes:
      devices: "one" device per run, runs in parallel; or "all" devices for each run, by the mesh.
      workers: encodings in parallel; 0 is one per CPU core or TPU core, and one on a GPU.
      mesh: the devices.
    """

    devices: str = choice_field("one", ("one", "all"))
    workers: int = int_field(0, 0)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)


def choices_field(high: float) -> tuple[float, ...]:
    """A field for different numbers in (0, `high`] to choose from; empty by default."""
    return ranged(
        (),
        f"different numbers in (0, {high:g}], or none",
        lambda v: len({*map(float, v)}) == len(v) and all(0 < x <= high for x in v),
    )


def check_seeds(config: Any) -> None:
    """Raises ConfigError where the last of a config's seeds is out of range."""
    most = 2**31 - config.seed
    if config.seeds > most:
        raise ConfigError(
            f"seeds={config.seeds}: at most {most}, as seed={config.seed} is the first"
        )


@dataclasses.dataclass(frozen=True)
class TrialsConfig(Sweep):
    """Common fields of sweeps of short trainings, with one file per encoding and seed.

    Attributes:
      workdir: where results go; made absolute at the start.
      seed: of the first run, and of the test set.
      seeds: how many; run k has seed `seed` + k.
      batch: rows per step.
      steps: optimizer steps.
      test: test rows of each size.
      log_every: steps between lines of the log.
      rates: peak learning rates that the first seed tries, for every encoding and whatever else
        runs differ in; the other seeds take the one with the least loss on other rows of the sizes
        trained on. Empty: `optimizer.learning_rate` for all.
      encoding_rates: multiples of the learning rate for parameters of encodings, each tried with
        each of `rates` if a scheme has parameters. Empty: `optimizer.encoding_rate` for all.
      rate_rounds: rounds that try the neighbours of the best rate outside the grid, so that it lies
        at no edge.
      model: an encoder, unless `causal` is set.
    """

    workdir: str = ranged("runs/trials", "a path", bool)
    seed: int = seed_field()
    seeds: int = int_field(3, 1)
    batch: int = int_field(32, 1)
    steps: int = int_field(1_500, 1)
    test: int = int_field(256, 1)
    log_every: int = int_field(100, 1)
    rates: tuple[float, ...] = choices_field(10)
    encoding_rates: tuple[float, ...] = choices_field(1e4)
    rate_rounds: int = int_field(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=lambda: ModelConfig(causal=False))
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def check(self) -> None:
        """Raises ConfigError naming the field, its value and the range it must lie in."""
        check_fields(self, "")
        check_seeds(self)
        self.optimizer.check(self.steps)

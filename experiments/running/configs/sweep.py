"""What configs of programs that train many models have in common."""

import dataclasses
from collections.abc import Container
from typing import Any, Self

from experiments.running.files.run_names import find, short_names
from pe_jax.config_fields import (
    check_fields,
    choice_field,
    int_field,
    ranged,
    seed_field,
)
from pe_jax.encodings.registry import Spec
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import MeshConfig, OptimizerConfig
from pe_jax.validation import refuse

REFERENCES = ("baseline", "reference")  # fields that name one of the encodings; the first if empty


def encodings_field(*default: str) -> Any:
    """A field for encodings, of which there is at least one."""
    return ranged(default, "at least one encoding", lambda v: len(v) > 0)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Several encodings, and how their runs share the devices.

    Attributes:
      encodings: each an encoding, a sum or a pattern over layers.
      devices: "one" device per run, runs in parallel; or "all" devices for each run, by the mesh.
      workers: encodings in parallel; 0 is one per CPU core or TPU core, and one on a GPU. On a
        cluster: runs in parallel; 0 is one per GPU, per TPU core, or where there are none per core.
      cluster: "local" does runs in a process per device of this machine, "ray" on the running Ray
        cluster that RAY_ADDRESS names, or this machine is a node of; "" in this process.
      mesh: the devices.
    """

    encodings: tuple[str, ...] = encodings_field("rope")
    devices: str = choice_field("one", ("one", "all"))
    workers: int = int_field(0, 0)
    cluster: str = choice_field("", ("", "local", "ray"))
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    def spec(self, text: str) -> Spec:
        """One of the encodings, with values for what stands in braces."""
        return Spec(text)

    def filled(self) -> Self:
        """The config with values for what stands in braces in encodings; itself if it has them."""
        specs: Any = tuple(map(self.spec, self.encodings))
        same = all(new is old for new, old in zip(specs, self.encodings, strict=True))
        return self if same else dataclasses.replace(self, encodings=specs)

    def resolved(self) -> Self:
        """The filled config, with the encodings that its references name.

        Raises:
          ConfigError: one of them names none of the encodings.
        """
        config = self.filled()
        references: Any = {
            name: find(name, self.spec(getattr(self, name)), config.encodings)
            for name in REFERENCES
            if hasattr(self, name)
        }
        same = all(getattr(config, name) == spec for name, spec in references.items())
        return config if same else dataclasses.replace(config, **references)

    def with_encodings(self, chosen: Container[str], **fields: tuple) -> Self:
        """The config with values of fields that are tuples.

        Where encodings are among them, a baseline or reference that names none of these becomes the
        first, unless it was `chosen` on the command line too.
        """
        changed: Any = dataclasses.replace(self, **fields)
        if "encodings" not in fields:
            return changed
        specs = [changed.spec(text) for text in changed.encodings]
        known = {*specs, *short_names(specs).values()}
        lost = [
            name
            for name in REFERENCES
            if hasattr(changed, name)
            and name not in chosen
            and changed.spec(getattr(changed, name)) not in known
        ]
        return dataclasses.replace(changed, **dict.fromkeys(lost, ""))


def _choices(high: float) -> tuple[float, ...]:
    """A field for different numbers in (0, `high`] to choose from; empty by default."""
    return ranged(
        (),
        f"different numbers in (0, {high:g}], or none",
        lambda v: len({*map(float, v)}) == len(v) and all(0 < x <= high for x in v),
    )


@dataclasses.dataclass(frozen=True)
class TrainingSweep(Sweep):
    """Several encodings, each trained with several seeds at the best of several rates.

    Attributes:
      seed: of the first run.
      seeds: how many; run k has seed `seed` + k.
      rates: peak learning rates to try for every encoding, and whatever else runs differ in, with
        the first seed; all seeds have the one with the least loss on other text, or other rows, of
        the lengths that are trained on. Empty: `optimizer.learning_rate` for all.
      encoding_rates: multiples of the learning rate for parameters of encodings, each tried with
        each of `rates` if a scheme has parameters. Empty: `optimizer.encoding_rate` for all.
      rate_rounds: rounds that try the neighbours of the best rate outside the grid, so that it lies
        at no edge.
    """

    seed: int = seed_field()
    seeds: int = int_field(3, 1)
    rates: tuple[float, ...] = _choices(10)
    encoding_rates: tuple[float, ...] = _choices(1e4)
    rate_rounds: int = int_field(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    @property
    def every_seed(self) -> range:
        """The seeds of each encoding's runs."""
        return range(self.seed, self.seed + self.seeds)

    def check_seeds(self) -> None:
        """Raises ConfigError where the last of the seeds is out of range."""
        if self.every_seed.stop > 2**31:
            fix = f"at most {2**31 - self.seed}, as seed={self.seed} is the first"
            refuse("seeds", self.seeds, fix)


@dataclasses.dataclass(frozen=True)
class TrialsConfig(TrainingSweep):
    """Common fields of sweeps of short trainings, with one file per encoding and seed.

    Attributes:
      workdir: where results go; made absolute at the start.
      seed: of the first run, and of the test set.
      batch: rows per step.
      steps: optimizer steps.
      test: test rows of each size.
      log_every: steps between lines of the log.
      model: an encoder, unless `causal` is set.
    """

    workdir: str = ranged("runs/trials", "a path", bool)
    batch: int = int_field(32, 1)
    steps: int = int_field(1_500, 1)
    test: int = int_field(256, 1)
    log_every: int = int_field(100, 1)
    model: ModelConfig = dataclasses.field(default_factory=lambda: ModelConfig(causal=False))

    def check(self) -> Self:
        """The filled config; ConfigError names the field, its value and its range."""
        check_fields(self, "")
        self.check_seeds()
        self.optimizer.check(self.steps)
        return self.filled()

"""The config of `experiments.compare`, checked before anything compiles."""

import dataclasses
from typing import Self

from experiments.running.configs.sweep import TrainingSweep, encodings_field
from pe_jax.config_fields import ascending, choice_field, int_field, ranged, real_field
from pe_jax.encodings.registry import Spec
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import PROTOCOLS, Config
from pe_jax.validation import ConfigError


@dataclasses.dataclass(frozen=True)
class CompareConfig(TrainingSweep, Config):
    """A comparison: every encoding with every seed, and one report.

    Attributes:
      encodings: as `model.encoding` takes them; `{length}` stands for the training length.
      baseline: the encoding that speed and memory are measured against, by its spec or its short
        name; empty: the first.
      reference: the encoding that losses are compared with, named like the baseline; empty: the
        first.
      protocol: of the primary metric, at the longest length, and of the secondary, at `length`.
      smallest_effect: of interest, nats per token: an interval within ± this is "no practical
        difference"; no difference is claimed for a mean within it.
      rate_steps: steps of a short run that tries a rate, on validation text. If they equal `steps`,
        the first seed's run is the short run with the best rates, evaluated like the others.
      timing_repeats: interleaved rounds of the speed measurement.
      timing_lengths: lengths at which prefill and decoding are timed too, with as many tokens per
        batch as in training.
    """

    workdir: str = ranged("runs/compare", "a path", bool)
    encodings: tuple[str, ...] = encodings_field(
        *("nope", "sinusoidal", "learned(length={length})", "shaw", "transformer_xl"),
        *("t5", "buckets", "deberta", "rope", "alibi"),
    )
    baseline: str = ""
    reference: str = ""
    protocol: str = choice_field(PROTOCOLS[0], PROTOCOLS)
    smallest_effect: float = real_field(0.01, 0, 10)
    rate_steps: int = int_field(200, 1)
    timing_repeats: int = int_field(7, 5)
    timing_lengths: tuple[int, ...] = ranged(
        (),
        "ascending integers of at least 32, or none",
        lambda v: ascending(v, 32),
    )

    def check(self) -> Self:
        """Checks every model as `Config.check` does, and that both questions can be answered."""
        if self.checkpoint:
            fix = "a comparison trains models from the start; pass it to experiments.train"
            raise ConfigError(f"checkpoint={self.checkpoint!r}: {fix}")
        filled = super().check()
        self.check_seeds()
        if len({*filled.encodings}) < len(self.encodings):
            raise ConfigError(f"encodings={self.encodings}: name each once")
        on_text = not self.data.startswith("synthetic:")
        if self.length not in self.eval.lengths:
            raise ConfigError(
                f"eval.lengths={self.eval.lengths}: add length={self.length}, of the secondary"
                " question"
            )
        if self.protocol not in (PROTOCOLS if on_text else PROTOCOLS[:1]):
            raise ConfigError(
                f"protocol={self.protocol!r}: a task has no text to slide over; pass {PROTOCOLS[0]}"
            )
        chosen = bool(self.rates or self.encoding_rates)
        if chosen and on_text and self.eval.split == "validation":
            raise ConfigError(
                "eval.split='validation': the rates are chosen there; pass eval.split=test"
            )
        if chosen and self.optimizer.warmup > self.rate_steps:
            least = f"optimizer.warmup={self.optimizer.warmup}"
            raise ConfigError(f"rate_steps={self.rate_steps}: must be at least {least}")
        if self.timing_lengths and self.mesh.seq != 1:
            fix = "decoding takes no mesh.seq; leave it ()"
            raise ConfigError(f"timing_lengths={self.timing_lengths}: {fix}")
        return filled.resolved()

    def models(self) -> list[ModelConfig]:
        """One model per encoding."""
        return [dataclasses.replace(self.model, encoding=spec) for spec in self.encodings]

    def spec(self, text: str) -> Spec:
        """An encoding, with the training length filled in."""
        return Spec(text).filled(length=self.length)

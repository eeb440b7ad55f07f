"""The config of `experiments.compare`, checked before anything compiles."""

import dataclasses
from typing import Self

from experiments.running.configs.sweep import TrainingSweep, encodings_field
from pe_jax.config_fields import ascending, choice_field, int_field, ranged, real_field
from pe_jax.encodings.registry import Spec
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import PROTOCOLS, Config
from pe_jax.validation import refuse


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
            refuse("checkpoint", self.checkpoint, fix)
        filled = super().check()
        self.check_seeds()
        if len({*filled.encodings}) < len(self.encodings):
            refuse("encodings", self.encodings, "name each once")
        on_text = not self.data.startswith("synthetic:")
        if self.length not in self.eval.lengths:
            fix = f"add length={self.length}, of the secondary question"
            refuse("eval.lengths", self.eval.lengths, fix)
        if self.protocol not in (PROTOCOLS if on_text else PROTOCOLS[:1]):
            fix = f"a task has no text to slide over; pass {PROTOCOLS[0]}"
            refuse("protocol", self.protocol, fix)
        chosen = bool(self.rates or self.encoding_rates)
        if chosen and on_text and self.eval.split == "validation":
            fix = "the rates are chosen there; pass eval.split=test"
            refuse("eval.split", self.eval.split, fix)
        if chosen and self.optimizer.warmup > self.rate_steps:
            fix = f"must be at least optimizer.warmup={self.optimizer.warmup}"
            refuse("rate_steps", self.rate_steps, fix)
        if self.timing_lengths and self.mesh.seq != 1:
            refuse("timing_lengths", self.timing_lengths, "decoding takes no mesh.seq; leave it ()")
        return filled.resolved()

    def models(self) -> list[ModelConfig]:
        """One model per encoding."""
        return [dataclasses.replace(self.model, encoding=spec) for spec in self.encodings]

    def spec(self, text: str) -> Spec:
        """An encoding, with the training length filled in."""
        return Spec(text).filled(length=self.length)

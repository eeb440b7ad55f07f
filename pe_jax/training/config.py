"""The configuration of a run: typed fields with their ranges, checked before anything compiles.

A file in `configs/` returns one of these from `get_config()`; absl flags override fields, as
`--config.steps=2000 --config.model.encoding=alibi`.
"""

import dataclasses
from typing import Any, Self

from pe_jax import position_schemes
from pe_jax.config_fields import (
    ascending,
    check_fields,
    choice_field,
    int_field,
    ranged,
    real_field,
    seed_field,
)
from pe_jax.models.config import ModelConfig
from pe_jax.validation import ConfigError, divisors, is_int, refuse, require

PROTOCOLS = ("non-overlapping", "sliding")  # of an evaluation; see `evaluate`


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, linear warm-up, cosine decay.

    Attributes:
      learning_rate: at the peak.
      encoding_rate: multiple of the learning rate for the parameters of encodings, shared ones and
        those of a layer. AdamW moves a parameter by about its rate per step, whatever its gradient:
        a scalar added to scores needs a higher rate than a matrix.
      warmup: steps from 0, the rate of the first update, to the peak.
      final: learning rate of the last update relative to the peak.
      weight_decay: on the matrices of linear layers; the embedding of tokens (and so the output
        projection if it is tied), vectors and encodings are not decayed.
      b1: decay of the first moment.
      b2: decay of the second moment.
      clip: largest global norm of the gradient.
      skips: consecutive updates that may be skipped as not finite; one more ends the run.
    """

    learning_rate: float = real_field(3e-3, 0, 10, open_low=True)
    encoding_rate: float = real_field(1.0, 0, 1e4, open_low=True)
    warmup: int = int_field(50, 0)
    final: float = real_field(0.1, 0, 1)
    weight_decay: float = real_field(0.1, 0, 10)
    b1: float = real_field(0.9, 0, 0.9999)
    b2: float = real_field(0.95, 0, 0.99999)
    clip: float = real_field(1.0, 0, 1e9, open_low=True)
    skips: int = int_field(3, 0)

    def check(self, steps: int) -> None:
        """Raises ConfigError where the warm-up is longer than `steps`."""
        fix = f"must be in [0, steps={steps}]"
        require(self.warmup <= steps, "optimizer.warmup", self.warmup, fix)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; their product is the device count, and at most one -1 is inferred.

    Attributes:
      data: replicas of the model; the batch is sharded over them.
      fsdp: parameters and batch are sharded over these.
      seq: the tokens of a row are sharded over these, with ring attention (`engines.sharded`).
      model: heads and hidden units are sharded over these.
    """

    data: int = ranged(-1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    fsdp: int = ranged(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    seq: int = ranged(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    model: int = ranged(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    """Losses by length, on the same target tokens for every scheme and length.

    Attributes:
      lengths: context lengths to test, ascending; the longest is the number of targets per window.
      windows: windows of text, each inside one document.
      stride: targets scored per step of the sliding window; divides the shortest length (if equal
        to it, both protocols are the same at that length).
      split: "validation" or "test".
      kept: names of files of the split from which no window is drawn, for a last look.
      every: steps between evaluations during training, at the training length without overlap; 0
        disables them.
      batch_tokens: tokens per forward pass.
    """

    lengths: tuple[int, ...] = ranged(
        (64, 128, 256, 512),
        "ascending positive integers, each a divisor of the last",
        lambda v: len(v) > 0 and ascending(v, 1) and all(v[-1] % n == 0 for n in v),
    )
    windows: int = int_field(16, 1)
    stride: int = int_field(32, 1)
    split: str = choice_field("validation", ("validation", "test"))
    kept: tuple[str, ...] = ranged(
        (), "names of files, each once", lambda v: len(v) == len({*v}) and all(v)
    )
    every: int = int_field(0, 0)
    batch_tokens: int = int_field(16384, 1)

    def check(self) -> None:
        """Raises ConfigError where the stride does not fit the lengths."""
        if self.lengths[0] % self.stride:
            refuse("eval.stride", self.stride, f"must be one of {divisors(self.lengths[0])}")


@dataclasses.dataclass(frozen=True)
class Config:
    """One training run.

    Attributes:
      workdir: where metrics, checkpoints and results go, made absolute; `~` is the home folder.
      seed: of the weights, the order of the data, and dropout.
      data: `embedded`, `text:DIR_OR_GLOB`, `tfds:NAME[:DATA_DIR]`, `synthetic:TASK`;
        `passkeys:SOURCE` for training rows that ask for passkeys.
      tokenizer: `bytes`, `bpe:PATH` or `checkpoint:SOURCE`, that of a released checkpoint.
      checkpoint: a released model that the run starts from: a folder of the Hub, a .gguf file,
        `smollm2` or `gemma3` (`pe_jax.released.files`). Its sizes, weights and tokenizer are the
        run's; `model.encoding` may be another pattern, repeated over its layers: fields of RoPE at
        their defaults, as the base, and windows are the layer's (`rope` leaves all as they are).
        Empty: weights are drawn.
      length: tokens per row.
      positions: position scheme: `contiguous`, `randomized(maximum=2048)`, `pose(maximum=2048)`,
        `random_floats(trained_length=64)`, `shape(maximum=500)`, `cape(local_shift=0.5)` or
        `bilevel(separators=(46, 10))`; see `pe_jax.position_schemes`.
      batch: rows per step, over all devices.
      microbatches: parts of a batch whose gradients are computed one after another and added up:
        memory for activations falls by this factor, the step stays that of the whole batch.
      steps: optimizer steps.
      log_every: steps between lines of metrics.
      save_every: steps between checkpoints; 0 saves at the end and when stopped.
    """

    workdir: str = ranged("runs/train", "a path", bool)
    seed: int = seed_field()
    data: str = ranged("embedded", "a source", bool)
    tokenizer: str = ranged("bytes", "a tokenizer", bool)
    checkpoint: str = ranged("", "a checkpoint, or none", lambda v: isinstance(v, str))
    length: int = int_field(64, 1)
    positions: str = ranged("contiguous", "a position scheme", bool)
    batch: int = int_field(32, 1)
    microbatches: int = int_field(1, 1)
    steps: int = int_field(600, 1)
    log_every: int = int_field(50, 1)
    save_every: int = int_field(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)

    def filled(self) -> Self:
        """The config with the model and the tokenizer of its checkpoint; itself without one.

        Raises:
          ValueError: the checkpoint cannot be read, or a field of the model contradicts it.
        """
        if not self.checkpoint:
            return self
        from pe_jax.released import start  # reads checkpoints, which most runs do without

        model = start.model_config(self.checkpoint, self.model)
        own = self.tokenizer == "bytes"
        tokenizer = f"checkpoint:{self.checkpoint}" if own else self.tokenizer
        return dataclasses.replace(self, model=model, tokenizer=tokenizer)

    def check(self) -> Self:
        """The filled config; ConfigError names the field, its value and its range."""
        check_fields(self, "")
        filled = self.filled()
        for model in filled.models():
            model.check()
            scheme = position_schemes.choose(self.positions, model.pattern)
            fix = f"maximum must be at least length={self.length}"
            require(scheme.bound(self.length) is not None, "positions", self.positions, fix)
            scheme.check_trained_on(self.length, self.positions)
        if not filled.models()[0].causal:
            raise ConfigError("model.causal=False: next-token training needs a causal model")
        self.optimizer.check(self.steps)
        if self.batch % self.microbatches:
            fix = f"must divide batch={self.batch}; one of {divisors(self.batch)[:24]}"
            refuse("microbatches", self.microbatches, fix)
        self.eval.check()
        if self.eval.every and self.eval.lengths[-1] % self.length:
            fix = f"must divide the longest of eval.lengths, {self.eval.lengths[-1]}; or pass 0"
            refuse("eval.every", self.eval.every, f"length={self.length} {fix}")
        return filled

    def models(self) -> list[ModelConfig]:
        """All models that are trained."""
        return [self.model]


def from_json(kind: Any, saved: dict) -> Any:
    """A config from the JSON of its `dataclasses.asdict`; unknown keys are ignored."""
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in saved:
            value = saved[field.name]
            nested = dataclasses.is_dataclass(field.default_factory) and isinstance(value, dict)
            value = from_json(field.default_factory, value) if nested else value
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)

"""The config of `experiments.extend`, checked before anything compiles."""

import dataclasses
from typing import Self

from experiments.running.configs.sweep import Sweep, encodings_field
from pe_jax.config_fields import check_fields, choice_field, int_field, ranged, real_field
from pe_jax.training.config import EvalConfig, OptimizerConfig
from pe_jax.validation import ConfigError

SCALED = (  # RoPE with other frequencies
    "rope(scaling=linear(factor={factor}))",
    "rope(scaling=ntk(factor={factor}))",
    "rope(scaling=dynamic_ntk(factor=1.0,original_length={length}))",
    "rope(scaling=yarn(factor={factor},original_length={length}))",
    "rope(scaling=llama3(factor={factor},original_length={length}))",
    "rope(scaling=longrope(short_factor={ones},long_factor={searched},"
    "original_length={length},factor={factor}))",
    "rope(scaling=clipped_rope(original_length={length}))",
)


@dataclasses.dataclass(frozen=True)
class ExtendConfig(Sweep):
    """A trained RoPE model at longer contexts: every method, without and with a short fine-tune.

    Attributes:
      workdir: where results go; made absolute at the start.
      runs: workdirs of `experiments.train`, which differ only in their seed.
      trained: a workdir of `experiments.compare`, instead of `runs`: its runs of `rope` are
        extended, and those of its other encodings stay as they are: the same fine-tune, text and
        passkeys.
      encodings: what replaces the run's `rope`; a field of RoPE left at its default is the run's.
        `{factor}` stands for the factor, `{length}` for the trained length, `{window}` for half of
        it, `{group}` for the least group with which Self-Extend then reaches the target, `{chunk}`
        for three quarters and `{local}` for a sixteenth of the trained length, `{ones}` for one 1.0
        per frequency and `{searched}` for the factors of LongRoPE2's search
        (`experiments.running.extension.longrope_search`). `nope` drops RoPE (DroPE, arXiv
        2512.12167): its fine-tune is at the trained length, with rows for as many tokens.
      reference: the method that the others are compared with. Its spec or its short name; empty:
        the first.
      primary: what is compared at the target: the loss under a sliding window, or the passkeys that
        are found, mean over depths.
      factor: the target length over the length trained on.
      steps: of the fine-tune at the target length (`nope`: at the trained one); 0: none.
      batch: rows per step of the fine-tune at the target length; and training texts in which
        LongRoPE's search hides passkeys, at all depths.
      positions: of the fine-tune: `contiguous`, or `pose(maximum=TARGET)` for rows of the trained
        length whose pieces skip ahead to the target (PoSE), with as many tokens per step.
      log_every: steps between lines of metrics.
      save_every: steps between checkpoints; 0 saves at the end and when stopped.
      depths: of passkeys, evenly from the beginning of the text to its end.
      trials: passkeys for each depth and length.
      search: lists of factors that LongRoPE's search tries.
      optimizer: of the fine-tune.
      eval: what is evaluated; the lengths include the one trained on and the target.
    """

    workdir: str = ranged("runs/extend", "a path", bool)
    runs: tuple[str, ...] = ranged(
        ("runs/train",), "at least one path", lambda v: len(v) > 0 and all(v)
    )
    trained: str = ranged("", "a path, or none", lambda v: isinstance(v, str))
    encodings: tuple[str, ...] = encodings_field(
        "rope",
        "rope(base=5e5)",
        *SCALED,
        "rope+log_length",
        "rerope(window={window})",
        "self_extend(window={window},group={group})",
        "dual_chunk(chunk_size={chunk},local_size={local})",
        "nope",
    )
    reference: str = ""
    primary: str = choice_field("loss", ("loss", "passkeys"))
    factor: float = real_field(4.0, 1, 1024)
    steps: int = int_field(100, 0)
    batch: int = int_field(8, 1)
    positions: str = ranged("contiguous", "a position scheme", bool)
    log_every: int = int_field(25, 1)
    save_every: int = int_field(0, 0)
    depths: int = int_field(5, 2)
    trials: int = int_field(10, 1)
    search: int = int_field(64, 1)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)

    def check(self) -> Self:
        """The resolved config; ConfigError names the field, its value and its range."""
        check_fields(self, "")
        if self.steps:
            self.optimizer.check(self.steps)
        self.eval.check()
        for field in ("encodings", "runs"):
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise ConfigError(f"{field}={getattr(self, field)}: name each once")
        return self.resolved()

"""The configurations of programs that train many models, checked before anything compiles."""

import dataclasses
import re

from experiments.running.references import with_references
from pe_jax import position_schemes
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
from pe_jax.models.config import ModelConfig
from pe_jax.training import digits, images, tasks
from pe_jax.training.config import PROTOCOLS, Config, EvalConfig, MeshConfig, OptimizerConfig
from pe_jax.validation import ConfigError, nearest


@dataclasses.dataclass(frozen=True)
class Sweep:
    """How the runs of a sweep share the devices.

    Attributes:
      devices: "one" device per run, runs in parallel; or "all" devices for each run, by the mesh.
      workers: encodings in parallel; 0 is one per CPU core, or one per GPU or TPU core.
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


def check_seeds(config: "CompareConfig | TrialsConfig") -> None:
    """Raises ConfigError where the last of a config's seeds is out of range."""
    most = 2**31 - config.seed
    if config.seeds > most:
        raise ConfigError(
            f"seeds={config.seeds}: at most {most}, as seed={config.seed} is the first"
        )


@dataclasses.dataclass(frozen=True)
class CompareConfig(Config, Sweep):
    """A comparison: every encoding with every seed, and one report.

    Attributes:
      encodings: as `model.encoding` takes them; `{length}` stands for the training length.
      seeds: how many; run k has seed `seed` + k.
      baseline: the encoding that speed and memory are measured against, by its spec or its short
        name; empty: the first.
      reference: the encoding that losses are compared with, named like the baseline; empty: the
        first.
      protocol: of the primary metric, at the longest length, and of the secondary, at `length`.
      smallest_effect: of interest, nats per token: an interval within ± this is "no practical
        difference"; no difference is claimed for a mean within it.
      rates: peak learning rates to try for every encoding, in short runs, on validation text at the
        training length; the best is used. Empty: `optimizer.learning_rate` for all.
      encoding_rates: multiples of the learning rate for parameters of encodings, each tried with
        each of `rates` if a scheme has parameters. Empty: `optimizer.encoding_rate` for all.
      rate_rounds: rounds that try the neighbours of the best rate outside the grid, so that it lies
        at no edge.
      rate_steps: steps of such a run. If they equal `steps`, the first seed's run is the short run
        with the best rates, evaluated like the others.
      timing_repeats: interleaved rounds of the speed measurement.
      timing_lengths: lengths at which prefill and decoding are timed too, with as many tokens per
        batch as in training.
    """

    workdir: str = ranged("runs/compare", "a path", bool)
    encodings: tuple[str, ...] = ranged(
        (
            "nope",
            "sinusoidal",
            "learned(length={length})",
            "shaw",
            "transformer_xl",
            "t5",
            "buckets",
            "deberta",
            "rope",
            "alibi",
        ),
        "at least one encoding",
        lambda v: len(v) > 0,
    )
    seeds: int = int_field(3, 1)
    baseline: str = ""
    reference: str = ""
    protocol: str = choice_field(PROTOCOLS[0], PROTOCOLS)
    smallest_effect: float = real_field(0.01, 0, 10)
    rates: tuple[float, ...] = choices_field(10)
    encoding_rates: tuple[float, ...] = choices_field(1e4)
    rate_rounds: int = int_field(0, 0)
    rate_steps: int = int_field(200, 1)
    timing_repeats: int = int_field(7, 5)
    timing_lengths: tuple[int, ...] = ranged(
        (),
        "ascending integers of at least 32, or none",
        lambda v: ascending(v, 32),
    )

    def check(self) -> None:
        """Checks every model as `Config.check` does, and that both questions can be answered."""
        super().check()
        check_seeds(self)
        specs = self.specs()
        if len(set(specs)) < len(specs):
            raise ConfigError(f"encodings={self.encodings}: name each once")
        with_references(self, specs)
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

    def models(self) -> list[ModelConfig]:
        """One model per encoding."""
        return [dataclasses.replace(self.model, encoding=spec) for spec in self.specs()]

    def specs(self) -> list[str]:
        """The encodings with the training length filled in."""
        return [spec.replace("{length}", str(self.length)) for spec in self.encodings]


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


IMAGES = {"discs": images, "digits": digits}
CONVENTIONS = ("index", "normalized", "augmented", "resized")


@dataclasses.dataclass(frozen=True)
class ImagesConfig(TrialsConfig):
    """A comparison on images: every encoding with every seed, at the training size and larger.

    Attributes:
      images: "discs", drawn from keys (`pe_jax.training.images`), or "digits", handwritten ones at
        random places (`pe_jax.training.digits`).
      encodings: as `model.encoding` takes them; `{side}` stands for the patches along a side of a
        training image. A suffix `@normalized`, `@augmented` or `@resized` selects other positions
        than the patches' indices (`positions.grid`; the same, rescaled in training as DINOv3's are,
        `positions.augmented`; `positions.resized`); an encoding of one axis gets the patches row by
        row.
      reference: the encoding that the others are compared with, by the fraction of images right on
        each kind of view, mean over its sides. As in `encodings`, or its short name; empty: the
        first.
      sides: of the images in pixels, ascending: trained at the first, tested at all.
      patch: side of a patch in pixels.
    """

    workdir: str = ranged("runs/images", "a path", bool)
    images: str = choice_field("discs", tuple(IMAGES))
    encodings: tuple[str, ...] = ranged(
        (
            "nope",
            "sinusoidal_2d",
            "learned_2d(height={side},width={side},stddev=0.5)",
            "learned_2d(height={side},width={side},stddev=0.5)@resized",
            "rope_2d(base=100.0)",
            "rope_2d(base=100.0,normalized=True)@normalized",
            "rope_mixed",
            "rope_2d(base=100.0,normalized=True)@augmented",
            "swin(height={side},width={side})",
            "cpb(height={side},width={side},hidden=64)",
            "alibi_2d",
        ),
        "at least one encoding",
        lambda v: len(v) > 0,
    )
    reference: str = ""
    sides: tuple[int, ...] = ranged(
        (32, 48, 64),
        "ascending positive integers",
        lambda v: len(v) > 0 and ascending(v, 1),
    )
    patch: int = int_field(4, 1)
    test: int = int_field(1024, 1)

    def check(self) -> None:
        """Checks every model as well."""
        super().check()
        if self.model.causal:
            raise ConfigError("model.causal=True: pass False, every patch sees all others")
        least = IMAGES[self.images].MIN_SIDE
        if self.sides[0] < least:
            what = f"images={self.images!r} need at least {least}"
            raise ConfigError(f"sides={self.sides}: {what} pixels")
        if any(side % self.patch for side in self.sides):
            raise ConfigError(f"sides={self.sides}: must be multiples of patch={self.patch}")
        for spec, convention in self.entries():
            if convention not in CONVENTIONS:
                raise ConfigError(f"encodings: {spec}@{convention}: choose one of {CONVENTIONS}")
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            for encoding in model.pattern:
                several = encoding.claims.axes == 2 and (
                    convention == "index" or encoding.claims.real_positions
                )
                if not several and not (encoding.claims.axes == 1 and convention == "index"):
                    raise ConfigError(
                        f"encodings: {spec}@{convention}: an image has two axes; normalized and"
                        " resized positions are real numbers, which not every encoding takes"
                    )
        if len(set(self.entries())) < len(self.encodings):
            raise ConfigError(f"encodings={self.encodings}: name each once")
        with_references(self, self.encodings)

    def entries(self) -> list[tuple[str, str]]:
        """(encoding, convention of its positions), with the training size filled in."""
        side = str(self.sides[0] // self.patch)
        filled = (entry.replace("{side}", side) for entry in self.encodings)
        # the last word, where it is no setting of a layer, as `@window=49`
        split = [re.fullmatch(r"(.*?)(?:@(\w+))?", entry, re.DOTALL) for entry in filled]
        return [(match[1], match[2] or "index") for match in split if match]


@dataclasses.dataclass(frozen=True)
class TasksConfig(TrialsConfig):
    """A comparison on tasks: every encoding, with every kind of positions, task and seed.

    Attributes:
      encodings: as `model.encoding` takes them.
      positions: as `Config.positions`; each encoding is trained with each of them, and those after
        the first are compared with the first.
      reference: the encoding that the others are compared with, all with the first positions, by
        the fraction of tokens right beyond the training length, mean over lengths and tasks. Its
        spec or its short name; empty: the first.
      tasks: names in `tasks.TASKS`.
      length: of the longest question in training; all lengths to it are equally likely.
      lengths: longer lengths to test, ascending; `length` is tested too.
      model: with `causal` a decoder, else an encoder, which writes its whole answer at once.
    """

    workdir: str = ranged("runs/tasks", "a path", bool)
    encodings: tuple[str, ...] = ranged(
        ("nope", "sinusoidal", "t5(bidirectional=True)", "rope", "alibi"),
        "at least one encoding, each once",
        different,
    )
    positions: tuple[str, ...] = ranged(
        ("contiguous", "randomized(maximum=128)"),
        "at least one scheme of positions, each once",
        different,
    )
    reference: str = ""
    tasks: tuple[str, ...] = ranged(
        (
            "even_pairs",
            "stack_manipulation",
            "reverse_string",
            "duplicate_string",
            "missing_duplicate",
            "bucket_sort",
            "recall",
            "passkey",
        ),
        "at least one task, each once",
        different,
    )
    length: int = int_field(12, 1)
    lengths: tuple[int, ...] = ranged(
        (18, 24, 36),
        "ascending positive integers",
        lambda v: len(v) > 0 and ascending(v, 1),
    )
    log_every: int = int_field(250, 1)

    def check(self) -> None:
        """Checks every model and task as well."""
        super().check()
        for name in self.tasks:
            if name not in tasks.TASKS:
                near = nearest(name, tasks.TASKS)
                raise ConfigError(f"tasks: {name!r} is unknown; did you mean {near!r}?")
        if self.lengths[0] <= self.length:
            raise ConfigError(f"lengths={self.lengths}: pass longer ones than length={self.length}")
        if self.mesh.seq != 1:
            raise ConfigError(f"mesh.seq={self.mesh.seq}: pass 1, rows of tasks are not shared")
        for task in (tasks.TASKS[name] for name in self.tasks):
            if not task.defined(self.length):
                limits = f"{task.shortest} to {task.longest or 'any'} symbols"
                raise ConfigError(f"length={self.length}: questions of {task.short} have {limits}")
            if not any(map(task.defined, self.lengths)):
                limit = f"{task.short} has no question of more than {task.longest} symbols"
                raise ConfigError(f"lengths={self.lengths}: {limit}; shorten length and lengths")
        for spec, positions in self.entries():
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            scheme = position_schemes.choose(positions, model.pattern)
            limit = position_schemes.position_limit(model.pattern)
            for task in (tasks.TASKS[name] for name in self.tasks):
                width = task.read(self.length, model.causal)
                if not scheme.fits(width, limit):
                    raise ConfigError(
                        f"length={self.length}: a row of {task.short} has {width} tokens, more than"
                        f" {spec!r} or positions={positions!r} defines; shorten it, or raise those"
                    )

        with_references(self, self.encodings)

    def entries(self) -> list[tuple[str, str]]:
        """(encoding, positions) pairs, without duplicates: positions do not matter to NoPE."""
        entries = {}
        for spec in self.encodings:
            pattern = dataclasses.replace(self.model, encoding=spec).pattern
            for positions in self.positions:
                scheme = position_schemes.choose(positions, pattern)
                entries.setdefault((spec, scheme), (spec, positions))
        return list(entries.values())


@dataclasses.dataclass(frozen=True)
class ExtendConfig(Sweep):
    """A trained RoPE model at longer contexts: every method, without and with a short fine-tune.

    Attributes:
      workdir: where results go; made absolute at the start.
      runs: workdirs of `experiments.train`, which differ only in their seed.
      encodings: what replaces the run's `rope`; a field of RoPE left at its default is the run's.
        `{factor}` stands for the factor, `{length}` for the trained length, `{window}` for half of
        it, `{group}` for the least group with which Self-Extend then reaches the target, `{chunk}`
        for three quarters and `{local}` for a sixteenth of the trained length, `{ones}` for one 1.0
        per frequency and `{searched}` for the factors of LongRoPE's search
        (`experiments.running.longrope_search`). `nope` drops RoPE (DroPE, arXiv 2512.12167): its
        fine-tune is at the trained length, with rows for as many tokens.
      reference: the method that the others are compared with, on the loss at the target under a
        sliding window. Its spec or its short name; empty: the first.
      factor: the target length over the length trained on.
      steps: of the fine-tune at the target length (`nope`: at the trained one); 0: none.
      batch: rows per step of the fine-tune, and in the search.
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
    encodings: tuple[str, ...] = ranged(
        (
            "rope",
            "rope(base=5e5)",
            "rope(scaling=linear(factor={factor}))",
            "rope(scaling=ntk(factor={factor}))",
            "rope(scaling=dynamic_ntk(factor=1.0,original_length={length}))",
            "rope(scaling=yarn(factor={factor},original_length={length}))",
            "rope(scaling=llama3(factor={factor},original_length={length}))",
            "rope(scaling=longrope(short_factor={ones},long_factor={searched},"
            "original_length={length},factor={factor}))",
            "rope(scaling=clipped_rope(original_length={length}))",
            "rope+log_length",
            "rerope(window={window})",
            "self_extend(window={window},group={group})",
            "dual_chunk(chunk_size={chunk},local_size={local})",
            "nope",
        ),
        "at least one encoding",
        lambda v: len(v) > 0,
    )
    reference: str = ""
    factor: float = real_field(4.0, 1, 1024)
    steps: int = int_field(100, 0)
    batch: int = int_field(8, 1)
    log_every: int = int_field(25, 1)
    save_every: int = int_field(0, 0)
    depths: int = int_field(5, 2)
    trials: int = int_field(10, 1)
    search: int = int_field(64, 1)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)

    def check(self) -> None:
        """Raises ConfigError naming the field, its value and the range it must lie in."""
        check_fields(self, "")
        if self.steps:
            self.optimizer.check(self.steps)
        self.eval.check()
        for field in ("encodings", "runs"):
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise ConfigError(f"{field}={getattr(self, field)}: name each once")
        with_references(self, self.encodings)

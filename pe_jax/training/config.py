"""The configuration of a run: typed fields with their ranges, checked before anything compiles.

A file in `configs/` returns one of these from `get_config()`; absl flags override fields, as
`--config.steps=2000 --config.model.encoding=alibi`.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable
from typing import Any

from pe_jax.encodings.base import is_int
from pe_jax.models.config import ModelConfig
from pe_jax.training import placement, tasks

PROTOCOLS = ("non-overlapping", "sliding")  # of an evaluation; see `evaluate`


def _field(default: Any, need: str, ok: Callable[[Any], bool]) -> Any:
    return dataclasses.field(default=default, metadata={"need": need, "ok": ok})


def _int(default: int, low: int) -> Any:
    return _field(default, f"an integer of at least {low}", lambda v: is_int(v, low))


def _real(default: float, low: float, high: float, open_low: bool = False) -> Any:
    brackets = f"{'(' if open_low else '['}{low:g}, {high:g}]"
    above = (lambda v: v > low) if open_low else (lambda v: v >= low)
    return _field(
        default,
        f"a number in {brackets}",
        lambda v: math.isfinite(v) and above(v) and v <= high,
    )


def _share() -> Any:
    return _field("one", "one or all", lambda v: v in ("one", "all"))


@dataclasses.dataclass(unsafe_hash=True)
class OptimizerConfig:
    """AdamW, linear warm-up, cosine decay.

    Attributes:
      learning_rate: at the peak.
      warmup: steps from 0 to the peak.
      final: last learning rate as a part of the peak.
      weight_decay: on matrices; vectors and encodings are not decayed.
      b1: decay of the first moment.
      b2: decay of the second.
      clip: largest global norm of the gradient.
      skips: updates in a row that are skipped because they are not finite; one more ends the run.
    """

    learning_rate: float = _real(3e-3, 0, 10, open_low=True)
    warmup: int = _int(50, 0)
    final: float = _real(0.1, 0, 1)
    weight_decay: float = _real(0.1, 0, 10)
    b1: float = _real(0.9, 0, 0.9999)
    b2: float = _real(0.95, 0, 0.99999)
    clip: float = _real(1.0, 0, 1e9, open_low=True)
    skips: int = _int(3, 0)

    def check(self, steps: int) -> None:
        """Raises ValueError where the warm-up is longer than so many steps."""
        if self.warmup > steps:
            raise ValueError(f"optimizer.warmup={self.warmup}: must be in [0, steps={steps}]")


@dataclasses.dataclass(unsafe_hash=True)
class MeshConfig:
    """Devices along each axis; their product is the device count, and one -1 fills what is left.

    Attributes:
      data: replicas of the model, each with its part of the batch.
      fsdp: parameters and batch are split over these.
      seq: the tokens of a row are split over these; attention goes round them (`engines.ring`).
      model: heads and hidden units are split over these.
    """

    data: int = _field(-1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    fsdp: int = _field(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    seq: int = _field(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))
    model: int = _field(1, "a positive integer, or -1 to fill", lambda v: v == -1 or is_int(v, 1))


@dataclasses.dataclass(unsafe_hash=True)
class EvalConfig:
    """Losses by length, on the same target tokens for every scheme and length.

    Attributes:
      lengths: context lengths to test, ascending; the longest is the number of targets a window.
      windows: windows of text, each inside one document.
      stride: targets scored per step of the sliding window; divides the shortest length.
      split: "validation" or "test".
      batch_tokens: tokens in a forward pass.
    """

    lengths: tuple[int, ...] = _field(
        (64, 128, 256, 512),
        "ascending positive integers, each a divisor of the last",
        lambda v: (
            len(v) > 0
            and all(type(n) is int for n in v)
            and all(a < b for a, b in zip(v, v[1:], strict=False))
            and v[0] > 0
            and all(v[-1] % n == 0 for n in v)
        ),
    )
    windows: int = _int(16, 1)
    stride: int = _int(32, 1)
    split: str = _field("validation", "validation or test", lambda v: v in ("validation", "test"))
    batch_tokens: int = _int(16384, 1)

    def check(self) -> None:
        """Raises ValueError where the stride does not fit the lengths."""
        shortest = self.lengths[0]
        if shortest % self.stride:
            divisors = [n for n in range(1, shortest + 1) if shortest % n == 0]
            raise ValueError(f"eval.stride={self.stride}: must be one of {divisors}")


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    """One training run.

    Attributes:
      workdir: where metrics, checkpoints and results go; made absolute at the start.
      seed: of the weights, the order of the data, and dropout.
      data: `embedded`, `text:DIR_OR_GLOB`, `tfds:NAME[:DATA_DIR]`, `synthetic:TASK`;
        `passkeys:SOURCE` for training rows that ask for passkeys.
      tokenizer: `bytes` or `bpe:PATH`.
      length: tokens in a row.
      positions: where they stand: `contiguous`, `randomized(maximum=2048)`, `shape(maximum=500)`,
        `cape(local_shift=0.5)` or `bilevel(separators=(46, 10))`; see `placement`.
      batch: rows in a step, over all devices.
      steps: optimizer steps.
      log_every: steps between lines of metrics.
      save_every: steps between checkpoints; 0 saves at the end and when stopped.
    """

    workdir: str = _field("runs/train", "a path", bool)
    seed: int = _field(0, "an integer in [0, 2^31)", lambda v: is_int(v, 0) and v < 2**31)
    data: str = _field("embedded", "a source", bool)
    tokenizer: str = _field("bytes", "a tokenizer", bool)
    length: int = _int(64, 1)
    positions: str = _field("contiguous", "a scheme of positions", bool)
    batch: int = _int(32, 1)
    steps: int = _int(600, 1)
    log_every: int = _int(50, 1)
    save_every: int = _int(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)

    def check(self) -> None:
        """Raises ValueError naming the field, its value and the range it must lie in."""
        _check(self, "")
        for model in self.models():
            model.check()
            if placement.choose(self.positions, model.pattern).reach(self.length) is None:
                raise ValueError(
                    f"positions={self.positions!r}: maximum must be at least length={self.length}"
                )
        if not self.model.causal:
            raise ValueError("model.causal=False: next-token training needs a causal model")
        self.optimizer.check(self.steps)
        self.eval.check()

    def models(self) -> list[ModelConfig]:
        """Every model that is trained."""
        return [self.model]


@dataclasses.dataclass(unsafe_hash=True)
class CompareConfig(Config):
    """A comparison: every encoding with every seed, and one report.

    Attributes:
      encodings: as `model.encoding` takes them; `{length}` stands for the training length.
      seeds: how many; run k has seed `seed` + k.
      baseline: the encoding that speed and memory are measured against.
      reference: the encoding that losses are compared with.
      protocol: of the primary metric, at the longest length.
      rates: peak learning rates to check for every encoding, in short runs, on validation text at
        the training length; it is trained with its best. None: `optimizer.learning_rate` for all.
      rate_steps: steps of such a run.
      devices: what a run takes: "one" device, runs side by side, or "all" of them, by the mesh.
      workers: encodings trained side by side; 0 is one a CPU core, or one a GPU or TPU core.
      timing_repeats: interleaved rounds of the speed measurement.
      timing_lengths: where prompts and decoding are timed too; batches have as many tokens.
    """

    workdir: str = _field("runs/compare", "a path", bool)
    encodings: tuple[str, ...] = _field(
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
    seeds: int = _int(3, 1)
    baseline: str = _field("nope", "one of the encodings", bool)
    reference: str = _field("rope", "one of the encodings", bool)
    protocol: str = _field(
        PROTOCOLS[0],
        " or ".join(PROTOCOLS),
        lambda v: v in PROTOCOLS,
    )
    rates: tuple[float, ...] = _field(
        (),
        "different numbers in (0, 10], or none",
        lambda v: len({*map(float, v)}) == len(v) and all(0 < x <= 10 for x in v),
    )
    rate_steps: int = _int(200, 1)
    devices: str = _share()
    workers: int = _int(0, 0)
    timing_repeats: int = _int(7, 5)
    timing_lengths: tuple[int, ...] = _field(
        (),
        "ascending integers of at least 32, or none",
        lambda v: all(is_int(n, 32) for n in v) and list(v) == sorted({*v}),
    )

    def check(self) -> None:
        """Checks every model as `Config.check` does, and that no encoding is named twice."""
        super().check()
        specs = self.specs()
        if len(set(specs)) < len(specs):
            raise ValueError(f"encodings={self.encodings}: name each once")
        if self.rates and self.optimizer.warmup > self.rate_steps:
            least = f"optimizer.warmup={self.optimizer.warmup}"
            raise ValueError(f"rate_steps={self.rate_steps}: must be at least {least}")
        if self.timing_lengths and self.mesh.seq != 1:
            fix = "decoding takes no mesh.seq; leave it ()"
            raise ValueError(f"timing_lengths={self.timing_lengths}: {fix}")

    def models(self) -> list[ModelConfig]:
        """One with each encoding."""
        return [dataclasses.replace(self.model, encoding=spec) for spec in self.specs()]

    def specs(self) -> list[str]:
        """The encodings with the training length filled in."""
        return [spec.replace("{length}", str(self.length)) for spec in self.encodings]


CONVENTIONS = ("index", "normalized", "resized")


@dataclasses.dataclass(unsafe_hash=True)
class ImagesConfig:
    """A comparison on images: every encoding with every seed, at the training size and larger.

    Attributes:
      workdir: where results go; made absolute at the start.
      encodings: as `model.encoding` takes them; `{side}` stands for the patches along a side of a
        training image. `@normalized` or `@resized` behind one says what positions it gets instead
        of the patches' indices (`positions.grid`, `positions.resized`); an encoding of one axis
        gets the patches row by row.
      seed: of the first run, and of the images to test on.
      seeds: how many; run k has seed `seed` + k.
      sides: of the images in pixels, ascending: trained at the first, tested at all.
      patch: side of a patch in pixels.
      batch: images in a step.
      steps: optimizer steps.
      test: images of each size to test on.
      log_every: steps between lines of the log.
      devices: what a run takes: "one" device, runs side by side, or "all" of them, by the mesh.
      workers: encodings trained side by side; 0 is one a CPU core, or one a GPU or TPU core.
    """

    workdir: str = _field("runs/images", "a path", bool)
    encodings: tuple[str, ...] = _field(
        (
            "nope",
            "sinusoidal_2d",
            "learned_2d(height={side},width={side},stddev=0.5)",
            "learned_2d(height={side},width={side},stddev=0.5)@resized",
            "rope_2d(base=100.0)",
            "rope_2d(base=100.0,normalized=True)@normalized",
            "swin(height={side},width={side})",
            "cpb(height={side},width={side},hidden=64)",
            "alibi_2d",
        ),
        "at least one encoding",
        lambda v: len(v) > 0,
    )
    seed: int = _field(0, "an integer in [0, 2^31)", lambda v: is_int(v, 0) and v < 2**31)
    seeds: int = _int(3, 1)
    sides: tuple[int, ...] = _field(
        (32, 48, 64),
        "ascending integers of at least 24",
        lambda v: (
            len(v) > 0
            and all(type(n) is int and n >= 24 for n in v)
            and all(a < b for a, b in zip(v, v[1:], strict=False))
        ),
    )
    patch: int = _int(4, 1)
    batch: int = _int(32, 1)
    steps: int = _int(1_500, 1)
    test: int = _int(1024, 1)
    log_every: int = _int(100, 1)
    devices: str = _share()
    workers: int = _int(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=lambda: ModelConfig(causal=False))
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    def check(self) -> None:
        """Raises ValueError naming the field, its value and the range it must lie in."""
        _check(self, "")
        if self.model.causal:
            raise ValueError("model.causal=True: pass False, every patch sees all others")
        if any(side % self.patch for side in self.sides):
            raise ValueError(f"sides={self.sides}: must be multiples of patch={self.patch}")
        self.optimizer.check(self.steps)
        for spec, convention in self.entries():
            if convention not in CONVENTIONS:
                raise ValueError(f"encodings: {spec}@{convention}: choose one of {CONVENTIONS}")
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            for encoding in model.pattern:
                several = encoding.axes == 2 and (convention == "index" or encoding.real_positions)
                if not several and not (encoding.axes == 1 and convention == "index"):
                    raise ValueError(
                        f"encodings: {spec}@{convention}: an image has two axes; normalized and"
                        " resized positions are real numbers, which not every encoding takes"
                    )
        if len(set(self.entries())) < len(self.encodings):
            raise ValueError(f"encodings={self.encodings}: name each once")

    def entries(self) -> list[tuple[str, str]]:
        """(encoding, convention of its positions), with the training size filled in."""
        side = str(self.sides[0] // self.patch)
        split = [entry.replace("{side}", side).partition("@") for entry in self.encodings]
        return [(spec, convention or "index") for spec, _, convention in split]


@dataclasses.dataclass(unsafe_hash=True)
class TasksConfig:
    """A comparison on tasks: every encoding, with every kind of positions, task and seed.

    Attributes:
      workdir: where results go; made absolute at the start.
      encodings: as `model.encoding` takes them.
      positions: as `Config.positions`; each encoding is trained with each of them.
      tasks: names in `tasks.TASKS`.
      seed: of the first run, and of the questions to test on.
      seeds: how many; run k has seed `seed` + k.
      length: of the longest question in training; all lengths to it are equally likely.
      lengths: longer ones to test, ascending; `length` is tested too.
      batch: questions in a step.
      steps: optimizer steps.
      test: questions of each length to test on.
      log_every: steps between lines of the log.
      devices: what a run takes: "one" device, runs side by side, or "all" of them, by the mesh.
      workers: encodings trained side by side; 0 is one a CPU core, or one a GPU or TPU core.
      model: with `causal` a decoder, else an encoder, which writes its whole answer at once.
    """

    workdir: str = _field("runs/tasks", "a path", bool)
    encodings: tuple[str, ...] = _field(
        ("nope", "sinusoidal", "t5(bidirectional=True)", "rope", "alibi"),
        "at least one encoding, each once",
        lambda v: 0 < len(v) == len(set(v)),
    )
    positions: tuple[str, ...] = _field(
        ("contiguous", "randomized(maximum=128)"),
        "at least one scheme of positions, each once",
        lambda v: 0 < len(v) == len(set(v)),
    )
    tasks: tuple[str, ...] = _field(
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
        lambda v: 0 < len(v) == len(set(v)),
    )
    seed: int = _field(0, "an integer in [0, 2^31)", lambda v: is_int(v, 0) and v < 2**31)
    seeds: int = _int(3, 1)
    length: int = _int(12, 1)
    lengths: tuple[int, ...] = _field(
        (18, 24, 36),
        "ascending positive integers",
        lambda v: (
            len(v) > 0
            and all(is_int(n, 1) for n in v)
            and all(a < b for a, b in zip(v, v[1:], strict=False))
        ),
    )
    batch: int = _int(32, 1)
    steps: int = _int(1_500, 1)
    test: int = _int(256, 1)
    log_every: int = _int(250, 1)
    devices: str = _share()
    workers: int = _int(0, 0)
    model: ModelConfig = dataclasses.field(default_factory=lambda: ModelConfig(causal=False))
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)

    def check(self) -> None:
        """Raises ValueError naming the field, its value and the range it must lie in."""
        _check(self, "")
        for name in self.tasks:
            if name not in tasks.TASKS:
                near = difflib.get_close_matches(name, tasks.TASKS, 1, 0)[0]
                raise ValueError(f"tasks: {name!r} is unknown; did you mean {near!r}?")
        if self.lengths[0] <= self.length:
            raise ValueError(f"lengths={self.lengths}: pass longer ones than length={self.length}")
        if self.mesh.seq != 1:
            raise ValueError(f"mesh.seq={self.mesh.seq}: pass 1, rows of tasks are not shared")
        self.optimizer.check(self.steps)
        for task in (tasks.TASKS[name] for name in self.tasks):
            if not task.defined(self.length):
                limits = f"{task.shortest} to {task.longest or 'any'} symbols"
                raise ValueError(f"length={self.length}: questions of {task.short} have {limits}")
        for spec, positions in self.entries():
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            places, limit = (
                placement.choose(positions, model.pattern),
                placement.limit(model.pattern),
            )
            for task in (tasks.TASKS[name] for name in self.tasks):
                width = task.read(self.length, model.causal)
                if not places.fits(width, limit):
                    raise ValueError(
                        f"length={self.length}: a row of {task.short} has {width} tokens, more than"
                        f" {spec!r} or positions={positions!r} defines; shorten it, or raise those"
                    )

    def entries(self) -> list[tuple[str, str]]:
        """(encoding, positions), without those that do not differ, as one that sees no position."""
        found = {}
        for spec in self.encodings:
            pattern = dataclasses.replace(self.model, encoding=spec).pattern
            for positions in self.positions:
                found.setdefault((spec, placement.choose(positions, pattern)), (spec, positions))
        return list(found.values())


@dataclasses.dataclass(unsafe_hash=True)
class ExtendConfig:
    """A trained RoPE model at longer contexts: every method, without and with a short fine-tune.

    Attributes:
      workdir: where results go; made absolute at the start.
      runs: workdirs of `experiments.train`; several differ in their seed alone.
      encodings: what takes the place of the run's `rope`; a field of RoPE left at its default is
        the run's. `{factor}` stands for the factor, `{length}` for the length trained on,
        `{window}` for half of it, `{group}` for the least group with which Self-Extend then reaches
        the target, `{ones}` for as many ones as there are frequencies and `{searched}` for their
        factors by LongRoPE's search (`experiments.factors`).
      factor: the target length over the length trained on.
      steps: of the fine-tune at the target length; 0: none.
      batch: rows in a step of the fine-tune, and to search with.
      log_every: steps between lines of metrics.
      save_every: steps between checkpoints; 0 saves at the end and when stopped.
      depths: of passkeys, evenly from the beginning of the text to its end.
      trials: passkeys for each depth and length.
      search: lists of factors that LongRoPE's search tries.
      devices: what a run takes: "one" device, runs side by side, or "all" of them, by the mesh.
      workers: encodings side by side; 0 is one a CPU core, or one a GPU or TPU core.
      optimizer: of the fine-tune.
      mesh: the devices.
      eval: what is evaluated; the lengths include the one trained on and the target.
    """

    workdir: str = _field("runs/extend", "a path", bool)
    runs: tuple[str, ...] = _field(
        ("runs/train",), "at least one path", lambda v: len(v) > 0 and all(v)
    )
    encodings: tuple[str, ...] = _field(
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
            "rerope(window={window})",
            "self_extend(window={window},group={group})",
        ),
        "at least one encoding",
        lambda v: len(v) > 0,
    )
    factor: float = _real(4.0, 1, 1024)
    steps: int = _int(100, 0)
    batch: int = _int(8, 1)
    log_every: int = _int(25, 1)
    save_every: int = _int(0, 0)
    depths: int = _int(5, 2)
    trials: int = _int(10, 1)
    search: int = _int(64, 1)
    devices: str = _share()
    workers: int = _int(0, 0)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    eval: EvalConfig = dataclasses.field(default_factory=EvalConfig)

    def check(self) -> None:
        """Raises ValueError naming the field, its value and the range it must lie in."""
        _check(self, "")
        if self.steps:
            self.optimizer.check(self.steps)
        self.eval.check()
        for field in ("encodings", "runs"):
            if len(set(getattr(self, field))) < len(getattr(self, field)):
                raise ValueError(f"{field}={getattr(self, field)}: name each once")


def _check(config: Any, path: str) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if "ok" in field.metadata:
            try:
                ok = field.metadata["ok"](value)
            except (TypeError, ValueError, OverflowError):
                ok = False
            if not ok:
                need = field.metadata["need"]
                raise ValueError(f"{path}{field.name}={value!r}: pass {need}")
        elif dataclasses.is_dataclass(value) and not isinstance(value, ModelConfig):
            _check(value, f"{path}{field.name}.")


def from_json(kind: Any, saved: dict) -> Any:
    """A config from what `dataclasses.asdict` gave to JSON; keys it does not have are ignored."""
    values = {}
    for field in dataclasses.fields(kind):
        if field.name in saved:
            value = saved[field.name]
            nested = dataclasses.is_dataclass(field.default_factory) and isinstance(value, dict)
            value = from_json(field.default_factory, value) if nested else value
            values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def find(config: Any, path: str) -> dataclasses.Field | None:
    """The field at a dotted path such as `optimizer.warmup`; None if there is none."""
    *parents, name = path.split(".")
    for parent in parents:
        config = getattr(config, parent, None)
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    return next((f for f in fields if f.name == name), None)


def paths(config: Any, prefix: str = "") -> list[str]:
    """The dotted paths of all fields that hold a value."""
    found = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        here = f"{prefix}{field.name}"
        found += paths(value, here + ".") if dataclasses.is_dataclass(value) else [here]
    return found

"""The config of `experiments.tasks`, checked before anything compiles."""

import dataclasses
from typing import Self

from experiments.running.configs.sweep import TrialsConfig
from pe_jax import position_schemes
from pe_jax.config_fields import ascending, choice_field, different, int_field, ranged
from pe_jax.training import tasks
from pe_jax.validation import ConfigError, nearest, refuse

MEASURES = ("tokens", "answers")  # in the order of a score's two numbers


@dataclasses.dataclass(frozen=True)
class TasksConfig(TrialsConfig):
    """A comparison on tasks: every encoding, with every kind of positions, task and seed.

    Attributes:
      encodings: as `model.encoding` takes them.
      positions: as `Config.positions`; each encoding is trained with each of them, and those after
        the first are compared with the first.
      reference: the encoding that the others are compared with, all with the first positions, by
        the primary metric, in the mean over tasks and on each task. Its spec or its short name;
        empty: the first.
      measure: of the primary metric: the fraction of "tokens" that are right, or of "answers" that
        are right as a whole.
      primary: lengths of the primary metric, the mean over them; empty: all of `lengths`.
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
    measure: str = choice_field("tokens", MEASURES)
    primary: tuple[int, ...] = ranged(
        (), "ascending positive integers, or none", lambda v: ascending(v, 1)
    )
    tasks: tuple[str, ...] = ranged(
        (
            *("even_pairs", "stack_manipulation", "reverse_string", "duplicate_string"),
            *("missing_duplicate", "bucket_sort", "recall", "passkey"),
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

    def check(self) -> Self:
        """Checks every model and task as well."""
        filled = super().check()
        for name in self.tasks:
            if name not in tasks.TASKS:
                near = nearest(name, tasks.TASKS)
                raise ConfigError(f"tasks: {name!r} is unknown; did you mean {near!r}?")
        if self.lengths[0] <= self.length:
            raise ConfigError(f"lengths={self.lengths}: pass longer ones than length={self.length}")
        if not {*self.primary} <= {self.length, *self.lengths}:
            raise ConfigError(f"primary={self.primary}: pass some of length and lengths")
        if self.mesh.seq != 1:
            raise ConfigError(f"mesh.seq={self.mesh.seq}: pass 1, rows of tasks are not shared")
        for task in (tasks.TASKS[name] for name in self.tasks):
            if not task.defined(self.length):
                limits = f"{task.shortest} to {task.longest or 'any'} symbols"
                raise ConfigError(f"length={self.length}: questions of {task.short} have {limits}")
            if not any(map(task.defined, self.lengths)):
                limit = f"{task.short} has no question of more than {task.longest} symbols"
                raise ConfigError(f"lengths={self.lengths}: {limit}; shorten length and lengths")
        for spec, positions in filled.entries():
            model = dataclasses.replace(self.model, encoding=spec)
            model.check()
            scheme = position_schemes.choose(positions, model.pattern)
            limit = position_schemes.position_limit(model.pattern)
            for task in (tasks.TASKS[name] for name in self.tasks):
                width = task.read(self.length, model.causal)
                scheme.check_trained_on(width, positions)
                if not scheme.fits(width, limit):
                    what = f"a row of {task.short} has {width} tokens, more than {spec!r} or"
                    fix = f"positions={positions!r} defines; shorten it, or raise those"
                    refuse("length", self.length, f"{what} {fix}")
        return filled.resolved()

    def entries(self) -> list[tuple[str, str]]:
        """(encoding, positions) pairs, without duplicates: positions do not matter to NoPE."""
        entries = {}
        for spec in self.encodings:
            pattern = dataclasses.replace(self.model, encoding=spec).pattern
            for positions in self.positions:
                scheme = position_schemes.choose(positions, pattern)
                entries.setdefault((spec, scheme), (spec, positions))
        return list(entries.values())

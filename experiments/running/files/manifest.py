"""The manifest of a comparison: its config, and what the config does not say.

A field that follows from the config is not written: `read` derives titles, names, folders,
questions and rates. A manifest that has such a field itself, as older ones do, keeps it.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.sweep import REFERENCES
from experiments.running.files import own_code
from experiments.running.files.provenance import command, environment, versions
from experiments.running.files.run_names import folder, short_names
from experiments.running.schedule.rate_search import Pair
from pe_jax.training.config import from_json
from pe_jax.validation import ConfigError

NAME = "manifest.json"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a comparison was; one that is read has all fields to `learning_rate`.

    Attributes:
      reference: the name of the scheme that losses are compared with.
      lengths: of the evaluation, ascending, and `train_length`.
      baseline: the name of the scheme that speed and memory are compared with.
      encodings: name, spec, folder and checks, (rate, multiple) pairs that were tried, by scheme.
      corpus: its name, digest and description, the digest of its tokens, and a warning.
      learning_rate: if none were tried.
      encoding_rate: its multiple for parameters of encodings.
      primary: protocol and length of the primary metric.
      secondary: of the secondary one, if it was declared.
      rate_steps: of a run that tries one.
      rate_rounds: that try neighbours of the best.
      note: on how rates were chosen.
      looks: at the kept files so far.
      notes: on parts that were joined.
      before: commit and command of each part that was joined.
      code: SHA-256 of the files of the user's that encodings use, by name.
    """

    reference: str
    train_length: int
    lengths: Sequence[int]
    seeds: Sequence[int]
    name: str = ""
    baseline: str = ""
    encodings: Sequence[dict[str, Any]] = ()
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    corpus: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    commit: str = ""
    device: str = ""
    command: str = ""
    steps: int = 0
    batch: int = 0
    learning_rate: float = 0.0
    encoding_rate: float = 1.0
    primary: dict[str, Any] | None = None
    secondary: dict[str, Any] | None = None
    rates: Sequence[float] = ()
    rate_steps: int = 0
    rate_rounds: int = 0
    smallest_effect: float = CompareConfig.smallest_effect
    note: str = ""
    dims: dict[str, int] = dataclasses.field(default_factory=dict)
    looks: Sequence[dict[str, Any]] = ()
    notes: Sequence[str] = ()
    before: Sequence[dict[str, str]] = ()
    code: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def binding(self) -> dict[str, Any]:
        """Configuration and digests, with defaults for fields that it lacks."""
        config = dataclasses.asdict(from_json(CompareConfig, self.config))
        digests = {"corpus": self.corpus["digest"], "tokens": self.corpus.get("tokens")}
        return {**config, **digests, "code": self.code}


FIELDS = tuple(field.name for field in dataclasses.fields(Manifest))
REQUIRED = FIELDS[: FIELDS.index("learning_rate") + 1]


def saved(
    config: CompareConfig,
    corpus: dict[str, Any],
    grids: Mapping[str, Sequence[Pair]],
    looks: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """What a comparison writes to `NAME`, as JSON; `grids` are the rates that each scheme tries."""
    return {
        "config": json.loads(json.dumps(dataclasses.asdict(config))),
        "corpus": corpus,
        "grids": grids,
        "looks": [*looks],
        "code": own_code.digests(config.encodings),
        "versions": versions(PACKAGES),
        **environment(),
        "command": command("experiments.compare"),
    }


def read(workdir: Path) -> Manifest:
    """The manifest of a comparison's folder.

    Raises:
      ConfigError: there is none; it cannot be read, or lacks a field.
    """
    path = workdir / NAME
    if not path.is_file():
        raise ConfigError(f"workdir={str(workdir)!r} holds no {NAME} of a comparison")
    try:
        return parsed(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        reason = error if isinstance(error, ConfigError) else f"not valid JSON ({error})"
        raise ConfigError(f"{path}: {reason}") from None


def parsed(fields: dict[str, Any]) -> Manifest:
    """The manifest of a file's fields; ConfigError if it lacks one."""
    fields = {**(_derived(fields) if "grids" in fields else {}), **fields}
    if missing := [name for name in REQUIRED if name not in fields]:
        raise ConfigError(f"no field {missing[0]!r}")
    return Manifest(**{name: value for name, value in fields.items() if name in FIELDS})


def title(encodings: int, corpus: str) -> str:
    """The title of a comparison; the embedded corpus is described, for its name says nothing."""
    text = {"embedded": "the source code of five Python packages"}.get(corpus, corpus)
    return f"{encodings} positional encodings on {text}"


def _derived(fields: dict[str, Any]) -> dict[str, Any]:
    """What follows from the config of a manifest, and from the rates that it tries."""
    config = from_json(CompareConfig, fields["config"])
    names = short_names(config.encodings)
    grids = {spec: pairs if len(pairs) > 1 else [] for spec, pairs in fields["grids"].items()}
    note = "A demonstration: one stated learning rate for all schemes."
    if config.rates:
        note = f"The learning rate of each scheme is the best of {len(config.rates)}."
    if config.encoding_rates:
        count = len(config.encoding_rates)
        note += f" Parameters of encodings learn at the best of {count} multiples of it."
    copied = ("steps", "batch", "rates", "rate_steps", "rate_rounds", "smallest_effect")
    return {
        "name": title(len(names), fields["corpus"]["name"]),
        "train_length": config.length,
        "lengths": sorted({config.length, *config.eval.lengths}),
        **{field: names[getattr(config, field)] for field in REFERENCES},
        "primary": {"protocol": config.protocol, "length": config.eval.lengths[-1]},
        "secondary": {"protocol": config.protocol, "length": config.length},
        "encodings": [
            {"name": name, "spec": spec, "folder": folder(spec), "checks": grids[spec]}
            for spec, name in names.items()
        ],
        "seeds": [*config.every_seed],
        "dims": dataclasses.asdict(config.model.dims),
        "learning_rate": config.optimizer.learning_rate,
        "encoding_rate": config.optimizer.encoding_rate,
        **{field: getattr(config, field) for field in copied},
        "note": note,
    }

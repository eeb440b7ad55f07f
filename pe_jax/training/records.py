"""Corpora prepared by TensorFlow Datasets as array_record files, read without TensorFlow."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pe_jax.training import corpus, manifest
from pe_jax.training.paths import local
from pe_jax.training.splits import named_split
from pe_jax.validation import ConfigError


@dataclasses.dataclass(frozen=True)
class Records:
    """One document per record of a TFDS data source: records `index`, field `feature`."""

    source: Sequence[Any]
    feature: str
    index: range
    shards: tuple[tuple[Path, int], ...]  # file, records in it

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, index: int, /) -> bytes:
        record = self.index[index]
        try:
            text, reason = self.source[record][self.feature], "it holds no text"
        except Exception as error:  # array_record, protobuf and TFDS each raise their own
            text, reason = None, str(error).splitlines()[0]
        if text is None:  # also what a shard truncated at a block boundary gives
            path, number = self._locate(record)
            raise ConfigError(
                f"data: {path}: record {number} is corrupt or truncated ({reason}); "
                "restore the file or prepare the data set again"
            )
        return text

    def _locate(self, record: int) -> tuple[Path, int]:
        for path, count in self.shards:
            if record < count:
                return path, record
            record -= count
        raise IndexError(record)


def prepared(spec: str) -> corpus.Corpus:
    """A TFDS data set with a text feature, prepared as array_record.

    Splits are the data set's train, validation and test, or the first whose name says so, such as
    `dev`. Missing splits are cut from the end of train (5 % each): TFDS shuffled the records when
    it prepared them. Nothing is ever downloaded.

    Args:
      spec: NAME or NAME/CONFIG, then optionally `:DATA_DIR` (default: the data folder of TFDS).

    Raises:
      ConfigError: The data set is not prepared, has no text or no train split, or a shard is
        missing or truncated.
    """
    name, _, folder = spec.partition(":")
    builder = _builder(name, folder)
    feature = _feature(name, builder.info.features)
    stored = builder.info.splits
    if "train" not in stored:
        raise ConfigError(
            f"data='tfds:{spec}': no train split, only {', '.join(stored)}; use another data set"
        )
    splits, sizes, hashes = {}, {}, []
    for split in corpus.SPLITS:
        candidates = [other for other in sorted(stored) if named_split(other) == split]
        if not candidates:
            continue
        chosen = split if split in stored else candidates[0]
        info = stored[chosen]
        shards = tuple(zip(map(Path, info.filepaths), info.shard_lengths, strict=True))
        hashes += [(path.name, _sha256(path)) for path, _ in shards]
        splits[split] = _open(builder, chosen, feature, shards)
        sizes[split] = info.num_bytes
    _fill(splits, sizes)
    return corpus.Corpus(f"tfds:{name}", corpus.digest(hashes), splits, sizes)


def _builder(name: str, folder: str) -> Any:
    from tensorflow_datasets.core import read_only_builder, registered  # 0.5 s, only when used

    if not re.fullmatch(r"\w+(/[\w.-]+)?", name):
        raise ConfigError(f"data='tfds:{name}' is not a name; use tfds:NAME or tfds:NAME/CONFIG")
    folder = folder and str(local("data", folder))
    where = {"data_dir": folder} if folder else {}
    option = f", data_dir={folder!r}" if folder else ""
    hint = f"builder({name!r}, file_format='array_record'{option}).download_and_prepare()"
    hint = f"prepare it where there is a network: tfds.{hint} (pip install 'pe_jax[tfds-build]')"
    try:
        builder = read_only_builder.builder_from_files(name, **where)
    except registered.DatasetNotFoundError:
        raise ConfigError(f"data='tfds:{name}' is not prepared; {hint}") from None
    stored = builder.info.file_format
    if stored is None or stored.value != "array_record":
        raise ConfigError(
            f"data='tfds:{name}' is prepared as {stored and stored.value}, "
            f"which needs TensorFlow to read; {hint}"
        )
    return builder


def _feature(name: str, features: Any) -> str:
    texts = [key for key, value in features.items() if type(value).__name__ == "Text"]
    if "text" not in texts and len(texts) != 1:
        raise ConfigError(
            f"data='tfds:{name}': need a feature 'text' or one Text feature, got "
            f"{', '.join(features)}; use another data set"
        )
    return "text" if "text" in texts else texts[0]


def _open(builder: Any, split: str, feature: str, shards: tuple[tuple[Path, int], ...]) -> Records:
    try:
        source = builder.as_data_source(split=split)
    except Exception as error:
        raise ConfigError(
            f"data: {shards[0][0].parent}: split {split} does not open "
            f"({str(error).splitlines()[0]}); prepare the data set again"
        ) from None
    records = Records(source, feature, range(len(source)), shards)
    end = 0
    for _, count in shards:
        end += count
        if count:
            records[end - 1]  # raises for a truncated shard, before anything is compiled
    return records


def _fill(splits: dict[str, Any], sizes: dict[str, int]) -> None:
    missing = [split for split in corpus.SPLITS if split not in splits]
    train, size, count = splits["train"], sizes["train"], len(splits["train"])
    end = count
    for split in reversed(missing):
        start = end - count // 20
        splits[split] = dataclasses.replace(train, index=range(start, end))
        sizes[split] = size * (end - start) // max(count, 1)
        sizes["train"] -= sizes[split]
        end = start
    splits["train"] = dataclasses.replace(train, index=range(end))


def _sha256(path: Path) -> str:
    try:
        return manifest.file_hash(path)
    except OSError as error:
        raise ConfigError(
            f"data: cannot read {path} ({error.strerror}); restore it or prepare the data set again"
        ) from None

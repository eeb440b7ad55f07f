"""Data: a spec to a corpus, a corpus to an endless iterator of batches or to evaluation windows.

    corpus = load("text:novels")
    batches = train_iterator(corpus, tokenizer.get("bytes"), length=512, batch=64, seed=0)

Documents are distributed over the processes, reshuffled every epoch and packed into rows; the rows
are shuffled within a window, because a long document would otherwise fill whole batches. Batches
are a function of (corpus, tokenizer, length, batch, seed, processes): an iterator's state is a few
indices and resumes only under the same values, which the caller saves with it.
"""

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
import tokenizers
from absl import logging

from pe_jax.training import corpus as corpora
from pe_jax.training import packing, passkeys, records, tasks, token_files
from pe_jax.training.config import EvalConfig
from pe_jax.training.corpus import Corpus
from pe_jax.training.tokenizer import BPE, Tokenizer, check_ids, utf8
from pe_jax.validation import ConfigError, nearest, refuse, require

SOURCES = {
    "embedded": "embedded",
    "text": "text:DIR_OR_GLOB",
    "tfds": "tfds:NAME[:DATA_DIR]",
    "synthetic": "synthetic:TASK",
    "passkeys": "passkeys:SOURCE",
}
# Size of the shuffle window: several long books; a refill takes a fraction of a second.
_WINDOW_ROWS, _WINDOW_BYTES = 8192, 2**21
_LARGE = 2**20  # bytes: the tokens of documents above this are kept in a file
# Threads and prefetch were slower on 2 cores: the work is Python, and a batch takes far less time
# than a step.
IN_LINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def load(spec: str, workdir: str = "") -> Corpus | tasks.Task:
    """Returns the corpus that a spec names.

    Args:
      spec: `embedded`, `text:DIR_OR_GLOB`, `tfds:NAME[:DATA_DIR]` or `synthetic:TASK`;
        `passkeys:SOURCE` is the text of a source whose training rows ask for passkeys.
      workdir: Of the run that reads it, whose files must not be part of it.

    Raises:
      ConfigError: The source is unknown, missing, empty or corrupt (one line, with the fix), or
        has the workdir below it.
    """
    source = spec.removeprefix("passkeys:")
    kind, _, argument = (source or spec).partition(":")
    if kind not in SOURCES or kind == "passkeys" or bool(argument) != (kind != "embedded"):
        near = SOURCES[nearest(kind, SOURCES)]
        raise ConfigError(f"data={spec!r} is unknown; did you mean {near!r}?")
    if kind == "synthetic":
        require(source == spec, "data", spec, "a task has no text; use passkeys:text:DIR")
        if argument not in tasks.TASKS:
            near = nearest(argument, tasks.TASKS)
            refuse("data", spec, f"unknown task; did you mean 'synthetic:{near}'?")
        return tasks.TASKS[argument]
    if kind == "text" and workdir and corpora.reads_below(argument, Path(workdir)):
        fix = f"data={source!r} would read the run's files as text"
        refuse("workdir", workdir, f"{fix}; choose a --config.workdir outside")
    if kind == "embedded":
        corpus = corpora.embedded()
    else:
        corpus = (corpora.text if kind == "text" else records.prepared)(argument)
    if source == spec:
        return corpus
    digest = corpora.digest([("passkeys", corpus.digest)])  # its rows differ, so must the digest
    name = f"{corpus.name} with passkeys"
    return dataclasses.replace(corpus, name=name, digest=digest, passkeys=True)


def train_iterator(
    corpus: Corpus | tasks.Task,
    tokenizer: Tokenizer | None,
    *,
    length: int,
    batch: int,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
    skip: int = 0,
) -> grain.DatasetIterator:
    """Returns endless training batches of this process.

    Args:
      corpus: From `load`.
      tokenizer: From `tokenizer.get`; None for a task, which makes tokens itself.
      length: Tokens that the model reads; rows have one more, the last target.
      batch: Rows per step over all processes.
      seed: Of the order of documents and rows, or of the task's strings, in [0, 2^31).
      process_index: This process.
      process_count: Number of processes. With fewer documents, each document is cut into as many
        pieces.
      skip: Batches to skip, without reading them: exact for tasks and within the first window of
        rows, else by the mean number of tokens per document.

    Returns:
      An iterator, with `get_state` and `set_state`, of dicts of arrays of shape
      [batch / process_count, length + 1]: `tokens`, `segments` int32 and `weights` float32, as in
      `packing.targets`.

    Raises:
      ConfigError: A value is out of range, or the corpus is too short for it.
    """
    _check(length, batch, seed, process_index, process_count)
    if isinstance(corpus, tasks.Task):
        if not corpus.fitting(length + 1):
            least = corpus.decoded(corpus.shortest) - 1
            refuse("length", length, f"{corpus.name} needs at least {least}")
        rows = grain.MapDataset.range(2**62)[process_index::process_count]
        rows = rows.to_iter_dataset(IN_LINE).batch(batch // process_count)
        rows = rows.map(lambda index: tasks.train_rows(corpus, seed, index, length + 1))
        return _after(iter(rows), skip * batch // process_count, 1, 1.0)
    if tokenizer is None:
        refuse("tokenizer", None, f"{corpus.name} is text; use tokenizer=bytes")
    documents = Encoded.of(corpus, "train", tokenizer, ends=True)
    documents = _for_processes(documents, process_count)
    tokens, size = _check_text(documents, length)
    if corpus.passkeys:
        passkeys.check(length + 1, tokenizer)
    count = len(documents.documents)
    dataset = grain.MapDataset.range(count).seed(seed)
    dataset = dataset[process_index::process_count].shuffle().repeat()
    dataset = dataset.map(lambda index: {"tokens": documents[index]})
    dataset = packing.Pack(dataset.to_iter_dataset(IN_LINE), length + 1)
    window = min(_WINDOW_BYTES, corpus.sizes["train"] // process_count)  # larger would mix epochs
    window = min(_WINDOW_ROWS, window * tokens // size // (length + 1))
    if window > 1:
        dataset = grain.experimental.WindowShuffleIterDataset(
            dataset, window_size=window, seed=seed
        )
    if tokenizer.begin is not None:
        dataset = dataset.map(functools.partial(packing.begun, token=tokenizer.begin))
    if corpus.passkeys:
        plant = functools.partial(passkeys.planted, tokens=tokenizer)
        dataset = dataset.random_map(plant, seed=seed + process_index)
    batches = iter(dataset.batch(batch // process_count).map(packing.targets))
    documents_per_row = count * (length + 1) * size / (tokens * max(corpus.sizes["train"], 1))
    return _after(batches, skip * batch // process_count, window, documents_per_row)


def _after(
    batches: grain.DatasetIterator, rows: int, window: int, documents_per_row: float
) -> grain.DatasetIterator:
    """A new iterator, advanced by `rows` rows of this process."""
    if rows:
        batches.set_state(_skipped(batches.get_state(), rows, window, documents_per_row))
    return batches


def _skipped(state: dict, rows: int, window: int, documents_per_row: float) -> dict:
    """The state of a new iterator after `rows` rows of this process.

    The current window of rows is read again, to be shuffled as it was; earlier rows are not read.
    """
    if "parent" in state:  # random draws
        parent = _skipped(state["parent"], rows, window, documents_per_row)
        return {**state, "parent": parent, "index_for_rng": rows}
    if "window_index" in state:
        number, position = divmod(rows, window)
        start = state["parent_window_start_state"]
        start = _skipped(start, number * window, window, documents_per_row)
        counts = {"window_index": number, "pos_in_window": position}
        return {**state, "parent_window_start_state": start, **counts}
    if "parent_state" in state:  # packing
        return {
            **state,
            "parent_state": _skipped(state["parent_state"], rows, 1, documents_per_row),
        }
    return {**state, "next_index": round(rows * documents_per_row)}


@dataclasses.dataclass(frozen=True)
class Encoded:
    """The documents of a split as tokens, each read, encoded and checked when it is asked for.

    Attributes:
      corpus: its name, for errors.
      split: the split's.
      documents: as bytes.
      tokenizer: of all of them.
      ends: whether ids stand around them that begin, if there is such an id, and end a document.
      pieces: how many of the documents are pieces of the same one, which ends with the last.
    """

    corpus: str
    split: str
    documents: corpora.Documents
    tokenizer: Tokenizer
    ends: bool = False
    pieces: int = 1

    @classmethod
    def of(cls, corpus: Corpus, split: str, tokenizer: Tokenizer, ends: bool = False) -> "Encoded":
        """The documents of a corpus; ConfigError if the split has none."""
        return cls(corpus.name, split, corpus.documents(split), tokenizer, ends)

    def __getitem__(self, index: int) -> np.ndarray:
        """The tokens of a document, or of a piece of one, which need not end it: [tokens].

        They are int32; those of a large file are memory-mapped, uint16 if these hold all ids.
        """
        try:
            if isinstance(self.documents, corpora.Files):
                file = self.documents.files[index]
                if file.size > _LARGE:
                    return self._mapped(index, file)
            return np.concatenate([np.zeros(0, np.int32), *self._parts(index)], dtype=np.int32)
        except ValueError as error:
            raise self.error(index, error) from None

    def _mapped(self, index: int, file: corpora.File) -> np.ndarray:
        """The tokens of a large file, or range of one, that are encoded once on this machine."""
        text = file.text, file.start, file.end
        tokenizer = self.tokenizer.name, self.tokenizer.digest, tokenizers.__version__
        key = repr((text, tokenizer, self._around(index)))
        dtype = np.uint16 if self.tokenizer.vocab <= 2**16 else np.int32
        try:
            return token_files.mapped(key, file.name, self._parts(index), dtype)
        except (OSError, NotImplementedError) as error:  # the latter: no lock that the kernel holds
            logging.warning(
                "data: tokens of %s are kept in memory, as their cache cannot be written (%s); set"
                " XDG_CACHE_HOME to a folder with room",
                file.name,
                error,
            )
            return np.concatenate([part.astype(dtype) for part in self._parts(index)])

    def _parts(self, index: int) -> Iterator[np.ndarray]:
        """The tokens of a document, part by part, checked."""
        begin, end = self._around(index)
        yield np.array(begin, np.int32)
        for piece in self.tokenizer.pieces(corpora.blocks(self.documents, index)):
            yield check_ids(self.tokenizer.encode(piece), self.tokenizer.vocab)
        yield np.array(end, np.int32)

    def _around(self, index: int) -> tuple[list[int], list[int]]:
        """The ids before and after the tokens of a document."""
        begin, end = self.tokenizer.begin, self.tokenizer.eos
        is_last = (index + 1) % self.pieces == 0
        return (
            [begin] if self.ends and begin is not None else [],
            [end] if self.ends and is_last else [],
        )

    def error(self, index: int, error: ValueError) -> ConfigError:
        """What is wrong with a document, naming it."""
        return ConfigError(f"{self.corpus}, {self.split} document {index}: {error}")


def windows(corpus: Corpus, tokenizer: Tokenizer, config: EvalConfig) -> np.ndarray:
    """Text to evaluate on: int32 [W, 2M + 1], each row from one document that is not kept.

    W windows, M the longest length.
    """
    corpus, _ = corpus.apart(config.split, config.kept)
    size = 2 * config.lengths[-1] + 1
    options: Any = {"split": config.split, "count": config.windows, "field": "eval.windows"}
    return eval_windows(corpus, tokenizer, length=size, **options)


def _for_processes(encoded: Encoded, count: int) -> Encoded:
    """The documents, in pieces if there are fewer of them than processes.

    Raises:
      ConfigError: a document has too few characters to be cut into `count` pieces.
    """
    documents = encoded.documents
    if len(documents) >= count:
        return encoded
    pieces = corpora.pieces(documents, count)
    if not all(corpora.size(pieces, index) for index in range(len(pieces))):
        raise ConfigError(
            f"data={encoded.corpus!r} has {len(documents)} documents for {count} processes, one too"
            " short to be cut; use fewer processes"
        )
    return dataclasses.replace(encoded, documents=pieces, pieces=count)


def eval_windows(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    split: str,
    count: int,
    length: int,
    seed: int = 0,
    field: str = "count",
) -> np.ndarray:
    """Returns windows to evaluate on, each inside one document.

    Documents are cut into consecutive windows, dropping the remainders at their ends; the list of
    all windows is cut into `count` equal ranges, and one window is drawn from each.

    Args:
      corpus: From `load`.
      tokenizer: From `tokenizer.get`.
      split: `validation`, `test` or `train`.
      count: Number of windows.
      length: Tokens in each.
      seed: Chooses the window in each range.
      field: What errors call `count`: the config's field.

    Returns:
      int32 [count, length]; no two windows overlap.

    Raises:
      ConfigError: The split has fewer such windows.
    """
    if count < 1 or length < 1:
        raise ConfigError(f"{field}={count}, length={length}: both must be at least 1")
    documents = Encoded.of(corpus, split, tokenizer)
    tokens = np.array([len(documents[index]) for index in range(len(documents.documents))])
    ends = np.cumsum(tokens // length)  # windows up to the end of each document
    if ends[-1] < count:
        raise ConfigError(
            f"{field}={count}: split {split!r} of {corpus.name} has {ends[-1]} windows of "
            f"length={length} (its longest document has {tokens.max()} tokens); ask for less"
        )
    edges = np.arange(count + 1) * ends[-1] // count
    chosen = np.random.default_rng(seed).integers(edges[:-1], edges[1:])
    windows = []
    for document in np.unique(owner := np.searchsorted(ends, chosen, side="right")):
        rows = documents[int(document)]
        rows = rows[: len(rows) // length * length].reshape(-1, length)
        windows.append(rows[chosen[owner == document] - (ends[document] - len(rows))])
    return np.concatenate(windows, dtype=np.int32)


def _check(length: int, batch: int, seed: int, process_index: int, process_count: int) -> None:
    if length < 1 or batch < 1:
        raise ConfigError(f"length={length}, batch={batch}: both must be at least 1")
    # grain adds the window's number and takes 32 bits
    require(0 <= seed < 2**31, "seed", seed, "must be in [0, 2^31)")
    ok, fix = 0 <= process_index < process_count, f"must be in [0, {process_count})"
    require(ok, "process_index", process_index, fix)
    if batch % process_count:
        fits = batch // process_count * process_count, -(-batch // process_count) * process_count
        fits = " or ".join(str(value) for value in fits if value)
        refuse("batch", batch, f"must divide over {process_count} processes; use {fits}")


def _check_text(encoded: Encoded, length: int) -> tuple[int, int]:
    """Returns the tokens and the bytes of the first documents that together fill a row."""
    documents = encoded.documents
    if isinstance(encoded.tokenizer, BPE) and not isinstance(documents, records.Records):
        for index in range(len(documents)):  # files may hold anything; TFDS has valid UTF-8
            try:
                offset = 0
                for block in corpora.blocks(documents, index):
                    utf8(block, offset)
                    offset += len(block)
            except ValueError as error:
                raise encoded.error(index, error) from None
    tokens = size = 0
    for index in range(len(documents)):
        tokens += len(encoded[index])
        size += corpora.size(documents, index)
        if tokens > length:
            return tokens, max(size, 1)
    raise ConfigError(
        f"length={length}: {encoded.corpus} has {tokens} tokens in {len(documents)} train"
        f" documents, fewer than one row of {length + 1}; use a shorter length or more text"
    )

"""Documents as a released model reads them: tokens, and rows that end at the same targets."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from experiments.running.configs.released import SHORT, ReleasedConfig
from pe_jax.released import tokenizer_files
from pe_jax.training import data
from pe_jax.training.corpus import Corpus, Files
from pe_jax.validation import ConfigError


class Document(NamedTuple):
    """A document with tokens.

    `number` is its place in the split; `ids` are its tokens, int32 [N], `start` what precedes every
    text, as <bos>: int32 [S], S may be 0.
    """

    number: int
    name: str
    text: str
    ids: np.ndarray
    start: np.ndarray

    def row(self, length: int, longest: int) -> np.ndarray:
        """A context and the next token, int32 [length + 1], from the middle of the document.

        Rows of all lengths up to `longest` end with the same tokens.
        """
        inside = self.tokens(length + 1 - len(self.start), longest)
        return np.concatenate([self.start, inside])

    def tokens(self, count: int, longest: int) -> np.ndarray:
        """Tokens of the document, int32 [count], up to where rows end."""
        end = (len(self.ids) + longest + 1) // 2
        return self.ids[end - count : end]

    def short(self, windows: int) -> np.ndarray:
        """Short texts at equal distances, int32 [windows, SHORT + 1]."""
        size = SHORT + 1 - len(self.start)
        ends = np.linspace(size, len(self.ids), windows).astype(int)
        rows = [np.concatenate([self.start, self.ids[end - size : end]]) for end in ends]
        return np.stack(rows)


def encode(tokenizer: Any, text: str) -> np.ndarray:
    """The tokens of a text inside of a document: int32 [N]."""
    return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def read(config: ReleasedConfig, tokenizer: Any, corpus: Corpus, split: str) -> list[Document]:
    """The documents of a split that are as long as the longest context.

    The config says how many, and how long the longest context is; `tokenizer` is of `tokenizers`.

    Raises:
      ConfigError: none is that long.
    """
    longest = max(*config.lengths, SHORT)
    documents, found = corpus.documents(split), []
    files = documents.files if isinstance(documents, Files) else ()
    start = np.asarray(tokenizer_files.first(tokenizer), np.int32)
    for index in range(len(documents)):
        text = documents[index].decode("utf-8", "replace")
        name = Path(files[index].name).stem if files else str(index)
        document = Document(index, name, text, encode(tokenizer, text), start)
        if len(document.ids) <= longest:
            size = f"{len(document.ids):,} tokens, fewer than {longest + 1:,}"
            logging.warning("%s is left out: %s", document.name, size)
        else:
            found.append(document)
        if config.documents and len(found) == config.documents:
            break
    if not found:
        fix = f"no document of {split!r} has {longest + 1:,} tokens; use longer ones"
        raise ConfigError(f"lengths={config.lengths}: {fix}")
    if len(found) < config.documents:
        fix = f"{len(found)} of {split!r} have {longest + 1:,} tokens; pass 0 to take these"
        raise ConfigError(f"documents={config.documents}: {fix}")
    return found


def load(config: ReleasedConfig) -> Corpus:
    """The corpus of the config.

    Raises:
      ConfigError: it cannot be read, or the workdir is part of it.
    """
    corpus = data.load(config.data, config.workdir)
    assert isinstance(corpus, Corpus)  # as `data` begins with text:
    return corpus

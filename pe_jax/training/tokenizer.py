"""Tokenizers: bytes, which need no file, a Hugging Face BPE file, or a released checkpoint's.

All map the bytes of a document to int32 ids and back, and have one id that ends a document.
"""

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
from absl import logging

from pe_jax.training.paths import local
from pe_jax.validation import ConfigError, nearest, refuse

_END = ("<|endoftext|>", "</s>", "<eos>", "[EOS]")  # the usual names of an end token, in this order
_LINE = re.compile(r"(?<=\S\n)(?=\S)")  # where a line begins that is not indented, after another
_NEAR = 256  # characters on each side of a place where text is cut, which show that it may be
_WHOLE = 2**20  # characters: encoding more than these at once is worth a warning
_SAMPLE = "def F(x):\n    return  x\n\n\nclass A:\tpass  # \u00dcn\u00efcode \ufb01 \u2460\n"
_RARE = "\N{EGYPTIAN HIEROGLYPH A001}"  # in no vocabulary but by its bytes


class Tokenizer(Protocol):
    """Interface of a tokenizer.

    Attributes:
      name: The spec, for reports.
      vocab: One more than the largest id; the caller rounds it up for its model.
      eos: The id that ends a document.
      begin: The id that begins a document and every row of one, as released models expect; or None.
      digest: Distinguishes tokenizers of the same name.
    """

    @property
    def name(self) -> str: ...
    @property
    def vocab(self) -> int: ...
    @property
    def eos(self) -> int: ...
    @property
    def begin(self) -> int | None: ...
    @property
    def digest(self) -> str: ...

    def encode(self, document: bytes) -> np.ndarray:
        """Returns the ids of a document, int32 [tokens], without the end of document."""
        ...

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields a document in pieces whose ids, one after the other, are those of the whole.

        Args:
          blocks: The document, cut between characters.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, without ends of documents."""
        ...


@dataclasses.dataclass(frozen=True)
class Bytes:
    """One token per byte: lossless for any content. Id 256 ends a document."""

    name: str = "bytes"
    vocab: int = 257
    eos: int = 256
    begin: int | None = None
    digest: str = "bytes"

    def encode(self, document: bytes) -> np.ndarray:
        """Returns the bytes, int32 [len(document)]."""
        return np.frombuffer(document, np.uint8).astype(np.int32)

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks."""
        yield from blocks

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text; bytes that are not UTF-8 become U+FFFD.

        Raises:
          ConfigError: An id is outside the vocabulary.
        """
        ids = check_ids(ids, self.vocab)
        return ids[ids != self.eos].astype(np.uint8).tobytes().decode(errors="replace")


@dataclasses.dataclass(frozen=True)
class BPE:
    """A Hugging Face `tokenizers` model; text that spells a special token is encoded as text."""

    name: str
    model: tokenizers.Tokenizer
    vocab: int
    eos: int
    digest: str
    begin: int | None = None

    def encode(self, document: bytes) -> np.ndarray:
        """Returns the ids, int32 [tokens].

        Raises:
          ConfigError: The document is not UTF-8 (with the byte offset).
        """
        return np.asarray(self._encoding(utf8(document)).ids, np.int32)

    def pieces(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Yields the blocks of a document, cut anew at ends of lines; or all of it at once.

        A model of `tokenizers` encodes each word of its pre-tokenizer by itself. Text is cut where
        a word ends, with or without the text on the other side.

        Raises:
          ConfigError: The document is not UTF-8 (with the byte offset).
        """
        rest, offset = "", 0
        for block in blocks:
            if cut := self._cut(rest):
                yield rest[:cut].encode()
                rest = rest[cut:]
            rest += utf8(block, offset)
            offset += len(block)
        if len(rest) > _WHOLE:
            logging.warning(
                "tokenizer=%r does not show where text may be cut: a document of %d characters is"
                " encoded at once, with about 140 bytes of memory per character",
                self.name,
                len(rest),
            )
        yield rest.encode()

    def _cut(self, text: str) -> int:
        """Where the last line begins that is encoded apart from the one before it; 0 if none is."""
        recent = max(len(text) - 2**18, 0)
        lines = [m.start() for m in _LINE.finditer(text, recent, max(len(text) - _NEAR, 0))]
        return next((line for line in reversed(lines[-16:]) if self._separates(text, line)), 0)

    def _separates(self, text: str, place: int) -> bool:
        """Whether words end at a place in a text, and are the same if the text does."""
        before, after = text[max(place - _NEAR, 0) : place], text[place : place + _NEAR]
        whole, left, right = map(self._encoding, (before + after, before, after))
        words, end = whole.word_ids, len(left.ids)
        same = whole.ids == left.ids + right.ids and 0 < end < len(words)
        return same and words[end - 1] != words[end]

    def _encoding(self, text: str) -> tokenizers.Encoding:
        try:
            return self.model.encode(text, add_special_tokens=False)
        except Exception as error:  # the library raises a bare Exception
            raise ConfigError(f"tokenizer {self.name}: {error}") from None

    def decode(self, ids: Iterable[int]) -> str:
        """Returns the text of ids, without those that begin and end documents.

        Raises:
          ConfigError: An id is outside the vocabulary.
        """
        ids = check_ids(ids, self.vocab)
        ends = [self.eos, self.eos if self.begin is None else self.begin]
        return self.model.decode(ids[~np.isin(ids, ends)].tolist(), skip_special_tokens=False)


def get(spec: str) -> Tokenizer:
    """Returns the tokenizer that a spec names.

    Args:
      spec: `bytes`; `bpe:PATH` for a Hugging Face tokenizers JSON file; `checkpoint:SOURCE` for the
        tokenizer of a released checkpoint, as `pe_jax.released.files.read` takes it.

    Raises:
      ConfigError: The spec is unknown, or the file is missing or not a tokenizer.
    """
    kind, _, path = spec.partition(":")
    if kind == "bytes" and not path:
        return Bytes()
    if kind == "checkpoint" and path:
        return _of_checkpoint(spec, path)
    if kind != "bpe" or not path:
        near = nearest(kind, ("bytes", "bpe:PATH", "checkpoint:SOURCE"))
        raise ConfigError(f"tokenizer={spec!r} is unknown; did you mean {near!r}?")
    return _load_bpe(path)


def train_bpe(texts: Iterable[bytes], path: str, vocab: int = 4096) -> None:
    """Trains a lossless byte-level BPE on documents and writes it to a JSON file.

    Args:
      texts: Documents, UTF-8.
      path: The file to write.
      vocab: Number of tokens, including the 256 bytes and the end of document.
    """
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[_END[0]],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(map(utf8, texts), trainer)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    model.save(path)


def utf8(document: bytes, offset: int = 0) -> str:
    """Decodes a document, or a part of one that begins at an offset.

    Raises:
      ConfigError: A byte is not UTF-8 (with its value and offset).
    """
    try:
        return document.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"tokenizer: byte {document[error.start]:#04x} at offset {offset + error.start} is not"
            " UTF-8; correct the document or use tokenizer=bytes"
        ) from None


def check_ids(ids: Iterable[int], vocab: int) -> np.ndarray:
    """Returns the ids as an int array [tokens].

    Raises:
      ConfigError: An id is outside [0, vocab) (with its index).
    """
    ids = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab):
        index = int(np.argmax((ids < 0) | (ids >= vocab)))
        raise ConfigError(
            f"tokens: id {ids[index]} at index {index} is outside the vocabulary [0, {vocab}); "
            "use the tokenizer that the tokens were made with"
        )
    return ids


def _leaves_out(model: tokenizers.Tokenizer) -> bool:
    """Whether a character without a token is left out, silently."""
    try:
        return not model.encode(_RARE, add_special_tokens=False).ids
    except Exception as error:  # the library raises a bare Exception: such a model is not silent
        logging.info("tokenizer: a character without a token is an error (%s)", error)
        return False


def changed(tokenizer: Tokenizer, text: str) -> str:
    """How a text differs after encoding and decoding; "" if it does not.

    The share of its characters that are lost or others, and the first of them with what stands in
    their place. A space that is put in front of a text, or taken away there, does not count, and
    nothing is known of a tokenizer without a decoder.
    """
    if isinstance(tokenizer, BPE) and tokenizer.model.decoder is None:
        return ""
    back = tokenizer.decode(tokenizer.encode(text.encode()))
    if back.removeprefix(" ") == text.removeprefix(" "):
        return ""
    match = difflib.SequenceMatcher(None, text, back, autojunk=False)
    kept = sum(block.size for block in match.get_matching_blocks())
    changes = (code for code in match.get_opcodes() if code[0] != "equal")
    _, begin, end, new, new_end = next(changes)
    near, there = text[max(begin - 8, 0) : end + 8], back[max(new - 8, 0) : new_end + 8]
    return f"{1 - kept / max(len(text), 1):.1%} of a text, as {near!r}, which becomes {there!r}"


def _load_bpe(path: str) -> BPE:
    path = str(local("tokenizer", path))
    if not Path(path).is_file():
        refuse("tokenizer", f"bpe:{path}", "no such file; make one with tokenizer.train_bpe")
    try:
        model = tokenizers.Tokenizer.from_file(path)
    except Exception as error:  # the library raises a bare Exception
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"tokenizer='bpe:{path}': not a tokenizers JSON file ({reason}); "
            "make one with tokenizer.train_bpe"
        ) from None
    last = _prepare(f"bpe:{path}", model)
    end_ids = [model.token_to_id(token) for token in _END]
    eos = next((token for token in end_ids if token is not None), last + 1)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return _told(BPE(f"bpe:{Path(path).name}", model, max(last, eos) + 1, eos, digest))


def _prepare(spec: str, model: tokenizers.Tokenizer) -> int:
    """Sets a model to encode whole documents as text, and returns its largest id."""
    if dropout := getattr(model.model, "dropout", None):
        fix = f"encodes at random, also when evaluating; set its dropout={dropout:g} to null"
        refuse("tokenizer", spec, fix)
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = True  # a document cannot forge an end of document
    if _leaves_out(model):
        logging.warning(
            "tokenizer=%r leaves out characters that it has no token for, such as %r: text"
            " that has some is shorter. An unk_token or byte_fallback keeps them",
            spec,
            _RARE,
        )
    return max(model.get_vocab().values(), default=-1)


def _of_checkpoint(spec: str, source: str) -> BPE:
    from pe_jax.released import start  # reads GGUF files, which other runs do without

    checkpoint = start.read(source)
    begin, end = start.ends(checkpoint)
    last = _prepare(spec, checkpoint.tokenizer)
    _, digest = start.digests(checkpoint)
    return _told(BPE(spec, checkpoint.tokenizer, max(last, end) + 1, end, digest, begin))


def _told(tokenizer: BPE) -> BPE:
    """The tokenizer; a warning if it does not give text back: losses are then of another text."""
    try:
        found = changed(tokenizer, _SAMPLE)
    except ConfigError:  # a character that it has no token for: it is not silent
        return tokenizer
    if found:
        logging.warning(
            "tokenizer=%r changes %s: losses are those of the changed text, and cannot be compared"
            " with other tokenizers'",
            tokenizer.name,
            found,
        )
    return tokenizer

"""Tasks, and the layout of their questions and answers in the rows that a model reads.

A task draws an example from a key: a question of n symbols and its answer, jittable, padded to
fixed shapes (N, the longest question, and the slots of its answer). Two layouts:

* an encoder reads `question SEP … SEP` and writes the whole answer into the SEPs at once
  (arXiv 2305.16843). Only the encoding tells it where a token is.
* a decoder reads `BOS question SEP answer EOS` and is scored on the answer and its end (arXiv
  2305.19466). Its causal mask also carries order. All tokens are right if each is the argmax after
  those before it, that is, if greedy decoding writes the answer. If a task `continues`, there is no
  SEP: the answer comes directly after the last symbol of the question.

A task `in_place` answers each symbol at its index: encoder and decoder read the question alone, and
the targets are not the next tokens.

Where the question's length does not determine the answer's, EOS ends it for an encoder too.
N longest question, T tokens of a row.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from pe_jax.numerics.arrays import in_32_bits
from pe_jax.validation import ConfigError

PAD, BOS, SEP, EOS = range(4)
SPECIAL = ("PAD", "BOS", "SEP", "EOS")


class Example(NamedTuple):
    """A question and its answer, of symbols from 0."""

    question: jax.Array  # int32 [N]
    asked: Any  # number of symbols of the question that are not padding: int32 []
    answer: jax.Array  # int32, one per slot
    answered: Any  # number of symbols of the answer that are not padding: int32 []
    unscored: Any = 0  # number of symbols at the start of the answer that do not count: int32 []


def single(question: jax.Array, asked: Any, answer: jax.Array) -> Example:
    """An example whose answer is one symbol."""
    return Example(question, asked, answer[None], 1)


def pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """values[index], with indices clipped to the array."""
    return values[jnp.clip(index, 0, len(values) - 1)]


def single_slot(length: Any) -> Any:
    """Slots of an answer that is always one symbol."""
    return 1


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, which can take the place of a corpus.

    Attributes:
      short: its name in `TASKS`.
      draw: (key, n, N) → Example, its question of at most n symbols; n may be traced, N may not.
      symbols: size of the alphabet.
      slots: length of the answer to n symbols (including EOS if it `stops`): monotone in n; always
        0 if each symbol is answered at its place.
      stops: whether answers to questions of the same length differ in length.
      shortest: fewest symbols of a question.
      longest: most symbols of a question; None for no limit.
      continues: whether a decoder writes the answer directly after the question, without a SEP.
    """

    short: str
    draw: Callable[[jax.Array, Any, int], Example]
    symbols: int
    slots: Callable[[Any], Any] = single_slot
    stops: bool = False
    shortest: int = 1
    longest: int | None = None
    continues: bool = False
    warning: ClassVar[str] = ""  # for the same use as a corpus's

    @property
    def name(self) -> str:
        """The name as a data source."""
        return f"synthetic:{self.short}"

    @property
    def vocab(self) -> int:
        """Four special tokens and the symbols."""
        return len(SPECIAL) + self.symbols

    @property
    def in_place(self) -> bool:
        """Whether each symbol is answered at its place, and not after the question."""
        return self.slots(self.shortest) == 0

    def defined(self, length: int) -> bool:
        """Whether there are questions of this length."""
        return self.shortest <= length and (self.longest is None or length <= self.longest)

    def encoded(self, length: int) -> int:
        """Tokens of an encoder's row with a question of this length."""
        return length + self.slots(length)

    def decoded(self, length: int) -> int:
        """Tokens of a decoder's row, including its last target.

        Raises:
          ConfigError: the answers are `in_place`, so that no decoder predicts them as next tokens.
        """
        if self.in_place:
            raise ConfigError(
                f"{self.name} is answered at the question's places, so it has no next"
                " tokens to train on; use experiments.tasks"
            )
        return length + self.slots(length) + 3 - self.stops - self.continues

    def read(self, length: int, causal: bool) -> int:
        """Tokens that a decoder or an encoder reads of a row with a question of this length."""
        next_tokens = causal and not self.in_place
        return self.decoded(length) - 1 if next_tokens else self.encoded(length)

    def fitting(self, width: int) -> int:
        """The longest question whose decoder row has at most `width` tokens; 0 if there is none."""
        fits = (n for n in range(width, 0, -1) if self.decoded(n) <= width and self.defined(n))
        return next(fits, 0)

    def fills(self, width: int) -> bool:
        """Whether its longest question fills a decoder row of `width` tokens."""
        return self.longest is None or self.decoded(self.longest) >= width

    @property
    @in_32_bits
    def digest(self) -> str:
        """SHA-256 of a few rows of both layouts: it changes when the generator changes."""
        longest = max(self.shortest, min(self.longest or 24, 24))

        def draw_rows(key):
            length = jax.random.randint(key, (), self.shortest, longest + 1)
            example = self.draw(key, length, longest)
            encoded = encoder_row(self, example)
            return encoded if self.in_place else (encoded, decoder_row(self, example))

        rows = jax.jit(jax.vmap(draw_rows))(jax.random.split(jax.random.key(0), 8))
        digest = hashlib.sha256(self.name.encode())
        for x in jax.tree.leaves(jax.device_get(rows)):
            digest.update(x.tobytes())
        return digest.hexdigest()

    def describe(self) -> str:
        """One line for logs and reports."""
        return f"{self.name}: generated, {self.symbols} symbols, sha256 {self.digest[:12]}"

    def documents(self, split: str) -> NoReturn:
        """A task has rows, not documents.

        Raises:
          ConfigError: Always.
        """
        raise ConfigError(f"data={self.name!r} has no {split} documents; use tasks.examples")


def encoder_row(task: Task, example: Example) -> tuple[jax.Array, ...]:
    """The row that an encoder reads: tokens, targets, weights of the targets, segments: [T]."""
    index = jnp.arange(task.encoded(len(example.question)))
    slot = index - example.asked
    used = slot < task.slots(example.asked)
    question = pick(example.question, index) + len(SPECIAL)
    tokens = jnp.where(slot < 0, question, jnp.where(used, SEP, PAD))
    if task.in_place:
        slot = jnp.where(used, index, -1)
    answer = pick(example.answer, slot) + len(SPECIAL)
    targets = jnp.where(slot < example.answered, answer, EOS)
    scored = (slot >= example.unscored) & (slot < example.answered + task.stops)
    weights = scored.astype(jnp.float32)
    return tokens, jnp.where(scored, targets, PAD), weights, used.astype(jnp.int32)


def decoder_row(task: Task, example: Example, width: int = 0) -> tuple[jax.Array, jax.Array]:
    """The row that a decoder reads and predicts: tokens int32 [T] and their weights as targets."""
    index = jnp.arange(width or task.decoded(len(example.question)))
    slot = index - example.asked - (1 if task.continues else 2)
    question = pick(example.question, index - 1) + len(SPECIAL)
    tokens = jnp.where(index <= example.asked, question, pick(example.answer, slot) + len(SPECIAL))
    tokens = jnp.where((index > example.asked) & (slot < 0), SEP, tokens)
    tokens = jnp.where(index == 0, BOS, tokens)
    tokens = jnp.where(slot < example.answered, tokens, EOS)
    tokens = jnp.where(slot <= example.answered, tokens, PAD)
    return tokens, ((slot >= 0) & (slot <= example.answered)).astype(jnp.float32)

"""What a released model makes of texts of one length: losses, and answers from a cache.

Programs are compiled once per length. The logits of a long text are never held: those of the last
tokens are, and those of a question. V vocabulary, T tokens.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pe_jax.models.transformer import Transformer
from pe_jax.training.step import last_losses, token_losses

QUESTION = 128  # tokens of a question and its answer; shorter ones are filled up
CHUNK = 1024  # the most tokens that are read into a cache at once


def room(length: int) -> int:
    """How many tokens of a context are read before a question."""
    return _chunks(length) * _chunk(length)


def _chunks(length: int) -> int:
    return max(1, -(-(length - QUESTION) // CHUNK))


def _chunk(length: int) -> int:
    """Tokens of each chunk: the same number in all, so that there is one program."""
    return (length - QUESTION) // _chunks(length)


class Answer(NamedTuple):
    """What a model thinks of a text that follows a cache.

    Attributes:
      likeliest: the token that it puts after each token, int [T].
      losses: of the true next tokens, nats [T].
    """

    likeliest: np.ndarray
    losses: np.ndarray


class Reader:
    """A model for contexts of up to `length` tokens."""

    def __init__(self, model: Transformer, length: int):
        self.length, self.model = length, model.at_length(length)
        graph, self.state = nnx.split(self.model)

        def losses(state: Any, row: jax.Array, targets: int) -> jax.Array:
            return last_losses(nnx.merge(graph, state), row[None], targets)[0]

        def read(state: Any, cache: Any, tokens: jax.Array) -> Any:
            return nnx.merge(graph, state).hidden(tokens[None], cache=cache)[1]

        def answers(state: Any, cache: Any, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits, _ = nnx.merge(graph, state)(tokens[None, :-1], cache=cache)
            return logits[0].argmax(-1), token_losses(logits[0], tokens[1:])

        self._losses = jax.jit(losses, static_argnums=2)
        self._read = jax.jit(read, donate_argnums=1)
        self._answers = jax.jit(answers)

    def losses(self, row: np.ndarray, targets: int) -> np.ndarray:
        """Loss of the last targets of a row [T + 1], in nats: float32 [targets]."""
        return np.asarray(self._losses(self.state, jnp.asarray(row), targets))

    def read(self, tokens: np.ndarray) -> Iterator[tuple[int, Any]]:
        """Reads `room(length)` tokens into a cache: yields (tokens of a chunk, the cache after it).

        A cache is good until the next one is asked for.
        """
        cache = self.model.init_cache(1, self.length)
        size = _chunk(self.length)
        for begin in range(0, len(tokens), size):
            cache = self._read(self.state, cache, jnp.asarray(tokens[begin : begin + size]))
            yield size, jax.block_until_ready(cache)

    def answer(self, cache: Any, tokens: np.ndarray) -> Answer:
        """What follows each but the last of up to `QUESTION` + 1 tokens after those of a cache."""
        count = len(tokens) - 1
        padded = np.pad(tokens, (0, QUESTION - count))
        likeliest, losses = self._answers(self.state, cache, jnp.asarray(padded))
        return Answer(np.asarray(likeliest)[:count], np.asarray(losses)[:count])


def score(
    ask: Callable[[np.ndarray], Answer],
    prompt: np.ndarray,
    items: list[np.ndarray],
    others: list[np.ndarray],
) -> tuple[float, float]:
    """The fraction of an answer's items that greedy decoding gives, and their loss per token.

    Args:
      ask: what a model thinks of tokens.
      prompt: tokens of the question, and of the beginning of its answer.
      items: tokens of each item; those at odd places are given, as commas, and not scored.
      others: in place of a single item, these are right too.
    """
    row = np.concatenate([prompt, *items])
    answer, begin, right, losses = ask(row), len(prompt) - 1, [], []
    for place, item in enumerate(items):
        span = slice(begin, begin + len(item))
        if place % 2 == 0:
            right.append(bool((answer.likeliest[span] == item).all()))
            losses.append(answer.losses[span])
        begin = span.stop
    first = answer.likeliest[len(prompt) - 1]
    for item in others:
        if not right[0] and item[0] == first:
            span = slice(len(prompt) - 1, len(prompt) - 1 + len(item))
            again = ask(np.concatenate([prompt, item]))
            right[0] = bool((again.likeliest[span] == item).all())
    return float(np.mean(right)), float(np.concatenate(losses).mean())

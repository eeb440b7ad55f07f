"""What a released model makes of texts of one length: losses, and answers from a cache.

Programs are compiled once per length. The logits of a long text are never held: those of the last
tokens are, and those of a question. V vocabulary, T tokens.
"""

from collections.abc import Callable, Iterator, Sequence
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

    `likeliest` is the token that it puts after each token, int [T]; `losses` are of the true next
    tokens, nats [T].
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

        # jitted, so that no cache exists twice
        self.empty = jax.jit(lambda: self.model.init_cache(1, length, stacked=True))
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
        cache = self.empty()
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
    answer: np.ndarray,
    others: Sequence[np.ndarray] = (),
) -> tuple[bool, float]:
    """Whether greedy decoding gives an answer, and the loss of the first answer per token.

    `prompt` has the beginning of the answer too; `others` are answers that are right as well.
    """
    begin = len(prompt) - 1
    found = ask(np.concatenate([prompt, answer]))
    loss, first = float(found.losses[begin:].mean()), found.likeliest[begin]
    for tokens in (answer, *(other for other in others if other[0] == first)):
        if tokens is not answer:
            found = ask(np.concatenate([prompt, tokens]))
        if (found.likeliest[begin:] == tokens).all():
            return True, loss
    return False, loss

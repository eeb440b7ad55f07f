"""Passkeys: a number is stated once in a text and asked for at its end (arXiv 2305.16300).

    … The pass key is 48213. Remember it. 48213 is the pass key. …
    What is the pass key? The pass key is 48213

The sentences are those of that paper; the text around them is from the corpus, as a small model
knows no other. PI, YaRN and LongRoPE (arXiv 2306.15595, 2309.00071, 2402.13753) use it to measure
how far back a model can look. A small model learns the task only from rows that ask: `planted` puts
such questions into training rows. n tokens of a row, k of a key.
"""

import numpy as np

from pe_jax.training.tokenizer import Tokenizer
from pe_jax.validation import require

STATEMENT = (b"\nThe pass key is ", b". Remember it. ", b" is the pass key.\n")
QUESTION = b"\nWhat is the pass key? The pass key is "
DIGITS = 5
WEIGHT = 30.0  # in training, of tokens that repeat a key: they are few, but only they look back


def draw_key(rng: np.random.Generator) -> bytes:
    """Five digits, each uniform."""
    return f"{rng.integers(10**DIGITS):0{DIGITS}d}".encode()


def room(tokens: Tokenizer) -> int:
    """Tokens that the sentences take with any key; a digit is one token at most."""
    return sum(len(tokens.encode(part)) for part in (*STATEMENT, QUESTION)) + 3 * DIGITS


def check(length: int, tokens: Tokenizer) -> None:
    """Raises ConfigError where rows of `length` tokens are too short for the sentences."""
    fix = f"a passkey needs {room(tokens) - 1}; use longer rows"
    require(length >= room(tokens), "length", length - 1, fix)


def plant(row: np.ndarray, tokens: Tokenizer, key: bytes, depth: float) -> np.ndarray:
    """Overwrites tokens of a row: the key at a depth, the question and answer at the end.

    The key is encoded separately, so that it has the same tokens each time.

    Args:
      row: int32 [n], changed in place.
      tokens: tokenizer of the row.
      key: digits.
      depth: 0 is the beginning of the row, 1 right before the question.

    Returns:
      Indices of the key's tokens, int [3, k]: stated, repeated, and the answer, which ends the row.

    Raises:
      ConfigError: the row is too short for the sentences.
    """
    check(len(row), tokens)
    answer = tokens.encode(key)
    before, between, after = (tokens.encode(part) for part in STATEMENT)
    statement = np.concatenate([before, answer, between, answer, after])
    question = np.concatenate([tokens.encode(QUESTION), answer])
    start = round(depth * (len(row) - len(statement) - len(question)))
    row[start : start + len(statement)] = statement
    row[len(row) - len(question) :] = question
    first = start + len(before)
    begins = np.array([first, first + len(answer) + len(between), len(row) - len(answer)])
    return begins[:, None] + np.arange(len(answer))


def planted(row: dict[str, np.ndarray], rng: np.random.Generator, tokens: Tokenizer) -> dict:
    """A packed row, with a passkey in its longest piece of a document.

    The key and the question are at random positions in it, the key before the question. Where that
    piece is too short, the row is unchanged. `weights` float32 is 1, and `WEIGHT` where the key is
    repeated: without it a model of two layers found no passkey in 3,000 steps; with weight on the
    answer alone a model of three layers did within 1,000, for two seeds of three. With weight on
    both, and wider heads, three of three did within 700, as it learns to copy from near first.
    """
    pieces, counts = np.unique(row["tokens_segment_ids"], return_counts=True)
    key, depth, share = draw_key(rng), rng.random(), rng.random()
    need, longest = room(tokens), int(counts.max())
    weights = np.ones(len(row["tokens"]), np.float32)
    if longest < need:
        return {**row, "weights": weights}
    start = int(np.argmax(row["tokens_segment_ids"] == pieces[counts.argmax()]))
    end = start + need + round(share * (longest - need))
    changed = row["tokens"].copy()
    _, *repeats = plant(changed[start:end], tokens, key, depth)
    weights[start + np.concatenate(repeats)] = WEIGHT
    return {**row, "tokens": changed, "weights": weights}


def questions(
    text: np.ndarray, tokens: Tokenizer, depths: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A question for each depth and window, each with a separate key.

    Args:
      text: windows to plant in, int32 [W, n + 1].
      tokens: tokenizer of the text.
      depths: number of depths, evenly from 0 to 1.
      seed: of the keys.

    Returns:
      Rows int32 [depths · W, n + 1], depth by depth, whose last tokens are the answer; and which
      of the n targets belong to the answer: bool [depths · W, n].
    """
    rng = np.random.default_rng(seed)
    rows = np.tile(text, (depths, 1))
    in_answer = np.zeros(rows.shape, bool)
    row_depths = np.repeat(np.linspace(0, 1, depths), len(text))
    for row, answer, depth in zip(rows, in_answer, row_depths, strict=True):
        answer[plant(row, tokens, draw_key(rng), depth)[-1]] = True
    return rows, in_answer[:, 1:]

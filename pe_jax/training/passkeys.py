"""Passkeys: a number is told once in a text and asked for at its end (arXiv 2305.16300).

    … The pass key is 48213. Remember it. 48213 is the pass key. …
    What is the pass key? The pass key is 48213

The sentences are those of that paper; the text around them is the corpus' own, as a small model
knows no other. PI, YaRN and LongRoPE (arXiv 2306.15595, 2309.00071, 2402.13753) measure with it how
far back a model can look. A model that is not large learns it only from text that asks: `planted`
puts such questions into training rows. n tokens of a row, k of an answer.
"""

import numpy as np

from pe_jax.training.tokenizer import Tokenizer

TOLD = (b"\nThe pass key is ", b". Remember it. ", b" is the pass key.\n")
ASKED = b"\nWhat is the pass key? The pass key is "
DIGITS = 5
WEIGHT = 30.0  # of each token of an answer in training: few of all, and alone in asking for a key


def draw_key(rng: np.random.Generator) -> bytes:
    """Five digits, each as likely as any other."""
    return f"{rng.integers(10**DIGITS):0{DIGITS}d}".encode()


def room(tokens: Tokenizer) -> int:
    """So many tokens hold the sentences with any key, a digit being one token at most."""
    return sum(len(tokens.encode(part)) for part in (*TOLD, ASKED)) + 3 * DIGITS


def sentences(tokens: Tokenizer, key: bytes) -> tuple[np.ndarray, np.ndarray, int]:
    """What tells the key, what asks for it with its answer, and k: int32 ids.

    The key is encoded by itself, so that it has the same tokens each time.
    """
    answer = tokens.encode(key)
    before, between, after = (tokens.encode(part) for part in TOLD)
    told = np.concatenate([before, answer, between, answer, after])
    return told, np.concatenate([tokens.encode(ASKED), answer]), len(answer)


def check(length: int, tokens: Tokenizer) -> None:
    """Raises ValueError where rows of so many tokens are too short for the sentences."""
    if length < room(tokens):
        raise ValueError(
            f"length={length - 1}: a passkey needs {room(tokens) - 1}; use longer rows"
        )


def plant(row: np.ndarray, tokens: Tokenizer, key: bytes, depth: float) -> int:
    """Writes over tokens of a row: the key at a depth, the question and answer at the end.

    Args:
      row: int32 [n], changed in place.
      tokens: of the row.
      key: digits.
      depth: 0 is the beginning of the row, 1 right before the question.

    Returns:
      k: the answer is the last k tokens.

    Raises:
      ValueError: the row is too short for the sentences.
    """
    check(len(row), tokens)
    told, asked, answer = sentences(tokens, key)
    spare = len(row) - len(told) - len(asked)
    start = round(depth * spare)
    row[start : start + len(told)] = told
    row[len(row) - len(asked) :] = asked
    return answer


def planted(row: dict[str, np.ndarray], rng: np.random.Generator, tokens: Tokenizer) -> dict:
    """A packed row, with a passkey in its longest piece of a document.

    The key and the question may stand anywhere in it, the key before the question. Where that piece
    is too short, the row stays as it is. `weights` float32 is 1, and `WEIGHT` on the answer,
    without which a model of two layers had found no passkey after 3,000 steps; asked in half of the
    rows, one of three layers had found none after 1,200.
    """
    pieces, counts = np.unique(row["tokens_segment_ids"], return_counts=True)
    key, depth, place = draw_key(rng), rng.random(), rng.random()
    need, longest = room(tokens), int(counts.max())
    weights = np.ones(len(row["tokens"]), np.float32)
    if longest < need:
        return {**row, "weights": weights}
    start = int(np.argmax(row["tokens_segment_ids"] == pieces[counts.argmax()]))
    end = start + need + round(place * (longest - need))
    changed = row["tokens"].copy()
    weights[end - plant(changed[start:end], tokens, key, depth) : end] = WEIGHT
    return {**row, "tokens": changed, "weights": weights}


def questions(
    text: np.ndarray, tokens: Tokenizer, depths: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """A question for each depth and window, all with keys of their own.

    Args:
      text: windows to plant in, int32 [W, n + 1].
      tokens: of the text.
      depths: how many, evenly from 0 to 1.
      seed: of the keys.

    Returns:
      Rows int32 [depths · W, n + 1], depth by depth, whose last tokens are the answer; and which
      of the n targets are the answer's: bool [depths · W, n].
    """
    rng = np.random.default_rng(seed)
    rows = np.tile(text, (depths, 1))
    where = np.repeat(np.linspace(0, 1, depths), len(text))
    sizes = [plant(row, tokens, draw_key(rng), d) for row, d in zip(rows, where, strict=True)]
    places = np.arange(rows.shape[1] - 1)
    return rows, places >= places.size - np.asarray(sizes)[:, None]

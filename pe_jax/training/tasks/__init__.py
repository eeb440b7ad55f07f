"""Tasks that isolate position: generated on the device from a key, trained short, tested long.

    batch = tasks.batch(tasks.TASKS["reverse_string"], key, 64, low=1, high=40)

One line per task: the fifteen of Delétang et al. and Ruoss et al. (arXiv 2207.02098, 2305.16843),
two of Kazemnejad et al. (2305.19466: copy and reverse, with 16 symbols for their 100; their parity
is parity_check), retrieval (associative recall of one key or of all, MQAR, a passkey, needles,
variables, selective copying, facts among other words as in BABILong), counting words (RULER), state
tracking (also word problems of A5 and S5), and indexing by place, by content or by both
(2509.10534).
`synthetic:NAME` trains a decoder on any of them (`experiments.train`, `compare`) except a5 and
s5, whose answers are not next tokens; `experiments.tasks` compares encodings on all.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pe_jax.numerics.arrays import in_32_bits
from pe_jax.training.tasks import (
    arithmetic,
    automata,
    groups,
    indexing,
    lookup,
    numbers,
    strings,
    words,
)
from pe_jax.training.tasks.base import BOS, EOS, PAD, SEP, SPECIAL, Task, decoder_row, encoder_row
from pe_jax.validation import ConfigError

__all__ = ["BOS", "EOS", "PAD", "SEP", "SPECIAL", "TASKS", "VOCAB", "Task"]
__all__ += ["batch", "examples", "train_rows"]

SYMBOLS = 16  # of most strings
_TRAIN, _EVAL = range(2)  # separate streams for any seed


def _string(short: str, symbols: int, *parts: Any) -> Task:
    draw = functools.partial(strings.write, symbols=symbols, parts=parts)
    return Task(short, draw, symbols, lambda n: len(parts) * n)


def _needles(short: str, queries: int, values: int) -> Task:
    draw = functools.partial(lookup.needles, queries=queries, values=values)
    least, most = 4 * queries * values + queries, 4 * lookup.NEEDLES + 4 * values - 1 + queries
    slots = lookup.DIGITS * queries * values
    return Task(short, draw, 10 + lookup.NEEDLES, lambda n: slots, shortest=least, longest=most)


def _continued(task: Task) -> Task:
    """The task without a SEP in decoders, which puts a search by position before each answer."""
    return dataclasses.replace(task, short=f"{task.short}_continued", continues=True)


def _group(short: str, degree: int, even: bool) -> Task:
    draw = functools.partial(groups.prefix_products, degree=degree, even=even)
    return Task(short, draw, len(groups.elements(degree, even)), lambda n: 0)


_LETTERS = indexing.LETTERS + 2 * indexing.REACH + 1
_NEEDLES = _needles("needles", 1, 1)
_VARIABLES = Task(
    "variables", lookup.variables, 10 + lookup.NAMES, shortest=3, longest=2 * lookup.NAMES + 2
)
_FORWARD, _BACKWARD, _MOD = strings.forward, strings.backward, arithmetic.MODULUS
_ALL = (
    # regular
    Task("even_pairs", automata.even_pairs, 2),
    Task("modular_arithmetic", arithmetic.modular_arithmetic, _MOD + 3),
    Task("parity_check", automata.parity_check, 2),
    Task("cycle_navigation", automata.cycle_navigation, automata.CYCLE),
    # context-free
    Task("stack_manipulation", automata.stack_manipulation, 5, lambda n: n + 1, stops=True),
    _string("reverse_string", 2, _BACKWARD),
    Task("modular_arithmetic_brackets", arithmetic.modular_arithmetic_brackets, _MOD + 5),
    Task("solve_equation", arithmetic.solve_equation, _MOD + 7, shortest=3),
    # context-sensitive
    _string("duplicate_string", 2, _FORWARD, _FORWARD),
    Task("missing_duplicate", lookup.missing_duplicate, 3, shortest=2),
    _string("odds_first", 2, strings.odds),
    Task("binary_addition", numbers.addition, 3, lambda n: n, stops=True, shortest=3),
    Task("binary_multiplication", numbers.multiplication, 3, lambda n: n, stops=True, shortest=3),
    Task("compute_sqrt", numbers.square_root, 2, lambda n: (n + 1) // 2),
    _string("bucket_sort", 5, strings.ascending),
    # arXiv 2305.19466
    _string("copy", SYMBOLS, _FORWARD),
    _string("reverse", SYMBOLS, _BACKWARD),
    # retrieval
    Task("recall", lookup.recall, 2 * lookup.KEYS, shortest=3),
    Task("passkey", lookup.passkey, lookup.MARK + 1, lambda n: lookup.PASSKEY, shortest=5),
    Task(
        "recall_all",
        lookup.recall_all,
        2 * lookup.KEYS,
        lambda n: n // 3,
        shortest=3,
        longest=3 * lookup.KEYS + 2,
    ),
    Task(
        "mqar", lookup.mqar, 2 * lookup.KEYS, lambda n: 0, shortest=3, longest=3 * lookup.KEYS + 2
    ),
    _NEEDLES,
    _VARIABLES,
    *map(_continued, (_NEEDLES, _VARIABLES)),
    Task(
        "selective_copying",
        lookup.selective_copying,
        lookup.BLANK + 1,
        lambda n: lookup.COPIED,
        shortest=lookup.COPIED,
    ),
    _needles("needles_queries", 2, 1),
    _needles("needles_values", 1, 2),
    Task(
        "facts",
        lookup.facts,
        lookup.PEOPLE + lookup.VERBS + lookup.PLACES + lookup.FILLERS,
        shortest=4,
    ),
    # counting
    Task(
        "common_words",
        words.common_words,
        words.WORDS,
        lambda n: words.COMMON,
        shortest=words.COMMON * words.REPEATS,
        longest=words.COMMON * (words.REPEATS - 1) + words.WORDS,
    ),
    Task(
        "frequent_words",
        words.frequent_words,
        words.CODED,
        lambda n: len(words.SHARES),
        shortest=sum(words.SHARES),
    ),
    # state tracking
    Task("permutations", automata.permutations, automata.OBJECTS, lambda n: automata.OBJECTS),
    _group("a5", 5, even=True),
    _group("s5", 5, even=False),
    Task("flip_flop", automata.flip_flop, automata.READ + 1, shortest=3),
    # what against where
    Task("index_place", indexing.index_place, _LETTERS, shortest=2, longest=indexing.LETTERS + 1),
    Task(
        "index_content", indexing.index_content, indexing.NAMES * (indexing.FORMS + 1), shortest=2
    ),
    Task("index_both", indexing.index_both, _LETTERS, shortest=3, longest=indexing.LETTERS + 2),
)
TASKS = {task.short: task for task in _ALL}
# One for all tasks but those with a symbol per group element, so that they can share a program
VOCAB = max(task.vocab for task in _ALL if not task.in_place)


@in_32_bits
@functools.partial(jax.jit, static_argnames=("task", "count", "low", "high", "causal"))
def batch(
    task: Task, key: jax.Array, count: int, low: int, high: int, causal: bool = False
) -> dict[str, jax.Array]:
    """Rows whose questions have lengths drawn uniformly from low to high.

    Args:
      task: from `TASKS`.
      key: the same key gives the same rows.
      count: B.
      low: least length; at least the task's shortest.
      high: greatest length; T is what the longest row needs.
      causal: whether the rows are for a decoder; they then end before the last target. Those of a
        task `in_place` are the same for both.

    Returns:
      `tokens`, `targets` (at the same indices), `segments` (1; 0 is padding) int32 [B, T], and
      `weights` float32 [B, T]: 1 on the answer.

    Raises:
      ConfigError: there are no questions of such lengths.
    """
    if not (task.defined(low) and task.defined(high) and low <= high):
        limits = f"{task.shortest} to {task.longest or 'any'}"
        raise ConfigError(f"low={low}, high={high}: lengths of {task.short} go from {limits}")

    def row(key):
        keys = jax.random.split(key)
        length = jax.random.randint(keys[0], (), low, high + 1)
        example = task.draw(keys[1], length, high)
        if task.in_place or not causal:
            tokens, targets, weights, segments = encoder_row(task, example)
        else:
            whole, weights = decoder_row(task, example)
            tokens, targets, weights = whole[:-1], whole[1:], weights[1:]
            segments = (tokens != PAD).astype(jnp.int32)
        return {"tokens": tokens, "targets": targets, "segments": segments, "weights": weights}

    return jax.vmap(row)(jax.random.split(key, count))


@in_32_bits
@functools.partial(jax.jit, static_argnames=("task", "stream", "low", "high", "width"))
def _decoder_rows(task: Task, stream: int, seed, index, low: int, high: int, width: int):
    def row(index):  # in two halves: there may be more than 2**32 rows
        key = jax.random.fold_in(jax.random.key(seed), stream)
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, index[0]), index[1]))
        length = jax.random.randint(keys[0], (), low, high + 1)
        return decoder_row(task, task.draw(keys[1], length, high), width)

    tokens, weights = jax.vmap(row)(index)
    return {"tokens": tokens, "segments": (tokens != PAD).astype(jnp.int32), "weights": weights}


def _rows(task: Task, stream: int, seed: int, index, low: int, high: int, width: int) -> dict:
    index = np.asarray(index, np.int64)
    halves = np.stack([index >> 32, index & 0xFFFFFFFF], axis=-1).astype(np.uint32)
    return jax.device_get(_decoder_rows(task, stream, seed, halves, low, high, width))


def train_rows(task: Task, seed: int, index: Any, width: int) -> dict[str, np.ndarray]:
    """Rows of endless training data for a decoder, with questions of any length that fits.

    Args:
      task: from `TASKS`.
      seed: chooses the questions, with the index.
      index: numbers of the rows, integers [B].
      width: T, including the last target; at least what the shortest question needs.

    Returns:
      `tokens` and `segments` int32 [B, T], and `weights` float32 [B, T].
    """
    return _rows(task, _TRAIN, seed, index, task.shortest, task.fitting(width), width)


def examples(task: Task | str, count: int, length: int, seed: int) -> dict[str, np.ndarray]:
    """Rows to evaluate a decoder on, with questions of one length, from a separate stream.

    Args:
      task: A task, or its name in `TASKS`.
      count: Number of rows.
      length: Symbols in each question.
      seed: Chooses the questions.

    Returns:
      `tokens` and `segments` int32 [count, task.decoded(length)], and `weights` float32
      of that shape, 1 on the answer and its EOS as targets.

    Raises:
      ConfigError: `count` is below 1, or there are no questions of that length.
    """
    task = TASKS[task] if isinstance(task, str) else task
    if count < 1 or not task.defined(length):
        limits = f"at least {task.shortest}" + (f", at most {task.longest}" * bool(task.longest))
        raise ConfigError(f"count={count}, length={length}: pass at least 1, and {limits}")
    return _rows(task, _EVAL, seed, np.arange(count), length, length, task.decoded(length))

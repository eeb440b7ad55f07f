"""Decoding gives what the whole row gives: one by one, after a prompt, in chunks, with padding.

B batch, T tokens, V vocabulary, n tokens of one call.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pe_jax.conformance.claims import Declared
from pe_jax.conformance.probes import PADDING
from pe_jax.conformance.subject import Subject, array, taken


def decoding(subject: Subject, claims: Declared, start: Callable, step: Callable) -> None:
    """Decodes the subject's row from an empty cache, in several ways."""
    names, n = taken(step), subject.length
    prompt = n // 3
    plans = {
        "decode one by one": [1] * n,
        "decode after a prompt": [prompt] + [1] * (n - prompt),
        "decode in chunks": [4] * (prompt // 4) + [1] * 4 + [4] * n,
    }
    whole = True
    for name, plan in plans.items():
        ends = np.minimum(np.cumsum(plan), n)
        sizes = [int(size) for size in np.diff(ends, prepend=0) if size]
        y = _decoded(subject, start(2, n), step, names, subject.x, subject.at, sizes)
        cause = "the cache, or the positions of its tokens"
        if subject.one_off and not subject.same(y, subject.y):
            cause = _which_positions(subject, y, sizes) or cause
        whole = subject.compare(name, y, cause) and whole
    if "mask" not in names:
        return subject.add("decode padded", "skipped", "step takes no mask")
    x = np.concatenate([subject.draw(2, PADDING), subject.x], 1)
    mask = np.tile((np.arange(n + PADDING) >= PADDING).astype(np.int32), (2, 1))
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    sizes = [prompt + PADDING] + [1] * (n - prompt)
    y = _decoded(subject, start(2, n + PADDING), step, names, x, positions, sizes, mask)
    cause, counted = "padding is seen, or counted from the second call on", subject.at[0].copy()
    counted[prompt:] += PADDING
    if not whole:
        cause = "as above"
    elif subject.one_off and subject.at_positions(counted, y[:, PADDING:]):
        cause = "padding is counted from the second call on"
    sure = not claims.absolute or "positions" in subject.takes
    subject.compare("decode padded", y[:, PADDING:], cause, accuse=sure)


def _decoded(
    subject: Subject,
    cache: Any,
    step: Callable,
    names: tuple[str, ...],
    x: np.ndarray,
    positions: np.ndarray,
    sizes: list[int],
    mask: np.ndarray | None = None,
) -> np.ndarray:
    """The logits [2, T, V] of calls of these sizes; `mask` is that of all tokens so far."""
    out, end = [], 0
    for size in sizes:
        begin, end = end, end + size
        given = {"positions": (positions[:, begin:end] + subject.first).astype(np.int32)}
        given |= {} if mask is None else {"mask": mask[:, :end]}
        given = {name: value for name, value in given.items() if name in names}
        y, cache = step(cache, x[:, begin:end], **given)
        out.append(array(y))
        subject.calls += 1
    return np.concatenate(out, 1)


def _which_positions(subject: Subject, y: np.ndarray, sizes: list[int]) -> str:
    """The wrong positions with which a whole row gives what decoding gave, in words."""
    call = np.repeat(np.arange(len(sizes)), sizes)
    inside = np.concatenate([np.arange(size) for size in sizes])
    readings = {
        "positions restart at each call": inside,
        "positions after the first call are one too high": subject.at[0] + (call > 0),
        "positions after the first call are one too low": subject.at[0] - (call > 0),
        "positions are the numbers of calls": call,
        "positions are all 0": 0 * call,
    }
    for words, positions in readings.items():
        if subject.at_positions(positions, y):
            return words
    return ""

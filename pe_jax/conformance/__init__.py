"""Checks the positions of anybody's model from outside: laws that a right one cannot break.

    report = pe_jax.conformance.check(model, config, vocab=32000)
    print(report); assert report.ok

NumPy alone looks at the results, so a model may be of JAX, PyTorch or NumPy. Each probe gives one
row: held, broken, blind (it could not have seen a fault), a note, or skipped with the reason.
B batch, T tokens, V vocabulary, D model width, H query heads, K key heads, E head width.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pe_jax.conformance import attention, decoding, frequencies, probes, sight
from pe_jax.conformance.attention_reader import read_attention
from pe_jax.conformance.claims import declared
from pe_jax.conformance.report import Report, Row
from pe_jax.conformance.subject import Subject, taken
from pe_jax.validation import is_int, refuse, require

__all__ = ["Report", "Row", "check", "pytest", "read_attention"]


def check(
    model: Callable,
    config: Any = None,
    *,
    vocab: int | tuple[int, int] | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    start: Callable | None = None,
    step: Callable | None = None,
    hidden: Callable | None = None,
    text: Any = None,
    length: int = 48,
    seed: int = 0,
) -> Report:
    """Runs every probe that the model's function allows.

    Args:
      model: tokens int32 [B, T] → logits [B, T, V] of a decoder without dropout. Of `positions`,
        `mask` (1: a token, 0: padding) and `segments` (the document of each token), int32 [B, T],
        it is given those that are names of its arguments; nothing may see padding. Or attention:
        (q [B, T, H, E], k and v [B, T, K, E]) → [B, T, H, E], before anything is rotated.
      config: a Hugging Face config or its dict; a sequence of `pe_jax.hf.LayerEncoding` or of
        encodings (with windows, one per layer), a spec string or an encoding; None: nothing is
        claimed, and the report says what can be told. For attention that of one layer.
      vocab: how many tokens there are, or the first that may be drawn and the one after the last.
      heads: H, of attention.
      kv_heads: K, of attention; None: H.
      head_dim: E, where `config` are encodings.
      start: (batch, capacity) → an empty cache.
      step: (cache, tokens [B, n]) → (logits [B, n, V], cache); of `positions` [B, n] and `mask`
        [B, tokens so far] it is given those that it names.
      hidden: tokens → L + 1 states [B, T, D]: after the embedding and after each layer; with them
        the window of each layer up to the first full one is seen.
      text: int tokens [T] or [B, T]: their loss at growing offsets is noted.
      length: T of the rows: at least 24, and more than the windows that shall be seen.
      seed: of the tokens that are drawn.

    Raises:
      ValueError: logits of another shape, or not finite; a config that is refused; `start` without
        `step`; `length` below 24; no `vocab`, or for attention no `heads` or no `config`.
      TypeError: `config` is none of these.
    """
    require(is_int(length, 24), "length", length, "pass an integer of at least 24")
    if (start is None) != (step is None):
        refuse("start", start, "pass start and step, or neither")
    claims = declared(config, head_dim)
    if list(taken(model))[:3] == ["q", "k", "v"]:
        if heads is None or not claims.layers:
            refuse("heads", heads, "attention needs heads and a config; read_attention needs none")
        return Report(attention.compared(model, claims.layers, heads, kv_heads or heads), {})
    if vocab is None:
        refuse("vocab", vocab, "pass the number of tokens")
    low, high = vocab if isinstance(vocab, tuple) else (0, vocab)
    require(high - low >= 2, "vocab", vocab, "pass an integer of at least 2, or (low, high)")
    subject = Subject(model, (low, high), length, seed)
    if subject.repeats:
        absolute = probes.absolute(subject, claims)
        probes.shifts(subject, claims, absolute)
        if text is not None:
            probes.passage(subject, np.asarray(text))
        probes.padding(subject, claims)
        probes.packing(subject)
        if start is not None and step is not None:
            decoding.decoding(subject, claims, start, step)
        else:
            subject.add("decode", "skipped", "no start and step")
        sight.probe(subject, claims, hidden)
        frequencies.probe(subject, claims, absolute)
    else:
        subject.add("repeatable", "broken", "the same call differs: is dropout on?")
    tolerance = f"{subject.tol / subject.unit:.1g} units"
    return Report(tuple(subject.rows), {"tolerance": tolerance, "calls": subject.calls})


def pytest(model: Callable, config: Any = None, **options: Any) -> Report:
    """`check` for a test: the report, or an AssertionError that shows the table.

        def test_positions():
            pe_jax.conformance.pytest(logits, config, vocab=32000)

    Args:
      model: as for `check`, like the other arguments.
      config: as for `check`.
      **options: as for `check`.

    Raises:
      AssertionError: a law is broken.
    """
    report = check(model, config, **options)
    if not report.ok:
        raise AssertionError(f"positions are wrong:\n{report}")
    return report

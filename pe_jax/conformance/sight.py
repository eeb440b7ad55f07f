"""What each token sees: nothing later, nothing beyond the window, all that is within.

T tokens, L layers (or 1: the logits), S tokens that are changed.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from pe_jax.conformance.claims import Declared
from pe_jax.conformance.subject import Subject, array


def probe(subject: Subject, claims: Declared, hidden: Callable | None) -> None:
    """Changes a token of one row and looks which others change, in logits or after each layer.

    The other row shows what that does to numbers by itself, where rows share experts.
    """
    n, states = subject.length, hidden or (lambda tokens: [subject.model(tokens)])
    base = [array(h) for h in states(subject.x)]
    base = base if hidden is None else base[1:]
    sources = sorted({0, 1, n // 6, n // 3, n // 2, n - 3, n - 1})
    diff = np.zeros((2, len(base), len(sources), 2, n))  # of two trials, of the changed row first
    for trial, i in np.ndindex(2, len(sources)):
        x = subject.x.copy()
        x[0, sources[i]] = subject.other(x[0, sources[i] : sources[i] + 1])[0]
        pairs = zip([array(h) for h in states(x)][-len(base) :], base, strict=True)
        diff[trial, :, i] = [np.abs(a - b).max(-1) for a, b in pairs]
        subject.calls += 1
    noise = 4 * diff[:, :, :, 1].max((0, 2, 3))
    least = np.maximum(noise, 2e-6 * np.array([h.std() for h in base]))[:, None, None]
    size = diff[:, :, :, 0].max(0)
    seen, sure = size > noise[:, None, None], size > least
    if all(layer.causal for layer in claims.layers):
        _future(subject, sure[-1], sources)
        half = subject(subject.x[:, : n // 2])
        diff = np.abs(half - subject.y[:, : n // 2]).max((0, 2))
        subject.judge("prefix = row", diff, "a longer row changes its start")
    lookback = np.array([[np.flatnonzero(t)[-1:].sum() for t in layer] for layer in seen])
    lookback -= np.array(sources)
    ends = n - 1 - np.array(sources)
    far = [f"{b.max()} back" if (b < ends)[2:-2].any() else "all" for b in lookback]
    words = f"sees {far[-1]}" if hidden is None else f"layers see {', '.join(far)}"
    if not claims.plain:
        return subject.add("window", "note", words)
    if hidden is not None and len(seen) != len(claims.layers):
        fix = f"the config has {len(claims.layers)}; give the embedding's and each layer's"
        raise ValueError(f"hidden gives the states after {len(seen)} layers: {fix}")
    _window(subject, claims, seen, sure, sources, words)


def _future(subject: Subject, seen: np.ndarray, sources: list[int]) -> None:
    """No later token is seen: bool [S, T], of the sources."""
    early = [(s - t, t) for s, row in zip(sources, seen, strict=True) for t in np.flatnonzero(row)]
    ahead = [(distance, t) for distance, t in early if distance > 0]
    if not ahead:
        return subject.add("causal", "blind" if subject.blind else "held")
    first = f"token {min(t for _, t in ahead)}"
    words = f"sees up to {max(d for d, _ in ahead)} tokens ahead"
    subject.add("causal", "broken", words, first)


def _window(
    subject: Subject,
    claims: Declared,
    seen: np.ndarray,
    sure: np.ndarray,
    sources: list[int],
    words: str,
) -> None:
    """What is seen, bool [L, S, T], is what the config lets be seen, or what another window does.

    `sure` is what is seen beyond rounding. That less is seen is a fault only where another window
    explains all of it: a weight can be too small to make a difference.
    """
    n, layers = subject.length, claims.layers
    later = np.arange(n) >= np.array(sources)[:, None]

    def wanted(windows: list, chunks: list, first: tuple = claims.first_tokens) -> np.ndarray:
        fields = zip(layers, windows, chunks, strict=True)
        own = [dataclasses.replace(x, window=w, chunk=c) for x, w, c in fields]
        whole = dataclasses.replace(claims, layers=tuple(own), first_tokens=first).visible(n)
        return np.stack(whole[-len(seen) :])[:, :, sources].swapaxes(1, 2) & later

    windows: list = [x.window for x in layers]
    chunks: list = [x.chunk for x in layers]
    want, seen = wanted(windows, chunks), seen & later
    if (want == seen).all():
        hides = [w is not None and w < n for w in (*windows, *chunks)]
        hidden = any(hides) and (want[-1] == later).all() and len(seen) == 1
        return subject.add("window", "blind" if hidden else "held" if any(hides) else "note", words)
    readings: dict[str, tuple] = {"no window": ([None] * len(layers), chunks)}
    for count in range(5):
        readings[f"{count} first tokens seen"] = windows, chunks, (count,) * len(layers)
    for size in range(1, n):
        readings[f"windows of {size}"] = [w and size for w in windows], chunks
        readings[f"chunks of {size}"] = windows, [c and size for c in chunks]
        readings[f"a window of {size} in every layer"] = [size] * len(layers), chunks
    reading = next((name for name, x in readings.items() if (wanted(*x) == seen).all()), "")
    beyond = (sure & later & ~want).any()
    told = dict.fromkeys(
        f"{w or c or 'none'}" + f" and {k} first tokens" * (k > 0)
        for w, c, k in zip(windows, chunks, claims.first_tokens, strict=True)
    )
    cause = f"reads {reading or words}; declared {', '.join(told)}"
    layer = int(np.argwhere(seen != want)[0, 0])
    first = f"layer {layer}" if len(seen) > 1 else ""
    subject.add("window", "broken" if beyond or reading else "note", cause, first)

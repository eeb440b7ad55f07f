"""Laws that a whole row shows: absolute or relative, shifts, padding, packing.

Each probe adds rows to the subject. T tokens, V vocabulary.
"""

import numpy as np

from pe_jax.conformance.claims import Declared
from pe_jax.conformance.subject import Subject

FAR = 2**16
PADDING = 5


def absolute(subject: Subject, claims: Declared) -> bool | None:
    """Whether a token alone depends on its position; None: that cannot be told."""
    repeated = subject(np.full((1, subject.length), subject.x[0, 0], np.int32))
    varies = not subject.same(repeated, repeated[:, :1])
    found = None if varies else False
    if "positions" in subject.takes:
        tokens = np.full((6, 1), subject.x[0, 0], np.int32)
        alone = subject(tokens, positions=np.arange(6)[:, None])
        found = not subject.same(alone, alone[:1])
    names = {True: "absolute", False: "relative, or none", None: "unknown"}
    words = names[found]
    if claims.plain and found is not None and claims.absolute != found:
        subject.add(
            "absolute or relative", "broken", f"a token alone says {words}; declared is not"
        )
    else:
        subject.add(
            "absolute or relative", "held" if claims.plain and found is not None else "note", words
        )
    if claims.plain and claims.sink:
        cause = "" if varies else "no sink: over equal tokens the weights sum to 1"
        subject.add("sink", "held" if varies else "broken", cause)
    elif claims.plain and not claims.absolute:
        cause = "weights do not sum to 1, or something is added by position" if varies else ""
        subject.add("equal tokens", "broken" if varies else "held", cause)
    return found


def shifts(subject: Subject, claims: Declared, absolute: bool | None) -> None:
    """A shift of all positions changes nothing, or what it should."""
    if "positions" not in subject.takes:
        return subject.add("shift", "skipped", "the model takes no positions")
    y = subject(subject.x, positions=subject.at)
    if subject.first:
        subject.add("first position", "note", f"the model calls it {subject.first}")
    subject.compare("0, 1, 2, …", y, "not what is used when none are passed", accuse=False)
    if subject.one_off == 0:
        bad = claims.plain and claims.reads
        verdict = "broken" if bad else "note"
        return subject.add("positions are read", verdict, "they change nothing")
    if claims.plain and claims.positionless and subject.one_off > 5 * subject.tol:
        subject.add("positions are read", "broken", "they change logits; declared is none at all")
    if absolute:
        return subject.add("shift", "skipped", "absolute: a shift changes logits, as it should")
    sure = claims.plain and claims.relative and not claims.normalised
    for shift in (1, 7, 1000, FAR):
        name, rounding = f"shift {shift}", 4 * 2.0**-22 * shift * subject.one_off
        if claims.limit and shift + subject.length >= claims.limit:
            subject.add(name, "skipped", "frequencies depend on the length")
            continue
        try:
            y = subject(subject.x, positions=subject.at + shift)
        except Exception as error:  # a table that ends; in JAX it would be clamped
            subject.add(name, "skipped", f"positions are refused: {type(error).__name__}")
            continue
        if claims.sharpened:
            if shift == FAR and claims.plain:
                same = np.abs(y - subject.y).max() <= max(subject.tol, rounding)
                cause = "late queries have no factor" if same else ""
                subject.add("temperature", "broken" if same else "held", cause)
            continue
        cause = "angles are rounded, or the model is not relative"
        good = subject.compare(name, y, cause, allowed=rounding, accuse=sure)
        if not good and shift >= 1000 and subject.off(shift) < 0.1 * subject.one_off:
            subject.rows.pop()
            cause = f"positions {shift} and {shift + 1} are the same: half precision"
            subject.compare(name, y, cause, allowed=rounding)


def passage(subject: Subject, text: np.ndarray) -> None:
    """The loss of a fixed passage at growing offsets, nats per token: a note."""
    text, losses = np.atleast_2d(text), {}
    for offset in (0, 1000, 8192, FAR):
        at = np.broadcast_to(np.arange(text.shape[1]) + offset, text.shape)
        try:
            y = subject(text, positions=at)[:, :-1]
        except Exception as error:  # a table that ends
            losses[offset] = type(error).__name__
            continue
        top = y.max(-1, keepdims=True)
        right = np.take_along_axis(y - top, text[:, 1:, None], -1)[..., 0]
        losses[offset] = f"{(np.log(np.exp(y - top).sum(-1)) - right).mean():.4f}"
    words = ", ".join(f"{loss} at {offset}" for offset, loss in losses.items())
    subject.add("loss by offset", "note", words)


def padding(subject: Subject, claims: Declared) -> None:
    """A padded row is the row alone; on the left, where a model could know its positions."""
    if "mask" not in subject.takes:
        return subject.add("padding", "skipped", "the model takes no mask")
    n = subject.length
    for side in ("right", "left"):
        real = np.arange(n + PADDING) < n
        real = real[::-1] if side == "left" else real
        x = subject.draw(2, n + PADDING)
        x[:, real] = subject.x
        mask = np.tile(real, (2, 1))
        positions = np.maximum(mask.cumsum(1) - 1, 0)
        y, cause = subject(x, mask=mask, positions=positions)[:, real], "padding is seen"
        if side == "left" and subject.one_off and not subject.same(y, subject.y):
            counted = subject(subject.x, positions=subject.at + PADDING)
            cause = "padding is counted" if subject.same(y, counted) else cause
        sure = side == "right" or not claims.absolute or "positions" in subject.takes
        cause = cause if sure else "padding is counted: absolute, and the model takes no positions"
        good = subject.compare(f"{side} padding", y, cause, accuse=sure)
        if side == "left" and good and subject.one_off:
            y = subject(x, mask=mask)[:, real]
            subject.compare("left, mask alone", y, "pass positions with it", accuse=False)


def packing(subject: Subject) -> None:
    """Packed documents are each document alone."""
    if "segments" not in subject.takes:
        return subject.add("packed", "skipped", "the model takes no segments")
    n, m = subject.length, subject.length // 3
    other = subject.draw(2, m)
    segments = np.tile(np.repeat([0, 1], [n, m]), (2, 1))
    positions = np.tile(np.concatenate([np.arange(n), np.arange(m)]), (2, 1))
    x = np.concatenate([subject.x, other], 1)
    y = subject(x, segments=segments, positions=positions)
    alone = np.concatenate([subject.y, subject(other)], 1)
    cause = "documents see each other, or positions go on"
    subject.judge("packed", np.abs(y - alone).max((0, 2)), cause)

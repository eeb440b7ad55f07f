"""The frequencies of a rotation, read from logits alone.

The logits of the second of two tokens depend on their distance d through the angles θ·d. A set of
frequencies explains them if a smooth function of these angles, fitted to some distances (kernel
regression), predicts the others. Layout, scale and which channels turn cannot be told so: W_q and
W_k absorb them.

F frequencies, N distances, C numbers per distance.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pe_jax.conformance.claims import Declared, spectrum
from pe_jax.conformance.subject import Subject

FARTHEST = 2**15
BASES = (1e4, 1e5, 1.5e5, 5e5, 1e6, 5e6, 1e7)
DIMS = (4, 8, 16, 24, 32, 64, 96, 128)
EXPLAINED = 0.1  # the share of the variance that a right reading may leave


def unexplained(theta: np.ndarray, distances: np.ndarray, y: np.ndarray) -> float:
    """The share of y [N, C] at held-out distances that no smooth function of the angles explains.

    The kernels are the mean cosine of the angles' differences, which is linear in their waves, and
    its exponential.
    """
    order = np.random.default_rng(0).permutation(len(distances))
    train, test = order[: 3 * len(order) // 4], order[3 * len(order) // 4 :]
    angles = distances[:, None] * theta
    waves = np.concatenate([np.cos(angles), np.sin(angles)], 1)
    cosine = waves @ waves.T / len(theta)
    mean = y[train].mean(0)
    total, least = np.sum((y[test] - mean) ** 2) or 1.0, 1.0
    for kernel in (cosine, np.exp(cosine - 1)):
        inner, across = kernel[np.ix_(train, train)], kernel[np.ix_(test, train)]
        fitted = np.linalg.solve(inner + 1e-6 * np.eye(len(train)), y[train] - mean)
        least = min(least, np.sum((y[test] - mean - across @ fitted) ** 2) / total)
    return float(least)


def profile(subject: Subject, distances: np.ndarray, last: int) -> np.ndarray:
    """How logits of the second of two tokens depend on their distance: [N, C], random mixtures.

    The second stands at position `last`, so that a factor by its position does not vary.
    """
    positions = np.stack([last - distances, 0 * distances + last], 1)
    parts = []
    for _ in range(3):
        pair = np.tile(subject.draw(1, 2), (len(distances), 1))
        y = subject(pair, positions=positions)[:, 1]
        parts.append((y - y.mean(0)) @ subject.rng.normal(size=(y.shape[-1], 4)))
    return np.concatenate(parts, 1)


def sample(farthest: int, count: int) -> np.ndarray:
    """Distances from 1 to the farthest, sorted, without repetition."""
    return np.unique(np.random.default_rng(1).integers(1, max(farthest, 64) + 1, count))


def geometric(base: float, dim: int) -> np.ndarray:
    """base^(-2i/dim)."""
    return base ** (-np.arange(0, dim, 2) / dim)


def scan(subject: Subject, theta: Callable[[float], np.ndarray], farthest: int) -> float:
    """The base whose frequencies `theta(base)` explain best, to a thousandth or so.

    Near distances let many bases explain them; each step looks four times as far, at bases that
    are four times as close together.
    """
    logs, step, reach = np.arange(np.log(1e2), np.log(2e8), 0.4), 0.4, 64
    while True:
        distances = sample(min(reach, farthest), 120)
        y = profile(subject, distances, farthest)
        shares = [unexplained(theta(float(np.exp(x))), distances, y) for x in logs]
        best = logs[np.argsort(shares)[:3]]
        if reach >= farthest:
            return float(np.exp(best[0]))
        reach, step = 4 * reach, step / 4
        logs = np.unique(np.round(best[:, None] + step * np.arange(-3, 4), 6))


def probe(subject: Subject, claims: Declared, absolute: bool | None) -> None:
    """The declared frequencies explain how logits depend on a distance, and no others do better."""
    if absolute or subject.one_off == 0:
        why = "absolute" if absolute else "positions are not read"
        return subject.add("frequencies", "skipped", why)
    if claims.layers and not (claims.only and claims.plain):
        return subject.add("frequencies", "skipped", "not declared as rotations alone")
    rotations, limit = claims.rotations, claims.limit or FARTHEST
    slowest = min((spectrum(r, e, limit)[-1] for r, e in rotations), default=1e-4)
    farthest = int(min(limit - 2, FARTHEST, max(256, 6 / slowest)))
    distances = sample(farthest, 280)
    try:
        y = profile(subject, distances, farthest)
    except Exception as error:  # a table that ends
        why = f"positions are refused: {type(error).__name__}"
        return subject.add("frequencies", "skipped", why)
    if y.std() < 20 * subject.tol:
        return subject.add("frequencies", "blind", "distances hardly matter")

    def share(theta: np.ndarray) -> float:
        return unexplained(theta, distances, y)

    if not rotations:
        return subject.add("frequencies", "note", _unclaimed(subject, share, farthest))

    def changed(index: int, **fields: Any) -> np.ndarray:
        """The declared frequencies, those of one rotation with other fields."""
        parts = [
            spectrum(dataclasses.replace(r, **(fields if i == index else {})), e, limit)
            for i, (r, e) in enumerate(rotations)
        ]
        return np.concatenate(parts)

    left, readings = share(changed(-1)), {}
    for i, (r, e) in enumerate(rotations):
        size = r.rotary_dim(e)
        for n in {e * k // 8 for k in (1, 2, 4, 6, 8)} - {size}:
            if n % 2 == 0 and n and (n < size or left > EXPLAINED):
                readings[f"{n} channels rotate"] = share(changed(i, fraction=n / e))
        if left > EXPLAINED:
            if r.scaling is not None:
                readings["scaling is not applied"] = share(changed(i, scaling=None))
            readings |= {f"base {b:g}": share(changed(i, base=b)) for b in BASES if b != r.base}
    if min([left, *readings.values()]) > EXPLAINED:
        for i in range(len(rotations)):
            base = scan(subject, lambda b, i=i: changed(i, base=b), farthest)
            readings[f"base {base:.4g}"] = share(changed(i, base=base))
    best = min(readings, key=readings.__getitem__, default="")
    sure = EXPLAINED if left > EXPLAINED else 1e-3  # fewer channels explain less
    bad = readings.get(best, 1.0) < min(sure, left / 10)
    words = f"declared leaves {left:.1g}" + (f", {best} {readings[best]:.1g}" if bad else "")
    verdict = "broken" if bad else "held" if left < EXPLAINED else "blind"
    words += "; attention may be too sharp: make queries smaller" * (verdict == "blind")
    subject.add("frequencies", verdict, words)


def _unclaimed(subject: Subject, share: Callable, farthest: int) -> str:
    """The base and the number of channels that explain best, in words."""
    found = {(base, n): share(geometric(base, n)) for base in BASES for n in DIMS}
    if min(found.values()) > EXPLAINED:
        for n in DIMS:
            base = scan(subject, lambda b, n=n: geometric(b, n), farthest)
            found[base, n] = share(geometric(base, n))
    enough = [x for x, left in found.items() if left < 2 * min(found.values()) + 1e-4]
    base, n = min(enough, key=lambda x: x[1])  # the fewest angles that explain it
    return f"reads base {base:.4g}, {n} channels: leaves {found[base, n]:.1g}"

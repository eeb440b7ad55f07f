"""What an attention function does, read from q, k, v → out alone.

One query and one key are unit vectors and the other keys are 0: the logarithm of the ratio of two
weights is then an entry of the rotation, the bias, or the mask.

B batch, T tokens, H query heads, K key heads, E head width, N distances.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pe_jax.conformance.subject import array

NEAR, FARTHER, SLOW = 1, 8, 64  # distances


def read_attention(
    attend: Callable, heads: int, head_dim: int, length: int = 24, kv_heads: int | None = None
) -> dict[str, Any]:
    """What an attention function does to queries and keys that nothing has rotated yet.

    Args:
      attend: q [B, T, H, E], k and v [B, T, K, E], float32 of NumPy → out [B, T, H, E], of JAX,
        PyTorch or NumPy.
      heads: H.
      head_dim: E.
      length: T of the rows on which the window, the bias and the sink are read.
      kv_heads: K, if it is not H.

    Returns:
      `rotated`: channels that turn, `first`: the first of them, `layout`, `direction`,
      `frequencies` [rotated / 2], `base` and whether they are `geometric`; `decay`: the rotated
      product at distance 8 over that at 1; `scale`: factor on q·k where channels turn,
      `scale_of_rest` where they do not; `temperature`: factor on a late query; `logit_cap`:
      whether there is one (then `base` and `scale` are off); `window`: tokens back, None: none
      within `length`; `bias` [H, length] by distance, or None; `sink`: logits [H], or None;
      `causal`.
    """
    reader = Reader(attend, heads, head_dim, kv_heads or heads)
    near, farther = reader.rotation(NEAR + 1, NEAR), reader.rotation(FARTHER + 1, FARTHER)
    doubled = reader.rotation(NEAR + 1, NEAR, 2 * reader.amplitude)
    said: dict[str, Any] = {
        "logit_cap": bool(np.abs(doubled - near).max() > 1e-3 * np.abs(near).max())
    }
    slow = reader.rotation(SLOW + 1, SLOW)  # not finite in a window
    said |= turning(near, farther, slow if np.isfinite(slow).all() else farther)
    late = reader.rotation(length, NEAR)
    said["temperature"] = rounded(np.abs(late).max() / np.abs(near).max())
    bias = reader.bias(length)
    visible = np.isfinite(bias[0])
    said["window"] = None if visible.all() else int(visible.sum())
    said["bias"] = bias if np.abs(bias[:, visible]).max() > 1e-4 else None
    total = reader.weight(np.ones(length, bool))
    sink = (
        np.log((1 - total) / total * np.exp(bias[:, visible]).sum(1))
        if (total < 0.99999).any()
        else None
    )
    said["sink"] = sink
    said["causal"] = bool(reader.weight(np.arange(length) > length // 2, length // 2).max() < 1e-6)
    return said


def rounded(x: Any) -> float:
    """To four digits."""
    return float(f"{float(x):.4g}")


class Reader:
    """Weights of an attention function for chosen queries and keys."""

    def __init__(self, attend: Callable, heads: int, head_dim: int, kv_heads: int):
        self.attend, self.heads, self.width, self.kv_heads = attend, heads, head_dim, kv_heads
        self.amplitude = 1.5 * head_dim**0.25

    def out(self, q: np.ndarray, k: np.ndarray, value: np.ndarray) -> np.ndarray:
        """The output [B, T, H] for q and k [B, T, E], the same in all heads, and values [T]."""
        q, k = (
            np.repeat(x[:, :, None].astype(np.float32), h, 2)
            for x, h in ((q, self.heads), (k, self.kv_heads))
        )
        v = np.broadcast_to(value.astype(np.float32)[:, None, None], k.shape)
        return array(self.attend(q, k, np.ascontiguousarray(v)))[..., 0]

    def weight(self, keys: np.ndarray, query: int = -1) -> np.ndarray:
        """The weight [H] that a query of zeros gives these keys, bool [T]."""
        zeros = np.zeros((1, len(keys), self.width))
        return self.out(zeros, zeros, keys)[0, query]

    def log_ratio(self, q: np.ndarray, k: np.ndarray, key: int) -> np.ndarray:
        """log of the last query's weight of a key over that of its own token: [B, H]."""
        tokens = np.arange(q.shape[1])
        weights = [self.out(q, k, tokens == t)[:, -1] for t in (key, tokens[-1])]
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(weights[0]) - np.log(weights[1])

    def rotation(self, length: int, distance: int, amplitude: float | None = None) -> np.ndarray:
        """The product of unit query i and unit key j at a distance, mean over heads: [E, E]."""
        size, n, key = amplitude or self.amplitude, self.width, length - 1 - distance
        q, k = np.zeros((2, n * n, length, n))
        q[:, -1], k[:, key] = np.repeat(size * np.eye(n), n, 0), np.tile(size * np.eye(n), (n, 1))
        with np.errstate(invalid="ignore"):  # of keys that no window shows
            scores = self.log_ratio(q, k, key) - self.log_ratio(0 * q[:1], 0 * q[:1], key)
        return scores.mean(1).reshape(n, n) / size**2

    def bias(self, length: int) -> np.ndarray:
        """What each distance adds, less what distance 0 adds: [H, length]."""
        zeros = np.zeros((1, length, self.width))
        return np.stack([self.log_ratio(zeros, zeros, length - 1 - d)[0] for d in range(length)], 1)


def turning(near: np.ndarray, farther: np.ndarray, slow: np.ndarray) -> dict[str, Any]:
    """What the products of unit vectors at three distances say of a rotation, [E, E] each."""
    width = len(near)
    off = np.abs(slow - np.diag(np.diag(slow)))
    turned = np.flatnonzero(off.max(1) > 4e-4 * np.abs(near).max())
    if not len(turned):
        return {"rotated": 0, "scale": rounded(np.diag(near).mean())}
    first = int(turned[0])
    gap = int(off[first].argmax()) - first
    count = 2 * gap if gap > 1 else len(turned)
    i = first + (np.arange(gap) if gap > 1 else np.arange(0, count, 2))
    j = i + gap
    angle, size = np.arctan2(near[i, j], near[i, i]), np.hypot(near[i, j], near[i, i])
    finer = np.arctan2(farther[i, j], farther[i, i]) / FARTHER
    theta = np.where(np.abs(angle) < 0.3, finer, angle)  # where the finer one cannot have wrapped
    ladder = np.abs(theta)
    good = ladder > 1e-4
    index = np.arange(len(ladder))
    slope = -np.polyfit(index[good], np.log(ladder[good]), 1)[0] if good.sum() > 1 else np.nan
    line = np.log(ladder[0]) - slope * index
    rest = np.setdiff1d(np.arange(width), np.concatenate([i, j]))
    decay = np.hypot(farther[i, j], farther[i, i]) / size
    return {
        "rotated": count,
        "first": first,
        "layout": "half" if gap > 1 else "interleaved",
        "direction": "usual" if theta[0] > 0 else "mirrored",
        "base": rounded(np.exp(slope * len(i))),
        "geometric": bool(np.abs(np.log(ladder) - line)[good].max() < 0.01),
        "frequencies": theta,
        "decay": rounded(decay.mean()),
        "scale": rounded(size.mean()),
        "scale_of_rest": rounded(np.diag(near)[rest].mean()) if len(rest) else None,
    }

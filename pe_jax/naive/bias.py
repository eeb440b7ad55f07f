"""Biases: q·k/sqrt(E) plus a number for each head and distance: [H, T, T]."""

import math

import numpy as np

from pe_jax.naive import distances
from pe_jax.naive.absolute import sinusoidal
from pe_jax.naive.rows import Array, Row, inside, products, sigmoid


def alibi_slopes(heads: int, bias_max: float = 8) -> list[float]:
    """A geometric sequence that starts at 2^(-8/H) with that ratio, for H a power of two.

    8 is `bias_max`. For other H: those of the lower power, then the first, third … of twice it.
    """
    if math.log2(heads).is_integer():
        return [(2 ** (-bias_max / heads)) ** h for h in range(1, heads + 1)]
    lower = 2 ** math.floor(math.log2(heads))
    more = alibi_slopes(2 * lower, bias_max)[0::2][: heads - lower]
    return alibi_slopes(lower, bias_max) + more


def alibi(row: Row, *, bias_max=8, scaled=False) -> Array:
    """Press et al., "ALiBi", arXiv 2108.12409, §3: minus m_h·|distance|; `scaled`: over sqrt(E)."""
    slopes = np.array(alibi_slopes(len(row.q), bias_max))
    slopes = slopes / math.sqrt(row.q.shape[-1]) if scaled else slopes
    return products(row) - np.multiply.outer(slopes, np.abs(row.distance))


def alibi_2d(row: Row) -> Array:
    """Fuller et al., "CROMA", arXiv 2311.00566: minus m_h times the Euclidean distance."""
    positions = row.positions.tolist()
    euclidean = [[math.dist(a, b) for b in positions] for a in positions]
    return products(row) - np.multiply.outer(alibi_slopes(len(row.q)), euclidean)


def t5_bias(distance: Array, table: Array, max_distance: int, bidirectional: bool) -> Array:
    """table[h, bucket(d)] for a table [H, buckets]: [H, *n] for distances [*n]."""
    count = table.shape[1]
    index = distances.of_each(
        lambda d: distances.t5(d, count, max_distance, bidirectional), distance
    )
    return table[:, index]


def t5(row: Row, table: Array, *, max_distance=128, bidirectional=False) -> Array:
    """Raffel et al., "T5", arXiv 1910.10683, §2.1: `t5_bias`, and q·k is not scaled."""
    return products(row, 1) + t5_bias(row.distance, table, max_distance, bidirectional)


def layoutlmv3(row, index, x, y, *, max_distance=128, spatial_distance=256) -> Array:
    """Huang et al., "LayoutLMv3", arXiv 2204.08387, §2.1: T5's tables of index, x and y.

    Scores and biases are divided by sqrt(E), as in the released code.
    """
    reaches = max_distance, spatial_distance, spatial_distance
    axes = zip(np.moveaxis(row.distance, -1, 0), (index, x, y), reaches, strict=True)
    bias = sum(t5_bias(distance, table, reach, True) for distance, table, reach in axes)
    return products(row) + bias / row.q.shape[-1] ** 0.5


def buckets(row, table, *, edges=(0, 1, 2, 4, 8, 16, 32, 64, 128), directional=False) -> Array:
    """Any groups, after T5: table[h, edges below |d|]; `directional`: keys ahead have their own."""
    group = distances.of_each(lambda d: sum(abs(d) > edge for edge in edges), row.distance)
    return products(row) + table[:, group + directional * (len(edges) + 1) * (row.distance < 0)]


def clipped(row: Row, table: Array, *, clip=64) -> Array:
    """A scalar for each clipped distance, after Shaw et al., arXiv 1803.02155, §3.2."""
    return products(row) + table[:, np.clip(row.distance, -clip, clip) + clip]


def kerple_kernel(distance, p, a, kind: str):
    """Chi et al., "KERPLE", arXiv 2205.09921, §4; distances, p and a broadcast.

    -r₁·log(1 + r₂|m - n|) with r₁ = p, r₂ = a; or -r₁|m - n|^r₂ with r₁ = a, r₂ = p.
    """
    return -p * np.log(1 + a * abs(distance)) if kind == "log" else -a * abs(distance) ** p


def kerple(row: Row, p: Array, a: Array, *, kind="log") -> Array:
    """`kerple_kernel`; p and a [H] are at least 0.01, a power at most 2 (the authors' code)."""
    p, a = np.clip(p, 0.01, 2 if kind == "power" else np.inf), np.maximum(a, 0.01)
    return products(row) + kerple_kernel(row.distance, p[:, None, None], a[:, None, None], kind)


def sandwich(row: Row, *, width=128, base=1e4) -> Array:
    """Chi et al., "Sandwich", arXiv 2212.10356: p_m·p_n over the compression ratio 8h/H.

    p is the sinusoid of `width` channels; h = 1 … H.
    """
    p, heads = sinusoidal(row.positions, width, base=base), len(row.q)
    return products(row) + np.multiply.outer(heads / 8 / np.arange(1, heads + 1), p @ p.T)


def fire(row: Row, c, multiplier, w1, b1, w2, b2, *, length=512.0) -> Array:
    """Li et al., "FIRE", arXiv 2310.04418: f(ψ(i - j)/ψ(max(L, i))), ψ(x) = ln(c·x + 1).

    L is `length` times the learned multiplier; f a perceptron with one hidden layer of N ReLU
    units: w1, b1 [N], w2 [N, H], b2 [H]. The paper's code adds 1e-6 to the denominator.
    """
    whole = np.maximum(row.positions, abs(multiplier * length))[:, None]
    near, far = (np.log(abs(c) * x + 1) for x in (np.abs(row.distance), whole))
    hidden = np.maximum((near / (far + 1e-6))[..., None] * w1 + b1, 0)
    return products(row) + np.moveaxis(hidden @ w2 + b2, -1, 0)


def dpb(
    row, w_in, b_in, w_out, b_out, w_hidden=(), b_hidden=(), *, depth=2, log_distance=False
) -> Array:
    """Dynamic position bias (arXiv 2108.00154; x-transformers): a network of the distance.

    `depth` layers of N units x·sigmoid(x), the first of d or sign(d)·ln(1 + |d|): w_in, b_in [N],
    then w_hidden [depth - 1, N, N], b_hidden [depth - 1, N]. The last is linear: w_out [N, H],
    b_out [H].
    """
    d = row.distance[..., None]
    x = (np.sign(d) * np.log(1 + np.abs(d)) if log_distance else d) * w_in + b_in
    for layer in range(depth - 1):
        x = x * sigmoid(x) @ w_hidden[layer] + b_hidden[layer]
    return products(row) + np.moveaxis(x * sigmoid(x) @ w_out + b_out, -1, 0)


def swin(row: Row, table: Array, *, height=7, width=7, class_token=False) -> Array:
    """Liu et al., "Swin", arXiv 2103.14030, eq. 4: table[h, dr + height - 1, dc + width - 1].

    The table is [H, (2·height - 1)(2·width - 1)]. With a class token at (-1, -1) (BEiT, arXiv
    2106.08254, released code) three more columns: it as the query, as the key, and as both.
    """
    table, classes = np.split(table, [(2 * height - 1) * (2 * width - 1)], axis=1)
    is_class = (row.positions == -1).all(-1) & class_token
    either = is_class[:, None] | is_class
    distance = np.where(either[..., None], 0, row.distance)
    down = inside(distance[..., 0] + height - 1, 2 * height - 1)
    right = inside(distance[..., 1] + width - 1, 2 * width - 1)
    bias = table.reshape(-1, 2 * height - 1, 2 * width - 1)[:, down, right]
    if class_token:
        which = np.where(is_class[:, None], np.where(is_class, 2, 0), 1)
        bias = np.where(either, classes[:, which], bias)
    return products(row) + bias


def log_spaced(distance, window: int):
    """Swin V2's ±log2(1 + 8|d|/(window - 1))/3: arXiv 2111.09883, eq. 4 and the released code."""
    return np.sign(distance) * np.log2(1 + 8 * abs(distance) / (window - 1)) / 3


def cpb(row: Row, w1: Array, b1: Array, w2: Array, *, height=8, width=8) -> Array:
    """Liu et al., "Swin V2", arXiv 2111.09883, eq. 3: 16·sigmoid(a network of `log_spaced`).

    The network has one hidden layer of N ReLU units: w1 [2, N], b1 [N], w2 [N, H].
    """
    down, right = np.moveaxis(row.distance, -1, 0)
    x = np.stack([log_spaced(down, height), log_spaced(right, width)], axis=-1)
    return products(row) + 16 * np.moveaxis(sigmoid(np.maximum(x @ w1 + b1, 0) @ w2), -1, 0)

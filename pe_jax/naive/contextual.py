"""Positions that depend on what the tokens say: on the layer's input x, or on the scores."""

import numpy as np

from pe_jax.naive.bias import t5_bias
from pe_jax.naive.rotary import frequencies, rotate
from pe_jax.naive.rows import Array, Row, products, sigmoid


def between(steps: Array) -> Array:
    """The sum of steps [T, H] over the tokens after one and up to the other: [H, T, T]."""
    length, heads = steps.shape
    sums = np.zeros((heads, length, length))
    for i, j in np.ndindex(length, length):
        first, last = sorted((i, j))
        sums[:, i, j] = steps[first + 1 : last + 1].sum(0)
    return sums


def forget_gates(x: Array, weight: Array, bias: Array) -> Array:
    """FoX's f_t = sigmoid(w_h·x_t + b_h): [T, H] for x [T, D]."""
    return sigmoid(x @ weight + bias)


def fox(row: Row, weight: Array, bias: Array) -> Array:
    """Lin et al., "Forgetting Transformer", arXiv 2503.02130: plus Σ log f_l, j < l ≤ i."""
    return products(row) + between(np.log(forget_gates(row.x, weight, bias)))


def cable(row: Row, weight: Array, bias: Array) -> Array:
    """Veisi et al., "CABLE", arXiv 2503.08067: minus the slopes softplus(w·x + b) between."""
    return products(row) - between(np.log1p(np.exp(row.x @ weight + bias)))


def wall(row: Row, weight: Array, bias: Array) -> Array:
    """Pai et al., "Wall Attention" (2026): Σ_n q_n k_n exp(Σ g_n)/sqrt(E) over the tokens between.

    g = log sigmoid(x·W + b) of each token, for weight [D, H, E] and bias [H, E].
    """
    steps = np.log(sigmoid(np.einsum("td,dhe->the", row.x, weight) + bias))
    faded = [np.exp(between(steps[..., n])) for n in range(steps.shape[-1])]
    return np.einsum("hte,hse,ehts->hts", row.q, row.k, faded) / row.q.shape[-1] ** 0.5


def selective_angles(x, down, up, bias, gate, gate_bias, base: float) -> Array:
    """Selective RoPE's φ, the angles of every token and key head: [T, K, P] for x [T, D]."""
    slices = x.reshape(len(x), len(bias), -1)
    unit = (slices / np.sqrt((slices**2).sum(-1, keepdims=True) + 1e-6)).reshape(x.shape)
    opening = sigmoid(unit @ gate + gate_bias)[..., None]
    turns = np.einsum("tr,rkp->tkp", unit @ down, up) + np.exp(bias)
    return np.cumsum(frequencies(2 * bias.shape[1], base) * opening * turns, axis=0)


def selective_rope(row: Row, down, up, bias, gate, gate_bias, *, base=5e5) -> Array:
    """Movahedi et al., "Selective RoPE", arXiv 2511.17388, without its convolution."""
    angles = selective_angles(row.x, down, up, bias, gate, gate_bias, base)
    angles = np.repeat(np.moveaxis(angles, 1, 0), len(row.q) // len(bias), axis=0)
    q, k = (rotate(x, angles) for x in (row.q, row.k))
    return np.einsum("hte,hse->hts", q, k) / q.shape[-1] ** 0.5


def wavlm(row, table, weight, bias, scale, *, max_distance=800, bidirectional=True) -> Array:
    """Chen et al., "WavLM", arXiv 2110.13900, as released: plus g_i·table[h, bucket(d)].

    g = a·(s_h·b - 1) + 2; a and b are sigmoids of sums of four rows of a projection, weight [8, E]
    and bias [8], of the head's own slice of x; s is `scale` [H].
    """
    rows = np.einsum("the,re->htr", row.x.reshape(len(row.x), len(scale), -1), weight) + bias
    a, b = sigmoid(rows[..., :4].sum(-1)), sigmoid(rows[..., 4:].sum(-1))
    gate = a * (b * scale[:, None] - 1) + 2
    of_distance = t5_bias(row.distance, table, max_distance, bidirectional)
    return products(row) + gate[..., None] * of_distance


def cope_counts(row: Row) -> Array:
    """CoPE's p_ij = Σ_l sigmoid(q_i·k_l/sqrt(E)) for l from j to the last key that i sees."""
    gates = sigmoid(products(row))
    counts = np.zeros_like(gates)
    for i, j in np.ndindex(gates.shape[1:]):
        counts[:, i, j] = gates[:, i, j : i + 1 if row.causal else None].sum(-1)
    return counts


def cope(row: Row, vectors: Array) -> Array:
    """Golovneva et al., "CoPE", arXiv 2405.18719, eq. 3–8: q_i·(k_j + e[p_ij])/sqrt(E).

    e lies between two of the vectors [P, E]; positions beyond the last vector stay there.
    """
    place = np.minimum(cope_counts(row), len(vectors) - 1)
    low, high = np.floor(place).astype(int), np.ceil(place).astype(int)
    e = vectors[low] + (place - low)[..., None] * (vectors[high] - vectors[low])
    return products(row) + np.einsum("hte,htse->hts", row.q, e) / row.q.shape[-1] ** 0.5


def dape(row: Row, w1: Array, b1: Array, w2: Array, b2: Array, *, below=0.0) -> Array:
    """Zheng et al., "DAPE", arXiv 2405.14722, §3.2: A + B + f([A, B]), over the heads of a pair.

    B [H, T, T] is the bias of the scheme `below`; f = leaky ReLU(· w1 + b1) w2 + b2.
    """
    a = products(row)
    b = np.broadcast_to(below, a.shape)
    hidden = np.moveaxis(np.concatenate([a, b]), 0, -1) @ w1 + b1
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    return a + b + np.moveaxis(hidden @ w2 + b2, -1, 0)

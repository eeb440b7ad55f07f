"""Positions that depend on what the tokens say: on the layer's input x, or on the scores."""

import numpy as np

from pe_jax.naive.bias import alibi_slopes, t5_bias
from pe_jax.naive.rotary import frequencies, rotate
from pe_jax.naive.rows import Array, Row, products, sigmoid


def between(steps: Array) -> Array:
    """The sum of steps [T, H] over the tokens after the earlier, up to the later: [H, T, T]."""
    length, heads = steps.shape
    sums = np.zeros((heads, length, length))
    for i, j in np.ndindex(length, length):
        first, last = sorted((i, j))
        sums[:, i, j] = steps[first + 1 : last + 1].sum(0)
    return sums


def fox(row: Row, weight: Array, bias: Array) -> Array:
    """Lin et al., "Forgetting Transformer", arXiv 2503.02130: plus Σ log f_l, j < l ≤ i.

    f = sigmoid(w·x + b).
    """
    return products(row) + between(np.log(sigmoid(row.x @ weight + bias)))


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


def repo(row: Row, gate: Array, content: Array, final: Array, *, base=5e5) -> Array:
    """Li et al., "RePo", arXiv 2512.14391: RoPE at z = (silu(x·gate)·(x·content))·final, [T, K]."""
    opening = row.x @ gate
    places = (opening * sigmoid(opening) * (row.x @ content)) @ final
    angles = places.T[..., None] * frequencies(row.q.shape[-1], base)
    angles = np.repeat(angles, len(row.q) // len(angles), axis=0)
    return products(row._replace(q=rotate(row.q, angles), k=rotate(row.k, angles)))


def tapa(row: Row, *, fraction=0.5, power=0.1) -> Array:
    """Wang et al., "TAPA", arXiv 2509.12635, eq. 12: of parts (A, P) of q and of k."""
    size = round(fraction * row.q.shape[-1])
    a, p = (
        products(row._replace(q=row.q[..., part], k=row.k[..., part]))
        for part in (slice(size), slice(size, None))
    )
    return a * np.cos(2 * np.pi * np.abs(row.distance) ** power * p)


def wavlm(row, table, weight, bias, scale, *, max_distance=800, bidirectional=True) -> Array:
    """Chen et al., "WavLM", arXiv 2110.13900, as released: plus g_i·table[h, bucket(d)].

    g = a·(s_h·b - 1) + 2; a and b are sigmoids of sums of four rows of a projection, weight [8, E]
    and bias [8], of the head's slice of x; s is `scale` [H].
    """
    rows = np.einsum("the,re->htr", row.x.reshape(len(row.x), len(scale), -1), weight) + bias
    a, b = sigmoid(rows[..., :4].sum(-1)), sigmoid(rows[..., 4:].sum(-1))
    gate = a * (b * scale[:, None] - 1) + 2
    of_distance = t5_bias(row.distance, table, max_distance, bidirectional)
    return products(row) + gate[..., None] * of_distance


def inkling(
    row, weight, profiles, *, extent, floor=None, attn_scale=0.1, clip_states=None, clip_qk=None
) -> Array:
    """Inkling and Inkling 2, as released: τ_i·(q_i·k_j/sqrt(E) + r_i·P[:, d]), 0 ≤ d < extent.

    r = W x is [T, H, C] for weight [D, H, C], P are the profiles [C, extent]; τ_i is
    1 + a·ln(max((i + 1)/floor, 1)). Norms of q, k and r above a clip are brought down to it.
    """

    def clip(x: Array, most) -> Array:
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        return x if most is None else x * np.minimum(most / (norm + 1e-6), 1)

    r = clip(np.einsum("td,dhc->htc", row.x, weight), clip_states)
    of_distance = np.einsum("htc,cd->htd", r, profiles)
    scores = products(row._replace(q=clip(row.q, clip_qk), k=clip(row.k, clip_qk)))
    for i, j in np.ndindex(row.distance.shape):
        if 0 <= (d := row.distance[i, j]) < extent:
            scores[:, i, j] += of_distance[:, i, d]
    if floor is None:
        return scores
    steps = np.maximum((row.positions + 1) / floor, 1)
    return scores * (1 + attn_scale * np.log(steps))[:, None]


def sink(row: Row, logit: Array, weight: Array | float = 0.0) -> Array:
    """gpt-oss' sink logit, arXiv 2508.10925: [H, 1]; from the input (Inkling 2) [H, T]."""
    return logit[:, None] + (row.x @ weight).T if np.ndim(weight) else logit[:, None]


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
    index = np.minimum(cope_counts(row), len(vectors) - 1)
    low, high = np.floor(index).astype(int), np.ceil(index).astype(int)
    e = vectors[low] + (index - low)[..., None] * (vectors[high] - vectors[low])
    return products(row) + np.einsum("hte,htse->hts", row.q, e) / row.q.shape[-1] ** 0.5


def grape_ap(row: Row, weight: Array, *, bias_max=8) -> Array:
    """Zhang et al., "GRAPE", arXiv 2512.07805, as released: plus Σ ψ_il for l after j, l ≤ i.

    ψ_il = slope·log sigmoid(p_i·R(l) p̂_l / C) for p = x W, weight [D, H, C], p̂ = p over its root
    mean square; slopes as ALiBi's. Without a causal mask the sum runs to the last key.
    """
    p = np.einsum("td,dhc->htc", row.x, weight)
    heads, length, width = p.shape
    unit = p / np.sqrt((p**2).mean(-1, keepdims=True) + np.finfo(np.float32).eps)
    first, second = np.split(unit, 2, axis=-1)
    rotated = (first + 1j * second) * np.exp(-1j * row.positions)[:, None]
    rotated = np.concatenate([rotated.real, rotated.imag], axis=-1)
    cost = np.log(sigmoid(np.einsum("htc,hsc->hts", p, rotated) / width))
    cost = np.array(alibi_slopes(heads, bias_max))[:, None, None] * cost
    sums = np.zeros_like(cost)
    for i, j in np.ndindex(length, length):
        sums[:, i, j] = cost[:, i, j + 1 : i + 1 if row.causal else None].sum(-1)
    return products(row) + sums


def stick_breaking(row: Row, *, attend_current=False) -> Array:
    """Tan et al., "Stick-Breaking Attention", arXiv 2410.17980, §2: logarithms of the weights.

    A key takes sigmoid(q_i·k_j/sqrt(E)) of what the keys after it, which i sees, have left.
    """
    taken = sigmoid(products(row))
    weights = np.zeros_like(taken)
    for i, j in np.ndindex(taken.shape[1:]):
        keys = range(j + 1, i + 1 if row.causal else len(taken[0]))
        left = [1 - taken[:, i, n] for n in keys if attend_current or n != i]
        if attend_current or i != j:
            weights[:, i, j] = taken[:, i, j] * np.prod(left, axis=0)
    with np.errstate(divide="ignore"):
        return np.log(weights)


def path(row: Row, directions: Array, weight: Array, bias: Array) -> Array:
    """Yang et al., "PaTH Attention", arXiv 2505.16381, §3: q_i mapped by all tokens after j.

    H_t = I - β_t w_t w_tᵀ; w = x · directions [D, H, E], of length 1; β = 2 sigmoid(x·weight + b).
    """
    w = np.einsum("td,dhe->hte", row.x, directions)
    w = w / np.sqrt((w**2).sum(-1, keepdims=True) + 1e-6)
    strength = 2 * sigmoid(row.x @ weight + bias).T
    heads, length, _ = w.shape
    scores = np.zeros((heads, length, length))
    for h, i in np.ndindex(heads, length):
        query = row.q[h, i]
        for j in range(i, -1, -1):
            scores[h, i, j] = query @ row.k[h, j]
            query = query - strength[h, j] * (query @ w[h, j]) * w[h, j]
    return scores / row.q.shape[-1] ** 0.5


def dape(row: Row, w1: Array, b1: Array, w2: Array, b2: Array, *, below=0.0) -> Array:
    """Zheng et al., "DAPE", arXiv 2405.14722, §3.2: A + B + f([A, B]), over the heads of a pair.

    B [H, T, T] is the bias of the scheme `below`; f = leaky ReLU(· w1 + b1) w2 + b2.
    """
    a = products(row)
    b = np.broadcast_to(below, a.shape)
    hidden = np.moveaxis(np.concatenate([a, b]), 0, -1) @ w1 + b1
    hidden = np.where(hidden > 0, hidden, 0.01 * hidden)
    return a + b + np.moveaxis(hidden @ w2 + b2, -1, 0)

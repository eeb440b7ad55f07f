"""Vectors of distances and of positions, in dot products with q and k and with each other."""

import math

import numpy as np

from pe_jax.naive import distances
from pe_jax.naive.absolute import sinusoidal
from pe_jax.naive.rows import Array, Row, inside, products


def shaw(row: Row, keys: Array, *, clip=16) -> Array:
    """Shaw et al., arXiv 1803.02155, eq. 4: q_i·(k_j + a_ij)/sqrt(E).

    The paper indexes by key - query: the table [1, 2·clip + 1, E] is its mirror image.
    """
    a = keys[0][np.clip(row.distance, -clip, clip) + clip]
    return np.einsum("hte,htse->hts", row.q, row.k[:, None] + a) / row.q.shape[-1] ** 0.5


def shaw_values(row: Row, weights: Array, values: Array | bool = False, *, clip=16) -> Array:
    """Eq. 3: what a_ij adds to the output, Σ_j α_ij·a_ij for weights α [H, T, T]: [H, T, E].

    `values` False: the scheme has no such vectors.
    """
    if isinstance(values, bool):
        return np.zeros_like(row.q)
    a = values[0][np.clip(row.distance, -clip, clip) + clip]
    return np.einsum("hts,tse->hte", weights, a)


def transformer_xl(row: Row, u: Array, v: Array, w_r: Array, *, base=1e4) -> Array:
    """Dai et al., "Transformer-XL", arXiv 1901.02860, §3.3: (a) + (b) + (c) + (d), over sqrt(E).

    u, v [H, E]; w_r [H, D, E] projects the sinusoid of the distance, all its sines first.
    """
    waves = sinusoidal(row.distance.ravel(), w_r.shape[1], base=base, layout="concatenated")
    r = np.einsum("tsd,hde->htse", waves.reshape(*row.distance.shape, -1), w_r)
    a, b = np.einsum("hte,hse->hts", row.q, row.k), np.einsum("hte,htse->hts", row.q, r)
    c, d = np.einsum("he,hse->hs", u, row.k)[:, None], np.einsum("he,htse->hts", v, r)
    return (a + b + c + d) / row.q.shape[-1] ** 0.5


def deberta(
    row: Row,
    table: Array,
    w_k: Array | None = None,
    w_q: Array | None = None,
    *,
    buckets=256,
    max_distance=512,
) -> Array:
    """He et al., "DeBERTa", arXiv 2006.03654, eq. 4: (q·k + q·K^r_δ + k·Q^r_δ)/sqrt(3E).

    w_k and w_q [H, D, E] project rows δ of the table to K^r and Q^r. The third term takes δ(i, j),
    as the released code does, where the paper writes δ(j, i). With one of the two, 2E.
    """
    delta = distances.of_each(lambda d: distances.deberta(d, buckets, max_distance), row.distance)
    terms = [np.einsum("hte,hse->hts", row.q, row.k)]
    if w_k is not None:
        terms.append(np.einsum("hte,tsd,hde->hts", row.q, table[delta], w_k, optimize=True))
    if w_q is not None:
        terms.append(np.einsum("hse,tsd,hde->hts", row.k, table[delta], w_q, optimize=True))
    return np.sum(terms, axis=0) / math.sqrt(len(terms) * row.q.shape[-1])


def tupe(row: Row, table: Array, u_q: Array, u_k: Array, first=None, to_first=None) -> Array:
    """Ke et al., "TUPE", arXiv 2006.15595, §3: (q_i·k_j + (p_i U_Q)·(p_j U_K))/sqrt(2E).

    p are rows of the table [L, D]; U [D, H, E]. A number per head replaces the second product: θ₁
    (`first`) where i is [CLS] (position 0), θ₂ (`to_first`) where only j is.
    """
    scale, p = (2 * row.q.shape[-1]) ** -0.5, table[inside(row.positions, len(table))]
    p_q, p_k = (np.einsum("td,dhe->hte", p, u) for u in (u_q, u_k))
    bias = scale * np.einsum("hte,hse->hts", p_q, p_k)
    if first is not None and to_first is not None:
        bias[:, :, row.positions == 0] = to_first[:, None, None]
        bias[:, row.positions == 0] = first[:, None, None]
    return products(row, scale) + bias

"""Rotations. q is rotated by the distance of each pair: R_(m-n) q·k = (R_m q)·(R_n k)."""

import functools

import numpy as np

from pe_jax.naive.bias import alibi
from pe_jax.naive.rows import Array, Row, products


def frequencies(dim: int, base: float) -> Array:
    """θ_i = base^(-2i/dim), i = 0 … dim/2 - 1: [dim/2]."""
    return base ** (-2 * np.arange(dim // 2) / dim)


def scaled(dim: int, base: float, scaling) -> tuple[Array, float]:
    """The frequencies that `scaling(θ, base)` makes of these, and what it multiplies scores by."""
    theta = frequencies(dim, base)
    return (theta, 1.0) if scaling is None else (scaling(theta, base), scaling.attention_factor**2)


def rotate(x: Array, angle: Array, layout: str = "half", size: float | Array = 1.0) -> Array:
    """Turns pair i of channels by angle_i and multiplies it by size_i: arXiv 2104.09864, eq. 34.

    For x [*n, E], angles [*n, P] and sizes that broadcast. Pair i is of channels i and i + P in
    the layout "half", 2i and 2i + 1 in "interleaved"; channels from 2P on stay.
    """
    cos, sin, i = size * np.cos(angle), size * np.sin(angle), np.arange(angle.shape[-1])
    first, second = (i, i + len(i)) if layout == "half" else (2 * i, 2 * i + 1)
    a, b, out = x[..., first], x[..., second], x + 0 * angle[..., :1]
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def rotated(row: Row, angle: Array, layout: str = "half", size: float | Array = 1.0) -> Array:
    """R q_i·k_j/sqrt(E) for angles and sizes [T, T, P]: [H, T, T]."""
    q = rotate(row.q[:, :, None], angle, layout, size)
    return np.einsum("htse,hse->hts", q, row.k) / row.q.shape[-1] ** 0.5


def rope(row: Row, *, base=1e4, fraction=1.0, layout="half", scaling=None, distance=None) -> Array:
    """Su et al., "RoFormer", arXiv 2104.09864, eq. 16; at the row's distances, or any others.

    `fraction` of the channels turn. `scaling(θ, base)` gives other frequencies, and its
    `attention_factor` multiplies the rotated parts of q and of k.
    """
    theta, size = scaled(round(fraction * row.q.shape[-1]), base, scaling)
    distance = row.distance if distance is None else distance
    return rotated(row, distance[..., None] * theta, layout, size)


def key_offset(row: Row, *, fraction=0.5, halves=False) -> Array:
    """Partial key offset (modded-nanogpt, #169): the last channels are of the key before.

    With `halves` they are the last of each half.
    """
    keys = []
    for part in np.split(row.k, 1 + halves, axis=-1):
        stays = part.shape[-1] - round(fraction * part.shape[-1])
        keys.append(part.copy())
        keys[-1][:, 1:, stays:] = part[:, :-1, stays:]
    return products(row._replace(k=np.concatenate(keys, -1)))


def lerope(row, alpha, *, base=1e4, fraction=1.0, layout="half", scaling=None) -> Array:
    """LeRoPE (Mistral Large 4, released code): the frequencies of `rope` times exp(α), α [P]."""
    theta, size = scaled(2 * len(alpha), base, scaling)
    return rotated(row, row.distance[..., None] * (theta * np.exp(alpha)), layout, size)


def rope_pp(row: Row, *, equal="heads", fraction=1.0, layout="half", **of_rope) -> Array:
    """Liu et al., "RoPE++", arXiv 2512.07525: `rope` of q, and of -i·q in every second head."""
    q, pairs = row.q.copy(), round(fraction * row.q.shape[-1]) // 2
    q[1::2] = rotate(q[1::2], np.full(pairs, -np.pi / 2), layout)
    return rope(row._replace(q=q), fraction=fraction, layout=layout, **of_rope)


def pope(row: Row, phase: Array, *, base=1e4) -> Array:
    """Gopalakrishnan et al., "PoPE", arXiv 2509.10534: Σ μ(q_c) μ(k_c) cos(dθ_c - δ_c)/sqrt(E).

    μ(x) = ln(1 + e^x), θ_c = base^(-c/E), and δ is `phase` [H, E] within [-2π, 0].
    """
    dim = row.q.shape[-1]
    angle = row.distance[..., None] * base ** (-np.arange(dim) / dim)
    waves = np.cos(angle - np.clip(phase, -2 * np.pi, 0)[:, None, None])
    sizes = (np.logaddexp(0, x) for x in (row.q, row.k))
    return np.einsum("hte,hse,htse->hts", *sizes, waves) / dim**0.5


def fope(row: Row, cosines: Array, sines: Array, *, length=512, base=1e4) -> Array:
    """Hua et al., "FoPE", arXiv 2412.17739: pairs j and j + E/2 as z_j times c_j(n) + i·s_j(n).

    c_j(n) = Σ_i cosines[i, j]·cos(n·θ_i), s_j of sines [K, F, F], over the F of θ_i ≥ 2π/length;
    other pairs stay. The score is the real part of q'·conj(k')/sqrt(E).
    """
    heads, dim, count = len(row.q), row.q.shape[-1], cosines.shape[1]
    theta = frequencies(dim, base)
    theta = theta[theta >= 2 * np.pi / length]
    factor = np.ones((heads, len(row.positions), dim // 2), complex)
    for h in range(heads):
        of_key = h // (heads // len(cosines))
        for j in range(count):
            angle = np.multiply.outer(row.positions, theta)
            c, s = np.cos(angle) @ cosines[of_key, :, j], np.sin(angle) @ sines[of_key, :, j]
            factor[h, :, j] = c + 1j * s
    q, k = (factor * (x[..., : dim // 2] + 1j * x[..., dim // 2 :]) for x in (row.q, row.k))
    return np.einsum("hte,hse->hts", q, k.conj()).real / dim**0.5


def rerope(row: Row, *, window=512, **of_rope) -> Array:
    """Su, "Rectified RoPE", https://kexue.fm/archives/9708: distances stop at the window."""
    return rope(row, distance=np.minimum(row.distance, window), **of_rope)


def grouped(positions: Array, group: int, window: int) -> Array:
    """Self-Extend's relative positions, a merge of two matrices: [T, T]."""
    distance, groups = positions[:, None] - positions, positions // group
    far = groups[:, None] + window - window // group - groups
    return np.where(distance < window, distance, far)


def self_extend(row: Row, *, group=8, window=1024, **of_rope) -> Array:
    """Jin et al., "Self-Extend", arXiv 2401.01325: positions in groups beyond the window."""
    return rope(row, distance=grouped(row.positions, group, window), **of_rope)


def dual_chunk(row: Row, *, chunk_size=3072, local_size=256, **of_rope) -> Array:
    """An et al., arXiv 2402.17463 (released code): no position exceeds `chunk_size`.

    Keys are at j mod c, c = chunk_size - local_size; queries at i mod c for keys of their chunk,
    c farther for those of the chunk before, and as far as possible for others.
    """
    c = chunk_size - local_size
    chunks, inside = row.positions // c, row.positions % c
    apart = chunks[:, None] - chunks
    of_query = np.where(apart == 1, np.minimum(inside + c, chunk_size)[:, None], inside[:, None])
    of_query = np.where(apart > 1, min(2 * c - 1, chunk_size), of_query)
    return rope(row, distance=of_query - inside, **of_rope)


def rotated_values(
    row: Row, weights: Array, v: Array, *, base=1e4, fraction=1.0, layout="half", scaling=None
) -> Array:
    """Values rotated by their distance, Σ_n a_mn R_(n-m) v_n: [H, T, F] for v [H, T, F].

    As in DeepSeek-V4's released code; GTA is arXiv 2310.10375.
    """
    theta, _ = scaled(round(fraction * v.shape[-1]), base, scaling)
    v_of_pair = rotate(v[:, None], -row.distance[..., None] * theta, layout)
    return np.einsum("hts,htsf->htf", weights, v_of_pair)


def zeta(dim: int) -> Array:
    """xPos's (i/(dim/2) + γ)/(1 + γ), γ = 0.4: [dim/2]."""
    return (np.arange(dim // 2) / (dim / 2) + 0.4) / (1 + 0.4)


def xpos(row: Row, *, base=1e4, scale_base=512, layout="interleaved") -> Array:
    """Sun et al., "xPos", arXiv 2212.10554, algorithm 1: pair i also fades by ζ_i^(d/512).

    Keys ahead, which grow without bound, count as at distance 0: the scheme is causal only.
    """
    dim, distance = row.q.shape[-1], np.maximum(row.distance, 0)[..., None]
    fading = zeta(dim) ** (distance / scale_base)
    return rotated(row, distance * frequencies(dim, base), layout, fading)


def temperature(row: Row, *, attn_scale=0.1, floor_scale=8192, offset=1) -> Array:
    """Llama 4 (released code): queries times 1 + a·ln(floor((position + offset)/f) + 1)."""
    return products(row) * sharpness(row.positions, attn_scale, floor_scale, offset)[:, None]


def sharpness(positions, attn_scale: float, floor_scale: int, offset: int) -> Array:
    """The factor of `temperature`; 1 before position 0."""
    return 1 + attn_scale * np.log(np.maximum((positions + offset) // floor_scale, 0) + 1.0)


def log_length(row: Row, scale: Array, bias: Array) -> Array:
    """Nakanishi, "SSMax", arXiv 2501.19399, and a bias b_h: q·(s_h·ln(n + 1) + b_h)."""
    length = np.log(np.maximum(row.positions, 0) + 1.0)
    return products(row) * (scale[:, None] * length + bias[:, None])[..., None]


def bipe(row: Row, *, relative="rope", base=1e4) -> Array:
    """He et al., "BiPE", arXiv 2401.16421: RoPE or ALiBi of the pieces, (piece, position)[0]."""
    pieces = row._replace(positions=row.positions[:, 0])
    return alibi(pieces) if relative == "alibi" else rope(pieces, base=base)


def rope_mixed(
    row: Row, frequencies: Array, *, base=10.0, layout="interleaved", axes=2, scaling=None
) -> Array:
    """Heo et al., arXiv 2403.13298: each head's pairs turn by mixtures of row and column.

    Frequencies [axes, K, E/2] are those of rows and of columns; `base` gave their initial values,
    a series for each of two directions, and a scaling changes both in the same proportion.
    """
    pairs, factor = frequencies.shape[-1], 1.0
    count = pairs // 2 if axes == 2 else pairs
    initial, changed = base ** (-np.arange(count) / count), frequencies.copy()
    for axis, own in enumerate(each(scaling, axes)):
        if own is not None:
            proportion = own(initial, base) / initial
            changed[axis] *= np.resize(proportion, pairs)
            factor = own.attention_factor
    of_heads = np.repeat(changed, len(row.q) // changed.shape[1], axis=1)
    angle = np.einsum("tsa,ahp->htsp", row.distance, of_heads)
    return rotated(row, angle, layout, factor**2)


def liere(
    row: Row,
    generators: Array,
    factors: Array | None = None,
    *,
    axes=2,
    block=8,
    initial=2 * np.pi,
    commuting=False,
) -> Array:
    """Ostmeier et al., "LieRE", arXiv 2406.10322, algorithm 2: R_i q_i·R_j k_j/sqrt(E).

    Block m of head h of R_i is the exponential of Σ_a p_ia·A, A the upper part of `generators`
    [A or 1, K, M, b, b] minus its transpose; of ComRoPE times `factors` [A, K, M].
    """
    (heads, length, dim), kv_heads = row.q.shape, generators.shape[1]
    factors = np.ones((axes, kv_heads, dim // block)) if factors is None else factors
    upper = np.triu(generators, 1) * factors[..., None, None]
    skew = upper - upper.swapaxes(-1, -2)
    turned = np.zeros((2, heads, length, dim))
    for h, i, m in np.ndindex(heads, length, dim // block):
        position = np.atleast_1d(row.positions[i])
        angles, vectors = np.linalg.eigh(
            1j * np.tensordot(position, skew[:, h * kv_heads // heads, m], 1)
        )
        turn = np.real(vectors * np.exp(-1j * angles) @ vectors.conj().T)
        part = slice(m * block, (m + 1) * block)
        turned[:, h, i, part] = turn @ row.q[h, i, part], turn @ row.k[h, i, part]
    return np.einsum("hte,hse->hts", *turned) / dim**0.5


def cayley_string(
    row: Row, skew: Array, frequencies: Array, *, axes=2, base=100.0, layout="interleaved"
) -> Array:
    """Schenck et al., "STRING", arXiv 2502.02562, eq. 9 and 10: RoPE_ij P q_i·P k_j/sqrt(E).

    P = (I - S)(I + S)^-1 of S, the upper part of `skew` minus its transpose; pair i turns by
    Σ_a d_a·frequencies[a, i].
    """
    s, identity = np.triu(skew, 1) - np.triu(skew, 1).T, np.eye(len(skew))
    basis = (identity - s) @ np.linalg.inv(identity + s)
    distance = row.distance.reshape(*row.distance.shape[:2], axes)
    row = row._replace(q=row.q @ basis.T, k=row.k @ basis.T)
    return rotated(row, distance @ frequencies, layout)


def each(scaling, axes: int) -> tuple:
    """One scaling, or None, for each axis."""
    return scaling if isinstance(scaling, tuple) else (scaling,) * axes


def rope_nd(
    row: Row,
    *,
    axes=3,
    base=1e4,
    channels=None,
    spectrum="shared",
    normalized=False,
    layout="half",
    scaling=None,
) -> Array:
    """Wan, arXiv 2503.20314 (released code): frame, row and column turn consecutive pairs.

    Each axis has a series of frequencies over its own channels, by default the largest even number
    that all axes can have; spectrum "alternating" (Pixtral) deals one series in turn. `normalized`
    (DINOv3) multiplies by 2π. `scaling` is of all axes or one or None for each: `scaling(θ, base)`
    gives other frequencies of its channels, which it multiplies by its `attention_factor`.
    """
    channels = channels or (2 * (row.q.shape[-1] // 2 // axes),) * axes
    theta, sizes = np.zeros((2, sum(channels) // 2))
    axis_of = np.repeat(np.arange(axes), [n // 2 for n in channels])
    for axis, own in enumerate(each(scaling, axes)):
        b = np.broadcast_to(base, axes)[axis]
        width = sum(channels) if spectrum == "alternating" else channels[axis]
        series, sizes[axis_of == axis] = scaled(width, b, own)
        theta[axis_of == axis] = series[axis::axes] if spectrum == "alternating" else series
    unit = 2 * np.pi if normalized else 1
    return rotated(row, unit * row.distance[..., axis_of] * theta, layout, sizes)


rope_2d = functools.partial(rope_nd, axes=2)  # Heo et al., arXiv 2403.13298: row and column


def rope_inner(row: Row, *, sizes=(20.0, 2048.0, 2048.0), base=1e4, layout="interleaved") -> Array:
    """LTX-Video, arXiv 2501.00103 (released code): axes take turns over the width of all heads.

    From their code for key heads: a series from π/2 to base·π/2 of 2·distance/size for each axis,
    zeros in front.
    """
    keys, dim, axes = len(row.k) // row.shared, row.k.shape[-1], len(sizes)
    shares = 2 * row.distance.reshape(*row.distance.shape[:2], axes) / np.array(sizes)
    series = np.pi / 2 * np.geomspace(1, base, keys * dim // (2 * axes))
    flat = np.swapaxes(shares[..., None] * series, -1, -2).reshape(*shares.shape[:2], -1)
    flat = np.pad(flat, ((0, 0), (0, 0), (keys * dim // 2 - flat.shape[-1], 0)))
    angle = np.moveaxis(flat.reshape(*shares.shape[:2], keys, dim // 2), 2, 0)
    return rotated(row, np.repeat(angle, row.shared, axis=0), layout)


def rope_heads(row: Row, *, heads=(0, None), axes=1, **of_rope) -> Array:
    """Huang et al., "MHRoPE", arXiv 2510.23095: each head is RoPE on one axis, or NoPE."""
    distance = row.distance.reshape(*row.distance.shape[:2], axes)
    scores = products(row)
    for h, axis in enumerate(np.repeat(np.array(heads, object), len(scores) // len(heads))):
        if axis is not None:
            scores[h] = rope(row, distance=distance[..., axis], **of_rope)[h]
    return scores


def projective_maps(row: Row, width: int, base: float) -> tuple[Array, Array]:
    """PRoPE's map of each token's vectors and its inverse, block-diagonal: [T, width, width]."""
    maps, quarter = np.zeros((len(row.positions), width, width)), width // 4
    theta = frequencies(quarter, base)
    for each, (*camera, y, x) in zip(maps, row.positions.astype(float), strict=True):
        projection = np.vstack([np.reshape(camera, (3, 4)), [0, 0, 0, 1]])
        projection = projection if np.linalg.det(projection) else np.eye(4)  # no camera
        each[: 2 * quarter, : 2 * quarter] = np.kron(np.eye(width // 8), projection)
        for start, at in ((2 * quarter, x), (3 * quarter, y)):
            cos, sin = np.diag(np.cos(at * theta)), np.diag(np.sin(at * theta))
            part = slice(start, start + quarter)
            each[part, part] = np.block([[cos, -sin], [sin, cos]])
    return maps, np.linalg.inv(maps)


def prope(row: Row, *, base=100.0) -> Array:
    """Li et al., "PRoPE", arXiv 2507.10496: q_iᵀ D_i D_j⁻¹ k_j/sqrt(E)."""
    maps, inverses = projective_maps(row, row.q.shape[-1], base)
    q, k = np.einsum("hte,tef->htf", row.q, maps), np.einsum("sfe,hse->hsf", inverses, row.k)
    return products(row._replace(q=q, k=k))


def prope_values(row: Row, weights: Array, v: Array, *, base=100.0) -> Array:
    """Σ weights · D_i D_j⁻¹ v_j: [H, T, F]."""
    maps, inverses = projective_maps(row, v.shape[-1], base)
    moved = weights @ np.einsum("sfe,hse->hsf", inverses, v)
    return np.einsum("tfe,hte->htf", maps, moved)


def ray_maps(row: Row, width: int, rays: int, base: float, centre: bool) -> Array:
    """RayRoPE's map of each token's vectors, mean over its depths: [T, width, width]."""
    periods = np.array([4.0] * 3 * centre + [8.0] * 2 * rays + [80.0] * rays)
    pairs = width // (2 * len(periods)) * len(periods)
    theta = (2 * np.pi / periods * base ** np.arange(pairs // len(periods))[:, None]).reshape(-1)
    maps = np.tile(np.eye(width), (len(row.positions), 1, 1))
    for each, place in zip(maps, row.positions.astype(float), strict=True):
        known, ends = place[: 3 * centre], place[3 * centre :].reshape(2, -1)
        steps = np.concatenate([np.tile(known, (2, 1)), ends], axis=1)
        angle = np.tile(steps, pairs // len(periods)) * theta
        share = np.linspace(0, 1, 2**12 + 1)[:, None]
        turns = np.exp(1j * ((1 - share) * angle[0] + share * angle[1]))
        mean = (turns[1:] + turns[:-1]).mean(0) / 2  # the trapezoid rule
        cos, sin = np.diag(mean.real), np.diag(mean.imag)
        each[: 2 * pairs, : 2 * pairs] = np.block([[cos, sin], [-sin, cos]])
    return maps


def rayrope(row: Row, *, rays=3, base=3.0, centre=True) -> Array:
    """Wu et al., "RayRoPE", arXiv 2601.15275: (R_i q_i)ᵀ R_j k_j/sqrt(E)."""
    maps = ray_maps(row, row.q.shape[-1], rays, base, centre)
    q, k = (np.einsum("tef,htf->hte", maps, x) for x in (row.q, row.k))
    return products(row._replace(q=q, k=k))


def rayrope_values(row: Row, weights: Array, v: Array, *, rays=3, base=3.0, centre=True) -> Array:
    """Σ weights · R_i* R_j v_j: [H, T, F]."""
    maps = ray_maps(row, v.shape[-1], rays, base, centre)
    return np.einsum("tfe,htf->hte", maps, weights @ np.einsum("tef,htf->hte", maps, v))


def mrope(
    row: Row,
    *,
    base=1e6,
    sections=None,
    interleaved=False,
    fraction=1.0,
    scaling=None,
    time_last=False,
    layout="half",
) -> Array:
    """Wang et al., "Qwen2-VL", arXiv 2409.12191, §2.1: each frequency belongs to one axis.

    Time, row and column have sections, by default 16 : 24 : 24. With `interleaved` (Qwen3-VL, arXiv
    2511.21631; by default 24 : 20 : 20) they take turns, then time has the rest. With `time_last`
    (VideoRoPE, arXiv 2502.05173) row and column take turns until time has the rest. `fraction`,
    `scaling` and `layout` as in `rope`.
    """
    pairs = round(fraction * row.q.shape[-1]) // 2
    share = max(1, (20 if interleaved else 24) * pairs // 64)
    sections = sections or (pairs - 2 * share, share, share)
    axes = np.repeat(np.arange(3), sections)
    if interleaved:
        axes = np.array([i % 3 if i // 3 < sections[i % 3] else 0 for i in range(pairs)])
    if time_last:
        axes = np.array([1 + i % 2 if i < 2 * sections[1] else 0 for i in range(pairs)])
    theta, size = scaled(2 * pairs, base, scaling)
    return rotated(row, row.distance[..., axes] * theta, layout, size)

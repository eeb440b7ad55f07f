"""What the laws share: every scheme as a case, inputs, and one compiled function a law and case.

B batch, T tokens, H query heads, K key heads, E head width, D = H·E model width.
"""

import functools
from typing import Any, NamedTuple

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import Encoding, Params, Sum
from pe_jax.encodings.base import Dims, abstract_terms, adds_to_input
from pe_jax.encodings.rope_scaling import NTK, Linear
from pe_jax.encodings.terms import (
    DistanceBias,
    DistanceFormula,
    DistanceTerm,
    Rotation,
    Term,
    is_absolute,
    select,
)
from pe_jax.encodings.terms import scale as terms_scale
from pe_jax.engines import pipeline
from pe_jax.engines.tiled import Tiled, TileSizes
from pe_jax.positions import per_segment

B, T, H, K, E = 2, 13, 4, 2, 8
DIMS = Dims(H * E, H, K, E)
BLOCKS = (4, 4)  # T is no multiple of it: 4 × 4 tiles
# T tokens are many tiles of two heads at a time, as thousands of tokens are on a CPU; or of all
# heads, which compiles a third faster.
TILED, UNGROUPED = Tiled(TileSizes(*BLOCKS, group=(1, 2))), Tiled(TileSizes(*BLOCKS))

# Settings under which horizons are reached within T tokens; a scheme not named here has its
# defaults. `causal` is no field: False makes a case that looks both ways.
SMALL: dict[str, list[dict[str, Any]]] = {
    "learned": [{"length": 40}],
    "rayrope": [{"rays": 1, "centre": False}],
    "shaw": [{"clip": 3}, {"clip": 2, "values": False, "causal": False}],
    "t5": [
        {"num_buckets": 6, "max_distance": 9},
        {"num_buckets": 8, "max_distance": 6, "bidirectional": True, "causal": False},
    ],
    "buckets": [{"edges": (0, 1, 4)}, {"edges": (0, 2, 5), "directional": True, "causal": False}],
    "clipped": [{"clip": 3}],
    "deberta": [
        {"buckets": None, "max_distance": 4},
        {"buckets": 4, "max_distance": 7, "causal": False},
    ],
    "rope": [{}, {"fraction": 0.5, "layout": "interleaved"}],
    "rope_pp": [{"layout": "interleaved", "fraction": 0.5}],
    "rope_heads": [{}, {"axes": 3, "heads": (2, None), "layout": "interleaved"}],
    "rope_inner": [
        {"sizes": (9.0, 7.0, 8.0), "base": 3.0},
        {"sizes": (9.0,), "base": 3.0, "layout": "half"},
    ],
    "lerope": [{"layout": "interleaved"}],
    "fope": [{"length": 64, "learned": True}],
    "xpos": [{"scale_base": 8}],
    "selective_rope": [{"rank": 3}],
    "key_offset": [{"fraction": 0.25, "halves": True}],
    "temperature": [{"floor_scale": 4, "attn_scale": 0.5}],
    "alibi": [{}, {"causal": False}],
    "grape_ap": [{"width": 4}],
    "cope": [{"positions": 4}],
    "stick_breaking": [{}, {"attend_current": True}],
    "dape": [{"hidden": 5}],
    "rerope": [{"window": 3}],
    "self_extend": [{"group": 2, "window": 4}],
    "dual_chunk": [{"chunk_size": 4, "local_size": 1}, {"chunk_size": 5, "local_size": 1}],
    "wavlm": [{"num_buckets": 8, "max_distance": 6}],
    "inkling": [
        {"extent": 4, "width": 3},
        {"extent": 6, "width": 5, "floor": 4, "attn_scale": 0.5, "clip_states": 1.5},
    ],
    "sink": [{}, {"from_input": True}],
    "learned_2d": [{"height": 40, "width": 41}],
    "learned_grid": [{"height": 40, "width": 41}],
    "rope_2d": [{"channels": (2, 6), "causal": False}],
    "rope_nd": [
        {
            "channels": (4, 2, 2),
            "base": (100.0, 1e4, 1e3),
            "layout": "interleaved",
            "scaling": (NTK(2.0), None, Linear(2.0)),
        }
    ],
    "liere": [{"block": 4}, {"block": 8, "commuting": True}],
    "mrope": [{"interleaved": True}],
    "swin": [{"height": 14, "width": 15}],
    "cpb": [{"hidden": 5, "causal": False}],
    "layoutlmv3": [{"num_buckets": 4, "max_distance": 5, "spatial_buckets": 6}],
    "kerple": [{"kind": "power"}],
    "sandwich": [{"width": 16}],
    "fire": [{"width": 5, "length": 64.0}],
    # Of the distance itself the bias has no bound, and far out scores lose digits: test_dpb.
    "dpb": [
        {"log_distance": True},
        {"hidden": 5, "depth": 1, "log_distance": True, "causal": False},
    ],
    "tupe": [{"length": 40}],
    "bipe": [{"length": 40}],
}


class Case(NamedTuple):
    """One scheme under test; hashable, so that what is compiled for it can be kept."""

    name: str
    encoding: Encoding
    causal: bool = True

    def __repr__(self):
        return self.name


def _single(name: str, fields: dict[str, Any]) -> Case:
    settings = {f: x for f, x in fields.items() if f != "causal"}
    shown = ",".join(f"{f}={x}" for f, x in fields.items()).replace(" ", "")
    title = name + f"({shown})" * bool(shown)
    return Case(title, pe_jax.make(name, **settings), fields.get("causal", True))


def _sum(*names: str) -> Case:
    parts = (_single(name, SMALL.get(name, [{}])[0]).encoding for name in names)
    return Case("+".join(names), Sum(tuple(parts)))


def terms(encoding: Encoding, *kinds: type) -> list:
    """Its terms of these kinds, with shapes in the place of arrays."""
    return select(abstract_terms(encoding, DIMS), *(kinds or (Term,)))


def horizon(encoding: Encoding) -> tuple[int, int] | None:
    """That of its terms of distances, which is the same for all."""
    (common,) = {term.horizon for term in terms(encoding, DistanceTerm)}
    return common


def rotate(encoding: Encoding, side: str, params: Params, x, positions) -> jax.Array:
    """Queries (`side` "q") or keys ("k") as the terms rotate them; x is the layer's input too."""
    dims = Dims(x.shape[-2] * x.shape[-1], x.shape[-2], x.shape[-2], x.shape[-1])
    found, flat_x = encoding.terms(params, dims), jnp.reshape(x, (*x.shape[:-2], dims.width))
    states = tuple(
        t.state(flat_x, positions) if isinstance(t, Rotation) and t.state is not None else None
        for t in found
    )
    return pipeline.rotate(found, side, jnp.asarray(x), positions, states)


def distance_bias(encoding: Encoding, params: Params, distance, dims: Dims = DIMS) -> jax.Array:
    """The sum of its biases of distances: [H, *n]."""
    biases = select(encoding.terms(params, dims), DistanceBias, DistanceFormula)
    scale = terms_scale(encoding.terms(params, dims), dims.head_dim)
    return sum((scale if t.scaled else 1) * t.at(jnp.asarray(distance)) for t in biases)


def naive_form(encoding: Encoding, params: Params) -> tuple[str, dict, dict]:
    """What `pe_jax.naive` asks for of a scheme: its name, parameters and settings."""
    name = next(name for name, kind in pe_jax.ENCODINGS.items() if kind is type(encoding))
    return name, {**params.shared, **params.layer}, vars(encoding)


def naive_attention(encoding: Encoding, params: Params, q, k, v, **options) -> np.ndarray:
    """`pe_jax.naive.attention` of one row: float64 [T, H, F]."""
    name, *given = naive_form(encoding, params)
    return pe_jax.naive.attention(name, q, k, v, *given, **options)


def is_relative(encoding: Encoding) -> bool:
    """Whether only distances matter, by what the scheme declares."""
    absolute = is_absolute(abstract_terms(encoding, DIMS), encoding.claims.absolute_rotation)
    return not (absolute or adds_to_input(encoding, DIMS))


SINGLE = [_single(n, fields) for n in pe_jax.ENCODINGS for fields in SMALL.get(n, [{}])]
# These take every kind of term through a sum, and two through each way of the tiled engine.
SUMS = [_sum(*names) for names in (("shaw", "t5"), ("t5", "alibi"), ("fire", "t5"))] + [
    _sum(name, "rope") for name in "sinusoidal shaw transformer_xl t5 deberta alibi".split()
]
CASES = SINGLE + SUMS

# A scheme of each kind of term and state. What follows from these alone is tested for them; that it
# holds for every scheme takes minutes, and is left to `pytest -m slow`.
KINDS = "learned rope pope selective_rope alibi t5 shaw deberta transformer_xl fire tupe fox wavlm"
KINDS += " key_offset wall inkling sink rerope cope rotated_values"


def first_of_kinds(cases: list[Case]) -> set[Case]:
    """The first of these cases for each of `KINDS`."""
    first = {c.name.partition("(")[0]: c for c in reversed(cases)}
    return {first[name] for name in KINDS.split() if name in first}


def of_each_kind(cases: list[Case], among: list[Case] | None = None):
    """Parametrises `case` over all; but for the first of each of `KINDS` in `among`, slow."""
    quick = first_of_kinds(cases if among is None else among)
    marks = [() if case in quick else pytest.mark.slow for case in cases]
    params = [pytest.param(c, id=c.name, marks=mark) for c, mark in zip(cases, marks, strict=True)]
    return pytest.mark.parametrize("case", params)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal, float32."""
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def random_params(encoding: Encoding, dims: Dims = DIMS, seed: int = 1) -> Params:
    """Parameters of the shapes that the scheme asks for, no two alike, with no term zero."""
    like, structure = jax.tree.flatten(shapes(encoding, dims))
    drawn = (0.4 * noise(*x.shape, seed=seed + 10 * n) for n, x in enumerate(like))
    return jax.tree.unflatten(structure, map(jnp.asarray, drawn))


@functools.cache
def shapes(encoding: Encoding, dims: Dims) -> Params:
    """Of its parameters."""
    return jax.eval_shape(lambda: encoding.init(jax.random.key(0), dims))


def inputs(length: int = T, kv_heads: int = K) -> tuple[np.ndarray, ...]:
    """q, k, v: [B, T, H, E], then twice [B, T, K, E]."""
    heads = (H, kv_heads, kv_heads)
    return tuple(noise(B, length, n, E, seed=s) for s, n in enumerate(heads))


def jit(f, **options):
    """Compiled with few optimisations: the tests compile much and run little."""
    return jax.jit(f, compiler_options={"xla_backend_optimization_level": 0}, **options)


def flat(q) -> jax.Array:
    """[*B, T, H, E] → [*B, T, D]."""
    return q.reshape(*q.shape[:-2], DIMS.width)


def layer(case: Case, params, q, k, v, positions, segments, **options) -> jax.Array:
    """Attention, after `embed` has added what it adds, to q, so that inputs take part too.

    The layer's input, for schemes that read it, is q again. What needs whole rows runs dense; tiles
    are small, of two heads at explicit positions.
    """
    enc = case.encoding
    if options["implementation"] == "tiled":
        options["implementation"] = UNGROUPED if positions is None else TILED
    if adds_to_input(enc, DIMS):
        places = per_segment(segments) if positions is None else positions
        q = enc.embed(params, flat(q), places).reshape(q.shape)
    return pe_jax.attention(
        q,
        k,
        v,
        encoding=enc,
        params=params,
        x=flat(q),
        q_positions=positions,
        q_segments=segments,
        causal=case.causal,
        embedded=True,
        **options,
    )


@functools.cache
def compiled(case: Case, engine: str, gradients: bool = True):
    """(params, qkv, positions or None, segments, cotangent) → output, (d_params, d_q, d_k, d_v).

    Without gradients: the output alone, in a tuple.
    """

    def run(params, qkv, positions, segments, cotangent):
        def f(params, q, k, v):
            return layer(case, params, q, k, v, positions, segments, implementation=engine)

        if not gradients:
            return (f(params, *qkv),)
        out, pull = jax.vjp(f, params, *qkv)
        return out, pull(cotangent)

    return jit(run)


def run(
    case: Case,
    engine: str,
    *,
    positions=None,
    segments=None,
    qkv=None,
    cotangent=None,
    gradients: bool = True,
):
    """What `compiled` gives, as NumPy arrays, for the usual inputs unless others are given."""
    qkv = inputs() if qkv is None else qkv
    segments = np.zeros(qkv[0].shape[:2], np.int32) if segments is None else segments
    cotangent = noise(*qkv[0].shape, seed=9) if cotangent is None else cotangent
    params = random_params(case.encoding)
    outcome = compiled(case, engine, gradients)(params, qkv, positions, segments, cotangent)
    return jax.tree.map(np.asarray, outcome)


def assert_close(got, want, tol: float = 1e-5) -> None:
    """Every leaf within `tol`, relative to its largest value (or to 1)."""
    for (path, g), w in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        name = jax.tree_util.keystr(path)
        assert g.shape == w.shape, f"{name}: {g.shape} is not {w.shape}"
        if w.size:
            error = np.abs(g - w).max() / max(1.0, np.abs(w).max())
            assert error <= tol, f"{name}: off by {error:.2g}"  # NaN fails too


def contiguous(*shape: int) -> np.ndarray:
    """0, 1, 2, … along the last axis: int32."""
    return np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)


def cameras(numbers: np.ndarray) -> np.ndarray:
    """Positions for `prope`, cameras at right angles and patches: int32 [*n, 14]."""
    zero, wave = 0 * numbers, np.int32([1, 0, -1, 0])
    cos, sin = wave[numbers % 4], wave[numbers % 4 - 1]
    rows = [cos, -sin, zero, numbers % 3, sin, cos, zero, numbers % 5]
    rows += [zero, numbers % 2, zero + 1, zero - 1]
    return np.stack([*rows, numbers, numbers // 2], axis=-1)


def spread(case: Case, places: np.ndarray) -> np.ndarray:
    """Positions of contiguous tokens on several axes: each runs slower than the one before."""
    axes = case.encoding.claims.axes
    if axes == 14:
        return cameras(places)
    return places if axes == 1 else np.stack([places // (a + 1) for a in range(axes)], axis=-1)


def positions(case: Case, shape=(B, T), reach: int = 2**22):
    """Positions that the scheme allows: small and repeated, far and negative, shuffled.

    Each axis is drawn by itself; shape does not count it.
    """
    limit = case.encoding.limit()
    low, high = (-reach, reach) if limit is None else (0, limit - 1)
    ints = functools.partial(hnp.arrays, np.int32)
    near = ints(shape, elements=st.integers(max(low, -3), min(high, 9)))
    far = ints(shape, elements=st.integers(low, high))
    shuffled = st.permutations(range(shape[-1])).map(
        lambda p: np.tile(np.int32(p), (*shape[:-1], 1))
    )
    drawn, axes = near | far | shuffled, case.encoding.claims.axes
    if case.encoding.claims.causal_only:  # no position runs backwards
        drawn = drawn.map(lambda x: np.sort(x, axis=-1))
    if axes == 1:
        return drawn
    if axes == 14:
        return drawn.map(cameras)
    return st.tuples(*[drawn] * axes).map(lambda each: np.stack(each, axis=-1))


def segments(shape=(B, T)):
    """Segment ids in any order; a negative id is padding."""
    return hnp.arrays(np.int32, shape, elements=st.integers(-1, 2))

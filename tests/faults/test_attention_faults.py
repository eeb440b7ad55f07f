"""Attention and its cache, given what does not fit: one line that says what, and what would."""

import dataclasses

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given

import pe_jax
from pe_jax import Params
from pe_jax.encodings import alibi, learned, rope
from pe_jax.encodings.rope_scaling import DynamicNTK
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.encodings.terms import DistanceBias, PairBias
from pe_jax.engines.decoding import cache
from pe_jax.engines.tiled import Tiled, TileSizes
from tests import util
from tests.util import DIMS, B, E, H, K

T = 5
Q, K_, V = util.inputs(T)
ROPE, T5, SHAW = (pe_jax.make(name) for name in ("rope", "t5", "shaw"))
FOX, X = pe_jax.make("fox"), Q.reshape(B, T, H * E)
NO_PARAMS = Params({}, {})


def attention(q=Q, k=K_, v=V, **options):
    """`pe_jax.attention` with the parameters that the scheme needs."""
    encoding = options.get("encoding")
    if isinstance(encoding, pe_jax.Encoding) and "params" not in options:
        options["params"] = util.random_params(encoding)
    return pe_jax.attention(q, k, v, **options)


def extend(q=Q, k=K_, v=V, positions=None, capacity=8, encoding=ROPE, params=None, **options):
    positions = util.contiguous(1, T) if positions is None else positions
    past = cache.empty(encoding, B, capacity, DIMS)
    params = util.random_params(encoding) if params is None else params
    options |= {"encoding": encoding, "params": params, "dims": DIMS}
    return cache.extend(past, q, k, v, positions, **options)[0]


def refuses(kind, message: str, f, *args, **options):
    """Raises `kind`, on one line that contains each part of `message` (split at …)."""
    with pytest.raises(kind) as found:
        f(*args, **options)
    said = str(found.value)
    assert "\n" not in said and len(said) < 250
    for part in message.split(" … "):
        assert part in said, said


def at(*values, dtype=np.int32):
    return np.asarray(values, dtype)


FAR = np.full(T, 2**24)
NTK = pe_jax.make("rope", scaling=DynamicNTK(8.0, 2))  # depends on the length from 2 tokens on
FAULTS = {
    "odd head width": (
        ValueError,
        "head_dim=7 … even",
        dict(q=Q[..., :7], k=K_[..., :7], encoding=ROPE),
    ),
    "fraction": (
        ValueError,
        "fraction=0.4 … even",
        dict(encoding=pe_jax.make("rope", fraction=0.4)),
    ),
    "key heads": (
        ValueError,
        "k has 3 heads … [1, 2, 4]",
        dict(k=Q[:, :, :3], v=Q[:, :, :3]),
    ),
    "key batch": (ValueError, "(2, 5, 4, 8) … (1, 5, 2, 8) … batch", dict(k=K_[:1], v=V[:1])),
    "value batch": (ValueError, "(2, 5, 2, 8) … (1, 5, 2, 8)", dict(v=V[:1])),
    "value length": (ValueError, "(2, 1, 2, 8)", dict(v=V[:, :1])),
    "key width": (ValueError, "same width", dict(k=K_[..., :4])),
    "value width": (ValueError, "v has width 1 … 8", dict(v=V[..., :1], encoding=SHAW)),
    "rank": (ValueError, "q has shape (4, 8) … [*B, length, heads, width]", dict(q=Q[0, 0])),
    "integers": (TypeError, "v has dtype int32 … float32", dict(v=np.ones(V.shape, np.int32))),
    "dims": (ValueError, "4 heads of 8 … 8 of 4", dict(dims=pe_jax.Dims(32, 8, 2, 4))),
    "a list": (TypeError, "k is a list; pass an array", dict(k=K_.tolist())),
    "causal": (ValueError, "causal='no' … True or False", dict(causal="no")),
    "a short table": (
        ValueError,
        "params.shared.table has shape [4, 16]; T5 takes [4, 32] for … init(key, dims)",
        dict(encoding=T5, params=Params({"table": np.zeros((H, 16))}, {})),
    ),
    "a name": (TypeError, "encoding='rope' … pe_jax.make", dict(encoding="rope")),
    "no input": (ValueError, "x=None: FoX reads … pass x=", dict(encoding=FOX)),
    "another input": (
        ValueError,
        "x has shape (2, 4, 32) … [2, 5, 32]",
        dict(encoding=FOX, x=X[:, 1:]),
    ),
    "rows in tiles": (
        ValueError,
        "implementation='tiled' … DAPE needs whole rows … 'dense'",
        dict(encoding=pe_jax.make("dape"), implementation="tiled"),
    ),
    "sinks alone": (ValueError, "sinks=2: pass a window", dict(sinks=2)),
    "negative sinks": (ValueError, "sinks=-1 … at least 0", dict(window=2, sinks=-1)),
    "no params": (ValueError, "T5 … encoding.init(", dict(encoding=T5, params=None)),
    "params": (TypeError, "params is a dict … pe_jax.Params", dict(encoding=T5, params={})),
    "a table": (
        ValueError,
        "params.shared has no table for T5; pass encoding.init(",
        dict(encoding=T5, params=Params({}, {"table": np.zeros((H, 32))})),
    ),
    "a table of a part": (
        ValueError,
        "params.shared has no 0.table for Sum",
        dict(encoding=pe_jax.Sum((T5, ROPE)), params=NO_PARAMS),
    ),
    "the table of one head": (
        ValueError,
        "params.shared.table has shape [1, 32]; T5 takes [4, 32] for … heads=4 … init(key, dims)",
        dict(encoding=T5, params=Params({"table": np.zeros((1, 32))}, {})),
    ),
    "parameters of other heads": (
        ValueError,
        "params.shared.0.table has shape [8, 32]; T5+RoPE takes [4, 32] … dims=",
        dict(
            encoding=pe_jax.Sum((T5, ROPE)), params=Params(({"table": np.zeros((8, 32))}, {}), {})
        ),
    ),
    "parameters of another width": (
        ValueError,
        "params.layer.weight has shape [24, 4]; FoX takes [32, 4] for Dims(width=32",
        dict(
            encoding=FOX,
            x=X,
            params=Params({}, {"bias": X[0, 0, :H], "weight": X[0, :1, :24].T * np.ones(H)}),
        ),
    ),
    "an input of another width": (
        ValueError,
        "x has shape (2, 5, 24); pass [2, 5, 32]",
        dict(encoding=FOX, x=X[..., :24], dims=DIMS),
    ),
    "all see all, one-sided": (
        ValueError,
        "causal=False: all later tokens look alike to T5; … bidirectional=True … causal=True",
        dict(encoding=T5, causal=False),
    ),
    "all see all, one-sided part": (
        ValueError,
        "causal=False: all later tokens look alike to T5+RoPE",
        dict(encoding=pe_jax.Sum((T5, ROPE)), causal=False),
    ),
    "all see all, causal alone": (
        ValueError,
        "causal=False: XPos is for causal attention alone",
        dict(encoding=pe_jax.make("xpos"), causal=False),
    ),
    "several axes, no word on the mask": (
        ValueError,
        "causal=None: RoPE2D has 2 axes; pass True, or False",
        dict(encoding=pe_jax.make("rope_2d"), q_positions=np.zeros((T, 2), int)),
    ),
    "no length, positions": (
        ValueError,
        "RoPE depends on the length … encoding.at_length(total_length)",
        dict(encoding=NTK, q_positions=np.arange(T)),
    ),
    "no length, a part": (
        ValueError,
        "T5+RoPE depends on the length … encoding.at_length(total_length)",
        dict(encoding=pe_jax.Sum((T5, NTK)), q_positions=np.arange(T)),
    ),
    "no length, other keys": (
        ValueError,
        "RoPE depends on the length … encoding.at_length(total_length)",
        dict(
            encoding=NTK,
            k=K_[:, :3],
            v=V[:, :3],
            q_positions=np.arange(T),
            k_positions=np.arange(3),
        ),
    ),
    "more tokens than its length": (
        ValueError,
        "q goes to position 4, RoPE is set for 3 tokens; pass encoding.at_length(5)",
        dict(encoding=NTK.at_length(3)),
    ),
    "a position beyond its length": (
        ValueError,
        "k_positions goes to position 9, RoPE is set for 8 tokens; pass encoding.at_length(10)",
        dict(encoding=NTK.at_length(8), q_positions=np.arange(T), k_positions=5 + np.arange(T)),
    ),
    "engine": (ValueError, "'tield' … 'tiled'", dict(implementation="tield")),
    "GPU": (ValueError, "'fused': it needs a GPU … a CPU … 'tiled'", dict(implementation="fused")),
    "TPU": (ValueError, "'tpu': it needs a TPU … a CPU … 'tiled'", dict(implementation="tpu")),
    "window 0": (ValueError, "window=0 … at least 1", dict(window=0)),
    "window 1.5": (ValueError, "window=1.5 … integer", dict(window=1.5)),
    "window True": (ValueError, "window=True … integer", dict(window=True)),
    "lengths": (ValueError, "5 tokens … 3 … q_positions", dict(k=K_[:, :3], v=V[:, :3])),
    "lengths, no index": (
        ValueError,
        "5 tokens … 3 … q_index",
        dict(
            k=K_[:, :3],
            v=V[:, :3],
            q_positions=np.arange(T),
            k_positions=np.arange(3),
        ),
    ),
    "k_positions alone": (ValueError, "pass both", dict(k_positions=np.arange(T))),
    "k_segments alone": (ValueError, "pass both", dict(k_segments=np.zeros((B, T), int))),
    "float positions": (
        TypeError,
        "q_positions has dtype float32 … integers",
        dict(encoding=T5, q_positions=np.arange(T, dtype=np.float32)),
    ),
    "bf16 positions": (
        TypeError,
        "q_positions has dtype bfloat16",
        dict(encoding=ROPE, q_positions=jnp.zeros(T, jnp.bfloat16)),
    ),
    "bool positions": (TypeError, "dtype bool", dict(q_positions=np.zeros(T, bool))),
    "NaN positions": (
        ValueError,
        "q_positions … finite",
        dict(encoding=ROPE, q_positions=at(0, 1, np.nan, 3, 4, dtype=np.float32)),
    ),
    "float segments": (TypeError, "q_segments has dtype float", dict(q_segments=np.zeros((B, T)))),
    "2**24 under RoPE": (ValueError, "16777216 … 2**24", dict(encoding=ROPE, q_positions=FAR)),
    "2**40": (ValueError, "2**31", dict(encoding=T5, q_positions=FAR * 2**16)),
    "a difference beyond int32": (
        ValueError,
        "q_positions … 2**30",
        dict(encoding=T5, q_positions=FAR * 2**6, k_positions=-FAR * 2**6),
    ),
}


@pytest.mark.parametrize("kind, message, options", FAULTS.values(), ids=list(FAULTS))
@pytest.mark.parametrize("engine", ("dense", "tiled"))
def test_attention_refuses(engine, kind, message, options):
    refuses(kind, message, attention, **{"implementation": engine, **options})


CACHE_FAULTS = {
    "too small": (ValueError, "0 of 4 … 5 more … capacity >= 5", dict(capacity=4)),
    "no capacity": (ValueError, "capacity=0 … at least 1", dict(capacity=0)),
    "one row for two": (ValueError, "k has shape (1, 5", dict(q=Q[:1], k=K_[:1], v=V[:1])),
    "key heads": (ValueError, "(2, 5, 1, 8) … (2, 5, 2, 8)", dict(k=K_[:, :, :1])),
    "value width": (ValueError, "v has shape (2, 5, 2, 3)", dict(v=V[..., :3])),
    "value length": (ValueError, "v has shape (2, 4", dict(v=V[:, :4])),
    "lengths": (ValueError, "q (2, 5 … k (2, 4", dict(k=K_[:, :4])),
    "positions": (ValueError, "positions has shape [5] … [1, 5]", dict(positions=np.arange(T))),
    "one position": (ValueError, "shape [1, 1]", dict(positions=np.zeros((1, 1), int))),
    "float positions": (
        TypeError,
        "float32 … integers",
        dict(positions=np.zeros((1, T), np.float32), encoding=T5),
    ),
    "the input alone": (
        ValueError,
        "embedded=False: Learned adds to the input",
        dict(encoding=pe_jax.make("learned")),
    ),
    "no length": (ValueError, "encoding.at_length(total_length)", dict(encoding=NTK)),
    "a position beyond its length": (
        ValueError,
        "positions goes to position 4, RoPE is set for 3 tokens; pass encoding.at_length(5)",
        dict(encoding=NTK.at_length(3)),
    ),
    "the table of one head": (
        ValueError,
        "params.shared.table has shape [1, 32]; T5 takes [4, 32]",
        dict(encoding=T5, params=Params({"table": np.zeros((1, 32))}, {})),
    ),
    "no input": (ValueError, "x=None: FoX reads", dict(encoding=FOX)),
    "another input": (
        ValueError,
        "x has shape (2, 5, 24); pass [2, 5, 32]",
        dict(encoding=FOX, x=X[..., :24]),
    ),
}


@pytest.mark.parametrize("kind, message, options", CACHE_FAULTS.values(), ids=list(CACHE_FAULTS))
def test_the_cache_refuses(kind, message, options):
    refuses(kind, message, extend, **options)


# What would be another model.

INPUTS = "sinusoidal learned bipe sinusoidal_2d learned_2d learned_grid".split()
INPUTS += ["sinusoidal+rope", "rope+learned"]


@pytest.mark.parametrize("spec", INPUTS)
def test_a_scheme_that_adds_to_the_input_wants_to_be_told_that_it_was_added(spec):
    """Left out, it would be NoPE, or the rest of the sum alone."""
    (encoding,) = pe_jax.parse(spec)
    places = np.zeros((T, encoding.claims.axes), int) if encoding.claims.axes > 1 else None
    given = {"encoding": encoding, "q_positions": places, "causal": True}
    said = "embedded=False: … x = encoding.embed(params, x, positions) … embedded=True"
    refuses(ValueError, said, attention, **given)
    refuses(ValueError, "embedded='yes': pass True or False", attention, **given, embedded="yes")
    out = attention(**given, embedded=True)
    turned = {"sinusoidal+rope": ROPE, "rope+learned": ROPE}.get(spec, pe_jax.Encoding())
    if encoding.claims.axes == 1:
        np.testing.assert_array_equal(out, attention(encoding=turned))


@pytest.mark.parametrize("causal", (True, False))
def test_several_axes_are_told_whether_later_tokens_are_hidden(causal):
    places = np.stack([np.arange(T) // 2, np.arange(T) % 2], axis=-1)
    given = {"encoding": pe_jax.make("rope_2d"), "q_positions": places, "causal": causal}
    moved = attention(**given) - attention(v=V + (np.arange(T) > 2)[:, None, None], **given)
    assert np.asarray(moved)[:, :3].any() == (not causal)


def test_one_axis_is_causal_unless_told():
    np.testing.assert_array_equal(attention(encoding=ROPE), attention(encoding=ROPE, causal=True))


LONG = LongRoPE((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 2, factor=4.0)
SCALED = {"dynamic_ntk": NTK, "longrope": pe_jax.make("rope", scaling=LONG)}


@pytest.mark.parametrize("engine", ("dense", "tiled"))
@pytest.mark.parametrize("encoding", SCALED.values(), ids=list(SCALED))
def test_a_scaling_that_depends_on_the_length_has_that_of_the_call(encoding, engine):
    """Packed or not, as the Transformer sets it; what was set before stays as it is."""
    given = {"implementation": engine}
    for segments in (None, np.zeros((B, T), int)):
        got = attention(encoding=encoding, q_segments=segments, **given)
        want = attention(encoding=encoding.at_length(T), q_segments=segments, **given)
        np.testing.assert_array_equal(got, want)

    def by_hand(encoding):
        turned = [util.rotate(encoding, "q", NO_PARAMS, x, np.arange(T)) for x in (Q, K_)]
        raw = {"q_raw": Q, "k_raw": K_, "dims": DIMS}
        terms = encoding.terms(NO_PARAMS, DIMS)
        return pe_jax.attend(*turned, V, terms=terms, **raw, **given)

    assert np.abs(got - by_hand(encoding)).max() > 0.01  # as it stands, it is for short sequences
    longer = encoding.at_length(4 * T)
    for places in (None, np.arange(T)):
        got = attention(encoding=longer, q_positions=places, **given)
        np.testing.assert_allclose(got, by_hand(longer), atol=1e-6)


def test_a_scaling_within_its_original_length_is_right_at_any_position():
    """A length below the original one is none that is scaled; beyond it LongRoPE knows one more."""
    short, long = (pe_jax.make("rope", scaling=LONG).at_length(n) for n in (1, 3))
    assert np.isfinite(attention(encoding=long, q_positions=10 * np.arange(T))).all()
    said = "q_positions goes to position 40, RoPE is set for 2 tokens"
    refuses(ValueError, said, attention, encoding=short, q_positions=10 * np.arange(T))
    wide = dataclasses.replace(NTK, scaling=DynamicNTK(8.0, T)).at_length(1)
    np.testing.assert_array_equal(attention(encoding=wide), attention(encoding=ROPE))


@pytest.mark.parametrize("spec", ("rope", "alibi", "fire+rope", "rope_2d"))
@pytest.mark.parametrize("engine", ("dense", "tiled", "a cache"))
def test_no_gradient_goes_to_positions(engine, spec):
    """A constant in every engine: else it would depend on which of them runs."""
    (encoding,) = pe_jax.parse(spec)

    @jax.grad
    def grad(places):
        if engine == "a cache":
            return (extend(positions=places[None], encoding=encoding) ** 2).sum()
        out = attention(encoding=encoding, q_positions=places, causal=True, implementation=engine)
        return (out**2).sum()

    shape = (T, encoding.claims.axes) if encoding.claims.axes > 1 else (T,)
    places = jnp.asarray(np.arange(T * encoding.claims.axes).reshape(shape) * 0.7, jnp.float32)
    assert not np.asarray(grad(places)).any()
    alone = jax.grad(lambda p: (rope.rotate(Q, p, rope.frequencies(E)) * Q).sum())
    assert np.asarray(alone(jnp.arange(T, dtype=jnp.float32))).any()  # the functions have one


@pytest.mark.parametrize("name", ("q_positions", "q_segments", "q_index"))
@given(shape=hnp.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=T))
def test_no_shape_is_broadcast(name, shape):
    assume(shape not in {(T,), (B, T)})
    refuses(
        ValueError, f"{name} has shape {list(shape)}", attention, **{name: np.zeros(shape, int)}
    )


def test_segments_need_the_batch_axes():
    refuses(ValueError, "q_segments has shape [5] … [2, 5]", attention, q_segments=np.zeros(T, int))


def test_a_full_cache_under_a_trace_gives_nan_and_never_an_overwrite():
    params = util.random_params(ROPE)

    @jax.jit
    def twice(past):
        options = {"encoding": ROPE, "params": params, "dims": DIMS}
        for _ in range(2):
            out, past = cache.extend(past, Q, K_, V, util.contiguous(1, T), **options)
        return out

    assert np.isnan(twice(cache.empty(ROPE, B, T + 1, DIMS))).all()
    assert np.isfinite(twice(cache.empty(ROPE, B, 2 * T, DIMS))).all()


# What must work.


@pytest.mark.parametrize("heads", (1, 3, 6, 12))
def test_alibi_takes_any_number_of_heads(heads):
    q = util.noise(B, T, heads, E)
    assert np.isfinite(attention(q, q, q, encoding=pe_jax.make("alibi"))).all()
    np.testing.assert_allclose(alibi.slopes(3), [2**-4, 2**-8, 2**-2])


@pytest.mark.parametrize("dtype", (np.uint8, np.int8, np.int16, np.uint32, np.int64))
@pytest.mark.parametrize("encoding", (ROPE, T5))
def test_narrow_positions_are_widened(encoding, dtype):
    places = np.asarray([120, 3, 90, 7, 0])
    want = attention(encoding=encoding, q_positions=places.astype(np.int32))
    np.testing.assert_array_equal(
        attention(encoding=encoding, q_positions=places.astype(dtype)), want
    )


def test_far_positions_stay_exact_where_only_distances_count():
    near = attention(encoding=T5, q_positions=np.arange(T))
    np.testing.assert_array_equal(attention(encoding=T5, q_positions=FAR + np.arange(T)), near)


@pytest.mark.parametrize("engine", ("dense", "tiled"))
@pytest.mark.parametrize("queries, keys", [(0, 0), (0, T), (T, 0)])
def test_empty_sequences_give_empty_or_zero_output(engine, queries, keys):
    given = {"q_segments": np.zeros((B, queries), int), "k_segments": np.zeros((B, keys), int)}
    given |= {"q_positions": np.arange(queries), "k_positions": np.arange(keys)}
    given |= {"q_index": np.arange(queries), "k_index": np.arange(keys)}
    out = attention(
        Q[:, :queries], K_[:, :keys], V[:, :keys], encoding=ROPE, implementation=engine, **given
    )
    assert out.shape == (B, queries, H, E) and not out.any()


# A learned table ends.


def test_beyond_a_learned_table_is_an_error_or_nan_under_a_trace():
    table = jnp.asarray(util.noise(3, E))
    for outside in (-1, 3, 2**20):
        message = f"{outside} … length 3 … 0 <= position < 3"
        refuses(ValueError, message, learned.lookup, table, at(0, outside))
        found = jax.jit(learned.lookup)(table, at(0, outside))
        np.testing.assert_array_equal(np.isnan(found).all(-1), [False, True])


# The law of extension.


@pytest.mark.parametrize("engine", ("dense", Tiled(TileSizes(2, 3))), ids=("dense", "tiled"))
def test_an_encoding_from_outside_works_everywhere(monkeypatch, engine):
    """One class, one line in ENCODINGS: a bias of absolute positions and one of distances."""

    @dataclasses.dataclass(frozen=True)
    class Mine(pe_jax.Encoding):
        rate: float = 0.1

        def init_layer(self, key, dims):
            return {"gain": jnp.ones(dims.heads)}

        def terms(self, params, dims):
            gain = params.layer["gain"]
            return DistanceBias(self.wave, gain), PairBias(self.pairs, gain)

        def wave(self, gain, distance):
            return gain.reshape(-1, *(1,) * distance.ndim) * jnp.sin(distance)

        def pairs(self, gain, q_pos, k_pos):
            far = jnp.cos(self.rate * (q_pos[..., :, None] + 2 * k_pos[..., None, :]))
            return gain[:, None, None] * far[..., None, :, :]

    monkeypatch.setitem(pe_jax.ENCODINGS, "mine", Mine)
    assert pe_jax.make("mine", rate=0.2) == Mine(0.2)
    refuses(ValueError, "'rat' … 'rate'", pe_jax.make, "mine", rat=1)
    for spec in ("mine(rate=0.2)", "mine+rope"):
        (encoding,) = pe_jax.parse(spec)
        out = np.asarray(attention(encoding=encoding, implementation=engine))
        q, k = (np.repeat(x, n, axis=2) for x, n in ((Q, 1), (K_, H // K)))
        if spec == "mine+rope":
            q, k = (util.rotate(ROPE, "q", NO_PARAMS, x, np.arange(T)) for x in (q, k))
        gain = util.random_params(encoding).layer
        gain = (gain[0] if spec == "mine+rope" else gain)["gain"]
        i, j = np.arange(T)[:, None], np.arange(T)[None]
        rate = 0.2 if spec != "mine+rope" else 0.1
        s = np.einsum("bthe,bshe->bhts", q, k) * E**-0.5
        s = s + np.asarray(gain)[:, None, None] * (np.sin(i - j) + np.cos(rate * (i + 2 * j)))
        p = np.exp(s) * (i >= j)
        want = np.einsum("bhts,bshe->bthe", p / p.sum(-1, keepdims=True), np.repeat(V, H // K, 2))
        util.assert_close(out, want)
        util.assert_close(extend(encoding=encoding), want)

"""What would silently be another model is asked for, or set."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import rope
from pe_jax.encodings.rope_scaling import DynamicNTK
from pe_jax.encodings.scaling.longrope import LongRoPE
from pe_jax.engines.decoding import cache
from tests import util
from tests.faults.attention_calls import (
    K_,
    NO_PARAMS,
    NTK,
    ROPE,
    Q,
    T,
    V,
    attention,
    extend,
    refuses,
)
from tests.util import DIMS, B, E

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


@pytest.mark.parametrize(
    "encoding, engine", [(NTK, "dense"), (pe_jax.make("rope", scaling=LONG), "tiled")]
)
def test_a_scaling_that_depends_on_the_length_has_that_of_the_call(encoding, engine):
    """What was set before stays as it is; of packed rows see tests/test_document_lengths.py."""
    given = {"implementation": engine}
    got = attention(encoding=encoding, **given)
    np.testing.assert_array_equal(got, attention(encoding=encoding.at_length(T), **given))

    def by_hand(encoding):
        turned = [util.rotate(encoding, "q", NO_PARAMS, x, np.arange(T)) for x in (Q, K_)]
        return pe_jax.attention(*turned, V, **given)

    refuses(ValueError, "scaling= … at_length(total_length)", by_hand, encoding)
    longer = encoding.at_length(4 * T)
    for places in (None, np.arange(T)):
        got = attention(encoding=longer, q_positions=places, **given)
        np.testing.assert_allclose(got, by_hand(longer), atol=1e-6)


def test_a_cache_is_made_before_the_length_is_known():
    past, set_for = cache.empty(NTK, B, 8, DIMS), NTK.at_length(T)
    given = {"encoding": set_for, "params": NO_PARAMS, "dims": DIMS}
    out, _ = cache.extend(past, Q, K_, V, **given)
    np.testing.assert_allclose(out, attention(encoding=set_for), atol=1e-6)


def test_a_scaling_within_its_original_length_is_right_at_any_position():
    """A length below the original one is none that is scaled; beyond it LongRoPE knows one more."""
    short, long = (pe_jax.make("rope", scaling=LONG).at_length(n) for n in (1, 3))
    assert np.isfinite(attention(encoding=long, q_positions=10 * np.arange(T))).all()
    said = "q_positions goes to position 40, RoPE is set for 2 tokens"
    refuses(ValueError, said, attention, encoding=short, q_positions=10 * np.arange(T))
    wide = dataclasses.replace(NTK, scaling=DynamicNTK(8.0, T)).at_length(1)
    np.testing.assert_array_equal(attention(encoding=wide), attention(encoding=ROPE))


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("encoding", [NTK, pe_jax.make("rope", scaling=LONG)], ids=["ntk", "long"])
def test_traced_positions_beyond_the_length_that_was_set_are_nan(encoding, engine):
    """In the rows that have them, all of whose tokens need another scaling; padding is none."""
    short, beyond = encoding.at_length(2), np.arange(T)
    places = np.stack([np.minimum(beyond, 1), beyond])

    @util.jit
    def run(places, segments=None):
        own = {"encoding": short, "q_positions": places, "implementation": engine}
        return attention(q_segments=segments, **own)

    got = run(places)
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()
    got = run(places, np.where(places < 2, 0, -1))
    same = attention(encoding=short, q_positions=np.minimum(places, 1))
    np.testing.assert_allclose(got[1, :2], same[1, :2], atol=1e-6)


@pytest.mark.parametrize("window", [None, 3])
def test_decoding_beyond_the_length_that_was_set_is_nan(window):
    """A ring has room for any number of tokens, and positions may leave some out."""
    short, given = NTK.at_length(8), {"params": NO_PARAMS, "dims": util.DIMS, "window": window}

    @util.jit
    def step(past, t, place):
        new = (jax.lax.dynamic_slice_in_dim(x, t, 1, 1) for x in (Q, K_, V))
        return pe_jax.cache.extend(past, *new, place, encoding=short, **given)

    want = attention(encoding=short, window=window)
    for places in (np.arange(T), np.array([0, 1, 2, 8, 9])):
        past = pe_jax.cache.empty(short, B, 8, util.DIMS, window=window)
        for t, place in enumerate(places):
            out, past = step(past, t, place[None, None])
            if place >= 8:
                assert np.isnan(out).all()
            else:
                np.testing.assert_allclose(out, want[:, t : t + 1], atol=1e-5)


@pytest.mark.parametrize("spec", ("rope", "alibi", "rope_2d"))
@pytest.mark.parametrize("engine", ("dense", "tiled", "a cache"))
def test_no_gradient_goes_to_positions(engine, spec):
    """A constant in every engine: else it would depend on which of them runs."""
    (encoding,) = pe_jax.parse(spec)

    @util.jit
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


@dataclasses.dataclass(frozen=True)
class Slope:
    """A user's scheme: its method is a term's function."""

    w: object

    def bias(self, arrays, distance):
        return -self.w * jnp.abs(distance).astype(jnp.float32)[None]


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("held", [lambda w: w, lambda w: (w, 1.0)], ids=["value", "tuple"])
def test_a_traced_field_of_a_methods_owner_is_refused(held, engine):
    """It was an error of JAX's own, or had no gradient."""

    def loss(w):
        terms = (pe_jax.DistanceBias(Slope(held(w)).bias, ()),)
        return (attention(terms=terms, implementation=engine) ** 2).sum()

    said = r"DistanceBias\.fn: Slope\.w is traced, .*: pass it in the term's `arrays`"
    for transform in (jax.grad, jax.jit):
        with pytest.raises(ValueError, match=said):
            transform(loss)(0.3)


def test_a_known_field_of_a_methods_owner_is_part_of_the_program():
    terms = (pe_jax.DistanceBias(Slope(0.3).bias, ()),)
    right = -0.3 * np.abs(np.arange(T)[:, None] - np.arange(T))
    want = attention(bias=jnp.asarray(right[None], jnp.float32))
    np.testing.assert_allclose(attention(terms=terms), want, rtol=1e-5, atol=1e-6)


# 215
@pytest.mark.parametrize("product", ["tapa", "wall", "path"])
@pytest.mark.parametrize("rotation", ["rope", "rope_pp", "repo", "rope_heads"])
def test_rotations_beside_what_replaces_products_are_the_same_in_a_packed_row(rotation, product):
    """Such scores depend on where both tokens are: positions restart in each document."""
    (encoding,), cut = pe_jax.parse(f"{rotation}+{product}"), 3
    params = util.random_params(encoding)
    given = {"encoding": encoding, "params": params, "implementation": "dense"}
    x, ids = Q.reshape(B, T, -1), np.where(np.arange(T) < cut, 0, 1)[None].repeat(B, 0)
    packed = pe_jax.attention(Q, K_, V, x=x, q_segments=ids, **given)[:, cut:]
    alone = pe_jax.attention(*(y[:, cut:] for y in (Q, K_, V)), x=x[:, cut:], **given)
    np.testing.assert_allclose(packed, alone, atol=2e-5)


@pytest.mark.parametrize(
    "spec, words",
    [
        *((f"selective_rope+{name}", "leave out it or the") for name in ("tapa", "wall", "path")),
        ("tapa+selective_rope", "only differences may count: leave out it or the PhaseProduct"),
        ("selective_rope+rope(layout=interleaved)", "cannot come before another: put it last"),
        ("pope+tapa", "channels=16: PhaseProduct reads 8: leave out"),
    ],
)
def test_sums_that_would_read_other_documents_or_half_of_the_channels_are_refused(spec, words):
    (encoding,) = pe_jax.parse(spec)
    with pytest.raises(ValueError, match=words):
        pe_jax.attention(
            *(Q, K_, V),
            x=Q.reshape(B, T, -1),
            encoding=encoding,
            params=util.random_params(encoding),
        )

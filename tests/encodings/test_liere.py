"""LieRE and ComRoPE: exponentials of generators, in float64; when only differences count."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import positions as pos
from pe_jax.encodings import liere
from tests import util
from tests.encodings.common import gradients_of_layer
from tests.util import H, T, assert_close

PLACES = np.asarray(pos.grid(3, 5))[:T]


exponential = util.jit(liere.exponential)


def products(fields, shift, places=PLACES):
    """q·k of all pairs after the rotation, at positions moved by `shift`: [H, T, T]."""
    encoding, (q, k, _) = pe_jax.make("liere", **fields), util.inputs()
    params = encoding.init(jax.random.key(0), pe_jax.Dims(H * 8, H, H, 8))
    q, k = (np.repeat(x[0], H // x.shape[2], axis=1) for x in (q, k))
    turned = (
        util.rotate(encoding, side, params, x, places + shift) for side, x in (("q", q), ("k", k))
    )
    return encoding, np.einsum("the,she->hts", *turned)


@pytest.mark.parametrize(
    ("fields", "places", "relative"),
    [
        ({"initial": 0.2}, PLACES, False),
        ({"initial": 0.2, "commuting": True}, PLACES, True),
        ({"initial": 0.2, "block": 2}, PLACES, True),
        ({"initial": 0.2, "axes": 1}, np.arange(T), True),
    ],
)
def test_only_differences_count_where_generators_commute(fields, places, relative):
    encoding, here = products(fields, 0, places)
    there = products(fields, 7, places)[1]
    assert (np.abs(here - there).max() < 2e-4 * np.abs(here).max()) == relative
    assert encoding.claims.absolute_rotation == (not relative)


@pytest.mark.parametrize("size", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("scale", [0.0, 0.01, 1.0, 30.0, 1e5])
def test_the_exponential_is_a_rotation_of_any_size(size, scale):
    upper = np.triu(util.noise(7, size, size), 1)
    skew = (scale * (upper - upper.swapaxes(-1, -2))).astype(np.float32)
    got = np.asarray(exponential(skew), np.float64)
    assert_close(got.swapaxes(-1, -2) @ got, np.tile(np.eye(size), (7, 1, 1)), 5e-6)
    sizes, vectors = np.linalg.eigh(1j * skew.astype(np.float64))
    want = (vectors * np.exp(-1j * sizes)[:, None] @ vectors.conj().swapaxes(-1, -2)).real
    assert_close(got, want, 1e-6 + 3e-7 * np.abs(sizes).max())


@pytest.mark.parametrize("case", ["any", "equal eigenvalues", "zero"])
def test_its_derivative_is_the_quotient_of_differences_in_float64(case):
    upper = np.triu(util.noise(6, 6), 1).astype(np.float64)
    skew = {
        "any": 3 * (upper - upper.T),
        "equal eigenvalues": np.kron(np.eye(3), [[0, 2.0], [-2.0, 0]]),
        "zero": 0 * upper,
    }[case]
    change = np.triu(util.noise(6, 6, seed=4), 1).astype(np.float64)
    change -= change.T

    def exact(a):
        sizes, vectors = np.linalg.eigh(1j * a)
        return (vectors * np.exp(-1j * sizes) @ vectors.conj().T).real

    want = (exact(skew + 1e-5 * change) - exact(skew - 1e-5 * change)) / 2e-5
    floats = np.float32(skew), np.float32(change)
    assert_close(jax.jvp(liere.exponential, floats[:1], floats[1:])[1], want, 2e-5)
    weights = util.noise(6, 6, seed=5)
    back = jax.grad(lambda a: (liere.exponential(a) * weights).sum())(floats[0])
    np.testing.assert_allclose((np.asarray(back) * change).sum(), (want * weights).sum(), rtol=1e-3)


@pytest.mark.parametrize("commuting", [False, True])
def test_parameters_are_learned_alike_by_every_engine(commuting):
    grads = gradients_of_layer(pe_jax.make("liere", block=4, commuting=commuting), PLACES)
    above = np.triu(np.ones((4, 4), bool), 1)
    assert (np.abs(grads["generators"][..., above]) > 1e-7).all()
    assert not grads["generators"][..., ~above].any()
    assert not commuting or (np.abs(grads["factors"]) > 1e-7).all()


def test_initial_values_are_the_authors():
    dims = pe_jax.Dims(512, 8, 4, 64)
    drawn = pe_jax.make("liere", axes=3).init_layer(jax.random.key(0), dims)["generators"]
    assert drawn.shape == (3, 4, 8, 8, 8) and drawn.min() >= 0
    np.testing.assert_allclose([drawn.mean(), drawn.max()], [np.pi, 2 * np.pi], rtol=0.02)
    layer = pe_jax.make("liere", commuting=True).init_layer(jax.random.key(0), dims)
    assert layer["generators"].shape == (1, 4, 8, 8, 8) and layer["factors"].shape == (2, 4, 8)


def test_a_second_derivative_is_refused_as_it_would_be_nan_at_0():
    x, generators = util.noise(2, 1, 8), util.noise(2, 1, 1, 8, 8)

    def total(places):
        return (liere.rotate(x, places, generators) ** 3).sum()

    at = np.float32([[0, 0], [0.2, 0.4]])
    assert np.isfinite(jax.grad(total)(at)).all()
    for again in (jax.jacfwd, jax.jacrev):
        with pytest.raises(NotImplementedError, match="no second derivatives"):
            again(jax.grad(total))(at)


def test_float64_generators_and_positions_are_float32_under_strict_promotion():
    x, generators = util.noise(2, 1, 8), util.noise(2, 1, 1, 8, 8)
    want = liere.rotate(x, PLACES[:2], generators)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"):
        wide = PLACES[:2].astype(np.float64), generators.astype(np.float64)
        got = liere.rotate(x, *map(jax.numpy.asarray, wide))
    assert_close(got, want)


def test_what_does_not_fit_is_refused():
    x = util.noise(6, 3, 8)
    for shape in ((2, 2, 1, 8, 8), (2, 3, 2, 8, 8), (2, 3, 2, 4, 3), (1, 2, 3, 1, 8, 8)):
        with pytest.raises(ValueError, match="3 heads of 8 = M·b channels"):
            liere.rotate(x, PLACES[:6], np.zeros(shape, np.float32))
    with pytest.raises(ValueError, match="pass 3 axes last"):
        liere.rotate(x, PLACES[:6], np.zeros((3, 3, 1, 8, 8), np.float32))
    far = np.full((6, 2), 2**24)
    with pytest.raises(ValueError, match="not exact in float32"):
        liere.rotate(x, far, np.zeros((2, 3, 1, 8, 8), np.float32))
    with pytest.raises(ValueError, match="blocks of 6 channels"):
        pe_jax.make("liere", block=6).check(util.DIMS)

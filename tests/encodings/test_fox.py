"""FoX against arXiv 2503.02130, and the running sums that it and CABLE stand on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import pe_jax
from pe_jax.numerics import running_sums
from tests import util
from tests.encodings.common import LENGTH, WIDTH, attend, qkv, random_params
from tests.util import assert_close

FOX = pe_jax.make("fox")
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


@jax.jit
def neighbours(steps):
    """Running sums, and each one's distance from the sum before."""
    state = running_sums.total(steps)
    one, other = ([x[..., n] for n in range(2)] for x in (state[1:], state[:-1]))
    return state, running_sums.difference(one, other)


def of_any_length(steps):
    """The same, from a program that is not told the length."""
    shape = jax.ShapeDtypeStruct(export.symbolic_shape("length, 1"), steps.dtype)
    return export.export(neighbours)(shape).call(steps)


@pytest.mark.parametrize("run", [neighbours, of_any_length])
def test_differences_of_long_sums_keep_their_precision(run):
    steps = np.random.default_rng(0).uniform(-9, 0, (2**16 - 5, 1)).astype(np.float32)
    state, between = run(steps)
    exact = np.cumsum(steps.astype(np.float64), axis=0)
    assert np.abs(exact).max() > 2e5
    np.testing.assert_allclose(np.asarray(state, np.float64).sum(-1), exact, rtol=1e-12)
    np.testing.assert_allclose(between, steps[1:], rtol=2e-7, atol=1e-8)
    plain = np.diff(np.asarray(jnp.cumsum(steps, axis=0)), axis=0)
    assert np.abs(plain - steps[1:]).max() > 0.01  # what a plain sum would have given


@pytest.mark.parametrize("count", [1, 1023], ids=["few", "many"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 97, 601])
def test_sums_are_those_of_the_scan_in_jax_to_the_last_digit(length, count):
    steps = np.random.default_rng(0).standard_normal((2, length, count), np.float32)

    @jax.jit
    def scanned(steps):
        start = steps, jnp.zeros_like(steps)
        return jnp.stack(jax.lax.associative_scan(running_sums._add, start, axis=-2), axis=-1)

    np.testing.assert_array_equal(jax.jit(running_sums.total)(steps), scanned(steps))


def test_a_sum_goes_on_from_where_it_was():
    steps = np.random.default_rng(0).uniform(-9, 0, (2, 40, 3)).astype(np.float32)
    total = jax.jit(running_sums.total)
    whole, first = total(steps), total(steps[:, :25])
    rest = total(steps[:, 25:], first[:, -1])
    exact = np.asarray(whole, np.float64).sum(-1)
    for got, want in ((first, exact[:, :25]), (rest, exact[:, 25:])):
        np.testing.assert_allclose(np.asarray(got, np.float64).sum(-1), want, rtol=1e-12)
    assert running_sums.total(steps[:, :0]).shape == (2, 0, 3, 2)


def test_the_gradient_of_a_sum_reaches_each_step_before_it():
    steps = np.random.default_rng(0).uniform(-9, 0, (6, 1)).astype(np.float32)
    weights = np.arange(1, 7, dtype=np.float32)[:, None]

    def loss(steps):
        state = running_sums.total(steps)
        return (weights * running_sums.difference([state[..., 0], state[..., 1]], [0, 0])).sum()

    np.testing.assert_allclose(jax.grad(loss)(steps), np.cumsum(weights[::-1], axis=0)[::-1])
    forward = jax.jvp(loss, (steps,), (np.ones_like(steps),))[1]
    np.testing.assert_allclose(forward, (weights * np.arange(1, 7)[:, None]).sum())


def test_the_way_from_a_token_to_itself_has_no_gradient():
    """Else its pair reaches its sum twice, and the two cancel only up to rounding."""
    steps = np.random.default_rng(0).uniform(-9, 0, (6, 1)).astype(np.float32)

    def ways(rows, columns):
        rows, columns = ([x[..., n] for n in range(2)] for x in (rows, columns))
        return running_sums.between(rows, columns).sum()

    state = running_sums.total(steps)
    for sums in jax.grad(ways, (0, 1))(state, state):
        np.testing.assert_array_equal(sums, 0)
    rows, columns = jax.grad(ways, (0, 1))(state[1:], state[:-1])
    np.testing.assert_array_equal(rows, -1)
    np.testing.assert_array_equal(columns, 1)


def test_a_packed_document_does_not_feel_how_much_the_one_before_forgot():
    q, k, v = qkv()
    params = random_params(FOX)
    ids, loud = np.repeat([0, 1], [4, LENGTH - 4]), X.copy()
    loud[:4] *= 1e6
    together, other = (
        attend(q, k, v, FOX, params, x=x, q_segments=ids, k_segments=ids) for x in (X, loud)
    )
    np.testing.assert_allclose(together[4:], other[4:], atol=1e-5)
    alone = attend(q[4:], k[4:], v[4:], FOX, params, x=X[4:])
    np.testing.assert_allclose(other[4:], alone, atol=1e-5)


def test_queries_that_are_not_the_keys_have_no_states():
    q, k, v = qkv()
    here = {"q_positions": np.arange(3), "k_positions": np.arange(LENGTH), "q_index": np.arange(3)}
    with pytest.raises(ValueError, match="q has 3 tokens and k has .*: FoX reads x, from which"):
        attend(q[:3], k, v, FOX, random_params(FOX), x=X[:3], **here)


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("spec", ["fox", "cable", "wall", "selective_rope"])
def test_padding_inside_a_document_adds_nothing_to_sums(spec, engine):
    """A gate of padding is not 0, though its input is."""
    (encoding,), dims = pe_jax.parse(spec), util.DIMS
    params = util.random_params(encoding, dims)
    rows = [util.noise(1, 12, heads, util.E, seed=heads) for heads in (util.H, 2, 2)]
    x = util.noise(1, 12, dims.width)
    ids = np.asarray([[-1, 0, 0, -1, -1, 0, 0, 1, -1, 1, 1, -1]])
    own = {"encoding": encoding, "params": params, "implementation": engine}
    shown = ids[0] >= 0
    alone = pe_jax.attention(
        *(y[:, shown] for y in rows), x=x[:, shown], q_segments=ids[:, shown], **own
    )
    assert_close(pe_jax.attention(*rows, x=x, q_segments=ids, **own)[:, shown], alone)
    if engine == "dense":  # which alone takes an array
        mask = (shown & (ids[0][:, None] == ids[0]))[None, None]
        assert_close(pe_jax.attention(*rows, x=x, mask=mask, **own)[:, shown], alone)

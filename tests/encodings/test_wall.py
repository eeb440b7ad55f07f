"""Wall attention against its formula in float64; tests/oracles runs flash-linear-attention's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.engines.kernels.gpu import engine as gpu
from pe_jax.engines.tiled import Tiled, TileSizes
from pe_jax.numerics import fading
from tests import util
from tests.encodings.common import DIMS, LENGTH, WIDTH, attend, qkv, random_params
from tests.util import assert_close

WALL = pe_jax.make("wall")
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_gates_that_are_open_change_nothing_and_it_begins_near_that():
    first = WALL.init(jax.random.key(0), DIMS)
    plain = attend(*qkv())
    open_ = pe_jax.Params(
        {}, {"weight": first.layer["weight"] * 0, "bias": first.layer["bias"] + 99}
    )
    np.testing.assert_allclose(attend(*qkv(), WALL, open_, x=X), plain, atol=1e-6)
    np.testing.assert_allclose(attend(*qkv(), WALL, first, x=X), plain, atol=0.02)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("loud", [0.0, 1.0, 300.0])
def test_long_rows_are_the_same_in_tiles_and_dense_however_fast_they_fade(loud, causal):
    """The sum of gates passes 10⁵: exponentials of it alone would vanish or overflow.

    Tiles of 16 take channel by channel, those of 50 and of all tokens products: gates that are all
    1/2 few, others many.
    """
    length, dims = 200, util.DIMS
    params = util.random_params(WALL, dims)
    params = pe_jax.Params(
        {},
        {
            "weight": min(loud, 1) * params.layer["weight"],
            "bias": loud * (params.layer["bias"] - 1),
        },
    )
    qkv_ = [util.noise(1, length, n, util.E, seed=n) for n in (4, 2, 2)]
    x, ids = util.flat(qkv_[0]), np.repeat(np.int32([[0, 1]]), [70, 130], axis=1)

    def grads(engine):
        def loss(params, q, k, v, x):
            how = {"encoding": WALL, "params": params, "x": x, "implementation": engine}
            how["causal"] = causal
            out = pe_jax.attention(q, k, v, q_segments=ids, **how)
            return jnp.sin(3 * out).sum(), out

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2, 3, 4), has_aux=True))(params, *qkv_, x)

    dense = grads("dense")
    assert all(np.isfinite(y).all() for y in jax.tree.leaves(dense))
    for size in (16, 50, 200):
        assert_close(grads(Tiled(TileSizes(size, size))), dense, 2e-5)


def test_it_joins_a_rotation_that_keeps_the_width_and_no_other():
    (both,) = pe_jax.parse("wall+rope")
    params = random_params(both)
    q, k, v = qkv()
    turned = [util.rotate(pe_jax.make("rope"), "q", params, y, np.arange(LENGTH)) for y in (q, k)]
    alone = pe_jax.Params({}, params.layer[0])
    want = attend(*turned, v, WALL, alone, x=X)
    np.testing.assert_allclose(attend(q, k, v, both, params, x=X), want, atol=1e-6)
    for spec, words in (
        ("wall+pope", "channels=12: ChannelDecay reads 6"),
        ("wall+rerope", "several views"),
    ):
        (other,) = pe_jax.parse(spec)
        with pytest.raises(ValueError, match=words):
            attend(q, k, v, other, random_params(other), x=X)


def test_the_gradients_of_gates_in_kernels_are_not_lost_to_bfloat16():
    """Sums in which pairs cancel: if each side is rounded by itself 2 % are wrong, later 12."""
    length, dims = 512, pe_jax.Dims(16, 1, 1, 16)
    params = util.random_params(WALL, dims)
    layer = {"weight": 0.1 * params.layer["weight"], "bias": 0 * params.layer["bias"] + 3}
    q, k, v = (jnp.asarray(util.noise(1, length, 1, 16, seed=n), "bfloat16") for n in range(3))

    @functools.partial(jax.jit, static_argnums=1)
    def grads(layer, engine, *qkv):
        how = {"encoding": WALL, "dims": dims, "x": qkv[0].reshape(1, length, 16)}

        def loss(layer):
            params = pe_jax.Params({}, layer)
            out = pe_jax.attention(*qkv, params=params, implementation=engine, **how)
            return (out.astype(jnp.float32) * jnp.cos(jnp.arange(16.0))).sum()

        return jax.grad(loss)(layer)

    kernels = functools.partial(gpu.attend, interpret=True, sizes=(64, 64))
    exact = grads(layer, "dense", *(x.astype(jnp.float32) for x in (q, k, v)))
    for name, got in grads(layer, kernels, q, k, v).items():
        worst = jnp.abs(got - exact[name]).max() / jnp.abs(exact[name]).max()
        assert worst < 0.008, f"{name}: {worst:.2g}"


def test_products_with_later_keys_do_not_overflow():
    """A network over the scores of a pair (DAPE) reads those of hidden pairs too."""
    sums = jnp.cumsum(jnp.full((1, 1, 64, 4), -1.24, jnp.float32), 2)
    state = jnp.concatenate([sums, 0 * sums], -1)
    x = jnp.asarray(1e3 * util.noise(1, 1, 64, 4))
    assert np.isfinite(fading.past(x, x, state, state)).all()


def test_a_token_and_itself_give_no_gradient_to_the_sums():
    """Not even a rounding error, which each gate before it would get."""
    q, k = (jnp.asarray(util.noise(1, 1, 60, 4, seed=n)) for n in range(2))
    steps = -jnp.abs(jnp.asarray(util.noise(1, 1, 60, 4, seed=2)))
    for scale in (0.1, 9):  # one product of the block, one of each halving
        sums = jnp.cumsum(scale * steps, 2)
        state = jnp.concatenate([sums, 0 * sums], -1)
        d_state = jax.grad(lambda s: (fading.past(q, k, s, s) * jnp.eye(60)).sum())(state)
        assert not np.asarray(d_state).any()

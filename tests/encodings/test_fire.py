"""FIRE against arXiv 2310.04418, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import fire
from tests.encodings.common import DIMS, random_params


@pytest.mark.parametrize("shared", [False, True])
def test_one_network_for_all_layers_or_one_for_each(shared):
    params = random_params(pe_jax.make("fire", width=7, shared=shared))
    assert bool(params.shared) == shared != bool(params.layer)


@pytest.mark.parametrize("change", [{}, {"c": 0.0}, {"multiplier": 0.0}, {"c": 0.0, "w1": 0.0}])
def test_gradients_are_finite_at_distance_0_at_position_0_and_where_c_or_l_vanish(change):
    encoding = pe_jax.make("fire", width=5)
    own = encoding.init_layer(jax.random.key(0), DIMS)
    own |= {name: jnp.full_like(own[name], value) for name, value in change.items()}
    places = np.int32([0, 0, 1, 9])

    def total(own):
        return encoding.bias(own, places, places).sum()

    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.jit(jax.grad(total))(own)))


@pytest.mark.parametrize("kinks", [0, 3, 4, 9, 20, 32])
def test_the_network_by_its_linear_pieces_is_the_network(kinks):
    rng = np.random.default_rng(kinks)
    x, w1 = np.linspace(0.25, 0.5, 40), rng.normal(size=32)
    inside = rng.choice((x[1:] + x[:-1]) / 2, 32)  # between two points: there the slope is defined
    at = np.where(np.arange(32) < kinks, inside, rng.choice([-1.0, 0.1, 0.6, 9.0], 32))
    w2, b2 = rng.normal(size=(32, 3)), rng.normal(size=3)

    def plain(x, w1, b1, w2, b2):
        return w2.T @ jnp.maximum(w1[:, None] * x + b1[:, None], 0) + b2[:, None]

    operands = [jnp.float32(y) for y in (x, w1, -w1 * at, w2, b2)]
    (ours, back), (right, right_back) = (jax.vjp(f, *operands) for f in (fire.network, plain))
    np.testing.assert_allclose(ours, right, atol=1e-5)
    halves = [jnp.asarray(y, jnp.bfloat16) for y in operands[1:]]
    fulls = [jnp.asarray(y, jnp.float32) for y in halves]
    np.testing.assert_array_equal(*(fire.network(operands[0], *y) for y in (halves, fulls)))
    weights = jnp.float32(rng.normal(size=(3, 40)))
    for slope, right in zip(back(weights), right_back(weights), strict=True):
        np.testing.assert_allclose(slope, right, atol=1e-4)


@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2"])
def test_a_weight_that_is_nan_is_seen(name):
    """A unit with one is neither on nor off."""
    encoding = pe_jax.make("fire", width=5)
    own = encoding.init_layer(jax.random.key(0), DIMS)
    own[name] = own[name].at[0].set(jnp.nan)
    assert np.isnan(encoding.bias(own, np.arange(9), np.arange(9))).any((1, 2))[0]


def test_c_and_the_threshold_are_learned_and_their_signs_do_not_count():
    encoding = pe_jax.make("fire", width=5)
    own = encoding.init_layer(jax.random.key(0), DIMS)
    assert (float(own["c"]), float(own["multiplier"])) == (np.float32(0.1), 1)
    assert own["w1"].shape == own["b1"].shape == (5,) and np.abs(own["w1"]).max() <= 1
    assert own["w2"].shape == (5, 2) and np.abs(own["w2"]).max() <= 5**-0.5
    places = np.arange(9)

    def bias(own):
        return encoding.bias(own, places, places)

    turned = own | {name: -own[name] for name in ("c", "multiplier")}
    np.testing.assert_array_equal(bias(turned), bias(own))
    slopes = jax.grad(lambda own: jnp.square(bias(own)).sum())(own)
    assert slopes["c"] != 0 and slopes["multiplier"] != 0

"""Sink logits; tests/oracles has gpt-oss' and Inkling 2's code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests import util
from tests.encodings.common import (
    DIMS,
    HEADS,
    LENGTH,
    WIDTH,
    attend,
    qkv,
    random_params,
)

X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)
PLAIN, OWN = pe_jax.make("sink"), pe_jax.make("sink", from_input=True)


def test_a_logit_of_minus_infinity_is_no_sink_and_a_large_one_takes_all():
    q, k, v = qkv()
    nope = attend(q, k, v)
    for logit, want in ((-1e9, nope), (1e9, np.zeros_like(nope))):
        params = pe_jax.Params({}, {"logit": jnp.full(HEADS, logit)})
        np.testing.assert_allclose(attend(q, k, v, encoding=PLAIN, params=params), want, atol=1e-6)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
@pytest.mark.parametrize("encoding", [PLAIN, OWN, pe_jax.parse("rope+sink")[0]])
def test_the_gradient_reaches_the_logit(encoding, implementation):
    """By differences: what one more unit of the logit changes."""
    params, (q, k, v) = random_params(encoding), qkv()

    @util.jit
    @jax.value_and_grad
    def loss(params):
        given = {"encoding": encoding, "params": params, "x": X, "implementation": implementation}
        return jnp.square(pe_jax.attention(q, k, v, **given)).sum()

    gradient, step = loss(params)[1], 1e-2
    leaves, tree = jax.tree.flatten(params)
    for number, leaf in enumerate(jax.tree.leaves(gradient)):
        assert np.abs(leaf).max() > 1e-3
        ends = []
        for sign in (1, -1):
            moved = [x + sign * step * (i == number) for i, x in enumerate(leaves)]
            ends.append(loss(jax.tree.unflatten(tree, moved))[0])
        np.testing.assert_allclose(leaf.sum(), (ends[0] - ends[1]) / (2 * step), rtol=2e-2)


def test_two_sinks_add_up():
    two, (q, k, v) = pe_jax.Sum((PLAIN, PLAIN)), qkv()
    logits = [jnp.asarray([0.5, -1.0]), jnp.asarray([1.0, 0.0])]
    both = attend(
        q, k, v, encoding=two, params=pe_jax.Params(({}, {}), tuple({"logit": x} for x in logits))
    )
    one = pe_jax.Params({}, {"logit": jnp.logaddexp(*logits)})
    np.testing.assert_allclose(both, attend(q, k, v, encoding=PLAIN, params=one), atol=1e-6)


def test_it_starts_as_a_key_of_score_zero():
    layer = PLAIN.init(jax.random.key(0), DIMS).layer
    assert layer["logit"].shape == (HEADS,) and not layer["logit"].any()
    assert OWN.init(jax.random.key(0), DIMS).layer["weight"].shape == (WIDTH, HEADS)

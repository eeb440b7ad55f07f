"""Sink logits; tests/oracles has gpt-oss' and Inkling 2's code."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from tests.encodings.common import DIMS, HEADS, WIDTH, attend, qkv

PLAIN, OWN = pe_jax.make("sink"), pe_jax.make("sink", from_input=True)


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

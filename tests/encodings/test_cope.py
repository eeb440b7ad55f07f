"""CoPE against arXiv 2405.18719."""

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from tests.encodings.common import DIMS, HEAD_DIM, LENGTH, attend, qkv, random_params

COPE = pe_jax.make("cope", positions=4)


def test_fresh_vectors_change_nothing():
    q, k, v = qkv()
    layer = COPE.init_layer(jax.random.key(0), pe_jax.Dims(12, 2, 2, HEAD_DIM))
    got = attend(q, k, v, COPE, pe_jax.Params({}, layer))
    np.testing.assert_allclose(got, attend(q, k, v), atol=1e-6)


def test_the_gates_learn():
    """Positions are fractions: the loss has a gradient to what counts, not to vectors alone."""
    (term,) = COPE.terms(random_params(COPE), DIMS)
    q, k, _ = (jnp.asarray(np.moveaxis(x, 1, 0)[None]) for x in qkv())
    numbers = term.of_queries(q)

    def loss(k):
        products = jnp.einsum("bhte,bhse->bhts", q, k)
        visible = jnp.tri(LENGTH, dtype=bool)[None, None]
        before = jnp.zeros((*products.shape[:-1], 1))
        bias, _ = term.row(None, None, ((numbers, None), None), products, visible, before)
        return (bias * jnp.cos(jnp.arange(LENGTH))).sum()

    assert np.abs(jax.grad(loss)(k)).max() > 1e-3

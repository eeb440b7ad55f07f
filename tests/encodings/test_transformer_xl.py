"""Transformer-XL against the four terms of §3.3 of arXiv 1901.02860, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from tests.encodings.common import (
    DIMS,
    HEAD_DIM,
    average,
    check_attention,
    float64,
    random_params,
    row,
)


@pytest.mark.parametrize(
    "other, scale",
    [("t5", 1), ("deberta", (3 * HEAD_DIM) ** -0.5), ("tupe", (2 * HEAD_DIM) ** -0.5)],
)
def test_in_a_sum_all_four_terms_have_the_scale_of_the_sum(other, scale):
    (encoding,) = pe_jax.parse(f"transformer_xl+{other}")
    params = random_params(encoding)
    layer = params.layer[0]
    # The other part's terms vanish: only its scale shows.
    params = pe_jax.Params(*((own, jax.tree.map(jnp.zeros_like, other)) for own, other in params))

    scores = HEAD_DIM**0.5 * naive.relative.transformer_xl(row(), **float64(layer))
    check_attention(encoding, params, True, average(scale * scores, True))


def test_gradients_are_finite_from_the_initial_zeros():
    encoding = pe_jax.make("transformer_xl")
    layer = encoding.init_layer(jax.random.key(0), DIMS)

    def loss(layer):
        _, keys = encoding.terms(pe_jax.Params({}, layer), DIMS)
        vectors = keys.at(jnp.arange(-3, 4))
        return ((vectors * keys.u[:, None]).sum(-1) ** 2).sum() + (vectors**2).sum()

    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.jit(jax.grad(loss))(layer)))

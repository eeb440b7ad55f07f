"""Transformer-XL against the four terms of §3.3 of arXiv 1901.02860, in float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.encodings.common import (
    DIMS,
    HEAD_DIM,
    LENGTH,
    WIDTH,
    check_attention,
    random_params,
    softmax,
)


def paper_r(distance):
    """The sinusoid of §3.3, in the layout of the authors' code: all sines, then all cosines."""
    waves = [distance / 10000 ** (2 * i / WIDTH) for i in range(WIDTH // 2)]
    return np.array([*map(math.sin, waves), *map(math.cos, waves)])


def four_terms(layer, q, k, head):
    """(a) + (b) + (c) + (d) of §3.3, without the factor 1/sqrt(E)."""
    u, v, w = (np.asarray(layer[n], np.float64)[head] for n in ("u", "v", "w_r"))
    scores = np.empty((LENGTH, LENGTH))
    for i in range(LENGTH):
        for j in range(LENGTH):
            r = paper_r(i - j) @ w
            a, b, c, d = q[i] @ k[j], q[i] @ r, u @ k[j], v @ r
            scores[i, j] = a + b + c + d
    return scores


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_the_sum_of_the_papers_four_terms(causal):
    encoding = pe_jax.make("transformer_xl")
    params = random_params(encoding)

    def output(q, k, v, head):
        scores = four_terms(params.layer, q, k, head) / math.sqrt(HEAD_DIM)
        return softmax(scores, causal) @ v

    check_attention(encoding, params, output, causal)


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

    def output(q, k, v, head):
        return softmax(scale * four_terms(layer, q, k, head), True) @ v

    check_attention(encoding, params, output, True)


def test_the_sign_of_the_distance_matters():
    encoding = pe_jax.make("transformer_xl")
    _, keys = encoding.terms(random_params(encoding), DIMS)
    vectors = np.einsum("hdn,hn->hd", keys.at(np.array([-3, 3])), keys.u)
    assert np.abs(vectors[:, 0] - vectors[:, 1]).min() > 1e-2


def test_gradients_are_finite_from_the_initial_zeros():
    encoding = pe_jax.make("transformer_xl")
    layer = encoding.init_layer(jax.random.key(0), DIMS)

    def loss(layer):
        _, keys = encoding.terms(pe_jax.Params({}, layer), DIMS)
        vectors = keys.at(jnp.arange(-3, 4))
        return ((vectors * keys.u[:, None]).sum(-1) ** 2).sum() + (vectors**2).sum()

    assert all(np.isfinite(g).all() for g in jax.tree.leaves(jax.jit(jax.grad(loss))(layer)))

"""DAPE against arXiv 2405.14722, §3.2."""

import jax
import numpy as np
import pytest

import pe_jax
from pe_jax import naive
from tests import util
from tests.contract import test_decoding, test_engines
from tests.encodings.common import (
    DIMS,
    HEADS,
    attend,
    average,
    check_attention,
    float64,
    qkv,
    random_params,
    row,
)

DAPE = pe_jax.make("dape", hidden=5)


@pytest.mark.parametrize("spec", ["alibi+dape(hidden=5)", "dape(hidden=5)"])
def test_scores_and_biases_of_all_heads_are_mixed_pair_by_pair(spec):
    (encoding,) = pe_jax.parse(spec)
    params = random_params(encoding)
    below = (naive.bias.alibi(row()) - naive.products(row())) * spec.startswith("alibi")
    layer = float64(params.layer[1] if spec.startswith("alibi") else params.layer)
    scores = naive.contextual.dape(row(), **layer, below=below)
    check_attention(encoding, params, want=average(scores, False))


def test_a_network_that_says_nothing_leaves_the_bias_below():
    q, k, v = qkv()
    (both,) = pe_jax.parse("alibi+dape(hidden=5)")
    params = jax.tree.map(np.zeros_like, random_params(both))
    below = attend(q, k, v, pe_jax.make("alibi"))
    np.testing.assert_allclose(attend(q, k, v, both, params), below, atol=1e-6)


def test_with_a_bias_below_it_decodes_and_keeps_documents_apart():
    case = util.Case("alibi+dape", pe_jax.parse("alibi+dape(hidden=5)")[0])
    test_decoding.decodes(case, util.contiguous(util.B, util.T), contiguous=True)
    test_engines.test_packed_equals_separate.hypothesis.inner_test(case, cut=5, how="tiled")


def test_it_begins_as_the_authors_layers_do():
    layer = DAPE.init_layer(jax.random.key(0), DIMS)
    assert {name: x.shape for name, x in layer.items()} == {
        "w1": (2 * HEADS, 5),
        "b1": (5,),
        "w2": (5, HEADS),
        "b2": (HEADS,),
    }
    for name, x in layer.items():
        most = (2 * HEADS if name[1] == "1" else 5) ** -0.5
        assert most / 3 < np.abs(x).max() <= most

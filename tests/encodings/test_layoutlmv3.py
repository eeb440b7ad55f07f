"""LayoutLMv3's biases: three bucketed distances, all divided by sqrt(E)."""

import numpy as np

import pe_jax
from tests import util
from tests.encodings.common import LENGTH, check_attention, random_params

PAGE = np.stack([np.arange(LENGTH), *np.random.default_rng(0).integers(0, 1000, (2, LENGTH))], -1)


def test_scores_get_three_biases_divided_by_the_root_of_the_head_width():
    encoding = pe_jax.make(
        "layoutlmv3", num_buckets=8, max_distance=9, spatial_buckets=12, spatial_distance=300
    )
    params = random_params(encoding)
    index, x, y = (params.shared[name] for name in ("index", "x", "y"))
    assert index.shape[1] == 8 and x.shape == y.shape == (2, 12)

    check_attention(encoding, params, q_positions=PAGE)


def test_what_lies_to_the_right_takes_the_upper_half():
    encoding = pe_jax.make("layoutlmv3")
    params = random_params(encoding)
    distance = np.array([[0, 0, 0], [0, -1, 0], [0, 1, 0], [0, 0, -1]])
    ours = np.asarray(util.distance_bias(encoding, params, distance, pe_jax.Dims(2, 2, 2, 1)))
    tables = {name: np.asarray(x) for name, x in params.shared.items()}
    for row, (x, y) in enumerate([(0, 0), (33, 0), (1, 0), (0, 33)]):
        want = tables["index"][:, 0] + tables["x"][:, x] + tables["y"][:, y]
        np.testing.assert_allclose(ours[:, row], want, rtol=1e-6)

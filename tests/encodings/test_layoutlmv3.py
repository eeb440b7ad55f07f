"""LayoutLMv3's biases: three bucketed distances, all divided by sqrt(E)."""

import numpy as np

import pe_jax
from tests import util
from tests.encodings.common import random_params


def test_what_lies_to_the_right_takes_the_upper_half():
    encoding = pe_jax.make("layoutlmv3")
    params = random_params(encoding)
    distance = np.array([[0, 0, 0], [0, -1, 0], [0, 1, 0], [0, 0, -1]])
    ours = np.asarray(util.distance_bias(encoding, params, distance, pe_jax.Dims(2, 2, 2, 1)))
    tables = {name: np.asarray(x) for name, x in params.shared.items()}
    for row, (x, y) in enumerate([(0, 0), (33, 0), (1, 0), (0, 33)]):
        want = tables["index"][:, 0] + tables["x"][:, x] + tables["y"][:, y]
        np.testing.assert_allclose(ours[:, row], want, rtol=1e-6)

"""The dynamic position bias against its equation; tests/oracles has x-transformers' code."""

import jax
import numpy as np
import pytest

import pe_jax
from tests import util
from tests.encodings.common import DIMS, random_params


def test_real_positions_lie_between_whole_ones_and_both_sides_differ():
    encoding = pe_jax.make("dpb", log_distance=True)
    params = random_params(encoding)
    near = util.distance_bias(encoding, params, np.float32([2, 2.0001, 3]), DIMS)
    assert (np.abs(near[:, 1] - near[:, 0]) < 1e-3).all() and (near[:, 2] != near[:, 0]).all()
    ahead, behind = util.distance_bias(encoding, params, np.array([-5, 5]), DIMS).T
    assert (ahead != behind).all()


@pytest.mark.parametrize("log_distance", [True, False])
def test_far_out_it_is_linear_in_what_the_network_is_given(log_distance):
    """SiLU is 0 or the identity there: no bound, and a slope for each side."""
    encoding = pe_jax.make("dpb", hidden=6, log_distance=log_distance)
    params = random_params(encoding)
    steps = np.array([14.0, 15, 16]) if log_distance else np.array([1e5, 2e5, 3e5])
    for sign in (-1, 1):
        own = jax.tree.map(lambda x: 40 * x if log_distance else x, params)  # saturates sooner
        x = np.expm1(steps) if log_distance else steps
        at = util.distance_bias(encoding, own, np.float32(sign * x), DIMS)
        first, second = np.diff(np.asarray(at, np.float64), axis=1).T
        np.testing.assert_allclose(first, second, rtol=1e-2)
        assert (np.abs(first) > 1e-3).all()


def test_engines_agree_where_it_is_of_the_distance_itself():
    """Near: positions as they are counted, of packed documents, some with padding."""
    case = util.Case("dpb(depth=2)", pe_jax.make("dpb", depth=2), causal=False)
    segments = np.int32([[0] * 5 + [1] * 8, [0] * 9 + [1] * 2 + [-1] * 2])
    tiled, dense = (util.run(case, engine, segments=segments) for engine in ("tiled", "dense"))
    util.assert_close(tiled, dense, 2e-5)


def test_its_width_is_a_quarter_of_the_models_and_layers_share_it():
    encoding = pe_jax.make("dpb", depth=3)
    params = encoding.init(jax.random.key(0), DIMS)
    sizes = {name: x.shape for name, x in params.shared.items()}
    assert sizes == {
        "w_in": (3,),
        "b_in": (3,),
        "w_hidden": (2, 3, 3),
        "b_hidden": (2, 3),
        "w_out": (3, 2),
        "b_out": (2,),
    }
    assert not params.layer
    for name, x in params.shared.items():
        assert 0 < np.abs(x).max() <= (1 if name.endswith("in") else 3**-0.5)
    assert pe_jax.make("dpb").init(jax.random.key(0), pe_jax.Dims(2, 1, 1, 2)).shared["w_in"].size

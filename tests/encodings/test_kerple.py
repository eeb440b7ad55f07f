"""KERPLE against the two kernels of arXiv 2205.09921, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pe_jax
from pe_jax.encodings import kerple
from pe_jax.naive.bias import kerple_kernel
from tests import util

BOTH = pytest.mark.parametrize("kind", kerple.KINDS)


def params_of(p, a):
    return pe_jax.Params({}, {"p": jnp.float32(p), "a": jnp.float32(a)})


def bias(kind, distance, p, a):
    dims = pe_jax.Dims(4 * len(p), len(p), len(p), 4)
    return util.distance_bias(pe_jax.make("kerple", kind=kind), params_of(p, a), distance, dims)


@BOTH
@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-(2**20), 2**20), min_size=1), st.floats(0.01, 2), st.floats(0.01, 2))
def test_any_distance_and_any_parameter_in_range(kind, distances, p, a):
    ours = np.asarray(bias(kind, np.int32(distances), [p], [a]), np.float64)[0]
    p, a = np.float32(p).item(), np.float32(a).item()
    want = kerple_kernel(np.array(distances), p, a, kind)
    np.testing.assert_allclose(ours, want, rtol=2e-5, atol=1e-7)


@BOTH
def test_gradients_are_finite_at_distance_0_and_the_papers_elsewhere(kind):
    """∂|d|^p/∂p is 0·ln 0 at 0: NaN where the power is written as exp(p·ln|d|)."""
    distance, p, a = np.int32([0, 1, -3, 7]), 0.6, 0.4

    def each(p, a):
        return bias(kind, distance, p[None], a[None])[0]

    d_p, d_a = jax.jacobian(each, (0, 1))(jnp.float32(p), jnp.float32(a))
    far = np.abs(distance).astype(float)
    log = np.log(np.where(far > 0, far, 1))
    if kind == "log":
        want = -np.log1p(a * far), -p * far / (1 + a * far)
    else:
        want = -a * far**p * log, -(far**p)
    np.testing.assert_allclose(d_p, want[0], rtol=1e-5)
    np.testing.assert_allclose(d_a, want[1], rtol=1e-5)
    assert d_p[0] == d_a[0] == 0


@BOTH
def test_what_has_left_its_range_counts_as_the_bound_and_can_come_back(kind):
    distance = np.int32([0, 2, 9])
    out, bound = ([-1.0, 5.0], [0.0, -3.0]), ([0.01, 5.0], [0.01, 0.01])
    if kind == "power":
        bound[0][1] = 2.0  # beyond 2 it is no kernel
    want = kerple_kernel(distance, *(np.array(x)[:, None] for x in bound), kind)
    np.testing.assert_allclose(bias(kind, distance, *out), want, rtol=1e-6)

    def total(p, a):
        return bias(kind, distance, p, a).sum()

    found = jax.grad(total, (0, 1))(*map(jnp.float32, out))
    want = jax.grad(total, (0, 1))(*map(jnp.float32, bound))
    np.testing.assert_allclose(found, want, rtol=1e-6)
    assert np.abs(found).min() > 0  # a plain clip has no gradient there


def test_it_begins_as_in_the_authors_code_apart_in_each_head():
    drawn = pe_jax.make("kerple").init_layer(jax.random.key(0), pe_jax.Dims(8000, 4000, 4000, 2))
    for name, high in (("p", 2), ("a", 1)):
        x = np.sort(drawn[name])
        assert 0 <= x[0] and x[-1] < high
        np.testing.assert_allclose(x, high * (np.arange(4000) + 0.5) / 4000, atol=0.05 * high)

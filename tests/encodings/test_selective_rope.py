"""Selective RoPE against arXiv 2511.17388 and the authors' released formula, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings import selective_rope
from pe_jax.naive.contextual import selective_angles
from tests import util
from tests.encodings.common import HEAD_DIM, HEADS, LENGTH, WIDTH, attend, float64, random_params
from tests.util import B, H, K, T, assert_close

SELECTIVE = pe_jax.make("selective_rope", rank=4)
X = np.random.default_rng(5).standard_normal((LENGTH, WIDTH), np.float32)


def test_a_bias_of_minus_infinity_is_none():
    params = random_params(SELECTIVE)
    layer = params.layer | {"bias": jnp.full((HEADS, HEAD_DIM // 2), -jnp.inf)}
    found = selective_rope.steps(X, jnp.ones(HEAD_DIM // 2), **layer)
    unit = (
        X.reshape(LENGTH, HEADS, -1)
        / np.linalg.norm(X.reshape(LENGTH, HEADS, -1), axis=-1)[..., None]
    )
    unit = unit.reshape(X.shape)
    gate = 1 / (1 + np.exp(-(unit @ layer["gate"] + layer["gate_bias"])))
    want = np.einsum("td,dr,rkp->tkp", unit, layer["down"], layer["up"]) * gate[..., None]
    np.testing.assert_allclose(found, want, atol=1e-5)


def test_angles_keep_their_precision_after_many_tokens():
    """A float32 sum that has reached 30,000 is known to 0.002; here differences err by 1e-5."""
    length, encoding = 2**15, pe_jax.make("selective_rope", rank=2, base=10.0)
    dims = pe_jax.Dims(4, 1, 1, 4)
    params = random_params(encoding, dims)
    params = pe_jax.Params({}, params.layer | {"bias": jnp.ones((1, 2))})
    x = np.random.default_rng(0).standard_normal((length, 4), np.float32)
    (term,) = encoding.terms(params, dims)
    unit = jnp.tile(jnp.float32([1, 1, 0, 0]), (length, 1, 1))  # a pair is a complex 1
    turned = jax.jit(lambda: term.rotate("q", unit, None, term.state(x, None)))()[:, 0]
    exact = selective_angles(**float64({"x": x} | params.layer), base=10.0)[:, 0]
    assert exact.max() > 3e4
    late = slice(-99, None)
    got = np.asarray(turned[late], np.float64) @ [[1, 0], [0, 1], [1j, 0], [0, 1j]]
    moved = got * got[:1].conj()  # by the tokens since
    np.testing.assert_allclose(moved, np.exp(1j * (exact[late] - exact[late][:1])), atol=2e-3)


def test_queries_share_the_angles_of_their_key_head():
    encoding = pe_jax.make("selective_rope", rank=4)
    params, (q, k, v) = util.random_params(encoding), util.inputs()
    x = util.flat(q)
    k_wide, v_wide = (np.repeat(y, H // K, axis=2) for y in (k, v))
    term = encoding.terms(params, util.DIMS)[0]
    state = term.state(x, None)
    assert state.shape == (B, T, H, util.E)
    np.testing.assert_array_equal(state[:, :, ::2], state[:, :, 1::2])
    turned = [term.rotate(side, y, None, state) for side, y in (("q", q), ("k", k_wide))]
    assert_close(attend(q, k, v, encoding, params, x=x), attend(*turned, v_wide))


def test_what_does_not_divide_is_refused():
    for dims, words in ((pe_jax.Dims(12, 2, 2, 5), "head_dim=5"), (pe_jax.Dims(9, 2, 2, 6), "=9")):
        with pytest.raises(ValueError, match=words):
            SELECTIVE.check(dims)

"""LeRoPE against the released formula of Mistral Large 4; tests/oracles runs its code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pe_jax
from tests import util
from tests.encodings.common import HEAD_DIM, LENGTH, attend, qkv

YARN = "scaling=yarn(factor=4.0,original_length=8,attention_factor=1.5)"
SPECS = ["lerope", f"lerope({YARN})", "lerope(layout='interleaved',base=100.0)"]


def learned(alpha):
    return pe_jax.Params({"alpha": jnp.asarray(alpha, jnp.float32)}, {})


ALPHA = learned([0.7, -0.4, 0.2])


@pytest.mark.parametrize("spec", SPECS)
def test_it_begins_as_rope_bit_for_bit(spec):
    (encoding,) = pe_jax.parse(spec)
    (plain,) = pe_jax.parse(spec.replace("lerope", "rope"))
    dims = pe_jax.Dims(12, 2, 2, HEAD_DIM)
    first = attend(*qkv(), encoding=encoding, params=encoding.init(jax.random.key(0), dims))
    np.testing.assert_array_equal(first, attend(*qkv(), encoding=plain))


def test_a_fraction_has_as_many_factors_as_pairs_that_turn():
    encoding = pe_jax.make("lerope", fraction=1 / 3)
    x = qkv()[0]
    turned = util.rotate(encoding, "q", learned([9.0]), x, np.arange(LENGTH))
    np.testing.assert_array_equal(turned[..., 2:], x[..., 2:])
    with pytest.raises(ValueError, match=r"params\.shared\.alpha has shape \[3\]"):
        attend(*qkv(), encoding=encoding, params=ALPHA)


def test_the_factors_are_of_the_whole_model_and_learned():
    encoding, (q, k, v) = pe_jax.make("lerope"), qkv()
    assert not encoding.init_layer(jax.random.key(0), util.DIMS)
    grad = jax.grad(lambda p: (attend(q, k, v, encoding, p) ** 2).sum())(ALPHA)
    assert (np.abs(grad.shared["alpha"]) > 1e-4).all()


@given(st.data())
def test_engines_agree_on_the_gradient_of_a_factor_as_far_as_positions_allow(data):
    """A sum of positions times what cancels is known to about 2⁻²³ of the positions."""
    (case,) = (c for c in util.SINGLE if c.name.startswith("lerope"))
    at = {"positions": data.draw(util.positions(case)), "segments": data.draw(util.segments())}
    grads = [util.run(case, engine, **at)[1][0].shared["alpha"] for engine in ("tiled", "dense")]
    reach = max(1, np.abs(at["positions"]).max())
    np.testing.assert_allclose(*grads, atol=1e-5 * reach)

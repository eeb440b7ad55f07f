"""TAPA against arXiv 2509.12635, eq. 12."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pe_jax
from pe_jax.models.transformer import Transformer
from tests import tiny, util
from tests.encodings.common import LENGTH, NONE, attend, qkv

TAPA = pe_jax.make("tapa")


def test_without_a_phase_it_is_attention_of_the_amplitudes():
    q, k, v = qkv()
    silent = np.concatenate([q[..., :3], 0 * q[..., 3:]], axis=-1)
    plain = attend(q[..., :3], k[..., :3], v)
    np.testing.assert_allclose(attend(silent, k, v, TAPA, NONE), plain, atol=1e-6)


def test_gradients_are_finite_at_a_distance_of_zero_and_the_same_in_tiles():
    places = np.float32([0, 0, 0.5, 1, 1, 2, 3, 5, 8, 13, 21])

    def grads(engine):
        def loss(*inputs):
            how = {"encoding": TAPA, "q_positions": places, "implementation": engine}
            return jnp.sin(3 * pe_jax.attention(*inputs, **how)).sum()

        return jax.jit(jax.grad(loss, (0, 1, 2)))(*(x[None] for x in qkv()))

    dense = grads("dense")
    assert all(np.isfinite(x).all() for x in dense) and len(places) == LENGTH
    util.assert_close(grads("tiled"), dense)


def test_a_layer_attends_by_the_equation():
    """Without a factor on queries for its scale, as phases would have it too."""
    shapes = nnx.eval_shape(lambda: Transformer(tiny.config("tapa"), rngs=nnx.Rngs(0)))
    assert shapes.blocks[0].attention.fold == 1


def test_parts_are_whole_channels():
    with pytest.raises(ValueError, match="fraction=0.3: it is 1.8 of 6 channels"):
        pe_jax.make("tapa", fraction=0.3).check(pe_jax.Dims(6, 1, 1, 6))

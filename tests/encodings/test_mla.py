"""Latent attention put together from `mla`: against its formula, and merged with projections."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf, naive
from pe_jax.encodings import mla
from pe_jax.naive import rotary
from tests.util import assert_close, noise

B, T, H, C, R, V, LATENT = 2, 9, 3, 6, 4, 5, 7
Q_CONTENT, Q_ROTARY = noise(B, T, H, C), noise(B, T, H, R, seed=1)
K_ROTARY, HIDDEN = noise(B, T, R, seed=2), noise(B, T, LATENT, seed=3)
UP_K, UP_V = noise(LATENT, H, C, seed=4), noise(LATENT, H, V, seed=5)
K_CONTENT = np.einsum("btl,lhc->bthc", HIDDEN, UP_K)
VALUES = np.einsum("btl,lhv->bthv", HIDDEN, UP_V)


def expanded(implementation=None):
    """Attention as it trains: keys and values of each head."""
    q, k = mla.join(Q_CONTENT, Q_ROTARY, K_CONTENT, K_ROTARY)
    options = {"encoding": mla.scheme(C, R), "implementation": implementation}
    return pe_jax.attention(q, k, jnp.asarray(VALUES), **options)


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
def test_content_and_rotary_scores_add_up(implementation):
    angle = np.arange(T)[:, None] * rotary.frequencies(R, 1e4)
    q = rotary.rotate(np.float64(Q_ROTARY), angle[:, None], "interleaved")
    k = rotary.rotate(np.float64(K_ROTARY), angle, "interleaved")
    scores = np.einsum("bthc,bshc->bhts", Q_CONTENT, K_CONTENT)
    scores = (scores + np.einsum("bthr,bsr->bhts", q, k)) / np.sqrt(C + R)
    want = np.einsum("bhts,bshv->bthv", naive.softmax(scores, True), VALUES)
    assert_close(expanded(implementation), want)


def test_projections_of_keys_and_values_merge_with_those_around_them():
    """One key head, the latent vector: what a server runs and caches."""
    q, k = mla.join(
        jnp.einsum("bthc,lhc->bthl", Q_CONTENT, UP_K), Q_ROTARY, HIDDEN[:, :, None], K_ROTARY
    )
    encoding, scale = mla.scheme(LATENT, R), (C + R) ** -0.5
    out = pe_jax.attention(q, k, HIDDEN[:, :, None], encoding=encoding, scale=scale)
    merged = jnp.einsum("bthl,lhv->bthv", out, UP_V)
    assert_close(merged, expanded(), 2e-5)

    dims = pe_jax.Dims(H * (R + LATENT), H, 1, R + LATENT)
    past = pe_jax.cache.empty(encoding, B, T, dims)
    v = jnp.pad(HIDDEN[:, :, None], [(0, 0)] * 3 + [(R, 0)])  # a cache's values are as wide as keys
    shared = {"encoding": encoding, "params": encoding.init(jax.random.key(0), dims), "dims": dims}
    shared["scale"] = scale
    extend, outs = jax.jit(lambda past, *x: pe_jax.cache.extend(past, *x, **shared)), []
    for t in range(T):
        out, past = extend(past, *(x[:, t : t + 1] for x in (q, k, v)))
        outs.append(out[..., R:])
    decoded = jnp.einsum("bthl,lhv->bthv", jnp.concatenate(outs, axis=1), UP_V)
    assert_close(decoded, expanded(), 2e-5)


def test_gradients_reach_both_parts():
    def loss(q_rotary, k_rotary):
        q, k = mla.join(Q_CONTENT, q_rotary, K_CONTENT, k_rotary)
        return pe_jax.attention(q, k, jnp.asarray(VALUES), encoding=mla.scheme(C, R)).sum()

    for grad in jax.grad(loss, (0, 1))(Q_ROTARY, K_ROTARY):
        assert np.isfinite(grad).all() and np.abs(grad).max() > 1e-3


@pytest.mark.parametrize("content, turned", [(128, 64), (192, 64), (16, 8), (6, 4)])
def test_the_partial_factor_is_not_applied_to_the_rotary_part(content, turned):
    """VLLM #41185: half of the rotary channels were rotated, where a config has the factor."""
    assert mla.scheme(content, turned).rotary_dim(content + turned) == turned
    sizes = {"qk_nope_head_dim": content, "qk_rope_head_dim": turned}
    config = {"model_type": "deepseek_v3", "num_hidden_layers": 1, **sizes}
    for same in (1.0, turned / (content + turned)):  # that of the whole head is the same thing
        (layer,) = hf.encodings({**config, "partial_rotary_factor": same})
        assert layer.encoding.rotary_dim(layer.head_dim) == turned
        np.testing.assert_array_equal(
            layer.encoding.frequencies(layer.head_dim),
            mla.scheme(content, turned).frequencies(layer.head_dim),
        )
    with pytest.raises(ValueError, match=f"qk_rope_head_dim={turned} rotates already"):
        hf.encodings({**config, "partial_rotary_factor": 0.5})


def test_parts_that_do_not_fit_are_refused():
    for wrong, words in (
        ((Q_CONTENT, Q_ROTARY[:, 1:], K_CONTENT, K_ROTARY), "q_rotary=.* pass"),
        ((Q_CONTENT, Q_ROTARY, K_CONTENT, K_ROTARY[:, :, None]), "one key for all heads"),
        ((Q_CONTENT, Q_ROTARY, K_CONTENT[..., 1:], K_ROTARY), "as q_content has"),
    ):
        with pytest.raises(ValueError, match=words):
            mla.join(*wrong)
    with pytest.raises(ValueError, match="rotary=3"):
        mla.scheme(8, 3)
    with pytest.raises(ValueError, match="content=0"):
        mla.scheme(0, 4)

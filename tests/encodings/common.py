"""What the tests of the schemes share: random inputs, a float64 softmax, our attention."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax

LENGTH, HEADS, HEAD_DIM = 11, 2, 6
WIDTH = HEADS * HEAD_DIM
DIMS = pe_jax.Dims(WIDTH, HEADS, HEADS, HEAD_DIM)
NONE = pe_jax.Params({}, {})


def qkv(seed=0, length=LENGTH, heads=HEADS):
    """q, k, v: float32 [length, heads, HEAD_DIM]."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((3, length, heads, HEAD_DIM), np.float32)


def random_params(encoding, dims=DIMS, seed=1):
    """Parameters of the right shapes, every number N(0, 1/4): none is left at an initial zero."""
    key = jax.random.key(0)
    shapes = jax.eval_shape(lambda: encoding.init(key, dims))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(0.5 * rng.standard_normal(x.shape, np.float32)), shapes
    )


def softmax(scores, causal):
    """Over the last axis of float64 scores [T, S], future keys hidden if `causal`."""
    if causal:
        scores = np.where(np.tri(*scores.shape, dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@functools.partial(jax.jit, static_argnames=("encoding", "causal", "embedded"))
def attend(q, k, v, encoding=None, params=None, causal=True, **given):
    """The dense engine; test_contract.py holds the others to it."""
    options = {"encoding": encoding, "params": params, "causal": causal, **given}
    return pe_jax.attention(q, k, v, **options, implementation="dense")


def check_attention(encoding, params, output, causal, **given):
    """Compares our attention with `output(q, k, v, head) -> float64 [T, E]` written by the test."""
    q, k, v = qkv()
    ours = attend(q, k, v, encoding=encoding, params=params, causal=causal, **given)
    for h in range(HEADS):
        want = output(*(x[:, h].astype(np.float64) for x in (q, k, v)), h)
        np.testing.assert_allclose(ours[:, h], want, rtol=0, atol=1e-5)

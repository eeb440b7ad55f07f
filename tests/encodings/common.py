"""What the tests of the schemes share: random inputs, our attention and the naive one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax import naive
from tests import util

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


def float64(tree):
    """Every array of a tree, as naive forms take them."""
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def row(**given):
    """The row of `qkv` for naive forms."""
    return naive.make_row(*qkv()[:2], **given)


def average(scores, causal):
    """The values of `qkv` averaged by float64 scores [H, T, T]: [T, H, HEAD_DIM]."""
    return np.einsum("hts,she->the", naive.softmax(scores, causal), qkv()[2])


@functools.partial(jax.jit, static_argnames=("encoding", "causal", "embedded"))
def attend(q, k, v, encoding=None, params=None, causal=True, **given):
    """The dense engine; tests/contract/ holds the others to it."""
    options = {"encoding": encoding, "params": params, "causal": causal, **given}
    return pe_jax.attention(q, k, v, **options, implementation="dense")


def check_attention(encoding, params, causal=False, want=None, **given):
    """Compares our attention with the naive form, or with `want`, float64 [T, H, HEAD_DIM].

    tests/test_naive.py has the causal mask of every scheme.
    """
    ours = attend(*qkv(), encoding=encoding, params=params, causal=causal, **given)
    if want is None:
        options = {"positions": given.get("q_positions"), "x": given.get("x"), "causal": causal}
        want = util.naive_attention(encoding, params, *qkv(), **options)
    np.testing.assert_allclose(ours, want, rtol=0, atol=1e-5)


def gradients_of_layer(encoding, places):
    """Gradients of a layer's parameters, by name, which tiles and finite differences confirm."""
    params, inputs = util.random_params(encoding), util.inputs()

    def loss(params, implementation):
        given = {"encoding": encoding, "params": params, "implementation": implementation}
        out = pe_jax.attention(*inputs, q_positions=places, causal=False, **given)
        return (out * util.noise(*out.shape, seed=9)).sum()

    engines = "dense", util.TILED
    dense, tiled = util.jit(lambda p: [jax.grad(loss)(p, engine) for engine in engines])(params)
    util.assert_close(tiled, dense)
    step = jax.tree.map(lambda x: 1e-3 * util.noise(*x.shape, seed=3), params)
    total = util.jit(lambda params: loss(params, "dense"))
    up, down = (jax.tree.map(f, params, step) for f in (np.add, np.subtract))
    want = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), dense, step)))
    np.testing.assert_allclose((total(up) - total(down)) / 2, want, rtol=0.02, atol=1e-5)
    return {name: np.asarray(x) for name, x in dense.layer.items()}

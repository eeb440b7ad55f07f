"""On a GPU: what `attention` runs there, in bfloat16, agrees with the dense engine in float32.

    JAX_PLATFORMS=cuda,cpu pytest -m gpu tests/test_gpu.py

Every other test runs on CPU devices, where the kernels are interpreted or only lowered.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.util import assert_close, noise, random_params

DIMS = pe_jax.Dims(width=256, heads=4, kv_heads=2, head_dim=64)
SPECS = ("nope", "rope", "alibi", "t5", "shaw", "deberta", "kerple", "alibi+rope", "fox")
SPECS += ("cable", "inkling", "wavlm", "tupe(length=640)", "rope@window=100@sinks=4")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def on_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU here")


def output_and_gradients(encoding, params, arrays, dtype, implementation):
    """The output of attention, with the gradients of params, q, k and v for a random cotangent."""

    def output(params, arrays):
        q, k, v = (x.astype(dtype) for x in arrays)
        x = q.reshape(*q.shape[:2], -1)
        given = {"encoding": encoding, "params": params, "dims": DIMS, "x": x}
        return pe_jax.attention(q, k, v, **given, causal=True, implementation=implementation)

    @jax.jit
    def run(params, arrays):
        out, pullback = jax.vjp(output, params, arrays)
        return out, pullback(jnp.asarray(noise(*out.shape, seed=9), dtype))

    return jax.tree.map(np.asarray, run(params, arrays))


@pytest.mark.parametrize("spec", SPECS)
def test_what_a_gpu_runs_equals_the_dense_reference(spec):
    (encoding,) = pe_jax.parse(spec)
    params = random_params(encoding, DIMS)
    arrays = [noise(2, 640, heads, DIMS.head_dim, seed=heads) for heads in (4, 2, 2)]
    with jax.default_matmul_precision("highest"):
        want = output_and_gradients(encoding, params, arrays, jnp.float32, "dense")
    assert_close(output_and_gradients(encoding, params, arrays, jnp.bfloat16, None), want, 3e-2)


@pytest.mark.parametrize("spec", ["nope", "rope", "rope@window=100", "rope+sink"])
def test_documents_of_a_row_do_not_see_each_other(spec):
    """MaxText #4478: its causal call of cuDNN left segment ids out, without a word."""
    (encoding,) = pe_jax.parse(spec)
    params, ends = random_params(encoding, DIMS), (0, 200, 640)
    q, k, v = (jnp.asarray(noise(2, 640, n, 64, seed=n), jnp.bfloat16) for n in (4, 2, 2))
    ids = np.repeat(np.arange(2), np.diff(ends))[None].repeat(2, 0)
    run = jax.jit(functools.partial(pe_jax.attention, encoding=encoding))
    packed = run(q, k, v, params=params, q_segments=ids)
    for start, end in zip(ends, ends[1:], strict=False):
        alone = run(*(x[:, start:end] for x in (q, k, v)), params=params)
        assert_close(packed[:, start:end], alone, 3e-2)


def test_the_gradient_of_a_learned_bias_is_right_at_any_batch():
    """cuDNN gives that of a bias at a batch of one alone (jax #30593)."""
    q, k, v = (jnp.asarray(noise(3, 320, 4, 64, seed=s), jnp.bfloat16) for s in range(3))
    bias = jnp.asarray(noise(1, 4, 320, 320, seed=5))

    def loss(bias, dtype, **options):
        arrays = (x.astype(dtype) for x in (q, k, v))
        return jnp.square(pe_jax.attention(*arrays, bias=bias, **options)).astype(jnp.float32).sum()

    half, want = (jax.grad(loss)(bias, dtype) for dtype in (jnp.bfloat16, jnp.float32))
    assert np.isfinite(half).all()
    assert_close(half, want, 3e-2)

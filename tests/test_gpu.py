"""On a GPU: what `attention` runs there, in bfloat16, agrees with the dense engine in float32.

    make gpu

Every other test runs on CPU devices, where the kernels are interpreted or only lowered.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from tests.util import assert_close, noise, random_params

DIMS = pe_jax.Dims(width=256, heads=4, kv_heads=2, head_dim=64)
SPECS = ("nope", "rope", "alibi", "t5", "shaw", "deberta", "kerple", "alibi+rope", "fox")

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def on_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU here: make gpu, on a machine with an NVIDIA GPU")


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

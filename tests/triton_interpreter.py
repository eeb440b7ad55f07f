"""Kernels in the Triton language, run by Triton's own interpreter: TRITON_INTERPRET=1, no GPU."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import pe_jax
from pe_jax.encodings.base import Dims, adds_to_input
from pe_jax.engines.kernels.gpu import engine, passes, triton_call
from tests.util import assert_close, noise, random_params

B, T, H, K, E = 1, 40, 2, 1, 16
DIMS = Dims(H * E, H, K, E)
NAMES = {"float32": "fp32", "int32": "i32"}


class Tensor:
    """As much of a tensor of PyTorch as the interpreter asks for."""

    def __init__(self, array):
        self.array, self.dtype = array, NAMES[str(array.dtype)]

    def data_ptr(self):
        return self.array.ctypes.data


def interpret(kernel, inputs, outs, aliases):
    """What a kernel writes: arrays of the shapes `outs`."""
    from triton.runtime.interpreter import GridExecutor

    inputs = [np.array(x) for x in inputs]
    given = {out: inputs[i] for i, out in aliases}
    results = [given.get(i, np.zeros(x.shape, x.dtype)) for i, x in enumerate(outs)]
    with (  # both are for tensors of devices
        mock.patch.object(GridExecutor, "_init_args_hst", lambda self, args, more: (args, more)),
        mock.patch.object(GridExecutor, "_restore_args_dev", lambda *_: None),
    ):
        triton_call.function(kernel)[kernel.grid](*map(Tensor, [*inputs, *results]))
    return results


def run(plan, name, call, args):
    """In the place of `passes.run`."""
    kernel, params = triton_call.kernel_of(call, args, name)
    outs, tree = jax.tree.flatten(jax.eval_shape(call, *args))

    def on_host(*inputs):
        return interpret(kernel, inputs, outs, params["input_output_aliases"])

    return jax.tree.unflatten(tree, jax.pure_callback(on_host, outs, *jax.tree.leaves(args)))


def results_and_gradients(spec, implementation, positions):
    """Output and row sums; gradients of parameters, q, k, v and x from both."""
    (encoding,) = pe_jax.parse(spec)
    params, heads = random_params(encoding, DIMS), (H, K, K)
    q, k, v = (jnp.asarray(noise(B, T, n, E, seed=i)) for i, n in enumerate(heads))
    x = jnp.asarray(noise(B, T, DIMS.width, seed=3))

    def f(params, q, k, v, x):
        given = {"encoding": encoding, "params": params, "dims": DIMS, "x": x, "return_lse": True}
        given["q_positions"] = positions
        given["embedded"] = adds_to_input(encoding, DIMS)
        return pe_jax.attention(q, k, v, implementation=implementation, **given)

    def step(*arrays):
        results, pull = jax.vjp(f, *arrays)
        return results, pull(jax.tree.map(jnp.cos, results))

    return jax.jit(step)(params, q, k, v, x)


def compare(spec, explicit=False):
    """Raises AssertionError unless the interpreted kernels agree with the dense engine.

    `explicit`: at positions of which some are the same.
    """
    positions = jnp.asarray(np.arange(T)[None] * 2 // 3) if explicit else None
    with mock.patch.object(passes, "run", run):
        ours = results_and_gradients(
            spec, functools.partial(engine.attend, sizes=(16, 16)), positions
        )
    assert_close(ours, results_and_gradients(spec, "dense", positions))

"""LAPACK on a CPU: one matrix per call (but on Explicit axes), one more call per derivative."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

import pe_jax
from pe_jax.numerics import linear_algebra

rng = np.random.default_rng(0)
LOWER = np.tril(rng.standard_normal((2, 3, 6, 6), np.float32), -1) / 3
RIGHT = rng.standard_normal((2, 3, 6, 4), np.float32)


def batches(f, *args) -> list[int]:
    """Of each call of LAPACK in the compiled program of f, how many matrices it has."""
    text = jax.jit(f).lower(*args).compile().as_text()
    calls = re.findall(r"= \(?\w+\[([\d,]*)\][^\n]* custom-call\([^\n]*lapack_", text)
    return [int(np.prod([int(n) for n in sizes.split(",")[:-2]])) for sizes in calls]


def test_a_system_is_solved_and_so_are_its_derivatives():
    unit = LOWER.astype(np.float64) + np.eye(6)
    want = np.linalg.solve(unit, RIGHT.astype(np.float64))
    np.testing.assert_allclose(linear_algebra.solve_unit_lower(LOWER, RIGHT), want, rtol=1e-4)
    empty = linear_algebra.solve_unit_lower(LOWER[..., :0, :0], RIGHT[..., :0, :])
    assert empty.shape == (2, 3, 0, 4)
    below = np.tril(np.ones((6, 6), np.float32), -1)
    f = lambda x, y: linear_algebra.solve_unit_lower(x * below, y)  # noqa: E731
    check_grads(f, (LOWER, RIGHT), order=1, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("size, each", [(1, None), (6, None), (21, None), (64, 1.999)])
def test_an_inverse_by_products_is_one_and_so_are_its_derivatives(size, each):
    """Powers of what is 1.999 throughout are 10,000 times its inverse."""
    lower = rng.standard_normal((2, size, size), np.float32) / 2
    lower = np.tril(lower if each is None else np.full_like(lower, each), -1)
    got = linear_algebra.inverse_unit_lower(lower)
    want = np.linalg.inv(lower.astype(np.float64) + np.eye(size))
    np.testing.assert_allclose(got, want, atol=1e-4)
    f = lambda x: linear_algebra.inverse_unit_lower(jnp.tril(x, -1))  # noqa: E731
    check_grads(f, (lower,), order=1, atol=0.02, rtol=0.02)


def test_lapack_has_one_matrix_at_a_time():
    """Else two of its calls at once wait for ever on a machine of two cores (jaxlib 0.10.2)."""

    def f(lower, right):
        return linear_algebra.solve_unit_lower(lower, right).sum()

    assert batches(jax.grad(f, argnums=(0, 1)), LOWER, RIGHT) == [1, 1]
    assert batches(linear_algebra.eigh, LOWER + np.swapaxes(LOWER, -1, -2)) == [1]
    batched = jax.vmap(jax.vmap(linear_algebra.solve_unit_lower, (0, None)))
    assert batches(batched, LOWER, RIGHT[:, 0]) == [1]
    want = linear_algebra.solve_unit_lower(LOWER, np.broadcast_to(RIGHT[:, :1], RIGHT.shape))
    np.testing.assert_allclose(batched(LOWER, RIGHT[:, 0]), want, rtol=1e-6)


@pytest.mark.parametrize("spec", ["path", "liere"])
def test_encodings_give_lapack_one_matrix_at_a_time(spec):
    encoding = pe_jax.make(spec)
    dims = pe_jax.Dims(width=32, heads=2, kv_heads=2, head_dim=16)
    q = jnp.ones((2, 9, 2, 16))
    places = np.stack(np.divmod(np.arange(9), 3), axis=-1) if encoding.claims.axes == 2 else None

    def loss(params, q):
        given = {"x": q.reshape(2, 9, 32), "q_positions": places}
        causal = encoding.claims.axes == 1
        return pe_jax.attention(
            q, q, q, encoding=encoding, params=params, causal=causal, **given
        ).sum()

    params = encoding.init(jax.random.key(0), dims)
    counts = batches(jax.grad(loss), params, q)
    assert counts and set(counts) == {1}


def test_devices_that_share_a_batch_take_turns_too():
    hermitian = LOWER + np.swapaxes(LOWER, -1, -2)
    make = functools.partial(jax.make_mesh, (2,), ("data",))
    shared, explicit = (make(axis_types=(axis,)) for axis in (AxisType.Auto, AxisType.Explicit))
    with jax.set_mesh(shared):
        assert batches(linear_algebra.eigh, hermitian) == [1]
    there = jax.device_put(hermitian, NamedSharding(explicit, PartitionSpec("data")))
    want = linear_algebra.eigh(hermitian)[0]
    np.testing.assert_allclose(linear_algebra.eigh(there)[0], want, atol=1e-6)  # in no mesh
    with jax.set_mesh(explicit):
        assert batches(linear_algebra.eigh, there) == [3]  # on each of two devices
    split = {"in_specs": PartitionSpec("data"), "out_specs": PartitionSpec("data")}
    alone = jax.shard_map(linear_algebra.solve_unit_lower, mesh=shared, **split)
    assert batches(alone, LOWER, RIGHT) == [1]
    want = linear_algebra.solve_unit_lower(LOWER, RIGHT)
    np.testing.assert_allclose(alone(LOWER, RIGHT), want, rtol=1e-6)

"""The GPU engine on what reads tokens' states or caps scores: it is the dense one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import adds_to_input
from pe_jax.engines.kernels import query_chunks
from pe_jax.engines.kernels.gpu import engine, operands
from tests import util
from tests.test_gpu_kernels import equations
from tests.util import DIMS, B, E, H, K, assert_close, noise

KERNELS, OBLONG = (
    functools.partial(engine.attend, interpret=True, sizes=sizes) for sizes in ((16, 16), (32, 16))
)
PACKED = np.asarray([[0] * 10 + [1] * 15 + [-1] * 3 + [2] * 42, [0] * 70])
PLANE = np.stack(np.divmod(np.arange(70), 10), axis=-1)
T5 = "t5(num_buckets=6,max_distance=9)"
CASES = {
    "fox, far": ("fox", {"length": 200, "sharp": 0.1}),
    "fox, all": ("fox", {"length": 200, "sharp": 0.1, "causal": False}),
    "fox, packed": ("fox", {"q_segments": PACKED}),
    "fox, elsewhere": ("fox", {"q_positions": np.arange(7, 217, 3)}),
    "fox+alibi": ("fox+alibi", {"length": 200, "sharp": 0.1}),
    "two of tokens, and a table": (f"fox+cable+{T5}", {}),
    "inkling+shaw, window": ("inkling(extent=5,width=3)+shaw(clip=3)", {"window": 20}),
    "wavlm": ("wavlm(num_buckets=8,max_distance=9)", {"causal": False}),
    "tupe+fox": ("tupe(length=80)+fox", {}),
    "shaw, cap, packed": ("shaw(clip=3)", {"logit_cap": 1.5, "q_segments": PACKED}),
    "pairs of tokens, of pairs": ("fox+fire(width=3)+rope", {"logit_cap": 3.0}),
    "table of two axes": ("swin(width=10)+rope_2d", {"causal": False, "q_positions": PLANE}),
    "shaw, window, all": ("shaw(clip=3)", {"window": 20, "causal": False}),
    "alibi, window": ("alibi", {"window": 20, "length": 200, "sharp": 0.1}),
    "t5, window, packed": (T5, {"window": 5, "q_segments": PACKED}),
    "shaw, window, packed, all": (
        "shaw(clip=3)",
        {"window": 7, "q_segments": PACKED, "causal": False},
    ),
    "sink logits, window": ("sink+rope", {"window": 20}),
}


def results_and_gradients(spec, implementation, length=70, sharp=1.0, dtype="float32", **options):
    """Output and row sums; gradients of parameters, q, k, v and x from both."""
    (encoding,) = pe_jax.parse(spec)
    params = util.random_params(encoding)
    shapes = (B, length, H, E), (B, length, K, E), (B, length, K, E), (B, length, DIMS.width)
    q, k, v, x = (jnp.asarray(noise(*shape, seed=i), dtype) for i, shape in enumerate(shapes))

    def f(params, *arrays):
        q, k, v, x = arrays
        given = {"params": params, "dims": DIMS, "x": x, "return_lse": True}
        given["embedded"] = adds_to_input(encoding, DIMS)
        out, lse = pe_jax.attention(
            q, k, v, encoding=encoding, implementation=implementation, **given, **options
        )
        return out, jnp.where(lse > -1e29, lse, 0)

    def step(*arrays):
        results, pull = jax.vjp(f, *arrays)
        return results, pull(jax.tree.map(jnp.cos, results))

    return step, (params, sharp * q, k, v, x)


def run(*args, **options):
    step, arrays = results_and_gradients(*args, **options)
    return util.jit(step)(*arrays)


def assert_dense(spec, implementation, tol=1e-5, **options):
    """Results and every gradient are those of the dense engine."""
    assert_close(run(spec, implementation, **options), run(spec, "dense", **options), tol)


@pytest.mark.parametrize("spec, options", CASES.values(), ids=list(CASES))
def test_fused_equals_dense_and_so_does_every_gradient(spec, options):
    assert_dense(spec, KERNELS, **options)


def test_later_chunks_of_queries_meet_more_keys(monkeypatch):
    """Of 5 chunks of 16 queries."""
    monkeypatch.setattr(query_chunks, "BLOCKS", 1)
    monkeypatch.setattr(query_chunks, "GROUPS", 2)
    assert_dense(f"fire(width=3)+{T5}+fox", KERNELS)


@pytest.mark.parametrize("name", ["fox, far", "shaw, window, all"])
def test_blocks_may_be_oblong(name):
    spec, options = CASES[name]
    assert_dense(spec, OBLONG, **options)


@pytest.mark.parametrize("name", ["tupe+fox", "inkling+shaw, window"])
def test_half_precision_differs_from_dense_as_rounding_does(name):
    spec, options = CASES[name]
    assert_dense(spec, KERNELS, tol=3e-2, **options, dtype="bfloat16")


def test_keys_that_have_faded_are_not_visited():
    """FoX's gates are near 1/2: 43 tokens weigh nothing."""
    seen = []

    def attend(spec, terms, *rest):
        plan = operands.make_plan(spec, terms, *rest, (16, 16), True)
        bounds = jax.jit(
            lambda *call: operands.find_bounds(plan, operands.make_arrays(plan, *call)).bounds
        )
        seen.append(bounds(terms, *rest))
        return rest[0].x, None

    length, encoding = 320, pe_jax.make("fox")
    q, k, v, x = (0.01 * noise(B, length, n, E) for n in (H, K, K, H))
    params = encoding.init(jax.random.key(0), DIMS)
    given = {"encoding": encoding, "params": params, "x": x.reshape(B, length, -1)}
    pe_jax.attention(q, k, v, **given, implementation=attend)
    first, last = (np.asarray(x) for x in seen[0])
    assert (first[:, :, -1] > 12).all() and not first[:, :, 0].any()
    assert (last > np.arange(20)).all()


def test_gradients_of_numbers_that_nobody_learns_are_not_computed():
    step, (params, q, k, v, x) = results_and_gradients("fox", KERNELS)

    def without_x(q, k, v):
        def f(q, k, v):
            given = {"encoding": pe_jax.make("fox"), "params": params, "x": x, "dims": DIMS}
            return pe_jax.attention(q, k, v, **given, implementation=KERNELS)

        out, pull = jax.vjp(f, q, k, v)
        return pull(out)

    counts = [
        [len(e.outvars) for e in equations(jax.make_jaxpr(g)(*a).jaxpr, "pallas_call")]
        for g, a in ((step, (params, q, k, v, x)), (without_x, (q, k, v)))
    ]
    assert counts == [[2, 2, 3], [2, 1, 2]]

"""The GPU's kernels: what they leave out, what they refuse, that they lower for NVIDIA GPUs.

tests/test_engine_matrix.py holds them to the dense engine.
"""

import contextlib
import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.terms import DistanceBias, DistanceFormula, RowSum
from pe_jax.engines.kernels.gpu import engine, operands
from tests.calls import ENGINES, LENGTH, answer, assert_dense, attend, equations, step
from tests.calls import operands as numbers
from tests.util import DIMS, B, H, assert_close, jit, random_params


def test_no_kernel_runs_twice_for_chunks_of_queries():
    """The backward pass needs its own two kernels; JAX drops others, in 0.12 while it traces."""
    run, arrays = step("gpu", "fire(width=3)+fire(width=2)", length=70)
    forward, backward = equations(jax.make_jaxpr(run)(*arrays).jaxpr, "scan")
    assert forward.params["length"] == backward.params["length"] == 2
    inner = backward.params["jaxpr"].jaxpr
    (again,) = (e for name in ("remat2", "checkpoint") for e in equations(inner, name))
    jaxpr = again.params["jaxpr"]
    read = {id(x) for e in jaxpr.eqns for x in e.invars} | {id(x) for x in jaxpr.outvars}
    kernels = equations(jaxpr, "pallas_call")
    assert sum(any(id(x) in read for x in e.outvars) for e in kernels) == 2


def test_products_of_chunks_are_made_again_for_gradients_and_no_kernel_runs_twice():
    """What is kept for them is less than the products within three chunks."""
    run, arrays = step("gpu", "path", length=70)
    (again,) = (
        equation
        for name in ("remat2", "checkpoint")
        for equation in equations(jax.make_jaxpr(run)(*arrays).jaxpr, name)
    )
    kernels = equations(again.params["jaxpr"], "pallas_call")
    read = {id(x) for e in again.params["jaxpr"].eqns for x in e.invars}
    read |= {id(x) for x in again.params["jaxpr"].outvars}
    assert sum(any(id(x) in read for x in e.outvars) for e in kernels) == 2
    assert max(x.aval.size for x in again.invars) < B * H * 96 * 32


def bounds(spec, length=200, **options):
    """The first and last block of keys of each block of queries, where any are left out."""

    def find(*call):
        plan = operands.make_plan(*call, (16, 16), True)
        return operands.find_bounds(plan, operands.make_arrays(plan, *call[1:])).bounds

    return answer(find, spec, numbers(length, sharp=0.01), **options)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_out_of_reach_are_not_visited(causal):
    (first, last), blocks = bounds("alibi", causal=causal), np.arange(13)
    assert (first[:, 0, -1] > 0).all() and not first[:, -1].any()  # slopes 1/4 and 1/256
    assert (first <= blocks).all() and (last > blocks).all()
    assert (last[:, 0, 0] < 13).all() and (last[:, -1] == 13).all()


def test_keys_that_have_faded_are_not_visited():
    """FoX's gates are near 1/2: 43 tokens weigh nothing."""
    params = pe_jax.make("fox").init(jax.random.key(0), DIMS)
    first, last = bounds("fox", 320, params=params)
    assert (first[:, :, -1] > 12).all() and not first[:, :, 0].any()
    assert (last > np.arange(20)).all()


@pytest.mark.parametrize("spec", ["alibi+t5", "alibi+shaw", "t5"])
def test_all_keys_are_visited_where_not_only_a_decaying_bias_is_added(spec):
    assert bounds(spec) is None


# What a GPU would be given.


@contextlib.contextmanager
def hopper():
    """Lowers for a GPU that is not there: newer versions of JAX want to know which."""
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
        if hasattr(jax.sharding, "AbstractDevice"):
            device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", None, "gpu")
            mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
            stack.enter_context(jax.sharding.use_abstract_mesh(mesh))
        yield


WAVE = "dpb(hidden=3,depth=1)"  # a learned bias without a horizon


@pytest.mark.parametrize(
    "spec", [*"nope t5 shaw deberta kerple fire tapa wall path alibi+t5".split(), WAVE]
)
def test_kernels_lower_for_cuda(spec):
    """Forward and backward: finds what Triton has no rule for, and runs nothing."""
    run = functools.partial(attend, spec, implementation=engine.attend)
    heads = [jax.ShapeDtypeStruct((1, 1024, 8, 64), jnp.bfloat16)] * 3
    params = random_params(pe_jax.parse(spec)[0], pe_jax.Dims(512, 8, 8, 64))

    def gradients(params, qkv):
        out, pull = jax.vjp(lambda params, qkv: run(qkv, params=params), params, qkv)
        return pull(jnp.ones_like(out))

    with hopper():
        traced = jax.jit(gradients).trace(params, heads)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    count = text.count("xla.gpu.triton") - (spec == WAVE)  # forward, queries, keys; diagonals
    assert count == 3 or (spec == "path" and count == 4)  # its forward again, which XLA drops


def test_vectors_of_too_many_distances_are_multiplied_in_chunks(monkeypatch):
    monkeypatch.setattr(engine, "MAX_DISTANCES", 8)
    for spec in ("deberta(buckets=None,max_distance=9)+alibi", "shaw(clip=9,values=False)"):
        chunked = answer(lambda *call: engine.in_chunks(*call[:4]), spec)
        assert any(chunked)
        assert_dense(["gpu"], spec, window=20)


def test_a_bias_of_pieces_is_evaluated_in_place_in_packed_rows_too():
    def chunked(**options):
        return any(answer(lambda *call: engine.in_chunks(*call[:4]), "fire+t5", **options))

    documents = np.repeat([[0, 1], [2, 3]], [100, 200], axis=1)
    assert not chunked() and not chunked(q_segments=documents)
    assert chunked(q_positions=2 * np.arange(LENGTH))


@pytest.mark.parametrize(
    "causal, c, tol", [(True, 0.1, 2e-5), (False, 0.1, 2e-5), (True, 1e-2, 5e-5)]
)
def test_knots_within_a_tile_and_between_tiles(causal, c, tol):
    """Of both signs, two at the diagonal's x = 0, one for each side, and a unit that has none."""
    encoding, qkv = pe_jax.make("fire", width=8, length=30.0), numbers(90)
    layer = random_params(encoding).layer | {"c": jnp.float32(c)}
    knots = jnp.array([0.05, 0, 0.3, 0.45, 0.7, 0.9, 0, 0.5])
    layer["w1"] = layer["w1"].at[::2].multiply(-1).at[7].set(0)
    layer["b1"] = jnp.where(layer["w1"] == 0, 0.4, -layer["w1"] * knots)

    def run(kernels, layer, qkv):
        out = attend(encoding, qkv, params=pe_jax.Params({}, layer), causal=causal, **kernels)
        return (out * jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)).sum()

    kernels = functools.partial(engine.attend, interpret=True, sizes=(16, 16))
    got, want = (
        jit(jax.grad(functools.partial(run, {"implementation": by}), (0, 1)))(layer, qkv)
        for by in (kernels, "dense")
    )
    assert_close(got, want, tol)


@pytest.mark.parametrize("spec", ["grape_ap", "cope(positions=6)+alibi+fire+t5"])
def test_queries_are_divided_where_sums_along_rows_would_be_many(monkeypatch, spec):
    """A number for each query and block of keys; beside biases of distances chunks are shorter."""
    monkeypatch.setattr(engine.query_chunks, "MOST", B * H * 3 * 40)
    sizes = functools.partial(engine.chunk_length, sizes=(16, 16), arch=None)
    assert answer(sizes, "grape_ap", numbers(70)) == 32
    assert answer(sizes, spec, numbers(70)) and not answer(sizes, "grape_ap", numbers(32))
    assert_dense(["gpu"], spec, length=70)


# What they refuse.


def twice(sums, numbers):
    return sums * numbers.sum(-1, keepdims=True)


def pair(arrays, q):
    return arrays * q[..., :2]


TWO_NUMBERS = {"terms": (RowSum(jax.nn.sigmoid, twice, numbers=pair, arrays=jnp.ones((H, 1, 2))),)}
PREFIX = {"mask": pe_jax.masks.prefix(np.array([7, 20])), "causal": False}


@dataclasses.dataclass(frozen=True)
class Doubled(DistanceBias):
    """A subclass that means something else: another kind."""

    def at(self, distance):
        return 2 * super().at(distance)


def look_up(table, distance):
    return table[:, jnp.clip(distance, 0, 2)]


def from_the_right(numbers, distance):
    return numbers[0][..., 0] * distance[..., 1]


SINKS = {"window": 5, "sinks": 3}
CHUNKS = "dual_chunk(chunk_size=12,local_size=4)"
HALVES = (*numbers(4)[:2], numbers(4, dtype="bfloat16")[2])
DOUBLED = {"terms": (Doubled(look_up, jnp.ones((H, 3))),)}
LONG = tuple(jnp.zeros((B, 2**16, heads, 8)) for heads in (H, 2, 2))
DOCUMENTS = {"q_segments": np.zeros((B, LENGTH), int)}
IN_PLANE = {"terms": (DistanceFormula(from_the_right, jnp.ones((H, 1))),), "causal": False}
IN_PLANE["q_positions"] = np.zeros((LENGTH, 2), int)


@pytest.mark.parametrize(
    "spec, qkv, options, reason",
    [
        (f"shaw+{WAVE}", None, {}, "vectors of values beside biases of pairs, or of over 2048"),
        ("shaw", None, {"q_positions": np.arange(LENGTH) // 2}, "vectors of distances at explicit"),
        ("shaw+fire+fire", None, {}, "vectors of values beside biases of pairs"),
        ("shaw(clip=2000)", numbers(2500), {"causal": False}, "vectors of values beside"),
        ("nope", None, SINKS | {"causal": False}, "sinks of a window without a causal mask"),
        ("nope", None, SINKS | DOCUMENTS, "sinks of several"),
        ("rerope", None, {"causal": False}, "several views of each token without a causal mask"),
        (
            "rerope",
            None,
            {"q_positions": np.arange(LENGTH) // 2},
            "several views of each token at exp",
        ),
        ("rerope(window=9)+shaw+fire+fire", None, {}, "vectors of values beside biases of pairs"),
        (CHUNKS, None, {"window": 9}, "views by blocks, in a window"),
        (CHUNKS, None, DOCUMENTS, "views by blocks, within"),
        ("nope", numbers(4, width=300), {}, "heads of width 300"),
        ("nope", HALVES, {}, "operands in bfloat16 and float32"),
        ("rope_2d", None, IN_PLANE, "formulas of distances of 2 axes"),
        ("nope", None, DOUBLED, "it has no Doubled"),
        ("cope+grape_ap", None, {}, "several sums along rows"),
        (f"cope+tupe(length={LENGTH})", None, {}, "sums along rows beside products of tokens"),
        ("grape_ap+shaw", None, {}, "sums along rows beside products of tokens, or values"),
        ("tapa+grape_ap", None, {}, "phases beside products of tokens, or sums"),
        ("wall", None, {"causal": False}, "channels that fade, without a causal mask or at a few"),
        ("wall+cope", None, {}, "channels that fade, beside products of tokens, sums along rows"),
        ("wall+dpb+shaw(clip=9)", None, {}, "channels that fade, beside"),
        ("wall", numbers(4, width=200), {}, "channels that fade, of heads wider than 128"),
        ("path+stick_breaking", None, {}, "maps between tokens, beside products of tokens, sums"),
        ("path", numbers(4, width=200), {}, "maps between tokens, of heads wider than 128"),
        ("path+t5", None, DOCUMENTS, "maps between tokens, beside products of tokens, sums"),
        ("path", None, DOCUMENTS | {"window": 9}, "maps between tokens, of several documents in a"),
        ("path", LONG, {}, "maps between tokens, with over 536870912 numbers"),
        ("nope", None, TWO_NUMBERS, "several numbers of a query for its sums"),
        (
            "grape_ap+rerope",
            None,
            {},
            "several views of each token beside sums",
        ),
        ("alibi", None, PREFIX, "masks of more than indices"),
    ],
)
def test_a_refusal_says_why(spec, qkv, options, reason):
    assert answer(engine.refusal, spec, qkv, **options).startswith(reason)


@pytest.mark.parametrize("spec", ["wall", "path", "tapa", "grape_ap"])
def test_one_gradient_alone_is_what_it_is_among_others(spec):
    """Kernels compute what is wanted."""
    arrays = dict(zip("qkv", numbers(40), strict=True))
    arrays["x"] = arrays["q"].reshape(B, 40, -1)
    encoding = pe_jax.parse(spec)[0]
    given = {"encoding": encoding, "params": random_params(encoding, DIMS), "dims": DIMS}

    def total(wanted):
        q, k, v, x = (arrays | wanted).values()
        out = pe_jax.attention(q, k, v, x=x, implementation=ENGINES["gpu"], **given)
        return (out * arrays["q"]).sum()

    @jit
    def gradients():
        return jax.grad(total)(arrays), [jax.grad(total)({n: arrays[n]})[n] for n in arrays]

    together, alone = gradients()
    assert_close(alone, [together[n] for n in arrays])


@pytest.mark.parametrize("spec", ["alibi", "fire", "cope(positions=6)", "wall", "path", "tapa"])
def test_kernels_run_where_numbers_have_64_bits(spec):
    def answers(by):
        return attend(spec, numbers(40), implementation=by)

    with jax.enable_x64(True):
        assert_close(answers(functools.partial(engine.attend, interpret=True)), answers("dense"))

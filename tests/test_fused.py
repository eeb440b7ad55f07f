"""The fused engine: in interpret mode it is the dense one; its kernels lower for NVIDIA GPUs."""

import contextlib
import dataclasses
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import Encoding
from pe_jax.engines import dense, fused
from pe_jax.engines.dense import Rules, Tokens
from tests import util
from tests.util import DIMS, B, E, H, K, assert_close, noise


@dataclasses.dataclass(frozen=True)
class Logarithmic(Encoding):
    """A bias that decays, of learned coefficients."""

    decays = True

    def init_layer(self, key, dims):
        return {"c": jnp.ones((dims.heads, 2))}

    def distance_bias(self, params, distance, dims):
        c = jnp.moveaxis(self.coefficients(params, dims), 1, 0)
        return self.profile(c.reshape(2, -1, *(1,) * distance.ndim), distance)

    def coefficients(self, params, dims):
        return jnp.abs(params.layer["c"])

    def profile(self, coefficients, distance):
        reach = jnp.abs(distance).astype(jnp.float32)
        return -coefficients[0] * jnp.log1p(coefficients[1] * reach)


@dataclasses.dataclass(frozen=True)
class Wave(Encoding):
    """A learned bias that is constant nowhere and known to kernels by its values alone."""

    def init_layer(self, key, dims):
        return {"a": jnp.ones((dims.heads, 3))}

    def distance_bias(self, params, distance, dims):
        a, b, c = jnp.moveaxis(params.layer["a"], 1, 0).reshape(3, -1, *(1,) * distance.ndim)
        d = distance.astype(jnp.float32)
        return a * jnp.sin(b * d) + c * jnp.tanh(d / 9)


class Absolute(Encoding):
    """A bias of absolute positions."""

    def bias(self, params, q_pos, k_pos, dims):
        raise NotImplementedError


class Planar(Encoding):
    """Positions in a plane."""

    axes = 2


OWN = {c.__name__.lower(): c() for c in (Logarithmic, Wave, Absolute, Planar)}


class Call:
    """The arguments of an engine: contiguous and aligned unless positions or index are given."""

    def __init__(self, spec, queries=37, keys=None, width=E, sharp=1.0, dtype="float32", **rules):
        known = [rules.pop(name, None) for name in ("positions", "index", "segments")]
        lengths = queries, keys or queries
        self.encoding = OWN[spec] if spec in OWN else pe_jax.parse(spec)[0]
        rules = {"causal": True, "window": None, **rules}
        rules |= {"aligned": known[1] is None, "contiguous": known[0] is None}
        self.rules = Rules(self.encoding, DIMS, **rules)
        self.tokens = []
        for side, length in enumerate(lengths):
            places = np.arange(length, dtype=np.int32)[None]
            given = [x if x is None else x[side] for x in known]
            positions, index = (places if x is None else x for x in given[:2])
            self.tokens.append(Tokens(positions, index, given[2]))
        shapes = [(B, H, lengths[0], E), (B, K, lengths[1], E), (B, K, lengths[1], width)]
        q, *rest = (noise(*shape, seed=i) for i, shape in enumerate(shapes))
        self.arrays = tuple(jnp.asarray(x, dtype) for x in (sharp * q, *rest))
        self.params = util.random_params(self.encoding)

    def operands(self, params, q, k, v):
        enc, (of_q, of_k) = self.encoding, self.tokens
        turn = lambda f, x, t: jnp.swapaxes(f(params, jnp.swapaxes(x, 1, 2), t.positions), 1, 2)  # noqa: E731
        found = {"q": turn(enc.rotate_q, q, of_q), "k": turn(enc.rotate_k, k, of_k), "v": v}
        raw = {"relative_keys": ("q_raw", q), "relative_queries": ("k_raw", k)}
        return found | dict(pair for slot, pair in raw.items() if enc.overrides(slot))

    def step(self, attend, params, arrays):
        """Output, and the gradients of parameters, q, k and v."""

        def f(params, arrays):
            return attend(self.rules, params, self.operands(params, *arrays), *self.tokens)

        out, pull = jax.vjp(f, params, arrays)
        return out, pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape))

    def ask(self, question, *more):
        operands = jax.eval_shape(self.operands, self.params, *self.arrays)
        return question(self.rules, *more, operands, *self.tokens)


@functools.cache
def compiled(call, attend):
    return util.jit(functools.partial(call.step, attend))


def run(call, attend):
    return compiled(call, attend)(call.params, call.arrays)


SQUARE, OBLONG = (
    functools.partial(fused.attend, interpret=True, sizes=sizes) for sizes in ((16, 16), (32, 16))
)
PACKED = [np.asarray([[0] * 10 + [1] * 15 + [-1] * 3 + [2] * 9, [0] * 37])] * 2
SHUFFLED = [np.random.default_rng(0).permutation(37)[None]] * 2
ELSEWHERE = {
    "positions": [np.arange(60, 100, 2)[None], np.arange(100, 0, -2)[None]],
    "index": [np.arange(30, 50)[None], np.arange(50)[None]],
}
T5, DEBERTA = "t5(num_buckets=6,max_distance=9)", "deberta(buckets=4,max_distance=7)"
BOTH_WAYS = "t5(num_buckets=8,max_distance=6,bidirectional=True)"
CASES = {
    "none, window both ways": Call("nope", 70, width=5, window=20, causal=False),
    "rope, window": Call("rope", window=20),
    "alibi": Call("alibi", 200, sharp=0.1),
    "alibi, all": Call("alibi", 200, sharp=0.1, causal=False),
    "alibi+rope, elsewhere": Call("alibi+rope", 20, 50, **ELSEWHERE),
    "t5, packed": Call(T5, segments=PACKED),
    "t5, all": Call(BOTH_WAYS, 70, causal=False),
    "t5+rope": Call(T5 + "+rope", 70),
    "buckets, window": Call("buckets(edges=(0,1,4))", 70, window=30),
    "clipped, shuffled": Call("clipped(clip=3)", window=9, index=SHUFFLED),
    "shaw": Call("shaw(clip=3)", 70),
    "shaw, all, packed": Call("shaw(clip=3)", causal=False, segments=PACKED),
    "deberta": Call(DEBERTA),
    "all slots": Call(f"clipped(clip=3)+shaw(clip=5)+{DEBERTA}", window=25, causal=False),
    "coefficients": Call("logarithmic"),
    "no horizon": Call("wave", causal=False),
    "one token": Call(T5, 1),
}


@pytest.mark.parametrize("call", CASES.values(), ids=list(CASES))
def test_fused_equals_dense_and_so_does_every_gradient(call):
    assert_close(run(call, SQUARE), run(call, dense.attend))


def test_blocks_may_be_oblong():
    assert_close(run(CASES["shaw"], OBLONG), run(CASES["shaw"], dense.attend))


@pytest.mark.parametrize("name", ["t5, packed", "shaw, all, packed"])
def test_rows_that_see_nothing_are_zero_and_gradients_finite(name):
    out, grads = run(CASES[name], SQUARE)
    assert not np.asarray(out)[0, :, 25:28].any()
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_half_precision_differs_from_dense_as_rounding_does():
    call = Call(T5, dtype="bfloat16")
    assert_close(run(call, SQUARE), run(call, dense.attend), 2e-2)


def test_two_runs_agree_to_the_bit():
    jax.tree.map(np.testing.assert_array_equal, *(run(CASES["all slots"], SQUARE) for _ in "ab"))


@pytest.mark.parametrize("name", ["alibi", "alibi, all"])
def test_keys_out_of_reach_are_not_visited(name):
    call, blocks = CASES[name], np.arange(13)
    grown = {x: fused._grow(a, 16) for x, a in zip("qk", call.arrays, strict=False)}
    plan = call.ask(lambda *args: fused._plan(*args[:3], (16, 16), True), call.params)
    first, last = fused._bounds(plan, call.params, grown, {}, False).values()
    assert (first[:, 0, -1] > 0).all() and not first[:, -1].any()  # slopes 1/4 and 1/256
    assert (first <= blocks).all() and (last > blocks).all()
    assert (last[:, 0, 0] < 13).all() and (last[:, -1] == 13).all()


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


LOWERED = "nope rope alibi t5 buckets clipped shaw deberta alibi+rope t5+rope logarithmic wave"


@pytest.mark.parametrize("spec", LOWERED.split())
def test_kernels_lower_for_cuda(spec):
    """Forward and backward: finds what Triton has no rule for, and runs nothing."""
    call, dims, length = Call(spec, 1), pe_jax.Dims(512, 8, 8, 64), 1024
    call.rules = dataclasses.replace(call.rules, dims=dims)
    call.tokens = [Tokens(*[np.arange(length, dtype=np.int32)[None]] * 2, None)] * 2
    arrays = [jax.ShapeDtypeStruct((1, 8, length, 64), jnp.bfloat16)] * 3
    with hopper():
        traced = jax.jit(functools.partial(call.step, fused.attend)).trace(
            util.random_params(call.encoding, dims), arrays
        )
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") == 3 + (spec == "wave")  # forward, queries, keys, diagonals


# Who runs what.


def test_a_refusal_says_why():
    assert not any(call.ask(fused.refusal, call.params) for call in CASES.values())
    mixed = Call("nope", 4)
    mixed.arrays = (*mixed.arrays[:2], mixed.arrays[2].astype(jnp.bfloat16))
    for call, reason in (
        (Call("transformer_xl"), "relative vectors without a horizon"),
        (Call("shaw(clip=2000)", 2500, causal=False), "relative vectors of 4001 distances"),
        (Call(T5, positions=SHUFFLED), "a table of distances at explicit positions"),
        (Call("nope", 4, width=300), "heads of width 300"),
        (mixed, "operands in bfloat16 and float32"),
        (Call("absolute", 4), "a bias of absolute positions"),
        (Call("planar", 4), "positions of 2 axes"),
    ):
        assert call.ask(fused.refusal, call.params).startswith(reason)


def test_the_stock_kernel_runs_what_has_no_term_but_the_product():
    def stock(spec, **options):
        return Call(spec, **{"dtype": "bfloat16", **options}).ask(fused.stock)

    assert stock("nope") and stock("rope", window=5) and stock("rope", causal=False)
    assert not stock("alibi") and not stock("shaw") and not stock("t5+rope")
    assert not stock("rope", window=5, causal=False) and not stock("rope", dtype="float32")
    assert not stock("rope", segments=PACKED) and not stock("rope", index=SHUFFLED)
    assert not stock("rope", width=12)

"""A bias in pieces (FIRE) in the TPU's kernels: what the dense engine gives, from lines and knots.

The kernels run interpreted, in tiles that have no knot, one, or several.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax.encodings.base import abstract_terms
from pe_jax.engines import reference
from pe_jax.engines.attention_spec import AttentionSpec
from pe_jax.engines.kernels import self_check, small_case
from pe_jax.engines.kernels.small_case import FirstHeads
from pe_jax.engines.kernels.tpu import engine, operands, piecewise, shear
from pe_jax.engines.kernels.tpu.hops import Kernels
from tests import util
from tests.engine_calls import arguments, equations
from tests.kernel_calls import LENGTH, drawn
from tests.kernel_calls import operands as operands_of_calls
from tests.test_gpu_token_terms import PACKED, assert_dense
from tests.test_tpu_kernels import HEADS, IDS, E, F, outcome, setting
from tests.util import noise

BLOCK = 8
KERNELS = Kernels(block=BLOCK, interpret=True)
FIRE = "fire(width=12,length=9.0)"
RANDOM_PARAMS = util.random_params
T5 = "t5(num_buckets=6,max_distance=9)"
CASES = {
    "alone": (FIRE, {"tokens": 61}),
    "grouped heads, window": (FIRE, {"tokens": 40, "kv_heads": 2, "window": 19}),
    "segments of contiguous positions": (FIRE, {"ids": IDS}),
    "shared by layers, one key head": ("fire(width=5,shared=True)", {"kv_heads": 1}),
    "+alibi": (f"alibi+{FIRE}", {"tokens": 40}),
    "one token": (FIRE, {"tokens": 1}),
}


def trained(encoding, dims=util.DIMS):
    """Random numbers, c and L others than at first; of most units the knot lies within (0, 1)."""

    def change(path, x):
        name = getattr(path[-1], "key", None)
        of_knots = -0.3 * noise(*x.shape, seed=7) ** 2 * np.sign(x) if name == "b1" else x
        return jnp.float32({"c": -0.7, "multiplier": 1.3}.get(name, of_knots))

    return jax.tree_util.tree_map_with_path(change, RANDOM_PARAMS(encoding, dims))


@pytest.fixture(autouse=True)
def parameters(monkeypatch):
    """Of all tests here: arrays of one shape are alike elsewhere, which puts all knots at -1."""
    monkeypatch.setattr(util, "random_params", trained)


def call(spec, options):
    (encoding,) = pe_jax.parse(spec)
    tokens, kv_heads = options.get("tokens", 21), options.get("kv_heads", HEADS)
    sizes = (HEADS, E), (kv_heads, E), (kv_heads, F)
    qkv = [noise(2, heads, tokens, width, seed=n) for n, (heads, width) in enumerate(sizes)]
    spec, places = setting(qkv[0].shape, kv_heads, options)
    return encoding, spec, places, util.random_params(encoding, spec.dims), qkv


def assert_as_dense(spec, options):
    """Results and all gradients. That of c is a difference of two larger ones."""
    given = call(spec, options)
    attend = functools.partial(engine.attend, block=BLOCK, interpret=True)
    got, want = (
        util.jit(lambda f=f: outcome(f, *given, True))() for f in (attend, reference.attend)
    )
    util.assert_close(got, want, 3e-5)


@pytest.mark.parametrize("spec, options", CASES.values(), ids=list(CASES))
def test_results_and_gradients_are_those_of_the_dense_engine(spec, options):
    assert_as_dense(spec, options)


def test_tiles_may_have_several_parts_alike_along_diagonals(monkeypatch):
    monkeypatch.setattr(shear, "PART", 4)
    assert_as_dense(FIRE, {"tokens": 40})


def test_where_tiles_are_too_many_to_be_told_apart_each_tries_all_knots(monkeypatch):
    monkeypatch.setattr(operands, "MAX_SCHEDULE", 0)
    assert_as_dense(FIRE, {"tokens": 40})


def test_without_rates_kept_as_columns_they_are_made_anew():
    """By the kernel that goes along diagonals: its programs share no block of queries."""
    assert_dense(f"{FIRE}+transformer_xl", KERNELS, tol=3e-5, length=37)


@pytest.mark.parametrize(
    "spec, options",
    [
        (FIRE, {"q_segments": PACKED}),  # whose positions restart in each document
        (f"{FIRE}+{T5}+shaw(clip=3)", {"q_segments": PACKED, "window": 20}),
        (f"fox+{FIRE}+rope", {"logit_cap": 3.0}),
    ],
)
def test_documents_caps_and_other_terms(spec, options):
    assert_dense(spec, KERNELS, tol=3e-5, **options)


def test_half_precision_differs_from_dense_as_rounding_does():
    assert_dense(FIRE, KERNELS, tol=3e-2, q_segments=PACKED, dtype="bfloat16")


def arrays_and_plan(spec, options):
    encoding, attention, tokens, params, qkv = call(spec, options)
    given = arguments(encoding, attention, params, qkv, tokens)
    plan = engine.counted(engine.make_plan(*given[:3], block=BLOCK))
    return plan, operands.make_arrays(plan, *given[1:]), given


def test_gradients_in_half_precision_are_as_exact_as_the_self_check_asks_for():
    """An output in bfloat16 would put those of the network's weights beyond that."""
    case = drawn((), "fire", qkv=operands_of_calls(dtype="bfloat16"), length=150)
    errors = self_check.differences(functools.partial(engine.attend, interpret=True), case)
    assert max(errors.values()) < self_check.bound("bfloat16")


def test_every_knot_that_some_pair_of_a_tile_passes_is_among_the_tile_s():
    """And the tests above have tiles of every sort: of none, of one, and of several."""
    plan, x, (_, (term,), q, *_) = arrays_and_plan(FIRE, {"tokens": 61})
    schedule = operands.make_schedule(plan, x, by_keys=False)
    knots, rates = np.asarray(x.pieces[0, 2, :-1]), np.asarray(x.q_rates[0, 0, 0])
    counts = []
    for i in range(8):
        for j in range(i):
            low, high = schedule.knots_of(i, j)
            rows, columns = (np.arange(n * BLOCK, (n + 1) * BLOCK) for n in (i, j))
            grown = piecewise.growth(list(x.growth[0, :, 0, 0]), rows[:, None] - columns)
            number = np.asarray(grown) * rates[rows, None]
            passed = (knots > number.min()) & (knots < number.max())
            assert set(np.flatnonzero(passed)) <= set(range(int(low), int(high)))
            assert (knots[: int(low)] < number.min()).all() and (
                knots[int(high) :] > number.max()
            ).all()
            counts.append(int(high - low))
    assert {0, 1, 2} <= set(counts) and q.x.shape[2] == 61


def test_gradients_of_constants_are_not_computed():
    *static, params, qkv = call(FIRE, {})
    attend = functools.partial(engine.attend, block=BLOCK, interpret=True)
    of_all = jax.make_jaxpr(functools.partial(outcome, attend, *static))(params, qkv)

    def frozen(qkv):
        encoding, spec, tokens = static
        return jax.vjp(lambda qkv: attend(*arguments(encoding, spec, params, qkv, tokens)), qkv)[1](
            attend(*arguments(encoding, spec, params, qkv, tokens))
        )

    counts = [
        [len(e.outvars) for e in equations(jaxpr.jaxpr, "pallas_call")]
        for jaxpr in (of_all, jax.make_jaxpr(frozen)(qkv))
    ]
    assert counts == [[2, 4, 2], [2, 2, 1, 2]]


def test_of_some_parameters_that_are_learned_the_gradient_is_the_same():
    encoding, spec, tokens, params, qkv = call(FIRE, {})

    def gradient(attend):
        def total(w2):
            own = pe_jax.Params(params.shared, params.layer | {"w2": w2})
            out, _ = attend(*arguments(encoding, spec, own, qkv, tokens))
            return (out**2).sum()

        return util.jit(jax.grad(total))(params.layer["w2"])

    attend = functools.partial(engine.attend, block=BLOCK, interpret=True)
    util.assert_close(gradient(attend), gradient(reference.attend), 1e-5)


@pytest.mark.parametrize("spec, restarts", [("fire", True), ("alibi", False), ("t5+fire", True)])
def test_positions_of_packed_documents_restart_where_they_are_read(spec, restarts):
    (encoding,) = pe_jax.parse(spec)
    given = {"encoding": encoding, "params": util.random_params(encoding)}
    x, calls = noise(2, 70, util.H, util.E), []

    def attend(spec, terms, q, k, v):
        calls.append(
            (spec.restarts, spec.contiguous, spec.in_order, int(q.tokens.positions[0, 11]))
        )
        return v, None

    for where in ({"q_segments": PACKED}, {"q_positions": 2 * np.arange(70)}):
        pe_jax.attention(x, x, x, **given, **where, implementation=attend)
    assert calls == [
        (restarts, not restarts, True, 1 if restarts else 11),
        (False, False, False, 22),
    ]


def test_a_term_of_some_heads_has_their_lines_and_a_small_case_takes_its_own():
    spec, (term,), q, k, v = arguments(*[call(FIRE, {})[n] for n in (0, 1, 3, 4, 2)])
    some = term.for_heads(FirstHeads(2))
    few, whole = (piecewise.pieces(t.fn, t.arrays, np.arange(3)) for t in (some, term))
    for name, heads in {"start": 2, "slope": 2, "bends": 2, "knots": 1, "rates": 1}.items():
        np.testing.assert_array_equal(getattr(few, name), getattr(whole, name)[:heads])
    (own,) = small_case.shrink(41, spec, (some,), q, k, v).terms
    assert own.fn.fn == term.fn


def test_positions_of_a_small_case_restart_where_those_of_the_call_do():
    tokens = drawn((), "fire", q_segments=np.zeros((2, LENGTH), np.int32)).q.tokens
    restarted = pe_jax.positions.per_segment(tokens.segments)
    np.testing.assert_array_equal(tokens.positions, restarted)
    assert tokens.positions.max() < len(tokens.index[0]) - 1


def chosen(spec="fire", **changes):
    (encoding,) = pe_jax.parse(spec)
    given = {"aligned": True, "contiguous": True} | changes
    attention = AttentionSpec(util.DIMS, given.pop("causal", True), **given)
    return engine.strategies(attention, abstract_terms(encoding, util.DIMS))


def test_other_biases_of_pairs_are_computed_in_chunks():
    assert chosen() == chosen(contiguous=False, restarts=True) == chosen("fire(width=127)") == ("",)
    assert (
        chosen(causal=False) == chosen(contiguous=False) == chosen("fire(width=128)") == ("pairs",)
    )
    assert chosen("fire+fire") == ("pairs", "pairs") and not any(chosen("fire+t5+alibi"))


class Doubled(pe_jax.encodings.fire.FIRE):
    """Another function of the same parameters."""

    def bias(self, arrays, q_pos, k_pos):
        return 2 * super().bias(arrays, q_pos, k_pos)


def test_only_the_papers_function_has_lines_and_knots():
    (term,) = abstract_terms(Doubled(), util.DIMS)
    assert piecewise.network(term.fn) is None
    (term,) = abstract_terms(pe_jax.make("fire"), util.DIMS)
    assert piecewise.network(term.fn) == pe_jax.make("fire")


def lines(encoding, arrays, q_pos):
    (term,) = encoding.terms(pe_jax.Params({}, arrays), util.DIMS)
    return piecewise.pieces(term.fn, arrays, q_pos)


@pytest.mark.parametrize("change", [{}, {"w1": 0.0}, {"b1": 0.0}, {"c": 0.0}])
def test_lines_and_knots_give_the_bias_of_earlier_keys_and_its_gradients(change):
    encoding = pe_jax.make("fire", width=50, length=30.0)
    own = trained(encoding).layer
    own |= {name: jnp.full_like(own[name], value) for name, value in change.items()}
    places = np.arange(1, 101)  # at distance 0 a unit without a bias is off, here it may be on
    past = np.tri(100, k=-1, dtype=bool)

    def by_pieces(own):
        pieces = lines(encoding, own, places)
        grown = piecewise.growth(list(pieces.numbers[0]), places[:, None] - places)
        x = grown * pieces.rates[0][:, None]
        bends = pieces.bends[..., None, None] * jax.nn.relu(x - pieces.knots[..., None, None])
        return pieces.start[:, None, None] + pieces.slope[:, None, None] * x + bends.sum(1)

    def results(bias):
        def weighed(own):
            return (jnp.where(past, bias(own), 0) * np.cos(places)).sum(), bias(own)

        return jax.jit(jax.value_and_grad(weighed, has_aux=True))(own)

    (_, got), got_gradients = results(by_pieces)
    (_, want), gradients = results(lambda own: encoding.bias(own, places, places))
    np.testing.assert_allclose(got[:, past], want[:, past], atol=2e-6)
    for name, gradient in gradients.items():
        scale = max(1, np.abs(gradient).max())
        np.testing.assert_allclose(got_gradients[name] / scale, gradient / scale, atol=3e-5)


def test_a_knot_is_where_a_unit_turns_and_a_unit_that_does_not_is_no_knot():
    encoding = pe_jax.make("fire", width=5)
    own = trained(encoding).layer
    own |= {"w1": jnp.float32([2, -2, 1, 1, -1]), "b1": jnp.float32([-1, 1, 2, -2, -1])}
    pieces = lines(encoding, own, np.arange(3))
    np.testing.assert_array_equal(pieces.knots[0, :2], 0.5)
    assert (pieces.knots[0, 2:] > 1e20).all() and not pieces.bends[:, 2:].any()
    np.testing.assert_array_equal(pieces.bends[:, :2], 2 * own["w2"][:2].T)

"""A new scheme is one file and one line: it then trains, decodes, is compared and obeys the laws.

KERPLE's power kernel (arXiv 2205.09921, table 1) plays the newcomer: b = -r₁·|d|^r₂, learned.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from experiments.programs import compare
from experiments.running.configs.compare import CompareConfig
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.terms import DistanceBias, PairBias
from pe_jax.engines.tiled import Tiled, TileSizes
from pe_jax.models.generate import generate
from pe_jax.training.config import EvalConfig, OptimizerConfig
from pe_jax.training.evaluate import Evaluator, pieces
from pe_jax.validation import is_real, require
from tests import test_training as training
from tests import test_transformer as transformer
from tests import tiny, trainers, util
from tests.contract import newcomers, test_positions, test_terms
from tests.faults.attention_calls import (
    K_,
    NO_PARAMS,
    ROPE,
    Q,
    T,
    V,
    attention,
    extend,
    refuses,
)
from tests.util import E, H, K

NAME = "newcomer"


@dataclasses.dataclass(frozen=True)
class Newcomer(Encoding):
    power: float = 0.5

    def __post_init__(self):
        require(is_real(self.power) and 0 < self.power <= 2, "power", self.power, "pass (0, 2]")

    def init_layer(self, key, dims):
        return {"slope": 0.1 * jax.random.normal(key, (dims.heads,), jnp.float32)}

    def terms(self, params, dims):
        return (DistanceBias(self.bias, params.layer["slope"]),)

    def bias(self, slope, distance):
        slope = jax.nn.softplus(slope)
        far = jnp.abs(distance).astype(jnp.float32)
        grown = jnp.where(far > 0, jnp.maximum(far, 1) ** self.power, 0)
        return -slope.reshape(-1, *[1] * far.ndim) * grown


@pytest.fixture(autouse=True, scope="module")
def registered():
    """The one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(pe_jax.ENCODINGS, NAME, Newcomer)
        yield


CASE = util.Case(NAME, Newcomer())


@pytest.mark.parametrize(
    "law",
    [
        *newcomers.LAWS,
        test_terms.test_biases_are_float32_and_tokens_keep_their_type,
        test_positions.test_the_limit_is_where_positions_end,
    ],
    ids=lambda law: law.__name__.removeprefix("test_"),
)
def test_it_obeys_the_laws(law):
    law(case=CASE)


def test_a_scheme_that_breaks_a_law_is_caught():
    class Peeks(Newcomer):
        def bias(self, slope, distance):
            return super().bias(slope, distance + distance.shape[-1])

    with pytest.raises(AssertionError):
        test_terms.test_a_tile_of_a_term_is_the_term_of_the_tile(case=util.Case("peeks", Peeks()))


@pytest.mark.parametrize("spec", [f"{NAME}(power=0.7)", f"{NAME}+rope,nope"])
def test_it_decodes_as_it_trains(spec, monkeypatch):
    transformer.test_generating_with_a_cache_equals_recomputing(tiny.config(spec), monkeypatch)


def test_it_trains_on_any_mesh_and_is_evaluated_beyond_its_training_length():
    training.test_eight_devices_train_as_one_does(NAME)
    state, losses = trainers.steps(trainers.trainer(NAME), 3)
    assert np.isfinite(losses).all()
    before = trainers.start(trainers.trainer(NAME)).params
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.params, before)
    assert moved["blocks"][0]["attention"]["params"]["slope"] > 1e-4
    text = tiny.tokens(2, 4 * tiny.L + 1)
    config = EvalConfig(lengths=(tiny.L, 2 * tiny.L), stride=tiny.L, batch_tokens=4 * tiny.L)
    found = Evaluator(trainers.trainer(NAME), config).by_length(state.params, text)
    assert np.isfinite(found["losses"]["sliding"][str(2 * tiny.L)]).all()
    assert len(pieces(text, tiny.L, "sliding", tiny.L)) == 4


def test_it_is_named_checked_and_compared():
    assert pe_jax.make(NAME, power=1) == Newcomer(1)
    with pytest.raises(ValueError, match=f"did you mean '{NAME}'"):
        pe_jax.make("newcomr")
    with pytest.raises(ValueError, match="power=9: pass"):
        pe_jax.make(NAME, power=9)
    config = CompareConfig(
        encodings=(NAME, f"{NAME}+rope", "rope"), baseline=NAME, optimizer=OptimizerConfig()
    )
    config.check()
    assert list(compare.names(config)) == [NAME, f"{NAME}+rope", "rope"]


def test_it_generates():
    built, _ = tiny.build(tiny.config(NAME))
    found = generate(built, [[1, 2]], 3, key=jax.random.key(0))
    assert found.shape == (1, 5)


@pytest.mark.parametrize("engine", ("dense", Tiled(TileSizes(2, 3))), ids=("dense", "tiled"))
def test_an_encoding_from_outside_works_everywhere(monkeypatch, engine):
    """One class, one line in ENCODINGS: a bias of absolute positions and one of distances."""

    @dataclasses.dataclass(frozen=True)
    class Mine(pe_jax.Encoding):
        rate: float = 0.1

        def init_layer(self, key, dims):
            return {"gain": jnp.ones(dims.heads)}

        def terms(self, params, dims):
            gain = params.layer["gain"]
            return DistanceBias(self.wave, gain), PairBias(self.pairs, gain)

        def wave(self, gain, distance):
            return gain.reshape(-1, *(1,) * distance.ndim) * jnp.sin(distance)

        def pairs(self, gain, q_pos, k_pos):
            far = jnp.cos(self.rate * (q_pos[..., :, None] + 2 * k_pos[..., None, :]))
            return gain[:, None, None] * far[..., None, :, :]

    monkeypatch.setitem(pe_jax.ENCODINGS, "mine", Mine)
    assert pe_jax.make("mine", rate=0.2) == Mine(0.2)
    refuses(ValueError, "'rat' … 'rate'", pe_jax.make, "mine", rat=1)
    for spec in ("mine(rate=0.2)", "mine+rope"):
        (encoding,) = pe_jax.parse(spec)
        out, last = util.jit(
            lambda own=encoding: (
                attention(encoding=own, implementation=engine),
                extend(encoding=own),
            )
        )()
        q, k = (np.repeat(x, n, axis=2) for x, n in ((Q, 1), (K_, H // K)))
        if spec == "mine+rope":
            q, k = (util.rotate(ROPE, "q", NO_PARAMS, x, np.arange(T)) for x in (q, k))
        gain = util.random_params(encoding).layer
        gain = (gain[0] if spec == "mine+rope" else gain)["gain"]
        i, j = np.arange(T)[:, None], np.arange(T)[None]
        rate = 0.2 if spec != "mine+rope" else 0.1
        s = np.einsum("bthe,bshe->bhts", q, k) * E**-0.5
        s = s + np.asarray(gain)[:, None, None] * (np.sin(i - j) + np.cos(rate * (i + 2 * j)))
        p = np.exp(s) * (i >= j)
        want = np.einsum("bhts,bshe->bthe", p / p.sum(-1, keepdims=True), np.repeat(V, H // K, 2))
        util.assert_close(out, want)
        util.assert_close(last, want)

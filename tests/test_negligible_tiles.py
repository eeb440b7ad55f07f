"""Tiles that decaying biases make negligible are left out, and nothing changes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pe_jax
from pe_jax.engines.tiled import Tiled, TileSizes, skipping
from pe_jax.models.config import ModelConfig
from pe_jax.models.transformer import Transformer
from tests import util
from tests.test_tiled import HEADS, LENGTH, WIDTH, outcome
from tests.util import assert_close, noise
from tools import skipped_tiles

ONE_HEAD = Tiled(TileSizes(16, 16, group=(1, 1)))


def test_negligible_tiles_are_left_out_and_nothing_changes(monkeypatch):
    skipped = count_skipped(monkeypatch)
    for causal in (True, False):
        skipped.clear()
        got = outcome("alibi", ONE_HEAD, causal=causal, size=0.5)
        jax.effects_barrier()
        assert max(skipped) > 10  # of 19 × 19 tiles, for the steepest head
        assert_close(got, outcome("alibi", "dense", causal=causal, size=0.5))


@pytest.mark.parametrize(
    "spec, causal, sizes",
    [
        ("fox", True, TileSizes(24, 8, group=(1, 1))),
        ("cable", True, ONE_HEAD.sizes),
        ("fox+alibi", False, TileSizes(24, 8, group=(1, 1))),
    ],
)
def test_what_running_sums_make_negligible_is_left_out_too(monkeypatch, spec, causal, sizes):
    """Of any length, whole tiles or not; documents and padding that the sums run through."""
    skipped = count_skipped(monkeypatch)
    ids = np.repeat([0, 1, -1], [130, 140, 30])[None].repeat(2, 0)
    options = {"causal": causal, "x": noise(2, LENGTH, HEADS * WIDTH, seed=7), "q_segments": ids}
    got = outcome(spec, Tiled(sizes), size=0.5, **options)
    jax.effects_barrier()
    assert max(skipped) > 10
    want = outcome(spec, "dense", size=0.5, **options)
    assert_close(got[0], want[0])
    assert_close(got[1], want[1], 1e-4)  # those of gates are sums of many that cancel


def count_skipped(monkeypatch) -> list[int]:
    """How many tiles of each pass and group are left out, from here on."""
    skipped = []
    negligible_tiles = skipping.negligible_tiles

    def spy(*args):
        skip = negligible_tiles(*args)
        jax.debug.callback(lambda x: skipped.append(int(x.sum())), skip)
        return skip

    jax.clear_caches()  # of calls of the same shapes
    monkeypatch.setattr(skipping, "negligible_tiles", spy)
    return skipped


def test_trained_forget_gates_leave_out_tiles(monkeypatch):
    """A head learns to find the last token of a kind: its gates shut on what it can forget."""
    tokens = jax.random.randint(jax.random.key(0), (8, 128), 0, 8)
    # the answer is the last token below 4, up to and with the token itself
    last = jax.lax.cummax(jnp.where(tokens < 4, jnp.arange(128), 0), axis=1)
    answers = jnp.take_along_axis(tokens, last, axis=1)
    fox, dims = pe_jax.make("fox"), pe_jax.Dims(16, 1, 1, 16)
    keys = jax.random.split(jax.random.key(1), 6)
    names = ("embed", "q", "k", "v", "out")
    shapes = ((8, 16), *((16, 16),) * 3, (16, 8))
    params = {n: jax.random.normal(k, s) / 4 for n, k, s in zip(names, keys, shapes, strict=False)}
    params["fox"] = fox.init_layer(keys[-1], dims)

    def attend(params, tokens, implementation):
        x = params["embed"][tokens]
        qkv = ((x @ params[n])[:, :, None] for n in ("q", "k", "v"))
        how = {"encoding": fox, "params": pe_jax.Params({}, params["fox"]), "dims": dims, "x": x}
        return pe_jax.attention(*qkv, **how, implementation=implementation)[:, :, 0]

    def loss(params):
        logits = attend(params, tokens, "dense") @ params["out"]
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), answers[..., None], axis=-1)
        return -picked.mean()

    @jax.jit
    def step(params, velocity):
        value, grads = jax.value_and_grad(loss)(params)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.3 * g, velocity, grads)
        return jax.tree.map(jnp.add, params, velocity), velocity, value

    velocity, losses = jax.tree.map(jnp.zeros_like, params), []
    for _ in range(200):
        params, velocity, value = step(params, velocity)
        losses.append(float(value))
    assert losses[-1] < 0.5 * losses[0]

    skipped = count_skipped(monkeypatch)
    longer = jax.random.randint(jax.random.key(2), (2, 512), 0, 8)
    got, want = (
        util.jit(functools.partial(attend, implementation=engine))(params, longer)
        for engine in (ONE_HEAD, "dense")
    )
    jax.effects_barrier()
    shown = 32 * 33 // 2  # tiles of the causal mask
    above = 32 * 32 - shown  # hidden anyway, and counted where they are out of reach
    assert min(skipped) - above > shown // 2
    assert_close(got, want, 1e-5)


def test_a_key_that_could_matter_is_never_negligible():
    """One huge key far back, under a slope that would hide any other: the bound must see it."""
    q, k, v = (np.ones((1, 128, 8, WIDTH), np.float32) for _ in range(3))
    k[:, 3] *= 40
    v[:, 3] *= 7
    (encoding,) = pe_jax.parse("alibi")
    run = functools.partial(pe_jax.attention, q, k, v, encoding=encoding)
    assert_close(run(implementation=ONE_HEAD), run(implementation="dense"))
    assert run(implementation="dense")[0, -1, 0, 0] > 6


def test_the_measurement_of_skipped_tiles_counts_what_is_seen():
    """Sharp gates leave out all but the diagonal and its neighbours; open ones nothing."""
    config = ModelConfig(encoding="fox", vocab=5, width=16, heads=2, layers=1, attention="tiled")
    model = Transformer(config, rngs=nnx.Rngs(0))
    tokens, gates = jnp.zeros((1, 1100), jnp.int32), model.blocks[0].attention.params
    for bias, most in ((-9.0, 1.0), (30.0, 0.0)):
        gates["bias"][...] = jnp.full_like(gates["bias"][...], bias)
        shares = []
        found = skipped_tiles.logits_of(model, 1100, True, lambda x, s=shares: s.append(float(x)))
        out = found(tokens)
        jax.effects_barrier()
        assert shares and (0.1 < max(shares) < most or max(shares) == most == 0)
        assert_close(out, skipped_tiles.logits_of(model, 1100, False)(tokens))

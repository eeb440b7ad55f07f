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
from tests.calls import assert_dense
from tests.util import E, assert_close
from tools import skipped_tiles

SMALL = {"length": 300, "sharp": 0.25}
ONE_HEAD = Tiled(TileSizes(16, 16, group=(1, 1)))


def test_negligible_tiles_are_left_out_and_nothing_changes(monkeypatch):
    skipped = count_skipped(monkeypatch)
    for causal in (True, False):
        skipped.clear()
        assert_dense([ONE_HEAD], "alibi", causal=causal, **SMALL)
        jax.effects_barrier()
        assert max(skipped) > 10  # of 19 × 19 tiles, for the steepest head


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
    # gradients of gates are sums of many that cancel
    assert_dense([Tiled(sizes)], spec, 1e-4, causal=causal, q_segments=ids, **SMALL)
    jax.effects_barrier()
    assert max(skipped) > 10


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


def test_a_key_that_could_matter_is_never_negligible():
    """One huge key far back, under a slope that would hide any other: the bound must see it."""
    q, k, v = (np.ones((1, 128, 8, E), np.float32) for _ in range(3))
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

"""What the heads of a model do with positions, against direct computations in NumPy."""

import jax
import numpy as np
import pytest
from flax import nnx

from experiments.measuring import heads
from experiments.reporting import heads_figure, plotting
from experiments.running.files.table import read_csv
from pe_jax.models.config import ModelConfig
from pe_jax.models.surgery import with_encoding
from pe_jax.models.transformer import Transformer
from pe_jax.training.step import token_losses

T = 21
ROPE, HALF = "rope(base=50.0,layout='interleaved')@window=9", "rope(fraction=0.5)"
PATTERN = f"{ROPE},nope,{HALF}"


@pytest.fixture(scope="module")
def model():
    config = ModelConfig(vocab=31, width=16, layers=6, heads=4, kv_heads=2, encoding=PATTERN)
    return Transformer(config, rngs=nnx.Rngs(3))


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, 31, T + 1)


@pytest.fixture(scope="module")
def found(model, tokens):
    return heads.findings(model, tokens)


def test_the_loss_is_the_models(model, tokens, found):
    want = token_losses(model(tokens[None, :-1]), tokens[None, 1:]).mean()
    np.testing.assert_allclose(found.loss, want, rtol=1e-5)


def test_a_layer_without_positions_is_one_with_nope_in_its_place(model, tokens, found):
    assert np.isnan(found.without[1]) and np.isnan(found.without[4])
    layers = [ROPE, "nope", HALF] * 2
    for layer, bare in ((3, "nope@window=9"), (5, "nope")):
        other = with_encoding(model, ",".join([*layers[:layer], bare, *layers[layer + 1 :]]))
        want = token_losses(other(tokens[None, :-1]), tokens[None, 1:]).mean()
        np.testing.assert_allclose(found.without[layer], want, rtol=1e-5)
        assert abs(want - found.loss) > 1e-6


def test_weights_by_distance_and_of_the_first_token_are_those_of_the_softmax(model, tokens, found):
    assert heads.bands(T) == ["0", "1", "2–3", "4–7", "8–15", "16–20"]
    for layer in found.layers:
        np.testing.assert_allclose(layer.by_distance.sum(1) + layer.first, 1, rtol=1e-5)
    x = heads.Walk(model).embed(tokens[:-1])
    x = heads.Walk(model).step(0, x)
    block = model.blocks[1]  # NoPE: no rotation to repeat here
    state = jax.tree.map(lambda a: a[0], nnx.state(block))
    block = nnx.merge(nnx.graphdef(block), state)
    q, k, _ = (
        np.asarray(y[0], np.float64) for y in block.attention.vectors(block.attention_norm(x))
    )
    scores = np.einsum("the,she->hts", q, np.repeat(k, 2, 1)) / 2
    weights = np.exp(np.where(np.tri(T), scores, -np.inf))
    weights = (weights / weights.sum(-1, keepdims=True))[:, T // 2 :]
    np.testing.assert_allclose(found.layers[1].first, weights[..., 0].mean(1), rtol=1e-4)
    near = [[w[i, T // 2 + i] for i in range(T - T // 2)] for w in weights]
    np.testing.assert_allclose(found.layers[1].by_distance[:, 0], np.mean(near, 1), rtol=1e-4)
    far = [sum(w[i, 1 : max(T // 2 + i - 15, 1)].sum() for i in range(T - T // 2)) for w in weights]
    want = np.divide(far, T - T // 2)
    np.testing.assert_allclose(found.layers[1].by_distance[:, -1], want, rtol=1e-4)


def test_norms_of_pairs_are_of_the_channels_that_turn_together(model, tokens, found):
    x = heads.Walk(model).embed(tokens[:-1])
    block = nnx.merge(
        nnx.graphdef(model.blocks[0]), jax.tree.map(lambda a: a[0], nnx.state(model.blocks[0]))
    )
    q, k, _ = (np.asarray(y[0]) for y in block.attention.vectors(block.attention_norm(x)))
    for head in range(4):
        for pair in range(2):
            channels = [2 * pair, 2 * pair + 1]  # interleaved
            sizes = [np.sqrt((y[..., channels] ** 2).sum(-1).mean(0)) for y in (q, k)]
            want = sizes[0][head] * sizes[1][head // 2] / 2
            np.testing.assert_allclose(found.layers[0].pair_norms[head, pair], want, rtol=1e-4)
    np.testing.assert_allclose(found.layers[0].frequencies, [1, 50**-0.5], rtol=1e-6)
    assert found.layers[1].pair_norms.shape == (4, 0)
    assert found.layers[2].pair_norms.shape == (4, 1)  # half of four channels


def test_the_figure_and_its_table_have_every_number(model, found, tmp_path):
    drawing = heads_figure.draw(found, "tiny", T, 64)
    assert "tiny, 21 tokens" in drawing.alt and "nats in layer" in drawing.alt
    plotting.write(drawing, tmp_path)
    rows = read_csv(tmp_path / "heads.csv")
    assert len(rows) == 6 * 4 * (len(heads.bands(T)) + 1) + 2 * 4 * 2 + 2 * 4 + 4 + 4
    (lost,) = (x for x in rows if x["measure"].startswith("loss") and x["layer"] == "5")
    assert float(lost["value"]) == pytest.approx(found.without[5], abs=1e-5)
    (turned,) = (x for x in rows if x["measure"].startswith("turns") and x["layer"] == "2")
    assert float(turned["value"]) == pytest.approx(64 / (2 * np.pi), abs=1e-3)  # one pair, θ = 1
    seen = heads_figure.turns(found, 64)
    fast = found.layers[0].pair_norms.mean(0).argmax() == 0
    assert seen[0] == pytest.approx(9 * (1 if fast else 50**-0.5) / (2 * np.pi), rel=1e-5)
    assert np.isnan(seen[1])
    bare = found._replace(without=np.full(6, np.nan))
    assert "nats in layer" not in heads_figure.draw(bare, "tiny", T, 64).alt

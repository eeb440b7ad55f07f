"""A scaling that depends on the length has that of each document, however rows are filled.

Transformers decides by the greatest position + 1; a row of several documents has one for each.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import pe_jax
from pe_jax import positions as pos
from pe_jax.engines.sharded.layout import BlockPermuted
from pe_jax.models.generate import generate
from pe_jax.numerics import angles
from pe_jax.training.step import mean_loss
from tests import tiny, trainers, util
from tests.util import B, E, H, assert_close, noise

NAMES = ("dynamic_ntk", "longrope", "mscales")
SCHEMES = {
    "rope": "rope({})",
    "lerope": "lerope({})",
    "rerope": "rerope(window=3,{})",
    "self_extend": "self_extend(window=4,group=2,{})",
    "dual_chunk": "dual_chunk(chunk_size=4,local_size=1,{})",
    "rotated_values": "rope({0})+rotated_values({0})",
    "sum": "rope({})+alibi",
}
T = 16
IDS = np.repeat(np.int32([[0, 1, -1], [-1, 5, 2]]), [6, 8, 2], axis=1)  # 6, 8, padding; 8, 2
Q, K_, V = (jnp.asarray(noise(B, T, H, E, seed=s)) for s in range(3))


def scaling(name: str) -> str:
    """The spec of one."""
    if name == "dynamic_ntk":
        return "scaling=dynamic_ntk(factor=4,original_length=4)"
    short, long = (1.0, 1.5, 1.5, 2.0), (2.0, 7.0, 9.0, 9.0)
    fields = f"short_factor={short},long_factor={long},original_length=7,"
    fields += "attention_factors=(1.1,1.7)" if name == "mscales" else "factor=4.0"
    return f"scaling=longrope({fields})"


def scheme(spec: str, name: str) -> pe_jax.Encoding:
    (encoding,) = pe_jax.parse(spec.format(scaling(name)))
    return encoding


def alone(call, *arrays):
    """`call` of each document alone, in its place; zeros for padding."""
    each = [(row, ids == n) for row, ids in enumerate(IDS) for n in set(ids) - {-1}]
    outputs = util.jit(lambda: [call(*(x[row, at][None] for x in arrays)) for row, at in each])()
    whole = jax.tree.map(lambda _: np.zeros((B, T, H, E), np.float32), outputs[0])
    for (row, at), output in zip(each, outputs, strict=True):
        for x, part in zip(jax.tree.leaves(whole), jax.tree.leaves(output), strict=True):
            x[row, at] = part[0]
    return whole


# All scalings for RoPE, one for the others.
OTHERS = ((spec, NAMES[n % 3]) for n, spec in enumerate(SCHEMES))
SCALED = [("rope", NAMES[1]), ("rope", NAMES[2]), *OTHERS]


@pytest.mark.parametrize("spec, name", SCALED)
def test_each_document_is_as_alone(spec, name):
    encoding = scheme(SCHEMES[spec], name)
    given = {"encoding": encoding, "params": util.random_params(encoding), "dims": util.DIMS}
    given["implementation"] = "tiled" if spec == "rerope" else "dense"
    short = given | {"encoding": encoding.at_length(T)}
    packed, row = util.jit(
        lambda ids: [pe_jax.attention(Q, K_, V, q_segments=ids, **x) for x in (given, short)]
    )(IDS)
    want = alone(functools.partial(pe_jax.attention, **given), Q, K_, V)
    real = (IDS >= 0)[..., None, None]
    assert_close(np.where(real, packed, 0), want)
    assert np.abs(np.where(real, packed - row, 0)).max() > 1e-3  # the length matters


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_each_document(name):
    encoding, cotangent = scheme("rope({})", name), noise(B, T, H, E, seed=9)

    def gradient(q, k, v, out, **options):
        def loss(*qkv):
            return (pe_jax.attention(*qkv, encoding=encoding, **options) * out).sum()

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    real = np.where((IDS >= 0)[..., None, None], cotangent, 0)
    got = util.jit(lambda ids: gradient(Q, K_, V, real, q_segments=ids))(IDS)
    assert_close(got, alone(gradient, Q, K_, V, cotangent))


@pytest.mark.parametrize("name", NAMES)
def test_padding_told_by_lengths_or_of_more_keys_than_queries(name):
    """Of fewer queries than keys the document is as long as the keys are."""
    encoding, lengths = scheme("rope({})", name), np.int32([6, 9])
    given = {"encoding": encoding, "causal": False}
    keys = np.where(np.arange(T) < lengths[:, None], 0, -1)
    fewer = np.where(np.arange(T) < 4, keys, -1)
    real = (keys >= 0)[..., None, None]

    @util.jit
    def outputs():
        rows = [[x[row : row + 1, :n] for x in (Q, K_, V)] for row, n in enumerate(lengths)]
        by_lengths = pe_jax.attention(Q, K_, V, q_lengths=lengths, k_lengths=lengths, **given)
        by_ids = pe_jax.attention(Q, K_, V, q_segments=fewer, k_segments=keys, **given)
        return [pe_jax.attention(*row, **given)[0] for row in rows], by_lengths, by_ids

    documents, by_lengths, by_ids = outputs()
    for document, x, y, row in zip(documents, by_lengths * real, by_ids, range(B), strict=True):
        n = lengths[row]
        assert_close(x, np.pad(document, ((0, T - n), (0, 0), (0, 0))))
        assert_close(y[:4], document[:4])


def test_frequencies_by_length_are_those_of_the_length_alone():
    theta, lengths = angles.geometric(E), np.int32([[1, 4, 5], [7, 8, 900]])
    for name in NAMES:
        found = scheme("rope({})", name).scaling
        got = found.of_lengths(theta, jnp.asarray(lengths))
        factors = np.broadcast_to(found.factors(jnp.asarray(lengths)), lengths.shape)
        for at, length in np.ndenumerate(lengths):
            there = found.at_length(int(length))
            np.testing.assert_allclose(got[at], there(theta), 3e-7)
            np.testing.assert_allclose(factors[at], there.attention_factor, 1e-7)


def test_lengths_of_documents_on_both_sides():
    other = np.repeat(np.int32([[1, 0], [5, 5]]), [9, 3], axis=1)
    got = np.asarray(pos.document_lengths(IDS, other))
    np.testing.assert_array_equal(got[0], np.repeat([6, 9, 2], [6, 8, 2]))  # padding: any
    np.testing.assert_array_equal(got[1, 6:], np.repeat([12, 2], [8, 2]))


def test_devices_that_share_a_row_agree():
    mesh = jax.make_mesh((4,), ("seq",), (AxisType.Auto,), devices=jax.devices()[:4])
    layout, encoding = BlockPermuted(mesh), scheme("rope({})", "longrope")
    want = pe_jax.attention(Q, K_, V, encoding=encoding, q_segments=IDS)

    @jax.jit
    def run(*arrays):
        *qkv, ids = (layout.spread(x) for x in arrays)
        out = pe_jax.attention(*qkv, encoding=encoding, q_segments=ids, layout=layout)
        return layout.restore(out)

    real = (IDS >= 0)[..., None, None]
    assert_close(np.where(real, run(Q, K_, V, jnp.asarray(IDS)), 0), np.where(real, want, 0))


def test_a_model_trains_on_documents_and_not_on_rows():
    """The loss of packed rows is the mean of the losses of their documents."""
    model = tiny.config(f"rope({scaling('dynamic_ntk')})")
    built, params = tiny.build(model)
    tokens = tiny.tokens(2, tiny.L + 1)
    cuts = [(0, 8, 13), (0, 5, 13)]
    ids = np.stack([np.repeat([0, 1], np.diff(cut)) for cut in cuts]).astype(np.int32)
    weights = np.ones_like(tokens, np.float32)
    weights[0, 8] = weights[1, 5] = 0  # the first token of a document is no target
    batch = {"tokens": tokens, "segments": ids, "weights": weights}

    losses = []
    for row, cut in enumerate(cuts):
        for first, end in zip(cut[:-1], cut[1:], strict=True):
            text = tokens[row : row + 1, first:end]
            logits = tiny.forward(model)(params, text[:, : tiny.L - first], None)
            logits = logits[:, : text.shape[1] - 1]  # a row's last: a target
            losses.append(-np.take_along_axis(jax.nn.log_softmax(logits), text[:, 1:, None], -1))
    want = np.concatenate([np.ravel(x) for x in losses]).mean()
    assert_close(mean_loss(built, batch, None), want)


def test_positions_of_a_scheme_have_the_length_that_they_may_reach():
    """Rows that went beyond a length would be NaN."""
    trainer = trainers.trainer(f"rope({scaling('dynamic_ntk')})", positions="cape")
    _, found = trainers.steps(trainer, 2)
    assert np.isfinite(found).all()
    scheme, rows = trainer.position_scheme, np.zeros((64, tiny.L), np.int32)
    drawn = scheme.training_positions(jax.random.key(1), rows, rows)
    assert drawn.max() < scheme.bound(tiny.L)
    trainer.at_positions(trainer.model(trainers.start(trainer).params), drawn, tiny.L)


def test_generation_is_at_its_own_length():
    built, _ = tiny.build(tiny.config(f"rope({scaling('dynamic_ntk')})"))
    found = np.asarray(generate(built, tiny.tokens(2, 3), tiny.L - 3, temperature=0))
    np.testing.assert_array_equal(built(found).argmax(-1)[:, 2:-1], found[:, 3:])

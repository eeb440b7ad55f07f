"""The gated delta rule against arXiv 2412.06464, and a model with layers of it."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import pe_jax
from experiments.running.extension import methods
from pe_jax import naive
from pe_jax.conformance import claims
from pe_jax.encodings import gated_delta
from pe_jax.engines.sharded.layout import BlockPermuted
from pe_jax.models import surgery
from pe_jax.models.layers import Recurrence
from pe_jax.models.transformer import Transformer
from pe_jax.training import sharding, utilization
from pe_jax.training.config import MeshConfig
from tests import tiny
from tests.util import assert_close

B, H, E, F = 2, 3, 6, 4


def inputs(length: int, channels: tuple = ()) -> list[np.ndarray]:
    """q, k, v, ln α (by channel: `channels` is (E,)) and β of random tokens, keys of length 1."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((B, length, H, n), np.float32) for n in (E, E, F))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    return [q, k, v, -np.exp(rng.normal(-2, 2, (B, length, H, *channels))).astype(np.float32)] + [
        rng.uniform(0, 1, (B, length, H)).astype(np.float32)
    ]


def want(arrays, cuts, state):
    """Each row's documents one after the other, by the naive form; the state is of the first."""
    outs, states = [], []
    for b, ends in enumerate(cuts):
        row, out = [x[b] for x in arrays], []
        for n, part in enumerate(zip(*(np.split(x, ends) for x in row), strict=True)):
            o, last = naive.recurrent.gated_delta(*part, state[b] if n == 0 else None)
            out.append(o)
        outs.append(np.concatenate(out))
        states.append(last)
    return np.stack(outs), np.stack(states)


BOTH = pytest.mark.parametrize("channels", [(), (E,)])


@BOTH
@pytest.mark.parametrize("length", [1, 2, 7, 23])
def test_chunks_equal_the_recurrence_of_each_document(length, channels, monkeypatch):
    monkeypatch.setattr(gated_delta, "CHUNK", 8)
    arrays, state = inputs(length, channels), np.random.default_rng(1).normal(size=(B, H, E, F))
    cuts = [[], [n for n in (1, 3, 9, 16) if n < length]]
    documents = np.stack([np.isin(np.arange(length), ends).cumsum() for ends in cuts])
    got = jax.jit(gated_delta.delta_rule)(*arrays, documents, state.astype(np.float32))
    assert_close(got, want(arrays, cuts, state), 1e-5)
    alone = gated_delta.delta_rule(*arrays)
    assert_close(alone, want(arrays, [[], []], 0 * state), 1e-5)


@BOTH
def test_gradients_are_those_of_the_recurrence(channels, monkeypatch):
    """Of flash-linear-attention's naive forms, written anew."""
    monkeypatch.setattr(gated_delta, "CHUNK", 4)
    arrays = inputs(11, channels)

    def step(state, token):
        q, k, v, log_decay, beta = token
        state = jnp.exp(log_decay).reshape(B, H, -1, 1) * state
        new = beta[..., None] * (v - jnp.einsum("bhef,bhe->bhf", state, k))
        state = state + k[..., None] * new[..., None, :]
        return state, E**-0.5 * jnp.einsum("bhef,bhe->bhf", state, q)

    def recurrence(*arrays):
        tokens = [jnp.moveaxis(jnp.asarray(x), 1, 0) for x in arrays]
        state, out = jax.lax.scan(step, jnp.zeros((B, H, E, F)), tokens)
        return jnp.moveaxis(out, 0, 1), state

    def gradients(f):
        loss = lambda *x: sum(jnp.sin(3 * y).sum() for y in f(*x))  # noqa: E731
        return jax.jit(jax.grad(loss, argnums=range(5)))(*arrays)

    assert_close(gradients(gated_delta.delta_rule), gradients(recurrence), 1e-5)


@BOTH
def test_it_is_exported_for_any_batch_and_length(channels):
    arrays, sizes = inputs(70, channels), jax.export.symbolic_shape("b, t")
    shapes = [jax.ShapeDtypeStruct((*sizes, *x.shape[2:]), x.dtype) for x in arrays]
    exported = jax.export.export(jax.jit(gated_delta.delta_rule))(*shapes)
    assert_close(exported.call(*arrays), gated_delta.delta_rule(*arrays))


def test_a_model_is_exported_for_any_batch_and_length():
    built, _ = tiny.build(MODEL)
    shape = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, t"), np.int32)
    exported, rows = jax.export.export(jax.jit(lambda x: built(x)))(shape), tiny.tokens(2, 9)
    assert_close(exported.call(rows), built(rows))


def test_keys_that_are_all_alike_lose_no_precision():
    """The powers of that triangle have binomial coefficients, of 4e17 for 64 tokens."""
    q, k, v, log_decay, beta = inputs(128)
    arrays = [q, 0 * k + E**-0.5, v, 0 * log_decay, 0 * beta + 1]
    assert_close(gated_delta.delta_rule(*arrays), want(arrays, [[], []], np.zeros((B, H, E, F))))


@BOTH
def test_a_token_that_drops_all_before_it_leaves_later_ones_exact(channels):
    """A sum of logarithms over a chunk would hold 1e-3 of such a one, and -inf none."""
    arrays = inputs(64, channels)
    arrays[3][:, ::7], arrays[3][:, 3] = -5e3, -np.inf
    assert_close(
        gated_delta.delta_rule(*arrays), want(arrays, [[], []], np.zeros((B, H, E, F))), 1e-4
    )
    half = [jnp.asarray(x, jnp.bfloat16) for x in arrays]  # which would hold 3e-1 of a sum
    exact = [np.asarray(x, np.float32) for x in half]
    assert_close(gated_delta.delta_rule(*half), gated_delta.delta_rule(*exact))
    loss = lambda *x: (gated_delta.delta_rule(*x)[0] ** 2).sum()  # noqa: E731
    assert all(np.isfinite(x).all() for x in jax.jit(jax.grad(loss, range(5)))(*arrays))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_devices_share_rows_and_heads(kind):
    """Inside shard_map, and on a mesh of Explicit axes."""
    mesh = jax.make_mesh((2, 3), ("rows", "heads"), (kind,) * 2, devices=jax.devices()[:6])
    arrays, spec = inputs(9), PartitionSpec("rows", None, "heads")
    rule = lambda *x: gated_delta.delta_rule(*x)[0]  # noqa: E731
    with jax.set_mesh(mesh):
        given = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
        divided = jax.shard_map(rule, in_specs=(spec,) * 5, out_specs=spec)
        found = jax.jit(rule if kind == AxisType.Explicit else divided)(*given)
    assert_close(found, rule(*arrays))


def test_memory_and_time_grow_with_the_length_alone():
    def cost(length):
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(length)]
        program = jax.jit(gated_delta.delta_rule).lower(*shapes).compile()
        return np.asarray([program.memory_analysis().temp_size_in_bytes])

    assert (cost(4096) < 2.5 * cost(2048)).all()


def test_the_gradient_of_a_decay_by_channel_takes_little_more_memory():
    def memory(channels):
        loss = lambda *x: gated_delta.delta_rule(*x)[0].sum()  # noqa: E731
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(4096, channels)]
        program = jax.jit(jax.grad(loss, range(5))).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert memory((E,)) < 1.3 * memory(())


MODEL = tiny.config("gated_delta,rope", layers=2)


@pytest.mark.parametrize("rule", ["gated_delta", "gated_delta(decay=channel)"])
def test_a_cache_decodes_in_any_parts_with_padding_anywhere(rule):
    """Rows with padding before, between and after their tokens, and a document begins later.

    What follows without an id belongs to the last token's document, whatever the ids are.
    """
    built, _ = tiny.build(tiny.config(f"{rule},nope"))
    run = jax.jit(built)
    ids = np.asarray([[-1, 8, 8, -1, 8, 5, 5, -1], [0, 0, 0, 0, 0, 0, 0, 0]], np.int32)
    rows = tiny.tokens(2, 8)
    whole = np.asarray(run(rows, segments=ids))
    assert_close(whole[0, [1, 2, 4]], run(rows[:1, [1, 2, 4]])[0])
    assert_close(whole[0, 5:7], run(rows[:1, 5:7])[0])
    for parts in ((8,), (3, 5), (1,) * 8, (2, 3, 3))[:: 1 if rule == "gated_delta" else 3]:
        cache, out, at = built.init_cache(2, 9, padded=True), [], 0
        for count in parts:
            some = slice(at, at := at + count)
            logits, cache = run(rows[:, some], segments=ids[:, some], cache=cache)
            out.append(logits)
        out = np.concatenate(out, 1)
        assert_close(out[ids >= 0], whole[ids >= 0])
    assert cache[0].segment.tolist() == [5, 0]
    beams = [pe_jax.cache.take(layer, np.asarray([1, 1, 0])) for layer in cache]
    again = [jax.tree.map(lambda x: x[jnp.asarray([1, 1, 0])], layer) for layer in cache]
    following = [run(tiny.tokens(3, 1), cache=each)[0] for each in (beams, again)]
    told = run(tiny.tokens(3, 1), segments=np.asarray([[0], [0], [5]]), cache=beams)[0]
    assert_close(following, [told, told])


def test_stacked_caches_decode_alike():
    built, _ = tiny.build(tiny.config("gated_delta,rope", layers=4))
    run, rows = jax.jit(built), tiny.tokens(2, 6)
    for stacked in (False, True):
        cache = built.init_cache(2, 6, stacked=stacked)
        first, cache = run(rows[:, :4], cache=cache)
        last, _ = run(rows[:, 4:], cache=cache)
        assert_close(np.concatenate([first, last], 1), run(rows))


def test_padding_reaches_nothing_even_if_it_is_not_a_number():
    layer = Recurrence(MODEL, MODEL.windows[0], nnx.Rngs(0, encoding=1))
    x = np.random.default_rng(0).standard_normal((2, 6, 16)).astype(np.float32)
    ids = np.asarray([[-1, -1, 0, 0, 0, 0], [0, 0, 0, -1, 1, 1]])
    run = jax.jit(lambda x: layer(x, None, None, ids, None)[0])
    clean = run(x)
    loud = np.where(ids[..., None] < 0, np.nan, x)
    np.testing.assert_array_equal(run(loud), clean)
    assert not np.asarray(clean)[ids < 0].any()
    gradient = jax.grad(lambda x: (run(x) ** 2).sum())(loud)
    assert np.isfinite(gradient).all() and not np.asarray(gradient)[ids < 0].any()


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_its_parameters_are_those_that_the_page_says(decay):
    model = tiny.config(f"gated_delta(decay={decay})", width=32, heads=4, kv_heads=2)
    _, shapes = tiny.abstract_terms(model)
    layer = shapes["blocks"][0]["attention"]
    count = sum(x.size for x in jax.tree.leaves(layer)) // model.layers
    width, heads, inner, each = 32, 4, 32, 8
    of_decays = (width + 1) * heads if decay == "head" else (width + inner) * each + inner
    own = width * heads + of_decays + 12 * inner + heads + each
    assert count == 5 * width * inner + own
    flops = [utilization.flops_per_token(model, shapes, n) for n in (64, 4096)]
    assert flops[0] == flops[1]
    drawn = nnx.state(Transformer(model, rngs=nnx.Rngs(0)).blocks[0].attention)
    steps = np.log1p(np.exp(drawn["step_bias"][...]))
    assert 1e-3 < steps.min() < steps.max() < 0.1
    assert np.log(0.01) < drawn["log_rate"][...].min() < drawn["log_rate"][...].max() < np.log(16)


def ring():
    """A mesh whose devices share rows."""
    return sharding.make_mesh(MeshConfig(data=1, seq=2), jax.devices()[:2])


Q = np.zeros((1, 4, 4, 4), np.float32)
GATED = pe_jax.make("gated_delta")


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: pe_jax.parse("gated_delta@window=4"), "window=4: a recurrent layer sees all"),
        (lambda: pe_jax.parse("gated_delta@chunk=4*3,rope"), "chunk=4: a recurrent layer"),
        (lambda: pe_jax.make("gated_delta", taps=0), "taps"),
        (lambda: pe_jax.attention(Q, Q, Q, encoding=GATED), "in the place of attention"),
        (lambda: pe_jax.rotate("gated_delta", Q, Q, np.arange(4)), "in the place of attention"),
        (
            lambda: pe_jax.cache.empty(GATED, 1, 4, pe_jax.Dims(16, 4, 4, 4)),
            "in the place of attention",
        ),
        (lambda: tiny.config("gated_delta+rope").check(), "in the place of attention"),
        (lambda: tiny.config("gated_delta,rope", causal=False).check(), "causal attention alone"),
        (
            lambda: pe_jax.cache.truncate(tiny.build(MODEL)[0].init_cache(1, 4)[0], 2),
            "keeps only its last state",
        ),
        (
            lambda: surgery.with_encoding(tiny.build(MODEL)[0], "rope"),
            "layer 0 is gated_delta; attention and a recurrent layer",
        ),
        (
            lambda: surgery.with_encoding(tiny.build(tiny.config("rope"))[0], "gated_delta,rope"),
            "layer 0 is rope; attention and a recurrent layer",
        ),
        (
            lambda: surgery.with_encoding(tiny.build(PURE)[0], "gated_delta(taps=2)"),
            "layer 0 is gated_delta; a recurrent layer keeps its fields",
        ),
        (
            lambda: sharding.check_fits(MODEL, 2, ring(), {}),
            "mesh.seq=2: a recurrent layer reads whole rows in order; use mesh.seq=1",
        ),
        (
            lambda: Recurrence(MODEL, MODEL.windows[0], nnx.Rngs(0, encoding=0))(
                Q[0], None, None, None, None, BlockPermuted(ring())
            ),
            "whole rows in order",
        ),
        (
            lambda: methods.extended("gated_delta", methods.Trained(tiny.config(), 8, 2)),
            "is not for a trained RoPE",
        ),
        (lambda: claims.declared("gated_delta*3,rope", 4), "place of attention"),
    ],
)
def test_what_has_no_attention_is_refused_where_attention_is_meant(call, words):
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_surgery_changes_the_attention_of_a_hybrid_alone():
    built, _ = tiny.build(MODEL)
    other = surgery.with_encoding(built, surgery.over(MODEL, "gated_delta,rope(base=100.0)"))
    assert pe_jax.spec(other.encodings[0]) == "gated_delta@window=0"
    rows = tiny.tokens(1, 6)
    assert_close(surgery.layer_by_layer(other)(rows), other(rows))
    assert np.abs(np.asarray(other(rows) - built(rows))).max() > 1e-3


# 217
PURE = tiny.config("gated_delta", layers=1)
IDS = np.zeros((2, 6), int)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda model: {"segments": IDS[:, :1]}, r"segments has shape \[2, 1\]; pass \[2, 6\]"),
        (lambda model: {"segments": IDS[0]}, r"segments has shape \[6\]"),
        (lambda model: {"segments": IDS == 0}, "segments has dtype bool"),
        (lambda model: {"segments": IDS + 2**32}, "4294967296 does not fit int32"),
        (lambda model: {"cache": model.init_cache(3, 6)}, r"state has shape \[3, 4, 4, 4\]"),
        (lambda _: {"cache": cache_of("gated_delta(taps=2)")}, "inputs has shape"),
        (lambda _: {"cache": cache_of("rope")}, "cache=Cache of a recurrent layer"),
    ],
)
def test_a_recurrent_layer_refuses_what_attention_refuses(call, words):
    model, _ = tiny.build(PURE)
    given = {"positions": np.arange(6)[None], **call(model)}
    with pytest.raises((TypeError, ValueError), match=words):
        model(tiny.tokens(2, 6), **given)


def cache_of(spec: str):
    return tiny.build(tiny.config(spec, layers=1))[0].init_cache(2, 6)


def test_a_recurrent_cache_is_none_of_attention():
    with pytest.raises(TypeError, match="cache is a RecurrentCache"):
        tiny.build(tiny.config(layers=1))[0](tiny.tokens(2, 6), cache=cache_of("gated_delta"))


@pytest.mark.parametrize("cached", [False, True])
def test_no_tokens_are_read_with_segments_too(cached):
    model, _ = tiny.build(PURE)
    given = {"cache": model.init_cache(2, 6, padded=True)} if cached else {}
    out = model(tiny.tokens(2, 6)[:, :0], segments=IDS[:, :0], **given)
    logits, kept = out if cached else (out, None)
    assert logits.shape == (2, 0, tiny.V)
    assert_close(kept, given.get("cache"))


def test_a_decay_that_overflows_has_a_gradient():
    model, _ = tiny.build(PURE)
    graph, state = nnx.split(model)
    rate = state["blocks"][0]["attention"]["log_rate"]
    state["blocks"][0]["attention"]["log_rate"] = rate.replace(jnp.full_like(rate[...], 100.0))
    loss = jax.jit(lambda state: (nnx.merge(graph, state)(tiny.tokens(2, 6)) ** 2).mean())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.grad(loss)(state)))


def test_devices_share_recurrent_layers_by_their_heads_alone():
    config = MeshConfig(data=1, model=4)
    sharding.check_fits(PURE, 8, sharding.make_mesh(config, jax.devices()[:4]), {})

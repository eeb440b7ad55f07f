"""A layer's own window: read, written, trained, decoded with a cache of the window alone."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import pe_jax
from experiments.measuring import flops, hlo_trip_counts
from experiments.running.extension import methods
from pe_jax.encodings.terms import DistanceTerm, sums_rows
from pe_jax.engines.decoding import cache
from pe_jax.engines.decoding.ring_buffer import RingBuffer
from pe_jax.models import adapters
from pe_jax.models.config import ModelConfig
from pe_jax.models.generate import generate
from pe_jax.models.transformer import Transformer
from pe_jax.training import sharding
from pe_jax.training.config import MeshConfig
from pe_jax.training.utilization import flops_per_token
from pe_jax.validation import ConfigError
from tests import util
from tests.util import DIMS, B, E, H, K, T, assert_close

ROPE, NOPE = pe_jax.make("rope"), pe_jax.make("nope")
SIZES = ModelConfig(vocab=31, width=32, heads=2, kv_heads=1)
CAUSAL = [c for c in util.CASES if c.causal and c.encoding.claims.axes == 1]


def model(encoding: str, **fields) -> Transformer:
    config = dataclasses.replace(SIZES, encoding=encoding, **fields)
    return Transformer(config, rngs=nnx.Rngs(0))


# Read and written.


@pytest.mark.parametrize(
    "spec, want",
    [
        ("rope@window=5*2,nope", [pe_jax.Windowed(ROPE, 5)] * 2 + [NOPE]),
        ("rope@window=5@sinks=2", [pe_jax.Windowed(ROPE, 5, 2)]),
        ("(rope,nope)@window=5", [pe_jax.Windowed(ROPE, 5), pe_jax.Windowed(NOPE, 5)]),
        ("rope@window=0,nope", [pe_jax.Windowed(ROPE), NOPE]),
        ("t5+rope@window=5", [pe_jax.Windowed(pe_jax.parse("t5+rope")[0], 5)]),
        ("rope@chunk=8*3,nope", [pe_jax.Windowed(ROPE, chunk=8)] * 3 + [NOPE]),
    ],
)
def test_a_pattern_gives_each_layer_its_window(spec, want):
    found = pe_jax.parse(spec)
    assert list(found) == want
    assert pe_jax.parse(",".join(map(pe_jax.spec, found))) == found


@pytest.mark.parametrize(
    "spec, words",
    [
        ("rope@windw=5", "encoding 'rope@windw=5': a layer has no setting 'windw'; did you mean"),
        ("rope@window=-5", "@window=-5: write an integer of at least 0"),
        ("rope@sinks=5", "@sinks=5: write @window=… too"),
        ("rope@window=3@window=4", "@window=3 and @window=4 are of one layer"),
        ("rope@window=3@chunk=4", "@chunk=4: write that or @window=…, not both"),
        ("rope@chunk=4@sinks=1", "@sinks=1: write @window=… too"),
        ("rope@window", "cannot read 'rope @ window'"),
        ("rop@window=5", "did you mean 'rope'?"),
    ],
)
def test_what_is_no_window_is_an_error(spec, words):
    with pytest.raises(ValueError) as info:
        pe_jax.parse(spec)
    assert words in str(info.value) and "\n" not in str(info.value)
    with pytest.raises(ValueError, match="model.encoding"):
        dataclasses.replace(SIZES, encoding=spec).check()


def test_layers_without_a_window_have_the_models():
    config = dataclasses.replace(SIZES, encoding="rope@window=5,nope,t5@window=0", layers=3)
    sizes = lambda config: [(layer.window, layer.sinks) for layer in config.windows]  # noqa: E731
    assert sizes(config) == [(5, 0), (None, 0), (None, 0)]
    config = dataclasses.replace(config, window=7, sinks=2)
    assert sizes(config) == [(5, 0), (7, 2), (None, 0)]
    assert config.pattern == tuple(map(pe_jax.make, ("rope", "nope", "t5")))


def test_a_windowed_encoding_is_its_encoding_but_for_the_window():
    inner = pe_jax.parse("learned(length=40)+t5")[0]
    outer = pe_jax.Windowed(inner, 4)
    assert outer.claims == inner.claims and outer.limit() == 40 and outer.valid_length() is None
    params, x = inner.init(jax.random.key(0), DIMS), util.flat(util.inputs()[0])
    assert jax.tree.all(jax.tree.map(jnp.array_equal, params, outer.init(jax.random.key(0), DIMS)))
    np.testing.assert_array_equal(
        *(e.embed(params, x, util.contiguous(B, T)) for e in (inner, outer))
    )
    scaled = pe_jax.parse("rope(scaling=dynamic_ntk(factor=8,original_length=4))")[0]
    assert pe_jax.Windowed(scaled, 4).at_length(9) == pe_jax.Windowed(scaled.at_length(9), 4)
    with pytest.raises(TypeError, match="without a window"):
        pe_jax.Windowed(outer, 5)
    with pytest.raises(TypeError, match="are of the whole layer"):
        pe_jax.Sum((pe_jax.Windowed(ROPE, chunk=4), NOPE))
    with pytest.raises(ValueError, match="window=0: pass an integer of at least 1"):
        pe_jax.Windowed(inner, 0)
    with pytest.raises(ValueError, match="chunk=0: pass an integer of at least 1"):
        pe_jax.Windowed(inner, chunk=0)
    with pytest.raises(ValueError, match="chunk=4: a layer has that or window=3; leave one out"):
        pe_jax.Windowed(inner, 3, chunk=4)


# Attention.


@pytest.mark.parametrize("implementation", ["dense", "tiled"])
def test_attention_takes_the_window_of_its_encoding(implementation):
    (own,), qkv = pe_jax.parse("rope@window=4@sinks=2"), util.inputs()
    given = {"implementation": implementation}
    want = pe_jax.attention(*qkv, encoding=ROPE, window=4, sinks=2, **given)
    np.testing.assert_array_equal(pe_jax.attention(*qkv, encoding=own, **given), want)
    fix = "window=3: the encoding has its own, 4; leave one of them out"
    with pytest.raises(ValueError, match=fix):
        pe_jax.attention(*qkv, encoding=own, window=3)


@pytest.mark.parametrize("spec, packed", [("rope", True), ("t5", False)])
def test_chunks_of_an_encoding_are_the_mask_of_chunks(spec, packed):
    (encoding,), qkv = pe_jax.parse(spec), util.inputs()
    options: dict[str, Any] = {"params": util.random_params(encoding), "dims": DIMS}
    options |= {"x": util.flat(qkv[0])}
    if packed:
        options["q_segments"] = np.repeat([[1, 2]] * B, [T // 3, T - T // 3], axis=1)
    own, mask = pe_jax.Windowed(encoding, chunk=4), pe_jax.masks.chunks(4)
    want = pe_jax.attention(*qkv, encoding=encoding, mask=mask, implementation="dense", **options)
    for implementation in ("dense", util.TILED):
        given = {**options, "implementation": implementation}
        assert_close(pe_jax.attention(*qkv, encoding=own, **given), want)
    both = pe_jax.attention(*qkv, encoding=own, mask=pe_jax.masks.chunks(3), **options)
    thirds = pe_jax.Windowed(encoding, chunk=3)
    other = pe_jax.attention(*qkv, encoding=thirds, mask=mask, **options)
    assert_close(both, other)  # two masks at once, in any order
    with pytest.raises(ValueError, match="window=3: the encoding has its own, chunk=4"):
        pe_jax.attention(*qkv, encoding=own, window=3, **options)


def test_stock_attention_sees_the_chunks_of_an_encoding_and_the_modules_mask():
    qkv, own = util.inputs(), pe_jax.parse("rope@chunk=4")[0]
    stock = adapters.attention_fn(own, causal=True)
    assert_close(stock(*qkv), pe_jax.attention(*qkv, encoding=own))
    hidden = np.arange(T) != 2  # a key
    want = pe_jax.attention(*qkv, encoding=own, mask=hidden[None, None, None])
    assert_close(stock(*qkv, mask=hidden[None, None, None]), want)
    assert stock != adapters.attention_fn("rope", causal=True)
    pooling = adapters.attention_fn(own, causal=False, q_positions=np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="window=4: the queries are other tokens than the keys"):
        pooling(qkv[0][:, :3], *qkv[1:])


# Training.


def test_a_model_of_windows_by_layer_is_its_layers_one_after_the_other():
    """Each layer alone sees as far as its window: by the gradient of the inputs."""
    tokens = jnp.arange(12)[None] % 7
    whole, first = model("nope@window=3,nope@window=2"), model("nope@window=3,nope@window=0")

    def reach(built) -> list[int]:
        """How many tokens back the last logits read."""

        graph, state = nnx.split(built)

        def loss(extra):
            own = nnx.merge(graph, state)
            x = own._embed(tokens, None, None) + extra
            x, _ = own._layers(x, nnx.as_pure(own.shared), None, None, None, None)
            return jnp.square(x[0, -1]).sum()

        moved = jax.grad(loss)(jnp.zeros((1, 12, 32)))[0]
        return [int(i) for i in np.flatnonzero(np.abs(np.asarray(moved)).sum(-1) > 0)]

    assert reach(whole) == [8, 9, 10, 11]  # 2 - 1 + 3 - 1 tokens before the last
    assert reach(model("nope@chunk=8")) == [8, 9, 10, 11]  # of twelve
    assert reach(first) == list(range(12))


def test_layers_of_one_encoding_share_its_table_whatever_their_windows():
    built = model("t5@window=3,t5", layers=4)
    assert built.which == (0, 0) and len(built.shared) == 1


def test_a_scheme_that_depends_on_the_length_keeps_its_window():
    spec = "rope(scaling=dynamic_ntk(factor=8,original_length=4))@window=3,nope"
    longer = model(spec).at_length(64)
    assert [block.attention.encoding.window for block in longer.blocks] == [3, None]


@pytest.mark.parametrize("spec", ["rope@window=5,nope", "(rope+sink)@window=5,t5@window=9"])
def test_devices_that_share_rows_give_each_layer_its_window(spec):
    built, tokens = model(spec), jnp.arange(2 * 32).reshape(2, 32) % 31
    mesh = sharding.make_mesh(MeshConfig(data=1, seq=4), jax.devices()[:4])
    rows: Any = sharding.layout(built.config, mesh)
    assert rows.balanced == (spec[-4:] == "nope")  # some layer sees all
    graph, state = nnx.split(built)

    @jax.jit
    def shared(state, tokens):
        return nnx.merge(graph, state)(rows.spread(tokens), layout=rows)

    assert_close(shared(state, tokens), rows.spread(built(tokens)), 1e-4)


def test_operations_are_counted_layer_by_layer():
    def count(spec, **fields):
        config = dataclasses.replace(SIZES, encoding=spec, **fields)
        built = lambda: nnx.as_pure(nnx.state(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param))  # noqa: E731
        shapes = jax.eval_shape(built)
        return flops_per_token(config, shapes, 64)

    whole, short = count("nope"), count("nope", window=8)
    assert count("nope@window=8,nope") == (whole + short) / 2 and short < whole
    assert count("nope@chunk=8") == short


@pytest.mark.parametrize("spec", ["rope@{}=1500", "rope@{}=1500,rope"])
def test_products_of_chunks_over_tiles_are_counted_as_those_of_a_window(spec):
    """The same tiles are visited: of two layers of 2048 tokens, with a chunk beyond a tile."""

    def count(setting):
        config = dataclasses.replace(SIZES, encoding=spec.format(setting), layers=2)
        graph, state = nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))
        forward = jax.jit(lambda state, tokens: nnx.merge(graph, state)(tokens))
        traced = forward.trace(state, jax.ShapeDtypeStruct((2, 2048), jnp.int32))
        return flops.count(traced.jaxpr, *hlo_trip_counts.tiles(config, 2, 2048)).total

    assert count("chunk") == count("window")


def test_chunks_that_a_ring_or_a_model_of_both_directions_would_not_keep_are_refused_early():
    config = dataclasses.replace(SIZES, encoding="rope@chunk=8,nope")
    mesh = sharding.make_mesh(MeshConfig(data=1, seq=2), jax.devices()[:2])
    with pytest.raises(ConfigError, match=r"mesh.seq=2: a ring has no chunks \(@chunk=8\)"):
        sharding.check_fits(config, 2, mesh, {"length": 32})
    config.check()
    with pytest.raises(ConfigError, match="model.causal=False: @chunk hides later"):
        dataclasses.replace(config, causal=False).check()


@pytest.mark.parametrize("setting", ["@window=8", "@chunk=8"])
def test_a_trained_layer_keeps_its_setting_and_a_methods_own_comes_first(setting):
    base = dataclasses.replace(SIZES, encoding=f"rope(base=500.0){setting},nope")
    trained = methods.Trained(base, 64, 4.0)
    ntk = "rope(scaling=ntk(factor={factor}))"
    new = methods.extended(ntk, trained)
    scaled = "rope(base=500.0,scaling=ntk(factor=4.0))"
    assert new == f"{scaled}{setting},nope"
    assert not methods.drops_rope(new) and methods.drops_rope(f"nope{setting},nope")
    assert methods.extended(f"{ntk}@chunk=5", trained) == f"{scaled}@chunk=5,nope"


# Decoding.


def in_a_cache(case, window: int, sinks: int, first: int):
    """Asserts that `first` tokens, then one at a time, give what the whole row gives."""
    params, qkv = util.random_params(case.encoding), util.inputs()
    options = {"encoding": case.encoding, "params": params, "dims": DIMS, "embedded": True}
    mask = {"window": window, "sinks": sinks}

    def extend(past, part):
        return cache.extend(past, *part, x=util.flat(part[0]), **options, **mask)

    def step(past, token):
        out, past = extend(past, [x[:, None] for x in token])
        return past, out[:, 0]

    @util.jit
    def both(qkv):
        past, outs = cache.empty(case.encoding, B, T, DIMS, params=params, **mask), []
        if first:
            out, past = extend(past, [x[:, :first] for x in qkv])
            outs.append(out)
        past, rest = jax.lax.scan(step, past, [jnp.moveaxis(x[:, first:], 1, 0) for x in qkv])
        whole = pe_jax.attention(
            *qkv, x=util.flat(qkv[0]), implementation="dense", **options, **mask
        )
        return jnp.concatenate([*outs, jnp.moveaxis(rest, 0, 1)], axis=1), whole, past

    out, whole, past = both(tuple(map(jnp.asarray, qkv)))
    assert_close(out, whole)
    whole_rows = sums_rows(tuple(util.terms(case.encoding)))
    whole_rows |= sinks > 0 and bool(util.terms(case.encoding, DistanceTerm))
    assert past.capacity == (T if whole_rows else window + sinks)


# A cache of the window is a ring, but where terms of distances have sinks: it is of the whole row.
RINGS = [c for c in CAUSAL if util.terms(c.encoding, DistanceTerm)]
OTHERS = [c for c in CAUSAL if c not in RINGS or c.name.startswith("t5")]


@util.of_each_kind(CAUSAL, RINGS)
def test_a_cache_of_the_window_gives_what_the_whole_row_gives(case):
    in_a_cache(case, 4, 0, first=0)


@util.of_each_kind(CAUSAL, OTHERS)
def test_a_cache_of_window_and_sinks_after_a_prompt_gives_what_the_whole_row_gives(case):
    in_a_cache(case, 5, 2, first=6)


@pytest.mark.parametrize("spec", ["fox+alibi", "t5(num_buckets=6,max_distance=9)+rope"])
def test_tiles_take_the_rows_of_a_ring_in_any_order(spec):
    (encoding,), qkv = pe_jax.parse(spec), util.inputs()
    params, mask = util.random_params(encoding), {"window": 5, "implementation": util.TILED}
    options = {"encoding": encoding, "params": params, "dims": DIMS, **mask}

    @util.jit
    def both(qkv):
        past, at, outs = cache.empty(encoding, B, T, DIMS, window=5), 0, []
        for size in (6, 1, 4, 2):
            part = [x[:, at : at + size] for x in qkv]
            out, past = cache.extend(past, *part, x=util.flat(part[0]), **options)
            outs.append(out)
            at += size
        whole = pe_jax.attention(*qkv, x=util.flat(qkv[0]), **options)
        return jnp.concatenate(outs, axis=1), whole

    assert_close(*both(tuple(map(jnp.asarray, qkv))))


def test_a_ring_holds_the_sinks_and_the_last_tokens():
    ring, held = RingBuffer(4, 2), np.full(6, -1)
    for length in range(15):
        found = np.asarray(ring.tokens(jnp.int32(length), jnp.int32(99)))
        np.testing.assert_array_equal(found, np.where(held < 0, 99, held))
        last = {*range(min(length, 2)), *range(max(0, length - 4), length)}
        assert last <= {*found.tolist()} and {*found.tolist()} <= last | {99}
        held[int(ring.row(jnp.int32(length)))] = length
    for start in range(9):
        for count in (1, 3, 4, 9):
            old = jnp.where(ring.tokens(jnp.int32(start), jnp.int32(-1)) < 0, -1, 0)
            old = jnp.where(old < 0, -1, ring.tokens(jnp.int32(start), jnp.int32(-1)))
            new = start + jnp.arange(count)
            written = ring.write(old[None], new[None], jnp.int32(start), 1)[0]
            want = ring.tokens(jnp.int32(start + count), jnp.int32(-1))
            np.testing.assert_array_equal(written, want)


def test_a_cache_of_a_window_is_as_large_as_the_window_and_takes_any_number_of_tokens():
    past = cache.empty(pe_jax.parse("rope@window=5")[0], B, 1000, DIMS)
    assert past.k.shape == (B, K, 5, E) and past.ring == RingBuffer(5)
    assert cache.empty(ROPE, B, 5, DIMS, window=5).ring is None
    options = {"encoding": ROPE, "params": pe_jax.Params({}, {}), "dims": DIMS}
    for other in ({}, {"window": 4}, {"window": 5, "sinks": 1}):
        with pytest.raises(ValueError, match="the cache keeps what 5 and 0 need"):
            cache.extend(past, *util.inputs(1), **options, **other)
    for _ in range(4):
        out, past = cache.extend(past, *util.inputs(3), **options, window=5)
    assert (past.length == 12).all() and np.isfinite(out).all() and out.shape == (B, 3, H, E)


def test_positions_of_ones_own_go_through_a_ring():
    """Tokens at any positions: the mask goes by their number alone."""
    places = np.sort(np.random.default_rng(0).integers(0, 50, (B, T), dtype=np.int32))
    qkv, mask = util.inputs(), {"window": 4}
    options = {"encoding": ROPE, "params": pe_jax.Params({}, {}), "dims": DIMS}
    whole = pe_jax.attention(*qkv, q_positions=places, implementation="dense", **options, **mask)
    past = cache.empty(ROPE, B, T, DIMS, **mask)
    extend = util.jit(lambda past, part, here: cache.extend(past, *part, here, **options, **mask))
    for at in range(T):
        part, here = [x[:, at : at + 1] for x in qkv], places[:, at : at + 1]
        out, past = extend(past, part, here)
        assert_close(out, whole[:, at : at + 1])
    with pytest.raises(ValueError, match="the cache's positions are not 0, 1, 2"):
        jax.jit(lambda part: cache.extend(past, *part, **options, **mask))(part)


@pytest.mark.parametrize(
    "spec",
    ["fox@window=6@sinks=2,rope", "t5@window=5+rope,alibi@window=2", "rope@chunk=6,nope@chunk=50"],
)
def test_a_model_generates_what_its_whole_rows_say(spec):
    built, prompt = model(spec), np.arange(2 * 40).reshape(2, 40) % 31
    caches = built.init_cache(2, 64)
    sizes = [x.span + x.sinks if x.span else 64 for x in built.config.windows]
    assert [past.capacity for past in caches] == sizes
    row = generate(built, prompt, 9, temperature=0)
    logits = built(row[:, :-1])
    np.testing.assert_array_equal(row[:, 40:], np.argmax(logits[:, 39:], -1))

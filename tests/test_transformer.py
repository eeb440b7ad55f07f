"""The model: whatever the scheme, it decodes as it trains and keeps what is apart apart."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pe_jax import positions as pos
from pe_jax.models import generate as generation
from pe_jax.models.config import ModelConfig
from pe_jax.models.generate import generate, sample
from pe_jax.models.surgery import with_encoding
from pe_jax.models.transformer import Transformer
from pe_jax.training.sharding import path_name
from tests import tiny
from tests.tiny import SPECS, L, R, V
from tests.util import assert_close

OTHER = {  # every choice that is not the default
    "norm": "layer",
    "norm_epsilon": 1e-3,
    "block": "around",
    "qk_norm": True,
    "qk_norm_over": "projection",
    "bias": True,
    "bias_of": "layers",
    "embed_scale": 2.0,
    "embed_norm": True,
    "logit_scale": 0.5,
    "logit_cap": 20.0,
    "attention_scale": 0.7,
    "attention_cap": 5.0,
    "gated": False,
    "activation": "gelu",
    "tied": False,
    "window": 4,
    "sinks": 2,
    "attention": "tiled",
}
MODELS = {name: tiny.config(spec) for name, spec in SPECS.items()} | {
    "t5+rope": tiny.config("t5+rope"),
    "shaw,learned(length=40)": tiny.config("shaw,learned(length=40)"),
    "recurrent": tiny.config("gated_delta*3,learned(length=40)+rope", layers=4, window=3),
    "others": tiny.config("transformer_xl,rope", layers=4, **OTHER),
}
# Parameters of the model and of a layer, terms of the input, of bands and of all heads' scores.
few = tiny.few("fox dape t5+rope recurrent others", MODELS)


@few
def test_generating_with_a_cache_equals_recomputing(spec, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 2)  # of 5 tokens: two chunks, and one alone
    built, params = tiny.build(spec)
    prompt = tiny.tokens(R, 5)
    found = np.asarray(generate(built, prompt, L - 5, temperature=0))
    np.testing.assert_array_equal(found[:, :5], prompt)
    assert len(np.unique(found[:, 5:])) > 4  # a model that repeats itself would show nothing
    logits = tiny.forward(spec)(params, found, np.zeros((R, L), np.int32))
    np.testing.assert_array_equal(found[:, 5:], np.argmax(logits, axis=-1)[:, 4:-1])


@pytest.mark.parametrize("length", [1, 5])
@tiny.few("fox recurrent", MODELS)
def test_tokens_that_are_streamed_are_those_that_are_generated(spec, length, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 2)
    built, prompt = tiny.build(spec)[0], tiny.tokens(1, length)
    draw = {"key": jax.random.key(3), "temperature": 0.7, "top_k": 5}
    row = np.asarray(generate(built, prompt, 9, **draw))[0, length:].tolist()
    assert [*generation.stream(built, prompt[0], 9, **draw)] == row
    ended = [*generation.stream(built, prompt[0], 9, **draw, stop=(row[4],))]
    assert ended == row[: row.index(row[4])]
    assert [*generation.stream(built, prompt[0], 0, **draw)] == []


@pytest.mark.parametrize("side", ["left", "right"])
@tiny.few("fox t5+rope recurrent others", MODELS)
def test_prompts_of_unequal_length_are_each_continued_alone(spec, side, monkeypatch):
    monkeypatch.setattr(generation, "CHUNK", 2)
    built, _ = tiny.build(spec)
    lengths, prompt = (3, 5, 1, 4), tiny.tokens(R, 5)
    first = [0 if side == "right" else 5 - n for n in lengths]
    columns = [slice(at, at + n) for at, n in zip(first, lengths, strict=True)]
    segments = np.full(prompt.shape, -1)
    for row, own in enumerate(columns):
        segments[row, own] = 7
    outputs = np.asarray(generate(built, prompt, 6, segments=segments, temperature=0))
    np.testing.assert_array_equal(outputs[:, :5], prompt)
    for row, own in enumerate(columns):
        alone = np.asarray(generate(built, prompt[:, own], 6, temperature=0))
        np.testing.assert_array_equal(outputs[row, 5:], alone[row, -6:], f"row {row}")


def test_one_program_generates_any_length_at_any_temperature():
    built, _ = tiny.build(tiny.config("rope", layers=1))
    prompt, key, before = tiny.tokens(1, 40), jax.random.key(3), generation._run._cache_size()
    greedy = [generate(built, prompt[:, :n], 45 - n, temperature=0) for n in (1, 5, 40)]
    drawn = [generate(built, prompt[:, :5], n, key=key, temperature=2) for n in (3, 59)]
    cold = generate(built, prompt[:, :5], 40, key=key, temperature=1e-6)
    assert generation._run._cache_size() == before + 1
    np.testing.assert_array_equal(greedy[1], cold)
    assert (np.asarray(drawn[1][:, 5:45]) != cold[:, 5:]).mean() > 0.5
    np.testing.assert_array_equal(drawn[0], drawn[1][:, :8])  # a draw depends on key and place
    assert [x.shape for x in greedy] == [(1, 45)] * 3
    generate(built, prompt, 40, key=key)  # beyond 64: the next power of two
    assert generation._run._cache_size() == before + 2


def test_generating_sets_lengths_once_so_that_the_cache_equals_recomputing():
    def config(ntk, long):
        lists = f"short_factor=[1, 1], long_factor={long}, factor=8"
        return tiny.config(
            f"rope(base=2, scaling=dynamic_ntk(factor={ntk}, original_length=4)),"
            f"t5+rope(base=2, scaling=longrope({lists}, original_length=4))"
        )

    model, short = config(8, [0.2, 9]), config(1e-9, [1, 1])  # the second is unscaled throughout
    (graph, shapes), (as_if_short, _) = map(tiny.abstract_terms, (model, short))
    params = tiny.like(shapes)
    for place in range(2):  # so that attention is sharp
        params["blocks"][place]["attention"]["q"]["kernel"] *= 20
    built = nnx.merge(graph, params)
    found = np.asarray(generate(built, tiny.tokens(R, 3), L - 3, temperature=0))

    @jax.jit
    def recompute(params):
        whole = nnx.merge(graph, params)
        short = nnx.merge(as_if_short, params)
        models = whole, whole.at_length(L), short
        return [m(found).argmax(-1)[:, 2:-1] for m in models]

    told, there, here = recompute(params)
    np.testing.assert_array_equal(found[:, 3:], there)
    np.testing.assert_array_equal(told, there)  # a full pass is at its own length
    assert (there != here).mean() > 0.1  # the length matters
    assert built.encodings == model.windows  # and the model is as it was
    assert built.at_length(L).at_length(9).encodings == built.at_length(9).encodings
    rope, _ = tiny.build(tiny.config("rope,t5"))
    assert rope.at_length(L) is rope


def test_a_scheme_for_causal_attention_makes_no_encoder():
    with pytest.raises(ValueError, match="'t5.xpos': causal=False: T5.XPos is for causal"):
        tiny.config("t5+xpos", causal=False).check()


@few
def test_packed_documents_equal_separate_ones(spec):
    _, params = tiny.build(spec)
    run, cut = functools.partial(tiny.forward(spec), params), 5
    packed = tiny.tokens(R, L)
    column = np.broadcast_to(np.arange(L), (R, L))
    got = run(packed, np.where(column < cut, 3, 7).astype(np.int32))
    first = run(packed, np.where(column < cut, 0, -1).astype(np.int32))
    moved = np.roll(packed, -cut, axis=1)
    second = run(moved, np.where(column < L - cut, 0, -1).astype(np.int32))
    assert_close(got, np.concatenate([first[:, :cut], second[:, : L - cut]], axis=1))
    assert np.abs(got[:, cut:] - run(packed, np.zeros((R, L), np.int32))[:, cut:]).max() > 0.01


def test_weights_outside_the_encoding_are_the_same_for_every_scheme():
    specs = ["nope", SPECS["learned"] + "+t5", SPECS["fox"], "nope,shaw"]

    @jax.jit
    def initial():
        models = [Transformer(tiny.config(s), rngs=nnx.Rngs(3)) for s in specs]
        return [nnx.as_pure(nnx.state(model, nnx.Param)) for model in models]

    def plain(params):
        """Weights by name, layers in order whatever the pattern."""
        flat = {path_name(p): np.asarray(x) for p, x in jax.tree.leaves_with_path(params)}
        flat = {n: x for n, x in flat.items() if "params" not in n and not n.startswith("shared")}
        blocks = {n.partition("/")[2].partition("/")[2] for n in flat if n.startswith("blocks")}
        places = range(len(params["blocks"]))
        layers = {
            n: np.stack([flat[f"blocks/{p}/{n}"] for p in places], axis=1).reshape(
                2, *flat[f"blocks/0/{n}"].shape[1:]
            )
            for n in blocks
        }
        return layers | {n: x for n, x in flat.items() if not n.startswith("blocks")}

    want, *others = map(plain, initial())
    assert {"embed/embedding", "attention/q/kernel", "mlp/down/kernel"} <= set(want)
    assert not np.array_equal(*want["attention/q/kernel"])  # two layers are not the same
    for spec, other in zip(specs[1:], others, strict=True):
        assert set(other) == set(want), spec
        for name, x in want.items():
            np.testing.assert_allclose(other[name], x, 1e-5, 1e-7, err_msg=f"{spec} {name}")


@pytest.mark.parametrize("norm", [False, True])
def test_a_scheme_that_does_not_scale_scores_begins_and_learns_as_the_others_do(norm):
    """T5's scores are not divided by sqrt(E): the model divides its queries, in every step."""

    def loss_and_gradient(spec):
        model = tiny.config(spec, qk_norm=norm, layers=1)
        graph, params = nnx.split(Transformer(model, rngs=nnx.Rngs(0)))
        tokens = tiny.batch()["tokens"]
        loss = lambda p: (nnx.merge(graph, p)(tokens) ** 2).mean()  # noqa: E731
        loss, gradient = jax.value_and_grad(loss)(params)
        attention = nnx.as_pure(gradient)["blocks"][0]["attention"]
        return loss, {name: attention[name]["kernel"] for name in "qkv"}

    want, got = jax.jit(lambda: [loss_and_gradient(s) for s in ("nope", "t5(stddev=0.0)")])()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, 1e-4, 1e-7), want, got)


@pytest.mark.parametrize(
    "spec, fields, seen",
    [
        ("rope", {}, range(6, L)),
        ("rope", {"causal": False}, range(L)),
        ("deberta", {"causal": False}, range(L)),
        ("t5", {"window": 3, "layers": 1}, range(6, 9)),
        ("t5", {"window": 3}, range(6, 11)),
        ("t5", {"window": 3, "sinks": 6, "layers": 1}, range(6, 9)),
        ("t5", {"window": 3, "sinks": 7, "layers": 1}, range(6, L)),
    ],
)
def test_a_token_reaches_just_what_may_see_it(spec, fields, seen):
    """Logits that change when the token at 6 does."""
    model = tiny.config(spec, **fields)
    _, params = tiny.build(model)
    rows, ids = tiny.tokens(R, L), np.zeros((R, L), np.int32)
    other = np.where(np.arange(L) == 6, (rows + 1) % V, rows)
    logits = [np.asarray(tiny.forward(model)(params, tokens, ids)) for tokens in (rows, other)]
    assert np.flatnonzero((logits[0] != logits[1]).any((0, 2))).tolist() == list(seen)


def test_remat_changes_neither_loss_nor_gradients():
    results = []
    for remat in (False, True):
        model = tiny.config("t5", remat=remat)
        graph, _ = tiny.abstract_terms(model)
        _, params = tiny.build(model)

        def loss(params, graph=graph):
            return jnp.square(nnx.merge(graph, params)(tiny.tokens(2, L))).mean()

        program = jax.jit(jax.value_and_grad(loss)).lower(params)
        assert ("checkpoint" in program.as_text(debug_info=True)) == remat
        results.append(program.compile()(params))
    assert_close(*results, 1e-6)


@pytest.mark.parametrize("spec", ["rope", "t5+rope,nope"])
def test_programs_do_not_grow_with_depth(spec):
    sizes = []
    for layers in (10, 20):  # shallower ones are unrolled
        model = tiny.config(spec, layers=layers)
        graph, shapes = tiny.abstract_terms(model)

        def loss(params, graph=graph):
            return nnx.merge(graph, params)(tiny.tokens(2, L)).sum()

        def initial(model=model):
            return nnx.as_pure(nnx.state(Transformer(model, rngs=nnx.Rngs(0)), nnx.Param))

        programs = jax.jit(jax.grad(loss)).lower(shapes), jax.jit(initial).lower()
        sizes.append([len(p.as_text()) for p in programs])
    np.testing.assert_allclose(*sizes, rtol=0.02)


@few
def test_bfloat16_keeps_float32_parameters_and_logits(spec):
    half = dataclasses.replace(spec, dtype="bfloat16")
    graph, shapes = tiny.abstract_terms(half)
    assert {x.dtype for x in jax.tree.leaves(shapes)} == {jnp.dtype(jnp.float32)}
    row = tiny.tokens(2, L)
    grads = jax.eval_shape(jax.grad(lambda p: nnx.merge(graph, p)(row).sum()), shapes)
    assert {x.dtype for x in jax.tree.leaves(grads)} == {jnp.dtype(jnp.float32)}
    assert jax.eval_shape(lambda p: nnx.merge(graph, p)(row), shapes).dtype == jnp.float32


@pytest.mark.parametrize("spec", ["t5+rope", SPECS["deberta"]])
def test_bfloat16_is_near_float32(spec):
    model = tiny.config(spec)
    half = dataclasses.replace(model, dtype="bfloat16")
    _, params = tiny.build(model)
    params = jax.tree.map(lambda x: x / 2, params)
    rows, ids = tiny.tokens(R, L), np.zeros((R, L), np.int32)
    got = tiny.forward(half)(params, rows, ids)
    assert_close(got, tiny.forward(model)(params, rows, ids), 0.05)


def test_an_embedding_gets_the_gradient_of_all_its_tokens_in_half_precision():
    """A sum in bfloat16 would end at 256, where 1 is less than a unit of its last place."""
    half = dataclasses.replace(tiny.config("nope"), dtype="bfloat16")
    graph, shapes = tiny.abstract_terms(half)
    tokens = np.full((4, 500), 3)
    sum_of = jax.grad(lambda p: nnx.merge(graph, p)._look_up(tokens).astype(jnp.float32).sum())
    gradient = sum_of(tiny.like(shapes))["embed"]["embedding"]
    assert (gradient[3] == tokens.size).all() and (gradient[:3] == 0).all()


def test_grouped_heads_equal_repeated_heads():
    grouped, full = tiny.config("shaw"), tiny.config("shaw", kv_heads=4)
    _, params = tiny.build(grouped)
    rows, ids = tiny.tokens(R, L), np.zeros((R, L), np.int32)
    want = tiny.forward(grouped)(params, rows, ids)
    attention = params["blocks"][0]["attention"]
    for name in "kv":
        kernel = attention[name]["kernel"].reshape(2, 16, 2, 4)
        attention[name]["kernel"] = jnp.repeat(kernel, 2, axis=2).reshape(2, 16, 16)
    assert_close(tiny.forward(full)(params, rows, ids), want, 1e-6)


def test_dropout_follows_its_key_and_is_off_without_one():
    model = tiny.config("nope", layers=1, dropout=0.5)
    graph, _ = tiny.abstract_terms(model)
    _, params = tiny.build(model)
    rows, ids = tiny.tokens(R, L), np.zeros((R, L), np.int32)
    run = jax.jit(lambda params, key: nnx.merge(graph, params)(rows, key=key))
    a, same, b = (np.asarray(run(params, jax.random.key(k))) for k in (0, 0, 1))
    np.testing.assert_array_equal(a, same)
    assert np.abs(a - b).max() > 0.1
    plain = tiny.forward(dataclasses.replace(model, dropout=0.0))(params, rows, ids)
    assert_close(tiny.forward(model)(params, rows, ids), plain, 1e-6)
    assert np.abs(a - plain).max() > 0.1


@pytest.mark.parametrize(
    "fields, added, removed",
    [
        ({"norm": "layer"}, {"final_norm/bias"}, set()),
        ({"bias": True}, {"blocks/0/attention/q/bias", "blocks/0/mlp/down/bias"}, set()),
        ({"gated": False}, set(), {"blocks/0/mlp/gate/kernel"}),
        ({"tied": False}, {"head/kernel"}, set()),
        ({"qk_norm": True}, {f"blocks/0/attention/{x}_norm/scale" for x in "qk"}, set()),
        ({"bias": True, "bias_of": "layers", "tied": False}, {"blocks/0/mlp/up/bias"}, set()),
        (
            {"bias": True, "bias_of": "qkv"},
            {f"blocks/0/attention/{x}/bias" for x in "qkv"},
            set(),
        ),
        ({"embed_norm": True}, {"embed_norm/scale"}, set()),
        (
            {"block": "around"},
            {f"blocks/0/{x}_out_norm/scale" for x in ("attention", "mlp")},
            set(),
        ),
        ({"block": "parallel_shared"}, set(), {"blocks/0/mlp_norm/scale"}),
    ],
)
def test_a_choice_has_its_own_parameters(fields, added, removed):
    def names(**fields):
        _, shapes = tiny.abstract_terms(tiny.config(**fields))
        return {path_name(path) for path, _ in jax.tree.leaves_with_path(shapes)}

    assert added <= names(**fields) - names()
    assert removed == names() - names(**fields)


def test_tables_of_t5_and_learned_are_shared_and_each_layer_has_its_own_shaw():
    spec = "shaw(clip=3)+t5,learned(length=9),shaw(clip=3)+t5,rope"
    _, shapes = tiny.abstract_terms(tiny.config(spec, layers=4))
    assert len(jax.tree.leaves(shapes["shared"])) == 2  # t5 and learned, once for the model
    own = [
        len(jax.tree.leaves(shapes["blocks"][place]["attention"].get("params", {})))
        for place in range(4)
    ]
    assert own == [2, 0, 2, 0]


# 27
def test_check_finite_names_the_layer(monkeypatch):
    model = tiny.config("nope")
    built, params = tiny.build(model)
    built.check_finite(tiny.tokens(1, 3))
    graph, _ = tiny.abstract_terms(model)
    kernel = params["blocks"][0]["mlp"]["down"]["kernel"]
    params["blocks"][0]["mlp"]["down"]["kernel"] = kernel.at[1].set(3e38)
    with pytest.raises(FloatingPointError, match="the output of layer 1 is not finite"):
        nnx.merge(graph, params).check_finite(tiny.tokens(1, 3))
    params["blocks"][0]["mlp"]["down"]["kernel"] = kernel.at[0, 0, 0].set(jnp.nan)
    with pytest.raises(FloatingPointError, match="parameter .*mlp.*down.*kernel"):
        nnx.merge(graph, params).check_finite(tiny.tokens(1, 3))


def test_sampling_takes_the_likeliest_or_draws_among_the_best():
    logits = jnp.log(jnp.asarray([[0.1, 0.4, 0.2, 0.3]]))
    assert sample(jax.random.key(0), logits, 0.0, 0).tolist() == [1]
    many = jnp.broadcast_to(logits, (4000, 4))
    drawn = np.bincount(sample(jax.random.key(0), many, 1.0, 0), minlength=4) / 4000
    np.testing.assert_allclose(drawn, [0.1, 0.4, 0.2, 0.3], atol=0.03)
    best = np.bincount(sample(jax.random.key(0), many, 1.0, 2), minlength=4) / 4000
    np.testing.assert_allclose(best, [0, 4 / 7, 0, 3 / 7], atol=0.03)


# 16, 31
@pytest.mark.parametrize(
    "fields, words",
    [
        ({"prompt": [[1, V]]}, (f"token id {V}", f"vocab = {V}")),
        ({"prompt": [[-1, 1]]}, ("token id -1", "0 <= id")),
        ({"prompt": np.zeros((2, 0), np.int32)}, ("prompt has shape [2, 0]", "T >= 1")),
        ({"prompt": [1, 2]}, ("prompt has shape [2]", "[B, T]")),
        ({"new_tokens": -1}, ("new_tokens=-1", "at least 0")),
        ({"new_tokens": 2.0}, ("new_tokens=2.0", "integer")),
        ({"temperature": -0.5}, ("temperature=-0.5", "at least 0")),
        ({"temperature": float("nan")}, ("temperature=nan", "at least 0")),
        ({"top_k": V + 1}, (f"top_k={V + 1}", f"from 0 to the vocabulary's {V}")),
        ({"top_k": -1}, ("top_k=-1", "from 0")),
        ({"capacity": 5}, ("capacity=5", "prompt and new tokens need 6")),
        ({"temperature": 1.0}, ("key=None", "jax.random.key(seed)")),
        ({"segments": [[0]]}, ("segments=(1, 1)", "[1, 2]", "padding")),
        ({"new_tokens": 39}, ("new_tokens=39", "2 tokens of the prompt", "40 positions")),
    ],
)
def test_generate_refuses_before_it_compiles(fields, words, monkeypatch):
    monkeypatch.delattr("pe_jax.models.generate._run")
    built, _ = tiny.build(MODELS["learned"])
    given = {"prompt": [[1, 2]], "new_tokens": 4, "temperature": 0} | fields
    with pytest.raises(ValueError) as info:
        generate(built, **given)
    assert all(word in str(info.value) for word in words) and "\n" not in str(info.value)


def test_no_new_tokens_give_the_prompt():
    built, _ = tiny.build(MODELS["rope"])
    np.testing.assert_array_equal(generate(built, [[3, 1]], 0, temperature=0), [[3, 1]])


@pytest.mark.parametrize("spec", ["mrope", "learned_2d+rope_2d"])
def test_positions_of_several_axes_are_read_at_once_as_token_by_token(spec):
    built, _ = tiny.build(tiny.config(spec, head_dim=8))
    places = pos.multimodal([3, (2, 3), 1, 2])[None, :, -built.encodings[0].claims.axes :]
    rows = tiny.tokens(2, L)
    run = jax.jit(lambda places: built(rows, positions=places))
    want = run(places)
    assert np.abs(want - run(places[:, ::-1])).max() > 0.01
    step = jax.jit(lambda cache, tokens, at: built(tokens, positions=at, cache=cache))
    first, cache = step(built.init_cache(2, L), rows[:, :9], places[:, :9])
    found = [first]
    for t in range(9, L):
        logits, cache = step(cache, rows[:, t : t + 1], places[:, t : t + 1])
        found.append(logits)
    assert_close(jnp.concatenate(found, axis=1), want)
    with pytest.raises(ValueError, match="axes"):
        built(rows)


def test_an_encoder_has_no_cache():
    built, _ = tiny.build(tiny.config(causal=False))
    with pytest.raises(ValueError, match="model.causal=False: only a causal model decodes"):
        generate(built, [[1]], 2, temperature=0)


def test_a_model_needs_its_vocabulary():
    with pytest.raises(ValueError, match="model.vocab=0: pass the number of token ids"):
        Transformer(ModelConfig(), rngs=nnx.Rngs(0))


def test_other_encodings_in_a_model_keep_its_weights_whatever_the_pattern_was():
    pattern = "rope(base=500.0)@window=8*2,rope"
    config = ModelConfig(vocab=31, width=16, layers=6, heads=2, encoding=pattern)
    model = Transformer(config, rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (1, 24), 0, 31)
    want = model(tokens)
    for between in (pattern, "nope*6"):
        again = with_encoding(with_encoding(model, between), pattern)
        np.testing.assert_array_equal(again(tokens), want)
    assert np.abs(with_encoding(model, "nope")(tokens) - want).max() > 1e-3
    other = Transformer(dataclasses.replace(config, encoding="nope"), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(with_encoding(other, pattern)(tokens), want, atol=1e-6)
    with pytest.raises(ValueError, match="the weights have no shared/0/table for it"):
        with_encoding(model, "t5")


@pytest.mark.parametrize("spec", ["rope", "gated_delta,fox"])
def test_no_rows_and_no_tokens_have_no_logits(spec):
    model, _ = tiny.build(tiny.config(spec))
    for shape in ((0, 4), (2, 0)):
        assert model(np.zeros(shape, np.int32)).shape == (*shape, V)


def test_stacked_caches_give_what_one_pass_gives():
    pattern = "rope@window=5@sinks=1,fox"  # a ring, and a running sum
    config = ModelConfig(vocab=31, width=16, layers=10, heads=2, kv_heads=1, encoding=pattern)
    model = Transformer(config, rngs=nnx.Rngs(0))
    tokens = jax.random.randint(jax.random.key(0), (2, 12), 0, 31)
    cache, extend = model.init_cache(2, 12, stacked=True), jax.jit(lambda t, c: model(t, cache=c))
    assert [x.length.shape[0] for x in cache] == [5] * 2
    parts = []
    for part in (tokens[:, :6], tokens[:, 6:]):
        logits, cache = extend(part, cache)
        parts.append(logits)
    want = jax.jit(model)(tokens)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), want, atol=1e-5)

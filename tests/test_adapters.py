"""The adapter inside stock Flax attention: what it computes, what it passes on, what it refuses."""

import copy
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from pe_jax import Encoding, Params
from pe_jax.encodings.rope_scaling import DynamicNTK
from pe_jax.models import adapters
from pe_jax.positions import per_segment
from tests import util
from tests.util import DIMS, SINGLE, SUMS, B, E, H, K, T, assert_close, noise

D = DIMS.width
X = noise(B, T, D)
NONE = Params({}, {})
ROPE, SHAW = pe_jax.make("rope"), pe_jax.make("shaw")


def adapter(case, params=None, **options):
    params = util.random_params(case.encoding) if params is None else params
    if case.encoding.claims.axes > 1:
        options.setdefault("positions", util.spread(case, util.contiguous(T)))
    return adapters.attention_fn(case.encoding, params, embedded=True, **options)


def of_linen(fn, **options):
    return nn.MultiHeadDotProductAttention(num_heads=H, attention_fn=fn, **options)


def of_nnx(fn, **options):
    options = {"decode": False, "num_kv_heads": K, "rngs": nnx.Rngs(0)} | options
    return nnx.MultiHeadAttention(H, D, attention_fn=fn, **options)


@functools.cache
def weights(kv_heads=H):
    """Weights of a stock module of either kind: {name: {kernel, bias}}."""
    count = {"query": H, "key": kv_heads, "value": kv_heads}
    shapes = {name: ((D, n, E), (n, E)) for name, n in count.items()} | {"out": ((H, E, D), (D,))}
    return {
        name: {"kernel": 0.3 * noise(*kernel, seed=i), "bias": 0.3 * noise(*bias, seed=i)}
        for i, (name, (kernel, bias)) in enumerate(shapes.items())
    }


def by_hand(x, attend, kv_heads=H):
    """The stock module's projections, with `attend` between them."""
    w = weights(kv_heads)
    q, k, v = (
        jnp.einsum("btd,dhe->bthe", x, w[name]["kernel"]) + w[name]["bias"]
        for name in ("query", "key", "value")
    )
    return jnp.einsum("bthe,hed->btd", attend(q, k, v), w["out"]["kernel"]) + w["out"]["bias"]


def fill(module):
    """Gives an NNX module the weights that `by_hand` takes."""
    for name, leaves in weights(module.num_kv_heads).items():
        for leaf, value in leaves.items():
            getattr(getattr(module, name), leaf)[...] = jnp.asarray(value)
    return module


def wanted(case, **options):
    """`pe_jax.attention` on the same parameters, dense."""
    several = case.encoding.claims.axes > 1
    return functools.partial(
        pe_jax.attention,
        encoding=case.encoding,
        params=util.random_params(case.encoding),
        q_positions=util.spread(case, util.contiguous(T)) if several else None,
        implementation="dense",
        embedded=True,
        **options,
    )


def by_steps_nnx(module, x):
    """Decodes with the cache of an NNX module, one token at a time."""
    module.init_cache(x.shape)
    graph, state = nnx.split(module)

    def step(state, token):
        module = nnx.merge(graph, state)
        out = module(token[:, None], decode=True)
        return nnx.state(module), out[:, 0]

    _, out = jax.lax.scan(step, state, jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(out, 0, 1)


def by_steps_linen(module, variables, x):
    """Decodes with the cache of a Linen module, one token at a time."""
    cache = module.init(jax.random.key(0), x)["cache"]

    def step(cache, token):
        out, new = module.apply(variables | {"cache": cache}, token[:, None], mutable=["cache"])
        return new["cache"], out[:, 0]

    _, out = jax.lax.scan(step, cache, jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(out, 0, 1)


# A scheme of each kind of slot and parameter, and what the adapter asks a scheme for: what a slot
# gives is the business of other tests.
KINDS = "nope learned shaw transformer_xl deberta xpos tupe rerope rope_2d dape".split()
EACH = [next(c for c in SINGLE if c.name.partition("(")[0] == name) for name in KINDS]


@pytest.mark.parametrize("case", EACH, ids=str)
def test_in_nnx_it_is_attention_and_decoding_equals_the_full_pass(case):
    def module(causal):
        params = jax.tree.map(nnx.Param, util.random_params(case.encoding))
        return fill(of_nnx(adapter(case, params, causal=causal)))

    def run(x):
        full = module(case.causal)(x)
        past = full if case.causal else module(True)(x)
        return full, past, by_steps_nnx(module(case.encoding.claims.causal_only), x)

    full, past, steps = util.jit(run)(X)
    assert_close(full, by_hand(X, wanted(case, causal=case.causal), K))
    assert_close(steps, past)


@pytest.mark.parametrize(
    "case", [c for c in SUMS if c.name in ("shaw+t5", "deberta+rope")], ids=str
)
def test_in_linen_it_is_attention_and_decoding_equals_the_full_pass(case):
    """The sums take every slot through it; what it does with one is the same in Linen and NNX."""

    def run(x):
        variables = {"params": weights()}
        full = of_linen(adapter(case, causal=True)).apply(variables, x)
        return full, by_steps_linen(of_linen(adapter(case, causal=True), decode=True), variables, x)

    full, steps = util.jit(run)(X)
    assert_close(full, by_hand(X, wanted(case, causal=True)))
    assert_close(steps, full)


def called(fn, *args, **kwargs):
    """fn(*args, **kwargs), compiled; arrays all of them."""
    return util.jit(lambda args, kwargs: fn(*args, **kwargs))(args, kwargs)


MASK = np.random.default_rng(0).random((B, H, T, T)) < 0.5
MASK |= np.eye(T, dtype=bool)  # stock averages all values where a query sees nothing
OPTIONS = [
    {},
    {"dtype": jnp.bfloat16},
    {"normalize_qk": True, "precision": jax.lax.Precision.HIGHEST},
    {"dropout_rate": 0.4, "deterministic": False},
    {"dropout_rate": 0.4, "deterministic": False, "broadcast_dropout": False},
    {"dropout_rate": 0.4, "deterministic": True},
]


def assert_same(ours, stock):
    assert ours.dtype == stock.dtype
    assert_close(ours, stock, tol=2e-2 if ours.dtype == jnp.bfloat16 else 1e-5)


@pytest.mark.parametrize(
    "options, mask",
    [(o, "BHTS") for o in OPTIONS] + [({}, "none"), ({}, "11TS")],
    ids=str,
)
def test_without_an_encoding_it_is_linens_own_attention(options, mask):
    given = {"BHTS": MASK, "11TS": MASK[:1, :1].astype(np.float32), "none": None}[mask]

    def run(x, mask):
        for fn in (adapters.attention_fn(Encoding(), causal=False), nn.dot_product_attention):
            module = of_linen(fn, **options)
            scale = {"scale": jnp.ones(E)}
            norms = {"query_ln": scale, "key_ln": scale} if module.normalize_qk else {}
            rngs = {"dropout": jax.random.key(1)}
            yield module.apply({"params": weights() | norms}, x, mask=mask, rngs=rngs)

    assert_same(*util.jit(lambda *args: tuple(run(*args)))(X, given))


@pytest.mark.parametrize(
    "options, causal", [({}, False), ({}, True), (OPTIONS[1], True), (OPTIONS[3], True)], ids=str
)
def test_without_an_encoding_it_is_nnxs_own_attention(options, causal):
    def run(x):
        for fn in (adapters.attention_fn(Encoding(), causal=False), nnx.dot_product_attention):
            module = fill(of_nnx(fn, rngs=nnx.Rngs(0, dropout=1), num_kv_heads=H, **options))
            yield module(x, mask=MASK, is_causal=causal)

    assert_same(*util.jit(lambda x: tuple(run(x)))(X))


def test_the_weights_are_sown_as_stock_does():
    def linen(fn, x):
        shown = {"sow_weights": True, "mutable": ["intermediates"]}
        return of_linen(fn).apply({"params": weights()}, x, **shown)

    def capture(fn, x):
        run = nnx.capture(fill(of_nnx(fn)), nnx.Intermediate)
        return run(x, sow_weights=True)[1]["attention_weights"][0]

    stock = nn.dot_product_attention, nnx.dot_product_attention
    for run, theirs in zip((linen, capture), stock, strict=True):
        ours = functools.partial(
            adapters.attention_fn, Encoding(), causal=False
        )  # it keeps what is sown
        assert_close(*util.jit(lambda x: (run(ours(), x), run(theirs, x)))(X))  # noqa: B023


def test_stock_modules_know_no_argument_that_it_would_miss():
    """Linen drops what it does not find in the signature, without a word."""
    ours = set(inspect.signature(adapters.attention_fn(Encoding(), causal=False)).parameters)
    linens = set(inspect.signature(nn.dot_product_attention).parameters)
    # its softmax is float32 anyway; the modules do not pass the other
    assert linens - ours == {"force_fp32_for_softmax", "einsum_dot_general"}
    assert set(inspect.signature(nnx.dot_product_attention).parameters) - ours == {"promote_dtype"}
    stock = list(inspect.signature(nn.dot_product_attention).parameters)[:12]
    assert (
        list(inspect.signature(adapters.attention_fn(Encoding(), causal=False)).parameters)[:12]
        == stock
    )


def heads():
    return tuple(noise(B, T, H, E, seed=i) for i in range(3))


@pytest.mark.parametrize(
    "mask", [MASK, MASK[0, :1], MASK[0, 0], None], ids=["BHTS", "1TS", "TS", ""]
)
def test_any_mask_and_bias_are_honoured_beside_an_encoding(mask):
    """ALiBi with them is stock attention with ALiBi's matrix among the biases."""
    bias, place = noise(B, 1, T, T, seed=5), np.arange(T)
    far = util.distance_bias(pe_jax.make("alibi"), NONE, place[:, None] - place, DIMS)
    fn = adapters.attention_fn(pe_jax.make("alibi"), NONE, causal=False)
    got = called(fn, *heads(), bias=bias, mask=mask)
    stock = called(nn.dot_product_attention, *heads(), bias=bias + far, mask=mask)
    assert_close(got, stock)


def test_several_batch_axes_and_none_are_as_one():
    fn = adapters.attention_fn(pe_jax.make("alibi"), causal=False)
    q, k, v = (np.stack([x, x + 1]) for x in heads())
    mask = np.stack([MASK, ~MASK])
    got = called(fn, q, k, v, mask=mask)
    none = util.jit(lambda *args: fn(*args[:3], mask=args[3]))
    for i, j in np.ndindex(2, B):
        assert_close(got[i, j], none(q[i, j], k[i, j], v[i, j], mask[i, j]))


def test_a_query_that_sees_nothing_gives_zeros_and_finite_gradients():
    fn = adapters.attention_fn(pe_jax.make("rope"), causal=False)
    mask = MASK.copy()
    mask[0, :, 3] = False
    assert not np.asarray(called(fn, *heads(), mask=mask)[0, 3]).any()
    grads = util.jit(jax.grad(lambda args: (fn(*args, mask=mask) ** 2).sum()))(heads())
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize("spec", ["cope(positions=4)", "alibi+dape(hidden=5)"])
def test_where_masks_differ_by_head_each_head_has_its_own(spec):
    """CoPE counts what the mask shows; DAPE reads the scores of all heads."""
    (encoding,) = pe_jax.parse(spec)
    fn = adapters.attention_fn(encoding, util.random_params(encoding), causal=False)

    def run(q, k, v, mask):
        alone = [fn(q, k, v, mask=mask[:, h : h + 1])[:, :, h] for h in range(H)]
        return fn(q, k, v, mask=mask), jnp.stack(alone, axis=2)

    assert_close(*util.jit(run)(*heads(), MASK))


def test_segments_window_and_sinks_are_the_masks_that_they_stand_for():
    segments = np.repeat([[0, 1, 2], [0, 0, 1]], [5, 5, 3], axis=1)
    first = np.asarray(per_segment(segments)) < 2
    same = segments[:, :, None] == segments[:, None]
    far = np.arange(T)[:, None] - np.arange(T)
    encoding = pe_jax.make("rope")
    make = functools.partial(adapters.attention_fn, encoding)
    seen = (same & (far >= 0) & ((far < 3) | first[:, None]))[:, None]
    plain = called(make(causal=True, window=3, sinks=2, segments=segments), *heads())
    assert_close(plain, called(make(causal=False), *heads(), mask=seen))


def test_a_step_stands_where_the_newest_key_of_its_mask_does():
    """Old keys may be hidden (padding on the left), and the newest one in some rows."""
    encoding = pe_jax.parse("t5+rope")[0]
    fn = adapters.attention_fn(encoding, util.random_params(encoding), causal=False)
    run = util.jit(lambda *args: fn(*args[:3], mask=args[3]))
    q, k, v = heads()
    for at in (0, 5, T - 1):
        mask = np.broadcast_to(np.arange(T) <= at, (B, 1, 1, T)).copy()
        mask[0, ..., : at // 2] = False
        mask[1, ..., at] = at == 0
        whole = np.ones((B, 1, T, T), bool) & mask
        want = run(q, k, v, whole)[:, at : at + 1]
        assert_close(run(q[:, at : at + 1], k, v, mask), want)


def test_a_step_keeps_to_positions_segments_window_and_cause():
    positions, segments = np.arange(T)[::-1] * 3, np.repeat([[0, 1]] * B, [4, T - 4], axis=1)
    for settings in ({"positions": positions}, {"segments": segments, "window": 3, "sinks": 1}):
        fn, at = adapters.attention_fn(pe_jax.make("rope"), causal=True, **settings), 8
        old = (np.arange(T) <= at)[None, None, None]

        def both(q, k, v):
            return fn(q, k, v)[:, at : at + 1], fn(q[:, at : at + 1], k, v, mask=old)  # noqa: B023

        assert_close(*util.jit(both)(*heads()))


def test_queries_of_another_sequence_have_positions_of_their_own():
    q, k, v = heads()
    q, places = q[:, :5], (np.arange(5) * 2, np.arange(T))
    rope = pe_jax.make("rope")
    given = {"positions": places[1], "q_positions": places[0]}
    fn = adapters.attention_fn(rope, causal=False, **given)
    options = {"q_positions": places[0], "k_positions": places[1], "causal": False}
    direct = functools.partial(pe_jax.attention, encoding=pe_jax.make("rope"), **options)
    assert_close(*util.jit(lambda *args: (fn(*args), direct(*args)))(q, k, v))


LEARNED = ("shaw", "deberta")  # a layer's own; the model's, too


@pytest.mark.parametrize("name", LEARNED)
def test_linen_holds_the_parameters_and_gradients_reach_them(name):
    encoding = pe_jax.make(name, **util.SMALL.get(name, [{}])[0])

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x):
            shared = self.param("shared", encoding.init_shared, DIMS)
            layer = self.param("layer", encoding.init_layer, DIMS)
            fn = adapters.attention_fn(encoding, Params(shared, layer), causal=True)
            return of_linen(fn)(x)

    shared, layer = util.random_params(encoding)
    inside = {"MultiHeadDotProductAttention_0": weights()}
    variables = {"params": {"shared": shared, "layer": layer} | inside}
    loss = util.jit(jax.grad(lambda v: (Layer().apply(v, X) ** 2).sum()))
    grads = loss(variables)["params"]
    leaves = jax.tree.leaves([grads["shared"], grads["layer"]])
    assert leaves and all(np.abs(g).max() > 0 for g in leaves)


@pytest.mark.parametrize("name", LEARNED)
def test_nnx_holds_the_parameters_and_gradients_reach_them(name):
    encoding = pe_jax.make(name, **util.SMALL.get(name, [{}])[0])
    values = [util.random_params(encoding, seed=n) for n in (1, 2)]

    def grads(x):
        own, other = (jax.tree.map(nnx.Param, p) for p in values)
        pair = own, other._replace(shared=own.shared)
        fns = [adapters.attention_fn(encoding, p, causal=True) for p in pair]
        stack = nnx.List([fill(of_nnx(fn)) for fn in fns])
        found = nnx.grad(lambda s: (s[1](s[0](x)) ** 2).sum())(stack)
        return {"/".join(map(str, path)): g[...] for path, g in nnx.to_flat_state(found)}

    found = {path: g for path, g in util.jit(grads)(X).items() if "attention_fn" in path}
    shared = [path for path in found if "shared" in path]
    assert len(shared) == len(jax.tree.leaves(values[0].shared))  # one table for both layers
    assert found and all(np.abs(g).max() > 0 for g in found.values())


def test_an_nnx_module_takes_no_bare_arrays_which_it_would_not_train():
    params = util.random_params(SHAW)
    refused = "Found data on value of type .*LinenAttentionFn.* static attribute 'attention_fn'"
    for bare in (params, jax.tree.map(np.asarray, params)):
        with pytest.raises(ValueError, match=refused):
            of_nnx(adapters.attention_fn(SHAW, bare))
    fixed = of_nnx(adapters.attention_fn(SHAW, jax.tree.map(nnx.Variable, params)))
    _, trained, others = nnx.split(fixed, nnx.Param, ...)
    assert "attention_fn" in others and "attention_fn" not in trained


SETTINGS: dict[str, dict] = {
    "window": {"window": 3, "sinks": 1},
    "positions": {"positions": np.arange(T)[::-1]},
    "segments": {"segments": np.arange(T) // 5},
    "dims": {"dims": DIMS, "causal": False, "embedded": True},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_equal_adapters_are_equal_and_others_are_not(settings):
    arrays = util.random_params(SHAW)
    for params in (arrays, jax.tree.map(nnx.Param, arrays)):

        def make(encoding=SHAW, params=params):
            return adapters.attention_fn(encoding, params, **copy.deepcopy(SETTINGS[settings]))

        assert make() == make() and hash(make()) == hash(make())
        assert of_linen(make()) == of_linen(make())
        assert make() not in (adapters.attention_fn(SHAW, params), "shaw")
        assert make() != make(pe_jax.make("shaw", clip=3))
        assert make() != make(params=util.random_params(SHAW, seed=2))


def test_modules_with_equal_adapters_are_compiled_once():
    traced = []

    @functools.partial(jax.jit, static_argnums=0)
    def apply(module, variables, x):
        traced.append(module)
        return module.apply(variables, x)

    for _ in range(2):
        fn = adapters.attention_fn(pe_jax.make("rope"), positions=np.arange(T))
        apply(of_linen(fn), {"params": weights()}, X)
    assert len(traced) == 1
    apply(of_linen(adapters.attention_fn(ROPE, window=3)), {"params": weights()}, X)
    assert len(traced) == 2


def test_a_module_with_parameters_given_is_rematerialized():
    """Lifted transforms of Linen take its attributes apart, as pytrees."""
    fn = adapters.attention_fn(SHAW, util.random_params(SHAW))
    again = nn.remat(nn.MultiHeadDotProductAttention)(num_heads=H, attention_fn=fn)
    one, two = (module.apply({"params": weights()}, X) for module in (of_linen(fn), again))
    assert_close(one, two)


def test_without_a_mask_memory_is_linear():
    fn = adapters.attention_fn(pe_jax.make("alibi"), causal=True)
    x = jax.ShapeDtypeStruct((1, 4096, 1, 8), jnp.float32)
    compiled = jax.jit(fn).lower(x, x, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096**2


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: adapters.attention_fn("rope", causal=False),
            TypeError,
            "encoding='rope': pass one layer's encoding, what pe_jax.make",
        ),
        (
            lambda: adapters.attention_fn(ROPE, {}, causal=False),
            TypeError,
            "params is a dict; pass pe_jax.Params",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False, window=0),
            ValueError,
            "window=0: pass an integer",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False, sinks=1),
            ValueError,
            "sinks=1: pass a window too",
        ),
        (lambda: adapters.attention_fn(ROPE, causal="no"), ValueError, "causal='no': pass True"),
        (
            lambda: adapters.attention_fn(pe_jax.parse("sinusoidal+rope")[0], causal=False),
            ValueError,
            r"adds to the input of the first layer.*x = encoding.embed\(params, x, positions\)",
        ),
        (
            lambda: adapters.attention_fn(pe_jax.make("fox"), causal=True),
            ValueError,
            r"reads the layer's input.*pe_jax.attention\(q, k, v, x=x",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(
                *heads(), mask=np.where(MASK, 0, -1e9)
            ),
            ValueError,
            "mask holds -1000000000.0: pass booleans; an additive mask is a bias",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), mask=MASK[:, :3]),
            ValueError,
            r"mask=\(2, 3, 13, 13\): pass a shape that broadcasts to \(2, 4, 13, 13\)",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(heads()[0][:, :3], *heads()[1:]),
            ValueError,
            "q has 3 tokens and k has 13: pass positions and q_positions",
        ),
        (
            lambda: adapters.attention_fn(
                ROPE, causal=True, positions=np.arange(T), q_positions=np.arange(3)
            )(heads()[0][:, :3], *heads()[1:]),
            ValueError,
            "causal=True: the queries are other tokens than the keys: pass a mask",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), dropout_rate=0.1),
            ValueError,
            "dropout_rng=None: pass a key, or no dropout_rate",
        ),
        (
            lambda: adapters.attention_fn(ROPE, causal=False)(*heads(), precision=3),
            ValueError,
            "precision=3: pass None, a jax.lax.Precision or its name",
        ),
        (
            lambda: of_linen(
                adapters.attention_fn(ROPE, causal=False),
                qk_attn_weights_einsum_cls=lambda: jnp.einsum,
                attn_weights_value_einsum_cls=lambda: jnp.einsum,
            ).init(jax.random.key(0), X),
            ValueError,
            "qk_attn_weights_einsum=.*scores are not one einsum here: leave it out",
        ),
        (
            lambda: adapters.attention_fn(pe_jax.make("t5"), causal=True)(*heads()),
            ValueError,
            "params=None, but T5 has parameters",
        ),
    ],
)
def test_what_cannot_work_says_why(make, error, message):
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_precision_is_that_of_the_module():
    fn = adapters.attention_fn(ROPE, causal=False)
    for given in (None, "highest", jax.lax.Precision.HIGHEST):
        program = jax.make_jaxpr(functools.partial(fn, precision=given))(*heads())
        assert ("Precision.HIGHEST" in str(program)) == (given is not None)


def refused(message: str, call, *args, error=ValueError, **given):
    with pytest.raises(error, match=message) as caught:
        call(*args, **given)
    assert "\n" not in str(caught.value)


def test_later_tokens_are_hidden_unless_told_and_schemes_of_several_axes_must_be_told():
    assert_close(adapters.attention_fn(ROPE)(*heads()), pe_jax.attention(*heads(), encoding=ROPE))
    places = np.zeros((T, 2), np.int32)
    axes = "causal=None: RoPE2D has 2 axes; pass True, or False to see all"
    refused(axes, adapters.attention_fn, pe_jax.make("rope_2d"), positions=places)


def test_a_one_sided_scheme_needs_a_mask_that_hides_what_is_ahead():
    """Stock modules pass theirs at the call: it is looked at there, where it is known."""
    encoding, past = pe_jax.make("t5"), np.tri(T, dtype=bool)
    params = util.random_params(encoding)
    fn = adapters.attention_fn(encoding, params, causal=False)
    want = adapters.attention_fn(encoding, params, causal=True)(*heads())
    assert_close(fn(*heads(), mask=past), want)
    assert_close(fn(*heads(), is_causal=True), want)
    assert_close(called(fn, *heads(), mask=past), want)  # one that is not known is believed
    assert_close(fn(*heads(), mask=past[None, None] & (np.arange(T) > -1)), want)
    alike = "all later tokens look alike to T5; make it with bidirectional=True"
    refused("causal=False: " + alike, fn, *heads())
    refused("causal=False: " + alike, fn, *heads(), bias=np.zeros((T, T)))
    for mask in (past.T, np.ones((B, 1, 1, T), bool), MASK):
        refused("mask='…': " + alike, fn, *heads(), mask=mask)
    xpos = "causal=False: XPos is for causal attention alone"
    refused(xpos, adapters.attention_fn, pe_jax.make("xpos"), causal=False)


def test_a_scaling_that_depends_on_the_length_is_set_as_attention_sets_it():
    free = pe_jax.make("rope", scaling=DynamicNTK(8.0, 4))
    full = functools.partial(adapters.attention_fn, causal=True)
    want = full(free.at_length(T))(*heads())
    assert np.abs(want - full(ROPE)(*heads())).max() > 0.01
    np.testing.assert_array_equal(full(free)(*heads()), want)
    q, k, v = heads()
    step = {"mask": np.ones((B, 1, 1, T), bool)}
    said = r"depends on the length of the whole sequence.*encoding.at_length\(total_length\)"
    refused(said, full(free), q[:, -1:], k, v, **step)
    refused(said, full(free, positions=np.arange(T)), *heads())
    last = full(free.at_length(T))(q[:, -1:], k, v, **step)
    assert_close(last, want[:, -1:])


def test_parameters_fit_the_width_that_is_told():
    """A module's features need not be the model's width, from which DeBERTa projects its table."""
    encoding = pe_jax.make("deberta", buckets=None, max_distance=4)
    dims = pe_jax.Dims(24, H, H, E)
    params = util.random_params(encoding, dims)
    make = functools.partial(adapters.attention_fn, encoding, params, causal=True)
    refused(r"params.shared.table has shape \[8, 24\]; DeBERTa takes \[8, 32\]", make(), *heads())
    want = pe_jax.attention(*heads(), encoding=encoding, params=params, dims=dims)
    assert_close(make(dims=dims)(*heads()), want)

"""The adapter in stock modules: it is `pe_jax.attention`, or without an encoding their own."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from pe_jax import Encoding
from pe_jax.models import adapters
from tests import util
from tests.adapters.common import MASK, ROPE, X, fill, heads, of_linen, of_nnx, weights
from tests.util import SINGLE, SUMS, E, H, K, T, assert_close


def adapter(case, params=None, **options):
    params = util.random_params(case.encoding) if params is None else params
    if case.encoding.claims.axes > 1:
        options.setdefault("positions", util.spread(case, util.contiguous(T)))
    return adapters.attention_fn(case.encoding, params, embedded=True, **options)


def by_hand(x, attend, kv_heads=H):
    """The stock module's projections, with `attend` between them."""
    w = weights(kv_heads)
    q, k, v = (
        jnp.einsum("btd,dhe->bthe", x, w[name]["kernel"]) + w[name]["bias"]
        for name in ("query", "key", "value")
    )
    return jnp.einsum("bthe,hed->btd", attend(q, k, v), w["out"]["kernel"]) + w["out"]["bias"]


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


@pytest.mark.parametrize("name", ["rope", "alibi", None])
def test_an_encoding_may_be_given_by_its_name(name):
    fn = adapters.attention_fn(name, causal=True)
    attend = functools.partial(pe_jax.attention, encoding=name, implementation="dense")

    def run(x):
        linen = of_linen(fn).apply({"params": weights()}, x)
        return linen, fill(of_nnx(fn))(x), by_hand(x, attend), by_hand(x, attend, K)

    linen, module, every_head, grouped = util.jit(run)(X)
    assert_close(linen, every_head)
    assert_close(module, grouped)


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
    "options, mask", [(o, "BHTS") for o in OPTIONS] + [({}, "none"), ({}, "11TS")], ids=str
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


def test_positions_of_a_call_are_those_that_the_module_passes():
    """Flax passes them from 0.12.12 on, where `nnx.RoPE` turns by them."""
    q, (fn, at) = heads(), (adapters.attention_fn("rope", causal=True), np.arange(T) * 3)
    want = pe_jax.attention(*q, encoding=ROPE, causal=True, q_positions=at)
    assert_close(fn(*q, input_positions=at), want, 1e-6)
    assert_close(fn(*q, input_positions=np.tile(at, (len(q[0]), 1))), want, 1e-6)
    given = adapters.attention_fn("rope", causal=True, positions=at)
    with pytest.raises(ValueError, match="attention_fn was given positions too"):
        given(*q, input_positions=at)
    step = q[0][:, :1], *q[1:]
    with pytest.raises(ValueError, match=r"keys without their positions: .*nnx\.Position"):
        fn(*step, mask=np.ones((1, 1, 1, T), bool), input_positions=at[:1])


def test_without_a_mask_memory_is_linear():
    fn = adapters.attention_fn(pe_jax.make("alibi"), causal=True)
    x = jax.ShapeDtypeStruct((1, 4096, 1, 8), jnp.float32)
    compiled = jax.jit(fn).lower(x, x, x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096**2


def test_the_precision_is_that_of_the_module():
    fn = adapters.attention_fn(ROPE, causal=False)
    for given in (None, "highest", jax.lax.Precision.HIGHEST):
        program = jax.make_jaxpr(functools.partial(fn, precision=given))(*heads())
        assert ("Precision.HIGHEST" in str(program)) == (given is not None)

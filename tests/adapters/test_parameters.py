"""Parameters in stock modules: they are held, trained, compared, and fit."""

import copy
import functools

import jax
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from pe_jax import Params
from pe_jax.models import adapters
from tests import util
from tests.adapters.common import ROPE, SHAW, X, fill, heads, of_linen, of_nnx, refused, weights
from tests.util import DIMS, E, H, T, assert_close

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
    one, two = (jax.jit(module.apply)({"params": weights()}, X) for module in (of_linen(fn), again))
    assert_close(one, two)


def test_parameters_fit_the_width_that_is_told():
    """A module's features need not be the model's width, from which DeBERTa projects its table."""
    encoding = pe_jax.make("deberta", buckets=None, max_distance=4)
    dims = pe_jax.Dims(24, H, H, E)
    params = util.random_params(encoding, dims)
    make = functools.partial(adapters.attention_fn, encoding, params, causal=True)
    refused(r"params.shared.table has shape \[8, 24\]; DeBERTa takes \[8, 32\]", make(), *heads())
    want = pe_jax.attention(*heads(), encoding=encoding, params=params, dims=dims)
    assert_close(make(dims=dims)(*heads()), want)

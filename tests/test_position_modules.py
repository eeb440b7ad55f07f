"""`pe_jax.nnx.Position` and `pe_jax.linen.Position`: an encoding as a part of a model."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import pe_jax
from tests import util
from tests.util import DIMS, B, E, H, K, T, assert_close

SCHEMES = ("rope", "t5", "shaw+rope", "fox", "nope")


class Layers(nnx.Module):
    """Two layers of NNX, the second with the shared parameters of the first."""

    def __init__(self, scheme, **options):
        rngs = nnx.Rngs(0)
        self.first = pe_jax.nnx.Position(scheme, DIMS, rngs=rngs, **options)
        self.second = pe_jax.nnx.Position(scheme, DIMS, rngs=rngs, shared=self.first, **options)

    def __call__(self, q, k, v, caches=(None, None), **options):
        out, first = self.first(q, k, v, caches[0], x=util.flat(q), **options)
        out, second = self.second(out, k, v, caches[1], x=util.flat(q), **options)
        return out, (first, second)


class LinenLayers(nn.Module):
    """The same of Linen."""

    scheme: str
    window: int | None = None

    def setup(self):
        self.first = pe_jax.linen.Position(self.scheme, DIMS, window=self.window)
        self.second = pe_jax.linen.Position(self.scheme, DIMS, self.first, self.window)

    def __call__(self, q, k, v, caches=(None, None), **options):
        out, first = self.first(q, k, v, caches[0], x=util.flat(q), **options)
        out, second = self.second(out, k, v, caches[1], x=util.flat(q), **options)
        return out, (first, second)

    def caches(self):
        return self.first.cache(B, T), self.second.cache(B, T)


def functional(scheme, params, qkv, **options):
    """What the layers compute, by `attention`."""
    q, k, v = qkv
    options |= {"encoding": scheme, "dims": DIMS, "x": util.flat(q)}
    for own in params:
        q = pe_jax.attention(q, k, v, params=own, **options)
    return q


@functools.cache
def linen_variables(scheme):
    layers, qkv = LinenLayers(scheme), util.inputs()
    return layers, jax.jit(layers.init)(jax.random.key(0), *qkv)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_modules_compute_what_attention_does(scheme):
    qkv, model = util.inputs(), Layers(scheme)
    params = model.first.params, model.second.params
    want = functional(scheme, params, qkv)
    assert_close(nnx.jit(lambda model, qkv: model(*qkv)[0])(model, qkv), want, 1e-5)
    layers, variables = linen_variables(scheme)
    own = variables.get("params", {})
    shared = own.get("first", {}).get("shared", {})
    params = [pe_jax.Params(shared, own.get(n, {}).get("layer", {})) for n in ("first", "second")]
    want = functional(scheme, params, qkv)
    assert_close(jax.jit(layers.apply)(variables, *qkv)[0], want, 1e-5)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_modules_decode_with_their_caches(scheme):
    qkv, model = util.inputs(), Layers(scheme)
    whole = nnx.jit(lambda model, qkv: model(*qkv)[0])(model, qkv)
    caches = model.first.cache(B, T), model.second.cache(B, T)
    step = nnx.jit(lambda model, caches, qkv: model(*qkv, caches))
    outs = []
    for part in (slice(0, 8), slice(8, 9), slice(9, T)):
        out, caches = step(model, caches, [x[:, part] for x in qkv])
        outs.append(out)
    assert_close(jnp.concatenate(outs, 1), whole, 1e-5)
    layers, variables = linen_variables(scheme)
    whole = jax.jit(layers.apply)(variables, *qkv)[0]
    caches = layers.apply(variables, method="caches")
    apply, outs = jax.jit(layers.apply), []
    for part in (slice(0, 8), slice(8, T)):
        out, caches = apply(variables, *[x[:, part] for x in qkv], caches)
        outs.append(out)
    assert_close(jnp.concatenate(outs, 1), whole, 1e-5)


def test_a_scheme_without_parameters_adds_nothing_to_a_checkpoint():
    assert not nnx.to_flat_state(nnx.state(Layers("rope")))
    _, variables = linen_variables("rope")
    assert not jax.tree.leaves(variables) and not variables.get("params")


def test_layers_share_one_table_and_train_it():
    model, qkv = Layers("t5"), util.inputs()
    paths = [path for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    assert len(paths) == 1  # of two layers
    grads = nnx.grad(lambda model: (model(*qkv)[0] ** 2).sum())(model)
    assert np.abs(jax.tree.leaves(grads)[0]).max() > 0
    (axes,) = jax.tree.leaves(model.first.logical_axes())
    assert axes == jax.sharding.PartitionSpec("heads", None)
    layers, variables = linen_variables("t5")
    (table,) = jax.tree.leaves(variables)
    (grad,) = jax.tree.leaves(jax.grad(lambda p: (layers.apply(p, *qkv)[0] ** 2).sum())(variables))
    assert grad.shape == table.shape and np.abs(grad).max() > 0


def test_windows_positions_and_padding_reach_attention():
    qkv, model = util.inputs(), Layers("rope", window=4)
    ids, at = np.repeat([[0, 1]], [5, T - 5], 1), np.arange(T) * 3
    got = model(*qkv, positions=at, segments=np.tile(ids, (B, 1)))[0]
    options = {"q_positions": at, "q_segments": np.tile(ids, (B, 1)), "window": 4}
    assert_close(got, functional("rope", [model.first.params] * 2, qkv, **options), 1e-5)
    assert model.first.cache(B, T).capacity == 4


def test_what_does_not_fit_is_refused():
    rngs = nnx.Rngs(0)
    first = pe_jax.nnx.Position("t5", DIMS, rngs=rngs)
    with pytest.raises(ValueError, match=r"shared=.*layers that share parameters have one scheme"):
        pe_jax.nnx.Position("rope", DIMS, rngs=rngs, shared=first)
    with pytest.raises(TypeError, match="shared is a Params; pass the Position of an earlier"):
        pe_jax.nnx.Position("t5", DIMS, rngs=rngs, shared=first.params)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="head_dim"):
        pe_jax.nnx.Position("rope", pe_jax.Dims(21, 3, 3, 7), rngs=rngs)
    q = jnp.ones((B, T, H, E))
    with pytest.raises(ValueError, match="dims"):
        first(q[:, :, :2], q[:, :, :K], q[:, :, :K])


def test_what_is_added_to_the_input_is_added_by_embed():
    position = pe_jax.nnx.Position("learned(length=32)", DIMS, rngs=nnx.Rngs(0))
    x = jnp.asarray(util.noise(B, T, DIMS.width))
    added = position.embed(x, np.arange(T)) - x
    (table,) = jax.tree.leaves(position.params)
    assert_close(added[0], table[:T], 1e-6)
    out, _ = position(*util.inputs(), embedded=True)
    assert_close(out, functional("nope", [pe_jax.Params({}, {})], util.inputs()), 1e-5)

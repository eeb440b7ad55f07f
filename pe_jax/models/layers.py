"""Parts of a Transformer (Flax NNX): projections, attention with an encoding, MLP, block.

Parameters are float32, activations the config's `dtype`. B batch, T tokens, D width.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.encodings import gated_delta, terms
from pe_jax.encodings.base import Params, Recurrent
from pe_jax.encodings.windowed import Windowed
from pe_jax.engines import checks
from pe_jax.engines.api import attention
from pe_jax.engines.decoding import cache as caches
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted
from pe_jax.engines.tiled.sizes import alone, devices
from pe_jax.models.config import DTYPES, ModelConfig
from pe_jax.numerics.arrays import align, pick
from pe_jax.validation import ConfigError


def _offset(arrays, *, dtype):
    """The input, and 1 + w: in float32, as 1 + w in bfloat16 would lose most of w."""
    x, scale = arrays
    return x.astype(dtype), 1 + scale.astype(jnp.float32)


OFFSET: dict[str, Any] = {"scale_init": nnx.initializers.zeros, "promote_dtype": _offset}
# by their names in a config
ACTIVATIONS: dict[str, Callable] = {
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
}
NORMS: dict[str, Callable] = {
    "rms": nnx.RMSNorm,
    "rms_offset": functools.partial(nnx.RMSNorm, **OFFSET),
    "layer": nnx.LayerNorm,
    "layer_unbiased": functools.partial(nnx.LayerNorm, use_bias=False),
}


class Linear(nnx.Linear):
    """A projection that merges B and T: on CPU a weight's gradient then takes 0.6 of the time.

    Not on several devices: if B and T are both sharded, they cannot be one axis.
    """

    def __call__(self, inputs, out_sharding=None):
        """[..., D] → [..., D']."""
        if not alone(devices(inputs)):
            return super().__call__(inputs, out_sharding)
        rows = super().__call__(jax.lax.collapse(inputs, 0, -1), out_sharding)
        return rows.reshape(*inputs.shape[:-1], rows.shape[-1])


def linear(
    config: ModelConfig, part: str, shape_in: int, shape_out: int, rngs, stddev: float
) -> Linear:
    """A projection of a part (`ModelConfig.biased`); its weights are drawn with `stddev`."""
    return Linear(
        shape_in,
        shape_out,
        use_bias=config.biased(part),
        kernel_init=nnx.initializers.truncated_normal(stddev),
        dtype=DTYPES[config.dtype],
        rngs=rngs,
    )


def norm(config: ModelConfig, width: int, rngs):
    """The norm that the config chooses."""
    kind, dtype = NORMS[config.norm], DTYPES[config.dtype]
    return kind(width, epsilon=config.norm_epsilon, dtype=dtype, rngs=rngs)


class Attention(nnx.Module):
    """Self-attention: projections, the encoding of this layer, and an engine."""

    def __init__(self, config: ModelConfig, encoding: Windowed, rngs: nnx.Rngs):
        dims, width = encoding.layer_dims(config.dims), config.width
        self.config, self.encoding, self.dims = config, encoding, dims
        inner, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        projected = encoding.query_heads(dims) * dims.head_dim
        # Queries are scaled down where a scheme does not scale scores. T5 (1910.10683) has that in
        # its initial weights, but then a step of AdamW moves its scores sqrt(E) times as far as
        # those of other schemes; here all start alike and learn alike. Content scores start smaller
        # where a paper adds terms and divides by more: DeBERTa (by sqrt(3)) and TUPE (by sqrt(2)).
        held = config.terms_of(encoding)
        parts = terms.select(held, terms.PhaseProduct)  # TAPA's products are of its amplitude
        summed = parts[0].amplitude if parts else dims.head_dim
        own = bool(config.attention_scale)  # that of the weights
        self.fold = 1.0 if own else min(1.0, summed**-0.5 / terms.scale(held, dims.head_dim))
        self.q = linear(config, "qkv", width, projected, rngs, width**-0.5)
        self.k = linear(config, "qkv", width, kv, rngs, width**-0.5)
        self.v = linear(config, "qkv", width, kv, rngs, width**-0.5)
        residual = (2 * config.layers * inner) ** -0.5  # GPT-2's scaling of residual branches
        self.out = linear(config, "out", inner, width, rngs, residual)
        if config.qk_norm:
            per_head = config.qk_norm_over == "head"
            self.q_norm = norm(config, dims.head_dim if per_head else projected, rngs)
            self.k_norm = norm(config, dims.head_dim if per_head else kv, rngs)
        # A separate stream: the other weights are the same for every scheme.
        self.params = nnx.data(jax.tree.map(nnx.Param, encoding.init_layer(rngs.encoding(), dims)))

    def __call__(self, x, shared, positions, segments, cache, layout=CONTIGUOUS) -> tuple[Any, Any]:
        """[B, T, D] → [B, T, D], and the extended cache if there is one."""
        q, k, v = self.vectors(x)
        engine = self.config.attention
        options = self.options(x, shared)
        options["implementation"] = None if engine == "auto" else engine
        if cache is None:
            y = attention(
                q,
                k,
                v,
                causal=self.config.causal,
                q_positions=positions,
                q_segments=segments,
                layout=layout,
                **options,
            )
        else:
            y, cache = caches.extend(cache, q, k, v, positions, segments=segments, **options)
        return self.out(jax.lax.collapse(y, -2)), cache

    def options(self, x, shared) -> dict[str, Any]:
        """What the layer passes to `pe_jax.attention` beside its vectors."""
        return {
            "x": x,
            "encoding": self.encoding,
            "params": Params(shared, nnx.as_pure(self.params)),
            "dims": self.dims,
            "embedded": True,  # by the model, before the first layer
            "scale": self.config.attention_scale or None,
            "logit_cap": self.config.attention_cap or None,
        }

    def vectors(self, x):
        """Queries [B, T, H, E], keys and values [B, T, K, E] before the encoding."""
        q, k, v = (self._heads(projection(x)) for projection in (self.q, self.k, self.v))
        if self.config.qk_norm:
            q, k = self._normed(self.q_norm, q), self._normed(self.k_norm, k)
        if q.shape[-2] < self.dims.heads:  # neighbouring heads share a query
            q = jnp.repeat(q, self.dims.heads // q.shape[-2], axis=-2)
        return (q if self.fold == 1 else self.fold * q), k, v

    def _heads(self, y):
        """[B, T, H·E] → [B, T, H, E], of no tokens too."""
        return y.reshape(*y.shape[:-1], y.shape[-1] // self.dims.head_dim, self.dims.head_dim)

    def _normed(self, norm, y):
        """[B, T, H, E], normalised per head or over all heads."""
        if self.config.qk_norm_over == "head":
            return norm(y)
        return norm(jax.lax.collapse(y, -2)).reshape(y.shape)


class Recurrence(Attention):
    """A layer of the gated delta rule (`pe_jax.encodings.gated_delta`), with its projections.

    As Qwen3-Next's with as many heads of keys as of values: q, k and v pass a convolution over the
    last tokens and SiLU, q and k are normalised, and the output is normalised and gated. What
    `ModelConfig` says of attention (`kv_heads`, `qk_norm`, scale, cap, engine) does not apply.
    Beside attention's 4·W weights, W = width·H·E, it has W of the gate, 2·width·H of β and α,
    3·taps·H·E of the convolution, and 2·H + E. A decay for each channel, from a projection of rank
    E, has (width + H·E)·E + H·E for the width·H + H of α.
    """

    def __init__(self, config: ModelConfig, encoding: Windowed, rngs: nnx.Rngs):
        plain = dataclasses.replace(config, kv_heads=0, qk_norm=False, qk_norm_over="head")
        super().__init__(plain, Windowed(), rngs)
        rule: Any = encoding.encoding
        self.encoding, self.before = encoding, rule.taps - 1  # tokens that the convolution keeps
        dims, width, inner = self.dims, config.width, self.dims.heads * self.dims.head_dim
        own = nnx.Rngs(rngs.encoding())  # a separate stream, as of an encoding's parameters
        self.gate = linear(config, "qkv", width, inner, own, width**-0.5)
        self.beta = linear(config, "qkv", width, dims.heads, own, width**-0.5)
        by_channel = rule.decay == "channel"
        rank = dims.head_dim if by_channel else width
        self.to_decay = linear(config, "qkv", width, rank, own, width**-0.5) if by_channel else None
        decays = (dims.heads, dims.head_dim) if by_channel else (dims.heads,)
        self.decay = linear(config, "qkv", rank, math.prod(decays), own, rank**-0.5)

        def drawn(low: float, high: float, *shape: int) -> jax.Array:
            return jax.random.uniform(own.params(), shape, jnp.float32, low, high)

        bound = rule.taps**-0.5
        self.taps = nnx.Param(drawn(-bound, bound, rule.taps, 3, inner))  # of q, k and v
        # as in flash-linear-attention: α = exp(-A·dt) with A in (0, 16) and dt in (0.001, 0.1)
        self.log_rate = nnx.Param(jnp.log(drawn(0.01, 16, dims.heads)))
        steps = jnp.exp(drawn(math.log(1e-3), math.log(0.1), *decays))
        self.step_bias = nnx.Param(steps + jnp.log(-jnp.expm1(-steps)))  # softplus of it is dt
        self.out_norm = norm(config, dims.head_dim, own)

    def empty_cache(self, batch: int) -> caches.RecurrentCache:
        """The cache before the first token."""
        heads, width = self.dims.heads, self.dims.head_dim
        inputs = batch, self.before, 3, heads * width
        return caches.RecurrentCache(
            state=jnp.zeros((batch, heads, width, width), jnp.float32),
            inputs=jnp.zeros(inputs, DTYPES[self.config.dtype]),
            segment=jnp.zeros(batch, jnp.int32),
        )

    def _checked(self, cache: Any, batch: int) -> caches.RecurrentCache:
        """The cache, if it is one of this layer."""
        if not isinstance(cache, caches.RecurrentCache):
            fix = "pass the model's own, of init_cache"
            raise TypeError(f"cache={type(cache).__name__} of a recurrent layer: {fix}")
        like = jax.eval_shape(lambda: self.empty_cache(batch))
        for name, x in cache._asdict().items():
            checks.shape(f"cache.{name}", x, getattr(like, name).shape)
        return cache

    def __call__(self, x, shared, positions, segments, cache, layout=CONTIGUOUS):
        """[B, T, D] → [B, T, D], and the cache after these tokens if there is one.

        Positions are not read. A document's tokens are adjacent but for padding, which is moved
        behind all tokens.
        """
        if isinstance(layout, BlockPermuted):
            raise ConfigError("layout: a recurrent layer reads whole rows in order; use mesh.seq=1")
        past = self.empty_cache(x.shape[0]) if cache is None else self._checked(cache, x.shape[0])
        if segments is None or not x.shape[1]:
            y, past = self._tokens(x, None, None, past)
            return self.out(y), None if cache is None else past
        is_token = segments >= 0
        order = jnp.argsort(~is_token, axis=1, stable=True)
        x, ids, is_token = (pick(y, order) for y in (x, segments, is_token))
        before = jnp.concatenate([past.segment[:, None], ids[:, :-1]], 1)
        if cache is None:
            before = before.at[:, 0].set(ids[:, 0])
        documents = jnp.cumsum(is_token & (ids != before), axis=1, dtype=jnp.int32)
        y, past = self._tokens(jnp.where(is_token[..., None], x, 0), documents, is_token, past)
        count = is_token.sum(1, dtype=jnp.int32)[:, None]
        last = pick(jnp.concatenate([past.segment[:, None], ids], 1), count)
        out = jnp.where(is_token[..., None], self.out(y), 0)
        out = pick(out, jnp.argsort(order, axis=1))
        return out, None if cache is None else past._replace(segment=last[:, 0])

    def _tokens(self, x, documents, is_token, past):
        """What `out` projects [B, T, H·E], and the cache; tokens come before padding."""
        rows = (*x.shape[:-1], self.dims.heads, self.dims.head_dim)
        inputs = jnp.stack([self.q(x), self.k(x), self.v(x)], -2)
        y = jax.nn.silu(gated_delta.convolve(self.taps[...], inputs, past.inputs, documents))
        q, k, v = (y[:, :, n].reshape(rows).astype(jnp.float32) for n in range(3))
        # Beyond e⁶⁰ all is forgotten; an infinite rate would have no gradient.
        bias, rate = self.step_bias[...], jnp.exp(jnp.minimum(self.log_rate[...], 60.0))
        step = self.decay(x if self.to_decay is None else self.to_decay(x)).astype(jnp.float32)
        step = step.reshape(*x.shape[:-1], *bias.shape)
        step = jax.nn.softplus(step + align(bias, step))
        log_decay = -align(rate.reshape(-1, *(1,) * (bias.ndim - 1)), step) * step
        beta = jax.nn.sigmoid(self.beta(x).astype(jnp.float32))
        if is_token is not None:
            log_decay, beta = (
                jnp.where(is_token.reshape(*is_token.shape, *(1,) * (z.ndim - 2)), z, 0)
                for z in (log_decay, beta)
            )
        out, state = gated_delta.delta_rule(
            unit(q), unit(k), v, log_decay, beta, documents, past.state
        )
        gate = jax.nn.silu(self.gate(x).reshape(rows))
        out = self.out_norm(out.astype(x.dtype)) * gate
        return jax.lax.collapse(out, -2), past._replace(
            state=state, inputs=self._last(inputs, documents, is_token, past.inputs)
        )

    def _last(self, inputs, documents, is_token, before):
        """The inputs of the last tokens of the last document, for `RecurrentCache.inputs`."""
        count, rows = before.shape[1], jnp.concatenate([before, inputs], 1)
        if is_token is None:
            return rows[:, rows.shape[1] - count :]
        index = is_token.sum(1, dtype=jnp.int32)[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
        of = jnp.pad(documents, ((0, 0), (count, 0)))
        same = pick(of, index) == documents[:, -1:]
        return jnp.where(same[..., None, None], pick(rows, index), 0)


def unit(x):
    """Vectors of length 1, as in flash-linear-attention: zeros stay zeros."""
    return x * jax.lax.rsqrt((x**2).sum(-1, keepdims=True) + 1e-6)


class MLP(nnx.Module):
    """A two-layer perceptron, gated or not."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        width, hidden = config.width, config.hidden
        self.activation = ACTIVATIONS[config.activation]
        self.up = linear(config, "mlp", width, hidden, rngs, width**-0.5)
        gated = config.gated
        self.gate = linear(config, "mlp", width, hidden, rngs, width**-0.5) if gated else None
        self.down = linear(config, "mlp", hidden, width, rngs, (2 * config.layers * hidden) ** -0.5)

    def __call__(self, x):
        """[B, T, D] → [B, T, D]."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Block(nnx.Module):
    """One layer: attention and MLP, each added to the stream, with norms as `config.block` says."""

    def __init__(self, config: ModelConfig, encoding: Windowed, rngs: nnx.Rngs):
        width, self.block = config.width, config.block
        self.attention_norm = norm(config, width, rngs)
        recurrent = isinstance(encoding.encoding, Recurrent)
        self.attention = (Recurrence if recurrent else Attention)(config, encoding, rngs)
        if self.block != "parallel_shared":
            self.mlp_norm = norm(config, width, rngs)
        self.mlp = MLP(config, rngs)
        if self.block == "around":
            self.attention_out_norm = norm(config, width, rngs)
            self.mlp_out_norm = norm(config, width, rngs)
        self.dropout = config.dropout

    def __call__(self, x, shared, positions, segments, cache, key, layout=CONTIGUOUS):
        """[B, T, D] → [B, T, D], and the extended cache; `key` is for dropout, None disables it."""
        last, around = self.block == "after", self.block == "around"
        x_norm = x if last else self.attention_norm(x)
        y, cache = self.attention(x_norm, shared, positions, segments, cache, layout)
        if last or around:
            y = self.attention_norm(y) if last else self.attention_out_norm(y)
        if self.block in ("parallel", "parallel_shared"):
            other = self.mlp(self.mlp_norm(x) if self.block == "parallel" else x_norm)
            return x + self._drop(y, key, 0) + self._drop(other, key, 1), cache
        x = x + self._drop(y, key, 0)
        y = self.mlp(x if last else self.mlp_norm(x))
        if last or around:
            y = self.mlp_norm(y) if last else self.mlp_out_norm(y)
        return x + self._drop(y, key, 1), cache

    def _drop(self, x, key, which: int):
        if key is None or not self.dropout:
            return x
        keep_rate = jnp.float32(1 - self.dropout)  # a float64 would draw other numbers
        keep = jax.random.bernoulli(jax.random.fold_in(key, which), keep_rate, x.shape)
        return jnp.where(keep, x / (1 - self.dropout), 0).astype(x.dtype)

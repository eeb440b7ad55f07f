"""Small rebuilt models of three code bases that are no packages: their structure and their names.

* `TransformerLM` of flax's examples/lm1b: stock attention, sinusoids are added to the input;
* `ViT` of google-research/big_vision's models/vit.py: the same with sinusoids of two axes;
* `Qwen3` of jax-ml/bonsai's models/qwen3: rotary attention, a mutable cache, padding.

The method `positions` of the first two has the lines that a borrower replaces.
B batch, T tokens, N heads, K key heads, H head width, D width.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx


class Encoder1DBlock(nn.Module):
    """Stock attention and a feed-forward layer, each after a norm."""

    num_heads: int
    decode: bool = False

    @nn.compact
    def __call__(self, x, attention_fn, mask=None):
        """[B, T, D] to the same."""
        settings = {"decode": self.decode, "attention_fn": attention_fn}
        attend = nn.MultiHeadDotProductAttention(self.num_heads, **settings)
        x += attend(nn.LayerNorm()(x), mask=mask)
        y = nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x))
        return x + nn.Dense(x.shape[-1])(nn.gelu(y))


class TransformerLM(nn.Module):
    """lm1b's language model, of which data and dropout are left out."""

    vocab_size: int
    emb_dim: int = 32
    num_heads: int = 4
    num_layers: int = 2
    max_len: int = 32
    decode: bool = False

    def positions(self, y) -> tuple[jax.Array, list[Callable]]:
        """The input of the first layer, and the attention of each layer."""
        half = self.emb_dim // 2
        rate = jnp.exp(-jnp.log(1e4) / (half - 1) * jnp.arange(half))
        angle = jnp.arange(self.max_len)[:, None] * rate
        table = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=-1)
        start = 0
        if self.decode:
            started = self.has_variable("cache", "cache_index")
            index = self.variable("cache", "cache_index", lambda: jnp.zeros((), jnp.int32))
            start, index.value = index.value, index.value + started
        y += jax.lax.dynamic_slice_in_dim(table, start, y.shape[1])
        return y, [nn.dot_product_attention] * self.num_layers

    @nn.compact
    def __call__(self, inputs):
        """Tokens [B, T] to logits [B, T, vocab_size]; to decode, T is 1."""
        mask = None if self.decode else nn.make_causal_mask(inputs)
        y, attention_fns = self.positions(nn.Embed(self.vocab_size, self.emb_dim)(inputs))
        for attention_fn in attention_fns:
            y = Encoder1DBlock(self.num_heads, self.decode)(y, attention_fn, mask)
        return nn.Dense(self.vocab_size, name="logitdense")(nn.LayerNorm()(y))


class ViT(nn.Module):
    """big_vision's image classifier, with pooling by the mean."""

    num_classes: int
    patch_size: int = 2
    width: int = 32
    depth: int = 2
    num_heads: int = 4

    def positions(self, x, height, width) -> tuple[jax.Array, list[Callable]]:
        """The input of the first layer, and the attention of each layer."""
        rows, columns = (axis.reshape(-1, 1) for axis in jnp.mgrid[:height, :width])
        quarter = self.width // 4
        omega = 1e4 ** -(jnp.arange(quarter) / (quarter - 1))
        parts = [f(at * omega) for at in (columns, rows) for f in (jnp.sin, jnp.cos)]
        return x + jnp.concatenate(parts, axis=1), [nn.dot_product_attention] * self.depth

    @nn.compact
    def __call__(self, image):
        """Images [B, height, width, channels] to logits [B, num_classes]."""
        patch = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, patch, strides=patch, padding="VALID", name="embedding")(image)
        n, h, w, c = x.shape
        x, attention_fns = self.positions(x.reshape(n, h * w, c), h, w)
        for attention_fn in attention_fns:
            x = Encoder1DBlock(self.num_heads)(x, attention_fn)
        return nn.Dense(self.num_classes, name="head")(nn.LayerNorm()(x).mean(axis=1))


class LayerCache(nnx.Module):
    """Keys and values of a layer, where rows begin (-1: not known yet), and tokens so far."""

    def __init__(self, batch, size, num_kv_heads, head_dim):
        shape = batch, size, num_kv_heads, head_dim
        self.k_cache, self.v_cache = nnx.Cache(jnp.zeros(shape)), nnx.Cache(jnp.zeros(shape))
        self.start_ind = nnx.Variable(jnp.full(batch, -1))
        self.cur_ind = nnx.Variable(jnp.zeros((), jnp.int32))


class Attention(nnx.Module):
    """bonsai's: keys are rotated, then kept."""

    def __init__(self, emb_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, *, rngs):
        self.q_proj, self.k_proj, self.v_proj = (
            nnx.Einsum("BTD,DNH->BTNH", (emb_dim, n, head_dim), rngs=rngs)
            for n in (num_heads, num_kv_heads, num_kv_heads)
        )
        self.o_proj = nnx.Einsum("BTNH,NHD->BTD", (num_heads, head_dim, emb_dim), rngs=rngs)
        self.q_norm, self.k_norm = (nnx.RMSNorm(head_dim, rngs=rngs) for _ in range(2))

    def rotated(self, x, positions, base=1e6):
        """[B, T, N, H] turned by positions [B, T], halves of the channels being a pair."""
        half = x.shape[-1] // 2
        angle = positions[..., None, None] * base ** -(jnp.arange(half) / half)
        a, b, cos, sin = x[..., :half], x[..., half:], jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def init_cache(self, batch, size) -> Any:
        """An empty cache."""
        return LayerCache(batch, size, *self.k_proj.kernel_shape[1:])

    def __call__(self, x, cache, segment_ids):
        """[B, T, D] to the same; segment_ids [B, T] are 1, and 0 for padding."""
        cache = cache or self.init_cache(*x.shape[:2])
        t, at = x.shape[1], cache.cur_ind[...]
        pads = (jnp.cumsum(segment_ids, axis=1) == 0).sum(1)
        cache.start_ind[...] = jnp.where(cache.start_ind[...] < 0, pads, cache.start_ind[...])
        first = jnp.argmax(segment_ids, axis=1)[:, None]
        positions = jnp.where(segment_ids > 0, jnp.arange(t) - first, 2**30) + at
        q = self.rotated(self.q_norm(self.q_proj(x)), positions)
        k = self.rotated(self.k_norm(self.k_proj(x)), positions)
        for kept, new in ((cache.k_cache, k), (cache.v_cache, self.v_proj(x))):
            kept[...] = jax.lax.dynamic_update_slice_in_dim(kept[...], new, at, axis=1)
        key = jnp.arange(cache.k_cache.shape[1])
        seen = (key <= at + jnp.arange(t)[:, None]) & (key >= cache.start_ind[...][:, None, None])
        k, v = cache.k_cache[...], cache.v_cache[...]
        cache.cur_ind[...] = at + t
        return self.o_proj(jax.nn.dot_product_attention(q, k, v, mask=seen[:, None]))


class Qwen3(nnx.Module):
    """bonsai's model; norms and feed-forward layers are stock ones."""

    def __init__(self, vocab_size, emb_dim=32, num_layers=2, *, rngs):
        self.embedder = nnx.Embed(vocab_size, emb_dim, rngs=rngs)
        self.layers = nnx.List(Attention(rngs=rngs) for _ in range(num_layers))
        self.mlps = nnx.List(nnx.Linear(emb_dim, emb_dim, rngs=rngs) for _ in range(num_layers))
        self.norm = nnx.RMSNorm(emb_dim, use_scale=False, rngs=rngs)
        self.lm_head = nnx.Linear(emb_dim, vocab_size, rngs=rngs)

    def init_cache(self, batch, size):
        """Empty caches of all layers."""
        return nnx.List(layer.init_cache(batch, size) for layer in self.layers)

    def __call__(self, tokens, caches=None, segment_ids=None):
        """Tokens [B, T] to logits [B, T, vocab_size], and the caches with these tokens."""
        x, each = self.embedder(tokens), caches or [None] * len(self.layers)
        segment_ids = jnp.ones_like(tokens) if segment_ids is None else segment_ids
        for layer, mlp, cache in zip(self.layers, self.mlps, each, strict=True):
            x += layer(self.norm(x), cache, segment_ids)
            x += mlp(nnx.silu(self.norm(x)))
        return self.lm_head(self.norm(x)), caches

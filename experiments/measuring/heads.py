"""What the heads of a model do with positions: read off its queries, keys and weights.

* `pair_norms`: how much each rotated pair of channels has to say. Barbero et al., "Round and round
  we go!" (arXiv 2410.06205, §5), find in Gemma 7B that the lowest frequencies carry most of it, and
  that a few heads use the highest to look at the token before.
* `by_distance`: how far back heads look; `first`: the share of the first token, an attention sink
  (arXiv 2309.17453).
* `without`: the loss if one layer's encoding is left out.

N layers, H query heads, K key heads, T tokens, F rotated pairs, D width, V vocabulary.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pe_jax.encodings import Encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.windowed import Windowed
from pe_jax.engines import reference
from pe_jax.engines.api import attention
from pe_jax.models.layers import Attention, Block
from pe_jax.models.transformer import Transformer
from pe_jax.training.step import token_losses


class Heads(NamedTuple):
    """One layer.

    Attributes:
      span: how many tokens back it sees; None: all.
      frequencies: of its rotation, radians per token, float64 [F]; empty without one.
      pair_norms: for each query head and pair, |q|·|k| of the pair's channels, each the root of the
        mean square over tokens, times the scale of scores: the most that it adds to a score, float
        [H, F].
      by_distance: the weight on keys that are 0, 1, 2 … 3, 4 … 7, … tokens back, without the first
        token, mean over the second half of the queries, float [H, 1 + ceil(log2 T)].
      first: the weight on the first token, mean over the same queries, float [H]; with the row of
        `by_distance` it sums to 1.
    """

    span: int | None
    frequencies: np.ndarray
    pair_norms: np.ndarray
    by_distance: np.ndarray
    first: np.ndarray


class Findings(NamedTuple):
    """A model on one text.

    Attributes:
      without: the loss where this layer has no encoding, float [N]; NaN where it has none anyway.
    """

    layers: list[Heads]
    loss: float
    without: np.ndarray


def bands(length: int) -> list[str]:
    """The distances of each column of `by_distance` for texts of `length` tokens."""
    names, start = ["0"], 1
    while start < length:
        end = min(2 * start, length) - 1
        names.append(str(start) if end == start else f"{start}–{end}")
        start *= 2
    return names


def findings(model: Transformer, tokens: np.ndarray) -> Findings:
    """What the heads of a model do on a text: O(T²) memory per layer, so at most some 2,000 tokens.

    Args:
      model: causal.
      tokens: int [T + 1]; the last is a target alone.
    """
    walk = Walk(model)
    xs, layers = [walk.embed(tokens[:-1])], []
    for layer in range(model.config.layers):
        layers.append(walk.look(layer, xs[-1]))
        xs.append(walk.step(layer, xs[-1]))
    without = np.full(model.config.layers, np.nan)
    for layer in range(model.config.layers):  # N/2 more passes
        if type(walk.encoding(layer).encoding) is Encoding:
            continue
        x = walk.step(layer, xs[layer], bare=True)
        for later in range(layer + 1, model.config.layers):
            x = walk.step(later, x)
        without[layer] = walk.loss(x, tokens[1:])
    return Findings(layers, walk.loss(xs[-1], tokens[1:]), without)


class Walk:
    """A model layer by layer: layers of one slot of the pattern share a program."""

    def __init__(self, model: Transformer):
        self.model, self.period = model, len(model.blocks)
        self.slots = [nnx.split(block) for block in model.blocks]
        self.bare = [nnx.split(without_encoding(block))[0] for block in model.blocks]
        self.graph, self.state = nnx.split(model)

    def encoding(self, layer: int) -> Windowed:
        """The encoding of a layer."""
        return self.model.blocks[layer % self.period].attention.encoding

    def embed(self, tokens: np.ndarray) -> jax.Array:
        """The input of the first layer: [1, T, D]."""
        return _embedded(self.graph, self.state, jnp.asarray(tokens)[None])

    def loss(self, x: jax.Array, targets: np.ndarray) -> float:
        """Nats per token, from the last layer's output."""
        return float(_loss(self.graph, self.state, x, jnp.asarray(targets)[None]))

    def _inputs(self, layer: int) -> tuple[Any, Any]:
        slot = layer % self.period
        state = jax.tree.map(lambda a: a[layer // self.period], self.slots[slot][1])
        return state, nnx.as_pure(self.model.shared[self.model.which[slot]])

    def step(self, layer: int, x: jax.Array, bare: bool = False) -> jax.Array:
        """The output of a layer; `bare`: without its encoding, but with its window."""
        graph = self.bare[layer % self.period] if bare else self.slots[layer % self.period][0]
        return _block(graph, *self._inputs(layer), x)

    def look(self, layer: int, x: jax.Array) -> Heads:
        """What the heads of a layer do with its input."""
        span, encoding = self.encoding(layer).span, self.encoding(layer).encoding
        parts = getattr(encoding, "parts", (encoding,))
        rope = next((part for part in parts if isinstance(part, RoPE)), None)
        graph, (state, shared) = self.slots[layer % self.period][0], self._inputs(layer)
        numbers = jax.device_get(_look(graph, rope, state, shared, x))
        width = self.model.config.dims.head_dim
        theta = np.zeros(0) if rope is None else np.asarray(rope.frequencies(width), np.float64)
        return Heads(span, theta, *numbers)


def without_encoding(block: Block) -> Block:
    """A layer with NoPE and the same weights; it shares their arrays.

    Only for encodings without parameters: NoPE would not read them.
    """
    other = nnx.merge(*nnx.split(block))
    layer = other.attention.encoding
    other.attention.encoding = Windowed(Encoding(), layer.window, layer.sinks, layer.chunk)
    return other


@functools.partial(jax.jit, static_argnums=0)
def _embedded(graph, state, tokens):
    return nnx.merge(graph, state)._embed(tokens, None, None)


@functools.partial(jax.jit, static_argnums=0)
def _block(graph, state, shared, x):
    return nnx.merge(graph, state)(x, shared, None, None, None, None)[0]


@functools.partial(jax.jit, static_argnums=0)
def _loss(graph, state, x, targets):
    model = nnx.merge(graph, state)
    return token_losses(model.logits(model.final_norm(x)), targets).mean()


def _pair_norms(rope: RoPE | None, layer: Attention, q: jax.Array, k: jax.Array) -> jax.Array:
    """`Heads.pair_norms` of q [1, T, H, E] and k [1, T, K, E]; a rotation keeps lengths."""
    if rope is None:
        return jnp.zeros((q.shape[2], 0))
    width, scale = rope.rotary_dim(q.shape[-1]), layer.config.attention_scale or q.shape[-1] ** -0.5

    def norms(x):
        x = x[0, ..., :width].astype(jnp.float32) ** 2
        pairs = (2, width // 2) if rope.layout == "half" else (width // 2, 2)
        squares = x.reshape(*x.shape[:-1], *pairs).sum(-2 if rope.layout == "half" else -1)
        return jnp.sqrt(squares.mean(0))

    return scale * norms(q) * jnp.repeat(norms(k), q.shape[2] // k.shape[2], axis=0)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _look(graph, rope, state, shared, x):
    block = nnx.merge(graph, state)
    layer: Attention = block.attention
    x = x if block.block == "after" else block.attention_norm(x)
    q, k, v = layer.vectors(x)
    norms = _pair_norms(rope, layer, q, k)
    found: list[jax.Array] = []

    def record(weights):
        found.append(weights[0])
        return weights

    attention(
        q,
        k,
        v,
        implementation=functools.partial(reference.attend, change=record),
        causal=True,
        **layer.options(x, shared),
    )
    (weights,) = found
    count = weights.shape[-1]
    late = weights[:, count // 2 :]
    distance = jnp.arange(count // 2, count)[:, None] - jnp.arange(count)
    band = jnp.where(distance > 0, 1 + jnp.floor(jnp.log2(jnp.maximum(distance, 1) + 0.5)), 0)
    seen = (distance >= 0) & (jnp.arange(count) > 0)
    by_distance = [
        jnp.where(seen & (band == n), late, 0).sum(-1).mean(-1) for n in range(len(bands(count)))
    ]
    return norms, jnp.stack(by_distance, -1), late[..., 0].mean(-1)

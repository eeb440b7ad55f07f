"""tunix's Llama 3 with another encoding: `pe_jax.nnx.Position` in each layer, around its weights.

    python -m examples.borrow.tunix_llama3

prints how far our RoPE is from tunix's own, then the loss of T5's bias before and after training,
and what decoding and export change. Borrowed are the two lines with `self.position`, which is
causal without tunix's mask. (tunix does not pass `rope_theta` on: its base is always 1e6.) Needs
google-tunix: tests/oracles/no_deps.txt.
"""

import jax.numpy as jnp
from flax import nnx
from tunix.models.llama3 import model as llama3  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import repeat
from examples.borrow import common

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)
SIZES = {"embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
OTHERS = {"num_layers": 2, "vocab_size": repeat.VOCAB, "rope_theta": 1e6, "norm_eps": 1e-5}


class Attention(nnx.Module):
    """The projections that a layer of tunix has, and an encoding."""

    def __init__(self, own, encoding, first):
        self.q_proj, self.k_proj = own.q_proj, own.k_proj
        self.v_proj, self.o_proj = own.v_proj, own.o_proj
        self.position = pe_jax.nnx.Position(encoding, DIMS, rngs=nnx.Rngs(0), shared=first)

    def __call__(self, x, segment_pos, cache, attn_mask):
        """What tunix's layer calls: x [B, T, D], positions [B, T]."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        out, cache = self.position(q, k, v, cache, None if cache else segment_pos, x=x)
        return cache, self.o_proj(out)


def build(scheme):
    """Weights, the model as a function of them, and its caches."""
    model = llama3.Llama3(llama3.ModelConfig(**SIZES, **OTHERS), rngs=nnx.Rngs(0))
    for layer in model.layers if scheme else ():
        first = None if layer is model.layers[0] else model.layers[0].attn.position
        layer.attn = Attention(layer.attn, scheme, first)
    graph, weights = nnx.split(model)

    def run(weights, tokens, cache=None):
        batch, length = tokens.shape
        at = jnp.broadcast_to(jnp.arange(length), tokens.shape)
        mask = None if scheme else jnp.tril(jnp.ones((1, length, length), bool))
        return nnx.merge(graph, weights)(tokens, at, cache, mask)

    def caches(weights):  # of trained weights: a cache keeps T5's biases
        layers = nnx.merge(graph, weights).layers
        each = (layer.attn.position.cache(repeat.BATCH, repeat.LENGTH) for layer in layers)
        return {f"layer_{i}": cache for i, cache in enumerate(each)}

    return weights, run, caches


if __name__ == "__main__":
    common.show(build, "rope(base=1e6)", "t5")

"""bonsai's Qwen 3 with another encoding: `pe_jax.nnx.Position`, whose cache knows what is padding.

    python -m examples.borrow.bonsai_qwen3

prints how far logits with our RoPE are from those with the model's own, then the loss of FoX
before and after training, and what decoding and export change. Then how far a row that
begins with padding is from the row alone, with the model's own code (which puts the tokens after a
prompt too far from it, by the padding) and with ours.
"""

from flax import nnx

import pe_jax
from examples import repeat
from examples.borrow import blocks, common

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)


class Attention(blocks.Attention):
    """bonsai's projections and norms, and an encoding."""

    def __init__(self, scheme, *, rngs):
        super().__init__(rngs=rngs)
        self.position = pe_jax.nnx.Position(scheme, DIMS, rngs=rngs)

    def init_cache(self, batch, size):
        """An empty cache, to which padding may be added."""
        return nnx.Cache(pe_jax.cache.with_segments(self.position.cache(batch, size)))

    def __call__(self, x, cache, segment_ids):
        """[B, T, D] to the same; segment_ids [B, T] are 1, and 0 for padding."""
        q, k, v = self.q_norm(self.q_proj(x)), self.k_norm(self.k_proj(x)), self.v_proj(x)
        kept = None if cache is None else cache.get_value()
        out, kept = self.position(q, k, v, kept, segments=segment_ids - 1, x=x)
        if cache is not None:
            cache.set_value(kept)
        return self.o_proj(out)


def build(scheme):
    """Weights, the model as a function of them, and its caches."""
    model = blocks.Qwen3(repeat.VOCAB, rngs=nnx.Rngs(0))
    if scheme:
        for i in range(len(model.layers)):
            model.layers[i] = Attention(scheme, rngs=nnx.Rngs(i))
    graph, weights = nnx.split(model)

    def empty(weights):
        return nnx.merge(graph, weights).init_cache(repeat.BATCH, repeat.LENGTH)

    return weights, lambda weights, *inputs: nnx.merge(graph, weights)(*inputs), empty


if __name__ == "__main__":
    common.show(build, "rope(base=1e6)", "fox")
    for scheme in (None, "rope(base=1e6)"):
        gap = common.padding(*build(scheme))
        print(f"{scheme or 'its own code'}: logits differ by {gap:.0e} with padding on the left")

"""The Transformer of flax's examples/lm1b with another encoding: `adapters.attention_fn`.

    python -m examples.borrow.flax_lm1b

prints how far logits with our sinusoids are from those with the model's own, then the loss of T5's
bias before and after training, and what decoding with the cache of stock attention and export
change. One method is borrowed.
"""

import functools

import jax
import jax.numpy as jnp

import pe_jax
from examples import repeat
from examples.borrow import blocks, common

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=4, head_dim=8)


class TransformerLM(blocks.TransformerLM):
    """lm1b's, with a scheme whose parameters are the model's: T5's table, shared by all layers."""

    scheme: str = ""

    def positions(self, y):
        """The input of the first layer, and the attention of each layer."""
        first = pe_jax.linen.Position(self.scheme, DIMS)
        rest = [pe_jax.linen.Position(self.scheme, DIMS, first) for _ in range(1, self.num_layers)]
        attention_fns = [
            pe_jax.adapters.attention_fn(layer.encoding, layer.params, causal=True, embedded=True)
            for layer in (first, *rest)
        ]
        return first.embed(y, jnp.arange(y.shape[1])), attention_fns


def build(scheme):
    """Weights, the model as a function of them, and its caches."""
    kind = TransformerLM if scheme else blocks.TransformerLM
    kind = functools.partial(kind, repeat.VOCAB, **({"scheme": scheme} if scheme else {}))
    model, decoder = kind(), kind(decode=True)
    first = jax.random.key(0), repeat.batches()[0]

    def run(weights, tokens, cache=None):
        if cache is None:
            return model.apply(weights, tokens), None
        logits, cache = decoder.apply({**weights, **cache}, tokens, mutable=["cache"])
        return logits, cache

    return model.init(*first), run, lambda _: {"cache": decoder.init(*first)["cache"]}


if __name__ == "__main__":
    common.show(build, "sinusoidal(layout=tensor2tensor)", "t5")

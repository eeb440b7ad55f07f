"""A Transformer of stock Linen attention with borrowed RoPE, ALiBi and T5 bias.

    python -m examples.linen

prints what examples/plain_jax.py does. The borrowed code is four lines in `Model.__call__`.
"""

import jax
from flax import linen as nn

import pe_jax
from examples import repeat

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=4, head_dim=8)


class Model(nn.Module):
    """Two layers of stock attention; the encoding's parameters belong to the model."""

    encoding: pe_jax.Encoding
    decode: bool = False

    @nn.compact
    def __call__(self, tokens):
        """Tokens [B, T] to logits [B, T, V]; to decode, T = 1 and the caches are extended."""
        x = nn.Embed(repeat.VOCAB, DIMS.width)(tokens)
        shared = self.param("position", self.encoding.init_shared, DIMS)
        for i in range(repeat.LAYERS):
            layer = self.param(f"position_{i}", self.encoding.init_layer, DIMS)
            fn = pe_jax.adapters.attention_fn(self.encoding, pe_jax.Params(shared, layer))
            attend = nn.MultiHeadDotProductAttention(
                DIMS.heads, attention_fn=fn, decode=self.decode
            )
            x += attend(nn.LayerNorm()(x))
            x += nn.Dense(DIMS.width)(nn.gelu(nn.Dense(4 * DIMS.width)(nn.LayerNorm()(x))))
        return nn.Dense(repeat.VOCAB)(nn.LayerNorm()(x))


def of_position(weights):
    """The encoding's parameters."""
    return {name: x for name, x in weights["params"].items() if name.startswith("position")}


def main(scheme: str) -> None:
    """Trains, decodes and exports a model with this encoding."""
    (encoding,) = pe_jax.parse(scheme)
    model, decoder = Model(encoding), Model(encoding, decode=True)
    tokens = repeat.batches()[0]
    before = model.init(jax.random.key(1), tokens)
    after, losses = repeat.train(model.apply, before)
    full = jax.jit(model.apply)(after, tokens)

    def step(token, cache):
        logits, changed = decoder.apply({**after, "cache": cache}, token, mutable=["cache"])
        return logits, changed["cache"]

    cache = decoder.init(jax.random.key(1), tokens)["cache"]
    decoded = repeat.decode(step, cache, tokens)
    program = repeat.exported(lambda tokens: model.apply(after, tokens))
    moved = repeat.gap(of_position(before), of_position(after))
    repeat.report(scheme, losses, moved, full, decoded, program(tokens))


if __name__ == "__main__":
    for scheme in repeat.SCHEMES:
        main(scheme)

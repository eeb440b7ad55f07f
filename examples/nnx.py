"""A Transformer of stock NNX attention with borrowed RoPE, ALiBi and T5 bias.

    python -m examples.nnx

prints what examples/plain_jax.py does. The borrowed code is four lines in `Model.__init__`.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import pe_jax
from examples import repeat

DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)


class Model(nnx.Module):
    """Two layers of stock attention with grouped heads; `nnx.Param` makes the encoding train."""

    def __init__(self, encoding: pe_jax.Encoding, rngs: nnx.Rngs):
        self.embed = nnx.Embed(repeat.VOCAB, DIMS.width, rngs=rngs)
        self.head = nnx.Linear(DIMS.width, repeat.VOCAB, rngs=rngs)
        self.norm = nnx.LayerNorm(DIMS.width, use_bias=False, use_scale=False, rngs=rngs)
        self.attention, self.mlps = nnx.List(), nnx.List()
        shared = jax.tree.map(nnx.Param, encoding.init_shared(rngs.params(), DIMS))
        for _ in range(repeat.LAYERS):
            layer = jax.tree.map(nnx.Param, encoding.init_layer(rngs.params(), DIMS))
            fn = pe_jax.adapters.attention_fn(encoding, pe_jax.Params(shared, layer))
            sizes = DIMS.heads, DIMS.width, None, None, DIMS.kv_heads
            self.attention.append(nnx.MultiHeadAttention(*sizes, attention_fn=fn, rngs=rngs))
            up, down = (nnx.Linear(*pair, rngs=rngs) for pair in ((32, 128), (128, 32)))
            self.mlps.append(nnx.Sequential(up, nnx.gelu, down))

    def __call__(self, tokens, decode: bool = False):
        """Tokens [B, T] to logits [B, T, V]; with `decode`, T = 1 and the caches are extended."""
        x = self.embed(tokens)
        for attend, mlp in zip(self.attention, self.mlps, strict=True):
            x += attend(self.norm(x), decode=decode)
            x += mlp(self.norm(x))
        return self.head(self.norm(x))


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    """One step of training: the loss."""
    value, grads = nnx.value_and_grad(lambda model: repeat.loss(model(tokens), tokens))(model)
    optimizer.update(model, grads)
    return value


def main(scheme: str) -> None:
    """Trains, decodes and exports a model with this encoding."""
    (encoding,) = pe_jax.parse(scheme)
    model = Model(encoding, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(repeat.RATE), wrt=nnx.Param)
    position = nnx.state(model, lambda path, _: "attention_fn" in path)
    before = jax.tree.map(jnp.copy, position)
    losses = [step(model, optimizer, tokens) for tokens in repeat.batches()]
    tokens = repeat.batches()[0]
    full = nnx.jit(model)(tokens)
    program = repeat.exported(lambda tokens: model(tokens))
    for layer in model.attention:
        layer.init_cache((*tokens.shape, DIMS.width))
    graph, state = nnx.split(model)

    def decode(token, state):
        model = nnx.merge(graph, state)
        return model(token, decode=True), nnx.state(model)

    decoded = repeat.decode(decode, state, tokens)
    moved = repeat.gap(before, position)
    repeat.report(scheme, losses, moved, full, decoded, program(tokens))


if __name__ == "__main__":
    for scheme in repeat.SCHEMES:
        main(scheme)

"""Stock NNX attention with Shaw's learned vectors: train, then decode with the module's own cache.

    python -m examples.nnx

prints the loss before and after 100 steps of repeating the token that came three places before
(about 2.5, then below 0.1), and the largest difference between decoding token by token and the full
pass: less than 1e-5.
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import pe_jax
from pe_jax.models import adapters

VOCAB, LENGTH, BACK = 8, 32, 3
DIMS = pe_jax.Dims(width=32, heads=4, kv_heads=2, head_dim=8)


class Model(nnx.Module):
    """Two layers of stock attention with grouped heads, an encoding in each."""

    def __init__(self, encoding: pe_jax.Encoding, rngs: nnx.Rngs):
        shared = jax.tree.map(nnx.Param, encoding.init_shared(rngs.params(), DIMS))
        self.embed = nnx.Embed(VOCAB, DIMS.width, rngs=rngs)
        self.norm = nnx.LayerNorm(DIMS.width, rngs=rngs)
        self.layers = nnx.List()
        for _ in range(2):
            layer = jax.tree.map(nnx.Param, encoding.init_layer(rngs.params(), DIMS))
            fn = adapters.attention_fn(encoding, pe_jax.Params(shared, layer), causal=True)
            sizes = DIMS.heads, DIMS.width, None, None, DIMS.kv_heads
            self.layers.append(nnx.MultiHeadAttention(*sizes, attention_fn=fn, rngs=rngs))
        self.head = nnx.Linear(DIMS.width, VOCAB, rngs=rngs)

    def __call__(self, tokens, decode: bool = False):
        """Tokens [B, T] to logits [B, T, V]; with `decode`, T = 1 and the caches are extended."""
        x = self.embed(tokens)
        for layer in self.layers:
            x += layer(self.norm(x), decode=decode)
        return self.head(self.norm(x))


@nnx.jit
def step(model: Model, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    """One step of training: the loss in nats per token."""

    def loss(model):
        logits = model(tokens)[:, BACK:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, :-BACK]).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def main(encoding: pe_jax.Encoding, steps: int = 100) -> tuple[float, float, float]:
    """The first and the last loss, and the largest difference of a decoded logit."""
    model = Model(encoding, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    tokens = jax.random.randint(jax.random.key(0), (steps, 16, LENGTH), 0, VOCAB)
    losses = [step(model, optimizer, rows) for rows in tokens]
    full = model(tokens[0])
    for layer in model.layers:
        layer.init_cache((16, LENGTH, DIMS.width))
    decode = nnx.jit(lambda model, token: model(token, decode=True))
    logits = [decode(model, tokens[0, :, i : i + 1]) for i in range(LENGTH)]
    decoded = jnp.concatenate(logits, axis=1)
    last = jnp.stack(losses[-5:]).mean()
    return float(losses[0]), float(last), float(abs(decoded - full).max())


if __name__ == "__main__":
    text = "loss {:.2f}, after training {:.2f}; decoding differs by {:.0e}"
    print(text.format(*main(pe_jax.make("shaw"))))

"""big_vision's ViT with another encoding: `adapters.attention_fn` at the positions of patches.

    python -m examples.borrow.big_vision_vit

prints how far logits with our sinusoids are from those with the model's own ("sincos2d"), then the
loss of RoPE on two axes before and after training: is one bright patch left of, right of, above or
below the other? One method is borrowed.
"""

import jax
import jax.numpy as jnp
import optax

import pe_jax
from examples import repeat
from examples.borrow import blocks, common


class ViT(blocks.ViT):
    """big_vision's, with a scheme that has no parameters."""

    scheme: str = ""

    def positions(self, x, height, width):
        """The input of the first layer, and the attention of each layer."""
        (encoding,) = pe_jax.parse(self.scheme)
        at = pe_jax.positions.grid(height, width)[:, ::-1]  # big_vision has columns first
        settings = {"causal": False, "embedded": True, "positions": at}
        attention_fn = pe_jax.adapters.attention_fn(encoding, **settings)
        return encoding.embed(pe_jax.Params({}, {}), x, at), [attention_fn] * self.depth


def build(scheme):
    """Weights, and the model as a function of them."""
    model = ViT(4, scheme=scheme) if scheme else blocks.ViT(4)
    weights = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
    return weights, lambda weights, batch: (model.apply(weights, batch[0]), None), None


def pairs():
    """Images of 4 x 4 patches, one of them 1 and a neighbour -1; and in which direction it lies."""
    *middle, label = jax.random.randint(jax.random.key(0), (3, repeat.STEPS, repeat.BATCH), 0, 4)
    y, x = (1 + at % 2 for at in middle)
    dy, dx = jnp.array([-1, 1, 0, 0])[label], jnp.array([0, 0, -1, 1])[label]
    image = jax.nn.one_hot(4 * y + x, 16) - jax.nn.one_hot(4 * (y + dy) + x + dx, 16)
    image = image.reshape(*label.shape, 4, 4, 1)
    return image.repeat(2, axis=2).repeat(2, axis=3), label


def loss(logits, batch):
    """Nats per image."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


if __name__ == "__main__":
    common.show(build, "sinusoidal_2d(layout=tensor2tensor)", "rope_2d", pairs(), loss)

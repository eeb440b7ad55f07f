"""What the models of plain_jax.py, nnx.py and borrow/ share: a task, training, and a report.

The task is to repeat the token that came three positions before: position is all that matters. A
guess among the eight tokens costs 2.08 nats per token.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

VOCAB, LENGTH, BACK, BATCH = 8, 32, 3, 16
LAYERS, STEPS, RATE = 2, 100, 1e-2
SCHEMES = ("rope", "alibi", "t5")  # rotates q and k; adds a bias; adds a bias that is learned


def batches() -> jax.Array:
    """Random tokens, for each step [B, T]."""
    return jax.random.randint(jax.random.key(0), (STEPS, BATCH, LENGTH), 0, VOCAB)


def loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """Nats per token, for logits [B, T, V]."""
    cross_entropy = optax.softmax_cross_entropy_with_integer_labels
    return cross_entropy(logits[:, BACK:], tokens[:, :-BACK]).mean()


def train(model: Callable, weights: Any, data: Any = None, loss: Callable = loss) -> tuple:
    """Weights after Adam's steps, and the loss of each.

    Args:
      model: from weights and a batch to logits.
      weights: of which it starts.
      data: the batches, stacked; None: random tokens.
      loss: of logits and a batch.
    """
    optimizer, data = optax.adam(RATE), batches() if data is None else data

    def step(carry, tokens):
        weights, state = carry
        value, grads = jax.value_and_grad(lambda w: loss(model(w, tokens), tokens))(weights)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(weights, updates), state), value

    scan = jax.jit(lambda carry: jax.lax.scan(step, carry, data))
    (weights, _), losses = scan((weights, optimizer.init(weights)))
    return weights, losses


def decode(step: Callable, cache: Any, tokens: jax.Array) -> jax.Array:
    """Logits [B, T, V], one token at a time: `step` takes and gives a cache."""
    logits, step = [], jax.jit(step)
    for i in range(tokens.shape[1]):
        now, cache = step(tokens[:, i : i + 1], cache)
        logits.append(now)
    return jnp.concatenate(logits, axis=1)


def exported(model: Callable) -> Callable:
    """The function from tokens to logits as a program for any batch, saved and read again."""
    (batch,) = jax.export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, LENGTH), jnp.int32)
    program = jax.export.export(jax.jit(model))(shape).serialize()
    return jax.export.deserialize(program).call


def gap(a: Any, b: Any) -> float:
    """The largest difference of two trees; 0 if they are empty."""
    gaps = jax.tree.leaves(jax.tree.map(lambda a, b: jnp.abs(a - b).max(), a, b))
    return float(max(gaps, default=0))


def report(scheme: str, losses, moved: float, full, decoded, program) -> None:
    """Prints the losses, how far the encoding's parameters moved, and gaps of logits."""
    print(
        f"{scheme:5}  loss {losses[0]:.2f}, after training {losses[-1]:.2f};"
        f" its parameters moved by {moved:.2f};"
        f" logits differ by {gap(decoded, full):.0e} decoded, {gap(program, full):.0e} exported"
    )

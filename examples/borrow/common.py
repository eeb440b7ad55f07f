"""What the examples of this folder do with a model: its own encoding and another.

B batch, T tokens, V size of the vocabulary.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from examples import repeat


def show(build: Callable, same: str, other: str, *task: Any) -> None:
    """Prints whether logits are the model's own, what training, decoding and export do.

    Args:
      build: from a scheme (None: the model's own code) to a tuple of weights; a function of
        weights, a batch and perhaps caches that returns logits and the caches; and a function of
        weights that returns empty caches, or None for a model that does not decode.
      same: the scheme of the model, which its own code trains.
      other: the scheme that is trained instead.
      *task: batches of data and the loss, as `repeat.train` takes them; none: tokens [B, T], and
        logits [B, T, V] should repeat them.
    """
    (data, *_) = task or (repeat.batches(),)
    batch = jax.tree.map(lambda x: x[0], data)
    weights, own, _ = build(None)
    weights, _ = repeat.train(lambda w, batch: own(w, batch)[0], weights, *task)
    ours = build(same)[1]
    gap = repeat.gap(jax.jit(own)(weights, batch)[0], jax.jit(ours)(weights, batch)[0])
    print(f"{same}: logits differ by {gap:.0e} from the model's own")

    weights, run, caches = build(other)
    weights, losses = repeat.train(lambda w, batch: run(w, batch)[0], weights, *task)
    print(f"{other}: loss {losses[0]:.2f}, after training {losses[-1]:.2f}")
    if caches is not None:
        whole = jax.jit(run)(weights, batch)[0]
        decoded = repeat.decode(lambda *now: run(weights, *now), caches(weights), batch)
        exported = repeat.exported(lambda batch: run(weights, batch)[0])(batch)
        gaps = repeat.gap(decoded, whole), repeat.gap(exported, whole)
        print("{}: logits differ by {:.0e} decoded, {:.0e} exported".format(other, *gaps))


def padding(
    weights: Any, run: Callable, caches: Callable, prompt: int = 12, pads: int = 4
) -> float:
    """How far the next token's logits are from those of the row alone, if padding begins the row.

    Args:
      weights: as `build` above returns all three.
      run: it also takes segment ids [B, T] of the tokens, 1, or 0 for padding.
      caches: from weights to empty caches.
      prompt: tokens in front of the one whose logits are compared.
      pads: tokens of padding before them.
    """
    tokens, logits, run = repeat.batches()[0], [], jax.jit(run)
    for n in (0, pads):
        padded = jnp.pad(tokens[:, :prompt], ((0, 0), (n, 0)))
        ids = jnp.ones_like(padded).at[:, :n].set(0)
        _, kept = run(weights, padded, caches(weights), ids)
        logits.append(run(weights, tokens[:, prompt : prompt + 1], kept)[0])
    return repeat.gap(*logits)

"""Compares a Hugging Face model on random weights with our forward pass, for the hf_* examples.

`python -m examples.hf_llama` (hf_bloom, hf_t5, hf_deberta) prints the largest difference of logits.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]


def difference(model, logits: Callable, **lengths: int) -> float:
    """The largest difference of a logit, on random weights and tokens.

    Args:
      model: of Hugging Face, made from a config in code: nothing is downloaded.
      logits: our forward pass, called with the model's weights by name, then tokens [2, length].
      **lengths: the length of each input that the model takes, by its name there.
    """
    torch.manual_seed(0)
    tokens = {x: torch.randint(2, model.config.vocab_size, (2, n)) for x, n in lengths.items()}
    with torch.no_grad():
        for weight in model.parameters():  # large enough for attention to be far from uniform
            weight.normal_(std=weight.shape[-1] ** -0.5 if weight.ndim > 1 else 1)
        theirs = model.eval()(**tokens).logits.numpy()
    weights = {name: jnp.asarray(x.numpy()) for name, x in model.state_dict().items()}
    ours = logits(weights, *(jnp.asarray(x.numpy()) for x in tokens.values()))
    return float(np.abs(ours - theirs).max())


def report(name: str, gap: float) -> None:
    """Prints the difference; stops above 1e-4."""
    print(f"{name}: logits differ by at most {gap:.1e}")
    if not gap <= 1e-4:
        raise SystemExit("that is more than 1e-4")

"""T5's logits in plain JAX, encoder and decoder: their biased attention is `pe_jax.attention`.

    python -m examples.hf_t5

fills a tiny Hugging Face model with random weights and prints the largest difference of its logits
and ours, about 1e-6; stops above 1e-4. Needs torch and transformers (extra `oracles`), no network.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import transformers  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import hf

SIZES: Any = {"d_model": 48, "d_kv": 16, "d_ff": 96, "num_heads": 4, "num_layers": 2}
CONFIG = transformers.T5Config(vocab_size=99, **SIZES)


def logits(w, source, tokens, **fields):
    """T5's forward pass with its weights by name: source [B, S], tokens [B, T] to [B, T, V]."""

    def norm(name, x):
        mean = jnp.mean(x**2, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean + CONFIG.layer_norm_epsilon) * w[f"{name}.weight"]

    def attend(name, x, other, encoding, params, causal):
        sources = {"q": x, "k": other, "v": other}
        q, k, v = (y @ w[f"{name}.{letter}.weight"].T for letter, y in sources.items())
        q, k, v = (y.reshape(*y.shape[:2], CONFIG.num_heads, -1) for y in (q, k, v))
        y = pe_jax.attention(
            *(q, k, v),
            encoding=encoding,
            params=params,
            q_positions=np.arange(q.shape[1]),
            k_positions=np.arange(k.shape[1]),
            causal=causal,
        )
        return y.reshape(*x.shape[:2], -1) @ w[f"{name}.o.weight"].T

    def stack(name, x, causal, memory=None):
        params = pe_jax.hf.params(CONFIG, w, CONFIG.num_layers if causal else 0)
        encoding = pe_jax.make("t5", bidirectional=not causal, **fields)
        for n in range(CONFIG.num_layers):
            layer = f"{name}.block.{n}.layer"
            y = norm(f"{layer}.0.layer_norm", x)
            x += attend(f"{layer}.0.SelfAttention", y, y, encoding, params, causal)
            if memory is not None:  # T5 has neither a bias nor a scale here: a table of zeros
                y, cross = norm(f"{layer}.1.layer_norm", x), pe_jax.make("t5", bidirectional=True)
                zero = jax.tree.map(jnp.zeros_like, params)
                x += attend(f"{layer}.1.EncDecAttention", y, memory, cross, zero, False)
            last = f"{layer}.{1 if memory is None else 2}"
            y = norm(f"{last}.layer_norm", x) @ w[f"{last}.DenseReluDense.wi.weight"].T
            x += jax.nn.relu(y) @ w[f"{last}.DenseReluDense.wo.weight"].T
        return norm(f"{name}.final_layer_norm", x)

    words = w["shared.weight"]
    memory = stack("encoder", words[source], causal=False)
    return stack("decoder", words[tokens], True, memory) * CONFIG.d_model**-0.5 @ words.T


def difference(**fields) -> float:
    """The largest difference of a logit on random weights, with other fields of our T5 if given."""
    model = transformers.T5ForConditionalGeneration(CONFIG)
    ours = functools.partial(logits, **fields)
    return hf.difference(model, ours, input_ids=50, decoder_input_ids=40)


if __name__ == "__main__":
    hf.report("T5", difference())

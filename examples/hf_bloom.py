"""BLOOM's logits in plain JAX: its ALiBi attention is `pe_jax.attention`.

    python -m examples.hf_bloom

fills a tiny Hugging Face model with random weights and prints the largest difference of its logits
and ours, about 1e-6; stops above 1e-4. Needs torch and transformers (extra `oracles`), no network.
"""

import functools

import jax
import transformers  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import hf

CONFIG = transformers.BloomConfig(vocab_size=99, hidden_size=48, n_layer=2, n_head=6)
ENCODING = pe_jax.make("alibi")


def logits(w, tokens, encoding):
    """BLOOM's forward pass with its weights by name: tokens [B, T] to logits [B, T, V]."""

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        x = jax.nn.standardize(x, epsilon=CONFIG.layer_norm_epsilon)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    words = w["transformer.word_embeddings.weight"]
    x = norm("transformer.word_embeddings_layernorm", words[tokens])
    for n in range(CONFIG.n_layer):
        layer = f"transformer.h.{n}"
        y = linear(f"{layer}.self_attention.query_key_value", norm(f"{layer}.input_layernorm", x))
        y = y.reshape(*x.shape[:2], CONFIG.n_head, 3, -1)
        q, k, v = (y[..., i, :] for i in range(3))
        y = pe_jax.attention(q, k, v, encoding=encoding)
        x += linear(f"{layer}.self_attention.dense", y.reshape(x.shape))
        y = linear(f"{layer}.mlp.dense_h_to_4h", norm(f"{layer}.post_attention_layernorm", x))
        x += linear(f"{layer}.mlp.dense_4h_to_h", jax.nn.gelu(y, approximate=True))
    return norm("transformer.ln_f", x) @ words.T


def difference(encoding=ENCODING) -> float:
    """The largest difference of a logit, on random weights."""
    ours = functools.partial(logits, encoding=encoding)
    return hf.difference(transformers.BloomForCausalLM(CONFIG), ours, input_ids=50)


if __name__ == "__main__":
    hf.report("BLOOM", difference())

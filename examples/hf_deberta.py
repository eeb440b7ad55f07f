"""DeBERTa-v2's logits in plain JAX: its disentangled attention is `pe_jax.attention`.

    python -m examples.hf_deberta

fills a tiny Hugging Face model with random weights and prints the largest difference of its logits
and ours, about 1e-6; stops above 1e-4. Needs torch and transformers (extra `oracles`), no network.
"""

import functools
from typing import Any

import jax
import transformers  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import hf

FIELDS: Any = {
    **{"vocab_size": 99, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "position_buckets": 16, "max_relative_positions": 64},
    # as in DeBERTa-v3:
    **{"relative_attention": True, "position_biased_input": False, "share_att_key": True},
    **{"pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"},
}
CONFIG = transformers.DebertaV2Config(**FIELDS)
ENCODING = pe_jax.make("deberta", buckets=16, max_distance=64)


def logits(w, tokens, encoding):
    """DeBERTa's forward pass with its weights by name: tokens [B, T] to logits [B, T, V]."""

    def linear(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        x = jax.nn.standardize(x, epsilon=CONFIG.layer_norm_eps)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    words, heads = w["deberta.embeddings.word_embeddings.weight"], CONFIG.num_attention_heads
    x = norm("deberta.embeddings.LayerNorm", words[tokens])
    for n in range(CONFIG.num_hidden_layers):
        layer = f"deberta.encoder.layer.{n}"
        projections = [f"{layer}.attention.self.{name}_proj" for name in ("query", "key", "value")]
        q, k, v = (linear(name, x).reshape(*x.shape[:2], heads, -1) for name in projections)
        params = pe_jax.hf.params(CONFIG, w, n)
        # one channel more than the model, for the projections' biases
        dims = pe_jax.Dims(x.shape[-1] + 1, heads, heads, q.shape[-1])
        y = pe_jax.attention(q, k, v, encoding=encoding, params=params, dims=dims, causal=False)
        y = linear(f"{layer}.attention.output.dense", y.reshape(x.shape))
        x = norm(f"{layer}.attention.output.LayerNorm", x + y)
        y = jax.nn.gelu(linear(f"{layer}.intermediate.dense", x), approximate=False)
        x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", y))
    head = "cls.predictions.transform"
    x = jax.nn.gelu(linear(f"{head}.dense", x), approximate=False)
    return norm(f"{head}.LayerNorm", x) @ words.T + w["cls.predictions.bias"]


def difference(encoding=ENCODING) -> float:
    """The largest difference of a logit, on random weights."""
    ours = functools.partial(logits, encoding=encoding)
    return hf.difference(transformers.DebertaV2ForMaskedLM(CONFIG), ours, input_ids=50)


if __name__ == "__main__":
    hf.report("DeBERTa-v2", difference())

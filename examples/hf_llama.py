"""Llama's logits in plain JAX: its rotary, grouped attention is `pe_jax.attention`.

    python -m examples.hf_llama

fills a tiny Hugging Face model with random weights and prints the largest difference of its logits
and ours, about 1e-6; stops above 1e-4. Needs torch and transformers (extra `oracles`), no network.
"""

import functools

import jax
import jax.numpy as jnp
import transformers  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import hf

CONFIG = transformers.LlamaConfig(
    vocab_size=99,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    rope_parameters={"rope_type": "default", "rope_theta": 5e5},
)
ENCODING = pe_jax.make("rope", base=5e5)


def logits(w, tokens, encoding):
    """Llama's forward pass with its weights by name: tokens [B, T] to logits [B, T, V]."""

    def norm(name, x):
        mean = jnp.mean(x**2, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(mean + CONFIG.rms_norm_eps) * w[f"{name}.weight"]

    x = w["model.embed_tokens.weight"][tokens]
    for n in range(CONFIG.num_hidden_layers):
        layer = f"model.layers.{n}"

        def linear(name, x, layer=layer):
            return x @ w[f"{layer}.{name}.weight"].T

        y = norm(f"{layer}.input_layernorm", x)
        q, k, v = (linear(f"self_attn.{name}_proj", y) for name in "qkv")
        q, k, v = (y.reshape(*x.shape[:2], -1, CONFIG.head_dim) for y in (q, k, v))
        y = pe_jax.attention(q, k, v, encoding=encoding)
        x += linear("self_attn.o_proj", y.reshape(x.shape))
        y = norm(f"{layer}.post_attention_layernorm", x)
        y = jax.nn.silu(linear("mlp.gate_proj", y)) * linear("mlp.up_proj", y)
        x += linear("mlp.down_proj", y)
    return norm("model.norm", x) @ w["lm_head.weight"].T


def difference(encoding=ENCODING) -> float:
    """The largest difference of a logit, on random weights."""
    ours = functools.partial(logits, encoding=encoding)
    return hf.difference(transformers.LlamaForCausalLM(CONFIG), ours, input_ids=50)


if __name__ == "__main__":
    hf.report("Llama", difference())

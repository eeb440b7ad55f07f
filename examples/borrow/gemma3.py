"""Gemma 3 with another rotation: `pe_jax.rotate` in place of the package's `apply_rope`.

    python -m examples.borrow.gemma3

prints how far our RoPE is from gemma's own, in layers of two bases, one with a window; then the
loss of xPos before and after training, and what decoding and export change. gemma's cache of
rotated keys, its masks and windows stay as they are: a rotation alone is borrowed, in one line.
Needs gemma: tests/oracles/no_deps.txt.
"""

from unittest import mock

import jax
import jax.numpy as jnp
from gemma import gm  # pyright: ignore[reportMissingImports]
from gemma.gm.math import _positional_embeddings as math  # pyright: ignore[reportMissingImports]

import pe_jax
from examples import repeat
from examples.borrow import common

KINDS = (gm.nn.AttentionType.LOCAL_SLIDING, gm.nn.AttentionType.GLOBAL)
SIZES = {"embed_dim": 32, "hidden_dim": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8}
OTHERS = {"final_logit_softcap": None, "use_post_attn_norm": True, "use_post_ffw_norm": True}
WINDOWS = {"attention_types": KINDS, "sliding_window_size": 8, "global_base_frequency": 1_000_000}
CONFIG = gm.nn.config.TransformerConfig(num_embed=repeat.VOCAB, **SIZES, **OTHERS, **WINDOWS)
OWN = math.apply_rope


class Gemma(gm.nn.Transformer):
    """gemma's; it is compiled anew where a field differs."""

    scheme: str | None = None


def build(scheme):
    """Weights, the model as a function of them, and its caches."""
    model = Gemma(config=CONFIG, dtype=jnp.float32, scheme=scheme)

    def apply_rope(x, positions, *, base_frequency, scale_factor=1.0):
        encoding = scheme.format(base=base_frequency)
        return pe_jax.rotate(encoding, x, x, positions)[0]

    def run(weights, tokens, cache=None):
        start = cache["layer_0"]["end_index"][:, None] if cache else 0
        at = jnp.broadcast_to(start + jnp.arange(tokens.shape[1]), tokens.shape)
        seen = jnp.arange(repeat.LENGTH) <= at[..., None]
        with mock.patch.object(math, "apply_rope", apply_rope if scheme else OWN):
            out = model.apply(weights, tokens, positions=at, cache=cache, attention_mask=seen)
        return out.logits, out.cache

    def caches(weights):
        return CONFIG.init_cache(repeat.BATCH, jnp.float32, cache_length=repeat.LENGTH)

    return model.init(jax.random.key(0), repeat.batches()[0]), run, caches


if __name__ == "__main__":
    common.show(build, "rope(base={base})", "xpos(base={base})")

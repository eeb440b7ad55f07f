"""transformers' own models, of tiny sizes and random weights, and our attention for their layers.

B batch, T tokens, H query heads, K key heads, E head width, D model width.
"""

import numpy as np

import pe_jax
from pe_jax import hf

WIDTH, HEADS = 32, 2
TINY = {
    "vocab_size": 40,
    "pad_token_id": 1,
    "intermediate_size": 8,
    "d_ff": 8,
    "d_inner": 8,
    "ffn_dim": 8,
    "encoder_ffn_dim": 8,
    "decoder_ffn_dim": 8,
    "conv_dim": [8] * 7,
    "word_embed_proj_dim": WIDTH,
    "num_conv_pos_embedding_groups": 2,
    "num_conv_pos_embeddings": 4,
    "num_key_value_heads": HEADS,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
    "n_routed_experts": 2,
    "n_shared_experts": 1,
    "swa_num_attention_heads": HEADS,
    "swa_num_key_value_heads": HEADS,
    "swa_head_dim": WIDTH // HEADS,
    "sliding_window": 5,
    "sliding_window_size": 5,
    "rel_extent": 7,
    "d_rel": 3,
    "log_scaling_n_floor": 4,
    "unpadded_vocab_size": 40,
    "coordinate_size": 6,
    "shape_size": 4,
}


def known(model_type: str) -> set[str]:
    """The keys that a config of this type has."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(model_type)
    return set(default.to_dict()) | set(default.attribute_map)


def configured(model_type: str, **settings):
    """A config of this type with those of `TINY` and of the settings that it knows."""
    from transformers import AutoConfig

    names = known(model_type) - {"model_type"}
    given = {name: x for name, x in {**TINY, **settings}.items() if name in names}
    return AutoConfig.for_model(model_type, **given)


def drawn(model):
    """The model with weights that keep attention far from uniform."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            matrix = weight.ndim > 1 and "embed" not in name
            weight.normal_(std=weight.shape[-1] ** -0.5 if matrix else 0.5)
    return model.eval()


def split(x, heads: int):
    """[B, T, H, E] from [B, T, H·E]."""
    return x.unflatten(-1, (heads, -1))


def convolved(module, x, name: str):
    """Inkling's keys or values: a projection, then a short convolution.

    That of the second version's full layers depends on the projection's input, too.
    """
    dynamic = (x,) if hasattr(getattr(module, f"{name}_sconv"), "weight_proj") else ()
    projected = getattr(module, f"{name}_proj")(x)
    return split(getattr(module, f"{name}_sconv")(projected, *dynamic), module.num_key_value_heads)


def inklings(module, x, k_x=None):
    """Queries and keys [B, T, H, E].

    Norms of the first version; of the second, whose clips are the scheme's, a learned scale.
    """
    k = convolved(module, x if k_x is None else k_x, "k")
    q = split(module.q_proj(x), module.num_heads)
    if hasattr(module, "q_norm"):
        return module.q_norm(q), module.k_norm(k)
    return q * module.q_l2_clip.scale, k


def attend(
    layer: hf.LayerEncoding, params, q, k, v, x, places, width=None, implementation="dense"
) -> np.ndarray:
    """Our attention [B, T, H, F] on a layer's q, k and v, which are PyTorch's or NumPy's.

    `width` is that of `dims`, where it is not D.
    """
    heads, head_dim = q.shape[2:]
    index = np.arange(q.shape[1])
    chunks = None if layer.chunk is None else pe_jax.masks.chunks(layer.chunk)
    out = pe_jax.attention(
        *(np.asarray(y, np.float32) for y in (q, k, v)),
        encoding=layer.encoding.at_length(q.shape[1]),
        params=params,
        dims=pe_jax.Dims(width or x.shape[-1], heads, k.shape[2], head_dim),
        x=np.asarray(x, np.float32),
        q_positions=places,
        k_positions=places,
        q_index=index,
        k_index=index,
        causal=layer.causal,
        window=layer.window,
        mask=chunks,
        scale=layer.scale,
        logit_cap=layer.logit_cap,
        implementation=implementation,
    )
    return np.asarray(out)

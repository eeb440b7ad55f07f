"""GGUF files as llama.cpp's converters write them, from configs and weights of transformers.

Names of tensors are those of `gguf.get_tensor_name_map`, keys those of `gguf.GGUFWriter`; what the
converters (conversion/*.py of llama.cpp) do to weights is written here again, from their code.
"""

import gguf
import numpy as np

ARCH = {"gemma3_text": "gemma3", "gpt_neox": "gptneox", "mistral": "llama"}
PERMUTED = ("llama", "mistral", "smollm3")
BY_HEAD = ("gpt_neox", "bloom")


def architecture(model_type: str):
    """The member of `gguf.MODEL_ARCH`, and its name."""
    name = ARCH.get(model_type, model_type)
    return next(arch for arch, x in gguf.MODEL_ARCH_NAMES.items() if x == name), name


def permute(x, heads):
    """LlamaModel.permute."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def changed(model_type, name, x, heads, kv_heads):
    """`modify_tensors` of the model's converter."""
    last = name.split(".")[-2]
    if model_type in PERMUTED and last in ("q_proj", "k_proj"):
        return permute(x, heads if last == "q_proj" else kv_heads)
    if model_type.startswith("gemma") and name.endswith("norm.weight"):
        return x + 1
    if model_type == "gpt2" and last in ("c_attn", "c_proj", "c_fc"):
        return x.T
    if model_type in BY_HEAD and last == "query_key_value":
        qkv = x.reshape(heads, 3, -1, *x.shape[1:])
        return np.concatenate([qkv[:, i].reshape(-1, *x.shape[1:]) for i in range(3)])
    if model_type == "falcon" and last == "query_key_value":
        qkv = x.reshape(kv_heads, heads // kv_heads + 2, -1, *x.shape[1:])
        parts = qkv[:, :-2], qkv[:, -2], qkv[:, -1]
        return np.concatenate([part.reshape(-1, *x.shape[1:]) for part in parts])
    return x


def stacked(state):
    """StableLM's norms of heads as one tensor."""
    whole = {name: x for name, x in state.items() if ".norms." not in name}
    for name in {x.partition(".norms.")[0] for x in state if ".norms." in x}:
        heads = [x for x in state if x.startswith(f"{name}.norms.")]
        whole[f"{name}.weight"] = np.stack([state[x] for x in sorted(heads)])
    return whole


def write(path, model_type, config, state, more=None, tensors=None, tokens=None):
    """Writes a file.

    Args:
      path: of the file.
      model_type: of the config.
      config: keys that the converters read, by the names of Llama's config, and `rope_dims`.
      state: arrays by transformers' names.
      more: a function that adds keys to the writer.
      tensors: further ones, by GGUF's names, as (array, type of quantization).
      tokens: of the tokenizer; None: as many as the vocabulary has.
    """
    arch, name = architecture(model_type)
    writer = gguf.GGUFWriter(path, name)
    heads = config["heads"]
    kv_heads = config.get("kv_heads", heads)
    writer.add_block_count(config["layers"])
    writer.add_context_length(config["length"])
    writer.add_embedding_length(config["width"])
    writer.add_feed_forward_length(config["hidden"])
    writer.add_head_count(heads)
    if kv_heads != heads:
        writer.add_head_count_kv(kv_heads)
    for key, add in {
        "rms": writer.add_layer_norm_rms_eps,
        "norm": writer.add_layer_norm_eps,
        "base": writer.add_rope_freq_base,
        "rope_dims": writer.add_rope_dimension_count,
        "window": writer.add_sliding_window,
    }.items():
        if key in config:
            add(config[key])
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if more is not None:
        more(writer)
    names = gguf.get_tensor_name_map(arch, config["layers"])
    for full, x in stacked(state).items():
        base, _, suffix = full.rpartition(".")
        place = names.get_name(base.replace("transformer.", "") if model_type == "bloom" else base)
        assert place is not None, full
        x = changed(model_type, full, np.asarray(x, np.float32), heads, kv_heads)
        writer.add_tensor(f"{place}.{suffix}", np.ascontiguousarray(x))
    for place, (x, quantization) in (tensors or {}).items():
        writer.add_tensor(place, x, raw_dtype=quantization)
    vocab = next((x.shape[0] for n, x in state.items() if n.split(".")[-2] in EMBED), 4)
    words = [f"t{i}" for i in range(vocab)] if tokens is None else tokens
    if words:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([*words[:-1], words[0] + words[1]] if tokens is None else words)
        writer.add_token_merges([f"{words[0]} {words[1]}"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


EMBED = ("embed_tokens", "wte", "word_embeddings", "embed_in")

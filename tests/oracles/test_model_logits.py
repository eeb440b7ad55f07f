"""Logits of transformers' models with our attention in every layer, from their config alone.

A tiny model with random weights runs twice: as it is, and with what `pe_jax.attention` gives put
before each output projection. Queries, keys and values are those of the layer's projections and
norms, before any rotation; the rest is what `pe_jax.hf` reads in the model's config.json and state
dict. Each model has all kinds of layers of its family, and sequences beyond windows and floors.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pe_jax
from pe_jax import hf
from pe_jax.encodings import mla
from pe_jax.encodings.sums import parts_of
from tests.oracles.tiny_models import attend, configured, convolved, drawn, inklings
from tools.cookbook_rows import LOGITS

pytestmark = pytest.mark.oracles
LENGTH = 40
TOLERANCE = 2e-5  # of the standard deviation of the logits; 4e-6 at most was measured
MOVED = 0.1  # of it: what leaving something out must change
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"rope_theta": 1e4}
SIZES = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 16}
LATENT = {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "head_dim": 8}
LATENT |= {"q_lora_rank": 12, "kv_lora_rank": 10, "num_key_value_heads": 4}
INKLING = {"layer_types": ["hybrid_sliding", "hybrid"] * 2, "swa_num_attention_heads": 4}
INKLING |= {"head_dim": 8, "num_key_value_heads": 1}
SETTINGS = {
    "gpt_oss": {"rope_parameters": {**YARN, "truncate": False}},
    "mimo_v2_flash": {"head_dim": 24, "v_head_dim": 12, "num_key_value_heads": 1},
    "cohere2": {},
    "smollm3": {"use_sliding_window": True},
    "llama4_text": {"attention_chunk_size": 6, "floor_scale": 4, "intermediate_size_mlp": 8},
    "deepseek_v3": {
        **LATENT,
        "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
        "first_k_dense_replace": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "inkling_text": INKLING,
    "inkling2_text": {
        **INKLING,
        "qk_l2_clip_threshold": 2.0,
        "rel_l2_clip_threshold": 1.0,
        "n_layers_per_attn_res_block": 2,
    },
}
IMAGE, VIDEO = 38, 39  # token ids
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 3, 2]}
VISION = {
    "depth": 2,
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0, 1],
}


def plain(module, x, options):
    """Queries, keys and values [B, T, H or K, E] of one layer."""
    q, k = (f(x).unflatten(-1, (-1, module.head_dim)) for f in (module.q_proj, module.k_proj))
    v = module.v_proj(x).unflatten(-1, (-1, getattr(module, "v_head_dim", module.head_dim)))
    if hasattr(module, "qk_norm"):  # theirs comes after the rotation, which keeps lengths
        return module.qk_norm(q), module.qk_norm(k), v
    if hasattr(module, "q_norm"):
        return module.q_norm(q), module.k_norm(k), v
    return q, k, v * getattr(module, "v_scale", 1)


def latent(module, x, options):
    """The rotated channels first, as the encoding has them."""
    turned, content = module.qk_rope_head_dim, module.qk_nope_head_dim
    q = module.q_b_proj(module.q_a_layernorm(module.q_a_proj(x)))
    q = q.unflatten(-1, (module.num_heads, -1)).split([content, turned], dim=-1)
    low, k_rotary = module.kv_a_proj_with_mqa(x).split([module.kv_lora_rank, turned], dim=-1)
    both = module.kv_b_proj(module.kv_a_layernorm(low)).unflatten(-1, (module.num_heads, -1))
    k_content, v = both.split([content, module.v_head_dim], dim=-1)
    return *mla.join(*(y.numpy() for y in (*q, k_content, k_rotary))), v


def convolving(module, x, options):
    """Inkling's; the full layers of the second version have inputs of their own for k and v."""
    k_x, v_x = (options.get(f"{name}_hidden_states", x) for name in ("key", "value"))
    v = convolved(module, v_x, "v")
    v = module.v_norm(v) if hasattr(module, "v_norm") else v
    return *inklings(module, x, k_x), v


PROJECT = {"deepseek_v3": latent, "inkling_text": convolving, "inkling2_text": convolving}


@dataclasses.dataclass
class OurAttention:
    """Hooks of one layer's attention."""

    module: Any
    layer: hf.LayerEncoding
    params: pe_jax.Params
    project: Callable
    places: np.ndarray
    engine: str

    def remember(self, module, args, options):
        self.options = options

    def replace(self, o_proj, args):
        import torch

        x = self.options["hidden_states"]
        q, k, v = self.project(self.module, x, self.options)
        out = attend(self.layer, self.params, q, k, v, x, self.places, implementation=self.engine)
        out = torch.tensor(out.reshape(*x.shape[:2], -1))
        if self.layer.extras.output_gate:
            out = out * self.module.gate_proj(x).sigmoid()
        assert out.shape == args[0].shape
        return (out,)


@contextlib.contextmanager
def attending(model, kind, layers, params, places, engine):
    """The model with our attention before each output projection."""
    modules = [m for name, m in model.named_modules() if name.endswith("self_attn")]
    hooks = []
    for module, layer, own in zip(modules, layers, params, strict=True):
        at = places if layer.encoding.claims.axes > 1 else np.arange(LENGTH)
        ours = OurAttention(module, layer, own, PROJECT.get(kind, plain), at, engine)
        hooks.append(module.register_forward_pre_hook(ours.remember, with_kwargs=True))
        hooks.append(module.o_proj.register_forward_pre_hook(ours.replace))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@functools.cache
def built(kind: str):
    """A model, its inputs, the positions of their tokens [T] or [B, T, 3], and its logits."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    inputs = {"input_ids": torch.randint(3, 38, (2, LENGTH))}
    places = np.arange(LENGTH)
    if kind == "qwen3_vl":
        model, places = with_images(inputs)
    else:
        config = configured(kind, **{**SIZES, **SETTINGS[kind]})
        model = drawn(AutoModelForCausalLM.from_config(config, attn_implementation="eager"))
    return model, inputs, places, logits(model, inputs)


@functools.cache
def read(kind: str):
    """The layers, and their parameters, as `pe_jax.hf` reads them."""
    model = built(kind)[0]
    config = json.loads(model.config.to_json_string(use_diff=False))
    layers, state = hf.encodings(config), model.state_dict()
    return layers, [hf.params(config, state, i) for i in range(len(layers))]


def with_images(inputs):
    """Qwen3-VL, and the positions that its own code gives to text and images of several sizes."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = configured("qwen3_vl_text", **SIZES, rope_parameters=SECTIONS).to_dict()
    ids = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    config = AutoConfig.for_model("qwen3_vl", text_config=text, vision_config=VISION, **ids)
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager")
    sizes = [(4, 6), (8, 4), (4, 4)]  # in patches, of which a token has 2 · 2
    for row, start, (height, width) in zip((0, 1, 1), (3, 7, 20), sizes, strict=True):
        inputs["input_ids"][row, start : start + height * width // 4] = IMAGE
    inputs["mm_token_type_ids"] = (inputs["input_ids"] == IMAGE).int()
    inputs["image_grid_thw"] = torch.tensor([(1, *size) for size in sizes])
    places, _ = model.model.get_rope_index(**inputs)
    patches = sum(height * width for height, width in sizes)
    inputs["pixel_values"] = torch.randn(patches, 3 * 2 * 4 * 4)
    return drawn(model), places.permute(1, 2, 0).numpy()


def logits(model, inputs) -> np.ndarray:
    import torch

    with torch.no_grad():
        return model(**inputs, use_cache=False).logits.double().numpy()


def off(kind, layers, params, engine="dense", places=None) -> float:
    """The largest difference that our attention makes, in standard deviations of the logits."""
    model, inputs, own, theirs = built(kind)
    with attending(model, kind, layers, params, own if places is None else places, engine):
        ours = logits(model, inputs)
    return np.abs(ours - theirs).max() / theirs.std()


KINDS = (*SETTINGS, "qwen3_vl")
TEXT = {"qwen3_vl": "qwen3_vl_text"}


def test_the_cookbook_names_these_models():
    assert {TEXT.get(kind, kind) for kind in KINDS} == LOGITS


@pytest.mark.parametrize("engine", ["dense", "tiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_our_attention_the_logits_are_theirs(live, kind, engine):
    assert off(kind, *read(kind), engine) < TOLERANCE


NOPE = {"encoding": pe_jax.Encoding()}
NONE = {"window": {"window": None}, "chunk": {"chunk": None}, "scale": {"scale": None}}


def left_out(part: str, layer: hf.LayerEncoding, params: pe_jax.Params):
    """A layer without one part of what was read."""
    if part == "encoding":
        return dataclasses.replace(layer, **NOPE), pe_jax.Params({}, {})
    if part == "parameters":
        return layer, jax.tree.map(jnp.zeros_like, params)
    return dataclasses.replace(layer, **NONE[part]), params


@pytest.mark.parametrize("kind", KINDS)
def test_without_any_part_of_what_is_read_they_are_not(live, kind):
    layers, params = read(kind)
    for part in ("encoding", "parameters", *NONE):
        pairs = zip(layers, params, strict=True)
        others, rest = zip(*(left_out(part, *pair) for pair in pairs), strict=True)
        if jax.tree.leaves(params) if part == "parameters" else others != layers:
            assert off(kind, others, rest) > MOVED, part


def test_images_have_rows_and_columns(live):
    text = np.stack([np.arange(LENGTH)] * 3, axis=-1)
    assert off("qwen3_vl", *read("qwen3_vl"), places=text) > MOVED


LAYERS = {  # encodings and windows that occur
    "gpt_oss": {"RoPE+SinkLogit@5", "RoPE+SinkLogit"},
    "mimo_v2_flash": {"RoPE+SinkLogit@5", "RoPE"},
    "cohere2": {"RoPE@5", "Encoding"},
    "smollm3": {"RoPE", "Encoding@5"},
    "llama4_text": {"RoPE", "Temperature"},
    "deepseek_v3": {"RoPE"},
    "inkling_text": {"Inkling@5", "Inkling"},
    "inkling2_text": {"Inkling+SinkLogit@5", "Inkling+SinkLogit"},
    "qwen3_vl": {"MRoPE"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_models_have_all_kinds_of_layers(live, kind):
    names = set()
    for layer in read(kind)[0]:
        own = "+".join(type(part).__name__ for part in parts_of(layer.encoding))
        names.add(own if layer.window is None else f"{own}@{layer.window}")
    assert names == LAYERS[kind]

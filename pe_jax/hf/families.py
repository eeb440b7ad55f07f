"""Model types of transformers, and how they differ: the table that `encodings` reads."""

from typing import Any

from pe_jax.hf.absolute import GPT2, GPTNeo, Learned1D, TwoStacks
from pe_jax.hf.biases import (
    MPT,
    Bloom,
    DeBERTaFamily,
    Falcon,
    LayoutLMv3Family,
    MPNet,
    RoFormer,
    T5Family,
    WavLMFamily,
    XLNet,
)
from pe_jax.hf.conformers import Conformer
from pe_jax.hf.deepseek_v4 import DeepSeekV4
from pe_jax.hf.inkling import InklingFamily
from pe_jax.hf.kinds import (
    conv_layers,
    every,
    exaone4_layers,
    first_of,
    gemma4_layers,
    lfm3_layers,
    linear_but,
    listed_attention,
    listed_rope,
    llama4_layers,
    mimo_layers,
    minimax_layers,
    modernbert_layers,
    only_sliding,
    qwen_layers,
    qwen_moe_layers,
    sliding_if_any,
    smollm3_layers,
)
from pe_jax.hf.mla import MLA
from pe_jax.hf.rotary import Base, Rotary
from pe_jax.hf.vision import Axial, BEiT, Patches, Sinusoids, SwinFamily

FULL, SLIDING = "full_attention", "sliding_attention"
QWEN: dict[str, Any] = {"kinds": qwen_layers, "typed": True, "window": 4096, "use_window": True}
GEMMA3 = {FULL: Base(1e6), SLIDING: Base(1e4, ("rope_local_base_freq",), scaled=False)}
GEMMA4 = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
LFM3 = {
    SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1e6},
}
OLMO3 = {FULL: Base(5e5), SLIDING: Base(5e5, scaled=False)}
MODERNBERT = {
    FULL: Base(160000.0, ("global_rope_theta",)),
    SLIDING: Base(1e4, ("local_rope_theta",)),
}
GPT_OSS = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
MINISTRAL3 = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 12_000_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
QUERY_SCALE = ("query_pre_attn_scalar", 256.0)
ENCODER: dict[str, Any] = {"causal": False, "stack": "encoder"}

# Decoders that rotate.
FAMILIES: dict[str, Any] = {
    "llama": Rotary(),
    "arcee": Rotary(),
    "olmo": Rotary(),
    "seed_oss": Rotary(head_dim=128),
    "bitnet": Rotary(base=5e5),
    "olmo2": Rotary(qk_norm=True),
    "olmoe": Rotary(qk_norm=True),
    "hunyuan_v1_dense": Rotary(qk_norm=True),
    "apertus": Rotary(parameters=LLAMA3, qk_norm=True),
    "granite": Rotary(scale=("attention_multiplier", 1.0)),
    "mistral": Rotary(window=4096),
    "mixtral": Rotary(base=1e6, window=None),
    "starcoder2": Rotary(window=None),
    "ministral": Rotary(typed=True, window=4096),
    "ministral3": Rotary(head_dim=128, window=None, parameters=MINISTRAL3),
    "phi3": Rotary(window=None, original=4096, longrope=("su", "yarn")),
    "qwen2": Rotary(**QWEN),
    "qwen2_moe": Rotary(kinds=qwen_moe_layers, typed=True, window=4096, use_window=True),
    "qwen3": Rotary(head_dim=128, qk_norm=True, **QWEN),
    "qwen3_moe": Rotary(window=4096, use_window=True, qk_norm=True),
    "gpt_oss": Rotary(
        base=150000.0,
        head_dim=64,
        kinds=every(2),
        typed=True,
        window=128,
        parameters=GPT_OSS,
        sinks=(FULL, SLIDING),
    ),
    # partial
    "gpt_neox": Rotary(partial=0.25),
    "phi": Rotary(partial=0.5, qk_norm=("qk_layernorm", False)),
    "persimmon": Rotary(partial=0.5, qk_norm=("qk_layernorm", True)),
    "stablelm": Rotary(partial=0.25, qk_norm=("qk_layernorm", False)),
    "nemotron": Rotary(partial=0.5),
    "glm4_moe": Rotary(partial=0.5, qk_norm=("use_qk_norm", False)),
    "minimax_m2": Rotary(base=5e6, head_dim=128, kinds=listed_attention, qk_norm=True),
    # interleaved
    "gptj": Rotary(layout="interleaved", rotary_dim=64),
    "codegen": Rotary(layout="interleaved", rotary_dim=64),
    "cohere": Rotary(layout="interleaved", base=5e5, qk_norm=("use_qk_norm", False)),
    "glm": Rotary(layout="interleaved", partial=0.5, head_dim=128),
    "glm4": Rotary(layout="interleaved", partial=0.5, head_dim=128),
    "helium": Rotary(layout="interleaved", base=1e5, head_dim=128),
    "ernie4_5": Rotary(layout="interleaved", base=5e5, head_dim=128),
    # layers of several types
    "cohere2": Rotary(
        layout="interleaved", kinds=every(4), typed=True, window=4096, rotates=only_sliding
    ),
    "exaone4": Rotary(
        kinds=exaone4_layers, typed=True, window=4096, rotates=sliding_if_any, qk_norm=True
    ),
    "granite_swa": Rotary(
        kinds=first_of(4),
        typed=True,
        window=128,
        scale=("attention_multiplier", 1.0),
        layer_bases=True,
        sinks=(FULL, SLIDING),
    ),
    "mimo_v2_flash": Rotary(
        head_dim=192,
        partial=0.334,
        kinds=mimo_layers,
        typed=True,
        window=129,
        besides_self=True,
        nested={FULL: Base(5e6), SLIDING: Base(1e4, ("swa_rope_theta",))},
        sinks=(SLIDING,),
    ),
    "smollm3": Rotary(
        base=2e6,
        kinds=smollm3_layers,
        typed=True,
        window=None,
        use_window=True,
        rotates=listed_rope,
    ),
    "llama4_text": Rotary(
        layout="interleaved",
        base=5e5,
        head_dim=128,
        kinds=llama4_layers,
        typed=True,
        rotates=listed_rope,
        qk_norm=("use_qk_norm", True),
        tempered=True,
    ),
    "olmo3": Rotary(kinds=every(4), typed=True, window=4096, nested=OLMO3, qk_norm=True),
    "gemma": Rotary(head_dim=256),
    "gemma2": Rotary(
        head_dim=256,
        kinds=every(2),
        typed=True,
        window=4096,
        scale=QUERY_SCALE,
        cap=("attn_logit_softcapping", 50.0),
    ),
    "gemma3_text": Rotary(
        head_dim=256,
        kinds=every(6),
        typed=True,
        window=4096,
        nested=GEMMA3,
        scale=QUERY_SCALE,
        qk_norm=True,
        bidirectional=True,
    ),
    "gemma3n_text": Rotary(
        head_dim=256,
        kinds=every(5),
        typed=True,
        window=512,
        nested=GEMMA3,
        fixed_scale=1.0,
        qk_norm=True,
    ),
    "gemma4_text": Rotary(
        head_dim=256,
        kinds=gemma4_layers,
        typed=True,
        window=512,
        nested={SLIDING: Base(1e4), FULL: Base(1e6)},
        parameters=GEMMA4,
        fixed_scale=1.0,
        qk_norm=True,
        global_head_dim=512,
    ),
    "qwen3_next": Rotary(partial=0.25, head_dim=256, kinds=linear_but(4), typed=True, qk_norm=True),
    "minimax": Rotary(base=1e6, kinds=minimax_layers, typed=True, window=None, window_on_full=True),
    "lfm3": Rotary(
        head_dim=128,
        kinds=lfm3_layers,
        typed=True,
        window=256,
        nested={FULL: Base(1e6), SLIDING: Base(1e4)},
        parameters=LFM3,
        qk_norm=True,
    ),
    "lfm2": Rotary(base=1e6, kinds=conv_layers, typed=True, qk_norm=True),
    # M-RoPE
    "qwen2_vl_text": Rotary(base=1e6, sections=(16, 24, 24), **QWEN),
    "qwen2_5_vl_text": Rotary(base=1e6, sections=(16, 24, 24), timed=True, **QWEN),
    "qwen3_vl_text": Rotary(
        base=5e5, head_dim=128, sections=(24, 20, 20), interleaved=True, qk_norm=True
    ),
    "qwen3_5_text": Rotary(
        partial=0.25,
        head_dim=256,
        kinds=linear_but(4),
        typed=True,
        sections=(11, 11, 10),
        interleaved=True,
        qk_norm=True,
    ),
    # latent attention
    "deepseek_v2": MLA(),
    "deepseek_v3": MLA(interleave=("rope_interleave", True)),
    "deepseek_v4": DeepSeekV4(layout="interleaved"),
}
FAMILIES |= {"inkling_text": InklingFamily(), "inkling2_text": InklingFamily(second=True)}
FAMILIES |= {f"qwen{n}_vl": FAMILIES[f"qwen{n}_vl_text"] for n in ("2", "2_5")}  # flat, in v4
FAMILIES["minimax_text_01"] = FAMILIES["minimax"]
FAMILIES |= {"llama4": FAMILIES["llama4_text"], "gemma3": FAMILIES["gemma3_text"]}

# Encoders that rotate.
FAMILIES |= {
    "eurobert": Rotary(**ENCODER),
    "nomic_bert": Rotary(base=1000.0, **ENCODER),
    "modernbert": Rotary(
        kinds=modernbert_layers,
        typed=True,
        window=128,
        window_key="local_attention",
        half_window=1,
        nested=MODERNBERT,
        **ENCODER,
    ),
    "roformer": RoFormer(),
    "esm": Learned1D(1026, pad=1, typed=True, rotary=True),
}

# Positions in the scores.
FAMILIES |= {
    "t5": T5Family(),
    "mt5": T5Family(),
    "switch_transformers": T5Family(),
    "umt5": T5Family(shared=False),
    "longt5": T5Family(local=True),
    "deberta": DeBERTaFamily(),
    "deberta-v2": DeBERTaFamily(v2=True),
    "bloom": Bloom(),
    "mpt": MPT(),
    "falcon": Falcon(),
    "xlnet": XLNet(),
    "wavlm": WavLMFamily(),
    "mpnet": MPNet(),
    "layoutlmv3": LayoutLMv3Family(),
    "wav2vec2-conformer": Conformer(),
    "wav2vec2-bert": Conformer(keyed=True),
}

# Positions added to the input.
FAMILIES |= {
    "bert": Learned1D(512, typed=True),
    "electra": Learned1D(512, typed=True),
    "albert": Learned1D(512, typed=True),
    "distilbert": Learned1D(512),
    "roberta": Learned1D(512, pad=1, typed=True),
    "xlm-roberta": Learned1D(512, pad=1, typed=True),
    "camembert": Learned1D(512, pad=1, typed=True),
    "gpt2": GPT2(1024, causal=True),
    "gpt_bigcode": GPT2(1024, causal=True, inverse=False),
    "gpt_neo": GPTNeo(2048, causal=True),
    "openai-gpt": Learned1D(512, causal=True),
    "opt": Learned1D(2048, causal=True, first_row=2),
    "biogpt": Learned1D(1024, causal=True, first_row=2),
    "marian": TwoStacks(
        "concatenated",
        "concatenated",
        (("max_position_embeddings", 1024), ("max_position_embeddings", 1024)),
    ),
    "pegasus": TwoStacks(
        "concatenated",
        "concatenated",
        (("max_position_embeddings", 1024), ("max_position_embeddings", 1024)),
    ),
    "bart": TwoStacks(
        None, None, (("max_position_embeddings", 1024), ("max_position_embeddings", 1024)), 2
    ),
    "mbart": TwoStacks(
        None, None, (("max_position_embeddings", 1024), ("max_position_embeddings", 1024)), 2
    ),
    "whisper": TwoStacks(
        "tensor2tensor", None, (("max_source_positions", 1500), ("max_target_positions", 448))
    ),
}

# Images.
FAMILIES |= {
    "pixtral": Axial("alternating"),
    "dinov3_vit": Axial(base=100.0, normalized=True, registers=True),
    "qwen2_vl_vision": Axial(layers=("depth",), width=("embed_dim",)),
    "vit_mae": Sinusoids(),
    "vit": Patches(),
    "deit": Patches(tokens=2),
    "dinov2": Patches(patch=14),
    "dinov2_with_registers": Patches(antialias=True, registers=4),
    "siglip_vision_model": Patches(tokens=0),
    "siglip2_vision_model": Patches(tokens=0, method="bilinear", antialias=True, squares=256),
    "siglip_text_model": Learned1D(64),
    "siglip2_text_model": Learned1D(64),
    "beit": BEiT(),
    "data2vec-vision": BEiT(),
    "swin": SwinFamily(),
    "swinv2": SwinFamily(v2=True),
}

# Models whose encoding pe_jax does not have, and the nearest scheme.
NEAREST = {
    "mistral_large4": "its indexer, which selects keys, is not supported; its positions are"
    " (lerope(fraction=0.5,scaling=yarn(…))+log_length)*3,log_length",
    "funnel": "its factorised relative attention is not supported; the nearest scheme is"
    " transformer_xl",
    "reformer": "axial tables of consecutive positions are not supported; the nearest scheme is"
    " learned_2d",
    "canine": "hashed positions are not supported; the nearest scheme is learned",
    "longformer": "global tokens are not supported; its table is learned(length=4096)",
    "qwen3_vl_vision": "an interpolated table, and axial RoPE; the nearest schemes are learned_grid"
    " and rope_2d",
    "qwen2_5_vl_vision": "windows of an image with axial RoPE are not supported; the nearest scheme"
    " is rope_2d",
    "jamba": "it has no positional encoding: nope in its attention layers",
    "mamba": "it has no attention, and no positional encoding: nope",
    "rwkv": "it has no attention, and no positional encoding: nope",
    "udop": "its buckets of one and two axes are not supported; the nearest scheme is layoutlmv3",
    "vits": "its relative tables are shaw(clip=window_size), windowed",
}

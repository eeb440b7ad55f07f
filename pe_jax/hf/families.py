"""Model types of transformers, and how they differ: the table that `encodings` reads."""

import dataclasses
from typing import Any

from pe_jax.hf import biases, layer_types
from pe_jax.hf.absolute import GPT2, GPTNeo, Halves, Learned1D, TwoStacks
from pe_jax.hf.biases import (
    MPT,
    Baichuan,
    Bloom,
    Conformer,
    DeBERTaFamily,
    Falcon,
    LayoutLMv3Family,
    MPNet,
    RoFormer,
    T5Family,
    WavLMFamily,
    XLNet,
)
from pe_jax.hf.deepseek_v4 import DeepSeekV4
from pe_jax.hf.inkling import InklingFamily
from pe_jax.hf.layers import ENCODER, Extras
from pe_jax.hf.mla import MLA
from pe_jax.hf.parents import DATA, listed
from pe_jax.hf.rotary import Base, Rotary, Step, Zamba
from pe_jax.hf.vision import Axial, BEiT, Patches, Sinusoids, SwinFamily

CLASSES = {"Rotary": Rotary, "MLA": MLA, "Step": Step, "Zamba": Zamba}
CLASSES |= {name: getattr(biases, name) for name in ("DBRX", "Qwen1", "ChatGLM")}


def _value(field: str, value: Any) -> Any:
    """A value of types.toml, converted to that of a family's field."""
    if field == "extras":
        return Extras(**value)
    if field == "nested" and isinstance(value, dict):
        return {name: Base(*map(tuple_of, values)) for name, values in value.items()}
    if isinstance(value, dict):
        return {key: _value("", inner) for key, inner in value.items()}
    if field in ("layer_types", "rotates"):
        name, *arguments = value if isinstance(value, list) else [value]
        factory = getattr(layer_types, name)
        return factory(*arguments) if arguments or isinstance(factory, type) else factory
    return None if value == "none" else tuple_of(value)


def tuple_of(value: Any) -> Any:
    """A list as a tuple, with None for "none"."""
    return tuple(_value("", x) for x in value) if isinstance(value, list) else value


def _rotary() -> dict[str, Any]:
    """The families of types.toml that rotate."""
    families: dict[str, Any] = {}
    for model_type, fields in DATA["rotary"].items():
        values = {k: _value(k, value) for k, value in fields.items() if k not in ("class", "like")}
        if "like" in fields:
            families[model_type] = dataclasses.replace(families[fields["like"]], **values)
        else:
            families[model_type] = CLASSES[fields.get("class", "Rotary")](**values)
    return families | {name: families[model_type] for name, model_type in listed("alike").items()}


# What rotates.
FAMILIES: dict[str, Any] = {
    **_rotary(),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), DeepSeekV4(layout="interleaved")),
    "inkling_text": InklingFamily(),
    "inkling2_text": InklingFamily(second=True),
    "roformer": RoFormer(),
    "esm": Learned1D(1026, pad=1, typed=True, rotary=True, decodes=True),
    "baichuan": Baichuan(),
}

GEMMA2 = FAMILIES["gemma2"], "t5_gemma_module"
MOONSHINE = Rotary(layout="interleaved", partial=0.9)
FAMILIES |= {
    "t5gemma": Halves(((dataclasses.replace(GEMMA2[0], **ENCODER), GEMMA2[1]), GEMMA2)),
    "dia": Halves(
        ((FAMILIES["dia_encoder"], "dia_encoder"), (FAMILIES["dia_decoder"], "dia_decoder")),
        "_config",
    ),
    "moonshine": Halves(
        ((dataclasses.replace(MOONSHINE, **ENCODER), "moonshine"), (MOONSHINE, "moonshine")), "_"
    ),
}

# Positions in the scores.
CONVOLVED = "wav2vec2 hubert unispeech unispeech-sat data2vec-audio sew"
FAMILIES |= {
    "t5": T5Family(),
    "mt5": T5Family(),
    "switch_transformers": T5Family(),
    "pop2piano": T5Family(),
    "umt5": T5Family(shared=False),
    "longt5": T5Family(local=True),
    "deberta": DeBERTaFamily(),
    "deberta-v2": DeBERTaFamily(v2=True),
    "bloom": Bloom(),
    "mpt": MPT(),
    "falcon": Falcon(),
    "RefinedWeb": Falcon(),
    "RefinedWebModel": Falcon(),
    "xlnet": XLNet(),
    "wavlm": WavLMFamily(),
    **dict.fromkeys(CONVOLVED.split(), WavLMFamily(gated=False)),
    "mpnet": MPNet(),
    "layoutlmv3": LayoutLMv3Family(),
    "wav2vec2-conformer": Conformer(),
    "wav2vec2-bert": Conformer(keyed=True),
}

# Positions added to the input.
BERT = Learned1D(512, typed=True, decodes=True)
ROBERTA = Learned1D(512, pad=1, typed=True, decodes=True)
FAMILIES |= {
    "albert": Learned1D(512, typed=True, groups=True),
    "gpt2": GPT2(1024, causal=True),
    "gpt_bigcode": GPT2(1024, causal=True, inverse=False),
    "gpt_neo": GPTNeo(2048, causal=True),
    "openai-gpt": Learned1D(512, causal=True),
    "opt": Learned1D(2048, causal=True, first_row=2),
    "biogpt": Learned1D(1024, causal=True, first_row=2),
    "blenderbot": TwoStacks(None, None, 128),
    "blenderbot-small": TwoStacks(None, None, 512),
    "whisper": TwoStacks("tensor2tensor", None, (1500, 448)),
    "speech_to_text": TwoStacks("tensor2tensor", "tensor2tensor", (6000, 1024), first_row=2),
    "imagegpt": GPT2(1024, causal=True),
    "ctrl": Learned1D(256, causal=True, layout="concatenated"),
    "xglm": Learned1D(2048, causal=True, first_row=2, layout="tensor2tensor"),
    "git": Learned1D(1024, causal=True, extras=Extras(bidirectional="prefix")),
}

DEPTH = ("depth",)
NORMED, TABLE = Extras(qk_norm=True), Extras(learned_positions=True)
COLUMNS = Extras(learned_positions=True, columns_first=True)
for family, names in {
    BERT: "bert dpr electra ernie bert-generation roc_bert megatron-bert rembert",
    Learned1D(512): "distilbert align_text_model chinese_clip_text_model splinter squeezebert"
    " flava_text_model instructblip_qformer instructblipvideo_qformer",
    ROBERTA: "roberta xlm-roberta camembert data2vec-text roberta-prelayernorm xlm-roberta-xl xmod",
    Learned1D(514, pad=1): "altclip_text_model clap_text_model",
    Learned1D(514, pad=1, decodes=True): "bridgetower_text_model",
    Learned1D(77, causal=True): "clip_text_model clipseg_text_model metaclip_2_text_model"
    " xclip_text_model groupvit_text_model",
    Learned1D(16, causal=True): "owlvit_text_model owlv2_text_model",
    Learned1D(64): "siglip_text_model siglip2_text_model",
    Learned1D(77): "aimv2_text_model",
    TwoStacks("concatenated", "concatenated", 1024): "marian pegasus",
    TwoStacks(None, None, 1024, first_row=2): "bart mbart plbart mvp",
    TwoStacks("tensor2tensor", "tensor2tensor", 1024, first_row=2): "m2m_100 nllb-moe fsmt",
    TwoStacks("tensor2tensor", None, (1500, 448), only="encoder"): "qwen2_audio_encoder"
    " voxtral_encoder audioflamingo3_encoder",
    Patches(tokens=1, patch=32): "clip_vision_model clipseg_vision_model altclip_vision_model"
    " chinese_clip_vision_model metaclip_2_vision_model",
    Patches(): "vit vit_msn git_vision_model flava_image_model",
    Patches(tokens=0): "groupvit_vision_model ijepa",
    Patches(image=384): "blip_vision_model",
    Patches(tokens=0, patch=14): "ovis2_vision",
    Patches(patch=14): "blip_2_vision_model instructblip_vision_model"
    " instructblipvideo_vision_model kosmos_2_vision_model",
    Patches(patch=32, image=768): "owlvit_vision_model",
    Patches(image=768): "owlv2_vision_model",
    Patches(tokens=0, image=384): "janus_vision_model",
    Patches(patch=14, image=448, optional=True): "internvl_vision qianfan_ocr_vision",
    Patches(
        patch=14, image=448, method="bilinear", antialias=True, registers=1
    ): "tipsv2_vision_model",
    Axial(layers=DEPTH): "ernie4_5_vl_moe_vision",
    Axial(layers=DEPTH, extras=TABLE): "qwen3_vl_vision qwen3_vl_moe_vision"
    " qwen3_5_vision qwen3_5_moe_vision qwen4_exp_vision qwen3_omni_moe_vision_encoder"
    " cohere_compass_vision glm4v_vision glm4v_moe_vision",
    Axial(layers=DEPTH, extras=NORMED): "glm_ocr_vision glm5_next_vision",
    Axial(layers=DEPTH, windowed="fullatt_block_indexes"): "qwen2_5_vl_vision exaone4_5_vision"
    " qwen2_5_omni_vision_encoder",
    Axial(extras=NORMED): "dots3_note_vision_encoder",
    Axial(): "video_llama_3_vision",
    Axial(extras=TABLE): "paddleocr_vl_vision",
    Axial(windowed="layer_types", extras=TABLE): "muse_glimmer_vision muse_spark_vision",
    Axial(extras=COLUMNS): "step3p5_vision",
    Axial(layout="interleaved", extras=COLUMNS): "inkling2_vision",
    Axial(axes=3): "minimax_m3_vl_vision",
}.items():
    FAMILIES |= dict.fromkeys(names.split(), family)

# Images.
FAMILIES |= {
    "pixtral": Axial("alternating"),
    "dinov3_vit": Axial(base=100.0, normalized=True, registers=True),
    "qwen2_vl_vision": Axial(layers=DEPTH, width=("embed_dim",)),
    "vit_mae": Sinusoids(),
    "deit": Patches(tokens=2),
    "dinov2": Patches(patch=14),
    "dinov2_with_registers": Patches(antialias=True, registers=4),
    "siglip_vision_model": Patches(tokens=0),
    "siglip2_vision_model": Patches(tokens=0, method="bilinear", antialias=True, squares=256),
    "beit": BEiT(),
    "data2vec-vision": BEiT(),
    "swin": SwinFamily(),
    "swinv2": SwinFamily(v2=True),
}

# What is not read: the reason, and the nearest that is.
NEAREST = listed("unread")

"""Model types of transformers, and how they differ: the table that `encodings` reads."""

import dataclasses
from typing import Any

from pe_jax.hf import biases, kinds
from pe_jax.hf.absolute import GPT2, GPTNeo, Learned1D, TwoStacks
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
from pe_jax.hf.mla import MLA
from pe_jax.hf.parents import DATA, listed
from pe_jax.hf.rotary import Base, Rotary, Zamba
from pe_jax.hf.vision import Axial, BEiT, Patches, Sinusoids, SwinFamily

CLASSES = {"Rotary": Rotary, "MLA": MLA, "Zamba": Zamba}
CLASSES |= {name: getattr(biases, name) for name in ("DBRX", "Qwen1", "ChatGLM")}


def _value(field: str, value: Any) -> Any:
    """A value of types.toml as a field of a family has it."""
    if field == "nested" and isinstance(value, dict):
        return {kind: Base(*map(tuple_of, own)) for kind, own in value.items()}
    if isinstance(value, dict):
        return {key: _value("", own) for key, own in value.items()}
    if field in ("kinds", "rotates"):
        name, *arguments = value if isinstance(value, list) else [value]
        found = getattr(kinds, name)
        return found(*arguments) if arguments or isinstance(found, type) else found
    return None if value == "none" else tuple_of(value)


def tuple_of(value: Any) -> Any:
    """A list as a tuple, with None for "none"."""
    return tuple(_value("", x) for x in value) if isinstance(value, list) else value


def _rotary() -> dict[str, Any]:
    """The families of types.toml that rotate."""
    found: dict[str, Any] = {}
    for kind, fields in DATA["rotary"].items():
        own = {k: _value(k, value) for k, value in fields.items() if k not in ("class", "like")}
        if "like" in fields:
            found[kind] = dataclasses.replace(found[fields["like"]], **own)
        else:
            found[kind] = CLASSES[fields.get("class", "Rotary")](**own)
    return found | {name: found[kind] for name, kind in listed("alike").items()}


# What rotates.
FAMILIES: dict[str, Any] = {
    **_rotary(),
    "deepseek_v4": DeepSeekV4(layout="interleaved"),
    "inkling_text": InklingFamily(),
    "inkling2_text": InklingFamily(second=True),
    "roformer": RoFormer(),
    "esm": Learned1D(1026, pad=1, typed=True, rotary=True, decodes=True),
    "baichuan": Baichuan(),
}

# Of the Hub's code alone: read by their configs' keys.
HUB = "internlm2 xverse exaone minicpm deepseek orion yi aquila skywork zhinao mimo stablelm_epoch"
HUB = f"{HUB} RefinedWeb RefinedWebModel baichuan chatglm qwen kimi_k2 exaone4_5_text".split()

# Positions in the scores.
CONVOLVED = "wav2vec2 hubert unispeech unispeech-sat data2vec-audio"
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
}

for family, names in {
    BERT: "bert electra ernie bert-generation roc_bert megatron-bert rembert",
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
    TwoStacks("tensor2tensor", "tensor2tensor", 1024, first_row=2): "m2m_100 nllb-moe",
    Patches(tokens=1, patch=32): "clip_vision_model clipseg_vision_model altclip_vision_model"
    " chinese_clip_vision_model metaclip_2_vision_model",
    Patches(): "vit vit_msn",
}.items():
    FAMILIES |= dict.fromkeys(names.split(), family)

# Images.
FAMILIES |= {
    "pixtral": Axial("alternating"),
    "dinov3_vit": Axial(base=100.0, normalized=True, registers=True),
    "qwen2_vl_vision": Axial(layers=("depth",), width=("embed_dim",)),
    "qwen2_5_vl_vision": Axial(layers=("depth",), windowed=True),
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

"""Families of models whose positions are in the scores: T5, DeBERTa, ALiBi, Transformer-XL."""

import dataclasses

from pe_jax.encodings import t5
from pe_jax.encodings.alibi import ALiBi
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.buckets import Buckets
from pe_jax.encodings.deberta import TYPES as DEBERTA_TYPES
from pe_jax.encodings.deberta import DeBERTa
from pe_jax.encodings.layoutlmv3 import LayoutLMv3
from pe_jax.encodings.learned import Learned
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.shaw import Shaw
from pe_jax.encodings.sums import Sum, sum_of
from pe_jax.encodings.transformer_xl import TransformerXL
from pe_jax.encodings.wavlm import WavLM
from pe_jax.hf.keys import LENGTHS, Keys
from pe_jax.hf.layers import ENCODER, Extras, Family, LayerEncoding, alike, one_way
from pe_jax.hf.rotary import Rotary
from pe_jax.validation import require

NUM_BUCKETS, MAX_DISTANCE = "relative_attention_num_buckets", "relative_attention_max_distance"
CONVOLUTION = ("num_conv_pos_embeddings", "num_conv_pos_embedding_groups")


@dataclasses.dataclass(frozen=True)
class T5Family(Family):
    """T5's buckets, both ways in the encoder; cross-attention has no positions."""

    shared: bool = True  # whether the layers of a stack share a table
    local: bool = False  # whether the encoder's attention has a radius (LongT5)

    def read(self, keys: Keys) -> list[LayerEncoding]:
        count = keys.layers()
        decoders = keys.layers("num_decoder_layers", default=count, low=0)
        head_dim = keys.integer("d_kv", default=64)
        buckets = keys.integer(NUM_BUCKETS, default=32)
        reach = keys.integer(MAX_DISTANCE, default=128)
        window = None
        if self.local:
            fix = "pe_jax has no scheme with its global tokens"
            keys.choice("encoder_attention_type", ("local",), "local", fix)
            window = keys.integer("local_radius", default=127) + 1
        entries = []
        for stack, times in (("encoder", count), ("decoder", decoders)):
            two_way = stack == "encoder"
            encoding = t5.T5(buckets, reach, bidirectional=two_way, shared=self.shared)
            more = {"causal": not two_way, "stack": stack, "window": window if two_way else None}
            entries += [LayerEncoding(encoding, head_dim, **more)] * times
        return entries


@dataclasses.dataclass(frozen=True)
class DeBERTaFamily(Family):
    """Disentangled attention, and a learned table where `position_biased_input`."""

    v2: bool = False

    def read(self, keys: Keys) -> list[LayerEncoding]:
        length = keys.integer(LENGTHS[0], default=512)
        reach = keys.get("max_relative_positions", default=-1)
        reach = length if not isinstance(reach, int) or reach < 1 else reach
        buckets = keys.get("position_buckets", default=-1) if self.v2 else -1
        buckets = buckets if not isinstance(buckets, int) or buckets > 0 else None
        products = self._products(keys)
        keys.refuse("talking_head", "pe_jax has no talking heads; the nearest scheme is dape")
        head_dim = keys.head_dim()
        relative = keys.flag("relative_attention")
        parts: list[Encoding] = []
        if keys.flag("position_biased_input", default=True):
            parts.append(Learned(length))
        if relative and products:
            parts.append(DeBERTa(buckets, reach, pos_att_type=products))
        norm = keys.get("norm_rel_ebd", default="none") if self.v2 else "none"
        require(norm in ("none", "layer_norm"), "norm_rel_ebd", norm, "pass 'layer_norm' or 'none'")
        extras = Extras(
            share_att_key=self.v2 and relative and keys.flag("share_att_key"),
            norm_rel_ebd=norm != "none" and relative,
        )
        # the scale counts the terms in pos_att_type, even without relative_attention
        scale = ((1 + len(products)) * head_dim) ** -0.5 if products and not relative else None
        return alike(keys, sum_of(parts), scale=scale, extras=extras, **ENCODER)

    def _products(self, keys: Keys) -> tuple[str, ...]:
        value = keys.get("pos_att_type", default=())
        names = tuple(value.split("|")) if isinstance(value, str) else value
        ok = isinstance(names, list | tuple) and set(map(str, names)) <= set(DEBERTA_TYPES)
        require(ok, "pos_att_type", value, "choose of 'c2p' and 'p2c' (a field of deberta)")
        return tuple(x for x in DEBERTA_TYPES if x in names)


@dataclasses.dataclass(frozen=True)
class Bloom(Family):
    """ALiBi."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        keys.skip("offset_alibi")  # a constant, which softmax does not see
        return alike(keys, ALiBi())


@dataclasses.dataclass(frozen=True)
class MPT(Family):
    """ALiBi of `attn_config`; transformers 5.23 reads `alibi_bias_max` as 8 and `alibi` as True."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        inner = keys.part("attn_config")
        fix = "transformers has ALiBi all the same; without it these models have a learned table:"
        alibi = inner.flag("alibi", default=True)
        require(alibi, "attn_config.alibi", alibi, f"{fix} use learned(length=max_seq_len)")
        keys.skip("learned_pos_emb")  # without effect with ALiBi
        inner.refuse("prefix_lm", "its mask of prefixes is not supported")
        inner.refuse("rope", "MPT with rotations is not supported; use rope")
        for key in ("sliding_window_size", "attn_uses_sequence_id"):
            inner.refuse(key, "not supported")
        encoding = ALiBi(float(inner.real("alibi_bias_max", default=8)))
        head_dim, scale = keys.head_dim(), inner.real("softmax_scale", default=None)
        scale = None if scale == head_dim**-0.5 else scale
        clip = inner.real("clip_qkv", default=None)
        extras = Extras(qk_norm=inner.flag("qk_ln"), clip_qkv=clip and float(clip))
        return alike(keys, encoding, scale=scale, extras=extras)


@dataclasses.dataclass(frozen=True)
class Falcon(Family):
    """ALiBi scaled with the scores, or RoPE; Falcon rounds ALiBi to bfloat16, pe_jax does not."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        if not keys.flag("alibi"):
            return Rotary().read(keys)
        keys.skip("rope_parameters", "rope_theta", "rope_scaling")  # without effect with ALiBi
        return alike(keys, ALiBi(scaled=True))


@dataclasses.dataclass(frozen=True)
class XLNet(Family):
    """Transformer-XL's terms, and a bias of segments."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        causal = keys.choice("attn_type", ("bi", "uni"), "bi") == "uni"
        fix = "distances that are clipped are not among transformer_xl's settings; shaw clips"
        keys.refuse("clamp_len", fix)
        keys.refuse("bi_data", "reversing half of the batch is not supported")
        head_dim = keys.per_head(keys.integer("d_model", "hidden_size"), ("n_head",))
        keys.skip("d_head")  # follows from these
        more = {"extras": Extras(segment_bias=True), **one_way(causal)}
        return [LayerEncoding(TransformerXL(), head_dim, **more)] * keys.layers()


@dataclasses.dataclass(frozen=True)
class WavLMFamily(Family):
    """A convolution that adds positions to the input, and a gated table (WavLM) or none."""

    gated: bool = True

    def read(self, keys: Keys) -> list[LayerEncoding]:
        encoding: Encoding = Encoding()
        if self.gated:
            buckets = keys.integer("num_buckets", default=320)
            encoding = WavLM(buckets, keys.integer("max_bucket_distance", default=800))
        keys.skip(*CONVOLUTION, "conv_pos_kernel_size")  # the last is data2vec's
        return alike(keys, encoding, extras=Extras(conv_positions=True), **ENCODER)


@dataclasses.dataclass(frozen=True)
class MPNet(Family):
    """A learned table, and T5's buckets both ways on scaled scores: `buckets` of the same edges."""

    pad: int = 1

    def read(self, keys: Keys) -> list[LayerEncoding]:
        count = keys.integer(NUM_BUCKETS, default=32)
        fix = "transformers sorts into 32 whatever this says; pass 32"
        require(count == 32, NUM_BUCKETS, count, fix)
        pad = keys.integer("pad_token_id", default=self.pad, low=0)
        length = keys.integer(LENGTHS[0], default=512)
        require(length > pad + 1, LENGTHS[0], length, f"must exceed pad_token_id + 1 = {pad + 1}")
        edges = tuple(int(n) - 1 for n in t5.thresholds(count // 2, 128))
        encoding = Sum((Learned(length - pad - 1), Buckets(edges, directional=True)))
        return alike(keys, encoding, first_row=pad + 1, **ENCODER)


@dataclasses.dataclass(frozen=True)
class LayoutLMv3Family(Family):
    """Buckets of index and position on the page; the input also has learned tables of both."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        for key in ("has_relative_attention_bias", "has_spatial_attention_bias"):
            on = keys.flag(key, default=True)
            require(on, key, on, "layoutlmv3 has both biases; for one of them use t5 or alibi_2d")
        keys.skip("max_2d_position_embeddings", "coordinate_size", "shape_size", LENGTHS[0])
        encoding = LayoutLMv3(
            keys.integer("rel_pos_bins", default=32),
            keys.integer("max_rel_pos", default=128),
            keys.integer("rel_2d_pos_bins", default=64),
            keys.integer("max_rel_2d_pos", default=256),
        )
        extras = Extras(learned_positions=True, learned_boxes=True)
        return alike(keys, encoding, extras=extras, **ENCODER)


@dataclasses.dataclass(frozen=True)
class RoFormer(Family):
    """RoPE, interleaved; the values are not rotated."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        fix = "pe_jax has no scheme that rotates values without rotating the output back"
        keys.refuse("rotary_value", fix)
        return alike(keys, RoPE(layout="interleaved"), **one_way(keys.flag("is_decoder")))


POSITIONS = "position_embeddings_type"
LEFT, RIGHT = "left_max_position_embeddings", "right_max_position_embeddings"


@dataclasses.dataclass(frozen=True)
class Conformer(Family):
    """wav2vec2-conformer, and wav2vec2-bert (`keyed`), which has Shaw's keys by default."""

    keyed: bool = False

    def read(self, keys: Keys) -> list[LayerEncoding]:
        keys.skip(*CONVOLUTION)  # which is built and never called
        # of a table of angles, and its initial length
        keys.skip("rotary_embedding_base", "max_source_positions")
        default = "relative_key" if self.keyed else "relative"
        known = ("relative", "relative_key")[: 1 + self.keyed]
        fix = "'rotary' turns the input of the projections, not q and k: no scheme of ours"
        left, right = keys.integer(LEFT, default=64), keys.integer(RIGHT, default=8, low=0)
        if keys.has_none(POSITIONS):
            encoding = Encoding()
        elif keys.choice(POSITIONS, known, default, fix) == "relative":
            encoding = TransformerXL()
        else:
            encoding = Shaw(max(left, right), values=False)
        return alike(keys, encoding, **ENCODER)


# Models whose code is only on the Hub.


@dataclasses.dataclass(frozen=True)
class Baichuan(Family):
    """RoPE in the 7B models, ALiBi in the 13B models, whose configs have no maximal position."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        if keys.get(LENGTHS[0]) is not None:
            return Rotary().read(keys)
        return alike(keys, ALiBi())


@dataclasses.dataclass(frozen=True)
class ChatGLM(Rotary):
    """Half of each head rotates; `rope_ratio` multiplies the base."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        fix = "two positions per token (ChatGLM-6B) are not read here"
        keys.refuse("position_encoding_2d", fix)
        keys.skip("original_rope")
        ratio = keys.real("rope_ratio", default=1)
        fix = "ChatGLM2 divides positions by it, later models multiply the base: pass rope_theta"
        require(ratio == 1 or ratio >= 32, "rope_ratio", ratio, fix)
        base = keys.real("rope_theta", default=self.base) * ratio
        keys.config |= {"rope_theta": base}
        return super().read(keys)


@dataclasses.dataclass(frozen=True)
class Qwen1(Rotary):
    """As Llama up to `seq_length`; beyond, a base and a factor that grow."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        grown = {name: keys.flag(f"use_{name}") for name in ("dynamic_ntk", "logn_attn")}
        return [layer.with_extras(**grown) for layer in super().read(keys)]


@dataclasses.dataclass(frozen=True)
class DBRX(Rotary):
    """The base and the clip are in `attn_config`."""

    def read(self, keys: Keys) -> list[LayerEncoding]:
        inner = keys.part("attn_config")
        given = {name: inner.get(name) for name in ("rope_theta", "clip_qkv")}
        keys.config |= {name: value for name, value in given.items() if value is not None}
        return super().read(keys)

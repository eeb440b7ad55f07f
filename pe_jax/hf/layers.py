"""What a config says of one layer's attention, and patterns of such layers as config strings."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.registry import format_pattern
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.sums import parts_of
from pe_jax.encodings.windowed import Windowed
from pe_jax.validation import PlainFields, shown


@dataclasses.dataclass(frozen=True)
class Extras(PlainFields):
    """What a layer does that its encoding, mask and scale do not say; the defaults are nothing.

    Attributes:
      qk_norm: q and k are normalised.
      cosine_scores: scores are cosines, times a learned scale (Swin v2).
      clip_qkv: q, k and v are clipped to ± this number (OLMo).
      key_multiplier: factor on k (Falcon-H1).
      qk_scale_factor: factor on q and k.
      value_norm: values are normalised (Inkling 2).
      output_gate: the output is multiplied by a gate computed from the input (Inkling 2).
      short_convolutions: of keys and values over neighbouring tokens (Inkling).
      scaled_latents: the latent vectors of q and k have a factor (LongCat).
      rotated_values: values rotate like keys, and the output back (DeepSeek-V4).
      mirrored: it rotates by -position: swap the halves of each head's channels of W_q and W_k.
      compression: tokens per compressed key, which the layer sees in addition to its window
        (DeepSeek-V4: 4, 128); 1: none.
      indexer: an indexer selects which keys are seen.
      image_window: "aligned" or "shifted": patches see their window of the image (Swin).
      bidirectional: "images" (Gemma 3, sliding layers of Gemma 4) or "prefix" (PaliGemma): these
        tokens see each other both ways whatever `causal` says.
      columns_first: a patch's position is column, row.
      text_only: the encoding is right for text alone: HunYuan-VL has no rotation for images, as
        xdrope_section cuts pairs apart.
      learned_positions: a learned table is added to the input.
      learned_boxes: learned tables of boxes on a page are added to the input (LayoutLMv3).
      conv_positions: a convolution adds positions to the input (WavLM).
      segment_bias: scores have a bias of segments (XLNet).
      share_att_key: positions use the projections of content (DeBERTa).
      norm_rel_ebd: the table of distances passes a LayerNorm (DeBERTa).
      dynamic_ntk: beyond its trained length the base grows with the length (Qwen 1).
      logn_attn: beyond its trained length q is multiplied by a logarithm (Qwen 1).
      unread: keys of the config that are switched on and whose effect is not known here; their
        names do not concern positions, or this would be an error.
    """

    qk_norm: bool = False
    cosine_scores: bool = False
    clip_qkv: float | None = None
    key_multiplier: float = 1.0
    qk_scale_factor: float = 1.0
    value_norm: bool = False
    output_gate: bool = False
    short_convolutions: bool = False
    scaled_latents: bool = False
    rotated_values: bool = False
    mirrored: bool = False
    compression: int = 1
    indexer: bool = False
    image_window: str = ""
    bidirectional: str = ""
    columns_first: bool = False
    text_only: bool = False
    learned_positions: bool = False
    learned_boxes: bool = False
    conv_positions: bool = False
    segment_bias: bool = False
    share_att_key: bool = False
    norm_rel_ebd: bool = False
    dynamic_ntk: bool = False
    logn_attn: bool = False
    unread: tuple[str, ...] = ()

    def words(self) -> tuple[str, ...]:
        """What is set, as words: "qk_norm", "clip_qkv=8.0"."""
        found = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return tuple(
            name if value is True else f"{name}={value}"
            for name, value, default in found
            if value != default
        )


@dataclasses.dataclass(frozen=True)
class Indexer(PlainFields):
    """What selects the keys of a layer, for `pe_jax.masks.best_keys`.

    Attributes:
      encoding: the rotation of its q and k.
      heads: of q; k has one.
      head_dim: width of these heads.
      count: how many keys each query sees.
      shared: whether the layer sees those that the last layer before it has selected which does not
        share (GLM-5.2).
      rotary_last: the rotated channels of its heads are the last (Hunyuan 4): put them first.
    """

    encoding: RoPE
    heads: int
    head_dim: int
    count: int
    shared: bool = False
    rotary_last: bool = False


@dataclasses.dataclass(frozen=True)
class LayerEncoding(PlainFields):
    """The encoding of one layer, and what else its scores need.

    Attributes:
      encoding: for `pe_jax.attention`; None where the layer has no softmax attention (linear
        attention, convolution).
      head_dim: E, the width of a head's queries and keys.
      window: as `attention` takes it: `window` tokens back, including the token itself (and ahead,
        if not causal).
      chunk: chunk length in tokens: a query sees the keys of its chunk (Llama 4),
        `pe_jax.masks.chunks(chunk)`.
      scale: the factor on q·k, `scale=` of `attention`; None: 1/sqrt(E), or the encoding's own (T5,
        DeBERTa).
      logit_cap: c in c·tanh(score/c), before the mask (Gemma 2).
      causal: whether later tokens are hidden.
      stack: "decoder" or "encoder"; a model with both has its encoder's layers first.
      prefix: tokens before the others that have no position (CLS and registers of DINOv3; registers
        of DINOv2, between CLS and patches). Tokens that have parameters belong to the encoding
        (`prefix` of learned_grid, `class_token` of swin).
      first_row: row of a released table of positions that belongs to position 0 (OPT, RoBERTa: 2).
      rotary_last: the released weights have the rotated channels of a head last (DeepSeek): put
        them first.
      tokens_per_second: positions per second of a video (Qwen2.5-VL), where the config says it:
        `positions.multimodal(spans, interval=tokens_per_second * seconds_per_frame)`.
      indexer: DeepSeek-V3.2's, where `extras` has the word and it is of that kind (GLM-5 too).
      extras: what else the layer does; `Extras()`: nothing.
    """

    encoding: Encoding | None
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    scale: float | None = None
    logit_cap: float | None = None
    causal: bool = True
    stack: str = "decoder"
    prefix: int = 0
    first_row: int = 0
    rotary_last: bool = False
    tokens_per_second: float | None = None
    indexer: Indexer | None = None
    extras: Extras = Extras()

    @property
    def also(self) -> tuple[str, ...]:
        """`extras` as words, nothing for a plain layer: ("qk_norm", "clip_qkv=8.0")."""
        return self.extras.words()

    def with_extras(self, **fields: Any) -> "LayerEncoding":
        """This layer with these fields of its extras replaced."""
        return dataclasses.replace(self, extras=dataclasses.replace(self.extras, **fields))


ENCODER: dict[str, Any] = {"causal": False, "stack": "encoder"}


def one_way(causal: bool) -> dict[str, Any]:
    """The fields of a decoder's layer, or of an encoder's."""
    return {"causal": causal, "stack": "decoder"} if causal else ENCODER


def alike(keys: Any, encoding: Encoding, **fields: Any) -> list[LayerEncoding]:
    """As many layers as the `keys.Keys` say, all with this encoding and heads of their width."""
    return [LayerEncoding(encoding, keys.head_dim(), **fields)] * keys.layers()


class Family:
    """Reads the configs of a class of models.

    Attributes:
      both_ways: whether `is_causal: false` is understood.
    """

    both_ways: bool = True

    def read(self, keys: Any) -> Sequence[LayerEncoding]:
        """One entry per layer, an encoder's before its decoder's, from `keys.Keys`."""
        raise NotImplementedError


def rotation_of(layer: LayerEncoding) -> RoPE | MRoPE | None:
    """What rotates in a layer."""
    found = (x for x in parts_of(layer.encoding or Encoding()) if isinstance(x, RoPE | MRoPE))
    return next(found, None)


def pattern(layers: Sequence[LayerEncoding]) -> str:
    """The layers' encodings, windows and chunks as a config string: `rope@window=4096*3,nope`.

    It is the shortest pattern that gives all layers when repeated over the depth. Scales and the
    other fields of `LayerEncoding` are left out.

    Args:
      layers: of one stack.

    Raises:
      ValueError: no layers; layers of two stacks; one without attention.
      TypeError: an argument that is not a sequence of `LayerEncoding`.
    """
    if not isinstance(layers, list | tuple) or not all(
        isinstance(layer, LayerEncoding) for layer in layers
    ):
        fix = "pass what pe_jax.hf.encodings gives, or a list of hf.LayerEncoding"
        raise TypeError(f"layers={shown(layers)}: {fix}")
    stacks = sorted({layer.stack for layer in layers})
    if len(stacks) != 1:
        raise ValueError(f"layers: {len(stacks)} stacks {stacks}; pass those of one stack")
    encodings = []
    for index, layer in enumerate(layers):
        if layer.encoding is None:
            raise ValueError(f"layers: layer {index} has no attention and so no spec; leave it out")
        encoding = layer.encoding
        if layer.window is not None or layer.chunk is not None:
            encoding = Windowed(encoding, layer.window, chunk=layer.chunk)
        encodings.append(encoding)
    return format_pattern(encodings)

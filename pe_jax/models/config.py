"""The sizes and choices of a Transformer, as fields of a config or flags.

D width, N layers.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.config_fields import (
    bool_field,
    check_fields,
    choice_field,
    int_field,
    ranged,
    real_field,
)
from pe_jax.encodings.base import Dims, Encoding, Recurrent, abstract_terms
from pe_jax.encodings.registry import Spec
from pe_jax.encodings.terms import Term
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.engines import checks
from pe_jax.validation import ConfigError, divisors, is_real, require

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
ENGINES = ("auto", "dense", "tiled")
BLOCKS = ("before", "after", "around", "parallel", "parallel_shared")
BIASED = {  # which projections `bias_of` means
    "all": ("qkv", "out", "mlp", "head"),
    "layers": ("qkv", "out", "mlp"),
    "attention": ("qkv", "out"),
    "qkv": ("qkv",),
    "mlp": ("mlp",),
}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer's sizes and choices.

    Attributes:
      encoding: one string: `rope(base=5e5)`, a sum `t5+rope`, a pattern over layers `rope*3,nope`,
        of which each may have a window: `rope@window=512*3,nope` (Gemma 3:
        `rope(base=1e4)@window=1024*5,rope(base=1e6)`), or chunks: `rope@chunk=8192*3,nope`. A layer
        may be recurrent in the place of attention (`pe_jax.models.layers.Recurrence`), where no
        field about attention applies: `gated_delta*3,nope`.
      vocab: number of token ids; 0 takes the tokenizer's.
      width: D, of the residual stream.
      layers: number of blocks, N, a multiple of the pattern's length.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; 0 means `heads`.
      head_dim: width of a head; 0 means width / heads.
      mlp_width: hidden width of the MLP; 0 means 4·width, or 8/3·width if gated (rounded to 8).
      gated: whether the MLP is gated (GLU; arXiv 2002.05202).
      activation: of the MLP; "gelu" is the approximation by tanh (GPT-2, Gemma), "gelu_exact" has
        the error function (GPT-NeoX, Falcon, MPT).
      norm: "rms" (RMSNorm), "rms_offset" (RMSNorm times 1 + w: weight decay then pulls the factor
        to 1; Gemma), "layer" (LayerNorm), "layer_unbiased" (without a bias; MPT).
      norm_epsilon: added to variances; released weights were trained with theirs.
      block: where norms are: "before" attention and MLP; "after" them, before they are added (OLMo
        2); "around", both (Gemma 2 and 3); "parallel": both read the layer's input, each through
        its norm (GPT-NeoX, Falcon-40B); "parallel_shared": through the same norm (Falcon-7B).
      qk_norm: whether q and k are normalised, before the encoding.
      qk_norm_over: the channels of a "head" (Qwen 3, Gemma 3), or of the "projection", all heads at
        once (OLMo 2).
      bias: whether projections have biases.
      bias_of: which have them if `bias`: "all"; "layers", all but the head (GPT-2, GPT-NeoX, OPT,
        Bloom); "attention" (Llama's `attention_bias`); "qkv" (Qwen 2, StableLM);
        "mlp" (its `mlp_bias`).
      tied: whether the output projection is the embedding table.
      embed_scale: factor on the embeddings; 0 means sqrt(width): drawn with variance 1/width, they
        get unit variance. Released models have 1, Gemma sqrt(width) with a `logit_scale` of 1.
      embed_norm: whether embeddings are normalised (Bloom).
      logit_scale: factor on the final activations; 0 means 1/sqrt(width) for a tied table, else 1:
        logits then start near uniform. Released models have 1.
      logit_cap: c in c·tanh(logit/c), for the logits of the vocabulary (Gemma 2); 0 disables it.
      attention_scale: factor on q·k; 0 means 1/sqrt(head_dim), or what the encoding says. Gemma 2
        and 3 have `query_pre_attn_scalar`^(-1/2).
      attention_cap: c in c·tanh(score/c), for the scores of attention (Gemma 2); 0 disables it.
      dropout: rate on the outputs of attention and MLP, in training.
      causal: whether tokens attend only to earlier ones (a decoder) or to all (an encoder).
      window: sliding window of the layers that `encoding` gives none; 0 disables it.
      sinks: first tokens of each document that stay visible outside the window.
      dtype: of the activations.
      remat: whether blocks are recomputed in the backward pass, which saves memory.
      attention: the engine.
    """

    encoding: str = ranged("rope", "an encoding, a sum or a pattern", bool)
    vocab: int = int_field(0, 0)
    width: int = int_field(64, 1)
    layers: int = int_field(2, 1)
    heads: int = int_field(4, 1)
    kv_heads: int = int_field(0, 0)
    head_dim: int = int_field(0, 0)
    mlp_width: int = int_field(0, 0)
    gated: bool = bool_field(True)
    activation: str = choice_field("silu", ("silu", "gelu", "gelu_exact", "relu"))
    norm: str = choice_field("rms", ("rms", "rms_offset", "layer", "layer_unbiased"))
    norm_epsilon: float = real_field(1e-6, 0, 1, open_low=True)
    block: str = choice_field("before", BLOCKS)
    qk_norm: bool = bool_field(False)
    qk_norm_over: str = choice_field("head", ("head", "projection"))
    bias: bool = bool_field(False)
    bias_of: str = choice_field("all", BIASED)
    tied: bool = bool_field(True)
    embed_scale: float = real_field(0.0, 0, 1e6)
    embed_norm: bool = bool_field(False)
    logit_scale: float = real_field(0.0, 0, 1e6)
    logit_cap: float = real_field(0.0, 0, 1e6)
    attention_scale: float = real_field(0.0, 0, 1e6)
    attention_cap: float = real_field(0.0, 0, 1e6)
    dropout: float = ranged(0.0, "a rate in [0, 1)", lambda v: is_real(v) and 0 <= v < 1)
    causal: bool = bool_field(True)
    window: int = int_field(0, 0)
    sinks: int = int_field(0, 0)
    dtype: str = choice_field("float32", DTYPES)
    remat: bool = bool_field(False)
    attention: str = choice_field("auto", ENGINES)

    def __post_init__(self) -> None:
        if isinstance(self.encoding, str):  # copies of a config share the Spec
            object.__setattr__(self, "encoding", Spec(self.encoding))

    @property
    def dims(self) -> Dims:
        """The sizes that encodings see."""
        head_dim = self.head_dim or self.width // self.heads
        return Dims(self.width, self.heads, self.kv_heads or self.heads, head_dim)

    @property
    def pattern(self) -> tuple[Encoding, ...]:
        """The encodings of layers 0 … P - 1, repeated over the depth, without windows or chunks."""
        return tuple(map(without_window, Spec(self.encoding).layers))

    @property
    def windows(self) -> tuple[Windowed, ...]:
        """The encodings of layers 0 … P - 1 with their windows or chunks, or the model's window."""

        def windowed(layer: Encoding) -> Windowed:
            if isinstance(layer, Windowed):
                return layer
            if isinstance(layer, Recurrent):
                return Windowed(layer)
            return Windowed(layer, self.window or None, self.sinks)

        return tuple(map(windowed, Spec(self.encoding).layers))

    @property
    def limit(self) -> int | None:
        """The first token that the encodings do not define; None if they define all.

        Encodings of several axes limit positions, which do not bound the number of tokens.
        """
        limits = [e.limit() for e in self.pattern if e.claims.axes == 1]
        return min((n for n in limits if n is not None), default=None)

    @property
    def hidden(self) -> int:
        """Width of the MLP."""
        share = 8 * round(self.width / 3) if self.gated else 4 * self.width
        return self.mlp_width or max(8, share)

    def terms_of(self, layer: Encoding) -> tuple[Term, ...]:
        """The terms of a layer, with abstract arrays."""
        return abstract_terms(layer, layer.layer_dims(self.dims))

    def biased(self, part: str) -> bool:
        """Whether the projections of a part have biases: "qkv", "out", "mlp" or "head"."""
        return self.bias and part in BIASED[self.bias_of]

    def check(self) -> None:
        """Raises ConfigError, naming the field, its value and the fix, before anything compiles."""

        def need(ok: bool, field: str, fix: str):
            require(ok, f"model.{field}", getattr(self, field), fix)

        check_fields(self, "model.")
        need(bool(self.window) or not self.sinks, "sinks", "set model.window too")
        need(self.bias or self.bias_of == "all", "bias_of", "set model.bias=True too")
        per_head = self.qk_norm_over == "head"
        need(self.qk_norm or per_head, "qk_norm_over", "set model.qk_norm=True too")
        fits = self.heads % (self.kv_heads or self.heads) == 0
        need(fits, "kv_heads", f"must divide heads: {divisors(self.heads)}")
        fits = bool(self.head_dim) or self.width % self.heads == 0
        widths = f"{self.width} ({divisors(self.width)})"
        need(fits, "heads", f"must divide width {widths}, or set head_dim")
        try:
            pattern = self.pattern
            for encoding in pattern:
                encoding.check(encoding.layer_dims(self.dims))
                checks.causal(encoding, self.causal)
        except ValueError as error:
            raise ConfigError(f"model.encoding={self.encoding!r}: {error}") from error
        chunks = any(layer.chunk is not None for layer in self.windows)
        fix = "@chunk hides later tokens; pass True, or @window"
        need(self.causal or not chunks, "causal", fix)
        multiple = f"must be a multiple of the pattern's length {len(pattern)}"
        need(self.layers % len(pattern) == 0, "layers", multiple)

"""The sizes and choices of a Transformer, as fields of a config or flags.

D width, N layers.
"""

import dataclasses

import jax.numpy as jnp

from pe_jax.config_fields import bool_field, check_fields, choice_field, int_field, ranged
from pe_jax.encodings.base import Dims, Encoding
from pe_jax.encodings.registry import Spec
from pe_jax.encodings.windowed import Windowed, without_window
from pe_jax.engines import checks
from pe_jax.validation import ConfigError, is_real, require

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
ENGINES = ("auto", "dense", "tiled")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer's sizes and choices.

    Attributes:
      encoding: one string: `rope(base=5e5)`, a sum `t5+rope`, a pattern over layers `rope*3,nope`,
        of which each may have a window: `rope@window=512*3,nope` (Gemma 3:
        `rope(base=1e4)@window=1024*5,rope(base=1e6)`), or chunks: `rope@chunk=8192*3,nope`.
      vocab: number of token ids; 0 takes the tokenizer's.
      width: D, of the residual stream.
      layers: number of blocks, N, a multiple of the pattern's length.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; 0 means `heads`.
      head_dim: width of a head; 0 means width / heads.
      mlp_width: hidden width of the MLP; 0 means 4·width, or 8/3·width if gated (rounded to 8).
      gated: whether the MLP is gated (GLU; arXiv 2002.05202).
      activation: of the MLP.
      norm: RMSNorm or LayerNorm, before attention and MLP.
      qk_norm: whether q and k are normalised per head, before the encoding.
      bias: whether projections have biases.
      tied: whether the output projection is the embedding table.
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
    activation: str = choice_field("silu", ("silu", "gelu", "relu"))
    norm: str = choice_field("rms", ("rms", "layer"))
    qk_norm: bool = bool_field(False)
    bias: bool = bool_field(False)
    tied: bool = bool_field(True)
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
        default = Windowed(Encoding(), self.window or None, self.sinks)
        return tuple(
            x if isinstance(x, Windowed) else dataclasses.replace(default, encoding=x)
            for x in Spec(self.encoding).layers
        )

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

    def check(self) -> None:
        """Raises ConfigError, naming the field, its value and the fix, before anything compiles."""

        def need(ok: bool, field: str, fix: str):
            require(ok, f"model.{field}", getattr(self, field), fix)

        check_fields(self, "model.")
        need(bool(self.window) or not self.sinks, "sinks", "set model.window too")
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        need(
            self.heads % (self.kv_heads or self.heads) == 0,
            "kv_heads",
            f"must divide heads: {divisors}",
        )
        fits = bool(self.head_dim) or self.width % self.heads == 0
        widths = [n for n in range(1, self.width + 1) if self.width % n == 0]
        need(fits, "heads", f"must divide width {self.width} ({widths}), or set head_dim")
        try:
            pattern = self.pattern
            for encoding in pattern:
                encoding.check(self.dims)
                checks.causal(encoding, self.causal)
        except ValueError as error:
            raise ConfigError(f"model.encoding={self.encoding!r}: {error}") from error
        chunks = any(layer.chunk is not None for layer in self.windows)
        need(
            self.causal or not chunks, "causal", "@chunk hides later tokens; pass True, or @window"
        )
        multiple = f"must be a multiple of the pattern's length {len(pattern)}"
        need(self.layers % len(pattern) == 0, "layers", multiple)

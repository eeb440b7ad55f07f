"""The sizes and choices of a Transformer, as fields of a config or flags.

D width, N layers.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from pe_jax.encodings import parse
from pe_jax.encodings.base import Dims, Encoding
from pe_jax.engines import inputs
from pe_jax.validation import is_int, is_real, nearest, require

ACTIVATIONS: dict[str, Callable] = {"silu": jax.nn.silu, "gelu": jax.nn.gelu, "relu": jax.nn.relu}
NORMS: dict[str, type] = {"rms": nnx.RMSNorm, "layer": nnx.LayerNorm}
DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer's sizes and choices.

    Attributes:
      encoding: one string: `rope(base=5e5)`, a sum `t5+rope`, a pattern over layers `rope*3,nope`
        (Gemma 3: `rope(base=1e4)*5,rope(base=1e6)`).
      vocab: number of token ids; 0 takes the tokenizer's.
      width: D.
      layers: N, a multiple of the pattern's length.
      heads: query heads.
      kv_heads: key and value heads, a divisor of `heads`; 0 means `heads`.
      head_dim: width of a head; 0 means width / heads.
      mlp_width: hidden width of the MLP; 0 means 4·width, or 8/3·width if gated (rounded to 8).
      gated: whether the MLP is gated (GLU; arXiv 2002.05202).
      activation: "silu", "gelu" or "relu".
      norm: "rms" or "layer".
      qk_norm: whether q and k are normalised per head, before the encoding.
      bias: whether projections have biases.
      tied: whether the output projection is the embedding table.
      dropout: rate on the outputs of attention and MLP, in training.
      causal: whether tokens attend only to earlier ones (a decoder) or to all (an encoder).
      window: sliding window of attention; 0 disables it.
      sinks: first tokens of each document that stay visible outside the window.
      dtype: of the activations, "float32" or "bfloat16".
      remat: whether blocks are recomputed in the backward pass, which saves memory.
      attention: engine: "auto", "dense" or "tiled".
    """

    encoding: str = "rope"
    vocab: int = 0
    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 0
    head_dim: int = 0
    mlp_width: int = 0
    gated: bool = True
    activation: str = "silu"
    norm: str = "rms"
    qk_norm: bool = False
    bias: bool = False
    tied: bool = True
    dropout: float = 0.0
    causal: bool = True
    window: int = 0
    sinks: int = 0
    dtype: str = "float32"
    remat: bool = False
    attention: str = "auto"

    @property
    def dims(self) -> Dims:
        """The sizes that encodings see."""
        head_dim = self.head_dim or self.width // self.heads
        return Dims(self.width, self.heads, self.kv_heads or self.heads, head_dim)

    @property
    def pattern(self) -> tuple[Encoding, ...]:
        """The encodings of layers 0 … P - 1, repeated over the depth."""
        return parse(self.encoding)

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
        """Raises ValueError, naming the field, its value and the fix, before anything compiles."""

        def need(ok: bool, field: str, fix: str):
            require(ok, f"model.{field}", getattr(self, field), fix)

        for field in ("width", "layers", "heads"):
            need(is_int(getattr(self, field), 1), field, "pass an integer of at least 1")
        for field in ("vocab", "kv_heads", "head_dim", "mlp_width", "window", "sinks"):
            need(is_int(getattr(self, field), 0), field, "pass an integer of at least 0")
        need(bool(self.window) or not self.sinks, "sinks", "set model.window too")
        choices = {
            "activation": ACTIVATIONS,
            "norm": NORMS,
            "dtype": DTYPES,
            "attention": ("auto", "dense", "tiled"),
        }
        for field, known in choices.items():
            value = getattr(self, field)
            need(value in known, field, f"did you mean {nearest(str(value), known)!r}?")
        divisors = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        need(self.heads % self.dims.kv_heads == 0, "kv_heads", f"must divide heads: {divisors}")
        fits = bool(self.head_dim) or self.width % self.heads == 0
        widths = [n for n in range(1, self.width + 1) if self.width % n == 0]
        need(fits, "heads", f"must divide width {self.width} ({widths}), or set head_dim")
        need(is_real(self.dropout) and 0 <= self.dropout < 1, "dropout", "pass a rate in [0, 1)")
        try:
            pattern = self.pattern
            for encoding in pattern:
                encoding.check(self.dims)
                inputs.causal(encoding, self.causal)
        except ValueError as error:
            raise ValueError(f"model.encoding={self.encoding!r}: {error}") from error
        multiple = f"must be a multiple of the pattern's length {len(pattern)}"
        need(self.layers % len(pattern) == 0, "layers", multiple)

"""A sliding window or chunks for one layer, as `rope@window=512*3,nope` in a config.

Gemma 3, Cohere 2 and gpt-oss have windows on most layers and none on the others; RoPE only on the
layers with a window is RNoPE-SWA (Yang et al., "RoPE to NoPE and back again", arXiv 2501.18795) and
SWAN (Puvvada et al., arXiv 2504.08719). Llama 4 has chunks there: `rope@chunk=8192*3,nope`.
"""

import dataclasses
from collections.abc import Sequence

from pe_jax.encodings.base import Encoding, Recurrent
from pe_jax.validation import is_int, require


@dataclasses.dataclass(frozen=True)
class Windowed(Encoding):
    """An encoding and what its layer sees; parameters and terms are those of the encoding.

    Attributes:
      encoding: the encoding of the layer.
      window: how many tokens back are visible, query included; None: all, whatever the model has.
      sinks: how many first tokens of each document stay visible beyond the window, at their
        positions in the text.
      chunk: tokens in a chunk, in place of a window: a token sees those of its own chunk up to
        itself (`masks.chunks`), counted in each document; None: no chunks.
    """

    encoding: Encoding = Encoding()
    window: int | None = None
    sinks: int = 0
    chunk: int | None = None

    def __post_init__(self):
        if not isinstance(self.encoding, Encoding) or isinstance(self.encoding, Windowed):
            raise TypeError(f"encoding={self.encoding!r}: pass an encoding without a window")
        window, sinks, chunk = self.window, self.sinks, self.chunk
        recurrent = isinstance(self.encoding, Recurrent)
        fix = "a recurrent layer sees all tokens of its document; leave it out"
        require(window is None or not recurrent, "window", window, fix)
        require(chunk is None or not recurrent, "chunk", chunk, fix)
        fix = "pass an integer of at least"
        require(window is None or is_int(window, 1), "window", window, f"{fix} 1")
        require(is_int(sinks, 0), "sinks", sinks, f"{fix} 0")
        needs = "pass a window too: without one every token is visible"
        require(window is not None or not sinks, "sinks", sinks, needs)
        require(chunk is None or is_int(chunk, 1), "chunk", chunk, f"{fix} 1")
        alone = chunk is None or self.window is None
        require(alone, "chunk", chunk, f"a layer has that or window={self.window}; leave one out")

    @property
    def span(self) -> int | None:
        """How many tokens back may be visible, query included: of the window, or of a chunk."""
        return self.window if self.chunk is None else self.chunk

    @property
    def claims(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the encoding."""
        return self.encoding.claims

    def check(self, dims):
        self.encoding.check(dims)

    def layer_dims(self, dims):
        return self.encoding.layer_dims(dims)

    def query_heads(self, dims):
        return self.encoding.query_heads(dims)

    def at_length(self, length):
        return dataclasses.replace(self, encoding=self.encoding.at_length(length))

    def valid_length(self):
        return self.encoding.valid_length()

    def limit(self):
        return self.encoding.limit()

    def init_shared(self, key, dims):
        return self.encoding.init_shared(key, dims)

    def init_layer(self, key, dims):
        return self.encoding.init_layer(key, dims)

    def inputs(self, shared):
        return self.encoding.inputs(shared)

    def embed(self, params, x, positions):
        return self.encoding.embed(params, x, positions)

    def terms(self, params, dims):
        return self.encoding.terms(params, dims)


def attention_layers(pattern: Sequence[Encoding]) -> list[int]:
    """The indices of a pattern's layers that are attention, not recurrent layers in its place."""
    return [n for n, e in enumerate(pattern) if not isinstance(without_window(e), Recurrent)]


def without_window(encoding: Encoding) -> Encoding:
    """The encoding without its window or chunks."""
    return encoding.encoding if isinstance(encoding, Windowed) else encoding

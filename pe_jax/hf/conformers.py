"""Conformers of wav2vec 2: Transformer-XL's terms, or Shaw's keys with a reach for each side."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.shaw import Shaw
from pe_jax.encodings.transformer_xl import TransformerXL
from pe_jax.hf.absolute import one_of_a_kind
from pe_jax.hf.keys import Keys
from pe_jax.hf.layers import LayerEncoding
from pe_jax.validation import require

KIND, LEFT, RIGHT = (
    "position_embeddings_type",
    "left_max_position_embeddings",
    "right_max_position_embeddings",
)


@dataclasses.dataclass(frozen=True)
class Conformer:
    """wav2vec2-conformer, and wav2vec2-bert (`keyed`), which has Shaw's keys by default."""

    keyed: bool = False

    def read(self, keys: Keys) -> list[LayerEncoding]:
        """The same for each layer."""
        for key in ("num_conv_pos_embeddings", "num_conv_pos_embedding_groups"):
            keys.get(key)  # of a convolution that is built and never called
        for key in ("rotary_embedding_base", "max_source_positions"):
            keys.get(key)  # how far a table of angles goes at first
        default = "relative_key" if self.keyed else "relative"
        known = ("relative", "relative_key")[: 1 + self.keyed]
        fix = (
            "'rotary' rotates the input of the projections, not q and k; pe_jax has no such scheme"
        )
        left, right = keys.integer(LEFT, default=64), keys.integer(RIGHT, default=8, low=0)
        if keys.has_none(KIND):
            encoding = Encoding()
        elif keys.choice(KIND, known, default, fix) == "relative":
            encoding = TransformerXL()
        else:
            encoding = Shaw(max(left, right), values=False)
        layer = LayerEncoding(encoding, keys.head_dim(), causal=False, stack="encoder")
        return [layer] * keys.layers()

    def write(self, layers: Sequence[LayerEncoding]) -> dict[str, Any]:
        """The kind, and the reach of both sides."""
        encoding, found = one_of_a_kind(layers).encoding, {"num_hidden_layers": len(layers)}
        if isinstance(encoding, Shaw) and self.keyed:
            return found | {KIND: "relative_key", LEFT: encoding.clip, RIGHT: encoding.clip}
        plain = encoding == Encoding()
        fix = "such models have transformer_xl, or nope" + ", or shaw" * self.keyed
        require(plain or isinstance(encoding, TransformerXL), "encoding", encoding, fix)
        return found | {KIND: None if plain else "relative"}

"""Inkling and Inkling 2: relative logits from the input, on sliding and on full layers."""

import dataclasses
from typing import Any

from pe_jax.encodings.inkling import Inkling
from pe_jax.encodings.sink import SinkLogit
from pe_jax.encodings.sums import Sum
from pe_jax.hf.keys import Keys
from pe_jax.hf.layers import Extras, Family, LayerEncoding

SLIDING, FULL = "hybrid_sliding", "hybrid"


@dataclasses.dataclass(frozen=True)
class InklingFamily(Family):
    """A window with a profile of its length on most layers; on the others a logarithmic floor."""

    second: bool = False  # whether it is Inkling 2, which clips norms and has sinks
    both_ways = False  # its profiles are of earlier tokens

    def read(self, keys: Keys) -> list[LayerEncoding]:
        layers = keys.layers()
        window = keys.integer("sliding_window_size", default=1024 if self.second else 512)
        extent, width = keys.integer("rel_extent", default=1024), keys.integer("d_rel", default=16)
        floor = keys.integer("log_scaling_n_floor", default=128_000 if self.second else None)
        attn_scale = keys.real("log_scaling_alpha", default=0.1)
        wide = keys.integer("head_dim", default=128)
        narrow = keys.integer("swa_head_dim", default=128)
        clips: dict[str, Any] = {}
        if self.second:
            clips["clip_states"] = keys.real("rel_l2_clip_threshold", default=8.0)
            clips["clip_qk"] = keys.real("qk_l2_clip_threshold", default=512**0.5)
        extras = Extras(
            short_convolutions=True,
            qk_norm=not self.second,
            value_norm=self.second,
            output_gate=self.second,
        )
        entries = []
        for layer_type in self._types_of_layers(keys, layers):
            if layer_type == SLIDING:
                encoding, head_dim = Inkling(window, width, **clips), narrow
            else:
                encoding, head_dim = Inkling(extent, width, floor, attn_scale, **clips), wide
            entries.append(
                LayerEncoding(
                    Sum((encoding, SinkLogit(from_input=True))) if self.second else encoding,
                    head_dim,
                    window=window if layer_type == SLIDING else None,
                    scale=None if self.second else 1 / head_dim,
                    extras=extras,
                )
            )
        return entries

    def _types_of_layers(self, keys: Keys, layers: int) -> list[str]:
        local = keys.numbers("local_layer_ids", layers)
        types = [SLIDING if (i + 1) % 6 else FULL for i in range(layers)]
        types = types if local is None else [SLIDING if i in local else FULL for i in range(layers)]
        return keys.per_layer("layer_types", layers, (FULL, SLIDING), types)

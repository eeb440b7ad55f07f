"""DeepSeek-V4: sliding windows and two settings of RoPE, whose labels are not layer types."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pe_jax.hf.keys import Keys
from pe_jax.hf.layer_types import SLIDING
from pe_jax.hf.layers import Extras, LayerEncoding
from pe_jax.hf.rotary import Rotary, with_sink
from pe_jax.validation import require

SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATIOS = {0: SLIDING, 4: SPARSE, 128: HEAVY}  # of its first configs
EXTRAS = Extras(qk_norm=True, rotated_values=True)
COMPRESSION = {SLIDING: 1, SPARSE: 4, HEAVY: 128}
BASES = {"main": 1e4, "compress": 160_000.0}


@dataclasses.dataclass(frozen=True)
class DeepSeekV4(Rotary):
    """A window in every layer; most also see keys that compress 4 or 128 tokens.

    The encoding has neither those keys nor the rotation of values: `extras` says both.
    The label "main" is that of layers that see only a window.
    """

    both_ways = False  # compressed keys of later tokens stay hidden

    def read(self, keys: Keys) -> list[LayerEncoding]:
        types = self._types(keys)
        head_dim = keys.head_dim(512)
        rotary_dim = keys.integer("qk_rope_head_dim", default=None)
        partial = 0.125 if rotary_dim is None else rotary_dim / head_dim
        partial = keys.get("partial_rotary_factor", default=partial)
        window = keys.integer("sliding_window", default=128)
        ropes = {}
        for label, settings in self._labels(keys).items():
            ropes[label] = self._encoding(keys, dict(settings), head_dim, BASES[label], partial)
        return [
            LayerEncoding(
                with_sink(ropes["main" if layer_type == SLIDING else "compress"]),
                head_dim,
                window=window,
                rotary_last=True,
                extras=dataclasses.replace(EXTRAS, compression=COMPRESSION[layer_type]),
            )
            for layer_type in types
        ]

    def _types(self, keys: Keys) -> list[str]:
        layers = keys.layers()
        types = [HEAVY, HEAVY, *([HEAVY, SPARSE] * layers)][:layers]
        ratios = keys.per_layer("compress_ratios", layers, tuple(RATIOS))
        types = types if ratios is None else [RATIOS[ratio] for ratio in ratios]
        return keys.per_layer("layer_types", layers, tuple(RATIOS.values()), types)

    def _labels(self, keys: Keys) -> dict[str, Mapping[str, Any]]:
        """The settings of both labels; flat ones are those of "compress", except the bases."""
        parameters, nested = self._parameters(keys)
        main = keys.get("rope_theta", default=BASES["main"])
        compress = keys.get("compress_rope_theta", default=BASES["compress"])
        if nested:
            ok = parameters.keys() >= BASES.keys()
            require(ok, "rope_parameters", parameters, "pass main and compress")
            return {label: parameters[label] or {} for label in BASES}
        flat = {**parameters, "rope_theta": compress}
        flat = flat if "type" in flat else {"rope_type": "default", **flat}
        if "yarn" in (flat.get("rope_type"), flat.get("type")):
            flat.setdefault("attention_factor", 1.0)  # its code does not scale cos and sin
        return {"main": {"rope_type": "default", "rope_theta": main}, "compress": flat}

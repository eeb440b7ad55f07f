"""DeepSeek's multi-head latent attention: a part of each head rotates, the rest is content."""

import dataclasses

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling import hugging_face
from pe_jax.encodings.sums import Sum
from pe_jax.hf.keys import REQUIRED
from pe_jax.hf.layer_types import FULL, INDEXED, OTHERS, doubled
from pe_jax.hf.layers import LayerEncoding, parts
from pe_jax.hf.rotary import PARTIAL, Rotary, with_sink
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class MLA(Rotary):
    """DeepSeek's latent attention: of each head's channels the last `qk_rope_head_dim` rotate.

    All heads share those of the key. The encoding rotates the first channels: put them first.
    With YaRN and `mscale_all_dim` the scale is multiplied twice by 0.1·mscale_all_dim·ln s + 1.

    Attributes:
      interleave: the key of the layout, and its default; or the layout, where no key sets it.
      content: default of `qk_nope_head_dim`.
      rotary: default of `qk_rope_head_dim`.
    """

    interleave: tuple[str, bool] | bool = True
    content: int = 128
    rotary: int = 64

    def read(self, keys):
        latent = keys.flag("use_mla", default=True)
        fix = "layers of this family without latent attention are not read"
        require(latent, "use_mla", latent, fix)
        types = self._types_of_layers(keys)
        turns = self.rotates(keys, types) if self.rotates else [True] * len(types)
        rotary = keys.integer("qk_rope_head_dim", default=self.rotary, low=0 if self.rotates else 1)
        width = keys.integer("qk_nope_head_dim", default=self.content) + rotary
        for key in ("head_dim", "qk_head_dim"):
            keys.get(key)  # both follow from these
        if not any(turns):
            keys.get("mla_use_nope")  # Kimi Linear says so itself
            self.skip_rotation(keys)
        rope, scale = self._rope(keys, rotary, width) if any(turns) else (None, None)
        wrap = with_sink if self.sinks else lambda encoding: encoding
        return [
            LayerEncoding(None, width)
            if layer_type in OTHERS
            else LayerEncoding(
                wrap(rope if rope and rotated else Encoding()),
                width,
                scale=scale,
                rotary_last=bool(rope) and rotated,
                extras=dataclasses.replace(self.extras, indexer=layer_type == INDEXED),
            )
            for layer_type, rotated in zip(types, turns, strict=True)
        ]

    def _types_of_layers(self, keys):
        if self.layer_types is not doubled:
            return super()._types_of_layers(keys)
        count = 2 * keys.layers("num_layers") if keys.get("num_layers") is not None else REQUIRED
        return [FULL] * keys.layers("num_hidden_layers", default=count)

    def _rope(self, keys, rotary: int, width: int):
        """The rotation of `rotary` channels of `width`, and the scale."""
        pairs = keys.flag(*self.interleave) if isinstance(self.interleave, tuple) else None
        pairs = self.interleave if pairs is None else pairs
        given = keys.flag("rope_interleave", default=pairs)
        require(given == pairs, "rope_interleave", given, f"it is always {pairs} for this family")
        fields = dict(self._parameters(keys)[0])
        fields.pop("max_position_embeddings", None)  # Mistral 4's repeat the config's
        fix = f"qk_rope_head_dim={rotary} rotates already; leave the factor out"
        usual = keys.integer("head_dim", default=width)  # Ling's factor and rotary_dim are of this
        for partial in (keys.get(*PARTIAL, default=1), fields.pop(PARTIAL[0], 1)):
            shares = 1, rotary / width, hugging_face.partial(rotary / width, width), rotary / usual
            require(partial in shares, PARTIAL[0], partial, fix)
        given = keys.integer("rotary_dim", default=rotary)
        require(given == rotary, "rotary_dim", given, f"qk_rope_head_dim={rotary} is what rotates")
        plain = dataclasses.replace(self, partial=1.0)
        theta = keys.get("rope_theta", default=self.base)
        rope, *rest = parts(plain._encoding(keys, fields, rotary, theta, 1.0))
        assert isinstance(rope, RoPE | MRoPE)
        layout = "interleaved" if pairs else "half"
        rope = dataclasses.replace(rope, fraction=rotary / width, layout=layout)
        scale = None
        if isinstance(rope.scaling, rope_scaling.YaRN) and rope.scaling.mscale_all_dim:
            standard = dataclasses.replace(
                rope.scaling, mscale=None, mscale_all_dim=None, attention_factor=None
            )
            factor = rope.scaling.mscale_all_dim * (standard.attention_factor - 1) + 1
            scale = factor * factor * width**-0.5
        scale = None if scale == width**-0.5 else scale
        return Sum((rope, *rest)) if rest else rope, scale  # rest: Llama 4's temperature

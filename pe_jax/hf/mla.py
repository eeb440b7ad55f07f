"""DeepSeek's multi-head latent attention: a part of each head rotates, the rest is content."""

import dataclasses

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling import hugging_face
from pe_jax.hf import rotary_keys
from pe_jax.hf.layers import LayerEncoding
from pe_jax.hf.rotary import PARTIAL, Rotary
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class MLA(Rotary):
    """DeepSeek's latent attention: of each head's channels the last `qk_rope_head_dim` rotate.

    Those of the key are one for all heads. The encoding rotates the first channels: put them first.
    With YaRN and `mscale_all_dim` the scale is multiplied twice by 0.1·mscale_all_dim·ln s + 1.

    Attributes:
      interleave: the key of the layout, and its default; None: always interleaved.
      content: default of `qk_nope_head_dim`.
      rotary: default of `qk_rope_head_dim`.
    """

    interleave: tuple[str, bool] | None = None
    content: int = 128
    rotary: int = 64

    def read(self, keys):
        rotary = keys.integer("qk_rope_head_dim", default=self.rotary)
        width = keys.integer("qk_nope_head_dim", default=self.content) + rotary
        pairs = keys.flag(*self.interleave) if self.interleave else True
        for key in ("head_dim", "qk_head_dim"):
            keys.get(key)  # both follow from these
        partial = keys.get(*PARTIAL, default=1)
        ok = partial in (1, hugging_face.partial(rotary / width, width))
        fix = f"qk_rope_head_dim={rotary} rotates already; leave the factor out"
        require(ok, PARTIAL[0], partial, fix)
        own = dict(self._parameters(keys)[0])
        inner = own.get("partial_rotary_factor", 1)
        require(inner == 1, PARTIAL[0], inner, fix)
        plain = dataclasses.replace(self, partial=1.0)
        rope = plain._encoding(keys, own, rotary, keys.get("rope_theta", default=self.base), 1.0)
        assert isinstance(rope, RoPE)
        layout = "interleaved" if pairs else "half"
        rope = dataclasses.replace(rope, fraction=rotary / width, layout=layout)
        scale = None
        if isinstance(rope.scaling, rope_scaling.YaRN) and rope.scaling.mscale_all_dim:
            both = dataclasses.replace(
                rope.scaling, mscale=None, mscale_all_dim=None, attention_factor=None
            )
            more = rope.scaling.mscale_all_dim * (both.attention_factor - 1) + 1
            scale = more * more * width**-0.5
        scale = None if scale == width**-0.5 else scale
        layer = LayerEncoding(rope, width, scale=scale, rotary_last=True)
        return [layer] * keys.layers()

    def write(self, layers):
        """Of layers that are all alike."""
        layer, rope = layers[0], rotary_keys.rope_of(layers[0])
        require(
            rope is not None, "encoding", layer.encoding, "these models have RoPE in all layers"
        )
        rotary = rope.rotary_dim(layer.head_dim)
        plain = dataclasses.replace(rope, fraction=1.0)
        config = {"num_hidden_layers": len(layers), "qk_rope_head_dim": rotary}
        config |= {"qk_nope_head_dim": layer.head_dim - rotary}
        if self.interleave:
            config[self.interleave[0]] = rope.layout == "interleaved"
        if isinstance(rope.scaling, rope_scaling.DynamicNTK):
            config["max_position_embeddings"] = rope.scaling.original_length
        return config | {"rope_parameters": rope_scaling.to_hf(plain, head_dim=rotary)}

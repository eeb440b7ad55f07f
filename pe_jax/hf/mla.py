"""DeepSeek's multi-head latent attention: a part of each head rotates, the rest is content."""

import dataclasses

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.base import Encoding
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling import hugging_face
from pe_jax.encodings.sums import parts_of, sum_of
from pe_jax.hf.keys import REQUIRED
from pe_jax.hf.layer_types import FULL, INDEXED, OTHERS, doubled
from pe_jax.hf.layers import Indexer, LayerEncoding
from pe_jax.hf.rotary import PARTIAL, Rotary, with_sink
from pe_jax.validation import require

SHARES = ("full", "shared")  # whether a layer selects keys, or sees those of one before it


@dataclasses.dataclass(frozen=True)
class MLA(Rotary):
    """DeepSeek's latent attention: of each head's channels the last `qk_rope_head_dim` rotate.

    All heads share those of the key. The encoding rotates the first channels: put them first.
    With YaRN and `mscale_all_dim` the scale is multiplied twice by 0.1·mscale_all_dim·ln s + 1.
    """

    # the key of the layout, and its default; or the layout, where no key sets it
    interleave: tuple[str, bool] | bool = True
    content: int = 128  # default of `qk_nope_head_dim`
    rotary: int = 64  # default of `qk_rope_head_dim`
    index_heads: int = 0  # default of `index_n_heads`; 0: the indexer, if there is one, is not read
    # whether neighbouring channels of the indexer are a pair, not the halves
    index_interleave: bool = False
    index_last: bool = False  # whether the indexer's rotated channels are the last of a head
    # default of `index_topk_freq`: how many layers see the keys that one of them has selected; 0:
    # no layer shares
    index_every: int = 0

    def read(self, keys):
        latent = keys.flag("use_mla", default=True)
        fix = "layers of this family without latent attention are not read"
        require(latent, "use_mla", latent, fix)
        types = self._types_of_layers(keys)
        turns = self.rotates(keys, types) if self.rotates else [True] * len(types)
        rotary = keys.integer("qk_rope_head_dim", default=self.rotary, low=0 if self.rotates else 1)
        width = keys.integer("qk_nope_head_dim", default=self.content) + rotary
        keys.skip("head_dim", "qk_head_dim")  # both follow from these
        if not any(turns):
            keys.skip("mla_use_nope")  # Kimi Linear says so itself
            self.skip_rotation(keys)
        rope, scale = self._rope(keys, rotary, width) if any(turns) else (None, None)
        indexers = self._indexers(keys, rope, rotary, width, len(types))
        wrap = with_sink if self.sinks else lambda encoding: encoding
        return [
            LayerEncoding(None, width)
            if layer_type in OTHERS
            else LayerEncoding(
                wrap(rope if rope and rotated else Encoding()),
                width,
                scale=scale,
                rotary_last=bool(rope) and rotated,
                indexer=indexer if layer_type == INDEXED else None,
                extras=dataclasses.replace(self.extras, indexer=layer_type == INDEXED),
            )
            for layer_type, rotated, indexer in zip(types, turns, indexers, strict=True)
        ]

    def _indexers(
        self, keys, rope: Encoding | None, rotary: int, width: int, layers: int
    ) -> list[Indexer | None]:
        """The indexer of each layer, if it has one; its frequencies are those of the attention."""
        if not self.index_heads or not isinstance(rope, RoPE):
            return [None] * layers
        pairs = keys.flag("indexer_rope_interleave", default=self.index_interleave)
        fix = f"it is always {self.index_interleave} for this family"
        require(pairs == self.index_interleave, "indexer_rope_interleave", pairs, fix)
        heads = keys.integer("index_n_heads", default=self.index_heads)
        head_dim = keys.integer("index_head_dim", default=128)
        fix = f"qk_rope_head_dim={rotary} of its channels turn"
        require(head_dim >= rotary, "index_head_dim", head_dim, fix)
        layout = "interleaved" if pairs else "half"
        rope = dataclasses.replace(rope, fraction=rotary / head_dim, layout=layout)
        count = keys.integer("index_topk", default=2048)
        shared = self._shared(keys, layers) if self.index_every else [False] * layers
        last = self.index_last
        return [Indexer(rope, heads, head_dim, count, share, last) for share in shared]

    def _shared(self, keys, layers: int) -> list[bool]:
        """Which layers see the keys that one before them has selected (arXiv 2603.12201)."""
        letters = keys.get("index_topk_pattern")
        every = keys.integer("index_topk_freq", default=self.index_every)
        offset = keys.integer("index_skip_topk_offset", default=2, low=0)
        types = ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]
        if isinstance(letters, str):
            ok = {*letters} <= {*"FS"} and len(letters) >= layers
            fix = f"write F or S for each of {layers} layers"
            require(ok, "index_topk_pattern", letters, fix)
            types = ["full" if letter == "F" else "shared" for letter in letters[:layers]]
        else:
            types = keys.per_layer("index_topk_pattern", layers, SHARES, types)
        types = keys.per_layer("indexer_types", layers, SHARES, types)
        require(types[0] == "full", "indexer_types", types, "the first layer must be full")
        return [name == "shared" for name in types]

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
        rope, *rest = parts_of(plain._encoding(keys, fields, rotary, theta, 1.0))
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
        return sum_of((rope, *rest)), scale  # rest: Llama 4's temperature

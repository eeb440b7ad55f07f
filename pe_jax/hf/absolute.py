"""Families of models that add positions to the input: learned tables and sinusoids."""

import dataclasses
from typing import Any

from pe_jax.encodings.base import Encoding
from pe_jax.encodings.learned import Learned
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.shaw import Shaw
from pe_jax.encodings.sinusoidal import Sinusoidal
from pe_jax.hf import parents
from pe_jax.hf.keys import LENGTHS, Keys
from pe_jax.hf.layers import Extras, Family, LayerEncoding, one_way
from pe_jax.validation import require


@dataclasses.dataclass(frozen=True)
class Learned1D(Family):
    """A learned table, of `max_position_embeddings` rows."""

    length: int  # default of that key
    causal: bool = False  # whether later tokens are hidden
    # default of `pad_token_id`: position 0 has the row after it, and the rows before are no
    # positions (RoBERTa); None: position 0 has row 0
    pad: int | None = None
    first_row: int = 0  # rows before that of position 0, in addition to the length (OPT)
    # whether `position_embedding_type` is read: "absolute", "relative_key" (Shaw's keys) or, if
    # `rotary`, "rotary" (ESM)
    typed: bool = False
    rotary: bool = False
    decodes: bool = False  # whether `is_decoder` is read, which hides later tokens
    groups: bool = False  # whether each layer is `inner_group_num` of them (ALBERT)
    layout: str = ""  # of a sinusoid that replaces the table; "": the table
    extras: Extras = Extras()  # of each layer

    def _rows(self, keys: Keys) -> tuple[int, int]:
        """The number of positions, and the row of the first."""
        length = keys.integer(*LENGTHS, default=self.length)
        if self.pad is None:
            return length, self.first_row
        pad = keys.integer("pad_token_id", default=self.pad, low=0)
        require(length > pad + 1, LENGTHS[0], length, f"must exceed pad_token_id + 1 = {pad + 1}")
        return length - pad - 1, pad + 1

    def read(self, keys: Keys) -> list[LayerEncoding]:
        length, first = self._rows(keys)
        head_dim, layers = keys.head_dim(), keys.layers()
        known = ("absolute", "relative_key") + (("rotary",) if self.rotary else ())
        fix = "'relative_key_query' adds k·table; the nearest scheme: deberta"
        name = "position_embedding_type"
        position = keys.choice(name, known, "absolute", fix) if self.typed else ""
        base = keys.real("rope_theta", default=1e4) if self.rotary else 1e4
        encoding: Encoding = Sinusoidal(layout=self.layout) if self.layout else Learned(length)
        if position == "relative_key":
            encoding, first = Shaw(length + first - 1, values=False), 0
        if position == "rotary":
            encoding, first = RoPE(base), 0
        causal = self.causal or (self.decodes and keys.flag("is_decoder"))
        more = {"extras": self.extras, **one_way(causal)}
        layer = LayerEncoding(encoding, head_dim, first_row=first, **more)
        layers *= keys.layers("inner_group_num", default=1) if self.groups else 1
        require(layers <= 10_000, "inner_group_num", layers, "pass at most 10000 layers in all")
        return [layer] * layers


@dataclasses.dataclass(frozen=True)
class GPT2(Learned1D):
    """A learned table and a scale that may be 1, or divided by the layer's number."""

    inverse: bool = True

    def read(self, keys):
        layers, head_dim = super().read(keys), keys.head_dim()
        first = 1.0 if not keys.flag("scale_attn_weights", default=True) else None
        if not (self.inverse and keys.flag("scale_attn_by_inverse_layer_idx")):
            return [dataclasses.replace(layer, scale=first) for layer in layers]
        scale = head_dim**-0.5 if first is None else first
        scales = [scale / (i + 1) for i in range(len(layers))]
        scales = [None if s == head_dim**-0.5 else s for s in scales]
        return [dataclasses.replace(x, scale=s) for x, s in zip(layers, scales, strict=True)]


@dataclasses.dataclass(frozen=True)
class GPTNeo(Learned1D):
    """A learned table, unscaled scores, a window in every other layer."""

    def read(self, keys):
        layers, window = super().read(keys), keys.integer("window_size", default=256)
        types = keys.get("attention_types", default=[[["global", "local"], len(layers) // 2]])
        scopes, name = self._listed(types), "attention_layers"
        keys.config[name] = keys.get(name, default=scopes)  # per_layer refuses too few entries
        scopes = keys.per_layer(name, len(layers), ("global", "local"))
        scaled = None if layers[0].head_dim == 1 else 1.0
        return [
            dataclasses.replace(x, scale=scaled, window=window if scope == "local" else None)
            for x, scope in zip(layers, scopes, strict=True)
        ]

    def _listed(self, types: Any) -> list[Any]:
        """[[["global", "local"], 2]] as one scope per layer."""
        try:
            pairs = [(list(scopes), min(int(times), 10_000)) for scopes, times in types]
        except (TypeError, ValueError, OverflowError):
            require(False, "attention_types", types, "write [[['global', 'local'], 12]]")
            raise
        return [scope for scopes, times in pairs for _ in range(times) for scope in scopes]


@dataclasses.dataclass(frozen=True)
class TwoStacks(Family):
    """An encoder and a decoder with positions at their inputs (Marian, BART, Whisper)."""

    encoder: str | None  # layout of the sinusoid, or None: learned
    decoder: str | None  # the same
    # default of both stacks' `max_position_embeddings`, or those of an encoder's
    # `max_source_positions` and a decoder's `max_target_positions`
    lengths: int | tuple[int, int]
    first_row: int = 0  # of position 0, in a released table or among the angles
    only: str = ""  # the name of a single stack, whose keys may have the usual names

    def read(self, keys: Keys) -> list[LayerEncoding]:
        entries, width = [], keys.integer("d_model", "hidden_size")
        # of older code; the model type decides these
        keys.skip("static_position_embeddings", "extra_pos_embeddings")
        for stack, layout, (key, default) in self._stacks():
            length = keys.integer(key, default=default)
            usual = ("num_hidden_layers", "num_attention_heads") if self.only else ()
            count = keys.layers(f"{stack}_layers", *usual[:1], low=0)
            head_dim = keys.per_head(width, (f"{stack}_attention_heads", *usual[1:]))
            encoding = Learned(length) if layout is None else Sinusoidal(layout=layout)
            more = {"first_row": self.first_row, **one_way(stack == "decoder")}
            entries += [LayerEncoding(encoding, head_dim, **more)] * count
        return entries

    def _stacks(self):
        lengths: Any = (("max_position_embeddings", self.lengths),) * 2
        if not isinstance(self.lengths, int):
            lengths = zip(
                ("max_source_positions", "max_target_positions"), self.lengths, strict=True
            )
        stacks = zip(("encoder", "decoder"), (self.encoder, self.decoder), lengths, strict=True)
        return [entry for entry in stacks if self.only in ("", entry[0])]


@dataclasses.dataclass(frozen=True)
class Halves(Family):
    """An encoder and a decoder, each with keys in a separate config, or under a prefix."""

    # the families of both, the encoder's first, and the names of their default sizes
    stacks: tuple[tuple[Any, str], tuple[Any, str]]
    # what follows "encoder" and "decoder" in the keys of their configs; "_": a prefix
    suffix: str = ""

    def read(self, keys):
        entries = []
        for stack, (family, model_type) in zip(("encoder", "decoder"), self.stacks, strict=True):
            settings = keys.mapping(stack + self.suffix) or {}
            if self.suffix == "_":
                settings = {n.removeprefix(f"{stack}_"): x for n, x in keys.config.items()}
            inner = Keys(keys.model_type, parents.sized(settings, model_type))
            entries += [dataclasses.replace(x, stack=stack) for x in family.read(inner)]
            inner.check_rest()
            keys.known |= inner.known
        return entries

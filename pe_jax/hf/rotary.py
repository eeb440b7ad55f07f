"""Families of models that rotate: one class whose fields say how they differ."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pe_jax.encodings import rope_scaling
from pe_jax.encodings.base import Dims, Encoding
from pe_jax.encodings.mrope import MRoPE
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling import hugging_face
from pe_jax.encodings.sink import SinkLogit
from pe_jax.encodings.sums import Sum
from pe_jax.encodings.temperature import Temperature
from pe_jax.hf.keys import LAYERS, Keys
from pe_jax.hf.layer_types import (
    CHUNKED,
    FULL,
    INDEXED,
    LINEAR,
    OTHERS,
    RENAMED,
    SLIDING,
    Each,
    Switch,
)
from pe_jax.hf.layers import Extras, Family, LayerEncoding
from pe_jax.validation import is_int, is_real, require, shown

MANY_AXES = ("mrope_section", "xdrope_section", "mrope_interleaved")
PARTIAL = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction")


def with_sink(encoding: Encoding) -> Encoding:
    """The encoding and a sink logit per head."""
    bare = type(encoding) is Encoding
    return SinkLogit() if bare else Sum((encoding, SinkLogit()))


@dataclasses.dataclass(frozen=True)
class Base:
    """The base of a layer type: its default and keys, and whether `rope_scaling` applies."""

    default: float
    keys: tuple[str, ...] = ("rope_theta",)
    scaled: bool = True


@dataclasses.dataclass(frozen=True)
class Rotary(Family):
    """Models with RoPE; the fields are what transformers has in code or as defaults.

    A family is a line of types.toml that sets some of them.
    """

    layout: str = "half"  # of the pairs
    base: float = 1e4  # where the config has none
    partial: float = 1.0  # the fraction that is rotated where the config has none
    head_dim: int | None = None  # where the config has none; None: width/heads
    # gives the type of each layer where the config does not list them
    layer_types: Callable[[Keys, int], list[str]] | None = None
    typed: bool | str = False  # whether `layer_types` is read, or what it is called
    window: int | None = 0  # the default of `sliding_window`; 0: there is no such key
    window_key: str = "sliding_window"  # what it is called
    # whether `sliding_window_size` counts the tokens besides the query's own (MiMo)
    besides_self: bool = False
    use_window: bool = False  # whether the window waits for `use_sliding_window`
    # which layers rotate, from keys and types; None: all
    rotates: Callable[[Keys, list[str]], list[bool]] | None = None
    nested: Mapping[str, Base] | None = None  # bases of layer types, where each has its own
    parameters: Mapping[str, Any] | None = None  # `rope_parameters` where the config has none
    # M-RoPE's default sections, () in the proportion of `mrope`; None: RoPE
    sections: tuple[int, ...] | None = None
    interleaved: bool = False  # M-RoPE's order
    # the same; rows and columns have equal sections, and time has the other one
    time_last: bool = False
    # the key of the scale, and its default; "query_pre_attn_scalar" is to the power of -1/2
    scale: tuple[str, float | None] | None = None
    cap: tuple[str, float | None] | None = None  # the key of the cap of logits
    fixed_scale: float | None = None  # the scale, where no key sets it
    # whether q and k are normalised, or the key that says so, with its default
    qk_norm: bool | tuple[str, bool] = False
    sinks: tuple[str, ...] = ()  # types of the layers whose heads have a sink logit
    # whether each layer has a base in `layer_rope_theta`, 0 where it does not rotate
    layer_bases: bool = False
    causal: bool = True  # whether later tokens are hidden
    stack: str = "decoder"  # "decoder" or "encoder"
    rotary_dim: int | None = None  # default of the key of that name, where it replaces fractions
    global_head_dim: int | None = None  # default E of full layers, where they have their own
    tempered: bool = False  # whether layers that do not rotate have Llama 4's temperature
    # default of `original_max_position_embeddings`, if it is in the config itself
    original: int | None = None
    longrope: tuple[str, ...] = ()  # types that mean "longrope" in old configs
    half_window: int | None = None  # added to half of the key's number (ModernBERT), or None
    # what `use_bidirectional_attention` adds to half of the window (Gemma 3); 0: it is not read
    bidirectional: int = 0
    images: str | None = None  # default of `use_bidirectional_attention` (Gemma 4)
    window_on_full: bool = False  # whether the window is that of full layers (MiniMax)
    timed: bool = False  # whether videos are in seconds, by the vision config's `tokens_per_second`
    factor: float = 1.0  # default of `qk_scale_factor`
    extras: Extras = Extras()  # of each layer, in addition to what its keys say
    # whether the scaling has its factors on q and k in `MSCALES`, as Phi-3.5-MoE
    own_mscale: bool = False

    def read(self, keys: Keys) -> list[LayerEncoding]:
        types = self._types_of_layers(keys)
        layers = len(types)
        if not (isinstance(self.rotates, Switch) and self.rotates.key == "position_embedding_type"):
            rotary = ("rope", "rotary", "rope_gptj", "absolute")  # the last as in BERT's configs
            keys.choice("position_embedding_type", rotary, "rope")
        widths = {layer_type: self._head_dim(keys, layer_type, types) for layer_type in types}
        causal, window = self._mask(keys, types)
        bases = self._layer_bases(keys, layers)
        turns = self.rotates(keys, types) if self.rotates else [True] * layers
        if not any(turns):
            self.skip_rotation(keys)
        encodings = self._encodings(keys, widths) if any(turns) else {}
        unrotated = self._unrotated(keys)
        norm = self.qk_norm if isinstance(self.qk_norm, bool) else keys.flag(*self.qk_norm)
        scales = {layer_type: self._scale(keys, widths[layer_type]) for layer_type in widths}
        cap, chunk = None, None
        if self.cap is not None and not keys.has_none(self.cap[0]):
            cap = keys.real(self.cap[0], default=self.cap[1])
        if CHUNKED in types:
            fix = "layers of type 'chunked_attention' need a number of tokens"
            require(not keys.has_none("attention_chunk_size"), "attention_chunk_size", None, fix)
            chunk = keys.integer("attention_chunk_size", default=8192)
        windowed = (SLIDING, FULL) if self.window_on_full else (SLIDING,)
        clip = keys.real("clip_qkv", default=None)
        numbers = dataclasses.replace(
            self.extras,
            clip_qkv=None if clip is None else float(clip),
            key_multiplier=float(keys.real("key_multiplier", default=1.0)),
            qk_scale_factor=float(keys.real("qk_scale_factor", default=self.factor)),
        )
        images = keys.get("use_bidirectional_attention", default=self.images) == "vision"
        rate = keys.real("tokens_per_second", default=None) if self.timed else None
        entries = []
        for layer_type, rotated, base in zip(types, turns, bases, strict=True):
            if layer_type in OTHERS:
                width = widths[layer_type]
                entries.append(LayerEncoding(None, width, stack=self.stack, causal=causal))
                continue
            encoding = encodings[layer_type] if rotated and base != 0 else unrotated
            if base and isinstance(encoding, RoPE):
                encoding = dataclasses.replace(encoding, base=base)
            entries.append(
                LayerEncoding(
                    with_sink(encoding) if layer_type in self.sinks else encoding,
                    widths[layer_type],
                    window=window if layer_type in windowed else None,
                    chunk=chunk if layer_type == CHUNKED else None,
                    scale=scales[layer_type],
                    logit_cap=cap,
                    causal=causal,
                    stack=self.stack,
                    tokens_per_second=rate,
                    extras=dataclasses.replace(
                        numbers,
                        qk_norm=norm and (rotated or not self.tempered),
                        bidirectional="images" if images and layer_type == SLIDING else "",
                        indexer=layer_type == INDEXED,
                    ),
                )
            )
        return entries

    def skip_rotation(self, keys: Keys) -> None:
        """Leaves the keys of a rotation that is switched off without effect."""
        keys.skip("rope_parameters", "rope_scaling", "rope_theta", *PARTIAL)

    def _layer_bases(self, keys: Keys, layers: int) -> list[Any]:
        """The base of each layer, 0 where it has no RoPE; None: that of its type."""
        bases = keys.get("layer_rope_theta") if self.layer_bases else None
        if bases is None:
            return [None] * layers
        ok = isinstance(bases, list | tuple) and len(bases) >= layers
        ok = ok and all(is_real(x) and (x == 0 or x > 1) for x in bases)
        fix = f"pass a base above 1, or 0 for none, for each of {layers} layers"
        require(ok, "layer_rope_theta", bases, fix)
        return list(bases[:layers])

    def _types_of_layers(self, keys: Keys) -> list[str]:
        name = self.typed if isinstance(self.typed, str) else "layer_types"
        types = keys.get(name) if self.typed else None
        letters = keys.get("hybrid_override_pattern") if name != "layer_types" else None
        types = list(letters) if types is None and isinstance(letters, str) else types
        if types is None and name != "layer_types" and self.layer_types is None:
            types = [LINEAR, "moe", FULL, "mlp"]  # Nemotron-H, by default
        if name != "layer_types" and isinstance(types, list | tuple):  # it says how many
            keys.get(*LAYERS)
            layers = len(types)
        else:
            layers = keys.layers()
        if self.layer_types is not None:
            default = self.layer_types(keys, layers)  # the list takes precedence
        elif self.window == 0:
            default = [FULL] * layers
        else:
            default = [FULL if self._window(keys) is None else SLIDING] * layers
        if types is None:
            return default
        ok = isinstance(types, list | tuple) and 0 < layers <= 10_000
        mtp = keys.integer("num_nextn_predict_layers", default=0, low=0)  # may be listed too
        ok = ok and len(types) in (layers, layers + mtp)
        types = types[:layers] if ok else types
        require(ok, name, types, f"pass a list with a name for each of {layers} layers")
        types = [RENAMED.get(x, x) if isinstance(x, str) else x for x in types]
        if isinstance(self.layer_types, Each):
            types = [self.layer_types.full if x == FULL else x for x in types]
        names = (FULL, SLIDING, CHUNKED, INDEXED, *OTHERS)
        for layer_type in types:
            require(layer_type in names, name, layer_type, f"choose of {', '.join(names)}")
        last = FULL if self.global_head_dim is not None else types[-1]
        return [*types[:-1], last]  # Gemma 4's is full whatever the list says

    def _window(self, keys: Keys) -> int | None:
        if self.window == 0:
            return None
        on = keys.flag("use_sliding_window") if self.use_window else True
        if self.besides_self and keys.get("sliding_window_size") is not None:
            keys.skip(self.window_key)  # the other takes precedence
            return 1 + keys.integer("sliding_window_size")
        if keys.has_none(self.window_key):
            return None
        names = (self.window_key, "sliding_window_size")  # Gemma 2's first configs have both
        value = keys.integer(*names, default=self.window, low=0)
        return (value or None) if on else None

    def _mask(self, keys: Keys, types: Sequence[str]) -> tuple[bool, int | None]:
        window = self._window(keys)
        if SLIDING in types:
            fix = "layers of type 'sliding_attention' need a number of tokens"
            require(window is not None, self.window_key, keys.get(self.window_key), fix)
        if self.half_window is not None and window is not None:
            keys.skip("sliding_window")  # of ModernBERT's decoder: half of the other
            window = window // 2 + self.half_window
        elif not self.causal and window is not None:
            window += 1  # besides the query's own
        if not self.bidirectional:
            fix = "transformers ignores it, except in its fused attention"
            keys.refuse("use_bidirectional_attention", f"{fix}; is_causal is read")
            return self.causal, window
        name, known = "use_bidirectional_attention", (None, False, True)
        if self.global_head_dim is not None:
            known = (None, False, "all", "vision")
        value = keys.get(name)
        require(any(value is x or value == x for x in known), name, value, f"choose of {known}")
        if value not in (True, "all"):
            return True, window
        return False, None if window is None else window // 2 + self.bidirectional

    def _head_dim(self, keys: Keys, layer_type: str, types: Sequence[str]) -> int:
        default = keys.head_dim(self.head_dim)
        if self.global_head_dim is None:
            return default
        wide = keys.integer("global_head_dim", default=self.global_head_dim)
        layers = keys.mapping("per_layer_config")
        if layers is None:
            return wide if layer_type == FULL and not keys.has_none("per_layer_config") else default
        widths = [default] * len(types)
        for index, settings in layers.items():
            number = int(index) if str(index).isdigit() else -1
            ok = 0 <= number < len(types) and isinstance(settings, Mapping)
            require(ok, "per_layer_config", {index: settings}, "pass layer number → settings")
            widths[number] = settings.get("head_dim", default)
        widths_of = dict(zip(types, widths, strict=True))
        same = all(widths_of[x] == width for x, width in zip(types, widths, strict=True))
        same = same and all(is_int(width, 1) for width in widths)
        require(same, "per_layer_config", layers, "layers of one type must have one head_dim")
        return widths_of[layer_type]

    def _scale(self, keys: Keys, head_dim: int) -> float | None:
        scale = self.fixed_scale
        if self.scale is not None:
            name, default = self.scale
            value = keys.real(name, default=default)
            if value is None:
                return None
            scale = value**-0.5 if name == "query_pre_attn_scalar" else float(value)
        return None if scale == head_dim**-0.5 else scale

    def _unrotated(self, keys: Keys) -> Encoding:
        if not self.tempered:
            return Encoding()
        on = keys.get("attn_temperature_tuning", default=True)  # 4 in the first configs
        scale, floor = keys.real("attn_scale", default=0.1), keys.real("floor_scale", default=8192)
        require(floor == int(floor), "floor_scale", floor, "pass a whole number of tokens")
        return Temperature(scale, int(floor)) if on else Encoding()

    def _encodings(self, keys: Keys, widths: Mapping[str, int]) -> dict[str, Encoding]:
        """The encoding of each layer type that rotates."""
        parameters, nested = self._parameters(keys)
        partial = keys.get(*PARTIAL, default=self.partial)
        rotary_dim = None if keys.has_none("rotary_dim") else self.rotary_dim
        rotary_dim = keys.integer("rotary_dim", default=rotary_dim)
        if self.rotary_dim is not None:
            require(rotary_dim is not None, "rotary_dim", None, "pass a number of channels")
        encodings = {}
        for layer_type, head_dim in widths.items():
            if layer_type in OTHERS:
                continue
            if nested and layer_type not in parameters:
                names = shown(", ".join(map(str, parameters)))[1:-1]
                fix = f"it has no settings for layers of type {layer_type!r}"
                raise ValueError(f"rope_parameters has settings for {names}: {fix}")
            settings = parameters[layer_type] if nested else parameters
            if settings is None:
                encodings[layer_type] = Encoding()  # a type without RoPE
                continue
            settings = dict(settings)
            if nested and settings.get("rope_type", settings.get("type")) == "yarn":
                if settings.get("truncate") is False:
                    text = "transformers 5.23 leaves it unread where layer types are nested"
                    name = f"rope_parameters[{layer_type!r}]['truncate']"
                    warnings.warn(f"{name}=False is read; {text}", stacklevel=5)
            base, scaled = self._base(keys, layer_type)
            if not (nested or scaled):
                settings = {}
            share = partial
            if rotary_dim is not None:
                fix = f"pass at most head_dim={head_dim}"
                require(rotary_dim <= head_dim, "rotary_dim", rotary_dim, fix)
                share = hugging_face.partial(rotary_dim / head_dim, head_dim)
            encoding = self._encoding(keys, settings, head_dim, base, share)
            encodings[layer_type] = encoding
            rotated = encoding.rotary_dim(head_dim) if isinstance(encoding, RoPE) else None
            if rotary_dim is not None and rotated != rotary_dim:
                fix = f"the partial factor says {rotated}; keep one of them"
                require(rotated is None, "rotary_dim", rotary_dim, fix)
        return encodings

    def _parameters(self, keys: Keys) -> tuple[Mapping[str, Any], bool]:
        """The settings, and whether they are by layer type."""
        new, old = keys.mapping("rope_parameters"), keys.mapping("rope_scaling") or None
        parameters = new if old is None else old
        if parameters is None:
            parameters = self.parameters or {}
        if new is not None and old is not None and dict(new) != dict(old):
            both = f"rope_parameters={shown(new)} and rope_scaling={shown(old)}"
            raise ValueError(f"{both} differ; keep one of them")
        nested = any(isinstance(value, Mapping) for value in parameters.values())
        if nested:
            parameters = {RENAMED.get(x, x): value for x, value in parameters.items()}
            for layer_type, value in parameters.items():
                ok, name = value is None or isinstance(value, Mapping), shown(layer_type)
                require(ok, f"rope_parameters[{name}]", value, "pass a dict for each type")
        return parameters, nested

    def _base(self, keys: Keys, layer_type: str) -> tuple[float, bool]:
        """The base outside of the settings, and whether flat settings act on this layer type."""
        if self.nested is None:
            return keys.get("rope_theta", "rotary_emb_base", default=self.base), True
        fix = f"{keys.model_type!r} has settings for {', '.join(self.nested)}"
        require(layer_type in self.nested, "layer_types", layer_type, fix)
        bases = {name: keys.get(*b.keys, default=b.default) for name, b in self.nested.items()}
        return bases[layer_type], self.nested[layer_type].scaled

    def _encoding(self, keys: Keys, fields: dict, head_dim: int, base: float, partial) -> Encoding:
        sections: Any
        if self.sections is not None and keys.get("mrope_section") is not None:  # of the parent
            fields = {"mrope_section": keys.get("mrope_section"), **fields}
        sections, beta = self._special(fields)
        original = keys.get("original_max_position_embeddings", default=self.original)
        scaled = fields.get("rope_type", fields.get("type", "default")) != "default"
        names = ("max_position_embeddings", "n_positions") if scaled else ()  # else they may differ
        rope = rope_scaling.from_hf(
            fields,
            head_dim=head_dim,
            rope_theta=base,
            partial_rotary_factor=partial,
            max_position_embeddings=keys.get(*names),
            original_max_position_embeddings=original,
        )
        rope = dataclasses.replace(rope, layout=self.layout)
        if sections is not None:
            if self.interleaved:  # the code asks for rows and columns, and time has the rest
                pairs = rope.rotary_dim(head_dim) // 2
                axes = ((1, sections[1]), (2, sections[2]))
                rows, columns = (len(range(i, min(3 * n, pairs), 3)) for i, n in axes)
                sections = (pairs - rows - columns, rows, columns)
            if self.time_last and sections[0] == sections[1]:  # Ernie lists time last
                sections = sections[2:] + sections[:2]
            order = {"interleaved": self.interleaved, "time_last": self.time_last}
            more = {**order, "fraction": rope.fraction, "layout": self.layout}
            encoding = MRoPE(rope.base, sections or None, scaling=rope.scaling, **more)
            encoding.check(Dims(head_dim, 1, 1, head_dim))
            return encoding
        if beta is None:
            return rope
        floor: Any = fields.get("original_max_position_embeddings")
        fix = "llama_4_scaling_beta needs it"
        require(is_int(floor, 1), "original_max_position_embeddings", floor, fix)
        return Sum((rope, Temperature(beta, floor, offset=0)))

    def _special(self, fields: dict) -> tuple[tuple | None, float | None]:
        """Removes the keys that do not affect RoPE's frequencies."""
        beta = fields.pop("llama_4_scaling_beta", None)
        name = fields.get("rope_type", fields.get("type"))
        if name in self.longrope:
            fields.pop("type", None)
            fields["rope_type"] = "longrope"
        for key in () if self.own_mscale else hugging_face.MSCALES:
            fix = "this family does not read it, phimoe does; leave it out"
            require(key not in fields, key, fields.get(key), fix)
        if name == "xdrope":  # HunYuan's M-RoPE
            fields.pop("type", None)
            fields["rope_type"] = "dynamic"
        if self.extras.text_only:
            for key in MANY_AXES:
                fields.pop(key, None)
        if self.sections is None:
            return None, beta
        for key in ("mrope_interleaved", "interleaved"):  # Qwen3-Omni has both
            order, fix = fields.pop(key, None), f"this family has {self.interleaved}"
            require(order in (None, self.interleaved), key, order, fix)
        if "mrope" in (name, fields.get("type")):
            fields.pop("type", None)
            fields["rope_type"] = "default"
        sections = fields.pop("mrope_section", None)
        if sections is None and not self.sections:
            return (), beta
        sections = list(self.sections) if sections is None else sections
        ok = isinstance(sections, list | tuple) and len(sections) == 3
        ok = ok and all(is_int(n, 0) for n in sections)
        require(ok, "mrope_section", sections, "pass three integers: time, row, column")
        time, row, column = sections
        return (time, row, column), beta


@dataclasses.dataclass(frozen=True)
class Step(Rotary):
    """Bases and partial factors by layer, where those of one type agree; full layers are scaled."""

    def _parameters(self, keys):
        shared, nested = super()._parameters(keys)
        factors = keys.get("partial_rotary_factors", default=[])
        ok = isinstance(factors, list | tuple)
        require(ok, "partial_rotary_factors", factors, "pass a list, one per layer")
        listed = {"rope_theta": "rope_theta", "partial_rotary_factors": "partial_rotary_factor"}
        listed = {n: name for n, name in listed.items() if isinstance(keys.get(n), list | tuple)}
        if nested or not listed:
            return shared, nested
        by_type: dict[str, dict[str, Any]] = {}
        for index, layer_type in enumerate(self._types_of_layers(keys)):
            values = {name: keys.get(n)[index : index + 1] for n, name in listed.items()}
            values = {name: value[0] for name, value in values.items() if value}
            same = by_type.setdefault(layer_type, values) == values
            fix = "layers of one type must have one base"
            require(same, "rope_theta", keys.get("rope_theta"), fix)
        keys.config |= dict.fromkeys(listed)
        return {
            layer_type: {**values, **(shared if layer_type == FULL else {})}
            for layer_type, values in by_type.items()
        }, True


@dataclasses.dataclass(frozen=True)
class Zamba(Rotary):
    """Attention over twice the width: the input and the embeddings side by side."""

    def _head_dim(self, keys, layer_type, types):
        keys.skip("attention_hidden_size")  # twice the width
        double = 2 * Keys(keys.model_type, {**keys.config, "head_dim": None}).head_dim()
        return keys.integer("attention_head_dim", default=double)

    def _scale(self, keys, head_dim):
        return (head_dim / 2) ** -0.5

"""A config as a dict that remembers which of its keys were read.

A key is read, or known to be harmless, or told: it is an error if its name concerns positions, else
it is listed in `Extras.unread` of every layer.
"""

import pathlib
import re
from collections.abc import Mapping
from typing import Any

from pe_jax.encodings.registry import ENCODINGS
from pe_jax.validation import is_int, is_real, require, shown

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
WIDTH = ("hidden_size", "n_embd", "d_model", "dim", "n_embed")
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len")

# An unread key with such a name, and a value that switches something on, is an error.
SUSPECT = re.compile(
    r"rope|rotary|position|pos_|alibi|relative|bucket|bias_max|window|sliding|chunk|layer_types"
    r"|softcap|soft_cap|sink|softmax_scale|scale_attn|attn_scale|floor_scale|attention_multiplier"
    r"|query_pre_attn|temperature_tuning|talking_head|clamp_len|bidirectional|prefix_lm"
    r"|tokens_per_second|(^|_)(nope|ntk|logn|xpos|yarn|mla)(_|$)|clip_qkv|qkv_clip"
    r"|attn_type_list|attention_types|block_type|(^|_)sparse_(att|config|block|top)|(use|is)_sparse"
    r"|(^|_)(q|k|qk)_?(ln|norm|layernorm|layer_norm)s?(_|$)"
    r"|att_key|att_type|rel_ebd|biased_input|mscale|beta_(fast|slow)|(low|high)_freq_factor"
    r"|(long|short|attn|attention|extrapolation)_factor|^factor$|(^|_)truncate$"
)
# These act where they are False.
ACT_OFF = re.compile(r"biased_input|(^|_)truncate$|scale_attn_weights|temperature_tuning")
SWITCH = re.compile(r"^(use|enable|apply|with|has|do)_|_(enabled|on)$")  # of the key so called
HARMLESS = {*LENGTHS, "n_ctx", "seq_length", "chunk_size_feed_forward", "max_window_layers"}
HARMLESS |= {"original_max_position_embeddings", "max_trained_positions"}
HARMLESS |= {"context_window_size", "prefill_chunk_size"}  # limits of a runtime (MLC)
HARMLESS |= {"num_sliding_attention_heads", "chunk_size", "logits_soft_cap", "use_pos_enc"}
HARMLESS |= {"final_logit_softcapping"}  # of the vocabulary
HARMLESS |= {"mlp_layer_types", "mlp_gate_softcap", "mlp_up_softcap", "shared_expert_sink"}
HARMLESS |= {"hc_sinkhorn_iters"}  # of the residual stream
UNSCORED = set(  # they act, but not on scores: of these `pe_jax.released` judges itself
    "return_dict pretraining_tp routed_scaling_factor norm_topk_prob apply_spec_augment d_model"
    " legacy multi_query depths is_decoder d_inner squeeze_factor use_mask_token mask_token"
    " layer_norm_elementwise_affine attention_softmax_in_fp32 scale_attention_softmax_in_fp32"
    " aligner_ffn_mult resampler_dim_head full_attn_alpha_factor full_attn_beta_factor"
    " mask_time_prob mask_time_length mask_time_min_masks mask_feature_prob mask_feature_length"
    " semantic_loss_ignore_index new_decoder_architecture skip_bias_add masked_softmax_fusion"
    " cache_implementation".split()
)
ELSEWHERE = HARMLESS - {"max_window_layers"}  # harmless beside and below the keys of text too
OTHERS = re.compile(r"(mamba|linear|mtp|moe|ssm|indexer?)_")  # of other layers
TEXT = (pathlib.Path(__file__).parent / "harmless_keys.txt").read_text(encoding="utf-8")
LISTED = frozenset(TEXT.split())  # by `python -m tools.hf_keys`
KINDS = re.compile(  # of keys that attention reads, and that say nothing of its scores
    r"drop|eps(ilon)?$|_ids?$|act(ivation)?(_function)?$|init|bias$|(_|^)(size|dim|rank|ratio)s?$"
    r"|d?type$|heads$|layers$|_config$|channels|^output_|^mlp_|^num_|kernel|stride|width|groups?$"
    r"|quant|^_|_version$|_name$|_path$|^use_cache$|experts?|^auto_map$|^attn_implementation$"
)
TOWERS = re.compile(  # parts for other inputs and outputs than text
    r"vision|visual|image|video|audio|speech|talker|projector|qformer|mm_"
    r"|codec|protein|decoder_config|encoder_config|compress_rates|backbone|perceiver"
)
PLAIN = {  # values that change nothing
    "position_embedding_type": ("absolute",),
    "scale_attn_weights": (True,),
    "rotary": (True,),
    "use_rotary_pos_emb": (True,),
}
SWITCHES = ("rope", "use_rope", "use_rotary", "use_rotary_embeddings")
SWITCHES += ("use_rotary_position_embeddings",)  # of the rotation, in code on the Hub
PLAIN |= dict.fromkeys(SWITCHES, (True, False))  # see `check_switches`
OURS = {  # the nearest scheme of ours, by words in the key
    r"alibi|bias_max": "alibi",
    r"rope|rotary": "rope",
    r"relative|bucket": "t5, buckets, shaw or deberta",
    r"position|pos_": "learned or sinusoidal",
    r"window|sliding|layer_types": "attention's window",
    r"chunk": "segments",
    r"sink": "Sink",
    r"scale|multiplier|query_pre": "Scale",
    r"temperature": "temperature",
}
REQUIRED: Any = object()


class Keys:
    """Reads keys by any of their names; a key that is None counts as absent."""

    def __init__(self, model_type: str, config: Mapping[str, Any]):
        self.model_type = model_type
        self.config = {str(key): value for key, value in config.items()}
        self.known: set[str] = set()
        self.parts: dict[str, Keys] = {}

    def part(self, name: str) -> "Keys":
        """The keys of a dict among these, whose rest is checked with the rest of these."""
        return self.parts.setdefault(name, Keys(self.model_type, self.mapping(name) or {}))

    def get(self, *names: str, default: Any = None) -> Any:
        """The value of the first name that has one; with default REQUIRED its absence is an error.

        Raises:
          ValueError: two of the names have different values; a required one is missing.
        """
        self.known.update(names)
        values = {n: self.config[n] for n in names if self.config.get(n) is not None}
        if not values:
            if default is REQUIRED:
                raise ValueError(f"{names[0]} is missing: {self.model_type!r} needs it")
            return default
        (first, value), *others = values.items()
        for name, other in others:
            if other != value:
                both = f"{first}={shown(value, 100)} and {name}={shown(other, 100)}"
                raise ValueError(f"{both} differ; keep one of them")
        return value

    def skip(self, *names: str) -> None:
        """Marks keys as understood, whose values make no difference here."""
        self.known.update(names)

    def has_none(self, name: str) -> bool:
        """Whether the key is present and None, which differs from its default."""
        self.known.add(name)
        return name in self.config and self.config[name] is None

    def integer(self, *names: str, default: Any = REQUIRED, low: int = 1) -> Any:
        """An integer of at least `low`, or the default."""
        value = self.get(*names, default=default)
        if value is not default or default is REQUIRED:
            fix = f"pass an integer of at least {low}"
            require(is_int(value, low), self._name(names), value, fix)
        return value

    def real(self, *names: str, default: Any = REQUIRED) -> Any:
        """A number above 0, or the default."""
        value = self.get(*names, default=default)
        if value is not default or default is REQUIRED:
            ok = is_real(value) and value > 0
            require(ok, self._name(names), value, "pass a number above 0")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or False."""
        value = self.get(name, default=default)
        require(isinstance(value, bool), name, value, "pass True or False")
        return value

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A dict, or None."""
        value = self.get(name)
        require(value is None or isinstance(value, Mapping), name, value, "pass a dict, or None")
        return value

    def choice(self, name: str, known: tuple[str, ...], default: str, fix: str = "") -> str:
        """One of the `known` strings."""
        value = self.get(name, default=default)
        ok = isinstance(value, str) and value in known
        ours = f"the nearest scheme: {value}" if str(value) in ENCODINGS else fix
        require(ok, name, value, f"choose one of {', '.join(known)}{ours and '; '}{ours}")
        return value

    def per_layer(self, name: str, layers: int, known: tuple, default: Any = None) -> Any:
        """A list with one of the `known` values for each layer, or the default."""
        values = self.get(name)
        if values is None:
            return default
        ok = isinstance(values, list | tuple) and len(values) >= layers
        ok = ok and all(x in known for x in values)
        what = ", ".join(map(str, known[:-1])) + f" or {known[-1]}"
        require(ok, name, values, f"pass {what} for each of {layers} layers")
        return list(values[:layers])

    def numbers(self, name: str, layers: int, default: Any = None) -> Any:
        """A list of layer numbers, from 0 on, or the default."""
        indices = self.get(name, default=default)
        ok = isinstance(indices, list | tuple) and all(is_int(i, 0) and i < layers for i in indices)
        require(ok or indices is default, name, indices, f"pass numbers below {layers}")
        return indices

    def refuse(self, name: str, fix: str) -> None:
        """Raises where the key switches something on."""
        value = self.get(name)
        require(not _on(value), name, value, fix)

    def head_dim(self, default: int | None = None) -> int:
        """E: `head_dim`, the family's own or width/heads.

        Raises:
          ValueError: heads that do not divide the width.
        """
        default = None if self.has_none("head_dim") else default
        value = self.integer("head_dim", "kv_channels", default=default)
        if value is not None:
            return value
        return self.per_head(self.integer(*WIDTH))

    def per_head(self, width: int, names: tuple[str, ...] = HEADS) -> int:
        """The width over the number of heads, by these names.

        Raises:
          ValueError: heads that do not divide the width.
        """
        heads = self.integer(*names)
        require(width % heads == 0, self._name(names), heads, f"must divide the width {width}")
        return width // heads

    def layers(self, *names: str, default: Any = REQUIRED, low: int = 1) -> int:
        """How many layers there are, by these names or the usual ones."""
        value, most = self.integer(*(names or LAYERS), default=default, low=low), 10_000
        require(value <= most, self._name(names or LAYERS), value, f"pass at most {most}")
        return value

    def check_switches(self, rotates: bool) -> None:
        """Raises ValueError where an unread key says that RoPE is on or off, and it is not."""
        for key in sorted({*SWITCHES} - self.known):
            value, does = self.config.get(key), "rotates" if rotates else "does not rotate"
            same = not isinstance(value, bool) or value is rotates
            require(same, key, value, f"not understood for {self.model_type!r}, which {does}")

    def check_rest(self) -> tuple[str, ...]:
        """The keys of unknown effect that nothing has read.

        Raises:
          ValueError: the name of one concerns positions.
        """
        unread = [f"{name}.{key}" for name, x in self.parts.items() for key in x.check_rest()]
        for key, value in self.config.items():
            plain = any(value is x or value == x for x in PLAIN.get(key, ()))
            plain = plain or key in HARMLESS | UNSCORED or OTHERS.match(key) is not None
            if key in self.known or plain:
                continue
            if key == "sliding_window" and self._no_window(value):
                continue
            if value is False and _on(self.config.get(whole := SWITCH.sub("", key))):
                fix = f"it may switch {whole} off, which {self.model_type!r} reads as it is"
                require(whole not in self.known or whole == key, key, value, fix)
            if value is None or (key not in PLAIN and not _acts(key, value)):
                continue
            if not SUSPECT.search(key):
                known = key in LISTED or KINDS.search(key)
                unread += concerned(key, value) if known else [key]
                continue
            ours = next((name for words, name in OURS.items() if re.search(words, key)), "")
            near = f"; the nearest scheme: {ours}" if ours else ""
            about = f"{shown(key, 80)[1:-1]}={shown(value, 120)}"
            what = f"not understood for {self.model_type!r}{near}"
            raise ValueError(f"{about}: {what}; leave the key out if it is without effect")
        return tuple(unread)

    def _no_window(self, value: Any) -> bool:
        """Whether a window that this family leaves unread hides nothing.

        It is switched off, as wide as the model's context, or of a draft head, whose config copies
        that of its target model.
        """
        length = self.config.get("max_position_embeddings")
        wide = is_int(value, 1) and is_int(length, 1) and value >= length
        off = self.config.get("use_sliding_window") is False
        return off or wide or self.drafts()

    def drafts(self) -> bool:
        """Whether it is a draft head's config (EAGLE)."""
        named = "eagle" in str(self.config.get("architectures")).lower()
        return named or "draft_vocab_size" in self.config

    def _name(self, names: tuple[str, ...]) -> str:
        return next((n for n in names if self.config.get(n) is not None), names[0])


def concerned(name: str, part: Any) -> list[str]:
    """The keys of positions that act in a part of a config that was not read, or in its parts."""
    if isinstance(part, list | tuple):  # of parts, as one per layer
        return [*dict.fromkeys(key for item in part for key in concerned(name, item))]
    found: list[str] = []
    if not isinstance(part, Mapping) or TOWERS.search(name):
        return found
    for key, value in ((str(key), value) for key, value in part.items()):
        acts = SUSPECT.search(key) and key not in ELSEWHERE and _acts(key, value)
        found += [key] if acts else concerned(key, value)
    return [f"{name}.{key}" for key in found]


def _acts(key: str, value: Any) -> bool:
    """Whether a key has an effect with this value, should it have any."""
    return _on(value) or (value is False and ACT_OFF.search(key) is not None)


def _on(value: Any) -> bool:
    """Whether a value switches something on."""
    if isinstance(value, bool | int | float):
        return value > 0
    return value is not None and not (hasattr(value, "__len__") and len(value) == 0)

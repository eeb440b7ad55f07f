"""The RoPE settings of a Hugging Face config in our names, and back; for `rope_scaling.from_hf`.

Two dialects are read: `rope_parameters` (transformers 5: the base and the partial factor inside)
and the older `rope_scaling` ("type" or "rope_type", the rest in the config itself). A key that is
None counts as absent. What transformers ignores with a warning is an error here.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from pe_jax.encodings.rope import RoPE
from pe_jax.validation import is_int, is_real, nearest, require, shown

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
COMMON += ("original_max_position_embeddings", "max_position_embeddings")
MSCALES = ("short_mscale", "long_mscale")  # Phi-3.5-MoE: factors of short and of long texts
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
TYPES: dict[str, tuple[str, ...]] = {  # rope_type → keys besides the common ones
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "alpha"),
    "yarn": ("factor", "attention_factor", "truncate", "finetuned", *YARN),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor", "factor", "attention_factor", *MSCALES),
    "proportional": ("factor",),
}
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
UNREAD = ("finetuned",)  # says how the weights were made, not how they rotate
ELSEWHERE = {
    "attn_factor": "vLLM multiplies YaRN's own factor on q and k by it, transformers ignores it:"
    " write their product as attention_factor, or leave it out",
    "mrope_section": "M-RoPE has positions of several axes, RoPE of one: write mrope(sections=…),"
    " or read the whole config with pe_jax.hf.encodings, if its type has one axis (a draft head)"
    " as like='qwen2_vl_text'",
    "llama_4_scaling_beta": "this scales queries, not frequencies: leave it out here and add"
    " temperature(attn_scale=beta, floor_scale=original length, offset=0) to the RoPE",
}


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = nearest(name.lower()[:40], known, cutoff=0.4)
    return (f"did you mean {close!r}? " if close else "") + f"known: {', '.join(known)}"


def _type(settings: dict[str, Any]) -> str:
    values = [settings[key] for key in ("rope_type", "type") if key in settings] or ["default"]
    names = [{"su": "longrope"}.get(str(x), str(x)) for x in values]  # what Phi-3 called it first
    fix = f"type={shown(values[-1], 80)} is another; keep one of them"
    require(names[0] == names[-1], "rope_type", names[0], fix)
    name = names[0]
    if name == "mrope":
        raise ValueError(f"rope_type={name!r}: {ELSEWHERE['mrope_section']}")
    if name not in TYPES:
        raise ValueError(f"rope_type={shown(name)} is unknown; {_suggestion(name, TYPES)}")
    return name


def _check_keys(settings: dict[str, Any], name: str) -> None:
    known = COMMON + TYPES[name]
    known += YARN if "alpha" in settings else ()  # HunYuan writes them; nothing reads them
    for key, value in settings.items():
        if key in ELSEWHERE:
            raise ValueError(f"{key}={shown(value)}: {ELSEWHERE[key]}")
        if key not in known:
            about = f"{shown(key, 80)[1:-1]}={shown(value, 80)}"
            raise ValueError(f"{about}: {name!r} has no such key; {_suggestion(key, known)}")
    for key in () if settings.get("alpha") else NEEDED.get(name, ()):
        if key not in settings:
            raise ValueError(f"{key} is missing: {name!r} needs it")


def _dynamic(fields: dict[str, Any], longest: Any, original: Any) -> tuple[str, dict[str, Any]]:
    if fields.get("alpha"):  # HunYuan: a fixed factor
        return "ntk", {"factor": fields["alpha"]}
    require(longest is not None, "max_position_embeddings", longest, "'dynamic' scales from it")
    fix = f"'dynamic' scales from max_position_embeddings={longest!r}; leave the other out"
    require(original in (None, longest), "original_max_position_embeddings", original, fix)
    return "dynamic_ntk", {"factor": fields["factor"], "original_length": longest}


def _lengths(fields: dict[str, Any], longest: Any, original: Any) -> dict[str, Any]:
    original = longest if original is None else original
    fix = "pass it: the dict has no original_max_position_embeddings"
    require(original is not None, "max_position_embeddings", longest, fix)
    ratio = None if longest is None else longest / original
    pair = tuple(fields.pop(key) for key in MSCALES if key in fields)
    if pair:
        require(len(pair) == 2, " and ".join(MSCALES), pair, "pass both, or none of them")
        fields["attention_factors"] = pair
    return {"factor": ratio, "original_length": original, **fields}


def _first(*values: Any) -> Any:
    return next((x for x in values if x is not None), None)


def read(
    rope_parameters: Any, head_dim: int, theta: Any, partial: Any, longest: Any, original: Any
) -> tuple[float, float, str | None, dict[str, Any]]:
    """(base, fraction, name of the scaling or None, its fields); see `rope_scaling.from_hf`."""
    require(is_int(head_dim, 1), "head_dim", head_dim, "pass the width of a head")
    ok = rope_parameters is None or isinstance(rope_parameters, Mapping)
    require(ok, "rope_parameters", rope_parameters, "pass the dict of a config, or None")
    pairs = (rope_parameters or {}).items()
    settings = {str(key): value for key, value in pairs if value is not None}
    layers = [key for key, value in settings.items() if isinstance(value, Mapping)]
    if layers:
        fix = f"pass one of them, as rope_parameters[{shown(layers[0])}], or the whole config to"
        names = shown(", ".join(layers))[1:-1]
        raise ValueError(f"rope_parameters has settings for {names}: {fix} pe_jax.hf.encodings")
    name = _type(settings)
    _check_keys(settings, name)

    base = _first(settings.get("rope_theta"), theta, 1e4)
    require(is_real(base) and base > 1, "rope_theta", base, "pass a number above 1")
    partial = _first(settings.get("partial_rotary_factor"), partial, 1.0)
    key = "max_position_embeddings"
    longest = _first(longest, settings.get(key))
    original = _first(original, settings.get(f"original_{key}"))
    for field, value in ((key, longest), (f"original_{key}", original)):
        require(value is None or is_int(value, 1), field, value, "pass a number of tokens")
    ok = is_real(partial) and 0 <= partial <= 1
    require(ok, "partial_rotary_factor", partial, "pass a number in [0, 1]")
    rotary_dim = head_dim if name == "proportional" else int(head_dim * partial)
    fix = f"it leaves {rotary_dim} of {head_dim} channels to rotate; an even number is needed"
    ok = rotary_dim == head_dim or (rotary_dim > 0 and rotary_dim % 2 == 0)
    require(ok, "partial_rotary_factor", partial, fix)
    fraction = rotary_dim / head_dim
    fields = {k: settings[k] for k in TYPES[name] if k in settings and k not in UNREAD}
    fields = {k: v for k, v in fields.items() if v or k not in YARN}  # 0 counts as absent there
    if name == "default":
        return base, fraction, None, {}
    if name == "proportional":
        return base, fraction, name, {"fraction": partial, **fields}
    if name == "dynamic":
        return base, fraction, *_dynamic(fields, longest, original)
    if name != "linear":
        fields = _lengths(fields, longest, original)
    return base, fraction, name, fields


def write(rope: RoPE, name: str | None, head_dim: int) -> dict[str, Any]:
    """The `rope_parameters` that `read` reads as this RoPE; without the length of "dynamic".

    `name` is that of its scaling in `rope_scaling.SCALINGS`, or None.
    """
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.base}
    if rope.fraction != 1:
        parameters["partial_rotary_factor"] = partial(rope.fraction, head_dim)
    scaling = rope.scaling
    if scaling is None:
        return parameters
    fields = {f.name: getattr(scaling, f.name) for f in dataclasses.fields(scaling)}
    length = fields.pop("original_length", None)
    if name == "ntk":
        return parameters | {"rope_type": "dynamic", "factor": 1.0, "alpha": fields["factor"]}
    if name == "dynamic_ntk":
        return parameters | {"rope_type": "dynamic", "factor": fields["factor"]}
    if name == "proportional":
        fields["partial_rotary_factor"] = fields.pop("fraction")
    pair = fields.pop("attention_factors", None)
    fields |= dict(zip(MSCALES, pair, strict=True)) if pair else {}
    computed = {"attention_factor": None} if "attention_factor" in fields else {}
    if (
        computed
        and (pair or fields.get("factor"))
        and dataclasses.replace(scaling, **computed) == scaling
    ):
        del fields["attention_factor"]  # it follows from the others
    fields = {key: list(x) if isinstance(x, tuple) else x for key, x in fields.items()}
    parameters |= {"rope_type": name, **{key: x for key, x in fields.items() if x is not None}}
    parameters.pop("length", None)
    return parameters | ({"original_max_position_embeddings": length} if length else {})


def partial(fraction: float, head_dim: int) -> float:
    """A number p with int(head_dim·p) = head_dim·fraction, which rounding may miss by one."""
    rotary_dim = round(head_dim * fraction)
    ratio = rotary_dim / head_dim
    return ratio if int(head_dim * ratio) == rotary_dim else math.nextafter(ratio, 2)

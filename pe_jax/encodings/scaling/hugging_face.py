"""The RoPE settings of a Hugging Face config in our names; for `rope_scaling.from_hf`.

Two dialects are read: `rope_parameters` (transformers 5: the base and the partial factor inside)
and the older `rope_scaling` ("type" or "rope_type", the rest in the config itself). A key that is
None counts as absent. What transformers passes over with a warning is an error here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pe_jax.validation import is_int, is_real, nearest, require

COMMON = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
COMMON += ("original_max_position_embeddings", "max_position_embeddings")
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
TYPES: dict[str, tuple[str, ...]] = {  # rope_type → keys besides the common ones
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", "alpha"),
    "yarn": ("factor", "attention_factor", "truncate", *YARN),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor", "factor", "attention_factor"),
    "proportional": ("factor",),
}
NEEDED = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
ELSEWHERE = {
    "mrope_section": "M-RoPE has positions of several axes, which RoPE has not",
    "llama_4_scaling_beta": "this scales queries, not frequencies: leave it out here and add"
    " temperature(attn_scale=beta, floor_scale=original length, offset=0) to the RoPE",
}


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = nearest(name.lower(), known, cutoff=0.4)
    return (f"did you mean {close!r}? " if close else "") + f"known: {', '.join(known)}"


def _type(settings: dict[str, Any]) -> str:
    name = str(settings.get("rope_type", settings.get("type", "default")))
    name = {"su": "longrope"}.get(name, name)  # what Phi-3 called it first
    if name == "mrope":
        raise ValueError(f"rope_type={name!r}: {ELSEWHERE['mrope_section']}")
    if name not in TYPES:
        raise ValueError(f"rope_type={name!r} is unknown; {_suggestion(name, TYPES)}")
    return name


def _check_keys(settings: dict[str, Any], name: str) -> None:
    known = COMMON + TYPES[name]
    known += YARN if "alpha" in settings else ()  # HunYuan writes them; nothing reads them
    for key, value in settings.items():
        if key in ELSEWHERE:
            raise ValueError(f"{key}={value!r}: {ELSEWHERE[key]}")
        if key not in known:
            raise ValueError(
                f"{key}={value!r}: {name!r} has no such key; {_suggestion(key, known)}"
            )
    for key in () if settings.get("alpha") else NEEDED.get(name, ()):
        if key not in settings:
            raise ValueError(f"{key} is missing: {name!r} needs it")


def _dynamic(fields: dict[str, Any], longest: Any, original: Any) -> tuple[str, dict[str, Any]]:
    if fields.get("alpha"):  # HunYuan: a fixed stretch
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
    return {"factor": ratio, "original_length": original, **fields}


def _first(*values: Any) -> Any:
    return next((x for x in values if x is not None), None)


def _fraction(name: str, head_dim: int, partial: Any) -> float:
    ok = is_real(partial) and 0 <= partial <= 1
    require(ok, "partial_rotary_factor", partial, "pass a number in [0, 1]")
    turned = head_dim if name == "proportional" else int(head_dim * partial)
    fix = f"it leaves {turned} of {head_dim} channels to rotate; an even number is needed"
    ok = turned == head_dim or (turned > 0 and turned % 2 == 0)
    require(ok, "partial_rotary_factor", partial, fix)
    return turned / head_dim


def read(
    rope_parameters: Mapping[str, Any] | None,
    *,
    head_dim: int,
    rope_theta: float | None,
    partial_rotary_factor: float | None,
    max_position_embeddings: int | None,
    original_max_position_embeddings: int | None,
) -> tuple[float, float, str | None, dict[str, Any]]:
    """(base, fraction, name of the scaling or None, its fields); see `rope_scaling.from_hf`."""
    require(is_int(head_dim, 1), "head_dim", head_dim, "pass the width of a head")
    ok = rope_parameters is None or isinstance(rope_parameters, Mapping)
    require(ok, "rope_parameters", rope_parameters, "pass the dict of a config, or None")
    pairs = (rope_parameters or {}).items()
    settings = {str(key): value for key, value in pairs if value is not None}
    layers = [key for key, value in settings.items() if isinstance(value, Mapping)]
    if layers:
        fix = f"pass one of them, as rope_parameters[{layers[0]!r}]"
        raise ValueError(f"rope_parameters has settings for {', '.join(layers)}: {fix}")
    name = _type(settings)
    _check_keys(settings, name)

    base = _first(settings.get("rope_theta"), rope_theta, 1e4)
    partial = _first(settings.get("partial_rotary_factor"), partial_rotary_factor, 1.0)
    key = "max_position_embeddings"
    longest = _first(max_position_embeddings, settings.get(key))
    original = _first(original_max_position_embeddings, settings.get(f"original_{key}"))
    for field, value in ((key, longest), (f"original_{key}", original)):
        require(value is None or is_int(value, 1), field, value, "pass a number of tokens")
    fraction = _fraction(name, head_dim, partial)
    fields = {key: settings[key] for key in TYPES[name] if key in settings}
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

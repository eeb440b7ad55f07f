"""Which config keys become which fields of `ModelConfig`, and where each weight goes.

    family, config = families.read(checkpoint.config)      # config: a `ModelConfig`
    for entry in family.entries(config, shapes):           # shapes: {"blocks/0/mlp/up/kernel": …}
        tensors = [checkpoint.tensors[name] for name in entry.names]
        parts = entry.read(tensors[0], config.dims)        # what goes to each of entry.paths

families.toml is the table, read in both directions: `Entry.read` and `Entry.write` are inverse.
Positions are not in it: `pe_jax.hf.encodings` says what each layer has, and `pe_jax.hf.params`
reads learned tables. K key heads, E head width.
"""

import dataclasses
import fnmatch
import pathlib
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pe_jax import hf
from pe_jax.encodings.base import Dims
from pe_jax.hf import parents
from pe_jax.hf.keys import HARMLESS, REQUIRED, Keys
from pe_jax.hf.keys import SUSPECT as POSITIONS
from pe_jax.models.config import ModelConfig
from pe_jax.validation import nearest, refuse, require, shown

DATA = tomllib.loads((pathlib.Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
ACTIVATIONS = {name: ours for ours, names in DATA["activations"].items() for name in names.split()}

# An unread key with such a name, and a value that switches something on, is an error.
SUSPECT = re.compile(
    r"norm|activation|hidden_act|bias|parallel|expert|moe|multiplier|scal|cap|clip|residual|gate"
    r"|gating|quantiz|adapter|lora|logit|cross_att|sparse|linear|embed|_ln$"
)
WITHOUT_EFFECT = re.compile(
    r"drop|summary_|output_|initializer|skip_bias_add|gradient|embedding_fraction|_id$"
)
LEAVES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "bias": "bias"}


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How several projections share a tensor, whose first axis is that of their outputs."""

    # (tensor, sizes of the outputs, dims) → parts
    split: Callable[[np.ndarray, Sequence[int], Dims], list[np.ndarray]]
    join: Callable[[Sequence[np.ndarray], Dims], np.ndarray]  # (parts, dims) → tensor; the inverse


def _split(tensor, sizes, dims):
    return np.split(tensor, np.cumsum(sizes)[:-1])


def _join(parts, dims):
    return np.concatenate(parts)


def _split_groups(tensor, sizes, dims):
    rest = tensor.shape[1:]
    groups = tensor.reshape(dims.kv_heads, -1, dims.head_dim, *rest)
    return [x.reshape(-1, *rest) for x in (groups[:, :-2], groups[:, -2], groups[:, -1])]


def _join_groups(parts, dims):
    rest = parts[0].shape[1:]
    groups = [x.reshape(dims.kv_heads, -1, dims.head_dim, *rest) for x in parts]
    return np.concatenate(groups, axis=1).reshape(-1, *rest)


FUSIONS = {
    "concatenated": Fusion(_split, _join),
    # for each key head: the queries of its group, its key, its value
    "by_group": Fusion(_split_groups, _join_groups),
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Tensors of a checkpoint, and where they go: one per repeat of the pattern, or one."""

    names: tuple[str, ...]  # of the tensors, without the family's prefix
    shape: tuple[int, ...]  # of each
    # of our parameters, as "blocks/0/attention/q/kernel": several where the tensor is fused
    paths: tuple[str, ...]
    sizes: tuple[int, ...]  # of the parameters' outputs
    stacked: bool  # whether the parameters have a leading axis for repeats
    transposed: bool  # whether linear weights are [out, in] there; ours are [in, out]
    fusion: Fusion  # of the parts, if there are several

    @property
    def _linear(self) -> bool:
        return self.paths[0].endswith("/kernel")

    def read(self, tensor: np.ndarray, dims: Dims) -> list[np.ndarray]:
        """What goes to each of the paths, without the leading axis."""
        tensor = tensor if self.transposed or not self._linear else tensor.T
        several = len(self.paths) > 1
        parts = self.fusion.split(tensor, self.sizes, dims) if several else [tensor]
        return [x.T for x in parts] if self._linear else parts

    def write(self, parts: Sequence[np.ndarray], dims: Dims) -> np.ndarray:
        """The tensor of these parts: the inverse of `read`."""
        parts = [x.T for x in parts] if self._linear else list(parts)
        tensor = self.fusion.join(parts, dims) if len(parts) > 1 else parts[0]
        return tensor if self.transposed or not self._linear else tensor.T


@dataclasses.dataclass(frozen=True)
class Family:
    """One family of families.toml, which says what the fields are."""

    name: str
    types: str
    prefix: tuple[str, ...]
    stack: str
    head: tuple[str, ...]
    weights: Mapping[str, str]
    layer: Mapping[str, str]
    keys: Mapping[str, Mapping[str, Any]]
    fields: Mapping[str, Any]
    rule: str = ""
    nested: tuple[str, ...] = ()
    fused: str = "concatenated"
    block: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    conv1d: bool = False
    ignored: tuple[str, ...] = ()

    def bare(self, name: str) -> str:
        """A tensor's name without the prefix, or the head's by its first name."""
        prefix = max((p for p in self.prefix if name.startswith(p)), key=len, default="")
        name = name.removeprefix(prefix)
        module, _, leaf = name.rpartition(".")
        return f"{self.head[0]}.{leaf}" if module in self.head else name

    def full(self, name: str) -> str:
        """A tensor's name as transformers has it: with the prefix, unless it is the head's."""
        return name if name.startswith(f"{self.head[0]}.") else self.prefix[0] + name

    def without_effect(self, name: str) -> bool:
        """Whether a tensor is a mask, a table of frequencies, or of a part for images."""
        return any(fnmatch.fnmatch(name, pattern) for pattern in self.ignored)

    def entries(self, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> list[Entry]:
        """Where the tensors of a checkpoint go, for a model of these shapes.

        Args:
          config: of the model.
          shapes: of its parameters, by path.

        Raises:
          ValueError: a parameter that the table does not know, positions' aside.
        """
        period = len(config.pattern)
        repeats = range(config.layers // period)
        entries = []
        whole = {**self.weights, "head": self.head[0]}
        modules: list[tuple[tuple[str, ...], str]] = [((x,), theirs) for x, theirs in whole.items()]
        layer = {**self.layer, **self.block.get(config.block, {})}
        fused = {module for ours in layer if " " in ours for module in ours.split()}
        layer = {ours: theirs for ours, theirs in layer.items() if ours not in fused}
        for slot in range(period):
            for ours, theirs in layer.items():
                paths = tuple(f"blocks/{slot}/{x}".replace(".", "/") for x in ours.split())
                modules.append((paths, self.stack + theirs))
        for paths, theirs in modules:
            stacked = paths[0].startswith("blocks/")
            for leaf, suffix in LEAVES.items():
                own = tuple(f"{path}/{leaf}" for path in paths)
                if own[0] not in shapes:
                    continue
                slot = int(own[0].split("/")[1]) if stacked else 0
                layers = [slot + period * r for r in repeats] if stacked else [0]
                parts = [shapes[path][1 if stacked else 0 :] for path in own]
                sizes = tuple(x[-1] for x in parts)
                shape = parts[0] if len(own) == 1 else (*parts[0][:-1], sum(sizes))
                transposed = not (self.conv1d and stacked)  # the head never is a Conv1D
                if leaf == "kernel" and transposed:
                    shape = shape[::-1]
                names = tuple(f"{theirs.format(layer=n)}.{suffix}" for n in layers)
                entries.append(
                    Entry(names, shape, own, sizes, stacked, transposed, FUSIONS[self.fused])
                )
        known = {path for entry in entries for path in entry.paths}
        for path in shapes.keys() - known:
            if not (path.startswith("shared/") or "/attention/params/" in path):
                raise ValueError(
                    f"{path}: family {self.name!r} of families.toml has no name for it"
                )
        return entries


def _merged(name: str) -> dict[str, Any]:
    """The fields of a family, over those of the family that it is like."""
    own = DATA["family"][name]
    base = _merged(own["like"]) if "like" in own else DATA["common"]
    merged = dict(base)
    for field, value in own.items():
        if field == "ignored":
            value = [*base.get(field, ()), *value]
        merged[field] = {**base.get(field, {}), **value} if isinstance(value, dict) else value
    merged.pop("like", None)
    return merged


def _family(name: str) -> Family:
    fields: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in _merged(name).items()}
    return Family(name=name, **fields)


FAMILIES = {
    model_type: family
    for family in map(_family, DATA["family"])
    for model_type in family.types.split()
}


def _falcon(keys: Keys) -> dict[str, Any]:
    """Falcon-40B has groups of heads and two norms; Falcon-7B one key head and one norm."""
    groups = keys.integer("num_kv_heads", default=0, low=0)
    if keys.flag("new_decoder_architecture"):
        norms = keys.integer("num_ln_in_parallel_attn", default=2)
        parallel = keys.flag("parallel_attn", default=True)
        fix = "the new architecture is in parallel"
        require(parallel, "parallel_attn", parallel, fix)
        keys.get("multi_query")  # without effect
        kind = {1: "parallel_shared", 2: "parallel"}.get(norms)
        require(kind is not None, "num_ln_in_parallel_attn", norms, "not supported, but 1 or 2")
        return {"block": kind, "kv_heads": groups}
    norms = keys.integer("num_ln_in_parallel_attn", default=1)
    fix = "without the new architecture there is 1"
    require(norms == 1, "num_ln_in_parallel_attn", norms, fix)
    shared = keys.flag("parallel_attn", default=True)
    single = keys.flag("multi_query", default=True)
    return {"block": "parallel_shared" if shared else "before", "kv_heads": 1 if single else 0}


def _opt(keys: Keys) -> dict[str, Any]:
    """OPT-350M has embeddings of another width, and a projection for them."""
    width = keys.integer("hidden_size")
    value = keys.integer("word_embed_proj_dim", default=width)
    fix = f"such embeddings are projected: not loaded, but those of hidden_size={width}"
    require(value == width, "word_embed_proj_dim", value, fix)
    return {}


RULES = {"falcon": _falcon, "opt": _opt}


def read(config: Mapping[str, Any], dtype: str = "float32") -> tuple[Family, ModelConfig]:
    """The family of a Hugging Face config, and the config of the same model here.

    Args:
      config: the dict of a config.json; of one with several parts its text is read.
      dtype: of the activations.

    Raises:
      ValueError: a model type that is not loaded, layers that differ in more than encoding and
        window, or a key that is missing, or whose value changes the computation and is not known.
    """
    settings = dict(text(config))
    model_type = settings.get("model_type")
    if model_type not in FAMILIES:
        close = nearest(str(model_type)[:40], FAMILIES, cutoff=0.6)
        hint = f"; the nearest is {close!r}" if close else ""
        fix = f"such weights are not loaded, but those of {', '.join(FAMILIES)}{hint}"
        refuse("model_type", model_type, fix)
    family = FAMILIES[str(model_type)]
    for name in family.nested:
        inner = settings.get(name) or {}
        settings |= {f"{name}.{key}": value for key, value in inner.items()}
    keys = Keys(str(model_type), settings)
    fields: dict[str, Any] = dict(family.fields)
    for names, rule in family.keys.items():
        own = _fields(keys, names.split(), rule)
        if {fields.get("bias_of"), own.get("bias_of")} == {"attention", "mlp"}:
            own["bias_of"] = "layers"
        fields |= own
    if family.rule:
        fields |= RULES[family.rule](keys)
    _check_rest(keys, family)
    fields |= _positions(config)
    model = ModelConfig(**fields, dtype=dtype)
    model.check()
    return family, model


def text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config, or that of its text where it has parts for images, too."""
    return parents.text(config, dict, hf.FAMILIES)


def _fields(keys: Keys, names: list[str], rule: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a key of a config sets."""
    value = keys.get(*names)
    if "field" in rule:
        if value is None and any(map(keys.has_none, names)):
            value = rule.get("none")
        if value is None:
            value = keys.get(*names, default=rule.get("default", REQUIRED))
        if rule["field"] == "activation":
            known = ", ".join(sorted(ACTIVATIONS))
            require(str(value) in ACTIVATIONS, names[0], value, f"not known; choose of {known}")
            value = ACTIVATIONS[str(value)]
        return {rule["field"]: value}
    word = next(iter(rule)) if value is None else str(value).lower()
    if word not in rule:
        known = ", ".join(rule)
        refuse(names[0], value, f"not supported for {keys.model_type!r}, but {known}")
    return dict(rule[word])


def _check_rest(keys: Keys, family: Family) -> None:
    """Raises ConfigError for the first unread key that changes more than positions."""
    for key, value in keys.config.items():
        positional = POSITIONS.search(key) or key in HARMLESS  # `hf.encodings` judges these
        if key in keys.known or key in family.nested or positional:
            continue
        on = value not in (None, False, 0, "", "none", [], {})
        if on and SUSPECT.search(key) and not WITHOUT_EFFECT.search(key):
            fix = f"not understood for {keys.model_type!r}; leave it out if it is without effect"
            refuse(key, value, fix)


def _positions(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that concern attention, from `hf.encodings`."""
    layers = hf.encodings(config)
    first = layers[0]
    for index, layer in enumerate(layers):
        same = dataclasses.replace(
            layer, encoding=first.encoding, window=first.window, chunk=first.chunk
        )
        same = same.with_extras(bidirectional=first.extras.bidirectional)  # of images
        if same != first:
            names = (f.name for f in dataclasses.fields(first))
            name = next(n for n in names if getattr(same, n) != getattr(first, n))
            fix = f"layer 0 has {shown(getattr(first, name), 100)}: all layers must have the same"
            refuse(f"{name} of layer {index}", getattr(layer, name), fix)
    extras = dataclasses.replace(first.extras, qk_norm=False, unread=())  # `read` checks
    extras = dataclasses.replace(extras, bidirectional=extras.bidirectional.replace("images", ""))
    for field in dataclasses.fields(extras):
        value = getattr(extras, field.name)
        if value != field.default:
            refuse(field.name, value, f"layers of {config.get('model_type')!r} do this: not loaded")
    return {
        "qk_norm": first.extras.qk_norm,
        "encoding": hf.pattern(list(layers)),
        "head_dim": first.head_dim,
        "attention_scale": first.scale or 0.0,
        "attention_cap": first.logit_cap or 0.0,
        "causal": first.causal,
    }

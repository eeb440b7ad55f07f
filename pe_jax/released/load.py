"""A released checkpoint as a `Transformer`, and back.

    checkpoint = files.read("SmolLM2-135M")               # a folder of the Hub, or a GGUF file
    model = load.model(checkpoint)                        # a `pe_jax.models` Transformer
    logits = model(tokens)                                # [B, T, V]
    load.write(model, "extended", like=checkpoint, scaling=YaRN(factor=2.0, original_length=8192))

`families` says where each tensor goes. Tensors are read one by one; a model is held once.
"""

import dataclasses
import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pe_jax import hf
from pe_jax.encodings.base import Recurrent
from pe_jax.encodings.registry import format_encoding
from pe_jax.encodings.rope import RoPE
from pe_jax.encodings.scaling.base import Scaling
from pe_jax.encodings.sums import parts_of
from pe_jax.encodings.windowed import Windowed
from pe_jax.hf import weights as position_weights
from pe_jax.models.config import DTYPES, ModelConfig
from pe_jax.models.transformer import Transformer
from pe_jax.released import families
from pe_jax.released.checkpoint import EXTRA, Checkpoint
from pe_jax.released.families import Family
from pe_jax.released.start import FREE
from pe_jax.training.sharding import parameter_shardings, path_name
from pe_jax.validation import ConfigError, refuse, shown

# Files of a tokenizer, and of how to generate, that a folder takes over from the one it is like.
COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "added_tokens.json", "chat_template.jinja", "chat_template.json"),
    "generation_config.json",
)
PARAMS = "/attention/params/"  # in paths of a layer's parameters of positions


def model(
    checkpoint: Checkpoint,
    dtype: Any = jnp.float32,
    mesh: Mesh | None = None,
    encoding: str | None = None,
) -> Transformer:
    """The model of a checkpoint, with its weights.

    Args:
      checkpoint: what `pe_jax.released.files.read` returns.
      dtype: of parameters and activations: float32 or bfloat16.
      mesh: devices over which parameters are sharded as in training; None: one device.
      encoding: in place of the config's, a pattern over its layers with their windows, as
        `ModelConfig.encoding`; parameters of encodings that a layer did not have are drawn. None:
        that of the config, which `pe_jax.hf.pattern` shows.

    Returns:
      The model. Besides it, one stacked parameter at a time is held in memory.

    Raises:
      ValueError: a config that `families.read` refuses; a tensor that no entry of the family takes,
        that is missing, of another shape than the config says, or not finite in `dtype`, with its
        name.
    """
    name = jnp.dtype(dtype).name
    if name not in DTYPES:
        refuse("dtype", name, f"choose of {', '.join(DTYPES)}")
    family, released = families.read(checkpoint.config, name)
    config = released
    if encoding is not None:
        config = dataclasses.replace(released, encoding=encoding)
        config.check()
        if any(isinstance(layer, Recurrent) for layer in config.pattern):
            fix = "no family here has weights of a recurrent layer; train one from the start"
            raise ConfigError(f"encoding={encoding!r}: {fix}")
    graph, abstract = nnx.eval_shape(lambda: nnx.split(Transformer(config, rngs=nnx.Rngs(0))))
    abstract = nnx.as_pure(abstract)
    places = {} if mesh is None else _by_path(parameter_shardings(abstract, mesh, config))
    shapes = {path: x.shape for path, x in _by_path(abstract).items()}
    entries = family.entries(config, shapes)
    positions, used = _positions(checkpoint, released, config)
    names = {family.bare(n): n for n in checkpoint.tensors if not family.without_effect(n)}
    embed, head = (f"{name}.weight" for name in (family.weights["embed"], family.head[0]))
    if config.tied and embed not in names and head in names:  # one tensor, saved by its other name
        names[embed] = names[head]
    wanted = {name: entry.shape for entry in entries for name in entry.names}
    _check_tensors(family, config, wanted, names, used, checkpoint.tensors.shapes)
    arrays: dict[str, jax.Array] = {}
    everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    are_finite = jax.jit(_are_finite, static_argnums=1, out_shardings=everywhere)

    def put(path: str, array: np.ndarray, sources: Sequence[str]) -> None:
        array = array.astype(dtype, copy=False)
        arrays[path] = jax.device_put(array, places[path]) if places else jnp.asarray(array)
        finite = np.atleast_1d(are_finite(arrays[path], int(len(sources) > 1)))
        if not finite.all():
            fix = f"has numbers that are not finite as {array.dtype}; get the file again"
            raise ConfigError(f"tensor {sources[int(finite.argmin())]} {fix}")

    for path, array in positions.items():
        if array.shape != shapes[path]:
            sizes = f"{list(array.shape)}, where the config says {list(shapes[path])}"
            raise ConfigError(f"tensors {sorted(used)} of positions have shape {sizes}")
        put(path, array, [", ".join(sorted(used))])
    for entry in entries:
        buffers = {path: np.empty(shapes[path], dtype) for path in entry.paths}
        for repeat, name in enumerate(entry.names):
            tensor = np.asarray(checkpoint.tensors[names[name]])
            for path, part in zip(entry.paths, entry.read(tensor, config.dims), strict=True):
                buffers[path][repeat if entry.stacked else ...] = part
        for path in entry.paths:
            put(path, buffers.pop(path), [names[name] for name in entry.names])
    if config.tied:
        _check_tied(family, checkpoint.tensors, names)
    params = jax.tree_util.tree_map_with_path(lambda path, _: arrays[path_name(path)], abstract)
    return nnx.merge(graph, params)


def write(
    model: Transformer,
    folder: str | os.PathLike,
    like: Checkpoint,
    scaling: Scaling | None = None,
) -> None:
    """Writes a folder that transformers loads, with the weights of a model.

    Nothing is left behind but a complete folder, or none.

    Args:
      model: with the weights in the dtype that is written.
      folder: a path that does not exist yet, or an empty folder.
      like: the checkpoint that the model was read from: its config and tokenizer are taken over.
        Of one with parts for images the text model is written.
      scaling: of RoPE, written in the keys of the family (`pe_jax.hf.with_scaling`); None: that of
        the config.

    Raises:
      FileExistsError: the folder has something in it.
      ConfigError: the model is not what the config says (another size, encoding or window).
    """
    target = check_target(folder)
    import safetensors.numpy

    dtype = jnp.dtype(model.embed.embedding[...].dtype).name
    config = written_config(model.config, like, scaling, dtype)
    arrays = tensors(model, config)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        metadata = {"format": "pt"}  # transformers asks for it
        safetensors.numpy.save_file(arrays, partial / "model.safetensors", metadata)
        text = json.dumps(config, indent=2, ensure_ascii=False)
        (partial / "config.json").write_text(f"{text}\n", encoding="utf-8")
        _write_tokenizer(like, partial)
        partial.chmod(0o755)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def check_target(folder: str | os.PathLike) -> pathlib.Path:
    """The path of a folder that `write` may write.

    Raises:
      ConfigError: safetensors is missing.
      FileExistsError: the folder has something in it.
    """
    target = pathlib.Path(folder)
    if importlib.util.find_spec("safetensors") is None:
        raise ConfigError(f"{target}: writing it needs safetensors; {EXTRA}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{target}: it exists; choose another folder, or remove it")
    return target


def scaling_of(config: ModelConfig) -> Scaling | None:
    """The scaling of RoPE in a model's layers, as `write` takes it; None if they have none.

    Of several the first is returned, which `write` then refuses for the layers with another.
    """
    parts = (part for layer in config.pattern for part in parts_of(layer))
    scalings = (part.scaling for part in parts if isinstance(part, RoPE))
    return next((scaling for scaling in scalings if scaling is not None), None)


def written_config(
    model: ModelConfig, like: Checkpoint, scaling: Scaling | None = None, dtype: str = "float32"
) -> dict[str, Any]:
    """The config.json of a model that `write` writes, with the arguments of `write`.

    Raises:
      ConfigError: no config of the checkpoint's family says what the model is.
    """
    config = like.config
    if scaling is not None:
        try:
            config = hf.with_scaling(config, scaling)
        except ValueError as error:
            raise ConfigError(f"scaling={scaling}: {error}") from None
    text = dict(families.text(config))
    own = families.read(text)[1]
    for field, value in vars(model).items():
        if field not in FREE and value != getattr(own, field):
            fix = f"the config that it would be written with says {shown(getattr(own, field))}"
            refuse(f"model.{field}", value, fix)
    said, encodings = own.windows, model.windows
    for layer in range(own.layers):
        here, there = encodings[layer % len(encodings)], said[layer % len(said)]
        if here != there:
            fix = f"the config says {_spec(there)}, and only a scaling (scaling=) may differ"
            raise ConfigError(f"layer {layer} has {_spec(here)}: {fix}")
    if text is not config and "text_config" in config:
        text.pop("architectures", None)  # that of all parts
    named = [name for name in ("torch_dtype", "dtype") if name in text] or ["dtype"]
    return text | dict.fromkeys(named, dtype)


def _spec(layer: Windowed) -> str:
    return format_encoding(layer if layer.span else layer.encoding)


def _by_path(tree: Any) -> dict[str, Any]:
    return {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(tree)}


class _Reads(Mapping):
    """A mapping that remembers which of its entries were read."""

    def __init__(self, inner: Mapping[str, Any]):
        self.inner, self.used = inner, set()

    def __getitem__(self, name):
        self.used.add(name)
        return self.inner[name]

    def __iter__(self):
        return iter(self.inner)

    def __len__(self):
        return len(self.inner)


def _positions(
    checkpoint: Checkpoint, released: ModelConfig, config: ModelConfig
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The parameters of positions by their paths, and the names of the tensors that were read."""
    state, pattern, period = _Reads(checkpoint.tensors), config.pattern, len(config.pattern)
    layers, dims = [], config.dims
    for layer in range(config.layers):
        old, new = released.pattern[layer % len(released.pattern)], pattern[layer % period]
        params = jax.eval_shape(lambda old=old: old.init(jax.random.key(0), dims))
        if jax.tree.leaves(params):
            params = hf.params(checkpoint.config, state, layer)
        layers.append(params if new == old else new.init(jax.random.key(layer), dims))
    shared = [layers[pattern.index(encoding)].shared for encoding in dict.fromkeys(pattern)]
    arrays = _by_path({"shared": shared})
    for slot in range(period):
        own = [params.layer for params in layers[slot::period]]
        stacked = jax.tree.map(lambda *x: np.stack(x), *own)
        arrays |= _by_path({"blocks": {slot: {"attention": {"params": stacked}}}})
    return {path: np.asarray(x) for path, x in arrays.items()}, state.used


def _are_finite(x: jax.Array, axes: int) -> jax.Array:
    """Whether all numbers are finite, for each index of the first `axes`."""
    return jnp.isfinite(x).all(range(axes, x.ndim))


def _check_tensors(
    family: Family,
    config: ModelConfig,
    wanted: Mapping[str, tuple[int, ...]],
    names: Mapping[str, str],
    used: set[str],
    shapes: Mapping[str, tuple[int, ...]],
) -> None:
    """Raises ConfigError where a tensor is missing, has another shape, or nothing takes it."""
    for name, shape in wanted.items():
        if name not in names:
            what = f"tensor {family.full(name)} {list(shape)} is missing"
            raise ConfigError(f"{what}: a {family.name} with such a config has it")
        actual = tuple(shapes[names[name]])
        if actual != shape:
            sizes = f"{list(actual)}, where the config says {list(shape)}"
            raise ConfigError(f"tensor {names[name]} has shape {sizes}")
    tied = {f"{family.head[0]}.weight"} if config.tied else set()
    for name, full in names.items():
        if full not in used and name not in wanted and name not in tied:
            what = f"tensor {full} {list(shapes[full])}"
            raise ConfigError(f"{what}: no entry of family {family.name!r} takes it")


def _check_tied(family: Family, tensors: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raises ConfigError where a head that is said to be the embedding is another."""
    embed, head = names[f"{family.weights['embed']}.weight"], names.get(f"{family.head[0]}.weight")
    if head is not None and not np.array_equal(tensors[head], tensors[embed]):
        fix = "tie_word_embeddings says that they are one; set it to false"
        raise ConfigError(f"tensors {head} and {embed} differ: {fix}")


def tensors(model: Transformer, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a model by their names in transformers."""
    family, _ = families.read(config)
    arrays = {path: np.asarray(x) for path, x in _by_path(_pure(model)).items()}
    written = _position_tensors(family, config, model, arrays)
    for entry in family.entries(model.config, {path: x.shape for path, x in arrays.items()}):
        for repeat, name in enumerate(entry.names):
            pieces = [arrays[path][repeat if entry.stacked else ...] for path in entry.paths]
            tensor = entry.write(pieces, model.config.dims)
            written[family.full(name)] = np.ascontiguousarray(tensor)
    return written


def _pure(model: Transformer) -> Any:
    return nnx.as_pure(nnx.split(model)[1])


def _position_tensors(
    family: Family, config: Mapping[str, Any], model: Transformer, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The learned tables of positions; rows before that of position 0 are zeros."""
    layers, tensors = hf.encodings(config), {}
    for path in arrays:
        if PARAMS in path:
            raise ConfigError(f"{path}: parameters of positions in layers are not written")
    for index in sorted({*model.which}):
        layer = layers[model.which.index(index)]
        listed = position_weights.listed(str(config["model_type"]), layer)
        for place, of_part in enumerate(listed):
            for weight in of_part:
                inner = f"{place}/" if len(listed) > 1 else ""
                table = arrays[f"shared/{index}/{inner}{weight.to.removeprefix('shared.')}"]
                if weight.how is not position_weights.rows:
                    raise ConfigError(f"{weight.names[0]}: such a table is not written")
                padded = np.pad(table, ((layer.first_row, 0), (0, 0)))
                tensors[family.full(weight.names[0])] = padded
    return tensors


def _write_tokenizer(like: Checkpoint, folder: pathlib.Path) -> None:
    """The files of a folder's tokenizer, or what a GGUF file says of it."""
    if like.path.is_dir():
        for name in COPIED:
            if (like.path / name).is_file():
                shutil.copyfile(like.path / name, folder / name)
    elif like.tokenizer is not None:
        like.tokenizer.save(str(folder / "tokenizer.json"))
        names = ("chat_template", "bos_token", "eos_token")
        settings = {name: like.extra[name] for name in names if name in like.extra}
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")

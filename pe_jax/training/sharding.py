"""Sharding of arrays: a (data, fsdp, seq, model) mesh, one table from logical axes to mesh axes.

Everything runs under jit with Auto axes: one device is a mesh of one, and the same program runs on
a pod. Encodings name the axes of their parameters (`Encoding.logical_axes`), so that no scheme
needs a rule: heads are divided, the rest is small and replicated. A parameter of the model that no
rule matches is an error.
"""

import re
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pe_jax.encodings.base import Recurrent
from pe_jax.encodings.terms import sums_rows
from pe_jax.engines.dispatch import KERNELS
from pe_jax.engines.sharded.layout import CONTIGUOUS, BlockPermuted, Contiguous, RowSharded
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import MeshConfig
from pe_jax.validation import ConfigError, divisors, refuse, require

AXES = ("data", "fsdp", "seq", "model")
MESH_AXES = {  # logical axis → mesh axes
    "batch": ("data", "fsdp"),
    "tokens": "seq",
    "width": "fsdp",
    "heads": "model",
    "kv_heads": "model",
    "hidden": "model",
}
LOGICAL = (  # path of a parameter → its logical axes; () is replicated
    (r"embed/(embedding|kernel)", (None, "width")),
    (r"head/kernel", ("width", None)),
    (r"blocks/.*/attention/(q|k|v|gate|beta)/kernel", (None, "width", "heads")),
    (r"blocks/.*/attention/to_decay/kernel", (None, "width", None)),
    (r"blocks/.*/attention/decay/kernel", (None, None, "heads")),  # of any width
    (r"blocks/.*/attention/out/kernel", (None, "heads", "width")),
    (r"blocks/.*/mlp/(up|gate)/kernel", (None, "width", "hidden")),
    (r"blocks/.*/mlp/down/kernel", (None, "hidden", "width")),
    (r"blocks/.*/attention/taps", (None, None, None, "heads")),
    (r"blocks/.*/attention/(log_rate|step_bias)", (None, "heads")),
    (r"(.*/)?\w*norm/(scale|bias)", ()),
    (r"(embed|head|blocks/.*/(attention/\w+|mlp/(up|gate|down)))/bias", ()),
)


def make_mesh(config: MeshConfig, devices: list | None = None) -> Mesh:
    """A mesh over all devices. Slices of a TPU share the axis `data`; other axes lie inside of one.

    Raises:
      ConfigError: the axes' product is not the device count, naming what would fit; slices that do
        not divide `data`.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: getattr(config, axis) for axis in AXES}
    fill = [axis for axis, size in sizes.items() if size == -1]
    fixed = int(np.prod([size for size in sizes.values() if size != -1]))
    text = ", ".join(f"{axis}={size}" for axis, size in sizes.items())
    if len(fill) > 1:
        raise ConfigError(f"mesh.{text}: at most one axis may be -1, as mesh.data is by default")
    if len(devices) % fixed or (not fill and fixed != len(devices)):
        fix = f"the product must be the {len(devices)} devices; sizes from {divisors(len(devices))}"
        raise ConfigError(f"mesh.{text}: {fix}")
    for axis in fill:
        sizes[axis] = len(devices) // fixed
    slices = len({getattr(device, "slice_index", 0) for device in devices})
    if sizes["data"] % slices:
        fix = f"its devices are in {slices} slices; pass a multiple of that, or use one slice"
        refuse("mesh.data", sizes["data"], fix)
    # A mesh axis of 4 does not divide a torus of 8 × 8 × 16 chips: a physical axis may be split.
    split = {"allow_split_physical_axes": True}
    if slices == 1:
        grid = mesh_utils.create_device_mesh(tuple(sizes.values()), devices, **split)
    else:
        inside = tuple((sizes | {"data": sizes["data"] // slices}).values())
        between = (slices, *(1,) * (len(sizes) - 1))
        grid = mesh_utils.create_hybrid_device_mesh(inside, between, devices, **split)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def check_fits(
    model: ModelConfig,
    batch: int,
    mesh: Mesh,
    lengths: dict[str, int] | None = None,
    microbatches: int = 1,
) -> None:
    """Raises ConfigError where a size does not divide over its mesh axis, with sizes that would.

    Args:
      model: whose heads and widths are sharded.
      batch: rows per step.
      mesh: the devices.
      lengths: of rows whose tokens a ring shards, by the field's name; None if there are no such
        rows.
      microbatches: parts of a batch, each of which is sharded as a batch is.
    """
    rows_of = "batch/microbatches" if microbatches > 1 else "batch"
    tensor, fsdp = mesh.shape["model"], mesh.shape["fsdp"]
    rows = mesh.shape["data"] * fsdp
    uses = [
        ("model.heads", model.dims.heads, "mesh.model", tensor),
        ("model.mlp_width", model.hidden, "mesh.model", tensor),
        ("model.width", model.width, "mesh.fsdp", fsdp),
        (rows_of, batch // microbatches, "mesh.data*mesh.fsdp", rows),
    ]
    attending = [e for e in model.pattern if not isinstance(e, Recurrent)]
    if attending:
        uses.append(("model.kv_heads", model.dims.kv_heads, "mesh.model", tensor))
    for encoding in attending:  # of which some change the heads
        dims, name = encoding.layer_dims(model.dims), type(encoding).__name__
        sizes = {"queries": encoding.query_heads(dims), "key heads": dims.kv_heads}
        uses += [(f"{name}'s {part}", n, "mesh.model", tensor) for part, n in sizes.items()]
    for field, size, axis, parts in uses:
        fix = f"use a multiple of {parts}, or an axis among {divisors(size)[:24]}"
        require(size % parts == 0, field, size, f"must divide over {axis}={parts}; {fix}")
    if mesh.shape["seq"] > 1:
        _check_ring(model, mesh, lengths)


def _check_ring(model: ModelConfig, mesh: Mesh, lengths: dict[str, int] | None) -> None:
    permuted: Any = layout(model, mesh)
    seq = f"mesh.seq={mesh.shape['seq']}"
    if any(isinstance(e, Recurrent) for e in model.pattern):
        raise ConfigError(f"{seq}: a recurrent layer reads whole rows in order; use mesh.seq=1")
    row_schemes = [e for e in model.pattern if sums_rows(model.terms_of(e))]
    if row_schemes:
        name = type(row_schemes[0]).__name__
        raise ConfigError(f"{seq}: {name} needs whole rows of scores; use mesh.seq=1")
    sizes = [layer.chunk for layer in model.windows if layer.chunk is not None]
    if sizes:
        raise ConfigError(f"{seq}: a ring has no chunks (@chunk={sizes[0]}); use mesh.seq=1")
    if model.attention == "dense":
        raise ConfigError(f"model.attention='dense': {seq} is attention in tiles; use 'auto'")
    if lengths is None:
        raise ConfigError(f"{seq}: the tokens of these rows are not sharded; use mesh.seq=1")
    parts = len(permuted.blocks)
    times = parts // mesh.shape["seq"]
    for field, length in lengths.items():
        if length % parts:
            fits = [n for n in range(1, length + 1) if length % (times * n) == 0 or n == 1][:24]
            fix = f"use a multiple of {parts}, or mesh.seq among {fits}"
            blocks = f"must divide into {parts} blocks, {times} per device of {seq}"
            refuse(field, length, f"{blocks}; {fix}")


def layout(model: ModelConfig, mesh: Mesh) -> Contiguous:
    """How rows of tokens are laid out on the devices: in order, or sharded along the tokens.

    Unsharded rows can use a fused kernel. In sharded rows, tokens have equal work if windows limit
    what they see in all layers, and each device then holds neighbouring tokens; in a layer without
    a window or chunks the last tokens have the most work, and each device gets some of them.
    """
    axis = MESH_AXES["tokens"]
    if mesh.shape[axis] == 1:
        kernels = mesh.devices.flat[0].platform in KERNELS and model.attention == "auto"
        only_rows = mesh.devices.size > 1 and mesh.shape[MESH_AXES["heads"]] == 1
        return RowSharded(mesh, MESH_AXES["batch"]) if kernels and only_rows else CONTIGUOUS
    balanced = model.causal and any(x.span is None for x in model.windows)
    return BlockPermuted(mesh, axis, MESH_AXES["batch"], MESH_AXES["heads"], balanced)


def path_name(path: Any) -> str:
    """`blocks/0/mlp/up/kernel` for a path of the parameter tree."""
    return "/".join(str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path)


def _encoding_axes(model: ModelConfig) -> dict[str, tuple]:
    """The logical axes of the encodings' parameters by their path in the model.

    Their widths are replicated: XLA would look rows of a divided table up for all tokens, and
    replicate activations for it.
    """
    axes = {e: e.logical_axes(e.layer_dims(model.dims)) for e in model.pattern}
    shared = (of.shared for of in axes.values())
    named: list[Any] = [(f"shared/{index}", tree, ()) for index, tree in enumerate(shared)]
    for slot, encoding in enumerate(model.pattern):  # stacked along a leading axis
        named.append((f"blocks/{slot}/attention/params", axes[encoding].layer, (None,)))
    return {
        f"{folder}/{path_name(path)}": (*lead, *(None if a == "width" else a for a in axes))
        for folder, tree, lead in named
        for path, axes in jax.tree.leaves_with_path(tree)
    }


def parameter_shardings(params: Any, mesh: Mesh, model: ModelConfig) -> Any:
    """A NamedSharding for each parameter, by its path and the table; of encodings by their axes.

    Raises:
      ConfigError: a parameter that no rule matches: every device would hold all of it.
    """
    of_encodings = _encoding_axes(model)

    def sharding(path, x):
        name = path_name(path)
        rules = (axes for rule, axes in LOGICAL if re.fullmatch(rule, name))
        logical = of_encodings.get(name, next(rules, None))
        if logical is None:
            fix = "add its path to LOGICAL in pe_jax/training/sharding.py (axes () replicate it)"
            raise ConfigError(f"parameter {name} {list(x.shape)}: no sharding rule names it; {fix}")
        return NamedSharding(mesh, PartitionSpec(*(MESH_AXES.get(axis or "") for axis in logical)))

    return jax.tree_util.tree_map_with_path(sharding, params)


def optimizer_shardings(tx: Any, params: Any, shardings: Any, mesh: Mesh) -> Any:
    """Shardings of the optimizer state, like the parameters' (under Auto axes XLA would choose)."""
    replicated = NamedSharding(mesh, PartitionSpec())
    return optax.tree_map_params(
        tx,
        lambda _, sharding: sharding,
        jax.eval_shape(tx.init, params),
        shardings,
        transform_non_params=lambda _: replicated,
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(MESH_AXES["batch"]))


def activation_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of [B, T, D]: rows as in a batch, tokens over the axis of tokens."""
    return NamedSharding(mesh, PartitionSpec(MESH_AXES["batch"], MESH_AXES["tokens"]))


def cache_shardings(cache: Any, mesh: Mesh) -> Any:
    """The shardings of decoding caches: rows as in a batch, heads as in the parameters."""
    rows = PartitionSpec(MESH_AXES["batch"])
    axes = {"positions": rows, "segments": rows, "segment": rows}
    axes["inputs"] = PartitionSpec(MESH_AXES["batch"], None, None, MESH_AXES["heads"])
    for name in ("k", "v", "k_raw", "beyond", "states", "state"):
        axes[name] = PartitionSpec(MESH_AXES["batch"], MESH_AXES["heads"])

    def sharding(path, x):
        name = path_name(path[1:]).partition("/")[0]  # path[0] is the layer
        return NamedSharding(mesh, PartitionSpec(*axes.get(name, ())[: len(x.shape)]))

    return jax.tree_util.tree_map_with_path(sharding, cache)


def data_shard(mesh: Mesh) -> tuple[int, int]:
    """Which part of each batch this process reads, and how many parts there are.

    Processes whose devices hold the same rows (the model axis spans them) read the same part.

    Raises:
      ConfigError: the rows of a process's devices are not one such part.
    """
    parts = mesh.shape["data"] * mesh.shape["fsdp"]
    indices = batch_sharding(mesh).addressable_devices_indices_map((parts,)).values()
    rows = sorted({index[0].indices(parts)[0] for index in indices if index is not None})
    if rows[-1] - rows[0] >= len(rows) or parts % len(rows) or rows[0] % len(rows):
        raise ConfigError(
            f"mesh.data*mesh.fsdp={parts}: this process's devices hold the parts {rows} of a batch;"
            " choose axes that give each process neighbouring parts, as many as the others"
        )
    return rows[0] // len(rows), parts // len(rows)

"""Model FLOPs utilization: the share of the devices' peak that a model's own products take.

PaLM (arXiv 2204.02311, appendix B): a token takes 6 operations per weight of a matrix product and
12·N·H·E·T for attention, forward and backward, with N layers of H heads of width E over T tokens.
The gated delta rule multiplies its state [E, E] thrice per token: as attention to 1.5·E tokens.
Recomputation (remat, scores in tiles) and the work that an encoding adds are not counted.
"""

from typing import Any

import jax

from pe_jax.encodings.base import Recurrent
from pe_jax.models.config import ModelConfig
from pe_jax.training.sharding import path_name

# Dense bfloat16 operations per second by `device_kind`: cloud.google.com/tpu/docs for TPUs (a
# device of v4 and later is a chip), NVIDIA's data sheets without sparsity for GPUs.
PEAKS = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5e": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU v6e": 918e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA GH200 480GB": 989e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
}


def flops_per_token(model: ModelConfig, shapes: Any, length: int) -> float:
    """Operations of a training step per token, for rows of `length` tokens.

    Args:
      model: its layers, heads and windows.
      shapes: of its parameters; matrices of products are named `kernel`, and a tied embedding is
        the last of them.
      length: T; with a window or chunks, the tokens that a query sees.
    """
    leaves = jax.tree_util.tree_leaves_with_path(shapes)
    named = {path_name(path): leaf.size for path, leaf in leaves}
    weights = sum(size for name, size in named.items() if name.endswith("/kernel"))
    weights += named["embed/embedding"] if model.tied else 0
    dims, layers = model.dims, model.windows
    pairs = [
        1.5 * dims.heads * dims.head_dim
        if isinstance(x.encoding, Recurrent)
        else x.layer_dims(dims).heads * min(length, x.span or length)
        for x in layers
    ]
    return 6.0 * weights + 12.0 * model.layers * dims.head_dim * sum(pairs) / len(pairs)


def peak(devices: Any) -> float | None:
    """Operations per second of these devices together; None if a kind is not in `PEAKS`."""
    kinds = [device.device_kind for device in devices]
    return sum(PEAKS[kind] for kind in kinds) if {*kinds} <= {*PEAKS} else None

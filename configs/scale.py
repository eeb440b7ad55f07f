"""Models of 100M, 1B and 7B parameters, to compile for TPU slices (docs/scale.md).

    python -m tools.compile_tpu --config=configs/scale.py:1B --topology=v5p:4x4x4 \
      --config.length=32768 --config.batch=64 --config.mesh.fsdp=64

bfloat16 activations, float32 parameters, blocks recomputed in the backward pass.
"""

from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config

SIZES = {
    "100M": {"width": 768, "layers": 12, "heads": 12},
    "1B": {"width": 2048, "layers": 20, "heads": 16},
    "7B": {"width": 4096, "layers": 32, "heads": 32},
}


def get_config(size: str = "100M") -> Config:
    model = ModelConfig(vocab=32768, dtype="bfloat16", remat=True, **SIZES[size])
    return Config(workdir="runs/scale", length=4096, model=model)

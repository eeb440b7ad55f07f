"""Surgery: SmolLM2-135M with other encodings in some or all layers, then a recalibration on text.

    python -m experiments.train --config=configs/surgery.py:drope --config.data=text:DIR

- `p_rope`: the slowest quarter of all pairs does not turn (arXiv 2410.06205; Gemma 4).
- `half`: half of the channels of a head turn, as in GLM.
- `nope_fourth`: every fourth layer has no positions, as in SmolLM3.
- `drope`: none has (DroPE, arXiv 2512.12167).

`p_rope_gpu`, …: 600 steps of 16 rows in bfloat16 instead of 300 of one, meant for 12 minutes of one
GPU, where they have not run yet.

Where the numbers come from: the learning rate is five times that of `configs/pose.py`, since what
was learned about positions must be learned again, and a thirtieth of the model's own of 3e-3; it
was not searched. Rows are of 2,048 tokens, as in its pre-training. The other numbers are those of
`configs/pose.py`.
"""

import dataclasses

from configs.pose import CPU, GPU
from pe_jax.training.config import Config

ENCODINGS = {
    "p_rope": "rope(scaling=proportional(fraction=0.75))",
    "half": "rope(fraction=0.5)",
    "nope_fourth": "rope*3,nope",
    "drope": "nope",
}
STEPS = {"": 300, "_gpu": 600}


def get_config(part: str = "p_rope") -> Config:
    name = part.removesuffix("_gpu")
    machine = part[len(name) :]
    base = GPU if machine else CPU
    return dataclasses.replace(
        base,
        workdir=f"runs/surgery_{part}",
        positions="contiguous",
        steps=STEPS[machine],
        log_every=10,
        save_every=50,
        model=dataclasses.replace(base.model, encoding=ENCODINGS[name]),
        optimizer=dataclasses.replace(base.optimizer, learning_rate=1e-4, warmup=30),
    )

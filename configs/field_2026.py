"""Encodings of 2024–2026 next to RoPE, T5 and NoPE: five seeds, every scheme with its own rates.

    python -m experiments.compare --config=configs/field_2026.py
    python -m experiments.compare --config=configs/field_2026.py --config.data=text:DIR \
      --config.workdir=runs/mine
    python -m experiments.compare --config=configs/field_2026.py:bases
    python -m experiments.compare --config=configs/field_2026.py:qk_norm
    python -m experiments.compare --config=configs/field_2026.py:slopes

The model and the data are those of configs/compare.py: 2 layers of width 64 that read the embedded
source code as bytes, trained at 64 and tested to 512. For each scheme three learning rates are
tried in runs of full length, for the parameters of the eight that have any three multiples of each,
and where the best has a neighbour that the grid lacks, up to five rounds beyond it. The best on
validation text at 64 is kept, and its run is the first seed's.

Two results of the first contradict papers, and the others ask why. `bases`: RoPE and PoPE with
base 100 as well, where half of the channels turn fully within 64 tokens; it is a quarter with
10,000, which gives 0.55 at the 1,024 tokens of PoPE's paper. `qk_norm`: GRAPE-AP, ALiBi, FoX and
RoPE with normalized queries and keys, as in the code of GRAPE's authors. `slopes`: ALiBi with heads
that fall by ¼ to 0.7 per token as well, where its own fall by 1/256 to ¼ and FoX begins with ln 2;
GRAPE-AP with the same.

Questions: the two of every comparison (docs/results.md). Written after the results
(docs/results/field_2026.md): T5 and Inkling are ahead of RoPE at 64, GRAPE-AP, ALiBi and NoPE
behind, the first two not with steeper slopes; at 512 RoPE, PoPE, Selective RoPE and RoPE with sinks
fail, and FoX, Wall, GRAPE-AP and ALiBi stay flat. `bases`: RoPE fails less with base 100, PoPE no
less. `qk_norm`: all means fall, the differences at 64 stay.
"""

from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig

FIELD = (
    "nope",
    "t5",
    "rope",
    "alibi",
    "rope+sink",
    "pope",
    "selective_rope",
    "inkling(extent={length})",
    "fox",
    "grape_ap",
    "wall",
)
ENCODINGS = {
    "field": FIELD,
    "bases": ("rope", "pope", "rope(base=100.0)", "pope(base=100.0)"),
    "qk_norm": ("rope", "alibi", "fox", "grape_ap"),
    "slopes": ("rope", "alibi", "alibi(bias_max=2.0)", "grape_ap(bias_max=2.0)"),
}


def get_config(part: str = "field") -> CompareConfig:
    return CompareConfig(
        workdir="runs/field_2026" + f"_{part}" * (part != "field"),
        encodings=ENCODINGS[part],
        baseline=ENCODINGS[part][0],
        reference="rope",
        seeds=5,
        batch=16,
        steps=500,
        rates=(5e-3, 1e-2, 2e-2),
        encoding_rates=(1.0, 5.0, 25.0),
        rate_rounds=5,
        rate_steps=500,
        model=ModelConfig(qk_norm=part == "qk_norm"),
        eval=EvalConfig(windows=12, split="test", every=50),
    )

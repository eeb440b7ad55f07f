"""Length extrapolation of published schemes: at 25M and 124M parameters, or as ALiBi's 247M.

    python -m experiments.compare --config=configs/extrapolation_field.py:25M_six \
      --config.data=text:novels

25M_six, bytes, 512 tokens tested to 4,096, three seeds of 550 steps of 16,384 bytes: six minutes on
an H200, where six threads compiled side by side; one scheme after the other, not timed. Questions:
the two of every comparison (docs/results.md). Written after the results (docs/results/larger.md):
T5's mean is the lowest, and at 4,096 NoPE's alone lies above RoPE's.

    python -m experiments.compare --config=configs/extrapolation_field.py:124M \
      --config.data=text:novels

124M, the same six, lengths and questions, one seed of 50 million bytes: not run. It is meant for a
GPU that is there for twelve minutes at a time (`make gpu-124M`; `SEEDS=2` adds a seed). Rates are
chosen in runs of a tenth of the steps. From the 24 % of an H200's peak that 25M parameters reached,
a run takes two and a half minutes, and all runs of one seed, with those that choose rates, twenty.

    python -m experiments.compare --config=configs/extrapolation_field.py:25M \
      --config.data=text:novels

25M, 24 schemes, tested to 8,192, five seeds of 5,000 steps of 32,768 bytes: not run. Estimated from
25M_six: two to three minutes per run, twenty for Transformer-XL; 12 GiB with the states of all
schemes, which are timed in turn at the end. Look for the paper's order: sinusoidal positions fail
first, then RoPE, then T5; ALiBi holds, and under a sliding window gains nothing from distant text.

    python -m experiments.compare --config=configs/extrapolation_field.py:247M \
      --encodings=sinusoidal --encodings=rope --encodings=t5 --encodings=alibi \
      --config.workdir=runs/paper-a

247M is the size of arXiv 2108.12409 on WikiText-103: 16 layers of width 1024, 8 heads, hidden width
4096 with ReLU, 73,728 tokens per step, 286,000 steps (205 epochs of its words). Differences: words
need an adaptive embedding of 267,744 entries, so tokens are 45,056 BPE pieces in one table, as many
parameters and another perplexity; AdamW, not Nesterov's momentum; the sliding window moves by 128
tokens, not 1. In `wikitext-103/` are `train/`, `validation/` and `test/` with a file of tokens
each, and the pieces are made of it once:

    python -c "from pathlib import Path; from pe_jax.training import tokenizer as t; \
      t.train_bpe([Path('wikitext-103/train/wiki.train.tokens').read_bytes()], \
      'wikitext-103.json', 45056)"

A command uses one host, such as one with 8 TPU chips; each host of a pod takes some of the
encodings, and `experiments.report --join=runs/paper-a,runs/paper-b` makes one report of them. The
cost of a step:

    python -m tools.compile_tpu --config=configs/extrapolation_field.py:247M \
      --topology=v5e:2x4 --encodings=alibi --program=train

By the compiler's estimates, exchange included, a step with ALiBi, T5, KERPLE or Sandwich takes
0.42 s (34 hours per run) and 12.6 of 16 GiB per chip; sinusoidal positions 0.43 s, RoPE 0.45,
Shaw 0.53, FIRE 0.59, Transformer-XL 0.60 with 13.4 GiB, DeBERTa 0.84. Where more is needed,
`--config.model.remat=True` takes less memory and a third more time.

RoPE's scalings are trained from the start with the frequencies for 16 times the length, dynamic NTK
by the length of each call. `experiments.extend` applies these to a model that was trained without
them; LongRoPE, whose factors are searched on a trained model, is only there. Gemma's pattern of 5:1
is 3:1 here, which divides the layers.
"""

import dataclasses

from experiments.running.configs.compare import CompareConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig, MeshConfig, OptimizerConfig

ENCODINGS = (
    *CompareConfig().encodings,
    "rope(base=5e5)",
    "rope(scaling=linear(factor=16))",
    "rope(scaling=ntk(factor=16))",
    "rope(scaling=dynamic_ntk(factor=1,original_length={length}))",
    "rope(scaling=yarn(factor=16,original_length={length}))",
    "rope(scaling=llama3(factor=16,original_length={length}))",
    "rope(fraction=0.25)",
    "rope(scaling=proportional(fraction=0.75))",
    "rope(base=1e4)*3,rope(base=1e6)",
    "xpos",
    "rope*3,temperature(floor_scale={length})",
    "kerple",
    "fire",
    "sandwich",
)
SIX = ("nope", "rope", "alibi", "t5", "fox", "rope@window=128*3,nope")


def get_config(size: str = "25M") -> CompareConfig:
    return {"25M": gpu, "25M_six": six, "124M": larger, "247M": paper}[size]()


def gpu() -> CompareConfig:
    return CompareConfig(
        workdir="runs/extrapolation_25M",
        data="text:novels",
        encodings=ENCODINGS,
        baseline="sinusoidal",
        reference="rope",
        seeds=5,
        length=512,
        batch=64,
        steps=5000,
        rates=(3e-4, 1e-3, 3e-3),
        encoding_rates=(1.0, 10.0, 30.0),
        rate_steps=500,
        log_every=100,
        save_every=1000,
        model=ModelConfig(width=512, layers=8, heads=8, dtype="bfloat16"),
        optimizer=OptimizerConfig(warmup=250),
        eval=EvalConfig(
            lengths=(512, 1024, 2048, 4096, 8192),
            windows=24,
            stride=128,
            split="test",
            batch_tokens=65536,
        ),
        timing_lengths=(512, 1024, 2048, 4096, 8192),
    )


def six() -> CompareConfig:
    config = gpu()
    return dataclasses.replace(
        config,
        workdir="runs/extrapolation_25M_six",
        encodings=SIX,
        baseline="nope",
        seeds=3,
        batch=32,
        steps=550,
        rates=(1e-3, 3e-3),
        encoding_rates=(10.0, 30.0),
        rate_rounds=1,
        rate_steps=550,
        log_every=50,
        save_every=0,
        optimizer=OptimizerConfig(warmup=55),
        eval=dataclasses.replace(config.eval, lengths=(512, 1024, 2048, 4096), windows=12),
        timing_lengths=(),
    )


def larger() -> CompareConfig:
    return dataclasses.replace(
        six(),
        workdir="runs/extrapolation_124M",
        seeds=1,
        batch=64,
        steps=1526,  # 50 million bytes
        rate_rounds=0,
        rate_steps=153,
        model=ModelConfig(width=768, layers=16, heads=12, mlp_width=2336, dtype="bfloat16"),
        optimizer=OptimizerConfig(warmup=153),
    )


def paper() -> CompareConfig:
    return CompareConfig(
        workdir="runs/extrapolation_247M",
        data="text:wikitext-103",
        tokenizer="bpe:wikitext-103.json",
        encodings=ENCODINGS,
        baseline="sinusoidal",
        reference="rope",
        seeds=3,
        length=512,
        batch=144,
        steps=286_000,
        rates=(2.5e-4, 5e-4, 1e-3),
        encoding_rates=(1.0, 10.0, 30.0),
        rate_steps=4000,
        log_every=500,
        save_every=10_000,
        devices="all",
        model=ModelConfig(
            vocab=45056,
            width=1024,
            layers=16,
            heads=8,
            mlp_width=4096,
            gated=False,
            activation="relu",
            norm="layer",
            bias=True,
            dropout=0.3,
            dtype="bfloat16",
        ),
        optimizer=OptimizerConfig(warmup=4000),
        mesh=MeshConfig(data=1, fsdp=-1),
        eval=EvalConfig(
            lengths=(512, 1024, 2048, 4096, 8192, 16384),
            windows=6,
            stride=128,
            split="test",
            batch_tokens=131_072,
        ),
        timing_lengths=(512, 1024, 3072),
    )

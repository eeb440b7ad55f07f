r"""Longer contexts from a trained RoPE model: loss by length, passkeys by depth and length.

    python -m experiments.extend --config=configs/extend.py --runs=runs/extend_base
    python -m experiments.extend --config=configs/extend.py --runs=runs/seed0 --runs=runs/seed1 \
      --encodings=rope --encodings='rope(scaling=yarn(factor={factor},original_length={length}))'

Every method is applied to the last checkpoint of `experiments.train`, without and with a short
fine-tune at the target length; or to the RoPE runs of `--config.trained`, a workdir of
`experiments.compare`, whose other encodings are evaluated as they are. results.csv (the table of
experiments/running/files/table.py), results.json and figures go into the workdir. After an
interruption the same command continues; finished methods are not repeated.
"""

from experiments.running.command import launch
from experiments.running.configs.extend import ExtendConfig


def main(config: ExtendConfig) -> None:
    """Imports the program, once the flags are right, and runs it."""
    from experiments.programs import extend

    extend.main(config)


if __name__ == "__main__":
    launch.run(main, "configs/extend.py", ExtendConfig)

r"""Longer contexts from a trained or a released RoPE model: loss by length, what is found there.

    python -m experiments.extend --config=configs/extend.py --runs=runs/extend_base
    python -m experiments.extend --config=configs/extend.py --runs=runs/seed0 --runs=runs/seed1 \
      --encodings=rope --encodings='rope(scaling=yarn(factor={factor},original_length={length}))'

Every method is applied to the last checkpoint of `experiments.train`, without and with a short
fine-tune at the target length; or to the RoPE runs of `--config.trained`, a workdir of
`experiments.compare`, whose other encodings have the same fine-tune. results.csv (the table of
experiments/running/files/table.py), results.json and figures go into the workdir. After an
interruption the same command continues; finished methods are not repeated.

    python -m experiments.extend --config=configs/extend.py:released --checkpoint=smollm2 \
      --config.data=text:DIR

A released checkpoint (a folder of the Hub, a .gguf file, or the name of a package) is read with
each method, without training. Needs the extra `checkpoints`.
"""

import sys

from experiments.running.command import launch
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.released import ReleasedConfig


def main(config: ExtendConfig | ReleasedConfig) -> None:
    """Imports the program, once the flags are right, and runs it."""
    if isinstance(config, ReleasedConfig):
        from experiments.programs import extend_released

        return extend_released.main(config)
    from experiments.programs import extend

    return extend.main(config)


def default_config(arguments: list[str]) -> str:
    """The config of a command line that names none: another one for a released checkpoint."""
    released = any(argument.lstrip("-").startswith("checkpoint") for argument in arguments)
    return "configs/extend.py:released" if released else "configs/extend.py"


if __name__ == "__main__":
    launch.run(main, default_config(sys.argv), ExtendConfig, ReleasedConfig)

r"""Encodings on images: trained at one size, tested at that and larger ones, wider and finer.

    python -m experiments.images --config=configs/images.py
    python -m experiments.images --config=configs/images.py --encodings=alibi_2d \
      --encodings='rope_2d(base=100.0)' --config.workdir=runs/two

Prints accuracies over seeds and writes results.csv (the table of
experiments/running/files/table.py), results.json and accuracy.png into the workdir. After an
interruption the same command continues; finished runs are not repeated.
"""

from experiments.running.command import launch
from experiments.running.configs.images import ImagesConfig


def main(config: ImagesConfig) -> None:
    """Imports the program, once the flags are right, and runs it."""
    from experiments.programs import images

    images.main(config)


if __name__ == "__main__":
    launch.run(main, "configs/images.py", ImagesConfig)

r"""Encodings on tasks that isolate position: trained on short questions, tested on longer ones.

    python -m experiments.tasks --config=configs/tasks.py
    python -m experiments.tasks --config=configs/tasks.py --tasks=recall --encodings=rope \
      --encodings='t5(bidirectional=True)'

With `--config.rates` the first seed is trained at each of these learning rates, and the others at
the one with the least loss on other questions of the trained lengths; the same for
`--config.encoding_rates`, multiples of them for an encoding's own parameters.

Prints accuracies and writes results.csv (the table of experiments/running/files/table.py),
results.json and tasks.png into the workdir. After an interruption the same command continues;
finished runs are not repeated.
"""

from experiments.running.command import launch
from experiments.running.configs.tasks import TasksConfig


def main(config: TasksConfig) -> None:
    """Imports the program, once the flags are right, and runs it."""
    from experiments.programs import tasks

    tasks.main(config)


if __name__ == "__main__":
    launch.run(main, "configs/tasks.py", TasksConfig)

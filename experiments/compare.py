r"""The comparison: every encoding with every seed, then speed and memory, then one report.

    python -m experiments.compare --config=configs/compare.py --config.data=text:DIR \
      --config.workdir=runs/mine
    python -m experiments.compare --config=configs/compare.py --encodings=rope \
      --encodings='rope*3,nope' --encodings=t5+rope --config.model.layers=4 \
      --config.workdir=runs/pattern

The second command compares three encodings, of which one is a pattern over layers and one a sum.

With `--config.rates` each encoding is first trained for `rate_steps` at each of these learning
rates, and then, with every seed, at the one with the least loss on validation text. With
`--config.encoding_rates` its own parameters are tried at each of these multiples of each rate.

After an interruption the same command continues; finished runs are not repeated.

Files of the test split that `--config.eval.kept` names are evaluated by no such command. With
`--last_look` finished runs are evaluated on these alone, once a verdict is final: the manifest
counts each look.
"""

from absl import flags

from experiments.running.command import launch
from experiments.running.configs.compare import CompareConfig

LAST_LOOK = flags.DEFINE_bool("last_look", False, "evaluate finished runs on the kept files alone")


def main(config: CompareConfig) -> None:
    """Runs a comparison, or a last look at one."""
    from experiments.programs import compare  # imports take seconds, which --help and typos skip

    (compare.look if LAST_LOOK.value else compare.main)(config)


if __name__ == "__main__":
    launch.run(main, "configs/compare.py", CompareConfig)

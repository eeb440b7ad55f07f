r"""Your encoding against RoPE on your text: equal data, order, weights and steps; one report.

    python -m examples.compare_mine --config=configs/compare.py --config.data=text:DIR \
      --encodings=rope --encodings=log_bias --encodings=log_bias+rope --config.workdir=runs/mine

DIR holds text files; without `--config.data` it is the source code of installed packages. The line
that registers the encoding is the only one that `experiments.compare` does not have: every flag of
that program works (`--help`), and so does every way to write a scheme: sums, patterns, windows.
"""

import pe_jax
from examples.own_encoding import LogBias
from experiments import compare
from experiments.running.command import launch
from experiments.running.configs.compare import CompareConfig

pe_jax.ENCODINGS["log_bias"] = LogBias

if __name__ == "__main__":
    launch.run(compare.main, "configs/compare.py", CompareConfig)

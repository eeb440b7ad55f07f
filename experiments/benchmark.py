"""Time and memory of attention with every encoding, compared with other implementations.

    python -m experiments.benchmark --lengths=4096,8192 --out=runs/benchmark
    python -m experiments.benchmark --schemes=nope,rope,alibi --modes=decode --out=runs/decode
    python -m experiments.benchmark --modes=train --train_sizes=0.1M,10M --out=runs/train

For each length and mode, all programs are compiled, then timed in turn (see timing.py): every
scheme by our engines, by jax.nn.dot_product_attention with a materialised bias, and by PyTorch's
FlexAttention and scaled_dot_product_attention where torch is installed. Mode train times one
training step, with RoPE, by our trainer, in plain JAX and in PyTorch, in turn with two matrix
products. Files in --out: benchmark.csv, benchmark.json (versions, device, flags). Ctrl-C writes
the results so far.
"""

from experiments.measuring import benchmark_settings
from experiments.running.command import launch


def main() -> None:
    """Checks the flags, then imports the program and runs it."""
    settings = benchmark_settings.settings()
    from experiments.programs import benchmark

    benchmark.main(settings)


if __name__ == "__main__":
    benchmark_settings.define()
    launch.run_flags(main)

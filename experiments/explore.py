"""Interactive and static figures of RoPE, ALiBi and T5 as they are defined, before any training.

    python -m experiments.explore
    python -m experiments.explore --out=/tmp/explore

writes explore.html, one page that opens offline, where base, head width, scaling, slopes and
buckets are sliders; and rope-decay, alibi, t5-buckets and rope-scaling, each as SVG, PNG and the
data as CSV.
"""

from absl import flags

from experiments.running import launch
from pe_jax.training.paths import local

OUT = flags.DEFINE_string("out", "runs/explore", "folder for the pictures")


def main() -> None:
    """Writes the page and all pictures."""
    from experiments.programs import explore

    for path in explore.write(local("out", OUT.value)):
        print(path)


if __name__ == "__main__":
    launch.run_flags(main)

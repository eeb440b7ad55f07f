"""An interactive page of RoPE, ALiBi and T5 as they are defined, before any training.

    python -m experiments.explore
    python -m experiments.explore --out=/tmp/explore

writes explore.html, one page that opens offline, where base, head width, scaling, slopes and
buckets are sliders.
"""

from pathlib import Path

from absl import flags

from experiments.running.command import launch
from pe_jax.training.paths import local

SCRIPTS = ("formulas.js", "widgets.js", "explore.js")
SHADES = 9  # of a map's colours, between which the page blends


def main() -> None:
    """Writes the page."""
    print(write(local("out", flags.FLAGS.out)))


def write(out: Path) -> Path:
    """Writes explore.html into a folder, and returns its path."""
    path = out / "explore.html"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(explorer(), encoding="utf-8")
    return path


def explorer() -> str:
    """The page."""
    import numpy as np  # imports that --help and typos skip
    from matplotlib import colors

    from experiments.reporting import html_page, plotting

    ramps = {
        name: " ".join(map(colors.to_hex, ramp(np.linspace(0, 1, SHADES))))
        for name, ramp in (("rising", plotting.RISING), ("signed", plotting.SIGNED))
    }
    colours = " ".join(plotting.SHADES[::2])
    return html_page.render("explore.html.j2", SCRIPTS, colours=colours, **ramps)


if __name__ == "__main__":
    flags.DEFINE_string("out", "runs/explore", "folder of explore.html")
    launch.run_flags(main)

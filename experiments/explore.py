"""Pictures of encodings: as they are defined, and in a released model.

    python -m experiments.explore
    python -m experiments.explore --out=/tmp/explore

writes explore.html, one page that opens offline, where base, head width, scaling, slopes and
buckets of RoPE, ALiBi and T5 are sliders.

    python -m experiments.explore --checkpoint=smollm2 --text=novel.txt

writes heads.png and heads.csv: which rotated pairs of channels count, how far back layers look, the
weight on the first token, and the loss if one layer has no positions. The checkpoint is a folder of
the Hub, a .gguf file, or `smollm2` or `gemma3`, which are packages to install.
"""

from pathlib import Path

from absl import flags

from experiments.running.command import launch
from pe_jax.training.paths import local

SCRIPTS = ("formulas.js", "widgets.js", "explore.js")
SHADES = 9  # of a map's colours, between which the page blends


def main() -> None:
    """Writes the page, or the pictures of a checkpoint."""
    values = flags.FLAGS
    out = local("out", values.out)
    if values.checkpoint is None:
        print(write(out))
        return
    from experiments.programs import explore_released

    explore_released.main(values.checkpoint, values.text, values.tokens, out)


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
    flags.DEFINE_string("out", "runs/explore", "folder of what is written")
    flags.DEFINE_string("checkpoint", None, "a folder, a .gguf file, smollm2 or gemma3")
    flags.DEFINE_string("text", None, "a text for it; by default Python code of a package")
    flags.DEFINE_integer("tokens", 1024, "of the text", lower_bound=2, upper_bound=4096)
    launch.run_flags(main)

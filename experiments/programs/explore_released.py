"""Pictures of what the heads of a released checkpoint do with positions."""

from pathlib import Path

import numpy as np

from experiments.measuring import heads, passages
from experiments.reporting import heads_figure, plotting
from experiments.running.command import launch
from pe_jax.released import files, load, tokenizer_files


def main(source: str, text: str | None, tokens: int, out: Path) -> None:
    """Writes heads.png and heads.csv into a folder, and prints what they show."""
    checkpoint = files.read(source)
    listed = passages.ids(checkpoint, text, tokens + 1, tokens + 1)
    row = [*tokenizer_files.first(checkpoint.tokenizer), *listed][: tokens + 1]
    launch.keep_programs()
    found = heads.findings(load.model(checkpoint), np.array(row))
    trained = checkpoint.config.get("max_position_embeddings", 0)
    drawing = heads_figure.draw(found, checkpoint.path.stem, tokens, trained)
    plotting.write(drawing, out)
    print(drawing.alt, f"Results: {out / 'heads.png'}, {out / 'heads.csv'}", sep="\n")

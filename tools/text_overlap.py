"""How much of the text that a comparison evaluates on occurs in the text that it trains on.

    python -m tools.text_overlap --config=configs/compare.py

A shingle is as many consecutive bytes as a training row has. Prints the share of the shingles of
the validation and test splits that occur in the train split, every one counted and each distinct
one counted once, and for each evaluated window the share of its scored bytes at which one ends.
"""

from collections.abc import Iterable

from absl import app, flags

from experiments.running.command import config_files
from experiments.running.configs.compare import CompareConfig
from pe_jax.training import data, tokenizer
from pe_jax.training.corpus import Corpus


def shingles(text: bytes, size: int) -> list[bytes]:
    """All runs of `size` consecutive bytes, in order."""
    return [text[start : start + size] for start in range(len(text) - size + 1)]


def in_train(corpus: Corpus, wanted: set[bytes], size: int) -> set[bytes]:
    """The shingles among `wanted` that occur in a document of the train split."""
    documents = corpus.documents("train")
    texts = (documents[index] for index in range(len(documents)))
    return {shingle for text in texts for shingle in shingles(text, size) if shingle in wanted}


def share(found: Iterable[bytes], known: set[bytes]) -> float:
    """The fraction that is known."""
    hits = [shingle in known for shingle in found]
    return sum(hits) / len(hits)


def report(corpus: Corpus, config: CompareConfig) -> list[str]:
    """One line per split, one for the windows."""
    size, splits = config.length, {}
    for split in ("validation", "test"):
        documents = corpus.documents(split)
        texts = [documents[index] for index in range(len(documents))]
        splits[split] = [shingle for text in texts for shingle in shingles(text, size)]
    known = in_train(corpus, {*splits["validation"], *splits["test"]}, size)
    lines = []
    for split, found in splits.items():
        counted, once = share(found, known), share({*found}, known)
        lines.append(f"{split}: {counted:.1%} of {len(found):,} shingles, {once:.1%} of distinct")
    rows = data.windows(corpus, tokenizer.get("bytes"), config.eval)
    read = config.eval.lengths[-1] + size - 1  # one shingle ends at each target
    shares = [share(shingles(bytes(row[-read:].tolist()), size), known) for row in rows]
    mean = sum(shares) / len(shares)
    each = " ".join(f"{value:.1%}" for value in shares)
    return [*lines, f"{config.eval.split} windows: mean {mean:.1%}, each {each}"]


def main(_: list[str]) -> None:
    """Prints the report of a config's text."""
    config = config_files.final(config_files.load(flags.FLAGS.config, CompareConfig))
    corpus = data.load(config.data)
    assert isinstance(corpus, Corpus), config.data
    print(f"shingles of {config.length} bytes", *report(corpus, config), sep="\n")


if __name__ == "__main__":
    flags.DEFINE_string("config", "configs/compare.py", "config of a comparison of byte models")
    app.run(main)

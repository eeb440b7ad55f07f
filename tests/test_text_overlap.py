"""Shingles of evaluation text that occur in training text."""

from experiments.running.configs.compare import CompareConfig
from pe_jax.training import corpus
from pe_jax.training.config import EvalConfig
from tools import text_overlap


def test_shingles_of_training_text_are_counted_in_each_split_and_window(tmp_path):
    digits, letters = b"0123456789" * 2, b"abcdefghijklmnopqrst"
    texts = {"train": digits, "validation": letters, "test": letters[:16] + digits[:4]}
    for split, text in texts.items():
        (tmp_path / split).mkdir()
        (tmp_path / split / "text").write_bytes(text)
    config = CompareConfig(
        length=4, eval=EvalConfig(lengths=(4, 8), windows=1, stride=4, split="test")
    )
    lines = text_overlap.report(corpus.text(str(tmp_path)), config)
    assert lines == [
        "validation: 0.0% of 17 shingles, 0.0% of distinct",
        "test: 5.9% of 17 shingles, 5.9% of distinct",  # the last of 17
        "test windows: mean 0.0%, each 0.0%",  # its 17 bytes end with the first digit
    ]
    (tmp_path / "test" / "text").write_bytes(letters[:9] + digits[:8])
    lines = text_overlap.report(corpus.text(str(tmp_path)), config)
    assert lines[2] == "test windows: mean 62.5%, each 62.5%"  # at five of the last eight


def test_a_shingle_that_repeats_is_one_distinct_shingle():
    assert text_overlap.shingles(b"aaaab", 2) == [b"aa", b"aa", b"aa", b"ab"]
    assert text_overlap.shingles(b"a", 2) == []

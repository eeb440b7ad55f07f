"""A comparison finds what is planted in it: a scheme that only needs a larger rate of its own."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from experiments.programs import compare
from experiments.reporting import results
from experiments.reporting.verdicts import verdicts
from experiments.running.configs.compare import CompareConfig
from pe_jax import ENCODINGS
from pe_jax.encodings.buckets import Clipped
from pe_jax.models.config import ModelConfig
from pe_jax.training.config import EvalConfig, OptimizerConfig
from tests.test_corpus import write
from tests.trainers import shared_programs  # noqa: F401

pytestmark = pytest.mark.xdist_group("compare")
GAIN = 1e-3


@dataclasses.dataclass(frozen=True)
class Weak(Clipped):
    """A table whose entries add a thousandth of themselves: AdamW moves its scores by nothing."""

    def lookup(self, table, distance):
        return GAIN * super().lookup(table, distance)


def compared(folder, data: str, **fields) -> tuple[results.Results, dict[str, str]]:
    """Both schemes, trained: what was found, and the kind of each verdict."""
    config = CompareConfig(
        workdir=str(folder),
        data=data,
        encodings=("clipped(clip=4,stddev=0.0)", "weak(clip=4,stddev=0.0)"),
        reference="clipped",
        baseline="clipped",
        seeds=3,
        workers=1,
        length=16,
        batch=8,
        steps=60,
        rate_steps=60,
        log_every=60,
        model=ModelConfig(width=16, layers=1, heads=2),
        optimizer=OptimizerConfig(learning_rate=0.03, warmup=5),
        eval=EvalConfig(lengths=(16,), windows=8, stride=8, split="test"),
        **fields,
    )
    compare.main(config)
    found = results.read(folder)
    return found, {row.name: row.kind for row in verdicts(found)}


@pytest.mark.slow
def test_a_scheme_that_only_needs_a_rate_of_its_own_is_not_called_worse(tmp_path, monkeypatch):
    """Each letter is the third one before it, so that a bias of distances is all that is needed."""
    monkeypatch.setitem(ENCODINGS, "weak", Weak)
    monkeypatch.setattr(compare.model_speed, "measure", lambda *_: {})
    monkeypatch.setattr(compare, "show", lambda _: None)
    rng, splits = np.random.default_rng(0), ("train", "validation", "test")
    words = {
        f"{split}/{n}": bytes(rng.permutation(26)[:3].astype(np.uint8) + 97) * 30
        for split, n in itertools.product(splits, range(60))
    }
    data = write(tmp_path / "text", words)
    _, before = compared(tmp_path / "before", data)
    assert before["weak"] == "higher"  # undertrained, and nothing says so
    found, after = compared(tmp_path / "after", data, encoding_rates=(1, 1 / GAIN))
    assert found.scheme("weak").fact("encoding_rate") == 1 / GAIN
    assert after["weak"] != "higher"
    run = tmp_path / "after" / "runs" / found.scheme("weak").folder / "seed2"
    config = json.loads((run / "config.json").read_text())
    assert config["optimizer"]["encoding_rate"] == 1 / GAIN

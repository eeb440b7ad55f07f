"""The notebook docs/tour.ipynb runs from its first cell to its last, and shows what it says."""

import json
import shutil
from pathlib import Path

import matplotlib
import pytest

from experiments.programs import compare
from tests.reporting.comparisons import leave_out_pictures

PAGE = Path(__file__).parents[1] / "docs" / "tour.ipynb"


@pytest.fixture(scope="module")
def toured():
    """The names that the cells leave behind."""
    matplotlib.use("agg")
    names: dict = {"__name__": "__main__"}
    with pytest.MonkeyPatch.context() as patch:
        leave_out_pictures(patch)
        patch.setattr(compare.model_speed, "measure", lambda *_: {})
        for cell in json.loads(PAGE.read_text("utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]).replace("steps=100", "steps=10"), names)
    yield names
    matplotlib.pyplot.close("all")
    shutil.rmtree(names["config"].workdir)


def test_figures_show_a_decay_and_a_bias(toured):
    assert 0.999 < toured["scores"][0] < 1.001 and toured["scores"][200:].mean() < 0.7
    bias = [line.get_ydata() for line in toured["axes"].lines]
    assert len(bias) == 8 and bias[0][2] == -1.0 and bias[-1][63] == pytest.approx(-63 / 256)


def test_order_matters_with_rope_alone(toured):
    assert toured["change"]["nope"] < 1e-5 < 1e-2 < toured["change"]["rope"]


def test_each_question_has_a_verdict(toured, capsys):
    asked = [(row["question"], row["length"], row["encoding"]) for row in toured["verdicts"]]
    assert sorted(asked) == [("primary", "128", "alibi"), ("secondary", "32", "alibi")]
    assert all(row["verdict"] for row in toured["verdicts"])


def test_it_is_kept_without_outputs():
    cells = json.loads(PAGE.read_text("utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)

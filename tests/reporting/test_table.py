"""The table of results: written, read, grouped."""

import numpy as np

from experiments.running.files import table
from experiments.running.files.table import Row

ROWS = [
    Row("rope", "", 0, 0.01, 1.0, "sliding", 64, None, 1.5, (1.0, 2.0)),
    Row("rope", "", 1, 0.01, 1.0, "sliding", 64, None, None, status="diverged"),
    Row("rope", "tuned", 0, None, None, "passkeys: exact", 64, 0.0, 0.1),
    Row("rope", "tuned", 0, None, None, "passkeys: exact", 64, 1.0, 1 / 3),
    Row('a; "b",\n', "", None, None, None, "copy: tokens", 8, None, 0.25),
]


def test_a_table_is_read_as_it_was_written(tmp_path):
    table.write(tmp_path / "results.csv", ROWS)
    assert table.read(tmp_path / "results.csv") == ROWS
    assert len(table.read_csv(tmp_path / "results.csv")) == len(ROWS)


def test_rows_of_a_test_are_its_numbers_or_why_there_are_none():
    found = table.grouped(row for row in ROWS if row.variant != "tuned")
    assert [*found] == ["rope", 'a; "b",\n']
    np.testing.assert_array_equal(found["rope"][0]["sliding", 64], [1, 2])
    assert found["rope"][1]["sliding", 64] == "diverged"
    tuned = table.grouped(row for row in ROWS if row.variant == "tuned")
    np.testing.assert_array_equal(tuned["rope"][0]["passkeys: exact", 64], [0.1, 1 / 3])

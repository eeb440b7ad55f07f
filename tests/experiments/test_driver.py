"""The driver of runs: what is kept, what fails alone, what ends all."""

import json

import pytest

from experiments.running.configs.sweep import Sweep
from experiments.running.schedule import driver
from experiments.running.schedule.work import FAILED, Run, Work
from pe_jax.validation import ConfigError


def work(folder, name, *train, planned=1):
    """Runs one after the other, whose results come back as the work's."""

    def runs():
        results = []
        for k, each in enumerate(train):
            results += yield [Run(f"{name} {k}", folder / name / f"{k}.json", 3, each)]
        return results

    return Work(name, [3] * planned, runs())


def opened(folder, meshes=("mesh",)):
    path = folder / "config.json"
    return driver.opened(opened, Sweep(), path, {"made": "here"}, list(meshes))


def drive(folder, works, meshes=("mesh",)):
    with opened(folder, meshes) as runs:
        return runs.run(works)


def ok(worker):
    return {"status": "ok", 5: worker.label}


def fails(worker):
    raise MemoryError("RESOURCE_EXHAUSTED: Out of memory\nallocating 8 bytes")


def fails_at_length(worker):
    raise ValueError(f"first{600 * ' word'} last")


def stops(worker):
    worker.stop.signal = 15


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, capsys, caplog):
    reached = []

    def program():
        works = [work(tmp_path, "a", fails, ok), work(tmp_path, "b", ok)]
        with opened(tmp_path) as runs:
            reached.append(runs.run(works))

    with pytest.raises(SystemExit) as end:
        program()
    assert end.value.code == 1
    ((bad, after), (good,)) = reached[0]["a"], reached[0]["b"]
    assert bad["status"] == "failed" and after["5"] == "a 1" and good["5"] == "b 0"
    reason = "MemoryError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"
    assert bad["reason"] == reason and f"a 0: {reason}\n" in capsys.readouterr().err
    assert "Traceback" in caplog.text and "in fails" in caplog.text
    assert json.loads((tmp_path / "a" / f"0{FAILED}").read_text())["reason"] == reason
    before = (tmp_path / "b" / "0.json").stat().st_mtime_ns
    with pytest.raises(SystemExit):
        drive(tmp_path, [work(tmp_path, "c", fails_at_length)])
    reason = json.loads((tmp_path / "c" / f"0{FAILED}").read_text())["reason"]
    assert "first word" in reason and "word last" in reason and len(reason) < 600
    again = drive(tmp_path, [work(tmp_path, "a", ok, fails), work(tmp_path, "b", fails)])
    assert again["a"][0]["5"] == "a 0" and again["a"][1] == after and again["b"] == [good]
    assert not (tmp_path / "a" / f"0{FAILED}").exists()
    assert (tmp_path / "b" / "0.json").stat().st_mtime_ns == before


def test_what_killed_the_process_comes_last(tmp_path):
    """As the kernel does where memory is out; a signal or an error leaves no word of it."""
    order, file = [], tmp_path / "under_way.json"

    def noted(worker):
        order.append((worker.label, file.read_text()))
        return ok(worker)

    names = "abc"
    with pytest.raises(SystemExit):
        drive(tmp_path, [work(tmp_path, "a", fails), work(tmp_path, "b", stops)])
    assert not file.exists()
    file.write_text('["a"]')
    found = drive(tmp_path, [work(tmp_path, name, noted) for name in names])
    assert order == [(f"{x} 0", f'["{x}"]') for x in "bca"] and "".join(found) == names
    assert not file.exists()


@pytest.mark.parametrize("error", [ConfigError("steps=3: no"), OSError(28, "No space left")])
def test_what_is_not_of_one_run_ends_all_on_one_line(tmp_path, capsys, error):
    def wrong(worker):
        raise error

    with pytest.raises(SystemExit) as end:
        drive(tmp_path, [work(tmp_path, "a", wrong), work(tmp_path, "b", ok)])
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and str(error) in said
    assert not (tmp_path / "b").exists()


def test_after_a_signal_no_run_starts(tmp_path):
    with pytest.raises(SystemExit) as end:
        drive(tmp_path, [work(tmp_path, "a", stops, ok), work(tmp_path, "b", ok)])
    assert end.value.code == 128 + 15 and {x.name for x in tmp_path.iterdir()} == {
        "config.json",
        "lock",
    }


def test_a_result_that_cannot_be_read_is_made_again(tmp_path, caplog):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.json").write_text('{"status": "o')
    (result,) = drive(tmp_path, [work(tmp_path, "a", ok)])["a"]
    assert result["status"] == "ok" and "0.json: Unterminated string" in caplog.text
    assert json.loads((tmp_path / "a" / "0.json").read_text()) == result


def test_runs_that_were_not_planned_count_from_their_start(tmp_path, caplog):
    with caplog.at_level("INFO", logger="absl"):
        drive(tmp_path, [work(tmp_path, "a", ok, ok, ok, planned=2)])
    counts = [x.split("]")[0] for x in caplog.messages if "is finished" in x]
    assert counts == ["[1/2 runs", "[2/2 runs", "[3/3 runs"]

"""Runs on a Ray cluster of three nodes: what one process would write, whatever is lost."""

import json
import os
import signal
import sys
import types

import jax
import pytest

from experiments.programs import compare
from experiments.reporting import results
from experiments.running.command import config_files
from experiments.running.configs.sweep import Sweep
from experiments.running.files import run_table
from experiments.running.process import ray_nodes
from experiments.running.schedule import cluster, driver
from experiments.running.schedule.work import TRIES, Lost
from pe_jax.encodings import registry
from pe_jax.validation import ConfigError
from tests.experiments import waiting_program
from tests.experiments.tiny_comparison import settings
from tests.experiments.waiting_program import Config
from tests.reporting.comparisons import leave_out_pictures
from tests.trainers import change

# Ray forks to start its own processes, and none of them uses JAX.
pytestmark = [
    pytest.mark.xdist_group("cluster"),
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


@pytest.fixture(scope="module")
def cluster_of_three():
    """A cluster with a core on each node, of which this process is the head."""
    ray = pytest.importorskip("ray")
    utils = pytest.importorskip("ray.cluster_utils")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("XLA_FLAGS", "")
        nodes = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 2})
        ray.init(nodes.address, **ray_nodes.QUIET)
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture
def three_nodes(cluster_of_three):
    while len(cluster_of_three.list_all_nodes()) < 3:
        cluster_of_three.add_node(num_cpus=1)
    cluster_of_three.wait_for_nodes()
    return cluster_of_three


def at_report(monkeypatch, count, act):
    """Acts when the table of runs hears of so many runs."""
    report, heard = run_table.RunTable.report, set()

    def hear(table, progress):
        report(table, progress)
        before = len(heard)
        heard.add(progress.label)
        if before < len(heard) == count:
            act()

    monkeypatch.setattr(run_table.RunTable, "report", hear)


OWN = """
import pe_jax
from pe_jax.encodings.rope import RoPE

class Own(RoPE):
    pass

pe_jax.ENCODINGS["own"] = Own
"""


@pytest.fixture
def own_encoding(tmp_path):
    """An encoding that the config file registers, once it is parsed."""
    file = tmp_path / "own.py"
    file.write_text(OWN)
    config_files.imported(str(file))
    spec = registry.Spec("own")
    assert type(spec.layers[0]).__name__ == "Own"
    yield spec
    del sys.modules[config_files.NAME], registry.ENCODINGS["own"]


def test_the_runs_of_a_lost_node_go_on_elsewhere(
    tmp_path, monkeypatch, three_nodes, own_encoding, caplog
):
    def lose():
        three_nodes.remove_node(three_nodes.list_all_nodes()[-1], allow_graceful=False)

    def lost(runs, run, error):
        log_loss(runs, run, error)
        (tmp_path / waiting_program.GO).touch()

    log_loss = driver.Driver._log_loss
    monkeypatch.setattr(driver.Driver, "_log_loss", lost)
    config = Config(workdir=str(tmp_path), cluster="ray", encodings=(own_encoding,))
    with caplog.at_level("INFO", logger="absl"):
        at_report(monkeypatch, 3, lose)  # one on each node
        assert waiting_program.main(config) == {"all": 9}
    assert "its process is lost, and it goes on in another" in caplog.text
    assert "begins on" in caplog.text
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/*.json")]
    assert len(results) == 13 and os.getpid() not in {r["process"] for r in results}


def test_a_signal_stops_all_and_a_run_that_fails_is_named(
    tmp_path, monkeypatch, three_nodes, capsys
):
    config = Config(workdir=str(tmp_path), cluster="ray", encodings=("fails",))
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        at_report(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        waiting_program.main(config)
    assert end.value.code == 128 + signal.SIGTERM and not [*tmp_path.glob("*/*.json")]
    (tmp_path / waiting_program.GO).touch()
    with pytest.raises(SystemExit) as end:
        waiting_program.main(config)
    assert end.value.code == 1
    assert "all 3: MemoryError: RESOURCE_EXHAUSTED\n" in capsys.readouterr().err
    assert json.loads((tmp_path / "all" / "sum.json").read_text())["value"] == 9


def test_each_process_has_a_gpu_and_sends_its_files_where_no_folder_is_shared(
    tmp_path, monkeypatch, three_nodes, caplog
):
    """GPUs that Ray only counts: each process is told of one, and JAX uses the CPU."""
    monkeypatch.delenv("JAX_PLATFORMS")
    config = Config(workdir=str(tmp_path), cluster="ray", encodings=("private",))
    (tmp_path / "of a node").mkdir()
    (tmp_path / "of a node" / waiting_program.GO).touch()
    with caplog.at_level("INFO", logger="absl"):
        assert waiting_program.main(config) == {"all": 9}
    assert "2 runs side by side" in caplog.text
    found = [json.loads(path.read_text()) for path in tmp_path.glob("?/*.json")]
    assert len(found) == len([*tmp_path.glob("?/*.log")]) == 9
    assert {x["gpu"] for x in found} == {"0", "1"}
    assert {x["process"] for x in found}.isdisjoint({os.getpid()})
    assert "does not see the workdir" in caplog.text


@pytest.mark.parametrize(
    "name, value, words",
    [
        ("versions", {"jax": "0.1"}, ("jax is '0.", "'0.1' on the head")),
        ("commit", "abc", ("commit is ", "'abc' on the head")),
    ],
)
def test_a_node_that_differs_is_refused_before_the_first_run(
    tmp_path, monkeypatch, three_nodes, capsys, name, value, words
):
    monkeypatch.setattr(cluster, name, lambda *_: value)  # of the head
    with pytest.raises(SystemExit) as end:
        waiting_program.main(Config(workdir=str(tmp_path), cluster="ray", workers=1))
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert end.value.code == 2 and all(word in error for word in ("node ", *words)), error
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "lock"}


@pytest.mark.parametrize(
    "fields, nodes, share",
    [  # resources and devices of a process, runs at a time, processes of each
        ({}, [{"CPU": 4.0}, {"CPU": 2.0}], ({"CPU": 1}, 1, 6, 1)),
        ({"workers": 2}, [{"CPU": 4.0}], ({"CPU": 1}, 1, 2, 1)),
        ({}, [{"CPU": 64.0, "GPU": 8.0}, {"CPU": 8.0}], ({"GPU": 1}, 1, 8, 1)),
        ({"devices": "all"}, [{"GPU": 8.0, "CPU": 9.0}] * 2, ({"GPU": 8}, 8, 1, 2)),
        ({}, [{"CPU": 96.0, "TPU": 4.0}] * 2, ({"TPU": 1}, 1, 8, 1)),
        ({"devices": "all"}, [{"CPU": 4.0}, {"CPU": 2.0}], ({"CPU": 2}, 1, 1, 2)),
    ],
)
def test_what_a_run_takes_of_the_nodes(monkeypatch, fields, nodes, share):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    found = ray_nodes.share(Sweep(cluster="ray", **fields), nodes)
    assert (found.resources, found.devices, found.slots, found.processes) == share
    assert ("NPROC" in found.variables) == ("CPU" in found.resources)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # the GPUs stay free
    assert "CPU" in ray_nodes.share(Sweep(cluster="ray", **fields), nodes).resources


def test_without_a_core_or_without_ray_it_says_what_to_do(monkeypatch):
    with pytest.raises(ConfigError, match="none of its nodes has a CPU"):
        ray_nodes.share(Sweep(cluster="ray"), [{"memory": 1.0}])
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'pe_jax\[cluster\]'"):
        ray_nodes.ray_module()


@pytest.mark.parametrize(
    "cause, words",
    [("TimedOut", "or set RAY_ADDRESS"), ("InvalidAuthToken", "set RAY_AUTH_MODE=token")],
)
def test_without_a_cluster_it_says_what_to_do(monkeypatch, cause, words):
    def init(*_, **__):
        raise ConnectionError("no cluster") from RuntimeError(cause)

    errors = types.SimpleNamespace(RayError=OSError)
    ray = types.SimpleNamespace(is_initialized=lambda: False, init=init, exceptions=errors)
    monkeypatch.setattr(ray_nodes, "ray_module", lambda: ray)
    monkeypatch.setattr(os, "environ", {**os.environ})
    with pytest.raises(ConfigError, match=words):
        ray_nodes.connect(Sweep(cluster="ray"))


def test_a_local_cluster_has_a_token_of_its_own(monkeypatch):
    monkeypatch.setattr(os, "environ", {"RAY_AUTH_MODE": "disabled"})
    ray = types.SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(ray_nodes, "ray_module", lambda: ray)
    ray_nodes.connect(Sweep(cluster="local"))
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_AUTH_MODE"] == "disabled"  # the user's word is kept


def test_a_process_that_is_lost_at_every_start_is_given_up(monkeypatch):
    def lost(_):
        raise Lost("killed")

    begun = []
    call = types.SimpleNamespace(remote=lambda *_: None)
    process = types.SimpleNamespace(ready=call, address=call)
    ray = types.SimpleNamespace(wait=lambda calls, **_: (calls, []), kill=lambda _: None)
    monkeypatch.setattr(cluster, "ray_module", lambda: ray)
    monkeypatch.setattr(cluster, "told", lost)
    slot = cluster.Remote(lambda: begun.append(1) or [process])
    assert not slot.ready(lambda: True) and len(begun) == 1 + TRIES


def test_a_process_whose_node_is_gone_ends(monkeypatch):
    """Else it would go on writing where another process does its run."""

    def leave(status):
        raise SystemExit(status)

    monkeypatch.setattr(cluster, "POLL", 0)
    monkeypatch.setattr(os, "getppid", iter([5, 5, 1]).__next__)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit):
        cluster.end_with_parent(5)


def losses(folder):
    """What is compared: of every run, each value of its table."""
    return sorted(results.read(folder).rows())


@pytest.mark.slow
def test_stopped_and_with_a_lost_node_it_writes_what_one_process_writes(
    tmp_path, monkeypatch, three_nodes, caplog
):
    leave_out_pictures(monkeypatch)
    config = change(settings(tmp_path / "one"), rates=(0.02, 0.1), rate_steps=2)
    compare.main(config)
    config = change(config, workdir=str(tmp_path / "three"), cluster="ray", workers=0)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        at_report(patch, 1, lambda: os.kill(os.getpid(), signal.SIGTERM))
        compare.main(config)
    assert end.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "three" / "report.html").exists()
    with monkeypatch.context() as patch, caplog.at_level("INFO", logger="absl"):
        lost = three_nodes.list_all_nodes()[-1]
        at_report(patch, 2, lambda: three_nodes.remove_node(lost, allow_graceful=False))
        compare.main(config)
    assert "its process is lost" in caplog.text
    assert losses(tmp_path / "three") == losses(tmp_path / "one")
    speed = tmp_path / "three" / "speed.json"
    assert speed.exists() and (tmp_path / "three" / "report.html").exists()


@pytest.mark.slow
def test_a_run_on_two_nodes_with_two_devices_each(tmp_path, monkeypatch, three_nodes):
    """The same as on four devices of one process, but for the order of sums."""
    leave_out_pictures(monkeypatch)
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")
    four = jax.devices()[:4]
    monkeypatch.setattr(jax, "devices", lambda: four)
    three_nodes.remove_node(three_nodes.list_all_nodes()[-1])
    config = change(settings(tmp_path / "one"), devices="all", workers=0, mesh={"fsdp": 2})
    compare.main(config)
    compare.main(change(config, workdir=str(tmp_path / "two"), cluster="ray"))
    one, two = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert len(one) == len(two) > 0
    for here, there in zip(one, two, strict=True):
        assert here[:7] == there[:7] and here.value == pytest.approx(there.value, abs=1e-5)

"""Several processes train as one does: real ones, each with two virtual CPU devices."""

import dataclasses
import json
import os
import pathlib
import re
import socket
import subprocess

import jax
import numpy as np
import pytest

from configs import train
from experiments.running.configs.compare import CompareConfig
from experiments.running.process import distributed
from experiments.running.process.errors import one_line_errors
from experiments.running.training import training_loop as program
from pe_jax import config_fields
from pe_jax.training import sharding
from pe_jax.training.config import Config, MeshConfig
from pe_jax.training.step import Trainer
from tests import processes
from tests.faults.test_process_faults import CACHE
from tools import trainer_process

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.sh"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def by_flags(port: int, count: int, number: int) -> tuple[list[str], dict[str, str]]:
    """How a process learns of the others: flags, and variables."""
    where = f"localhost:{port}"
    return [f"--coordinator={where}", f"--processes={count}", f"--process={number}"], {}


def by_slurm(port: int, count: int, number: int) -> tuple[list[str], dict[str, str]]:
    names = {"JOB_ID": 7, "STEP_NODELIST": "localhost", "NTASKS": count, "PROCID": number}
    names |= {"LOCALID": number, "STEP_NUM_NODES": 1}
    variables = {f"SLURM_{name}": str(value) for name, value in names.items()}
    return [], variables | {"JAX_COORDINATOR_PORT": str(port)}


def together(folder, count: int, told, *given: str) -> list[list]:
    """Runs the program in `count` processes; the rows that each has read, by step."""
    port, running, fields = free_port(), [], (f"workdir={folder}", *given)
    flags = [f"--config={processes.__file__}", *(f"--config.{field}" for field in fields)]
    log, outputs = folder.with_suffix(".log"), [folder.with_suffix(f".{n}") for n in range(count)]
    for number, output in enumerate(outputs):
        more, variables = told(port, count, number)
        variables |= {"DEVICES": "2", "CACHE": str(CACHE), "ROWS": str(output)}
        start = trainer_process.start
        running.append(start([*flags, *more], log, variables, processes.noting))
    try:
        for process in running:
            process.join(1500)
    finally:
        for process in running:
            process.kill()
    assert [process.exitcode for process in running] == [0] * count, log.read_text()[-3000:]
    return [[*map(json.loads, output.read_text().splitlines())] for output in outputs]


def alone(folder, patch, devices: int, **fields) -> list:
    """Runs the program here, on the first so many devices; the rows it has read, by step."""
    make, rows = sharding.make_mesh, []
    with patch.context() as during:
        during.setattr(sharding, "make_mesh", lambda c: make(c, jax.devices()[:devices]))
        during.setattr(Trainer, "put", processes.noted(rows.append))
        program.run(dataclasses.replace(processes.get_config(), workdir=str(folder), **fields))
    return rows


def losses(folder) -> list[float]:
    rows = [json.loads(x) for x in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [*range(1, len(rows) + 1)]  # written by one of them
    return [row["loss"] for row in rows]


def reopen(folder) -> None:
    """Forgets that the run was finished, so that more steps continue it."""
    for name in ("evaluation.json", "config.json"):
        (folder / name).unlink()


def by_step(parts: list[list]) -> list:
    """The rows of all parts by step, sorted; processes that have read the same ones count once."""
    distinct = [json.loads(part) for part in {json.dumps(part) for part in parts}]
    return [sorted(sum(step, [])) for step in zip(*distinct, strict=True)]


def compare(tmp_path, patch, count: int, mesh: MeshConfig, other: MeshConfig) -> None:
    """Two steps by many processes and two more by one, and the other way round, on other meshes."""
    many, one, devices = tmp_path / "many", tmp_path / "one", 2 * count
    axes = lambda mesh: [f"mesh.{a}={n}" for a, n in dataclasses.asdict(mesh).items()]  # noqa: E731
    parts = together(many, count, by_flags, *axes(mesh), "microbatches=2")
    rows = alone(one, patch, devices, mesh=mesh)
    np.testing.assert_allclose(losses(many), losses(one), rtol=1e-5)
    assert [len(step) for part in parts for step in part] == [8 // count] * 2 * count
    assert by_step(parts) == by_step([rows])  # so the parts share no row
    found = [json.loads((f / "evaluation.json").read_text())["losses"] for f in (many, one)]
    want = found[1]["non-overlapping"]["12"]
    np.testing.assert_allclose(found[0]["non-overlapping"]["12"], want, rtol=1e-5)

    reopen(many)
    reopen(one)
    rows = alone(many, patch, devices, mesh=other, steps=4)
    parts = together(one, count, by_slurm, "steps=4", *axes(other))
    np.testing.assert_allclose(losses(one), losses(many), rtol=1e-5)
    assert len({*losses(one)}) == 4
    config = processes.get_config()
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
    data = program.batches(config, *program.open_source(config, config.eval), mesh)
    whole = [next(data)["tokens"].tolist() for _ in range(4)]
    assert by_step([rows]) == by_step([whole[2:]])
    assert len(rows) == 2 and by_step(parts) == by_step([rows])  # model runs across processes
    assert {len(step) for part in parts for step in part} == {8 // other.data}


def test_two_processes_train_as_one_and_either_continues_the_other(tmp_path, monkeypatch):
    compare(tmp_path, monkeypatch, 2, MeshConfig(data=2, model=2), MeshConfig(data=1, model=4))


@pytest.mark.slow
def test_four_processes_train_as_one_and_either_continues_the_other(tmp_path, monkeypatch):
    compare(
        tmp_path, monkeypatch, 4, MeshConfig(data=2, fsdp=2, model=2), MeshConfig(data=2, model=4)
    )


class Rows:
    """A sharding whose devices here hold these parts of a batch."""

    def __init__(self, *held: int):
        self.held = held

    def addressable_devices_indices_map(self, shape):
        return {n: (slice(part, part + 1),) for n, part in enumerate(self.held)}


@pytest.mark.parametrize("held, found", [((0, 1), (0, 2)), ((2, 2), (2, 4)), ((3, 2), (1, 2))])
def test_a_process_reads_the_part_of_a_batch_that_its_devices_hold(monkeypatch, held, found):
    mesh = sharding.make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    assert sharding.data_shard(mesh) == (0, 1)
    monkeypatch.setattr(sharding, "batch_sharding", lambda mesh: Rows(*held))
    assert sharding.data_shard(mesh) == found
    for wrong in ((0, 2), (1, 2), (0, 1, 2)):
        monkeypatch.setattr(sharding, "batch_sharding", lambda mesh, wrong=wrong: Rows(*wrong))
        with pytest.raises(ValueError, match="neighbouring parts"):
            sharding.data_shard(mesh)


# Detection: what is no cluster is told from what is a cluster with a mistake.


def ask(log: pathlib.Path, variables: dict[str, str]) -> None:
    """In a process with these variables: joins the others, if there are any, and says so."""
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(variables)
    with one_line_errors():
        distributed.connect(None, None, None)
    print("alone", flush=True)


@pytest.mark.parametrize(
    "number, status, said",
    [(None, 0, "alone"), (2, 2, "error: --coordinator: process_id and num_processes")],
)
def test_no_cluster_is_no_error_and_a_cluster_with_a_mistake_is_one(number, status, said, tmp_path):
    variables = {} if number is None else by_slurm(free_port(), 2, number)[1]
    process = trainer_process.CONTEXT.Process(target=ask, args=(tmp_path / "log", variables))
    process.start()
    process.join(60)
    lines = (tmp_path / "log").read_text().splitlines()
    assert process.exitcode == status and lines[-1].startswith(said), lines


def test_only_the_message_that_there_is_no_cluster_is_passed_over(monkeypatch):
    calls, says = [], ["coordinator_address should be defined."]

    def initialize(*args, **kwargs):
        calls.append((args, kwargs))
        raise ValueError(says[0])

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    distributed.connect(None, None, None)
    with pytest.raises(ValueError, match="coordinator_address"):  # it was given: a real error
        distributed.connect("here:1", 2, 0)
    says[0] = "Number of processes must be defined."
    with pytest.raises(ValueError, match="Number of processes"):
        distributed.connect(None, None, None)
    how = {
        "initialization_timeout": distributed.CONNECT_SECONDS,
        "heartbeat_timeout_seconds": distributed.HEARTBEAT_SECONDS,
    }
    explicit = (("here:1", 2, 0), {"cluster_detection_method": "deactivate", **how})
    assert calls == [((), how), explicit, ((), how)]
    for given, missing in (((None, 2, 0), "coordinator"), (("here:1", 2, None), "process")):
        with pytest.raises(ValueError, match=f"--{missing} is missing: pass all of --coordinator"):
            distributed.connect(*given)
    assert len(calls) == 3


def test_a_detector_that_fails_is_named_with_what_to_pass(monkeypatch):
    """As that of Kubernetes does in a pod without a token, which every pod looks like to it."""

    class ConfigException(Exception):
        pass

    def initialize(*args, **kwargs):
        raise ConfigException("Service token file does not exist.\nmore")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    said = r"detected .*: ConfigException: Service token file does not exist\.; pass --nodetect"
    with pytest.raises(OSError, match=said):
        distributed.connect(None, None, None)
    with pytest.raises(ConfigException):  # it was told where to connect: its own error
        distributed.connect("here:1", 2, 0)


def ports(monkeypatch, detect=True, **variables) -> list[str | None]:
    """The ports that processes connect at, under SLURM or MPI with these variables."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(distributed.os, "environ", {f"SLURM_{k}": v for k, v in variables.items()})
        port = lambda **_: found.append(distributed.os.environ.get("JAX_COORDINATOR_PORT"))  # noqa: E731
        patch.setattr(jax.distributed, "initialize", port)
        distributed.connect(None, None, None, detect)
    return found


# 82
def test_a_task_that_is_alone_connects_to_nobody_and_each_step_of_a_job_has_its_port(monkeypatch):
    assert not ports(monkeypatch, NTASKS="1", JOB_ID="4242", STEP_ID="0")
    assert not ports(monkeypatch, False, NTASKS="2", JOB_ID="4242", STEP_ID="0")
    steps = [ports(monkeypatch, NTASKS="2", JOB_ID="4242", STEP_ID=step) for step in ("0", "1")]
    assert steps[0] != steps[1] and all(61440 <= int(port) < 65536 for (port,) in steps)
    assert ports(monkeypatch, NTASKS="2", JOB_ID="4242") == [None]  # JAX chooses
    assert ports(monkeypatch) == [None]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_that_launches_is_bash(path):
    subprocess.run(["bash", "-n", path], check=True)


def test_the_flags_of_every_documented_launch_exist():
    text = (ROOT / "docs" / "launching.md").read_text()
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    blocks += [path.read_text() for path in SCRIPTS]
    commands = re.findall(r"-m experiments\.(\w+)((?: +\\\n| +--[^ \n\"]+)+)", "\n".join(blocks))
    assert sorted(name for name, _ in commands) == ["compare"] * 4 + ["train"] * 4
    known = {"config", "encoding", *distributed.FLAG_NAMES}
    for name, given in commands:
        config = CompareConfig() if name == "compare" else Config()
        changes = {}
        for name, value in re.findall(r"--([\w.]+)=(\S+)", given):
            if name.startswith("config."):
                path = name.removeprefix("config.")
                field = config_fields.find(config, path)
                assert field is not None, name
                changes[path] = type(field.default)(value)
                assert field.metadata["ok"](changes[path])
            else:
                assert name in known, name
                assert name != "config" or (ROOT / value).exists()
        axes = {k.removeprefix("mesh."): v for k, v in changes.items() if k.startswith("mesh.")}
        mesh = sharding.make_mesh(MeshConfig(**axes))
        trained = train.get_config()
        sharding.check_fits(trained.model, changes.get("batch", trained.batch), mesh)

"""Checkpoints that are damaged, half written, or do not fit the disk: rows 38 to 41, 43, 47."""

import contextlib
import logging
import re
import resource
import shutil
import subprocess

import grain
import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pe_jax.training import manifest
from pe_jax.training.checkpoint import TEMPORARY, Checkpoints, abstract
from pe_jax.validation import ConfigError

META = {"seed": 1, "devices": {"data": 4, "model": 2}}
STATE = {"w": np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)}
STATE |= {"step": np.int32(3)}


def shardings(rows: int, columns: int) -> dict:
    devices = np.array(jax.devices()[: rows * columns]).reshape(rows, columns)
    mesh = Mesh(devices, ("data", "model"))
    whole, parts = PartitionSpec(), PartitionSpec("data", "model")
    return {"w": NamedSharding(mesh, parts), "step": NamedSharding(mesh, whole)}


LIKE = abstract(STATE, shardings(2, 1))


def numbers():
    return iter(grain.MapDataset.range(100).to_iter_dataset())


def save(kept: Checkpoints, *steps: int) -> None:
    state, rows = jax.device_put(STATE, shardings(4, 2)), numbers()
    for step in steps:
        next(rows)
        kept.save(step, state, rows, META)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The checkpoints of steps 1, 2, 3 on eight devices: the last two stay."""
    folder = tmp_path_factory.mktemp("three")
    kept = Checkpoints(folder)
    save(kept, 1, 2, 3)
    kept.close()
    return folder


@pytest.fixture
def folder(three, tmp_path):
    return shutil.copytree(three, tmp_path / "copy")


@pytest.fixture
def opened():
    """Opens checkpoints, and closes them in the end."""
    with contextlib.ExitStack() as stack:
        yield lambda *a, **k: stack.enter_context(contextlib.closing(Checkpoints(*a, **k)))


def refuses(kept: Checkpoints, *words: str) -> None:
    """Restoring step 3 is an error on one line, with these words."""
    with pytest.raises(ValueError) as found:
        kept.restore(3, LIKE, numbers(), META)
    said = str(found.value)
    assert "\n" not in said and all(word in said for word in words), said


def flip(path, bit: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    path.write_bytes(raw)


def restored(kept: Checkpoints, step: int, like=LIKE) -> None:
    found = kept.restore(step, like, rows := numbers(), META)
    jax.tree.map(np.testing.assert_array_equal, found, STATE)
    places = jax.tree.map(lambda x, y: x.sharding == y.sharding, found, like)
    assert all(jax.tree.leaves(places))
    assert next(rows) == step


def test_the_last_two_steps_are_kept_and_sha256sum_agrees(three, opened):
    kept = opened(three, read_only=True)
    assert kept.steps() == [2, 3]
    assert {p.name for p in three.iterdir()} == {"2", "3"}
    if shutil.which("sha256sum"):
        command = ["sha256sum", "--check", "--strict", "--quiet", manifest.NAME]
        assert subprocess.run(command, cwd=three / "3").returncode == 0


# 43
@pytest.mark.parametrize("rows, columns", [(1, 1), (2, 4), (8, 1)])
def test_a_checkpoint_of_eight_devices_is_exact_on_any_other_mesh(
    three, opened, rows, columns, caplog
):
    caplog.set_level(logging.WARNING, "absl")
    restored(opened(three, read_only=True), 3, abstract(STATE, shardings(rows, columns)))
    assert "not bitwise" not in caplog.text  # the same run says the same mesh
    opened(three, read_only=True).restore(3, LIKE, None, {**META, "devices": {"data": 1}})
    assert "not bitwise those of the other mesh" in caplog.text


# 38, 39
def test_one_flipped_bit_in_any_file_is_named_with_the_last_good_step(folder, opened):
    kept, draw = opened(folder), np.random.default_rng(0)
    files = [path for path in (folder / "3").rglob("*") if path.is_file() and path.stat().st_size]
    assert len(files) > 6
    for path in files:
        good = path.read_bytes()
        for bit in draw.integers(0, 8 * len(good), 2):
            flip(path, int(bit))
            name = "checkpoint 3 is damaged: " + ("" if path.name == manifest.NAME else str(path))
            refuses(kept, name, "the last good step is 2", f"remove {folder / '3'}")
            path.write_bytes(good)
    restored(kept, 3)


def test_a_damaged_step_is_not_the_last_good_one(folder, opened):
    for step in "23":
        flip(max((folder / step).rglob("*"), key=lambda path: path.stat().st_size), 999)
    refuses(opened(folder), "the last good step is None", "use a new workdir")


# 38, 41
def test_a_missing_or_an_extra_file_is_named_and_the_step_before_continues(folder, opened):
    kept = opened(folder)
    for path in [p for p in (folder / "3").rglob("*") if p.is_file() and p.name != manifest.NAME]:
        path.rename(folder / "away")
        refuses(kept, f"{path} is missing", "the last good step is 2")
        (folder / "away").rename(path)
    (folder / "3" / "state" / "more").write_text("")
    refuses(kept, "3/state/more is not in SHA256SUMS", "the last good step is 2")
    shutil.rmtree(folder / "3" / "data")  # 41: the iterator's state
    refuses(kept, "3/data/", "is missing")
    shutil.rmtree(folder / "3")  # as the error says
    kept = opened(folder)
    assert kept.latest() == 2
    restored(kept, 2)


# 40, 52
def test_what_is_no_whole_step_is_ignored_with_a_warning_and_never_in_the_way(
    folder, opened, caplog
):
    caplog.set_level(logging.WARNING, "absl")
    (folder / "999").mkdir()
    (folder / "note.txt").write_text("mine")
    (folder / f"4{TEMPORARY}-7").mkdir()
    (folder / "3" / manifest.NAME).rename(folder / "away")  # killed before it was written
    kept = opened(folder)
    for step in (3, 999):
        assert f"{folder / str(step)} has no SHA256SUMS: incomplete, ignored" in caplog.text
    assert kept.latest() == 2
    restored(kept, 2)
    save(kept, 3, 4, 5)
    assert kept.steps() == [4, 5] and (folder / "999").is_dir()
    assert not [*folder.glob(f"*{TEMPORARY}*")] and (folder / "note.txt").exists()
    assert opened(folder).latest() == 5


@pytest.mark.parametrize(
    "array, words",
    [
        (np.zeros((64, 600), np.float32), "w is float32[64, 512] there, and float32[64, 600] in"),
        (np.zeros((64, 512), np.float16), "w is float32[64, 512] there, and float16[64, 512] in"),
        (None, "w is float32[64, 512] there, and missing in this model"),
    ],
)
def test_an_array_of_another_shape_is_named_with_both(array, words, three, opened):
    like = {"step": LIKE["step"]}
    if array is not None:
        like |= {"w": jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=LIKE["w"].sharding)}
    with pytest.raises(ConfigError) as error:
        opened(three).restore(3, like, None, None)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_reading_changes_nothing(folder, opened):
    (folder / f"4{TEMPORARY}-7").mkdir()  # of the run that is writing there
    before = sorted(folder.rglob("*"))
    with contextlib.closing(Checkpoints(folder, read_only=True)) as kept:
        restored(kept, 3)
    assert sorted(folder.rglob("*")) == before


@pytest.fixture
def disk(tmp_path, request):
    """A folder of 400 kB, where this process may mount one; else files of 50 kB at most."""
    if request.param == "a full disk":
        (tmp_path / "disk").mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(tmp_path / "disk")]
        if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("only root may mount a small disk; files of limited size are tested")
        yield tmp_path / "disk", lambda: None
        subprocess.run(["umount", "--lazy", tmp_path / "disk"], check=True)
    else:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        narrow = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))  # noqa: E731
        yield tmp_path / "disk", narrow
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# 47
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of tensorstore
@pytest.mark.parametrize("disk", ["a full disk", "a limit of files"], indirect=True)
def test_no_space_is_an_error_with_the_bytes_and_the_older_step_is_intact(
    disk, opened, capfd, caplog
):
    folder, narrow = disk
    kept = opened(folder)
    save(kept, 1)
    narrow()
    with pytest.raises(OSError) as found:
        save(kept, 2, 3, 4)
    said = str(found.value)
    step = int(re.findall(r"step (\d) was not saved", said)[0])
    assert re.search(r"it takes about 131,076 bytes, [\d,]+ are free", said), said
    assert f"the last good step is {step - 1}" in said and "\n" not in said and len(said) < 500
    shown = [x for x in caplog.records if x.exc_info and x.name != "asyncio"]  # programs mute that
    assert not shown and "Traceback" not in capfd.readouterr().err
    assert not [*folder.glob(f"*{TEMPORARY}*")] and not (folder / str(step)).exists()
    kept = opened(folder, read_only=True)
    assert kept.latest() == step - 1
    kept.check(step - 1)

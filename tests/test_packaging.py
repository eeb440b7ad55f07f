"""The wheel installs with jax and numpy alone; the lock files pin what the extras ask for."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
import venv
import zipfile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pe_jax

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy")  # jax brings the last three


def has_build_backend() -> bool:
    """Whether the setuptools that the wheel is built with is installed."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built in a copy of it: setuptools writes beside what it reads."""
    folder = tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns(
        *(".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "docs")
    )
    shutil.copytree(ROOT, folder / "source", ignore=skip)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(folder)!r})"
    command, offline = ["-c", build], has_build_backend()
    if not offline:  # pip fetches it from the package index
        command = ["-m", "pip", "wheel", "--no-deps", f"--wheel-dir={folder}", "."]
    source = {"cwd": folder / "source", "capture_output": True, "text": True}
    built = subprocess.run([sys.executable, *command], **source)
    if built.returncode and not offline:
        pytest.skip("no setuptools >= 77 and no package index: install the extra `test`")
    assert not built.returncode, built.stderr[-2000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """The Python of an environment of the wheel, jax and numpy with what these two import."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder, with_pip=False)
    (site,) = folder.glob("**/site-packages")
    for name in CORE:
        distribution = importlib.metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or ()} - {".."}:
            (site / top).symlink_to(pathlib.Path(str(distribution.locate_file(top))))
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    return folder / "bin" / "python"


def test_the_wheel_holds_pe_jax_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    version = pe_jax.__version__
    assert {name.partition("/")[0] for name in names} == {"pe_jax", f"pe_jax-{version}.dist-info"}
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("pe_jax/**/*.py")}
    others = {"pe_jax/py.typed", "pe_jax/engines/kernels/gpu/launches.json"}
    others |= {"pe_jax/hf/types.toml", "pe_jax/hf/harmless_keys.txt"}
    others |= {"pe_jax/released/families.toml"}
    assert {name for name in names if name.startswith("pe_jax/")} == modules | others


def test_the_core_runs_where_there_is_only_jax_and_numpy(core, tmp_path):
    show = """
        import importlib.metadata, importlib.util, sys
        import jax, numpy as np, pe_jax
        late = set(pe_jax.__all__) - vars(pe_jax).keys() - {"adapters", "linen", "nnx"}
        assert all(map(pe_jax.__getattr__, late)), late  # whatever else is imported
        import pe_jax.encodings
        from pe_jax.encodings import alibi, rope, sinusoidal, t5
        for name in ("flax", "optax", "absl", "etils", "matplotlib", "experiments"):
            assert importlib.util.find_spec(name) is None, name
        assert pe_jax.__file__.startswith(sys.prefix), pe_jax.__file__
        assert importlib.metadata.version("pe_jax") == pe_jax.__version__
        q, k, v = jax.random.normal(jax.random.key(0), (3, 1, 300, 4, 8))
        assert rope.rotate(q, np.arange(300), rope.frequencies(8)).shape == q.shape
        assert len(alibi.slopes(8)) == 8 and sinusoidal.sinusoid(range(3), 8).shape == (3, 8)
        assert list(t5.bucket(np.array([0, 7]))) == [0, 7]
        dims = pe_jax.Dims(width=32, heads=4, kv_heads=4, head_dim=8)
        for name in pe_jax.ENCODINGS:
            jax.eval_shape(lambda key: pe_jax.make(name).init(key, dims), jax.random.key(1))
        for spec in ("nope", "rope", "t5+alibi"):
            (encoding,) = pe_jax.parse(spec)
            params = encoding.init(jax.random.key(1), dims)
            given = {"encoding": encoding, "params": params, "dims": dims}
            dense, tiled = (
                pe_jax.attention(q, k, v, **given, implementation=engine)
                for engine in ("dense", "tiled")
            )
            np.testing.assert_allclose(dense, tiled, atol=1e-5)
        assert "scipy" not in sys.modules  # slow to import, and needed for eigenvalues alone
    """
    run_in(core, textwrap.dedent(show), tmp_path)


def run_in(python, code: str, folder) -> None:
    """Runs code outside this checkout."""
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    ran = subprocess.run(
        [python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert not ran.returncode, ran.stderr[-2000:]


def test_pages_for_borrowers_run_where_there_is_only_jax_and_numpy(core, tmp_path):
    pages = [(ROOT / page).read_text("utf-8") for page in ("README.md", "docs/borrow.md")]
    found = [re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in pages]
    blocks = [[x for x in page if "flax" not in x] for page in found]  # others: test_readme.py
    assert all("pe_jax.attention(" in "".join(page) for page in blocks)
    each_alone = [f"exec({x!r}, {{'__name__': '__main__'}})" for page in blocks for x in page]
    run_in(core, "\n".join(each_alone), tmp_path)


def test_the_core_asks_for_jax_and_numpy_and_extras_pin_nothing(wheel):
    asked = [Requirement(line) for line in PROJECT["dependencies"]]
    assert {requirement.name for requirement in asked} == {"jax", "numpy"}
    extras = PROJECT["optional-dependencies"]
    asked += [Requirement(line) for lines in extras.values() for line in lines]
    bounds = [(r.name, bound) for r in asked for bound in r.specifier]
    caps = {name: str(bound) for name, bound in bounds if bound.operator != ">="}
    assert caps == {"orbax-checkpoint": "<1", "pytest": "<9.2"}  # versions that break something
    assert {name for r in asked if r.name == "pe_jax" for name in r.extras} <= set(extras)


def read_lock(name: str) -> dict[str, set[str]]:
    """Package → the lines of a lock file that pin it: several where Pythons differ."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pins: dict[str, set[str]] = {}
    for line in lines:
        if not line.startswith("#"):
            pins.setdefault(canonicalize_name(line.partition("==")[0]), set()).add(line)
    return pins


def requirements(*extras: str) -> list[Requirement]:
    """What the core and these extras ask for, with the extras that they name."""
    asked = [Requirement(line) for line in PROJECT["dependencies"]]
    for extra in extras:
        for line in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(line)
            itself = requirement.name == "pe_jax"
            asked += requirements(*requirement.extras) if itself else [requirement]
    return asked


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements.txt", ("experiments",)),
        ("constraints.txt", ("docs", "browser", "oracles", "tpu", "cuda", "gcs")),
    ],
)
def test_a_lock_pins_what_the_extras_ask_within_their_ranges(lock, extras):
    pins = read_lock(lock)
    for requirement in requirements(*extras):
        for line in pins[canonicalize_name(requirement.name)]:  # else: make lock
            (pin,) = Requirement(line).specifier
            assert pin.operator == "==" and pin.version in requirement.specifier, line


def test_every_line_of_a_lock_is_one_exact_version():
    for name in ("requirements.txt", "constraints.txt"):
        for lines in read_lock(name).values():
            assert all(re.fullmatch(r"[\w.-]+==[\w.]+( ; .+)?", line) for line in lines), lines


def test_constraints_are_the_lock_and_more():
    lock, constraints = read_lock("requirements.txt"), read_lock("constraints.txt")
    assert lock.items() <= constraints.items()
    assert {"jax", "jaxlib", "flax", "numpy"} <= lock.keys()
    assert not lock.keys() & {"torch", "pytest", "libtpu"}


def test_every_file_that_states_the_version_states_the_same():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [pe_jax.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", changes, re.MULTILINE)[0] == pe_jax.__version__


def test_ci_and_pre_commit_call_targets_of_the_makefile():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert {"make quick", "make test", "make gpu"} <= set(steps)
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    for command in [*steps, *(hook["entry"] for hook in hooks)]:
        program, target = command.split()
        assert program == "make" and target in targets, command
    assert jobs["test"]["strategy"]["matrix"]["python"][0] == PROJECT["requires-python"][2:]

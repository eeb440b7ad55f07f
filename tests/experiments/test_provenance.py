"""What results say about the code that made them."""

import re
import shutil
import subprocess

import jax
import pytest

from experiments.running.files import provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_code_makes_a_commit_dirty_and_results_do_not(tmp_path, monkeypatch):
    def git(*args: str) -> None:
        me = ["-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *me, *args], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        provenance.commit.cache_clear()

    git("init")
    write("pe_jax/scheme.py", "")
    assert provenance.commit(tmp_path) == "not a git checkout"  # nothing is committed
    write("results/manifest.json", "{}")
    git("add", ".")
    git("commit", "-m", "all")
    write("results/manifest.json", "[]")  # tracked
    write("elsewhere/manifest.json", "{}")  # not tracked
    write("configs/mine.py", "")
    clean = provenance.commit(tmp_path)
    assert clean.isalnum()
    provenance.commit.cache_clear()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")  # a mount in a container
    assert provenance.commit(tmp_path) == clean
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    states = []
    for name, text in (("new", ""), ("new", "x = 1"), ("scheme", "y = 2"), ("scheme", "y = 3")):
        write(f"pe_jax/{name}.py", text)
        states.append(provenance.commit(tmp_path))
        assert re.fullmatch(rf"{clean}-dirty-[0-9a-f]{{8}}", states[-1])
    assert len({*states}) == 4  # two changes are two codes
    (tmp_path / "pe_jax" / "new.py").unlink()
    write("pe_jax/scheme.py", "")
    assert provenance.commit(tmp_path) == clean
    provenance.commit.cache_clear()


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_repository_around_a_download_is_not_its_own(tmp_path, monkeypatch):
    download = tmp_path / "theirs" / "pe_jax-main"
    (download / "pe_jax").mkdir(parents=True)
    me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    git = ["git", *me, "-C", str(tmp_path / "theirs")]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True)
    provenance.commit.cache_clear()
    assert provenance.commit(download) == "not a git checkout"
    ours = provenance.commit()
    provenance.commit.cache_clear()
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "theirs" / ".git"))  # as in a hook
    assert provenance.commit() == ours
    provenance.commit.cache_clear()


def test_what_measures_says_where_it_ran_and_what_is_not_installed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["program", "--name=a b"])
    about = provenance.about("tools.program", ("jax", "no-such-package"))
    assert about["command"] == "python -m tools.program '--name=a b'"
    assert about["versions"]["jax"] == jax.__version__ and "python" in about["versions"]
    assert about["versions"]["no-such-package"] == "not installed"
    assert "cpu" in about["device"] and about["processor"].endswith("cores")

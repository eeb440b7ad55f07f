"""What results say about the code that made them."""

import shutil
import subprocess

import pytest

from experiments.running import provenance


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_code_makes_a_commit_dirty_and_results_do_not(tmp_path):
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
    write("pe_jax/new.py", "")
    assert provenance.commit(tmp_path) == f"{clean}-dirty"
    (tmp_path / "pe_jax" / "new.py").unlink()
    write("pe_jax/scheme.py", "changed = True")
    assert provenance.commit(tmp_path) == f"{clean}-dirty"
    provenance.commit.cache_clear()

"""What goes with a release: the files parse, and say the same as the package."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_release_workflow_tests_before_it_publishes() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = re.findall(r"^  (\w+):$", text, re.MULTILINE)
    assert [j for j in jobs if j in ("test", "build", "publish")] == ["test", "build", "publish"]
    assert [words for words in ("needs: test", "needs: build", "bash .ci/run") if words not in text] == []


def test_the_citation_has_what_it_must() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    keys = {line.split(":")[0] for line in lines if line and not line.startswith((" ", "-"))}
    assert {"cff-version", "message", "title", "authors", "license"} <= keys
    licence = re.search(r'license = "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    assert licence is not None
    assert f"license: {licence[1]}" in lines


def test_the_slurm_script_is_sound_and_wants_a_folder(tmp_path: Path) -> None:
    script = ROOT / "deploy" / "profile.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "usage: sbatch" in done.stderr


def test_the_container_recipe_installs_an_extra_that_exists() -> None:
    text = (ROOT / "deploy" / "Containerfile").read_text()
    extras = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert {"cuda12", "cuda13", "fast"} <= extras
    assert [words for words in ("ARG EXTRA=cuda13", '".[${EXTRA},fast]"', 'ENTRYPOINT ["xstage"]') if words not in text] == []

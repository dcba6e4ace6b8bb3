"""What the pages tell a reader to type exists: each `xstage` command and option, schedule file, probe, figure and Python name."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import xstage_bench
from xstage_bench.cli import xstage
from xstage_bench.cli.group import OLDER

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FINDINGS = sorted((ROOT / "results").glob("**/README.md"))
#: Words that stand for the reader's own, where a verb or name would be.
ANY = {"VERB", "NAME"}
#: From here on a line is prose beside the command, or another program's.
ENDS = re.compile(r"\s{2,}|\s#|\s[|>]\s|\s\.\.\.")


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind `xstage` of each command, in blocks, after a prompt, and in `code`."""
    for block in re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"(?:\$ )?(?:srun |mpirun [^x]*)?xstage ((?=[a-z])[^\n]*)", line):
                yield shlex.split(ENDS.split(found[1])[0])
    for code in re.findall(r"`xstage ((?=[a-z])[^`\n]*)`", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)):
        yield shlex.split(ENDS.split(code)[0])


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.S | re.M)
    return [text for name, text in found if name == language]


@pytest.mark.parametrize("page", [*PAGES, *FINDINGS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_is_known(page: Path) -> None:
    for words in commands(page.read_text()):
        command: click.Command = xstage
        rest = [*OLDER.get(words[0], words[:1]), *words[1:]]
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-") and rest[0] not in ANY:
            name = rest.pop(0)
            with click.Context(command) as ctx:
                found = command.get_command(ctx, name)
            assert found is not None, f"no verb {name!r}: xstage {' '.join(words)}"
            command = found
        if isinstance(command, click.Group):
            continue
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
        asked = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert asked <= known, f"xstage {' '.join(words)}: no {asked - known}"


def test_the_schedules_of_the_page_are_read_alike_from_both_forms(tmp_path: Path) -> None:
    several, tasks, _ = blocks("measure.md", "json")
    (tmp_path / "s.json").write_text(several)
    (tmp_path / "s.csv").write_text(blocks("measure.md", "csv")[0])
    first, second = (xstage_bench.load_schedules(tmp_path / name) for name in ("s.json", "s.csv"))
    assert [s.key() for s in first] == [s.key() for s in second]
    assert '"waits_for": [-1, 0, -1, 0]' in tasks


def test_what_an_error_of_the_page_says_is_said(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("measure.md", "text") if "is not a multiple" in block]
    wrong = tmp_path / "bursts.csv"
    wrong.write_text(blocks("measure.md", "csv")[0].replace("65536", "65537"))
    with pytest.raises(Exception, match="not a multiple") as raised:
        xstage_bench.load_schedules(wrong)
    said = str(raised.value).replace(f"{tmp_path}/", "")
    assert f"xstage: {said}" in text


def test_the_probes_and_figures_of_the_page_exist() -> None:
    page = (ROOT / "docs" / "measure.md").read_text()
    listed = next(block for block in blocks("measure.md", "text") if "xstage probes" in block)
    probes = re.findall(r"^(\w+) +(?:fitted|held out) ", listed, re.M) + re.findall(
        r"`(\w+)`", page.split("Others are asked for by name:")[1].split(".")[0]
    )
    assert len(probes) > 15
    for name in probes:
        assert (ROOT / "probes" / f"{name}.py").exists(), name
    figures = re.findall(r"`(\w+)`", page.split("says below how to read it: ")[1].split(".")[0])
    assert sorted(figures) == sorted(path.stem for path in (ROOT / "analysis").glob("[!_]*.py"))


def test_the_names_that_the_pages_use_from_python_are_public() -> None:
    for page in PAGES:
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M):
            for alias in re.findall(r"^import xstage_bench as (\w+)", code, re.M):
                assert set(re.findall(rf"\b{alias}\.(\w+)", code)) <= set(xstage_bench.__all__), page.name

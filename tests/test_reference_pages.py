"""The pages that are made from the code are those of this code, and hold what they must."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import reference_pages

import xstage_bench
from xstage_bench.cli import xstage
from xstage_bench.record.columns import PRODUCERS, SAMPLES, TRACES
from xstage_bench.show.schemas import schemas

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return reference_pages.pages()


@pytest.mark.parametrize("name", ["cli.md", "files.md", "api.md"])
def test_the_committed_page_is_what_is_made(made: dict[str, str], name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == made[name], f"docs/{name} is out of date: make reference"
    assert [n for n in xstage_bench.__all__ if f"`{n}" not in made["api.md"] or not getattr(xstage_bench, n).__doc__] == []


def leaves(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    with click.Context(group, info_name=path) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from leaves(command, f"{path} {name}")
            elif not (command.hidden or command.deprecated):
                yield f"{path} {name}", command


def test_every_option_of_every_verb_is_there(made: dict[str, str]) -> None:
    """An option stands in its verb's section: with its meaning, or named as one of those that several verbs share."""
    page = made["cli.md"]
    everywhere = page.partition("Options that several verbs share")[2].partition("\n## ")[0]
    seen = 0
    for path, command in leaves(xstage, "xstage"):
        section = page.partition(f"\n## {path}\n")[2].partition("\n## ")[0]
        assert section, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                seen += 1
                assert f"`{parameter.opts[0]}" in section + everywhere, (path, parameter.opts)
    assert seen > 100


def test_every_column_and_key_is_there(made: dict[str, str]) -> None:
    page = made["files.md"]
    for column in (*SAMPLES, *PRODUCERS, *TRACES):
        assert f"`{column.name}`" in page
        assert f"`{column.name}` {column.type}{'?' * column.null}: " in page or column.name in {c.name for c in SAMPLES + PRODUCERS}
    for name, schema in schemas().items():
        title = str(schema["$ref"]).rpartition("/")[2]
        section = page.partition(f"\n### {name}")[2].partition("\n### ")[0]
        if name not in (*reference_pages.WRITTEN_BY_HAND, *reference_pages.ONLY_SCHEMA):
            assert all(f"`{key}`" in section for key in schema["$defs"][title]["properties"]), name


def test_the_examples_are_files_that_are_read(made: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:json)?\n(.*?)```", made["files.md"], re.S)
    (bursts,) = (block for block in blocks if block.startswith("{") and "bursts" in json.loads(block))
    (tasks,) = (block for block in blocks if block.startswith("{") and "tasks" in json.loads(block))
    (table,) = (block for block in blocks if block.startswith("schedule,"))
    for text in (bursts, table, tasks):
        path = tmp_path / "file"
        path.write_text(text)
        (found,) = xstage_bench.load_schedules(path)
        assert found.producer_count in (2, 132)


def anchors(text: str) -> set[str]:
    return {re.sub(r"[^\w -]", "", h.strip().lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text, re.M)}


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_every_link_of_a_page_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.exists(), f"{path.name}: {link}"
            if anchor and target.suffix == ".md":
                assert anchor in anchors(target.read_text(encoding="utf-8")), f"{path.name}: {link}"

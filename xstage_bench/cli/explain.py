"""``xstage explain``: what a column, key or warning means."""

from __future__ import annotations

from typing import Any

import click

from xstage_bench.cli.options import common
from xstage_bench.cli.output import Output
from xstage_bench.errors import UsageError


@click.command("explain", short_help="Say what a column or warning means.")
@click.argument("word", required=False)
@click.option("--schema", metavar="NAME", help="Instead: the JSON Schema of NAME.json, for example model, survey, manifest.")
@common
def command(out: Output, word: str | None, schema: str | None) -> int:
    """Say what WORD means: a column of a file or table, a key of a document, a word of a warning. Without WORD: all of them."""
    if schema is not None:
        return _schema(out, schema)
    from xstage_bench.show.explain import SECTIONS, explain, formula_of, glossary

    found = list(glossary()) if word is None else explain(word)
    lines: list[str] = []
    for section in SECTIONS:
        mine = [e for e in found if e.section == section]
        if mine and word is None:
            lines += [*([""] if lines else []), f"{section}:"]
        lines += [f"{e.word}: {e.meaning}" for e in mine]
    document: dict[str, Any] = {"entries": [{"word": e.word, "section": e.section, "meaning": e.meaning} for e in found]}
    how = None if word is None else formula_of(found[0].word)
    if how is not None:
        lines += [f"  formula: {how.formula}", *([f"  usual: {how.usual}"] if how.usual else []), f"  page: {how.page}"]
        document |= {"formula": how.formula, "usual": how.usual, "page": how.page}
    out.result(document, "\n".join(lines))
    return 0


def _schema(out: Output, name: str) -> int:
    from xstage_bench.io.json_file import encode_json
    from xstage_bench.show.schemas import schemas

    known = schemas()
    if name not in known:
        raise UsageError(f"no document is called '{name}'", f"one of: {', '.join(known)}")
    out.raw(encode_json(known[name]))
    return 0

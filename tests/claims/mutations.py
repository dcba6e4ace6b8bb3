"""Single mutations of a source file: where they can be made, and the text that each leaves."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Mod: ast.FloorDiv,
}  # fmt: skip
TYPES = ("NDArray", "Literal", "Callable", "Annotated", "dict", "tuple")
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "median": "mean", "mean": "median", "nanmedian": "nanmax",
    "any": "all", "all": "any", "first": "last", "last": "first", "argmin": "argmax", "argmax": "argmin", "issubset": "issuperset",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of one expression or statement of a file below xstage_bench/; `where` is the function or class, dotted."""

    file: str
    where: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it whatever line it stands on."""
        return self.file, self.where, f"{self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """The file's text with this mutation."""
        data = text.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.where or 'module'}): {self.old} -> {self.new}"


def mutations(file: str, text: str) -> list[Mutation]:
    """Every mutation of one file, in the order of its text."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    out = []
    for where, node, changed in _sites(ast.parse(text)):
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        old, new = text.encode()[begin:end].decode(), changed if isinstance(changed, str) else f"({ast.unparse(changed)})"
        if isinstance(changed, ast.Constant | ast.Name | ast.Attribute | ast.Tuple | ast.List):
            new = ast.unparse(changed)
        out.append(Mutation(file, where, node.lineno, begin, end, " ".join(old.split()), new))
    return sorted(out, key=lambda m: (m.begin, m.end, m.new))


def _sites(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | str]]:
    """Every place, and what it becomes. Annotations, decorators, messages and what only a type checker reads are left alone."""

    def visit(node: ast.AST, where: str) -> Iterator[tuple[str, ast.expr | ast.stmt, ast.expr | str]]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            where = f"{where}.{node.name}".lstrip(".")
            for part in (*node.body, *((node.args,) if isinstance(node, ast.FunctionDef) else ())):
                yield from visit(part, where)
            return
        if isinstance(node, ast.arguments):
            for default in (*node.defaults, *(d for d in node.kw_defaults if d is not None)):
                yield from visit(default, where)
            return
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom) or _typing_only(node):
            return
        if isinstance(node, ast.Raise | ast.Assert):
            yield where, node, "pass"
            return
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                return
            if isinstance(node.value, ast.Call):
                yield where, node, "pass"
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                yield from visit(node.value, where)
            return
        if isinstance(node, ast.expr):
            yield from ((where, node, changed) for changed in _changes(node))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, where)

    for statement in tree.body:
        yield from visit(statement, "")


def _typing_only(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        return isinstance(node.value.value, ast.Name) and node.value.value.id in TYPES
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("cast", "print"):
        return True
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _changes(node: ast.expr) -> Iterator[ast.expr]:
    """What one expression can become."""

    def changed(change: Callable[[ast.expr], None]) -> ast.expr:
        new = copy.deepcopy(node)
        change(new)
        return new

    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield changed(lambda n: n.ops.__setitem__(0, COMPARISONS[type(n.ops[0])]()))  # type: ignore[attr-defined]
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield changed(lambda n: setattr(n, "op", ARITHMETIC[type(n.op)]()))  # type: ignore[attr-defined]
    elif isinstance(node, ast.BoolOp):
        yield changed(lambda n: setattr(n, "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield changed(lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), node.test)))
    elif isinstance(node, ast.Attribute) and node.attr in NAMES and isinstance(node.ctx, ast.Load):
        yield changed(lambda n: setattr(n, "attr", NAMES[node.attr]))
    elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
        yield ast.Name(NAMES[node.id])
    elif isinstance(node, ast.Tuple | ast.List) and isinstance(node.ctx, ast.Load) and len(node.elts) >= 3:
        if all(isinstance(e, ast.Constant) and isinstance(e.value, str) for e in node.elts):
            for i in range(len(node.elts)):
                yield changed(lambda n, i=i: n.elts.pop(i))  # type: ignore[attr-defined,misc]
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield ast.Constant(not node.value)
        elif isinstance(node.value, int):
            yield ast.Constant(node.value + 1)
        elif isinstance(node.value, float):
            yield ast.Constant(node.value * 2 if node.value else 1.0)

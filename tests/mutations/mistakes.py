"""Makes one-line mistakes of the usual kinds in Python source: operators, bounds, constants, swapped and wrong names, a missing
factor, a removed statement, an inverted condition."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import random
import re
from collections.abc import Iterator, Sequence

OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
SAID = ("UserError", "error", "print", "say", "info", "warning", "note", "add_argument", "update", "debug")
"""Calls whose arguments are for people: changes to their words are not mistakes of the program."""
LOOKS = ("figsize", "fontsize", "fontweight", "labelcolor", "linestyle", "linewidth", "markersize", "zorder")
"""Arguments of matplotlib that change the look of a figure, not what it shows."""
SYMMETRIC = ("min", "max", "minimum", "maximum", "gcd", "suppress")
"""Calls that return the same with their arguments swapped."""


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A mistake: `new` replaces the text `old` at a line of a file."""

    file: str
    line: int
    """The line, from 1, at which the search for the text starts."""
    old: str
    new: str
    kind: str = ""

    def made(self, source: str) -> str:
        """Returns `source` with the mistake. Raises LookupError if the line does not contain `old`."""
        lines = source.split("\n")
        place = sum(len(line) + 1 for line in lines[: self.line - 1])
        found = source.find(self.old, place)
        if found < 0:
            raise LookupError(f"{self.file}, line {self.line}: there is no {self.old!r}")
        return source[:found] + self.new + source[found + len(self.old) :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {_flat(self.old)}  ->  {_flat(self.new) or '(nothing)'}"


@dataclasses.dataclass(frozen=True)
class _Change:
    start: int
    end: int
    new: str
    kind: str


def mistakes(file: str, source: str) -> list[Mistake]:
    """Returns every known kind of mistake that can be made in `source`. A few of them make it invalid Python."""
    tree = ast.parse(source)
    lines = source.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    found = []
    for change in _changes(tree, _Text(source, starts, lines)):
        line = source.count("\n", 0, change.start) + 1
        end = source.find("\n", change.end)
        end = len(source) if end < 0 else end
        begin = starts[line - 1]
        old = source[begin:end]
        new = source[begin : change.start] + change.new + source[change.end : end]
        mistake = Mistake(file, line, old, new, change.kind)
        if old != new:
            found.append(mistake)
    return found


def sample(sources: dict[str, str], count: int, seed: int) -> list[Mistake]:
    """Returns `count` of the mistakes that can be made in `sources` (path -> text), drawn by `seed`: first a line, all with equal
    probability, then one of its mistakes. Nobody chooses them."""
    by_line: dict[tuple[str, int], list[Mistake]] = {}
    for file in sorted(sources):
        for mistake in mistakes(file, sources[file]):
            by_line.setdefault((file, mistake.line), []).append(mistake)
    rng = random.Random(seed)
    places = sorted(by_line)
    rng.shuffle(places)
    drawn = (rng.choice(by_line[place]) for place in places)
    # Only drawn mistakes are parsed, since parsing a file for each of its mistakes takes five minutes.
    return list(itertools.islice((mistake for mistake in drawn if _is_python(mistake.made(sources[mistake.file]))), count))


# --------------------------------------------------------------------------------------------------------------- where they are
@dataclasses.dataclass(frozen=True)
class _Text:
    source: str
    starts: Sequence[int]
    lines: Sequence[str]

    def at(self, line: int, column: int) -> int:
        """Returns the position of a node's line (from 1) and column (in bytes)."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno
        assert node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]


def _changes(tree: ast.AST, text: _Text) -> Iterator[_Change]:
    for node, names in _reasonable(tree, ()):
        yield from _changes_of(node, text, names)


def _reasonable(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Yields every node below `node` whose change alters what the program does, not only its texts or types, and the arguments
    of the function that contains the node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":  # an import for annotations alone
            continue
        if isinstance(child, ast.keyword) and child.arg in ("strict", *LOOKS):  # zip's check never fails in a correct program
            continue
        if isinstance(child, ast.Raise) or (isinstance(child, ast.Call) and _called(child) in SAID):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = tuple(a.arg for a in [*child.args.args, *child.args.kwonlyargs] if a.arg != "self")
            defaults = [d for d in [*child.args.defaults, *child.args.kw_defaults] if d is not None]
            for part in [*defaults, *child.body]:
                holder = ast.Module(
                    body=[part if isinstance(part, ast.stmt) else ast.copy_location(ast.Expr(part), part)], type_ignores=[]
                )
                yield from _reasonable(holder, inner)
            continue
        if isinstance(child, ast.ClassDef):  # without its decorators: whether a dataclass is frozen does not change what it does
            yield from _reasonable(ast.Module(body=child.body, type_ignores=[]), names)
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield child.value, names
                yield from _reasonable(child.value, names)
            continue
        yield child, names
        yield from _reasonable(child, names)


def _changes_of(node: ast.AST, text: _Text, names: tuple[str, ...]) -> Iterator[_Change]:
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = text.span(node.left), text.span(node.right)
        between = text.source[left[1] : right[0]]
        operator = between.strip(" ()\n")
        if (operator and not isinstance(node.left, ast.Constant | ast.JoinedStr)) or not isinstance(
            getattr(node.left, "value", 0), str
        ):
            place = left[1] + between.find(operator)
            yield _Change(place, place + len(operator), OPERATORS[type(node.op)], "operator")
        if isinstance(node.op, ast.Mult | ast.Div):
            whole = text.span(node)
            yield _Change(*whole, text.of(node.left), "factor dropped")
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        left, right = text.span(node.left), text.span(node.comparators[0])
        between = text.source[left[1] : right[0]]
        operator = between.strip(" ()\n")
        place = left[1] + between.find(operator)
        yield _Change(place, place + len(operator), COMPARISONS[type(node.ops[0])], "comparison")
    elif isinstance(node, ast.BoolOp):
        first, second = text.span(node.values[0]), text.span(node.values[1])
        between = text.source[first[1] : second[0]]
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        found = re.search(rf"(?m)^[^#\n]*?\b({old})\b", between)  # not a word of a comment
        if found and len(node.values) == 2:
            yield _Change(first[1] + found.start(1), first[1] + found.end(1), new, "and for or")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield _Change(*text.span(node), text.of(node.operand), "sign or negation dropped")
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield _Change(*text.span(node), str(not node.value), "constant")
        elif isinstance(node.value, int):
            yield _Change(*text.span(node), str(node.value + 1), "constant")
        elif isinstance(node.value, float):
            yield _Change(*text.span(node), repr(node.value * 2 if node.value else 1.0), "constant")
    elif isinstance(node, ast.Call):
        simple = [a for a in node.args if isinstance(a, ast.Name | ast.Attribute)]
        if len(node.args) >= 2 and node.args[:2] == simple[:2] and _called(node) not in SYMMETRIC:
            (start, middle), (other, end) = text.span(node.args[0]), text.span(node.args[1])
            swapped = text.of(node.args[1]) + text.source[middle:other] + text.of(node.args[0])
            yield _Change(start, end, swapped, "arguments swapped")
        for argument in [*node.args, *(k.value for k in node.keywords)]:
            if isinstance(argument, ast.Name) and argument.id in names and len(names) > 1:
                wrong = names[(names.index(argument.id) + 1) % len(names)]
                yield _Change(*text.span(argument), wrong, "wrong name")
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        yield _Change(*text.span(node.test), f"not ({text.of(node.test)})", "condition turned round")
    elif isinstance(node, ast.AugAssign) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) not in SAID
    ):
        yield _Change(*text.span(node), "pass", "statement removed")


def _called(call: ast.Call) -> str:
    """Returns the last part of the name of a called function."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def _flat(text: str) -> str:
    return " ".join(text.split())

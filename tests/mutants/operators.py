"""All small changes of a module's code that its tests should notice, as edits of its text.

boundary, comparison    `<` and `<=`, `>` and `>=`; `<` and `>=`, `==` and `!=`, `is` and `is not`,
                        `in` and `not in`
boolean, operand        `and` and `or`; one of their operands left out
condition               the condition of an if, a while, a conditional expression or a comprehension
                        negated; `not` and `-` left out
arithmetic              `+` and `-`, `*` and `//`, `|` and `&`, `<<` and `>>`; one side of `|` left
                        out
constant                an integer one more and one less; True and False
return                  what is returned: the empty value of its annotated type, or None
statement               a call, a raise, a yield, an assignment into something, an augmented one, a
                        break or continue left out
function                its opposite called: min and max, any and all, startswith and endswith, ...
element                 one element of a tuple, list, set or dict left out; one argument that is
                        given by name

Nothing is changed in what only people or tools read: strings and f-strings, what is raised,
assertions, annotations, aliases of types, decorators, overloads, `__slots__`, and what stands under
TYPE_CHECKING.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

OPPOSITES = dict(
    pair
    for one, other in (
        *(
            ("min", "max"),
            ("any", "all"),
            ("startswith", "endswith"),
            ("issubset", "issuperset"),
            ("union", "intersection"),
        ),
        *(
            ("lstrip", "rstrip"),
            ("partition", "rpartition"),
            ("find", "rfind"),
            ("bisect_left", "bisect_right"),
            ("add", "discard"),
        ),
    )
    for pair in ((one, other), (other, one))
)
BOUNDARY = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
COMPARISON = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="} | {
    one: other for pair in (("is", "is not"), ("in", "not in")) for one, other in (pair, pair[::-1])
}
ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "//",
    "/": "*",
    "//": "*",
    "%": "//",
    "**": "*",
    "<<": ">>",
    ">>": "<<",
} | {
    "|": "&",
    "&": "|",
    "^": "&",
}
EMPTY = {"Mapping": "{}", "Iterable": "()", "Iterator": "iter(())", "Sequence": "()"} | {
    name: f"{name}()"
    for name in (
        "bool",
        "bytes",
        "dict",
        "float",
        "frozenset",
        "int",
        "list",
        "set",
        "str",
        "tuple",
    )
}
# Without its value a statement of these does nothing, or what it did before.
REMOVABLE = (ast.AugAssign, ast.Break, ast.Continue, ast.Delete, ast.Raise)
UNREAD = ("annotation", "returns", "decorator_list")
_COMPARED = re.compile(r"not\s+in\b|is\s+not\b|in\b|is\b|[<>=!]=|[<>]")
_CALCULATED = re.compile(r"\*\*|//|<<|>>|[-+*/%|&^]")
_BOTH = re.compile(r"\b(and|or)\b")
_TYPE_NAME = re.compile(r"_?[A-Z]([A-Z]*[a-z]\w*)?")


class Edit(NamedTuple):
    """`new` in place of the bytes from `start` to `end`."""

    start: int
    end: int
    new: str
    operator: str


def edits(text: str) -> list[Edit]:
    """Every edit of a module, in the order of the text, each once. Some, seldom, make no Python of
    it: see `apply`.
    """
    found = {(edit.start, edit.end, edit.new): edit for edit in _Reader(text).module()}
    return [found[place] for place in sorted(found)]


def apply(text: str, edit: Edit) -> str | None:
    """The module with the edit; None where that is no Python, or means the same."""
    raw = text.encode()
    changed = (raw[: edit.start] + edit.new.encode() + raw[edit.end :]).decode()
    try:
        return changed if ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text)) else None
    except SyntaxError:
        return None


class _Reader:
    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.raw = text.encode()
        self.lines = [0]
        for line in self.raw.splitlines(keepends=True):
            self.lines.append(self.lines[-1] + len(line))

    def module(self) -> Iterator[Edit]:
        for statement in self.tree.body:
            if not _names_a_type(statement):
                yield from self.walk(statement, self.tree, "None")

    def walk(self, node: ast.AST, parent: ast.AST, empty: str) -> Iterator[Edit]:
        """The edits of a node and of all below it; `empty` is what its function returns when it has
        nothing to say.
        """
        if isinstance(node, ast.FunctionDef):
            if any(
                ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list
            ):
                return
            empty = _empty(node.returns)
        yield from self.of(node, parent, empty)
        if isinstance(node, (ast.Assert, ast.JoinedStr, ast.Raise)) or _is_for_tools(node):
            return
        if isinstance(node, ast.If) and _is_for_types(node.test):
            return
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and name not in UNREAD:
                    yield from self.walk(child, node, empty)

    def of(self, node: ast.AST, parent: ast.AST, empty: str) -> Iterator[Edit]:
        """The edits of a node itself."""
        yield from getattr(self, f"_{type(node).__name__.lower()}", lambda _: ())(node)
        yield from self.removed(node)
        if (
            isinstance(node, ast.Return)
            and node.value is not None
            and not isinstance(node.value, ast.Constant)
        ):
            yield self.instead(node.value, empty, "return")
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)) and not _is_unpacked(node, parent):
            yield from self.shorter(node)

    def _compare(self, node: ast.Compare) -> Iterator[Edit]:
        for left, right in pairwise([node.left, *node.comparators]):
            yield from self.between(
                left, right, _COMPARED, boundary=BOUNDARY, comparison=COMPARISON
            )

    def _boolop(self, node: ast.BoolOp) -> Iterator[Edit]:
        for left, right in pairwise(node.values):
            yield from self.between(left, right, _BOTH, boolean={"and": "or", "or": "and"})
        for place, value in enumerate(node.values):
            if len(node.values) == 2:
                yield self.instead(node, f"({ast.unparse(node.values[1 - place])})", "operand")
            else:
                yield self.instead(value, str(isinstance(node.op, ast.And)), "operand")

    def _unaryop(self, node: ast.UnaryOp) -> Iterator[Edit]:
        if sign := {ast.Not: "not ", ast.USub: "-"}.get(type(node.op)):
            yield Edit(self.start(node), self.start(node) + len(sign), "", "condition")

    def _binop(self, node: ast.BinOp) -> Iterator[Edit]:
        if not _is_text(node.left) and not _is_text(node.right):
            yield from self.between(node.left, node.right, _CALCULATED, arithmetic=ARITHMETIC)
        if isinstance(node.op, ast.BitOr):
            yield self.instead(node, f"({ast.unparse(node.left)})", "arithmetic")
            yield self.instead(node, f"({ast.unparse(node.right)})", "arithmetic")

    def _augassign(self, node: ast.AugAssign) -> Iterator[Edit]:
        yield from self.between(node.target, node.value, _CALCULATED, arithmetic=ARITHMETIC)

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        if isinstance(node.value, bool):
            yield self.instead(node, str(not node.value), "constant")
        elif isinstance(node.value, int):
            yield self.instead(node, str(node.value + 1), "constant")
            yield self.instead(node, str(node.value - 1), "constant")

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        arguments = sorted([*node.args, *node.keywords], key=self.start)
        for place, argument in enumerate(arguments):
            if isinstance(argument, ast.keyword) and argument.arg is not None:
                yield self.without(place, [(one, one) for one in arguments])
        name = (
            node.func.id
            if isinstance(node.func, ast.Name)
            else node.func.attr
            if isinstance(node.func, ast.Attribute)
            else ""
        )
        if name in OPPOSITES:
            end = self.end(node.func)
            yield Edit(end - len(name), end, OPPOSITES[name], "function")

    def _dict(self, node: ast.Dict) -> Iterator[Edit]:
        if None not in node.keys and len(node.keys) > 1:
            yield from (
                self.without(place, list(zip(node.keys, node.values, strict=True)))
                for place in range(len(node.keys))
            )

    def shorter(self, node: ast.Tuple | ast.List | ast.Set) -> Iterator[Edit]:
        if isinstance(node, ast.Tuple) and len(node.elts) == 2:
            yield from (
                self.instead(node, f"({ast.unparse(one)},)", "element")
                for one in reversed(node.elts)
            )
        elif len(node.elts) > 1:
            yield from (
                self.without(place, [(one, one) for one in node.elts])
                for place in range(len(node.elts))
            )

    def _if(self, node: ast.If | ast.IfExp | ast.While) -> Iterator[Edit]:
        yield from self.negated(node.test)

    _ifexp = _while = _if

    def _comprehension(self, node: ast.comprehension) -> Iterator[Edit]:
        for test in node.ifs:
            yield from self.negated(test)

    def negated(self, test: ast.expr) -> Iterator[Edit]:
        """A condition the other way round, unless another operator does the same to it."""
        is_compared = isinstance(test, ast.Compare) and len(test.ops) == 1
        if (
            not is_compared
            and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
            and not _is_for_types(test)
        ):
            yield Edit(self.start(test), self.end(test), f"not ({self.text(test)})", "condition")

    def removed(self, node: ast.AST) -> Iterator[Edit]:
        is_done = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
        is_stored = isinstance(node, ast.Assign) and all(
            isinstance(one, (ast.Attribute, ast.Subscript)) for one in node.targets
        )
        if is_done or is_stored or isinstance(node, REMOVABLE):
            yield self.instead(node, "pass", "statement")

    def between(
        self, left: ast.expr, right: ast.expr, pattern: re.Pattern[str], **tables: dict[str, str]
    ) -> Iterator[Edit]:
        """What stands between two operands, changed as the tables say, which are named after what
        they do.
        """
        start, gap = self.end(left), self.raw[self.end(left) : self.start(right)].decode()
        found = pattern.search(gap)
        for operator, table in tables.items():
            if (
                found is not None
                and "#" not in gap
                and (new := table.get(" ".join(found[0].split())))
            ):
                yield Edit(start + found.start(), start + found.end(), new, operator)

    def without(self, place: int, elements: Sequence[tuple[ast.AST, ast.AST]]) -> Edit:
        """Leave out one of several elements, given by their first and last parts, with the comma
        after it or, for the last, before it.
        """
        first, last = elements[place]
        if place + 1 < len(elements):
            return Edit(self.start(first), self.start(elements[place + 1][0]), "", "element")
        return Edit(
            self.end(elements[place - 1][1]) if place else self.start(first),
            self.end(last),
            "",
            "element",
        )

    def instead(self, node: ast.AST, new: str, operator: str) -> Edit:
        return Edit(self.start(node), self.end(node), new, operator)

    def text(self, node: ast.AST) -> str:
        return self.raw[self.start(node) : self.end(node)].decode()

    def start(self, node: ast.AST) -> int:
        return self.lines[node.lineno - 1] + node.col_offset

    def end(self, node: ast.AST) -> int:
        return self.lines[node.end_lineno - 1] + node.end_col_offset


def _empty(annotation: ast.expr | None) -> str:
    head = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return EMPTY.get(head.id, "None") if isinstance(head, ast.Name) else "None"


def _names_a_type(statement: ast.stmt) -> bool:
    """`Place = tuple[int, int]`, `T = TypeVar("T")`"""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return isinstance(target, ast.Name) and _TYPE_NAME.fullmatch(target.id) is not None


def _is_for_types(test: ast.expr) -> bool:
    return ast.unparse(test).endswith("TYPE_CHECKING")


def _is_for_tools(node: ast.AST) -> bool:
    """`__slots__ = ...`"""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.startswith("__")
    )


def _is_unpacked(node: ast.AST, parent: ast.AST) -> bool:
    """Where a tuple of another length is no other value, but an error; or where it is assigned
    to.
    """
    if not isinstance(node, ast.Tuple):
        return False
    is_spread = isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)
    return (
        is_spread
        or not isinstance(node.ctx, ast.Load)
        or isinstance(parent, (ast.Return, ast.Subscript, ast.Yield))
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )

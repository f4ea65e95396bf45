"""Every error that the source can raise, and docs/reference/errors.md, which lists them."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connector import errors
from connector.errors import ErrorCode

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = ROOT / "connector"
ERRORS: Final = ROOT / "docs/reference/errors.md"
UNKNOWN: Final = "…"
PARTS: Final = ("problem", "cause", "remedy")

_WRAPPERS = frozenset({"str", "repr", "one_of", "summarize_names", "view_of_time", "next", "iter"})
_METHODS = frozenset(
    {"str", "strip", "removesuffix", "removeprefix", "as_posix", "value", "text", "splitlines"}
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign)


@dataclass(frozen=True, slots=True)
class Raised:
    """A call that makes an error. The texts are templates: `{name}` is filled in at run time."""

    place: str
    code: str
    error: str
    texts: tuple[str, str, str]
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Source:
    module: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]


def error_calls(package: Path) -> Iterator[tuple[Path, ast.Call, dict[ast.AST, ast.AST], Any]]:
    """Each call with an `ErrorCode` as its first argument: its file, the call, and the parent of
    each node, and the module as a tree.
    """
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and node.args and _is_code(node.args[0]):
                yield path, node, parents, tree


def raised(package: Path = PACKAGE) -> list[Raised]:
    """All errors of a package, in the order of files and lines."""
    found = []
    for path, call, parents, tree in error_calls(package):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        source = _Source(module.removesuffix(".__init__"), tree, parents)
        given = dict(zip(PARTS, call.args[1:], strict=False))
        given |= {word.arg: word.value for word in call.keywords if word.arg in PARTS}
        texts = [_text(given[part], source) if part in given else "" for part in PARTS]
        code = call.args[0]
        assert isinstance(code, ast.Attribute)
        found.append(
            Raised(
                f"{path.relative_to(package.parent)}:{call.lineno}",
                code.attr,
                ast.unparse(call.func).rpartition(".")[2],
                (texts[0], texts[1], texts[2]),
                tuple(word.arg for word in call.keywords if word.arg and word.arg not in PARTS),
            )
        )
    return sorted(
        found, key=lambda one: (one.place.partition(":")[0], int(one.place.split(":")[1]))
    )


def _is_code(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == ErrorCode.__name__
    )


# ── templates ─────────────────────────────────────────────────────────────────────────────────────


def _text(node: ast.expr, source: _Source) -> str:
    """The template of a whole text. Several possible texts are joined with *or*."""
    texts = dict.fromkeys(_texts(node, source))
    return " *or* ".join(text for text in texts if text)


def _texts(node: ast.expr, source: _Source) -> list[str]:
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body, source), *_texts(node.orelse, source)]
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
        return [text for value in node.values for text in _texts(value, source)]
    match node:
        case ast.Call(func=ast.Attribute(value=table, attr="get"), args=[_, *otherwise]):
            found = _named(table, source)
            if isinstance(found, Mapping):
                given = [text for value in otherwise for text in _texts(value, source)]
                return [*map(str, found.values()), *given]
    if isinstance(node, ast.Name):
        values = _assigned(node, source)
        if values:
            return [text for value in values for text in _texts(value, source)]
        constant = _constant(node, source)
        return [str(constant) if constant is not None else UNKNOWN]
    return [_part(node, source)]


def _part(node: ast.expr, source: _Source) -> str:
    """The template of an expression inside a text."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_part(value, source) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return _placeholder(node, source)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _part(node.left, source) + _part(node.right, source)
    if isinstance(node, ast.IfExp):
        return _part(node.body, source) or _part(node.orelse, source)
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call() | ast.JoinedStr() as inner, attr=name)):
            if name in _METHODS:
                return _part(inner, source)
    constant = _constant(node, source)
    if constant is not None:
        return str(constant)
    return UNKNOWN if _short(node) in PARTS else f"{{{_short(node)}}}"


def _placeholder(node: ast.FormattedValue, source: _Source) -> str:
    constant = _constant(node.value, source)
    if constant is not None:
        form = _part(node.format_spec, source) if node.format_spec else ""
        return format(constant, form)
    if isinstance(node.value, ast.IfExp):
        return _part(node.value, source)
    return f"{{{_short(node.value)}}}"


def _short(node: ast.expr) -> str:
    """A short readable name for the value of an expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name != "args":
            return name.strip("_").lower()
        case ast.Constant(value=value):
            return str(value)
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _short(inner)
        case ast.BinOp(left=inner) | ast.IfExp(body=inner) | ast.BoolOp(values=[inner, *_]):
            return _short(inner)
        case ast.GeneratorExp(generators=[first, *_]) | ast.ListComp(generators=[first, *_]):
            return _short(first.iter)
        case ast.Call(func=ast.Attribute(attr="join"), args=[inner]):
            return _short(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in _METHODS:
            return _short(inner)
        case ast.Call(func=ast.Name(id="len"), args=[inner]):
            return f"number of {_short(inner)}"
        case ast.Call(func=ast.Name(id=name), args=[inner, *_]) if name in _WRAPPERS:
            return _short(inner)
        case ast.Call(func=function):
            return _short(function)
    return UNKNOWN


def _assigned(name: ast.Name, source: _Source) -> list[ast.expr]:
    """What the statements before a name assign to it, in its function; nothing for an argument."""
    found: list[ast.expr] = []
    statement: ast.AST = name
    while not isinstance(statement, (*_FUNCTIONS, ast.Module)):
        parent = source.parents[statement]
        for body in (getattr(parent, part, None) for part in ("body", "orelse", "finalbody")):
            if isinstance(body, list) and statement in body:
                for before in reversed(body[: body.index(statement)]):
                    found = [*_values(name.id, before), *found]
                    if found and (isinstance(before, _ASSIGNMENTS) or getattr(before, "orelse", 0)):
                        return found
        statement = parent
    return found


def _values(name: str, statement: ast.stmt) -> list[ast.expr]:
    found: list[ast.expr] = []
    for node in ast.walk(statement):
        if not isinstance(node, _ASSIGNMENTS) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id == name:
                found.append(node.value)
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                found += [
                    value
                    for part, value in zip(target.elts, node.value.elts, strict=True)
                    if isinstance(part, ast.Name) and part.id == name
                ]
    return found


def _constant(node: ast.expr, source: _Source) -> str | int | float | None:
    """The value of a constant of a module, by its name in capitals or an attribute of one."""
    value = _named(node, source)
    return value if isinstance(value, str | int | float) else None


def _named(node: ast.expr, source: _Source) -> object:
    words = ast.unparse(node).split(".")
    if not all(word.isidentifier() for word in words) or words[0] in ("self", "cls"):
        return None
    if not any(word.isupper() for word in words):
        return None
    value: object = importlib.import_module(source.module)
    for word in words:
        if not hasattr(value, word):
            return None
        value = getattr(value, word)
    return value


# ── the page ──────────────────────────────────────────────────────────────────────────────────────

_INTRODUCTION = """\
# Errors

Every error of lowmark has a code. A code is a name in capitals, for example `TOPIC_COMPACTED`. It
is stable: its meaning does not change, and it is not used for another error. The texts of an error
may change. So compare the code in a program, and not the text.

An error has these parts:

| part | content |
|---|---|
| `code` | The stable name |
| `problem` | The situation, with the names and values that are affected |
| `cause` | Why it is so, as far as lowmark knows. It may be empty |
| `remedy` | The action that helps. It may be empty |
| `fields` | Values that a program needs for the remedy, by name, for example `stream` or `table` |

To find an error, search this page for its code, or for words of its text. A name in braces, for
example `{topic}`, is a value that the error fills in. `…` is a text that depends on the situation.

## Errors on the command line

A command that fails prints the error on standard error and ends with exit code 1. For example:

```text
error:  There is no table at warehouse/orders
cause:  No change was applied to it yet
remedy: Run the pipeline until it has applied the changes of the stream
run:    connector run --once
code:   TABLE_MISSING
```

A part without content is left out. `run:` is the command that helps, if there is one. If you call
`connector` with `--config`, add the same `--config` to this command.

## Errors in a program

All errors are classes of `connector.errors`, below `ConnectorError`. For example, this program
reads a table that may not exist yet. It works in the folder of the
[tutorial](../tutorial/first-table.md):

```python
from connector.errors import ConnectorError, ErrorCode
from connector.services import load_config, read

try:
    with read(load_config("connector.toml"), "orders") as found:
        rows = list(found.rows)
except ConnectorError as error:
    if error.code != ErrorCode.TABLE_MISSING:
        raise
    rows = []
    print("no change was applied yet:", error.fields)
```

`error.fields` is a dictionary. Each field is also an attribute of the error. For example,
`error.fields["table"]` is `error.table`.

The code of an `InvalidChangeError` is the rule that the change breaks, for example `ROW_KEY`. See
the [rules](dead-letters.md#reasons). So its code is not in the lists below.
"""


def groups() -> dict[str, list[str]]:
    """The codes by the comment above them in `ErrorCode`, in the order of the source."""
    source = Path(errors.__file__).read_text("utf-8")
    body = source.split("class ErrorCode")[1].split("\nclass ")[0]
    found: dict[str, list[str]] = {}
    for line in body.splitlines():
        if match := re.match(r"    # (.+)$", line):
            group = found.setdefault(match[1][0].upper() + match[1][1:], [])
        elif match := re.match(r"    ([A-Z]\w+) = auto\(\)$", line):
            group.append(match[1])
    return found


def errors_page() -> str:
    """The reference of all errors."""
    by_code: dict[str, list[Raised]] = {}
    for one in raised():
        by_code.setdefault(one.code, []).append(one)
    lines = [_INTRODUCTION]
    for group, codes in groups().items():
        lines += [f"## {group}", ""]
        for code in codes:
            lines += [f"### {code}", "", *_entry(by_code.get(code, []))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry(sites: list[Raised]) -> list[str]:
    classes = list(dict.fromkeys(f"`{site.error}`" for site in sites))
    fields = list(dict.fromkeys(f"`{name}`" for site in sites for name in site.fields))
    head = " or ".join(classes)
    lines = [f"{head}. Fields: {', '.join(fields)}." if fields else f"{head}.", ""]
    for texts in dict.fromkeys(site.texts for site in sites):
        lines += [
            f"- **{part.capitalize()}**: {_in_markdown(text)}"
            for part, text in zip(PARTS, texts, strict=True)
            if text
        ]
        lines.append("")
    return lines


def _in_markdown(text: str) -> str:
    """A template as Markdown on one line. Nothing outside backticks is markup, but for *or*."""
    pieces = re.split(r"( \*or\* |`[^`]*`)", " ".join(text.split()))
    return "".join(
        piece if index % 2 else re.sub(r"([*<]|\b_|_\b|(?<!\w)_(?!\w))", r"\\\1", piece)
        for index, piece in enumerate(pieces)
    )

"""The documents say what the code does: links, paths, settings, commands, reasons and examples are
compared with it.
"""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sqlite3
import tomllib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import fields, replace
from pathlib import Path

import click
import pytest

from connector import cli, warehouse
from connector.config.parse import parse
from connector.config.settings_reader import Section, parse_duration_ms
from connector.engine.schema import CHANGELOG
from connector.kafka.produce.outbox_file import Content, OutboxFile
from connector.lake import audit, jobs, overrides
from connector.records.json_view import from_json
from connector.records.ordering import OrderBy
from connector.spark.session import JVM_OPTIONS
from connector.spark.storage import changelog
from connector.spark.storage.layout import Layout
from connector.spark.storage.logged_batch import LoggedBatch
from connector.state.accepted_losses import AcceptLoss
from connector.state.incomplete_transactions import ReleaseTransaction, TransactionCheck
from connector.state.overrides import ClosePartition
from connector.state.pace import APPLY_EVERY_S
from connector.state.source_checks import SourceChecks
from connector.state.stream_progress import OpenTransaction, Progress
from connector.state.table_state import TableState
from connector.state.truncations import SourceTruncations
from connector.watermarks.frontier import Frontier
from connector.watermarks.stream_partition import StreamPartition
from connector.watermarks.transactions import DEFAULT_BUFFERED_BYTES
from connector.write_streams.releases import ReleaseProgress, ReleaseRows
from tests.documents import (
    PAGES,
    ROOT,
    TUTORIAL,
    code_blocks,
    examples,
    pages,
    promises,
)

CONFIGURATION = ROOT / "docs/reference/configuration.md"
COMMANDS = ROOT / "docs/reference/commands.md"
ARCHITECTURE = ROOT / "docs/explanation/architecture.md"
PERFORMANCE = ROOT / "docs/reference/performance.md"
ON_DISK = ROOT / "docs/reference/on-disk-format.md"
GUARANTEES = ROOT / "docs/reference/guarantees.md"
PROJECT_PAGES = [ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
each_page = pytest.mark.parametrize(
    "page", [*PAGES, *PROJECT_PAGES], ids=lambda page: str(page.relative_to(ROOT))
)


@each_page
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), link
        assert not anchor or anchor in _anchors(linked), link
    for path in re.findall(r"`((?:benchmarks|connector|docs|schemas|tests)/[\w./-]*\w)`", text):
        assert (ROOT / path).exists(), path


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, ways = set(), [ROOT / "README.md"]
    while ways:
        page = ways.pop()
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text("utf-8"))
        ways += [
            target
            for link in links
            if (target := (page.parent / link).resolve()) not in reached and target.exists()
        ]
    assert {*PAGES, *PROJECT_PAGES} <= reached


def test_promises_name_tests_that_name_them() -> None:
    """The overview's rule: a promise without a test named after it is not made. See also
    test_requirements.py.
    """
    rows = promises()
    assert len(rows) == 12
    for promise, kept, proof in rows:
        tests = re.findall(r"`([^`]+)`", proof)
        assert bool(tests) == kept.strip().startswith("kept"), promise


def test_guarantees_are_the_promises_with_the_same_tests() -> None:
    sections = re.findall(
        r"^## (\w+)\n(.*?)(?=^## |\Z)", GUARANTEES.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in sections] == [promise for promise, _, _ in promises()]
    for (name, body), (_, _, tests) in zip(sections, promises(), strict=True):
        parts = dict(
            re.findall(r"^\*\*(\w+)\.\*\*(.*?)(?=^\*\*|\Z)", body, re.MULTILINE | re.DOTALL)
        )
        assert [*parts] == ["Meaning", "Limits", "Tests"], name
        assert re.findall(r"`(tests/[^`]+)`", parts["Tests"]) == re.findall(r"`([^`]+)`", tests), (
            name
        )


# ── layers, and what is on disk ───────────────────────────────────────────────────────────────────


def _layers(name: str) -> list[str]:
    """The layers of a contract, as rows of a table name them; parentheses say that a package may be
    missing.
    """
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == name)
    return [
        " \\| ".join(f"`{package.strip(' ()')}`" for package in layer.split("|"))
        for layer in layers
    ]


@pytest.mark.parametrize(
    ("contract", "package"),
    [
        ("Layers of the package", "connector"),
        ("Layers of connector.spark", "connector.spark"),
        ("Layers of connector.kafka", "connector.kafka"),
    ],
)
def test_the_architecture_lists_the_layers_of_each_contract_in_order(
    contract: str, package: str
) -> None:
    section = (
        ARCHITECTURE.read_text("utf-8")
        .split(f"The layers of `{package}`, from the top:\n\n")[1]
        .split("\n\n")[0]
    )
    rows = re.findall(r"^\| (`.*?`) \| ", section, re.MULTILINE)
    assert rows == _layers(contract)


def test_the_architecture_names_every_package_and_root_module() -> None:
    named = set(re.findall(r"`([\w./]+)`", ARCHITECTURE.read_text("utf-8")))
    packages = {
        path.stem
        for path in (ROOT / "connector").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert packages - {"__init__"} <= named
    assert "connector/__init__.py" in named


def _first_cells(heading: str) -> set[str]:
    """The names in the first column of the table below a heading of the on-disk page."""
    body = re.split(rf"^#+ {heading}$", ON_DISK.read_text("utf-8"), flags=re.MULTILINE)[1]
    table = re.split(r"^#", body, flags=re.MULTILINE)[0]
    return {
        name
        for cell in re.findall(r"^\| ((?:`[\w<>/-]+`(?:, )?)+) \|", table, re.MULTILINE)
        for name in re.findall(r"`(.*?)`", cell)
    }


def test_the_paths_of_a_warehouse_are_on_the_page() -> None:
    folder = warehouse.table_folder("W", "<table>")
    of_tables = (
        warehouse.data(folder),
        warehouse.tombstones(folder),
        warehouse.tombstones(folder, "<rebuild>"),
    )
    of_warehouse = (
        getattr(warehouse, name)("W")
        for name in (
            *("jobs", "cuts", "overrides", "closed_partitions", "released_transactions"),
            *("released_rows", "accepted_losses", "erased_keys", "erasure_secret", "audit_log"),
            "probe",
        )
    )
    paths = {
        warehouse.changelog("W", "<stream>"),
        f"{warehouse.stream_folder('W', '<stream>')}/checkpoint",
        *of_tables,
        *of_warehouse,
    }
    assert _first_cells("Folders") == {path.removeprefix("W/") for path in paths}


def test_the_keys_of_commits_are_those_of_the_code() -> None:
    frontier = Frontier(partitions={"p0": StreamPartition(epochs={0: 1})})
    partition = frontier.to_json()["partitions"]["p0"]
    checked = TransactionCheck(declared=1)
    progress = Progress(
        checks=SourceChecks(row_images={"DELETE": 1}),
        transactions=checked,
        staged=1,
        releases=ReleaseProgress(late=1),
        open_transactions=(OpenTransaction(0, 1, 1, 1),),
        truncations=SourceTruncations(others_to=1),
        losses=(AcceptLoss(1, "s", "t", "{}", "why", 1, "ann"),),
    ).to_json()
    assert _first_cells("Keys of a table commit") == set(
        TableState(lacks_lost_records=True, covered_by={"r": 1}).to_json("t")
    )
    assert _first_cells("Keys of the progress") == set(progress)
    assert _first_cells("Keys of the checks") == set(progress["checks"])
    assert _first_cells("Keys of the transactions") == set(progress["transactions"])
    assert _first_cells("Keys of the releases") == set(progress["releases"])
    assert _first_cells("Keys of the frontier") == set(Frontier().to_json())
    assert _first_cells("Keys of a stream partition") == set(partition)

    written = (
        "_create",
        "_metadata_of_batch",
        "_metadata_of",
        "append_progress",
        "update_progress",
        "declare",
        "trim",
    )
    methods = [LoggedBatch.to_json, *(getattr(changelog.Changelog, name) for name in written)]
    sources = map(inspect.getsource, methods)
    assert _first_cells("Keys of a changelog commit") == {
        key for source in sources for key in re.findall(r'"(\w+)": ', source)
    }


def test_the_columns_on_disk_are_those_of_the_code() -> None:
    assert _first_cells("Columns of the changelog") == {*CHANGELOG.names, "slot"}

    page = ON_DISK.read_text("utf-8")
    definition = parse(MINIMAL, {}).tables["NAME"]
    for order in OrderBy:
        layout = Layout(replace(definition, order=order), 1)
        stored = re.findall(r"(\w+): ", layout.state_type)
        assert [
            name
            for name in {*stored, *(name for name, _ in layout.column_types[-3:])}
            if f"`{name}`" not in page
        ] == []
    of_state = re.findall(r"(mark_\w+|\w+(?=: array<))", layout.state_type)
    assert _first_cells("Fields of _state") == set(of_state)

    beside = {
        "jobs": {**jobs._JOBS, **jobs._ADDED},
        "cuts": {**jobs._CUTS, **jobs._ADDED_TO_CUTS},
        "overrides": overrides._SETTINGS,
        "closed_partitions": overrides._COLUMNS_OF[ClosePartition],
        "released_transactions": overrides._COLUMNS_OF[ReleaseTransaction],
        "released_rows": overrides._COLUMNS_OF[ReleaseRows],
        "accepted_losses": overrides._COLUMNS_OF[AcceptLoss],
    }
    for name, stored in {**beside, "audit_log": audit.RESULTS}.items():
        (row,) = re.findall(
            rf"^\| `{name}` \| (.*) \|$", page.split("## Tables in _connector")[1], re.MULTILINE
        )
        assert set(re.findall(r"`(\w+)`", row)) == set(stored), name


def test_the_tables_of_an_outbox_are_those_of_the_code(tmp_path: Path) -> None:
    """PUB-3."""
    section = ON_DISK.read_text("utf-8").split("## Outbox of a producer")[1].split("## Topics")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^;:|]*)", section, re.MULTILINE)
    assert rows.pop(0)[0] == "PATH"
    documented = {name: set(re.findall(r"`(\w+)`", columns)) for name, columns in rows}
    OutboxFile(tmp_path / "outbox", 100_000, "normal").close()
    with closing(sqlite3.connect(tmp_path / "outbox")) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        assert documented == {
            name: {column[1] for column in database.execute(f"PRAGMA table_info({name})")}
            for (name,) in names
        }
    assert [field.name for field in fields(Content) if f"`{field.name}`" not in section] == []


# ── settings ──────────────────────────────────────────────────────────────────────────────────────

MINIMAL = {
    "warehouse": "w",
    "kafka": {"bootstrap_servers": "h:1"},
    "registry": {"url": "http://h"},
    "spark": {},
    "storage": {},
    "streams": {"NAME": {"topic": "t", "source": {"format": "debezium-json", "topics": ["dbz.*"]}}},
    "tables": {
        "NAME": {
            "stream": "NAME",
            "key": {"form": "delimited", "columns": [{"name": "k"}]},
            "columns": [{"name": "c", "family": "f", "type": "STRING"}],
        }
    },
}


def _documented() -> dict[str, dict[str, str]]:
    """Section -> setting -> its default as the page writes it, "" for none."""
    sections: dict[str, dict[str, str]] = {}
    for heading, body in re.findall(
        r"^## (.+?)\n(.*?)(?=^## |\Z)", CONFIGURATION.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        if heading == "The document" or heading.startswith("["):
            table = body.split("| setting | default | meaning |\n|---|---|---|\n")[1].split("\n\n")[
                0
            ]
            sections[heading.strip("[]")] = dict(
                re.findall(r"^\| `(\w+)` \| (?:`(.*?)`)? ?\|", table, re.MULTILINE)
            )
    return sections


def test_every_setting_is_documented_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """OPS-1."""
    asked: dict[str, set[str]] = {}
    original = Section.has

    def has(section: Section, key: str) -> bool:
        asked.setdefault(re.sub(r"\[\d+]", "", section.path), set()).add(key)
        return original(section, key)

    monkeypatch.setattr(Section, "has", has)
    parse(MINIMAL, {})

    root = asked.pop("") - MINIMAL.keys() | {"warehouse"}
    documented = {path: set(settings) for path, settings in _documented().items()}
    assert documented.pop("The document") == root
    asked["tables.NAME"] -= {"key"} - documented["tables.NAME"]
    asked["streams.NAME"].remove("source")
    asked["spark"].remove("conf")
    asked["storage"].remove("options")
    del asked["streams"], asked["tables"]
    assert documented == asked


def test_documented_defaults_are_the_defaults() -> None:
    spelt_out = json.loads(json.dumps(MINIMAL))
    for path, settings in _documented().items():
        section = spelt_out
        for part in [] if path == "The document" else path.split("."):
            section = section[part][0] if isinstance(section[part], list) else section[part]
        for name, default in settings.items():
            if default and name not in section:
                section[name] = tomllib.loads(f"value = {default}")["value"]
    assert parse(spelt_out, {}) == parse(MINIMAL, {})


_FIGURE = (
    r"(?:\d[\d,]*|an?|one|two|three|four|five|ten) (?:ms|s|seconds?|minutes?|hours?|days?|MiB)\b"
)
_DEFAULT_FIGURE = re.compile(
    rf"\bdefault `?(?P<a>\w+)`? of (?P<a_figure>{_FIGURE})"
    rf"|`(?P<b>\w+)` \((?P<b_figure>{_FIGURE})(?: if you did not set it)?\)"
    rf"|`(?P<c>\w+)`[^.`]*[,:] (?P<c_figure>{_FIGURE}) by default"
)
"""A figure of a default: `default NAME of 2 s`, `NAME (one day)`, or `NAME decides: 2 s by
default`.
"""
_NO_FIGURES = ("The default is a number of microseconds, in which a month",)
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "M": 2**20}
_WORDS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}


def figures_of_defaults(text: str) -> tuple[dict[str, str], list[str]]:
    """The figures of defaults in a page by the name of the setting, and the sentences that speak of
    a default and a figure in another form.
    """
    found, unknown = dict[str, str](), list[str]()
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for part in re.split(r"(?<=[.])\s+(?=[A-Z`])|\n\n|\n(?=[|-])", text):
        sentence = " ".join(part.split())
        matches = [match.groupdict() for match in _DEFAULT_FIGURE.finditer(sentence)]
        for match in matches:
            found |= {match[form]: match[f"{form}_figure"] for form in "abc" if match[form]}
        has_default = re.search(r"\bdefault\b|\bdid not set\b", sentence)
        is_about = has_default and re.search(_FIGURE, sentence)
        if is_about and not matches and not sentence.startswith(_NO_FIGURES):
            unknown.append(sentence)
    return found, unknown


def _size(figure: str) -> int:
    """A figure of a page in milliseconds or bytes."""
    number, unit = figure.split(" ")
    known = _UNITS.get(unit) or _UNITS[unit[0]]
    return (_WORDS.get(number) or int(number.replace(",", ""))) * known


def _sizes_of_defaults() -> dict[str, int]:
    """The defaults of settings that are durations, and of an argument, in the same units."""
    sizes = {"max_buffered_bytes": DEFAULT_BUFFERED_BYTES}
    for settings in _documented().values():
        for name, default in settings.items():
            with suppress(ValueError):
                sizes[name] = parse_duration_ms(default.strip('"'))
    return sizes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_of_defaults_in_pages_are_those_of_the_settings(page: Path) -> None:
    """`test_documented_defaults_are_the_defaults` compares the settings with the code."""
    if page not in (CONFIGURATION, COMMANDS, PERFORMANCE) and "decisions" not in page.parts:
        found, unknown = figures_of_defaults(page.read_text("utf-8"))
        sizes = _sizes_of_defaults()
        assert {name: _size(figure) for name, figure in found.items()} == {
            name: sizes[name] for name in found
        }
        assert unknown == []


def test_a_wrong_figure_of_a_default_is_noticed() -> None:
    text = (
        "For example, with the default `file_retention` of 6 hours, it is gone. Changes wait for"
        " `stall_after` (5 minutes). As long as `delete_retention`, two\ndays by default. The"
        " default of the thing is 7 days."
    )
    found, unknown = figures_of_defaults(text)
    assert {name: _size(figure) for name, figure in found.items()} == {
        "file_retention": 21_600_000,
        "stall_after": 300_000,
        "delete_retention": 172_800_000,
    }
    assert unknown == ["The default of the thing is 7 days."]
    assert _sizes_of_defaults()["file_retention"] == 86_400_000


def test_the_defaults_of_the_scale_page_are_those_of_the_settings() -> None:
    page = (ROOT / "docs/explanation/scale.md").read_text("utf-8")
    table = page.partition("| key | default |")[2].partition("\n\n")[0]
    settings = {name: text for section in _documented().values() for name, text in section.items()}
    settings |= {"changelog_retention": "for ever", "apply_every": f"{APPLY_EVERY_S:g} s"}
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE)
    assert len(rows) == 5
    for name, default in rows:
        assert default.strip("`").replace(",", "") == settings[name], name


# ── commands ──────────────────────────────────────────────────────────────────────────────────────


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from _commands(command, f"{path} {name}")
            else:
                yield f"{path} {name}", command


_OPTION = r"^\| `(--[\w-]+)` \|"


def test_every_command_and_option_is_documented_and_no_other() -> None:
    """OPS-10. Shared options are in the section of one of the commands, below a heading that the
    others name.
    """
    sections = dict(
        re.findall(
            r"^## (connector .+?)\n(.*?)(?=^## |\Z)",
            COMMANDS.read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    )
    commands = dict(_commands(cli.cli, "connector"))
    assert set(sections) == set(commands)
    for name, command in commands.items():
        options = [option.opts for option in command.params if isinstance(option, click.Option)]
        long_names = {next(name for name in names if name.startswith("--")) for names in options}
        documented = set(re.findall(_OPTION, sections[name], re.MULTILINE))
        if "(#filter)" in sections[name]:
            documented |= set(
                re.findall(
                    _OPTION,
                    sections["connector dead-letters list"].split("### Filter\n")[1],
                    re.MULTILINE,
                )
            )
        assert documented == long_names - {"--help"}, name


def test_documented_defaults_of_options_are_the_defaults() -> None:
    """OPS-10: the description of an option begins with its default."""
    sections = dict(
        re.findall(
            r"^## (connector .+?)\n(.*?)(?=^## |\Z)",
            COMMANDS.read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    )
    compared = 0
    for name, command in _commands(cli.cli, "connector"):
        texts = dict(re.findall(r"^\| `(--[\w-]+)` \| (.+) \|$", sections[name], re.MULTILINE))
        for option in command.params:
            default = option.default
            if (
                not isinstance(option, click.Option)
                or type(default) not in (str, int)
                or not default
            ):
                continue
            shown = re.sub("[`,]", "", texts[option.opts[0]])
            if shown != "as for start":
                assert shown.startswith(f"{default}."), (name, option.opts)
                compared += 1
    assert compared > 10


def _calls() -> list[tuple[str, str]]:
    """Every call of the connector in a console block, with its page."""
    lines = [
        (page.name, line)
        for page in PAGES
        for block in code_blocks(page, "console")
        for line in block.splitlines()
    ]
    return [
        (name, line)
        for name, line in lines
        if line.startswith("connector ") and not line.endswith("…")
    ]


@pytest.mark.parametrize(("page", "line"), _calls(), ids=lambda text: text)
def test_calls_in_examples_are_well_formed(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line)[1:]
    for word in words:
        if word.endswith(".jsonl"):
            (tmp_path / word).touch()
    command: click.Command = cli.cli
    while isinstance(command, click.Group):
        with command.make_context("connector", words) as ctx:
            name, below, words = command.resolve_command(ctx, [*ctx._protected_args, *ctx.args])
        assert below is not None, name
        command = below
    command.make_context("connector", words).close()


# ── examples ──────────────────────────────────────────────────────────────────────────────────────


@each_page
def test_examples_can_be_read(page: Path) -> None:
    """OPS-1, REC-22: settings as settings, records as records, Python as Python."""
    for text in code_blocks(page, "toml"):
        document = tomllib.loads(text)
        shop = {"warehouse": "w", "kafka": MINIMAL["kafka"], "streams": {"shop": {}}}
        parse({**shop, **document}, {})
    for text in code_blocks(page, "json"):
        assert [from_json(line) for line in text.splitlines()]
    for text in code_blocks(page, "python"):
        compile(text, page.name, "exec")


NOTES = re.compile("not run: [a-z].+|runs until you stop it|while `connector run` works|the output")
LANGUAGES = {"console", "json", "python", "sql", "text", "toml"}
DEPLOYMENT = re.compile(
    r"in the\s+folder\s+of\s+the\s+\[tutorial\]\([./]*(docs/)?tutorial/first-table.md"
)


@each_page
def test_each_example_is_run_or_says_why_not(page: Path) -> None:
    """tests/e2e/test_pages.py runs each code block whose comment does not say `not run: …`, on the
    deployment that the page names. It finds each block by its language, at the start of a line.
    """
    text, blocks = page.read_text("utf-8"), list(examples(page))
    fences = re.findall(r"^ *(?:```|~~~).*$", text, re.MULTILINE)
    assert len(fences) == 2 * len(blocks), "a fence that is indented, or has no language"
    assert {example.language for example in blocks} <= LANGUAGES
    notes = [example.note for example in blocks if example.note]
    assert [note for note in notes if not NOTES.fullmatch(note)] == []
    assert len(notes) == text.count("<!-- example:"), "a comment that is not above its block"
    for path in re.findall(r"tests/[\w/]+\.py", " ".join(notes)):
        assert (ROOT / path).exists(), path
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"\n\n    (?:connector|python|import|from|SELECT) .*", outside)
    assert indented == [], "an example without a fence"
    run = [
        example
        for example in blocks
        if example.language in ("console", "python", "sql")
        and not example.note.startswith("not run: ")
    ]
    assert not run or page == TUTORIAL or DEPLOYMENT.search(text), "names no deployment"


def test_each_page_with_examples_is_in_the_navigation() -> None:
    """tests/e2e/pages.py takes the pages from there."""
    assert {page for page in [*PAGES, *PROJECT_PAGES] if any(examples(page))} <= {*pages()}


def test_the_defaults_of_limits_are_those_of_the_code() -> None:
    from connector.records import model

    page = (ROOT / "docs/reference/protocol.md").read_text("utf-8")
    counts = (model.MAX_ENTRIES, model.MAX_ROW_KEY_BYTES, model.MAX_QUALIFIER_BYTES)
    numbers = (*counts, model.MAX_RESUME_TOKEN_BYTES, model.MAX_STREAM_PARTITION_BYTES)
    assert f"1 to {model.MAX_RANGES:,}, each of another write stream" in page
    assert [number for number in numbers if f"{number:,}" not in page] == []
    assert str(model.MAX_TIMESTAMP) in page


def test_the_example_of_spark_submit_has_the_jvm_options_of_a_session() -> None:
    page = (ROOT / "docs/howto/run-against-your-cluster.md").read_text("utf-8")
    (limits,), (heap,) = (
        re.findall(rf'^{name}="(.*)"$', page, re.MULTILINE) for name in ("limits", "heap")
    )
    for jvm in ("driver", "executor"):
        (options,) = re.findall(rf'--conf "spark.{jvm}.extraJavaOptions=(.*)"', page)
        assert options.replace("$limits", limits).replace("$heap", heap) == JVM_OPTIONS

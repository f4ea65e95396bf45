"""`connector table`: jobs, and bounds that are set without a restart (TBL-19, TBL-20)."""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector import cli
from connector.cli import table as table_commands
from connector.cli.status import add_column
from connector.errors.tables import table_unreadable
from connector.events import Event
from connector.lake.jobs import History
from connector.lake.overrides import Overrides
from connector.reports.definition_status import column_to_add
from connector.reports.table_status import table_status
from connector.services import ConfigFile, load_config
from connector.services.reload import Reloads, refused_reload
from connector.state.jobs import FIGURES, MAINTENANCE, Job, JobKind, Period, sums_by
from connector.state.table_state import TableState
from connector.tables.alterations import with_overrides
from connector.tables.stored_definition import NO_IDS, assign_ids, to_properties
from connector.tables.values import Encoding
from tests.unit.services.test_process import here, store
from tests.unit.warehouses import log_table

SETTINGS = (
    'warehouse = "w"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[streams.s]\n[tables.one]\nstream'
    ' = "s"\nmax_staleness = "10m"\n'
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    return tmp_path / "w"


def bounds(capsys: pytest.CaptureFixture[str]) -> tuple[int, int]:
    assert cli.invoke(["status", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["tables"]["one"]
    return table["declared_max_staleness_s"], table["max_staleness_s"]


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("0-0 0 0:10:0", 600), ("0", 0)])
def test_a_bound_is_set_and_unset(
    capsys: pytest.CaptureFixture[str], text: str, seconds: int
) -> None:
    """TBL-20: both ways to write an interval."""
    assert cli.invoke(["table", "set", "one", f"max_staleness={text}"]) == 0
    assert bounds(capsys) == (600, seconds)
    assert cli.invoke(["table", "set", "one", "--unset"]) == 0
    assert bounds(capsys) == (600, 600)


def test_a_pace_is_set_and_unset(capsys: pytest.CaptureFixture[str]) -> None:
    """JOB-2, TBL-20: beside a bound; `--unset` has what the configuration says of both hold
    again.
    """

    def shown() -> tuple[float, int]:
        assert cli.invoke(["status", "--json"]) == 0
        table = json.loads(capsys.readouterr().out)["tables"]["one"]
        return table["apply_every_s"], table["max_staleness_s"]

    assert shown() == (150, 600)
    assert cli.invoke(["table", "set", "one", "apply_every=1h"]) == 0
    assert "one: applied every 1h, until --unset" in capsys.readouterr().err
    assert cli.invoke(["table", "set", "one", "max_staleness=20s"]) == 0
    assert "one: applied every 1h" in capsys.readouterr().err
    assert shown() == (3600, 20)
    assert cli.invoke(["table", "set", "one", "--unset"]) == 0
    assert "one: applied every 2m30s" in capsys.readouterr().err
    assert shown() == (150, 600)


@pytest.mark.parametrize(
    "words",
    [
        ["apply_every=0"],
        [],
        ["max_staleness=5m", "--unset"],
        ["max_staleness"],
        ["max_stalenes=5m"],
        ["max_staleness=soon"],
        ["key=5m"],
    ],
)
def test_an_unknown_setting_is_a_wrong_call(folder: Path, words: list[str]) -> None:
    assert cli.invoke(["table", "set", "one", *words]) == 2
    assert Overrides(str(folder)).bounds() == {}


def test_a_table_that_is_not_configured_is_named_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.invoke(["table", "set", "onne", "max_staleness=5m"]) == 1
    assert "Did you mean one?" in capsys.readouterr().err


def test_a_read_takes_the_bound_that_is_set(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TBL-20: `connector read` finds a table too old at once; exit code 1, since ingest has never
    run.
    """
    log_table(folder, "one", TableState(apply_number=1, as_of=time.time_ns() // 1000 - 30_000_000))
    assert cli.invoke(["read", "one"]) == 0
    assert cli.invoke(["table", "set", "one", "max_staleness=20s"]) == 0
    assert cli.invoke(["read", "one"]) == 1
    assert "the bound is 20 s" in capsys.readouterr().err


def test_jobs_are_listed_the_newest_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TBL-19"""
    now = time.time_ns() // 1000
    for seconds, error in ((90, ""), (1, "full\x1b[2J")):
        ended_at = now - seconds
        History(str(folder)).add_job(
            Job(
                JobKind.APPLY, "one", ended_at - seconds * 1_000_000, ended_at, 1, 3, 7, error=error
            )
        )
    of_stream = Job(JobKind.CLEAN_UP, "", now - 1, now, stream="s")
    History(str(folder)).add_job(of_stream)
    assert cli.invoke(["jobs", "--table", "one", "--json"]) == 0
    said = capsys.readouterr()
    jobs = [json.loads(line) for line in said.out.splitlines()]
    assert [(job["kind"], job["duration_s"], job["error"]) for job in jobs] == [
        ("apply", 1.0, "full\x1b[2J"),
        ("apply", 90.0, None),
    ]
    assert "2 jobs within 1d" in said.err
    assert cli.invoke(["jobs", "--table", "one", "--limit", "1"]) == 0
    shown = capsys.readouterr().out
    assert "full\\x1b[2J" in shown
    assert "90.0 s" not in shown
    assert cli.invoke(["jobs", "--table", "onne"]) == 1
    assert "Did you mean one?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("bogus", 'a table has no setting "bogus" that you can set; write max_staleness=DURATION'),
        ("bogus=3", 'a table has no setting "bogus" that you can set; write max_staleness='),
        ("max_stalenes=10m", '"max_stalenes" that you can set; did you mean max_staleness?'),
        ("apply_every", "apply_every has no value; write apply_every=DURATION, for example"),
    ],
)
def test_a_wrong_call_for_a_setting_shows_the_form_to_write(
    folder: Path, setting: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """OPS-10."""
    assert cli.invoke(["table", "set", "one", setting]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def columns_of(folder: Path) -> dict[str, str | None]:
    """The overrides in force: the type of each column, None if it is dropped."""
    overrides = Overrides(str(folder)).columns().get("one", ())
    return {o.name: None if o.column is None else str(o.column.type) for o in overrides}


def test_columns_are_added_changed_and_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EVO-2: the newest change of a column counts, beside bounds; `status` has the lines to paste,
    until the configuration has them.
    """
    add = ["table", "alter", "one", "add-column", "note", "STRING"]
    assert cli.invoke(add) == 2
    assert "--family" in capsys.readouterr().err
    assert cli.invoke([*add, "--family", "f", "--qualifier", "\udcff"]) == 2
    assert "UTF-8" in capsys.readouterr().err
    assert cli.invoke([*add, "--family", "f", "--default", "x"]) == 0
    assert "note is added before the next apply" in capsys.readouterr().err
    assert cli.invoke(["table", "set", "one", "max_staleness=5m"]) == 0
    assert cli.invoke(["table", "alter", "one", "set-default", "note", "--none"]) == 0
    add[4:] = ["number", "int64", "--family", "f", "--qualifier", "n"]
    assert cli.invoke(add) == 0
    assert cli.invoke(["table", "alter", "one", "drop-column", "NUMBER"]) == 0
    assert columns_of(folder) == {"note": "STRING", "number": None}
    add[4:] = ["tags", "array<string>", "--family", "f"]
    assert cli.invoke(add) == 0
    assert columns_of(folder)["tags"] == "ARRAY<STRING>"
    assert cli.invoke(["table", "alter", "one", "drop-column", "tags"]) == 0
    capsys.readouterr()
    assert bounds(capsys) == (600, 300)
    assert cli.invoke(["status"]) == 0
    shown = capsys.readouterr().out
    lines = shown[shown.index("[[tables.one.columns]]") :].partition("\nrun:")[0]
    assert 'name = "note"' in lines
    settled = Overrides(str(folder)).columns()["one"]
    Overrides(str(folder)).settle(settled[1:], 1, "ada")
    assert columns_of(folder) == {"note": "STRING"}
    assert bounds(capsys) == (600, 300)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["add-column", "x", "STRING", "--family", "f", "--qualifier", "c"],
            "Only one column can show",
        ),
        (["add-column", "c", "INT64", "--family", "f"], "Table one has a column c"),
        (["add-column", "C", "STRING", "--family", "f"], "Table one has a column C"),
        (["add-column", "x", "TEXT", "--family", "f"], "'TEXT' is not a type of a column"),
        (["add-column", "_x", "STRING", "--family", "f"], "begin with _"),
        (["add-column", "x", "INT64", "--family", "f", "--default", "y"], "default of column x"),
        (["drop-column", "d"], "no column d"),
        (["set-default", "d", "1"], "no column d"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    """EVO-2, EVO-3: nothing is stored."""
    column = '[[tables.one.columns]]\nname = "c"\nfamily = "f"\ntype = "STRING"\n'
    (folder.parent / "connector.toml").write_text(SETTINGS + column)
    assert cli.invoke(["table", "alter", "one", *words]) == 1
    assert text in capsys.readouterr().err
    assert columns_of(folder) == {}


COLUMN = '[[tables.one.columns]]\nname = "c"\nfamily = "f"\ntype = "STRING"\n'
DROPS = "keep_unmapped = false\n"


@pytest.mark.parametrize(
    ("declared", "stored", "cells", "advised"),
    [
        (COLUMN, COLUMN, [("f", b"note")], "note STRING --family f"),
        (DROPS + COLUMN, DROPS + COLUMN, [("f", b"note")], ""),
        (DROPS + COLUMN, COLUMN, [("f", b"note")], ""),
        (COLUMN, DROPS + COLUMN, [("f", b"note")], ""),
        (DROPS + COLUMN, None, [("f", b"note")], "note STRING --family f"),
        (COLUMN, COLUMN, [("g", b"C")], ""),
        (COLUMN, COLUMN, [("g", b"C"), ("g", b"d")], "d STRING --family g"),
        (COLUMN, COLUMN, [("f", b"row_key"), ("-f", b"x")], "x STRING --family -f"),
        (COLUMN, COLUMN, [("f", b"_a"), ("f", b"1"), ("f", b"\xff"), ("f", b"c" * 301)], ""),
        ("", COLUMN, [("f", b"note")], ""),
    ],
    ids=[
        *("plain", "drops unmapped cells", "will drop them", "dropped them", "no table yet"),
        *("name taken", "first name taken", "name of the key", "no names", "a lost column"),
    ],
)
def test_status_advises_a_column_that_can_be_added(
    folder: Path, declared: str, stored: str | None, cells: list[tuple[str, bytes]], advised: str
) -> None:
    """EVO-2, EVO-3, OPS-5: in each state of a table, the advised command is not refused, and where
    there is no advice, adding a column for a cell is refused.
    """
    path, ids = folder.parent / "connector.toml", None
    if stored is not None:
        path.write_text(SETTINGS + stored)
        definition = load_config(path, {}).tables["one"]
        ids = assign_ids(NO_IDS, definition)
        log_table(folder, "one", TableState(), to_properties(definition, ids))
    path.write_text(SETTINGS + declared)
    table = load_config(path, {}).tables["one"]
    existing = None if ids is None else (definition, ids)
    column = column_to_add(table, existing, (), cells)
    lines = add_column(replace(table_status(table, TableState(), None, 0), column_to_add=column))
    assert lines == [f"connector table alter one add-column {advised}"] * bool(advised)
    for line in lines:
        assert cli.invoke(shlex.split(line)[1:]) == 0
    for family, name in cells if not lines else ():
        words = ["add-column", "--family", family, "--", name.decode("utf-8", "replace"), "STRING"]
        assert cli.invoke(["table", "alter", "one", *words]) == 1


def test_a_default_outranks_only_the_default(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EVO-2: the other settings of the column are those of the file. An encoding may be binary."""
    column = '[[tables.one.columns]]\nname = "c"\nfamily = "f"\ntype = "INT64"\n'
    (folder.parent / "connector.toml").write_text(SETTINGS + column)
    assert cli.invoke(["table", "alter", "one", "set-default", "c", "7"]) == 0
    alter = ["table", "alter", "one", "add-column", "d", "INT64", "--family", "f"]
    assert cli.invoke([*alter, "--encoding", "binary"]) == 0
    (override, added) = Overrides(str(folder)).columns()["one"]
    assert added.column is not None
    assert added.column.encoding is Encoding.BINARY
    (folder.parent / "connector.toml").write_text(SETTINGS + column + "required = true\n")
    declared = load_config(folder.parent / "connector.toml", {}).tables["one"]
    (wanted, _) = with_overrides(declared, [override, added]).columns
    assert (wanted.default, wanted.required) == ("7", True)
    capsys.readouterr()
    assert cli.invoke(["status"]) == 0
    assert 'default = "7"' in capsys.readouterr().out
    same = replace(declared, columns=(replace(declared.columns[0], default="7"),))
    assert (override.agrees_with(declared), override.agrees_with(same)) == (False, True)


def test_status_shows_a_refused_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EVO-8: setting, reason and remedy; a configuration that is taken ends it."""
    path, events = folder.parent / "connector.toml", list[Event]()
    file = ConfigFile(path, {})
    reloads = Reloads(file, Overrides(str(folder)), events.append)
    store(folder, here())
    assert reloads.next_config() is None
    for text, setting in (
        (SETTINGS.replace("10m", "10 parsecs"), "max_staleness"),
        (SETTINGS.replace("[streams.s]", '[streams.s]\ntrigger = "9s"'), "streams.s.trigger"),
    ):
        path.write_text(text)
        assert reloads.next_config() is None
        assert reloads.next_config() is None, "it is said once"
        path.write_text(SETTINGS)  # for the command
        assert cli.invoke(["status"]) == 0
        shown = capsys.readouterr().out
        assert "did not take the newest configuration" in shown
        assert setting in shown
        assert reloads.next_config() is None
    assert {event.code for event in events} == {"RELOAD_REFUSED"}
    assert cli.invoke(["status"]) == 0
    assert "did not take" not in capsys.readouterr().out
    path.write_text(SETTINGS.replace("10m", "20m"))
    taken = reloads.next_config()
    assert taken is not None
    assert taken.tables["one"].max_staleness_s == 1200
    file.ask()
    assert reloads.next_config() is None, "asked for, but the same"


@pytest.mark.parametrize("kind", JobKind)
@pytest.mark.parametrize(("error", "cpu_us"), [("", 7), ("", 0), ("no space", 0)])
def test_jobs_show_only_figures_that_they_know(
    folder: Path, capsys: pytest.CaptureFixture[str], kind: JobKind, error: str, cpu_us: int
) -> None:
    """JOB-1: the processor time of an apply may be 0.0 s, and that of a compaction is not known."""
    jobs = [Job(kind, "one", 5, 6, error=error, cpu_us=cpu_us)]
    table_commands._print_sums(sums_by(Period.HOUR, jobs))
    sums = capsys.readouterr().out.splitlines()[-1]
    table_commands._print(jobs, with_owner=False)
    job = capsys.readouterr().out.splitlines()[-1].removesuffix(error)
    shown = {"cpu_us": "0.0 s", "changes": "0", "letters": "0", "bytes_read": "0.0 MB"}
    shown |= {"bytes_written": "0.0 MB"}
    known = [name for name in shown if name in FIGURES[kind] and not error]
    if kind is JobKind.APPLY and not cpu_us:  # of an older release
        known = [name for name in known if name in ("changes", "letters")]
    took = ["1", "1" if error else "0", "0.0", "s"]
    words = 1 + len(kind.split("_")) if kind not in MAINTENANCE else 2
    assert sums.split()[words:] == [*took, *" ".join(shown[name] for name in known).split()]
    counts = ["0" for name in known if name in ("changes", "letters")]
    files = ["0", "files"] if kind in MAINTENANCE and not error else []
    assert job.split()[words:] == ["0.0", "s", *files, *counts]


def test_a_refused_configuration_is_taken_once_its_reason_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EVO-8: for example, a table cannot be read for a moment, or a column is dropped. The content
    of the file stays the same. A new column of a source waits for it, too.
    """
    path, events = folder.parent / "connector.toml", list[Event]()
    reloads = Reloads(ConfigFile(path, {}), Overrides(str(folder)), events.append)
    problems = iter([table_unreadable("one", "it does not answer")] * 2)

    def existing(*_: object) -> dict[str, Any]:
        for problem in problems:
            raise problem
        return {}

    monkeypatch.setattr(Reloads, "_existing", existing)
    path.write_text(SETTINGS.replace("10m", "20m"))
    assert (reloads.next_config(), reloads.next_config()) == (None, None)
    assert [event.code for event in events] == ["RELOAD_REFUSED"], "it is said once"
    assert refused_reload(load_config(path, {})) is not None
    taken = reloads.next_config()
    assert taken is not None
    assert taken.tables["one"].max_staleness_s == 1200
    assert refused_reload(load_config(path, {})) is None
    reloads.go_back(table_unreadable("one", "it does not answer"))
    assert (reloads.next_config(), len(events)) == (None, 2), "no pipeline began with it"


def test_jobs_are_summed_by_hour(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JOB-1"""
    hour_us, history = 3_600_000_000, History(str(folder))
    hour = time.time_ns() // 1000 // hour_us * hour_us - 2 * hour_us
    for number in range(4):
        ended_at = hour + number * hour_us // 2
        done = Job(JobKind.APPLY, "one", ended_at - 5, ended_at, changes=number, cpu_us=7)
        history.add_job(done)
    history.add_job(Job(JobKind.AUDIT, "", hour, hour + 1, stream="s", error="lost"))
    assert cli.invoke(["jobs", "--by", "hour", "--json"]) == 0
    sums = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(s["kind"], s["jobs"], s["failed"], s["changes"], s["cpu_us"]) for s in sums] == [
        ("apply", 2, 0, 5, 14),
        ("apply", 2, 0, 1, 14),
        ("audit", 1, 1, 0, 0),
    ]
    assert cli.invoke(["jobs", "--by", "day"]) == 0
    assert "5 jobs within 1d" in capsys.readouterr().err
    assert cli.invoke(["jobs", "--kind", "audit"]) == 0
    shown = capsys.readouterr()
    assert "lost" in shown.out
    assert "apply" not in shown.out
    assert cli.invoke(["jobs", "--within", "10m"]) == 0
    assert "0 jobs within 10m" in capsys.readouterr().err


def test_a_configuration_is_compared_again_once_its_tables_can_be_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """EVO-8, RUN-1: the file does not change a second time."""
    path, events = folder.parent / "connector.toml", list[Event]()
    reloads = Reloads(ConfigFile(path, {}), Overrides(str(folder)), events.append)
    store(folder, here())
    commit = folder / f"tables/one/data/_delta_log/{0:020}.json"
    commit.parent.mkdir(parents=True)
    commit.write_bytes(b"{")
    path.write_text(SETTINGS.replace("10m", "20m"))
    for _ in range(2):
        assert reloads.next_config() is None
    assert [event.code for event in events] == ["RELOAD_REFUSED"], "it is said once"
    commit.unlink()
    taken = reloads.next_config()
    assert taken is not None
    assert taken.tables["one"].max_staleness_s == 1200
    assert cli.invoke(["status"]) == 0
    assert "did not take" not in capsys.readouterr().out

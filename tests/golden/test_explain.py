"""SUB-6: each row of the golden warehouse is explained without a JVM, and the explanation makes the
row.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable

from connector import cli
from connector.cli.explain import facts, messages
from connector.config.settings import ConnectorConfig, KafkaConfig
from connector.errors import BrokerError, ConfigError, TableError
from connector.lake.overrides import Overrides
from connector.records.ordering import OrderPosition
from connector.records.rejection import Reason
from connector.services import explain, read
from connector.services.rows.explain import RowHistory
from connector.state.erased_keys import EraseKey, key_hash
from connector.tables.explain import Outcome
from tests.golden.make_warehouse import EXPECTED, FOLDER, TABLE, as_json
from tests.spark.streams import STREAM

CONFIG = ConnectorConfig(
    str(FOLDER), KafkaConfig("127.0.0.1:1"), None, {"s": STREAM}, {"accounts": TABLE}
)
KEYS = "abcdefghi"


def explained(key: str, config: ConnectorConfig = CONFIG) -> RowHistory:
    return explain(config, "accounts", key.encode(), ask_kafka=False)


@pytest.mark.parametrize(("which", "attribute"), [("merged", "row"), ("applied", "applied_row")])
def test_each_row_is_the_one_that_was_written(which: str, attribute: str) -> None:
    rows = {key: getattr(explained(key), attribute) for key in KEYS}
    by_key = {key: row for key, row in rows.items() if row is not None}
    assert as_json(by_key) == json.loads(EXPECTED.read_text())[which]


@pytest.mark.parametrize("key", KEYS)
def test_the_winners_are_the_row(key: str) -> None:
    """The values that won, and no others, are in the row; the table says the same as the
    changelog.
    """
    found = explained(key)
    won = {
        f"{column.family}:{column.qualifier.decode()}": entry.entry.value.decode()
        for column in found.explanation.columns
        for entry in column.entries
        if entry.outcome is Outcome.WON
    }
    row = found.row or {}
    cells = {
        f"f:{name}": str(row[name]) for name in ("name", "amount") if row.get(name) is not None
    }
    unmapped: Any = row.get("_unmapped") or {}
    assert won == cells | {name: value.decode() for name, value in unmapped.items()}
    assert (found.is_known, found.is_confirmed, found.trimmed_to) == (True, True, 0)
    orders = [change.order for change in found.changes]
    assert orders == sorted(order for order in orders if order is not None)


def test_a_late_change_stays_hidden_by_the_deletion() -> None:
    found = explained("c")
    assert found.row is None
    assert [
        (one.change.commit_timestamp, one.is_late, one.is_applied) for one in found.changes
    ] == [
        (12, False, True),
        (51, True, False),
        (52, False, True),
    ]
    (deletion,) = found.explanation.deletions
    assert (deletion.order.rank[0], deletion.hides) == (52, 3)
    name = found.explanation.columns[1]
    assert (name.qualifier, name.winner) == (b"name", None)
    assert [(entry.entry.value, entry.outcome) for entry in name.entries] == [
        (b"c", Outcome.OVERWRITTEN),
        (b"late", Outcome.DELETED),
    ]
    assert name.entries[1].lost_to == deletion.order


def test_the_version_that_first_showed_the_row_is_named() -> None:
    versions = {key: explained(key).shown_since for key in KEYS}
    assert {key: one and (one.version, one.or_earlier) for key, one in versions.items()} == {
        **dict.fromkeys("gh", (1, False)),
        **dict.fromkeys("abc", (2, False)),
        **dict.fromkeys("defi"),
    }


def test_a_version_may_be_earlier_than_the_log(tmp_path: Path) -> None:
    """The table of the first version has left the log."""
    copytree(FOLDER, tmp_path / "w")
    data = tmp_path / "w/tables/accounts/data"
    DeltaTable(str(data)).create_checkpoint()
    for version in (0, 1):
        (data / f"_delta_log/{version:020}.json").unlink()
        (data / f"_delta_log/{version:020}.crc").unlink(missing_ok=True)
    config = ConnectorConfig(str(tmp_path / "w"), CONFIG.kafka, None, CONFIG.streams, CONFIG.tables)
    since = explained("g", config).shown_since
    assert since is not None
    assert (since.version, since.or_earlier) == (2, True)


@pytest.mark.systems
def test_a_winner_may_have_left_the_changelog(tmp_path: Path) -> None:
    """TBL-15: the table has its value and its order, and the missing batches are named."""
    copytree(FOLDER, tmp_path / "w")
    config = ConnectorConfig(str(tmp_path / "w"), CONFIG.kafka, None, CONFIG.streams, CONFIG.tables)
    changelog = DeltaTable(str(tmp_path / "w/streams/s/changelog"))
    stored = json.loads(changelog.history(1)[0]["userMetadata"])
    stored["lowmark"] |= {"commit": "trimmed", "trimmed_to": 1}
    changelog.delete(
        "ingest_batch <= 1 AND slot <> -2",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": json.dumps(stored)}),
    )
    for key in KEYS:
        found = explained(key, config)
        assert (found.row, found.applied_row) == (explained(key).row, explained(key).applied_row)
        assert (found.trimmed_to, found.is_confirmed, found.is_known) == (1, None, True)
        assert "batches up to 1" in found.not_looked_at[-1]
        values = {
            column.qualifier: column.winner.value
            for column in found.explanation.columns
            if column.winner is not None
        }
        assert values == {
            column.qualifier: column.winner.value
            for column in explained(key).explanation.columns
            if column.winner is not None
        }
    versions = {key: explained(key, config).shown_since for key in KEYS}
    assert {key: one and (one.version, one.or_earlier) for key, one in versions.items()} == {
        **dict.fromkeys("gh", (0, True)),
        **dict.fromkeys("abc", (2, True)),
        **dict.fromkeys("defi"),
    }
    columns = explained("a", config).explanation.columns
    assert [(one.qualifier, len(one.entries)) for one in columns] == [(b"amount", 0), (b"name", 1)]


def test_the_output_says_that_kafka_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise BrokerError("BROKER_UNREACHABLE", "Kafka does not answer", "", "Start it")

    monkeypatch.setattr("connector.services.rows.explain.from_kafka", fails)
    found = explain(CONFIG, "accounts", b"x")
    assert found.not_looked_at == ("The dead-letter topic: Kafka does not answer",)
    assert [letter.state for letter in found.dead_letters] == [None]


def test_the_rejected_record_is_a_dead_letter_of_its_key() -> None:
    """Its bytes cannot be decoded, so only its Kafka key says its row."""
    found = explained("x")
    (letter,) = found.dead_letters
    assert (letter.id, letter.reason, letter.is_certain) == (
        "id-1-0-5",
        Reason.UNKNOWN_FRAMING,
        False,
    )
    assert OrderPosition.parse(letter.order_position) == (1, 0, 5, 0)
    assert (letter.state, letter.is_replayed) == (None, False)
    assert (found.changes, found.row, found.is_known) == ((), None, True)
    assert found.not_looked_at == ("The dead-letter topic: Kafka was not asked",)


def test_a_key_that_never_existed_is_not_known() -> None:
    found = explained("z")
    assert (found.is_known, found.row, found.shown_since) == (False, None, None)


def test_values_of_the_key_columns_are_a_key() -> None:
    assert explain(CONFIG, "accounts", ("a",), ask_kafka=False).row == explained("a").row


def test_an_unknown_table_is_an_error() -> None:
    with pytest.raises(ConfigError):
        explain(CONFIG, "others", b"a")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(
        f'warehouse = "{FOLDER}"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n'
        '[streams.s]\ntopic = "orders"\n[tables.accounts]\nstream = "s"\nsource = "t"\n'
        '[tables.accounts.key]\nform = "row_key"\ncolumns = [{ name = "id", type = "STRING" }]\n'
    )
    return


@pytest.mark.usefixtures("settings")
def test_the_command_prints_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    """OPS-10: the row, its columns, its changes, and what each entry lost to."""
    assert cli.invoke(["explain", "accounts", "c", "--no-kafka"]) == 0
    printed = capsys.readouterr()
    assert "row          (none)" in printed.out
    assert "f:name = late: deleted by 2/1/7/0#0" in printed.out
    assert "not applied yet, late" in printed.out
    assert "delete f: hides 3 entries" in printed.out
    assert "not looked at: The dead-letter topic" in printed.err


@pytest.mark.usefixtures("settings")
def test_the_command_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["explain", "accounts", '["b"]', "--json", "--no-kafka"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["row"] == {"id": "b", "name": "b", "amount": 1, "_unmapped": {"f:colour": "blue"}}
    colour = found["columns"][1]
    assert (colour["column"], colour["value"], colour["won_by"]) == (None, "blue", "2/0/7/0#0")
    assert [change["position"] for change in found["changes"]] == ["1/0/1/0", "2/0/7/0"]
    assert found["shown_since"]["version"] == 2
    assert found["is_confirmed"] is True


@pytest.mark.usefixtures("settings")
def test_the_command_says_that_a_key_never_existed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.invoke(["explain", "accounts", "z", "--no-kafka"]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "accounts has no change of z: it never existed" in printed.err


def test_an_erased_row_is_not_one_that_never_existed(
    tmp_path: Path,
) -> None:
    """SUB-6, OPR-2: it is not a row that never existed, and no version will show it."""
    warehouse = copytree(FOLDER, tmp_path / "w")
    config = replace(CONFIG, warehouse=str(warehouse))
    overrides = Overrides(str(warehouse))
    for key in (b"b", b"z"):
        hashed = key_hash(overrides.erasure_secret(bytes(32)), TABLE.source, key)
        overrides.add(EraseKey(0, "s", TABLE.source, hashed, 1_714_475_984_000_000, "w", 1, "me"))
    unknown, known = (
        explained("z", config),
        replace(explained("b", config), shown_since=None, row=None),
    )
    assert unknown.erased_to == known.erased_to == 1_714_475_984_000_000
    erased = "it was erased, and changes up to 2024-04-30T11:19:44.000000Z are refused"
    assert f"accounts has no change of z: {erased}" in list(messages(unknown))
    assert ("shown since", f"no version of the table shows it: {erased}") in list(facts(known))
    (warehouse / "_connector/erasure_secret").unlink()
    lost = explained("z", config)
    assert lost.erased_to is None
    assert any(one.startswith("Erasures: ") for one in lost.not_looked_at)
    assert explained("a").erased_to is None


@pytest.mark.usefixtures("settings")
def test_a_wrong_key_is_a_wrong_call(capsys: pytest.CaptureFixture[str]) -> None:
    """OPS-10."""
    assert cli.invoke(["explain", "accounts", '["b", 2]', "--no-kafka"]) == 2
    assert "an array of 1 values, for id" in capsys.readouterr().err


def test_a_changelog_that_the_table_was_not_made_from_explains_nothing(tmp_path: Path) -> None:
    """SUB-6: its changes are not those of the table."""
    config = damaged(tmp_path, r'(\\"changelog_id\\":\\")\w+', r"\1another")
    with pytest.raises(TableError, match="replaced by another one") as caught:
        explained("a", config)
    assert caught.value.code == "CHANGELOG_REPLACED"
    shutil.rmtree(tmp_path / "warehouse/streams")
    with pytest.raises(TableError, match="the changelog was removed"):
        explained("a", config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rejected", "null"),
        ("rejected", '{\\\\"INVALID\\\\":null}'),
        ("external_dead_letters", '\\\\"x\\\\"'),
        ("ingest_batch", "1.5"),
    ],
)
def test_metadata_of_a_changelog_that_cannot_be_read_is_an_error(
    tmp_path: Path, key: str, value: str
) -> None:
    """SUB-6, TBL-14."""
    config = damaged(
        tmp_path, rf'(\\"progress\\":\{{.*?\\"{key}\\":)(\d+|\{{.*?\}})', rf"\g<1>{value}"
    )
    with pytest.raises(TableError, match="cannot be read") as caught:
        explained("a", config)
    assert caught.value.code == "COMMIT_UNREADABLE"


def test_an_old_commit_that_cannot_be_read_does_not_say_what_was_late(tmp_path: Path) -> None:
    """SUB-6."""
    pattern, batch = r'(\\"progress\\":\{.*?\\"low_watermark\\":)\d+', "00000000000000000003.json"
    config = damaged(tmp_path, pattern, r'\g<1>\\"x\\"', batch)
    (late,) = [one for one in explained("c", config).changes if one.ingest_batch == 3]
    assert late.is_late is None


def damaged(folder: Path, pattern: str, by: str, only: str = "*.json") -> ConnectorConfig:
    """A copy of the golden warehouse with other text in the commits of its changelog."""
    copytree(FOLDER, folder / "warehouse")
    found = 0
    for commit in (folder / "warehouse/streams/s/changelog/_delta_log").glob(only):
        text, count = re.subn(pattern, by, commit.read_text())
        found += count
        commit.write_text(text)
    assert found, "the test damages nothing"
    return replace(CONFIG, warehouse=str(folder / "warehouse"))


def test_a_table_that_another_program_committed_to_says_nothing_of_its_rows(tmp_path: Path) -> None:
    """SUB-6, TBL-14: without the state of the table, each change would seem not to be applied."""
    copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    config = replace(CONFIG, warehouse=str(tmp_path))
    DeltaTable(str(tmp_path / "tables/accounts/data")).delete("id = 'a'")
    table = DeltaTable(str(tmp_path / "tables/accounts/data"))
    table.alter.set_table_properties({"x.y": "z"}, raise_if_not_exists=False)
    with pytest.raises(TableError, match="does not belong to table accounts") as caught:
        explained("a", config)
    assert caught.value.code == "COMMIT_FOREIGN"
    with pytest.raises(TableError) as caught:
        read(config, "accounts", max_staleness_s=1)
    assert caught.value.code == "COMMIT_FOREIGN", "before Spark is started"

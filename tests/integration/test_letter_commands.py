"""`connector dead-letters` from end to end, as the person on call and as a script would use it
(DLQ-8 to DLQ-14).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from connector.config.settings import KafkaConfig
from connector.dead_letters.envelope import DeadLetter, replay_header
from connector.dead_letters.repair import content_of, view
from connector.kafka import DeadLetterPublisher
from connector.kafka.dead_letters.ledger_topic import read_ledger
from connector.kafka.topics import TopicFacts
from connector.records.codec import Schemas
from connector.records.json_view import to_line
from connector.records.rejection import Reason
from connector.state.stream_progress import Progress
from tests.broker import NewTopic
from tests.integration.test_commands import Shell
from tests.integration.test_dead_letter_queue import letter, received
from tests.unit.warehouses import log_progress


@pytest.fixture
def facts(new_topic: NewTopic) -> TopicFacts:
    return new_topic(kafka_partitions=2)


@pytest.fixture
def shell(
    kafka: KafkaConfig,
    facts: TopicFacts,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    text = (
        'warehouse = "wh"\n[kafka]\nbootstrap_servers ='
        f' "{kafka.bootstrap_servers}"\n[streams.s]\ntopic = "{facts.topic}"\n'
    )
    (tmp_path / "connector.toml").write_text(text)
    return Shell(tmp_path, capsys, monkeypatch)


@pytest.fixture
def letters(kafka: KafkaConfig, facts: TopicFacts) -> list[DeadLetter]:
    """Three that would be taken today, one under a wrong key, one too late, and one that is
    rubbish.
    """
    sent = [letter(facts, offset) for offset in range(3)]
    sent.append(letter(facts, 3, key=b"\x1b[2Jwrong", reason=Reason.KEY_MISMATCH))
    sent.append(letter(facts, 4, reason=Reason.TOO_LATE))
    sent.append(
        letter(
            facts,
            5,
            b"rubbish \x1b[2J",
            reason=Reason.UNKNOWN_FRAMING,
            detail="evil \x1b[31m \u202e",
        )
    )
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish(sent)
    return sent


def test_a_repeated_replay_with_wait_continues_the_wait(
    shell: Shell, letters: list[DeadLetter], kafka: KafkaConfig, facts: TopicFacts, tmp_path: Path
) -> None:
    """DLQ-14: until the tables show it, or it is rejected again."""
    replay = (
        "dead-letters",
        "replay",
        letters[0].id,
        "--execute",
        "--why",
        "the table is declared",
    )
    assert shell.run(*replay) == 0
    log_progress(tmp_path / "wh", "s", Progress(ingest_batch=1), {0: 99, 1: 99})
    assert shell.run(*replay) == 1
    assert shell.run(*replay, "--wait") == 0
    assert "all tables of s contain the replayed changes" in shell.err
    with DeadLetterPublisher(kafka, facts.topic) as publisher:
        publisher.publish([letter(facts, 50, headers=(replay_header(letters[0].id, 1),))])
    assert shell.run(*replay, "--wait") == 1
    assert "1 replay rejected again: 1 UNKNOWN_TABLE" in shell.err


def test_a_short_id_is_enough_to_act_on_a_letter(
    shell: Shell, letters: list[DeadLetter], kafka: KafkaConfig, facts: TopicFacts
) -> None:
    """OPR-6: and one that several letters have changes none of them."""
    rest = facts.topic_id[3:]
    ids = [letter.id for letter in letters[:3]]
    for action, letter_id in zip(("park", "discard", "replay"), ids, strict=True):
        act = ["dead-letters", action, "--why", "it is a test"]
        act += ["--execute"] if action == "replay" else []
        assert shell.run(*act, facts.topic_id[:3]) == 1
        assert letter_id in shell.err, "it names those that it may mean"
        assert shell.run(*act, letter_id.replace(rest, "")) == 0
    ledger = read_ledger(kafka, facts.topic)
    assert [[entry.action for entry in ledger.history(letter.id)] for letter in letters] == [
        ["parked"],
        ["discarded"],
        ["replayed"],
        *[[]] * 3,
    ]
    assert [found.source.key for found in received(kafka, facts)] == [letters[2].key]


def test_a_list_says_how_many_letters_it_left_out(
    shell: Shell, letters: list[DeadLetter], monkeypatch: pytest.MonkeyPatch
) -> None:
    """DLQ-8: letters and groups. JSON has all of them, unless the caller limits it."""

    def listed(*options: str) -> tuple[int, str]:
        assert shell.run("dead-letters", "list", *options) == 0
        return len(shell.out.splitlines()), shell.err

    monkeypatch.setattr("connector.cli.dead_letters.LETTERS_FOR_PEOPLE", 4)
    by_people, said = listed("--table", "t")
    assert (by_people, "5 dead letters of " in said) == (4, True)
    assert "1 dead letter left out; use --limit for more\n" in said
    assert listed("--table", "t", "--limit", "5")[0] == 5
    for options, lines, left_out in (
        (("--json",), 6, ""),
        (("--json", "--limit", "2"), 2, "4 dead letters left out"),
        (("--json", "--by", "reason", "--limit", "1"), 1, "3 dead letters left out"),
        (("--json", "--by", "reason"), 4, ""),
    ):
        number, said = listed(*options)
        assert (number, "left out" in said, left_out in said) == (lines, bool(left_out), True)


def test_a_rule_in_place_of_a_reason_is_named_its_option(shell: Shell) -> None:
    """OPS-10"""
    assert shell.run("dead-letters", "list", "--reason", "ROW_KEY") == 2
    assert "If it is a rule, use --rule." in shell.err


def test_from_the_first_look_to_the_last_letter(
    shell: Shell,
    letters: list[DeadLetter],
    kafka: KafkaConfig,
    facts: TopicFacts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DLQ-8 to DLQ-14: look, dry run, replay, repair, park, discard, reopen, export; nothing raw
    reaches the terminal (DLQ-9).

    poison_is_contained: rejected records are explained, repaired and replayed.
    """
    seen = []

    def run(*arguments: str) -> int:
        code = shell.run("dead-letters", *arguments)
        seen.append(shell.out + shell.err)
        return code

    assert run("list", "--by", "state,table", "--json") == 0
    assert {
        (group["table"], group["letters"]) for group in map(json.loads, shell.out.splitlines())
    } == {("t", 5), ("", 1)}
    assert run("list", "--key-prefix", "row-1", "--offsets", "0..1") == 0
    assert shell.out.split()[0] == letters[1].id

    # A dry run sends nothing; what it is for must be said, and why, before anything is.
    assert run("replay") == 2
    assert run("replay", "--all", "--execute") == 2
    assert run("replay", "no-such-letter") == 1
    assert run("replay", "--all") == 1
    assert "would be replayed 3, parked after too many attempts 0, refused 3" in shell.err
    assert "it would be rejected again as KEY_MISMATCH" in shell.out
    assert "connector dead-letters show --new-change" in shell.err
    assert [word for word in ("would replay", "would refuse") if word not in shell.out] == []
    assert run("replay", letters[0].id, "--json") == 0
    shown = json.loads(shell.out)
    assert shown["record"]["data_change"]["row_key"] == shown["key"] == "row-0"
    assert received(kafka, facts) == []

    assert (
        run(
            "replay",
            "--reason",
            "UNKNOWN_TABLE",
            "--execute",
            "--why",
            "the table is declared",
            "--max-changes-per-s",
            "100",
        )
        == 0
    )
    assert run("replay", "--reason", "unknown_table", "--execute", "--why", "again") == 0
    assert run("replay", letters[0].id, "--execute", "--why", "again") == 1
    assert "it is already replayed" in shell.err
    assert (
        run(
            "replay",
            "--reason",
            "KEY_MISMATCH",
            "--repair",
            "unset key",
            "--execute",
            "--why",
            "typo",
        )
        == 0
    )
    assert sorted(found.source.key or b"" for found in received(kafka, facts)) == [
        b"row-0",
        b"row-0",
        b"row-1",
        b"row-2",
    ]

    assert run("replay", letters[4].id, "--execute", "--why", "too late") == 1
    assert "connector dead-letters show --new-change" in shell.err
    assert run("show", letters[4].id, "--new-change") == 1
    assert "The low watermark is not known" in shell.err
    assert run("show", letters[4].id, "--new-change", "--json") == 2

    assert run("park", letters[4].id, "--why", "ask the source") == 0
    assert run("discard", "--state", "any", "--reason", "TOO_LATE", "--why", "sent again") == 0
    assert run("reopen", "--all", "--why", "by mistake") == 0
    assert run("reopen", letters[0].id, "--why", "by mistake") == 1
    assert "already replayed" in shell.err
    assert run("show", letters[4].id) == 0
    assert [
        word
        for word in ("parked", "discarded", "reopened", "ask the source")
        if word not in shell.out
    ] == []

    monkeypatch.setattr("click.edit", lambda text, extension: text.replace('"t"', '"people"'))
    assert run("replay", letters[0].id, "--edit", "--json") == 1
    assert json.loads(shell.out)["why"] == "it is already replayed"
    monkeypatch.setattr("click.edit", lambda text, extension: None)
    assert run("replay", letters[3].id, "--edit") == 1
    assert "You changed nothing" in shell.err
    assert run("replay", letters[3].id, "--repair", "reframe own@99999", "--edit") == 1
    assert "the value has" in shell.err
    good = to_line(view(content_of(letters[2]), Schemas()))
    monkeypatch.setattr("click.edit", lambda text, extension: good)
    assert run("replay", letters[5].id, "--edit", "--json") == 0
    shown = json.loads(shell.out)
    assert [step.partition("=")[0] for step in shown["repair"]] == ["set record"]
    assert shown["record"]["data_change"]["row_key"] == shown["key"] == "row-2"

    export = ("export", "--state", "any", "--output", str(tmp_path / "letters.jsonl"))
    assert run(*export) == 0
    assert run(*export) == 2  # the file exists
    exported = [json.loads(line) for line in (tmp_path / "letters.jsonl").read_text().splitlines()]
    assert {one["id"]: one["state"] for one in exported} == {
        found.id: "open" if number > 3 else "replayed" for number, found in enumerate(letters)
    }
    assert next(one for one in exported if one["id"] == letters[3].id)["history"][0]["repair"][
        "steps"
    ] == ["unset key"]
    assert run("list") == 0
    assert shell.err.startswith("2 dead letters")
    assert not {char for text in seen for char in text if not char.isprintable()} - {"\n"}

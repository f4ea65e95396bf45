"""`spark.decode.validated` and `validation.validate_record`: the same verdict on every record, and
the same record where it is good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from connector.engine.rules import RecordRules
from connector.records.codec import SCHEMA, Schemas, read
from connector.records.model import (
    Rule,
)
from connector.records.rejection import Reason, Rejection
from connector.spark.ingest.validate import RECORD, validated
from connector.validation import (
    Limits,
    RowImages,
    UnknownFields,
    validate_record,
)
from tests.changes import NEWER_SCHEMA
from tests.record_cases import (
    ARRIVAL_MS,
    CHANGE,
    SKEW_S,
    TOPIC_PARTITIONS,
    Case,
    aged_cases,
    cases_of_every_kind,
    cases_of_many_entries,
    cases_of_two_rules,
    key_cases,
    limit_cases,
    old_cases,
    settings_cases,
)

ROWS = """key binary, value binary, topic string, partition int, offset bigint,
timestamp_ms bigint, timestampType int,
    headers array<struct<key: string, value: binary>>"""
pytestmark = pytest.mark.usefixtures("compiled")


def rows(spark: SparkSession, cases: Sequence[Case]) -> DataFrame:
    """The cases as Spark's Kafka source gives them; the offset is the place of the case."""
    plain = [
        (case.key, case.value, "t", 0, place, case.arrival_ms, 1, [("a", b"b")])
        for place, case in enumerate(cases)
    ]
    frame_ = spark.createDataFrame(plain, ROWS)
    return frame_.selectExpr(
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp_millis(timestamp_ms) AS timestamp",
        "timestampType",
        "headers",
    )


def assert_agreement(
    spark: SparkSession,
    cases: Sequence[Case],
    *,
    schemas: Schemas,
    limits: Limits = Limits(max_clock_skew_s=SKEW_S),  # noqa: B008
    tables: frozenset[str] | None = None,
    ask_registry: bool = False,
    horizon: int | None = None,
) -> set[str]:
    """Both forms say the same of each case. Returns what they said: reasons, names of rules, and
    GOOD.
    """
    rules = RecordRules(
        limits=limits,
        kafka_partitions=TOPIC_PARTITIONS,
        tables=tables,
        known_tables=frozenset({"t"}),
        known_families=frozenset({"cf"}),
        horizon=horizon,
    )
    frame_ = validated(rows(spark, cases), schemas, rules, ask_registry=ask_registry)
    got = {
        row["offset"]: row.asDict(recursive=True)
        for row in frame_.select("offset", "reason", "rule", *RECORD).collect()
    }
    assert len(got) == len(cases)
    said = set()
    differing = []
    for place, case in enumerate(cases):
        verdict = validate_record(
            case.record,
            schemas=schemas,
            limits=limits,
            kafka_partitions=TOPIC_PARTITIONS,
            tables=tables,
            horizon=horizon,
        )
        row = got[place]
        record = {name: row[name] for name in RECORD}
        in_spark = (
            row["reason"],
            row["rule"] or "",
            record if any(value is not None for value in record.values()) else None,
        )
        if isinstance(verdict, Rejection):
            said.add(verdict.rule or verdict.reason)
            expected: tuple[Any, ...] = (verdict.reason, verdict.rule, None)
        else:
            said.add("GOOD")
            expected = (None, "", read(case.value, schemas))
        if in_spark != expected:
            differing.append(
                (case.name, case.value and case.value[:300], in_spark, expected, verdict)
            )
    assert not differing, (len(differing), differing[:5])
    return said


def test_records_of_every_kind_are_validated_and_read_the_same(
    spark: SparkSession, seed: int
) -> None:
    """TBL-3, REC-14, REC-15, WRS-16: good ones, and such as lie at the edge of a limit or
    beyond.
    """
    cases = cases_of_every_kind(seed)
    said = assert_agreement(spark, cases, schemas=Schemas())
    assert {"GOOD", Reason.COMMIT_TIMESTAMP_IN_FUTURE, Reason.WATERMARK_IN_FUTURE} <= said


def test_the_age_of_a_change_is_validated_the_same(spark: SparkSession) -> None:
    """MRG-11, WRS-20: at the horizon, a microsecond before it and after it. A release has an age,
    as a change; a staged change and the other control records have none.
    """
    at = CHANGE.commit_timestamp
    cases = aged_cases()
    late = [validate_record(case.record, **AGED, horizon=at) for case in cases]
    assert [isinstance(verdict, Rejection) for verdict in late] == [
        *(away < 0 for _ in range(3) for away in (-1, 0, 1)),
        *(False, False),
    ]
    assert assert_agreement(spark, cases, schemas=Schemas(), horizon=at) == {
        "GOOD",
        Reason.TOO_LATE,
    }


def test_rules_of_a_stream_are_validated_the_same(spark: SparkSession, seed: int) -> None:
    """ING-3, ING-7, EVO-10"""
    schemas = Schemas({7: SCHEMA, 9: NEWER_SCHEMA})
    cases = settings_cases(seed)
    asked: dict[str, Any] = {"schemas": schemas, "ask_registry": True}
    assert assert_agreement(spark, cases, **asked) == {"GOOD"}
    limits = Limits(
        max_clock_skew_s=SKEW_S, unknown_fields=UnknownFields.REJECT, row_images=RowImages.REJECT
    )
    assert assert_agreement(spark, cases, **asked, limits=limits) == {
        "GOOD",
        Rule.UNKNOWN_FIELDS,
        Rule.ROW_IMAGE,
    }


AGED: dict[str, Any] = {
    "schemas": Schemas(),
    "limits": Limits(max_clock_skew_s=SKEW_S),
    "kafka_partitions": TOPIC_PARTITIONS,
    "tables": None,
}


def test_each_rule_is_validated_the_same_on_both_sides_of_its_limit(spark: SparkSession) -> None:
    """REC-10, REC-14, REC-16, WRS-4, WRS-16: one rule at a time, and every rule there is."""
    cases = limit_cases()
    said = assert_agreement(spark, cases, schemas=Schemas())
    by_schema, by_settings = {Rule.LOGICAL_TYPE}, {Rule.UNKNOWN_FIELDS, Rule.ROW_IMAGE}
    always = set(Rule) - by_schema - by_settings
    assert said == {"GOOD", *always, Reason.UNKNOWN_ENTRY, Reason.INVALID_SEQUENCE_NUMBER}


def test_of_two_broken_rules_both_name_the_same(spark: SparkSession, seed: int) -> None:
    """REC-16: the order in which faults are looked for is part of the definition."""
    cases = cases_of_two_rules(seed)
    assert_agreement(spark, cases, schemas=Schemas(), tables=frozenset({"t"}))


@pytest.mark.long
def test_a_hundred_thousand_entries_are_the_limit(spark: SparkSession) -> None:
    """REC-14: and judging them needs no more stack than judging one."""
    cases = cases_of_many_entries()
    assert assert_agreement(spark, cases, schemas=Schemas()) == {
        "GOOD",
        Rule.ENTRY_COUNT,
        Rule.FAMILY,
    }


def test_keys_clocks_sizes_and_tables_are_validated_the_same(spark: SparkSession) -> None:
    """REC-1, REC-3, REC-14, REC-15, TBL-7, WRS-20, to the byte and to the millisecond."""
    cases = key_cases()
    limits = Limits(max_clock_skew_s=SKEW_S, max_record_bytes=300)
    future = {Reason.COMMIT_TIMESTAMP_IN_FUTURE, Reason.WATERMARK_IN_FUTURE}
    expected = {
        "GOOD",
        Reason.TOO_LARGE,
        Reason.KEY_MISMATCH,
        *future,
        Reason.UNKNOWN_TABLE,
        Reason.UNDECODABLE,
        Reason.UNKNOWN_FRAMING,
    }
    assert (
        assert_agreement(
            spark, cases, schemas=Schemas(), limits=limits, tables=frozenset({"t", "v.1"})
        )
        == expected
    )
    assert "GOOD" in assert_agreement(spark, cases, schemas=Schemas(), tables=frozenset())
    endless = Limits(max_clock_skew_s=2**63)
    assert not future & assert_agreement(spark, cases, schemas=Schemas(), limits=endless)


def test_times_that_are_too_old_are_validated_the_same(spark: SparkSession) -> None:
    """ING-6: of changes, releases and other control records, to the microsecond; with tables and a
    horizon beside them. A staged change has no time (WRS-11).
    """
    least = ARRIVAL_MS * 1000
    cases = old_cases(least)
    for limits in (Limits(min_commit_timestamp=least), Limits(min_commit_timestamp=1), Limits()):
        is_on = limits.min_commit_timestamp == least
        for tables, horizon in ((None, None), (frozenset({"other"}), least + 1)):
            said = assert_agreement(
                spark, cases, schemas=Schemas(), limits=limits, tables=tables, horizon=horizon
            )
            assert (Reason.COMMIT_TIMESTAMP_TOO_OLD in said) is is_on, (limits, said)
            assert "GOOD" in said

"""Decodes and validates records in Spark: `connector.validation.validate_record`, which is the
definition, as one expression (TBL-3). A test compares both. Two methods make one pass enough:

* A tail is appended to the body and to the writer schema. If decoding returns the tail, exactly the
  body was decoded. If not, the body was truncated, too long, or not a record (REC-13). The tail is
  random, so that a body cannot contain it.
* A schema id that was not read from the registry yet stops the pass with `UNSEEN_SCHEMA`. The
  caller reads it and runs the pass again. This happens once for each schema.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import fastavro
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from connector.engine.rules import RecordRules
from connector.records import avro_plan, codec
from connector.records.model import (
    BRANCHES,
    CONTROL_KEY,
    FAMILY_PATTERN,
    MAX_ENTRIES,
    MAX_QUALIFIER_BYTES,
    MAX_RANGES,
    MAX_RESUME_TOKEN_BYTES,
    MAX_ROW_KEY_BYTES,
    MAX_STREAM_PARTITION_BYTES,
    MAX_TIMESTAMP,
    SEQUENCE_NUMBER_PATTERN,
    TABLE_PATTERN,
    WRITE_STREAM_PATTERN,
    Rule,
)
from connector.records.ordering import Rank
from connector.records.rejection import Reason
from connector.spark.ingest.erased import without_erased
from connector.spark.sql import constant, named, skew_us
from connector.validation import BEGINNING, Limits, RowImages, UnknownFields

UNSEEN_SCHEMA: Final = "lowmark: a schema id that the registry was not asked about"

RECORD: Final = (
    "stream_partition",
    "kafka_partitions",
    "data_change",
    "heartbeat",
    "child_partitions",
    "release",
    "truncate",
)
"""The fields of `ChangeRecord`."""

KEEPS_VALUE: Final = "keeps_value"
"""Whether the bytes of a valid record are kept, because its schema has unknown fields (EVO-10)."""

_TAIL: Final = secrets.token_bytes(8)


def validated(
    rows: DataFrame, schemas: codec.Schemas, rules: RecordRules, *, ask_registry: bool
) -> DataFrame:
    """The columns of Kafka, `reason` and `rule` (null for a valid record), the fields of the record
    (`RECORD`, null for a rejected one), and `KEEPS_VALUE`.

    `rows` are those of Spark's Kafka source. With `ask_registry`, a schema id that `schemas` does
    not know fails the query.
    """
    decoded = rows.select("*", _decoded(schemas, ask_registry, rules.limits).alias("framed"))
    flat = decoded.select(*rows.columns, "framed.record.*", F.col("framed.tail").alias("tail"))
    in_microseconds = _in_microseconds(flat, schemas)
    # Two rules use it, and it is the most expensive check.
    matched = in_microseconds.select(
        "*", F.expr(_families_match(rules.known_families)).alias("families_match")
    )
    marked = matched.select("*", F.expr(_verdict(schemas, rules)).alias("verdict"))
    if rules.erased.erased_to:
        marked = without_erased(marked, rules.erased, RECORD)
    return marked.select(
        *rows.columns,
        F.expr("substring_index(verdict, '/', 1)").alias("reason"),
        F.expr("CASE WHEN contains(verdict, '/') THEN substring_index(verdict, '/', -1) END").alias(
            "rule"
        ),
        *(F.expr(f"CASE WHEN verdict IS NULL THEN {name} END").alias(name) for name in RECORD),
        F.expr(f"verdict IS NULL AND {_is_of(codec.unknown_fields(schemas))}").alias(KEEPS_VALUE),
    )


def schema_ids(rows: DataFrame) -> DataFrame:
    """The distinct schema ids in the Confluent framing of `rows`, as `id`."""
    return rows.where(_HAS_CONFLUENT_ID).select(F.expr(CONFLUENT_ID).alias("id")).distinct()


_HAS_CONFLUENT_ID: Final = (
    f"substring(value, 1, 1) = X'{codec.CONFLUENT.hex()}' AND octet_length(value) >="
    f" {codec.CONFLUENT_BYTES}"
)
CONFLUENT_ID: Final = "cast(conv(hex(substring(value, 2, 4)), 16, 10) AS bigint)"


def _readable(schemas: codec.Schemas) -> Mapping[bytes, str]:
    """The writer schemas that `validate_record` can read, by the first bytes of the values that
    name them. A schema that is not one of lowmark counts as unknown: it would fail the query.
    """
    shipped = {
        codec.SINGLE_OBJECT + fingerprint: writer for fingerprint, writer in codec.SHIPPED.items()
    }
    return shipped | {
        codec.frame(b"", id_): writer
        for id_, writer in schemas.by_id.items()
        if writer is not None and not isinstance(codec.plan_of(writer), str)
    }


def _is_of(ids: Iterable[int]) -> str:
    """Whether a record was written with one of these schemas of the registry."""
    named = ", ".join(f"X'{codec.frame(b'', id_).hex()}'" for id_ in ids)
    return f"substring(value, 1, {codec.CONFLUENT_BYTES}) IN ({named})" if named else "false"


def _in_microseconds(decoded: DataFrame, schemas: codec.Schemas) -> DataFrame:
    """`decoded` with all times in microseconds, as `avro_decoder.scaled_reader` (REC-26)."""
    ids: dict[tuple[str, int], list[int]] = {}
    for id_, plan in codec.plans_of(schemas).items():
        for time in plan.factors.items():
            ids.setdefault(time, []).append(id_)
    for (path, factor), written in ids.items():
        branch, field = path.split(".")
        most = (2**63 - 1) // factor
        scaled = F.expr(f"greatest({-most}, least({most}, {path})) * {factor}")
        in_branch = F.col(branch).withField(field, scaled)
        decoded = decoded.withColumn(
            branch, F.when(F.expr(_is_of(written)), in_branch).otherwise(F.col(branch))
        )
    return decoded


def _decoded(schemas: codec.Schemas, ask_registry: bool, limits: Limits) -> Column:
    decoded = F.when(F.expr(_too_large(limits)), F.lit(None))
    for prefix, writer in _readable(schemas).items():
        decoded = decoded.when(F.expr(_begins(prefix)), _from_avro(len(prefix), writer))
    if ask_registry:
        asked = ", ".join(map(str, schemas.by_id))
        unseen = (
            f"{_HAS_CONFLUENT_ID} AND {CONFLUENT_ID} NOT IN ({asked})"
            if asked
            else _HAS_CONFLUENT_ID
        )
        decoded = decoded.when(F.expr(unseen), F.raise_error(F.lit(UNSEEN_SCHEMA)))
    return decoded


def _from_avro(prefix_length: int, writer: str) -> Column:
    body = F.concat(F.expr(f"substring(value, {prefix_length + 1})"), F.lit(_TAIL))
    reader = _with_tail(fastavro.parse_schema(json.loads(codec.SCHEMA)), _READER_PARTS)
    wanted = _with_tail(avro_plan.parse_schema(json.loads(writer)), _WRITER_PARTS)
    return from_avro(body, wanted, {"mode": "PERMISSIVE", "avroSchema": reader})


_OUR_TYPES: Final = frozenset(
    re.findall(r'"type": "(?:record|enum|fixed)",\s*"name": "(\w+)"', codec.SCHEMA)
)
_WRITER_PARTS: Final = ("symbols", "size")
_READER_PARTS: Final = ("symbols", "size", "default")


def _with_tail(schema: Any, parts: Sequence[str]) -> str:
    tail = {"type": "fixed", "name": "Tail", "size": len(_TAIL)}
    fields = [
        {"name": "record", "type": _bare(schema, parts, {})},
        {"name": "tail", "type": tail},
    ]
    return json.dumps({"type": "record", "name": "Framed", "fields": fields})


def _bare(schema: Any, parts: Sequence[str], names: dict[str, str]) -> Any:
    """A parsed schema with only the parts that decoding needs. `names` has the new names of the
    types found so far.

    - Logical types are removed: timestamps stay integers, and `_in_microseconds` converts them.
    - Properties are removed. One of them would make Java replace bytes that are not UTF-8.
    - A writer's defaults are removed. Avro never uses them, but checks them.
    - Names lose their namespaces. Java compares namespaces, but Avro's specification does not.
    - Fields of a record that is not one of lowmark get other names. In a union, Java would accept a
      record with another name if its fields fit.
    """
    if isinstance(schema, list):
        return [_bare(branch, parts, names) for branch in schema]
    if isinstance(schema, str):
        return names.get(schema, schema)
    kind = schema["type"]
    if kind in ("array", "map"):
        element = "items" if kind == "array" else "values"
        return {"type": kind, element: _bare(schema[element], parts, names)}
    if kind not in ("record", "error", "enum", "fixed"):
        return _bare(kind, parts, names)
    name = schema["name"].rpartition(".")[2]
    ours = name in _OUR_TYPES and name not in names.values()
    names[schema["name"]] = name if ours else f"other_{len(names)}"
    bare = {"type": "record" if kind == "error" else kind, "name": names[schema["name"]]} | _kept(
        schema, parts
    )
    if "fields" in schema:
        prefix = "" if ours else "other_"
        bare["fields"] = [
            {"name": prefix + f["name"], "type": _bare(f["type"], parts, names)} | _kept(f, parts)
            for f in schema["fields"]
        ]
    return bare


def _kept(node: Mapping[str, Any], parts: Sequence[str]) -> dict[str, Any]:
    return {part: node[part] for part in parts if part in node}


def _begins(prefix: bytes) -> str:
    return f"substring(value, 1, {len(prefix)}) = X'{prefix.hex()}'"


def _too_large(limits: Limits) -> str:
    return (
        "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) >"
        f" {limits.max_record_bytes}"
    )


def _matches(pattern: str) -> str:
    return rf"RLIKE r'\A(?:{pattern})\z'"


_TABLE: Final = "coalesce(data_change.table, truncate.table)"
_RARE_STRINGS: Final = {
    "data_change.change_sequence_number": "data_change.change_sequence_number",
    "data_change.transaction": (
        "data_change.transaction.server_transaction_id, data_change.transaction.transaction_tag"
    ),
    "data_change.row_image": (
        """data_change.row_image.value_capture_type, data_change.row_image.column_types.name,
        data_change.row_image.column_types.type, data_change.row_image.old_cells.family"""
    ),
    "data_change.write_stream": "data_change.write_stream.stream",
    "release": "release.ranges.stream",
    "truncate.change_sequence_number": "truncate.change_sequence_number",
    "truncate.transaction": (
        "truncate.transaction.server_transaction_id, truncate.transaction.transaction_tag"
    ),
    "child_partitions": (
        "child_partitions.children.token,"
        " flatten(child_partitions.children.parent_partition_tokens)"
    ),
}
_MALFORMED: Final = " OR ".join(
    [
        f"NOT is_valid_utf8({string})"
        for string in ("stream_partition", _TABLE, "data_change.source_cluster_id")
    ]
    + [
        f"({owner} IS NOT NULL AND NOT is_valid_utf8(concat_ws('\\n', {strings})))"
        for owner, strings in _RARE_STRINGS.items()
    ]
)

_FAMILY: Final = "array_min(data_change.entries.family)"
_FAMILIES: Final = "array_join(data_change.entries.family, '\\n')"


def _families_match(known_families: frozenset[str]) -> str:
    """Whether every family of a change matches FAMILY_PATTERN. Most changes have one known family.

    Otherwise it is one search over all families, with a possessive repetition, because any other
    uses a stack frame of Java for each step. A family could contain a line break, so these are
    counted.
    """
    return f"""CASE WHEN {_FAMILY} = array_max(data_change.entries.family)
        THEN {_in(_FAMILY, known_families)} OR {_FAMILY} {_matches(FAMILY_PATTERN)}
        ELSE {_FAMILIES} {_matches(FAMILY_PATTERN + "(?:" + chr(10) + FAMILY_PATTERN + ")*+")}
             AND octet_length(replace({_FAMILIES}, '\\n',
             '')) = octet_length({_FAMILIES}) - size(data_change.entries) + 1 END"""


_CONTROL: Final = "(heartbeat IS NOT NULL OR child_partitions IS NOT NULL)"
# A staged change has no time. A release has that of its rows.
_COMMITTED: Final = (
    "coalesce(nullif(data_change.commit_timestamp, 0), release.commit_timestamp,"
    " truncate.commit_timestamp)"
)
_NUMBER: Final = "coalesce(data_change.change_sequence_number, truncate.change_sequence_number)"

_SEQUENCE: Final = "coalesce(data_change.transaction, truncate.transaction).record_sequence"


def _is_repeated(truncated: Mapping[str, Rank]) -> str:
    """Whether a record is a truncation that is not newer than an accepted one of its table."""
    names = ("commit_timestamp", "tie_breaker", "record_sequence")
    fields = ("truncate.commit_timestamp", "truncate.tie_breaker")
    given = (*fields, "coalesce(truncate.transaction.record_sequence, 0L)")
    accepted = " OR ".join(
        f"(truncate.table = '{table}' AND {named(names, given)}"
        f" <= {named(names, [f'cast({part} AS bigint)' for part in rank])})"
        for table, rank in sorted(truncated.items())
    )
    return f"(truncate IS NOT NULL AND ({accepted}))" if accepted else "false"


_SETS_CELLS: Final = "array_contains(data_change.entries.kind, 'SET_CELL')"
# As `records.model.ModType.contradicts`.
_ROW_IMAGE_CONTRADICTS: Final = (
    f"CASE data_change.row_image.mod_type WHEN 'DELETE' THEN {_SETS_CELLS}"
    f" WHEN 'INSERT' THEN NOT {_SETS_CELLS} ELSE false END"
)

_Fault = tuple[str, str]
"""A verdict, and when it is true."""


def _verdict(schemas: codec.Schemas, rules: RecordRules) -> str:
    """`REASON`, `INVALID/RULE`, or null: the first error, as `validation.validate_record`."""
    faults = [
        *_faults_of_bytes(schemas, rules.limits),
        *_faults_of_fields(rules),
        *_faults_of_times(rules),
        *_faults_of_settings(schemas, rules),
    ]
    return f"CASE {' '.join(f'WHEN {broken} THEN {verdict}' for verdict, broken in faults)} END"


def _faults_of_bytes(schemas: codec.Schemas, limits: Limits) -> list[_Fault]:
    inconvertible = [id_ for id_, plan in codec.plans_of(schemas).items() if plan.inconvertible]
    is_single_object = _begins(codec.SINGLE_OBJECT)
    return [
        (_reason(Reason.TOO_LARGE), _too_large(limits)),
        (
            _reason(Reason.UNKNOWN_FRAMING),
            f"value IS NULL OR NOT ({_begins(codec.CONFLUENT)} OR {is_single_object})",
        ),
        (
            _reason(Reason.UNDECODABLE),
            (
                f"octet_length(value) < {codec.SINGLE_OBJECT_BYTES} AND"
                f" ({is_single_object} OR octet_length(value) < {codec.CONFLUENT_BYTES})"
            ),
        ),
        (_reason(Reason.UNKNOWN_SCHEMA), f"NOT ({' OR '.join(map(_begins, _readable(schemas)))})"),
        (_reason(Reason.UNDECODABLE), f"tail IS NULL OR tail <> X'{_TAIL.hex()}' OR {_MALFORMED}"),
        (_reason(Reason.UNDECODABLE), f"NOT families_match AND NOT is_valid_utf8({_FAMILIES})"),
        (_invalid(Rule.LOGICAL_TYPE), _is_of(inconvertible)),
    ]


def _faults_of_times(rules: RecordRules) -> list[_Fault]:
    limits = rules.limits
    arrival, skew = "unix_micros(timestamp)", skew_us(limits.max_clock_skew_s)
    control_time = "coalesce(heartbeat.timestamp, child_partitions.start_timestamp)"
    faults = [
        (
            _reason(Reason.COMMIT_TIMESTAMP_IN_FUTURE),
            f"{_COMMITTED} - {skew} > {arrival} AND NOT {_is_repeated(rules.truncated)}",
        ),
        (
            _reason(Reason.WATERMARK_IN_FUTURE),
            f"{_CONTROL} AND {control_time} - {skew} > {arrival}",
        ),
    ]
    if least := limits.min_commit_timestamp:
        # The same rule as `validation.check_age`.
        is_too_old = (
            f"{_COMMITTED} < {least} OR ({_CONTROL} AND {control_time} >"
            f" {BEGINNING} AND {control_time} < {least - 1})"
        )
        faults.append((_reason(Reason.COMMIT_TIMESTAMP_TOO_OLD), is_too_old))
    return faults


def _faults_of_settings(schemas: codec.Schemas, rules: RecordRules) -> list[_Fault]:
    limits, tables, horizon = rules.limits, rules.tables, rules.horizon
    faults = list[_Fault]()
    if limits.unknown_fields is UnknownFields.REJECT:
        faults.append((_invalid(Rule.UNKNOWN_FIELDS), _is_of(codec.unknown_fields(schemas))))
    if limits.row_images is RowImages.REJECT:
        faults.append((_invalid(Rule.ROW_IMAGE), _ROW_IMAGE_CONTRADICTS))
    if tables is not None:
        is_unknown = f"{_TABLE} IS NOT NULL AND NOT {_in(_TABLE, tables)}"
        faults.append((_reason(Reason.UNKNOWN_TABLE), is_unknown))
    if horizon is not None:
        is_too_late = f"{_COMMITTED} < {constant(horizon, 'partition')}"
        is_too_late = f"{is_too_late} AND NOT {_is_repeated(rules.truncated)}"
        faults.append((_reason(Reason.TOO_LATE), is_too_late))
    return faults


def _reason(reason: Reason) -> str:
    return f"'{reason}'"


def _invalid(rule: Rule) -> str:
    return f"'{Reason.INVALID}/{rule}'"


def _in(field: str, names: frozenset[str]) -> str:
    """Whether a field is one of the names. They were checked, so they contain no quotes."""
    listed = ", ".join(f"'{name}'" for name in sorted(names))
    return f"{field} IN ({listed})" if names else "false"


_LONG_QUALIFIER: Final = f"octet_length(e.qualifier) > {MAX_QUALIFIER_BYTES}"
_WRONG_RANGE: Final = """(e.kind = 'DELETE_CELLS' AND NOT (e.range_start >= 0
    AND (e.range_end = 0 OR e.range_start < e.range_end)))"""

# Whether an entry may have a fault, at the least cost: functions with `e ->` are not compiled. A
# qualifier that is too long needs a value that is longer.
_MAY_HAVE_FAULT: Final = f"""(NOT families_match
    OR array_min(data_change.entries.cell_timestamp) < 0
    OR array_contains(data_change.entries.kind, 'UNKNOWN')
    OR (octet_length(value) > {MAX_QUALIFIER_BYTES}
        AND exists(data_change.entries, e -> {_LONG_QUALIFIER}))
    OR (array_contains(data_change.entries.kind, 'DELETE_CELLS')
        AND exists(data_change.entries, e -> {_WRONG_RANGE})))"""

# The first fault of the first entry that has one, or null.
_ENTRY_FAULT: Final = f"""get(filter(transform(data_change.entries, e -> CASE
    WHEN e.kind = 'UNKNOWN' THEN {_reason(Reason.UNKNOWN_ENTRY)}
    WHEN NOT e.family {_matches(FAMILY_PATTERN)} THEN {_invalid(Rule.FAMILY)}
    WHEN e.kind <> 'DELETE_FAMILY' AND {_LONG_QUALIFIER} THEN {_invalid(Rule.QUALIFIER)}
    WHEN e.kind = 'SET_CELL' AND e.cell_timestamp < 0 THEN {_invalid(Rule.CELL_TIMESTAMP)}
    WHEN {_WRONG_RANGE} THEN {_invalid(Rule.CELL_RANGE)}
    END), fault -> fault IS NOT NULL), 0)"""

_TIME_RANGE: Final = f"BETWEEN 1 AND {MAX_TIMESTAMP}"
_ROW: Final = "data_change.write_stream"
_RESUME: Final = "coalesce(data_change.resume_token, heartbeat.resume_token)"
_WRONG_ROW: Final = f"""NOT ({_ROW}.stream {_matches(WRITE_STREAM_PATTERN)} AND {_ROW}.offset >= 0)
    OR ({_ROW} IS NOT NULL AND data_change.commit_timestamp = 0
        AND (data_change.estimated_low_watermark <> 0
            OR octet_length(data_change.resume_token) > 0 OR data_change.transaction IS NOT NULL))
"""


def _faults_of_fields(rules: RecordRules) -> list[_Fault]:
    """In the order in which `records.datum.build` finds them."""
    branches = " + ".join(f"int({branch} IS NOT NULL)" for branch in BRANCHES)
    is_known = _in(_TABLE, rules.known_tables)
    row_key = "data_change.row_key"
    return [
        (_invalid(Rule.BRANCHES), f"{branches} <> 1"),
        (_ENTRY_FAULT, f"{_MAY_HAVE_FAULT} AND {_ENTRY_FAULT} IS NOT NULL"),
        (
            _invalid(Rule.TRANSACTION),
            f"{_SEQUENCE} < 0",
        ),
        (_invalid(Rule.WRITE_STREAM), _WRONG_ROW),
        (
            _invalid(Rule.STREAM_PARTITION),
            f"octet_length(stream_partition) NOT BETWEEN 1 AND {MAX_STREAM_PARTITION_BYTES}",
        ),
        (_invalid(Rule.TABLE), f"NOT ({is_known} OR {_TABLE} {_matches(TABLE_PATTERN)})"),
        (
            _invalid(Rule.ROW_KEY),
            (
                f"octet_length({row_key}) NOT BETWEEN 1 AND {MAX_ROW_KEY_BYTES}"
                f" OR {row_key} = X'{CONTROL_KEY.hex()}'"
            ),
        ),
        (
            _invalid(Rule.COMMIT_TIMESTAMP),
            (
                f"data_change.commit_timestamp NOT {_TIME_RANGE}"
                f" AND (data_change.commit_timestamp <> 0 OR {_ROW} IS NULL)"
                f" OR truncate.commit_timestamp NOT {_TIME_RANGE}"
            ),
        ),
        (
            _invalid(Rule.SOURCE_CLUSTER_ID),
            "(data_change.change_type = 'USER') = (data_change.source_cluster_id = '')",
        ),
        (_invalid(Rule.HEARTBEAT_TIMESTAMP), f"heartbeat.timestamp NOT {_TIME_RANGE}"),
        (
            _invalid(Rule.RESUME_TOKEN),
            f"octet_length({_RESUME}) > {MAX_RESUME_TOKEN_BYTES}",
        ),
        (_invalid(Rule.ESTIMATED_LOW_WATERMARK), "data_change.estimated_low_watermark < 0"),
        (_invalid(Rule.ENTRY_COUNT), f"size(data_change.entries) NOT BETWEEN 1 AND {MAX_ENTRIES}"),
        (
            _reason(Reason.INVALID_SEQUENCE_NUMBER),
            f"NOT {_NUMBER} {_matches(SEQUENCE_NUMBER_PATTERN)}",
        ),
        *_CONTROL_RULES,
        (
            _invalid(Rule.KAFKA_PARTITIONS),
            f"kafka_partitions NOT BETWEEN 1 AND {rules.kafka_partitions}",
        ),
        (
            _reason(Reason.KEY_MISMATCH),
            f"NOT (key <=> coalesce(data_change.row_key, X'{CONTROL_KEY.hex()}'))",
        ),
    ]


_CONTROL_RULES: Final = [
    (_invalid(Rule.START_TIMESTAMP), f"child_partitions.start_timestamp NOT {_TIME_RANGE}"),
    (
        _invalid(Rule.CHILDREN),
        (
            "child_partitions IS NOT NULL AND exists(child_partitions.children, c ->"
            f" octet_length(c.token) NOT BETWEEN 1 AND {MAX_STREAM_PARTITION_BYTES} OR"
            " exists(c.parent_partition_tokens, p -> octet_length(p) NOT BETWEEN 1 AND"
            f" {MAX_STREAM_PARTITION_BYTES}) OR (octet_length(c.end_key) > 0 AND c.start_key >="
            " c.end_key))"
        ),
    ),
    (
        _invalid(Rule.RELEASE),
        (
            f"release IS NOT NULL AND (release.commit_timestamp NOT {_TIME_RANGE}"
            f" OR size(release.ranges) NOT BETWEEN 1 AND {MAX_RANGES}"
            " OR size(array_distinct(release.ranges.stream)) <> size(release.ranges)"
            " OR exists(release.ranges, r -> r.first < 0 OR r.first >= r.upto OR NOT r.stream"
            f" {_matches(WRITE_STREAM_PATTERN)}))"
        ),
    ),
]

"""SQL table functions that read the stream partitions of a stream (SUB-5).

`READ_<stream>` follows the read function of Spanner's change streams. It is defined in SQL, on
three temporary views for each stream: its changes, its control records, and its stream partitions.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from connector import warehouse as paths
from connector.errors.settings import functions_not_distinct
from connector.records.views import view_of_time
from connector.spark.changes import existing_changelog
from connector.spark.jvm import check_live
from connector.spark.sql import literal_rows
from connector.spark.storage.delta_log import DeltaLog
from connector.spark.storage.hadoop import names_in
from connector.warehouse import CONTROL_SLOT, IS_CHANGE, in_slot

LEAST_HEARTBEAT_MS: Final = 1_000
GREATEST_HEARTBEAT_MS: Final = 300_000

# A child-partitions record ends the stream partition that sends it, if it is one of the parents.
# Otherwise, it ends all parents. A child begins at the least start that its parents name (WMK-7).
_PARTITIONS: Final = """
WITH lineage AS (
  SELECT DISTINCT stream_partition, child_partitions.start_timestamp AS at,
    child_partitions.children AS children,
    array_distinct(flatten(child_partitions.children.parent_partition_tokens)) AS parents
  FROM `{name}_control` WHERE child_partitions IS NOT NULL
),
ends AS (
  SELECT explode(CASE WHEN array_contains(parents, stream_partition) THEN array(stream_partition)
    ELSE parents END) AS token, at AS ends_at, true AS has_children
  FROM lineage WHERE size(parents) > 0
  UNION ALL SELECT token, ends_at, false FROM `{name}_tokens` WHERE ends_at IS NOT NULL
),
starts AS (
  SELECT child.token AS token, CASE WHEN size(child.parent_partition_tokens) > 0 THEN at END
    AS starts_at
  FROM (SELECT at, explode(children) AS child FROM lineage)
  UNION ALL SELECT token, NULL FROM `{name}_tokens`
  UNION ALL SELECT DISTINCT stream_partition, NULL FROM `{name}_changes`
)
SELECT token, min(starts_at) AS starts_at,
  coalesce(max(ends_at) FILTER (WHERE has_children), max(ends_at)) AS ends_at,
  max(has_children) AS has_children
FROM (SELECT token, starts_at, CAST(NULL AS bigint) AS ends_at, false AS has_children FROM starts
      UNION ALL SELECT token, NULL, ends_at, has_children FROM ends)
GROUP BY token
"""

# A copy that was sent again is the same record of its transaction. Without a transaction, it has
# the same content, as for a reader of whole transactions (SUB-3).
_RECORD: Final = """
  coalesce(transaction.server_transaction_id, ''),
  CASE WHEN coalesce(transaction.server_transaction_id, '') <> ''
    THEN transaction.record_sequence END,
  CASE WHEN coalesce(transaction.server_transaction_id, '') = ''
    THEN struct(table, row_key, tie_breaker, change_type, source_cluster_id,
      change_sequence_number, entries, row_image, write_stream) END
"""

_DATA: Final = """named_struct(
  'commit_timestamp', commit_timestamp,
  'record_sequence', lpad(coalesce(transaction.record_sequence, 0L), 19, '0'),
  'server_transaction_id', coalesce(transaction.server_transaction_id, ''),
  'is_last_record_in_transaction_in_partition',
    coalesce(transaction.is_last_record_in_transaction_in_partition, true),
  'table_name', table, 'row_key', row_key, 'entries', entries, 'change_type', change_type,
  'source_cluster_id', source_cluster_id, 'tie_breaker', tie_breaker,
  'change_sequence_number', change_sequence_number, 'row_image', row_image,
  'resume_token', resume_token,
  'number_of_records_in_transaction', coalesce(transaction.number_of_records_in_transaction, 1),
  'number_of_partitions_in_transaction',
    coalesce(transaction.number_of_partitions_in_transaction, 1),
  'transaction_tag', coalesce(transaction.transaction_tag, ''),
  'is_system_transaction', coalesce(transaction.is_system_transaction, false))"""

_CHILDREN: Final = """named_struct(
  'start_timestamp', timestamp_micros({at}), 'record_sequence', {sequence}, 'child_partitions',
  {children})"""

# The first time that a record can have, or the start. Numbers far from it could overflow.
_START: Final = "greatest(unix_micros(start_timestamp), 0L)"

# A number that the checks refuse could overflow before they are evaluated.
_BEAT_US: Final = (
    f"greatest({LEAST_HEARTBEAT_MS}L, least({GREATEST_HEARTBEAT_MS}L, heartbeat_milliseconds))"
    " * 1000"
)

# `at`, `rank` and the columns after them give the order of the rows. At one time, changes come
# first, then heartbeats. Child partitions are the end, also behind a change that came too late.
_FUNCTION: Final = """
CREATE OR REPLACE TEMPORARY FUNCTION `READ_{stream}`(
  start_timestamp TIMESTAMP,
  end_timestamp TIMESTAMP DEFAULT NULL,
  partition_token STRING DEFAULT NULL,
  heartbeat_milliseconds BIGINT DEFAULT 10000
)
RETURNS TABLE
RETURN
WITH token AS (
  SELECT count(*) AS token_count, max(starts_at) AS starts_at, max(ends_at) AS ends_at,
    max(has_children) AS has_children
  FROM `{name}_partitions` WHERE token = partition_token
),
range AS (
  SELECT unix_micros(start_timestamp) AS least,
    least(unix_micros(end_timestamp), ends_at - 1, {low} - 1) AS greatest,
    coalesce(has_children AND ends_at <= least({low}, unix_micros(end_timestamp)), false)
      AS has_children,
    CASE {checks} ELSE true END AS is_valid
  FROM token
),
records AS (
  SELECT *, row_number() OVER (PARTITION BY commit_timestamp, {record}
    ORDER BY ingest_batch, kafka_partition, offset) AS copy
  FROM `{name}_changes`
  WHERE stream_partition = partition_token AND commit_timestamp >= timestamp_micros({start})
    AND commit_timestamp <= least(end_timestamp, timestamp_micros({low}))
    AND commit_timestamp < timestamp_micros({low})
),
data AS (
  SELECT unix_micros(commit_timestamp) AS at, coalesce(transaction.server_transaction_id, '') AS id,
    coalesce(transaction.record_sequence, 0L) AS sequence, kafka_partition, offset,
    {data} AS change
  FROM records WHERE copy = 1
),
beats AS (
  SELECT interval_, max(at) AS last_change FROM (
    SELECT (heartbeat.timestamp - {start})
        DIV ({beat}) AS interval_, CAST(NULL AS bigint) AS at
    FROM `{name}_control`
    WHERE stream_partition = partition_token AND heartbeat.timestamp >= {start}
    UNION ALL
    SELECT (at - {start}) DIV ({beat}), at FROM data
  ) GROUP BY interval_
),
heartbeats AS (
  SELECT {start} - 1 + (interval_ + 1) * {beat} AS at
  FROM beats WHERE last_change IS NULL
),
live AS (
  SELECT sort_array(collect_list(token)) AS tokens FROM `{name}_partitions`
  WHERE partition_token IS NULL
    AND coalesce(starts_at, 0L) <= {start}
    AND (ends_at IS NULL OR ends_at > {start})
),
named AS (
  SELECT DISTINCT child_partitions.record_sequence AS sequence,
    explode(child_partitions.children) AS child
  FROM `{name}_control`, range
  WHERE has_children AND child_partitions IS NOT NULL
    AND exists(child_partitions.children,
      child -> array_contains(child.parent_partition_tokens, partition_token))
    AND (stream_partition = partition_token OR NOT exists(child_partitions.children,
      child -> array_contains(child.parent_partition_tokens, stream_partition)))
),
children AS (
  SELECT sequence, child, greatest(starts_at, {oldest}L) AS at
  FROM named JOIN `{name}_partitions` ON token = child.token
),
results AS (
  SELECT at, 0 AS rank, id, sequence, kafka_partition, offset, change, NULL AS heartbeat,
    NULL AS children FROM data
  UNION ALL
  SELECT at, 1, '', 0L, 0, 0L, NULL, named_struct('timestamp', timestamp_micros(at)), NULL
  FROM (
    SELECT at FROM heartbeats, range WHERE at < greatest
    UNION ALL
    SELECT greatest FROM range
    WHERE partition_token IS NOT NULL AND greatest >= least AND NOT has_children
  )
  UNION ALL
  SELECT at, 2, '', sequence, 0, 0L, NULL, NULL, {children}
  FROM children GROUP BY at, sequence
  UNION ALL
  SELECT 0L, 2, '', 0L, 0, 0L, NULL, NULL, {roots}
  FROM live WHERE size(tokens) > 0
)
SELECT array(named_struct(
  'data_change_record', array_compact(array(change)),
  'heartbeat_record', array_compact(array(heartbeat)),
  'child_partitions_record', array_compact(array(children)))) AS ChangeRecord
FROM results, range WHERE is_valid
ORDER BY rank = 2, at, rank, id, sequence, kafka_partition, offset
"""


def register_functions(spark: SparkSession, warehouse: str) -> list[str]:
    """Define a SQL table function `READ_<stream>` for each stream of a warehouse.

    The functions read the changelogs as they are at this call. Each change below the low watermark
    of this call is there. To read further, call `register_functions` again.

    The arguments are `start_timestamp`, `end_timestamp`, `partition_token` and
    `heartbeat_milliseconds`. With a token, the rows are the changes of the stream partition in the
    order of their commits, each once. Without a token, they are the stream partitions that are live
    at `start_timestamp`. The only column is `ChangeRecord`, as in Spanner.

    Example:
        register_functions(spark, "/data/warehouse")
        spark.sql("SELECT ChangeRecord FROM READ_shop(TIMESTAMP '2024-04-30 09:00:00Z')").show()

    Args:
        spark: Your session. `check_session` says whether it is suitable.
        warehouse: The folder of the warehouse.

    Returns:
        The names of the functions. They belong to the session.

    Raises:
        TableError: A changelog is damaged.
        ConfigError: Two streams have the same name but for upper and lower case.
        ConnectorError: The session has ended.
    """
    check_live(spark)
    names = [
        stream
        for stream in names_in(spark, paths.streams_folder(warehouse), folders=True)
        if DeltaLog(spark, paths.changelog(warehouse, stream)).newest() is not None
    ]
    _check_distinct(names)
    for stream in names:
        _register(spark, warehouse, stream)
    return [f"READ_{stream}" for stream in names]


def _check_distinct(names: list[str]) -> None:
    by_function: dict[str, str] = {}
    for name in names:
        other = by_function.setdefault(name.lower(), name)
        if other != name:
            raise functions_not_distinct(name, other)


def _register(spark: SparkSession, warehouse: str, stream: str) -> None:
    changelog = existing_changelog(spark, warehouse, stream)
    progress = changelog.progress()
    frontier, rows = progress.frontier, changelog.visible_rows()
    oldest = changelog.trimmed_below()
    name = f"lowmark_{stream}"
    open_tokens = [(token, None) for token in frontier.partitions]
    ended = [(token, end.at) for token, end in frontier.ended.items()]
    tokens = literal_rows(spark, [*open_tokens, *ended], "token string, ends_at bigint")
    tokens.createOrReplaceTempView(f"`{name}_tokens`")
    rows.where(IS_CHANGE).createOrReplaceTempView(f"`{name}_changes`")
    rows.where(f"{in_slot(CONTROL_SLOT)} AND kind = 'control'").select(
        "stream_partition", "heartbeat", "child_partitions"
    ).createOrReplaceTempView(f"`{name}_control`")
    # Computed once: each call of the function needs it.
    partitions = spark.sql(_PARTITIONS.format(name=name)).coalesce(1).localCheckpoint()
    partitions.createOrReplaceTempView(f"`{name}_partitions`")
    low = frontier.low_watermark
    if low is not None:
        low = progress.releases.waits_below(low)
    children = _CHILDREN.format(
        at="at",
        sequence="lpad(sequence, 19, '0')",
        children="sort_array(collect_list(named_struct('token', child.token,"
        " 'parent_partition_tokens', child.parent_partition_tokens)))",
    )
    roots = _CHILDREN.format(
        at=_START,
        sequence="lpad(0L, 19, '0')",
        children="transform(tokens, token -> named_struct('token', token,"
        " 'parent_partition_tokens', CAST(array() AS array<string>)))",
    )
    spark.sql(
        _FUNCTION.format(
            stream=stream,
            name=name,
            start=_START,
            beat=_BEAT_US,
            low=f"{low or 0}L",
            oldest=oldest,
            checks=_checks(stream, low, oldest),
            record=_RECORD,
            data=_DATA,
            children=children,
            roots=roots,
        )
    )


def _checks(stream: str, low: int | None, oldest: int) -> str:
    """The branches of a CASE that raises an error for arguments outside their ranges."""
    beats = f"{LEAST_HEARTBEAT_MS:,} to {GREATEST_HEARTBEAT_MS:,}"
    is_beat = f"heartbeat_milliseconds BETWEEN {LEAST_HEARTBEAT_MS} AND {GREATEST_HEARTBEAT_MS}"
    wrong = {
        "start_timestamp IS NULL": "start_timestamp must be a time, and is NULL",
        f"NOT coalesce({is_beat}, false)": f"heartbeat_milliseconds must be from {beats}",
        "end_timestamp < start_timestamp": "end_timestamp must not be before start_timestamp",
    }
    if low is None:
        wrong["true"] = (
            f"It is not known up to which time stream {stream} is complete. Let the producers send"
            " heartbeats, ingest them, and register the functions again"
        )
    else:
        wrong[f"start_timestamp > timestamp_micros({low}L)"] = (
            f"start_timestamp must be at most {view_of_time(low)}, up to which the stream is"
            " complete. Register the functions again to read further"
        )
    if oldest:
        wrong[f"start_timestamp < timestamp_micros({oldest}L)"] = (
            f"start_timestamp must be at least {view_of_time(oldest)}. Older changes were deleted"
        )
    wrong["partition_token IS NOT NULL AND token_count = 0"] = (
        f"partition_token must name a stream partition of stream {stream}"
    )
    wrong["unix_micros(start_timestamp) < starts_at"] = (
        "start_timestamp must not be before the start of the stream partition"
    )
    return " ".join(f"WHEN {rule} THEN raise_error('{text}')" for rule, text in wrong.items())

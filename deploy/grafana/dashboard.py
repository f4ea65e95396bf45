"""Makes the Grafana dashboard of a pipeline (MET-4): `python deploy/grafana/dashboard.py`.

It writes `lowmark.json` beside this file. A test checks that the file is what this program makes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("lowmark.json")
WIDTH, COLUMNS, HEIGHT = 24, 3, 7
OF_PIPELINE = '{job="lowmark",instance=~"$instance"}'


def _p95(series: str, label: str, period: str) -> str:
    """The duration that 95 of 100 take at most."""
    return f"histogram_quantile(0.95, sum by (le, {label}) (rate({series}{{}}[{period}])))"


ROWS: list[tuple[str, list[tuple[str, str, list[tuple[str, str]]]]]] = [
    (
        "Pipeline",
        [
            ("Runs", "none", [("lowmark_running{}", "{{instance}}")]),
            ("Warnings", "short", [("increase(lowmark_warnings_total{}[5m])", "{{reason}}")]),
            ("Last error", "s", [("lowmark_last_error_age_seconds{}", "{{reason}}")]),
        ],
    ),
    (
        "Streams",
        [
            ("Lag in time", "s", [("lowmark_stream_lag_seconds{}", "{{stream}}")]),
            (
                "Lag in offsets",
                "short",
                [("sum by (stream) (lowmark_stream_lag_offsets{})", "{{stream}}")],
            ),
            (
                "Records a second",
                "short",
                [
                    ("rate(lowmark_stream_changes_total{}[5m])", "{{stream}} changes"),
                    ("rate(lowmark_stream_control_records_total{}[5m])", "{{stream}} control"),
                ],
            ),
            (
                "Rejected records, late changes and ignored claims",
                "short",
                [
                    (
                        "increase(lowmark_stream_rejected_records_total{}[5m])",
                        "{{stream}} {{reason}}",
                    ),
                    ("increase(lowmark_stream_late_changes_total{}[5m])", "{{stream}} late"),
                    ("increase(lowmark_stream_ignored_claims_total{}[5m])", "{{stream}} claims"),
                ],
            ),
            (
                "Age of the low watermark",
                "s",
                [("lowmark_stream_low_watermark_age_seconds{}", "{{stream}}")],
            ),
            (
                "Who delays the low watermark",
                "s",
                [
                    (
                        "lowmark_stream_low_watermark_held_seconds{}",
                        "{{stream}} {{stream_partition}}",
                    )
                ],
            ),
            (
                "Stream partitions that advance last",
                "s",
                [
                    (
                        "topk(10, lowmark_stream_partition_advance_age_seconds{})",
                        "{{stream}} {{stream_partition}}",
                    )
                ],
            ),
            (
                "Duration of batches",
                "s",
                [
                    (
                        _p95("lowmark_batch_duration_seconds_bucket", "stream", "5m"),
                        "{{stream}} 95 %",
                    )
                ],
            ),
            (
                "Open dead letters",
                "short",
                [
                    ("lowmark_stream_open_dead_letters{}", "{{stream}}"),
                    ("lowmark_stream_withheld_releases{}", "{{stream}} withheld releases"),
                ],
            ),
            (
                "Transactions",
                "short",
                [
                    ("lowmark_stream_incomplete_transactions{}", "{{stream}} incomplete"),
                    ("lowmark_stream_open_transactions{}", "{{stream}} open"),
                ],
            ),
            (
                "Headroom",
                "s",
                [("min by (stream) (lowmark_stream_headroom_seconds{})", "{{stream}}")],
            ),
            ("Age of the last audit", "s", [("lowmark_stream_audit_age_seconds{}", "{{stream}}")]),
            ("Failed audits", "none", [("lowmark_stream_audit_is_failed{}", "{{stream}}")]),
            ("Lag of bridges", "short", [("lowmark_bridge_lag_offsets{}", "{{stream}}")]),
            (
                "Age of Kafka's answer",
                "s",
                [("lowmark_stream_refresh_age_seconds{}", "{{stream}}")],
            ),
        ],
    ),
    (
        "Tables",
        [
            (
                "Age and bound",
                "s",
                [
                    ("lowmark_table_age_seconds{}", "{{table}}"),
                    ("lowmark_table_bound_seconds{}", "{{table}} bound"),
                ],
            ),
            (
                "Pending batches and changes",
                "short",
                [
                    ("lowmark_table_pending_batches{}", "{{table}} batches"),
                    ("lowmark_table_pending_changes{}", "{{table}} changes"),
                ],
            ),
            (
                "Oldest delete that is not applied",
                "s",
                [("lowmark_table_oldest_unapplied_delete_age_seconds{}", "{{table}}")],
            ),
            (
                "Merged changes a second",
                "short",
                [("rate(lowmark_table_merged_changes_total{}[5m])", "{{table}}")],
            ),
            (
                "Removed rows",
                "short",
                [("rate(lowmark_table_removed_rows_total{}[5m])", "{{table}}")],
            ),
            (
                "Written bytes a second",
                "Bps",
                [
                    ("rate(lowmark_table_written_bytes_total{}[5m])", "{{table}}"),
                    ("rate(lowmark_stream_written_bytes_total{}[5m])", "{{stream}} changelog"),
                ],
            ),
            (
                "Processor seconds a second",
                "none",
                [("rate(lowmark_job_cpu_seconds_total{}[5m])", "{{kind}}")],
            ),
            ("Consistent cut", "none", [("lowmark_table_is_consistent_cut{}", "{{table}}")]),
            (
                "Dead letters and blocked rows",
                "short",
                [
                    ("lowmark_table_open_dead_letters{}", "{{table}} letters"),
                    ("lowmark_table_blocked_rows{}", "{{table}} rows"),
                ],
            ),
            (
                "Duration of jobs",
                "s",
                [
                    (
                        _p95("lowmark_job_duration_seconds_bucket", "kind", "15m"),
                        "{{kind}} 95 %",
                    )
                ],
            ),
            (
                "Size on disk",
                "bytes",
                [
                    ("lowmark_table_live_bytes{}", "{{table}} newest"),
                    ("lowmark_table_disk_bytes{}", "{{table}} all"),
                ],
            ),
            (
                "Failed jobs",
                "short",
                [
                    ("increase(lowmark_failed_jobs_total{}[1h])", "{{kind}}"),
                    ("lowmark_maintenance_is_failing{}", "{{stream}}{{table}} maintenance"),
                ],
            ),
        ],
    ),
    (
        "Process",
        [
            (
                "Heap of Spark",
                "bytes",
                [
                    ("lowmark_jvm_heap_used_bytes{}", "used"),
                    ("lowmark_jvm_heap_max_bytes{}", "max"),
                ],
            ),
            (
                "Garbage collection",
                "percentunit",
                [("rate(lowmark_jvm_gc_seconds_total{}[5m])", "")],
            ),
            (
                "Free space",
                "bytes",
                [
                    ("lowmark_warehouse_free_bytes{}", "warehouse"),
                    ("lowmark_broker_free_bytes{}", "broker"),
                ],
            ),
            ("Memory of Python", "bytes", [("process_resident_memory_bytes{}", "{{instance}}")]),
        ],
    ),
]
"""The title of each row, and of each panel its title, its unit and its expressions with legends."""


def expressions() -> list[str]:
    """All expressions, as Prometheus gets them without a choice of an instance."""
    return [
        expression.replace("{}", '{job="lowmark"}')
        for _, panels in ROWS
        for _, _, targets in panels
        for expression, _ in targets
    ]


def _panel(
    number: int, y: int, title: str, unit: str, targets: list[tuple[str, str]]
) -> dict[str, Any]:
    width = WIDTH // COLUMNS
    place = {
        "h": HEIGHT,
        "w": width,
        "x": width * (number % COLUMNS),
        "y": y + HEIGHT * (number // COLUMNS),
    }
    return {
        "type": "timeseries",
        "title": title,
        "gridPos": place,
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": expression.replace("{}", OF_PIPELINE),
                "legendFormat": legend,
            }
            for at, (expression, legend) in enumerate(targets)
        ],
    }


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS:
        panels.append(
            {"type": "row", "title": title, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": y}}
        )
        panels += [_panel(number, y + 1, *panel) for number, panel in enumerate(row)]
        y += 1 + HEIGHT * -(-len(row) // COLUMNS)
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "lowmark",
        "title": "lowmark",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {
                    "type": "datasource",
                    "name": "source",
                    "label": "Prometheus",
                    "query": "prometheus",
                },
                {
                    "type": "query",
                    "name": "instance",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "query": 'label_values(lowmark_running{job="lowmark"}, instance)',
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": panels,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())

"""`connector table advise`: the number of buckets that suits a table (SCL-6)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from connector import cli
from connector.config.spark_settings import SparkConfig
from connector.errors import ConfigError
from connector.lake.jobs import History
from connector.services import advise_buckets, load_config
from connector.services.bucket_advice import cores_of
from connector.state.jobs import Job, JobKind

SETTINGS = (
    'warehouse = "w"\n[kafka]\nbootstrap_servers = "127.0.0.1:1"\n[spark]\nmaster = "local[8]"\n'
    '[streams.s]\n[tables.one]\nstream = "s"\n'
)
GIB = 2**30


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "connector.toml").write_text(SETTINGS)
    return tmp_path / "w"


def log_files(folder: Path, sizes: list[int], *, buckets: int) -> None:
    """The log of a table with files of these sizes, without the files."""
    log = folder / "tables/one/data/_delta_log"
    log.mkdir(parents=True)
    fields = [{"name": "_bucket", "type": "integer", "nullable": True, "metadata": {}}]
    metadata = {
        "id": "1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"lowmark.buckets": str(buckets)},
        "createdTime": 0,
    }
    adds = [
        {
            "add": {
                "path": f"{number}.parquet",
                "partitionValues": {},
                "size": size,
                "modificationTime": 0,
                "dataChange": True,
            }
        }
        for number, size in enumerate(sizes)
    ]
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
    lines = [json.dumps(action) for action in (protocol, {"metaData": metadata}, *adds)]
    (log / f"{0:020}.json").write_text("\n".join(lines) + "\n")


def add_apply(folder: Path, changes: int, *, error: str = "", days_ago: int = 0) -> None:
    ended_at = time.time_ns() // 1000 - days_ago * 86_400_000_000
    job = Job(JobKind.APPLY, "one", ended_at - 1, ended_at, 1, 2, changes, error=error)
    History(str(folder)).add_job(job)


def test_the_number_and_how_to_change_it_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SCL-6: the number alone is on standard output, as the configuration has it."""
    log_files(folder, [GIB] * 4, buckets=1)
    assert cli.invoke(["table", "advise", "one"]) == 0
    said = capsys.readouterr()
    assert said.out == "buckets = 16\n"
    assert "The table has 4.0 GiB, and a bucket should have at most 256.0 MiB." in said.err
    assert "one has 1 bucket and 4 files" in said.err
    assert "run: connector table rebuild one" in said.err


def test_size_changes_and_cores_are_taken_from_warehouse_and_configuration(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """SCL-6: applies that failed or are older than seven days do not count."""
    log_files(folder, [GIB // 2, GIB // 2], buckets=4)
    for changes in (40, 9_000_000, 9_000_001):
        add_apply(folder, changes)
    for changes in range(5):
        add_apply(folder, changes, error="no")
        add_apply(folder, changes, days_ago=8)
    assert cli.invoke(["table", "advise", "one", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["reason"].endswith(
        "its applies of 9,000,000 changes rewrite whole buckets, which is work for 8 cores"
    )
    del shown["reason"]
    assert shown == {
        "table": "one",
        "buckets": 8,
        "present": 4,
        "size_bytes": GIB,
        "files": 2,
        "changes_per_apply": 9_000_000,
        "cores": 8,
        "is_change_worthwhile": False,
    }
    assert cli.invoke(["table", "advise", "one"]) == 0
    assert "4 buckets, which is near enough. Change nothing." in capsys.readouterr().err
    assert cli.invoke(["table", "advise", "one", "--cores", "32"]) == 0
    assert capsys.readouterr().out == "buckets = 32\n"


def test_a_table_that_is_not_there_yet_is_judged_by_the_size_that_you_expect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.invoke(["table", "advise", "one"]) == 1
    assert "The size of table one is not known" in capsys.readouterr().err
    assert cli.invoke(["table", "advise", "one", "--size", "40g"]) == 0
    said = capsys.readouterr()
    assert said.out == "buckets = 256\n"
    assert "before the first apply" in said.err


@pytest.mark.parametrize("words", [["--size", "40"], ["--size", "0g"], ["--cores", "0"]])
def test_what_is_no_size_and_no_number_is_a_wrong_call(words: list[str]) -> None:
    assert cli.invoke(["table", "advise", "one", *words]) == 2


def test_arguments_are_checked(tmp_path: Path) -> None:
    config = load_config(tmp_path / "connector.toml")
    for argument in ({"size_bytes": 0}, {"cores": True}, {"cores": "8"}):
        with pytest.raises(ConfigError, match="The argument"):
            advise_buckets(config, "one", **argument)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean one"):
        advise_buckets(config, "onne", size_bytes=1)


@pytest.mark.parametrize(
    ("spark", "cores"),
    [
        (SparkConfig(master="local"), 1),
        (SparkConfig(master="local[4]"), 4),
        (SparkConfig(master="local[4,2]"), 4),
        (SparkConfig(master="spark://host:7077"), None),
        (SparkConfig(master="spark://host:7077", conf={"spark.cores.max": "12"}), 12),
        (
            SparkConfig(master="yarn", executor_cores=4, conf={"spark.executor.instances": "3"}),
            12,
        ),
    ],
)
def test_cores_are_those_that_the_configuration_names(
    spark: SparkConfig, cores: int | None
) -> None:
    assert cores_of(spark) == cores

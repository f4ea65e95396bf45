"""The examples of the pages work on one deployment, that of the tutorial."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from connector.jars import JarStore
from connector.kafka.local.broker import LocalBroker
from tests.documents import ROOT, examples, pages
from tests.spark.conftest import QUICK_PROCESS

TIMEOUT_S = 1200
QUICK = {
    # A table passes a stalled low watermark at once, so that no example waits for five minutes.
    "CONNECTOR__STREAMS__SHOP__STALL_AFTER": "1s",
    "CONNECTOR__STREAMS__SHOP__TRIGGER": "500ms",
    "EDITOR": "sed -i s/Ada/Eve/",
}


LONG = {
    "operate-write-streams.md",
    "query-changes.md",
    "read-a-table.md",
    "rebuild-a-table.md",
    "repair-what-stopped.md",
    "replay-dead-letters.md",
    "use-from-python.md",
}
"""Pages whose commands and functions tests/spark and tests/integration run, too."""


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The error of each example that was reached, in order; empty if it works. The pages are those
    whose tests run.
    """
    here = [
        item
        for item in request.session.items
        if item.path == request.path and item.get_closest_marker("skip") is None
    ]
    chosen = [item.callspec.params["page"].name for item in here]  # type: ignore[attr-defined]
    folder: Path = tmp_path_factory.mktemp("pages")
    command = [sys.executable, "-m", "tests.e2e.pages", str(folder), *chosen]
    environment = os.environ | QUICK_PROCESS | QUICK | {"PYTHONPATH": str(ROOT)}
    with (folder / "errors.txt").open("w") as errors:
        try:
            subprocess.run(
                command,
                env=environment,
                stdout=errors,
                stderr=errors,
                timeout=TIMEOUT_S,
                check=False,
            )
        finally:
            store = JarStore.from_environment(os.environ)
            broker = LocalBroker.find(folder / ".lowmark/broker", store)
            if broker is not None:
                broker.stop()
    found = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    said = (folder / "errors.txt").read_text()[-3000:]
    return {one["name"]: one["error"] for one in found} | {"": said}


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.long) if page.name in LONG else page for page in pages()],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_of_a_page_work(page: Path, results: dict[str, str]) -> None:
    """OPS-1, OPS-10, REC-17, REC-21, SUB-3 to SUB-6, DLQ-8: in their order, as a reader types
    them. Those that cannot run here say why in the source of the page.
    """
    for name in (page.name, *(example.name for example in examples(page))):
        assert name in results, f"{name} was not reached: {results['']}"
        assert not results[name], f"{name}: {results[name]}"

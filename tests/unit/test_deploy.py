"""The files in `deploy/`: alert rules, dashboard and unit agree with the code and the pages (MET-3,
MET-4).
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from connector import cli
from connector.reports.metrics import SERIES
from tests.documents import ROOT

DEPLOY = ROOT / "deploy"
ALERTS = DEPLOY / "prometheus/alerts.yml"
ON_CALL = ROOT / "docs/howto/on-call.md"
NAMES = {
    f"{series.name}{suffix}"
    for series in SERIES
    for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
        series.kind, ("",)
    )
}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    return list(group["rules"])


def dashboard() -> ModuleType:
    """The program that makes the dashboard."""
    spec = importlib.util.spec_from_file_location("dashboard", DEPLOY / "grafana/dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_lowmark(expression: str) -> set[str]:
    return set(re.findall(r"\blowmark_\w+", expression))


def test_each_alert_has_a_severity_a_summary_and_a_section() -> None:
    """MET-3: and each section of the page has its alert."""
    sections = re.findall(r"^## (\w+)$", ON_CALL.read_text("utf-8"), re.MULTILINE)
    assert [rule["alert"] for rule in rules()] == sections
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        section = f"docs/howto/on-call.md#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == section


def test_each_incident_names_its_section_of_the_page() -> None:
    """MET-3: the page says what to do in each incident that tests/incidents shows."""
    heads = re.findall(r"^## (.+)$", ON_CALL.read_text("utf-8"), re.MULTILINE)
    sections = {head.lower().replace(" ", "-").replace("'", "") for head in heads}
    named = [
        (ast.get_docstring(node) or "").splitlines()[0].partition("on-call.md#")[2]
        for file in (ROOT / "tests/incidents").glob("test_*.py")
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert named
    assert set(named) - sections == set()


def test_rules_and_dashboard_use_declared_series_only() -> None:
    """MET-3, MET-4"""
    expressions = [rule["expr"] for rule in rules()] + dashboard().expressions()
    used = set().union(*map(of_lowmark, expressions))
    assert len(used) > 30
    assert used - NAMES == set()


def test_the_dashboard_is_what_its_program_makes() -> None:
    """MET-4: after a change, run `python deploy/grafana/dashboard.py`."""
    module = dashboard()
    assert module.FILE.read_text("utf-8") == module.text()
    panels = module.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels), "no panel is over another"


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_promtool_accepts_the_rules_and_their_tests(arguments: tuple[str, ...]) -> None:
    """MET-3"""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    ended = subprocess.run(
        ["promtool", *arguments],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_each_alert_is_tested() -> None:
    """MET-3: one test has series for which it fires."""
    tested = (DEPLOY / "prometheus/alerts_test.yml").read_text("utf-8")
    assert [rule["alert"] for rule in rules() if f'alertname="{rule["alert"]}"' not in tested] == []


def test_the_unit_of_systemd_calls_the_command_as_it_is() -> None:
    """MET-4: with options that exist, and the port that Prometheus scrapes."""
    unit = (DEPLOY / "systemd/lowmark.service").read_text("utf-8")
    _, *arguments = shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])
    with cli.cli.make_context("connector", arguments) as ctx:
        assert str(ctx.params["config_file"]) == "/etc/lowmark/connector.toml"
        command = cli.cli.get_command(ctx, "run")
        assert command is not None
        run = command.make_context("run", arguments[arguments.index("run") + 1 :], parent=ctx)
    assert run.params["address"] == ("127.0.0.1", 9464)
    assert run.params["log_format"] == "json"
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))
    assert scraped["scrape_configs"] == [
        {"job_name": "lowmark", "static_configs": [{"targets": ["127.0.0.1:9464"]}]}
    ]


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """MET-4: with a program that is on this machine."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (DEPLOY / "systemd/lowmark.service").read_text("utf-8")
    copy = tmp_path / "lowmark.service"
    copy.write_text(unit.replace("/opt/lowmark/bin/connector", "/bin/true"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "lowmark.service" not in ended.stderr, ended.stderr


def test_monitoring_in_docker_listens_on_loopback() -> None:
    """MET-4, OPS-7"""
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))["services"]
    of_profile = {n: s for n, s in services.items() if s.get("profiles") == ["monitoring"]}
    assert of_profile.keys() == {"prometheus", "grafana"}
    assert "--web.listen-address=127.0.0.1:9090" in of_profile["prometheus"]["command"]
    assert of_profile["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for service in of_profile.values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith(".") or (ROOT / source).exists(), source

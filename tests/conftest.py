"""Fixtures of all suites: printed seeds that can be set again, and tests that are skipped if the
machine lacks something.

Every random choice of a run comes from one seed, which the run prints at its start. `--seed N`
repeats it. Hypothesis adds a blob that repeats one failing example. Each skipped test has a reason,
and the reasons are listed at the end.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from connector.kafka import unclosed
from tests import machine
from tests.examples import DEEP, QUICK

settings.register_profile(
    "quick", print_blob=True, derandomize=False, deadline=None, max_examples=QUICK
)
settings.register_profile("deep", settings.get_profile("quick"), max_examples=DEEP)

SUITES_ON_THE_JVM = ("e2e", "faults", "incidents", "spark", "integration")
# They start more processes than one broker and one JVM.
SYSTEMS = ("e2e", "faults", "incidents")
_seed = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--seed", type=int, default=None, help="repeat the random choices of an earlier run"
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="with the tests that go deeper into what others show, and take long",
    )
    parser.addoption(
        "--drawn",
        action="store_true",
        help="only the tests whose examples are drawn from the seed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    given = config.getoption("--seed")
    config.stash[_seed] = random.SystemRandom().randrange(2**32) if given is None else given
    profile = "deep" if config.getoption("--long") else "quick"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", profile))
    # The workers of a divided run get the options in their present state.
    config.option.seed = config.stash[_seed]
    if config.getoption("--hypothesis-seed", None) is None:
        config.option.hypothesis_seed = str(config.stash[_seed])


def pytest_report_header(config: pytest.Config) -> str:
    return f"seed: {config.stash[_seed]} (repeat this run with --seed {config.stash[_seed]})"


@pytest.fixture
def seed(pytestconfig: pytest.Config) -> int:
    """The seed of this run, for `random.Random(seed)`."""
    return pytestconfig.stash[_seed]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that need Java and those of whole systems, by folder, and skip the tests that
    this machine cannot run.
    """
    for item in items:
        if _suite(item) in SYSTEMS:
            item.add_marker(pytest.mark.systems)
        if _suite(item) in SUITES_ON_THE_JVM:
            item.add_marker(pytest.mark.java)
        if item.get_closest_marker("long") and not config.getoption("--long"):
            item.add_marker(
                pytest.mark.skip(
                    reason="goes deeper into what other tests show; `make test-long` runs it"
                )
            )
        if item.get_closest_marker("java") and (lack := machine.why_no_java()):
            item.add_marker(pytest.mark.skip(reason=lack))
    if config.getoption("--drawn"):
        items[:] = [item for item in items if _is_drawn(item)]
    # The longest first, so that a divided run does not end with one of them alone.
    order = {suite: place for place, suite in enumerate(SUITES_ON_THE_JVM)}
    items.sort(key=lambda item: order.get(_suite(item), len(order)))


def _is_drawn(item: pytest.Item) -> bool:
    """Whether Hypothesis or the fixture `seed` makes the choices of a test."""
    is_law = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return is_law or "seed" in getattr(item, "fixturenames", ())


def pytest_sessionfinish() -> None:
    """Tests leave producers open, and let them lose records. That is no failure of the run."""
    unclosed._forget()


def _suite(item: pytest.Item) -> str:
    """The folder of a test. Empty: it is not in a suite."""
    here = Path(__file__).parent
    return item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the skipped tests and the reasons, above the last line."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in skipped
        if isinstance(report.longrepr, tuple)
    )
    if not reasons:
        return
    terminalreporter.section("left out")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count} test{'' if count == 1 else 's'}: {reason}")

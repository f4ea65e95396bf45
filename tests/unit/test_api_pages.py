"""docs/reference/api.md: `make docs` writes each public name below its module."""

from __future__ import annotations

import re
from functools import cache

import griffe

from tests.api_pages import PublicNames
from tests.documents import ROOT

MODULES = re.findall(
    r"^::: (.+)$", (ROOT / "docs/reference/api.md").read_text("utf-8"), re.MULTILINE
)


@cache
def public() -> dict[str, griffe.Object]:
    """Each public name as the page shows it."""
    extensions = griffe.load_extensions(PublicNames)
    loaded = griffe.load(
        "connector", search_paths=[ROOT], extensions=extensions, allow_inspection=False
    )
    rooms = {name: loaded[name.removeprefix("connector.")] for name in MODULES[1:]}
    return {
        f"{module}.{name}": room.members[name]
        for module, room in {"connector": loaded, **rooms}.items()
        for name in map(str, room.exports or ())
    }


def test_the_page_names_each_public_module() -> None:
    packages = (
        *("connector", "connector.values", "connector.kafka", "connector.spark"),
        *("connector.services", "connector.exporter"),
    )
    assert (*packages, "connector.errors") == tuple(MODULES)


def test_each_public_name_has_a_docstring() -> None:
    """Without one, it would not be on the page."""
    assert len(public()) > 80
    assert [name for name, shown in public().items() if not shown.docstring] == []


def test_a_function_in_a_module_of_its_name_is_the_function() -> None:
    assert public()["connector.services.run"].is_function


def test_the_values_of_an_enumeration_are_listed() -> None:
    shown = public()["connector.DataType"].docstring
    assert shown is not None
    assert "`INT64`" in shown.value


def test_an_override_has_the_docstring_of_what_it_overrides() -> None:
    poll = public()["connector.kafka.TransactionConsumer"].members["poll"]
    assert poll.docstring is not None
    assert "timeout_s" in poll.docstring.value


def test_an_annotated_field_is_shown_with_its_type_alone() -> None:
    shown = public()["connector.KafkaConfig"]
    assert isinstance(shown, griffe.Alias)
    config = shown.final_target
    assert isinstance(config, griffe.Class)
    assert str(config.parameters["bootstrap_servers"].annotation) == "str"

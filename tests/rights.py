"""The rights that pages list, as they have them (SEC-5, OPR-7)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AclOperation, ResourceType

PAGES = Path(__file__).parents[1] / "docs/howto"
_KINDS = {
    "topic": (ResourceType.TOPIC, False),
    "topics": (ResourceType.TOPIC, False),
    "group": (ResourceType.GROUP, False),
    "transactional id": (ResourceType.TRANSACTIONAL_ID, False),
    "transactional ids with the prefix": (ResourceType.TRANSACTIONAL_ID, True),
}
_OPERATIONS = {
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}


@dataclass(frozen=True)
class Right:
    """One operation on one resource. `name` may have the words TOPIC, GROUP, ID and SOURCE."""

    kind: ResourceType
    name: str
    is_prefix: bool
    operation: AclOperation

    def named(self, **names: str) -> str:
        return re.sub(r"\b(TOPIC|GROUP|ID|SOURCE)\b", lambda found: names[found[0]], self.name)

    def __str__(self) -> str:
        return f"{self.operation.name} {self.kind.name} {self.name}"


def listed(
    page: str = "run-against-your-cluster.md", title: str = "Rights"
) -> dict[str, list[Right]]:
    """The rights of each row group of the table, by the text of its first cell."""
    text = (PAGES / page).read_text("utf-8")
    lines = text.split(f"\n## {title}\n")[1].split("\n## ")[0].splitlines()
    found: dict[str, list[Right]] = {}
    who = ""
    for line in lines:
        if not line.startswith("| ") or line.startswith(("| who", "| for")):
            continue
        first, resource, operations = (cell.strip() for cell in line.strip("|").split("|"))
        who = first or who
        found.setdefault(who, []).extend(_rights(resource, operations))
    return found


def _rights(resource: str, operations: str) -> Iterator[Right]:
    kind, is_prefix = _KINDS[resource[: resource.index("`")].strip()]
    for name in re.findall(r"`([^`]+)`", resource):
        for operation in operations.split(", "):
            yield Right(kind, name, is_prefix, _OPERATIONS[operation])

"""The parts of the documents that are generated from code, and the documents as tests read them.

`python -m tests.documents` writes the generated part of docs/reference/dead-letters.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from connector.dead_letters.repair import STEPS
from connector.records import checks
from connector.records.rejection import Reason

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
DEAD_LETTERS = ROOT / "docs/reference/dead-letters.md"

_BEGIN, _END = "<!-- from the code: python -m tests.documents -->\n", "<!-- end -->\n"
_CODE_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, in order."""
    return [text for found, text in _CODE_BLOCK.findall(page.read_text("utf-8")) if found == language]


def reasons() -> str:
    """Markdown of every reason with cause and remedy, every rule of INVALID with its condition, and
    every repair step.
    """
    lines = ["| reason | cause | remedy |", "|---|---|---|"]
    lines += [f"| `{reason}` | {reason.cause} | {reason.remedy} |" for reason in Reason]
    lines += ["", "Rules of `INVALID`, in the order in which they are judged:", "", "| rule | field | must be |", "|---|---|---|"]
    lines += [f"| `{rule}` | {f'`{field}`' if field else ''} | {words} |" for rule, field, words in _rules()]
    lines += ["", "Steps of mending, `VERB` or `VERB=ARGUMENT`, taken in the order in which they are given:", ""]
    lines += ["| step | argument | what it does |", "|---|---|---|"]
    lines += [f"| `{verb}` | {f'`{form}`' if form else ''} | {what} |" for verb, (form, what) in STEPS.items()]
    return "\n".join(lines) + "\n"


def _rules() -> list[tuple[str, str, str]]:
    every_check = (
        *checks.RECORD_CHECKS,
        *checks.CHANGE_CHECKS,
        *checks.ENTRY_CHECKS,
        *checks.HEARTBEAT_CHECKS,
        *checks.CHILD_PARTITIONS_CHECKS,
    )
    found: dict[str, tuple[str, str, str]] = {}
    for rule, field, _, words in every_check:
        found.setdefault(rule, (rule.value, field, words.replace("|", "\\|")))
    rule, field, words = found["KAFKA_PARTITIONS"]
    found["KAFKA_PARTITIONS"] = (rule, field, f"{words}, and not above what the topic has")
    return list(found.values())


def with_reasons(page: str) -> str:
    """The page with a new generated part."""
    head, rest = page.split(_BEGIN)
    return head + _BEGIN + reasons() + _END + rest.split(_END)[1]


if __name__ == "__main__":
    DEAD_LETTERS.write_text(with_reasons(DEAD_LETTERS.read_text("utf-8")), "utf-8")

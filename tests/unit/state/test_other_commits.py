"""RUN-3: which commits of other programs change no row, and the form of a table.
`test_commits.py` has the commits behind which the state of a table stays in force.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from connector.state.other_commits import TableForm, changes_no_row

METADATA = {"id": "1", "schemaString": "{}", "configuration": {"lowmark.a": "1", "b": "2"}}


def form(**protocol: Any) -> TableForm:
    return TableForm.from_actions([{"metaData": METADATA}, {"protocol": protocol}])


@pytest.mark.parametrize(
    ("data_change", "is_neutral"), [(False, True), (True, False), (None, False), ("false", False)]
)
def test_files_are_replaced_only_with_the_mark_of_delta(
    data_change: object, *, is_neutral: bool
) -> None:
    files = [{kind: {"path": kind, "dataChange": data_change}} for kind in ("add", "remove")]
    assert changes_no_row([{"commitInfo": {}}, *files]) == is_neutral
    assert not changes_no_row(files[:1])
    assert changes_no_row(files[1:]) == is_neutral


@pytest.mark.parametrize(
    ("kind", "is_neutral"),
    [
        ("commitInfo", True),
        ("txn", True),
        ("metaData", True),
        ("protocol", True),
        ("domainMetadata", True),
        ("cdc", False),
        ("an action of a later version", False),
    ],
)
def test_only_known_actions_change_no_row(kind: str, *, is_neutral: bool) -> None:
    """RUN-3."""
    files = [{one: {"path": one, "dataChange": False}} for one in ("add", "remove")]
    assert changes_no_row([{kind: {}}]) == is_neutral
    assert changes_no_row([{kind: {}}, *files]) == is_neutral


def test_a_missing_part_of_a_form_has_not_changed() -> None:
    whole, empty = form(), TableForm()
    assert whole.is_whole
    assert not empty.is_given
    assert empty.is_that_of(whole)
    for part in (TableForm(table=whole.table), TableForm(features=whole.features)):
        assert (part.is_given, part.is_whole) == (True, False)
        assert part.or_else(whole) == whole
    assert empty.or_else(whole) == whole
    assert not whole.is_that_of(empty)


def test_features_that_change_no_stored_row_are_free() -> None:
    """deletion vectors are not: files have them from then on."""
    before = form(minWriterVersion=2)
    assert form(writerFeatures=["changeDataFeed"], readerFeatures=["variantType"]).is_that_of(
        before
    )
    assert not form(readerFeatures=["deletionVectors"]).is_that_of(before)
    assert before.is_that_of(form(readerFeatures=["deletionVectors"]))


@pytest.mark.parametrize(
    "content", [None, "", "[]", "5", '{"metadata": {}}', '{"metad', "[" * 10**5]
)
def test_a_checksum_that_cannot_be_read_has_no_form(content: str | None) -> None:
    assert TableForm.from_checksum(content) == TableForm()


def test_the_form_beside_a_commit_is_that_of_its_actions() -> None:
    checksum = json.dumps({"metadata": METADATA, "protocol": {}})
    assert TableForm.from_checksum(checksum) == form()

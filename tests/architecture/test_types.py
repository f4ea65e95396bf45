"""Types that programs rely on are what mypy makes of them."""

from __future__ import annotations

import pytest
from mypy import api

from tests.documents import ROOT


@pytest.mark.systems
def test_mypy_knows_what_a_consumer_yields() -> None:
    """SUB-1 to SUB-3: by the arguments, and an unknown argument is an error."""
    page = ROOT / "tests/architecture/consumer_types.py"
    # As the project's own check, which has filled the cache.
    out, errors, code = api.run([str(page), "--config-file", str(ROOT / "pyproject.toml")])
    assert code == 0, out + errors

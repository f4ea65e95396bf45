"""What a Spark session is started with."""

from __future__ import annotations

import pytest

from connector.spark.session import collector


@pytest.mark.parametrize("name", ["JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_a_collector_that_the_environment_chooses_stands(name: str) -> None:
    """A JVM does not start with two."""
    assert collector({name: "-Xss4m -XX:+UseSerialGC"}) == []
    assert collector({name: "-XX:+UseStringDeduplication -XX:-UseSerialGC"}) == collector({}) == ["-XX:+UseParallelGC"]

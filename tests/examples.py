"""How many examples a law is tried with. `make test` tries a fifth of what `make test-long` and
`make mutants` try.
"""

from __future__ import annotations

from hypothesis import settings

DEEP = 100
QUICK = 20


def examples(count: int) -> settings:
    """The settings of a law with `count` examples in a deep run, and fewer in a quick run."""
    return settings(max_examples=max(5, count * settings().max_examples // DEEP))

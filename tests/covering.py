"""The test files of a source file: `python -m tests.covering connector/tables/merge.py`.

They are the files of tests/unit/PACKAGE, and of the other suites, that import its module, or a
module of its package that imports it. A package without a folder of its own, as `lake`, has its
tests in all folders of tests/unit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

LAWS = ("tests/property", "tests/golden")
WITH_JAVA = ("tests/spark", "tests/integration", "tests/faults", "tests/e2e")


def covering(root: Path, module: str, suites: Sequence[str] = LAWS) -> list[str]:
    """The test files of `connector/MODULE.py`, as paths below `root`: those of its package, then
    those of `suites`.
    """
    sources = (root / "connector" / Path(module).parent).glob("*.py")
    modules = {module} | {
        str(path.relative_to(root / "connector").with_suffix(""))
        for path in sources
        if _imports(path, {module})
    }
    unit = root / "tests/unit"
    own = unit / Path(module).parts[0]
    found = unit.glob if "/" not in module else own.rglob if own.is_dir() else unit.rglob
    tests = [sorted(found("test_*.py")), *(sorted((root / s).glob("test_*.py")) for s in suites)]
    return [
        str(path.relative_to(root))
        for of_suite in tests
        for path in of_suite
        if _imports(path, modules)
    ]


def _imports(path: Path, modules: set[str]) -> bool:
    """Whether a file has `from connector.PACKAGE.MODULE import …` or `from connector.PACKAGE import
    MODULE` for one of the modules.
    """
    text = path.read_text("utf-8")
    for module in modules:
        dotted = f"connector/{module}".replace("/", ".")
        parent, _, leaf = dotted.rpartition(".")
        if re.search(
            rf"^ *(from|import) ({re.escape(dotted)}|{re.escape(parent)} import .*\b{leaf})\b",
            text,
            re.MULTILINE,
        ):
            return True
    return False


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_file():
        sys.exit("Give one source file, for example connector/tables/merge.py")
    source = Path(sys.argv[1]).resolve().relative_to(Path.cwd() / "connector").with_suffix("")
    files = covering(Path.cwd(), str(source), (*LAWS, *WITH_JAVA))
    print("\n".join(files) or sys.exit("No test file imports it: run make test-unit"))

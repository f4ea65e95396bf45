"""Makes the pictures of the console in docs/pictures from what `make demo` has left.

    make demo
    .venv/bin/connector broker start --folder build/demo/broker
    .venv/bin/python -m tests.console_pictures build/demo/connector.toml
    .venv/bin/connector broker stop --folder build/demo/broker

It needs Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

from connector.console.app import console_app
from connector.console.latest import Latest
from connector.console.pages import Pages
from connector.console.server import Address, serving
from connector.services import DeadLetters, load_config, status
from tests.chromium import browser

PICTURES = Path(__file__).parents[1] / "docs/pictures"


def main() -> None:
    read_config = partial(load_config, Path(sys.argv[1]))
    stream = next(iter(read_config().streams))
    letter, _ = list(DeadLetters(read_config(), stream).list())[-1]
    pages = {
        "overview": ("", 580),
        "stream": (f"streams/{stream}", 1000),
        "letter": (f"streams/{stream}/letters/{letter.id}", 1300),
    }
    latest = Latest(lambda: status(read_config()))
    app = console_app(Pages(read_config, latest.report))
    with (
        latest.reading(),
        serving(app, Address(port=0)) as port,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser(Path(folder)) as shown,
    ):
        for name, (path, height) in pages.items():
            shown.size((960, height))
            shown.open(f"http://127.0.0.1:{port}/{path}")
            shown.picture(PICTURES / f"console-{name}.png")


if __name__ == "__main__":
    main()

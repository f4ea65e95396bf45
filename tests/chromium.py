"""A headless Chromium, driven through its pipe: pages as a person gets them (WEB-3)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

PROGRAM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
PHONE: Final = (390, 844)
DESK: Final = (1200, 900)


class Browser:
    """One page of a browser. `messages` has what the browser said about it, such as a refusal by
    the Content Security Policy.
    """

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers, self._rest, self._last = to, answers, b"", 0
        self.messages: list[str] = []
        self.dialogs = 0
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the DevTools protocol and return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._last:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def size(self, size: tuple[int, int], *, dark: bool = False, scripts: bool = True) -> None:
        """Set the width and height, the colours, and whether scripts may run."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", **metrics, mobile=width < 600)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=colours)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def open(self, url: str) -> None:
        """Open a page and wait until it is loaded."""
        result = self.call("Page.navigate", url=url)
        assert "errorText" not in result, (url, result["errorText"])
        self._wait("Page.loadEventFired")

    def press(self, key: str, text: str = "") -> None:
        """Press a key, for example "Tab"."""
        code = {"Tab": 9, "Enter": 13}.get(key, 0)
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def press_to_load(self, key: str, text: str = "") -> None:
        """Press a key that opens a page, and wait for that page."""
        self.press(key, text)
        self._wait("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """Evaluate an expression in the page, which the page's policy does not refuse."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def picture(self, path: Path) -> None:
        """Write what is in view as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _wait(self, event: str) -> None:
        while True:
            message = self._next()
            self._note(message)
            if message.get("method") == event:
                return

    def _note(self, message: dict[str, Any]) -> None:
        method, values = message.get("method"), message.get("params", {})
        if method == "Log.entryAdded":
            self.messages.append(values["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.messages.append(str(values["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.dialogs += 1

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Start Chromium with its files in `folder`."""
    assert PROGRAM is not None, "Chromium is not installed"
    read_end, to = os.pipe()
    answers, write_end = os.pipe()
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--hide-scrollbars", "--ignore-certificate-errors", f"--user-data-dir={folder}"]
    # Chromium reads from file descriptor 3 and writes to 4.
    line = f'exec 3<&{read_end} 4>&{write_end}; exec "$0" "$@"'
    command = ["bash", "-c", line, PROGRAM, *options, "--remote-debugging-pipe"]
    process = subprocess.Popen(
        command,
        pass_fds=(read_end, write_end),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_end)
    os.close(write_end)
    try:
        yield Browser(to, answers)
    finally:
        os.close(to)
        process.terminate()
        process.wait(20)
        os.close(answers)

"""A headless Chromium driven over a pipe with the DevTools protocol: all that the browser tests need, no packages.

Messages are JSON objects that end with a zero byte; Chromium reads them from descriptor 3 and answers on 4.
"""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

PATIENCE = 30.0  # seconds to wait for any one answer
_OPTIONS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--mute-audio",
    "--remote-debugging-pipe",
]


def find_chromium() -> str | None:
    """The browser's executable, or None."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def running(profile: Path) -> Iterator[Chromium]:
    """A browser for a fixture; where there is none, the tests are skipped, or fail if they must all run."""
    executable = find_chromium()
    if executable is None:
        words = "no chromium, chromium-browser or google-chrome on PATH: the report cannot be tried in a browser"
        if os.environ.get("CI"):
            pytest.fail(words)
        pytest.skip(words)
    with Chromium(executable, profile) as chromium:
        yield chromium


class Chromium:
    """One browser with one page.

    Attributes:
        errors: What the page's console reported as an error, uncaught exceptions and failed requests included.
        requests: The addresses that pages asked for.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._seen: list[str] = []
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self._unread = b""
        command_out, self._write = os.pipe()
        self._read, answer_in = os.pipe()
        # High numbers first, so that neither stands in the way of 3 and 4.
        theirs = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10) for descriptor in (command_out, answer_in)]
        start = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
        quiet: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        command = ["bash", "-c", start, "chromium", executable, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(command, pass_fds=theirs, **quiet)
        for descriptor in (command_out, answer_in, *theirs):
            os.close(descriptor)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            os.close(self._read)
            os.close(self._write)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, sharpness: float = 1) -> None:
        """Show a file in a window of this size, for a reader who prefers light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=sharpness,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._seen.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._next()
        self.settle()

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was asked of the page has been drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def press(self, key: str) -> None:
        """Press and release a key, such as ``ArrowRight``."""
        for kind in ("rawKeyDown", "keyUp"):
            code = {"Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.settle()

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a place in the window, and click there if asked to."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.settle()

    def tap(self, x: float, y: float) -> None:
        """Touch a place in the window for a moment."""
        self.call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.call("Emulation.setTouchEmulationEnabled", enabled=False)
        self.settle()

    def screenshot(self) -> bytes:
        """The whole page as PNG."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(picture["data"])

    def printed(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True, printBackground=True)["data"])

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._unread:
            if not select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("Chromium must answer in time, and did not.")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise ConnectionError("Chromium must stay open, and has closed.")
            self._unread += part
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, content: dict[str, Any]) -> None:
        self._seen.append(event)
        if event == "Runtime.exceptionThrown":
            details = content["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning", "assert"):
            self.errors.append(str([part.get("value", part.get("description")) for part in content["args"]]))
        elif event == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
            self.errors.append(content["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(content["request"]["url"])

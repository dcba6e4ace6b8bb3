"""A real headless Chromium over its debugging pipe: no driver, no socket, no package. Loads one page and tells all that it did."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "about:blank",
)
DEADLINE_S = 60.0


def find() -> str | None:
    """The browser to use: $CHROMIUM, else the first that is installed."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """What a page did while it loaded, and the session to ask it more."""

    browser: Browser
    session: str
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def value(self, script: str) -> Any:
        """Evaluate JavaScript and return its value."""
        found = self.browser.call("Runtime.evaluate", self.session, expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")


class Browser:
    """One process of Chromium."""

    def __init__(self, path: str, profile: Path) -> None:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def at_three_and_four() -> None:
            os.dup2(to_browser, 3)
            os.dup2(from_browser, 4)

        command = [path, *FLAGS[:-1], f"--user-data-dir={profile}", FLAGS[-1]]
        # dup2 onto 3 and 4 must not close what it copies from: move the pipes out of the way first.
        to_browser, from_browser = (os.dup(fd) if fd > 9 else self._high(fd) for fd in (to_browser, from_browser))
        self._process = subprocess.Popen(
            command, preexec_fn=at_three_and_four, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []

    @staticmethod
    def _high(fd: int) -> int:
        import fcntl

        moved = fcntl.fcntl(fd, fcntl.F_DUPFD, 20)
        os.close(fd)
        return moved

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._write)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come meanwhile are kept."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            got = self._message(end)
            if got.get("id") == number:
                assert "error" not in got, got
                return dict(got["result"])
            self._events.append(got)

    def until(self, method: str) -> None:
        """Wait for an event."""
        end = time.monotonic() + DEADLINE_S
        while not any(e.get("method") == method for e in self._events):
            self._events.append(self._message(end))

    def events(self) -> list[dict[str, Any]]:
        """Take the events since the last call."""
        found, self._events = self._events, []
        return found

    def _message(self, end: float) -> dict[str, Any]:
        import select

        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "Chromium did not answer in time"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "Chromium ended"
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def open(self, page: Path, *, width: int, scheme: str = "light", medium: str = "") -> Page:
        """Load a file at a width in CSS pixels, in the light or dark scheme, and collect what it says and asks for."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for room in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{room}.enable", session)
        self.call("Emulation.setDeviceMetricsOverride", session, width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", session, media=medium, features=features)
        self.events()
        self.call("Page.navigate", session, url=page.resolve().as_uri())
        self.until("Page.loadEventFired")
        found = Page(self, session)
        for event in self.events():
            method, detail = event.get("method"), event.get("params", {})
            if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
                found.complaints.append(json.dumps(detail)[:300])
            if method == "Network.requestWillBeSent":
                found.requests.append(detail["request"]["url"][:200])
        return found


@contextlib.contextmanager
def browser(path: str) -> Iterator[Browser]:
    """Start and end a browser with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        running = Browser(path, Path(profile))
        try:
            yield running
        finally:
            running.close()

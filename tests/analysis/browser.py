"""Drives a headless Chromium through its DevTools protocol over a pipe."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import time
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 60
"""Seconds after which a page is considered hung."""


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A page in a browser of its own, in a window of 1500 x 900 pixels."""

    def __init__(self, browser: str, file: pathlib.Path, profile: pathlib.Path):
        there, back = os.pipe(), os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --remote-debugging-pipe --window-size=1500,900 --disable-dev-shm-usage"
        flags += f" --user-data-dir={profile}"
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" {flags} about:blank 3<&{there[0]} 4>&{back[1]}', browser],
            pass_fds=(there[0], back[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there[0])
        os.close(back[1])
        self._write, self._read, self._unread = there[1], back[0], b""
        self._numbers = itertools.count(1)
        self._loaded: set[str] = set()
        self._file = file

    def __enter__(self) -> Page:
        try:
            target = self._send("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            self._send("Page.enable")
            self._send("Page.setLifecycleEventsEnabled", enabled=True)
            document = self._send("Page.navigate", url=self._file.as_uri())["loaderId"]
            while document not in self._loaded:  # earlier, a script would run in an empty or half-loaded page
                self._next()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def run(self, script: str) -> Any:
        """Returns the awaited value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, script: str, value: object) -> None:
        """Waits until the expression has that value."""
        deadline = time.monotonic() + SECONDS
        while (found := self.run(script)) != value:
            assert time.monotonic() < deadline, f"{script} is {found!r}, not {value!r}"
            time.sleep(0.02)

    def mouse(self, x: float, y: float, *, click: bool = False) -> None:
        """Moves the mouse to a position in the window, and clicks there."""
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def click(self, element: str) -> None:
        """Clicks in the middle of an element."""
        left, top, width, height = self.box(element)
        self.mouse(left + width / 2, top + height / 2, click=True)

    def box(self, element: str) -> tuple[float, float, float, float]:
        """Returns the left, top, width and height of an element."""
        found = self.run(
            f"(b => [b.left, b.top, b.width, b.height])(document.getElementById({element!r}).getBoundingClientRect())"
        )
        return tuple(found)

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if method.partition(".")[0] != "Target":
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._read], [], [], SECONDS)[0], "the browser does not answer"
            some = os.read(self._read, 1 << 16)
            assert some, "the browser ended"
            self._unread += some
        message, _, self._unread = self._unread.partition(b"\0")
        answer = json.loads(message)
        if answer.get("method") == "Page.lifecycleEvent" and answer["params"]["name"] == "load":
            self._loaded.add(answer["params"]["loaderId"])
        return answer

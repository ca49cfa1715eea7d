"""A stand-in for Google Cloud Storage on loopback: gcp-storage-emulator with missing features added, and with faults on demand.

    python -m tests.storage.emulator PORT BUCKET [HOST]

gcp-storage-emulator ignores generation preconditions (ifGenerationMatch) and leaves out the header x-goog-generation; the JSON
API has both, and TensorStore and the lock of a workdir rely on them. It answers only one request at a time. It parses the parts
of an upload like an e-mail, which changes binary parts; here they stay unchanged. `fail` makes the next requests fail, `at`
runs a function between the arrival of a request and its answer, and `answering` changes the answers.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import functools
import http.server
import io
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import gcp_storage_emulator.handlers.buckets
import gcp_storage_emulator.server as emulated
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.storage import Storage

LOST_ANSWER = -1
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_read_data = emulated._read_data


def _read_parts(handler: http.server.BaseHTTPRequestHandler, query: Mapping[str, list[str]]) -> object:
    """Returns the data of a request; multipart uploads are returned unchanged, byte by byte."""
    kind = handler.headers.get("Content-Type") or ""
    if not kind.startswith("multipart/related"):
        data = _read_data(handler, query)
        return b"" if data is None and query.get("uploadType") == ["media"] else data  # an empty object
    boundary = b"--" + kind.split("boundary=")[1].strip("'\"").encode()
    _, first, second, _ = emulated._read_raw_data(handler).split(boundary)
    head, _, content = second.lstrip(b"\n").partition(b"\n\n")
    meta = json.loads(first.partition(b"\n\n")[2])
    return {"meta": meta, "content": content[:-1], "content-type": head.decode().partition(": ")[2]}


emulated._read_data = _read_parts


class Handler(emulated.RequestHandler):
    """Handles requests to the emulator: first faults, then preconditions, then everything else."""

    lock = threading.Lock()
    faults: list[dict[str, object]] = []  # noqa: RUF012 - of the server, which is one process
    held = ""
    """The next request that matches waits until it is released; "" for none."""
    arrived, released = threading.Event(), threading.Event()
    page, older = 0, 0.0
    """The number of objects in an answer to a listing (0: all), and the seconds by which objects appear older."""
    wfile: Any

    def _do(self) -> None:
        parsed = urllib.parse.urlparse(self.path)
        query = dict(urllib.parse.parse_qsl(parsed.query))
        if parsed.path == "/faults":
            Handler.faults = json.loads(query["faults"])
            self._answer(200)
            return
        if parsed.path == "/answering":
            Handler.page, Handler.older = int(query["page"]), float(query["older"])
            self._answer(200)
            return
        if parsed.path == "/hold":
            Handler.arrived.clear()
            Handler.released.clear()
            Handler.held = query["match"]  # set last: a request may arrive immediately
            self._answer(200)
            return
        if parsed.path == "/arrived":
            self._answer(200 if Handler.arrived.wait(60) else 504)
            return
        if parsed.path == "/release":
            Handler.held = ""
            Handler.released.set()
            self._answer(200)
            return
        if Handler.held and re.search(Handler.held, f"{self.command} {urllib.parse.unquote(self.path)}"):
            Handler.held = ""
            Handler.arrived.set()
            Handler.released.wait(60)
        for fault in Handler.faults:
            named = f"{self.command} {urllib.parse.unquote(self.path)}"
            if fault["count"] and re.search(str(fault["match"]), named):
                fault["count"] = int(str(fault["count"])) - 1
                if fault["status"] == LOST_ANSWER:
                    self._handle(parsed.path, query, io.BytesIO())
                    self.connection.shutdown(socket.SHUT_RDWR)
                else:
                    self._fail(int(str(fault["status"])))
                return
        if Handler.page and self.command == "GET" and parsed.path.endswith("/o"):
            said, start = io.BytesIO(), int(query.get("pageToken", "0"))
            self._handle(parsed.path, query, said)
            items = json.loads(said.getvalue().partition(b"\r\n\r\n")[2]).get("items", [])
            more = {"nextPageToken": str(start + Handler.page)} if start + Handler.page < len(items) else {}
            self._answer(200, {"items": items[start : start + Handler.page], **more})
            return
        self._handle(parsed.path, query, self.wfile)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _do

    def _handle(self, path: str, query: Mapping[str, str], output: IO[bytes]) -> None:
        """Carries out the request if its precondition holds, and writes the answer to `output`."""
        before, self.wfile = self.wfile, output
        with Handler.lock:
            if self._holds(path, query):
                emulated.Router(self).handle(self.command)
            else:
                self._fail(412)
        self.wfile = before

    def _fail(self, status: int) -> None:
        if status == 0:  # the connection is lost
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        emulated._read_raw_data(self)
        self._answer(status, {"error": {"code": status, "message": "on purpose"}})

    def _answer(self, status: int, content: object = None) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _holds(self, path: str, query: Mapping[str, str]) -> bool:
        """Returns whether the precondition of the request, if any, holds."""
        wanted = query.get("ifGenerationMatch")
        return wanted is None or str((self._object(path, query) or {"generation": "0"})["generation"]) == wanted

    def _object(self, path: str, query: Mapping[str, str]) -> dict[str, object] | None:
        """Returns the metadata of the object that the request names; None without one."""
        found = re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/([^/]+)/o(?:/(.+))?", path)
        with contextlib.suppress(NotFound):
            if found:
                return self.storage.get_file_obj(found[1], urllib.parse.unquote(found[2] or query.get("name", "")))
        return None

    def end_headers(self) -> None:
        """Adds the generation of the object that is read, when it was written, and its encoding."""
        parsed = urllib.parse.urlparse(self.path)
        if self.command == "GET" and "alt=media" in parsed.query and (about := self._object(parsed.path, {})):
            self.send_header("x-goog-generation", str(about["generation"]))
            written = datetime.datetime.fromisoformat(str(about["updated"])) - datetime.timedelta(seconds=Handler.older)
            self.send_header("Last-Modified", email.utils.format_datetime(written, usegmt=True))
            if encoding := about.get("contentEncoding"):
                self.send_header("Content-Encoding", str(encoding))
        super().end_headers()


def main() -> None:
    """Serves until the process is killed or its parent ends."""
    port, bucket = int(sys.argv[1]), sys.argv[2]
    storage = Storage(use_memory_fs=True)
    gcp_storage_emulator.handlers.buckets.create_bucket(bucket, storage)
    host = sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1"
    server = http.server.ThreadingHTTPServer((host, port), functools.partial(Handler, storage))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    server.serve_forever()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(0)


class Emulator:
    """A running emulator with one bucket, at `url`. Programs with the variables of `environment` use it."""

    def __init__(self, port: int, bucket: str):
        self.url, self.bucket = f"http://127.0.0.1:{port}", bucket
        self.environment = {"STORAGE_EMULATOR_HOST": self.url, "TENSORSTORE_GCS_HTTP_URL": self.url}

    def fail(self, status: int, count: int = 1 << 30, match: str = "") -> None:
        """Answers the next `count` requests that match (METHOD PATH) with `status`; 0 drops the connection, and LOST_ANSWER
        carries the request out first. A `count` of 0 ends all faults."""
        faults = json.dumps([{"status": status, "count": count, "match": match}])
        urllib.request.urlopen(f"{self.url}/faults?{urllib.parse.urlencode({'faults': faults})}").close()

    @contextlib.contextmanager
    def answering(self, *, page: int = 0, older: float = 0.0) -> Iterator[None]:
        """Within the block, lists only `page` objects at once (0: all), and makes objects appear older by some seconds."""
        self._ask("answering", page=page, older=older)
        try:
            yield
        finally:
            self._ask("answering", page=0, older=0.0)

    def at(self, match: str, action: Callable[[], object], work: Callable[[], object]) -> None:
        """Calls `work`, in a thread, and calls `action` before its first request that matches (METHOD PATH) is answered."""
        self._ask("hold", match=match)
        thread = threading.Thread(target=work)
        thread.start()
        try:
            self._ask("arrived")
            action()
        finally:
            self._ask("release")
            thread.join(30)
        assert not thread.is_alive()

    def _ask(self, what: str, **query: object) -> None:
        urllib.request.urlopen(f"{self.url}/{what}?{urllib.parse.urlencode(query)}").close()


@contextlib.contextmanager
def running(port: int, bucket: str = "bkt", host: str = "127.0.0.1") -> Iterator[Emulator]:
    """Runs an emulator in a process of its own until the end of the block; it listens at the address `host`."""
    command = [sys.executable, "-m", "tests.storage.emulator", str(port), bucket, host]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        emulator = Emulator(port, bucket)
        until = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(emulator.url).close()
                break
            time.sleep(0.05)
        assert process.poll() is None, f"the emulator has ended: another program may have taken port {port}"
        yield emulator
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()

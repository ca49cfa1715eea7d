"""Keeps the ledger of time of a run in its workdir, so that it survives a kill."""

from __future__ import annotations

import json
import pathlib
import threading

from bert_jax.files import JsonObject, json_lines
from bert_jax.metrics.ledger import Ledger

LEDGER = "ledger.jsonl"
EVERY = 30.0
"""Seconds between two lines; the time after the last line of a killed start counts as time between starts."""


class LedgerFile:
    """Appends lines of a `ledger` to `WORKDIR/ledger.jsonl`: at every call of `write`, every 30 seconds, and at the end.

    A line holds the seconds of a start so far, so a later line replaces it, and a write that fails loses nothing for long.
    """

    def __init__(self, workdir: pathlib.Path, ledger: Ledger):
        self._path, self._ledger = workdir / LEDGER, ledger
        ledger.continue_after(read_ledger(self._path))
        self._torn = True  # the last line may lack its end: another process was killed while it wrote it, or the disk was full
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._write_regularly, name="ledger", daemon=True)
        self._thread.start()

    def write(self) -> None:
        """Appends a line. Does nothing where the file cannot be written: the next line replaces this one."""
        with self._writing:
            line = json.dumps(self._ledger.record()).encode() + b"\n"
            try:
                with self._path.open("ab", buffering=0) as file:
                    text = b"\n" + line if self._torn and file.tell() else line
                    self._torn = True
                    self._torn = file.write(text) < len(text)
            except OSError:
                pass

    def close(self) -> None:
        """Appends the last line."""
        self._closed.set()
        self._thread.join()
        self.write()

    def _write_regularly(self) -> None:
        while not self._closed.wait(EVERY):
            self.write()


def read_ledger(path: pathlib.Path) -> list[JsonObject]:
    """The records of a ledger's file in order, without lines that are empty or incomplete; none without a file."""
    try:
        return [record for record in json_lines(path, strict=True) if _is_complete(record)]
    except OSError:
        return []


def _is_complete(record: JsonObject) -> bool:
    match record:
        case {"start": int(), "began": int() | float(), "step": int(), "seconds": {**seconds}}:
            return all(isinstance(spent, int | float) for spent in seconds.values())
    return False

"""What every verb does about its standard streams and its locale, tried with small programs that are started as verbs are."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def verb(main: str, *arguments: Any, shell: str = '"$@"', **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The end of a verb with these arguments, whose main() is `main`; `shell` runs it as "$@"."""
    program = f"import sys, os, pathlib\nfrom bert_jax.interface.command import *\ndef main():\n    {main}\nrun_verb(main)\n"
    command = ["sh", "-c", shell, "sh", sys.executable, "-c", program, *map(os.fsencode, map(str, arguments))]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "", **environment}
    return subprocess.run(command, env=variables, capture_output=True, timeout=60, check=False)


def test_a_locale_of_ascii_changes_neither_arguments_nor_files_nor_what_is_printed(tmp_path):
    directory = tmp_path / "Prüfung"
    directory.mkdir()
    main = r"p = pathlib.Path(sys.argv[1]) / '\u4e2d'; p.write_text(sys.argv[2]); print(p.read_text()); raise UserError(str(p))"
    done = verb(main, directory, "größer", LC_ALL="C", PYTHONUTF8="0")
    assert done.stdout.decode() == "größer\n"
    assert done.stderr.decode() == f"error: {directory}/中\n"
    assert (done.returncode, (directory / "中").read_text(encoding="utf-8")) == (2, "größer")


@pytest.mark.parametrize("environment", [{}, {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C"}])
def test_a_name_that_cannot_be_encoded_is_printed_all_the_same(environment):
    done = verb(r"print('\udcff', '\u4e2d'); print('end')", **environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(b"end\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_what_is_written_to_a_closed_stream_goes_into_no_file(tmp_path, closed):
    file = tmp_path / "file"
    main = "f = open(sys.argv[1], 'w'); print('o'); print('err', file=sys.stderr); os.system('echo x; echo y >&2'); f.write('x')"
    done = verb(main, file, shell=f'"$@" {closed}')
    assert done.returncode == 0
    assert file.read_text() == "x"
    assert b"err" not in done.stdout
    assert b"Traceback" not in done.stderr


def test_a_verb_whose_answers_nobody_would_read_refuses():
    done = verb("require_stdout('open it'); print('answer')", shell='"$@" >&-')
    assert done.stderr == b"error: standard output is closed, so nobody would read the results; open it\n"
    assert done.returncode == 2


def test_a_full_disk_behind_standard_output_is_one_sentence():
    done = verb("print('answer')", shell='"$@" >/dev/full')
    assert done.stderr.startswith(b"error: standard output cannot be written: No space left on device; redirect it")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_a_reader_that_leaves_before_anything_is_written_ends_the_verb_quietly(tmp_path):
    status = tmp_path / "status"
    done = verb("sys.stdin.read(); print('answer')", shell=f'{{ sleep 0.2 | "$@"; echo $? >{status}; }} | true')
    assert done.stderr == b""
    assert status.read_text() == "141\n"


@pytest.mark.parametrize(
    ("main", "says"),
    [
        ("open('/nowhere/x')", "error: No such file or directory: /nowhere/x; give an existing path"),
        ("open('/')", "error: Is a directory: /; give an existing path"),
        ("open('/dev/null/x')", "error: Not a directory: /dev/null/x; give an existing path"),
        ("open('x' * 300)", "error: File name too long: xxx"),
        ("raise PermissionError(13, 'Permission denied', b'secret')", "error: Permission denied: secret; change its permissions"),
        ("raise OSError(5, 'Input/output error')", "error: Input/output error; the disk or the network file system fails"),
    ],
)
def test_an_error_of_the_system_is_a_sentence_with_a_remedy(main, says):
    done = verb(main)
    assert done.stderr.decode().startswith(says)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)

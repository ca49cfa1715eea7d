from __future__ import annotations

import fcntl
import glob
import io
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from bert_jax.errors import UserError
from bert_jax.files import PartialFile
from bert_jax.prediction.answers import Writer, answer_records
from bert_jax.prediction.fields import Field, Record
from bert_jax.prediction.streams import read_records, read_texts
from bert_jax.storage.formats import open_packed
from tests.compressed import PACK

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TEXT = (Field("text"),)

# A command that returns texts in capitals, as a program with the flags --input, --output, --json. A text "numbers" cannot be
# answered, and "crash" ends the program.
SHOUT = """
import argparse
from bert_jax.prediction.answers import Writer, answer_records
from bert_jax.prediction.fields import Field
from bert_jax.prediction.streams import read_records
from bert_jax.errors import UserError
from bert_jax.interface.command import run_main

def shout(records):
    texts = [record.values["text"] for record in records]
    if "crash" in texts:
        raise UserError("the model is gone")
    return ["no word in it" if text == "numbers" else {"text": text, "loud": text.upper()} for text in texts]

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--limit", type=int)
    flags = parser.parse_args()
    if flags.limit:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (flags.limit, flags.limit))
    records = read_records(flags.texts, flags.input, [Field("text")])
    with Writer(flags.output, None if flags.json else lambda answer: answer["loud"], records) as writer:
        answer_records(records, 64, shout, writer)
    return writer.status

run_main(main)
"""


def shout(*arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SHOUT, *map(str, arguments)]
    defaults: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command, cwd=REPOSITORY, text=True, timeout=60, check=False, **(defaults | settings))


def started(*arguments: Any, **settings: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SHOUT, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, **settings)


def loud(records: list[Record]) -> list[Mapping[str, Any] | str]:
    """Returns the answers of a command that returns every text but "numbers" in capitals."""
    texts = [record.values["text"] for record in records]
    return ["no word in it" if text == "numbers" else {"text": text, "loud": text.upper()} for text in texts]


def answered(source: pathlib.Path, output: pathlib.Path, answer=loud, **flags: Any) -> Writer:
    records = read_records([], str(source), TEXT)
    with Writer(str(output), **flags) as writer:
        answer_records(records, 2, answer, writer)
    return writer


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "in.jsonl"
    lines = [{"id": "x", "text": "a"}, {"text": "numbers", "id": "y"}, {"loud": "gold", "text": "ü"}, {"id": 4}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\nno JSON\n\n" + json.dumps({"text": "e"}) + "\n")
    return path


# Lines


def test_json_lines_keep_the_order_and_other_fields_of_records(source, tmp_path):
    writer = answered(source, tmp_path / "out.jsonl")
    out = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert out[:4] == [
        {"id": "x", "text": "a", "loud": "A"},
        {"id": "y", "line": 2, "error": "no word in it"},
        {"input_loud": "gold", "text": "ü", "loud": "Ü"},
        {"id": 4, "line": 4, "error": "no field 'text'; known: id"},
    ]
    assert out[4].keys() == {"line", "error"}
    assert out[4]["line"] == 5
    assert out[5:] == [{"text": "e", "loud": "E"}]
    assert writer.status == 1


def test_the_output_of_a_command_is_read_by_another_without_losing_a_field(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"input_loud": "gold", "text": "a", "loud": "B"}\n')
    answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    found = json.loads((tmp_path / "out.jsonl").read_text())
    assert found == {"input_loud": "gold", "input_input_loud": "B", "text": "a", "loud": "A"}


def test_failed_lines_are_listed_and_counted(source, tmp_path, capsys):
    answered(source, tmp_path / "out.txt", as_text=lambda answer: f"{answer['text']}\n  {answer['loud']}")
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "a\n  A\nü\n  Ü\ne\n  E\n"
    errors = capsys.readouterr().err.splitlines()
    assert errors[0] == f"error: {source}, line 2: no word in it"
    assert [error.partition("line ")[2][0] for error in errors[:3]] == ["2", "4", "5"]
    assert errors[3:] == ["3 of 6 lines failed"]


def test_without_failures_the_status_is_0_and_nothing_is_printed(tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a\nb\n")
    assert answered(tmp_path / "in.txt", tmp_path / "out.jsonl").status == 0
    assert capsys.readouterr().err == ""


def test_a_lone_surrogate_is_escaped_in_json(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "a", "note": "\\ud83d"}\n')
    answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_bytes().decode("utf-8"))["note"] == "\ud83d"


def test_rows_with_one_number_each_get_their_own_answer(tmp_path):
    (tmp_path / "in.csv").write_text("text\na\rb\nc\n", newline="")  # a bare CR ends a row, but not a line
    with Writer(str(tmp_path / "out.txt"), lambda answer: answer["loud"]) as writer:
        answer_records(read_texts([], str(tmp_path / "in.csv"), TEXT), 3, loud, writer)
    assert (tmp_path / "out.txt").read_text() == "A\nB\nC\n"


def test_a_lost_record_is_an_error_instead_of_a_shift_of_lines(source, tmp_path):
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        answered(source, tmp_path / "out.jsonl", answer=lambda records: loud(records)[1:])


# Files


def test_the_file_appears_only_when_complete(source, tmp_path):
    output = tmp_path / "out.jsonl"
    seen = []
    answered(source, output, answer=lambda records: [seen.append(output.exists()) or r for r in loud(records)])
    assert seen == [False] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize("suffix", ["", *PACK])
@pytest.mark.parametrize("error", [UserError("the model is gone"), KeyboardInterrupt(), ZeroDivisionError()])
def test_a_failure_leaves_only_the_old_file(source, tmp_path, error, suffix):
    output = tmp_path / f"out.jsonl{suffix}"
    output.write_text("old")

    def fails(records: list[Record]) -> list[Any]:
        if records[0].number > 2:
            raise error
        return loud(records)

    with pytest.raises(type(error)):
        answered(source, output, answer=fails)
    assert output.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", output.name]


def holding(path: pathlib.Path) -> subprocess.Popen[str]:
    """Starts a program that has begun to write its answers to `path`, and waits for more input."""
    program = started(f"--output={path}", stdin=subprocess.PIPE, bufsize=1)
    assert program.stdin
    program.stdin.write("good\n")
    until = time.monotonic() + 60
    while not any(part.stat().st_size for part in path.parent.glob(f".{glob.escape(path.name)}.*.part")):
        assert program.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    return program


def test_the_next_start_removes_leftovers_of_killed_programs(source, tmp_path):
    foreign = [".out.jsonl.1.part", ".notes.bert_jax.part.txt", "out.jsonl.bert_jax.part"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    (tmp_path / ".link.bert_jax.part").symlink_to(source)
    for name in ("out.jsonl", "other[1].jsonl"):
        with holding(tmp_path / name) as program:
            program.kill()
    assert len(list(tmp_path.glob(".o*.bert_jax.part"))) == 1  # the second start has removed what the first one left
    answered(source, tmp_path / "out.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["in.jsonl", "out.jsonl", ".link.bert_jax.part", *foreign],
    )


def test_a_file_that_another_program_writes_is_refused(source, tmp_path):
    output = tmp_path / "other[1].jsonl"
    with holding(output) as program:
        assert program.stdin
        with pytest.raises(UserError, match=r"is being written by another process .*; wait for it, or choose another --output"):
            answered(source, output)
        answered(source, tmp_path / "out.jsonl")  # in the same directory
        program.stdin.close()
        assert program.wait(60) == 0
    assert output.read_text() == "GOOD\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "other[1].jsonl", "out.jsonl"]


def test_a_temporary_file_removed_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    lock, taken = fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(path.unlink() for path in tmp_path.iterdir())
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    part = PartialFile(tmp_path / "x")
    part.file.write(b"whole")
    part.complete()
    part.close()
    assert (tmp_path / "x").read_bytes() == b"whole"
    assert len(taken) == len(list(tmp_path.iterdir())) == 1


def test_a_write_protected_file_is_not_replaced(source, tmp_path):
    (tmp_path / "out.jsonl").write_text("precious")
    (tmp_path / "out.jsonl").chmod(0o444)
    with pytest.raises(UserError, match=r"out.jsonl is write-protected; choose another --output, or .*chmod u\+w"):
        answered(source, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text() == "precious"


@pytest.mark.parametrize("depth", range(940, 1000, 4))
def test_deeply_nested_fields_are_carried_along_or_refused(tmp_path, depth):
    nested = "[" * depth + "]" * depth
    (tmp_path / "in.jsonl").write_text(f'{{"text": "a", "deep": {nested}}}\n{{"text": "b"}}\n')
    writer = answered(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    first, second = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert first == {"line": 1, "error": first["error"]} if writer.status else first["loud"] == "A"
    assert second["loud"] == "B"


@pytest.mark.parametrize("suffix", [*PACK, ".GZ"])
def test_a_file_is_compressed_according_to_its_name(source, tmp_path, suffix):
    path = tmp_path / f"packed.jsonl{suffix}"
    answered(source, tmp_path / "plain.jsonl")
    answered(source, path)
    plain, packed = (tmp_path / "plain.jsonl").read_bytes(), path.read_bytes()
    assert packed.startswith(PACK[suffix.lower()](plain)[:4])
    with open_packed(path) as file:
        assert file.read() == plain
    if packed.startswith(b"\x1f\x8b"):
        assert packed[4:8] == bytes(4)  # it contains no time: the same answers give the same file


@pytest.mark.parametrize("suffix", PACK)
def test_a_compressed_file_is_whole_before_it_gets_its_name(source, tmp_path, monkeypatch, suffix):
    replace, seen = pathlib.Path.replace, []

    def noted(path: pathlib.Path, target: pathlib.Path) -> pathlib.Path:
        with open_packed(io.BytesIO(path.read_bytes()), target.name) as file:
            seen.append(file.read().count(b"\n"))
        return replace(path, target)

    monkeypatch.setattr("pathlib.Path.replace", noted)
    answered(source, tmp_path / f"packed.jsonl{suffix}")
    assert seen == [6]
    assert [path.name for path in tmp_path.glob("*packed*")] == [f"packed.jsonl{suffix}"]


def test_writing_through_a_link_keeps_the_link(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.jsonl").symlink_to(tmp_path / "elsewhere" / "out.jsonl")
    answered(source, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").is_symlink()
    assert (tmp_path / "elsewhere" / "out.jsonl").stat().st_size > 0


def test_a_named_pipe_is_written_and_stays_a_pipe(source, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    answered(source, fifo)
    reader.join(10)
    assert got[0].count(b"\n") == 6
    assert fifo.is_fifo()


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("missing/out.jsonl", ": there is no directory .*missing; create it first"),
        (".", " cannot be written: Is a directory; choose another --output"),
        ("in.jsonl/x", " cannot be written: Not a directory; choose another --output"),
        ("/dev/full", " cannot be written: No space.*; choose another --output"),
        ("/proc/x.jsonl", " cannot be written: No such file or directory; choose another --output"),
        ("x" * 255, " cannot be written: File name too long; choose another --output"),
    ],
)
def test_an_unwritable_output_is_refused_with_a_remedy(source, output, message):
    with pytest.raises(UserError, match=rf"--output=\S*{output}{message}"):
        answered(source, source.parent / output)


# The whole program


def test_a_program_with_failed_records_exits_with_1():
    done = shout("good", "numbers", "more")
    assert (done.returncode, done.stdout) == (1, "GOOD\nMORE\n")
    assert done.stderr == "error: text 2: no word in it\n1 of 3 lines failed\n"


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path):
    (tmp_path / "in.txt").write_text("good\n" * 50_000)
    (tmp_path / "out").mkdir()
    done = shout(f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out' / 'out.txt'}", "--limit=20000")
    assert done.returncode == 2
    assert done.stderr.endswith("cannot be written: File too large; choose another --output\n")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_for_standard_output_is_one_sentence(tmp_path):
    with pathlib.Path("/dev/full").open("wb") as full:
        done = shout("good", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: standard output cannot be written: No space left on device; choose another --output\n"


def test_closed_standard_output_is_refused_before_anything_is_read(tmp_path):
    done = shout("good", preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert done.stderr == "error: standard output is closed, so the results would be lost; name a file with --output=FILE\n"
    assert shout("good", f"--output={tmp_path / 'x.jsonl'}", preexec_fn=lambda: os.close(1)).returncode == 0
    assert (tmp_path / "x.jsonl").read_text() == "GOOD\n"


def test_lines_from_a_slow_pipe_are_answered_immediately():
    with started(stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=1) as program:
        assert program.stdin
        assert program.stdout
        patience = threading.Timer(60, program.kill)
        patience.start()
        for text in ("one", "two"):
            program.stdin.write(f"{text}\n")
            assert program.stdout.readline() == f"{text.upper()}\n"
        program.stdin.close()
        assert program.wait() == 0
        patience.cancel()


def test_an_error_ends_the_program_while_its_input_is_still_open():
    with started(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1) as program:
        assert program.stdin
        assert program.stderr
        program.stdin.write("crash\n")
        assert program.wait(60) == 2
        assert program.stderr.read() == "error: the model is gone\n"


@pytest.mark.parametrize(("from_file", "done"), [(True, "3/3"), (False, "3")])
def test_a_terminal_shows_the_progress_of_redirected_answers(tmp_path, from_file, done):
    (tmp_path / "in.txt").write_text("good\nnumbers\nmore\n")
    controller, terminal = os.openpty()
    source = [f"--input={tmp_path / 'in.txt'}"] if from_file else []
    with (tmp_path / "in.txt").open() as stdin:
        shout(*source, f"--output={tmp_path / 'out.txt'}", stdin=stdin, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b"1 of 3 lines failed" not in shown:
        shown += os.read(controller, 4096)
    os.close(controller)
    text = shown.decode()
    assert f"answered {done} lines, 1 failed" in text
    name = tmp_path / "in.txt" if from_file else "standard input"
    assert f"\x1b[2Kerror: {name}, line 2: no word in it\r\n" in text

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable

import pytest

from bert_jax.errors import UserError, WorkdirError
from bert_jax.files import HOST
from bert_jax.storage import fetching, objects
from bert_jax.storage.mirror import Mirror, is_input, uploaded, uploaded_file
from tests.storage.emulator import Emulator


def content(bucket: str) -> dict[str, bytes]:
    return {name: found.data for name in objects.listed(bucket) if (found := objects.read(f"{bucket}/{name}"))}


def another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / f"machine-{time.monotonic_ns()}"))


def test_changed_files_are_uploaded_and_deleted_files_removed(bucket: str):
    with Mirror(bucket) as made:
        made.fetch()
        (made.directory / "runs").mkdir()
        (made.directory / "runs" / "lines").write_bytes(b"1")
        (made.directory / "old").write_bytes(b"old")
        (made.directory / ".hidden").write_bytes(b"")
        made.push()
        assert content(bucket) == {"runs/lines": b"1", "old": b"old"}
        (made.directory / "runs" / "lines").write_bytes(b"12")
        (made.directory / "old").unlink()
    assert content(bucket) == {"runs/lines": b"12"}


def test_the_bucket_keeps_old_files_that_a_cleaner_deletes(bucket: str):
    with Mirror(bucket, mark="config.json") as made:
        for name in ("config.json", "lines", "old"):
            (made.directory / name).write_text("1")
        made.push()
        (made.directory / "config.json").unlink()
        (made.directory / "old").unlink()
        (made.directory / "lines").write_text("2")
    assert content(bucket) == {"config.json": b"1", "lines": b"2", "old": b"1"}


def test_an_output_may_replace_its_directory_but_not_lose_it(bucket: str):
    for name in "ab":
        with uploaded(bucket, "--to") as local:
            shutil.rmtree(local)
            pathlib.Path(local).mkdir()
            pathlib.Path(local, name).write_text("1")
    with pytest.raises(WorkdirError, match="was moved or removed"), uploaded(bucket, "--to") as local:
        shutil.rmtree(local)
    assert content(bucket) == {"b": b"1"}


def test_a_link_instead_of_the_mirror_is_refused(bucket: str, tmp_path: pathlib.Path):
    (tmp_path / "precious").write_text("mine")
    made = Mirror(bucket)
    made.directory.parent.mkdir(parents=True)
    made.directory.symlink_to(tmp_path)
    with pytest.raises(UserError, match="is a symbolic link that bert_jax did not make; remove it"), made:
        made.fetch()
    assert (tmp_path / "precious").read_text() == "mine"


def test_changes_are_uploaded_in_the_background(bucket: str):
    with Mirror(bucket, every=0.2) as made:
        made.start()
        assert made._thread.daemon
        (made.directory / "lines").write_bytes(b"1")
        until(lambda: content(bucket) == {"lines": b"1"})


def test_changes_are_uploaded_immediately_on_request(bucket: str):
    with Mirror(bucket) as made:
        made.start()
        for lines in (b"1", b"12"):
            (made.directory / "lines").write_bytes(lines)
            made.soon()
            until(lambda lines=lines: content(bucket) == {"lines": lines})
        time.sleep(0.05)
        busy = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - busy < 0.03, "it waits for the next request"


def until(holds: object) -> None:
    deadline = time.monotonic() + 20
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_another_machine_continues_from_the_bucket_and_back(bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path):
    objects.write(f"{bucket}/checkpoints/4/state", b"not for here")
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
    first = made.directory
    with monkeypatch.context() as other:
        another_machine(other, tmp_path)
        with Mirror(bucket) as made:
            made.fetch()
            assert made.directory != first
            assert [path.name for path in made.directory.iterdir()] == ["lines"]
            (made.directory / "lines").write_bytes(b"123")
            (made.directory / "more").write_bytes(b"m")
    (first / "lines").write_bytes(b"1x")  # not uploaded before this machine was lost
    (first / "figure").write_bytes(b"f")
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"123"
        assert {path.name for path in made.directory.iterdir()} == {"lines", "more"}
    assert content(bucket) == {"lines": b"123", "more": b"m", "checkpoints/4/state": b"not for here"}


def test_files_not_uploaded_before_a_kill_stay_on_their_machine(bucket: str):
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
    (made.directory / "lines").write_bytes(b"12")  # by a process that was then killed
    (made.directory / "new").write_bytes(b"n")
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"12"
    assert content(bucket) == {"lines": b"12", "new": b"n"}


def test_files_written_before_a_kill_without_any_upload_stay(bucket: str):
    made = Mirror(bucket)
    made.directory.mkdir(parents=True)
    (made.directory / "lines").write_bytes(b"1")
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"1"
    assert content(bucket) == {"lines": b"1"}


def append(file: pathlib.Path) -> None:
    with file.open("ab") as opened:
        opened.write(b"3")


UPLOAD = r"^(POST|PUT) .*lines"


@pytest.mark.parametrize("moment", ["first upload", "later upload", "last upload"])
@pytest.mark.parametrize(
    "happens",
    [
        append,
        lambda file: file.with_name("more").write_bytes(b"m"),
        lambda file: file.write_bytes(b"34"),  # of the same length
        pathlib.Path.unlink,
    ],
    ids=["appended", "next to it", "replaced", "removed"],
)
def test_changes_during_an_upload_are_in_the_next_one(
    moment: str, happens: Callable[[pathlib.Path], object], bucket: str, emulator: Emulator
):
    with Mirror(bucket) as made:
        lines = made.directory / "lines"
        lines.write_bytes(b"1")
        if moment != "first upload":
            made.push()
            lines.write_bytes(b"12")
        emulator.at(UPLOAD, lambda: happens(lines), made.push)
        if moment != "last upload":
            made.push()
            assert content(bucket) == {path.name: path.read_bytes() for path in made.directory.iterdir()}
    with Mirror(bucket) as made:  # the next start, after one that ended on its own
        made.fetch()
        assert content(bucket) == {path.name: path.read_bytes() for path in made.directory.iterdir()}


@pytest.mark.parametrize("further", [b"", b"2"], ids=["equal", "longer"])
def test_unrecorded_uploads_are_recognised_and_other_objects_stay(
    further: bytes, bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as killed:  # killed between the upload and the record of it
        made = Mirror(bucket)
        made.directory.mkdir(parents=True)
        (made.directory / "lines").write_bytes(b"1")
        killed.setattr(made._record, "write", lambda copies: None)
        emulator.at(UPLOAD, lambda: (made.directory / "new").write_bytes(b"n"), made.push)
    with (made.directory / "lines").open("ab") as lines:
        lines.write(further)
    with Mirror(bucket) as made:
        made.fetch()
        assert {path.name for path in made.directory.iterdir()} == {"lines", "new"}
    assert content(bucket) == {"lines": b"1" + further, "new": b"n"}


def test_uploads_are_recorded_before_the_last_one_is_complete(bucket: str, emulator: Emulator, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "RECORDED", 0.0)
    recorded: list[set[str]] = []
    with Mirror(bucket) as made:
        for name in ("files", "lines"):
            (made.directory / name).write_bytes(b"1")
        emulator.at(UPLOAD, lambda: recorded.append({*made._record.read()}), made.push)
    assert recorded == [{"files"}]


def test_directories_of_the_same_name_have_separate_mirrors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BERT_JAX_CACHE", "/cache")
    places = [Mirror(f"gs://bkt/{above}/x", part).directory for above in "ab" for part in ("", "-1")]
    assert len(set(places)) == 4
    above = hashlib.sha256(b"gs://bkt/a").hexdigest()[:12]  # later versions find it again
    assert places[:2] == [pathlib.Path(f"/cache/mirrors/{above}{part}/x") for part in ("", "-1")]


def test_an_upload_unrecorded_after_a_kill_is_recognised_by_its_content(bucket: str):
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
        (made.directory / "config").write_bytes(b"c")
    objects.write(f"{bucket}/lines", b"12")  # uploaded, and then killed
    (made.directory / "lines").write_bytes(b"123")
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"123"
    assert content(bucket) == {"lines": b"123", "config": b"c"}
    objects.write(f"{bucket}/lines", b"x")  # by another machine
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"x"


def test_a_directory_removed_from_the_bucket_starts_empty(bucket: str):
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
    objects.remove_tree(objects.as_path(bucket))
    objects.write(f"{bucket}/.lock", b"of this start")
    with Mirror(bucket) as made:
        made.fetch()
        assert list(made.directory.iterdir()) == []
    assert content(bucket).keys() == {".lock"}


def test_a_locally_removed_file_is_fetched_again(bucket: str):
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
    shutil.rmtree(made.directory)
    with Mirror(bucket) as made:
        made.fetch()
        assert (made.directory / "lines").read_bytes() == b"1"
    assert content(bucket) == {"lines": b"1"}


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_local_copy_that_is_removed_while_it_is_used_removes_nothing_from_the_bucket(bucket: str, is_made_anew: bool):
    says = f"{bucket}, was moved or removed before its files were uploaded; rerun the same command"
    made = Mirror(bucket, mark="lines")
    made.__enter__()
    (made.directory / "lines").write_bytes(b"12")
    made.push()
    shutil.rmtree(made.directory)  # e.g. with the whole cache
    if is_made_anew:
        made.directory.mkdir()
        (made.directory / "lines").write_bytes(b"3")
    made.push()
    with pytest.raises(UserError, match=says):
        made.__exit__(None, None, None)
    assert content(bucket) == {"lines": b"12"}


def test_a_failed_upload_is_reported_once_and_tried_again(bucket: str, emulator: Emulator, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    with Mirror(bucket, every=0.1) as made:
        emulator.fail(403, match="POST")
        (made.directory / "lines").write_bytes(b"1")
        made.start()
        until(lambda: "could not be uploaded" in caplog.text)
        time.sleep(0.4)
        assert caplog.text.count("files could not be uploaded") == 1
        emulator.fail(200, count=0)
        until(lambda: f"uploaded to {bucket} again" in caplog.text)
    assert content(bucket) == {"lines": b"1"}


def test_a_failed_last_upload_is_an_error_that_names_the_local_files(bucket: str, emulator: Emulator):
    says = (
        rf"1 file could not be uploaded to {bucket} \(.*permission denied.* and are still in {{}}; "
        r"upload them with `gcloud storage rsync"
    )
    made = Mirror(bucket)
    made.__enter__()
    emulator.fail(403)
    (made.directory / "lines").write_bytes(b"1")
    with pytest.raises(UserError) as error:
        made.__exit__(None, None, None)
    assert re.match(says.format(re.escape(str(made.directory))), str(error.value))
    assert (made.directory / "lines").read_bytes() == b"1"


def test_a_failed_upload_after_another_error_is_a_warning(
    bucket: str, emulator: Emulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    made = Mirror(bucket)
    made.__enter__()
    made.start()
    emulator.fail(403)
    (made.directory / "lines").write_bytes(b"1")
    made.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert f"1 file could not be uploaded to {bucket}" in caplog.text


def test_two_local_processes_cannot_mirror_the_same_directory(bucket: str):
    with Mirror(bucket), pytest.raises(UserError, match="another process on this machine is using"), Mirror(bucket):
        pass
    with Mirror(bucket), Mirror(bucket, "-1") as second:
        assert second.directory.name == bucket.rpartition("/")[2]


def test_checkpoints_weights_and_hidden_files_are_not_fetched_with_the_logs():
    names = ["model/model.safetensors", "checkpoints/4/x", "runs/a/best/2/x", ".lock", "a/.hidden/x"]
    assert [name for name in (*names, "runs/a/metrics.jsonl", "config.json") if is_input(name)] == [
        "runs/a/metrics.jsonl",
        "config.json",
    ]


def test_an_output_is_uploaded_completely_or_not_at_all(bucket: str):
    objects.write(f"{bucket}/README", b"of its owner")
    objects.write(f"{bucket}/model.safetensors", b"old")
    with contextlib.suppress(ZeroDivisionError), uploaded(bucket, "--to", is_input) as local:
        pathlib.Path(local, "config.json").write_bytes(b"{}")
        raise ZeroDivisionError
    assert content(bucket).keys() == {"README", "model.safetensors"}
    objects.write(f"{bucket}/figures/.old", b"of its owner")
    with uploaded(bucket, "--to", lambda name: name != "model.safetensors", last=("config.json",)) as local:
        assert pathlib.Path(local, "README").read_bytes() == b"of its owner"
        assert not pathlib.Path(local, "figures").exists()
        pathlib.Path(local, "README").unlink()
        pathlib.Path(local, "weights").write_bytes(b"new")
    kept = {"model.safetensors": b"old", "figures/.old": b"of its owner"}
    assert content(bucket) == kept | {"config.json": b"{}", "weights": b"new"}
    uploads = objects.listed(bucket)
    assert int(uploads["weights"].generation) < int(uploads["config.json"].generation), "it completes the directory"
    with uploaded(bucket, "--other") as local:
        assert list(pathlib.Path(local).iterdir()) == []
        pathlib.Path(local, "more").write_bytes(b"m")
    assert content(bucket).keys() == kept.keys() | {"config.json", "weights", "more"}


def test_a_missing_bucket_is_refused_before_any_work(emulator: Emulator):
    for begin in (uploaded, uploaded_file):
        with pytest.raises(objects.StorageError, match="there is no bucket gs://nobody"), begin("gs://nobody/x/y", "--to"):
            pytest.fail("it began")
    with pytest.raises(UserError, match=r"^--to=gs:/bkt/x: a path in a bucket starts with"), uploaded("gs:/bkt/x", "--to"):
        pass
    with pytest.raises(UserError, match=r"^--to=gs:/bkt/x: a path in a bucket starts with"), uploaded_file("gs:/bkt/x", "--to"):
        pass


def test_a_file_is_uploaded_with_the_files_written_next_to_it(bucket: str):
    with uploaded_file(f"{bucket}/out.jsonl", "--output") as local:
        assert local is not None
        pathlib.Path(local).write_bytes(b"{}\n")
        (pathlib.Path(local).parent / "profile").mkdir()
        (pathlib.Path(local).parent / "profile" / "x").write_bytes(b"p")
    assert content(bucket) == {"out.jsonl": b"{}\n", "profile/x": b"p"}


def test_a_file_that_cannot_be_uploaded_is_kept(bucket: str, emulator: Emulator, tmp_path: pathlib.Path):
    def write() -> None:
        with uploaded_file(f"{bucket}/out.jsonl", "--output") as local:
            pathlib.Path(str(local)).write_bytes(b"{}\n")
            emulator.fail(403, match="POST")

    says = rf"^{bucket}/out\.jsonl could not be uploaded \(.*permission denied .* complete in"
    with pytest.raises(UserError, match=says) as error:
        write()
    (file,) = (tmp_path / "cache" / "outputs").glob("*/*")
    assert (file.name, file.read_bytes()) == ("out.jsonl", b"{}\n")
    assert f"`gcloud storage cp --recursive {file.parent}/* {bucket}/`" in str(error.value)
    with pytest.raises(objects.StorageError, match="permission denied"):  # the next start is refused before it computes
        write()
    emulator.fail(403, count=0)
    with contextlib.suppress(ZeroDivisionError), uploaded_file(f"{bucket}/out.jsonl", "--output"):
        raise ZeroDivisionError
    assert list(file.parent.parent.iterdir()) == [file.parent], "incomplete files are removed"
    assert content(bucket) == {}


def test_the_incomplete_output_of_a_killed_command_is_removed_at_the_next_start(bucket: str, tmp_path: pathlib.Path):
    """A directory is kept while the process that writes to it runs."""
    outputs = tmp_path / "cache" / "outputs"
    killed, link = outputs / f".a.{HOST}.1.bert_jax.directory", outputs / f".b.{HOST}.1.bert_jax.directory"
    killed.mkdir(parents=True)
    (killed / "out.jsonl").write_bytes(b"{}")
    link.symlink_to(tmp_path)
    with uploaded_file(f"{bucket}/one.jsonl", "--output") as first, uploaded_file(f"{bucket}/two.jsonl", "--output") as second:
        running = [pathlib.Path(str(local)).parent for local in (first, second)]
        assert sorted(path for path in outputs.iterdir() if path.is_dir()) == sorted([*running, link])
        for local in (first, second):
            pathlib.Path(str(local)).write_bytes(b"{}\n")
    assert content(bucket).keys() == {"one.jsonl", "two.jsonl"}
    assert [*outputs.iterdir()] == [link]


@pytest.mark.parametrize("output", [None, "out.jsonl"])
def test_a_local_output_is_written_in_place(output: str | None):
    with uploaded_file(output, "--output") as local:
        assert local == output


def test_an_object_removed_from_the_bucket_is_uploaded_again(bucket: str):
    with Mirror(bucket) as made:
        (made.directory / "lines").write_bytes(b"1")
        (made.directory / "config").write_bytes(b"c")
    objects.remove(f"{bucket}/config")
    with Mirror(bucket) as made:
        made.fetch()
        assert {path.name for path in made.directory.iterdir()} == {"lines", "config"}
    assert content(bucket) == {"lines": b"1", "config": b"c"}


def test_the_last_upload_begins_after_the_one_in_the_background(bucket: str, emulator: Emulator):
    made = Mirror(bucket)
    made.__enter__()
    lines, end = made.directory / "lines", threading.Thread(target=made.__exit__, args=(None, None, None))
    lines.write_bytes(b"1")
    made.start()

    def end_with_another_line() -> None:
        lines.write_bytes(b"12")
        end.start()
        end.join(0.2)
        assert content(bucket) == {}

    emulator.at(UPLOAD, end_with_another_line, made.soon)
    end.join(30)
    assert content(bucket) == {"lines": b"12"}

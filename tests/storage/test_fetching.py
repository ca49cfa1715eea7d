from __future__ import annotations

import contextlib
import glob
import gzip
import os
import pathlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from bert_jax.errors import UserError
from bert_jax.files import HOST
from bert_jax.storage import fetching, mirror, objects
from bert_jax.storage.fetching import cached_path, fetched, fetched_files
from bert_jax.storage.paths import cache_directory
from tests.clock import Clock
from tests.storage.emulator import Emulator


class Copies:
    """The copies in a directory, and which of them were downloaded since the last look."""

    def __init__(self, directory: pathlib.Path):
        self._directory, self._seen = directory, dict[str, tuple[int, int]]()

    def new(self) -> set[str]:
        """Returns the copies that were downloaded, or changed otherwise, since the last look."""
        before, files = self._seen, [path for path in self._directory.rglob("*") if path.is_file() and path.name[0] != "."]
        facts = {path.relative_to(self._directory).as_posix(): path.stat() for path in files}
        self._seen = {name: (fact.st_ino, fact.st_mtime_ns) for name, fact in facts.items()}
        return {name for name, fact in self._seen.items() if before.get(name) != fact}


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_directory_is_fetched_once_and_then_only_its_changes(bucket: str):
    spent = fetching.seconds_spent()
    for name in ("a", "b", "sub/c"):
        objects.write(f"{bucket}/model/{name}", name.encode())
    copy = fetched(f"{bucket}/model", "--model")
    copies = Copies(copy)
    assert copies.new() == {"a", "b", "sub/c"}
    assert (copy / "sub" / "c").read_bytes() == b"sub/c"
    assert spent < fetching.seconds_spent() < spent + 1000
    assert fetched(f"{bucket}/model", "--model") == copy
    assert copies.new() == set()
    objects.write(f"{bucket}/model/a", b"A")  # as long as before
    objects.remove(f"{bucket}/model/b")
    objects.remove(f"{bucket}/model/sub/c")
    (copy / "sub" / "c").unlink()  # removed by a user who needed the space
    fetched(f"{bucket}/model", "--model")
    assert copies.new() == {"a"}
    assert (copy / "a").read_bytes() == b"A"
    assert not (copy / "b").exists()


def test_the_time_of_a_fetch_is_measured_or_added_up(bucket: str):
    objects.write(f"{bucket}/x/a", b"a")
    objects.write(f"{bucket}/x/b", b"b")
    measured: list[str] = []

    @contextlib.contextmanager
    def measure() -> Iterator[None]:
        measured.append("began")
        yield
        measured.append("ended")

    spent = fetching.seconds_spent()
    with fetching.measured_by(measure):
        fetched(f"{bucket}/x/a", "--input")
        assert measured == ["began", "ended"]
        with fetching.downloading():  # such as a corpus: measured once, not for each file
            fetched(f"{bucket}/x/b", "--input")
        assert measured == ["began", "ended"] * 2
    assert fetching.seconds_spent() == spent
    with fetching.downloading():
        fetched(f"{bucket}/x", "--input")
    assert fetching.seconds_spent() > spent


def test_a_copy_that_was_changed_or_removed_here_is_fetched_again(bucket: str):
    for name in "abc":
        objects.write(f"{bucket}/x/{name}", name.encode())
    copy = fetched(f"{bucket}/x", "--input")
    (copy / "a").write_bytes(b"other")
    (copy / "b").unlink()
    os.utime(copy / "c")
    copies = Copies(copy)
    copies.new()
    fetched(f"{bucket}/x", "--input")
    assert copies.new() == {"a", "b", "c"}
    assert (copy / "a").read_bytes() == b"a"


def test_a_fetch_continues_after_an_error(bucket: str, emulator: Emulator):
    for name in "abcdef":
        objects.write(f"{bucket}/x/{name}", name.encode())
    emulator.fail(403, match=r"GET .*x/d\?")
    with pytest.raises(UserError, match="permission denied"):
        fetched(f"{bucket}/x", "--input")
    emulator.fail(200, count=0)
    copies = Copies(cached_path(f"{bucket}/x"))
    done = copies.new()  # on a busy machine some have not started when the error comes
    assert done
    fetched(f"{bucket}/x", "--input")
    assert copies.new() == set("abcdef") - done


def test_a_killed_fetch_repeats_only_the_last_seconds(
    bucket: str, emulator: Emulator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    for name in "ab":
        objects.write(f"{bucket}/x/{name}", name.encode())
    copy, after_the_kill = cached_path(f"{bucket}/x"), tmp_path / "after the kill"
    monkeypatch.setattr(fetching, "RECORDED", 0.0)

    def kill() -> None:
        until(lambda: "a" in fetching.Record(copy).read())
        shutil.copytree(cache_directory(), after_the_kill)

    emulator.at(r"GET .*x/b\?", kill, lambda: fetched(f"{bucket}/x", "--input"))
    monkeypatch.setenv("BERT_JAX_CACHE", str(after_the_kill))
    copies = Copies(cached_path(f"{bucket}/x"))
    copies.new()
    fetched(f"{bucket}/x", "--input")
    assert copies.new() == {"b"}


def test_a_single_object_and_a_common_prefix_are_fetched(bucket: str):
    copies = Copies(cached_path(f"{bucket}/tf"))
    for name in ("bert.ckpt.index", "bert.ckpt.data-0", "vocab.txt", "other", "deep/other"):
        objects.write(f"{bucket}/tf/{name}", name.encode())
    assert fetched(f"{bucket}/tf/vocab.txt", "--vocab").read_bytes() == b"vocab.txt"
    assert copies.new() == {"vocab.txt"}
    prefix = fetched(f"{bucket}/tf/bert.ckpt", "--from")
    assert prefix.with_name("bert.ckpt.index").read_bytes() == b"bert.ckpt.index"
    assert copies.new() == {"bert.ckpt.data-0", "bert.ckpt.index"}
    assert fetched(f"{bucket}/tf/bert.ckpt.index", "--from").is_file()
    assert cached_path(f"{bucket}/tf/vocab.txt").is_file()  # a copy of one object removes no others


def test_only_wanted_files_of_one_directory_level_are_fetched(bucket: str):
    for name in ("a", "b", "sub/c"):
        objects.write(f"{bucket}/model/{name}", b"1")
    copy = fetched(f"{bucket}/model", "--model", deep=False, wanted=lambda name: name != "b")
    assert Copies(copy).new() == {"a"}
    fetched(f"{bucket}/model", "--model", deep=False, wanted=lambda name: name == "b")
    assert Copies(copy).new() == {"a", "b"}  # other commands may need files that this one does not
    fetched(f"{bucket}/model", "--model", wanted=lambda name: name != "b")
    for name in ("a", "sub/c"):
        objects.remove(f"{bucket}/model/{name}")
    fetched(f"{bucket}/model", "--model", deep=False, wanted=lambda name: name == "b")
    assert Copies(copy).new() == {"b", "sub/c"}  # subdirectories are not listed
    objects.write(f"{bucket}/model/x.index", b"1")
    objects.write(f"{bucket}/model/d", b"1")
    fetched(f"{bucket}/model/x", "--from", wanted=lambda name: name == "d")
    assert Copies(copy).new() == {"b", "d", "x.index", "sub/c"}
    objects.remove(f"{bucket}/model/b")
    fetched(f"{bucket}/model/x", "--from")
    objects.remove(f"{bucket}/model/d")
    fetched(f"{bucket}/model/x.index", "--from")
    assert Copies(copy).new() == {"x.index", "sub/c"}


def test_an_object_at_the_top_of_a_bucket_is_fetched(bucket: str, emulator: Emulator):
    path = f"gs://{emulator.bucket}/a_file_at_the_top"
    objects.write(path, b"top")
    assert fetched(path, "--input").read_bytes() == b"top"
    objects.remove(path)


def test_a_fetch_reports_changes(bucket: str, tmp_path: pathlib.Path):
    for name in "ab":
        objects.write(f"{bucket}/{name}", b"1")
    there = objects.listed(bucket)
    assert fetching.fetch(bucket, tmp_path / "copies", there)
    assert not fetching.fetch(bucket, tmp_path / "copies", there)
    assert not fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]}, keep=True)
    assert fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]})
    fetching.forget(tmp_path / "copies")
    assert fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]})


def test_a_fetch_waits_for_another_fetch(bucket: str, tmp_path: pathlib.Path):
    objects.write(f"{bucket}/a", b"1")
    there, copies = objects.listed(bucket), tmp_path / "copies"
    waiting = threading.Thread(target=fetching.fetch, args=(bucket, copies, there))
    with fetching.Record(copies).held(wait=False):
        waiting.start()
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(30)
    assert (copies / "a").read_bytes() == b"1"


def test_the_progress_of_a_fetch_is_shown_after_a_second(
    bucket: str, emulator: Emulator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name, size in (("a", 3_000), ("b", 4_000)):
        objects.write(f"{bucket}/{name}", b"1" * size)
    there = objects.listed(bucket)
    fetching.fetch(bucket, tmp_path / "early", there)
    assert capsys.readouterr().err == ""
    with monkeypatch.context() as patch:
        clock = Clock(patch)
        emulator.at(r"GET .*b\?", lambda: clock.advance(1.0), lambda: fetching.fetch(bucket, tmp_path / "late", there))
    assert f"fetching {bucket}: 7/7 kB\n" in capsys.readouterr().err


def test_a_failed_download_leaves_no_partial_file(bucket: str, tmp_path: pathlib.Path):
    objects.write(f"{bucket}/a", b"half")
    with pytest.raises(objects.StorageError, match="changed during the download"):
        fetching.fetch(bucket, tmp_path / "copies", {"a": objects.Item(8, "1")})
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize("in_one_request", [0, 8 << 20])
def test_an_object_stored_with_compression_is_fetched_uncompressed(
    in_one_request: int, bucket: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(objects, "_IN_ONE_REQUEST", in_one_request)
    text, how = b"a text " * 1000, {"content_encoding": "gzip"}  # as by `gcloud storage cp --gzip-local=txt`
    objects.file_system().pipe_file(f"{bucket}/a.txt", gzip.compress(text), fixed_key_metadata=how)
    copies = Copies(cached_path(bucket))
    for new in ({"a.txt"}, set()):
        assert fetched(f"{bucket}/a.txt", "--source").read_bytes() == text
        assert copies.new() == new


@pytest.mark.parametrize(("size", "free"), [(0, 0), (1_000, (64 << 20) + 1_000)])
def test_a_fetch_leaves_64_mib_free_on_the_disk(size: int, free: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
    fetching.require_space("it", tmp_path / "new" / "copies", size)
    with pytest.raises(UserError, match=rf"^it needs 0\.00 GB in {tmp_path}, but only"):
        fetching.require_space("it", tmp_path / "new" / "copies", size + 1)


@pytest.mark.parametrize("fetch", [fetched, fetched_files])
def test_a_mistyped_path_is_named_with_its_flag(fetch: Callable[[str, str], object]):
    with pytest.raises(
        UserError, match=r"^--source=text:gs:/b/\*: a path in a bucket starts with gs://; did you mean gs://b/\*\?"
    ):
        fetch("gs:/b/*", "--source=text:")


def test_a_local_path_is_its_own_copy():
    assert fetched("some/file", "--input") == pathlib.Path("some/file")


def test_globs_match_in_a_bucket_as_on_a_disk(bucket: str, tmp_path: pathlib.Path):
    names = ("a.txt", "b.txt", "c.jsonl", "sub/d.txt", "sub/deep/e.txt", ".f.txt", "._a.txt", ".git/g.txt", "a[1].txt", "xd.txt")
    for name in names:
        objects.write(f"{bucket}/t/{name}", b"text")
        path = tmp_path / "t" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    objects.write(f"{bucket}/t/empty.txt", b"")
    patterns = ("t/*.txt", "t/?.txt", "t/sub/*.txt", "t/*/*.txt", "t/**/*.txt", "t/a.txt", "t/[bc].*", "t/*.csv", "t/.*.txt")
    for pattern in (*patterns, "t/**/d.txt", "t/*", "t/**", "t/**/deep/*", "t/*/**/*.txt", "t/.git/*", "t/a[[]*", "t/**/a.txt"):
        on_disk = glob.glob(f"{tmp_path}/{pattern}", recursive=True)  # noqa: PTH207 - as local sources are found
        wanted = sorted(str(pathlib.Path(path).relative_to(tmp_path)) for path in on_disk if pathlib.Path(path).is_file())
        copies = fetched_files(f"{bucket}/{pattern}", "--source")
        found = [path.relative_to(cached_path(bucket)).as_posix() for path in copies]
        assert found == wanted, pattern
    assert fetched_files(f"{bucket}/t/a[1].txt", "--source") == [cached_path(f"{bucket}/t/a[1].txt")]  # a name, not a pattern
    assert all(cached_path(f"{bucket}/t/{name}").is_file() for name in names)  # reading one pattern removes no files of another
    with pytest.raises(UserError, match=f"^--source=text:{bucket}/t/none.txt does not exist in the bucket"):
        fetched_files(f"{bucket}/t/none.txt", "--source=text:")


def test_a_pattern_may_be_at_the_top_of_a_bucket(bucket: str, emulator: Emulator):
    top = f"gs://{emulator.bucket}"
    for name in ("top-a.txt", "top-b.txt", "top-c/d.txt"):
        objects.write(f"{top}/{name}", b"text")
    assert fetched_files(f"{top}/top-*.txt", "--source") == [cached_path(f"{top}/top-{name}.txt") for name in "ab"]
    assert fetched_files(f"{top}/top-*/*.txt", "--source") == [cached_path(f"{top}/top-c/d.txt")]


def test_a_fetch_that_does_not_fit_on_the_disk_is_refused_before_it_starts(bucket: str, monkeypatch: pytest.MonkeyPatch):
    objects.write(f"{bucket}/x/a", b"1" * 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 900}))
    says = rf"{bucket}/x needs 0\.00 GB in .*, but only 0\.00 GB are free there; free space, or set BERT_JAX_CACHE"
    with pytest.raises(UserError, match=says):
        fetched(f"{bucket}/x", "--input")
    assert not (cached_path(f"{bucket}/x") / "a").exists()


def test_existing_copies_need_no_space(bucket: str, monkeypatch: pytest.MonkeyPatch):
    objects.write(f"{bucket}/x/a", b"1" * 1000)
    fetched(f"{bucket}/x", "--input")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 900}))
    assert (fetched(f"{bucket}/x", "--input") / "a").read_bytes() == b"1" * 1000
    objects.write(f"{bucket}/x/b", b"1")
    with pytest.raises(UserError, match=r"needs 0\.00 GB"):
        fetched(f"{bucket}/x", "--input")


def test_replaced_and_removed_copies_leave_their_space_to_the_new_ones(
    bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    copies = tmp_path / "copies"
    copies.mkdir()
    for number in range(10):
        (copies / f"{number}").write_bytes(b"1" * 1000)
    (copies / "removed").write_bytes(b"1" * 500)
    record = fetching.Record(copies)
    record.write({"removed": fetching.copy_record(copies / "removed", "1")})
    needed: list[int] = []
    monkeypatch.setattr(fetching, "require_space", lambda remote, directory, size: needed.append(size))
    monkeypatch.setattr(fetching, "_download", lambda *arguments: needed.append((copies / "removed").exists()))
    fetching.fetch(bucket, copies, {f"{number}": objects.Item(1200, "2") for number in range(10)})
    assert needed == [10 * 1200 - 2 * 1000, False]  # the old files of 8 downloads exist until their new copies are complete


def test_a_missing_path_is_named_with_its_flag(bucket: str):
    says = f"--model={bucket}/none does not exist in the bucket; to see what exists, run `gcloud storage ls {bucket}`"
    with pytest.raises(UserError, match=re.escape(says)):
        fetched(f"{bucket}/none", "--model")


def test_an_object_whose_name_leads_out_of_the_directory_is_not_copied(
    bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    there: dict[str, objects.Item] = {}
    monkeypatch.setattr(fetching, "listed", lambda path, deep: there)
    monkeypatch.setattr(mirror, "listed", lambda path: there)
    for name in ("/etc/x", "../x", "a/../../x", "a//b", "a/./b", ".."):
        there = {"a/b": objects.Item(1, "1"), name: objects.Item(1, "1")}
        odd = re.escape(f"{bucket}/{name}")
        says = rf"^{odd} cannot be copied to a disk, because its name .*; rename it: `gcloud storage mv {odd} {bucket}/NAME`$"
        with pytest.raises(UserError, match=says):
            fetched(bucket, "--input")
        if "." not in name:  # a mirror leaves hidden files out
            with pytest.raises(UserError, match=says), mirror.Mirror(bucket) as made:
                made.fetch()
    assert not [path for path in tmp_path.rglob("*") if path.name in ("a", "b", "x")]


def test_partial_files_of_a_killed_process_are_removed(bucket: str, tmp_path: pathlib.Path):
    objects.write(f"{bucket}/sub/a", b"12345678")
    leftover = tmp_path / "copies" / "sub" / f".b.{HOST}.1.bert_jax.part"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    fetching.fetch(bucket, tmp_path / "copies", objects.listed(bucket))
    assert [path.name for path in leftover.parent.iterdir()] == ["a"]

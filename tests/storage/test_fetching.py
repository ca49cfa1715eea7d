from __future__ import annotations

import contextlib
import glob
import os
import pathlib
import re
from collections.abc import Callable, Iterator

import pytest

from bert_jax.errors import UserError
from bert_jax.interface import progress
from bert_jax.storage import fetching, objects
from bert_jax.storage.fetching import cached_path, fetched, fetched_files
from tests.storage.emulator import Emulator


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the names of the objects that are downloaded, in a list."""
    names: list[str] = []
    download = objects.download

    def noted(path: str, *arguments: object) -> None:
        names.append(path.rpartition("/")[2])
        download(path, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(fetching, "download", noted)
    return names


def test_a_directory_is_fetched_once_and_then_only_its_changes(bucket: str, requests: list[str]):
    spent = fetching.seconds_spent()
    for name in ("a", "b", "sub/c"):
        objects.write(f"{bucket}/model/{name}", name.encode())
    copy = fetched(f"{bucket}/model", "--model")
    assert (copy / "sub" / "c").read_bytes() == b"sub/c"
    assert sorted(requests) == ["a", "b", "c"]
    assert spent < fetching.seconds_spent() < spent + 1000
    requests.clear()
    assert fetched(f"{bucket}/model", "--model") == copy
    assert requests == []
    objects.write(f"{bucket}/model/a", b"A")  # as long as before
    objects.remove(f"{bucket}/model/b")
    objects.remove(f"{bucket}/model/sub/c")
    (copy / "sub" / "c").unlink()  # removed by a user who needed the space
    fetched(f"{bucket}/model", "--model")
    assert requests == ["a"]
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


def test_a_copy_that_was_changed_or_removed_here_is_fetched_again(bucket: str, requests: list[str]):
    for name in "abc":
        objects.write(f"{bucket}/x/{name}", name.encode())
    copy = fetched(f"{bucket}/x", "--input")
    (copy / "a").write_bytes(b"other")
    (copy / "b").unlink()
    os.utime(copy / "c")
    requests.clear()
    fetched(f"{bucket}/x", "--input")
    assert sorted(requests) == ["a", "b", "c"]
    assert (copy / "a").read_bytes() == b"a"


def test_a_fetch_continues_after_an_error(bucket: str, requests: list[str], emulator: Emulator):
    for name in "abcdef":
        objects.write(f"{bucket}/x/{name}", name.encode())
    emulator.fail(403, match=r"GET .*x/d\?")
    with pytest.raises(UserError, match="permission denied"):
        fetched(f"{bucket}/x", "--input")
    emulator.fail(200, count=0)
    begun = set(requests)  # on a busy machine some have not started when the error comes
    requests.clear()
    fetched(f"{bucket}/x", "--input")
    assert set(requests) == {"d"} | (set("abcdef") - begun)
    assert len(requests) < 6


def test_a_single_object_and_a_common_prefix_are_fetched(bucket: str, requests: list[str]):
    for name in ("bert.ckpt.index", "bert.ckpt.data-0", "vocab.txt", "deep/other"):
        objects.write(f"{bucket}/tf/{name}", name.encode())
    assert fetched(f"{bucket}/tf/vocab.txt", "--vocab").read_bytes() == b"vocab.txt"
    assert requests == ["vocab.txt"]
    prefix = fetched(f"{bucket}/tf/bert.ckpt", "--from")
    assert prefix.with_name("bert.ckpt.index").read_bytes() == b"bert.ckpt.index"
    assert sorted(requests) == ["bert.ckpt.data-0", "bert.ckpt.index", "vocab.txt"]
    assert fetched(f"{bucket}/tf/bert.ckpt.index", "--from").is_file()
    assert cached_path(f"{bucket}/tf/vocab.txt").is_file()  # a copy of one object removes no others


def test_only_wanted_files_of_one_directory_level_are_fetched(bucket: str, requests: list[str]):
    for name in ("a", "b", "sub/c"):
        objects.write(f"{bucket}/model/{name}", b"1")
    copy = fetched(f"{bucket}/model", "--model", deep=False, wanted=lambda name: name != "b")
    assert requests == ["a"]
    fetched(f"{bucket}/model", "--model", deep=False, wanted=lambda name: name == "b")
    assert sorted(requests) == ["a", "b"]
    assert sorted(path.name for path in copy.iterdir()) == ["a", "b"]  # other commands may need files that this one does not


def test_an_object_at_the_top_of_a_bucket_is_fetched(bucket: str, emulator: Emulator):
    path = f"gs://{emulator.bucket}/a_file_at_the_top"
    objects.write(path, b"top")
    assert fetched(path, "--input").read_bytes() == b"top"
    objects.remove(path)


def test_a_fetch_reports_changes_and_waits_for_another_fetch(
    bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
):
    for name in "ab":
        objects.write(f"{bucket}/{name}", b"1")
    there, waits, held = objects.listed(bucket), [], fetching.Record.held
    monkeypatch.setattr(fetching.Record, "held", lambda self, *, wait: waits.append(wait) or held(self, wait=wait))
    assert fetching.fetch(bucket, tmp_path / "copies", there)
    assert not fetching.fetch(bucket, tmp_path / "copies", there)
    assert not fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]}, keep=True)
    assert fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]})
    assert waits == [True] * 4
    fetching.forget(tmp_path / "copies")
    assert fetching.fetch(bucket, tmp_path / "copies", {"a": there["a"]})


def test_the_progress_of_a_fetch_is_shown_after_a_second(bucket: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    told: list[object] = []

    class Progress(progress.Progress):
        def __init__(self, title: str, total: int, unit: str, delay: float):
            told.append((title, total, unit, delay))

        def update(self, done: int) -> None:
            told.append(done)

        def close(self) -> None:
            told.append("closed")

    for name, size in (("a", 3_000), ("b", 4_000)):
        objects.write(f"{bucket}/{name}", b"1" * size)
    monkeypatch.setattr(fetching, "Progress", Progress)
    fetching.fetch(bucket, tmp_path / "copies", objects.listed(bucket))
    assert told[0] == (f"fetching {bucket}:", 7, "kB", 1.0)
    assert told[1] in (3, 4)
    assert told[2:] == [7, "closed"]


def test_a_failed_download_leaves_no_partial_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    def broken(path: str, file: pathlib.Path, *_: object) -> None:
        file.write_bytes(b"half")
        raise objects.StorageError("the connection was lost")

    monkeypatch.setattr(fetching, "download", broken)
    with pytest.raises(objects.StorageError):
        fetching.fetch("gs://bucket/x", tmp_path / "copies", {"a": objects.Item(8, "1")})
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize(("size", "free"), [(0, 0), (1_000, (64 << 20) + 1_000)])
def test_a_fetch_leaves_64_mib_free_on_the_disk(size: int, free: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: type("Usage", (), {"free": free}))
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


def test_a_fetch_that_does_not_fit_on_the_disk_is_refused_before_it_starts(
    bucket: str, requests: list[str], monkeypatch: pytest.MonkeyPatch
):
    objects.write(f"{bucket}/x/a", b"1" * 1000)
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 900}))
    says = rf"{bucket}/x needs 0\.00 GB in .*, but only 0\.00 GB are free there; free space, or set BERT_JAX_CACHE"
    with pytest.raises(UserError, match=says):
        fetched(f"{bucket}/x", "--input")
    assert requests == []


def test_existing_copies_need_no_space(bucket: str, requests: list[str], monkeypatch: pytest.MonkeyPatch):
    objects.write(f"{bucket}/x/a", b"1" * 1000)
    fetched(f"{bucket}/x", "--input")
    requests.clear()
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 900}))
    assert (fetched(f"{bucket}/x", "--input") / "a").read_bytes() == b"1" * 1000
    assert requests == []
    objects.write(f"{bucket}/x/b", b"1")
    with pytest.raises(UserError, match=r"needs 0\.00 GB"):
        fetched(f"{bucket}/x", "--input")


def test_a_missing_path_is_named_with_its_flag(bucket: str):
    says = f"--model={bucket}/none does not exist in the bucket; to see what exists, run `gcloud storage ls {bucket}`"
    with pytest.raises(UserError, match=re.escape(says)):
        fetched(f"{bucket}/none", "--model")


def test_partial_files_of_a_killed_process_are_removed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "download", lambda path, file, item, arrived: file.write_bytes(b"12345678"))
    leftover = tmp_path / "copies" / "sub" / ".b.1.bert_jax.part"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    fetching.fetch("gs://bucket/x", tmp_path / "copies", {"sub/a": objects.Item(8, "1")})
    assert [path.name for path in leftover.parent.iterdir()] == ["a"]

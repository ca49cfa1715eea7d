"""A corpus in a bucket: it is uploaded, copied, verified if anything is new, and named by its bucket in errors."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

import pytest

from bert_jax.corpus import main
from bert_jax.data.corpus.store import open_corpus
from bert_jax.data.corpus.verification import local_corpus
from bert_jax.errors import UserError
from bert_jax.storage import objects
from bert_jax.storage.fetching import measured_by
from bert_jax.storage.paths import cache_directory
from tests.data.conftest import english
from tests.storage.emulator import Emulator

TOKENS = "shard-00000-of-00001/train.tokens.npy"


@pytest.fixture
def flags(bucket: str, tmp_path: pathlib.Path, tiny_vocabulary: pathlib.Path) -> list[str]:
    """Returns the flags that build a corpus in the bucket."""
    (tmp_path / "a.txt").write_text("\n\n".join(english(30)))
    source, output = f"--source=text:{tmp_path}/a.txt", f"--output={bucket}/corpus"
    return [source, f"--vocab={tiny_vocabulary}", output, "--shards=1", "--workers=1"]


def test_a_corpus_on_a_disk_is_not_copied():
    assert local_corpus("corpora/a") == pathlib.Path("corpora/a")
    assert local_corpus(pathlib.Path("corpora/a"), "--verify") == pathlib.Path("corpora/a")


def test_the_manifest_is_uploaded_last(bucket: str, emulator: Emulator, flags: list[str]):
    before: list[str] = []
    emulator.at(r"^(POST|PUT) .*/manifest\.json", lambda: before.extend(objects.listed(f"{bucket}/corpus")), lambda: main(flags))
    after = objects.listed(f"{bucket}/corpus").keys()
    assert {*before} == after - {"manifest.json"}
    assert {TOKENS, "manifest.json", "report.txt", "tokenizer/vocab.txt"} <= after


def test_other_files_in_the_bucket_are_refused_or_kept_without_a_download(bucket: str, flags: list[str]):
    objects.write(f"{bucket}/corpus/large.bin", b"x")
    says = rf"^{bucket}/corpus holds other files \(large.bin\) and is not a corpus; choose an empty --output"
    with pytest.raises(UserError, match=says):
        main(flags)
    source, _, output, *_ = flags
    main([source, output, "--train-vocab=characters", "--vocab-only"])
    assert {"large.bin", "tokenizer/tokenizer_config.json"} <= objects.listed(f"{bucket}/corpus").keys()
    assert not [*cache_directory().rglob("large.bin")]


def test_a_copy_is_verified_if_anything_in_it_is_new_and_fetched_again_if_it_is_damaged(
    bucket: str, flags: list[str], tmp_path: pathlib.Path
):
    main(flags)
    remote, events = f"{bucket}/corpus", list[str]()

    @contextlib.contextmanager
    def measure() -> Iterator[None]:
        events.append("begins")
        yield
        events.append("ends verified" if (tmp_path / "cache" / "verified").exists() else "ends")

    with measured_by(measure):  # the time of the verification counts as time for downloading
        copy = local_corpus(f"{remote}/")
    assert events == ["begins", "ends verified"]
    assert 0 < open_corpus(copy).num_documents <= 30
    (record,) = (tmp_path / "cache" / "verified").iterdir()
    record.unlink()
    assert local_corpus(remote) == copy
    assert not record.exists(), "an earlier copy is verified in the background"

    whole = objects.read_bytes(f"{remote}/{TOKENS}")
    objects.write(f"{remote}/{TOKENS}", whole[:-1] + bytes([whole[-1] ^ 1]))
    says = rf"^the corpus {remote} is damaged \({remote}/{TOKENS} has changed since .*\); upload it again .* DIR {remote}`$"
    for _ in range(2):  # the copy is fetched and verified again, although the object is unchanged
        with pytest.raises(UserError, match=says):
            local_corpus(remote, "--verify")
    objects.write(f"{remote}/{TOKENS}", whole)
    assert (local_corpus(remote) / TOKENS).read_bytes() == whole


@pytest.mark.parametrize("name", ["config.corpus.directory", "--verify"])
def test_a_path_without_a_corpus_is_named_with_its_flag_or_key(bucket: str, name: str):
    with pytest.raises(
        UserError, match=rf"^{name}={bucket}/other is not a corpus, because the bucket has no manifest.json there"
    ):
        local_corpus(f"{bucket}/other", name)
    with pytest.raises(UserError, match=rf"^{name}=gs:/bucket/x: a path in a bucket starts with gs://"):
        local_corpus("gs:/bucket/x", name)
    with pytest.raises(UserError, match=r"^config.corpus.directory=gs:/bucket/x: a path in a bucket"):
        local_corpus("gs:/bucket/x")

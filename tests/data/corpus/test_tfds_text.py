"""tfds as a source without TensorFlow: data sets prepared on disk, in the public bucket (a local stand-in), or nowhere."""

from __future__ import annotations

import concurrent.futures
import http.server
import json
import os
import pathlib
import shutil
import ssl
import struct
import sys
import threading
import urllib.error
import urllib.parse
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from tensorflow_datasets.core.utils import tqdm_utils

from bert_jax.data.corpus import tfds_text
from bert_jax.data.corpus.sources import Document, Item, ReadOptions, Span, read_span
from bert_jax.errors import UserError
from bert_jax.files import HOST

tfds = tfds_text._tfds()


class Stories(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Two splits, two text features. The data set is not registered with tfds, so only its files can be found, as for a user
    who copied prepared files."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"title": tfds.features.Text(), "story": tfds.features.Text(), "year": np.int64}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(0, 20), "test": self._generate_examples(100, 5)}

    def _generate_examples(self, first, count):
        for k in range(first, first + count):
            yield k, {"title": f"Title {k}", "story": f"Story {k} begins.\nIt ends.".encode() + b"\xff", "year": k}


def set_of(features, directory: pathlib.Path, keys: tuple[str, str] | None = None):
    """Returns the builder of a data set with these features."""

    class Set(Stories, skip_registration=True):
        def _info(self):
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

    return Set(data_dir=directory)


@pytest.fixture(scope="module")
def array_records(tmp_path_factory) -> str:
    """Returns a directory with the data set as its owner would have prepared it."""
    directory = tmp_path_factory.mktemp("tfds")
    Stories(data_dir=directory, file_format="array_record").download_and_prepare()
    return str(directory)


@pytest.fixture(scope="module")
def tf_records(array_records, tmp_path_factory) -> str:
    """Returns the same in the format of most prepared data sets, with two files per split; written by hand, since tfds needs
    TensorFlow for it."""
    source, root = pathlib.Path(array_records, "stories", "1.0.0"), tmp_path_factory.mktemp("tfds")
    target = root / "stories" / "1.0.0"
    target.mkdir(parents=True)
    shutil.copy(source / "features.json", target)
    info = json.loads((source / "dataset_info.json").read_text())
    builder = tfds.builder_from_directory(source)
    for split in info["splits"]:
        examples = [builder.info.features.serialize_example(record) for record in builder.as_data_source(split["name"])]
        half = len(examples) // 2
        split["shardLengths"] = [str(half), str(len(examples) - half)]
        for k, part in enumerate((examples[:half], examples[half:])):
            frames = [struct.pack("<QI", len(example), 0) + example + b"\0" * 4 for example in part]
            (target / f"stories-{split['name']}.tfrecord-{k:05d}-of-00002").write_bytes(b"".join(frames))
    (target / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    return str(root)


@pytest.fixture(params=["array_records", "tf_records"])
def prepared(request) -> str:
    return request.getfixturevalue(request.param)


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(tfds_text, "HOST", "http://127.0.0.1:9")


def texts(name: str, directory: str) -> list[str]:
    text_set = tfds_text.open_text_set(name, directory)
    return [text.decode("utf-8", "replace") for text in text_set.texts(0, len(text_set))]


def test_a_prepared_data_set_is_read_by_name_split_and_feature_without_tensorflow(prepared):
    assert sorted(texts("stories:test@story", prepared)) == [f"Story {k} begins.\nIt ends.\ufffd" for k in range(100, 105)]
    assert len(texts("stories@story", prepared)) == 20
    assert len(texts("stories/1.0.0:train@title", prepared)) == 20
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize(
    ("split", "records"), [("train", slice(20)), ("train[:25%]", slice(5)), ("train[30%:70%]", slice(6, 14))]
)
def test_any_range_of_records_can_be_read(prepared, split, records):
    everything = texts(f"stories:{split}@title", prepared)
    assert everything == texts("stories@title", prepared)[records]
    text_set = tfds_text.open_text_set(f"stories:{split}@title", prepared)
    whole = tfds_text.open_text_set("stories@title", prepared).text_bytes
    assert text_set.text_bytes == pytest.approx(whole * len(everything) / 20)
    for start in range(len(everything)):
        for stop in range(start, len(everything) + 1):
            assert [text.decode() for text in text_set.texts(start, stop)] == everything[start:stop]


def test_both_formats_give_the_same_text(array_records, tf_records):
    assert texts("stories@story", array_records) == texts("stories@story", tf_records)


def test_the_texts_of_a_data_set_are_read_as_paragraphs_by_their_numbers(prepared):
    every = texts("stories@story", prepared)
    span = Span(Item("tfds", "stories@story", "records", 20, 1.0), 10, 14)
    found = list(read_span(span, ReadOptions(tfds_directory=prepared), Counter()))
    assert found == [Document(every[k].split("\n"), False, (k - 9) / 4) for k in range(10, 14)]


def test_a_corpus_is_built_from_a_data_set(prepared, tmp_path, build):
    report = build(
        tmp_path / "corpus",
        "tfds:stories@story",
        options=ReadOptions(tfds_directory=prepared),
        shards=3,
        keep={"duplicate-documents"},
    )
    assert report["read"]["documents"] == 20
    assert sum(split["sentences"] for split in report["splits"].values()) == 40


def test_a_truncated_record_file_is_named(tf_records, tmp_path):
    shutil.copytree(tf_records, tmp_path / "copy")
    path = tmp_path / "copy" / "stories" / "1.0.0" / "stories-test.tfrecord-00001-of-00002"
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(UserError, match=r"stories-test.tfrecord-00001-of-00002 ends within record 2; fetch it again"):
        texts("stories:test@story", str(tmp_path / "copy"))
    path.write_bytes(content[: len(content) // 3 * 2])
    with pytest.raises(UserError, match=r"tfrecord-00001-of-00002 ends after 2 records instead of 3"):
        texts("stories:test@story", str(tmp_path / "copy"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stories:trian@story", "no split 'trian'; did you mean 'train'"),
        ("stories:train[:1@story", r"^tfds:stories:train\[:1 is not a slice of a split \(.*\); write a slice such"),
        ("stories:train[:99]@story", r"is not a slice of a split \(Requested slice \[:99\] incompatible with 20 examples\.\)"),
        ("stories@stroy", "no text feature 'stroy'; did you mean 'story'"),
        ("stories@year", "no text feature 'year'"),
        ("stories", r"2 text features \(.*\); choose one with tfds:stories@FEATURE"),
    ],
)
def test_a_wrong_split_or_feature_is_refused_with_the_available_ones(prepared, name, message):
    with pytest.raises(UserError, match=message):
        tfds_text.open_text_set(name, prepared)


def test_an_unprepared_data_set_is_refused_immediately_without_a_network(tmp_path):
    with pytest.raises(UserError, match=r"lm1b is not prepared in .*, and it cannot be downloaded .*--tfds-directory"):
        tfds_text.open_text_set("lm1b", str(tmp_path))
    for name in ("lm1bb", "lm1bb/plain_text"):
        with pytest.raises(UserError, match=r"cannot be downloaded .*; did you mean 'lm1b'"):
            tfds_text.open_text_set(name, str(tmp_path))


@pytest.mark.parametrize(
    ("names", "asked", "found"),
    [
        (["title", "text"], "", "text"),
        (["title", "text"], "title", "title"),
        (["story"], "", "story"),
        (["a", "b"], "b", "b"),
        (["a", "b"], "", r"2 text features \(a, b\); choose one with tfds:set@FEATURE"),
        ([], "", r"0 text features"),
        ([], "a", "no text feature 'a'; it has none"),
    ],
)
def test_the_text_feature_is_the_requested_the_usual_or_the_only_one(names, asked, found, tmp_path):
    features = {name: tfds.features.Text() for name in names} | {"year": tfds.features.Scalar(np.int64)}
    builder = set_of(tfds.features.FeaturesDict(features), tmp_path)
    if found in names:
        assert tfds_text._text_feature(builder, asked) == found
    else:
        with pytest.raises(UserError, match=found):
            tfds_text._text_feature(builder, asked)


def test_tfds_asks_no_metadata_server_and_shows_no_progress_of_its_own(monkeypatch, capsys):
    monkeypatch.delenv("NO_GCE_CHECK", raising=False)
    tfds.enable_progress_bar()
    assert tfds_text._tfds.__wrapped__() is tfds
    assert os.environ["NO_GCE_CHECK"] == "true"
    assert len(list(tqdm_utils.tqdm(range(9)))) == 9
    assert capsys.readouterr().err == ""


def test_prepared_data_sets_are_in_the_given_directory_or_in_that_of_tfds(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", "/data/sets")
    assert tfds_text.tfds_directory("there") == pathlib.Path("there")
    assert tfds_text.tfds_directory(None) == pathlib.Path("/data/sets")
    monkeypatch.delenv("TFDS_DATA_DIR")
    monkeypatch.setattr(pathlib.Path, "home", lambda: tmp_path)
    assert tfds_text.tfds_directory(None) == tmp_path / "tensorflow_datasets"
    monkeypatch.setattr(pathlib.Path, "home", mock.Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(UserError, match="set TFDS_DATA_DIR to a directory"):
        tfds_text.tfds_directory(None)


def test_the_newest_prepared_version_by_number_is_used(tmp_path):
    for name in ("1.9.0", "1.10.0", "2.0.0", "old", "1.11.0.part"):
        (tmp_path / "set" / name).mkdir(parents=True)
        if name != "2.0.0":  # version 2.0.0 is not complete
            (tmp_path / "set" / name / "dataset_info.json").touch()
    assert tfds_text.find_prepared("set", tmp_path) == tmp_path / "set" / "1.10.0"
    assert tfds_text.find_prepared("set/1.9.0", tmp_path) == tmp_path / "set" / "1.9.0"
    assert tfds_text.find_prepared("set/2.0.0", tmp_path) is None
    assert tfds_text.find_prepared("other", tmp_path) is None


@pytest.fixture
def bucket(tf_records, monkeypatch):
    """Serves a local stand-in for the public bucket with two versions of `stories`; it pages its listing. Yields the list of
    requested paths."""
    content = {}
    for path in pathlib.Path(tf_records).rglob("*"):
        if path.is_file():
            name = path.relative_to(tf_records).as_posix()
            content[f"datasets/{name}"] = path.read_bytes()
            content[f"datasets/{name.replace('1.0.0', '0.9.9')}"] = b"old"
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            url = urllib.parse.urlparse(self.path)
            asked.append(url.path)
            if url.path == "/storage/v1/b/tfds-data/o":
                query = dict(urllib.parse.parse_qsl(url.query))
                names = sorted(name for name in content if name.startswith(query["prefix"]))
                start = int(query.get("pageToken", 0))
                page = {"items": [{"name": name, "size": str(len(content[name]))} for name in names[start : start + 3]]}
                body = json.dumps(page | ({"nextPageToken": str(start + 3)} if start + 3 < len(names) else {})).encode()
            else:
                body = content.get(urllib.parse.unquote(url.path).removeprefix("/tfds-data/"), b"")
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(tfds_text, "HOST", f"http://127.0.0.1:{server.server_port}")
        yield asked, content
        server.shutdown()


def test_the_newest_prepared_version_is_fetched_once(bucket, tmp_path, tf_records, capsys):
    asked, content = bucket
    content["datasets/stories/1.0.0/deep/other"] = b"of no use"
    content["datasets/stories/1.0.0/"] = b""  # the mark of a directory
    assert texts("stories@story", str(tmp_path)) == texts("stories@story", tf_records)
    assert not any("0.9.9" in path for path in asked)
    assert not any("deep" in path for path in asked)
    size = sum(path.stat().st_size for path in (tmp_path / "stories" / "1.0.0").iterdir()) / 1e3
    assert capsys.readouterr().err.splitlines()[-1] == f"fetching stories: {size:.0f}/{size:.0f} kB"
    before = len(asked)
    assert len(texts("stories:test@title", str(tmp_path))) == 5
    assert len(asked) == before


def test_a_data_set_that_two_processes_need_is_fetched_once(bucket, tmp_path):
    asked, _ = bucket
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: tfds_text.fetch("stories", tmp_path), range(2)))
    assert found == [tmp_path / "stories" / "1.0.0"] * 2
    fetched = [path for path in asked if path.startswith("/tfds-data/")]
    assert len(fetched) == len({*fetched}) > 0


def test_an_interrupted_fetch_continues_with_the_missing_files(bucket, tmp_path):
    asked, content = bucket
    name = "datasets/stories/1.0.0/stories-train.tfrecord-00001-of-00002"
    kept = content.pop(name)
    content[name] = b""  # listed, but answered with an error
    with pytest.raises(
        UserError, match=r"cannot fetch stories-train.tfrecord-00001-of-00002 of stories .*404.*run the same command again"
    ):
        tfds_text.open_text_set("stories@story", str(tmp_path))
    assert tfds_text.find_prepared("stories", tmp_path) is None
    content[name] = kept
    (part,) = (tmp_path / "stories").glob(".1.0.0.part")
    cut_off = part / "features.json"
    cut_off.write_bytes(cut_off.read_bytes()[:-1])
    (part / f".old.{HOST}.1.bert_jax.part").touch()  # left by a killed process
    there = {path.name for path in part.iterdir() if not path.name.endswith(".part")} - {"features.json"}
    asked.clear()
    assert len(texts("stories@story", str(tmp_path))) == 20
    assert f"/tfds-data/{name}" in asked
    assert not list((tmp_path / "stories" / "1.0.0").glob(".*"))
    assert f"/tfds-data/{name.rpartition('/')[0]}/features.json" in asked
    assert there
    assert there.isdisjoint(path.rpartition("/")[2] for path in asked)


def test_a_directory_that_cannot_be_written_is_named_with_the_setting_that_chose_it(bucket, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("BERT_JAX_CACHE", str(file))
    is_wrong = r"cannot be used \(Not a directory\); "
    for directory, says in (
        (None, f"{file}/tfds, the directory of the embedded corpus, {is_wrong}set BERT_JAX_CACHE to a directory"),
        (str(file), f"{file}, the directory of the embedded corpus, {is_wrong}give another --tfds-directory"),
    ):
        with pytest.raises(UserError, match=says):
            tfds_text.open_text_set("embedded", directory)
    says = rf"stories is not prepared in {file}, which cannot be written \(Not a directory\); give another --tfds-dir"
    with pytest.raises(UserError, match=says):
        tfds_text.open_text_set("stories@story", str(file))


def test_a_system_without_a_file_of_certificates_trusts_those_of_certifi(monkeypatch):
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for file, some in ((None, True), ("cert.pem", False)):
        paths = ssl.get_default_verify_paths()._replace(cafile=file)
        with monkeypatch.context() as patch:
            patch.setattr(ssl, "get_default_verify_paths", lambda paths=paths: paths)
            assert bool(tfds_text._certificates.__wrapped__().get_ca_certs()) is some


def test_an_unknown_data_set_is_refused_with_a_suggestion(bucket, tmp_path):
    with pytest.raises(UserError, match="tfds:lm1bb is not in the catalogue; did you mean 'lm1b'"):
        tfds_text.open_text_set("lm1bb", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("lm1b", ("lm1b", "train", "")),
        ("wikipedia/20230601.en:train[:1%]", ("wikipedia/20230601.en", "train[:1%]", "")),
        ("imdb_reviews/plain_text:unsupervised@text", ("imdb_reviews/plain_text", "unsupervised", "text")),
    ],
)
def test_names_include_split_and_feature(text, parts):
    assert tfds_text.parse_name(text) == parts


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, ("en", "de")),  # the direction of the data set, not the order of its features
        ("de,fr", ("de", "fr")),
        ("de,de", "--pair-fields=de,de must name the text and its translation, two of de, en, fr"),
        ("de,en,fr", "--pair-fields=de,en,fr must name the text and its translation"),
        ("de,e", "--pair-fields=de,e: tfds:set has no 'e'; did you mean"),
    ],
)
def test_the_two_features_of_a_translation_are_the_requested_or_those_of_the_data_set(given, found, tmp_path):
    def text_set(features, keys=("en", "de"), feature=""):
        return tfds_text.TextSet(set_of(features, tmp_path, keys), "train", feature)

    translation = tfds.features.Translation(languages=("de", "en", "fr"))
    if isinstance(found, tuple):
        assert text_set(translation).pair_features(given) == found
    else:
        with pytest.raises(UserError, match=found):
            text_set(translation).pair_features(given)
    assert text_set(translation, feature="de").pair_features() is None
    assert text_set(tfds.features.FeaturesDict({"text": tfds.features.Text()}), keys=None).pair_features() is None
    assert text_set(tfds.features.Translation(languages=("de", "en")), keys=None).pair_features() == ("de", "en")

"""The checkpoint format, compared with files that TensorFlow itself wrote (`tests/golden/make_tf1_checkpoint.py`)."""

from __future__ import annotations

import os
import pathlib
import shutil
import struct
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop import sorted_table
from bert_jax.interop.tensor_bundle import DTYPES, find_bundle, read_bundle, write_bundle
from tests.interop.tables import MAGIC, framed, varint

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "tf1"
BERT = GOLDEN / "bert" / "model.ckpt-1000"


def copied(name: str, directory: pathlib.Path) -> pathlib.Path:
    """Returns a copy of a golden bundle, to be damaged."""
    for path in GOLDEN.glob(f"{name}.*"):
        shutil.copy(path, directory)
    return directory / name


def field(number: int, value: int | bytes) -> bytes:
    """Returns a field of a protocol buffer."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(*shape: int, size: int, dtype: int = 1, shard: int = 0, offset: int = 0) -> bytes:
    """Returns a BundleEntryProto whose checksum is left at zero."""
    dims = b"".join(field(2, field(1, dim)) for dim in shape)
    return field(1, dtype) + field(2, dims) + field(3, shard) + field(4, offset) + field(5, size)


HEADER = field(1, 1) + field(3, field(1, 1))


def table_file(directory: pathlib.Path, entries: dict[bytes, bytes]) -> pathlib.Path:
    """Writes a bundle with these entries and four bytes of data."""
    (directory / "x.index").write_bytes(framed(sorted_table._encode_block(entries)))
    (directory / "x.data-00000-of-00001").write_bytes(bytes(4))
    return directory / "x"


def same(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Checks equality bit for bit, including NaNs and negative zeros."""
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


def test_every_type_in_two_shards_written_by_tensorflow_is_read():
    bundle = read_bundle(GOLDEN / "assorted")
    with np.load(GOLDEN / "assorted.npz") as arrays:
        expected = {name.replace("|", "/"): value for name, value in arrays.items()}
    expected["bfloat16"] = expected["bfloat16"].astype(ml_dtypes.bfloat16)
    assert bundle.shards == 2
    assert list(bundle) == sorted(expected, key=str.encode)
    assert [name for name, value in expected.items() if not same(bundle[name], value)] == []
    assert {bundle[name].dtype for name in bundle} == set(DTYPES.values())


@pytest.mark.parametrize("prefix", [BERT, GOLDEN / "assorted"], ids=["bert", "assorted"])
def test_bundles_survive_a_round_trip_bit_for_bit(prefix, tmp_path):
    bundle = read_bundle(prefix)
    write_bundle(tmp_path / "ours", bundle)
    back = read_bundle(tmp_path / "ours")
    assert list(back) == list(bundle)
    assert all(same(back[name], bundle[name]) for name in bundle)


def test_one_shard_is_written_byte_for_byte_like_tensorflow(tmp_path):
    write_bundle(tmp_path / "ours", read_bundle(BERT))
    assert (tmp_path / "ours.index").read_bytes() == BERT.with_name(f"{BERT.name}.index").read_bytes()
    data = "data-00000-of-00001"
    assert (tmp_path / f"ours.{data}").read_bytes() == BERT.with_name(f"{BERT.name}.{data}").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"ours.index", f"ours.{data}"}


def test_arrays_of_any_memory_layout_are_written_in_row_order(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_bundle(tmp_path / "x", {"turned": array.T, "every_other": array[:, ::2]})
    bundle = read_bundle(tmp_path / "x")
    np.testing.assert_array_equal(bundle["turned"], array.T)
    np.testing.assert_array_equal(bundle["every_other"], array[:, ::2])


def test_a_table_of_several_blocks_is_read_whole(tmp_path):
    entries = [(b"", HEADER), *((f"n{n:03}".encode(), entry(size=4)) for n in range(50))]
    (tmp_path / "x.index").write_bytes(framed(*(sorted_table._encode_block(dict(part)) for part in (entries[:20], entries[20:]))))
    (tmp_path / "x.data-00000-of-00001").write_bytes(bytes(4))
    assert list(read_bundle(tmp_path / "x")) == [f"n{n:03}" for n in range(50)]


def test_a_partitioned_variable_is_refused_by_name_and_others_are_read():
    bundle = read_bundle(GOLDEN / "partitioned")
    assert list(bundle) == ["rows", "whole"]
    with pytest.raises(UserError, match="rows is a partitioned variable, which cannot be read; save it as one tensor"):
        bundle["rows"]
    np.testing.assert_array_equal(bundle["whole"], np.arange(8, dtype=np.float32).reshape(4, 2))


def test_a_non_numeric_type_is_refused_by_name_and_others_are_read():
    bundle = read_bundle(GOLDEN / "text")
    with pytest.raises(UserError, match="has the type 7 of TensorFlow's DataType, which cannot be read; known: float32, float64"):
        bundle["_CHECKPOINTABLE_OBJECT_GRAPH"]
    assert bundle["number"] == 2
    with pytest.raises(ValueError, match=r"not in the checkpoint format: \['yes'\]"):
        write_bundle(GOLDEN / "never", {"yes": np.array([True])})


def test_a_flipped_index_byte_is_detected_or_harmless(tmp_path):
    prefix = copied("partitioned", tmp_path)
    index = tmp_path / "partitioned.index"
    good, whole = index.read_bytes(), read_bundle(prefix)
    unnoticed, sentences = [], set()
    for at in range(len(good)):
        index.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        try:
            assert read_bundle(prefix).entries == whole.entries
            unnoticed.append(at)
        except UserError as error:
            sentences.add(str(error).partition(": ")[0])
    assert sentences == {f"{index} is not the index of a TensorFlow checkpoint, or is damaged"}
    assert unnoticed == [at for at in range(len(good) - 48, len(good) - 8) if not any(good[at : len(good) - 8])]  # the padding


def test_a_flipped_data_byte_damages_only_its_tensor(tmp_path):
    prefix = copied("assorted", tmp_path)
    spoilt = set()
    for shard in sorted(tmp_path.glob("*.data-*")):
        good = shard.read_bytes()
        for at in range(len(good)):
            shard.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            bundle = read_bundle(prefix)
            errors = {}
            for name in bundle:
                try:
                    bundle[name]
                except UserError as error:
                    errors[name] = str(error)
            ((name, message),) = errors.items()
            assert message == f"{shard} is damaged: the checksum of {name} is wrong; copy the checkpoint again"
            spoilt.add(name)
        shard.write_bytes(good)
    assert spoilt == set(read_bundle(prefix)) - {"empty"}


def test_a_truncated_file_is_named_at_any_length(tmp_path):
    prefix = copied("assorted", tmp_path)
    index, shard = tmp_path / "assorted.index", tmp_path / "assorted.data-00001-of-00002"
    good, size = index.read_bytes(), shard.stat().st_size
    for length in (*range(0, len(good), 13), len(good) - 1):
        index.write_bytes(good[:length])
        with pytest.raises(UserError, match=r"assorted\.index is not the index of a TensorFlow checkpoint, or is damaged"):
            read_bundle(prefix)
    index.write_bytes(good)
    os.truncate(shard, size - 1)
    with pytest.raises(UserError, match=rf"data-00001-of-00002 is incomplete: it has {size - 1} bytes of at least {size}; copy"):
        read_bundle(prefix)
    shard.unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00002 is missing; copy all 2 data files"):
        read_bundle(prefix)
    index.unlink()
    with pytest.raises(UserError, match=r"assorted\.index cannot be read \(No such file or directory\)"):
        read_bundle(prefix)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04" * 500, bytes(5_000), "größe\n".encode() * 40, bytes(39) + MAGIC])
def test_another_file_is_refused_as_an_index(content, tmp_path):
    (tmp_path / "x.index").write_bytes(content)
    with pytest.raises(UserError, match="it does not end with the footer of a table"):
        read_bundle(tmp_path / "x")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "x.index").touch()
    os.truncate(tmp_path / "x.index", 1 << 40)
    with pytest.raises(UserError, match="it has more than 16,777,216 bytes"):
        read_bundle(tmp_path / "x")
    os.truncate(tmp_path / "x.index", 1 << 24)  # the largest index that is read
    with pytest.raises(UserError, match="it does not end with the footer of a table"):
        read_bundle(tmp_path / "x")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({b"w": entry(size=4)}, "it has no header"),
        ({b"": field(1, 1) + field(2, 1), b"w": entry(size=4)}, "written on a big-endian machine"),
        ({b"": field(1, 1) + field(3, field(2, 9))}, "needs a reader of version 9, and this reader has version 1"),
        ({b"": HEADER, b"w": entry(2**62, size=4)}, "w: the shape .* is impossible"),
        ({b"": HEADER, b"w": entry(0, 2**62, size=0)}, "w: the shape .* is impossible"),
        ({b"": HEADER, b"w": entry(2**24, 2**24, size=4)}, "w: the shape .* is impossible"),
        ({b"": HEADER, b"w": entry(*[1] * 33, size=4)}, "w: the shape .* is impossible"),
        ({b"": HEADER, b"w": entry(2, size=4)}, r"w: it has 4 bytes, which is wrong for float32 \[2\]"),
        ({b"": HEADER, b"w": entry(size=4, shard=1)}, "w: its shard is 1, but there are only shards 0 to 0"),
        ({b"": HEADER, b"w": field(2, 7)}, "w: field 2 of its entry is not a message"),
        ({b"": HEADER, b"w": field(1, b"seven")}, "w: field 1 of its entry is not a number"),
        ({b"": HEADER, b"w": b"\x80" * 20}, "w: a variable-length integer has no end"),
        ({b"": HEADER, b"w": b"\x12\x7f"}, "w: its entry is truncated"),
        ({b"": HEADER, b"\xff": entry(size=4)}, "a tensor's name is not UTF-8"),
        ({b"": HEADER, b"w": entry(size=4, offset=2**63)}, "is incomplete: it has 4 bytes of at least 9,223,372,036,854,775,812"),
        ({b"": field(1, 2**63) + field(3, b""), b"w": entry(size=4)}, "of-9223372036854775808 is missing"),
    ],
)
def test_an_index_with_good_checksums_and_impossible_contents_is_refused(entries, message, tmp_path):
    with pytest.raises(UserError, match=message):
        read_bundle(table_file(tmp_path, entries))


def test_compression_is_refused_with_its_name(tmp_path):
    for compression, name in ((b"\1", "snappy"), (b"\2", "type 2")):
        (tmp_path / "x.index").write_bytes(framed(sorted_table._encode_block({b"": HEADER}), compression=compression))
        with pytest.raises(UserError, match=rf"a block is compressed \({name}\), which checkpoints are not"):
            read_bundle(tmp_path / "x")


def test_names_that_would_fill_the_memory_are_refused_early(tmp_path):
    description = entry(size=4)
    block = bytearray(varint(0) + varint(0) + varint(len(HEADER)) + HEADER)
    block += varint(0) + varint(1_000_000) + varint(len(description)) + b"a" * 1_000_000 + description
    for n in range(200):  # each name extends the previous one by a letter: a few bytes in the file, a megabyte in memory
        block += varint(1_000_000 + n) + varint(1) + varint(len(description)) + b"a" + description
    (tmp_path / "x.index").write_bytes(framed(bytes(block) + struct.pack("<II", 0, 1)))
    tracemalloc.start()
    with pytest.raises(UserError, match="its keys have more than 16,777,216 bytes"):
        read_bundle(tmp_path / "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6  # 200 MB if all names were read


def test_blocks_that_point_back_are_refused(tmp_path):
    (tmp_path / "x.index").write_bytes(framed(sorted_table._encode_block({b"": HEADER}), index=[0] * 1000))
    with pytest.raises(UserError, match="its blocks overlap"):
        read_bundle(tmp_path / "x")


@pytest.mark.parametrize("first", [b"a", b"b"], ids=["equal", "lower"])
def test_names_out_of_order_are_refused(first, tmp_path):
    halves = ({b"": HEADER, first: entry(size=4)}, {b"a": entry(size=4)})
    (tmp_path / "x.index").write_bytes(framed(*map(sorted_table._encode_block, halves)))
    with pytest.raises(UserError, match="its keys are not in ascending order"):
        read_bundle(tmp_path / "x")


def test_values_at_the_limits_of_the_format_are_read(tmp_path):
    """The minimum version that this reader supports, a shape with 32 axes, an axis of 0 next to a huge one, and fields of a
    fixed size that later writers may add."""
    fixed = varint(9 << 3 | 1) + bytes(range(8)) + varint(10 << 3 | 5) + bytes(4)
    entries = {
        b"": field(1, 1) + field(3, field(2, 1)),
        b"empty": entry(0, 2**47, size=0),
        b"later": fixed + entry(size=4, dtype=3),
        b"w": entry(*[1] * 32, size=4),
    }
    found = read_bundle(table_file(tmp_path, entries)).entries
    assert {name: x.shape for name, x in found.items()} == {"empty": (0, 2**47), "later": (), "w": (1,) * 32}
    assert (found["later"].dtype, found["later"].size) == (3, 4)


def test_tensors_without_elements_need_no_data(tmp_path):
    write_bundle(tmp_path / "x", {"empty": np.zeros((3, 0), np.float32)})
    assert (tmp_path / "x.data-00000-of-00001").stat().st_size == 0
    assert read_bundle(tmp_path / "x").entries["empty"].shape == (3, 0)


def test_any_damaged_entry_is_refused_in_one_sentence(tmp_path):
    rng = np.random.default_rng(1)
    good = {b"": HEADER, b"a": entry(1, size=4), b"b": entry(size=4, dtype=3)}
    refused = 0
    for _ in range(400):
        entries = {key: bytearray(value) for key, value in good.items()}
        spoilt = entries[rng.choice([b"", b"a", b"b"])]
        for at in rng.integers(len(spoilt), size=2):
            spoilt[at] = rng.integers(256)
        try:
            bundle = read_bundle(table_file(tmp_path, {key: bytes(value) for key, value in entries.items()}))
            for name in bundle:
                bundle[name]
        except UserError:
            refused += 1
    assert refused == 400  # the checksums of the tensors are zero, so none can be read


def test_a_failed_write_leaves_only_the_older_bundle(tmp_path, monkeypatch):
    write_bundle(tmp_path / "x", {"old": np.float32([1])})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def no_space(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    for prefix in ("x", "y"):
        with pytest.raises(OSError, match="No space"):
            write_bundle(tmp_path / prefix, {"new": np.float32([2])})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_data_and_index_are_synchronised_before_they_get_their_names(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda file: seen.append((os.fstat(file).st_size, len(list(tmp_path.glob("x.*"))))))
    write_bundle(tmp_path / "x", {"w": np.float32([1, 2, 3])})
    assert seen == [(12, 0), ((tmp_path / "x.index").stat().st_size, 0)]


def test_the_index_is_removed_before_its_data_is_replaced(tmp_path, monkeypatch):
    write_bundle(tmp_path / "x", {"w": np.float32([1])})
    seen = []
    replace = pathlib.Path.replace

    def noted(path: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
        seen.append((to.suffix, (tmp_path / "x.index").exists()))
        return replace(path, to)

    monkeypatch.setattr(pathlib.Path, "replace", noted)
    write_bundle(tmp_path / "x", {"w": np.float32([2])})
    assert seen == [(".data-00000-of-00001", False), (".index", False)]
    assert read_bundle(tmp_path / "x")["w"] == 2


def test_a_checkpoint_is_found_by_its_directory_its_prefix_or_any_of_its_files(tmp_path):
    assert find_bundle(GOLDEN / "bert") == find_bundle(BERT) == BERT
    for ending in ("index", "data-00000-of-00001", "meta"):
        assert find_bundle(BERT.with_name(f"{BERT.name}.{ending}")) == BERT
    (tmp_path / "bert_model.ckpt.index").touch()
    assert find_bundle(tmp_path) == tmp_path / "bert_model.ckpt"


@pytest.mark.parametrize("folder", ["", "/data/bert/run/", r"C:\\run\\", "gs://bucket/run/"])
def test_the_checkpoint_file_selects_among_several_checkpoints(folder, tmp_path):
    for step in (0, 1000):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    with pytest.raises(UserError, match=r"has several checkpoints; name one of these: .*model\.ckpt-0, .*model\.ckpt-1000"):
        find_bundle(tmp_path)
    (tmp_path / "model.ckpt-900.index").touch()
    state = tmp_path / "checkpoint"
    state.write_text(f'model_checkpoint_path: "{folder}model.ckpt-900"\nall_model_checkpoint_paths: "model.ckpt-1000"\n')
    assert find_bundle(tmp_path) == tmp_path / "model.ckpt-900"
    (tmp_path / "model.ckpt-900.index").unlink()
    with pytest.raises(UserError, match=r"names 'model.ckpt-900' as the newest .*, but .* has no model.ckpt-900.index; name one"):
        find_bundle(tmp_path)


def test_a_path_without_a_checkpoint_is_refused_with_what_it_is(tmp_path):
    with pytest.raises(UserError, match=r"holds no TensorFlow checkpoint, because it has no file \*\.index"):
        find_bundle(tmp_path)
    with pytest.raises(UserError, match=r"there is no .*nowhere, nor .*nowhere\.index; name the directory of a checkpoint"):
        find_bundle(tmp_path / "nowhere")
    (tmp_path / "model.ckpt").touch()
    with pytest.raises(UserError, match="is not part of a TensorFlow checkpoint of format V2"):
        find_bundle(tmp_path / "model.ckpt")

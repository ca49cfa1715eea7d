"""The steps of `convert`: its reports on a model and on its changes, and the accepted sources and targets."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
import yaml

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop import conversion
from bert_jax.interop.conversion import changed, check_sources, load_model, model_lines, part_lines, read_all, written
from bert_jax.interop.flags import parse_flags
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.interop.sentence_transformers import TextVectors
from bert_jax.model.heads import make_head
from bert_jax.storage import objects
from bert_jax.storage.paths import cache_directory
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def model(tiny, vocabulary) -> Model:
    return dataclasses.replace(as_model(*tiny, vocabulary), source="SOURCE")


def flags_of(*arguments: str, **changes: Any) -> argparse.Namespace:
    flags = parse_flags("", ["--from=A", "--to=B", *arguments])
    return argparse.Namespace(**vars(flags) | changes)


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-position=1", "--max-position=1048576", "!--max-position=0", "!--max-position=1048577"),
        ("--token-types=1", "--token-types=65536", "!--token-types=0", "!--token-types=65537"),
        ("--rope-theta=1", "--rope-theta=1,1e12", "!--rope-theta=0.9", "!--rope-theta=1.1e12", "!--rope-theta=1,2,3"),
    ],
)
def test_flags_at_their_limits_are_accepted_and_beyond_refused(flags):
    for flag in flags:
        with pytest.raises(UserError) if flag.startswith("!") else contextlib.nullcontext():
            flags_of(flag.removeprefix("!"))


def test_source_and_target_are_required_and_the_seed_is_0():
    assert flags_of().seed == 0
    for flag in ("--from=A", "--to=B"):
        with pytest.raises(UserError, match="required"):
            parse_flags("", [flag])


def test_a_bert_is_described_by_parts_sizes_and_vocabulary(model):
    size = _size(model)
    sha = model.tokenizer.vocabulary.sha256[:12]
    assert model_lines(model) == [
        f"SOURCE: {size:,} parameters",
        "parts: embeddings, encoder, pooler, mlm_head, nsp_head",
        "2 layers, 16 wide, 4 heads, 40 positions, 3 token types, activation gelu_tanh",
        f"vocabulary: 140 pieces (wordpiece, cased, sha256 {sha}...)",
    ]
    old = size - sum(x.size for x in _leaves(model.params["pooler"]))
    assert model_lines(model, ["pooler"])[:2] == [
        f"SOURCE: {old:,} parameters", "parts: embeddings, encoder, mlm_head, nsp_head"
    ]  # fmt: skip


def _size(model: Model) -> int:
    """Returns the number of parameters in a file of this BERT: without the rows that pad its vocabulary."""
    padding = len(model.params["embeddings"]["word_embeddings"]["embedding"]) - model.config.vocab_size
    assert padding == 52
    return sum(x.size for x in _leaves(model.params)) - padding * (model.config.hidden_size + 1)  # and a bias each


def _leaves(tree: Any) -> list[np.ndarray]:
    return [x for each in tree.values() for x in _leaves(each)] if isinstance(tree, dict) else [tree]


def test_other_positions_directions_casings_and_encoders_are_described(tmp_path):
    lowercase = make_vocabulary(tmp_path / "lowercase", cased=False)

    def lines(**fields: Any) -> list[str]:
        return model_lines(as_model(*make_model(lowercase, num_layers=1, **fields), lowercase))[2:]

    assert lines(positions="sinusoidal", direction="left_to_right")[0].endswith(
        "40 positions (sinusoidal), 3 token types, activation gelu_tanh, left to right"
    )
    assert "(wordpiece, lower-cased, sha256 " in lines()[1]
    assert lines(encoder="bilm", hidden_size=16)[0] == "biLM of 1 layer, 16 wide, cells 24 wide"


def test_a_head_is_described_with_its_problem_and_labels(vocabulary):
    sequence = make_labelled_model(vocabulary, make_head("sequence", labels=("no", "yes"), problem="multi_label"))
    assert part_lines(sequence, ["pooler", "sequence_head"]) == [
        "parts: pooler, sequence_head", "sequence_head: multi_label, labels no, yes"
    ]  # fmt: skip
    assert part_lines(sequence, ["pooler"]) == ["parts: pooler"]
    assert part_lines(sequence, []) == []
    span = make_labelled_model(vocabulary, make_head("span"))
    assert part_lines(span, ["span_head"])[1] == "span_head: classification, 2 outputs without names"


VOCABULARY = "vocabulary: 140 -> 141 pieces (cased); embeddings: 140 kept, 1 new (each the mean of its old pieces; "


@pytest.mark.parametrize(
    ("arguments", "notes"),
    [
        ([], []),
        (["--layers=2"], ["layers: 2 -> 2 (kept: 0, 1)"]),
        (["--keep-layers=1"], ["layers: 2 -> 1 (kept: 1)"]),
        (["--max-position=50"], ["position table: 40 -> 50 rows (new rows: copied)"]),
        (["--max-position=50", "--new-positions=random"], ["position table: 40 -> 50 rows (new rows: random)"]),
        (["--max-position=40"], ["position table: 40 -> 40 rows"]),
        (["--max-position=1"], ["position table: 40 -> 1 row"]),
        (["--token-types=5"], ["token types: 3 -> 5 (new types: copies of type 0)"]),
        (["--token-types=3"], ["token types: 3 -> 3"]),
        (["--token-types=1"], ["token types: 3 -> 1"]),
        (
            ["--add-tokens=TOKENS"],
            [f"{VOCABULARY}0 with unknown pieces), 0 removed", "tokens that the vocabulary already had: 1 of 2"],
        ),
        (
            ["--replace-vocab=VOCABULARY", "--cased"],
            [
                "vocabulary: 140 -> 7 pieces (cased); embeddings: 6 kept, 1 new (each the mean of its old pieces; "
                "1 with unknown pieces), 134 removed"
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if any(text.startswith("--") for text in value) else "",
)
def test_each_change_is_reported_with_the_previous_value(model, tmp_path, arguments, notes):
    (tmp_path / "TOKENS").write_text("rivers\nparis\n")
    (tmp_path / "VOCABULARY").mkdir()
    (tmp_path / "VOCABULARY" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nparis\n東\n", encoding="utf-8")
    flags = flags_of(*(a.replace("=TOKENS", f"={tmp_path}/TOKENS").replace("=VOC", f"={tmp_path}/VOC") for a in arguments))
    result, told = changed(model, flags)
    assert told == notes
    if arguments == ["--max-position=50"]:
        table, old = (x.params["embeddings"]["position_embeddings"]["embedding"] for x in (result, model))
        np.testing.assert_array_equal(table, np.concatenate([old, old[:10]]))


def test_computed_positions_grow_by_their_formula(vocabulary):
    model = as_model(*make_model(vocabulary, positions="sinusoidal"), vocabulary)
    assert changed(model, flags_of("--max-position=50"))[1] == ["position table: 40 -> 50 rows (new rows: sinusoidal)"]
    with pytest.raises(UserError, match="--new-positions is for learned positions, but this model has sinusoidal"):
        changed(model, flags_of("--max-position=50", "--new-positions=copied"))


def test_a_model_without_positions_reads_longer_texts(vocabulary):
    result, told = changed(as_model(*make_model(vocabulary, encoder="bilm"), vocabulary), flags_of("--max-position=50"))
    assert (result.config.max_position, told) == (50, ["longest text: 40 -> 50 tokens"])


@pytest.mark.parametrize(
    ("before", "flag", "after"),
    [
        (None, "--normalise", TextVectors("mean", True)),
        (TextVectors("cls", False, 9), "--normalise", TextVectors("cls", True, 9)),
        (TextVectors("cls", True, 9), "--pooling=mean", TextVectors("mean", True, 9)),
        (TextVectors("cls", False, 9), "--pooling=mean", TextVectors("mean", False, 9)),
    ],
)
def test_a_flag_for_text_vectors_changes_only_its_own_setting(model, before, flag, after):
    assert changed(dataclasses.replace(model, vectors=before), flags_of(flag))[0].vectors == after


def test_a_limit_of_text_vectors_below_a_longer_position_table_is_reported(model):
    sentences = dataclasses.replace(model, vectors=TextVectors("mean", longest=9))
    assert [note for note in changed(sentences, flags_of("--max-position=50"))[1] if "9 tokens" in note] == [
        "texts of sentence-transformers are still cut at 9 tokens; to change this, set max_seq_length in "
        "sentence_bert_config.json"
    ]
    assert len(changed(sentences, flags_of("--max-position=8"))[1]) == 1


@pytest.mark.parametrize(
    ("source", "named", "base"),
    [
        ("lab/name", "lab/name", "lab/name"),
        ("gs://bucket/run", "run", None),
        ("a/b/run", "run", None),
        ("tf1/bert.ckpt", "bert.ckpt", None),
    ],
)
def test_the_card_names_a_model_of_the_hub_as_the_base(model, monkeypatch, tmp_path, source, named, base):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tf1").mkdir()
    (tmp_path / "tf1" / "bert.ckpt.index").touch()
    stated = dataclasses.replace(model, source=str(tmp_path))
    for changes, told in ((["x", "y"], f"Converted from {named}: x; y."), ([], f"Converted from {named}.")):
        text = conversion._converted_card(stated, flags_of(source=source), changes)
        assert f"\n{told}\n" in text
        assert yaml.safe_load(text.split("---\n")[1]).get("base_model") == base


def test_the_labels_and_the_problem_of_a_head_are_replaced(vocabulary):
    model = make_labelled_model(vocabulary, make_head("sequence", labels=("a", "b"), problem="multi_label"))
    told = ["sequence_head: labels and problem replaced according to the flags"]
    result, notes = changed(model, flags_of("--labels=no,yes"))
    assert (result.head, notes) == (make_head("sequence", labels=("no", "yes"), problem="multi_label"), told)
    result, notes = changed(model, flags_of("--problem=classification"))
    assert (result.head, notes) == (make_head("sequence", labels=("a", "b")), told)
    assert changed(model, flags_of("--labels=no,yes", "--new=sequence_head")) == (model, [])  # parameters of the new head


def test_characters_have_no_rows_to_move(vocabulary):
    model = as_model(*make_model(vocabulary, encoder="bilm", character_cnn=True, tied_decoder=False), vocabulary)
    with pytest.raises(UserError, match="computes word vectors from characters; train a model with the new vocabulary instead"):
        conversion._with_words(model, model.tokenizer)


# Sources


@pytest.mark.parametrize("place", ["", "model"], ids=["directory", "workdir"])
def test_weights_of_another_format_take_precedence_over_bert_config_json(tmp_path, place):
    shutil.copytree(GOLDEN / "heads" / "masked", tmp_path / place, dirs_exist_ok=True)
    shutil.copytree(GOLDEN / "heads" / "tokenizer", tmp_path / place, dirs_exist_ok=True)
    (tmp_path / "bert_config.json").write_text("{}")
    assert load_model(tmp_path).parts == ("mlm_head",)


def test_an_original_without_its_index_or_its_configuration_is_refused(tmp_path):
    (tmp_path / "bert_config.json").write_text("{}")
    with pytest.raises(UserError, match="holds no TensorFlow checkpoint, because it has no file"):
        load_model(tmp_path)
    (tmp_path / "bert_config.json").rename(tmp_path / "bert_model.ckpt.index")
    with pytest.raises(UserError, match=r"bert_config\.json is missing; copy the file of the pretrained model there"):
        load_model(tmp_path)
    for name in ("bert_model.ckpt.index", "bert_model.ckpt.meta", "bert_model.ckpt"):
        with pytest.raises(UserError, match=r"bert_config\.json is missing"):
            load_model(tmp_path / name)
    with pytest.raises(UserError, match="a model of the hub as OWNER/NAME"):
        load_model(tmp_path / "nothing")


def test_only_carried_fields_are_reported(tmp_path):
    directory = tmp_path / "in"
    shutil.copytree(GOLDEN / "heads" / "masked", directory)
    shutil.copytree(GOLDEN / "heads" / "tokenizer", directory, dirs_exist_ok=True)
    path = directory / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(fields | {"mine": 1, "add_cross_attention": False}))
    (model,) = read_all([str(directory)], flags_of(remote="B"))
    (note,) = [note for note in model.notes if note.startswith("fields of config.json that bert_jax does not use: ")]
    assert "mine" in note
    assert not any(name in note for name in ("add_cross_attention", "hidden_act", "hidden_size"))


def test_an_original_checkpoint_uses_its_own_vocabulary():
    path = str(GOLDEN / "tf1" / "bert")
    with pytest.raises(
        UserError, match="--vocab=V: a checkpoint of the original BERT needs the vocabulary in its own directory; copy the"
    ):
        next(read_all([path], flags_of("--vocab=V", remote="B")))
    with pytest.raises(UserError, match="no part 'nsp'; did you mean 'nsp_head'"):
        next(read_all([path], flags_of("--new=nsp", remote="B")))
    (model,) = read_all([path], flags_of("--new=nsp_head", remote="B"))
    assert (model.untrained, model.source) == ({"nsp_head"}, path)


def test_source_and_target_must_differ(model, tmp_path, monkeypatch):
    export_model(tmp_path / "run" / "model", model)
    run, other = str(tmp_path / "run"), str(tmp_path / "m")
    assert [x.source for x in read_all([run, run], flags_of(to=other, remote=run))] == [f"{run}/model"] * 2
    with pytest.raises(UserError, match=r"^--to=\S+/model is the directory of the source \S+/run; name another directory"):
        next(read_all([run], flags_of(to=f"{run}/model", remote=f"{run}/model")))
    with pytest.raises(UserError, match=r"^--to=gs://bucket/b is the directory of the source gs://bucket/b"):
        check_sources(flags_of("--average=gs://bucket/b", remote="gs://bucket/b"))
    check_sources(flags_of("--average=gs://bucket/b", remote="gs://bucket/c"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "a.index").touch()
    with pytest.raises(UserError, match=r"^--to=lab is the directory of the source lab/a"):  # the prefix of a checkpoint's files
        check_sources(flags_of(source="lab/a", remote="lab"))
    (tmp_path / "lab" / "a.index").unlink()
    for name in ("lab/a", "lab/b"):  # names on the hub as long as there are no such directories
        check_sources(flags_of("--average=lab/b", source="lab/a", remote=name))
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=rf"^--to={name} is the directory of the source {name}"):
            check_sources(flags_of("--average=lab/b", source="lab/a", remote=name))


# Targets


def test_an_export_to_a_bucket_keeps_the_files_of_others(model, bucket, emulator, tmp_path):
    export_model(tmp_path / "m", model)
    others = {"checkpoints/50000/state", "best/2/state", "adapter.safetensors", ".gitattributes", "data/large.txt", "large.txt"}
    for name in others:
        objects.write(f"{bucket}/foreign/{name}", b"x")
        objects.write(f"{bucket}/ours/{name}", b"x")
    with pytest.raises(
        UserError, match=rf"^--to={bucket}/foreign holds files that bert_jax did not export \(\S*\), so .*; name another"
    ):
        convert.main(["--from=nowhere", f"--to={bucket}/foreign"])
    assert objects.listed(f"{bucket}/foreign").keys() == others
    for path in (tmp_path / "m").iterdir():
        objects.upload(path, f"{bucket}/ours/{path.name}")
    before = objects.listed(f"{bucket}/ours")
    with pytest.raises(UserError, match=rf"^--to={bucket}/ours holds a model that bert_jax exported in the format huggingface"):
        convert.main(["--from=nowhere", f"--to={bucket}/ours", "--format=tf1"])
    emulator.fail(403, match="^POST .*model.safetensors")
    with pytest.raises(UserError, match=r"files could not be uploaded to "):
        convert.main([f"--from={tmp_path / 'm'}", f"--to={bucket}/ours"])
    assert "config.json" not in objects.listed(f"{bucket}/ours"), "no reader must take a new configuration with old weights"
    emulator.fail(403, count=0)
    convert.main([f"--from={tmp_path / 'm'}", f"--to={bucket}/ours", "--drop=mlm_head,nsp_head"])
    after = objects.listed(f"{bucket}/ours")
    assert after.keys() == before.keys()
    assert {name for name in after if after[name] == before[name]} == others
    assert not [*cache_directory().rglob("large.txt")]


def test_weights_may_be_as_large_as_the_float16_maximum(model, tmp_path):
    large = dataclasses.replace(model, params=model.params | {"pooler": {"dense": {"kernel": np.zeros((16, 16), np.float32)}}})
    large.params["pooler"]["dense"]["bias"] = np.full(16, 65_504, np.float32)
    lines = written(large, flags_of("--dtype=float16", to=str(tmp_path / "m")))
    size = _size(model)
    files = sorted(path.name for path in (tmp_path / "m").iterdir())
    kilobytes = sum((tmp_path / "m" / name).stat().st_size for name in files) / 1e3
    assert lines == [
        f"{tmp_path / 'm'} (format huggingface): {size:,} parameters, {kilobytes:,.1f} kB",
        f"files: {', '.join(files)}",
        "weights in float16",
    ]


def test_an_average_is_described_by_its_sources(model, vocabulary, tmp_path, capsys):
    for name in "ab":
        export_model(tmp_path / name, model)
    convert.main([f"--from={tmp_path / 'a'}", f"--average={tmp_path / 'b'}", f"--to={tmp_path / 'm'}"])
    assert f"\naveraged  with {tmp_path / 'b'}\n" in capsys.readouterr().out
    convert.main([f"--from={tmp_path / 'a'}", f"--to={tmp_path / 'm'}"])
    assert "averaged" not in capsys.readouterr().out

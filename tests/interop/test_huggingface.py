from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import stat

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from flax.traverse_util import flatten_dict

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.data.tokenizers.tokenizer_files import MARIAN_FILES
from bert_jax.errors import UserError
from bert_jax.files import HOST
from bert_jax.interop.directory import TEXT_VECTORS
from bert_jax.interop.huggingface import FILES, NewParts, export_model, import_model, with_new_parts
from bert_jax.interop.locate import find_model_directory
from bert_jax.interop.tensorflow import export_tf1, import_tf1
from bert_jax.model.heads import make_head
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary, write_xlm_r


@pytest.fixture
def exported(tiny, vocabulary, tmp_path) -> pathlib.Path:
    export_model(tmp_path / "model", as_model(*tiny, vocabulary), {"step": 7})
    return tmp_path / "model"


def edit_config(directory: pathlib.Path, **fields) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_export_then_import_gives_the_same_weights_configuration_and_tokenizer(exported, tiny, vocabulary):
    params, config = tiny
    model = import_model(exported, vocab_multiple=config.vocab_multiple)
    back, back_config, tokenizer = model.params, model.config, model.tokenizer
    assert back_config == config
    assert tokenizer.encode("the Paris") == [tokenizer.pieces.index("the"), tokenizer.pieces.index("Paris")]
    word_table = back["embeddings"]["word_embeddings"]["embedding"]
    np.testing.assert_array_equal(
        word_table[: config.vocab_size], params["embeddings"]["word_embeddings"]["embedding"][: config.vocab_size]
    )
    kernel = ("encoder", "layers", "feed_forward", "output", "kernel")
    np.testing.assert_array_equal(flatten_dict(back)[kernel], flatten_dict(params)[kernel])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused_with_the_tensor(exported, value):
    tensors = safetensors.numpy.load_file(exported / "model.safetensors")
    tensors["bert.encoder.layer.1.output.dense.weight"][2, 3] = value
    safetensors.numpy.save_file(tensors, exported / "model.safetensors")
    says = r"safetensors cannot be used because of NaN or infinity in encoder/layers/feed_forward/output/kernel; use an"
    with pytest.raises(UserError, match=says):
        import_model(exported)


def test_finite_weights_with_an_infinite_sum_are_accepted(exported):
    tensors = safetensors.numpy.load_file(exported / "model.safetensors")
    tensors["bert.pooler.dense.bias"][:] = 3e38
    safetensors.numpy.save_file(tensors, exported / "model.safetensors")
    assert import_model(exported).params["pooler"]["dense"]["bias"][0] == np.float32(3e38)


def test_the_directory_has_the_files_that_transformers_reads(exported, tiny):
    _, config = tiny
    files = {path.name for path in exported.iterdir()}
    assert files == {
        "config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "README.md",
    }  # fmt: skip
    others = {"spiece.model", "generation_config.json", *MARIAN_FILES, *TEXT_VECTORS}
    assert (files - {"README.md"}) | others == set(FILES)  # an export replaces FILES of an older one
    for name in ("config.json", "tokenizer_config.json"):
        assert re.match(r'\{\n  "\w+": ', (exported / name).read_text()), "people can read it"
    with safetensors.safe_open(exported / "model.safetensors", "np") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("bert.embeddings.word_embeddings.weight").get_shape() == [config.vocab_size, config.hidden_size]
    fields = json.loads((exported / "config.json").read_text())
    assert fields["architectures"] == ["BertForPreTraining"]
    assert fields["bert_jax"]["step"] == 7
    assert len(fields["bert_jax"]["vocabulary_sha256"]) == 64
    settings = json.loads((exported / "tokenizer_config.json").read_text())
    assert (settings["do_lower_case"], settings["model_max_length"]) == (False, config.max_position)


def test_exported_files_have_the_usual_permissions(exported):
    assert len({stat.S_IMODE(path.stat().st_mode) for path in exported.iterdir()}) == 1


def test_a_model_without_heads_is_saved_as_an_encoder(tiny, vocabulary, tmp_path):
    params, config = tiny
    encoder = {name: part for name, part in params.items() if name not in ("mlm_head", "nsp_head")}
    export_model(tmp_path / "m", as_model(encoder, config, vocabulary))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert set(import_model(tmp_path / "m").params) == {"embeddings", "encoder", "pooler"}


def test_a_workdir_stands_for_its_model(exported):
    assert find_model_directory(exported.parent) == exported


def test_a_second_export_replaces_the_first_and_keeps_what_a_person_added(exported, vocabulary):
    (exported / "README.md").write_text("mine")
    (exported / "onnx").mkdir()
    (exported / "onnx" / "model.onnx").write_text("mine too")
    params, config = make_model(vocabulary, num_layers=1)
    export_model(exported, as_model(params, config, vocabulary))
    assert import_model(exported).config.num_layers == 1
    assert (exported / "README.md").read_text() == "mine"
    assert (exported / "onnx" / "model.onnx").read_text() == "mine too"
    assert [path.name for path in exported.parent.iterdir()] == ["model"]


def test_an_export_that_fails_leaves_the_older_one_as_it_was(exported, tiny, vocabulary, monkeypatch):
    def no_space(*_, **__):
        raise OSError(28, "No space left on device")

    before = (exported / "model.safetensors").read_bytes()
    monkeypatch.setattr("safetensors.numpy.save_file", no_space)
    with pytest.raises(UserError, match="No space left on device; free space"):
        export_model(exported, as_model(*tiny, vocabulary))
    assert (exported / "model.safetensors").read_bytes() == before
    assert [path.name for path in exported.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("new_in_place", [False, True])
def test_an_export_killed_while_swapping_directories_loses_nothing(exported, tiny, vocabulary, new_in_place):
    aside = exported.with_name(".model.replaced")
    if new_in_place:
        shutil.copytree(exported, aside)
    else:
        exported.rename(aside)
    (exported.parent / f".model.{HOST}.1.bert_jax.directory").mkdir()
    import_model(exported)
    export_model(exported, as_model(*tiny, vocabulary))
    import_model(exported)
    assert [path.name for path in exported.parent.iterdir()] == ["model"]


def test_a_concurrent_export_to_the_same_directory_is_refused(exported, tiny, vocabulary, monkeypatch):
    save = safetensors.numpy.save_file
    refusals = []

    def meanwhile(*arguments, **named):
        with pytest.raises(UserError) as refused:
            export_model(exported, as_model(*tiny, vocabulary))
        refusals.append(str(refused.value))
        save(*arguments, **named)

    monkeypatch.setattr("safetensors.numpy.save_file", meanwhile)
    export_model(exported, as_model(*tiny, vocabulary))
    assert refusals == [f"another process is writing a model to {exported}; wait until it ends, or choose another directory"]
    import_model(exported)
    assert [path.name for path in exported.parent.iterdir()] == ["model"]


def test_a_directory_of_other_files_is_never_replaced(tiny, vocabulary, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years")
    with pytest.raises(UserError, match="not overwritten; name another directory"):
        export_model(tmp_path / "thesis", as_model(*tiny, vocabulary))
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


def test_an_unwritable_directory_is_named(tiny, vocabulary, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a model to .*choose a writable directory"):
        export_model(tmp_path / "file" / "model", as_model(*tiny, vocabulary))


def test_a_vocabulary_with_more_pieces_than_rows_is_refused_on_export_and_import(vocabulary, tmp_path):
    uncased = make_vocabulary(tmp_path / "uncased", cased=False)
    params, config = make_model(uncased)
    says = rf"the vocabulary has \d+ entries, but the vocab_size of the model is {config.vocab_size}"
    with pytest.raises(UserError, match=rf"^{tmp_path / 'm'}: {says}"):
        export_model(tmp_path / "m", as_model(params, config, vocabulary))
    with pytest.raises(UserError, match=f"^the hub's: {says}"):
        export_model(tmp_path / "m", dataclasses.replace(as_model(params, config, vocabulary), source="the hub's"))
    assert not (tmp_path / "m").exists()
    export_model(tmp_path / "m", as_model(params, config, uncased))
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(vocabulary / name, tmp_path / "m")
    with pytest.raises(UserError, match=r"use the vocabulary that the model was trained with .*--add-tokens or --replace-vocab"):
        import_model(tmp_path / "m")


@pytest.mark.parametrize("form", ["huggingface", "tf1"])
def test_vocabulary_rows_without_a_piece_survive_bit_for_bit(form, vocabulary, tmp_path):
    rows = load_tokenizer(vocabulary).size + 5
    params, config = make_model(vocabulary, vocab_size=rows, vocab_multiple=1, layer_norm_epsilon=1e-12)
    model = as_model(params, config, vocabulary)
    if form == "tf1":
        export_tf1(tmp_path / "m", params, config, model.tokenizer)
        back, back_config, tokenizer, notes = import_tf1(tmp_path / "m")
        said = notes.messages
    else:
        export_model(tmp_path / "m", model)
        found = import_model(tmp_path / "m")
        back, back_config, tokenizer, said = found.params, found.config, found.tokenizer, found.notes
    assert (back_config, tokenizer.size) == (config, rows - 5)
    assert {path: x.tobytes() for path, x in flatten_dict(back).items()} == {
        path: x.tobytes() for path, x in flatten_dict(params).items()
    }
    assert f"the word embeddings have {rows} rows for {rows - 5} pieces; the unused rows are kept, but never predicted" in said


def test_another_vocabulary_of_the_same_size_is_detected_by_its_hash(exported):
    lines = (exported / "vocab.txt").read_text().splitlines()
    lines[-1], lines[-2] = lines[-2], lines[-1]
    (exported / "vocab.txt").write_text("\n".join(lines) + "\n")
    (exported / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="the model was trained with another vocabulary"):
        import_model(exported)


@pytest.mark.parametrize(
    ("stated", "says"), [(0, ""), (None, ""), (1, "config.json has pad_token_id=1, but .* has the id 0; correct")]
)
def test_pad_token_id_comes_from_the_vocabulary(exported, stated, says):
    edit_config(exported, pad_token_id=stated)
    with pytest.raises(UserError, match=says) if says else contextlib.nullcontext():
        import_model(exported)


def test_a_bert_with_the_vocabulary_of_xlm_r_may_keep_the_default_of_pad_token_id(tmp_path):
    """As multilingual-e5-small, whose config.json has 0, while the padding of XLM-R has the id 1."""
    write_xlm_r(tmp_path)
    params, config = make_model(tmp_path, num_layers=1)
    export_model(tmp_path / "m", as_model(params, config, tmp_path))
    edit_config(tmp_path / "m", pad_token_id=0)
    with pytest.raises(UserError, match=r"config\.json has pad_token_id=0, but the vocabulary's padding has the id 1"):
        import_model(tmp_path / "m")
    edit_config(tmp_path / "m", bert_jax=None)
    assert import_model(tmp_path / "m").tokenizer.pad_id == 1
    edit_config(tmp_path / "m", pad_token_id=2)
    with pytest.raises(UserError, match=r"config\.json has pad_token_id=2, but"):
        import_model(tmp_path / "m")


def test_training_on_pairs_is_recorded_with_its_head_only(vocabulary, tmp_path):
    def back(kind: str, of_pairs: bool | None) -> bool | None:
        model = make_labelled_model(vocabulary, make_head(kind, labels=("a", "b")), num_layers=1)
        export_model(tmp_path / "m", dataclasses.replace(model, of_pairs=of_pairs))
        return import_model(tmp_path / "m").of_pairs

    assert [back("sequence", of_pairs) for of_pairs in (True, False, None)] == [True, False, None]
    assert back("token", True) is None  # a token head does not read pairs
    assert back("sequence", True)
    assert import_model(tmp_path / "m", drop=["sequence_head"]).of_pairs is None
    head = make_head("sequence", labels=("a", "b"))
    assert import_model(tmp_path / "m", new=NewParts(["nsp_head"])).of_pairs
    assert import_model(tmp_path / "m", new=NewParts(["sequence_head"], head)).of_pairs is None
    model = import_model(tmp_path / "m", drop=["sequence_head"])
    stated = dataclasses.replace(model, of_pairs=True)  # it describes the dropped head
    assert with_new_parts(stated, NewParts(["sequence_head"], head)).of_pairs is None
    fields = json.loads((tmp_path / "m" / "config.json").read_text())
    edit_config(tmp_path / "m", bert_jax=fields["bert_jax"] | {"of_pairs": "yes"})
    assert import_model(tmp_path / "m").of_pairs is None


def test_text_columns_are_recorded_with_their_head_only(vocabulary, tmp_path):
    model = make_labelled_model(vocabulary, make_head("sequence", labels=("a", "b")), num_layers=1)
    columns = {"text": "review", "choices": ["x", "y"]}
    reading = {"separator": "|", "quotes": False, "sentence": "n", "first_choice": 1, "max_question": 9, "n_best": 5}
    reading |= {"length": 8, "doc_stride": 7, "max_answer": 6, "may_be_unanswerable": True, "no_answer_threshold": -1.5}
    export_model(tmp_path / "m", dataclasses.replace(model, columns=columns, reading=reading))
    assert (import_model(tmp_path / "m").columns, import_model(tmp_path / "m").reading) == (columns, reading)
    without = import_model(tmp_path / "m", drop=["sequence_head"])
    assert without.columns == without.reading == {}
    assert import_model(tmp_path / "m", new=NewParts(["nsp_head"])).columns == columns
    stated = dataclasses.replace(without, columns=columns, reading=reading)  # of the dropped head
    renewed = with_new_parts(stated, NewParts(["sequence_head"], model.head))
    assert renewed.columns == renewed.reading == {}
    export_model(tmp_path / "without", model)
    assert not {"columns", "reading"} & json.loads((tmp_path / "without" / "config.json").read_text())["bert_jax"].keys()
    fields = json.loads((tmp_path / "m" / "config.json").read_text())
    wrong = {"columns": {"text": 3, "text_b": [], "words": "w"}, "reading": {"separator": "", "delimiter": "ab", "quotes": 1}}
    wrong["reading"] |= {"max_question": True, "other": 1, "sentence": "", "first_choice": -1}
    wrong["reading"] |= {"length": 0, "may_be_unanswerable": 1, "no_answer_threshold": "0"}
    edit_config(tmp_path / "m", bert_jax=fields["bert_jax"] | wrong)
    assert (import_model(tmp_path / "m").columns, import_model(tmp_path / "m").reading) == ({"words": "w"}, {})
    wrong["reading"] = dict.fromkeys(("first_choice", "max_answer", "no_answer_threshold"), 10**400)
    edit_config(tmp_path / "m", bert_jax=fields["bert_jax"] | wrong)
    assert import_model(tmp_path / "m").reading == {}


def test_unread_files_are_reported(exported):
    assert import_model(exported).notes == ()
    for name in ("modules.json", "README.md", "pytorch_model.bin.index.json", ".hidden.json"):
        (exported / name).write_text("{}")
    for name in ("1_Pooling", ".cache"):
        (exported / name).mkdir()
    assert import_model(exported).notes == ("these files are neither read nor copied: 1_Pooling, modules.json",)


@pytest.mark.parametrize("size", [0, 5, 100, -8])
def test_a_truncated_weights_file_is_named_with_its_size(exported, size):
    weights = exported / "model.safetensors"
    os.truncate(weights, size if size >= 0 else weights.stat().st_size + size)
    with pytest.raises(UserError, match=r"model\.safetensors \([\d,]+ bytes\) is damaged or incomplete"):
        import_model(exported)


def test_a_configuration_that_disagrees_with_the_weights_lists_both_shapes(exported):
    edit_config(exported, intermediate_size=25)
    with pytest.raises(UserError, match=r"layer\.0\.intermediate\.dense\.weight \[24, 16\] instead of \[25, 16\]"):
        import_model(exported)
    edit_config(exported, intermediate_size=24, num_hidden_layers=3)
    with pytest.raises(UserError, match=r"missing: bert\.encoder\.layer\.2\."):
        import_model(exported)


def test_a_path_without_a_model_is_refused_with_what_it_is(tmp_path, exported):
    with pytest.raises(UserError, match=r"there is no .*bert-base-uncased; name a directory"):
        import_model(tmp_path / "bert-base-uncased")
    with pytest.raises(UserError, match="is a file"):
        import_model(exported / "config.json")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UserError, match=r"no config\.json and no model\.safetensors"):
        import_model(empty)
    (empty / "tf_model.h5").touch()
    with pytest.raises(UserError, match=r"tf_model\.h5 is in an unsupported format; save the weights as model\.safetensors"):
        import_model(empty)
    (empty / "checkpoints").mkdir()
    with pytest.raises(UserError, match="workdir that has no exported model yet"):
        import_model(empty)
    (exported / "config.json").write_text("{")
    with pytest.raises(UserError, match=r"config\.json cannot be read as JSON"):
        import_model(exported)


def add_tensors(directory: pathlib.Path, *names: str) -> None:
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    safetensors.numpy.save_file(tensors | dict.fromkeys(names, np.zeros(2, np.float32)), directory / "model.safetensors")


def test_a_custom_class_is_read_as_an_encoder_if_its_other_tensors_are_dropped(exported):
    plain = import_model(exported)
    edit_config(exported, architectures=["MyBert"], auto_map={"AutoModel": "my_bert.MyBert"})
    back = import_model(exported)
    assert back.parts == plain.parts
    assert "the class MyBert in config.json is unknown, so the model was read as a BertForPreTraining" in back.notes
    assert "auto_map" not in back.other_fields
    add_tensors(exported, "classifier.weight", "classifier.bias", "mine.0.weight", "x")
    with pytest.raises(UserError, match=r"to leave them out, use `convert --drop='classifier\.\*,mine\.\*,x'`"):
        import_model(exported)
    for drop in (["classifier.*", "mine.*", "x"], ["sequence_head", "mine.0.weight", "x"]):
        back = import_model(exported, drop=drop)
        assert (back.head, back.parts) == (None, plain.parts)
        np.testing.assert_array_equal(back.params["pooler"]["dense"]["bias"], plain.params["pooler"]["dense"]["bias"])
    back = import_model(exported, drop=["cla*", "*mine*", "x"])
    assert "dropped: classifier.bias, classifier.weight, mine.0.weight, x" in back.notes


def test_a_part_with_all_tensors_dropped_is_left_out(exported):
    assert import_model(exported, drop=["cls.seq*", "bert.pooler.*"]).parts == ("mlm_head",)
    with pytest.raises(UserError, match=r"missing: cls\.seq_relationship\.bias"):
        import_model(exported, drop=["cls.seq_relationship.bias"])
    with pytest.raises(UserError, match=r"missing: bert\.encoder\.layer\.0\.attention\.self\.query\.weight"):
        import_model(exported, drop=["bert.encoder.*"])


def test_a_wrongly_described_task_head_can_be_relabelled_or_dropped(vocabulary, tmp_path):
    head = make_head("token", labels=("O", "B-X", "I-X"))
    export_model(tmp_path / "m", make_labelled_model(vocabulary, head))
    edit_config(tmp_path / "m", label2id={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2})
    assert import_model(tmp_path / "m").head == head
    assert "label2id of config.json was not used, because it differs from id2label" in import_model(tmp_path / "m").notes
    for labels in ({"0": "LABEL_0", "1": "LABEL_1"}, {"0": "O", "2": "B-X", "3": "I-X"}, ["O", "B-X", "I-X"]):
        edit_config(tmp_path / "m", id2label=labels, label2id=None)
        with pytest.raises(UserError, match=r"`convert --labels=A,B,\.\.\.`"):
            import_model(tmp_path / "m")
        assert import_model(tmp_path / "m", labels=["O", "B-X", "I-X"]).head == head
        assert import_model(tmp_path / "m", drop=["token_head"]).parts == ()


def test_half_precision_weights_are_read_as_float32(exported, tiny):
    weights = exported / "model.safetensors"
    tensors = safetensors.numpy.load_file(weights)
    safetensors.numpy.save_file({name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()}, weights)
    back = import_model(exported).params
    assert back["pooler"]["dense"]["kernel"].dtype == np.float32
    np.testing.assert_allclose(back["pooler"]["dense"]["kernel"], tiny[0]["pooler"]["dense"]["kernel"], rtol=2**-8)

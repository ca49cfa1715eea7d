"""Marian's encoder-decoders as saved by transformers survive import, export and re-import: every tensor, every field, every
hidden state, the smoothed loss and its gradients. `tests/golden/marian/` has the cases, which `make_marian_golden.py` makes in
float64."""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import re
import shutil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from bert_jax.convert import main as convert
from bert_jax.data import DECODER, INPUTS
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe, train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.interop.families.family import export_family
from bert_jax.interop.families.marian import MARIAN, generation_settings, unapplied_settings
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.huggingface_config import config_from_json
from bert_jax.interop.names import our_shapes, rows, tensors_from_params, their_names, their_shape
from bert_jax.interop.weights import read_weights
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.encoder_decoder import EncoderDecoder, attention_maps
from bert_jax.model.positions import fixed_table
from bert_jax.objectives.model import Model as Trained
from bert_jax.objectives.translation import Translation
from tests.interop.tiny import make_translator, make_vocabulary
from tests.model.test_encoder_decoder import MODERN

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "marian"
TOKENIZER = GOLDEN.parent / "heads" / "tokenizer"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))


def imported(case: str | pathlib.Path, **arguments: Any) -> Model:
    return import_model(GOLDEN / case, vocabulary=TOKENIZER, **arguments)


def golden(case: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / case / "outputs.npz") as file:
        return {name.removeprefix("outputs/"): file[name] for name in file.files}


def batch_of(stored: dict[str, np.ndarray]) -> tuple[dict[str, jax.Array], np.ndarray]:
    """Returns (our arrays of the batch, targets with -1 at positions that are not predicted); the target starts with the padding
    token."""
    targets = np.where(stored["labels"] < 0, -1, stored["labels"])
    reads = np.concatenate([np.zeros((len(targets), 1), np.int32), np.maximum(targets[:, :-1], 0)], axis=1)
    batch: dict[str, jax.Array] = {}
    for prefix, ids, real in (("", stored["input_ids"], stored["attention_mask"]), (DECODER, reads, (targets >= 0) * 1)):
        columns = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
        arrays = (ids, np.zeros_like(ids), columns, real)
        batch |= {f"{prefix}{name}": jnp.asarray(x, jnp.int32) for name, x in zip(INPUTS, arrays, strict=True)}
    return batch, targets


def assert_close(found: Any, wanted: np.ndarray, what: str) -> None:
    found = np.asarray(found)
    assert found.shape == wanted.shape, what
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max(), what


def test_a_file_of_transformers_4_has_the_configuration_of_version_5():
    assert imported("shared4").config == dataclasses.replace(imported("shared").config, activation="relu")


def test_states_logits_and_attention_equal_pytorch():
    model, stored = imported("separate"), golden("separate")
    config = dataclasses.replace(model.config, scan_layers=True)
    batch, targets = batch_of(stored)

    def outputs(params: Any, batch: Any) -> Any:
        return EncoderDecoder(config).apply({"params": params}, batch), attention_maps(params, config, batch)

    found, maps = jax.jit(outputs)(model.params, batch)
    source, predicted = stored["attention_mask"] > 0, targets >= 0
    assert_close(np.asarray(found["hidden_states"])[:, source], stored["encoder_hidden_states"][:, source], "encoder")
    decoded = np.asarray(found["decoder_hidden_states"])[:, predicted]
    assert_close(decoded, stored["decoder_hidden_states"][:, predicted], "decoder")
    assert_close(np.asarray(found["logits"])[predicted], stored["logits"][predicted], "logits")
    for name, found_maps in zip(("encoder_attentions", "decoder_attentions", "cross_attentions"), maps, strict=True):
        real = source if name == "encoder_attentions" else predicted
        weights, wanted = (np.asarray(x).swapaxes(2, 3)[:, real] for x in (np.stack(found_maps), stored[name]))
        assert_close(weights, wanted, name)


@pytest.mark.parametrize("case", ["separate", "shared", "untied"])
def test_the_loss_and_all_gradients_equal_pytorch(case: str):
    """The golden loss is that of transformers' LabelSmoother, whose padding is -100."""
    model, stored = imported(case), golden(case)
    batch, targets = batch_of(stored)
    objective = Translation().for_model(Trained(dataclasses.replace(model.config, scan_layers=True)))

    def loss(params: Any, batch: Any) -> jax.Array:
        return objective.loss(objective.sums(params, batch, None), objective.counts(batch))

    value, gradients = jax.jit(jax.value_and_grad(loss))(model.params, batch | {"targets": jnp.asarray(targets, jnp.int32)})
    assert float(value) == pytest.approx(float(stored["loss"]), rel=1e-6)
    theirs = {name.removeprefix("gradients/"): x for name, x in stored.items() if name.startswith("gradients/")}
    ours = tensors_from_params(jax.tree.map(np.asarray, gradients), model.config)
    assert not ours.pop("final_logits_bias").any()
    assert ours.keys() == theirs.keys()
    largest = max(np.abs(x).max() for x in theirs.values())
    for name, gradient in theirs.items():
        if name.endswith("k_proj.bias"):  # adds one constant to all scores of a query: its gradient is only rounding
            assert np.abs(ours[name]).max() <= 1e-6 * largest, name
            continue
        # PyTorch's own float32 is off by up to 1.8e-6 of the largest value, and by 1.1e-5 for queries and keys, whose gradients
        # are small differences: these are compared relative to the largest gradient in their attention.
        same = name.rsplit(".", 2)[0] if ".q_proj." in name or ".k_proj." in name else name
        scale = max(np.abs(x).max() for other, x in theirs.items() if other.startswith(same))
        assert np.abs(ours[name] - gradient).max() <= 2e-6 * scale, name


@pytest.mark.parametrize("case", CASES)
def test_exported_files_equal_the_imported_ones_byte_for_byte(case: str, tmp_path: pathlib.Path):
    export_model(tmp_path / "m", imported(case))
    before, after = (read_weights(folder / "model.safetensors") for folder in (GOLDEN / case, tmp_path / "m"))
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    fields, own = (json.loads((folder / "config.json").read_text()) for folder in (GOLDEN / case, tmp_path / "m"))
    fields = {name: value for name, value in fields.items() if name not in ("dtype", "transformers_version")}
    fields = {name: 3 if (name, value) == ("forced_eos_token_id", None) else value for name, value in fields.items()}
    assert {name: own.get(name) for name in fields} == fields
    came = json.loads((GOLDEN / case / "generation_config.json").read_text())
    written = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert came.items() <= written.items()
    assert written["bad_words_ids"] == [[0]]
    assert config_from_json(own, "") == imported(case).config


def test_the_fields_of_a_published_checkpoint_are_read_and_kept(tmp_path: pathlib.Path):
    """The config.json of Helsinki-NLP/opus-mt-en-de has older keys, including settings of generation. transformers uses these
    settings if there is no generation_config.json."""
    fields = json.loads((GOLDEN / "shared" / "config.json").read_text()) | {
        "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "bad_words_ids": [[0]], "classif_dropout": 0.0,
        "classifier_dropout": 0.0, "gradient_checkpointing": False, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "max_length": 512, "normalize_before": False, "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 2,
        "static_position_embeddings": True, "min_length": 2, "no_repeat_ngram_size": 0, "forced_bos_token_id": None,
    }  # fmt: skip
    directory = shutil.copytree(GOLDEN / "shared", tmp_path / "opus")
    (directory / "generation_config.json").unlink()
    (directory / "config.json").write_text(json.dumps(fields))
    export_model(tmp_path / "m", imported(directory))
    own = json.loads((tmp_path / "m" / "config.json").read_text())
    del fields["dtype"], fields["transformers_version"]
    assert {name: own.get(name) for name in fields} == fields
    searched = json.loads((tmp_path / "m" / "generation_config.json").read_text())
    assert (searched["num_beams"], searched["max_length"], searched["min_length"]) == (6, 512, 2)
    assert unapplied_settings(imported(directory).generation, 0) == (
        "`translate` does not apply min_length=2 of the model's generation settings",
    )


DEFAULTS = {
    "max_position_embeddings": 1_024, "activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True,
    "share_encoder_decoder_embeddings": True, "dropout": 0.1, "attention_dropout": 0.0, "init_std": 0.02,
}  # fmt: skip


def test_missing_keys_have_the_defaults_of_transformers():
    fields = json.loads((GOLDEN / "shared" / "config.json").read_text()) | DEFAULTS
    whole = config_from_json(fields, "")
    for name in (*DEFAULTS, "decoder_vocab_size"):
        assert config_from_json({key: value for key, value in fields.items() if key != name}, "") == whole, name


def test_a_new_translator_drops_nothing_more_and_is_searched_as_usual():
    config = ModelConfig(**published("transformer_base"))
    written = MARIAN.write(config, {}, {})
    assert [written[name] for name in ("activation_dropout", "encoder_layerdrop", "decoder_layerdrop")] == [0.0] * 3
    for positions, longest in ((40, 40), (1_024, 512)):
        assert generation_settings(dataclasses.replace(config, max_position=positions), {"pad": 0, "sep": 3}) == {
            "pad_token_id": 0, "decoder_start_token_id": 0, "bad_words_ids": [[0]], "eos_token_id": 3,
            "forced_eos_token_id": 3, "max_length": longest, "num_beams": 4,
        }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"normalize_before": True}, "normalize_before=True cannot be represented"),
        ({"normalize_embedding": True}, "normalize_embedding=True cannot be represented"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm=True cannot be represented"),
        ({"static_position_embeddings": False}, "static_position_embeddings=False cannot be represented"),
        ({"add_bias_logits": True}, "add_bias_logits=True cannot be represented"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads=4 contradicts another field"),
        ({"decoder_vocab_size": 50}, "contradict share_encoder_decoder_embeddings=true"),
    ],
)
def test_an_unsupported_option_is_refused(fields, says):
    with pytest.raises(UserError, match=says):
        config_from_json(json.loads((GOLDEN / "shared" / "config.json").read_text()) | fields, "config.json")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("decoder_start_token_id", "padding has the id 0"),
        ("eos_token_id", "end token has the id 3"),
        ("forced_eos_token_id", "end token has the id 3"),
    ],
)
def test_targets_that_start_or_end_with_other_tokens_are_refused(name, says, tmp_path: pathlib.Path):
    directory = shutil.copytree(GOLDEN / "shared", tmp_path / "other")
    fields = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(fields | {name: 5}))
    with pytest.raises(UserError, match=f"config.json has {name}=5, but the vocabulary's {says}; correct one"):
        imported(directory)


@pytest.mark.parametrize("fields", [{"architectures": ["MarianModel"]}, {"architectures": None}])
def test_a_model_without_its_output_layer_is_refused(fields, tmp_path: pathlib.Path):
    directory = shutil.copytree(GOLDEN / "shared", tmp_path / "m")
    tensors = {name.removeprefix("model."): x for name, x in read_weights(directory / "model.safetensors").items()}
    del tensors["final_logits_bias"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(UserError, match=r"a MarianModel has no output layer \(lm_head\), .*; save the whole MarianMTModel"):
        imported(directory)


@pytest.mark.parametrize("tied", [True, False])
def test_copies_of_tables_and_of_positions_in_old_files_are_left_out(tied, tmp_path: pathlib.Path):
    directory = shutil.copytree(GOLDEN / "shared", tmp_path / "old")
    tensors, config = read_weights(directory / "model.safetensors"), imported("shared").config
    table = tensors["model.shared.weight"]
    for side in ("encoder", "decoder"):
        tensors[f"model.{side}.embed_tokens.weight"] = table if tied or side == "encoder" else table + 1
        tensors[f"model.{side}.embed_positions.weight"] = fixed_table(config)
    tensors["lm_head.weight"] = table
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    if not tied:
        with pytest.raises(UserError, match=r"decoder\.embed_tokens\.weight differs from model\.shared\.weight"):
            imported(directory)
        return
    jax.tree.map(np.testing.assert_array_equal, imported(directory).params, imported("shared").params)


@pytest.mark.parametrize(
    ("dtype", "change", "is_read"),
    [
        (np.float32, 1e-7, True),
        (np.float32, 5.3e-7, False),
        (np.float32, np.nan, False),
        (np.float16, 0.0, True),
        (np.float16, 0.02, False),
    ],
)
def test_stored_positions_may_differ_by_rounding_only(dtype, change, is_read, tmp_path: pathlib.Path):
    """Old files store the positions, computed by another version of numpy and perhaps rounded to 16 bits."""
    directory = shutil.copytree(GOLDEN / "shared", tmp_path / "old")
    table = fixed_table(imported("shared").config)
    assert table is not None
    table = table.copy()
    table[5, 3] += np.float32(change)
    tensors = read_weights(directory / "model.safetensors") | {"model.encoder.embed_positions.weight": table.astype(dtype)}
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    if is_read:
        jax.tree.map(np.testing.assert_array_equal, imported(directory).params, imported("shared").params)
    else:
        with pytest.raises(UserError, match=r"embed_positions\.weight must be the sinusoids of every position, sines before"):
            imported(directory)


@pytest.mark.parametrize("name", ["transformer_base", "transformer_big"])
def test_the_models_of_the_paper_are_exported_as_marian(name):
    config = ModelConfig(**published(name))
    assert export_family(config).model_type == "marian"
    shapes = our_shapes(config)
    assert {row.ours for row in rows(config)} == set(shapes)
    names = [other for row in rows(config) for other in their_names(row, config)]
    assert len(names) == len(set(names)) == 2 + 6 * 16 + 6 * 26
    assert their_shape(rows(config)[-1], config) == (1, 37_000)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"norm_placement": "pre", "final_norm": True}, "norm_placement=pre, final_norm=True"),
        (MODERN, "positions=rotary, norm=rms_norm, norm_placement=pre, .*gate=first, num_key_value_heads=1"),
    ],
)
def test_models_beyond_marian_are_written_only_for_this_package(fields, named, tmp_path: pathlib.Path, caplog):
    model = make_translator(make_vocabulary(tmp_path / "vocabulary", cased=True), **fields)
    with caplog.at_level(logging.INFO):
        export_model(tmp_path / "m", model)
    assert re.search(f"Marian does not support {named}", caplog.text)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "encoder_decoder"
    with pytest.raises(UserError, match=f"transformers' Marian does not support {named}, so .*; choose --format=bert_jax"):
        convert([f"--from={tmp_path / 'm'}", f"--to={tmp_path / 'out'}"])
    assert not (tmp_path / "out").exists()
    convert([f"--from={tmp_path / 'm'}", f"--to={tmp_path / 'out'}", "--format=bert_jax"])
    back = import_model(tmp_path / "out")
    assert back.config.architecture == model.config.architecture
    jax.tree.map(np.testing.assert_array_equal, back.params, model.params)


def test_a_marian_is_converted_equally_in_both_formats(tmp_path: pathlib.Path):
    export_model(tmp_path / "m", make_translator(make_vocabulary(tmp_path / "vocabulary", cased=True)))
    written = []
    for form in ("huggingface", "bert_jax"):
        convert([f"--from={tmp_path / 'm'}", f"--to={tmp_path / form}", f"--format={form}"])
        written.append((tmp_path / form / "config.json").read_bytes())
    assert written[0] == written[1]
    assert json.loads(written[0])["model_type"] == "marian"


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_the_exported_tokenizer_ends_a_text_and_puts_nothing_before_it(kind, tmp_path: pathlib.Path):
    """Marian's own tokenizer does the same. transformers adds the special tokens that tokenizer.json names. Importing the files
    returns the same vocabulary."""
    vocabulary = tmp_path / "vocabulary"
    if kind == "wordpiece":
        make_vocabulary(vocabulary, cased=True)
    else:
        train_bpe([["the river of Paris is the capital"]] * 30, 384, None).save(vocabulary)
    model = make_translator(vocabulary)
    for n in range(2):  # exported, and exported again
        export_model(tmp_path / str(n), model)
        model = import_model(tmp_path / str(n))
    assert model.tokenizer.vocabulary == load_tokenizer(vocabulary).vocabulary
    found = tokenizers.Tokenizer.from_file(str(tmp_path / "1" / "tokenizer.json"))
    own = model.tokenizer.encode("the river"), model.tokenizer.encode("of Paris")
    end = model.tokenizer.sep_id
    assert found.encode("the river").ids == [*own[0], end]
    pair = found.encode("the river", "of Paris")
    assert pair.ids == [*own[0], end, *own[1], end]
    assert not any(pair.type_ids)  # as in Marian's own tokenizer
    settings = json.loads((tmp_path / "1" / "tokenizer_config.json").read_text())
    assert (settings["eos_token"], settings["tokenizer_class"]) == ("[SEP]", "PreTrainedTokenizerFast")


def test_an_exported_translator_keeps_its_sentencepiece_vocabulary(tmp_path):
    train_sentencepiece([["the river of Paris is the capital", "of France, is it?"]] * 30, 60, None).save(tmp_path / "words")
    model = make_translator(tmp_path / "words", max_position=40)
    export_model(tmp_path / "m", model)
    assert import_model(tmp_path / "m").tokenizer.vocabulary == model.tokenizer.vocabulary

"""ModernBERT, EuroBERT and nomic-bert as saved by transformers survive import, export and re-import: every tensor, every field
and every output. `tests/golden/families/` has a directory for every class, made by `make_families_golden.py`; outputs have to
be within 1e-6 of the largest value (at least 1) of PyTorch's float64."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax import convert
from bert_jax.errors import UserError
from bert_jax.interop.families import FAMILIES
from bert_jax.interop.families.family import export_family, family_named
from bert_jax.interop.huggingface import Model, NewParts, export_model, import_model, with_new_parts, without_parts
from bert_jax.interop.huggingface_config import config_from_json, config_to_json, own_fields
from bert_jax.interop.names import our_shapes, rows, their_names, their_shape
from bert_jax.interop.surgery import with_layers, with_window
from bert_jax.interop.tiling import tiled
from bert_jax.model.config import ModelConfig, published
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.pretraining import abstract_parameters
from bert_jax.objectives.model import Model as Trained
from tests.interop.answers import our_outputs

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "families"
TOKENIZER = GOLDEN.parent / "heads" / "tokenizer"
CASES = sorted(path.parent.name for path in GOLDEN.glob("*/config.json"))
LAYERS = ("full", "sliding", "sliding", "full", "sliding")


def imported(case: str | pathlib.Path, **arguments: Any) -> Model:
    return import_model(GOLDEN / case, vocabulary=TOKENIZER, **arguments)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Model, pathlib.Path]]:
    """Returns a function that imports and exports a case, once: (the model with a padded vocabulary, its export)."""

    @functools.cache
    def of(case: str) -> tuple[Model, pathlib.Path]:
        model, directory = imported(case, vocab_multiple=64), tmp_path_factory.mktemp("exported") / case
        export_model(directory, model)
        return model, directory

    return of


def fields_of(directory: pathlib.Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def changed_fields(case: str, **fields: Any) -> dict[str, Any]:
    """Returns the content of a case's config.json; `fields` replace some of it, and "absent" removes one."""
    return {name: value for name, value in (fields_of(GOLDEN / case) | fields).items() if value != "absent"}


def changed(case: str, directory: pathlib.Path, **fields: Any) -> pathlib.Path:
    """Returns a copy of a case with its tokenizer and `changed_fields`."""
    shutil.copytree(GOLDEN / case, directory)
    shutil.copytree(TOKENIZER, directory, dirs_exist_ok=True)
    (directory / "config.json").write_text(json.dumps(changed_fields(case, **fields)))
    return directory


def outputs_of(case: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    with np.load(GOLDEN / case / "outputs.npz") as file:
        batch = {name: file[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        return batch, {name.removeprefix("outputs/"): file[name] for name in file.files if name.startswith("outputs/")}


def test_there_is_a_case_for_every_class():
    classes = {fields_of(GOLDEN / case)["architectures"][0] for case in CASES}
    with_cases_here = [family for family in FAMILIES if family not in ("bert", "marian")]
    assert classes == {name for family in with_cases_here for name in family_named(family, "").classes}


@pytest.mark.parametrize("case", CASES)
def test_every_output_equals_pytorch(case, exported):
    batch, theirs = outputs_of(case)
    ours = our_outputs(exported(case)[0], batch)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        value = np.asarray(ours[name], np.float64)
        assert value.shape == expected.shape
        if expected.shape[:2] == batch["input_ids"].shape:  # only of real tokens: nobody reads what padding attends to
            real = batch["attention_mask"].astype(bool)
            value, expected = value[real], expected[real]
        # small scores are sums of terms near 1, whose rounding depends on the CPU: 4e-7 in scores up to 0.36 on one of AMD's
        assert np.abs(value - expected).max() < 1e-6 * max(1, np.abs(expected).max()), name


@pytest.mark.parametrize("case", CASES)
def test_all_bytes_of_weights_and_fields_survive_export_and_a_second_export_is_identical(case, tmp_path, exported):
    first, second = exported(case)[1], tmp_path / "second"
    assert (first / "model.safetensors").read_bytes() == (GOLDEN / case / "model.safetensors").read_bytes()
    before, after = fields_of(GOLDEN / case), fields_of(first)
    assert before.keys() - after.keys() <= {"dtype", "transformers_version"}
    for name in before.keys() & after.keys():
        old = before[name]
        if name == "local_rope_theta":  # null means the value of the other layers
            old = before["global_rope_theta"] if old is None else old
        assert after[name] == old, name
    assert "model" not in after["bert_jax"]  # the family's keys already contain all of it
    export_model(second, import_model(first, vocab_multiple=64))
    assert fields_of(second) == after
    for path in first.iterdir():
        assert path.name == "config.json" or (second / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_modernbert_of_one_layer_has_no_attention_norm_in_its_file(tmp_path):
    directory = changed("modernbert_encoder", tmp_path / "m", num_hidden_layers=1, layer_types=["full_attention"])
    tensors = load_file(directory / "model.safetensors")
    kept = {name: x for name, x in tensors.items() if not name.startswith("layers.") or name.startswith("layers.0.")}
    save_file(kept, directory / "model.safetensors")
    model = import_model(directory)
    np.testing.assert_array_equal(model.params["encoder"]["layers"]["attention_layer_norm"]["scale"], np.ones((1, 12)))
    export_model(tmp_path / "again", model)
    written = load_file(tmp_path / "again" / "model.safetensors")
    assert {name: x.tobytes() for name, x in written.items()} == {name: x.tobytes() for name, x in kept.items()}


def test_a_masked_language_model_whose_head_has_no_parameters_of_its_own_keeps_it(tmp_path):
    """EuroBERT's decoder may be tied, and has no bias without mlp_bias."""
    directory = changed("eurobert_masked_biased", tmp_path / "m", mlp_bias=False)
    tensors = load_file(directory / "model.safetensors")
    biases = ("lm_head.bias", "up_proj.bias", "gate_proj.bias", "down_proj.bias")
    save_file({name: x for name, x in tensors.items() if not name.endswith(biases)}, directory / "model.safetensors")
    model = import_model(directory)
    assert model.params["mlm_head"] == {}
    assert our_outputs(model, outputs_of("eurobert_masked_biased")[0])["logits"].shape[-1] == model.config.vocab_size
    export_model(tmp_path / "again", model)
    assert fields_of(tmp_path / "again")["architectures"] == ["EuroBertForMaskedLM"]
    assert abstract_parameters(model.config).keys() >= {"embeddings", "encoder", "mlm_head"}
    with_head = with_new_parts(without_parts(model, ["mlm_head"]), NewParts(["mlm_head"]))
    assert (with_head.params.keys(), with_head.untrained) == (model.params.keys(), {"mlm_head"})
    larger = tiled(with_layers(model, [0]), dataclasses.replace(model.config, num_layers=3).architecture)
    assert larger.params.keys() == model.params.keys()
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == load_file(directory / "model.safetensors").keys()
    assert Trained(model.config).mlm_head(jax.random.key(0)) == {}


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("modernbert")])
def test_a_modernbert_is_written_in_both_spellings(case, exported):
    """transformers 4 falls back to other bases without the old keys; servers in Rust read one spelling or the other."""
    model, directory = exported(case)
    after, config = fields_of(directory), model.config
    sliding = config.rotary_theta if config.sliding_rotary_theta is None else config.sliding_rotary_theta
    assert (after["global_rope_theta"], after["local_rope_theta"]) == (config.rotary_theta, sliding)
    assert {kind: group["rope_theta"] for kind, group in after["rope_parameters"].items()} == {
        "full_attention": config.rotary_theta, "sliding_attention": sliding,
    }  # fmt: skip
    assert after["layer_types"] == [f"{config.layer_type(n)}_attention" for n in range(config.num_layers)]
    every = after["global_attn_every_n_layers"]
    if case == "modernbert_masked_biased":
        assert every is None  # no number describes these layers, so version 4 has to fail
    else:
        assert [bool(n % every) for n in range(config.num_layers)] == [kind == "sliding" for kind in config.layer_types]
    assert after["norm_eps"] == after["layer_norm_eps"] == config.layer_norm_epsilon
    assert {name: after[f"{name}_token_id"] for name in ("pad", "cls", "sep", "bos", "eos")} == {
        "pad": 0, "cls": 2, "sep": 3, "bos": 2, "eos": 3,
    }  # fmt: skip


NEW = {"rope_parameters": {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": 3e4}}}
FLAT: dict[str, Any] = {"rope_theta": 5e4, "rope_type": "default"}
OLDER = {"transformers_version": "4.57.1"}
OLD = {"rope_parameters": "absent", "layer_types": "absent"}


@pytest.mark.parametrize(
    ("fields", "bases"),
    [
        (NEW, (5e4, 3e4)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e4}}}, (5e4, 10_000.0)),
        ({"rope_parameters": {"sliding_attention": {"rope_theta": 3e4}}}, (160_000.0, 3e4)),
        (NEW | {"global_rope_theta": 5e4, "local_rope_theta": 3e4}, (5e4, 3e4)),
        (OLD | {"global_rope_theta": 5e4, "local_rope_theta": 3e4}, (5e4, 3e4)),
        (OLD, (160_000.0, 10_000.0)),
        (OLD | {"local_rope_theta": None}, (160_000.0, None)),
        (OLD | {"local_rope_theta": -1, "global_rope_theta": 5e4}, (5e4, None)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {"rope_theta": None}}}, (5e4, None)),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e4}, "sliding_attention": None}}, (5e4, 10_000.0)),
        ({"rope_parameters": {}, "rope_scaling": None}, (160_000.0, 10_000.0)),
        (OLD | {"rope_scaling": {"rope_type": "default", "rope_theta": 5e4}}, (5e4, 5e4)),
        ({"rope_parameters": FLAT, "global_rope_theta": 5e4, "local_rope_theta": 3e4}, (5e4, 3e4)),
        ({"rope_parameters": FLAT | NEW["rope_parameters"]}, (5e4, 3e4)),
        ({"rope_parameters": {"rope_type": "default"}}, (160_000.0, 10_000.0)),
        (OLD | {"global_rope_theta": 1e4, "local_rope_theta": 1e4}, (1e4, 1e4)),
        (OLD | {"global_rope_theta": 1e4}, (1e4, 1e4)),
    ],
)
def test_rotary_bases_are_read_in_either_spelling(fields, bases):
    config = config_from_json(changed_fields("modernbert_masked", **fields), "config.json")
    assert (config.rotary_theta, config.sliding_rotary_theta, config.layer_types) == (*bases, LAYERS)


def test_keys_of_a_modernbert_that_transformers_does_not_use_are_not_compared():
    """Early versions of transformers 5 wrote the default of the older key, and published files have two keys for the epsilon."""
    types = ["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    fields: dict[str, Any] = {"layer_types": types, "global_attn_every_n_layers": 3, "transformers_version": "5.0.0"}
    config = config_from_json(changed_fields("modernbert_masked", **fields), "c.json")
    assert config.layer_types == ("full", "full", "sliding", "full", "sliding")
    for version in ("4.57.1", "absent", None):
        with pytest.raises(UserError, match="layer_types and global_attn_every_n_layers=3 contradict each other"):
            config_from_json(changed_fields("modernbert_masked", **fields | {"transformers_version": version}), "c.json")
    for norm_eps, epsilon in ((1e-6, 1e-6), ("absent", 1e-5)):
        config = config_from_json(changed_fields("modernbert_masked", norm_eps=norm_eps, layer_norm_eps=1e-12), "c.json")
        assert config.layer_norm_epsilon == epsilon
    config = config_from_json(
        changed_fields("modernbert_masked", hidden_activation="silu", architectures=["ModernBertModel"]), "c.json"
    )
    assert config.activation == "silu"


def of_layers(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {f"{kind}_attention": parameters}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (of_layers("full", rope_type="yarn"), "rope_type='yarn' in rope_parameters.full_attention cannot be represented"),
        (of_layers("full", rope_theta=-1), "rope_parameters.full_attention.rope_theta=-1 must be a positive number"),
        (of_layers("sliding", rope_type="yarn"), "rope_type='yarn' in rope_parameters.sliding_attention cannot be represented"),
        (of_layers("sliding", rope_theta=-2), "rope_parameters.sliding_attention.rope_theta=-2 must be a positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_type='linear' in rope_scaling cannot be represented"),
        ({"rope_scaling": {"rope_theta": 9.0}}, "rope_parameters.full_attention=777.0 and rope_scaling=9.0 contradict"),
        ({"global_rope_theta": 9.0}, "rope_parameters.full_attention=777.0 and global_rope_theta=9.0 contradict"),
        ({"local_rope_theta": 9.0}, "rope_parameters.sliding_attention=33.0 and local_rope_theta=9.0 contradict"),
        ({"global_rope_theta": "x"}, "global_rope_theta='x' must be a positive number"),
        ({"local_rope_theta": "x"}, "local_rope_theta='x' must be a positive number"),
    ],
    ids=str,
)
def test_a_wrong_rotary_base_is_named_with_its_file_and_layers(tmp_path, fields, says):
    directory = changed("modernbert_masked", tmp_path / "m", **fields)
    with pytest.raises(UserError) as caught:
        import_model(directory)
    assert str(caught.value).startswith(f"{directory / 'config.json'}: {says}")


@pytest.mark.parametrize(
    ("case", "fields", "says"),
    [
        ("modernbert_masked", {"rope_parameters": {"rope_theta": 1e4}}, "must have the two groups full_attention and"),
        (
            "modernbert_masked",
            {"rope_parameters": FLAT, "global_rope_theta": 9.0, "local_rope_theta": 3e4},
            r"global_rope_theta=9\.0 and rope_parameters=50000\.0 contradict each other",
        ),
        (
            "modernbert_masked",
            {"rope_parameters": FLAT | {"sliding_attention": {"rope_type": "default"}}, "global_rope_theta": 5e4},
            r"must have .* full_attention and sliding_attention; write the rope_theta of these layers into each group",
        ),
        ("modernbert_masked", {"rope_parameters": FLAT | {"other": 1}}, "must have the two groups full_attention and"),
        ("modernbert_masked", {"local_rope_theta": None}, "local_rope_theta=777.0 contradict each other"),
        ("modernbert_masked", {"layer_types": ["full_attention"]}, "layer_types names 1 layer, but num_hidden_layers=5"),
        ("modernbert_masked", {"layer_types": ["linear_attention"] * 5}, "must be a list of full_attention and"),
        ("modernbert_masked", OLDER | {"global_attn_every_n_layers": 2}, "types and global_attn_every_n_layers=2 contradict"),
        ("modernbert_masked", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers=0 must be a whole number from 1"),
        ("modernbert_masked", {"local_attention": 6.5}, "local_attention=6.5 must be a whole number"),
        ("modernbert_masked", {"local_attention": -1}, "local_attention=-1 must be a whole number from 0"),
        ("modernbert_masked", {"local_attention": 0}, "model.sliding_radius=0 a token sees no other token"),
        ("modernbert_masked", {"sliding_window": 6}, "sliding_window=6 and local_attention=6 contradict each other"),
        ("modernbert_masked", {"classifier_activation": "relu"}, "='relu' and hidden_activation='gelu' cannot be represented"),
        ("modernbert_masked", {"hidden_activation": "relu"}, "classifier_activation='gelu' and hidden_activation='relu' cannot"),
        ("modernbert_masked", {"hidden_activation": "tanh"}, "hidden_activation='tanh' cannot be represented; known: gelu"),
        ("modernbert_masked", {"classifier_pooling": "max"}, "classifier_pooling='max' cannot be represented; known: cls, mean"),
        ("modernbert_masked", {"norm_bias": 1}, "norm_bias=1 must be true or false"),
        ("modernbert_masked", {"hidden_size": "absent"}, "hidden_size is missing, so the shape of the model is unknown"),
        ("modernbert_masked", {"model_type": "modernbert-decoder"}, "known: bert, modernbert, eurobert, nomic_bert"),
        ("modernbert_masked", {"norm_bias": True}, "missing: model.embeddings.norm.bias"),
        ("eurobert_masked", {"rope_parameters": {"rope_theta": 9.0, "rope_type": "llama3"}}, "rope_type='llama3' in"),
        ("eurobert_masked", {"rope_theta": 9.0}, r"rope_parameters=555\.0 and rope_theta=9\.0 contradict each other"),
        ("eurobert_masked", {"rope_scaling": {"rope_theta": 9.0}}, r"rope_parameters=555\.0 and rope_scaling=9\.0 contradict"),
        ("eurobert_masked", {"num_key_value_heads": 2}, "num_heads=3 is not divisible by model.num_key_value_heads=2"),
        ("eurobert_masked", {"head_dim": 8}, "head_dim=8 cannot be represented; it must be 4, which is hidden_size"),
        ("eurobert_sequence", {"clf_pooling": "mean"}, "classifier_pooling='late' and clf_pooling='mean' contradict"),
        ("nomic_bert_masked", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5 in"),
        ("nomic_bert_masked", {"n_layer": 3}, "num_hidden_layers=2 and n_layer=3 contradict each other; correct one"),
        ("nomic_bert_masked", {"rotary_emb_base": 9}, r"rope_parameters=321\.0 and rope_theta=9\.0 contradict each other"),
        ("nomic_bert_masked", {"rotary_emb_fraction": 0.5}, "rotary_emb_fraction=0.5 cannot be .*; only rotary_emb_fraction=1.0"),
        ("nomic_bert_masked", {"qkv_proj_bias": True}, "qkv_proj_bias=True cannot be .*; only qkv_proj_bias=False is"),
        ("nomic_bert_masked", {"num_experts": 8}, "num_experts=8 cannot be represented; only num_experts=0 is supported"),
        ("nomic_bert_masked", {"rotary_scaling_factor": 2}, "rotary_scaling_factor=2 cannot be .*; only .*=None is supported"),
        ("nomic_bert_masked", {"hidden_size": "absent", "n_embd": 12}, "activation_function is missing, and its default cannot"),
    ],
)  # fmt: skip
def test_unsupported_and_contradictory_configurations_are_refused_in_one_sentence(tmp_path, case, fields, says):
    with pytest.raises(UserError, match=says) as caught:
        import_model(changed(case, tmp_path / "m", **fields))
    assert "\n" not in str(caught.value)


NOMICS_OWN = {
    "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 10, "n_positions": 40, "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 321, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "prenorm": False, "parallel_block": False, "parallel_block_tied_norm": False, "causal": False,
    "use_rms_norm": False, "resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "use_flash_attn": True,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}  # fmt: skip
"""The keys of the released files, with the sizes of the case."""
NO_NEW_KEYS = dict.fromkeys(
    (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
        "layer_norm_eps", "rope_parameters", "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "head_dim",
    ),
    "absent",
)  # fmt: skip


@pytest.mark.parametrize(
    "older",
    [NO_NEW_KEYS, {}, {"n_positions": 8_192}, {"use_rms_norm": None, "is_decoder": None}],
    ids=["old", "both", "both, longer", "null"],
)
def test_a_nomic_bert_is_read_with_the_keys_of_its_own_code(tmp_path, older):
    """Released files with both keys have an `n_positions` of 8,192, and transformers reads `max_position_embeddings`, 2,048."""
    model = import_model(changed("nomic_bert_masked", tmp_path / "m", **NOMICS_OWN | older))
    usual = imported("nomic_bert_masked")
    assert model.config == usual.config
    jax.tree.map(np.testing.assert_array_equal, model.params, usual.params)
    export_model(tmp_path / "again", model)
    after = fields_of(tmp_path / "again")
    assert not after.keys() & (NOMICS_OWN.keys() - {"use_flash_attn", "parallel_block_tied_norm"})
    assert {name: after[name] for name in fields_of(GOLDEN / "nomic_bert_masked") if name in NO_NEW_KEYS} == {
        name: value for name, value in fields_of(GOLDEN / "nomic_bert_masked").items() if name in NO_NEW_KEYS
    }


def test_missing_nomic_keys_have_the_defaults_of_its_code():
    without = dict.fromkeys(("n_positions", "resid_pdrop", "attn_pdrop", "rotary_emb_base", "layer_norm_epsilon"), "absent")
    config = config_from_json(changed_fields("nomic_bert_masked", **NOMICS_OWN | NO_NEW_KEYS | without), "config.json")
    assert (config.max_position, config.hidden_dropout, config.attention_dropout) == (1_024, 0.1, 0.1)
    assert (config.rotary_theta, config.layer_norm_epsilon) == (10_000.0, 1e-5)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "eurobert", "nomic_bert"])
def test_missing_keys_have_the_defaults_of_transformers(kind):
    fields = json.loads((GOLDEN / "defaults.json").read_text())[kind]
    whole = config_from_json(fields, "it")
    required = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "model_type"}
    required |= {"max_position_embeddings"} if kind == "bert" else set()
    for name in fields.keys() - required:
        assert config_from_json({key: value for key, value in fields.items() if key != name}, "it") == whole, name
    assert config_from_json({name: fields[name] for name in required}, "it") == whole
    for name in required - {"model_type"}:
        with pytest.raises(UserError, match=f"it.*{name} is missing"):
            config_from_json({key: value for key, value in fields.items() if key != name}, "it")


def test_a_nomic_head_without_biases_gets_zero_biases(tmp_path):
    import safetensors.numpy

    fields = NOMICS_OWN | NO_NEW_KEYS | {"architectures": ["NomicBertForPreTraining"]}
    directory = changed("nomic_bert_masked", tmp_path / "m", **fields)
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    left = ("cls.predictions.transform.dense.bias", "cls.predictions.bias")
    stored = {name.replace("nomic_bert.", "bert."): x for name, x in tensors.items() if name not in left}
    stored["cls.predictions.decoder.weight"] = tensors["nomic_bert.embeddings.word_embeddings.weight"].copy()
    safetensors.numpy.save_file(stored, directory / "model.safetensors")
    model = import_model(directory)
    assert model.parts == ("mlm_head",)
    head, usual = model.params["mlm_head"], imported("nomic_bert_masked").params["mlm_head"]
    np.testing.assert_array_equal(head["transform"]["kernel"], usual["transform"]["kernel"])
    assert not head["transform"]["bias"].any()
    assert not head["bias"].any()


@pytest.mark.parametrize(
    ("name", "parameters", "bare"),
    [
        ("modernbert-base", 149_655_232, 149_014_272),
        ("modernbert-large", 395_881_664, 394_781_696),
        ("mmbert-base", 307_786_240, None),
        ("mmbert-small", 140_897_536, None),
    ],
)
def test_published_sizes_have_their_parameter_counts(name, parameters, bare):
    """The numbers are those of `ModernBertForMaskedLM`, counting the tied table once."""
    config = ModelConfig(**published(name))
    assert export_family(config).model_type == "modernbert"
    sizes: dict[str, int] = {}
    encoder: dict[str, int] = {}
    for row in rows(config):
        for tensor in their_names(row, config):
            if row.subtree in ("embeddings", "encoder", "mlm_head"):
                sizes[tensor] = int(np.prod(their_shape(row, config)))
            if row.subtree in ("embeddings", "encoder"):
                encoder[tensor] = sizes[tensor]
    assert sum(sizes.values()) == parameters
    assert bare is None or sum(encoder.values()) == bare


@pytest.mark.parametrize(
    ("name", "changes", "family"),
    [
        ("modernbert-base", {}, "modernbert"),
        ("ettin-17m", {}, "modernbert"),
        ("modernbert-base", {"norm_bias": True, "attention_bias": True, "layer_types": ("sliding",) * 22}, "modernbert"),
        ("modernbert-base", {"attention_output_dropout": 0.1, "hidden_dropout": 0.0, "attention_dropout": 0.0}, "modernbert"),
        ("modernbert-base", {"final_norm": False}, "bert_jax"),
        ("modernbert-base", {"gate": "second"}, "bert_jax"),
        ("modernbert-base", {"rotary_pairing": "interleaved"}, "bert_jax"),
        ("modernbert-base", {"direction": "left_to_right"}, "bert_jax"),
        ("modernbert-base", {"positions": "learned"}, "bert_jax"),
        ("eurobert-210m", {}, "eurobert"),
        ("eurobert-610m", {"num_key_value_heads": 0, "norm_bias": True}, "eurobert"),
        ("eurobert-610m", {"decoder_bias": True}, "bert_jax"),
        ("nomic-bert", {}, "nomic_bert"),
        ("nomic-bert", {"norm_scale": False}, "bert_jax"),
        ("base", {}, "bert"),
        ("base", {"norm_placement": "pre"}, "bert_jax"),
        ("base", {"embedding_dropout": 0.3}, "bert"),
    ],
)
def test_every_setting_survives_export_in_the_family_that_supports_it(name, changes, family):
    config = ModelConfig(**published(name) | changes)
    assert export_family(config).model_type == family
    fields = config_to_json(config, architecture="X", ids={"pad": 0, "cls": 1, "sep": 2, "mask": 3})
    written = json.loads(json.dumps(fields | {"bert_jax": own_fields(config, None)}))
    assert config_from_json(written, "c.json") == config


@pytest.mark.parametrize("case", ["modernbert_masked", "eurobert_masked", "nomic_bert_masked"])
def test_the_names_of_a_module_around_the_model_are_read_without_its_prefix(case, tmp_path):
    import safetensors.numpy

    directory = changed(case, tmp_path / "m")
    tensors = safetensors.numpy.load_file(directory / "model.safetensors")
    safetensors.numpy.save_file({f"module.{name}": x for name, x in tensors.items()}, directory / "model.safetensors")
    model = import_model(directory)
    assert "the prefix 'module.' was removed from names" in model.notes
    jax.tree.map(np.testing.assert_array_equal, model.params, imported(case).params)


def test_a_new_modernbert_classifier_starts_with_the_layers_before_its_decoder(tmp_path):
    """As in transformers, where both are called `head`."""
    head = SequenceHead(labels=("no", "yes"))
    model = imported("modernbert_masked", new=NewParts(["sequence_head"], head))
    for mine, of_words in (("dense", "transform"), ("layer_norm", "layer_norm")):
        np.testing.assert_equal(model.params["pooler"][mine], model.params["mlm_head"][of_words])
    export_model(tmp_path / "both", model)
    assert fields_of(tmp_path / "both")["architectures"] == ["ModernBertForSequenceClassification"]
    back = import_model(tmp_path / "both")
    assert back.parts == ("pooler", "mlm_head", "sequence_head")
    jax.tree.map(np.testing.assert_array_equal, back.params, model.params)


def test_a_head_without_a_class_in_its_family_is_exported_under_our_own_names(tmp_path):
    model = imported("eurobert_encoder", new=NewParts(["span_head"], SpanHead()))
    export_model(tmp_path / "m", model)
    assert fields_of(tmp_path / "m")["architectures"] == ["EuroBertModel"]
    assert fields_of(tmp_path / "m")["bert_jax"]["head"]["kind"] == "span"
    back = import_model(tmp_path / "m")
    assert (back.head, back.config) == (model.head, model.config)
    jax.tree.map(np.testing.assert_array_equal, back.params, model.params)


def test_a_transformer_of_no_family_survives_export_under_our_own_names(tmp_path):
    model = imported("modernbert_masked")
    config = ModelConfig(**{**vars(model.config), "final_norm": False, "gate": "second"})
    encoder = {name: tree for name, tree in model.params["encoder"].items() if name != "final_layer_norm"}
    other = Model(params={**model.params, "encoder": encoder}, config=config, tokenizer=model.tokenizer)
    assert {path.split("/")[0] for path in our_shapes(config)} >= {"embeddings", "encoder", "mlm_head"}
    export_model(tmp_path / "m", other)
    assert fields_of(tmp_path / "m")["model_type"] == "bert_jax"
    back = import_model(tmp_path / "m")
    assert back.config == config
    jax.tree.map(np.testing.assert_array_equal, back.params, other.params)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_an_encoder_with_a_pooling_is_exported_for_sentence_transformers(tmp_path, pooling, capsys):
    source = changed("modernbert_encoder", tmp_path / "m")
    convert.main([f"--from={source}", f"--to={tmp_path / 'st'}", f"--pooling={pooling}", "--normalise"])
    assert f"vectors of texts: {pooling}, scaled to length 1" in capsys.readouterr().out
    kinds = [(module["path"], module["type"]) for module in json.loads((tmp_path / "st" / "modules.json").read_text())]
    names = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    assert kinds == [(path, f"sentence_transformers.models.{kind}") for path, kind in names.items()]
    settings = json.loads((tmp_path / "st" / "1_Pooling" / "config.json").read_text())
    assert (settings["pooling_mode"], settings["word_embedding_dimension"]) == (pooling, 12)
    assert {name for name, value in settings.items() if value is True} - {"include_prompt"} == {
        {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[pooling]
    }
    assert settings["include_prompt"] is True
    limits = json.loads((tmp_path / "st" / "sentence_bert_config.json").read_text())
    assert limits == {"max_seq_length": 40, "do_lower_case": False}
    names = json.loads((tmp_path / "st" / "tokenizer_config.json").read_text())["model_input_names"]
    assert names == ["input_ids", "attention_mask"]  # no token types, which the model does not accept
    export_model(tmp_path / "again", import_model(tmp_path / "st"))
    for file in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "st" / file).read_bytes()
    assert not any("neither read nor copied" in note for note in import_model(tmp_path / "st").notes)


def test_positions_bases_and_window_are_changed_by_flags(tmp_path, capsys):
    source = changed("modernbert_masked", tmp_path / "m")
    flags = ["--max-position=64", "--rope-theta=9000,20", "--window=4", "--layers=3"]
    convert.main([f"--from={source}", f"--to={tmp_path / 'to'}", *flags])
    told = capsys.readouterr().out
    for line in (
        "positions: 40 -> 64 tokens", "base of rotary positions: 9,000 in full layers, 20 in sliding layers",
        "window of sliding layers: 6 -> 4 tokens",
    ):  # fmt: skip
        assert line in told
    config = import_model(tmp_path / "to").config
    assert (config.max_position, config.rotary_theta, config.sliding_rotary_theta) == (64, 9_000.0, 20.0)
    assert (config.sliding_radius, config.layer_types) == (2, LAYERS[:3])
    convert.main([f"--from={source}", f"--to={tmp_path / 'full'}", "--rope-theta=9000"])
    config = import_model(tmp_path / "full").config
    assert (config.rotary_theta, config.sliding_rotary_theta) == (9_000.0, 33.0)


@pytest.mark.parametrize(
    ("case", "fields", "flags"),
    [
        ("modernbert_masked", OLD | {"rope_scaling": {"rope_theta": 5e4}}, ["--rope-theta=9000"]),
        ("modernbert_masked", OLD | {"global_rope_theta": 5e4, "local_rope_theta": -1}, ["--rope-theta=9000"]),
        ("modernbert_masked", {"sliding_window": 3}, ["--window=4"]),
        ("modernbert_masked", {"sliding_window": None}, ["--window=4"]),
        ("eurobert_masked", {"rope_parameters": "absent", "rope_scaling": {"rope_theta": 555.0}}, ["--rope-theta=9000"]),
    ],
)
def test_a_changed_setting_replaces_every_spelling_of_it(tmp_path, case, fields, flags):
    source = changed(case, tmp_path / "m", **fields)
    before = import_model(source).config
    convert.main([f"--from={source}", f"--to={tmp_path / 'to'}", *flags])
    after = import_model(tmp_path / "to").config
    base = 9_000.0 if "theta" in flags[0] else before.rotary_theta
    assert (after.rotary_theta, after.sliding_radius) == (base, before.sliding_radius if "theta" in flags[0] else 2)
    if "sliding" in before.layer_types:
        assert after.sliding_rotary_theta == (before.sliding_rotary_theta or before.rotary_theta)


def test_the_smallest_window_has_a_token_on_each_side():
    model = imported("modernbert_masked")
    assert with_window(model, 2).config.sliding_radius == 1
    for tokens in (0, 1, 3):
        with pytest.raises(UserError, match=f"a window of {tokens} tokens? cannot be divided into two equal sides"):
            with_window(model, tokens)


def test_ids_of_special_tokens_are_those_of_the_vocabulary(tmp_path):
    export_model(tmp_path / "again", import_model(changed("modernbert_masked", tmp_path / "m", cls_token_id=7, sep_token_id=8)))
    assert [fields_of(tmp_path / "again")[f"{name}_token_id"] for name in ("cls", "sep")] == [2, 3]


@pytest.mark.parametrize(
    ("sliding", "every"), [((), 1), ((1, 2, 3, 4), 5), ((1, 2, 4), 3), ((1, 3), 2), ((0, 1, 2, 3, 4), None), ((2, 3), None)]
)
def test_layers_are_also_written_as_the_number_of_older_files_if_one_describes_them(sliding, every):
    types = tuple("sliding" if layer in sliding else "full" for layer in range(5))
    config = ModelConfig(**published("modernbert-base") | {"num_layers": 5, "layer_types": types})
    fields = config_to_json(config, architecture="X", ids={})
    assert fields["global_attn_every_n_layers"] == every
    assert fields["layer_types"] == [f"{name}_attention" for name in types]


def test_keys_may_be_shared_by_all_heads(tmp_path):
    fields = fields_of(GOLDEN / "eurobert_masked")
    assert config_from_json(fields | {"num_key_value_heads": 1}, "").key_value_heads == 1
    with pytest.raises(UserError, match="num_key_value_heads=0 must be a whole number from 1, or null"):
        config_from_json(fields | {"num_key_value_heads": 0}, "")
    for theta in (0, float("nan"), 10**400):
        with pytest.raises(UserError, match=f"rope_theta={theta} must be a positive number"):
            config_from_json(fields | {"rope_parameters": None, "rope_theta": theta}, "")


@pytest.mark.parametrize(
    ("case", "flag", "says"),
    [
        ("eurobert_encoder", "--window=4", "--window is for sliding layers, but .* has none"),
        ("modernbert_masked", "--window=5", "a window of 5 tokens cannot be divided into two equal sides; give an even number"),
        ("modernbert_masked", "--rope-theta=1,2,3", "'1,2,3' is not one or two bases"),
        ("modernbert_masked", "--rope-theta=0.5", "'0.5' is not one or two bases"),
        ("modernbert_masked", "--keep-layers=1,2", "layer 0 .* cannot be removed, because .* before attention; keep layer 0"),
        ("modernbert_sequence", "--pooling=mean", "because its sequence_head returns labels; .* with --drop"),
        ("modernbert_masked", "--pooling=max", "--pooling=max is unknown"),
    ],
)
def test_an_impossible_change_is_refused_in_one_sentence(tmp_path, case, flag, says):
    with pytest.raises(UserError, match=says):
        convert.main([f"--from={changed(case, tmp_path / 'm')}", f"--to={tmp_path / 'to'}", flag])


def test_parameter_counts_leave_out_the_unused_norm(tmp_path, capsys):
    convert.main([f"--from={changed('modernbert_encoder', tmp_path / 'm')}", f"--to={tmp_path / 'to'}"])
    tensors = imported("modernbert_encoder")
    stored = sum(
        int(np.prod(their_shape(row, tensors.config))) * len(their_names(row, tensors.config)) // row.split[1]
        for row in rows(tensors.config)
        if row.subtree in ("embeddings", "encoder")
    )
    assert f"{stored:,} parameters" in capsys.readouterr().out
    export_model(tmp_path / "padded", imported("modernbert_encoder", vocab_multiple=64))
    for export in ("to", "padded"):
        card = (tmp_path / export / "README.md").read_text()
        assert f"A model of bert_jax with {stored:,} parameters" in card
        assert '\ntags: ["bert_jax", "modernbert"]\n' in card

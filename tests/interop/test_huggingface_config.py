from __future__ import annotations

import dataclasses
import json
import pathlib

import pytest

from bert_jax.errors import UserError
from bert_jax.interface.named import read_files_again
from bert_jax.interop.families.bert import BERT
from bert_jax.interop.huggingface_config import (
    ARCHITECTURES,
    SETTINGS,
    architecture_from_json,
    architecture_name,
    config_from_json,
    config_to_json,
    head_from_json,
    own_fields,
    untrained_parts,
)
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead

CONFIG = ModelConfig(
    vocab_size=99, hidden_size=24, num_layers=3, num_heads=4, intermediate_size=40, max_position=17, type_vocab_size=3,
    hidden_dropout=0.25, attention_dropout=0.05, layer_norm_epsilon=1e-6, initializer_range=0.03,
)  # fmt: skip


def as_json(config: ModelConfig = CONFIG) -> dict:
    return config_to_json(config, architecture="BertForPreTraining", ids={"pad": 0})


@pytest.mark.parametrize("fields", [{"activation": name} for name in ("gelu", "gelu_tanh", "relu")] + [{"tied_decoder": False}])
def test_a_configuration_survives_a_round_trip(fields):
    config = dataclasses.replace(CONFIG, **fields)
    assert config_from_json(as_json(config), "config.json") == config


def test_each_dropout_keeps_its_name_in_transformers():
    """In `BertConfig`, hidden_dropout_prob is the rate of embeddings and residuals, attention_probs_dropout_prob of attention."""
    stated = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.05}
    assert {name: as_json()[name] for name in stated} == stated
    read = config_from_json(as_json() | {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}, "config.json")
    assert (read.hidden_dropout, read.attention_dropout) == (0.3, 0.2)


def test_gelu_is_the_exact_form_here_and_in_transformers():
    assert as_json()["hidden_act"] == "gelu"
    assert as_json(dataclasses.replace(CONFIG, activation="gelu_tanh"))["hidden_act"] == "gelu_new"
    assert config_from_json(as_json() | {"hidden_act": "gelu_pytorch_tanh"}, "").activation == "gelu_tanh"


def test_a_left_to_right_model_is_a_decoder_in_transformers():
    config = dataclasses.replace(CONFIG, direction="left_to_right")
    assert as_json(config)["is_decoder"] is True
    assert "is_decoder" not in as_json()
    assert config_from_json(as_json(config), "") == config


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_positions_that_are_not_learned_are_stored_in_our_own_fields(positions: str):
    config = dataclasses.replace(CONFIG, positions=positions)
    assert own_fields(CONFIG, None) == {}
    assert config_from_json(as_json(config) | {"bert_jax": own_fields(config, None)}, "") == config
    with pytest.raises(UserError, match='c: "positions" under "bert_jax" is \'sideways\'; known: learned, sinusoidal, none'):
        config_from_json(as_json() | {"bert_jax": {"positions": "sideways"}}, "c")


@pytest.mark.parametrize("field", ["positions", "norm", "activation"])
def test_a_setting_in_a_user_file_is_read_only_with_the_same_file(field: str, tmp_path: pathlib.Path):
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def scores(self, scores, tokens, layer): return scores\n")
    config = dataclasses.replace(CONFIG, **{field: f"{file}:Mine"})
    fields = as_json(config) | {"model_type": "bert_jax", "bert_jax": own_fields(config, None)}
    assert fields["bert_jax"][f"{field}_file"]["source"] == file.read_text()
    assert config_from_json(fields, "c.json") == config

    moved = {field: "elsewhere/mine.py:Mine"} if field == "positions" else {"model": {field: "elsewhere/mine.py:Mine"}}
    assert config_from_json(fields | {"bert_jax": fields["bert_jax"] | moved}, "c.json") == config  # by its absolute path
    file.write_text(file.read_text() + "# changed\n")
    read_files_again()
    with pytest.raises(UserError, match=rf"mine\.py:Mine computes the {field} of this model, but the file is missing, or it"):
        config_from_json(fields, "c.json")
    del fields["bert_jax"][f"{field}_file"]
    with pytest.raises(UserError, match=f'c.json: {field}=.*mine.py:Mine, but "{field}_file" is not under "bert_jax"; export'):
        config_from_json(fields, "c.json")


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ([], r'"model" under "bert_jax" is \[\], not an object of settings; export the model again'),
        ("x" * 200, f'"model" under "bert_jax" is {"x" * 100}, not an object'),
        ({"num_layers": 3, "mine": 1}, '"model" under "bert_jax" is .*, not an object of settings'),
        ({"num_layers": "3"}, "\"num_layers\" under \"bert_jax\", \"model\" is '3'; export the model again"),
        ({"num_layers": True}, '"num_layers" under "bert_jax", "model" is True'),
        ({"final_norm": 1}, '"final_norm" under "bert_jax", "model" is 1'),
        ({"rotary_theta": True}, '"rotary_theta" under'),
        ({"embedding_dropout": "0.1"}, '"embedding_dropout" under'),
        ({"layer_types": "full"}, '"layer_types" under'),
    ],
    ids=str,
)
def test_recorded_settings_of_another_type_are_refused(stated, says):
    with pytest.raises(UserError, match=f"^c.json: {says}"):
        config_from_json(as_json() | {"bert_jax": {"model": stated}}, "c.json")


@pytest.mark.parametrize(
    "stated",
    [
        {name: getattr(CONFIG, name) for name in SETTINGS},
        {"embedding_dropout": 0.3, "final_norm": True, "norm_placement": "pre", "rotary_theta": 5},
        {"layer_types": ["full", "full", "full"]},
    ],
    ids=["all", "some", "a list"],
)
def test_recorded_settings_take_precedence_over_the_file(stated):
    read = config_from_json(as_json() | {"bert_jax": {"model": stated}}, "")
    assert read == dataclasses.replace(CONFIG, **{n: tuple(x) if isinstance(x, list) else x for n, x in stated.items()})


def test_an_unknown_model_is_refused_with_the_file():
    for read in (architecture_from_json, head_from_json):
        with pytest.raises(UserError, match=r"^c\.json: model_type='gpt2' cannot be represented"):
            read({"model_type": "gpt2"}, "BertModel", "c.json")


def test_execution_settings_are_not_exported():
    config = dataclasses.replace(CONFIG, dtype="bfloat16", remat="full", scan_layers=True, vocab_multiple=128)
    assert config_from_json(as_json(config), "") == CONFIG


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position_embedding_type", "relative_key"),
        ("is_decoder", "yes"),
        ("add_cross_attention", True),
        ("tie_word_embeddings", "yes"),
        ("is_encoder_decoder", True),
        ("model_type", "roberta"),
        ("pruned_heads", {"0": [1]}),
        ("hidden_act", "tanh"),
        ("quantization_config", {"bits": 8}),
    ],
)
def test_settings_without_a_representation_are_refused_by_name(field, value):
    with pytest.raises(UserError, match=rf"DIR/config\.json: {field}="):
        config_from_json(as_json() | {field: value}, "DIR/config.json")


def test_fields_that_later_versions_of_the_format_leave_out_default_to_a_plain_bert():
    fields = {name: value for name, value in as_json().items() if name not in BERT.fixed}
    assert config_from_json(fields, "") == CONFIG
    nulls = dict.fromkeys(("position_embedding_type", "add_cross_attention", "is_encoder_decoder", "is_decoder"))
    assert config_from_json(fields | nulls, "") == CONFIG


def test_missing_wrong_and_impossible_shapes_name_file_and_field():
    fields = as_json()
    with pytest.raises(UserError, match=r"c\.json: num_hidden_layers is missing"):
        config_from_json({name: value for name, value in fields.items() if name != "num_hidden_layers"}, "c.json")
    for value in ("24", 24.0, True, None, 10**400):
        with pytest.raises(UserError, match=r"c\.json: hidden_size=.* must be a whole number"):
            config_from_json(fields | {"hidden_size": value}, "c.json")
    for epsilon in (float("nan"), float("inf"), "1e-12", None, 10**400):
        with pytest.raises(UserError, match=r"c\.json: layer_norm_eps=.* must be a finite number"):
            config_from_json(fields | {"layer_norm_eps": epsilon}, "c.json")
    with pytest.raises(UserError, match=r"c\.json: .*hidden_size=24 is not divisible"):
        config_from_json(fields | {"num_attention_heads": 5}, "c.json")


@pytest.mark.parametrize("name", ["gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu"])
def test_an_activation_keeps_its_spelling(name):
    config = config_from_json(as_json() | {"hidden_act": name}, "")
    again = config_to_json(config, architecture="BertModel", ids={"pad": 0}, other_fields={"hidden_act": name})
    assert again["hidden_act"] == name
    other = dataclasses.replace(config, activation="relu" if name != "relu" else "gelu")  # a changed model is a different one
    again = config_to_json(other, architecture="BertModel", ids={"pad": 0}, other_fields={"hidden_act": name})
    assert again["hidden_act"] == other.activation


def test_carried_fields_never_replace_the_models_own():
    fields = config_to_json(CONFIG, architecture="BertModel", ids={"pad": 3}, other_fields={"hidden_size": 1, "mine": [1]})
    assert (fields["hidden_size"], fields["pad_token_id"], fields["mine"]) == (24, 3, [1])


HEADS = [
    SequenceHead(labels=("no", "yes", "perhaps"), dropout=0.3),
    SequenceHead(labels=("x",)),  # one class: not a regression, since the kind is stated
    SequenceHead(labels=("score",), problem="regression"),
    SequenceHead(labels=("a", "b"), problem="multi_label", dropout=0.0),
    TokenHead(labels=tuple(f"tag {i}" for i in range(12))),  # "10" sorts before "2"
    SpanHead(),
    ChoiceHead(dropout=0.2),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{head.problem}-{len(head.labels)}")
def test_a_head_survives_a_round_trip(head):
    architecture = architecture_name({head.subtree, "mlm_head"} | ({"pooler"} if head.reads_pooler else set()))
    assert head.subtree in ARCHITECTURES[architecture]
    fields = json.loads(json.dumps(config_to_json(CONFIG, architecture=architecture, ids={"pad": 0}, head=head)))
    assert architecture_from_json(fields, (), "") == architecture
    assert head_from_json(fields, architecture, "") == head


def sequence(**fields) -> TaskHead | None:
    return head_from_json(fields, "BertForSequenceClassification", "c.json")


def test_labels_are_read_by_id_in_any_order_and_type():
    expected = ("a", "b", "c")
    for by_id in ({"0": "a", "1": "b", "2": "c"}, {2: "c", 0: "a", 1: "b"}, {"2": "c", "1": "b", "0": "a"}):
        assert sequence(id2label=by_id).labels == expected
    assert sequence(id2label={"0": "a", "1": "b", "2": "c"}, label2id={"c": 2, "a": 0, "b": 1}).labels == expected
    assert sequence(id2label={"0": 1, "1": 2}).labels == ("1", "2")  # stars, for example


@pytest.mark.parametrize(
    "stated", [{"a": "0", "b": "1"}, {"LABEL_0": 0, "LABEL_1": 1}, {"a": 0}, {"b": 1, "c": 0}, {"other": "x"}, {}]
)
def test_label2id_is_ignored(stated):
    assert sequence(id2label={"0": "a", "1": "b"}, label2id=stated).labels == ("a", "b")


def test_given_labels_replace_those_of_the_file():
    for fields in ({}, {"id2label": {"0": "a", "2": "b"}}, {"id2label": {"0": "a", "1": "a"}}, {"label2id": 3, "id2label": 4}):
        assert head_from_json(fields, "BertForSequenceClassification", "", ["x", "y", "z"]).labels == ("x", "y", "z")


def test_missing_fields_have_the_defaults_of_transformers():
    assert sequence() == SequenceHead(labels=("LABEL_0", "LABEL_1"))
    assert sequence(num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert sequence(num_labels=1).problem == "regression"
    assert sequence(id2label={"0": "score"}, problem_type=None).problem == "regression"
    assert head_from_json({"id2label": {"0": "x"}}, "BertForTokenClassification", "").problem == "classification"
    assert head_from_json({"problem_type": "regression"}, "BertForTokenClassification", "").problem == "classification"
    for architecture in ("BertModel", "BertForPreTraining", "BertForMaskedLM", "BertForNextSentencePrediction"):
        assert head_from_json({"id2label": {"0": "x"}}, architecture, "") is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}}, "'a' has the id 1 in label2id, but 0 in id2label"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"b": "0"}}, "'b' has the id '0' in label2id, but 1 in id2label"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": ["a", "b"]}, "label2id=.* must be an object such as"),
        ({"id2label": {"0": "a", "1": None}}, "for the output 1, id2label has None, which is not a label; correct it, or `con"),
        ({"id2label": {"0": " ", "1": "b"}}, "for the output 0, id2label has ' ', which is not a label; correct"),
        ({"id2label": dict.fromkeys("012", "x")}, "id2label has the same label 'x' for the outputs 0, 1, 2; give"),
        ({"id2label": {"0": "same", "1": "same"}, "label2id": {"same": 1}}, "has the same label 'same' for the outputs 0, 1"),
        ({"num_labels": 1_000_001}, "num_labels=1000001 must be a whole number up to 1,000,000; copy"),
        ({"num_labels": -1}, "num_labels=-1 must be a whole number up to"),
        ({"id2label": {"0": "a", "2": "b"}}, r"the ids of id2label are \[0, 2\]; they must count 0, 1, 2"),
        ({"id2label": {"1": "a", "2": "b"}}, "they must count"),
        ({"id2label": ["a", "b"]}, "id2label=.* must be an object such as"),
        ({"id2label": {"no": 0}}, "must be an object such as"),
        *(({"id2label": {i: "a"}}, "must be an object such as") for i in (" 0 ", "0_0", "\N{ARABIC-INDIC DIGIT ZERO}")),
        ({"id2label": {"-1": "a", "0": "b"}}, r"the ids of id2label are \[-1, 0\]; they must count"),
        ({"id2label": {"0": "a", "00": "b"}}, r"the ids of id2label are \[0, 0\]; they must count"),
        ({"id2label": {}}, "needs labels"),
        ({"num_labels": 0}, "needs labels"),
        ({"num_labels": "2"}, "num_labels='2' must be a whole number"),
        ({"problem_type": "ranking"}, "problem_type='ranking' is unknown; known: single_label"),
        ({"classifier_dropout": "0.1"}, "classifier_dropout='0.1' must be a number or null"),
        ({"classifier_dropout": 1.5}, r"head\.dropout=1\.5 must be at least 0 and below 1"),
    ],
    ids=str,
)
def test_impossible_labels_are_refused_with_file_and_field(fields, said):
    with pytest.raises(UserError, match=rf"c\.json: .*{said}"):
        sequence(**fields)


def test_a_class_is_recognised_by_its_name_or_unambiguous_tensors():
    encoder = ["bert.embeddings.LayerNorm.weight", "bert.pooler.dense.bias"]
    words, sentences = "cls.predictions.bias", "cls.seq_relationship.bias"
    for tensors, expected in [
        (encoder, "BertModel"),
        (["embeddings.LayerNorm.weight"], "BertModel"),
        ([*encoder, words], "BertForMaskedLM"),
        ([*encoder, sentences], "BertForNextSentencePrediction"),
        ([*encoder, words, sentences], "BertForPreTraining"),
        ([*encoder, "qa_outputs.bias"], "BertForQuestionAnswering"),
    ]:
        for fields in ({}, {"architectures": None}, {"architectures": []}):
            assert architecture_from_json(fields, tensors, "") == expected
    assert architecture_from_json({"architectures": ["BertForMultipleChoice"]}, [*encoder, "classifier.bias"], "")
    with pytest.raises(UserError, match=r'c\.json has no "architectures", and a classifier can be a head for'):
        architecture_from_json({}, [*encoder, "classifier.bias"], "c.json")
    with pytest.raises(UserError, match=r"c\.json: architectures=\['GPT2LMHeadModel'\] is not a supported class"):
        architecture_from_json({"architectures": ["GPT2LMHeadModel"]}, encoder, "c.json")


def test_an_unknown_bert_class_has_the_common_parts_of_bert():
    encoder, words = ["bert.embeddings.LayerNorm.weight", "bert.pooler.dense.bias"], "cls.predictions.bias"
    own = {"architectures": ["MyBert"], "model_type": "bert"}
    assert architecture_from_json(own, [*encoder, "classifier.bias", "mine.bias"], "") == "BertModel"
    assert architecture_from_json(own, [*encoder, words], "") == "BertForMaskedLM"
    for named in (["BertForMaskedLM", "MyBert"], ["MyBert", "BertForMaskedLM"]):
        assert architecture_from_json(own | {"architectures": named}, encoder, "") == "BertForMaskedLM"


@pytest.mark.parametrize("named", ["BertModel", [3], ["BertModel", 3]])
def test_architectures_that_are_not_a_list_of_names_are_refused(named):
    with pytest.raises(UserError, match=r'c\.json: architectures=.* must be a list such as \["BertModel"\]'):
        architecture_from_json({"architectures": named}, (), "c.json")


def test_a_model_of_our_own_type_is_recognised_by_its_tensors():
    fields = {"architectures": ["BertForPreTraining"], "model_type": "bilm"}
    assert architecture_from_json(fields, ["cls.predictions.bias"], "") == "BertForMaskedLM"


@pytest.mark.parametrize("names", ["nsp_head", {"nsp_head": 1}, ["nsp_head", 3]])
def test_untrained_parts_that_are_not_a_list_of_names_are_refused(names):
    with pytest.raises(UserError, match=r'c\.json: "untrained" under "bert_jax" is .*, not a list of parts; export'):
        untrained_parts({"bert_jax": {"untrained": names}}, "c.json")
    assert untrained_parts({"bert_jax": {"untrained": ["nsp_head"]}}, "") == {"nsp_head"}
    assert untrained_parts({"bert_jax": "yes"}, "") == untrained_parts({}, "") == frozenset()


def test_a_head_without_a_transformers_class_is_stored_in_our_own_fields():
    plain = {"kind": "token", "pooling": "pooler", "layers": "last", "lstm": 0}
    head = TokenHead(labels=("O", "B"))
    assert own_fields(CONFIG, head) == {}
    bilm = dataclasses.replace(CONFIG, encoder="bilm", character_cnn=True, tied_decoder=False)
    assert own_fields(bilm, head) == {"character_cnn": True, "head": plain}
    assert own_fields(bilm, None) == {"character_cnn": True}
    assert own_fields(CONFIG, dataclasses.replace(head, lstm=3)) == {"head": plain | {"lstm": 3}}
    assert own_fields(CONFIG, dataclasses.replace(head, crf="free")) == {"head": plain | {"crf": "free"}}


def test_the_exported_class_is_the_smallest_with_all_trained_parts():
    for name, parts in ARCHITECTURES.items():
        assert architecture_name(parts, direction="left_to_right" if name == "BertLMHeadModel" else "both") == name
    assert architecture_name(["pooler"]) == "BertModel"
    assert architecture_name(["pooler", "mlm_head"]) == "BertForMaskedLM"
    assert architecture_name(["nsp_head"]) == "BertModel"  # its class needs a pooler
    assert architecture_name(["pooler", "mlm_head", "nsp_head", "token_head"]) == "BertForTokenClassification"

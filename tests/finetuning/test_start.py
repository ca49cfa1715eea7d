from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import shlex
import shutil
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.configs.finetuning import FinetuningExperiment
from bert_jax.configs.pretraining import PhaseConfig, PretrainingExperiment
from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError
from bert_jax.finetuning.start import labelled_start, load_teacher, weights_fingerprint, with_own_head, with_pooling
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.model.config import modern_block
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.pretraining.start import check_shape, pretraining_start
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    vocabulary = make_vocabulary(tmp_path_factory.mktemp("warm") / "vocabulary", cased=True)
    return as_model(*make_model(vocabulary), vocabulary)


def experiment(directory: pathlib.Path, model: Model, **fields: str) -> PretrainingExperiment:
    return PretrainingExperiment(
        init_from=str(directory), model=model.config, phases=(PhaseConfig(steps=1, length=16),), **fields
    )


def exported(directory: pathlib.Path, model: Model, *parts: str) -> pathlib.Path:
    params = {name: model.params[name] for name in ("embeddings", "encoder", *parts)} if parts else model.params
    export_model(directory / "m", dataclasses.replace(model, params=params))
    return directory / "m"


def test_the_run_starts_with_the_weights_of_the_model(model, tmp_path):
    params = pretraining_start(experiment(exported(tmp_path, model), model), model.tokenizer.vocabulary)
    assert params.keys() == model.params.keys()
    jax.tree.map(np.testing.assert_array_equal, params["encoder"], model.params["encoder"])
    words = params["embeddings"]["word_embeddings"]["embedding"]
    assert words.shape[0] == model.config.padded_vocab_size


def test_missing_parts_start_new_only_if_declared(model, tmp_path):
    directory = exported(tmp_path, model, "pooler")
    says = r"has no mlm_head and no nsp_head; to start them from random weights, give --config\.init_new=mlm_head,nsp_head"
    with pytest.raises(UserError, match=says):
        pretraining_start(experiment(directory, model), model.tokenizer.vocabulary)
    declared = experiment(directory, model, init_new="mlm_head,nsp_head")
    params = pretraining_start(declared, model.tokenizer.vocabulary)
    assert params.keys() == model.params.keys()
    kernel = params["nsp_head"]["dense"]["kernel"]
    assert 0 < np.abs(kernel).max() <= 2 * model.config.initializer_range  # truncated at two deviations
    other = pretraining_start(dataclasses.replace(declared, seed=1), model.tokenizer.vocabulary)
    assert not np.array_equal(kernel, other["nsp_head"]["dense"]["kernel"])


def test_a_run_without_pairs_drops_pooler_and_nsp_head_and_reports_it(model, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    alone = ExampleConfig(pairs="none")
    wanted = dataclasses.replace(experiment(exported(tmp_path, model), model), examples=alone)
    params = pretraining_start(wanted, model.tokenizer.vocabulary)
    assert params.keys() == {"embeddings", "encoder", "mlm_head"}
    assert "left out: pooler, nsp_head" in caplog.text
    words = dataclasses.replace(experiment(exported(tmp_path / "words", model, "mlm_head"), model), examples=alone)
    assert pretraining_start(words, model.tokenizer.vocabulary).keys() == params.keys()
    with pytest.raises(UserError, match=r"init_new=nsp_head names nsp_head, but .*pairs=none does not train it"):
        pretraining_start(dataclasses.replace(words, init_new="nsp_head"), model.tokenizer.vocabulary)


def test_a_fine_tuned_head_is_dropped_only_if_declared(tmp_path):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=True)
    tuned = make_labelled_model(vocabulary, SequenceHead(labels=("no", "yes")), ("mlm_head", "nsp_head"))
    export_model(tmp_path / "m", tuned)
    with pytest.raises(UserError, match=r"has a sequence_head.*--config\.init_drop=sequence_head"):
        pretraining_start(experiment(tmp_path / "m", tuned), tuned.tokenizer.vocabulary)
    declared = experiment(tmp_path / "m", tuned, init_drop="sequence_head")
    assert "sequence_head" not in pretraining_start(declared, tuned.tokenizer.vocabulary)


def test_a_model_of_another_shape_is_refused_with_the_matching_flags(model, tmp_path):
    deeper = dataclasses.replace(model.config, num_layers=3)
    wanted = dataclasses.replace(experiment(exported(tmp_path, model), model), model=deeper)
    with pytest.raises(UserError, match=r"a different architecture than .*--config\.model\.num_layers=2; .*init_tiled=True$"):
        pretraining_start(wanted, model.tokenizer.vocabulary)


def test_the_flags_of_another_shape_can_be_pasted_into_a_shell(tmp_path):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=True)
    modern = as_model(*make_model(vocabulary, **modern_block(2, every=2, radius=3)), vocabulary)
    wanted = experiment(exported(tmp_path, modern), modern)
    wanted = dataclasses.replace(wanted, model=dataclasses.replace(modern.config, layer_types=()))
    with pytest.raises(UserError) as error:
        pretraining_start(wanted, modern.tokenizer.vocabulary)
    assert '--config.model.layer_types=["full", "sliding"];' in shlex.split(str(error.value))


def test_settings_that_only_affect_training_may_differ(model, tmp_path):
    config = dataclasses.replace(model.config, hidden_dropout=0.0, vocab_multiple=32, remat="full")
    wanted = dataclasses.replace(experiment(exported(tmp_path, model), model), model=config)
    words = pretraining_start(wanted, model.tokenizer.vocabulary)["embeddings"]["word_embeddings"]["embedding"]
    assert words.shape[0] == config.padded_vocab_size


@pytest.mark.parametrize("positions", ["rotary", "none", "learned"])
def test_rows_may_be_longer_than_those_of_the_model_if_its_positions_have_no_table(model, positions):
    there = dataclasses.replace(model.config, positions=positions)
    longer = dataclasses.replace(there, max_position=2 * there.max_position)
    if positions != "learned":
        check_shape(longer, dataclasses.replace(model, config=there))
        return
    flag = f"--config.model.max_position={there.max_position}; to resize its position table, use python -m bert_jax.convert"
    with pytest.raises(UserError, match=f"give {flag} --max-position={longer.max_position}$"):
        check_shape(longer, dataclasses.replace(model, config=there))


@pytest.mark.parametrize("there", [None, 160_000.0])
def test_the_base_of_sliding_layers_may_be_stated_or_that_of_full_layers(model, there):
    block = modern_block(model.config.num_layers)
    config = dataclasses.replace(model.config, **block | {"sliding_rotary_theta": there})
    for here in (None, 160_000.0):
        check_shape(dataclasses.replace(config, sliding_rotary_theta=here), dataclasses.replace(model, config=config))
    with pytest.raises(UserError, match=r"give --config\.model\.sliding_rotary_theta=160000\.0$"):
        check_shape(dataclasses.replace(config, sliding_rotary_theta=9.0), dataclasses.replace(model, config=config))


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"lowercase": True}, {"strip_accents": True}, {"split_cjk": False}])
def test_a_corpus_of_another_vocabulary_is_refused(model, tmp_path, change):
    other = dataclasses.replace(model.tokenizer.vocabulary, **change)
    with pytest.raises(UserError, match="a different vocabulary than the corpus"):
        pretraining_start(experiment(exported(tmp_path, model), model), other)


def test_init_settings_without_a_model_are_refused():
    with pytest.raises(UserError, match=r"config\.init_from, which is empty"):
        PretrainingExperiment(init_new="nsp_head", phases=(PhaseConfig(steps=1),)).validate()


# ------------------------------------------------------------------------------------------------------------------ fine-tuning

MNLI = SequenceHead(labels=("contradiction", "entailment", "neutral"))
RTE = SequenceHead(labels=("entailment", "not_entailment"))
TOKENS = TokenHead(labels=("O", "B"))


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return make_vocabulary(tmp_path_factory.mktemp("tuned") / "vocabulary", cased=True)


@pytest.fixture(scope="module")
def pretrained(model: Model, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return exported(tmp_path_factory.mktemp("pretrained"), model)


@pytest.fixture(scope="module")
def mnli(vocabulary: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("mnli") / "m"
    export_model(directory, make_labelled_model(vocabulary, MNLI))
    return directory


def tuning(directory: pathlib.Path, **values: Any) -> FinetuningExperiment:
    return FinetuningExperiment.from_dict({"init_from": str(directory), "task": {"length": 32}, **values})


def begun(experiment: FinetuningExperiment, own: TaskHead) -> dict[str, Any]:
    """Returns the parameters with which a run starts."""
    start, head = labelled_start(experiment, own), experiment.head_config(own)
    model = with_own_head(start, experiment.model_config(start.config, "cpu"), head, experiment)
    assert model.head == head
    return model.params


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_task_starts_with_the_given_encoder_and_drops_unused_parts(model, pretrained, caplog):
    caplog.set_level(logging.INFO)
    assert set(model.parts) == {"pooler", "mlm_head", "nsp_head"}
    for own, parts in ((RTE, {"pooler", "sequence_head"}), (TOKENS, {"token_head"})):
        params = begun(tuning(pretrained), own)
        assert params.keys() == {"embeddings", "encoder", *parts}
        assert_same(params["encoder"], model.params["encoder"])
        if "pooler" in parts:
            assert_same(params["pooler"], model.params["pooler"])
    left_out = "not used by the task, left out: "
    assert caplog.messages == [f"{left_out}mlm_head, nsp_head", f"{left_out}pooler, mlm_head, nsp_head"]


def test_the_fingerprint_of_weights_depends_on_their_files_alone(tmp_path):
    def fingerprint(**files: str) -> str:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        for name, text in {"config": "{}", **files}.items():
            (directory / f"{name}.{'json' if name in ('config', 'index') else 'safetensors'}").write_text(text)
        return weights_fingerprint(str(directory))

    assert fingerprint(model="weights") == fingerprint(model="weights", config="{ }")
    found = {fingerprint(model=text) for text in ("weights", "other")}
    assert len(found) == 2
    shards = [{"model-1-of-2": first, "model-2-of-2": second} for first, second in ("ab", "ac", "cb", "ba")]
    found |= {fingerprint(model="weights", **shard) for shard in shards}
    assert len(found) == 6


def test_only_the_new_head_depends_on_the_seed(pretrained):
    first, again, other = (begun(tuning(pretrained, seed=seed), RTE) for seed in (1, 1, 2))
    assert_same(first, again)
    assert not np.array_equal(first["sequence_head"]["dense"]["kernel"], other["sequence_head"]["dense"]["kernel"])
    assert_same(*({part: x for part, x in params.items() if part != "sequence_head"} for params in (first, other)))


def test_files_that_contradict_each_other_about_casing_are_logged(mnli, tmp_path, caplog):
    shutil.copytree(mnli, tmp_path / "m")
    settings = json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())
    changed = settings | {"do_lower_case": not settings["do_lower_case"]}
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(changed))
    caplog.set_level("INFO", logger="bert_jax")
    start = labelled_start(tuning(tmp_path / "m"), RTE)
    assert start.tokenizer.vocabulary.lowercase is changed["do_lower_case"]
    assert any("do_lower_case=" in message for message in caplog.messages)


def test_an_mnli_head_is_replaced_for_a_task_with_two_labels(mnli):
    """Phang et al.: RTE, MRPC and STS-B start from a model trained on MNLI."""
    start = labelled_start(tuning(mnli), RTE)
    assert start.head is None
    params = begun(tuning(mnli), RTE)
    assert params["sequence_head"]["dense"]["kernel"].shape == (16, 2)
    assert np.abs(params["sequence_head"]["dense"]["kernel"]).max() <= 2 * start.config.initializer_range
    assert "pooler" in params


def test_a_head_is_kept_only_on_request_and_for_the_same_question(mnli):
    params = begun(tuning(mnli, keep_head=True), MNLI)
    assert params["sequence_head"]["dense"]["kernel"].shape == (16, 3)
    assert np.abs(params["sequence_head"]["dense"]["kernel"]).max() > 0.3, "the trained one, not a new one"
    with pytest.raises(
        UserError, match=r"sequence_head with the labels contradiction, entailment, neutral, but the task .* leave keep_head out"
    ):
        labelled_start(tuning(mnli, keep_head=True), RTE)


def test_a_model_without_a_head_cannot_keep_one(pretrained):
    with pytest.raises(UserError, match=r"which has no head, but the task needs a sequence_head .*; leave keep_head out"):
        labelled_start(tuning(pretrained, keep_head=True), RTE)


def test_a_head_on_other_layers_is_refused_with_the_matching_flags(vocabulary, tmp_path):
    mixed = dataclasses.replace(TOKENS, layers="scalar_mix")
    export_model(tmp_path / "m", make_labelled_model(vocabulary, mixed))
    with pytest.raises(UserError, match=r"but its input differs from config\.head; .*--config\.head\.layers=scalar_mix$"):
        labelled_start(tuning(tmp_path / "m", keep_head=True), TOKENS)
    params = begun(tuning(tmp_path / "m", keep_head=True, head={"layers": "scalar_mix"}), TOKENS)
    assert "mix" in params["token_head"]


def test_a_kept_head_has_its_crf_only_on_request(vocabulary, tmp_path):
    export_model(tmp_path / "m", make_labelled_model(vocabulary, dataclasses.replace(TOKENS, crf="free")))
    with pytest.raises(UserError, match=r"but its input differs from config\.head; .*--config\.head\.crf=free$"):
        labelled_start(tuning(tmp_path / "m", keep_head=True), TOKENS)
    assert "crf" in begun(tuning(tmp_path / "m", keep_head=True, head={"crf": "free"}), TOKENS)["token_head"]


def test_a_crf_is_refused_as_student_and_teacher(vocabulary, tmp_path):
    for name, crf in (("plain", "none"), ("crf", "free")):
        export_model(tmp_path / name, make_labelled_model(vocabulary, dataclasses.replace(TOKENS, crf=crf)))
    for teacher, crf, named in (("crf", "none", tmp_path / "crf"), ("plain", "free", "the student")):
        experiment = tuning(tmp_path / "plain", distillation={"teacher": str(tmp_path / teacher)}, head={"crf": crf})
        start = labelled_start(experiment, TOKENS)
        with pytest.raises(UserError, match=rf"compares the logits of single words, but {named} has a CRF"):
            load_teacher(experiment, start, experiment.head_config(TOKENS))


def test_a_missing_pooler_starts_new_only_if_declared(model, tmp_path):
    directory = exported(tmp_path, model, "mlm_head")
    with pytest.raises(UserError, match=r"has no pooler, which a sequence_head reads; .*--config\.init_new=pooler"):
        labelled_start(tuning(directory), RTE)
    assert begun(tuning(directory), TOKENS).keys() == {"embeddings", "encoder", "token_head"}
    concat = {"head": {"pooling": "concat"}}
    assert "pooler" not in begun(tuning(directory, **concat), RTE)
    kernel = begun(tuning(directory, init_new="pooler"), RTE)["pooler"]["dense"]["kernel"]
    assert 0 < np.abs(kernel).max() <= 2 * model.config.initializer_range


def test_each_seed_of_a_sweep_draws_the_new_parts(model, mnli, tmp_path):
    exported(tmp_path, model, "mlm_head")
    given: tuple[tuple[pathlib.Path, TaskHead, str, dict[str, Any]], ...] = (
        (tmp_path / "m", RTE, "pooler", {}),
        (mnli, MNLI, "sequence_head", {"keep_head": True}),
    )
    for directory, own, part, values in given:
        whole = tuning(directory, init_new=part, sweep={"seeds": [0, 1]}, **values)
        start, head = labelled_start(whole, own), whole.head_config(own)
        runs = [with_own_head(start, start.config, head, one).params for one in whole.runs()]
        assert not np.array_equal(*(params[part]["dense"]["kernel"] for params in runs))
        assert_same(runs[0][part], start.params[part])  # as in a run with this seed alone


def test_a_cls_head_on_an_lstm_or_word_vectors_is_refused_with_a_remedy(vocabulary, tmp_path):
    for encoder in ("bilm", "static"):
        params, config = make_model(vocabulary, encoder=encoder, num_layers=2 if encoder == "bilm" else 0)
        params.pop("pooler", None)
        directory = exported(tmp_path / encoder, as_model(params, config, vocabulary))
        says = rf"config\.init_from=.*/{encoder}/m is a {encoder} model, whose \[CLS\] does not represent the text; set "
        with pytest.raises(UserError, match=says + r"config\.head\.pooling=concat, or config\.head\.lstm$"):
            labelled_start(tuning(directory), RTE)
        with pytest.raises(UserError, match=rf"m is a {encoder} model, which has no pooler; the parts of its pretraining are "):
            labelled_start(tuning(directory, init_new="pooler"), RTE)
        with pytest.raises(UserError, match=r"does not represent the text for a choice head; name a Transformer$"):
            labelled_start(tuning(directory), ChoiceHead())
        assert labelled_start(tuning(directory, head={"pooling": "concat"}), RTE).parts == ()


def test_random_initialisation_uses_only_the_shape_of_the_model_and_the_spelling_of_its_words(vocabulary, tmp_path):
    params, config = make_model(vocabulary, encoder="bilm", character_cnn=True, tied_decoder=False, num_layers=1)
    export_model(tmp_path / "m", as_model(params, config, vocabulary))
    drawn = begun(tuning(tmp_path / "m", init_random=True), TokenHead(labels=("A", "B")))
    characters, loaded = drawn["embeddings"]["characters"], params["embeddings"]["characters"]
    np.testing.assert_array_equal(characters["symbols"][: config.vocab_size], loaded["symbols"][: config.vocab_size])
    kernels = [tree["layers"]["projection"]["kernel"] for tree in (drawn["encoder"], params["encoder"])]
    assert kernels[0].shape == kernels[1].shape
    assert not np.isin(kernels[0], kernels[1]).any()
    assert 1 < np.abs(kernels[0]).max() * config.intermediate_size**0.5 <= 2  # truncated at two deviations
    assert characters["embedding"].shape == loaded["embedding"].shape
    assert not np.isin(characters["embedding"], loaded["embedding"]).any()


# ----------------------------------------------------------------------------------------------------------------- the teacher


def taught(mnli: pathlib.Path, teacher: pathlib.Path, **distillation: Any) -> tuple[FinetuningExperiment, Model]:
    experiment = tuning(mnli, distillation={"teacher": str(teacher), **distillation})
    return experiment, labelled_start(experiment, MNLI)


def test_no_teacher_is_loaded_by_default(mnli):
    assert load_teacher(tuning(mnli), labelled_start(tuning(mnli), MNLI), MNLI) is None


def test_a_deeper_and_wider_teacher_with_enough_positions_is_accepted(mnli, vocabulary, tmp_path):
    export_model(tmp_path / "m", make_labelled_model(vocabulary, MNLI, num_layers=3, hidden_size=20, max_position=32))
    teacher = load_teacher(*taught(mnli, tmp_path / "m"), MNLI)
    assert teacher is not None
    assert (teacher.config.num_layers, teacher.head) == (3, MNLI)


@pytest.mark.parametrize(
    ("head", "fields", "distillation", "says"),
    [
        (RTE, {}, {}, "has no head for this task; fine-tune it on the same task first"),
        (dataclasses.replace(MNLI, labels=MNLI.labels[::-1]), {}, {}, "has no head for this task"),
        (MNLI, {"hidden_size": 20}, {"hidden_weight": 1.0}, "the teacher is 20 wide and the student 16; set hidden_weight to 0"),
        (MNLI, {"max_position": 31}, {}, r"reads only 31 tokens, but config\.task\.length=32; lower task\.length"),
    ],
)
def test_an_unsuitable_teacher_is_refused_with_a_remedy(mnli, vocabulary, tmp_path, head, fields, distillation, says):
    export_model(tmp_path / "m", make_labelled_model(vocabulary, head, **fields))
    with pytest.raises(UserError, match=says):
        load_teacher(*taught(mnli, tmp_path / "m", **distillation), MNLI)


def test_a_teacher_without_a_head_or_with_another_vocabulary_is_refused(mnli, pretrained, tmp_path):
    with pytest.raises(UserError, match="has no head for this task"):
        load_teacher(*taught(mnli, pretrained), MNLI)
    other = make_vocabulary(tmp_path / "vocabulary", cased=False)
    export_model(tmp_path / "m", make_labelled_model(other, MNLI))
    with pytest.raises(UserError, match=r"has a different vocabulary than .*; use a teacher with the same"):
        load_teacher(*taught(mnli, tmp_path / "m"), MNLI)


def test_hidden_states_of_a_student_without_layers_are_not_compared(vocabulary, tmp_path):
    params, config = make_model(vocabulary, encoder="static", num_layers=0)
    directory = exported(tmp_path, as_model(params, config, vocabulary))
    export_model(tmp_path / "teacher", make_labelled_model(vocabulary, RTE))
    given = {"head": {"pooling": "concat"}, "distillation": {"teacher": str(tmp_path / "teacher"), "hidden_weight": 1.0}}
    experiment = tuning(directory, **given)
    with pytest.raises(UserError, match="the student is a static model without layers; set hidden_weight to 0"):
        load_teacher(experiment, labelled_start(experiment, RTE), experiment.head_config(RTE))


def test_sequence_heads_of_left_to_right_models_read_the_last_token_by_default(model, tmp_path):
    causal = dataclasses.replace(model, config=dataclasses.replace(model.config, direction="left_to_right"))
    directory, both = exported(tmp_path, causal, "mlm_head"), exported(tmp_path / "both", model)
    changed, note = with_pooling(tuning(directory), RTE, ())
    assert changed.head.pooling == "last_token"
    assert note.endswith(" reads from left to right, so its [CLS] sees no text")
    assert begun(changed, RTE).keys() == {"embeddings", "encoder", "sequence_head"}
    assert with_pooling(tuning(both), RTE, ()) == (tuning(both), "")
    assert with_pooling(tuning(directory), TOKENS, ()) == (tuning(directory), "")
    mean = dataclasses.replace(tuning(directory), head=dataclasses.replace(tuning(directory).head, pooling="mean"))
    assert with_pooling(mean, RTE, ("head.pooling",)) == (mean, ""), "which reads every token"
    with pytest.raises(UserError, match=r"config\.head\.pooling=pooler reads .CLS., .* set config\.head\.pooling=last_token"):
        with_pooling(tuning(directory), RTE, ("head.pooling",))
    with pytest.raises(UserError, match=r"a choice head reads .CLS., .* name a model trained with config\.model\.direction=both"):
        with_pooling(tuning(directory), ChoiceHead(), ())

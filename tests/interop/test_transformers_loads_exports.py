"""transformers and sentence-transformers load exported directories and compute the same.

They run in separate interpreters: BERT_JAX_PEER_PYTHON names one, or several separated by ":". `.ci/run` makes one with
transformers 5 and sentence-transformers, and one with transformers 4.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
from array import array
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.data.tokenizers.json_tokenizer import BEGINS
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe, train_sentencepiece
from bert_jax.errors import UserError
from bert_jax.interop.families.family import export_family, family_named
from bert_jax.interop.huggingface import Model, export_model, import_model, without_parts
from bert_jax.interop.huggingface_config import ARCHITECTURES
from bert_jax.interop.sentence_transformers import TextVectors
from bert_jax.model.config import ModelConfig
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.prediction.predictor import Predictor
from bert_jax.prediction.translating import translate
from tests.data.tokenizers.test_json_tokenizer import documents, texts
from tests.data.tokenizers.test_marian_tokenizer import write_marian
from tests.interop.answers import our_outputs
from tests.interop.tiny import as_model, make_electra, make_labelled_model, make_model, make_translator, make_vocabulary
from tests.prediction.reference import engine_on

FAMILIES = pathlib.Path(__file__).parents[1] / "golden" / "families"
SCRIPT = pathlib.Path(__file__).parents[1] / "golden" / "check_export_with_transformers.py"
TEXTS = (
    "The capital of France is Paris.",
    "the CAPITAL, of [MASK]!",
    "Éclair Øre 中中 don't x" + "y" * 60,
    "x" * 100,  # transformers 5 drops longer words whatever tokenizer.json says; the original and ours spell up to 200 characters
    "",
)

CODED = (">>deu<< Hello there.", ">>xyz<< unknown", "  two  spaces ", "", ">>fra<<", ">> not a code", "a << b", "a\tb\nc")
"""For a vocabulary with codes of languages."""


class Peer:
    """A process of another interpreter that answers requests to `check_export_with_transformers.py`."""

    def __init__(self, interpreter: str, log: pathlib.Path):
        self._log = log
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [interpreter, str(SCRIPT)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment,
            )  # fmt: skip

    def ask(self, **request: Any) -> dict[str, Any]:
        """Returns the answer to a request. Fails the test with the traceback if there is none."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or json.dumps({"error": self._log.read_text()}))
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """Ends the process."""
        with self._process as process:
            assert process.stdin
            process.stdin.close()


INTERPRETERS = [path for path in os.environ.get("BERT_JAX_PEER_PYTHON", "").split(":") if path]


@pytest.fixture(scope="module", params=INTERPRETERS or [None])
def peer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    if request.param is None:
        pytest.skip("set BERT_JAX_PEER_PYTHON to a Python with torch and transformers")
    running = Peer(request.param, tmp_path_factory.mktemp("peer") / "stderr.txt")
    yield running
    running.close()


def check(peer: Peer, model: Model, tmp_path: pathlib.Path, stored: str = "float32", **arguments) -> dict:
    """Exports `model` and returns what transformers finds in it; transformers saves it again in `tmp_path / "resaved"`."""
    rng = np.random.default_rng(3)
    rows, length = 2, 20
    columns = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    mask = (columns < np.array([[20], [13]])).astype(np.int32)
    ids = rng.integers(5, model.config.vocab_size, (rows, length)).astype(np.int32)
    batch = {"input_ids": ids, "token_type_ids": (columns > 8).astype(np.int32), "attention_mask": mask}
    own = model.head is not None and not export_family(model.config).has_class_for(model.head)
    known = without_parts(model, [model.head.subtree]) if model.head and own else model
    outputs = {f"outputs/{name}": np.asarray(value) for name, value in our_outputs(known, batch).items()}
    np.savez(tmp_path / "expected.npz", **batch, **outputs, texts=np.array(TEXTS))
    export_model(tmp_path / "model", model, {"step": 7}, dtype=stored)
    model_directory, expected, resaved = (str(tmp_path / name) for name in ("model", "expected.npz", "resaved"))
    report = peer.ask(model=model_directory, expected=expected, resaved=resaved, arguments=arguments)
    print(report["class"], report["differences"])  # for `pytest -s`
    return report


def assert_what_transformers_saves_is_the_same_model(model: Model, tmp_path: pathlib.Path) -> None:
    shutil.copy(tmp_path / "model" / "vocab.txt", tmp_path / "resaved")  # transformers 5 saves tokenizer.json only
    back = import_model(tmp_path / "resaved", vocab_multiple=model.config.vocab_multiple)
    assert (back.config, back.head) == (model.config, model.head)
    jax.tree.map(np.testing.assert_array_equal, back.params, zero_padding_rows(model.params, model.config))


def test_transformers_finds_replaced_tokens_as_the_pretraining_does(peer, tmp_path, vocabulary):
    model = make_electra(vocabulary)
    report = check(peer, model, tmp_path)
    assert report["class"] == "ElectraForPreTraining"
    assert report["loading"] == {}
    assert report["differences"].keys() == {"logits"}
    assert report["differences"]["logits"] < 1e-5
    encoder = dataclasses.replace(model, discriminator=None)
    assert_what_transformers_saves_is_the_same_model(encoder, tmp_path)


def ours(tokenizer: Tokenizer, text: str) -> list[int]:
    return [tokenizer.cls_id, *tokenizer.encode_with_specials(text), tokenizer.sep_id]


@pytest.mark.parametrize(("cased", "activation", "their_activation"), [(True, "gelu_tanh", "gelu_new"), (False, "gelu", "gelu")])
def test_transformers_computes_an_export_equally_and_its_copy_can_be_imported(
    peer, tmp_path, cased, activation, their_activation
):
    vocabulary = make_vocabulary(tmp_path / "vocabulary", cased=cased)
    model = as_model(*make_model(vocabulary, activation=activation), vocabulary)
    tokenizer = model.tokenizer
    report = check(peer, model, tmp_path)

    assert report["class"] == "BertForPreTraining"
    assert report["loading"] == {}  # nothing missing, unexpected or mismatched
    assert max(report["differences"].values()) < 1e-5
    assert report["dtype"] == "torch.float32"
    assert (
        report["config"]
        | {
            "hidden_act": their_activation,
            "layer_norm_eps": 1e-6,
            "hidden_dropout_prob": 0.2,
            "attention_probs_dropout_prob": 0.05,
            "pad_token_id": tokenizer.pad_id,
            "tie_word_embeddings": True,
        }
        == report["config"]
    )
    assert report["model_max_length"] == model.config.max_position
    assert report["mask_token_id"] == tokenizer.mask_id
    assert report["token_ids"] == [ours(tokenizer, text) for text in TEXTS]
    assert_what_transformers_saves_is_the_same_model(model, tmp_path)


@pytest.mark.parametrize(
    ("architecture", "parts", "fields"),
    [
        ("BertModel", ("pooler",), {}),
        ("BertModel", (), {"type_vocab_size": 2}),
        ("BertForPreTraining", ("pooler", "mlm_head", "nsp_head"), {"tied_decoder": False}),
        ("BertForMaskedLM", ("mlm_head",), {"num_heads": 1}),
        ("BertForMaskedLM", ("mlm_head",), {"tied_decoder": False, "num_layers": 1}),
        ("BertLMHeadModel", ("mlm_head",), {"direction": "left_to_right"}),
        ("BertLMHeadModel", ("mlm_head",), {"direction": "left_to_right", "tied_decoder": False}),
        ("BertForNextSentencePrediction", ("pooler", "nsp_head"), {"activation": "relu"}),
    ],
)
def test_every_class_without_labels_is_loaded_under_its_name(peer, vocabulary, tmp_path, architecture, parts, fields):
    params, config = make_model(vocabulary, **fields)
    model = as_model({name: params[name] for name in ("embeddings", "encoder", *parts)}, config, vocabulary)
    arguments = {} if architecture != "BertModel" or parts else {"add_pooling_layer": False}
    if architecture == "BertLMHeadModel":
        arguments = {"use_cache": False}  # otherwise it returns keys and values in addition to the logits
    report = check(peer, model, tmp_path, **arguments)
    assert (report["class"], report["loading"]) == (architecture, {})
    assert max(report["differences"].values()) < 1e-5
    assert report["config"]["tie_word_embeddings"] == config.tied_decoder
    assert_what_transformers_saves_is_the_same_model(model, tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        SequenceHead(labels=("no", "yes", "perhaps"), dropout=0.3),
        SequenceHead(labels=("score",), problem="regression"),
        SequenceHead(labels=("a", "b", "c", "d"), problem="multi_label"),
        TokenHead(labels=tuple(f"tag {i}" for i in range(12)), dropout=0.0),
        SpanHead(),
        ChoiceHead(),
    ],
    ids=lambda head: f"{head.kind}-{head.problem}",
)
def test_every_labelled_head_is_loaded_with_its_labels(peer, vocabulary, tmp_path, head):
    model = make_labelled_model(vocabulary, head)
    report = check(peer, model, tmp_path)
    assert head.subtree in ARCHITECTURES[report["class"]]
    assert report["loading"] == {}
    assert max(report["differences"].values()) < 1e-5
    theirs = report["config"]
    assert theirs["classifier_dropout"] == head.dropout
    if head.labels:
        assert theirs["id2label"] == {str(i): label for i, label in enumerate(head.labels)}
        assert theirs["label2id"] == {label: i for i, label in enumerate(head.labels)}
        assert theirs["num_labels"] == len(head.labels)
    problems = {"classification": "single_label_classification", "multi_label": "multi_label_classification"}
    assert theirs["problem_type"] == (problems.get(head.problem, "regression") if head.kind == "sequence" else None)
    assert_what_transformers_saves_is_the_same_model(model, tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        TokenHead(labels=("O", "B-X", "I-X"), lstm=3, layers="last_four_mix"),
        SequenceHead(labels=("no", "yes"), layers="scalar_mix"),
    ],
    ids=lambda head: head.kind,
)
def test_transformers_loads_the_encoder_of_an_own_head(peer, vocabulary, tmp_path, head):
    model = make_labelled_model(vocabulary, head, num_layers=4)
    report = check(peer, model, tmp_path, **({} if head.reads_pooler else {"add_pooling_layer": False}))
    own = sorted(f"{head.subtree}.{path}" for path in flatten_dict(model.params[head.subtree], sep="."))
    assert (report["class"], report["loading"]) == ("BertModel", {"unexpected_keys": own})
    assert max(report["differences"].values()) < 1e-5
    assert report["config"]["id2label"] == {str(i): label for i, label in enumerate(head.labels)}
    shutil.copy(tmp_path / "model" / "vocab.txt", tmp_path / "resaved")
    with pytest.raises(UserError, match=rf"missing: {head.subtree}\.dense\.bias, .*declare {head.subtree} as new"):
        import_model(tmp_path / "resaved")  # transformers does not save what it did not read
    assert import_model(tmp_path / "resaved", drop=[head.subtree]).parts == (("pooler",) if head.reads_pooler else ())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-2), ("bfloat16", 1e-1)])
def test_an_export_in_half_precision_is_loaded_in_half_precision(peer, vocabulary, tmp_path, dtype, tolerance):
    """transformers computes in half precision, so the results differ by its rounding. Version 4 needs dtype="auto" for this;
    in version 5 it is the default."""
    report = check(peer, as_model(*make_model(vocabulary), vocabulary), tmp_path, dtype, dtype="auto")
    assert (report["loading"], report["dtype"]) == ({}, f"torch.{dtype}")
    assert all(1e-5 < difference < tolerance for difference in report["differences"].values())


def test_sentence_transformers_gives_the_vectors_of_embed(peer, vocabulary, tmp_path):
    """The export names no pooling, so both use the mean over the tokens."""
    if "sentence-transformers" not in peer.ask(packages=True)["packages"]:
        pytest.skip("this interpreter has no sentence-transformers")
    params, config = make_model(vocabulary)
    model = as_model({name: params[name] for name in ("embeddings", "encoder", "pooler")}, config, vocabulary)
    export_model(tmp_path / "model", model, {"step": 7})
    texts = ["the river of Paris", "Éclair is the capital of France.", "a " * 60]
    ours = Predictor(engine_on(tmp_path / "model", tokens=160)).embed(texts, pooling="mean", truncate=True)
    np.testing.assert_allclose(np.stack(list(ours)), peer.ask(model=str(tmp_path / "model"), texts=texts)["vectors"], atol=1e-5)


def test_exports_of_other_families_are_computed_equally_and_their_copies_imported(peer, tmp_path):
    """Each directory of `golden/families/` is imported and exported: nothing is missing and the outputs are the same in both
    versions, which read different keys of config.json."""
    version_4 = peer.ask(packages=True)["transformers"].startswith("4.")
    for case in sorted(path.parent.name for path in FAMILIES.glob("*/config.json")):
        if version_4 and not case.startswith("modernbert"):
            continue  # version 4 has no others of these families
        model = import_model(FAMILIES / case, vocabulary=FAMILIES.parent / "heads" / "tokenizer")
        export_model(tmp_path / case, model, {"step": 7})
        with np.load(FAMILIES / case / "outputs.npz") as file:
            np.savez(tmp_path / "expected.npz", **file, texts=np.array(["paris is the capital"]))
        resaved = tmp_path / f"{case}-resaved"
        request = {"model": str(tmp_path / case), "expected": str(tmp_path / "expected.npz"), "resaved": str(resaved)}
        if version_4 and case == "modernbert_masked_biased":  # no number expresses which of its layers are full
            with pytest.raises(AssertionError, match="unsupported operand type"):
                peer.ask(**request, arguments={})
            continue
        report = peer.ask(**request, arguments={})
        assert report["loading"] == {}, case
        assert max(report["differences"].values()) < 2e-6, (case, report["differences"])
        assert report["token_ids"] == [[2, *model.tokenizer.encode("paris is the capital"), 3]]
        back = import_model(resaved, vocabulary=FAMILIES.parent / "heads" / "tokenizer")
        read, expected = (each.with_sliding_theta() for each in (back.config, model.config))  # version 5 states both bases
        assert (read, back.head) == (expected, model.head)
        jax.tree.map(np.testing.assert_array_equal, back.params, model.params)


@pytest.mark.parametrize("family", ["modernbert", "eurobert", "nomic_bert"])
def test_a_family_has_every_class_of_transformers(peer, family):
    if peer.ask(packages=True)["transformers"].startswith("4."):
        pytest.skip("version 4 has other classes")
    theirs = {name for name in peer.ask(classes=family)["classes"] if "PreTrained" not in name}
    assert theirs == {*family_named(family, "").classes}


@pytest.mark.parametrize("case", ["modernbert_encoder", "eurobert_encoder", "nomic_bert_encoder"])
@pytest.mark.parametrize("vectors", [TextVectors("mean"), TextVectors("cls", normalise=True), TextVectors("mean", longest=9)])
def test_sentence_transformers_gives_our_vectors_of_an_encoder_with_a_pooling(peer, tmp_path, case, vectors):
    if "sentence-transformers" not in peer.ask(packages=True)["packages"]:
        pytest.skip("this interpreter has no sentence-transformers")
    model = import_model(FAMILIES / case, vocabulary=FAMILIES.parent / "heads" / "tokenizer")
    export_model(tmp_path / "model", dataclasses.replace(model, vectors=vectors))
    texts = ["the river of paris", "paris is the capital of france, is it?", "a " * 60]
    ours = np.stack(list(Predictor(engine_on(tmp_path / "model", tokens=160)).embed(texts)))
    theirs = np.array(peer.ask(model=str(tmp_path / "model"), texts=texts)["vectors"])
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-6


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "sentencepiece", "marian"])
def test_transformers_translates_like_predict_with_every_vocabulary(peer, tmp_path, kind):
    """The sources differ in length. The search is the one of generation_config.json, with 4 beams."""
    if kind == "marian" and "sentencepiece" not in peer.ask(packages=True)["packages"]:
        pytest.skip("this interpreter has no sentencepiece")
    texts = [["the river of Paris is the capital", "of France, is it?"]] * 30
    (tmp_path / "vocabulary").mkdir()
    match kind:
        case "wordpiece":
            make_vocabulary(tmp_path / "vocabulary" / "made", cased=True)
        case "bpe":
            train_bpe(texts, 384, None).save(tmp_path / "vocabulary" / "made")
        case "sentencepiece":
            train_sentencepiece(texts, 60, None).save(tmp_path / "vocabulary" / "made")
        case "marian":
            (tmp_path / "vocabulary" / "made").mkdir()
            write_marian(tmp_path / "vocabulary" / "made", separate=False)
    model = make_translator(tmp_path / "vocabulary" / "made", max_position=40)
    export_model(tmp_path / "model", model)
    sources = ["the river of Paris", "it", "is the capital of France?"]
    tokenizer, found = model.tokenizer, peer.ask(model=str(tmp_path / "model"), translate=sources)
    assert found["class"] == "MarianMTModel"
    assert found["sources"] == [[*tokenizer.encode(source), tokenizer.sep_id] for source in sources]
    assert found["targets"] == [*tokenizer.encode(sources[0], target=True), tokenizer.sep_id]
    best = translate(engine_on(tmp_path / "model"), found["sources"], 4, 1.0, "transformers", max_length=39)
    assert found["ids"] == [[*one.ids, tokenizer.sep_id] for one in best]
    ours = [tokenizer.decode(one.ids, target=True) for one in best]
    assert [spelt(one) for one in found["translations"]] == [spelt(one) for one in ours]


def spelt(text: str) -> str:
    """Returns a text without spaces, since versions 4 and 5 put different spaces between subwords."""
    return "".join(text.split())


def zero_padding_rows(params, config: ModelConfig):
    """Returns the parameters as an import returns them: padding rows of the vocabulary are not exported."""
    flat = flatten_dict(params)
    for path in (("embeddings", "word_embeddings", "embedding"), ("mlm_head", "bias"), ("mlm_head", "decoder")):
        if path in flat:
            flat[path] = np.where(np.arange(len(flat[path])) < config.vocab_size, flat[path].T, 0.0).T
    return unflatten_dict(flat)


@pytest.mark.parametrize("splitting", ["gpt2", "gpt4"])
def test_transformers_loads_a_trained_vocabulary_as_a_fast_tokenizer(peer, tmp_path, splitting):
    tokenizer = train_bpe(documents(), 640, None, splitting=splitting, unused=8)
    tokenizer.save(tmp_path)
    asked = [text for text in texts(300) if text]
    found = peer.ask(model=str(tmp_path), tokenise=asked)
    assert {"PreTrainedTokenizerFast", "TokenizersBackend"}.intersection(found["classes"])
    assert (found["mask"], found["pad"], found["size"]) == ("[MASK]", 0, 640)
    for text, ids, words, decoded in zip(asked, found["sources"], found["words"], found["decoded"], strict=True):
        assert ids == [tokenizer.cls_id, *tokenizer.encode_with_specials(text), tokenizer.sep_id], text
        assert decoded == text
        marked, inner = array("I"), words[1:-1]
        tokenizer.append(text, marked)
        assert [bool(i & BEGINS) for i in marked] == [i == 0 or inner[i] != inner[i - 1] for i in range(len(inner))], text


@pytest.mark.parametrize("separate", [False, True])
def test_transformers_gives_the_ids_and_texts_of_marians_tokenizer(peer, tmp_path, separate):
    if "sentencepiece" not in peer.ask(packages=True)["packages"]:
        pytest.skip("this interpreter has no sentencepiece")
    tokenizer, every = load_tokenizer(write_marian(tmp_path, separate=separate)), [*texts(500), *CODED]
    found = peer.ask(model=str(tmp_path), tokenise=every)
    assert "MarianTokenizer" in found["classes"]
    for text, source, target, back in zip(every, found["sources"], found["targets"], found["decoded_targets"], strict=True):
        assert [*tokenizer.encode(text), tokenizer.sep_id] == source, text
        assert [*tokenizer.encode(text, target=True), tokenizer.sep_id] == target, text
        assert tokenizer.decode(target, target=True) == back

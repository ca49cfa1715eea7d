"""The model card of an export."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re

import pytest
import yaml

from bert_jax import convert
from bert_jax.interop.card import Training, model_card, read_training
from bert_jax.interop.directory import CARD, card_facts, signed_card
from bert_jax.interop.huggingface import Model, export_model, import_model
from bert_jax.interop.locate import find_model_directory
from bert_jax.model.heads import make_head
from bert_jax.pretraining.results import card_scores
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_translator, make_vocabulary
from tests.objectives.scored import objective_of

TOLD = Training(
    data="Pretrained on 12 tokens.",
    steps="Steps: 3 of 4 rows of 8 tokens.",
    scores=(("held-out mlm_accuracy", 0.5, 0.25), ("held-out nsp_loss", 0.7, None)),
    language="en",
    base_model="google/tiny",
)


def front_matter(text: str) -> dict[str, object]:
    return yaml.safe_load(text.split("---\n")[1])


@pytest.fixture
def model(tiny, vocabulary) -> Model:
    return as_model(*tiny, vocabulary)


def test_every_export_has_a_hub_card_with_loading_instructions(model, tmp_path):
    export_model(tmp_path / "mine" / "model", model)
    text = (tmp_path / "mine" / "model" / CARD).read_text()
    assert front_matter(text) == {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["bert_jax", "bert"],
    }
    assert "\n# BERT: 2 layers, 16 wide, 4 heads\n" in text
    assert 'model = AutoModelForPreTraining.from_pretrained("DIR")' in text
    assert 'python -m bert_jax.predict fill-mask --model=DIR "A [MASK] text."' in text
    assert "Not recorded." in text
    assert "The licence of the weights is not stated: set `license` above before you publish them." in text


def test_a_card_has_the_data_the_steps_and_the_scores_with_baselines(model, tmp_path):
    text = model_card(model, TOLD)
    assert "Pretrained on 12 tokens. Steps: 3 of 4 rows of 8 tokens." in text
    assert "| held-out mlm_accuracy | 0.5 | 0.25 |\n| held-out nsp_loss | 0.7 |  |" in text
    assert front_matter(text)["language"] == "en"
    assert front_matter(text)["base_model"] == "google/tiny"
    (tmp_path / CARD).write_text(text)
    assert read_training(tmp_path) == (TOLD, "")
    licensed = model_card(model, dataclasses.replace(TOLD, license="mit"))
    assert front_matter(licensed)["license"] == "mit"
    assert "The licence of the weights is mit." in licensed


@pytest.mark.parametrize(
    ("kind", "tag", "command"),
    [
        ("sequence", "text-classification", "classify --model=DIR"),
        ("token", "token-classification", "tag --model=DIR"),
        ("span", "question-answering", "answer --model=DIR"),
        ("choice", "multiple-choice", "choose --model=DIR"),
        ("mention", "feature-extraction", "resolve --model=DIR"),
    ],
)
def test_the_card_of_a_task_head_names_its_task_and_labels(tmp_path, kind, tag, command):
    labels = ("no", "yes", "perhaps") if kind in ("sequence", "token", "mention") else ()
    model = make_labelled_model(make_vocabulary(tmp_path / "v", cased=False), make_head(kind, labels=labels))
    text = model_card(model, Training())
    assert front_matter(text)["pipeline_tag"] == tag
    assert f"python -m bert_jax.predict {command}" in text
    assert ("Labels: no, yes, perhaps." in text) == bool(labels)
    of_pairs = model_card(dataclasses.replace(model, of_pairs=True), Training())
    assert ('classify --model=DIR "A text." "A second text."\n' in of_pairs) == (kind == "sequence")


def test_a_card_has_its_sections_in_order(vocabulary):
    head = make_head("sequence", labels=("no", "yes"), pooling="concat")
    model = dataclasses.replace(make_labelled_model(vocabulary, head), untrained=frozenset(["sequence_head"]))
    *text, _, _ = model_card(model, TOLD).splitlines()
    assert text == f"""---
license: "unknown"
language: "en"
library_name: "transformers"
pipeline_tag: "feature-extraction"
tags: ["bert_jax", "bert"]
base_model: "google/tiny"
---

# BERT: 2 layers, 16 wide, 4 heads

A model of bert_jax with {model.counts.in_words}, 140 pieces of a cased wordpiece vocabulary, and sequence_head.

Labels: no, yes.

Never trained: sequence_head.

## Training

Pretrained on 12 tokens. Steps: 3 of 4 rows of 8 tokens.

| score | this model | baseline |
|---|---|---|
| held-out mlm_accuracy | 0.5 | 0.25 |
| held-out nsp_loss | 0.7 |  |

## Use

```python
from transformers import AutoTokenizer, AutoModel

tokenizer = AutoTokenizer.from_pretrained("DIR")
model = AutoModel.from_pretrained("DIR")
```

transformers loads only the encoder, not this head.{" "}
With bert_jax:

    python -m bert_jax.predict classify --model=DIR "A text."

## Licence

The licence of the weights is not stated: set `license` above before you publish them.
""".splitlines()


def test_the_card_of_a_bilm_shows_how_to_embed(vocabulary):
    text = model_card(as_model(*make_model(vocabulary, encoder="bilm"), vocabulary), Training())
    assert front_matter(text)["tags"] == ["bert_jax", "bilm"]
    assert 'python -m bert_jax.predict embed --model=DIR "A text."' in text
    assert "transformers loads only" not in text


@pytest.mark.parametrize(("positions", "tag"), [("sinusoidal_halves", "translation"), ("rotary", None)])
def test_the_card_of_a_translator_shows_how_to_translate(vocabulary, positions, tag):
    """transformers only has a class for the first one."""
    text = model_card(make_translator(vocabulary, positions=positions), Training())
    assert front_matter(text).get("pipeline_tag") == tag
    assert ('model = AutoModelForSeq2SeqLM.from_pretrained("DIR")' in text) == ("from transformers" in text) == bool(tag)
    assert 'python -m bert_jax.predict translate --model=DIR "A text."' in text


def test_a_new_export_replaces_only_an_unchanged_card(model, tmp_path):
    export_model(tmp_path / "m", model, card=model_card(model, TOLD))
    export_model(tmp_path / "m", model)
    card = tmp_path / "m" / CARD
    assert "Not recorded." in card.read_text()
    changed = card.read_text().replace('license: "unknown"', "license: mit")
    for mine in (changed, "my own words\n", ""):
        card.write_text(mine)
        export_model(tmp_path / "m", model)
        assert card.read_text() == mine
    card.write_bytes(b"\xff latin")
    export_model(tmp_path / "m", model)
    assert card.read_bytes() == b"\xff latin"


def test_a_converted_card_has_the_training_of_its_source_and_the_changes(model, tmp_path):
    export_model(tmp_path / "run" / "model", model, card=model_card(model, TOLD))
    convert.main([f"--from={tmp_path / 'run'}", f"--to={tmp_path / 'six'}", "--layers=1"])
    convert.main([f"--from={tmp_path / 'six'}", f"--to={tmp_path / 'long'}", "--max-position=50"])
    text = (tmp_path / "long" / CARD).read_text()
    assert "Pretrained on 12 tokens." in text
    assert "| score | before the changes | baseline |" in text
    assert "Converted from run: layers: 2 -> 1 (kept: 0).\n" in text
    assert "Converted from six: position table: 40 -> 50 rows (new rows: copied).\n" in text


def test_scores_of_a_converted_card_are_of_the_same_model_unless_it_was_changed(model, tmp_path):
    export_model(tmp_path / "a", model, card=model_card(model, TOLD))
    converted = "Converted from b: without nsp_head; with new random weights: mlm_head.\n"
    for source, target, flags, heading, says in (
        ("a", "b", [], "this model", "Converted from a.\n"),
        ("b", "c", ["--drop=nsp_head", "--new=mlm_head"], "before the changes", converted),
        ("c", "d", [], "before the changes", converted),
    ):
        convert.main([f"--from={tmp_path / source}", f"--to={tmp_path / target}", *flags])
        card = (tmp_path / target / CARD).read_text()
        assert f"| score | {heading} | baseline |" in card
        assert says in card


def test_convert_keeps_a_card_written_by_a_person(model, tmp_path):
    export_model(tmp_path / "a", model)
    (tmp_path / "a" / CARD).write_text("---\nlicense: apache-2.0\nlanguage:\n- fr\n---\nMine.\n")
    assert read_training(tmp_path / "a")[0] == Training(license="apache-2.0", language="fr")
    convert.main([f"--from={tmp_path / 'a'}", f"--to={tmp_path / 'b'}"])
    assert (tmp_path / "b" / CARD).read_text() == (tmp_path / "a" / CARD).read_text()
    (tmp_path / "b" / CARD).write_text("of the target")
    convert.main([f"--from={tmp_path / 'a'}", f"--to={tmp_path / 'b'}"])
    assert (tmp_path / "b" / CARD).read_text() == "of the target"
    assert import_model(tmp_path / "b").parts == model.parts


def test_the_card_of_an_older_sentence_transformers_model_is_above_its_transformer(model, tmp_path):
    export_model(tmp_path / "old" / "0_BERT", model)
    (tmp_path / "old" / "0_BERT" / CARD).rename(tmp_path / "old" / CARD)
    (tmp_path / "old" / CARD).write_text(text := "---\nlicense: mit\n---\nMine.\n")
    assert read_training(tmp_path / "old" / "0_BERT") == (Training(), "")  # the folder is no part of a model
    (tmp_path / "old" / "modules.json").write_text('[{"path": "0_BERT"}]')
    for place in ("old", "old/0_BERT"):
        assert read_training(find_model_directory(tmp_path / place)) == (Training(license="mit"), text)


def test_a_card_with_a_score_that_is_too_large_for_a_float_counts_as_a_card_of_another_version(tmp_path):
    facts = dataclasses.asdict(Training()) | {"scores": [["accuracy", 10**400, None]]}
    (tmp_path / CARD).write_text(signed_card("Forged.\n", facts))
    assert read_training(tmp_path) == (Training(), "")


@pytest.mark.parametrize("form", ["stablehlo", "tf1"])
def test_exports_in_other_formats_have_cards_too(tiny, vocabulary, tmp_path, form):
    params, config = tiny
    model = as_model(params, config, vocabulary)
    export_model(tmp_path / "a", model, card=model_card(model, TOLD))
    if form == "tf1":
        fields = json.loads((tmp_path / "a" / "config.json").read_text())
        (tmp_path / "a" / "config.json").write_text(json.dumps(fields | {"layer_norm_eps": 1e-12}))
    flags = ["--function=pretraining", "--platforms=cpu"] if form == "stablehlo" else []
    for _ in range(2):
        convert.main([f"--from={tmp_path / 'a'}", f"--to={tmp_path / 'b'}", f"--format={form}", *flags])
        text = (tmp_path / "b" / CARD).read_text()
        assert (front_matter(text)["library_name"], front_matter(text)["tags"]) == ("bert_jax", ["bert_jax", "bert"])
        assert "Pretrained on 12 tokens." in text
        assert card_facts(text) is not None


def test_texts_cannot_end_the_comment_of_a_card(model, tmp_path):
    told = Training(data='--> <!-- "quoted" \n---', changes=("-->",))
    text = model_card(model, told)
    assert len(re.findall(r"<!-- bert_jax [0-9a-f]{16} ", text)) == 1
    (tmp_path / CARD).write_text(text)
    assert read_training(tmp_path) == (told, "")
    assert read_training(pathlib.Path("nowhere")) == (Training(), "")


def test_scores_of_pretraining_have_their_baselines():
    found = {"mlm_loss": 3.0, "mlm_accuracy": 0.5, "perplexity": 20.0, "nsp_loss": 0.6, "nsp_accuracy": 0.7, "loss": 3.6}
    found |= {"unigram_accuracy": 0.1, "unigram_loss": 6.0, "nsp_majority_accuracy": 0.52}
    assert card_scores(objective_of("mlm"), found) == [
        ("held-out mlm_loss", 3.0, 6.0),
        ("held-out mlm_accuracy", 0.5, 0.1),
        ("held-out perplexity", 20.0, None),
        ("held-out nsp_loss", 0.6, None),
        ("held-out nsp_accuracy", 0.7, 0.52),
    ]

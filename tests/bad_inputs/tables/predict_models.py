"""Bad inputs of `predict`: models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.bad_inputs.case import Case, Spoil, Table
from tests.bad_inputs.damage import cut, extra_tensors, flip, keys, remove, turned_round

CLASSIFY = "classify --model=$classifier"
RESOLVE = "resolve --model=$resolver"
OUTPUT = "embed --output"


def scored(name: str, says: str, spoil: Spoil | Sequence[Spoil] = (), files: Mapping[str, str] | None = None) -> Case:
    """A text is scored by a damaged copy of the model."""
    return Case(name, "score --model=model x", says, copies={"model": "model"}, spoil=spoil, files=files or {})


CASES = [
    # --------------------------------------------------------------------------------------------------------------- the model
    Case(
        "a model that is not there",
        "fill-mask --model=nowhere [MASK]",
        "there is no nowhere ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a directory that is no model",
        "fill-mask --model=. [MASK]",
        ". is not a model directory: config.json and model.safetensors missing",
    ),
    Case(
        "a model that is a file",
        "fill-mask --model=$train [MASK]",
        "$train is a file; name the directory that holds config.json and model.safetensors",
    ),
    Case(
        "word vectors",
        "embed --model=vectors x",
        "vectors holds vectors.bin.gz; convert it first: python -m bert_jax.convert --from=vectors --to=DIR",
        files={"vectors/vectors.bin.gz": b""},
    ),
    Case("an empty model", "fill-mask --model= [MASK]", "--model= is empty; give a name, or leave the flag out"),
    Case(
        "a model of the hub that cannot be had",
        "fill-mask --model=no/such-model [MASK]",
        "there is no directory no/such-model (looked for in ... and no model of that name ... check the network, or name",
        environment={"HF_HUB_OFFLINE": "1"},
    ),
    Case(
        "a checkpoint of the original",
        "fill-mask --model=$tf1 [MASK]",
        "$tf1 is a TensorFlow checkpoint; convert it first: python -m bert_jax.convert --from=$tf1 --to=DIR",
    ),
    Case(
        "a model without the head",
        "classify x",
        "$model has no sequence_head, so it cannot classify (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model that reads both sides, to go on with a text",
        "generate x",
        "$model reads both sides of a token, so it cannot generate text; name a model trained with config.model.direction",
    ),
    Case(
        "a model that reads from left to right, for a gap",
        "fill-mask --model=model [MASK]",
        "model reads from left to right, so it cannot fill a [MASK]; name a model trained with config.model.direction=both",
        copies={"model": "model"},
        spoil=keys("model/config.json", is_decoder=True),
    ),
    Case(
        "a model without the head of masks",
        "fill-mask --model=$classifier [MASK]",
        "$classifier has no mlm_head, so it cannot fill a [MASK] (it has pooler, sequence_head); name a model that can",
    ),
    Case(
        "a model without the head of pairs",
        "next-sentence --model=$classifier one two",
        "$classifier has no nsp_head, so it cannot judge whether sentences follow each other (it ... name a model that can",
    ),
    Case(
        "a model without the head of spans",
        "answer who 'it was ada'",
        "$model has no span_head, so it cannot answer questions (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of tags",
        "tag x",
        "$model has no token_head, so it cannot tag words (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of choices",
        "choose x a b",
        "$model has no choice_head, so it cannot choose (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    Case(
        "a model without the head of mentions",
        "resolve 'she saw ada and eve' she ada eve",
        "$model has no mention_head, so it cannot resolve pronouns (it has pooler, mlm_head, nsp_head); name a model that can",
    ),
    scored(
        "a model without its configuration",
        "model is not a model directory: config.json missing",
        spoil=remove("model/config.json"),
    ),
    scored(
        "a model without its weights",
        "model is not a model directory: model.safetensors missing",
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "a model without its vocabulary",
        "model holds neither vocab.txt nor spiece.model nor tokenizer.json",
        spoil=[remove("model/vocab.txt"), remove("model/tokenizer.json")],
    ),
    scored(
        "weights that are cut short",
        "model/model.safetensors (24,864 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        spoil=cut("model/model.safetensors", 100),
    ),
    scored(
        "weights without a beginning",
        "model/model.safetensors (24,964 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        spoil=flip("model/model.safetensors", 0),
    ),
    Case(
        "weights that are none",
        "score --model=model x",
        "model/model.safetensors (3,000 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        copies={"model": "model", "model/model.safetensors": "noise"},
    ),
    scored(
        "a configuration that is no JSON",
        "model/config.json cannot be read as JSON (Unterminated string starting at: line 24 column ... copy the model again",
        spoil=cut("model/config.json", 9),
    ),
    scored(
        "a configuration that is a list",
        "model/config.json holds no JSON object, but []; copy the model again",
        files={"model/config.json": "[]"},
    ),
    scored(
        "a configuration of another model",
        "model/model.safetensors does not hold the BERT that its config.json describes: other shapes than config.json",
        spoil=keys("model/config.json", hidden_size=32),
    ),
    scored(
        "a configuration without a shape",
        "model/config.json: hidden_size is missing, so the model's shape is unknown; copy the model's whole file",
        spoil=keys("model/config.json", hidden_size=None),
    ),
    scored(
        "a configuration with another activation",
        "model/config.json: hidden_act='swish' cannot be represented ... known: gelu, gelu_fast, gelu_new, gelu_python,",
        spoil=keys("model/config.json", hidden_act="swish"),
    ),
    scored(
        "a configuration with words for a number",
        "model/config.json: num_hidden_layers='one' must be a whole number",
        spoil=keys("model/config.json", num_hidden_layers="one"),
    ),
    scored(
        "a configuration of something else",
        "model/config.json: model_type='gpt2' cannot be represented; only model_type='bert' is supported",
        spoil=keys("model/config.json", architectures=["GPT2LMHeadModel"], model_type="gpt2"),
    ),
    scored(
        "relative positions",
        "model/config.json: position_embedding_type='relative_key' ... only position_embedding_type='absolute' is supported",
        spoil=keys("model/config.json", position_embedding_type="relative_key"),
    ),
    scored(
        "a decoder that does not say whether it is one",
        "model/config.json: is_decoder='maybe' must be true or false",
        spoil=keys("model/config.json", is_decoder="maybe"),
    ),
    scored(
        "one token type in place of two",
        "model/model.safetensors does not hold the BERT that its config.json describes: other shapes than config.json",
        spoil=keys("model/config.json", type_vocab_size=1),
    ),
    *(
        Case(
            f"a model with tensors of another class for {verb}",
            f"{verb} --model=model x",
            "not part of this model: mine.bias, mine.weight; `convert --drop='mine.*'` leaves them out",
            copies={"model": "model"},
            spoil=(extra_tensors("model", "mine.bias", "mine.weight"), keys("model/config.json", architectures=["MyBert"])),
        )
        for verb in ("embed", "score")
    ),
    Case(
        "ids of labels that do not count",
        "classify --model=model x",
        "model/config.json: the ids of id2label are [0, 2]; they must count 0, 1, 2, ...",
        copies={"model": "classifier"},
        spoil=keys("model/config.json", id2label={"0": "no", "2": "yes"}),
    ),
    Case(
        "labels that are a list",
        "classify --model=model x",
        'model/config.json: id2label=[\'no\', \'yes\'] must be an object such as {"0": "no", "1": "yes"}',
        copies={"model": "classifier"},
        spoil=keys("model/config.json", id2label=["no", "yes"]),
    ),
    Case(
        "a problem that is none",
        "classify --model=model x",
        "model/config.json: problem_type='guessing' is unknown ... known: single_label_classification,",
        copies={"model": "classifier"},
        spoil=keys("model/config.json", problem_type="guessing"),
    ),
    Case(
        "a vocabulary of another model",
        "score --model=model x",
        "model: the vocabulary has 132 entries but the model's vocab_size is 91; use the vocabulary that the model",
        copies={"model": "model", "model/vocab.txt": "vocabulary"},
        spoil=remove("model/tokenizer.json"),
    ),
    scored(
        "a vocabulary in another order",
        "model: id 5 is '.' in vocab.txt, is missing in tokenizer.json, which ... remove the one the model was not trained with",
        spoil=turned_round("model/vocab.txt", 5),
    ),
    scored(
        "a tokenizer that is no JSON",
        "model/tokenizer.json cannot be read as JSON (Expecting property name enclosed in double ... copy the file again",
        files={"model/tokenizer.json": "{"},
    ),
    scored(
        "an index of weights that is none",
        "model/model.safetensors.index.json is not an index of weight files (TypeError('list ... copy the model again",
        spoil=remove("model/model.safetensors"),
        files={"model/model.safetensors.index.json": "[]"},
    ),
    scored(
        "an index of weights that leaves the directory",
        "model/model.safetensors.index.json names '../x.safetensors', which is not a weights file in its directory;",
        files={"model/model.safetensors.index.json": json.dumps({"weight_map": {"a": "../x.safetensors"}})},
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "an index of weights that are not there",
        "model/model.safetensors.index.json names 1 file; missing: b.safetensors; copy the whole model",
        files={"model/model.safetensors.index.json": json.dumps({"weight_map": {"a": "b.safetensors"}})},
        spoil=remove("model/model.safetensors"),
    ),
    scored(
        "a configuration that nests without end",
        "model/config.json cannot be read as JSON (brackets are nested too deep); copy the model again",
        files={"model/config.json": "[" * 100_000},
    ),
    Case(
        "one label twice",
        "classify --model=model x",
        "model/config.json: id2label gives the outputs 0, 1 the same label 'no'; give each another label",
        copies={"model": "classifier"},
        spoil=keys("model/config.json", id2label={"0": "no", "1": "no"}, label2id=None),
    ),
    scored(
        "a tokenizer that nests without end",
        "model/tokenizer.json cannot be read as JSON (brackets are nested too deep); copy the file again",
        files={"model/tokenizer.json": "[" * 100_000},
    ),
]


TABLE = Table("predict", "--model=$model", CASES)

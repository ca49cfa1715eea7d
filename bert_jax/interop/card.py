"""Makes the model card of an export, a README.md with YAML front matter for the Hugging Face hub.

The card describes the model, its training data and steps, its scores with their baselines, and how to load the model. The last
line is a comment with the training facts and a hash of the text. The hash shows whether somebody has edited the card. An edited
card is never replaced."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from bert_jax.interface.words import counted
from bert_jax.interop.directory import CARD, card_facts, signed_card
from bert_jax.interop.families import FAMILIES, READ_AS_BERT
from bert_jax.interop.families.electra import CLASS, DISCRIMINATOR

UNKNOWN = "unknown"
"""The hub's name for a licence that is not stated."""


BEFORE_CHANGES = "before the changes"


@dataclasses.dataclass(frozen=True)
class Training:
    """The training section of a model's card. Every field may be empty."""

    data: str = ""
    """A sentence about the data."""
    steps: str = ""
    """A sentence about the number of steps and their batches."""
    scores: Sequence[tuple[str, float, float | None]] = ()
    """(name, score, score of the baseline or None)."""
    scored: str = "this model"
    """The heading of the column of scores. If a conversion has changed the model since, `BEFORE_CHANGES`."""
    changes: Sequence[str] = ()
    """Sentences about later conversions."""
    language: str = ""
    """The code of the language, such as "en"."""
    license: str = ""
    """The hub's name of the licence of the weights."""
    base_model: str = ""
    """The model that training started from."""


@dataclasses.dataclass(frozen=True)
class _Use:
    """The instructions for loading and using one kind of model."""

    pipeline: str
    """The hub's name of the task."""
    auto: str
    """The transformers class that loads the model."""
    command: str = ""
    """The arguments of `predict` for a model without a task head."""


_USES = {
    "MTModel": _Use("translation", "AutoModelForSeq2SeqLM", 'translate --model={} "A text."'),
    "LMHeadModel": _Use("text-generation", "AutoModelForCausalLM", 'generate --model={} "A text"'),
    "Model": _Use("feature-extraction", "AutoModel", 'embed --model={} "A text."'),
    CLASS: _Use("feature-extraction", "AutoModelForPreTraining", 'embed --model={} "A text."'),
    "ForPreTraining": _Use("fill-mask", "AutoModelForPreTraining", 'fill-mask --model={} "A {mask} text."'),
    "ForMaskedLM": _Use("fill-mask", "AutoModelForMaskedLM", 'fill-mask --model={} "A {mask} text."'),
    "ForNextSentencePrediction": _Use(
        "text-classification", "AutoModelForNextSentencePrediction", "next-sentence --model={} --input=FILE"
    ),
    "ForSequenceClassification": _Use("text-classification", "AutoModelForSequenceClassification"),
    "ForTokenClassification": _Use("token-classification", "AutoModelForTokenClassification"),
    "ForQuestionAnswering": _Use("question-answering", "AutoModelForQuestionAnswering"),
    "ForMultipleChoice": _Use("multiple-choice", "AutoModelForMultipleChoice"),
}
"""Suffix of the transformers class -> how a model with this head is used."""


def model_card(model: Any, training: Training, form: str = "huggingface") -> str:
    """Returns the text of the card of `model` (a `huggingface.Model`) in a format of `directory.FORMATS`. The card does not
    depend on the directory of the model, so equal models have equal cards."""
    head, config = model.head, model.config
    is_bert = config.has_attention and not config.translates
    family, architecture = model.family, model.architecture
    use = next(use for end, use in _USES.items() if architecture.endswith(end))
    command = use.command if head is None else head.command
    if head is not None and head.reads_pairs and model.of_pairs:
        command += ' "A second text."'
    if not is_bert and head is None:
        command = _USES["MTModel" if config.translates else "Model"].command
    loads = family.model_type in (*FAMILIES, *READ_AS_BERT) and form == "huggingface"
    front = {
        "license": training.license or UNKNOWN,
        **({"language": training.language} if training.language else {}),
        "library_name": "transformers" if loads else "bert_jax",
        **({"pipeline_tag": use.pipeline} if loads else {}),
        "tags": ["bert_jax", family.model_type if loads else "bert" if is_bert else config.encoder],
        **({"base_model": training.base_model} if training.base_model else {}),
    }
    vocabulary = model.tokenizer.vocabulary
    casing = "lower-cased" if vocabulary.lowercase else "cased"
    parts = DISCRIMINATOR if model.is_electra else ", ".join(model.parts)
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in front.items()), "---", ""]
    lines += [f"# {f'{family.title}: ' if is_bert else ''}{config.in_words}", ""]
    lines += [
        f"A model of bert_jax with {model.counts.in_words}, "
        f"{counted(vocabulary.size, 'piece')} of a {casing} {vocabulary.kind} vocabulary"
        f"{f', and {parts}' if parts else ''}."
    ]
    if head is not None and head.labels:
        lines += ["", f"Labels: {', '.join(head.labels)}."]
    if model.untrained:
        lines += ["", f"Never trained: {', '.join(sorted(model.untrained))}."]
    lines += ["", "## Training", ""]
    lines += [" ".join(sentence for sentence in (training.data, training.steps) if sentence) or "Not recorded."]
    if training.scores:
        lines += ["", f"| score | {training.scored} | baseline |", "|---|---|---|"]
        lines += [f"| {score} | {value:.4g} | {'' if bar is None else f'{bar:.4g}'} |" for score, value, bar in training.scores]
    lines += [line for change in training.changes for line in ("", change)]
    lines += ["", "## Use", ""]
    if loads:
        lines += [
            "```python",
            f"from transformers import AutoTokenizer, {use.auto}",
            "",
            'tokenizer = AutoTokenizer.from_pretrained("DIR")',
            f'model = {use.auto}.from_pretrained("DIR")',
            "```",
            "",
            *(["transformers loads only the encoder, not this head. "] if head and not family.has_class_for(head) else []),
        ]
    example = command.format("DIR", mask=model.tokenizer.pieces[model.tokenizer.mask_id])
    lines += _USE_OF_FORM.get(form, ["With bert_jax:", "", f"    python -m bert_jax.predict {example}"])
    lines += ["", "## Licence", ""]
    stated = f"The licence of the weights is {training.license}." if training.license else _NO_LICENCE
    return signed_card("\n".join([*lines, stated, ""]), dataclasses.asdict(training))


_NO_LICENCE = "The licence of the weights is not stated: set `license` above before you publish them."
_USE_OF_FORM = {
    "tf1": ["Read by the programs of the original BERT (google-research/bert), and by `python -m bert_jax.convert --from=DIR`."],
    "stablehlo": ["`signature.json` describes how to call `forward.stablehlo` with jax alone."],
    "word2vec": ["`vectors.txt` is in word2vec's text format; `python -m bert_jax.convert --from=DIR` reads it too."],
}


def read_training(directory: pathlib.Path) -> tuple[Training, str]:
    """Returns (training, text) from the card of the model in `directory`. If somebody has written or edited the card, `text` is
    the whole card, and `training` has only the licence and the language. Otherwise, `text` is "". The card of an older
    sentence-transformers model, whose Transformer is in a folder such as 0_BERT, is in the parent of this folder."""
    from bert_jax.interop.locate import transformer_folder  # with readers of foreign files, which a run does not need

    above = directory.absolute().parent
    if not (directory / CARD).is_file() and transformer_folder(above) == directory.absolute():
        directory = above
    try:
        text = (directory / CARD).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return Training(), ""
    facts = card_facts(text)
    if facts is None:
        return Training(license=_front(text, "license"), language=_front(text, "language")), text
    try:
        found: dict[str, Any] = {field.name: str(facts[field.name]) for field in dataclasses.fields(Training)}
        found["scores"] = tuple((str(name), float(x), None if bar is None else float(bar)) for name, x, bar in facts["scores"])
        found["changes"] = tuple(map(str, facts["changes"]))
        return Training(**found), ""
    except (KeyError, TypeError, ValueError, OverflowError):  # another version wrote the card
        return Training(), ""


def _front(text: str, key: str) -> str:
    """Returns the value of `key` in the YAML front matter of a card, or "" if it is missing. If the value is a list, returns
    its first item."""
    matter = re.match(r"---\n(.*?)\n---", text, re.DOTALL)
    found = re.search(rf"^{key}:[ \t]*+(?:\n[ \t]*+)?(?:- ++)?[\"']?([\w.-]+)", matter[1] if matter else "", re.MULTILINE)
    return found[1] if found else ""

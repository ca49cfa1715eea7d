"""Loads the model that a pretraining or fine-tuning run starts from (`config.init_from`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import Model, NewParts, import_model, part_names, without_parts

log = logging.getLogger(__name__)


def load_start(init_from: str, *, init_new: str, init_drop: str = "", seed: int, vocab_multiple: int) -> Model:
    """Loads the model. The parts in `init_new` start from random weights drawn with `seed`. The parts in `init_drop` are
    dropped. Raises UserError if any other part is missing or unknown."""
    new = NewParts(part_names(init_new), seed=seed)
    return import_model(init_from, vocab_multiple=vocab_multiple, new=new, drop=part_names(init_drop))


def trained_parts(
    model: Model,
    init_from: str,
    *,
    trained: Collection[str],
    needed: Sequence[str],
    init_new: str,
    why_needed: str = "",
    why_unused: str,
) -> Model:
    """Returns `model` with only the parts `trained`, which the run trains. Dropped parts are logged with the reason `why_unused`.

    Raises UserError if one of the `needed` parts is missing and not in `init_new`. `why_needed` completes the message.
    """
    if absent := [part for part in needed if part not in model.params]:
        them = "them" if len(absent) > 1 else "it"
        raise UserError(
            f"config.init_from={init_from} has no {' and no '.join(absent)}{why_needed}; to start {them} from random "
            f"weights, give --config.init_new={','.join((*part_names(init_new), *absent))}"
        )
    unused = [part for part in model.parts if part not in trained]
    if unused:
        log.info("%s, left out: %s", why_unused, ", ".join(unused))
    return without_parts(model, unused)


def same_vocabulary(one: VocabularyInfo, other: VocabularyInfo) -> bool:
    """Returns whether two models tokenise text identically."""

    def rules(vocabulary: VocabularyInfo) -> tuple[str, bool, bool | None, bool]:
        return vocabulary.sha256, vocabulary.lowercase, vocabulary.strip_accents, vocabulary.split_cjk

    return rules(one) == rules(other)

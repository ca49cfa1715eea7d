"""Tags of a model with a CRF, compared with its functions on the unpacked words."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bert_jax.model.crf import Chain, Transitions, best_labels, log_marginals
from bert_jax.model.heads.outputs import EXCLUDED
from bert_jax.model.heads.token import TokenHead
from tests.prediction.reference import WITHIN, label_outputs, mixed_texts

pytestmark = pytest.mark.usefixtures("one_shape")

CRF = TokenHead(labels=("I-PER", "O", "I-LOC", "B-PER", "B-LOC"), crf="iob2", layers="scalar_mix")


def test_a_crf_gives_a_text_the_best_labels_of_its_words_together(labelled):
    """The comparison is over the first pieces, in the unpacked model; the marginal probabilities of `log_marginals` are tested
    too."""
    model, predictor = labelled(CRF)
    texts = [f"{text}, Zurich!" for text in mixed_texts(40, longest=25, seed=5)]
    answers, together = predictor.tag(texts), 0
    between, start = CRF.excluded_transitions()
    own = model.params["token_head"]["crf"]
    values = np.where(between, EXCLUDED, own["between"]), np.where(start, EXCLUDED, own["start"]), own["end"]
    allowed = Transitions(*(np.asarray(x, np.float32) for x in values))
    for i in (0, 1, 20, 39):
        ids, firsts, _ = model.tokenizer.encode_words([tag["word"] for tag in answers[i]["tags"]])
        scores = label_outputs(model, [model.tokenizer.cls_id, *ids, model.tokenizer.sep_id])[1:-1][firsts]
        padding = 40 - len(scores)
        words = np.pad(np.ones((1, len(scores)), np.int32), ((0, 0), (0, padding)))
        chain = Chain(np.pad(np.float32(scores), ((0, padding), (0, 0)))[None], words, words)
        best = np.asarray(jax.jit(best_labels)(chain, allowed)[0])[0, : len(scores)]
        marginals = np.exp(jax.jit(log_marginals)(chain, allowed))[0]
        (alone,) = predictor.tag([texts[i]])
        for answer in (answers[i], alone):
            assert [tag["label"] for tag in answer["tags"]] == [CRF.labels[label] for label in best]
            expected = marginals[np.arange(len(best)), best]
            np.testing.assert_allclose([tag["probability"] for tag in answer["tags"]], expected, atol=WITHIN)
        together += (best != scores.argmax(-1)).sum()
    assert together, "the transitions decide"

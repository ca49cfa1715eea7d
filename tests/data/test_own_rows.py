"""Kinds of rows in users' files: what they inherit, how they are checked, and what a run stores of them."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest

from bert_jax.configs.pretraining import PretrainingExperiment
from bert_jax.data.batches import check_own_rows, eval_batches
from bert_jax.data.config import ExampleConfig
from bert_jax.errors import UserError
from tests.data.corpora import FIRST, corpus_of, random_documents

DENOISING = pathlib.Path(__file__).parents[2] / "experiments" / "extensions" / "denoising.py"
CORPUS = corpus_of(random_documents(300, seed=5), shards=3)
KINDS = '''
import itertools
import numpy as np
from bert_jax.data.kinds_of_rows import Masked, Next, PairRows, Rows
from bert_jax.data.plan import Pairs, translations
from bert_jax.data.rows import token_spans
from bert_jax.objectives.objective import Objective

calls = itertools.count()


class Joined(Masked):
    """Texts and their translations in one text, [CLS] A [SEP] B [SEP] (XLM, arXiv:1901.07291, section 3.3)."""

    parallel = True

    def special_tokens(self, config):
        return 3

    def spans(self, sentence_offsets, document_offsets, config, key):
        pairs = translations(sentence_offsets, document_offsets, config)
        fits = pairs.a_length + pairs.b_length <= config.max_tokens
        return Pairs(**{name: values[fits] for name, values in vars(pairs).items()})


class Impure(Next):
    def assemble(self, *arguments):
        batch = super().assemble(*arguments)
        batch["input_ids"][0, 1] = next(calls)
        return batch


class Long(Next):
    def assemble(self, *arguments):
        return {name: array.astype(np.int64) for name, array in super().assemble(*arguments).items()}


class More(Next):
    def assemble(self, *arguments):
        return super().assemble(*arguments) | {"more": np.zeros((3, 2), np.int32)}


class Nothing(Next):
    predicted = "labels"


class Full(Next):
    def assemble(self, corpus, plan, rows, tables):
        return super().assemble(corpus, plan, np.maximum(rows, 0), tables)


class TooLong(PairRows):
    reads = ("masked_fraction",)

    def sides(self, corpus, plan, examples, tables):
        starts, lengths = plan.pairs.a_start[examples], plan.pairs.a_length[examples].astype(np.int64) + 9
        return ((token_spans(corpus.tokens, starts, lengths), lengths),) * 2


class Unfinished(Rows):
    predicted = "targets"


class Own(Objective):
    rows = Joined
    scores = {"my loss": ("mine", "masked")}

    def sums(self, params, batch, seed):
        return {}

    def loss(self, sums, counts):
        return 0


class Given(Own):
    rows = Next


class Number(Own):
    rows = 3


class Builtin(Own):
    rows = dict


class Misspelt(Own):
    rows = "maskd"
'''


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("mine") / "kinds.py"
    path.write_text(KINDS)
    return path


def config_of(file: pathlib.Path, name: str, **changes: object) -> ExampleConfig:
    return ExampleConfig(**({"length": 32, "max_predictions": 8, "pairs": "none", "targets": f"{file}:{name}"} | changes))


def test_a_kind_that_inherits_from_masked_joins_texts_and_translations(file: pathlib.Path):
    corpus = dataclasses.replace(corpus_of([[1 + n % 5, 1 + n % 7] for n in range(60)]), languages=("en", "de"))
    config = config_of(file, "Joined", mask_probability=0.0, random_probability=0.0)
    (batch,) = eval_batches(corpus, config, 60, None, 0)
    check_own_rows(corpus, config)
    found = {tuple(ids[real > 0].tolist()) for ids, real in zip(batch["input_ids"], batch["sequence_ids"], strict=True)}
    tokens, texts = np.arange(FIRST, FIRST + corpus.num_tokens).tolist(), set()
    for n in range(60):
        a, b = 1 + n % 5, 1 + n % 7
        texts.add((101, *tokens[:a], 102, *tokens[a : a + b], 102))
        tokens = tokens[a + b :]
    assert found == texts
    assert ((batch["masked_targets"] >= 0).sum(1) > 0).all()
    assert (batch["nsp_labels"] == -1).all()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Impure", "kinds.py:Impure makes other rows when the same rows are made again .*; draw with random_bits from exam"),
        ("Long", r"assemble returns int64 \(3, 1\) for 'cls_positions', but widths declares int32 \(3, 1\); make them equal"),
        ("More", r"assemble returns int32 \(3, 2\) for 'more', but widths declares nothing; make them equal"),
        ("Nothing", "widths lacks 'labels', which every kind of rows needs; add it"),
        ("Full", "the row with the index -1 is not empty; its 'sequence_ids' must be 0, and its 'masked_targets' must be -1"),
        ("TooLong", "puts .* tokens into a row of 32; a text of sides must have fewer tokens than lengths returns"),
    ],
)
def test_a_kind_that_breaks_its_declaration_is_refused(file: pathlib.Path, name: str, says: str):
    with pytest.raises(UserError, match=says):
        check_own_rows(CORPUS, config_of(file, name))


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("Unfinished", {}, "kinds.py:Unfinished has no assemble and no widths; see the class Rows"),
        ("TooLong", {"pairs": "original"}, "pairs=original makes pairs of texts, but targets=.*:TooLong needs none; set"),
        ("TooLong", {"masking": "spans"}, "masking=spans masks words, but targets=.*:TooLong needs no masks; leave masking out"),
        ("Joined", {"max_predictions": 30}, "max_predictions=30 must be at most 29, because a row of length=32"),
    ],
)
def test_settings_that_do_not_apply_to_a_kind_are_refused(file: pathlib.Path, name: str, changes: dict[str, object], says: str):
    with pytest.raises(UserError, match=says):
        config_of(file, name, **changes)


def test_an_objective_names_its_class_of_rows_and_a_run_stores_file_and_name(file: pathlib.Path):
    values = {"phases": [{"steps": 1}], "examples": {"pairs": "none"}}
    (file.parent / "other.py").write_text("import kinds\n\n\nclass Other(kinds.Own):\n    pass\n")
    stored = {}
    for name in ("kinds.py:Own", "kinds.py:Given", "other.py:Other"):
        experiment = PretrainingExperiment.from_dict(values | {"objective": f"{file.parent}/{name}"})
        stored[name] = experiment.example_config(0).targets
        assert PretrainingExperiment.from_dict(experiment.to_dict()) == experiment
    joined = f"{file}:Joined"
    assert stored == {"kinds.py:Own": joined, "kinds.py:Given": "next", "other.py:Other": joined}
    for name, says in {
        "Number": "Number has rows=3; name one of masked, next, centres, translated, or a class at the top of your file",
        "Builtin": "Builtin has rows=<class 'dict'>; name one of",
        "Misspelt": "config.examples.targets='maskd' is not one of masked, next, centres, translated",
    }.items():
        with pytest.raises(UserError, match=says):
            PretrainingExperiment.from_dict(values | {"objective": f"{file}:{name}"})


def test_a_phase_of_rows_without_a_limit_predicts_every_token_and_another_fraction_changes_nothing_else(file: pathlib.Path):
    model = {"encoder": "encoder_decoder", "decoder_layers": 1, "type_vocab_size": 0}
    phases = [{"steps": 1, "length": 32}]
    values = {"objective": f"{DENOISING}:Denoising", "phases": phases, "model": model, "examples": {"pairs": "none"}}
    assert PretrainingExperiment.from_dict(values).phases[0].max_predictions == 32
    config = config_of(file, "TooLong")
    assert vars(config.with_masked_fraction(0.2)) == vars(config) | {"masked_fraction": 0.2}


def test_an_example_of_the_page_is_checked_and_does_not_depend_on_its_row():
    alone = ExampleConfig(length=48, max_predictions=48, pairs="none", targets=f"{DENOISING}:Denoised")
    check_own_rows(CORPUS, alone)
    every = []
    for config in (alone, dataclasses.replace(alone, packed_examples=4)):
        (batch,) = eval_batches(CORPUS, config, 10_000, None, 1)
        rows = zip(batch["input_ids"], batch["sequence_ids"], strict=True)
        every.append(sorted(tuple(ids[of == n].tolist()) for ids, of in rows for n in range(1, of.max() + 1)))
    assert every[0] == every[1]

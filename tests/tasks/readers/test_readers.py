from __future__ import annotations

import gzip
import json
import pathlib
from collections import Counter

import pytest

from bert_jax.errors import UserError
from bert_jax.tasks.examples import ChoiceExample, PronounExample, QuestionExample, TextExample, WordsExample
from bert_jax.tasks.readers.conll import first_with_tag, read_conll
from bert_jax.tasks.readers.conllu import read_conllu
from bert_jax.tasks.readers.gap import read_gap
from bert_jax.tasks.readers.sick import read_sick
from bert_jax.tasks.readers.squad import nearest_place, read_squad
from bert_jax.tasks.readers.swag import read_codah, read_swag


def put(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_bytes(text.encode())
    return path


def squad(path: pathlib.Path, context: str, *questions: dict) -> pathlib.Path:
    entries = [{"id": f"q{i}", "question": "Who?", **question} for i, question in enumerate(questions)]
    paragraphs = [{"context": context, "qas": entries}]
    return put(path, json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def answer(text: str, start: int) -> dict:
    return {"text": text, "answer_start": start}


def test_both_versions_of_squad_are_read(tmp_path: pathlib.Path):
    context = " Añna 🎉 and Bo"  # nothing is stripped: offsets are counted from the first character
    path = squad(
        tmp_path / "a.json",
        context,
        {"answers": [answer("Bo", 12), answer("Añna", 1)]},
        {"answers": [answer("Bo", 12)], "is_impossible": True, "plausible_answers": [answer("Bo", 12)]},
        {},
    )
    assert read_squad(path) == [
        QuestionExample("q0", "Who?", context, (("Bo", 12), ("Añna", 1)), False),
        QuestionExample("q1", "Who?", context, (), True),
        QuestionExample("q2", "Who?", context, (), False),
    ]


def test_an_answer_with_a_wrong_offset_is_moved_to_the_nearest_match(tmp_path: pathlib.Path):
    context = "two one two one"
    path = squad(tmp_path / "a.json", context, {"answers": [answer("two", 7), answer("one", 90), answer("six", 0)]})
    said: list[str] = []
    assert read_squad(path, say=said.append)[0].answers == (("two", 8), ("one", 12), ("six", None))
    assert len(said) == 2
    assert "moved 2 answers to the nearest place with the same text" in said[0]
    assert "1 answer not found in the context" in said[1]


def test_the_nearest_match_equals_an_exhaustive_search():
    context = "aabaaabab"
    for text in ("a", "ab", "ba", "aba", "c"):
        places = [i for i in range(len(context)) if context.startswith(text, i)]
        for start in range(-2, 14):
            inside = min(max(start, 0), len(context))
            wanted = min(places, key=lambda place, at=inside: (abs(place - at), place), default=None)
            assert nearest_place(context, text, start) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", r"the file: \[\] is not an object"),
        ('{"date": []}', "the file: there is no 'data'; did you mean 'date'"),
        ('{"data": []}', "has no questions"),
        ('{"data": [{"paragraphs": [{"context": 1}]}]}', r"data\[0\]\.paragraphs\[0\]\.context: 1 is not a text"),
        ('{"data": [{"paragraphs": [{"context": "\\ud83d"}]}]}', r"paragraphs\[0\]\.context: has half a surrogate pair"),
    ],
)
def test_an_invalid_squad_file_is_refused_with_the_position(tmp_path: pathlib.Path, text: str, message: str):
    with pytest.raises(UserError, match=message):
        read_squad(put(tmp_path / "a.json", text))


def test_an_answer_with_half_of_a_character_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"qas\[0\]\.answers: an answer has half a surrogate pair"):
        read_squad(squad(tmp_path / "a.json", "c", {"answers": [answer("\ud83d", 0)]}))


def test_two_questions_of_one_id_and_an_empty_answer_are_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match="another question has the same id 'same'"):
        read_squad(squad(tmp_path / "a.json", "c", {"id": "same"}, {"id": "same"}))
    with pytest.raises(UserError, match=r"qas\[0\]\.answers: has the text \"\" with the start 0; give a text and a whole number"):
        read_squad(squad(tmp_path / "a.json", "c", {"answers": [answer("", 0)]}))


def test_conll_2003_has_documents_and_columns_between_spaces(tmp_path: pathlib.Path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nwins VBZ I-VP O\n\n# NN I-NP O\n"
    text += "-DOCSTART- -X- -X- O\n\n\nBonn NNP I-NP I-LOC"
    path = put(tmp_path / "a.txt", text)
    assert read_conll(path) == [
        WordsExample("0", ("EU", "wins"), ("I-ORG", "O"), 1),
        WordsExample("1", ("#",), ("O",), 1),
        WordsExample("2", ("Bonn",), ("I-LOC",), 2),
    ]
    assert [e.labels for e in read_conll(path, tag=1)] == [("NNP", "VBZ"), ("NN",), ("NNP",)]
    assert [e.labels for e in read_conll(path, tag=None)] == [None] * 3


def test_tabs_separate_columns_and_words_may_contain_hashes_and_unusual_spaces(tmp_path: pathlib.Path):
    text = "# a comment\r\n#tag\tO\r\nx y\u2028z\tB-a\r\n\t\r\n# O\r\nlast\tO\r\n"  # in WNUT-17 a lone TAB separates sentences
    assert read_conll(put(tmp_path / "a.conll", text)) == [
        WordsExample("0", ("#tag", "x y\u2028z"), ("O", "B-a"), 0),
        WordsExample("1", ("last",), ("O",), 1),  # no document is marked: each sentence is one
    ]


def test_blanks_around_a_column_are_not_part_of_it(tmp_path: pathlib.Path):
    wanted = [WordsExample("0", ("a", "b"), ("B-X", "I-X"), 0), WordsExample("1", ("c",), ("O",), 1)]
    for text in ("a\tB-X \n b\tI-X\u00a0\n\nc \tO\n", "a  B-X \nb I-X\u00a0\n\n  c   O\n"):
        assert read_conll(put(tmp_path / "a.conll", text)) == wanted
    path = put(tmp_path / "b.conll", "a\tB-X\nb\tX \n")
    assert first_with_tag(path, "X") == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tO\nb\n", "line 2: the line has 1 column, but other lines have 2"),
        ("a\tO\n\n\tO\n", "line 3: the word is empty"),
        ("a\tO\nb\t\n", "line 2: the tag is empty"),
        ("a\tB-x,I-y\n", "line 1: B-x,I-y has several tags"),
        ("-DOCSTART- O\n", "has no words"),
    ],
)
def test_bad_lines_of_conll_are_named(tmp_path: pathlib.Path, text: str, message: str):
    path = put(tmp_path / "a.conll", text)
    with pytest.raises(UserError, match=message) as error:
        read_conll(path)
    assert str(error.value).startswith(str(path))


def test_the_mark_of_a_document_may_have_fewer_columns_than_a_word(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.conll", "-DOCSTART-\n\nEU B-ORG\n")
    assert read_conll(path) == [WordsExample("0", ("EU",), ("B-ORG",), 1)]
    assert read_conll(path, tag=-2)[0].labels == ("EU",), "the first column, from the last"


def test_a_missing_column_is_refused(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"has 2 columns, but no column tag=3; give an index from -2 to 1"):
        read_conll(put(tmp_path / "a.conll", "a\tO\n"), tag=3)


CONLLU = (
    "# newdoc id = a\n# text = I don't\n1\tI\tI\tPRON\tPRP\t_\t2\tnsubj\t_\t_\n2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    "2\tdo\tdo\tAUX\tVBP\t_\t0\troot\t_\t_\n3\tn't\tnot\tPART\tRB\t_\t2\tadvmod\t_\t_\n3.1\tgo\tgo\tVERB\tVB\t_\t_\t_\t2:x\t_\n\n"
    "# newdoc id = b\n1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_"
)


def test_conllu_words_leave_out_ranges_and_empty_nodes(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.conllu", CONLLU)
    assert read_conllu(path) == [
        WordsExample("0", ("I", "do", "n't"), ("PRON", "AUX", "PART"), 0),
        WordsExample("1", ("No",), ("INTJ",), 1),
    ]
    assert [e.labels for e in read_conllu(path, column="xpos")] == [("PRP", "VBP", "RB"), ("UH",)]
    with pytest.raises(UserError, match="column='xpo' is not a column of tags; did you mean 'xpos'"):
        read_conllu(path, column="xpo")
    with pytest.raises(UserError, match="line 4: the line has 4 columns"):
        read_conllu(put(tmp_path / "b.conllu", CONLLU.replace("\t_\t_\t_\t_\t_\t_\t_\t_\n", "\t_\t_\n")))
    with pytest.raises(UserError, match="line 3: 'I' has no xpos"):
        read_conllu(put(tmp_path / "b.conllu", CONLLU.replace("PRP", "_")), column="xpos")


@pytest.mark.parametrize(
    ("good", "faulty", "message"),
    [
        ("\tNo\tno", "\t\tno", "line 10: column 2, the word, is empty; correct the line"),
        ("\tPRON\t", "\t\t", "line 3: 'I' has no upos; choose the other column, or tag the file first"),
        ("1\tI", "x\tI", "line 3: 'x' is not an ID of CoNLL-U, such as 1, 1-2 or 8.1; correct the line"),
    ],
)
def test_bad_lines_of_conllu_are_named(tmp_path: pathlib.Path, good: str, faulty: str, message: str):
    with pytest.raises(UserError, match=message):
        read_conllu(put(tmp_path / "a.conllu", CONLLU.replace(good, faulty)))


def test_a_treebank_without_tags_is_unlabelled_if_allowed(tmp_path: pathlib.Path):
    bare = CONLLU.replace("PRON", "_").replace("AUX", "_").replace("PART", "_").replace("INTJ", "_")
    read = read_conllu(put(tmp_path / "a.conllu", bare), may_lack_tags=True)
    assert [(e.words, e.labels) for e in read] == [(("I", "do", "n't"), None), (("No",), None)]
    with pytest.raises(UserError, match="line 3: 'I' has no upos"):
        read_conllu(tmp_path / "a.conllu")
    with pytest.raises(UserError, match="line 3: 'I' has no upos"):  # tags for some of the words are an error
        read_conllu(put(tmp_path / "a.conllu", CONLLU.replace("PRON", "_")), may_lack_tags=True)


SWAG = ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"


def test_swag_choices_start_with_the_second_sentence(tmp_path: pathlib.Path):
    row = '0,v,1,"Ada, sits. She","Ada, sits.",She,gold,"sings, well.",eats.,"says ""no"".",runs.'
    choices = ("She sings, well.", "She eats.", 'She says "no".', "She runs.")
    assert read_swag(put(tmp_path / "a.csv", f"{SWAG},label\n{row},2\n")) == [ChoiceExample("0", "Ada, sits.", choices, 2)]
    assert read_swag(put(tmp_path / "a.csv", f"{SWAG}\n{row}\n")) == [ChoiceExample("0", "Ada, sits.", choices, None)]
    assert read_swag(put(tmp_path / "a.csv", f"{SWAG},label\n{row},-1\n")) == [ChoiceExample("0", "Ada, sits.", choices, None)]
    with pytest.raises(UserError, match=r"a\.csv, line 2: label is '-1', not an integer from 0 to 3"):
        read_swag(put(tmp_path / "a.csv", f"{SWAG},label\n{row},-1\n{row},2\n"))
    (alone,) = read_swag(put(tmp_path / "a.csv", f"{SWAG}\n{row.replace(',She,', ',,')}\n"))
    assert alone.choices == tuple(choice.removeprefix("She ") for choice in choices), "sent2 may be empty"
    with pytest.raises(UserError, match=r"line 1: the only column is '.*\.\.\.'; separate columns with commas, not with ';'"):
        read_swag(put(tmp_path / "a.csv", f"{SWAG}\n{row}\n".replace(",", ";")))
    with pytest.raises(UserError, match="line 2: label is '4', not an integer from 0 to 3"):
        read_swag(put(tmp_path / "a.csv", f"{SWAG},label\n{row},4\n"))
    with pytest.raises(UserError, match="line 2: ending1 is empty; correct the row, or remove it"):
        read_swag(put(tmp_path / "a.csv", f"{SWAG}\n{row.replace('eats.', '')}\n"))


def test_codah_has_no_header_and_may_have_no_category(tmp_path: pathlib.Path):
    path = put(tmp_path / "a.tsv", '\tShe\truns.\t"eats.\tsits.\tsings.\t3\n')
    assert read_codah(path) == [ChoiceExample("0", "She", ("runs.", '"eats.', "sits.", "sings."), 3)]
    with pytest.raises(UserError, match="line 1: the row has 2 columns, but there are 7 column names"):
        read_codah(put(tmp_path / "a.tsv", "o\tShe\n"))
    with pytest.raises(UserError, match="line 1: the first row has the column names; remove this row"):
        read_codah(put(tmp_path / "a.tsv", "category\tprompt\t0\t1\t2\t3\tlabel\n"))
    with pytest.raises(UserError, match="line 1: prompt is empty; correct the row, or remove it"):
        read_codah(put(tmp_path / "a.tsv", "o\t \ta\tb\tc\td\t0\n"))


GAP = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"


def gap_row(a: str = "FALSE", b: str = "TRUE", pronoun: str = "Her", offset: int | str = 14) -> str:
    return f"t-1\t“Ann” and Bea. Her dog.\t{pronoun}\t{offset}\tAnn\t1\t{a}\tBea\t10\t{b}\thttp://x\n"


def test_gap_rows_have_their_labels_and_genders(tmp_path: pathlib.Path):
    offset = "“Ann” and Bea. Her dog.".index("Her")
    read = read_gap(put(tmp_path / "a.tsv", GAP + gap_row(offset=offset)))
    text = "“Ann” and Bea. Her dog."
    assert read == [PronounExample("t-1", text, "Her", offset, "Ann", 1, "Bea", 10, "B", "feminine")]
    rows = gap_row("True", "false", offset=offset) + gap_row("FALSE", "FALSE", offset=offset).replace("t-1", "t-2")
    assert [e.label for e in read_gap(put(tmp_path / "a.tsv", GAP + rows))] == ["A", "neither"]
    blind = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tB\tB-offset\nx\tBo and Al: his.\this\t11\tBo\t0\tAl\t7\n"
    read = read_gap(put(tmp_path / "a.tsv", blind))
    assert [(e.label, e.gender) for e in read] == [(None, "masculine")]
    for name in ("A-coref", "B-coref"):
        with pytest.raises(UserError, match=f"line 1: there is no column '{name}'"):
            read_gap(put(tmp_path / "a.tsv", GAP.replace(name, "other") + gap_row(offset=offset)))


def test_gap_offsets_are_checked(tmp_path: pathlib.Path):
    with pytest.raises(UserError, match=r"line 2: Pronoun is 'Her', but the text at Pronoun-offset=14 is ' He'"):
        read_gap(put(tmp_path / "a.tsv", GAP + gap_row(offset=14)))
    with pytest.raises(UserError, match="A-coref and B-coref are both TRUE"):
        read_gap(put(tmp_path / "a.tsv", GAP + gap_row("TRUE", offset=15)))
    with pytest.raises(UserError, match=r"line 3: the ID 't-1' is also in line 2, .*; give each row its own ID"):
        read_gap(put(tmp_path / "a.tsv", GAP + gap_row(offset=15) * 2))
    for offset in ("9" * 5_000, "²", "-1"):
        with pytest.raises(UserError, match=r"line 2: Pronoun-offset is .*, not an integer from 0; correct the row"):
            read_gap(put(tmp_path / "a.tsv", GAP + gap_row(offset=offset)))
    with pytest.raises(UserError, match="line 2: A-coref is 'yes', not TRUE or FALSE"):
        read_gap(put(tmp_path / "a.tsv", GAP + gap_row("yes", offset=15)))


def test_gap_rows_that_cannot_be_read_are_left_out_on_request(tmp_path: pathlib.Path):
    told: list[str] = []
    rows = gap_row(offset=15) + gap_row(offset=15).replace("\thttp", "\tx\thttp") + gap_row(offset=14).replace("t-1", "t-2")
    assert [e.id for e in read_gap(put(tmp_path / "a.tsv", GAP + rows), told.append)] == ["t-1"]
    columns, offset = told
    assert "line 3: the row has 12 columns, but the first line has more or fewer; correct the row" in columns
    assert "line 4: Pronoun is 'Her', but the text at Pronoun-offset=14" in offset


SICK = (
    "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\tentailment_AB\tentailment_BA\tsentence_A_original\t"
    "sentence_B_original\tsentence_A_dataset\tsentence_B_dataset\tSemEval_set\n"
)


def test_sick_has_two_labels_and_three_sets_in_one_file(tmp_path: pathlib.Path):
    rows = "3\tA.\tB.\tNEUTRAL\t4.5\tx\ty\ta\tb\tF\tF\tTRAIN\n5\tC.\tD.\tENTAILMENT\t5\tx\ty\tc\td\tF\tF\tTRIAL\n"
    path = put(tmp_path / "SICK.txt", SICK + rows)
    assert read_sick(path, "train") == [TextExample("3", "A.", "B.", "NEUTRAL")]
    assert read_sick(path, "dev", label="relatedness") == [TextExample("5", "C.", "D.", 5.0)]
    with pytest.raises(UserError, match="no rows whose SemEval_set is TEST"):
        read_sick(path, "test")
    with pytest.raises(UserError, match="no label 'relatednes'; did you mean 'relatedness'"):
        read_sick(path, "train", label="relatednes")
    with pytest.raises(UserError, match="line 2: sentence_B is empty; correct the row, or remove it"):
        read_sick(put(tmp_path / "b.txt", SICK + rows.replace("B.", "")), "train")
    with pytest.raises(UserError, match="line 2: relatedness_score is '45', not a number from 1 to 5"):
        read_sick(put(path, SICK + rows.replace("4.5", "45")), "train", label="relatedness")


def test_real_questions_are_read_with_exact_offsets(shared_data: pathlib.Path):
    counts = {"train-v1.1": 8582, "dev-v1.1": 1232, "train-v2.0": 8017, "dev-v2.0": 2227}
    said: list[str] = []
    for name, count in counts.items():
        questions = read_squad(shared_data / "squad" / f"{name}.json", say=said.append)
        assert len(questions) == count
        assert all(bool(question.answers) != question.is_impossible for question in questions)
        assert all(q.context[start or 0 :].startswith(text) for q in questions for text, start in q.answers)
        assert any(question.is_impossible for question in questions) == name.endswith("2.0")
    assert said == []


def test_real_words_are_read(shared_data: pathlib.Path):
    wnut = shared_data / "wnut17"
    counts = {"wnut17train.conll": 3394, "emerging.dev.conll": 1009, "emerging.test.annotated": 1287}
    read = {name: read_conll(wnut / name) for name in counts}
    assert {name: len(sentences) for name, sentences in read.items()} == counts
    assert sum(len(sentence.words) for sentence in read["emerging.test.annotated"]) == 23_394
    tags = Counter(tag for sentences in read.values() for sentence in sentences for tag in sentence.labels or ())
    assert len(tags) == 13  # B and I of six kinds, and O
    with pytest.raises(UserError, match="several tags"):
        read_conll(wnut / "emerging.test.conll")


def test_a_real_treebank_is_read(shared_data: pathlib.Path):
    path = shared_data / "ud_english_ewt" / "en_ewt-ud-dev.conllu.gz"
    read = read_conllu(path)
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")
    assert len(read) == 2001
    assert sum(len(sentence.words) for sentence in read) == sum(line.split("\t")[0].isdigit() for line in lines)
    assert read[-1].document == sum(line.startswith("# newdoc") for line in lines) - 1
    assert len({tag for sentence in read for tag in sentence.labels or ()}) == 17


def test_real_choices_pronouns_and_sick_are_read(shared_data: pathlib.Path):
    assert [len(read_codah(shared_data / "codah" / f"{name}.tsv")) for name in ("train", "dev")] == [1665, 556]
    gap = [read_gap(shared_data / "gap" / f"gap-{name}.tsv") for name in ("development", "validation")]
    assert [len(examples) for examples in gap] == [2000, 454]
    assert Counter(example.gender for example in gap[0]) == {"feminine": 1000, "masculine": 1000}
    sick = {split: read_sick(shared_data / "sick" / "SICK.txt", split) for split in ("train", "dev")}
    assert {split: len(examples) for split, examples in sick.items()} == {"train": 4439, "dev": 495}

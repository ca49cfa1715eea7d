"""Reads files of CoNLL-U, CoNLL-2012 and GAP, whole and damaged."""

from __future__ import annotations

import pathlib

import pytest

from bert_jax.analysis.coreference.documents import Document
from bert_jax.analysis.coreference.mentions import find, find_traits, last_noun, mention_kind, phrase_head, read_parse
from bert_jax.analysis.coreference.readers import Conll2012File, CorefudFile, GapFile, open_texts, read_brackets
from bert_jax.errors import UserError
from bert_jax.interface.words import cut
from tests.analysis.coreference.written import PARIS, PARTS, conll2012, conllu, write


def read(tmp_path, text: str) -> tuple[list[Document], list[str]]:
    problems: list[str] = []
    path = write(tmp_path, text)
    file = open_texts(path, problems.append)
    assert (file.line, file.notes) == (0, ())
    documents = list(file)
    assert list(file) == documents  # read again, without reporting problems again
    assert file.failed == len(problems)
    return documents, [problem.removeprefix(f"{path}, ") for problem in problems]


def mentions(document: Document) -> list[tuple[str, str, str, str]]:
    words = document.words
    return [(m.entity, " ".join(words[i] for i in m.words), words[m.head], m.kind) for m in document.mentions]


def test_conllu_mentions_have_words_a_head_in_the_tree_and_its_kind(tmp_path):
    (document,), problems = read(tmp_path, PARIS)
    assert problems == []
    assert (document.name, document.sentences) == ("d", (0, 5, 9))
    assert mentions(document) == [
        ("1", "Paris", "Paris", "proper"),
        ("2", "the river", "river", "common"),
        ("1", "It", "It", "pronoun"),
        ("3", "France", "France", "proper"),
        ("2", "The river of France", "river", "common"),
        ("3", "France", "France", "proper"),
        ("1", "its", "its", "pronoun"),
        ("4", "its capital", "capital", "common"),
    ]


def test_without_a_tree_the_head_is_the_last_word_of_the_minimal_span(tmp_path):
    text = conllu("the/DET/_/(1-place-2 river/NOUN/_ here/ADV/_/1) a/DET/_/(2 b/NOUN/_/2)", heads=False)
    text += conllu(
        "one/NUM/_/(1-person-1 two/NUM/_/1) three/NUM/_/(2-person-1,2 four/NUM/_/2) x/X/_/(3-person-0,7 y/X/_/3)", heads=False
    )
    documents, _ = read(tmp_path, text)
    heads = [[mention[2] for mention in mentions(document)] for document in documents]
    assert heads == [["river", "b"], ["one", "four", "y"]]


def test_bracket_fields_follow_the_file_and_the_last_may_contain_dashes(tmp_path):
    text = conllu("a/NOUN/_/(1-1-person-x b/NOUN/_/1)", heads=False).replace("GRP-etype-minspan", "GRP-minspan-etype")
    (document,), _ = read(tmp_path, text)
    (mention,) = document.mentions
    assert (mention.entity, mention.head, mention.traits.genders) == ("1", 0, {"neuter"})  # the type is "person-x"
    (document,), _ = read(tmp_path, conllu("a/NOUN/0/(e-1)").replace("# global", "# no"))
    assert [mention.entity for mention in document.mentions] == ["e"]  # without names of the fields, the first is the entity
    (document,), _ = read(tmp_path, conllu("a/NOUN/0/(e-1)").replace("GRP-etype-minspan", "GRP"))
    assert [mention.entity for mention in document.mentions] == ["e-1"]  # the only field


def test_mentions_may_be_nested_overlap_and_be_discontinuous(tmp_path):
    text = conllu("a/NOUN/0/(1-x-1(2[1/2]-x-1 b/NOUN/1/(3-x-1 c/NOUN/2/1)2[1/2]) d/NOUN/3/3) e/NOUN/1/(2[2/2]-x-1)")
    (document,), problems = read(tmp_path, text)
    assert problems == []
    assert [mention[:3] for mention in mentions(document)] == [("2", "a b c e", "a"), ("1", "a b c", "a"), ("3", "b c d", "b")]


def test_a_part_belongs_to_the_last_started_mention_of_its_entity(tmp_path):
    text = conllu(
        "a/NOUN/0/(2[1/2]) b/NOUN/1/(2[1/2]) c/NOUN/2/(2[2/2]) d/NOUN/3/(2[2/2])",
        "e/NOUN/0/(3[1/3]) f/NOUN/1/(3[1/2]) g/NOUN/1/(3[2/3]) h/NOUN/1/(3[2/2]) i/NOUN/1/(3[3/3])",
    )
    (document,), problems = read(tmp_path, text)
    assert problems == []
    assert [mention[:2] for mention in mentions(document)] == [("2", "a d"), ("2", "b c"), ("3", "e g i"), ("3", "f h")]


def test_a_part_in_another_sentence_belongs_to_no_mention(tmp_path):
    (document,), problems = read(tmp_path, conllu("a/NOUN/0/(2[1/2])", "b/NOUN/0/(2[2/2])"))
    assert mentions(document) == []
    assert problems == [
        "line 5: (2[2/2] has no part 1 in its sentence; it is left out",
        "line 3: the mention (2[1/2] has 1 of its 2 parts; it is left out",
    ]


def test_a_mention_with_an_empty_node_has_its_words_and_one_without_words_is_left_out(tmp_path):
    def node(after: int, entity: str) -> str:
        return f"{after}.1\t_\t_\t_\t_\t_\t_\t_\t0:dep\tEntity={entity}\n"

    text = conllu("the/DET/2 law/NOUN/0/1) holds/VERB/2/(2-abstract-1", heads=True)
    begin, law, end = text.partition("2\tlaw")
    text = begin.replace("1\tthe", f"{node(0, '(1-abstract-2')}1\tthe") + law + end.rstrip("\n")
    path = write(tmp_path, f"{text}\n{node(3, '2)(3-person-1)|SplitAnte=1<3,2<3')}\n", "split.conllu")
    file = CorefudFile(path)
    assert [document.words for document in file] == [("the", "law", "holds")]
    assert file.notes == ("1 split antecedent (SplitAnte) left out: several mentions together do not count as an antecedent",)
    (document,), problems = read(tmp_path, f"{text}\n{node(3, '2)(3-person-1)')}\n")
    assert problems == []
    assert document.words == ("the", "law", "holds")
    assert [mention[:2] for mention in mentions(document)] == [("1", "the law"), ("2", "holds")]


def test_a_mention_of_coordinated_words_is_plural(tmp_path):
    text = conllu("a/NOUN/0/(1-x-1 b/NOUN/1/1) c/NOUN/1/(3-x-1 d/NOUN/3 e/NOUN/4/3)")
    text = text.replace("\t1\tdep", "\t1\tconj").replace("\t4\tdep", "\t4\tconj")
    (document,), _ = read(tmp_path, text)
    assert [mention.traits.number for mention in document.mentions] == ["plural", ""]  # "e" is joined to "d", not to the head


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("a/NOUN/0/(7-x-1 b/NOUN/1", "line 3: the mention (7 is never closed; it is left out"),
        ("a/NOUN/0 b/NOUN/1/7)", "line 4: 7) closes a mention that is not open; it is left out"),
        ("a/NOUN/0/(7 b/NOUN/1/)", "line 4: Entity=) has no valid brackets of mentions; correct it"),
        ("a/NOUN/0/(7[1/2]-x-1) b/NOUN/1", "line 3: the mention (7[1/2] has 1 of its 2 parts; it is left out"),
        ("a/NOUN/0/(7[2/2]-x-1) b/NOUN/1", "line 3: (7[2/2] has no part 1 in its sentence; it is left out"),
    ],
)
def test_an_unreadable_mention_is_reported_with_its_line_and_left_out(tmp_path, words, problem):
    (document,), problems = read(tmp_path, conllu(words, "c/NOUN/0/(1-x-1)"))
    assert problem in problems
    assert mentions(document) == [("1", "c", "c", "common")]


def test_open_mentions_are_reported_in_the_order_in_which_they_start(tmp_path):
    _, problems = read(tmp_path, conllu("a/NOUN/0/(7 b/NOUN/1/(8 c/NOUN/1/(7 d/NOUN/1/(9[1/2]) e/NOUN/1/(6[1/2])"))
    assert [problem.partition(":")[0] for problem in problems] == [f"line {n}" for n in (3, 4, 5, 6, 7)]


def test_a_mention_that_crosses_sentences_is_left_out_and_reported(tmp_path):
    (document,), problems = read(tmp_path, conllu("a/NOUN/0/(7-x-1", "b/NOUN/0/7) c/NOUN/1/(1-x-1)"))
    (problem,) = problems
    assert problem.startswith("line 3: the mention (7 ends in another sentence (")
    assert problem.endswith("x.conllu, line 5); it is left out")
    assert mentions(document) == [("1", "c", "c", "common")]


def test_documents_end_at_the_next_mark_and_a_file_without_marks_is_one_document(tmp_path):
    first, second = conllu("a/NOUN/0/(1-x-1)", "b/NOUN/0/(1-x-1)"), conllu("c/NOUN/0/(1-x-1)", name="e")
    documents, _ = read(tmp_path, first + second)
    assert [(document.name, document.words) for document in documents] == [("d", ("a", "b")), ("e", ("c",))]
    (document,), _ = read(tmp_path, (first + second).replace("# newdoc", "# document"))
    assert document.words == ("a", "b", "c")
    bare = (first + second).replace("# newdoc id = d", "# newdoc").replace(" id = e", "")
    damaged = conllu("x/NOUN/7", "y/NOUN/0", name="f")  # the first sentence of the document cannot be read
    documents, problems = read(tmp_path, bare + damaged)
    assert [(document.name, document.words) for document in documents] == [("1", ("a", "b")), ("2", ("c",)), ("3", ("y",))]
    assert len(problems) == 1


def test_split_antecedents_are_counted_and_left_out(tmp_path):
    path = write(tmp_path, PARIS.replace("Entity=(3-place-1)\n", "Entity=(3-place-1)|SplitAnte=1<3,2<3\n", 1))
    file = CorefudFile(path)
    assert file.notes == ()
    assert list(file) == list(file)
    assert file.notes == ("1 split antecedent (SplitAnte) left out: several mentions together do not count as an antecedent",)


def test_fields_without_names_and_mentions_without_an_entity_are_reported(tmp_path):
    text = "".join(line for line in PARIS.splitlines(keepends=True) if not line.startswith("# global.Entity"))
    file = CorefudFile(write(tmp_path, text), lambda problem: None)
    (document,) = list(file)
    assert [mention.entity for mention in document.mentions] == ["1", "2", "1", "3", "2", "3", "1", "4"]
    (said,) = file.notes
    assert said == (
        "WARNING: no line '# global.Entity = ...' names the fields of the mentions, so the first field is read as the entity: "
        "1 in (1-place-1; add the line if that is wrong"
    )
    long = "(1-" + "a" * 40
    file = CorefudFile(write(tmp_path, text.replace("(1-place-1", long, 1)), lambda problem: None)
    list(file)
    assert f" 1 in {cut(long, 30)}; add the line if that is wrong" in file.notes[0]
    (document,), problems = read(tmp_path, PARIS.replace("Entity=(3-place-1)", "Entity=(-place-1)", 1))
    assert [mention.entity for mention in document.mentions] == ["1", "2", "1", "2", "3", "1", "4"]
    assert [problem.partition(": ")[2] for problem in problems] == ["a mention names no entity; it is left out"]


TREE = ["(TOP(S(NP(NP*", "*)", "(PP*", "(NP*)))", "(VP*", "(NP(NP*", "*)", "*))", "*))"]
WORDS = ["The", "king", "of", "France", "saw", "Ada", "'s", "houses", "."]
TAGS = ["DT", "NN", "IN", "NNP", "VBD", "NNP", "POS", "NNS", "."]


@pytest.mark.parametrize(
    ("first", "last", "head"),
    [(0, 3, "king"), (3, 3, "France"), (5, 6, "Ada"), (5, 7, "houses"), (2, 3, "France"), (4, 7, "saw")],
)
def test_the_head_of_a_constituent_is_its_noun(first, last, head):
    tree = read_parse(TREE)
    assert tree is not None
    assert WORDS[phrase_head(find(tree, first, last), TAGS)] == head


def test_without_a_parse_the_head_is_the_last_noun_before_a_modifier():
    assert read_parse(["*", "-"]) is None
    assert [last_noun(*ends, TAGS) for ends in ((0, 3), (5, 7), (4, 4), (2, 3))] == [1, 7, 4, 3]
    for bits in (["(S*", "*"], ["*", "(S*))"]):
        with pytest.raises(UserError, match="the parse column"):
            read_parse(bits)


def rows(coreference: str = "(1 1) - (2) - (3|(1) - 3) -") -> list[str]:
    named = ["*", "*", "*", "(GPE)", "*", "(PERSON)", "*", "*", "*"]
    return [" ".join(row) for row in zip(WORDS, TAGS, TREE, named, coreference.split(), strict=True)]


def test_conll_2012_mentions_have_the_head_and_agreement_of_their_constituent(tmp_path):
    (document,), problems = read(tmp_path, conll2012(rows(), rows()))
    assert problems == []
    assert (document.name, document.sentences) == ("bc/x/000", (0, 9))
    assert mentions(document)[:4] == [
        ("1", "The king", "king", "common"),
        ("2", "France", "France", "proper"),
        ("1", "Ada", "Ada", "proper"),
        ("3", "Ada 's houses", "houses", "common"),
    ]
    king, france, _, houses = (mention.traits for mention in document.mentions[:4])
    assert (king.number, king.genders) == ("singular", {"masculine"})
    assert france.genders == {"neuter"}
    assert houses.number == "plural"


def test_parts_of_a_conll_2012_text_are_documents_with_their_own_entities(tmp_path):
    (first, second), problems = read(tmp_path, PARTS)
    assert [problem.partition(": ")[0] for problem in problems] == ["line 24"]
    assert (first.name, first.sentences) == ("nw/made/00/made_0001/000", (0, 6))
    assert mentions(first) == [
        ("0", "Mary 's", "Mary", "proper"),
        ("1", "Mary 's brother", "brother", "common"),
        ("2", "bread", "bread", "common"),
        ("1", "He", "He", "pronoun"),
        ("0", "her", "her", "pronoun"),
        ("3", "half of it", "half", "common"),
        ("2", "it", "it", "pronoun"),
    ]
    asked, _ = first.questions(0, 0, len(first.words))
    assert {first.words[one.head]: {first.words[i] for i in one.right} for one in asked} == {
        "He": {"brother"}, "her": {"Mary"}, "it": {"bread"},
    }  # fmt: skip
    assert (second.name, second.words) == ("nw/made/00/made_0001/001", ("Ada", "herself", "left", "."))
    assert mentions(second) == [("0", "Ada herself", "Ada", "proper"), ("0", "Ada", "Ada", "proper")]
    assert second.questions(0, 0, 4) == ([], [])  # a mention is not an antecedent of a mention with the same head word


def test_brackets_and_marks_of_conll_2012_are_words_as_written(tmp_path):
    lines = ["Bob NNP * * (1)", "-LRB- -LRB- * * -", "he PRP * * (1)", "-RRB- -RRB- * * -", "/. . * * -"]
    (document,), problems = read(tmp_path, conll2012(lines))
    assert (document.words, problems) == (("Bob", "(", "he", ")", "."), [])


def test_a_text_of_conll_2012_without_a_name_has_its_number(tmp_path):
    documents, _ = read(tmp_path, conll2012(rows(), name="") * 3)
    assert [document.name for document in documents] == ["1", "2", "3"]


def test_without_a_parse_the_head_of_a_conll_2012_mention_is_its_last_noun(tmp_path):
    lines = ["the DT * * (1", "king NN * * -", "of IN * * -", "France NNP * (GPE) 1)", "Ada NNP * (PERSON) (2)", ". . * * -"]
    (document,), problems = read(tmp_path, conll2012(lines))
    assert problems == []
    assert mentions(document) == [("1", "the king of France", "king", "common"), ("2", "Ada", "Ada", "proper")]
    assert [mention.traits.number for mention in document.mentions] == ["singular", "singular"]


def test_conll_2012_coordinations_are_plural_and_entities_last_to_their_bracket(tmp_path):
    lines = ["Ada NNP (S(NP* (PERSON (1|(2", "Byron NNP * * 2)", "and CC * * -", "Bob NNP *) *) (3)|1)", "Rome NNP (NP*)) * (4)"]
    (document,), problems = read(tmp_path, conll2012(lines))
    assert problems == []
    assert [(mention.entity, mention.traits.number) for mention in document.mentions] == [
        ("2", "singular"), ("1", "plural"), ("3", "singular"), ("4", "singular"),
    ]  # fmt: skip
    of_person = {"masculine", "feminine"}
    assert [mention.traits.genders == of_person for mention in document.mentions] == [True, True, True, False]


def test_conll_2012_needs_a_document_but_no_end_mark(tmp_path):
    with pytest.raises(UserError, match="has no document that can be read; give a CoNLL-2012 file"):
        list(Conll2012File(write(tmp_path, "\n\n")))
    (document,), problems = read(tmp_path, conll2012(rows()).removesuffix("\n#end document\n"))
    assert (document.words, len(problems)) == (tuple(WORDS), 1)


def test_a_conll_2012_file_without_its_words_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"line 3: the word is \[WORD\], .*; restore the words with skeleton2conll\.sh"):
        list(Conll2012File(write(tmp_path, conll2012(rows()).replace(WORDS[1], "[WORD]"))))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (conll2012(rows("(1 - - - - - - - -")), "line 2: the mention (1 is never closed; it is left out"),
        (conll2012(rows("- ? - - - - - - -")), "line 3: the last column '?' is neither brackets of mentions nor -; correct it"),
        (conll2012(rows(), ["a NN * * -"]).replace("(TOP", "((TOP"), "line 2: the parse column does not close"),
        ("#begin document x\na b c\n#end document\n", "line 2: 3 columns, fewer than the 12 of CoNLL-2012 without predicates"),
        (  # as in SemEval-2010
            conll2012(rows()).replace("bc/x  0  0  ", "1 The The "),
            "line 2: column 3 is 'The', not the number of a word as in CoNLL-2012; correct it; the sentence is left out",
        ),
        (
            "#begin document x\n#end document\n" + conll2012(rows()).partition("\n")[2],
            "line 3: a sentence outside of '#begin doc",
        ),
        (
            conll2012(rows()).replace("#end document\n", ""),
            "line 11: the file ends without '#end document'; check that it is complete",
        ),
    ],
)
def test_unreadable_parts_of_conll_2012_are_reported_and_left_out(tmp_path, text, problem):
    documents, problems = read(tmp_path, text)
    assert any(problem in line for line in problems), problems
    assert documents


HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"
TEXT = "Ada Lovelace met Mr. King Jr. when she was 19."


def gap(pronoun: int = 35, right: tuple[str, str] = ("TRUE", "FALSE")) -> str:
    return f"1\t{TEXT}\tshe\t{pronoun}\tAda Lovelace\t0\t{right[0]}\tMr. King Jr\t17\t{right[1]}\tu\n"


def test_a_text_of_gap_asks_for_one_of_two_names(tmp_path):
    (text,), problems = read(tmp_path, HEADER + gap())
    assert problems == []
    assert (text.words[text.pronoun], [text.words[name] for name in text.names]) == ("she", ["Lovelace", "King"])
    ((question,), outside) = text.questions(0, 0, len(text.words))
    assert (question.right, question.groups, outside) == ({1}, ("all", "feminine"), [])
    assert question.guesses == (5, 5, 1)  # the nearest name; the nearest before the pronoun; the first
    assert text.questions(2, 2, len(text.words)) == ([], [("all", "feminine")])  # one of the names is not in the window
    (text,), _ = read(tmp_path, HEADER + gap(right=("FALSE", "FALSE")))
    ((question,), _) = text.questions(0, 0, len(text.words))
    assert (question.right, question.groups) == (frozenset(), ("neither",))


def test_an_unreadable_row_of_gap_is_left_out(tmp_path):
    blank = gap().replace("she\t35", " \t34")
    rows = [gap(3), "1\t2\n", gap(), "2" + gap(right=("TRUE", "yes")), "3" + blank, gap()]
    texts, problems = read(tmp_path, HEADER + "".join(rows))
    assert len(texts) == 1
    assert sorted(problem.partition(":")[0] for problem in problems) == ["line 2", "line 3", "line 5", "line 6", "line 7"]
    assert "line 7: the ID '1' is also in line 4, but predictions are named by ID; give each row its own ID" in problems


def test_the_format_is_recognised_by_the_first_line_that_is_no_comment(tmp_path):
    assert isinstance(open_texts(write(tmp_path, PARIS)), CorefudFile)
    with pytest.raises(UserError, match=r"line 1: 'Ada' does not begin a file of CoNLL-U .* of CoNLL-2012 .* or of GAP"):
        list(open_texts(write(tmp_path, "Ada ran.\n"), lambda problem: None))
    assert isinstance(open_texts(write(tmp_path, "\n" + conll2012(rows()))), Conll2012File)
    assert list(open_texts(write(tmp_path, "# a comment\n#\n\n" + conll2012(rows())))) == list(
        Conll2012File(write(tmp_path, conll2012(rows())))
    )
    assert isinstance(open_texts(write(tmp_path, HEADER + gap())), GapFile)
    with pytest.raises(UserError, match="is standard input"):
        open_texts("-")


def test_agreement_is_by_features_then_by_english_words_then_by_the_annotated_type():
    he, it, they = (find_traits([word], word, "pronoun", ("PRP", "_"), "") for word in ("he", "it", "they"))
    mother = find_traits(["my", "mother"], "mother", "common", ("NN", "_"), "person")
    mr = find_traits(["Mr.", "King"], "King", "proper", ("NNP", "_"), "person")
    houses = find_traits(["houses"], "houses", "common", ("_", "Number=Plur"), "place")
    someone = find_traits(["Ada"], "Ada", "proper", ("_", "Number=Sing"), "person")
    assert [he.agree(other) for other in (mother, mr, houses, someone, it)] == [False, True, False, True, False]
    assert [they.agree(other) for other in (mother, houses)] == [False, True]
    assert [it.agree(other) for other in (someone, houses)] == [False, False]
    assert find_traits(["la"], "la", "pronoun", ("_", "Gender=Fem|Number=Sing|Person=3"), "").genders == {"feminine"}


def test_the_kind_follows_the_tag_of_the_head_word():
    kinds = [
        mention_kind(*tags)
        for tags in (("PRON", "_"), ("_", "PRP$"), ("DET", "DT"), ("PROPN", "NNP"), ("_", "NNS"), ("VERB", "VB"))
    ]
    assert kinds == ["pronoun", "pronoun", "pronoun", "proper", "common", "other"]


def test_real_documents_are_read_without_a_problem(shared_data):
    problems: list[str] = []
    file = CorefudFile(shared_data / "ud_english_gum" / "en_gum-ud-dev.conllu.gz", problems.append)
    first = next(iter(file))
    assert (first.name, problems) == ("GUM_academic_exposure", [])
    assert " ".join(first.words[i] for i in first.mentions[1].words).startswith("Research on adult - learned second language")


def test_brackets_are_split_off_one_by_one():
    assert read_brackets("(a(b)c)d)") == ([("a", True, False), ("b", True, True), ("c", False, True), ("d", False, True)], "")
    assert read_brackets("(1|(2)|3)|-") == ([("1", True, False), ("2", True, True), ("3", False, True)], "|||-")
    assert read_brackets("x(y") == ([("y", True, False)], "x")
    assert read_brackets("()((z)") == ([("z", True, True)], "()(")
    assert read_brackets("") == ([], "")


@pytest.mark.parametrize("part", ["9" * 5000, "0", "²", "1001"])
def test_a_part_of_a_mention_has_a_number_within_its_count(tmp_path, part):
    (document,), problems = read(tmp_path, conllu(f"a/NOUN/0/(2[1/{part}]) b/NOUN/1/(3)"))
    assert [mention[0] for mention in mentions(document)] == (["2[1/²]", "3"] if part == "²" else ["3"])
    assert all("must name part i/n with 1 <= i <= n <= 1,000; it is left out" in problem for problem in problems)
    assert len(problems) == (part != "²")


def test_a_minimal_span_skips_numbers_without_a_word(tmp_path):
    text = conllu(f"one/NUM/_/(1-person-{'9' * 5000},²,1 two/NUM/_/1)", heads=False)
    (document,), problems = read(tmp_path, text)
    assert ([mention[2] for mention in mentions(document)], problems) == (["one"], [])


def test_a_parse_may_nest_deeper_than_the_recursion_limit():
    deep = read_parse(["(S" * 5000 + "*" + ")" * 5000])
    assert deep is not None
    assert phrase_head(deep, ["VB"]) == 0


def test_unseparated_sentences_of_conll_2012_are_reported(tmp_path):
    one = ["a NN * * (1)", "b NN * * -"]
    (document,), problems = read(tmp_path, conll2012(one, one, one).replace("\n\n", "\n", 1))
    assert problems == [
        "line 4: the word 0 follows the word 1; end the previous sentence with an empty line; the sentence is left out"
    ]
    assert document.words == ("a", "b")


def test_a_sentence_of_conll_2012_has_limited_words_and_increasing_numbers(tmp_path):
    one = ["a NN * * (1)", "b NN * * -"]
    many = [*one, *["c NN * * -"] * 9_999]
    (document,), problems = read(tmp_path, conll2012(one, many, one).replace("bc/x  0  1  b", "bc/x  0  0  b", 1))
    assert document.words == ("a", "b")
    assert [problem.partition(";")[0] for problem in problems] == [
        "line 3: the word 0 follows the word 0",
        "line 5: a sentence of 10,001 words, more than 10,000",
    ]


def test_conll_2012_comments_are_not_words_and_unusual_spaces_end_no_sentence(tmp_path):
    whole = PARTS
    documents, _ = read(tmp_path, whole)
    assert read(tmp_path, whole.replace("\n", "\n# checked\tby hand\n", 1))[0] == documents
    path = write(tmp_path, "")
    pathlib.Path(path).write_bytes(whole.replace("\n", "\r").encode())  # line ends of the old Mac OS
    assert list(open_texts(path, lambda problem: None)) == documents
    lines = whole.split("\n")
    lines.insert(2, "\u00a0")
    _, problems = read(tmp_path, "\n".join(lines))
    assert problems[0].startswith("line 3: 1 column, fewer than the 12 of CoNLL-2012")

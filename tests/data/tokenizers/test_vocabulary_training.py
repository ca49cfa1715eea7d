"""New vocabularies: the same text gives the same vocabulary, which spells all of it, with the special tokens at their
positions."""

from __future__ import annotations

import collections
import gzip
import json
import pathlib
import subprocess
import sys
from array import array
from collections.abc import Iterator

import pytest

from bert_jax.data.corpus import text_files
from bert_jax.data.corpus.cleaning import CleaningConfig
from bert_jax.data.corpus.shard import TextConfig, is_eval
from bert_jax.data.corpus.sources import ReadOptions, Source, find_items, parse_source
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import (
    stripped_share,
    train_bpe,
    train_sentencepiece,
    train_wordpiece,
    training_text,
)
from bert_jax.errors import UserError

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def documents() -> list[list[str]]:
    """Returns English sentences that every Python installation contains."""
    from pydoc_data import topics

    lines = [line.strip() for key in sorted(topics.topics)[:12] for line in topics.topics[key].split("\n")]
    return [[line for line in lines[start : start + 40] if line] for start in range(0, len(lines), 40)]


@pytest.mark.parametrize("train", [train_wordpiece, train_sentencepiece])
def test_special_tokens_come_first_and_padding_is_zero(documents, train):
    tokenizer = train(documents, 400, True)
    info = tokenizer.vocabulary
    assert (info.pad_id, info.unk_id, info.cls_id, info.sep_id, info.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.size == 400


@pytest.mark.parametrize("train", [train_wordpiece, train_sentencepiece])
@pytest.mark.parametrize("lowercase", [True, False])
def test_a_new_vocabulary_spells_its_text_with_hardly_any_unknown_token(documents, train, lowercase):
    tokenizer = train(documents, 500, lowercase)
    assert tokenizer.vocabulary.lowercase is lowercase
    ids = array("I")
    for sentences in documents:
        for sentence in sentences:
            tokenizer.append(sentence, ids)
    left_out = 0.0005 if train is train_wordpiece else 0.002  # of the characters, the rarest 0.01 % and 0.05 % are left out
    assert collections.Counter(ids)[tokenizer.unk_id] <= left_out * len(ids)
    assert (tokenizer.special_ids - {tokenizer.unk_id}).isdisjoint(ids)
    assert any(piece != piece.lower() for piece in tokenizer.pieces[5:]) is not lowercase


def test_the_same_text_gives_the_same_vocabulary_in_another_process(documents):
    """Hash tables are seeded anew in each process, so a vocabulary that depends on their order would differ."""
    code = (
        "import sys; from bert_jax.data.tokenizers.vocabulary_training import train_sentencepiece, train_wordpiece; "
        "documents = [line.split('\\x1f') for line in sys.stdin.read().split('\\x1e')]; "
        "print(*[train(documents, 450, True).vocabulary.sha256 for train in (train_wordpiece, train_sentencepiece)])"
    )
    text = "\x1e".join("\x1f".join(sentences) for sentences in documents)
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=REPOSITORY) for _ in range(2)]
    here = [train(documents, 450, True).vocabulary.sha256 for train in (train_wordpiece, train_sentencepiece)]
    assert [run.stdout.split() for run in runs] == [here, here]


def test_a_vocabulary_too_small_for_its_characters_is_an_error(documents):
    with pytest.raises(UserError, match=r"--vocab-size=20 is less than the .* pieces"):
        train_wordpiece(documents, 20, True)
    with pytest.raises(UserError, match="cannot make 10 pieces"):
        train_sentencepiece(documents, 10, True)


def test_training_without_text_is_refused():
    with pytest.raises(UserError, match="no text"):
        train_wordpiece([], 100, True)


def test_sentencepiece_never_makes_a_special_token_of_text(documents):
    tokenizer = train_sentencepiece(documents, 400, False)
    ids = tokenizer.encode("The [MASK] and [SEP], <pad> too. [CLS]")
    assert (tokenizer.special_ids - {tokenizer.unk_id}).isdisjoint(ids)
    assert tokenizer.encode_with_specials("the [MASK]")[-1] == tokenizer.mask_id


def test_sentencepiece_survives_saving_and_gives_offsets(documents, tmp_path):
    tokenizer = train_sentencepiece(documents, 400, True)
    tokenizer.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    text = "The Objects of a Class"
    ids, spans = again.encode_with_offsets(text)
    assert ids == tokenizer.encode(text)
    assert "".join(text[start:end] for start, end in spans).lower().replace(" ", "") == "theobjectsofaclass"
    assert again.decode(ids) == text.lower()
    assert again.tokens(ids)[0].startswith("\u2581")
    assert not again.is_continuation(ids)[0]


def test_a_model_that_does_not_fold_case_is_given_folded_text(documents, tmp_path):
    lowered = [[sentence.lower() for sentence in sentences] for sentences in documents]
    train_sentencepiece(lowered, 400, False).save(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(tmp_path / "spiece.model")
    assert tokenizer.vocabulary.lowercase
    assert tokenizer.encode("THE CLÁSS") == tokenizer.encode("the class")
    ids, spans = tokenizer.encode_with_offsets("THE CLÁSS")
    assert ids == tokenizer.encode("the class")
    assert spans[-1][1] == 9


def test_training_text_is_sampled_evenly_without_held_out_documents(tmp_path):
    documents = [f"Document {k} has these words in it.\nAnd these others, number {k}." for k in range(4000)]
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    config = TextConfig(ReadOptions(layout="sentences"), CleaningConfig(), eval_fraction=0.2)
    items = find_items([Source("text", str(tmp_path / "a.txt"))], config.options)
    everything = list(training_text(items, config, 10**9))
    assert 0.7 * 4000 < len(everything) < 0.9 * 4000
    assert not any(is_eval(sentences, 0.2) for sentences in everything)
    whole = list(training_text(items, config, (tmp_path / "a.txt").stat().st_size))
    assert whole == everything
    some = [int(sentences[0].split()[1]) for sentences in training_text(items, config, 20_000)]
    assert 100 < len(some) < 800
    quarters = collections.Counter(number // 1000 for number in some)
    assert all(quarters[k] > len(some) / 8 for k in range(4))


@pytest.mark.parametrize("kind", ["one file", "two files", "own", "lines"])
def test_a_compressed_file_and_an_own_source_give_as_much_text_from_all_of_it(tmp_path, monkeypatch, kind):
    documents = [f"Document {k} has these words in it." for k in range(2000)]
    content = "\n".join(json.dumps({"text": text}) for text in documents).encode()
    (tmp_path / "own.py").write_text("def texts():\n    return (f'Document {k} has these words in it.' for k in range(2000))\n")
    if kind == "lines":
        (tmp_path / "a.en").write_text("\n".join(documents))
        (tmp_path / "a.de").write_text("\n".join(documents))
        source = f"parallel:{tmp_path}/a.en:{tmp_path}/a.de"
    elif kind == "own":
        source = f"{tmp_path}/own.py:texts"
    else:
        half = content.index(b"\n", len(content) // 2) if kind == "two files" else len(content)
        parts = [gzip.compress(part, mtime=0) for part in (content[:half], content[half:]) if part]
        for number, part in enumerate(parts):
            (tmp_path / f"{number}.jsonl.gz").write_bytes(part)
        monkeypatch.setitem(text_files._RATIOS, "gzip", (len(content) / sum(map(len, parts)), 16))
        source = f"jsonl:{tmp_path}/*.gz"
    config = TextConfig(ReadOptions(), CleaningConfig(), eval_fraction=0.0)
    items = find_items([parse_source(source)], config.options)
    for limit in (8_000, 60_000):
        taken = [sentence for sentences in training_text(items, config, limit) for sentence in sentences]
        assert sum(map(len, taken)) == pytest.approx(limit, rel=0.02)
        eighths = collections.Counter(int(text.split()[1]) // 250 for text in taken)
        assert max(eighths.values()) <= 2 * min(eighths[k] for k in range(8)) + 2, eighths


@pytest.mark.parametrize(("limit", "documents"), [(6_400, 128), (6_464, 130)])
def test_a_64th_of_the_limit_is_taken_from_each_64th_of_the_text(tmp_path, capsys, limit, documents):
    (tmp_path / "a.txt").write_text("\n\n".join(f"Document {k:03d} has fifty characters together, so on." for k in range(640)))
    config = TextConfig(ReadOptions(layout="sentences"), CleaningConfig(), eval_fraction=0.0)
    items = find_items([Source("text", str(tmp_path / "a.txt"))], config.options)
    taken = list(training_text(items, config, limit))
    assert {sum(map(len, sentences)) for sentences in taken} == {50}
    assert len(taken) == documents
    per_64th = collections.Counter(int(sentences[0].split()[1]) // 10 for sentences in taken)
    assert (len(per_64th), set(per_64th.values())) == (64, {2, 3} if limit % 100 else {2})
    assert capsys.readouterr().err.splitlines()[-1] == "reading for the vocabulary: 6/6 kB of text"


def test_progress_of_less_than_a_kilobyte_has_a_total_of_one(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("A text of a few words.\n")
    config = TextConfig(ReadOptions(layout="sentences"), CleaningConfig(), eval_fraction=0.0)
    assert len(list(training_text(find_items([Source("text", f"{tmp_path}/a.txt")], config.options), config, 100))) == 1
    assert capsys.readouterr().err == "reading for the vocabulary: 0/1 kB of text\n"


def test_a_vocabulary_has_room_for_its_characters_and_then_for_the_most_frequent_words():
    documents = [["xy " * 5 + "ab cd"], ["ef"]]
    assert train_wordpiece(documents, 21, True).pieces[5:] == [*"abcdefxy", *("##" + c for c in "abcdefxy")]
    with pytest.raises(UserError, match="--vocab-size=20 is less than the 21 pieces"):
        train_wordpiece(documents, 20, True)
    tokenizer = train_wordpiece(documents, 22, True, max_word_characters=7)
    assert tokenizer.pieces[21:] == ["xy"]
    assert tokenizer.max_word_characters == 7


def test_the_requested_number_of_most_frequent_characters_have_pieces():
    often = "".join(chr(0x4E00 + k) for k in range(999, -1, -1))
    tokenizer = train_wordpiece([[often, often, "".join(chr(0x4000 + k) for k in range(9))]], 3000, True, alphabet=1000)
    assert {piece for piece in tokenizer.pieces[5:] if not piece.startswith("##")} == set(often)
    assert {piece[2:] for piece in tokenizer.pieces[5:] if piece.startswith("##")} == set(often)


@pytest.mark.parametrize(("count", "kept"), [(2, False), (3, True)])
def test_a_vocabulary_keeps_the_characters_that_cover_all_but_one_in_ten_thousand(count, kept):
    documents = [["ab" * 9_998 + "x" * 4 + "z" * count]]  # 20,000 + count characters; two of them may be missing
    pieces = train_wordpiece(documents, 2_000, True, max_word_characters=30_000).pieces
    assert {"a", "b", "x", "##a", "##b", "##x"} <= set(pieces)
    assert ("z" in pieces, "##z" in pieces) == (kept, kept)


def test_a_character_that_is_always_a_whole_word_has_no_continuation_piece():
    pieces = train_wordpiece([["a, b. 中c"]], 100, True).pieces
    assert set(pieces[5:13]) == {*"abc,.中", "##a", "##b"}
    assert not {"##,", "##.", "##中"} & set(pieces)


MARKED = {
    "Korean": "나는 책을 읽었다",
    "Japanese": "今日はガラスが好きだった",
    "Thai": "ฉันอ่านหนังสือ",
    "Hindi": "मैंने किताब पढ़ी",
    "Russian": "мой ёж ест свой хлеб",
    "Ukrainian": "її їжак",
    "Vietnamese": "tôi đã đọc một cuốn sách",
    "Arabic": "أنا قرأت كتابًا آخر",
    "Turkish": "çok güzel bir gün için",
    "German": "die schönen Bücher der Mädchen",
    "Greek": "το βιβλίο είναι καλό",
    "Hebrew": "בְּרֵאשִׁית בָּרָא",
    "French decomposed": "un e\u0301te\u0301",
}


@pytest.mark.parametrize("language", MARKED)
def test_languages_with_meaningful_accents_require_a_casing_flag(language):
    documents = [[MARKED[language]]]
    with pytest.raises(UserError, match=r"which changes \d+\.\d% of the letters of this text \(.* → .*\); give --cased "):
        train_wordpiece(documents, 400, None)
    kept = train_wordpiece(documents, 400, False)
    assert not kept.strips
    assert train_wordpiece(documents, 400, True).strips
    words = "".join(MARKED[language].split())
    assert "".join(kept.tokens(kept.encode(words))).replace("##", "") == words  # nothing is lost


def test_english_with_rare_accents_is_lower_cased():
    tokenizer = train_wordpiece([["The old house was not there. " * 40 + "A café."]], 400, None)
    assert tokenizer.vocabulary.lowercase
    assert train_sentencepiece([[f"{text} " * 20 for text in MARKED.values()]], 200, None).vocabulary.lowercase


def test_sentencepiece_makes_fewer_pieces_if_the_text_has_no_more(documents):
    assert 100 < train_sentencepiece(documents[:3], 20_000, True).size < 20_000


def test_two_bytes_are_merged_if_they_follow_each_other_twice():
    assert [train_bpe([[text]], 384, None).pieces[261:262] for text in ("xy", "xy xy")] == [["[unused0]"], ["xy"]]


def test_the_share_of_changed_letters_is_shown_with_three_examples():
    assert stripped_share({}) == (0.0, "")
    assert stripped_share({"é": 1}) == (1.0, "é → e")
    assert stripped_share({"a": 4, "é": 1, "ö": 3, "ñ": 2, "å": 2, ".": 50}) == (8 / 12, "ö → o, å → a, ñ → n")


@pytest.mark.parametrize("train", [train_wordpiece, train_sentencepiece, train_bpe])
@pytest.mark.parametrize("failure", [UserError("bad record"), KeyboardInterrupt()])
def test_an_error_while_the_text_is_read_is_passed_on(train, failure):
    def documents() -> Iterator[list[str]]:
        yield ["The cat sat."]
        raise failure

    with pytest.raises(type(failure)) as raised:
        train(documents(), 300, True)
    assert raised.value is failure


def test_sentencepiece_refuses_the_settings_of_wordpiece():
    with pytest.raises(UserError, match="--alphabet is a setting of WordPiece"):
        train_sentencepiece([["a"]], 100, None, alphabet=5)
    with pytest.raises(UserError, match="--max-word-characters is a limit of WordPiece"):
        train_sentencepiece([["a"]], 100, None, 7)


@pytest.mark.parametrize(("lowercase", "folds"), [(None, False), (False, False), (True, True)])
def test_pieces_of_single_characters_keep_capitals_by_default(lowercase, folds):
    tokenizer = train_sentencepiece([["Ab cD"] * 20], 100, lowercase, characters=True)
    assert (tokenizer.vocabulary.lowercase, tokenizer.decode(tokenizer.encode("Ab"))) == (folds, "ab" if folds else "Ab")
    assert {len(piece) for piece in tokenizer.pieces[5:]} == {1}

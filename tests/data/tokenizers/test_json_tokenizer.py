"""Tokenizers from any tokenizer.json through the library `tokenizers`: ids, words, files; the library itself is the reference."""

from __future__ import annotations

import functools
import json
import pathlib
import pickle
import random
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_jax.data.masking import masking_tables
from bert_jax.data.tokenizers.json_tokenizer import BEGINS, GPT2_SPLIT
from bert_jax.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, with_added_tokens
from bert_jax.data.tokenizers.vocabulary_training import train_bpe
from bert_jax.errors import UserError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
RANGES = (
    (0, 0x80), (0x80, 0x250), (0x300, 0x370), (0x600, 0x700), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x9000),
    (0xFF00, 0xFFF0), (0x1F300, 0x1F700), (0xE000, 0xE010), (0x10000, 0x110000), (0xA0, 0xB0),
)  # fmt: skip


@functools.cache
def documents() -> list[list[str]]:
    """Returns English sentences that every Python installation contains."""
    from pydoc_data import topics

    lines = [line.strip() for key in sorted(topics.topics)[:8] for line in topics.topics[key].split("\n")]
    return [[line for line in lines[start : start + 40] if line] for start in range(0, len(lines), 40)]


@functools.cache
def texts(count: int = 300) -> list[str]:
    """Returns random Unicode, ASCII, control characters, emoji and fragments of code, with single and repeated spaces."""
    rng = random.Random(0)

    def character() -> str:
        if rng.random() < 0.25:
            return " "
        low, high = rng.choice(RANGES) if rng.random() < 0.5 else (0x20, 0x7F)
        code = rng.randrange(low, high)
        return chr(code) if not 0xD800 <= code < 0xE000 else "x"

    made = ["".join(character() for _ in range(rng.randrange(30))) for _ in range(count)]
    code = [
        "def f(x):\n\treturn  x ** 2  # ok",
        "It's 1234567 and 10000, THEY'LL say; we'd",
        "a\r\n\r\nb",
        "😀👩‍👩‍👧 it's",
        "\x00\x1f\x7f\u200b",
        " leading",
        "trailing ",
        "  ",
        "",
    ]
    return [*code, *(sentence for sentences in documents() for sentence in sentences)][:300] + made


def trained(model: Any, trainer: Any, **parts: Any) -> tokenizers.Tokenizer:
    rust = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(rust, name, part)
    rust.train_from_iterator((" ".join(sentences) for sentences in documents()), trainer)
    return rust


def gemma() -> tokenizers.Tokenizer:
    """Returns a tokenizer like mmBERT's: spaces become ▁, nothing is split before the merges, and bytes spell characters without
    a piece."""
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=[*SPECIALS, *(f"<0x{i:02X}>" for i in range(256))], show_progress=False
    )
    rust = trained(
        models.BPE(byte_fallback=True, unk_token="[UNK]", fuse_unk=True), trainer, pre_tokenizer=pre_tokenizers.Metaspace()
    )
    content = json.loads(rust.to_str())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    content["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["content"].startswith("<0x")]
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def unigram(charsmap: bool) -> tokenizers.Tokenizer:
    trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIALS, unk_token="[UNK]", show_progress=False)
    steps = [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    rust = trained(models.Unigram(), trainer, pre_tokenizer=pre_tokenizers.Metaspace(), normalizer=normalizers.Sequence(steps))
    if charsmap:
        rust.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap_of_sentencepiece()), steps[1]])
        rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return rust


def charsmap_of_sentencepiece() -> bytes:
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["A b a b", "b a B"] * 20),
        model_writer=written,
        vocab_size=12,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    library: Any = sentencepiece_model_pb2
    specification = library.ModelProto()
    specification.ParseFromString(written.getvalue())
    return specification.normalizer_spec.precompiled_charsmap


def wordpiece() -> tokenizers.Tokenizer:
    trainer = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIALS, show_progress=False)
    steps = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    splits = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    return trained(models.WordPiece(unk_token="[UNK]"), trainer, normalizer=steps, pre_tokenizer=splits)


def prefixed() -> tokenizers.Tokenizer:
    """Returns a tokenizer like RoBERTa's: byte-level with a space before every text, and a mask that includes the space before
    it."""
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rust = trained(models.BPE(), trainer, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True))
    rust.decoder = decoders.ByteLevel()
    return rust


def with_plain_tokens() -> tokenizers.Tokenizer:
    """Returns a tokenizer like ModernBERT's: composed, with added tokens that are not special, including runs of spaces."""
    rust = tokenizers.Tokenizer.from_str(train_bpe(documents(), 600, None, nfc=True)._model.content)  # type: ignore[union-attr]
    rust.add_tokens([AddedToken(" " * n, normalized=False) for n in range(2, 6)])
    rust.add_tokens([AddedToken("|||EMAIL|||", normalized=False), AddedToken("statement", normalized=True, single_word=True)])
    return rust


MAKERS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "gpt2": lambda: tokenizers.Tokenizer.from_str(train_bpe(documents(), 600, None)._model.content),  # type: ignore[union-attr]
    "gpt4": lambda: tokenizers.Tokenizer.from_str(
        train_bpe(documents(), 600, True, splitting="gpt4", nfc=True)._model.content  # type: ignore[union-attr]
    ),
    "modern": with_plain_tokens,
    "prefixed": prefixed,
    "gemma": gemma,
    "unigram": lambda: unigram(False),
    "xlmr": lambda: unigram(True),
    "wordpiece": wordpiece,
}
BY_PARTS = {"gpt2", "gpt4", "modern", "prefixed", "gemma", "unigram", "xlmr", "wordpiece"}


@pytest.fixture(scope="module", params=list(MAKERS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer, tokenizers.Tokenizer]:
    """Returns (name, ours, the library's), both read from the same file."""
    directory = tmp_path_factory.mktemp(request.param)
    MAKERS[request.param]().save(str(directory / "tokenizer.json"))
    return request.param, load_tokenizer(directory), tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_ids_and_words_equal_the_library_for_any_text(pair):
    name, ours, library = pair
    assert ours._model._is_local == (name in BY_PARTS), "how fast it is"
    assert ours.mask_takes_space is (name in ("gpt2", "gpt4", "modern"))
    for text in texts():
        found = library.encode(text, add_special_tokens=False)
        marked = array("I")
        ours.append(text, marked)
        assert ours.encode(text) == found.ids == [i & ~BEGINS for i in marked], text
        ids, offsets = ours.encode_with_offsets(text)
        assert ids == found.ids, text
        begins = [bool(i & BEGINS) for i in marked]
        words = found.word_ids
        if name == "gemma":  # the file makes the text one word; ours starts a word at each "▁"
            assert begins == [i == 0 or ours.pieces[token].startswith("▁") for i, token in enumerate(ids)], text
        else:
            assert begins == [i == 0 or words[i] != words[i - 1] for i in range(len(words))], text
        for (start, end), (first, last) in zip(offsets, found.offsets, strict=True):
            assert text[start:end] == text[first:last].strip(), text
        spans = ours.word_spans(text)
        assert all(any(a <= start and end <= b for a, b in spans) for start, end in offsets if end > start), text


@pytest.mark.parametrize("name", ["gpt2", "prefixed"])
def test_decoding_restores_the_text_if_nothing_is_normalised(name, tmp_path):
    MAKERS[name]().save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    for text in [*texts(), "".join(map(chr, range(0xD800)))]:
        space = "" if name == "gpt2" or not text or text[0] == " " else " "
        assert tokenizer.decode(tokenizer.encode(text)) in (space + text, text)


def test_special_tokens_are_text_in_a_text_and_tokens_in_a_prompt(pair):
    _, ours, library = pair
    for text in ("the [MASK] is [SEP] here", "[MASK][MASK]", "a[CLS] b"):
        assert ours.encode_with_specials(text) == library.encode(text, add_special_tokens=False).ids
        assert not {*ours.encode(text)} & (ours.special_ids - {ours.unk_id})


def test_added_special_tokens_are_recognised_in_every_text_like_in_the_library(pair):
    _, ours, _ = pair
    grown = with_added_tokens(ours, ["[E1]"])
    library, added = tokenizers.Tokenizer.from_str(grown._model.content), grown.pieces.index("[E1]")
    for text in ("the [E1] is[E1]here", "[E1][E1]", "it's  [E1] é", " [E1]"):
        found, marked = library.encode(text, add_special_tokens=False), array("I")
        grown.append(text, marked)
        ids, offsets = grown.encode_with_offsets(text)
        assert ids == grown.encode(text) == found.ids == [i & ~BEGINS for i in marked], text
        assert [bool(i & BEGINS) for i in marked] == grown._model.encode_with_words(text, grown._roles)[2]
        starts = [place for place in range(len(text)) if text.startswith("[E1]", place)]
        assert [span for span, i in zip(offsets, ids, strict=True) if i == added] == [(start, start + 4) for start in starts]
        assert {(start, start + 4) for start in starts} <= {*grown.word_spans(text)}, grown.word_spans(text)
    ids, firsts, _ = grown.encode_words(["a", "[E1]", "b"])
    assert ids[firsts[1] : firsts[2]] == [added]
    assert not {*grown.encode("[MASK] [E1] [SEP]")} & (grown.special_ids - {grown.unk_id})


def test_the_file_is_saved_byte_for_byte_and_loads_equal_in_any_spelling(pair, tmp_path):
    _, ours, library = pair
    ours.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    again.save(tmp_path / "twice")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()
    assert again.vocabulary == ours.vocabulary
    content = json.loads(library.to_str())
    if "merges" in content["model"]:
        content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]  # as older releases of tokenizers
    (tmp_path / "saved" / "tokenizer.json").write_text(json.dumps(content, indent=7))
    assert load_tokenizer(tmp_path / "saved").vocabulary == ours.vocabulary
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.encode("The [MASK] of it") == ours.encode("The [MASK] of it")


@pytest.mark.parametrize("splitting", ["gpt2", "gpt4"])
def test_training_a_vocabulary_is_reproducible_with_its_size_and_special_tokens(splitting, tmp_path):
    made = [train_bpe(documents(), 610, None, splitting=splitting, unused=10) for _ in range(2)]
    assert made[0]._model.content == made[1]._model.content
    tokenizer = made[0]
    assert tokenizer.size == 640  # the next multiple of 64
    assert tokenizer.pieces[:5] == SPECIALS
    unused = [piece for piece in tokenizer.pieces if piece.startswith("[unused")]
    assert unused == [f"[unused{i}]" for i in range(10)] == tokenizer.pieces[-10:]
    info = tokenizer.vocabulary
    assert (info.pad_id, info.unk_id, info.cls_id, info.sep_id, info.mask_id, info.kind) == (0, 1, 2, 3, 4, "bpe")
    small = train_bpe([["aa aa aa"]], 5_000, None, unused=3)
    assert small.size == 320
    assert small.pieces[-1].startswith("[unused")
    with pytest.raises(UserError, match=r"--vocab-size=200 is less than the 261 pieces of the special tokens, the bytes and"):
        train_bpe(documents(), 200, None)
    with pytest.raises(UserError, match="there is no text to train a vocabulary on"):
        train_bpe([], 600, None)


def test_pretokenised_words_have_the_pieces_of_running_text(tmp_path):
    words = ["Each", "statement", "is", "a", "block", "of", "code", "."]
    for maker in (MAKERS["gpt2"], prefixed):
        maker().save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path)
        ids, firsts, counts = tokenizer.encode_words(words)
        assert ids == tokenizer.encode(" ".join(words))
        assert firsts == np.cumsum([0, *counts])[:-1].tolist()
    assert load_tokenizer(tmp_path).encode_words(["a", "", "b"])[2] == [1, 1, 1]


def test_pieces_are_shown_as_text():
    tokenizer = train_bpe(documents(), 600, None)
    assert tokenizer.tokens(tokenizer.encode("of é\n")) == ["o", "f", "▁", "\\xc3", "\\xa9", "\n"]
    assert tokenizer.word(tokenizer.encode(" naïve")) == "▁naïve"
    assert tokenizer.tokens([tokenizer.mask_id]) == ["[MASK]"]
    continues = tokenizer.continuation_table
    for piece, expected in (("Ġof", False), ("e", True), (".", False), ("[MASK]", False), ("Ã", True), ("Ġ", False)):
        assert continues[tokenizer.pieces.index(piece)] == expected, piece


def test_added_tokens_take_the_ids_of_unused_ones(tmp_path):
    tokenizer = train_bpe(documents(), 600, None, unused=2)
    size = tokenizer.size
    spare = sum(piece.startswith("[unused") for piece in tokenizer.pieces)
    more = [f"covid{i}" for i in range(spare)]
    grown = with_added_tokens(tokenizer, ["[E1]", *more])
    assert grown.size == size + 1
    assert grown.pieces[tokenizer.pieces.index("[unused0]")] == "[E1]"
    grown.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == grown.vocabulary
    assert again.tokens(again.encode("a covid1 [E1]"))[:3] == ["a", "▁", "covid1"]
    legal = [again.pieces[i] for i in masking_tables(again.vocabulary, again).legal_ids]
    assert ("[E1]" in legal, again.is_added("[E1]")) == (False, True)
    assert ("a" in legal, again.is_added("a"), again.is_added("[MASK]")) == (True, False, False)


# ---- special tokens
def plain(tmp_path: pathlib.Path, names: list[str], **files: Any) -> pathlib.Path:
    """Writes a byte-level tokenizer with these special tokens, and JSON files next to it."""
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=names, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rust = trained(models.BPE(), trainer, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
    rust.save(str(tmp_path / "tokenizer.json"))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def roles(tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.pieces[getattr(tokenizer, f"{role}_id")] for role in ("pad", "unk", "cls", "sep", "mask")]


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("stated", [None, False, True])
def test_the_space_before_a_text_follows_tokenizer_config_as_in_transformers_4(tmp_path, in_file, stated):
    """This changes a pre-tokenizer with one component. transformers 5 reads only tokenizer.json, so that file is changed too."""
    directory = plain(tmp_path, SPECIALS, tokenizer_config={} if stated is None else {"add_prefix_space": stated})
    rust = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=in_file)
    rust.save(str(directory / "tokenizer.json"))
    tokenizer, wanted = load_tokenizer(directory), in_file if stated is None else stated
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=wanted)
    for text in ("river of", " river of", "(a) b", ""):
        assert tokenizer.encode(text) == rust.encode(text, add_special_tokens=False).ids
    assert tokenizer.distinguishes_spaces != wanted
    assert any(
        "because tokenizer_config.json sets add_prefix_space; tokenizer.json differs" in note for note in tokenizer.notes
    ) == (wanted != in_file)
    tokenizer.save(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    assert saved["pre_tokenizer"]["add_prefix_space"] == wanted
    again = load_tokenizer(tmp_path / "saved")
    assert again.vocabulary == tokenizer.vocabulary
    assert not any("add_prefix_space" in note for note in again.notes)


def test_a_pre_tokenizer_of_several_components_keeps_its_space(tmp_path):
    directory = plain(tmp_path, SPECIALS, tokenizer_config={"add_prefix_space": True})
    rust = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    rust.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    rust.save(str(directory / "tokenizer.json"))
    tokenizer = load_tokenizer(directory)
    assert tokenizer.encode("river 12") == rust.encode("river 12", add_special_tokens=False).ids
    assert tokenizer.distinguishes_spaces


LLAMA = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|pad|>"]


def test_special_tokens_are_named_by_the_files(tmp_path):
    config = {"cls_token": {"content": "<c>"}, "sep_token": "<s>", "pad_token": "<p>", "mask_token": "<m>", "unk_token": "<u>"}
    named = plain(tmp_path, ["<p>", "<u>", "<c>", "<s>", "<m>", "[CLS]"], tokenizer_config=config)
    assert roles(load_tokenizer(named)) == ["<p>", "<u>", "<c>", "<s>", "<m>"]
    (tmp_path / "tokenizer_config.json").rename(tmp_path / "special_tokens_map.json")
    assert roles(load_tokenizer(tmp_path)) == ["<p>", "<u>", "<c>", "<s>", "<m>"]


def test_bos_and_eos_serve_as_cls_and_sep(tmp_path):
    config = {"bos_token": LLAMA[0], "eos_token": LLAMA[1], "mask_token": LLAMA[2]}
    expected = [LLAMA[3], LLAMA[3], LLAMA[0], LLAMA[1], LLAMA[2]]
    plain(tmp_path, LLAMA, tokenizer_config=config)
    assert roles(load_tokenizer(tmp_path)) == expected
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.notes == (
        "tokenizer.json puts special tokens around texts as in 'a', but bert_jax as in '<|begin_of_text|> a <|end_of_text|>'",
    )
    tokenizer.save(tmp_path / "saved")
    assert "unk_token" not in json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert roles(load_tokenizer(tmp_path / "saved")) == expected
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(
        json.dumps({"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 3, "mask_token_id": 2})
    )
    assert roles(load_tokenizer(tmp_path)) == expected
    (tmp_path / "config.json").unlink()
    rust = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    rust.post_processor = processors.TemplateProcessing(
        single=f"{LLAMA[0]} $A {LLAMA[1]}", pair=f"{LLAMA[0]} $A {LLAMA[1]} $B {LLAMA[1]}",
        special_tokens=[(LLAMA[0], 0), (LLAMA[1], 1)],
    )  # fmt: skip
    rust.save(str(tmp_path / "tokenizer.json"))
    assert roles(load_tokenizer(tmp_path)) == expected
    assert load_tokenizer(tmp_path).notes == ()


@pytest.mark.parametrize("named", [{}, {"cls_token": "<eos>", "sep_token": "<eos>"}])
def test_the_post_processor_gives_the_tokens_around_a_text(tmp_path, named):
    """The config.json of mmBERT has <eos> as [CLS] and [SEP], but its tokenizer puts <bos> before a text."""
    directory = plain(
        tmp_path, ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
        config={"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "sep_token_id": 1},
        tokenizer_config={f"{role}_token": f"<{role}>" for role in ("pad", "eos", "bos", "unk", "mask")} | named,
    )  # fmt: skip
    rust = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    rust.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> $B <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    rust.save(str(directory / "tokenizer.json"))
    tokenizer = load_tokenizer(directory)
    assert roles(tokenizer) == ["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"]
    assert tokenizer.notes == ()
    tokenizer.save(tmp_path / "saved")
    assert roles(load_tokenizer(tmp_path / "saved")) == roles(tokenizer)


def test_a_sentencepiece_model_next_to_the_file_is_not_read_for_a_class_with_rules_of_its_own(tmp_path):
    gemma().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.model").write_bytes(b"of Gemma")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizerFast"}')
    tokenizer, library = load_tokenizer(tmp_path), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the rivers of é") == library.encode("the rivers of é", add_special_tokens=False).ids


def test_a_missing_special_token_and_one_that_is_not_a_piece_are_refused(tmp_path):
    plain(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    says = r"no piece is known as \[MASK\], which .* one of the 261 pieces in .* as .\"mask_token\": \"<mask>\"."
    with pytest.raises(UserError, match=says.replace("261", r"\d+")):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "[MASK]"}')
    with pytest.raises(UserError, match=r"have mask_token='\[MASK\]', but this piece is not in the vocabulary; correct one"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("piece", "role", "part"), [("[SEP]", "SEP", "end"), ("[CLS]", "CLS", "beginning")])
def test_a_mask_that_also_bounds_texts_is_refused(tmp_path, piece, role, part):
    plain(tmp_path, SPECIALS, tokenizer_config={"mask_token": piece})
    says = rf"'\[{role}\]' is both \[MASK\] and \[{role}\], .* the {part} of a text; name another piece as mask_token in"
    with pytest.raises(UserError, match=says):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalizer": {"type": "Fold"}}, r"its normalizer \(Fold\) is unknown to the library tokenizers \S+; copy"),
        ({"pre_tokenizer": {"type": "Guess"}}, r"its pre_tokenizer \(Guess\) is unknown to the library"),
        ({"decoder": {"type": "Guess"}}, r"its decoder \(Guess\) is unknown to the library"),
        ({"post_processor": {"type": "Guess"}}, r"its post_processor \(Guess\) is unknown to the library"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}, r"the library tokenizers \S+ cannot read it \("),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 0}, "unk_token": "a"}}, "two pieces have the same id"),
    ],
)
def test_files_that_the_library_cannot_run_are_refused_in_one_sentence(tmp_path, change, message):
    plain(tmp_path, SPECIALS)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(UserError, match=message):
        load_tokenizer(tmp_path)


def test_casing_flags_must_fit_the_rules_of_the_file(tmp_path):
    train_bpe(documents(), 600, None).save(tmp_path)
    load_tokenizer(tmp_path, lowercase=False)
    with pytest.raises(
        UserError, match=r"--lowercase does not fit .*, because the normalizer of tokenizer.json keeps capitals; use --cased"
    ):
        load_tokenizer(tmp_path, lowercase=True)


def test_splitting_by_the_gpt2_pattern_equals_the_byte_level_split(tmp_path):
    made = train_bpe(documents(), 600, None)
    content = json.loads(made._model.content)
    split = {"type": "Split", "pattern": {"Regex": GPT2_SPLIT}, "behavior": "Isolated", "invert": False}
    bytes_only = content["pre_tokenizer"] | {"use_regex": False}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, bytes_only]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    ours = load_tokenizer(tmp_path)
    assert [ours.encode(text) for text in texts()] == [made.encode(text) for text in texts()]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (normalizers.StripAccents(), "a \u0328 b"),
        (normalizers.BertNormalizer(lowercase=False, strip_accents=True), "a \u0301 b"),
        (normalizers.Replace("x", ""), "a x b"),
        (normalizers.Replace("'", "' "), "a' b"),
    ],
)
def test_spaces_around_a_dropped_character_are_next_to_each_other(tmp_path, rule, text):
    rust = MAKERS["gpt2"]()
    rust.normalizer = rule
    rust.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(text) == rust.encode(text, add_special_tokens=False).ids


def test_pieces_that_contain_a_space_are_found(tmp_path):
    merges = [("n", "e"), ("ne", "w"), ("new", " "), ("new ", "y"), ("new y", "o"), ("new yo", "r"), ("new yor", "k")]
    pieces = ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz ", *(a + b for a, b in merges)]
    rust = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="[UNK]"))
    rust.add_special_tokens(pieces[:5])
    rust.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert ours.tokens(ours.encode("in new york now")) == ["i", "n", " ", "new york", " ", "n", "o", "w"]

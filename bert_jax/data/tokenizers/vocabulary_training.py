"""Trains a vocabulary on the text of a corpus. The Rust library `tokenizers` trains WordPiece and byte-level BPE. SentencePiece
has its own library. The same text always gives the same vocabulary."""

from __future__ import annotations

import dataclasses
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bert_jax.data.corpus.shard import TextConfig, cleaned, is_eval
from bert_jax.data.corpus.sources import Item, Span, cut, read_span
from bert_jax.data.tokenizers.json_tokenizer import GPT4_SPLIT, JsonTokenizer
from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece
from bert_jax.data.tokenizers.tokenizer import Tokenizer
from bert_jax.data.tokenizers.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, WordPiece, basic_words, stands_alone, stripped
from bert_jax.errors import UserError
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit, counted

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0-4
SPLITTINGS = ("gpt2", "gpt4")
"""The ways in which byte-level BPE can split text before the merges. "gpt4" splits numbers into groups of up to three digits,
and joins a word to a punctuation mark directly before it."""
_MULTIPLE = 64  # the sizes of byte-level vocabularies are multiples of this number, which suits matrix units
_COVERAGE = 0.9999  # the characters that become pieces cover this fraction of the text; words with other characters are unknown
MARKS_LIMIT = 0.002
"""The largest accepted fraction of letters that the text rules change in more than the case, e.g. by dropping an accent. If the
fraction is larger, the text loses meaning. In the English Wikipedia, the fraction is 0.0004."""
_SAMPLES = 64  # the training text is sampled from this many parts of the corpus


def training_text(items: Sequence[Item], config: TextConfig, limit: int) -> Iterator[list[str]]:
    """Yields the sentences of each document that is not held out. The two texts of a pair are yielded separately. If the corpus
    has more than `limit` characters, about `limit` characters are sampled evenly over the corpus. Raises UserError at the end
    if there was no text."""
    total = sum(item.weight for item in items)
    parts = 1 if total <= limit else _SAMPLES
    counts: Counter[str] = Counter()
    scale, unit = byte_unit(min(total, limit))
    progress = Progress("reading for the vocabulary:", total=max(1, round(min(total, limit) / scale)), unit=f"{unit} of text")
    taken = read = held_out = used = 0
    weight = 0.0
    for spans in filter(None, _samples(items, parts, math.ceil(total / limit))):
        weight += sum(span.weight for span in spans)
        enough = round(limit * weight / total)
        if taken >= enough:
            continue
        for document in (document for span in spans for document in read_span(span, config.options, counts)):
            sentences = cleaned(document, config.cleaning, counts)
            is_held_out = bool(sentences) and is_eval(sentences, config.eval_fraction)
            read, held_out = read + 1, held_out + is_held_out
            if sentences and not is_held_out:
                used += 1
                if document.is_pair:  # the translation is not the next sentence of the text
                    yield from ([text] for text in sentences)
                else:
                    yield sentences
                taken += sum(map(len, sentences))
                progress.update(round(taken / scale))
            if taken >= enough:
                break
    progress.close()
    if not used:
        raise UserError(
            f"there is no text to train a vocabulary on: of {counted(read, 'document')}, {held_out:,} are held out for "
            f"evaluation and {read - held_out:,} have no sentence after cleaning; give more text"
        )


def _samples(items: Sequence[Item], parts: int, every: int) -> list[list[Span]]:
    """Divides the items into samples. From each sample, text is taken until there is enough. A sample is one of `parts` parts of
    the corpus, or a compressed file, which can only be read from its start. To take text from all of the file, span k of such a
    sample has every n-th document from document k, where n is `every`, but at most `parts`."""
    packed = [dataclasses.replace(item, length=min(every, parts)) for item in items if item.unit == "parts" and parts > 1]
    whole = [item for item in items if item.unit != "parts" or parts == 1]
    return [*cut(whole, parts), *([Span(item, k, k + 1) for k in range(item.length)] for item in packed)]


def stripped_share(characters: Mapping[str, int]) -> tuple[float, str]:
    """Returns the fraction of letters that change if accents and marks are stripped, and the most frequent changes, e.g. "й →
    и". `characters` has the count of each character."""
    letters = sum(count for character, count in characters.items() if character.isalpha() or stripped(character) is not None)
    changed = {character: left for character in characters if (left := stripped(character)) is not None}
    shown = sorted(changed, key=lambda character: (-characters[character], character))[:3]
    examples = ", ".join(f"{character} → {' '.join(changed[character]) or 'nothing'}" for character in shown)
    return sum(characters[character] for character in changed) / max(1, letters), examples


def train_wordpiece(
    documents: Iterable[list[str]],
    size: int,
    lowercase: bool | None,
    max_word_characters: int | None = None,
    alphabet: int | None = None,
) -> Tokenizer:
    """Trains a WordPiece tokenizer with `size` pieces, by byte-pair merges in the Rust library. There are fewer pieces if the
    text has no more.

    lowercase: None means that the text is lower-cased, unless this would change more of the letters than MARKS_LIMIT. alphabet:
    the number of characters that become pieces, both at the start of a word and inside a word. They are the most frequent
    characters. None means the characters that cover 99.99 % of the text. Raises UserError if there is no text, if `size` is too
    small for the characters, or if the user must choose the casing."""
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers, trainers

    stretches = _count_stretches(documents)
    if lowercase is None:
        _require_no_loss(stretches)
        lowercase = True
    words = _count_words(stretches, lowercase)
    if not words:
        raise UserError("there is no text to train a vocabulary on")
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    kept = sorted(_most_frequent(characters, alphabet))
    inside = [c for c in kept if alphabet is not None or not stands_alone(c)]
    letters = [*kept, *(CONTINUATION + c for c in inside)]
    if size < len(SPECIALS) + len(letters):
        raise UserError(
            f"--vocab-size={size:,} is less than the {counted(len(SPECIALS) + len(letters), 'piece')} that the text's "
            f"characters need; raise it, or lower --alphabet"
        )
    # The library gives ids to characters in the random order of a hash table, and breaks ties by id. If the characters are
    # passed as special tokens, their ids are fixed, so the same text gives the same vocabulary.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *letters],
        limit_alphabet=len(kept),
        initial_alphabet=kept,
        show_progress=False,
    )
    rust = Rust(models.WordPiece(unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.train_from_iterator((f"{word} " * words[word] for word in sorted(words)), trainer)
    ids = rust.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    return Tokenizer(WordPiece(pieces, lowercase=lowercase, max_word_characters=max_word_characters or MAX_WORD_CHARACTERS))


def _most_frequent(characters: Counter[str], most: int | None) -> list[str]:
    """Returns the `most` most frequent characters. If `most` is None, returns as many as cover `_COVERAGE` of the text."""
    ranked = sorted(characters, key=lambda c: (-characters[c], c))
    if most is not None:
        return ranked[:most]
    missing = sum(characters.values()) * _COVERAGE
    kept = []
    for character in ranked:
        if missing <= 0:
            break
        kept.append(character)
        missing -= characters[character]
    return kept


def _require_no_loss(stretches: Counter[str]) -> None:
    """Raises UserError if lower-casing would change anything but the case in more than MARKS_LIMIT of the letters."""
    characters: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for character in stretch:
            characters[character] += count
    share, examples = stripped_share(characters)
    if share > MARKS_LIMIT:
        raise UserError(
            f"a new vocabulary is lower-cased and drops accents and marks by default, which changes {share:.1%} of "
            f"the letters of this text ({examples}); give --cased to keep accents and marks, or --lowercase to drop them"
        )


def _count_stretches(documents: Iterable[list[str]]) -> Counter[str]:
    """Counts the strings between white space."""
    stretches: Counter[str] = Counter()
    for sentences in documents:
        for sentence in sentences:
            stretches.update(sentence.split())
    return stretches


def _count_words(stretches: Counter[str], lowercase: bool) -> Counter[str]:
    """Counts the words. The text rules are applied only once to each distinct string between white space."""
    words: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for word in basic_words(stretch, lowercase):
            words[word] += count
    return words


def train_sentencepiece(
    documents: Iterable[list[str]],
    size: int,
    lowercase: bool | None,
    max_word_characters: int | None = None,
    alphabet: int | None = None,
    *,
    characters: bool = False,
) -> Tokenizer:
    """Trains a unigram SentencePiece tokenizer with ALBERT's special pieces. If `lowercase` is True or None, the normalisation
    of the model lower-cases text. It keeps accents.

    With `characters`, the pieces are single characters, and the space before a word is the piece ▁. `lowercase=None` then means
    that text is not lower-cased."""
    import sentencepiece

    lowercase = bool(lowercase) if characters else lowercase is not False
    if alphabet:
        raise UserError(
            "--alphabet is a setting of WordPiece, but SentencePiece always keeps the characters that cover 99.95 % of the "
            "text; leave --alphabet out"
        )
    if max_word_characters:
        raise UserError("--max-word-characters is a limit of WordPiece, but SentencePiece has no such limit; leave it out")
    model = io.BytesIO()
    failure: BaseException | None = None

    def read_sentences() -> Iterator[str]:
        nonlocal failure
        try:
            for sentences in documents:
                yield from sentences
        except (Exception, KeyboardInterrupt) as error:  # the library would turn it into a RuntimeError
            failure = error
            raise

    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=read_sentences(),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            model_type="char" if characters else "unigram",
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            control_symbols=list(SPECIALS[2:]),  # text never produces these pieces
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            max_sentence_length=1 << 16,
            num_threads=4,  # a fixed number, because it determines the order of sums
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        if failure is not None:
            raise failure from None
        raise UserError(f"SentencePiece cannot make {counted(size, 'piece')} from this text: {error}") from error
    return Tokenizer(SentencePiece(model.getvalue(), lowercase=lowercase))


def train_bpe(
    documents: Iterable[list[str]],
    size: int,
    lowercase: bool | None,
    *,
    splitting: str = "gpt2",
    nfc: bool = False,
    unused: int = 0,
) -> Tokenizer:
    """Trains a byte-level BPE tokenizer, which can encode any text. `size` is rounded up to a multiple of 64. At least `unused`
    pieces at the end ([unused0] etc.) are reserved for tokens that are added later. If the text has too few merges, there are
    fewer than `size` pieces.

    lowercase: None means False. splitting: one of SPLITTINGS. nfc: whether accents are composed first (Unicode NFC), as in
    ModernBERT. Without `nfc`, a cased tokenizer decodes ids to exactly the original text.
    """
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from tokenizers import Tokenizer as Rust

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    least = len(SPECIALS) + len(letters) + unused
    rounded = -(-size // _MULTIPLE) * _MULTIPLE
    if rounded < least:
        raise UserError(
            f"--vocab-size={size:,} is less than the {counted(least, 'piece')} of the special tokens, the bytes and "
            f"--unused-tokens={unused:,}; raise it"
        )
    rust = Rust(models.BPE())
    steps = [*([normalizers.NFC()] if nfc else []), *([normalizers.Lowercase()] if lowercase else [])]
    if steps:
        rust.normalizer = normalizers.Sequence(steps)
    if splitting == "gpt2":
        rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        splitter = pre_tokenizers.Split(Regex(GPT4_SPLIT), "isolated")
        rust.pre_tokenizer = pre_tokenizers.Sequence(
            [splitter, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    trainer = trainers.BpeTrainer(
        vocab_size=rounded - unused,
        min_frequency=2,
        special_tokens=list(SPECIALS),
        initial_alphabet=letters,
        show_progress=False,
    )
    read = 0

    def texts() -> Iterator[str]:
        nonlocal read
        for sentences in documents:
            read += 1
            yield " ".join(sentences)

    rust.train_from_iterator(texts(), trainer)
    if not read:
        raise UserError("there is no text to train a vocabulary on")
    learned = rust.get_vocab_size()
    spare = -(-(learned + unused) // _MULTIPLE) * _MULTIPLE - learned
    rust.add_special_tokens([AddedToken(token, lstrip=token == "[MASK]", normalized=False, special=True) for token in SPECIALS])
    rust.add_special_tokens([AddedToken(f"[unused{i}]", normalized=False, special=True) for i in range(spare)])
    framing = [("[CLS]", SPECIALS.index("[CLS]")), ("[SEP]", SPECIALS.index("[SEP]"))]
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=framing
    )
    rust.decoder = decoders.ByteLevel()
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIALS, strict=True))
    model = JsonTokenizer(rust.to_str(pretty=True))
    return Tokenizer(model, specials=roles, added=model.special_tokens)

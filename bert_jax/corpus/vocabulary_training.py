"""Trains a vocabulary on the corpus, deterministically: WordPiece with the Rust `tokenizers`, SentencePiece with its library."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from bert_jax.corpus.cleaning import clean_document
from bert_jax.corpus.reading import read_span
from bert_jax.corpus.sentencepiece_model import SentencePiece
from bert_jax.corpus.shard import TextConfig, is_heldout
from bert_jax.corpus.sources import Item, cut
from bert_jax.corpus.tokenizer import Tokenizer
from bert_jax.corpus.wordpiece import CONTINUATION, MAX_WORD_CHARACTERS, WordPiece, basic_words
from bert_jax.errors import UserError
from bert_jax.interface.progress import Progress
from bert_jax.interface.words import byte_unit, counted

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0-4
_ALPHABET = 1000  # the most frequent characters are kept; words with other characters are unknown
_SAMPLES = 64  # parts of the corpus from which the training text is sampled


def training_text(items: Sequence[Item], config: TextConfig, limit: int) -> Iterator[list[str]]:
    """Yields the sentences of each document that is not held out: all, or `limit` characters sampled evenly over the corpus."""
    total = sum(item.weight for item in items)
    parts = 1 if total <= limit else _SAMPLES
    counts: Counter[str] = Counter()
    scale, unit = byte_unit(min(total, limit))
    progress = Progress("reading for the vocabulary:", total=max(1, round(min(total, limit) / scale)), unit=f"{unit} of text")
    done = 0
    for spans in cut(items, parts):
        taken = 0
        for document in (document for span in spans for document in read_span(span, config.options, counts)):
            sentences = clean_document(document.lines, is_sentence=document.is_sentence, config=config.cleaning, counts=counts)
            if sentences and not is_heldout(sentences, config.heldout_fraction):
                yield sentences
                taken += sum(map(len, sentences))
                progress.update(round((done + taken) / scale))
            if taken >= limit // parts:
                break
        done += taken
    progress.close()


def train_wordpiece(
    documents: Iterable[list[str]], size: int, lowercase: bool, max_word_characters: int | None = None
) -> Tokenizer:
    """A WordPiece tokenizer with `size` pieces (fewer if the text has no more), trained by byte-pair merges in the Rust library.

    Raises UserError without text, or if `size` is less than the number of characters needs.
    """
    from tokenizers import Tokenizer as Rust
    from tokenizers import models, pre_tokenizers, trainers

    words = _count_words(documents, lowercase)
    if not words:
        raise UserError("there is no text to train a vocabulary on")
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    alphabet = sorted(sorted(characters, key=lambda c: (-characters[c], c))[:_ALPHABET])
    letters = [*alphabet, *(CONTINUATION + c for c in alphabet)]
    if size < len(SPECIALS) + len(letters):
        raise UserError(
            f"--vocab-size={size:,} is less than the {counted(len(SPECIALS) + len(letters), 'piece')} that the text's "
            f"characters need"
        )
    # The library numbers characters in the random order of a hash table, and breaks ties by number. Passed as special tokens,
    # they have fixed numbers, so the same text gives the same vocabulary.
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIALS, *letters],
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    rust = Rust(models.WordPiece(unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rust.train_from_iterator((f"{word} " * words[word] for word in sorted(words)), trainer)
    ids = rust.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    return Tokenizer(WordPiece(pieces, lowercase=lowercase, max_word_characters=max_word_characters or MAX_WORD_CHARACTERS))


def _count_words(documents: Iterable[list[str]], lowercase: bool) -> Counter[str]:
    """The frequency of each word. Text is first counted by white space, so that the rules run once per distinct string."""
    stretches: Counter[str] = Counter()
    for sentences in documents:
        for sentence in sentences:
            stretches.update(sentence.split())
    words: Counter[str] = Counter()
    for stretch, count in stretches.items():
        for word in basic_words(stretch, lowercase):
            words[word] += count
    return words


def train_sentencepiece(
    documents: Iterable[list[str]], size: int, lowercase: bool, max_word_characters: int | None = None
) -> Tokenizer:
    """A unigram SentencePiece tokenizer with ALBERT's special pieces; its own normalisation lower-cases text if `lowercase`."""
    import sentencepiece

    if max_word_characters:
        raise UserError("--max-word-characters is a limit of WordPiece; SentencePiece has none")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(sentence for sentences in documents for sentence in sentences),
            model_writer=model,
            vocab_size=size,
            hard_vocab_limit=False,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1,
            control_symbols=list(SPECIALS[2:]),  # pieces that text never produces
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            max_sentence_length=1 << 16,
            num_threads=4,  # fixed, because the order of the sums depends on it
            minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise UserError(f"SentencePiece cannot make {counted(size, 'piece')} from this text: {error}") from error
    return Tokenizer(SentencePiece(model.getvalue(), lowercase=lowercase))

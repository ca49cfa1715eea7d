"""Converts our tokenizers to tokenizers of the Rust library `tokenizers` (the `tokenizer.json` format), for transformers and
servers.

The converted tokenizers differ from ours. They recognise special tokens in the text. In converted WordPiece models, two rules
of `BertNormalizer` are different (see `wordpiece`). Converted SentencePiece models may give other ids in four cases: if
combining marks are not in canonical order; if a mark without a composed form follows a letter that the character map changes
(the mark is lost); if a text with final sigmas is lower-cased outside the model; and if the likelihoods of two segmentations
differ only by rounding."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bert_jax.data.tokenizers.wordpiece import WordPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer, normalizers

    from bert_jax.data.tokenizers.sentencepiece_model import SentencePiece

_NEVER = -1000.0  # the log probability of pieces that text must not produce
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED = 1, 2, 3, 5  # types of SentencePiece pieces; the other types are user-defined and byte
_UNIGRAM = 1


def rust_tokenizer(model: WordPiece | SentencePiece, specials: Mapping[str, str], added: Sequence[str]) -> Tokenizer | None:
    """Returns the closest `tokenizers.Tokenizer`, or None for a SentencePiece model that the library cannot run.

    `specials` maps each role ("pad", "unk", "cls", "sep", "mask") to a piece. `added` are further special tokens.
    """
    from tokenizers import AddedToken, decoders, processors  # imported here because the import takes 0.1 s

    rust = _rust_wordpiece(model, specials["unk"]) if isinstance(model, WordPiece) else _rust_unigram(model)
    if rust is None:
        return None
    ids = {piece: i for i, piece in enumerate(model.pieces)}
    tokens = sorted({*specials.values(), *added}, key=ids.__getitem__)
    rust.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
    rust.post_processor = processors.BertProcessing(*((specials[part], ids[specials[part]]) for part in ("sep", "cls")))
    rust.decoder = decoders.WordPiece() if isinstance(model, WordPiece) else decoders.Metaspace()
    return rust


def _rust_wordpiece(model: WordPiece, unknown: str) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    last = len(model.pieces) - 1  # an empty piece fills an unused id; the last piece is kept even if empty, for the size
    ids = {piece: i for i, piece in enumerate(model.pieces) if piece or i == last}
    rust = Tokenizer(models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=model.max_word_characters))
    rust.normalizer = normalizers.BertNormalizer(
        lowercase=model.lowercase, strip_accents=model.strip_accents, handle_chinese_chars=model.split_cjk
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return rust


def _rust_unigram(model: SentencePiece) -> Tokenizer | None:
    """Returns the converted Unigram model, including its normalisation, or None if the library cannot run it. The library
    applies the character map to whole graphemes, so text is composed (NFC) first."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    spec = model.specification()
    plain = {piece.type for piece in spec.pieces} <= {_NORMAL, _UNKNOWN, _CONTROL, _UNUSED}
    if spec.trainer_spec.model_type != _UNIGRAM or not plain or spec.trainer_spec.treat_whitespace_as_suffix:
        return None
    scores = [(p.piece, _NEVER if p.type in (_CONTROL, _UNUSED) else p.score) for p in spec.pieces]
    rust = Tokenizer(models.Unigram(scores, spec.trainer_spec.unk_id, False))
    steps: list[normalizers.Normalizer] = []
    if model.lowercase and not model.folds:
        steps.append(normalizers.Lowercase())
    if model.strips:
        steps += [normalizers.NFKD(), normalizers.Replace(Regex(_combining_marks()), "")]
    if spec.normalizer_spec.precompiled_charsmap:
        steps += [normalizers.NFC(), normalizers.Precompiled(spec.normalizer_spec.precompiled_charsmap)]
    if spec.normalizer_spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    rust.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.normalizer_spec.add_dummy_prefix else "never"
    rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    return rust


def _combining_marks() -> str:
    """Returns a regular expression for the combining marks that `SentencePiece` strips. The library's StripAccents strips more
    marks."""
    marks = [code for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))]
    return "[" + "".join(f"\\x{{{code:X}}}" for code in marks) + "]"

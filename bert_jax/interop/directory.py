"""Writes a model directory atomically. Only replaces a directory that this package has written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from bert_jax import files
from bert_jax.data.tokenizers.tokenizer_files import CONFIG_FILE, JSON_FILE, MAP_FILE, MARIAN_FILES, MODEL_FILES, VOCAB_FILE
from bert_jax.errors import UserError
from bert_jax.files import JsonObject, parse_json, read_object

OURS = "bert_jax"
"""The key under which the JSON files of an export hold this package's own fields. transformers ignores this key and keeps
it."""

GENERATION = "generation_config.json"
"""The settings with which transformers generates text."""
CONFIG = "config.json"
MODULES = "modules.json"
"""The file of sentence-transformers that lists the modules of a model and their folders."""
_TOKENIZER = (VOCAB_FILE, MODEL_FILES[0], JSON_FILE, CONFIG_FILE, MAP_FILE)
TEXT_VECTORS = (MODULES, "sentence_bert_config.json", "1_Pooling", "2_Normalize")
"""The files and folders of `sentence_transformers.py`."""
FORMATS: dict[str, tuple[str, tuple[str, ...]]] = {
    "huggingface": (CONFIG, (CONFIG, GENERATION, "model.safetensors", *_TOKENIZER, *MARIAN_FILES, *TEXT_VECTORS)),
    "tf1": (
        "bert_config.json",
        ("bert_config.json", VOCAB_FILE, *(f"bert_model.ckpt.{end}" for end in ("index", "data-00000-of-00001"))),
    ),
    "stablehlo": ("signature.json", ("forward.stablehlo", "signature.json", *_TOKENIZER)),
    "word2vec": (CONFIG_FILE, ("vectors.txt", *_TOKENIZER)),
}
"""Export format -> (a JSON file, all files). If the JSON file has the key OURS, this package wrote the directory."""

CARD = "README.md"
"""The file of the model card. `card.model_card` makes its text."""
_SIGNED = re.compile(r"(.*)<!-- bert_jax ([0-9a-f]{16}) (\{[^>]*\}) -->\n?", re.DOTALL)


class Unwritable(UserError):
    """Raised if a model cannot be written: the directory has foreign files, its disk is full, or it is not writable."""


@contextlib.contextmanager
def replaced_when_complete(directory: pathlib.Path, form: str, card: str = "") -> Iterator[pathlib.Path]:
    """Yields a temporary directory that replaces `directory` if the context ends without an exception. If `directory` is a
    symbolic link, the target of the link is replaced, and the link is kept.

    An older directory of that name must be empty, or an export of this package in the format `form` (a key of FORMATS), because
    no other directory may be deleted. Files in it that do not belong to the format, such as notes, are copied to the new
    directory. `card` is the text of the model card. If somebody has written or edited the card in the older directory, that card
    is kept instead. Raises Unwritable if `directory` is neither empty nor an export, if another process is writing to it, or if
    the disk is full. The older directory then remains unchanged."""
    directory = _resolved(directory)
    old = files.aside(directory)
    with _as_unwritable(directory):
        if not (old.is_symlink() or not old.exists() or _is_ours(old)):
            raise Unwritable(
                f"{old} is needed as a temporary directory, but it holds files that bert_jax did not write; move it, or choose a "
                f"directory other than {directory}"
            )
        _refuse_second_writer(directory)
        files.restore(directory)
        check_replaceable(directory, form, str(directory))
        with contextlib.suppress(FileExistsError):  # a file in its place is reported below, as "Not a directory"
            directory.parent.mkdir(parents=True, exist_ok=True)
        with files.writing_directory(directory, replace=True) as temporary:
            _refuse_second_writer(directory, temporary.with_suffix(".part"))  # both processes may have started at once
            yield temporary
            if card:
                (temporary / CARD).write_text(card, encoding="utf-8")
            if directory.exists():
                _copy_other_files(directory, temporary, form)


def _refuse_second_writer(directory: pathlib.Path, own: pathlib.Path | None = None) -> None:
    """Raises Unwritable if another process, whose temporary file is not `own`, is writing `directory`."""
    if files.being_written(directory, besides=own):
        raise Unwritable(f"another process is writing a model to {directory}; wait until it ends, or choose another directory")


def check_replaceable(directory: pathlib.Path, form: str, shown: str) -> None:
    """Raises Unwritable if `replaced_when_complete` may not replace `directory`, because its files are not from an export of this
    package in the format `form`. Messages call the directory `shown`."""
    directory = _resolved(directory)
    with _as_unwritable(directory):
        if directory.exists() and not _is_ours(directory):
            reason = "holds files that bert_jax did not export, so it is not overwritten"
            raise Unwritable(f"{shown} {reason}; name another directory")
        if others := [other for other in exported_formats(directory) if other != form]:
            reason = f"holds a model that bert_jax exported in the format {others[0]}, so it is not overwritten in {form}"
            raise Unwritable(f"{shown} {reason}; name another directory, or remove that model")


def is_replaced(name: str) -> bool:
    """Returns whether an export may replace the file `name` (relative to the directory) of an older export. All other files are
    kept."""
    return name == CARD or any(name.partition("/")[0] in files for _, files in FORMATS.values())


def _resolved(directory: pathlib.Path) -> pathlib.Path:
    """Resolves the symbolic links of `directory`. Raises Unwritable for circular links."""
    resolved = pathlib.Path(os.path.realpath(directory))
    if resolved.is_symlink():
        raise Unwritable(f"{directory} is a circular symbolic link; name another directory")
    return resolved


def _is_ours(directory: pathlib.Path) -> bool:
    """Returns whether `directory` is empty, or an export of this package."""
    if directory.is_symlink() or not directory.is_dir():
        return False
    return not any(directory.iterdir()) or bool(exported_formats(directory))


def exported_formats(directory: pathlib.Path) -> list[str]:
    """Returns the FORMATS in which this package has exported a model to `directory`."""

    def has(name: str, files: tuple[str, ...]) -> bool:
        if not (directory / name).is_file() or not any((directory / file).exists() for file in files if file != name):
            return False
        try:
            return OURS in read_object(directory / name)
        except UserError:
            return False

    return [form for form, (name, files) in FORMATS.items() if has(name, files)]


def _copy_other_files(directory: pathlib.Path, temporary: pathlib.Path, form: str) -> None:
    """Copies to `temporary` all entries of `directory` except the files of the format. Links are copied as links."""
    for path in directory.iterdir():
        if path.name in FORMATS[form][1] or (path.name == CARD and _is_our_card(path)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.copytree(path, temporary / path.name, symlinks=True)
        else:
            (temporary / path.name).unlink(missing_ok=True)
            shutil.copy2(path, temporary / path.name, follow_symlinks=False)


def _is_our_card(path: pathlib.Path) -> bool:
    try:
        return not path.is_symlink() and card_facts(path.read_text(encoding="utf-8")) is not None
    except (OSError, UnicodeDecodeError):
        return False


def signed_card(text: str, facts: JsonObject) -> str:
    """Returns the card `text` with a comment at its end. The comment has `facts` and a hash of the text. `card_facts` reads the
    facts if the text is unchanged. A file name in the text may have bytes that are not UTF-8; these bytes are escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    content = json.dumps(facts).replace(">", "\\u003e")  # so that the content cannot end the comment
    return f"{text}\n<!-- bert_jax {_hash(text)} {content} -->\n"


def card_facts(text: str) -> JsonObject | None:
    """Returns the facts of a card made by `signed_card`, or None if somebody else wrote or changed it."""
    signed = _SIGNED.fullmatch(text)
    if signed is None or _hash(signed[1].removesuffix("\n")) != signed[2]:
        return None
    try:
        facts = parse_json(signed[3])
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _as_unwritable(directory: pathlib.Path) -> Iterator[None]:
    """Converts an OSError in the context to Unwritable."""
    try:
        yield
    except OSError as error:
        remedy = "free space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else ""
        reason = error.strerror or error
        raise Unwritable(f"cannot write a model to {directory}: {reason}; {remedy}choose a writable directory") from error

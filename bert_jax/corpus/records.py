"""TensorFlow Datasets as a source of text, without TensorFlow: a data set by its catalogue name, or our own embedded one, read
by record number.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
import socket
import warnings
from collections.abc import Sequence
from typing import Any

from bert_jax.terminal import UserError, nearest

EMBEDDED = "embedded"
_CATALOGUE_HOST = "storage.googleapis.com"  # where tfds keeps prepared data sets and from where most builders download


@dataclasses.dataclass(frozen=True)
class TextSet:
    """One split of a data set: record i's text is `str(records[i][feature], "utf-8")`."""

    records: Sequence[dict[str, Any]]
    feature: str
    split: str
    text_bytes: float  # an estimate


def parse_name(name: str) -> tuple[str, str, str]:
    """`NAME[:SPLIT][@FEATURE]` -> (name, split or "train", feature or "")."""
    match = re.fullmatch(r"([^:@\s]+)(?::([^@\s]+))?(?:@(\S+))?", name)
    if not match:
        raise UserError(
            f"tfds:{name} is not NAME, NAME:SPLIT or NAME:SPLIT@FEATURE, for example tfds:wikipedia/20230601.en:train@text"
        )
    return match[1], match[2] or "train", match[3] or ""


def open_text_set(name: str, directory: str | None) -> TextSet:
    """The data set `name` (see `parse_name`, or `EMBEDDED`), prepared on the first call and only opened on later ones."""
    if name == EMBEDDED:
        builder, split, feature = _embedded_builder(directory), "train", "text"
    else:
        name, split, feature = parse_name(name)
        builder = _catalogue_builder(name, directory)
    splits = builder.info.splits
    if split not in splits and split.split("[")[0] not in splits:
        raise UserError(f"tfds:{name} has no split {split!r}; {nearest(split, splits)}")
    return TextSet(_open(builder, split), _text_feature(builder, feature), split, float(splits[split].num_bytes))


@functools.cache
def _tfds() -> Any:
    os.environ.setdefault("NO_GCE_CHECK", "true")  # else it waits for a metadata server that only Google's machines have
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds  # 0.3-2 s, paid only by who reads a data set
    tfds.disable_progress_bar()
    return tfds


def cache_directory() -> pathlib.Path:
    """Where the embedded corpus is kept: $BERT_JAX_CACHE, or `bert_jax` in the user's cache directory."""
    stated = os.environ.get("BERT_JAX_CACHE")
    return (
        pathlib.Path(stated)
        if stated
        else pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "bert_jax"
    )


def _embedded_builder(directory: str | None) -> Any:
    _tfds()
    from bert_jax.corpus.embedded import embedded_dataset_builder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return embedded_dataset_builder.prepared(pathlib.Path(directory) if directory else cache_directory() / "tfds")


def _catalogue_builder(name: str, directory: str | None) -> Any:
    tfds = _tfds()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            builder = tfds.builder(name, data_dir=directory, file_format="array_record")
    except tfds.core.DatasetNotFoundError as error:
        raise UserError(f"tfds:{name} is not in the catalogue; {nearest(name.split('/')[0], tfds.list_builders())}") from error
    except Exception as error:  # tfds raises many kinds for a wrong config, version or data directory
        raise UserError(f"tfds:{name} cannot be opened: {_first_line(error)}") from error
    if not pathlib.Path(builder.data_dir).exists():
        _require_network(name, builder.data_dir)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            builder.download_and_prepare()
    except Exception as error:
        raise UserError(f"tfds:{name} cannot be prepared in {builder.data_dir}: {_first_line(error)}") from error
    return builder


def _require_network(name: str, data_dir: Any) -> None:
    """Fails at once where there is no network; tfds itself would retry for minutes."""
    try:
        socket.getaddrinfo(_CATALOGUE_HOST, 443)
    except OSError as error:
        raise UserError(
            f"tfds:{name} is not prepared in {data_dir}, and there is no network to fetch it ({_CATALOGUE_HOST}: {error}); "
            "prepare it where there is one and name its directory with --tfds-directory, or use --source=embedded, text: or jsonl:"
        ) from error


def _open(builder: Any, split: str) -> Sequence[dict[str, Any]]:
    try:
        return builder.as_data_source(split=split)
    except Exception as error:
        raise UserError(
            f"{builder.name} in {builder.data_dir} cannot be read by record ({_first_line(error)}); prepare it again with file_format='array_record'"
        ) from error


def _text_feature(builder: Any, feature: str) -> str:
    features = builder.info.features
    texts = [name for name in features if isinstance(features[name], _tfds().features.Text)]
    if feature and feature not in texts:
        raise UserError(
            f"tfds:{builder.name} has no text feature {feature!r}; {nearest(feature, texts) if texts else 'it has none'}"
        )
    if feature or "text" in texts or len(texts) == 1:
        return feature or ("text" if "text" in texts else texts[0])
    raise UserError(
        f"tfds:{builder.name} has {len(texts)} text features ({', '.join(texts)}); choose with tfds:{builder.name}@FEATURE"
    )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"

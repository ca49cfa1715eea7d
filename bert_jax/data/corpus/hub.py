"""Finds a vocabulary by name, and downloads model files from the Hugging Face hub (cached by huggingface_hub)."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pathlib
import re
from collections.abc import Callable, Iterator

from bert_jax.data.tokenizers.tokenizer_files import CONFIG_FILE, VOCAB_FILE, VOCABULARY_FILES, vocabulary_files
from bert_jax.errors import UserError, missing_path
from bert_jax.storage.fetching import fetched
from bert_jax.storage.objects import listed
from bert_jax.storage.paths import checked, is_remote, split

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.json", "vocab.txt", "*.model", "*.spm")
"""Patterns of a model's files, excluding its weights."""

OWNERS = {"bert": "google-bert", "distilbert": "distilbert"}
"""The owner by the first word of a model's name, for models that had no owner on the hub before 2024."""

HUB_SECONDS = 5.0
"""The timeout for the hub. Firewalls of cluster nodes usually drop packets without an answer."""


def find_vocabulary(name: str) -> pathlib.Path:
    """Finds the file or directory of a vocabulary. `name` is the path of the vocabulary, a workdir with an exported model, a
    corpus, or a model on the hub. Raises UserError if there is no such vocabulary."""
    if is_remote(checked(name, "--vocab")):
        return _vocabulary_in_bucket(checked(name, "--vocab"))
    path = pathlib.Path(name)
    if not name:
        raise UserError(f"the name of the vocabulary is empty; name a {VOCAB_FILE}, a model, a workdir or a corpus")
    if is_hub_name(name):
        with hub_fetcher(name) as fetch:
            return fetch(*HUB_FILES)
    if path.is_dir() and not vocabulary_files(path):
        inside = next((path / part for part in ("model", "tokenizer") if vocabulary_files(path / part)), path)
        if inside == path and (path / "checkpoints").is_dir():
            raise UserError(f"{path} is a workdir that has no exported model yet; name the corpus of this run instead")
        return inside
    if not path.exists():
        raise UserError(
            f"vocabulary {missing_path(path)} does not exist; give a {VOCAB_FILE}, a spiece.model, a directory with one of "
            f"them, or a model of the hub as {name_on_hub(name)}"
        )
    return path


def _vocabulary_in_bucket(name: str) -> pathlib.Path:
    """Returns a local copy of the vocabulary at `name` in a bucket. `name` is a file, or a directory that `find_vocabulary`
    accepts. The tokenizer_config.json next to a file is copied too, since `load_tokenizer` compares it with the vocabulary."""
    above, _, last = name.rpartition("/")
    if last in VOCABULARY_FILES and split(above)[1] and last in listed(above, deep=False):
        return fetched(above, "--vocab", deep=False, wanted=lambda file: file in (last, CONFIG_FILE)) / last
    places = (name, f"{name}/model", f"{name}/tokenizer")
    name = next((place for place in places if any(file in VOCABULARY_FILES for file in listed(place, deep=False))), name)
    return fetched(name, "--vocab", deep=False, wanted=lambda file: any(fnmatch.fnmatch(file, one) for one in HUB_FILES))


def is_hub_name(name: str) -> bool:
    """Returns whether `name` has the form OWNER/NAME of a model on the hub, and no such path exists."""
    return bool(HUB_NAME.fullmatch(name)) and not name.startswith((".", "-")) and not pathlib.Path(name).exists()


def name_on_hub(name: str) -> str:
    """Returns the current hub name of a model that was once called `name`, e.g. google-bert/bert-base-uncased. Returns
    "OWNER/NAME" for unknown names. The result is used in messages."""
    owner = next((owner for start, owner in OWNERS.items() if re.fullmatch(rf"{start}-(base|large)-[\w-]+", name)), None)
    return f"{owner}/{name}" if owner else "OWNER/NAME"


@contextlib.contextmanager
def hub_fetcher(name: str) -> Iterator[Callable[..., pathlib.Path]]:
    """Yields a function of patterns. It downloads the model's files that match the patterns and returns their directory.

    Raises UserError if there is no such model or no network.
    """
    # Without this variable, the library first asks the hub for a list of programs, for its telemetry. This takes 3 s if the hub
    # does not answer.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import httpx2  # the HTTP client of huggingface_hub, which passes on some errors of the client unchanged
    import huggingface_hub  # imported here because the import takes 0.3 s and local models do not need it
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    silence: Exception | None = None
    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_SECONDS)
    except httpx2.TimeoutException as error:  # use only cached files, because a download would block
        silence = error
    except (httpx2.HTTPError, OSError, ValueError):  # `fetch` also looks in the cache; if a file is missing, it raises an error
        pass

    def fetch(*patterns: str) -> pathlib.Path:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=[*patterns], local_files_only=bool(silence)))

    try:
        yield fetch
    except RepositoryNotFoundError as error:
        raise UserError(
            f"there is no directory {missing_path(name)}, and the hub shows no model of this name; check the name (for a "
            "private or gated model, log in first: hf auth login)"
        ) from error
    except (httpx2.HTTPError, EntryNotFoundError, OSError, ValueError) as error:
        raise UserError(
            f"there is no directory {missing_path(name)}, and no model of that name could be fetched from the hub: "
            f"{_cause(silence or error)}; check the network, or name a directory"
        ) from error


def _cause(error: BaseException) -> str:
    """Returns the first line of the innermost cause of `error`. The outer exceptions have no details."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__

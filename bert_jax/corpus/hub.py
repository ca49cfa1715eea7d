"""Where a vocabulary lies, and how files of a model on the Hugging Face hub are fetched, once: huggingface_hub keeps them."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Callable, Iterator

from bert_jax.corpus.tokenizer_files import VOCAB_FILE, vocabulary_files
from bert_jax.errors import UserError, missing_path

HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ("*.json", "vocab.txt", "*.model")
"""What is fetched of a model beside its weights."""

HUB_SECONDS = 5.0
"""How long the hub may be silent: a firewall that drops packets without a word is the rule on a cluster's inner machines."""


def find_vocabulary(name: str) -> pathlib.Path:
    """The file or directory that a person means by a vocabulary: itself, that of a workdir's model or of a corpus, or of a model
    on the hub. Raises UserError where there is none.
    """
    path = pathlib.Path(name)
    if not name:
        raise UserError(f"the name of the vocabulary is empty; give a {VOCAB_FILE}, a model, a workdir or a corpus")
    if is_hub_name(name):
        with on_the_hub(name) as fetch:
            return fetch(*HUB_FILES)
    if path.is_dir() and not vocabulary_files(path):
        inside = next((path / part for part in ("model", "tokenizer") if vocabulary_files(path / part)), path)
        if inside == path and (path / "checkpoints").is_dir():
            raise UserError(f"{path} is a workdir without an exported model yet; name the corpus that it trains on")
        return inside
    return path


def is_hub_name(name: str) -> bool:
    """Whether `name` may be a model of the hub, OWNER/NAME, where no such path is there."""
    return bool(HUB_NAME.fullmatch(name)) and not name.startswith((".", "-")) and not pathlib.Path(name).exists()


@contextlib.contextmanager
def on_the_hub(name: str) -> Iterator[Callable[..., pathlib.Path]]:
    """Yields a function from patterns of file names to the directory in which those files of the model lie.

    Raises UserError where there is no such model, or no network.
    """
    import httpx2  # huggingface_hub's, some of whose errors it passes on
    import huggingface_hub  # 0.3 s that no local model should pay
    from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

    silence: Exception | None = None
    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_SECONDS)
    except httpx2.TimeoutException as error:  # the download below would wait for ever; what is in the cache needs no hub
        silence = error
    except (httpx2.HTTPError, OSError, ValueError):  # the download below meets it again, and looks into the cache first
        pass

    def fetch(*patterns: str) -> pathlib.Path:
        return pathlib.Path(huggingface_hub.snapshot_download(name, allow_patterns=[*patterns], local_files_only=bool(silence)))

    try:
        yield fetch
    except RepositoryNotFoundError as error:
        raise UserError(
            f"there is no directory {missing_path(name)}, and the hub has no such model to show; check the name (a private "
            "or gated model needs a login: hf auth login)"
        ) from error
    except (httpx2.HTTPError, EntryNotFoundError, OSError, ValueError) as error:
        raise UserError(
            f"there is no directory {missing_path(name)}, and the hub did not give a model of that name: "
            f"{_cause(silence or error)}; check the network, or name a directory"
        ) from error


def _cause(error: BaseException) -> str:
    """The first line of what went wrong first: the layers above only say that something did."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__

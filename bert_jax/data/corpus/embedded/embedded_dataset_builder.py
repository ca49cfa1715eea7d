"""The tfds builder of the embedded corpus. The corpus has the Python reference (`pydoc_data.topics`) and the docstrings of the
standard library and of required packages, with one document per module or topic. The builder needs neither a download nor
TensorFlow. Building takes about five seconds, once per installation."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import pathlib
import sys
import sysconfig
from collections.abc import Iterator

import tensorflow_datasets as tfds

from bert_jax.data.corpus.embedded import prose
from bert_jax.files import locked
from bert_jax.interface.progress import Progress

# import name -> distribution. All are installed with bert_jax: a package that only its tests install would change the corpus.
PACKAGES = {
    "numpy": "numpy",
    "scipy": "scipy",
    "matplotlib": "matplotlib",
    "jax": "jax",
    "flax": "flax",
    "optax": "optax",
    "orbax": "orbax-checkpoint",
    "grain": "grain",
    "etils": "etils",
    "absl": "absl-py",
    "ml_collections": "ml_collections",
    "tensorflow_datasets": "tensorflow-datasets",
    "PIL": "pillow",
    "huggingface_hub": "huggingface_hub",
    "requests": "requests",
    "rich": "rich",
    "fsspec": "fsspec",
    "pip": "pip",
    "pyparsing": "pyparsing",
    "packaging": "packaging",
    "dateutil": "python-dateutil",
    "click": "click",
}
_SKIPPED = frozenset(
    {"test", "tests", "testing", "site-packages", "_vendor", "vendored", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
)
_MIN_CHARACTERS = 300  # shorter documents are left out
_REVISION = 1  # the version of the extraction; increase it when the same sources yield a different text


class Builder(tfds.core.GeneratorBasedBuilder):
    """English reference prose of the installed Python and packages."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict({"name": tfds.features.Text(), "text": tfds.features.Text()}),
            description="Prose of the Python reference and of docstrings, one document per topic or module.",
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[str, dict[str, str]]]]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[str, dict[str, str]]]:
        seen: set[str] = set()
        for name, found in _documents():
            fresh = [paragraph for paragraph in dict.fromkeys(found) if paragraph not in seen]  # wrappers repeat docstrings
            seen.update(fresh)
            text = "\n".join(fresh)
            if len(text) >= _MIN_CHARACTERS:
                yield name, {"name": name, "text": text}


def prepared(directory: pathlib.Path) -> Builder:
    """Returns the builder with its data in `directory`. The first call per installation prepares the data."""
    directory = directory / f"embedded-{_fingerprint()}"
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / ".lock"):  # another build or test may prepare the same data at the same time
        builder = Builder(data_dir=directory, file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # hides that tfds announces a download, although there is none
            builder.download_and_prepare()
    return builder


def _fingerprint() -> str:
    """Returns a hash of everything that the text depends on: the versions of Python, of the packages and of the extraction."""
    parts = [f"revision {_REVISION}", f"python {sys.version.split()[0]}"]
    parts += [f"{name} {importlib.metadata.version(PACKAGES[name])}" for name in _installed()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _installed() -> dict[str, pathlib.Path]:
    """Returns package -> folder for every installed package of `PACKAGES`. The packages are found without importing them."""
    found = {}
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found[name] = pathlib.Path(next(iter(spec.submodule_search_locations)))
    return found


def _source_files() -> list[tuple[str, pathlib.Path]]:
    """Returns (document name, source file) pairs, in an order that depends only on names."""
    roots = {"python": pathlib.Path(sysconfig.get_path("stdlib"))} | _installed()
    files = []
    for name, root in roots.items():
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if not _SKIPPED.intersection(parts) and not parts[-1].startswith(("test_", "conftest")):
                files.append((".".join((name, *parts)).removesuffix(".py"), path))
    return files


def _documents() -> Iterator[tuple[str, list[str]]]:
    from pydoc_data import topics

    for name, text in sorted(topics.topics.items()):
        yield f"topics.{name}", prose.paragraphs(text)
    files = _source_files()
    with Progress("reading installed documentation:", total=len(files), unit="files") as progress:
        for number, (name, path) in enumerate(files):
            yield name, prose.module_prose(path)
            progress.update(number + 1)

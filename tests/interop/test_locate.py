from __future__ import annotations

import dataclasses
import hashlib
import http.server
import itertools
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.errors import UserError
from bert_jax.interop.locate import find_model_directory, local_model
from bert_jax.storage import objects

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "heads"
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NUMBERS = itertools.count()
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASKED = """
import contextlib, json, os, signal, sys, tempfile, time
from bert_jax.data.corpus import hub
from bert_jax.errors import UserError
from bert_jax.interface.command import run_main
from bert_jax.interop.locate import find_model_directory
with contextlib.suppress(UserError):
    find_model_directory("imports/first")
print("ready", flush=True)
for line in sys.stdin:
    find, name, hub.HUB_SECONDS, environment = json.loads(line)
    with tempfile.TemporaryFile("w+") as said:
        if process := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            said.seek(0)
            print(json.dumps([status, said.read()]), flush=True)
            continue
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    signal.alarm(30)
    os.environ.update(environment)
    sleep, slept = time.sleep, []
    time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
    try:
        run_main(lambda: print("FOUND", {"model": find_model_directory, "vocabulary": hub.find_vocabulary}[find](name)))
    except SystemExit as ended:
        print("SLEPT", sum(slept), flush=True)
        os._exit(ended.code)  # to free all modules would take longer than to ask
"""
"""Finds models by the names on standard input, each in a forked process."""


class Hub(http.server.ThreadingHTTPServer):
    """Answers the four requests to the hub that fetch a model, from `models`: name -> directory."""

    daemon_threads = True

    def __init__(self, models: dict[str, pathlib.Path]):
        super().__init__(("127.0.0.1", 0), Answer)
        self.models = models
        self.owner = ""
        self.asked: list[str] = []
        self.broken: set[str] = set()  # files for which the hub returns errors
        self.answers = threading.Event()  # if it is not set, requests are accepted and wait
        self.answers.set()

    def handle_error(self, *_: Any) -> None:
        """Ignores clients that did not wait for the answer."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def fetched(self) -> set[str]:
        """Returns the files whose content was requested."""
        return {request.split("/")[-1] for request in self.asked if request.startswith("GET") and "/resolve/" in request}


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        self.server.answers.wait()
        api = re.fullmatch(r"/api/models/([\w-]+/[\w.-]+)(/revision/\w+|/tree/\w+)?", path)
        file = re.fullmatch(r"/([\w-]+/[\w.-]+)/resolve/\w+/([\w./-]+)", path)
        directory = self.server.models.get((api or file)[1]) if api or file else None  # type: ignore[index]
        if directory is None:
            self.send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"})
        elif file and file[2] in self.server.broken:
            self.send(403, b"", {"X-Error-Message": "no entry here"})
        elif file:
            content = (directory / file[2]).read_bytes()
            self.send(200, content, {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT})
        elif api and api[2] and api[2].startswith("/tree"):
            listed = [
                {"type": "file", "path": x, "size": (directory / x).stat().st_size, "oid": "0" * 40} for x in files_of(directory)
            ]
            self.send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})
        else:
            siblings = [{"rfilename": name} for name in files_of(directory)]
            about = {"id": api[1] if api else "", "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}
            self.send(200, json.dumps(about).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def files_of(directory: pathlib.Path) -> list[str]:
    return [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if path.is_file()]


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    server = Hub({})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hub(server: Hub, tmp_path: pathlib.Path) -> Iterator[Hub]:
    """Returns a hub with "whole" (one weights file, and files without use here), "shards", "pytorch" and "none", of an owner that
    no other test asks for."""
    owner = f"lab-{next(NUMBERS)}"
    models = {name: tmp_path / "served" / name for name in ("whole", "shards", "pytorch", "none")}
    for name, directory in models.items():
        shutil.copytree(GOLDEN / ("token_in_shards" if name == "shards" else "sequence"), directory)
        shutil.copytree(GOLDEN / "tokenizer", directory, dirs_exist_ok=True)
    for unused in ("pytorch_model.bin", "tf_model.h5", "README.md", "flax_model.msgpack"):
        (models["whole"] / unused).write_bytes(b"large")
    (models["shards"] / "pytorch_model.bin").write_bytes(b"large")
    (models["pytorch"] / "model.safetensors").rename(models["pytorch"] / "pytorch_model.bin")
    (models["none"] / "model.safetensors").unlink()
    server.owner, server.models = owner, {f"{owner}/{name}": directory for name, directory in models.items()}
    server.asked.clear()
    yield server
    server.broken.clear()
    server.answers.set()


class Asker:
    """A process with the library of the hub, which reads the hub's address and its cache's directory when it is imported."""

    def __init__(self, endpoint: str, home: pathlib.Path, **environment: str):
        theirs = {k: x for k, x in os.environ.items() if not k.startswith(("HF_", "HUGGING")) and k.lower()[-6:] != "_proxy"}
        theirs |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(REPOSITORY)}
        command, pipe = [sys.executable, "-c", ASKED], subprocess.PIPE
        self._process = subprocess.Popen(command, env=theirs | environment, stdin=pipe, stdout=pipe, text=True)

    def ask(self, name: str, patience: float = 5.0, find: str = "model", **environment: str) -> tuple[int, str]:
        """Returns (exit status, output) of a process that looks for `name`."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps([find, name, patience, environment]) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def wait(self) -> None:
        """Waits until the process has imported everything."""
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    def end(self) -> None:
        self._process.communicate(timeout=60)


@dataclasses.dataclass(frozen=True)
class Askers:
    """Processes with the same cache, in surroundings that differ."""

    hub: Asker
    closed: Asker
    """Its hub has no server."""
    offline: Asker


@pytest.fixture(scope="module")
def askers(server: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Askers]:
    home = tmp_path_factory.mktemp("home")
    closed = closed_port()
    made = Askers(Asker(server.address, home), Asker(closed, home), Asker(closed, home, HF_HUB_OFFLINE="1"))
    for one in (made.hub, made.closed, made.offline):
        one.wait()
    yield made
    for one in (made.hub, made.closed, made.offline):
        one.end()


def found(output: str) -> pathlib.Path:
    return pathlib.Path(re.findall(r"^FOUND (.*)$", output, re.MULTILINE)[0])


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"https://127.0.0.1:{unused.getsockname()[1]}"


def test_a_directory_and_a_workdir_are_found(tmp_path):
    assert find_model_directory(GOLDEN / "sequence") == GOLDEN / "sequence"
    assert find_model_directory(str(GOLDEN / "token_in_shards")) == GOLDEN / "token_in_shards"
    shutil.copytree(GOLDEN / "span", tmp_path / "run" / "model")
    assert find_model_directory(tmp_path / "run") == tmp_path / "run" / "model"
    (tmp_path / "run" / "model").rename(tmp_path / "run" / ".model.replaced")
    assert find_model_directory(tmp_path / "run") == tmp_path / "run" / ".model.replaced"
    with pytest.raises(UserError, match=r"^/ is not a model directory"):
        find_model_directory("/")


def test_a_misspelt_directory_is_refused_with_the_nearest_before_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs" / "own").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("runs/onw", "rnus/own", str(tmp_path / "runs" / "onw"), "runs/onw/model", "rnus/own/best/model"):
        with pytest.raises(UserError, match=r"there is no (directory )?\S+ \(.*did you mean \S*runs/own\?\)[^?]*hub") as error:
            find_model_directory(name)
        assert name.startswith("/") or f"looked for in {tmp_path}" in str(error.value)


def test_a_directory_takes_precedence_over_a_hub_model_of_the_same_name(tmp_path, monkeypatch):
    shutil.copytree(GOLDEN / "span", tmp_path / "google" / "bert")
    monkeypatch.chdir(tmp_path)
    assert find_model_directory("google/bert") == pathlib.Path("google/bert")


NEEDED = {"config.json", "model.safetensors"}
SHARDS = {f"0_BERT/{name}" for name in ("model-00001-of-00001.safetensors", "pytorch_model-00001-of-00001.bin")}
OF_SENTENCES = {"modules.json", "0_BERT/model.safetensors", *SHARDS, "1_Pooling/config.json", "README.md"}


@pytest.mark.parametrize(
    ("names", "copied"),
    [
        ({f"model/{name}" for name in (*NEEDED, "other.bin")} | {"metrics.jsonl", "config.json"}, NEEDED),
        ({*NEEDED, "other.bin", "README.md", "source.spm", "checkpoints/1/state"}, {*NEEDED, "README.md", "source.spm"}),
        (
            {*OF_SENTENCES, "0_BERT/other.h5", "0_BERT/pytorch_model-1.bin.part", "1_Pooling/figure.png"},
            OF_SENTENCES,
        ),
        ({"bert_config.json", "bert_model.ckpt.index", "older/x"}, {"bert_config.json", "bert_model.ckpt.index"}),
        ({"config.json", "checkpoints/1/state"}, {"config.json"}),
        ({"config.json", "metrics.jsonl", "checkpoints/1/state"}, None),
    ],
    ids=["workdir", "model", "sentence-transformers", "original", "configuration alone", "workdir without a model"],
)
def test_only_the_needed_files_of_a_bucket_model_are_copied(bucket, names, copied):
    for name in names:
        objects.write(f"{bucket}/{name}", b"x")
    if copied is None:
        with pytest.raises(UserError, match=f"^{bucket} is a workdir that has no exported model yet; to complete"):
            local_model(bucket)
    else:
        assert set(files_of(pathlib.Path(local_model(bucket)))) == copied


def test_only_one_checkpoint_of_a_bucket_is_copied(bucket, tmp_path, monkeypatch):
    of_model = {"bert_config.json", "vocab.txt", "README.md"}
    steps = {step: {f"model.ckpt-{step}.{end}" for end in ("index", "data-00000-of-00001")} for step in (0, 1000)}
    for name in (*of_model, *steps[0], *steps[1000], "events.out", "model.ckpt-00.index.old"):
        objects.write(f"{bucket}/{name}", b"x")

    def copied(path: str) -> tuple[str, set[str]]:
        monkeypatch.setenv("BERT_JAX_CACHE", str(tmp_path / str(next(NUMBERS))))
        copy = pathlib.Path(local_model(path))
        return copy.name, set(files_of(copy if copy.is_dir() else copy.parent))

    for name in ("model.ckpt-0", "model.ckpt-0.data-00000-of-00001"):
        assert copied(f"{bucket}/{name}") == ("model.ckpt-0", steps[0] | of_model)
    assert copied(f"{bucket}/vocab.txt") == ("vocab.txt", {"vocab.txt"})
    choices = f"name one of these: {bucket}/model.ckpt-0, {bucket}/model.ckpt-1000"
    with pytest.raises(UserError, match=f"^{bucket} has several checkpoints; {choices}$"):
        local_model(bucket)
    objects.write(f"{bucket}/checkpoint", b'model_checkpoint_path: "model.ckpt-900"\n')
    with pytest.raises(UserError, match=f"^{bucket}/checkpoint names 'model.ckpt-900' .* no model.ckpt-900.index; {choices}$"):
        local_model(bucket)
    objects.write(f"{bucket}/checkpoint", b'model_checkpoint_path: "/old/model.ckpt-1000"\n')
    assert copied(bucket)[1] == {*steps[1000], *of_model, "checkpoint"}
    objects.write(f"{bucket}/vectors.txt", b"x")  # has precedence over a checkpoint
    assert "vectors.txt" in copied(bucket)[1]


@pytest.mark.parametrize("name", ["absent", "./a/b", "../a", "a/b/c", "/a/b", "-x/y", "~/a b", "a/", "..", "a//b"])
def test_invalid_hub_names_are_not_requested(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"there is no .*OWNER/NAME|is not a model directory"):
        find_model_directory(name)


def test_a_hub_model_is_fetched_once_without_unused_files(hub: Hub, askers: Askers):
    name = f"{hub.owner}/whole"
    status, output = askers.hub.ask(name)
    assert status == 0, output
    directory = found(output)
    expected = {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in directory.iterdir()} == hub.fetched == expected
    assert (directory / "model.safetensors").read_bytes() == (GOLDEN / "sequence" / "model.safetensors").read_bytes()
    hub.asked.clear()
    assert found(askers.hub.ask(name)[1]) == directory
    assert hub.fetched == set()
    assert found(askers.closed.ask(name)[1]) == directory  # from the cache
    assert found(askers.offline.ask(name)[1]) == directory


def test_shards_are_fetched_with_their_index(hub: Hub, askers: Askers):
    directory = found(askers.hub.ask(f"{hub.owner}/shards")[1])
    assert {path.name for path in GOLDEN.joinpath("token_in_shards").iterdir()} < {path.name for path in directory.iterdir()}
    assert "pytorch_model.bin" not in hub.fetched


def test_pytorch_weights_are_fetched_if_there_are_no_others(hub: Hub, askers: Askers, tmp_path: pathlib.Path):
    directory = found(askers.hub.ask(f"{hub.owner}/pytorch")[1])
    assert (directory / "pytorch_model.bin").is_file()
    hub.models[f"{hub.owner}/pytorch-shards"] = served = tmp_path / "served" / "pytorch"
    (served / "pytorch_model.bin").rename(served / "pytorch_model-00001-of-00001.bin")
    (served / "pytorch_model.bin.index.json").write_text("{}")
    directory = found(askers.hub.ask(f"{hub.owner}/pytorch-shards")[1])
    assert {"pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"} < {path.name for path in directory.iterdir()}


def test_an_old_sentence_transformers_model_is_fetched_with_its_transformer_folder(hub: Hub, askers: Askers, tmp_path):
    old = tmp_path / "served" / "old"
    (old / "1_Pooling").mkdir(parents=True)
    shutil.copytree(hub.models[f"{hub.owner}/whole"], old / "0_BERT")
    (old / "1_Pooling" / "config.json").write_text("{}")
    (old / "README.md").touch()
    (old / "modules.json").write_text('[{"path": "0_BERT"}, {"path": "1_Pooling"}]')
    for shard in SHARDS:
        (old / shard).touch()
    hub.models[f"{hub.owner}/old"] = old
    directory = found(askers.hub.ask(f"{hub.owner}/old")[1])
    assert (directory.name, (directory / "vocab.txt").is_file()) == ("0_BERT", True)
    assert (directory.parent / "1_Pooling" / "config.json").is_file()
    assert all((directory.parent / name).is_file() for name in ("README.md", *SHARDS))
    assert "tf_model.h5" not in hub.fetched


def said(asker: Asker, name: str, **arguments: Any) -> str:
    """Returns the one-sentence error for `name`. Fails if the process paused for more than 5 s between attempts."""
    status, output = asker.ask(name, **arguments)
    (slept,) = re.findall(r"^SLEPT (.*)$", output, re.MULTILINE)
    assert float(slept) <= 5
    assert status == 2, output
    (sentence,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert "Traceback" not in output
    return sentence


def test_a_model_missing_on_the_hub_is_refused(hub: Hub, askers: Askers):
    name = f"{hub.owner}/wholee"
    sentence = said(askers.hub, name)
    assert re.search(rf"no directory {name} \(looked.*\), and the hub shows no model of this name.*check the name", sentence)


def test_a_hub_model_without_weights_is_refused(hub: Hub, askers: Askers):
    answer = said(askers.hub, f"{hub.owner}/none")
    assert re.search(rf"{hub.owner}/none on the hub is not.*, because it has no model\.safetensors", answer)


@pytest.mark.parametrize(
    ("asker", "proxy", "reason"),
    [
        ("closed", False, "Connection refused"),
        ("offline", False, "offline mode is enabled"),
        ("closed", True, "501 Unsupported method"),  # the hub is not a proxy
    ],
    ids=["closed", "offline", "proxy"],
)
def test_the_error_comes_soon_without_a_network(asker: str, proxy: bool, reason: str, hub: Hub, askers: Askers):
    environment = {"HTTPS_PROXY": hub.address} if proxy else {}
    sentence = said(getattr(askers, asker), f"{hub.owner}/whole", **environment)
    assert re.search(rf"no directory {hub.owner}/whole \(looked.*\), and no model .*{reason}.*; check the network", sentence)


def test_a_silent_hub_is_given_up_for_its_cache(hub: Hub, askers: Askers):
    name = f"{hub.owner}/whole"
    hub.answers.clear()
    sentence = said(askers.hub, name, patience=0.3)
    assert re.search(rf"no directory {name} \(looked.*\), and no model .*timed out.*; check the network", sentence)
    hub.answers.set()
    directory = found(askers.hub.ask(name)[1])
    hub.answers.clear()
    assert found(askers.hub.ask(name, patience=0.3)[1]) == directory


def test_a_refused_hub_file_is_one_sentence(hub: Hub, askers: Askers):
    name = f"{hub.owner}/whole"
    hub.broken.add("model.safetensors")
    sentence = said(askers.hub, name)
    assert re.search(rf"no directory {name} \(looked.*\), and no model of that name could be fetched .*403", sentence)
    hub.broken.clear()
    assert askers.hub.ask(name)[0] == 0


def test_a_hub_vocabulary_is_fetched_without_the_weights(hub: Hub, askers: Askers):
    status, output = askers.hub.ask(f"{hub.owner}/whole", find="vocabulary")
    assert status == 0, output
    assert load_tokenizer(found(output)).size > 0
    assert not [path for path in hub.asked if "safetensors" in path or ".bin" in path]

from __future__ import annotations

import hashlib
import http.server
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
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASK = """
import atexit, sys, time
sleep, slept = time.sleep, []
time.sleep = lambda seconds: (slept.append(seconds), sleep(seconds))
atexit.register(lambda: print("SLEPT", sum(slept)))
from bert_jax.data.corpus import hub
from bert_jax.interop import locate
from bert_jax.interface.command import run_main
hub.HUB_SECONDS = float(sys.argv[2])
run_main(lambda: print("FOUND", locate.find_model_directory(sys.argv[1])))
"""


class Hub(http.server.ThreadingHTTPServer):
    """Answers the four requests to the hub that fetch a model, from `models`: name -> directory."""

    daemon_threads = True

    def __init__(self, models: dict[str, pathlib.Path]):
        super().__init__(("127.0.0.1", 0), Answer)
        self.models = models
        self.asked: list[str] = []
        self.broken: set[str] = set()  # files for which the hub returns errors

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


@pytest.fixture
def hub(tmp_path: pathlib.Path) -> Iterator[Hub]:
    """Returns a hub with "lab/whole" (one weights file, and files without use here), "lab/shards", "lab/pytorch" and
    "lab/none"."""
    models = {f"lab/{name}": tmp_path / "served" / name for name in ("whole", "shards", "pytorch", "none")}
    for name, directory in models.items():
        shutil.copytree(GOLDEN / ("token_in_shards" if name == "lab/shards" else "sequence"), directory)
        shutil.copytree(GOLDEN / "tokenizer", directory, dirs_exist_ok=True)
    for unused in ("pytorch_model.bin", "tf_model.h5", "README.md", "flax_model.msgpack"):
        (models["lab/whole"] / unused).write_bytes(b"large")
    (models["lab/shards"] / "pytorch_model.bin").write_bytes(b"large")
    (models["lab/pytorch"] / "model.safetensors").rename(models["lab/pytorch"] / "pytorch_model.bin")
    (models["lab/none"] / "model.safetensors").unlink()
    server = Hub(models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(
    name: str, endpoint: str, home: pathlib.Path, patience: float = 5.0, code: str = ASK, **environment: str
) -> tuple[int, str]:
    """Returns (exit status, output) of a process that looks for `name`: its library reads the hub's address when it starts."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING")) and not k.lower().endswith("_proxy")}
    variables |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", code, name, str(patience)]
    done = subprocess.run(command, env=variables | environment, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def found(output: str) -> pathlib.Path:
    return pathlib.Path(re.findall(r"^FOUND (.*)$", output, re.MULTILINE)[0])


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def test_a_directory_and_a_workdir_are_found(tmp_path):
    assert find_model_directory(GOLDEN / "sequence") == GOLDEN / "sequence"
    assert find_model_directory(str(GOLDEN / "token_in_shards")) == GOLDEN / "token_in_shards"
    shutil.copytree(GOLDEN / "span", tmp_path / "run" / "model")
    assert find_model_directory(tmp_path / "run") == tmp_path / "run" / "model"
    (tmp_path / "run" / "model").rename(tmp_path / "run" / ".model.replaced")
    assert find_model_directory(tmp_path / "run") == tmp_path / "run" / ".model.replaced"


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


@pytest.mark.parametrize(
    ("names", "copied"),
    [
        ({f"model/{name}" for name in (*NEEDED, "other.bin")} | {"metrics.jsonl", "config.json"}, NEEDED),
        ({*NEEDED, "other.bin", "README.md", "checkpoints/1/state"}, {*NEEDED, "README.md"}),
        (
            {"modules.json", "0_BERT/model.safetensors", "0_BERT/other.h5", "1_Pooling/config.json"},
            {"modules.json", "0_BERT/model.safetensors", "1_Pooling/config.json"},
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


@pytest.mark.parametrize("name", ["absent", "./a/b", "../a", "a/b/c", "/a/b", "-x/y", "~/a b", "a/", "..", "a//b"])
def test_invalid_hub_names_are_not_requested(name, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"there is no .*OWNER/NAME|is not a model directory"):
        find_model_directory(name)


def test_a_hub_model_is_fetched_once_without_unused_files(hub, tmp_path):
    status, output = ask("lab/whole", hub.address, tmp_path / "home")
    assert status == 0, output
    directory = found(output)
    expected = {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in directory.iterdir()} == hub.fetched == expected
    assert (directory / "model.safetensors").read_bytes() == (GOLDEN / "sequence" / "model.safetensors").read_bytes()
    hub.asked.clear()
    assert found(ask("lab/whole", hub.address, tmp_path / "home")[1]) == directory
    assert hub.fetched == set()
    assert found(ask("lab/whole", closed_port(), tmp_path / "home")[1]) == directory  # from the cache
    assert found(ask("lab/whole", closed_port(), tmp_path / "home", HF_HUB_OFFLINE="1")[1]) == directory


def test_shards_are_fetched_with_their_index(hub, tmp_path):
    directory = found(ask("lab/shards", hub.address, tmp_path / "home")[1])
    assert {path.name for path in GOLDEN.joinpath("token_in_shards").iterdir()} < {path.name for path in directory.iterdir()}
    assert "pytorch_model.bin" not in hub.fetched


def test_pytorch_weights_are_fetched_if_there_are_no_others(hub, tmp_path):
    directory = found(ask("lab/pytorch", hub.address, tmp_path / "home")[1])
    assert (directory / "pytorch_model.bin").is_file()
    served = hub.models["lab/pytorch"]
    (served / "pytorch_model.bin").rename(served / "pytorch_model-00001-of-00001.bin")
    (served / "pytorch_model.bin.index.json").write_text("{}")
    directory = found(ask("lab/pytorch", hub.address, tmp_path / "other")[1])
    assert {"pytorch_model-00001-of-00001.bin", "pytorch_model.bin.index.json"} < {path.name for path in directory.iterdir()}


def test_an_old_sentence_transformers_model_is_fetched_with_its_transformer_folder(hub, tmp_path):
    old = tmp_path / "served" / "old"
    (old / "1_Pooling").mkdir(parents=True)
    shutil.copytree(hub.models["lab/whole"], old / "0_BERT")
    (old / "1_Pooling" / "config.json").write_text("{}")
    (old / "modules.json").write_text('[{"path": "0_BERT"}, {"path": "1_Pooling"}]')
    hub.models["lab/old"] = old
    directory = found(ask("lab/old", hub.address, tmp_path / "home")[1])
    assert (directory.name, (directory / "vocab.txt").is_file()) == ("0_BERT", True)
    assert (directory.parent / "1_Pooling" / "config.json").is_file()
    assert "tf_model.h5" not in hub.fetched


def said(name: str, endpoint: str, home: pathlib.Path, **arguments: Any) -> str:
    """Returns the one-sentence error for `name`. Fails if the process paused for more than 5 s between attempts."""
    status, output = ask(name, endpoint, home, **arguments)
    (slept,) = re.findall(r"^SLEPT (.*)$", output, re.MULTILINE)
    assert float(slept) <= 5
    assert status == 2, output
    (sentence,) = (line for line in output.splitlines() if line.startswith("error: "))
    assert "Traceback" not in output
    return sentence


def test_a_model_missing_on_the_hub_is_refused(hub, tmp_path):
    sentence = said("lab/bertt", hub.address, tmp_path / "home")
    assert re.search(r"no directory lab/bertt \(looked.*\), and the hub shows no model of this name.*check the name", sentence)


def test_a_hub_model_without_weights_is_refused(hub, tmp_path):
    answer = said("lab/none", hub.address, tmp_path / "home")
    assert re.search(r"lab/none on the hub is not.*, because it has no model\.safetensors", answer)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "Connection refused"),
        ({"HF_HUB_OFFLINE": "1"}, "offline mode is enabled"),
        ({"HF_ENDPOINT": "https://hub.invalid", "HTTPS_PROXY": "PROXY"}, "501 Unsupported method"),  # not a proxy
    ],
    ids=["closed", "offline", "proxy"],
)
def test_the_error_comes_soon_without_a_network(environment, reason, hub, tmp_path):
    environment = {name: value.replace("PROXY", hub.address) for name, value in environment.items()}
    sentence = said("lab/whole", closed_port(), tmp_path / "home", **environment)
    assert re.search(rf"no directory lab/whole \(looked.*\), and no model .*{reason}.*; check the network", sentence)


def test_a_silent_hub_is_given_up_for_its_cache(hub, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        sentence = said("lab/whole", address, tmp_path / "home", patience=0.3)
        assert re.search(r"no directory lab/whole \(looked.*\), and no model .*timed out.*; check the network", sentence)
        directory = found(ask("lab/whole", hub.address, tmp_path / "home")[1])
        assert found(ask("lab/whole", address, tmp_path / "home", patience=0.3)[1]) == directory


def test_a_refused_hub_file_is_one_sentence(hub, tmp_path):
    hub.broken.add("model.safetensors")
    sentence = said("lab/whole", hub.address, tmp_path / "home")
    assert re.search(r"no directory lab/whole \(looked.*\), and no model of that name could be fetched .*403", sentence)
    hub.broken.clear()
    assert ask("lab/whole", hub.address, tmp_path / "home")[0] == 0


def test_a_hub_vocabulary_is_fetched_without_the_weights(hub, tmp_path):
    code = "import sys; from bert_jax.data.corpus.hub import find_vocabulary; print('FOUND', find_vocabulary(sys.argv[1]))"
    status, output = ask("lab/whole", hub.address, tmp_path / "home", code=code)
    assert status == 0, output
    assert load_tokenizer(found(output)).size > 0
    assert not [path for path in hub.asked if "safetensors" in path or ".bin" in path]

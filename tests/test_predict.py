"""The command `predict`: flags, lines in and out, and the files that an interrupted command leaves. The answers themselves are
tested in tests/prediction."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax import predict
from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model, import_model, without_parts
from bert_jax.model.config import published
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.predict import AS_A_PAIR, main
from bert_jax.prediction.commands import COMMANDS
from bert_jax.prediction.predictor import Predictor
from tests.interop.tiny import as_model, make_labelled_model, make_model, make_vocabulary

HEADS = {
    "classify": SequenceHead(labels=("bad", "good")),
    "tag": TokenHead(labels=("I-PER", "O")),
    "answer": SpanHead(),
    "choose": ChoiceHead(),
    "resolve": MentionHead(labels=("A", "B", "neither")),
}
Models = Callable[[str], pathlib.Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Returns the directory of a model that has everything a command needs."""
    root = tmp_path_factory.mktemp("predict")
    vocabulary = make_vocabulary(root / "vocabulary", cased=True)
    export_model(root / "pretrained" / "model", as_model(*make_model(vocabulary, num_layers=1), vocabulary))
    for command, head in HEADS.items():
        export_model(root / command, make_labelled_model(vocabulary, head, num_layers=1))
    causal = as_model(*make_model(vocabulary, num_layers=1, max_position=80, direction="left_to_right"), vocabulary)
    export_model(root / "generate", without_parts(causal, ["pooler", "nsp_head"]))
    small = {"hidden_size": 16, "num_layers": 1, "decoder_layers": 1, "num_heads": 4, "intermediate_size": 24, "max_position": 40}
    fields = {name: value for name, value in published("transformer_base").items() if name != "vocab_size"}
    export_model(root / "translate", as_model(*make_model(vocabulary, **(fields | small)), vocabulary))
    return lambda command: root / command if command in {*HEADS, "generate", "translate"} else root / "pretrained" / "model"


@pytest.fixture(autouse=True)
def on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides all but the first device and the cache of compiled programs; each call of `main` loads its model again, but a program
    is compiled once."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])


class Asked:
    """The output and the exit status of one call of the command."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: Any):
        self.status = main([str(argument) for argument in arguments])
        self.out, self.err = capsys.readouterr()

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Ask = Callable[..., Asked]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], models: Models) -> Ask:
    """Returns ask(command, *arguments), which runs the command with a model that has everything it needs."""
    return lambda command, *arguments: Asked(capsys, command, f"--model={models(command)}", *arguments)


QUESTIONS = {  # a line of text, the same as JSON, and a part of the answer
    "fill-mask": ("the [MASK]", {"text": "the [MASK]"}, {"text", "filled", "masks"}),
    "next-sentence": ("the\tof", {"text": "the", "text_b": "of"}, {"text", "text_b", "is_next", "probability"}),
    "score": ("the", {"text": "the"}, {"text", "pseudo_log_likelihood", "pseudo_perplexity", "tokens"}),
    "generate": ("the", {"text": "the"}, {"text", "continued", "tokens", "ended", "log_probability"}),
    "translate": ("the", {"text": "the"}, {"text", "translation", "log_probability", "score"}),
    "embed": ("the", {"text": "the"}, {"text", "embedding"}),
    "classify": ("the\tof", {"text": "the", "text_b": "of"}, {"text", "text_b", "label", "probability", "probabilities"}),
    "tag": ("the river", {"text": "the river"}, {"text", "tags", "entities"}),
    "answer": (
        "is\tthe river",
        {"question": "is", "context": "the river"},
        {"question", "answer", "start", "end", "probability", "score"},
    ),
    "choose": (
        "is\ta\tb",
        {"prompt": "is", "choices": ["a", "b"]},
        {"prompt", "choices", "choice", "text", "probability", "probabilities"},
    ),
    "resolve": (
        "the river is Paris\tis\triver\tParis",
        {"text": "the river is Paris", "pronoun": "is", "a": "river", "b": "Paris"},
        {"text", *(f"{name}{end}" for name in ("pronoun", "a", "b") for end in ("", "_start")), "means", "label"}
        | {"probability", "probabilities"},
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_text_has_the_same_answer_in_every_format_which_keeps_other_fields(ask, command, tmp_path):
    line, record, keys = QUESTIONS[command]
    (wanted,) = ask(command, "--json", line).records
    assert set(wanted) == keys
    names = [*record, "gold"]
    cells = [json.dumps(value) if isinstance(value, list) else value for value in record.values()]
    for name, content in {
        "in.jsonl": json.dumps({"gold": "x", **record}) + "\n",
        "in.csv": ",".join(names) + "\n" + ",".join('"' + cell.replace('"', '""') + '"' for cell in [*cells, "x"]) + "\n",
        "in.tsv": "\t".join(names) + "\n" + "\t".join([*cells, "x"]) + "\n",
        "in.json": json.dumps([{**record, "gold": "x"}], indent=1),
        "in.txt": json.dumps({**record, "gold": "x"}),
    }.items():
        (tmp_path / name).write_text(content)
        (answer,) = ask(command, "--json", f"--input={tmp_path / name}").records
        assert answer.pop("gold") == "x"
        assert answer == wanted, name


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_name_is_refused_as_a_text(models, command, tmp_path):
    (tmp_path / "reviews.txt").write_text("the\n")
    with pytest.raises(UserError, match=r"reviews\.txt is the name of a file; read it with --input="):
        main([command, f"--model={models(command)}", str(tmp_path / "reviews.txt")])


SINGLE, IS_LABEL = "was trained on single texts; give one text", "seems to be a label, not a text_b"
NO_SECOND = "'the' has no second text, but .* was trained on pairs; give the second text in the column 'text_b', or after a TAB"


@pytest.mark.parametrize(
    ("of_pairs", "content", "second", "said"),
    [
        (False, "the\tof\n", None, SINGLE),
        (False, "text\ttext_b\nthe\tof\nthe\tis\n", "of", "^the column text_b is not read, because .* on single texts\n$"),
        (None, "the\tof\n", None, IS_LABEL),
        (None, "the\tof the\n", "of the", "^$"),
        (True, "the\tof\n", "of", "^$"),
        (True, "the\n", None, NO_SECOND),
        (True, "text\tother\nthe\tof\n", None, NO_SECOND),
    ],
)
def test_a_second_text_is_read_only_and_always_by_a_model_of_pairs(models, capsys, tmp_path, of_pairs, content, second, said):
    export_model(tmp_path / "m", dataclasses.replace(import_model(models("classify")), of_pairs=of_pairs))
    (tmp_path / "in.tsv").write_text(content)
    asked = Asked(capsys, "classify", f"--model={tmp_path / 'm'}", "--json", f"--input={tmp_path / 'in.tsv'}")
    assert asked.status == (second is None)
    assert re.search(said, asked.err)
    assert second is None or asked.records[0]["text_b"] == second


def test_a_table_is_read_with_the_settings_of_the_training(models, capsys, tmp_path):
    export_model(tmp_path / "m", dataclasses.replace(import_model(models("choose")), reading={"separator": "|"}))
    (tmp_path / "in.csv").write_text("prompt,choices\nis,a b|of\n")
    (answer,) = Asked(capsys, "choose", f"--model={tmp_path / 'm'}", "--json", f"--input={tmp_path / 'in.csv'}").records
    assert answer["choices"] == ["a b", "of"]


@pytest.mark.parametrize("command", COMMANDS)
def test_answers_are_text_by_default(ask, command):
    asked = ask(command, QUESTIONS[command][0])
    assert asked.status == 0
    assert not asked.out.startswith("{")
    if command != "translate":  # `translate` prints only the translation
        assert QUESTIONS[command][0].split("\t")[0].split()[0] in asked.out


def test_json_lines_keep_the_order_of_a_file_and_skip_its_blank_lines(ask, tmp_path):
    texts = [f"{'of ' * (i * 7 % 30)}[MASK]" for i in range(1100)]
    with gzip.open(tmp_path / "texts.txt.gz", "wt") as file:
        file.write("\n\n".join(texts) + "\n\n")
    ask("fill-mask", f"--input={tmp_path / 'texts.txt.gz'}", f"--output={tmp_path / 'out.jsonl'}", "--top-k=1")
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [record["text"] for record in records] == texts
    assert records[1]["masks"][0][0].keys() == {"token", "ids", "probability"}
    assert records[1]["filled"].startswith("of of")
    assert "[MASK]" not in records[1]["filled"]


def test_standard_input_is_read_when_no_text_is_given(ask, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("the [MASK]\n中 [MASK]\n".encode())))
    assert [record["text"] for record in ask("fill-mask", "--json").records] == ["the [MASK]", "中 [MASK]"]


STRANGE = [  # a line, and the error about it; None if it is answered
    (b"the river", None),
    (b"x", None),
    (b"a\0b", "byte 2 is NUL, which no text holds"),
    ("Über".encode("latin-1"), "byte 1 is not UTF-8"),
    (b"\x01\x02", "has no tokens; give text"),
    ("\U0001f600\u4e2d\u6587".encode(), None),
    (b"the river " * 100_000, "is 200,002 tokens with its [CLS] and [SEP], more than the 40 of the model's position table"),
    (b"of Paris", None),
]


def test_an_unanswerable_line_fails_alone_and_sets_the_status(ask, tmp_path):
    file = tmp_path / "in.txt"
    file.write_bytes(b"".join(line + b"\n" for line, _ in STRANGE))
    asked = ask("embed", "--json", f"--input={file}")
    assert asked.status == 1
    for number, (record, (line, problem)) in enumerate(zip(asked.records, STRANGE, strict=True), 1):
        if problem is None:
            assert record["text"] == line.decode()
        else:
            assert record.keys() == {"line", "error"}
            assert record["line"] == number
            assert problem in record["error"]
            assert f"error: {file}, line {number}: " in asked.err
    assert "4 of 8 lines failed" in asked.err
    assert len(asked.err) < 2000


def test_failed_lines_are_rows_of_nan_in_a_npy_file(ask, tmp_path, models):
    file, out = tmp_path / "in.txt", tmp_path / "x.npy"
    file.write_bytes(b"\0\n" + b"".join(line + b"\n" for line, _ in STRANGE))
    assert ask("embed", f"--input={file}", f"--output={out}", "--truncate").status == 1
    found = np.load(out)
    good = [i for i, (_, problem) in enumerate(STRANGE, 1) if problem is None or "more than" in problem]
    assert np.flatnonzero(~np.isnan(found).any(axis=1)).tolist() == good
    texts = [STRANGE[i - 1][0].decode() for i in good]
    wanted = Predictor.load(models("embed")).embed(texts, truncate=True)
    np.testing.assert_allclose(found[good], wanted, atol=1e-5)


def test_unusable_json_lines_fail_alone(ask, tmp_path):
    given = ['{"text": "the"}', '{"txt": "the"}', "the", "[1]", '{"text": 3}', '{"text": "\\ud800"}', '{"text": "of"}']
    (tmp_path / "in.jsonl").write_text("\n".join(given))
    asked = ask("embed", "--json", f"--input={tmp_path / 'in.jsonl'}")
    assert asked.status == 1
    assert ["error" in record for record in asked.records] == [False, True, True, True, True, True, False]
    assert "no field 'text'; did you mean 'txt'" in asked.records[1]["error"]


def test_an_empty_input_gives_an_empty_output(ask, tmp_path):
    (tmp_path / "in.txt").write_text("")
    assert ask("embed", f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'x.npy'}").status == 0
    assert len(np.load(tmp_path / "x.npy")) == 0
    assert ask("embed", f"--input={tmp_path / 'in.txt'}", "--json").out == ""


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_input_without_a_text_is_reported_as_empty(ask, tmp_path, content):
    (tmp_path / "in.txt").write_text(content)
    asked = ask("fill-mask", f"--input={tmp_path / 'in.txt'}")
    assert (asked.status, asked.out, asked.err) == (0, "", "no texts: the input is empty or holds only blank lines\n")


@pytest.mark.parametrize(
    ("name", "begin"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("a.jpeg", b"\xff\xd8\xff\xe0"), ("a.pdf", b"%PDF-1.7\n")]
)
def test_a_file_that_is_not_text_is_a_single_error(ask, tmp_path, name, begin):
    (tmp_path / name).write_bytes(begin + b"\0\xff\n" * 100)
    with pytest.raises(UserError, match=rf"{name} is an? (image|PDF), not text; (give|write)"):
        ask("fill-mask", f"--input={tmp_path / name}")


@pytest.mark.parametrize("from_file", [True, False])
def test_embeddings_answer_every_line_including_blank_ones(ask, tmp_path, monkeypatch, from_file):
    content = b"\nthe river\n \t\n\nof Paris\n\n"
    (tmp_path / "in.txt").write_bytes(content)
    source = [f"--input={tmp_path / 'in.txt'}"] if from_file else []

    def asked(*flags: str) -> Asked:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        return ask("embed", *source, *flags)

    to_file = asked(f"--output={tmp_path / 'x.npy'}")
    assert (to_file.status, to_file.err) == (0, "4 of 6 lines blank: their rows are NaN\n")
    rows = np.load(tmp_path / "x.npy")
    assert np.isnan(rows).all(axis=1).tolist() == [True, False, True, True, False, True]
    records = asked("--json").records
    assert [record["text"] for record in records] == ["", "the river", "", "", "of Paris", ""]
    for row, record in zip(rows, records, strict=True):
        np.testing.assert_array_equal(row, np.float32(np.nan if record["embedding"] is None else record["embedding"]))
    assert [bool(record["words"]) for record in asked("--json", "--words").records] == [False, True, False, False, True, False]
    assert asked().out.count("(blank line)\n") == 4


def test_the_command_parses_its_arguments_and_enables_the_compilation_cache(ask, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["predict", "fil-mask", "fill-mask"])
    with pytest.raises(UserError, match="unknown command 'fil-mask'"):
        main()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = jax.config.jax_compilation_cache_dir
    ask("embed", "the")
    chosen = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", before)
    assert str(chosen).startswith(f"{tmp_path}/")


def test_a_profile_has_the_requested_batches_and_does_not_change_answers(ask, tmp_path, monkeypatch):
    """JAX takes no profile here: it would hold every program that the process has compiled."""
    events: list[Any] = []

    def annotated(name: str, step_num: int) -> contextlib.nullcontext[None]:
        events.append((name, step_num))
        return contextlib.nullcontext()

    monkeypatch.setattr(jax.profiler, "start_trace", lambda place, **_: events.append(place))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("end"))
    monkeypatch.setattr(jax.profiler, "StepTraceAnnotation", annotated)
    (tmp_path / "in.txt").write_text("the river of Paris is dry\n" * 800)
    for flags in ([], ["--profile=1:3"]):
        ask("embed", f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / f'{len(flags)}.npy'}", *flags)
    assert events == [tmp_path / "profile", ("predict", 1), ("predict", 2), "end"], "next to the output"
    np.testing.assert_array_equal(*(np.load(tmp_path / f"{count}.npy") for count in (0, 1)))


def test_a_profile_that_starts_after_the_last_batch_is_refused_after_the_answers_are_uploaded(ask, tmp_path, monkeypatch):
    uploads = []

    @contextlib.contextmanager
    def uploaded_file(output: str, name: str) -> Iterator[str]:
        yield output
        uploads.append(output)

    monkeypatch.setattr(predict, "uploaded_file", uploaded_file)
    with pytest.raises(UserError, match=r"^--profile=7:8 starts after the last of 1 batch; give"):
        ask("embed", f"--output={tmp_path / 'x.jsonl'}", "the", "--profile=7:8")
    assert (tmp_path / "x.jsonl").exists()
    assert uploads == [f"{tmp_path / 'x.jsonl'}"]
    assert not (tmp_path / "profile").exists()


@pytest.mark.parametrize("command", ["embed", "classify"])
@pytest.mark.parametrize("name", ["x.npz", "x.txt", "x.TXT", "x.csv.gz", "x.csv.zst"])
def test_an_unsupported_format_is_refused_before_the_model_is_loaded(command, name, tmp_path):
    wanted = (
        r"cannot be written as \.(npz|txt|csv); give a name that ends in \.jsonl \(JSON "
        r"lines\)"
    ) + (r" or a \.npy" if command == "embed" else "$")
    with pytest.raises(UserError, match=wanted):
        main([command, "--model=nowhere/at/all", f"--output={tmp_path / name}", "the"])
    assert list(tmp_path.iterdir()) == []


def test_the_npy_suffix_may_be_in_capitals(ask, tmp_path):
    ask("embed", f"--output={tmp_path / 'X.NPY'}", "the")
    assert np.load(tmp_path / "X.NPY").shape == (1, 16)


def test_the_input_is_never_the_output(ask, tmp_path, monkeypatch):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "the"}\n')
    (tmp_path / "symbolic").symlink_to(texts)
    (tmp_path / "hard").hardlink_to(texts)
    monkeypatch.chdir(tmp_path)
    for output in (texts, "texts.jsonl", "./texts.jsonl", "symbolic", "hard"):
        for source in (texts, "symbolic", "hard"):
            with pytest.raises(UserError, match=rf"--output={output} is the input file"):
                main(["embed", "--model=nowhere/at/all", f"--input={source}", f"--output={output}"])
    with texts.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(UserError, match="is the input file"):
            main(["embed", "--model=nowhere/at/all", "--output=hard"])
    with texts.open("a") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        with pytest.raises(UserError, match="standard output is the input file"):
            main(["embed", "--model=nowhere/at/all", "--input=texts.jsonl"])
    assert texts.read_text() == '{"text": "the"}\n'


def test_a_file_of_the_model_is_never_the_output(ask, models):
    before = {path: path.read_bytes() for path in models("").iterdir()}
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(UserError, match=r"is a file of the model itself|answers cannot be written as"):
            ask("embed", f"--output={models('') / name}", "the")
    assert {path: path.read_bytes() for path in models("").iterdir()} == before


@pytest.mark.parametrize("command", COMMANDS)
def test_numbers_that_are_not_finite_are_never_answers(capsys, models, command, tmp_path):
    model = import_model(models(command))
    huge = jax.tree.map(lambda x: np.copysign(np.float32(3e38), x), model.params)
    export_model(tmp_path / "m", dataclasses.replace(model, params=huge))
    asked = Asked(capsys, command, f"--model={tmp_path / 'm'}", QUESTIONS[command][0], "--json")
    assert asked.status == 1
    assert "numbers that are not finite for this text" in asked.err
    assert "NaN" not in asked.out


def test_arguments_are_the_fields_of_one_record_if_a_command_needs_several(ask):
    (together,) = ask("next-sentence", "--json", "the river", "of Paris").records
    assert (together["text"], together["text_b"]) == ("the river", "of Paris")
    assert ask("next-sentence", "--json", "the river\tof Paris").records == [together]
    (chosen,) = ask("choose", "--json", "is", "a", "b", "c").records
    assert (chosen["prompt"], chosen["choices"]) == ("is", ["a", "b", "c"])
    separate = ask("classify", "--json", "the river", "of Paris")  # `classify` needs only one text
    assert len(separate.records) == 2
    assert separate.err == (
        "the two texts are judged one by one; to judge them as a pair, give one argument with a TAB between the texts\n"
    )
    assert ask("classify", "the river\tof Paris").err == ""


@pytest.mark.parametrize(
    ("of_pairs", "answers", "said"),
    [
        (True, 1, f"{AS_A_PAIR}\n"),
        (False, 2, ""),
    ],
)
def test_two_arguments_are_a_pair_if_the_model_was_trained_on_pairs(capsys, models, tmp_path, of_pairs, answers, said):
    model = dataclasses.replace(import_model(models("classify")), of_pairs=of_pairs)
    export_model(tmp_path / "m", model)
    asked = Asked(capsys, "classify", f"--model={tmp_path / 'm'}", "--json", "the river", "of Paris")
    assert (len(asked.records), asked.err) == (answers, said)
    if of_pairs:
        assert Asked(capsys, "classify", f"--model={tmp_path / 'm'}", "--json", "the river\tof Paris").records == asked.records

"""Loads an exported model directory with transformers, and compares its outputs with ours.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/check_export_with_transformers.py < REQUESTS

A request is a line of JSON: {"model": DIR, "expected": FILE, "resaved": DIR, "arguments": {...}}; or {"model": DIR, "texts":
[...]} for the vectors of sentence-transformers; or {"model": DIR, "translate": [...]} for the token ids of sources and their
translations; or {"model": DIR, "tokenise": [...]} for what its tokenizer does with texts; or {"packages": true} for the
installed packages; or {"classes": MODEL_TYPE} for the classes of a kind of model. The answer is also a line of JSON, {"error":
TRACEBACK} if it fails. One process answers all requests: importing torch and transformers takes longer than a check.

`expected` holds our inputs (`input_ids`, `token_type_ids`, `attention_mask`), our `outputs/NAME` by transformers' names, and
`texts` to tokenise. `save_pretrained` writes the model again to `resaved`, for us to read back. `arguments` are arguments of
`from_pretrained` that have no place in a config.json. config.json names the model's class.
`tests/interop/test_transformers_loads_exports.py` runs it for every interpreter in BERT_JAX_PEER_PYTHON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pathlib
import sys
import traceback

import numpy as np
import torch
import transformers

CONFIG_FIELDS = (
    "hidden_act", "layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "pad_token_id", "classifier_dropout",
    "problem_type", "id2label", "label2id", "num_labels", "tie_word_embeddings",
)  # fmt: skip


def check(model_directory: str, expected_file: str, resaved: str, arguments: dict) -> dict:
    """Returns what transformers finds in the exported model, and how far its outputs are from ours."""
    with np.load(expected_file) as file:
        expected = dict(file)
    (architecture,) = json.loads((pathlib.Path(model_directory) / "config.json").read_text())["architectures"]
    load = getattr(transformers, architecture).from_pretrained
    model, loading = load(model_directory, output_loading_info=True, **arguments)
    model.eval()
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if getattr(model.config, "type_vocab_size", 0) else [])]
    inputs = {name: torch.from_numpy(expected[name]).long() for name in names}
    if architecture.endswith("ForMultipleChoice"):  # the rows are the candidates of one question
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        outputs = {name: value.float().numpy() for name, value in model(**inputs).items() if value is not None}
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory)
    ours = {name.removeprefix("outputs/"): value for name, value in expected.items() if name.startswith("outputs/")}
    assert outputs.keys() == ours.keys(), (outputs.keys(), ours.keys())
    report = {
        "transformers": transformers.__version__,
        "class": type(model).__name__,
        "loading": {key: sorted(map(str, names)) for key, names in loading.items() if names},
        "dtype": str(model.dtype),
        "differences": {name: difference(value, ours[name], expected["attention_mask"]) for name, value in outputs.items()},
        "config": {name: getattr(model.config, name, None) for name in CONFIG_FIELDS},
        "tokenizer": type(tokenizer).__name__,
        "model_max_length": tokenizer.model_max_length,
        "mask_token_id": tokenizer.mask_token_id,
        "token_ids": [tokenizer(str(text))["input_ids"] for text in expected["texts"]],
    }
    model.save_pretrained(resaved)
    tokenizer.save_pretrained(resaved)
    return report


def sentence_vectors(model_directory: str, texts: list[str]) -> list[list[float]]:
    """Returns the vectors of sentence-transformers: the mean over the tokens, unless the directory names another pooling."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(model_directory, device="cpu").encode(texts).tolist()


def translations(model_directory: str, sources: list[str]) -> dict:
    """Returns the ids of the sources, and their translations by the beam search of generation_config.json."""
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(model_directory).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory)
    batch = tokenizer(sources, padding=True, return_tensors="pt")
    with torch.no_grad():
        found = model.generate(**batch)
    return {
        "class": type(model).__name__,
        "sources": [tokenizer(source)["input_ids"] for source in sources],
        "targets": tokenizer(text_target=sources[0])["input_ids"],
        "ids": found[:, 1:].tolist(),
        "translations": tokenizer.batch_decode(found, skip_special_tokens=True, clean_up_tokenization_spaces=False),
    }


def tokenised(model_directory: str, texts: list[str]) -> dict:
    """Returns the ids of the texts, as sources and as targets of a translation; the texts decoded from the targets; and, of a
    fast tokenizer, the word of each id and the texts decoded from the sources."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_directory)
    sources = [tokenizer(text) for text in texts]
    targets = [tokenizer(text_target=text)["input_ids"] for text in texts]
    plain = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return {
        "classes": [kind.__name__ for kind in type(tokenizer).__mro__],
        "mask": tokenizer.mask_token,
        "pad": tokenizer.pad_token_id,
        "size": len(tokenizer),
        "sources": [source["input_ids"] for source in sources],
        "words": [source.word_ids() for source in sources] if tokenizer.is_fast else None,
        "decoded": [tokenizer.decode(source["input_ids"][1:-1]) for source in sources] if tokenizer.is_fast else None,
        "targets": targets,
        "decoded_targets": [tokenizer.decode(ids, **plain) for ids in targets],
    }


def difference(theirs: np.ndarray, ours: np.ndarray, mask: np.ndarray) -> float:
    """Returns max |theirs - ours| / max |theirs|, only over real tokens if there is a value for every token."""
    assert theirs.shape == ours.shape, (theirs.shape, ours.shape)
    if theirs.shape[:2] == mask.shape:
        theirs, ours = theirs[mask == 1], ours[mask == 1]
    return float(np.abs(theirs - ours).max() / np.abs(theirs).max())


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # the output of the libraries is not an answer
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "packages" in request:
                packages = [package.name for package in importlib.metadata.distributions()]
                answer = {"packages": packages, "transformers": transformers.__version__}
            elif "classes" in request:
                kind = request["classes"]
                answer = {"classes": importlib.import_module(f"transformers.models.{kind}.modeling_{kind}").__all__}
            elif "texts" in request:
                answer = {"vectors": sentence_vectors(request["model"], request["texts"])}
            elif "tokenise" in request:
                answer = tokenised(request["model"], request["tokenise"])
            elif "translate" in request:
                answer = translations(request["model"], request["translate"])
            else:
                answer = check(request["model"], request["expected"], request["resaved"], request["arguments"])
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()

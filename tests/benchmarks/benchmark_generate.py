"""New tokens per second of `generate`, compared with transformers' `generate` on the same model and prompts.

    python tests/benchmarks/benchmark_generate.py --peer-python=PATH

PATH is a Python with torch and transformers; without it, ours runs alone.

Both sides load the same left-to-right BERT with random weights (`--size=mini`, vocabulary 30,522) and continue prompts of 16
tokens by 64 tokens, greedily (or with `--beams`), for a single text and for a batch of 8, with caches of keys and values. [SEP]
is made improbable so that no text ends early. The benchmark checks that both sides return the same tokens. The peer runs as
installed and with glibc's allocator tuned. The sides alternate, every round in a fresh process that generates once before the
timed runs. Run it on an idle machine. All figures go to --json=FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.benchmarks.figures import flag_parser, give
from tests.benchmarks.turns import TUNED

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY, PROMPT, TOGETHER = 30_522, 16, (1, 8)
HERE = pathlib.Path(__file__).resolve()


def main() -> None:
    parser = flag_parser(__doc__)
    parser.add_argument("--peer-python", help="a Python with torch and transformers")
    parser.add_argument("--size", default="mini", help="a published size")
    parser.add_argument("--tokens", type=int, default=64, help="the number of new tokens per text")
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="the number of timed calls per process")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.model:
        print(json.dumps(ours(options)))
        return
    runs: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        model, prompts = f"{directory}/model", f"{directory}/prompts.json"
        make_model(model, prompts, options.size)
        mine = [sys.executable, str(HERE), f"--model={model}"]
        sides = [("ours", mine, {"PYTHONPATH": str(HERE.parents[2]), "JAX_PLATFORMS": "cpu"})]
        if options.peer_python:
            theirs = [options.peer_python, str(HERE.with_name("peer_generate.py")), f"--model={model}", f"--prompts={prompts}"]
            theirs.append(f"--threads={os.cpu_count()}")
            sides += [("peer as installed", theirs, {}), ("peer, allocator tuned", theirs, TUNED)]
        for _ in range(options.rounds):
            for rows in TOGETHER:
                for who, command, extra in sides:
                    flags = [f"--{name}={getattr(options, name)}" for name in ("tokens", "beams", "repeats")]
                    whole = [*command, *flags, f"--rows={rows}"]
                    done = subprocess.run(whole, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | extra)
                    runs.setdefault((who, rows), []).append(json.loads(done.stdout.splitlines()[-1]))
    report(runs, options.tokens, options.json)


def make_model(directory: str, prompts: str, size: str) -> None:
    """Writes a random left-to-right model of a published size, and prompts for it as texts and ids."""
    import numpy as np

    from bert_jax.data.tokenizers.tokenizer import load_tokenizer
    from bert_jax.interop.huggingface import Model, export_model
    from bert_jax.model.config import ModelConfig, published
    from tests.random_rows import initial_parameters_of

    words = [f"w{i}" for i in range(VOCABULARY - len(SPECIALS))]
    vocabulary = pathlib.Path(prompts).with_name("vocab.txt")
    vocabulary.write_text("\n".join([*SPECIALS, *words]) + "\n")
    tokenizer = load_tokenizer(vocabulary, lowercase=True)
    config = ModelConfig(**published(size), vocab_size=VOCABULARY, direction="left_to_right", initializer_range=0.1)
    params = initial_parameters_of(config)
    kept = {part: params[part] for part in ("embeddings", "encoder", "mlm_head")}
    kept["mlm_head"]["bias"] = np.asarray(kept["mlm_head"]["bias"]).copy()
    kept["mlm_head"]["bias"][tokenizer.sep_id] = -1_000.0
    import jax

    export_model(directory, Model(params=jax.tree.map(np.asarray, kept), config=config, tokenizer=tokenizer))
    rng = np.random.default_rng(0)
    texts = [" ".join(words[i] for i in rng.integers(0, len(words), PROMPT - 1)) for _ in range(max(TOGETHER))]
    ids = [[tokenizer.cls_id, *tokenizer.encode(text)] for text in texts]
    pathlib.Path(prompts).write_text(json.dumps({"texts": texts, "ids": ids}))


def ours(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the seconds of each call, from texts to texts, and the ids of the new tokens."""
    from bert_jax.prediction.predictor import Predictor

    texts = json.loads(pathlib.Path(options.model).with_name("prompts.json").read_text())["texts"][: options.rows]
    predictor = Predictor.load(options.model)
    seconds = []
    for _ in range(options.repeats + 1):
        started = time.perf_counter()
        answers = predictor.generate(texts, tokens=options.tokens, beams=options.beams)
        seconds.append(time.perf_counter() - started)
    encode = predictor.engine.model.tokenizer.encode
    return {"seconds": seconds[1:], "tokens": [encode(" ".join(answer["tokens"])) for answer in answers]}


def report(runs: dict[tuple[str, int], list[dict[str, Any]]], tokens: int, file: pathlib.Path | None) -> None:
    """Prints a table of new tokens per second, and of the ratio of ours to the peer's."""
    figures: list[dict[str, Any]] = []
    table = []
    for (who, rows), some in runs.items():
        times = [second for run in some for second in run["seconds"]]
        mine = runs["ours", rows]
        ratio = statistics.median(times) / statistics.median([second for run in mine for second in run["seconds"]])
        same = all(run["tokens"] == mine[0]["tokens"] for run in some)
        rates = {"median": rows * tokens / statistics.median(times), "best": rows * tokens / min(times)}
        figures.append(
            {"who": who, "texts": rows, "tokens_per_second": rates, "ours_is_times_faster": ratio, "same_tokens": same}
        )
        cells = [f"{rates['median']:,.0f}", f"{rates['best']:,.0f}", f"{ratio:.2f}", "yes" if same else "no"]
        table.append([f"{rows}", who, *cells])
    columns = ["texts", "side", "tokens/s, median", "best", "ours is times faster", "same tokens"]
    give(columns, table, {"cores": os.cpu_count(), "load": os.getloadavg(), "figures": figures}, file)


if __name__ == "__main__":
    main()

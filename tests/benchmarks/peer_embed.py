"""The peer of `benchmark_embed.py`: sentence-transformers' `encode`, in an interpreter that has it. Its last line of
output is JSON."""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import time

import numpy as np
from sentence_transformers import SentenceTransformer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--sentences", required=True)
    parser.add_argument("--vectors", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    options = parser.parse_args()
    sentences = pathlib.Path(options.sentences).read_text(encoding="utf-8").splitlines()
    model = SentenceTransformer(options.model, device="cpu")
    vectors = model.encode(sentences, batch_size=options.batch_size)
    seconds = []
    for _ in range(options.repeats):
        started = time.perf_counter()
        vectors = model.encode(sentences, batch_size=options.batch_size)
        seconds.append(time.perf_counter() - started)
    np.save(options.vectors, np.asarray(vectors))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"sentences": len(sentences), "seconds": seconds, "peak_mb": peak}))


if __name__ == "__main__":
    main()

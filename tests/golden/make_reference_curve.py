"""Makes a reference curve from runs of one experiment with different seeds.

    for seed in 0 1 2 3; do tpu_scripts/run.sh pretrain --config=experiments/pretrain/quickstart.py \
        --workdir=runs/quickstart_$seed --config.seed=$seed; done
    python tests/golden/make_reference_curve.py runs/quickstart_* --output=runs/quickstart.json

The file belongs in `experiments/curves/`. `pretrain` then reports at each evaluation whether a run of that experiment is within
the band (`pretraining/reference_curves.py`).
"""

from __future__ import annotations

import argparse
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from bert_jax.data.corpus.store import open_splits
from bert_jax.pretraining.reference_curves import as_json, reference_curve
from bert_jax.pretraining.splits import FINGERPRINT
from bert_jax.runtime.workdir import run_config


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workdirs", nargs="+", type=pathlib.Path, metavar="WORKDIR")
    parser.add_argument("--output", type=pathlib.Path, required=True)
    options = parser.parse_args()
    directory = run_config(options.workdirs[0], "pretrain")["corpus"]["directory"]
    train, _ = open_splits(pathlib.Path(directory))
    curve = reference_curve(options.workdirs, options.output.stem, train.num_tokens, FINGERPRINT)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(as_json(curve))
    print(options.output)


if __name__ == "__main__":
    main()

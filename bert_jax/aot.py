r"""Estimates memory, time and price of a step on a TPU slice, without a TPU.

    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_large.py --topology=v5e:8x8 --price=1.2
    tpu_scripts/run.sh aot --config=experiments/pretrain/bert_large.py --topology=4xv5e:16x16 \
        --phase=1 --config.mesh.fsdp=16
    tpu_scripts/run.sh aot --config=experiments/finetune/squad.py:v1.1 --topology=v5e:2x2 \
        --model=large --rows=87599

The step is the same function that `pretrain` (or `finetune`) runs. Times are estimates. They add up the compiler's cycle
estimates multiplied by the trip counts of loops, the cycles in the schedules of Pallas kernels, and a model of the network.
(`bert_jax/tpu/costs/` explains the method; the report lists what it leaves out.) `run.sh` installs the TPU compiler, which runs
on any CPU, into a separate environment. If you do not use `run.sh`, install the extra `tpu` of requirements.txt."""

from __future__ import annotations

if __name__ == "__main__":  # before the imports below, which take seconds
    from bert_jax.interface.command import run_command

    run_command("bert_jax.aot", check="bert_jax.tpu.costs.flags:check_flags")

import argparse
import json

from bert_jax.files import JsonObject
from bert_jax.interface.command import require_stdout
from bert_jax.interface.output import check_directory
from bert_jax.runtime.environment import quiet_libraries
from bert_jax.tpu.costs.compiler import Compiler
from bert_jax.tpu.costs.examination import examine
from bert_jax.tpu.costs.flags import parse_flags
from bert_jax.tpu.costs.step_report import comparisons, refusal, text, totals, totals_text
from bert_jax.tpu.costs.topologies import parse_topology
from bert_jax.tpu.programs import cases


def main() -> int:
    """Runs the command."""
    options, overrides, others = parse_flags(__doc__)
    require_stdout("open it, or redirect it to a file with >FILE")
    if options.save:
        check_directory(options.save, "--save")
    quiet_libraries()
    topology = parse_topology(options.topology, options.slices)
    wanted = [cases(options.config, overrides, options)] + [cases(given, others, options, "against") for given in options.against]
    compiler = Compiler(topology)
    found = [[examine(case, compiler, options) for case in one] for one in wanted]
    if options.json:
        print(json.dumps(as_json(found, options)))
    else:
        print("\n\n".join(as_text(found, options)))
    return 0 if all(one["fits"] for group in found for one in group) else 1


def as_json(found: list[list[JsonObject]], options: argparse.Namespace) -> JsonObject:
    """Returns the JSON object of the report on all experiments."""
    experiments = []
    for group in found:
        fitting = [one for one in group if one["fits"]]
        whole = totals(fitting, options.price) if len(fitting) == len(group) else None
        experiments.append({"config": group[0]["config"], "steps": group, "total": whole})
    return {"topology": found[0][0]["topology"], "experiments": experiments}


def as_text(found: list[list[JsonObject]], options: argparse.Namespace) -> list[str]:
    """Returns the paragraphs of the text report on all experiments."""
    paragraphs = []
    for group in found:
        paragraphs += [text(one) if one["fits"] else refusal(one) for one in group]
        fitting = [one for one in group if one["fits"]]
        if len(fitting) == len(group):
            paragraphs.append(totals_text(fitting, options.price))
    paragraphs += comparisons(found)
    saved = [one["saved"] for group in found for one in group if one.get("saved")]
    return [*paragraphs, *([f"saved: {', '.join(saved)}"] if saved else [])]

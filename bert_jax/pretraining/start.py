"""Makes the initial state of a pretraining run. The state has random weights or the weights of a model (`config.init_from`), or
it is the whole state of another run, including the optimizer state and the step (`config.init_state`). Also loads the teacher
of a distillation."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from bert_jax.configs.experiment_files import with_defaults
from bert_jax.configs.pretraining import ROTARY_KEYS, PretrainingExperiment
from bert_jax.data.corpus.store import TOKENIZER, Corpus, open_splits
from bert_jax.data.tokenizers.tokenizer import VocabularyInfo
from bert_jax.errors import UserError, nearest
from bert_jax.files import JsonObject
from bert_jax.interface.named import by_content
from bert_jax.interface.ranges import hints, marked, whole_number
from bert_jax.interface.words import counted
from bert_jax.interop.huggingface import Model, NewParts, import_model, part_names, with_new_parts
from bert_jax.interop.names import PARTS, REQUIRED_PARTS
from bert_jax.model import encoder_classes, natural_objective
from bert_jax.model.config import SIZES, Architecture, Changes, Execution, ModelConfig
from bert_jax.model.heads import HEAD_PARTS
from bert_jax.model.pretraining import NEVER_TRAINED
from bert_jax.objectives.model import Params
from bert_jax.objectives.objective import Objective, Teacher
from bert_jax.pretraining.program import taught_objective, teacher_config
from bert_jax.pretraining.splits import FINGERPRINT, trained_splits
from bert_jax.runtime.workdir import differences, flatten, from_start, run_config
from bert_jax.storage.objects import as_path
from bert_jax.storage.paths import AnyPath, checked, is_remote
from bert_jax.training.checkpoints import Checkpoints, Gather
from bert_jax.training.steps import Program, TrainState, skipped_batches

log = logging.getLogger(__name__)


def initial_state(
    experiment: PretrainingExperiment,
    program: Program,
    corpus: Corpus,
    of_phases: Mapping[int, Corpus],
    gather: Gather | None = None,
) -> TrainState:
    """Returns the initial state of a run, in which several processes agree by `gather`. If `init_state` is set, it is that
    state. Otherwise it is a state at step 0 with the weights of `init_from` or with random weights. Parameters that hold facts
    about the corpus or its vocabulary, e.g. token counts or the characters of words, are computed from `corpus`, with the token
    counts of all splits that the phases train on. Of these parameters, a run with `init_state` computes only those that are
    never trained."""
    if experiment.init_state:
        state = load_branch_state(experiment, corpus, program.state, gather)
        return _with_facts(state, {path: x for path, x in _facts(experiment, corpus, of_phases).items() if _is_fixed(path)})
    start = pretraining_start(experiment, corpus.vocabulary) if experiment.init_from else {}
    state = program.init_state(lambda start: {**initial_parameters(experiment), **start}, start)
    return _with_facts(state, _facts(experiment, corpus, of_phases))


def _facts(
    experiment: PretrainingExperiment, corpus: Corpus, of_phases: Mapping[int, Corpus]
) -> dict[tuple[str, ...], np.ndarray]:
    """Returns path -> array for the parameters that hold facts about the corpus or its vocabulary."""
    counts = np.sum([split.token_counts for split in trained_splits(experiment, corpus, of_phases)], axis=0)
    corpus = dataclasses.replace(corpus, token_counts=counts)
    facts = dict(experiment.trained_objective.corpus_parameters(corpus))
    rows = experiment.model.padded_vocab_size
    if experiment.model.character_cnn:
        from bert_jax.model.characters import piece_symbols

        assert corpus.tokenizer is not None, "a corpus opened from a directory has a tokenizer"
        facts["embeddings", "characters", "symbols"] = piece_symbols(corpus.tokenizer.pieces, rows)
    tables = encoder_classes(experiment.model)[1].vocabulary_tables(corpus.tokenizer, rows)
    return facts | {("encoder", name): table for name, table in tables.items()}


def _is_fixed(path: Sequence[str]) -> bool:
    return "/".join(path) in NEVER_TRAINED


def _with_facts(state: TrainState, facts: Mapping[tuple[str, ...], np.ndarray]) -> TrainState:
    """Raises UserError if a fact is not a parameter or has another shape than the parameter."""
    flat = flatten_dict(state.params)
    for path, value in facts.items():
        name = "/".join(path)
        what = f"config.objective: corpus_parameters returns {name!r}"
        if path not in flat:
            raise UserError(f"{what}, which is not a parameter; {nearest(name, ('/'.join(known) for known in flat))}")
        if np.shape(value) != flat[path].shape:
            raise UserError(
                f"{what} with the shape {np.shape(value)}, but the parameter has {flat[path].shape}; return that shape"
            )
        flat[path] = jax.device_put(np.asarray(value, flat[path].dtype), flat[path].sharding)
    return dataclasses.replace(state, params={**state.params, **unflatten_dict(flat)}) if facts else state


def initial_parameters(experiment: PretrainingExperiment) -> Params:
    """Returns random parameters. They depend on the seed, but not on the mesh."""
    found: Params = nn.unbox(experiment.trained_objective.initial_parameters(jax.random.key(experiment.seed)))
    return found


# ------------------------------------------------------------------------------------------------- an existing model
PAIR_PARTS = ("pooler", "nsp_head")
"""The parts of the model that are trained only if examples are sentence pairs."""


def pretraining_start(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> dict[str, PyTree[np.ndarray]]:
    """Returns the parameters of `experiment.init_from` as float32 numpy arrays, for a run on a corpus with this `vocabulary`.

    Parts that the model lacks must be named in `init_new`. Heads that pretraining does not use must be named in `init_drop`. A
    run without sentence pairs leaves the `PAIR_PARTS` out and logs this. With `init_tiled`, the parameters are a tiling of the
    model's parameters. Raises UserError if the model has a different architecture or vocabulary, or if a part must be named in
    `init_new` or `init_drop` and is not."""
    new, drop = (part_names(text) for text in (experiment.init_new, experiment.init_drop))
    objective = experiment.trained_objective
    wanted = {part for part in objective.abstract_parameters() if part not in (*REQUIRED_PARTS, *objective.temporary)}
    untrained = tuple(part for part in PAIR_PARTS if part not in wanted)
    if unused := [part for part in new if part in untrained]:
        raise UserError(
            f"config.init_new={experiment.init_new} names {' and '.join(unused)}, but a run with config.examples.pairs=none does "
            "not train it; remove it from init_new, or choose other pairs"
        )
    tiling = experiment.init_tiled
    from bert_jax.training.warm_start import load_start, same_vocabulary, trained_parts

    model = load_start(
        experiment.init_from,
        init_new="" if tiling else experiment.init_new,
        init_drop=",".join((*drop, *new)) if tiling else experiment.init_drop,
        seed=experiment.seed,
        vocab_multiple=experiment.model.vocab_multiple,
    )
    if tiling:
        from bert_jax.interop.tiling import tiled  # imported here so that other runs do not load it

        log.info("tiling %s, %s, to %s", model.source, model.config.in_words, experiment.model.in_words)
        model = tiled(model, experiment.model)
        model = with_new_parts(model, NewParts(new, seed=experiment.seed)) if new else model
    check_shape(experiment.model, model)
    if not same_vocabulary(model.tokenizer.vocabulary, vocabulary):
        raise UserError(
            f"config.init_from={experiment.init_from} has a different vocabulary than the corpus {experiment.corpus.directory}; "
            f"build the corpus with --vocab={model.source}"
        )
    why = "not trained with config.examples.pairs=none" if untrained else "not trained by this run"
    needed = [part for part in PARTS if part in wanted]
    model = trained_parts(
        model, experiment.init_from, trained={*wanted, *HEAD_PARTS}, needed=needed, init_new=experiment.init_new, why_unused=why
    )
    spare = [part for part in model.parts if part in HEAD_PARTS]
    if spare:
        raise UserError(
            f"config.init_from={experiment.init_from} has a {spare[0]}, which pretraining does not use; to leave it out, give "
            f"--config.init_drop={','.join((*drop, *spare))}"
        )
    if own := sorted(wanted - {*PARTS}):
        log.info(
            "these parts belong only to config.objective=%s and start from random weights: %s",
            experiment.objective,
            ", ".join(own),
        )
    return model.params


def check_shape(wanted: ModelConfig, model: Model) -> None:
    """Raises UserError if the architecture of `wanted`, the run's `config.model`, differs from the architecture of `model`. The
    message names every field that differs. `max_position` may differ if no array depends on it."""
    configs = (wanted.with_sliding_theta(), model.config.with_sliding_theta())
    asked, there = (dataclasses.asdict(config.architecture) for config in configs)
    differing = [name for name in asked if _by_content({name: asked[name]}) != _by_content({name: there[name]})]
    if "max_position" in differing and not wanted.has_position_table:
        differing.remove("max_position")
    if differing:
        values = {name: json.dumps(there[name]) if isinstance(there[name], tuple) else there[name] for name in differing}
        flags = " ".join(shlex.quote(f"--config.model.{name}={value}") for name, value in values.items())
        sizes = ("num_layers", "hidden_size", "intermediate_size")
        larger = {*differing} <= {*SIZES} and all(asked[name] >= there[name] for name in sizes)
        tiling = "; to initialise a larger model by tiling, give --config.init_tiled=True" if larger else ""
        if "max_position" in differing:
            tiling += f"; to resize its position table, use python -m bert_jax.convert --max-position={asked['max_position']}"
        raise UserError(f"{model.source} has a different architecture than config.model; to start from it, give {flags}{tiling}")


# ------------------------------------------------------------------------------------- the state of another run
STATE = "config.init_state"


def load_branch_state(
    experiment: PretrainingExperiment, corpus: Corpus, layout: TrainState, gather: Gather | None = None
) -> TrainState:
    """Loads the state that `config.init_state` names, with the shardings of `layout`, for a run on `corpus`. Several processes
    agree by `gather`.

    Raises UserError if the state does not exist, or if it belongs to a different model, objective, optimizer or vocabulary.
    Also raises UserError if, up to the step of the state, the phases of the experiment differ from the phases of the run that
    saved the state.
    """
    workdir, step = _workdir_and_step(experiment.init_state)
    stored = with_defaults(PretrainingExperiment, run_config(workdir, "pretrain", STATE), extra_key=FINGERPRINT)
    stored.pop(FINGERPRINT, None)
    trunk = PretrainingExperiment.from_dict(stored)
    directory, there = workdir / "checkpoints", list[int]()
    if directory.is_dir():
        with Checkpoints(directory, read_only=True, gather=gather) as checkpoints:
            there = checkpoints.steps
            if step in there:
                _require_same_model(experiment, trunk)
                _require_same_vocabulary(experiment, trunk, workdir, corpus)
                _require_same_past(experiment, trunk, step)
                log.info("continuing from step %s of %s, with its optimizer", f"{step:,}", workdir)
                return _restored(checkpoints, step, layout, trunk)
    others = f" (it has steps {', '.join(f'{saved:,}' for saved in there)})" if there else ""
    raise UserError(
        f"{STATE}={experiment.init_state}: {workdir} has no state of step {step:,}{others}; name an existing step, or train that "
        f"run with --config.checkpoints.keep_at='[{step}]'"
    )


def _restored(checkpoints: Checkpoints, step: int, layout: TrainState, trunk: PretrainingExperiment) -> TrainState:
    """Restores the state of `step`. The averages of a spike policy start anew, since the loss of this run may differ. A run
    without a policy continues from a state of a policy too, and leaves its fields out."""
    if trunk.spikes.policy == "none":
        return checkpoints.restore(step, layout)
    from bert_jax.training.spikes import WatchedTrainState, watched_layout, with_new_averages, without_watch

    if isinstance(layout, WatchedTrainState):
        return with_new_averages(checkpoints.restore(step, layout))
    state = checkpoints.restore(step, watched_layout(layout))
    if skipped := skipped_batches(state):
        log.info("that run had skipped %s; this run has no spike policy and reads as many again", counted(skipped, "batch"))
    return without_watch(state)


def start_step(experiment: PretrainingExperiment) -> int:
    """Returns the number of steps before the run starts. It is 0, or the step of `init_state`."""
    return _workdir_and_step(experiment.init_state)[1] if experiment.init_state else 0


def _workdir_and_step(text: str) -> tuple[AnyPath, int]:
    """Splits WORKDIR@STEP into the workdir and the step. Raises UserError if `text` does not have this form."""
    workdir, _, number = text.rpartition("@")
    step = whole_number(number)
    if not workdir or step is None:
        raise UserError(f"{STATE}={text} is not WORKDIR@STEP, e.g. {text.partition('@')[0] or 'runs/mine'}@5000; name a step")
    return as_path(checked(workdir, STATE)), step


def _by_content(values: JsonObject) -> JsonObject:
    """Replaces the user's files in the `values` of dotted keys by their hashes (`by_content`)."""
    return {key: by_content(x, f"config.{key}") if isinstance(x, str) else x for key, x in values.items()}


def _decisive(experiment: PretrainingExperiment) -> JsonObject:
    """Returns the settings that determine the arrays of a state and the meaning of these arrays."""
    free = ROTARY_KEYS if experiment.model.has_position_table else (*ROTARY_KEYS, "max_position")
    of_arrays = (name for name, change in marked(Execution, Changes).items() if change is Changes.ARRAYS)
    names = (*(name for name in hints(Architecture) if name not in free), *of_arrays)
    return {f"model.{name}": getattr(experiment.model, name) for name in names} | {
        "objective": experiment.objective,
        "objective_options": experiment.objective_options,
        "optimizer.name": experiment.optimizer.name,
        "spikes.policy": experiment.spikes.policy if experiment.spikes.policy == "none" else "watched",
        "examples.pairs": experiment.examples.pairs if experiment.examples.pairs == "none" else "pairs",
        "teacher": bool(experiment.teacher),
    }


def _require_same_model(experiment: PretrainingExperiment, trunk: PretrainingExperiment) -> None:
    there, here = _by_content(_decisive(trunk)), _by_content(_decisive(experiment))
    if experiment.spikes.policy == "none":  # `_restored` leaves the fields of a policy out
        there["spikes.policy"] = "none"
    changed = differences(there, here)
    if changed:
        listed = ", ".join(f"config.{key} is {then} in that run, but {now} here" for key, (then, now) in changed.items())
        raise UserError(
            f"{STATE}={experiment.init_state} is a state of a different model or optimizer: {listed}; use the same model and "
            "optimizer"
        )


def _require_same_vocabulary(
    experiment: PretrainingExperiment, trunk: PretrainingExperiment, workdir: AnyPath, corpus: Corpus
) -> None:
    """Raises UserError if the corpus of the run `trunk` still exists and has a different vocabulary. A remote corpus is not
    checked."""
    directory = from_start(workdir, trunk.corpus.directory)
    if is_remote(directory):
        return
    try:
        vocabulary = open_splits(directory, ["train"])[0].vocabulary
    except (UserError, OSError):
        return
    if vocabulary != corpus.vocabulary:
        raise UserError(
            f"{STATE}={experiment.init_state} is a state of a run with a different vocabulary than the corpus "
            f"{experiment.corpus.directory}; build the corpus with --vocab={directory}/{TOKENIZER}"
        )


def _require_same_past(experiment: PretrainingExperiment, trunk: PretrainingExperiment, step: int) -> None:
    """Raises UserError if the phases of the two runs differ up to `step`, or if `experiment` has no steps after `step`."""
    if experiment.phase_starts()[-1] <= step:
        raise UserError(
            f"{STATE}={experiment.init_state} is a state after step {step:,}, but config.phases have only "
            f"{counted(experiment.phase_starts()[-1], 'step')} together; give the phases of the whole run, from its step 0"
        )

    def past(one: PretrainingExperiment) -> list[JsonObject]:
        found = []
        for start, phase in zip(one.phase_starts(), one.phases, strict=False):
            if start < step:
                values = dataclasses.asdict(phase)
                end = min(start + values.pop("steps"), step)
                for name in ("tokens", "accumulation", "corpus"):
                    del values[name]
                found.append({"ends at step": end, **values})
        return found

    then, now = (_by_content(dict(flatten({"phases": past(one)}))) for one in (trunk, experiment))
    changed = differences(then, now)
    if changed:
        key, (there, here) = next(iter(changed.items()))
        raise UserError(
            f"{STATE}={experiment.init_state}: up to step {step:,} the phases must be the same as in that run, but config.{key} "
            f"is {there} there and {here} here; repeat the phases of that run up to that step, and add others after them"
        )


# --------------------------------------------------------------------------------------------------------- a teacher
def load_teacher(experiment: PretrainingExperiment, vocabulary: VocabularyInfo) -> Teacher | None:
    """Loads the teacher `experiment.teacher` for a run on a corpus with this `vocabulary`. The parameters are float32 numpy
    arrays. Returns None if there is no teacher.

    Raises UserError if its predictions are learned and it predicts other words than the student or has no trained head, if layers
    are compared and it has none, if attention maps are compared and it has none, another direction or another number of heads, if
    it has a different vocabulary, or if it has fewer positions or token types than the rows of the run."""
    if not experiment.teacher:
        return None
    from bert_jax.training.teachers import make_teacher

    model = import_model(experiment.teacher, vocab_multiple=experiment.model.vocab_multiple)
    objective = taught_objective(experiment, teacher_config(model.config, experiment))
    _check(experiment, objective, model, vocabulary)
    named, key = f"config.teacher={experiment.teacher}", f"config.objective={experiment.objective}"
    found = make_teacher(objective, experiment.distillation, model.params, named, key)
    # The MLM head is always hashed, as in workdirs of runs that began before a teacher without a head was possible.
    hashed = {part: tree for part, tree in model.params.items() if part in {*found.params, "mlm_head"}}
    return dataclasses.replace(found, sha256=_sha256(hashed))


def with_teacher(experiment: PretrainingExperiment, teacher: Teacher | None) -> PretrainingExperiment:
    """Returns the experiment with the width and the hash of its `teacher` filled in. Raises UserError if the experiment has
    different values."""
    if teacher is None:
        return experiment
    found: dict[str, Any] = {"teacher_width": teacher.config.hidden_size, "teacher_sha256": teacher.sha256}
    for name, value in found.items():
        if (given := getattr(experiment.distillation, name)) not in (0, "", value):
            raise UserError(
                f"config.distillation.{name}={given}, but config.teacher={experiment.teacher} has {value}; name the "
                "teacher that belongs to it, or leave the key out"
            )
    return dataclasses.replace(experiment, distillation=dataclasses.replace(experiment.distillation, **found))


def _check(experiment: PretrainingExperiment, objective: Objective, model: Model, vocabulary: VocabularyInfo) -> None:
    """Raises UserError like `load_teacher`. `objective` is the objective of the run, for the teacher's model."""
    from bert_jax.objectives.distillation import teacher_parameters
    from bert_jax.training.teachers import require_length, require_same_vocabulary

    named, config, settings, own = f"config.teacher={experiment.teacher}", model.config, experiment.distillation, experiment.model
    alone = "learn only its hidden states, with soft_weight=0 and hidden_weight=1 in config.distillation"
    kind = f"direction={config.direction} and encoder={config.encoder}"
    if settings.soft_weight:
        if natural_objective(config) != natural_objective(own):
            raise UserError(
                f"{named} predicts other words than the student, since it has {kind}, but the student has direction="
                f"{own.direction} and encoder={own.encoder}; name a model of the student's kind"
                + (f", or {alone}" if config.num_layers else "")
            )
        needed = [part for part in teacher_parameters(objective, settings) if part in PARTS]
        if lacking := [part for part in needed if part not in model.params or part in model.untrained]:
            raise UserError(
                f"{named} has no trained {lacking[0]}, so it makes no predictions to learn from; use a pretrained model with "
                f"one, or {alone}"
            )
    if settings.compares_layers and not config.num_layers:
        raise UserError(f"{named} has {kind}, so it has no layers to compare; name a teacher with layers")
    require_same_vocabulary(
        named,
        model,
        vocabulary,
        f"the corpus {experiment.corpus.directory}",
        f"build the corpus with --vocab={model.source}, or choose a teacher with its vocabulary",
    )
    if settings.soft_weight and config.decoder_vocab_size != own.decoder_vocab_size:
        raise UserError(
            f"{named} has config.model.decoder_vocab_size={config.decoder_vocab_size}, but the student "
            f"{own.decoder_vocab_size}; name a teacher that translates into the same vocabulary"
        )
    if config.vocab_size != own.vocab_size:
        raise UserError(
            f"{named} has {counted(config.vocab_size, 'row')} of word embeddings, but the student has "
            f"{own.vocab_size:,}: one of them has rows that belong to no token; remove these rows with convert "
            "--replace-vocab=MODEL, where MODEL is the same model"
        )
    longest = max(phase.length for phase in experiment.phases)
    remedy = f"shorten the rows, or extend its position table with convert --max-position={longest}"
    require_length(named, config, longest, f"the rows have {longest}", remedy)
    if experiment.next_sentence and config.type_vocab_size < 2:
        raise UserError(
            f"{named} has no token type for the second text of a pair; set config.examples.pairs=none"
            + (", or add one with convert --token-types=2" if config.type_vocab_size else "")
        )
    if settings.attention_weight:
        compared = f"config.distillation.attention_weight={settings.attention_weight} compares attention maps, but {named} has"
        if not config.has_attention or config.direction != own.direction:
            raise UserError(f"{compared} {kind}; name a Transformer with the direction of the student, or set attention_weight=0")
        if config.num_heads != own.num_heads:
            raise UserError(
                f"{compared} {counted(config.num_heads, 'head')} and the student {own.num_heads}; set "
                f"config.model.num_heads={config.num_heads}, or attention_weight=0"
            )


def _sha256(params: PyTree[np.ndarray]) -> str:
    """Returns a hash of all arrays in `params` and of their paths in the tree."""
    digest = hashlib.sha256()
    for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(params), key=lambda item: jax.tree_util.keystr(item[0])):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.ascontiguousarray(leaf, np.float32).tobytes())
    return digest.hexdigest()

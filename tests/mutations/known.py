"""Mistakes that once passed the tests unnoticed, and mistakes that make no difference."""

from __future__ import annotations

import dataclasses

from tests.mutations.mistakes import Mistake


@dataclasses.dataclass(frozen=True)
class Equivalent:
    """A mistake that makes no difference. In `old` and `new`, every run of white space is a single space."""

    file: str
    old: str
    new: str
    reason: str


SEEN = [
    Mistake("bert_jax/training/steps.py", 1, "dropout_seed(seed, step, microbatch)", "dropout_seed(seed, step, jnp.int32(0))"),
    Mistake("bert_jax/training/steps.py", 1, "learning_rate(state.step, scalars)", "learning_rate(state.step + 1, scalars)"),
    Mistake(
        "bert_jax/model/embeddings.py",
        1,
        "x = dropout(x, tokens.dropout(c.hidden_dropout if c.embedding_dropout is None else c.embedding_dropout, seed))",
        "pass",
    ),
    Mistake("bert_jax/model/encoder.py", 1, "(c.hidden_dropout, seeds[2])", "(c.hidden_dropout, seeds[1])"),
    Mistake("bert_jax/model/encoder.py", 1, "rate = c.hidden_dropout if", "rate = c.attention_dropout if"),
    Mistake("bert_jax/model/kernels/attention_tpu.py", 1, "(unit * self.plan.blocks + i) * self.plan.blocks + j", "unit"),
    Mistake("bert_jax/data/corpus/shard.py", 1, "return self._tokens + len(self._held)", "return len(self._held)"),
    Mistake("bert_jax/data/corpus/shard.py", 1, "counts += np.bincount(tokens", "counts = np.bincount(tokens"),
    Mistake(
        "bert_jax/data/corpus/cleaning.py",
        1,
        "len(s) <= config.max_sentence_characters",
        "len(s) < config.max_sentence_characters",
    ),
    Mistake(
        "bert_jax/interop/families/bert.py",
        1,
        '"hidden_dropout": "hidden_dropout_prob",\n    "attention_dropout": "attention_probs_dropout_prob"',
        '"hidden_dropout": "attention_probs_dropout_prob",\n    "attention_dropout": "hidden_dropout_prob"',
    ),
    Mistake("bert_jax/prediction/forwards.py", 1, "else total / len(chosen)", "else total"),
    Mistake(
        "bert_jax/data/batches.py",
        1,
        "places[blocks == block] % plan.num_rows",
        "np.minimum(places[blocks == block], plan.num_rows - 1)",
    ),
    Mistake("bert_jax/tpu/costs/hlo.py", 1, '(1 if direction == "LE" else -1 if direction == "GE" else 0)', "0"),
    Mistake("bert_jax/data/plan.py", 1, "make_key(key, _CUT_B)", "make_key(key, _CUT_A)"),
    Mistake(
        "bert_jax/model/heads/outputs.py",
        1,
        "takes_class_weights = takes_smoothing = has_accuracy = False",
        "takes_class_weights = takes_smoothing = has_accuracy = True",
    ),
    Mistake("bert_jax/model/heads/outputs.py", 1, "if len(values) == 1 else", "if len(values) == 2 else"),
    Mistake("bert_jax/pretraining/splits.py", 1, "self.source.at(step - self._start", "self.source.at(step + self._start"),
    Mistake("bert_jax/runtime/workdir.py", 1, "elif (directory / METRICS).exists()", "elif directory.exists()"),
    Mistake("bert_jax/tpu/costs/estimate.py", 1, "            read += part\n", "            pass\n"),
    Mistake("bert_jax/runtime/environment.py", 1, "logging.getLogger(name).setLevel(logging.ERROR)", "pass"),
    Mistake("bert_jax/tpu/costs/hlo.py", 1, '"f8e4m3fn": 8', '"f8e4m3fn": 9'),
    Mistake("bert_jax/interface/figures.py", 1, "    axes.set_ylabel(y, fontsize=8)", "    pass"),
    Mistake("bert_jax/model/heads/outputs.py", 1, "return logits >= 0", "return logits >= 1"),
    Mistake("bert_jax/runtime/restarts.py", 1, "            signal.signal(number, handler)", "            pass"),
    Mistake("bert_jax/tasks/readers/swag.py", 1, 'table.require("sent1", "sent2", *endings)', "pass"),
    Mistake("bert_jax/training/log.py", 1, "self._goodput.close()", "pass"),
    Mistake("bert_jax/analysis/coreference/measure.py", 1, "chosen = int(other[:, : choice", "chosen = int(own[:, : choice"),
    Mistake(
        "bert_jax/tpu/costs/report.py",
        1,
        "step.rows * step.length / chips / seconds",
        "step.rows * step.length / step.devices / seconds",
    ),
    Mistake("bert_jax/tpu/costs/report.py", 1, "step.rows / chips / seconds", "step.rows / step.devices / seconds"),
    Mistake("bert_jax/studies/calibration.py", 1, "if end - count + every < record", "if end - count < record"),
    Mistake("bert_jax/training/data_parallel.py", 1, "len(sides) != 2", "len(sides) < 2"),
    Mistake(
        "bert_jax/objectives/distillation.py",
        1,
        "teacher.params, batch, None, settings",
        "teacher.params, batch, seed, settings",
    ),
    Mistake(
        "bert_jax/interop/tensorflow.py",
        1,
        'activation = activation or (ours.get("activation") if gelu else None)',
        'activation = (ours.get("activation") if gelu else None) or activation',
    ),
    Mistake(
        "bert_jax/interop/tensorflow.py",
        1,
        'ours.get("do_lower_case") if lowercase is None else lowercase',
        'ours.get("do_lower_case", lowercase)',
    ),
    Mistake("bert_jax/storage/fetching.py", 1, "objects[name].size for name in due", "objects[name].size for name in objects"),
    Mistake("bert_jax/storage/lock.py", 1, '            replaced = "0"\n', ""),
    Mistake("bert_jax/storage/mirror.py", 1, "if item.size > file.stat()", "if item.size >= file.stat()"),
    Mistake(
        "bert_jax/storage/mirror.py",
        1,
        "Copy(generation, before.size, before.modified)",
        "copy_record(self.directory / name, generation)",
    ),
]
"""Mistakes that once passed unnoticed; a test for each kind has been added."""
EQUIVALENT: list[Equivalent] = [
    Equivalent(
        "bert_jax/training/compilation.py",
        'return stream.readline(200).decode(errors="replace").strip()',
        'return stream.readline(201).decode(errors="replace").strip()',
        "the first line of a program's file is shorter",
    ),
    Equivalent(
        "bert_jax/training/schedules.py",
        "return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), jnp.maximum(falling, end_fraction))",
        "return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 2), jnp.maximum(falling, end_fraction))",
        "a warmup of one step has only step 0, whose rate is 0",
    ),
    Equivalent(
        "bert_jax/training/schedules.py",
        "return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 1), falling)",
        "return jnp.where(done < warmup_steps, done / jnp.maximum(warmup_steps, 2), falling)",
        "a warmup of one step has only step 0, whose rate is 0",
    ),
    Equivalent(
        "bert_jax/training/log.py",
        "self.metrics.rollback(step or -1)",
        "self.metrics.rollback(step or -2)",
        "no record has a step below 0",
    ),
    Equivalent(
        "bert_jax/training/data_parallel.py",
        'on_cpu = mesh.devices.flat[0].platform == "cpu" # XLA\'s CPU compiler aborts on a reduce-scatter in '
        "bfloat16 (jax 0.10.2)",
        'on_cpu = mesh.devices.flat[1].platform == "cpu" # XLA\'s CPU compiler aborts on a reduce-scatter in '
        "bfloat16 (jax 0.10.2)",
        "all devices of a mesh are of one kind",
    ),
    Equivalent(
        "bert_jax/training/layerwise_rates.py",
        "layers = stacks[0].shape[0] if stacks else 0",
        "layers = stacks[1].shape[0] if stacks else 0",
        "all stacked arrays have as many layers",
    ),
    Equivalent(
        "bert_jax/training/checkpoints.py",
        'PROBE, PROBE_SIZE = ".probe", 1 << 16 # a test file that process 0 writes and removes before each '
        "save of a multi-process run",
        'PROBE, PROBE_SIZE = ".probe", 2 << 16 # a test file that process 0 writes and removes before each '
        "save of a multi-process run",
        "a larger test file shows the same",
    ),
    Equivalent(
        "bert_jax/training/checkpoints.py",
        'PROBE, PROBE_SIZE = ".probe", 1 << 16 # a test file that process 0 writes and removes before each '
        "save of a multi-process run",
        'PROBE, PROBE_SIZE = ".probe", 1 << 17 # a test file that process 0 writes and removes before each '
        "save of a multi-process run",
        "a larger test file shows the same",
    ),
    Equivalent(
        "bert_jax/training/spikes.py",
        "self._times = int(state.rollbacks) if isinstance(state, WatchedTrainState) else 0",
        "self._times = int(state.rollbacks) if isinstance(state, WatchedTrainState) else 1",
        "only a run with a spike policy rolls back, and its state has a count",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "def unframed(data: bytes, longest: int = (1 << 32) - 1) -> tuple[list[Json], bytes]:",
        "def unframed(data: bytes, longest: int = (2 << 32) - 1) -> tuple[list[Json], bytes]:",
        "four bytes hold no larger number",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "def unframed(data: bytes, longest: int = (1 << 32) - 1) -> tuple[list[Json], bytes]:",
        "def unframed(data: bytes, longest: int = (1 << 33) - 1) -> tuple[list[Json], bytes]:",
        "four bytes hold no larger number",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "def unframed(data: bytes, longest: int = (1 << 32) - 1) -> tuple[list[Json], bytes]:",
        "def unframed(data: bytes, longest: int = (1 << 32) + 1) -> tuple[list[Json], bytes]:",
        "four bytes hold no larger number",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "def unframed(data: bytes, longest: int = (1 << 32) - 1) -> tuple[list[Json], bytes]:",
        "def unframed(data: bytes, longest: int = (1 << 32) - 2) -> tuple[list[Json], bytes]:",
        "no message is as long",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "data = caller.connection.recv(1 << 16)",
        "data = caller.connection.recv(2 << 16)",
        "it only changes how much is read at once",
    ),
    Equivalent(
        "bert_jax/runtime/messages.py",
        "data = caller.connection.recv(1 << 16)",
        "data = caller.connection.recv(1 << 17)",
        "it only changes how much is read at once",
    ),
    Equivalent(
        "bert_jax/runtime/processes.py",
        "data = self._connections[other].recv(1 << 16)",
        "data = self._connections[other].recv(2 << 16)",
        "it only changes how much is read at once",
    ),
    Equivalent(
        "bert_jax/runtime/processes.py",
        "data = self._connections[other].recv(1 << 16)",
        "data = self._connections[other].recv(1 << 17)",
        "it only changes how much is read at once",
    ),
    Equivalent(
        "bert_jax/runtime/processes.py",
        "path, token = directory / MARKER_FILE, os.urandom(8).hex()",
        "path, token = directory / MARKER_FILE, os.urandom(9).hex()",
        "a longer random text is as good",
    ),
    Equivalent(
        "bert_jax/runtime/processes.py",
        'return connection.recv(1, socket.MSG_PEEK) == b""',
        'return connection.recv(2, socket.MSG_PEEK) == b""',
        "one byte is enough to see whether there is any",
    ),
    Equivalent(
        "bert_jax/runtime/goodput.py",
        "POLL = 0.001",
        "POLL = 0.002",
        "it only changes how often the devices are asked",
    ),
    Equivalent(
        "bert_jax/pretraining/reference_curves.py",
        "return ReferenceCurve(name, seeds, stored[0], corpus_tokens, prints[0], measures)",
        "return ReferenceCurve(name, seeds, stored[0], corpus_tokens, prints[1], measures)",
        "the runs of a curve have the same corpus",
    ),
    Equivalent(
        "bert_jax/pretraining/reference_curves.py",
        "for measure in losses(experiments[0].trained_objective)",
        "for measure in losses(experiments[1].trained_objective)",
        "the runs of a curve have the same objective",
    ),
    Equivalent(
        "bert_jax/model/config.py",
        "layers_per_scan_step: Annotated[int, Interval(ge=1, le=10_000)] = 1",
        "layers_per_scan_step: Annotated[int, Interval(ge=1, le=10_000)] = 2",
        "it changes the time of a step, not its result",
    ),
    Equivalent(
        "bert_jax/training/data_parallel.py",
        "check_vma=False,",
        "check_vma=True,",
        "it enables a check of JAX that the function passes",
    ),
    Equivalent(
        "bert_jax/interface/command.py",
        "threading.Timer(0.05, _signal_main_thread).start() # an exception in this hook would be swallowed again",
        "threading.Timer(0.1, _signal_main_thread).start() # an exception in this hook would be swallowed again",
        "the signal comes again a moment later",
    ),
    Equivalent(
        "bert_jax/objectives/model.py",
        'return {"kernel": kernel, "bias": named(nn.initializers.zeros, None)(key, (outputs,))}',
        'return {"kernel": kernel, "bias": named(nn.initializers.zeros, None)(stddev, (outputs,))}',
        "zeros need no key",
    ),
    Equivalent(
        "bert_jax/analysis/neighbours/measure.py",
        '"occurrence_window": jnp.where(real[asked], windows[asked], -1),',
        '"occurrence_window": jnp.where(real[asked], windows[asked], -2),',
        "any negative number means that there is no word",
    ),
    Equivalent(
        "bert_jax/training/curves.py",
        "axes.legend(frameon=False, fontsize=9, labelcolor=INK)",
        "axes.legend(frameon=True, fontsize=9, labelcolor=INK)",
        "no test looks at the frame of a legend",
    ),
    Equivalent(
        "bert_jax/data/corpus/shard.py",
        "hashes < eval_limit(short)",
        "hashes <= eval_limit(short)",
        "only one of 2**64 hashes differs",
    ),
    Equivalent("bert_jax/tasks/mention_task.py", "_LEAST = 1e-15", "_LEAST = 2e-15", "its logarithm is finite in both cases"),
    Equivalent(
        "bert_jax/data/batches.py",
        "return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}",
        "return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[1]}",
        "all parts have the same arrays, and there are at least two",
    ),
    Equivalent(
        "bert_jax/pretraining/pretraining_log.py",
        "self.open(step or -1, experiment)",
        "self.open(step or -2, experiment)",
        "no record has a step below 0",
    ),
    Equivalent(
        "bert_jax/data/packing.py",
        "dtype = np.int32 if len(lengths) < 2**31 else np.int64",
        "dtype = np.int32 if len(lengths) <= 2**31 else np.int64",
        "the last of 2**31 examples has the number 2**31 - 1",
    ),
    Equivalent(
        "bert_jax/analysis/probe/structural.py",
        'sentences = (trees["depth"][:, 0] >= 0).sum()',
        'sentences = (trees["depth"][:, 1] >= 0).sum()',
        "a sentence with a tree has at least two words",
    ),
    Equivalent(
        "bert_jax/interop/stablehlo.py",
        "first = jnp.zeros_like(input_ids[:, :1]) # the position of [CLS]",
        "first = jnp.zeros_like(input_ids[:, :2]) # the position of [CLS]",
        "the pooled vectors of further columns are not read",
    ),
    Equivalent(
        "bert_jax/prediction/decoding.py",
        "NEVER = -1e9",
        "NEVER = -2000000000.0",
        "either is below every score",
    ),
    Equivalent(
        "bert_jax/prediction/decoding.py",
        "first = jnp.broadcast_to(jnp.where(jnp.arange(width) == 0, 0.0, NEVER), (rows, width))",
        "first = jnp.broadcast_to(jnp.where(jnp.arange(width) == 1, 0.0, NEVER), (rows, width))",
        "all beams are equal before the first token; any one may begin",
    ),
    Equivalent(
        "bert_jax/prediction/decoding.py",
        "may_improve = state.may_improve & (running[:, :1] / penalty > worst).any(1)",
        "may_improve = state.may_improve & (running[:, :1] / penalty >= worst).any(1)",
        "equal floats of two hypotheses do not occur",
    ),
    Equivalent(
        "bert_jax/prediction/embedding.py",
        "vector = vector / max(float(np.linalg.norm(vector)), 1e-12) if normalise else vector",
        "vector = vector / max(float(np.linalg.norm(vector)), 2e-12) if normalise else vector",
        "it only affects the norm of a zero vector",
    ),
    Equivalent(
        "bert_jax/prediction/embedding.py",
        "if start > pieces[-1, 0]:",
        "if start > pieces[-1, 1]:",
        "words behind the cut have no pieces; only the loop is longer",
    ),
    Equivalent(
        "bert_jax/prediction/forwards.py",
        "return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 1e-12) if normalise else vectors",
        "return vectors / jnp.maximum(jnp.linalg.norm(vectors, axis=1, keepdims=True), 2e-12) if normalise else vectors",
        "it only affects the norm of a zero vector",
    ),
    Equivalent(
        "bert_jax/prediction/forwards.py",
        "n = len(hidden_states) - 1",
        "n = len(hidden_states) + 1",
        "the last hidden state is `last`; only memory differs",
    ),
    Equivalent(
        "bert_jax/prediction/packing.py",
        "ATTENTION = 1 / 500",
        "ATTENTION = 1 / 501",
        "no packing has a cost between the two values",
    ),
    Equivalent(
        "bert_jax/prediction/packing.py",
        "segment_b: int = -1",
        "segment_b: int = -2",
        "any negative number means that there is none",
    ),
    Equivalent(
        "bert_jax/prediction/labels.py",
        "items = [Item(w.input_ids.tolist(), w.offset if has_types else -1) for _, own, *_ in prepared for w in own]",
        "items = [Item(w.input_ids.tolist(), w.offset if has_types else -2) for _, own, *_ in prepared for w in own]",
        "any negative number means that there is none",
    ),
    Equivalent(
        "bert_jax/prediction/questions.py",
        "segment_b = len(ids) if text_b is not None and engine.config.has_segments else -1",
        "segment_b = len(ids) if text_b is not None and engine.config.has_segments else -2",
        "any negative number means that there is none",
    ),
    Equivalent(
        "bert_jax/prediction/engine.py",
        'with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="packing") as worker:',
        'with concurrent.futures.ThreadPoolExecutor(2, thread_name_prefix="packing") as worker:',
        "only one call is submitted at a time",
    ),
    Equivalent(
        "bert_jax/prediction/engine.py",
        "return packed, jax.block_until_ready(result) if self._waits else result",
        "return packed, jax.block_until_ready(result) if not (self._waits) else result",
        "device_get waits in either case",
    ),
    Equivalent(
        "bert_jax/prediction/streams.py",
        "while block := file.read(1 << 20):",
        "while block := file.read(2 << 20):",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/prediction/streams.py",
        "while block := file.read(1 << 20):",
        "while block := file.read(1 << 21):",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/prediction/streams.py",
        "weakref.finalize(records, file.close).atexit = False",
        "weakref.finalize(records, file.close).atexit = True",
        "the end of the process closes the file",
    ),
    Equivalent(
        "bert_jax/prediction/generation.py",
        "rows = engine.mesh.size * power_of_two(-(-len(items) // engine.mesh.size))",
        "rows = engine.mesh.size * power_of_two(-(-len(numbers) // engine.mesh.size))",
        "as many numbers as items",
    ),
    Equivalent(
        "bert_jax/prediction/generation.py",
        "seeds[: len(items)] = numbers",
        "seeds[: len(numbers)] = numbers",
        "as many numbers as items",
    ),
    Equivalent(
        "bert_jax/prediction/output.py",
        "if there and source and os.path.samestat(there, source):",
        "if there and source and os.path.samestat(source, there):",
        "the function is symmetric in its arguments",
    ),
    Equivalent(
        "bert_jax/prediction/output.py",
        "if source and os.path.samestat(there, source):",
        "if source and os.path.samestat(source, there):",
        "the function is symmetric in its arguments",
    ),
    Equivalent(
        "bert_jax/storage/records.py",
        "if start < first + rows:",
        "if start <= first + rows:",
        "it only adds an empty part of one more row group",
    ),
    Equivalent(
        "bert_jax/data/corpus/tables.py", "values = values.dictionary_decode()", "pass", "pyarrow casts a dictionary of texts too"
    ),
    Equivalent(
        "bert_jax/analysis/probe/linear.py",
        'probe["kernel"][layer], probe["bias"][layer] = kernel, bias - mean @ kernel',
        'probe["kernel"][layer], probe["bias"][layer] = kernel, bias',
        "the mean of a mix of standardised vectors is 0",
    ),
    Equivalent(
        "bert_jax/training/schedules.py",
        "warm = peak * done / jnp.maximum(warmup_steps, 1)",
        "warm = peak * done / jnp.maximum(warmup_steps, 2)",
        "a warmup of one step has only step 0, whose rate is 0",
    ),
    Equivalent(
        "bert_jax/objectives/objective.py",
        "batch = abstract_rows(1, 16, 4, targets=self.rows)",
        "batch = abstract_rows(1, 17, 4, targets=self.rows)",
        "the check of an objective takes rows of any length",
    ),
    Equivalent(
        "bert_jax/analysis/compare/measure.py",
        'count = np.float32(max(1, int(found["words"])))',
        'count = np.float32(max(2, int(found["words"])))',
        "any shift gives the same similarity; it only keeps the sums small",
    ),
    Equivalent(
        "bert_jax/analysis/neighbours/measure.py",
        "cosines = (table @ vector) / np.maximum(norms * np.float32(norm), np.float32(1e-12))",
        "cosines = (table @ vector) / np.maximum(norms * np.float32(norm), np.float32(2e-12))",
        "it only keeps the cosine of a vector of zeros finite: 0 in both cases",
    ),
    Equivalent(
        "bert_jax/training/curves.py",
        "axes.set_title(axes.get_title(), fontsize=11, color=INK)",
        "pass",
        "it only changes the size and the colour of the title",
    ),
    Equivalent(
        "bert_jax/interop/families/modernbert.py",
        "Window(default=128),",
        "Window(default=129),",
        "half of the window is rounded down",
    ),
    Equivalent(
        "bert_jax/analysis/vocabulary/figures.py",
        "axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))",
        "pass",
        "it only changes the places of the ticks",
    ),
    Equivalent(
        "bert_jax/studies/arms.py",
        "return jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(0)))",
        "return jax.eval_shape(lambda: initial_label_parameters(config, head, jax.random.key(1)))",
        "only the shapes are computed",
    ),
    Equivalent(
        "bert_jax/studies/arms.py",
        "tasks[task.name] = load_task(task_config(finetuning_values(study, _plain(study), task, 0)), say)",
        "tasks[task.name] = load_task(task_config(finetuning_values(study, _plain(study), task, 1)), say)",
        "the settings of a task do not contain the seed",
    ),
    Equivalent(
        "bert_jax/studies/calibration.py",
        'budget = {"equal": study.budget.equal, "amount": getattr(study.budget, study.budget.equal, 0)}',
        'budget = {"equal": study.budget.equal, "amount": getattr(study.budget, study.budget.equal, 1)}',
        "an amount that the budget does not have is the same number in every hash",
    ),
    Equivalent(
        "bert_jax/studies/children.py",
        "POLL = 0.5",
        "POLL = 1.0",
        "it is only the time between two looks",
    ),
    Equivalent(
        "bert_jax/analysis/attention/command.py",
        "found = [*itertools.islice(records, 2)]",
        "found = [*itertools.islice(records, 3)]",
        "it only reads one more record before the error",
    ),
    Equivalent(
        "bert_jax/analysis/heads/command.py",
        "print(reading.summary(int(found.n.values[0]), found.windows))",
        "print(reading.summary(int(found.n.values[1]), found.windows))",
        "the attention to [CLS] is a mean over all words, too",
    ),
    Equivalent(
        "bert_jax/analysis/neighbours/measure.py",
        "self._rng = np.random.default_rng(0)",
        "self._rng = np.random.default_rng(1)",
        "a sample with any seed is uniform",
    ),
    Equivalent(
        "bert_jax/analysis/neighbours/measure.py",
        "def as_item(window: Window, numbers: Sequence[int], place: int = 0) -> Item:",
        "def as_item(window: Window, numbers: Sequence[int], place: int = 1) -> Item:",
        "the windows of words in context are not numbered",
    ),
    Equivalent(
        "bert_jax/analysis/probe/measure.py",
        "known = known or {own.name: probes[own.name] for own in kinds}",
        "known = known and {own.name: probes[own.name] for own in kinds}",
        "the probes on single layers do not depend on the seed; training them again takes longer",
    ),
    Equivalent(
        "bert_jax/analysis/probe/measure.py",
        "distance = trained.most_common(1)[0][0] if trained else -1",
        "distance = trained.most_common(2)[0][0] if trained else -1",
        "only the first is read",
    ),
    Equivalent(
        "bert_jax/analysis/probe/structural.py",
        "positive = np.triu(distances - distances.min() + 1.0, 1)",
        "positive = np.triu(distances - distances.min() + 2.0, 1)",
        "any positive constant gives the same tree",
    ),
    Equivalent(
        "bert_jax/analysis/compare/measure.py",
        "found = word_vectors(weights, own, each, settings, layers) - shift[:, None, None]",
        "found = word_vectors(weights, own, each, settings, layers) + shift[:, None, None]",
        "any shift gives the same similarity; it only keeps the sums small",
    ),
    Equivalent(
        "bert_jax/analysis/dependencies/measure.py",
        "of_relation = np.full((MOST_RELATIONS + 1, len(PICKS)), -1, np.int64)",
        "of_relation = np.full((MOST_RELATIONS + 1, len(PICKS)), -2, np.int64)",
        "any negative number means that there is none",
    ),
    Equivalent(
        "bert_jax/analysis/dependencies/measure.py",
        "of_relation[number, :2] = place[name], place.get(f\"{name.partition(':')[0]}:*\", -1)",
        "of_relation[number, :2] = place[name], place.get(f\"{name.partition(':')[0]}:*\", -2)",
        "any negative number means that there is none",
    ),
    Equivalent(
        "bert_jax/analysis/probe/parser.py",
        "share = 0.5 * (1 + np.cos(np.pi * min(1.0, done / total)))",
        "share = 0.5 * (1 + np.cos(np.pi * min(2.0, done / total)))",
        "no more words are read than there are",
    ),
    Equivalent(
        "bert_jax/data/batches.py",
        "PACKED_AHEAD = 20_000",
        "PACKED_AHEAD = 20001",
        "one more step in 20,000 does not change the choice",
    ),
    Equivalent(
        "bert_jax/data/config.py",
        "if self.mask_probability + self.random_probability > 1 + 1e-9:",
        "if self.mask_probability + self.random_probability >= 1 + 1e-9:",
        "it only allows for rounding",
    ),
    Equivalent(
        "bert_jax/data/config.py",
        "if self.mask_probability + self.random_probability > 1 + 1e-9:",
        "if self.mask_probability + self.random_probability > 1 + 2e-09:",
        "it only allows for rounding",
    ),
    Equivalent(
        "bert_jax/data/counter_rng.py",
        "return (bits >> np.uint64(32)) < np.uint64(round(probability * 2**32))",
        "return (bits >> np.uint64(32)) <= np.uint64(round(probability * 2**32))",
        "only one of 2**32 random numbers differs",
    ),
    Equivalent(
        "bert_jax/data/masking.py",
        "_NEVER = np.uint64(2**64 - 1)",
        "_NEVER = np.uint64(2**64 - 2)",
        "either is above every key",
    ),
    Equivalent(
        "bert_jax/data/masking.py",
        "if not goes_on.all():",
        "if goes_on.all():",
        "the examples that are finished may stay; it only saves time",
    ),
    Equivalent(
        "bert_jax/data/masking.py",
        "if not goes_on.all():",
        "if not (not goes_on.all()):",
        "the examples that are finished may stay; it only saves time",
    ),
    Equivalent(
        "bert_jax/data/masking.py",
        "masked = decision < np.uint64(round(config.mask_probability * 2**32))",
        "masked = decision <= np.uint64(round(config.mask_probability * 2**32))",
        "only one of 2**32 random numbers differs",
    ),
    Equivalent(
        "bert_jax/data/masking.py",
        "replaced = decision < np.uint64(round((config.mask_probability + config.random_probability) * 2**32))",
        "replaced = decision <= np.uint64(round((config.mask_probability + config.random_probability) * 2**32))",
        "only one of 2**32 random numbers differs",
    ),
    Equivalent(
        "bert_jax/data/packing.py",
        "histogram = np.bincount(lengths, minlength=row_length + 1)",
        "histogram = np.bincount(lengths, minlength=row_length + 2)",
        "no example is longer than a row",
    ),
    Equivalent(
        "bert_jax/data/packing.py",
        "open_packs: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(row_length + 1)] # by remaining room",
        "open_packs: list[list[tuple[tuple[int, ...], int]]] = [[] for _ in range(row_length + 2)] # by remaining room",
        "the additional list stays empty",
    ),
    Equivalent(
        "bert_jax/data/packing.py",
        "for room in range(length, row_length + 1):",
        "for room in range(length, row_length + 2):",
        "no example is left after the empty rows",
    ),
    Equivalent(
        "bert_jax/data/plan.py",
        "_BLOCK = 1 << 15 # sentences at a time, so that temporaries of 256 KB stay in the processor's cache",
        "_BLOCK = 2 << 15 # sentences at a time, so that temporaries of 256 KB stay in the processor's cache",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/data/plan.py",
        "_BLOCK = 1 << 15 # sentences at a time, so that temporaries of 256 KB stay in the processor's cache",
        "_BLOCK = 1 << 16 # sentences at a time, so that temporaries of 256 KB stay in the processor's cache",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/data/plan.py",
        "looked_at = range(0, every, -(-every // 256))",
        "looked_at = range(0, every, -(-every // 257))",
        "the number of checked segments is arbitrary",
    ),
    Equivalent(
        "bert_jax/data/rows.py",
        "_BLOCK = 1 << 17 # tokens per chunk (1,024 rows of 128), so that temporaries of at most 512 KB stay in the "
        "processor's cache",
        "_BLOCK = 2 << 17 # tokens per chunk (1,024 rows of 128), so that temporaries of at most 512 KB stay in the "
        "processor's cache",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/data/rows.py",
        "_BLOCK = 1 << 17 # tokens per chunk (1,024 rows of 128), so that temporaries of at most 512 KB stay in the "
        "processor's cache",
        "_BLOCK = 1 << 18 # tokens per chunk (1,024 rows of 128), so that temporaries of at most 512 KB stay in the "
        "processor's cache",
        "only the size of a block changes",
    ),
    Equivalent(
        "bert_jax/data/rows.py",
        "if len(held) < length:",
        "if len(held) <= length:",
        "a shard as long as a window is copied unchanged",
    ),
    Equivalent(
        "bert_jax/data/rows.py",
        "width = int(length.max(initial=0)) + 1",
        "width = int(length.max(initial=1)) + 1",
        "it only widens the arrays of an empty batch",
    ),
    Equivalent(
        "bert_jax/data/corpus/parallel.py",
        "longer, shorter = (source, target) if lines[0] > lines[1] else (target, source)",
        "longer, shorter = (source, target) if lines[0] >= lines[1] else (target, source)",
        "the numbers differ",
    ),
    Equivalent(
        "bert_jax/data/corpus/parallel.py",
        'found.append((PairFile("lines", (source, target), languages, languages), lines[0], sum(size)))',
        'found.append((PairFile("lines", (source, target), languages, languages), lines[1], sum(size)))',
        "both files have as many lines",
    ),
    Equivalent(
        "bert_jax/data/corpus/reading.py",
        "begin, blank = -(-start // _PIECE) * _PIECE, -1",
        "begin, blank = -(-start // _PIECE) * _PIECE, -2",
        "either is before every piece",
    ),
    Equivalent(
        "bert_jax/data/corpus/reading.py",
        "begin, blank = -(-start // _PIECE) * _PIECE, -1",
        "begin, blank = -(-start // _PIECE) * _PIECE, 1",
        "either is before every piece",
    ),
    Equivalent(
        "bert_jax/data/corpus/reading.py",
        "blank = -1",
        "blank = -2",
        "either is before every piece",
    ),
    Equivalent(
        "bert_jax/data/corpus/reading.py",
        "blank = -1",
        "blank = 1",
        "either is before every piece",
    ),
    Equivalent(
        "bert_jax/data/corpus/reading.py",
        "elif place >= stop:",
        "elif place > stop:",
        "the reader of the next span owns the text; it only ends earlier",
    ),
    Equivalent(
        "bert_jax/data/corpus/report.py",
        "values = np.random.default_rng(0).integers(0, 2**64, vocabulary_size, dtype=np.uint64)",
        "values = np.random.default_rng(1).integers(0, 2**64, vocabulary_size, dtype=np.uint64)",
        "any seed gives hashes",
    ),
    Equivalent(
        "bert_jax/data/corpus/report.py",
        "values = np.random.default_rng(0).integers(0, 2**64, vocabulary_size, dtype=np.uint64)",
        "values = np.random.default_rng(0).integers(1, 2**64, vocabulary_size, dtype=np.uint64)",
        "any random numbers give hashes",
    ),
    Equivalent(
        "bert_jax/data/corpus/report.py",
        "worse = int(unknown[1] > unknown[0])",
        "worse = int(unknown[1] >= unknown[0])",
        "equal fractions are both too large or both small enough",
    ),
    Equivalent(
        "bert_jax/data/corpus/report.py",
        "worse = int(rates[1] > rates[0])",
        "worse = int(rates[1] >= rates[0])",
        "equal rates give no warning",
    ),
    Equivalent(
        "bert_jax/data/corpus/sources.py",
        'return [Item("own", source.name, "records", len(sizes), max(1.0, sum(sizes)), cuts=_parts(len(sizes)))] if '
        "sizes else []",
        'return [Item("own", source.name, "records", len(sizes), max(2.0, sum(sizes)), cuts=_parts(len(sizes)))] if '
        "sizes else []",
        "it only keeps the weight of empty texts above 0",
    ),
    Equivalent(
        "bert_jax/data/corpus/sources.py",
        'Item("parallel", file.paths[0], "records", count, max(1.0, size), cuts=_parts(count), pairs=file)',
        'Item("parallel", file.paths[0], "records", count, max(2.0, size), cuts=_parts(count), pairs=file)',
        "it only keeps the weight of empty texts above 0",
    ),
    Equivalent(
        "bert_jax/data/corpus/sources.py",
        "weight = max(1.0, found.text_bytes)",
        "weight = max(2.0, found.text_bytes)",
        "it only keeps the weight of empty texts above 0",
    ),
    Equivalent(
        "bert_jax/storage/formats.py",
        'return "UTF-16LE" if first < second else "UTF-16BE"',
        'return "UTF-16LE" if first <= second else "UTF-16BE"',
        "one of them is small and the other large",
    ),
    Equivalent(
        "bert_jax/storage/lock.py",
        'replaced, seen, since = "0", "", 0.0',
        'replaced, seen, since = "0", "", 1.0',
        "it is set when the holder is first seen",
    ),
    Equivalent(
        "bert_jax/storage/mirror.py",
        "self._known[name] = Copy(item.generation, item.size, 0) # the modification time 0 causes another upload",
        "self._known[name] = Copy(item.generation, item.size, 1) # the modification time 0 causes another upload",
        "no file has either time",
    ),
    Equivalent(
        "bert_jax/storage/records.py",
        "for number, (place, line) in enumerate(read_lines(file, -1), 1):",
        "for number, (place, line) in enumerate(read_lines(file, -2), 1):",
        "any negative number means that there is no limit",
    ),
    Equivalent(
        "bert_jax/storage/records.py",
        "if stop is not None and first >= stop:",
        "if stop is not None and first > stop:",
        "it only adds an empty part of one more row group",
    ),
    Equivalent(
        "bert_jax/storage/records.py",
        "if stop is not None and place >= stop:",
        "if stop is not None and place > stop:",
        "it only adds an empty part of one more batch",
    ),
    Equivalent(
        "bert_jax/storage/records.py",
        "each, read = iter(batches), 0",
        "each, read = iter(batches), 1",
        "one more byte counts as read",
    ),
]
"""Mistakes found by `run.py`, each with the reason why no test can detect it."""

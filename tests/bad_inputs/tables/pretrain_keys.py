"""Bad inputs of `pretrain`: the keys of its configuration."""

from __future__ import annotations

from tests.bad_inputs.case import Case, Table

CASES = [
    # ------------------------------------------------------------------------------------------------------------- the keys
    Case(
        "a corpus at the home of nobody",
        "--config.corpus.directory=~no.body/corpus",
        "config.corpus.directory=~no.body/corpus: there is no user 'no.body', so ~ stands for no directory",
    ),
    Case(
        "a teacher in an unknown home",
        "--config.teacher=~/model",
        "config.teacher=~/model: HOME is not set, so ~ stands for no directory; write the path in full",
        environment={"HOME": ""},
    ),
    Case(
        "an unknown key",
        "--config.model.hiden_size=8",
        "--config.model.hiden_size=8: there is no 'hiden_size' in config.model; did you mean 'model.hidden_size'?",
    ),
    Case(
        "a key of another group",
        "--config.training.lr=1",
        "--config.training.lr=1: there is no 'training' in config; did you mean 'phases.0.learning_rate'?",
    ),
    Case(
        "a key given twice",
        "--config.phases.0.steps=10 --config.phases[0].steps=20",
        "--config.phases.0.steps=10 and --config.phases.0.steps=20 contradict each other; give one of them",
    ),
    Case(
        "a group for a key",
        "--config.model=8",
        "--config.model=8: model is a group ... set one of model.activation, model.attention,",
    ),
    Case(
        "a key below a value",
        "--config.seed.x=8",
        "--config.seed.x=8: there is no 'x' in config.seed; config.seed is a single value",
    ),
    Case(
        "a phase that is not there",
        "--config.phases.7.steps=8",
        "--config.phases.7.steps=8: there is no '7' in config.phases; it has 0 to 1",
    ),
    Case(
        "a word for a whole number",
        "--config.phases.0.steps=many",
        "--config.phases.0.steps=many: wanted a whole number, at least 1 and at most 2,147,483,647 (now 14)",
    ),
    Case(
        "a fraction for a whole number",
        "--config.phases.0.steps=1.5",
        "--config.phases.0.steps=1.5: wanted a whole number, at least 1 and at most 2,147,483,647 (now 14)",
    ),
    Case(
        "a word for a number",
        "--config.phases.0.learning_rate=fast",
        "--config.phases.0.learning_rate=fast: wanted a number, at least 0 and at most 1e+30 (now 0.003)",
    ),
    Case(
        "a word for true or false",
        "--config.mesh.zero_sharding=maybe",
        "--config.mesh.zero_sharding=maybe: wanted true or false (now True)",
    ),
    Case(
        "the former name of a key",
        "--config.examples.whole_word=true",
        "did you mean 'examples.masking'?",
    ),
    Case(
        "an unknown kind of masking",
        "--config.examples.masking=words_whole",
        "config.examples.masking='words_whole' is not one of tokens, whole_words, words, spans",
    ),
    Case(
        "pairs for a model whose [CLS] sees no text",
        "--config.model.direction=left_to_right --config.examples.pairs=paper",
        "config.examples.pairs=paper trains [CLS] to judge a pair ... set config.examples.pairs=none",
    ),
    Case(
        "an objective of another direction",
        "--config.objective=next_token",
        "config.objective=next_token does not train a model with direction=both; leave it out, which is bert, or set",
    ),
    Case(
        "a kernel without a left-to-right mask",
        "--config.model.direction=left_to_right --config.model.attention=fused",
        "model.attention='fused' cannot be had: the kernels of fused attention have no left-to-right mask; set model.attention",
    ),
    Case(
        "no phases",
        "--config=mine.py",
        "the experiment has no phases, so nothing to train; give config.phases at least one with its steps",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': []}\n"},
    ),
    Case(
        "phases that are no list",
        "--config=mine.py",
        "config.phases must be a list of phases, not 3",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': 3}\n"},
    ),
    Case(
        "a checkpoint kept after the end",
        "--config.checkpoints.keep_at=[4,25]",
        "config.checkpoints.keep_at has step 25, but the run ends at step 24; name steps of the run",
    ),
    Case(
        "a phase without steps",
        "--config=mine.py",
        "config.phases.0 needs steps",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'phases': [{}]}\n"},
    ),
    Case(
        "a group that is a number",
        "--config=mine.py",
        "config.model must be a group of keys, not 3",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'model': 3}\n"},
    ),
    Case(
        "a number for a word",
        "--config=mine.py",
        "config.init_from=3 must be a str, like the default ''",
        files={"mine.py": "def get_config(): return {'corpus': {'directory': '$corpus'}, 'init_from': 3}\n"},
    ),
    Case(
        "rows longer than the position table",
        "--config.phases.0.length=65",
        "config.phases.0.length=65 is longer than the position table, ... shorten the rows, or raise model.max_position",
    ),
    Case(
        "rows too short for a pair",
        "--config.phases.0.length=4",
        "config.phases.0: length=4 must be at least 5, 3 of them special tokens",
    ),
    Case(
        "word vectors of rows with a single word",
        "--config.model.encoder=static --config.model.num_layers=0 --config.model.scan_unroll=1 --config.examples.pairs=none "
        "--config.phases.0.length=3",
        "config.phases.0.length=3 has room for one token between [CLS] and [SEP], and skip-gram learns from neighbours; "
        "set it to 4 or more",
    ),
    Case(
        "next words of rows without a word",
        "--config.model.direction=left_to_right --config.examples.pairs=none --config.phases.0.length=2",
        "config.phases.0.length=2 must be at least 3 and at most 32,767",
    ),
    Case(
        "a batch that does not divide over the devices",
        "--config.phases.1.batch_size=9",
        "config.phases.1.batch_size=9 does not divide over 8 devices along data x fsdp; nearest: 8 or 16",
        devices=8,
    ),
    Case(
        "a batch that does not divide into microbatches",
        "--config.phases.0.accumulation=3",
        "config.phases.0.batch_size=8 does not divide into 3 microbatches (accumulation)",
    ),
    Case(
        "a mesh larger than the machine",
        "--config.mesh.tensor=3",
        "mesh data=-1 x fsdp=1 x tensor=3 needs a multiple of 3 devices, and there ... set one axis to -1 to use all remaining",
    ),
    Case("a mesh of no devices", "--config.mesh.data=0", "mesh.data=0 must be at least 1, or -1 for all remaining devices"),
    Case(
        "two axes that take what is left",
        "--config.mesh.data=-1 --config.mesh.fsdp=-1",
        "only one of mesh.data, mesh.fsdp and mesh.tensor can be -1",
    ),
    Case(
        "an unknown type of reduction",
        "--config.mesh.reduce_dtype=float8",
        "config.mesh.reduce_dtype='float8' is not one of float32, bfloat16; did you mean 'float32'?",
    ),
    Case(
        "an unknown way across slices",
        "--config.mesh.across_slices=tensor",
        "config.mesh.across_slices='tensor' is not one of auto, data, fsdp",
    ),
    Case(
        "a warmup longer than its phase",
        "--config.phases.0.warmup_steps=15",
        "config.phases.0.warmup_steps=15 must be between 0 and the phase's steps=14",
    ),
    Case(
        "a schedule that continues nothing",
        "--config.phases.0.continue_schedule=true",
        "config.phases.0.continue_schedule: no phase precedes the first one; leave it out there",
    ),
    Case(
        "no steps of the whole run",
        "--config.steps=0",
        "config.steps=0 is fewer than the 2 phases; each needs a step at the least",
    ),
    Case(
        "fewer steps than phases",
        "--config.steps=1",
        "config.steps=1 is fewer than the 2 phases; each needs a step at the least",
    ),
    Case("no steps", "--config.phases.0.steps=0", "config.phases.0.steps=0 must be at least 1"),
    Case("negative steps", "--config.phases.0.steps=-3", "config.phases.0.steps=-3 must be at least 1"),
    Case("a batch of nothing", "--config.phases.0.batch_size=0", "config.phases.0.batch_size=0 must be at least 1"),
    Case("a negative seed", "--config.seed=-1", "config.seed=-1 must be at least 0 and at most 4,294,967,295"),
    Case("a seed too large", "--config.seed=4294967296", "config.seed=4294967296 must be at least 0 and at most 4,294,967,295"),
    Case("a log of no steps", "--config.log_every=0", "config.log_every=0 must be at least 1"),
    Case("no patience for bad steps", "--config.abort_after_skipped=0", "config.abort_after_skipped=0 must be at least 1"),
    Case("an evaluation of no rows", "--config.evaluation.rows=0", "config.evaluation.rows=0 must be at least 1"),
    Case("an evaluation every 0 steps", "--config.evaluation.every=0", "config.evaluation.every=0 must be at least 1"),
    Case(
        "an evaluation batch that does not divide",
        "--config.evaluation.batch_size=9",
        "config.evaluation.batch_size=9 does not divide over 8 devices along data x fsdp; nearest: 8 or 16",
        devices=8,
    ),
    Case("no checkpoints kept", "--config.checkpoints.keep=0", "config.checkpoints.keep=0 must be at least 1"),
    Case(
        "an unknown way to make pairs",
        "--config.examples.pairs=orignal",
        "config.examples.pairs='orignal' is not one of original, paper, none; did you mean 'original'?",
    ),
    Case(
        "nothing masked",
        "--config.examples.masked_fraction=0",
        "config.examples.masked_fraction=0.0 must be above 0 and at most 1",
    ),
    Case(
        "more masked than there is",
        "--config.examples.masked_fraction=1.5",
        "config.examples.masked_fraction=1.5 must be above 0 and at most 1",
    ),
    Case(
        "probabilities above 1",
        "--config.examples.mask_probability=0.95",
        "mask_probability=0.95 and random_probability=0.1 sum to ... the rest of 1 is the share of chosen tokens that are kept",
    ),
    Case(
        "no room for predictions of packed rows",
        "--config.phases.1.max_predictions=5",
        "max_predictions=5 is too small for packed_examples=3 at length=64: one ... set max_predictions=10 or packed_examples=1",
    ),
    Case(
        "more predictions than places",
        "--config.phases.0.max_predictions=40",
        "config.phases.0: max_predictions=40 must be at most 29, the places in 32",
    ),
    Case(
        "no examples in a row",
        "--config.phases.1.packed_examples=0",
        "config.phases.1.packed_examples=0 must be at least 1 and at most 64",
    ),
    Case(
        "a negative count of duplicates",
        "--config.examples.duplicates=-1",
        "config.examples.duplicates=-1 must be at least 0 and at most 10,000",
    ),
    Case(
        "heads that do not divide the width",
        "--config.model.num_heads=3",
        "model.hidden_size=16 does not divide into model.num_heads=3; nearest number of heads that does: 2",
    ),
    Case("a width of nothing", "--config.model.hidden_size=0", "model.hidden_size=0 must be at least 1"),
    Case("no layers", "--config.model.num_layers=0", "model.num_layers=0 must be at least 1"),
    Case(
        "an unknown encoder",
        "--config.model.encoder=lstm",
        "model.encoder='lstm' is not one of transformer, bilm, static",
    ),
    Case(
        "static vectors with layers",
        "--config.model.encoder=static",
        "must be 0: word vectors have no layers (model.encoder=static)",
    ),
    Case(
        "characters that give no table for a tied softmax",
        "--config.model.encoder=bilm --config.model.character_cnn=true",
        "model.character_cnn=True is for model.encoder=bilm with model.tied_decoder=false",
    ),
    Case(
        "halves of an odd width",
        "--config.model.encoder=bilm --config.model.hidden_size=17",
        "model.hidden_size=17 must be even: each direction of model.encoder=bilm has half of it; set 18",
    ),
    Case(
        "a kernel of attention for an LSTM",
        "--config.model.encoder=bilm --config.model.scan_unroll=0 --config.model.attention=fused",
        "model.attention=fused is not for model.encoder=bilm; leave it out (auto)",
    ),
    Case(
        "the objective of another model",
        "--config.model.encoder=bilm --config.examples.pairs=none --config.objective=next_token",
        "does not train a model with encoder=bilm; leave it out, which is bilm, or set config.model.encoder",
    ),
    Case(
        "judging pairs by an LSTM",
        "--config.model.encoder=bilm --config.model.scan_unroll=0 --config.examples.pairs=paper",
        "which model.encoder=bilm does not learn; set config.examples.pairs=none",
    ),
    Case(
        "negatives for BERT",
        "--config.objective_options.negatives=7",
        "--config.objective_options.negatives=7: the objective MlmNsp has no settings; leave it out",
    ),
    Case(
        "the old name of the settings of an objective",
        "--config.skip_gram.negatives=7",
        "config.skip_gram is called config.objective_options now; write --config.objective_options.negatives=7",
    ),
    Case(
        "an unknown activation",
        "--config.model.activation=gelo",
        "model.activation='gelo' is not one of gelu, gelu_tanh, relu; did you mean 'gelu'?",
    ),
    Case(
        "an unknown number type",
        "--config.model.dtype=float17",
        "model.dtype='float17' is not one of float32, bfloat16; did you mean 'bfloat16'?",
    ),
    Case(
        "an unknown attention",
        "--config.model.attention=flash",
        "config.model.attention='flash' is not one of auto, fused, plain",
    ),
    Case(
        "fused attention on a CPU",
        "--config.model.attention=fused",
        "model.attention='fused' cannot be had: fused attention is for TPUs and ... set model.attention to 'plain' or 'auto'",
    ),
    Case(
        "an unknown rematerialisation",
        "--config.model.rematerialisation=some",
        "config.model.rematerialisation='some' is not one of none, dots, full",
    ),
    Case(
        "dropout of everything",
        "--config.model.hidden_dropout=1",
        "config.model.hidden_dropout=1.0 must be at least 0 and below 1",
    ),
    Case(
        "negative dropout",
        "--config.model.attention_dropout=-0.1",
        "config.model.attention_dropout=-0.1 must be at least 0 and below 1",
    ),
    Case(
        "a negative unroll", "--config.model.scan_unroll=-1", "config.model.scan_unroll=-1 must be at least 0 and at most 10,000"
    ),
    Case(
        "an unknown optimizer",
        "--config.optimizer.name=adan",
        "optimizer.name='adan' is not one of bert_adam, adamw, lamb; did you mean 'adamw'?",
    ),
    Case("a decay rate of 1", "--config.optimizer.b2=1", "config.optimizer.b2=1.0 must be at least 0 and below 1"),
    Case(
        "a negative weight decay",
        "--config.optimizer.weight_decay=-0.1",
        "config.optimizer.weight_decay=-0.1 must be at least 0 and at most 1,000",
    ),
    Case(
        "a negative clip norm",
        "--config.optimizer.clip_norm=-1",
        "config.optimizer.clip_norm=-1.0 must be at least 0 and at most 1e+30",
    ),
    Case(
        "another size of vocabulary",
        "--config.model.vocab_size=7",
        "config.model.vocab_size=7, but the vocabulary of the corpus ... or build the corpus with the model's vocabulary",
    ),
    # -------------------------------------------------------------------------------------------------------------- the teacher
    Case(
        "a teacher that is not there",
        "--config.teacher=no_such_model",
        "there is no no_such_model ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a teacher that predicts no words",
        "--config.teacher=$classifier",
        "config.teacher=$classifier has no trained mlm_head, so it predicts no masked words; name a pretrained model with one",
    ),
    Case(
        "a teacher with another vocabulary",
        "--config.teacher=$model",
        "config.teacher=$model has another vocabulary than the corpus ... build the corpus with --vocab=$model",
    ),
    Case(
        "a teacher of masked words for a model that reads from left to right",
        "--config.teacher=$model --config.model.direction=left_to_right --config.examples.pairs=none",
        "config.teacher=$model teaches masked words, which a model with direction=left_to_right and encoder=transformer does "
        "not predict; set direction=both and encoder=transformer, or leave the teacher out",
    ),
    Case(
        "a teacher of masked words for a biLM",
        "--config.teacher=$model --config.model.encoder=bilm --config.examples.pairs=none",
        "config.teacher=$model teaches masked words, which a model with direction=both and encoder=bilm does not predict; set",
    ),
    Case(
        "a distillation without a teacher",
        "--config.distillation.temperature=3",
        "config.distillation has settings but there is no teacher; name one in config.teacher",
    ),
    Case(
        "a teacher without weight",
        "--config.teacher=$model --config.distillation.soft_weight=0",
        "config.teacher=$model has no effect: soft_weight, hidden_weight and attention_weight of config.distillation are 0",
    ),
    Case(
        "attention maps that are not held",
        "--config.teacher=$model --config.distillation.attention_weight=1 --config.model.scan_unroll=1",
        "config.distillation.attention_weight=1.0 compares attention maps ... set these, or attention_weight=0",
    ),
]
TABLE = Table("pretrain", "--config=$experiment --workdir=run", CASES)

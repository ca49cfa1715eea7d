"""Bad inputs of `convert`."""

from __future__ import annotations

import numpy as np

from tests.bad_inputs.case import Case, Spoil, Table
from tests.bad_inputs.damage import cut, extra_tensors, flip, keys, link, not_finite, remove, replace, weight
from tests.bad_inputs.places import modern

DATA = "tf1/model.ckpt-1000.data-00000-of-00001"
LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"


def damaged(name: str, says: str, spoil: Spoil) -> Case:
    """Returns a case in which the command reads a damaged copy of the model."""
    return Case(f"a model {name}", "--from=model", says, copies="model", spoil=spoil)


CASES = [
    damaged(
        "whose epsilon is NaN",
        "model/config.json: layer_norm_eps=nan must be a finite number",
        keys("model/config.json", layer_norm_eps=float("nan")),
    ),
    Case(
        "a model whose weights of PyTorch are a pointer of Git LFS",
        "--from=model",
        "model/pytorch_model.bin is a pointer of Git LFS, not the file itself, not a file of weights; fetch the file (git lfs",
        copies="model",
        files={"model/pytorch_model.bin": LFS},
        spoil=remove("model/model.safetensors"),
    ),
    Case(
        "an unknown type of rotary positions",
        "--from=m --to=n",
        "m/config.json: rope_type='yarn' in rope_parameters.full_attention cannot be represented; only rope_type='default' is",
        files=modern(rope_parameters={"full_attention": {"rope_type": "yarn", "rope_theta": 9.0}}),
    ),
    Case(
        "types of another number of layers",
        "--from=m --to=n",
        "m/config.json: layer_types names 1 layer, but num_hidden_layers=5; correct one of them",
        files=modern(layer_types=["full_attention"]),
    ),
    Case(
        "a layer of an unknown type",
        "--from=m --to=n",
        "m/config.json: layer_types=['chunked', 'chunked' ... must be a list of full_attention and sliding_attention",
        files=modern(layer_types=["chunked"] * 5),
    ),
    Case(
        "a window that sees nothing",
        "--from=m --to=n",
        "m/config.json: ... with model.sliding_radius=0 a token sees no other token; set",
        files=modern(local_attention=1),
    ),
    Case(
        "partly rotated heads",
        "--from=m --to=n",
        "m/config.json: partial_rotary_factor=0.5 in ... only 1.0 is supported",
        files=modern(rope_parameters={"full_attention": {"rope_theta": 9.0, "partial_rotary_factor": 0.5}}),
    ),
    Case(
        "a translator with norms before its layers, for transformers",
        "--from=$pre_norm",
        "transformers' Marian does not support norm_placement=pre, final_norm=True, so this model cannot be written for "
        "transformers; choose --format=bert_jax, which this package can read",
    ),
    Case(
        "a translator with rotary positions, for transformers",
        "--from=$rotary",
        "transformers' Marian does not support positions=rotary, so this model cannot be written for transformers; choose",
    ),
    Case(
        "layers of a translator",
        "--from=$translator --layers=1",
        "$translator has an encoder and a decoder, but only one list of layers can be given; keep all "
        "layers, or train a model with fewer layers",
    ),
    Case(
        "a window for a model without sliding layers",
        "--window=4",
        "--window is for sliding layers, but $model has none; leave the flag out",
    ),
    Case(
        "a base for positions that are not rotary",
        "--rope-theta=9000",
        "--rope-theta is for rotary positions, but $model has positions='learned'; leave the flag out",
    ),
    # ---------------------------------------------------------------------------------------------------- the command line
    Case("nothing to read", says="the following arguments are required: --from", without="--from"),
    Case("nowhere to write", says="the following arguments are required: --to", without="--to"),
    Case("an unknown flag", "--form=tf1", "unknown argument --form=tf1: did you mean '--format'?"),
    Case(
        "words in a bucket",
        "--add-tokens=gs://b/w.txt",
        "--add-tokens=gs://b/w.txt: this flag only accepts a local path; copy the file",
    ),
    Case("a target in a mistyped bucket", "--to=gs:/bucket/m", "--to=gs:/bucket/m: ... did you mean gs://bucket/m?"),
    Case("the home of nobody", "--to=~no.body/m", "--to=~no.body/m: there is no user 'no.body', so ~ cannot be expanded; write"),
    Case("a format that is none", "--format=hugingface", "--format=hugingface is unknown: did you mean 'huggingface'?"),
    Case("a number type that is none", "--dtype=float64", "--dtype=float64 is unknown: did you mean 'float16'?"),
    Case(
        "a dropped part that is none",
        "--drop=nsp",
        "'nsp' cannot be dropped, because it is neither a tensor of $model/model.safetensors nor a part; did you mean",
    ),
    Case(
        "a new part that is none",
        "--new=pooled",
        "a model has no part 'pooled'; did you mean 'pooler'? ... (parts: pooler, mlm_head, nsp_head, softmax, skip_gram_head,",
    ),
    Case("a new head without labels", "--new=sequence_head", "a new sequence_head needs labels; name the labels"),
    Case(
        "two new heads",
        "--new=sequence_head,token_head --labels=a,b",
        "a model has at most one task head, but sequence_head and token_head are requested; choose one",
    ),
    Case("an empty label", "--new=sequence_head --labels=a,,b", "argument --labels: 'a,,b' is not a list such as a,b,c"),
    Case("a label twice", "--new=sequence_head --labels=a,a", "--labels=a,a repeats a label; give every output"),
    Case("labels for spans", "--new=span_head --labels=a", "a span head has no labels, but was given 1; leave them out"),
    Case(
        "labels without a head",
        "--labels=a,b",
        "--labels and --problem need a task head, but the model has none; add one with --new=sequence_head",
    ),
    Case(
        "labels of another number", "--from=$classifier --labels=a,b,c", "the sequence_head needs 2 labels, one for each"
    ),
    Case(
        "a problem that is none",
        "--from=$classifier --problem=guess",
        "--problem=guess is unknown: known: classification, multi_label, regression",
    ),
    Case(
        "a pooler that is still read",
        "--drop=pooler",
        "nsp_head reads the pooler, but the model has none; add --drop=nsp_head or --new=pooler",
    ),
    Case(
        "a step of a run of another command",
        "--from=$run --step=3",
        "--from=$run holds a run of bert_jax ... finetune; name the workdir of a run of pretrain",
    ),
    Case("a step of a model", "--step=3", "$model holds a config.json that was not written by a run (a model directory?)"),
    Case("a step of nothing", "--from=$here/gone --step=3", "--from=$here/gone holds no run; name the workdir of a run"),
    Case(
        "the last checkpoints of nothing",
        "--from=$here/gone --last=5",
        "--from=$here/gone holds no run; name the workdir of a run",
    ),
    Case("no checkpoints", "--last=0", "--last=0 must be at least 1 and at most 2,147,483,647"),
    Case(
        "a step and the last checkpoints",
        "--step=3 --last=2",
        "--step=3 and --last=2 both choose the checkpoints to read; leave one of them out",
    ),
    Case("no positions", "--max-position=0", "--max-position=0 must be at least 1 and at most 1,048,576"),
    Case("negative positions", "--max-position=-3", "--max-position=-3 must be at least 1"),
    Case("no token types", "--token-types=0", "--token-types=0 must be at least 1 and at most 65,536"),
    Case("more layers than there are", "--layers=3", "--layers=3 is too many: the model has 1 layer, and layers cannot be added"),
    Case("layers told twice", "--layers=1 --keep-layers=0", "--layers and --keep-layers are both given; give only one of them"),
    Case("a layer that is not there", "--keep-layers=0,2", "there is no layer 2 to keep; the model has 1 layer, from 0 to 0"),
    Case(
        "a layer that is a digit of another kind",
        "--keep-layers=0,²",
        "argument --keep-layers: '0,²' is not a list of layers such as 0,2,4",
    ),
    Case(
        "a layer of more digits than Python reads",
        f"--keep-layers={'9' * 5000}",
        f"argument --keep-layers: '{'9' * 57}...' is not a list of layers such as 0,2,4",
    ),
    Case("layers that are not numbers", "--keep-layers=a", "argument --keep-layers: 'a' is not a list of layers such as 0,2,4"),
    Case(
        "new positions that are not asked for",
        "--new-positions=random",
        "--new-positions only applies to a larger position table; add --max-position=N, or leave this flag out",
    ),
    Case(
        "new positions of no kind",
        "--max-position=70 --new-positions=randum",
        "--new-positions=randum is unknown: did you mean 'random'?",
    ),
    Case("a length for weights", "--length=8", "--length is for --format=stablehlo, not for huggingface; leave it out"),
    Case(
        "a number type for the original",
        "--format=tf1 --dtype=float16",
        "--dtype is for --format=huggingface, not for tf1; leave it out",
    ),
    *(
        Case(
            f"text vectors for {form}: {flag}",
            f"--format={form} {flag}",
            f"{flag.partition('=')[0]} is for --format=huggingface, not for {form}; leave it out",
        )
        for form, flag in (("tf1", "--pooling=mean"), ("stablehlo", "--normalise"))
    ),
    Case(
        "a function that is none",
        "--format=stablehlo --function=guess",
        "--function=guess is unknown: known: encode, labels, pretraining",
    ),
    Case(
        "a platform that is none",
        "--format=stablehlo --platforms=cpu,abacus",
        "there is no platform 'abacus': known: cpu, cuda, rocm, tpu",
    ),
    Case("lower-cased and cased", "--lowercase --cased", "--lowercase and --cased contradict each other; give one of them"),
    Case("a casing that the vocabulary has not", "--cased", "--cased does not fit the vocabulary $model"),
    Case("a word too many", "50", "unexpected '50': every argument is a flag, --name=value"),
    Case(
        "more positions than anyone has",
        "--max-position=10000000000000",
        "--max-position=10000000000000 must be at least 1 and at most 1,048,576",
    ),
    Case(
        "texts longer than the position table",
        "--format=stablehlo --platforms=cpu --length=65",
        "length=65 must be between 1 and 64, the size of the position table",
    ),
    Case("a seed that is none", "--seed=one", "--seed=one must be a whole number, at least 0 and at most 4,294,967,295"),
    # ------------------------------------------------------------------------------------------------------------- the input
    Case(
        "a model that does not exist",
        "--from=nothing",
        "there is no nothing ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case("an empty model", "--from=", "--from= is empty; give a name, or leave the flag out"),
    *(
        Case(f"an empty name for {flag}", f"{flag}=", f"{flag}= is empty; give a name, or leave the flag out")
        for flag in ("--vocab", "--add-tokens", "--replace-vocab", "--average")
    ),
    Case("a directory that is not a model", "--from=.", ". is not a model directory, because it has no config.json and no"),
    Case(
        "a model whose weights are cut short",
        "--from=model",
        "model/model.safetensors (24,864 bytes) is damaged or incomplete (Error while ... copy or export the model again",
        copies="model",
        spoil=cut("model/model.safetensors", 100),
    ),
    Case(
        "a model whose configuration is damaged",
        "--from=model",
        "model/config.json cannot be read as JSON (Unterminated string starting at: line 24 column ... copy the model again",
        copies="model",
        spoil=cut("model/config.json", 20),
    ),
    damaged(
        "whose weights are missing",
        "model is not a model directory, because it has no model.safetensors; name a directory with these files",
        remove("model/model.safetensors"),
    ),
    damaged(
        "of whole numbers",
        "has integer weights for bert.embeddings.LayerNorm.bias (int8); save the model without quantisation",
        weight("model", lambda x: x.astype(np.int8)),
    ),
    damaged(
        "with a weight of another shape",
        "bert.embeddings.LayerNorm.bias [8] instead of [16]",
        weight("model", lambda x: x[:8].copy()),
    ),
    damaged(
        "with a weight beyond float32",
        "cannot be used because of NaN or infinity in embeddings/layer_norm/bias; use an earlier state",
        weight("model", lambda x: x.astype(np.float64) + 1e300),
    ),
    damaged("with a weight that is NaN", "cannot be used because of NaN or infinity", not_finite("model")),
    damaged("of no list of classes", 'must be a list such as ["BertModel"]', keys("model/config.json", architectures=5)),
    damaged("of a class that is a number", 'must be a list such as ["BertModel"]', keys("model/config.json", architectures=[3])),
    damaged(
        "of an activation that is a list",
        "hidden_act=['gelu'] cannot be represented; known: gelu",
        keys("model/config.json", hidden_act=["gelu"]),
    ),
    damaged(
        "with a number for its untrained parts",
        '"untrained" under "bert_jax" is 5, not a list of parts; export the model again',
        keys("model/config.json", bert_jax={"untrained": 5}),
    ),
    Case(
        "a model with tensors of another class",
        "--from=model",
        "not part of this model: mine.bias, mine.weight, x; to leave them out, use `convert --drop='mine.*,x'`",
        copies="model",
        spoil=(extra_tensors("model", "mine.bias", "mine.weight", "x"), keys("model/config.json", architectures=["MyBert"])),
    ),
    Case(
        "a dropped tensor that is not there",
        "--from=model --drop=mine.weigth",
        "'mine.weigth' cannot be dropped, because it is neither a tensor of model/model.safetensors nor a part; did you mean",
        copies="model",
        spoil=extra_tensors("model", "mine.bias", "mine.weight"),
    ),
    Case(
        "a dropped pattern that matches nothing",
        "--from=model --drop='lora.*'",
        "'lora.*' cannot be dropped, because it is neither a tensor of model/model.safetensors nor a part; the tensors ... "
        "more (parts: pooler, mlm_head, nsp_head,",
        copies="model",
    ),
    Case(
        "a dropped pattern that takes what is needed",
        "--from=model --drop='*.LayerNorm.bias'",
        "model/model.safetensors does not contain the BERT that its config.json describes: missing: bert.embeddings.Layer",
        copies="model",
    ),
    Case(
        "a dropped pattern of a checkpoint that matches nothing",
        "--from=$tf1 --drop='*/lamb_x'",
        "'*/lamb_x' cannot be dropped, because it is neither a tensor of ... model.ckpt-1000 nor a part",
    ),
    Case(
        "weights next to a configuration of the original",
        "--from=old",
        "old has model.safetensors, but no config.json; if bert_config.json describes the model, copy that file: cp "
        "old/bert_config.json",
        copies="old=model",
        files={"old/bert_config.json": "{}"},
        spoil=remove("old/config.json"),
    ),
    Case(
        "more outputs than labels",
        "--from=classifier",
        "classifier/model.safetensors: the classifier has 2 outputs, but config.json has 3 labels; name all 2 labels "
        "with `convert --labels=A,B,...`, or remove the head with `convert --drop=sequence_head`",
        copies="classifier",
        spoil=keys("classifier/config.json", id2label={"0": "a", "1": "b", "2": "c"}, label2id=None),
    ),
    Case(
        "labels of another number than the outputs, and than config.json",
        "--from=classifier --labels=a,b,c,d",
        "the sequence_head needs 2 labels, one for each output, not 4",
        copies="classifier",
        spoil=keys("classifier/config.json", id2label={"0": "a", "1": "b", "2": "c"}, label2id=None),
    ),
    Case(
        "ids of labels in another order",
        "--from=classifier",
        "classifier/config.json: 'good' has the id 1 in label2id, but 0 in id2label; correct one of them, or `convert",
        copies="classifier",
        spoil=keys("classifier/config.json", label2id={"good": 1, "poor": 0}),
    ),
    Case(
        "a problem that is a list",
        "--from=classifier",
        "problem_type=['x'] is unknown; known: single_label_classification",
        copies="classifier",
        spoil=keys("classifier/config.json", problem_type=["x"]),
    ),
    Case(
        "tokens that are not there",
        "--from=nowhere --add-tokens=nowhere.txt",
        "there is no nowhere.txt (looked for in ... give a file with one token per line",
    ),
    Case(
        "tokens of bytes that are not text",
        "--add-tokens=$noise",
        "$noise, line 1: byte 1 of the file (0xcd) is not UTF-8; convert it (iconv -f WINDOWS-1252 -t UTF-8, if",
    ),
    Case(
        "a model of the hub by its old name",
        "--from=bert-base-cased",
        "there is no bert-base-cased ... a workdir, or a model of the hub as google-bert/bert-base-cased",
    ),
    Case(
        "a model with a tokenizer of another class",
        "--from=model",
        'model/tokenizer_config.json: tokenizer_class="BertJapaneseTokenizer" is not supported, because its rules differ',
        copies="model",
        spoil=keys("model/tokenizer_config.json", tokenizer_class="BertJapaneseTokenizer"),
    ),
    Case(
        "a piece that the original's vocabulary cannot hold",
        "--from=model --format=tf1",
        "the original reads its vocabulary from vocab.txt, but this file cannot hold the piece 'a\\n', because the piece "
        "contains a line end, or ... choose another format",
        copies="model",
        spoil=[
            remove("model/vocab.txt"),
            keys("model/config.json", bert_jax={}, layer_norm_eps=1e-12),
            replace("model/tokenizer.json", '"a":', '"a\\n":'),
        ],
    ),
    Case(
        "an added word that is not a special token",
        "--from=model",
        "the added token 'covid' (id 91) is not a special token, so transformers also matches it inside words. ... save the "
        "tokenizer with BertTokenizerFast, ... and add it "
        "as a whole word with convert --add-tokens=FILE",
        copies="model",
        files={"model/added_tokens.json": '{"covid": 91}'},
    ),
    Case(
        "a vocabulary that is not there",
        "--from=nowhere --replace-vocab=nowhere.txt",
        "vocabulary nowhere.txt (looked for in ... does not exist; give a vocab.txt, a spiece.model, a directory with one of "
        "them, or a model of the hub as OWNER/NAME",
    ),
    Case("a vocabulary of noise", "--replace-vocab=$noise", "vocabulary $noise is not UTF-8 at byte 0; convert it with iconv"),
    Case(
        "an empty vocabulary",
        "--replace-vocab=vocab.txt",
        "vocabulary vocab.txt is empty ... copy the model's vocabulary again, or train a new one: python -m",
        files={"vocab.txt": ""},
    ),
    Case(
        "a vocabulary that does not show its casing",
        "--replace-vocab=vocab.txt",
        "vocab.txt is unclear, because 0 of its 1 piece have capitals; give --lowercase or --cased",
        files={"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nparis\n"},
    ),
    Case(
        "word vectors in another encoding",
        "--from=fr.vec",
        "fr.vec: line 2 is not UTF-8 at byte 4; convert it (iconv -f WINDOWS-1252 -t UTF-8, if it is Western European)",
        files={"fr.vec": "1 2\ncafé 1 2\n".encode("latin-1")},
    ),
    Case(
        "word vectors in another encoding in a directory",
        "--from=fr",
        "fr/vectors.txt: line 2 is not UTF-8 at byte 4; convert it (iconv -f WINDOWS-1252 -t UTF-8, if it is Western European)",
        files={"fr/vectors.txt": "1 2\ncafé 1 2\n".encode("latin-1")},
    ),
    Case(
        "word vectors with a number without end",
        "--from=v.vec",
        "v.vec: line 1 must have the word count and the width ... but 11111111111111111111 2 does not fit ... copy",
        files={"v.vec": "1" * 10_000 + " 2\na 1 2\n"},
    ),
    Case(
        "binary word vectors with more than they state",
        "--from=v.bin",
        "v.bin continues after the 1 word that its first line states; copy the whole file again",
        files={"v.bin": b"1 2\na " + bytes(range(8)) + b"\nb " + bytes(range(7))},
    ),
    Case(
        "binary word vectors that are cut short",
        "--from=v.bin",
        "v.bin is damaged or incomplete at word 2 of 2; copy the whole file again",
        files={"v.bin": b"2 2\na " + bytes(range(8)) + b"\nb " + bytes(range(7))},
    ),
    Case(
        "an average of models that differ",
        "--average=$classifier",
        "$model and $classifier cannot be averaged: parts is pooler, mlm_head, nsp_head and ... of the same architecture",
    ),
    Case(
        "an average with a model that does not exist",
        "--average=nowhere",
        "there is no nowhere ... name a directory that holds config.json and model.safetensors, a",
    ),
    Case(
        "a checkpoint of the original that is cut short",
        "--from=tf1",
        "tf1/model.ckpt-1000.data-00000-of-00001 is incomplete: it has 119,488 bytes of at least 119,588; copy",
        copies="tf1",
        spoil=cut(DATA, 100),
    ),
    Case(
        "a checkpoint of the original whose index is cut short",
        "--from=tf1",
        "tf1/model.ckpt-1000.index is not the index of a TensorFlow checkpoint, or is damaged: it does not end ... copy it again",
        copies="tf1",
        spoil=cut("tf1/model.ckpt-1000.index", 10),
    ),
    Case(
        "a checkpoint of the original without its vocabulary",
        "--from=tf1",
        "tf1 holds neither vocab.txt nor spiece.model nor tokenizer.json",
        copies="tf1",
        spoil=remove("tf1/vocab.txt"),
    ),
    Case(
        "a checkpoint of the original without its configuration",
        "--from=tf1/model.ckpt-1000",
        "tf1/bert_config.json is missing; copy the file of the pretrained model there",
        copies="tf1",
        spoil=remove("tf1/bert_config.json"),
    ),
    Case(
        "a checkpoint of the original with another configuration",
        "--from=tf1",
        "tf1/model.ckpt-1000 does not contain the BERT that its bert_config.json describes: not part of this model:",
        copies="tf1",
        spoil=keys("tf1/bert_config.json", num_hidden_layers=1),
    ),
    Case("an activation that is none", "--from=$tf1 --activation=gelo", "--activation=gelo is unknown: did you mean 'gelu'?"),
    Case(
        "an activation for a model that says it itself",
        "--activation=gelu",
        "--activation=gelu is for checkpoints of the original BERT; leave it out for $model",
    ),
    # ------------------------------------------------------------------------------------------------------------ the output
    Case(
        "a place where it reads",
        "--from=model --to=model",
        "--to=model is the directory of the source model; name another directory",
        copies="model",
    ),
    *(
        Case(
            f"a place where it reads, {name}",
            f"--from={source} --to={target} {flags}",
            f"--to={target} is the directory of the source {source}; name another directory",
        )
        for name, source, target, flags in (
            ("in a bucket", "gs://bucket/m", "gs://bucket/m", ""),
            ("the model of a run in a bucket", "gs://bucket/run", "gs://bucket/run/model", "--layers=6"),
            ("a checkpoint in a bucket", "gs://bucket/tf1/model.ckpt-1000", "gs://bucket/tf1", ""),
            ("the model of a run at a step", "$here/run", "$here/run/../run/model", "--step=50000"),
            ("the model of a run, averaged", "$here/run", "$here/run/model", "--last=5"),
        )
    ),
    Case(
        "a foreign directory, before the source is read",
        "--from=nowhere --to=thesis",
        "thesis holds files that bert_jax did not export, so it is not overwritten; name another directory",
        files={"thesis/chapter.tex": "years"},
    ),
    Case(
        "a foreign directory for the original",
        "--from=nowhere --to=thesis --format=tf1",
        "thesis holds files that bert_jax did not export, so it is not overwritten; name another directory",
        files={"thesis/chapter.tex": "years"},
    ),
    Case(
        "a foreign directory for programs",
        "--from=nowhere --to=thesis --format=stablehlo --platforms=cpu",
        "thesis holds files that bert_jax did not export, so it is not overwritten; name another directory",
        files={"thesis/chapter.tex": "years"},
    ),
    *(
        Case(
            f"a foreign directory in the place of an older export, {name}",
            f"--to=shared/m {flags}",
            "shared/.m.replaced is needed as a temporary directory, but it holds files that bert_jax did not write; move it, "
            "or choose a directory other than",
            files={"shared/.m.replaced/thesis.tex": "years"},
        )
        for name, flags in (
            ("no export", ""),
            ("for the original", "--from=$tf1 --format=tf1"),
            ("for programs", "--format=stablehlo --platforms=cpu"),
        )
    ),
    Case("a link that leads to itself", "--to=m", "m is a circular symbolic link; name another directory", spoil=link("m", "m")),
    Case(
        "an export in another format",
        "--from=nowhere --to=old",
        "--to=old holds a model that bert_jax exported in the format tf1, so it is not overwritten in huggingface; name another",
        files={"old/bert_config.json": '{"bert_jax": {}}', "old/vocab.txt": "a"},
    ),
    Case(
        "a place where it reads a checkpoint",
        "--from=tf1/model.ckpt-1000 --to=tf1",
        "--to=tf1 is the directory of the source tf1/model.ckpt-1000; name another directory",
        copies="tf1",
    ),
    Case(
        "a place under a file",
        "--to=file/m",
        "cannot write a model to $here/file/m: Not a directory; choose a writable directory",
        files={"file": ""},
    ),
    Case(
        "a place that is a file",
        "--to=file",
        "file holds files that bert_jax did not export, so it is not overwritten; name another directory",
        files={"file": ""},
    ),
    Case(
        "an epsilon that the original has not",
        "--format=tf1",
        "m: layer_norm_epsilon=1e-06 cannot be represented, because the original always uses 1e-12; choose another format",
    ),
    Case(
        "a head that the original has not",
        "--from=$tagger --format=tf1",
        "m: layer_norm_epsilon=1e-06 cannot be represented, because the original always uses 1e-12; choose another format",
    ),
    Case(
        "a head that the original has not seen trained",
        "--from=$tf1 --drop=nsp_head --new=nsp_head --format=tf1",
        "nsp_head was never trained, but the format tf1 cannot record this; remove it with --drop=nsp_head",
    ),
    Case("a negative seed", "--new=pooler --drop=pooler --seed=-1", "--seed=-1 must be at least 0 and at most 4,294,967,295"),
    Case(
        "a checkpoint of the original with a flipped byte",
        "--from=tf1",
        "tf1/model.ckpt-1000.data-00000-of-00001 is damaged: the checksum of ... copy the checkpoint again",
        copies="tf1",
        spoil=flip(DATA, 40),
    ),
    Case(
        "a left-to-right model in the format of the original",
        "--from=model --format=tf1",
        "the format tf1 supports only direction=both and positions=learned ... left_to_right ... choose another --format",
        copies="model",
        spoil=keys("model/config.json", is_decoder=True),
    ),
    Case(
        "a model with another block in the format of the original",
        "--from=model --format=tf1",
        "the format tf1 supports only norm_placement=post, but the model has norm_placement=pre; choose another --format",
        copies="model",
        spoil=keys("model/config.json", bert_jax={"model": {"norm_placement": "pre"}}),
    ),
    Case(
        "a full disk",
        says="cannot write a model to $here/m: File too large; free space, or choose a writable directory",
        file_size=10_000,
    ),
    # --------------------------------------------------------------------------------------- what is not a model, or not a file
    damaged(
        "whose weights are a pointer of Git LFS",
        "model/model.safetensors is a pointer of Git LFS, not the file itself, not a file of weights; fetch the file (git",
        lambda root: (root / "model" / "model.safetensors").write_text(LFS),
    ),
    *(
        Case(
            f"a model whose {name} is a pointer of Git LFS",
            "--from=model",
            f"model/{name} is a pointer of Git LFS, not the file itself ... ; fetch the file (git lfs pull)",
            copies="model",
            files={f"model/{file}": LFS for file in (name, *more)},
            spoil=[remove(f"model/{file}") for file in gone],
        )
        for name, gone, more in (
            ("config.json", (), ()),
            ("vocab.txt", (), ()),
            ("tokenizer.json", (), ()),
            ("spiece.model", ("vocab.txt", "tokenizer.json", "tokenizer_config.json"), ()),
            ("source.spm", (), ("target.spm", "vocab.json")),
            ("model.safetensors.index.json", ("model.safetensors",), ()),
        )
    ),
    damaged(
        "whose weights are a link to nothing, as after clearing a cache",
        "model/model.safetensors (a link to ../blobs/1, which does not exist) cannot be read; copy or download the model again",
        lambda root: (remove("model/model.safetensors")(root), link("model/model.safetensors", "../blobs/1")(root)),
    ),
    damaged(
        "whose weights have another name",
        "model is not a model directory, because it has no model.safetensors (it has model.fp16.safetensors); name a directory",
        lambda root: (root / "model" / "model.safetensors").rename(root / "model" / "model.fp16.safetensors"),
    ),
    damaged(
        "in parts without their index",
        "it has no model.safetensors.index.json (it has model-00001-of-00002.safetensors); name a directory",
        lambda root: (root / "model" / "model.safetensors").rename(root / "model" / "model-00001-of-00002.safetensors"),
    ),
    damaged(
        "with an index that names no tensor",
        "model/model.safetensors.index.json has no weight_map, which names the file of each tensor; copy the model again",
        lambda root: (root / "model" / "model.safetensors").rename(root / "model" / "model.safetensors.index.json").write_text(
            '{"weight_map": null}'
        ),
    ),
    Case(
        "an adapter",
        "--from=a",
        "a holds an adapter (adapter_config.json), not a whole model; merge the adapter into its model",
        files={"a/adapter_config.json": "{}", "a/adapter_model.safetensors": b"x"},
    ),
    Case(
        "an archive",
        "--from=m.zip",
        "m.zip is a zip archive or an Excel workbook, not a model; unpack it first (unzip), or save ... and name the directory",
        files={"m.zip": b"PK\x03\x04" + bytes(60)},
    ),
    damaged(
        "with added tokens of ids that are no numbers",
        "model: the id of the added token '[E1]' is \"x\", not an integer from 0 to 9,999,999; copy the file again",
        keys("model/tokenizer_config.json", added_tokens_decoder={"x": {"content": "[E1]", "special": True}}),
    ),
    damaged(
        "with an added token of an id of more digits than Python reads",
        "model: the id of the added token '[E1]' is null, not an integer from 0 to 9,999,999; copy the file again",
        keys("model/tokenizer_config.json", added_tokens_decoder={"9" * 5_000: {"content": "[E1]", "special": True}}),
    ),
    damaged(
        "with added tokens without a text",
        "model: the added token {\"id\": 5} has no text; copy the file again",
        keys("model/tokenizer_config.json", added_tokens_decoder={"5": {}}),
    ),
    Case(
        "the current directory as output",
        "--from=nowhere --to=.",
        "--to=. is the current directory or a directory above it, and would be replaced; name another directory",
    ),
    *(
        Case(
            f"word vectors in {encoding}",
            "--from=v.vec",
            f"v.vec is not UTF-8: it starts like {encoding[:6]}; convert it (iconv -f {encoding} -t UTF-8)",
            files={"v.vec": "2 2\na 1 2\nb 3 4\n".encode(encoding)},
        )
        for encoding in ("UTF-16", "UTF-32", "UTF-16LE")
    ),
    Case(
        "word vectors of no word that can be a piece",
        "--from=v.vec",
        "v.vec has no word that can be a piece (2 words with spaces, 0 that are not UTF-8); export the vectors again",
        files={"v.vec": "2 2\na\u00a0b 1 2\nb\u3000c 3 4\n"},
    ),
    Case(
        "tokens in UTF-16",
        "--add-tokens=w.txt",
        "w.txt, line 1: byte 1 of the file (0xff) is not UTF-8: it starts like UTF-16; convert it (iconv -f UTF-16 -t UTF-8)",
        files={"w.txt": "river\n".encode("utf-16")},
    ),
]
TABLE = Table("convert", "--from=$model --to=m", CASES)

"""Every command on every kind of model: it works, or reports in one sentence why it cannot for this kind, and leaves nothing
behind.

TABLE has a row for each command, with the kinds that the command tells apart.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import shlex
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import numpy as np
import pytest
from flax.traverse_util import unflatten_dict

import bert_jax.finetune
import bert_jax.pretrain
from bert_jax.analysis.folder import Folder
from bert_jax.analysis.probe import linear
from bert_jax.data.tokenizers.tokenizer import load_tokenizer
from bert_jax.data.tokenizers.vocabulary_training import train_bpe
from bert_jax.finetuning.job import Job
from bert_jax.finetuning.start import with_own_head
from bert_jax.interop import huggingface
from bert_jax.interop.huggingface import Model, export_model
from bert_jax.interop.names import our_shapes
from bert_jax.interop.tensorflow import export_tf1
from bert_jax.interop.word2vec import export_word2vec
from bert_jax.model.characters import piece_symbols
from bert_jax.model.config import NOMIC_BERT, ModelConfig, modern_block, published
from bert_jax.model.flair import word_starts
from bert_jax.model.heads.choice import ChoiceHead
from bert_jax.model.heads.head import TaskHead
from bert_jax.model.heads.mention import MentionHead
from bert_jax.model.heads.sequence import SequenceHead
from bert_jax.model.heads.span import SpanHead
from bert_jax.model.heads.token import TokenHead
from bert_jax.pretraining.start import pretraining_start
from bert_jax.sharding.rules import ACTIVATION_RULES
from tests.end_to_end import forked
from tests.end_to_end.forked import Done, Surroundings
from tests.end_to_end.runs import write_text
from tests.end_to_end.toy_tasks import pronouns
from tests.interop.tiny import as_model, make_vocabulary

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]

# -------------------------------------------------------------------------------------------------------------------- the kinds
SHAPE = {"hidden_size": 4, "num_layers": 1, "num_heads": 2, "intermediate_size": 4, "max_position": 32}
AB = ("a", "b")
STATIC, CHARACTERS = {"encoder": "static", "num_layers": 0}, {"encoder": "bilm", "character_cnn": True, "tied_decoder": False}
MODERN = {
    **modern_block(3, radius=2), "num_layers": 3, "layer_types": ("full", "sliding", "sliding"), "scan_layers": True,
}  # fmt: skip
"""The first layer, which has no norm before its attention, and a loop over two layers with windows."""
EURO = {
    **{name: value for name, value in published("eurobert-610m").items() if name not in (*SHAPE, "vocab_size")},
    "num_key_value_heads": 1,
}
NOMIC = {name: value for name, value in NOMIC_BERT.items() if name not in (*SHAPE, "vocab_size")}
TRANSLATOR = {name: value for name, value in published("transformer_base").items() if name not in (*SHAPE, "vocab_size")}
TRANSLATOR["decoder_layers"] = 1
KINDS: dict[str, tuple[Sequence[str], TaskHead | None, dict[str, Any]]] = {
    "bert": (("pooler", "mlm_head", "nsp_head"), None, {}),
    "mlm": (("mlm_head",), None, {}),
    "bare": ((), None, {}),
    "class": (("pooler",), SequenceHead(labels=AB), {}),
    "value": (("pooler",), SequenceHead(labels=("value",), problem="regression"), {}),
    "many": (("pooler",), SequenceHead(labels=AB, problem="multi_label"), {}),
    "tag": ((), TokenHead(labels=AB), {}),
    "crf": ((), TokenHead(labels=AB, crf="free"), {}),
    "span": ((), SpanHead(), {}),
    "choice": (("pooler",), ChoiceHead(), {}),
    "gap": ((), MentionHead(labels=("A", "B", "neither")), {}),
    "next": (("mlm_head",), None, {"direction": "left_to_right"}),
    "pool": (("pooler", "mlm_head"), None, {"direction": "left_to_right"}),
    "bilm": (("softmax",), None, {"encoder": "bilm"}),
    "chars": (("softmax",), None, CHARACTERS),
    "lstm": (("softmax",), None, {"encoder": "bilm", "direction": "left_to_right"}),
    "flair": (("softmax",), None, {"encoder": "flair"}),
    "cove": (("decoder", "lm_head"), None, {"encoder": "cove", "decoder_layers": 1}),
    "static": (("skip_gram_head",), None, STATIC),
    "modern": (("mlm_head",), None, MODERN),
    "mclass": (("pooler",), SequenceHead(labels=AB), MODERN),
    "mtag": (("pooler",), TokenHead(labels=AB), MODERN),
    "euro": (("mlm_head",), None, EURO),
    "nomic": (("mlm_head",), None, NOMIC),
    "trans": (("decoder", "lm_head"), None, TRANSLATOR),
}
"""By name: the parts other than embeddings and encoder, the task head, and settings of the model. Kinds with the same settings
are next to each other, since a kind's commands run one after another, and later ones find shapes and programs of earlier ones."""
BYTE_LEVEL = ("modern", "mclass", "mtag", "euro")
"""The kinds with a byte-level vocabulary."""
COLUMNS = (*KINDS, "tf1", "w2v")
"""The last two are "bert" as a checkpoint of the original, and "static" as a file of word vectors."""


def model_of(vocabulary: pathlib.Path, parts: Sequence[str], head: TaskHead | None, fields: dict[str, Any]) -> Model:
    """Returns a model with random weights; its characters and its counts of words come from the vocabulary."""
    tokenizer, rng = load_tokenizer(vocabulary), np.random.default_rng(1)
    config = ModelConfig(**({"vocab_size": tokenizer.size} | SHAPE | fields))
    shapes = our_shapes(config, head)
    values = {path: 0.3 * rng.standard_normal(shape, np.float32) + path.endswith("/scale") for path, shape in shapes.items()}
    known = {"embeddings/characters/symbols": piece_symbols(tokenizer.pieces, tokenizer.size)}
    known["encoder/word_starts"] = word_starts(tokenizer, tokenizer.size)
    known["skip_gram_head/counts"] = np.ones(tokenizer.size, np.float32)
    tree = unflatten_dict(values | {path: table for path, table in known.items() if path in values}, sep="/")
    kept = {"embeddings", "encoder", *parts, *([head.subtree] if head else [])}
    return as_model({part: tree[part] for part in tree if part in kept}, config, vocabulary, head)


# ----------------------------------------------------------------------------------------------------------------- the commands
WORDS = [("the", "DET", 2, "det"), ("river", "NOUN", 3, "nsubj"), ("is", "VERB", 0, "root")]
SENTENCE = "".join(f"{n}\t{w}\t_\t{tag}\t_\t_\t{head}\t{name}\t_\t_\n" for n, (w, tag, head, name) in enumerate(WORDS, 1)) + "\n"
NAMED = "1\tparis\t_\tPROPN\t_\t_\t2\tnsubj\t_\tEntity=(e1-person-1-)\n2\tis\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
FILES = {
    "text.txt": "the river of paris is the capital\nthe capital of france\n",
    "one.conllu": 3 * SENTENCE,
    "two.conllu": 2 * SENTENCE,
    "names.conllu": "".join(f"# newdoc id = d{n}\n# global.Entity = eid-etype-head-other\n{NAMED}{NAMED}" for n in range(4)),
    "words.txt": "[E1]\n",
    "class.jsonl": '{"text": "the river", "label": "a"}\n{"text": "of paris", "label": "b"}\n',
    "tag.jsonl": '{"words": ["the", "river"], "labels": ["a", "b"]}\n',
    "span.jsonl": '{"question": "the", "context": "of paris", "answers": ["paris"]}\n',
    "choice.jsonl": '{"prompt": "the", "choices": ["river", "of"], "label": 0}\n',
    "asked.jsonl": json.dumps({"text": "paris is of france", "pronoun": "of", "a": "paris", "b": "france"}) + "\n",
    "pretrain.py": """def get_config():
    return {"model": {"hidden_size": 4, "num_layers": 1, "num_heads": 2,
            "intermediate_size": 4, "max_position": 32}, "phases": [{"steps": 1, "length": 16, "batch_size": 8,
            "max_predictions": 3, "learning_rate": 1e-3}], "evaluation": {"rows": 8, "batch_size": 8}}
""",
}
OWN = f"finetune --config={REPOSITORY}/experiments/finetune/own_text.py --config.task.length=16 --config.training.batch_size=2"
PRETRAIN = "pretrain --config=pretrain.py --workdir=$OUT --config.corpus.directory=$C"
COMMANDS = {
    "predict fill-mask": "predict fill-mask --model=$M 'the [MASK] of'",
    "predict next-sentence": "predict next-sentence --model=$M 'the\tof paris'",
    "predict score": "predict score --model=$M 'the river'",
    "predict generate": "predict generate --model=$M --tokens=2 'the river'",
    "predict translate": "predict translate --model=$M --max-length=4 'the river'",
    "predict embed": "predict embed --model=$M 'the river'",
    "predict embed --words": "predict embed --model=$M --words 'the river'",
    "predict embed --pooling=cls": "predict embed --model=$M --pooling=cls 'the river'",
    "predict embed --pooling=pooler": "predict embed --model=$M --pooling=pooler 'the river'",
    "predict embed --layers=0,1": "predict embed --model=$M --layers=0,1 'the river'",
    "predict classify": "predict classify --model=$M 'the river'",
    "predict tag": "predict tag --model=$M 'the river'",
    "predict answer": "predict answer --model=$M --length=16 --input=span.jsonl",
    "predict choose": "predict choose --model=$M --input=choice.jsonl",
    "predict resolve": "predict resolve --model=$M --input=asked.jsonl",
    "analyse attention": "analyse attention --model=$M --output=$OUT 'the river'",
    "analyse heads": "analyse heads --model=$M --output=$OUT --input=text.txt",
    "analyse neighbours": "analyse neighbours --model=$M --output=$OUT river",
    "analyse neighbours --input": "analyse neighbours --model=$M --output=$OUT --input=text.txt capital 'the [capital] of'",
    "analyse dependencies": "analyse dependencies --model=$M --output=$OUT --input=one.conllu --replicates=100",
    "analyse coreference": "analyse coreference --model=$M --output=$OUT --input=names.conllu --replicates=100",
    "analyse probe": "analyse probe --model=$M --output=$OUT --input=one.conllu --eval=two.conllu --epochs=1 --seeds=1 "
    "--passes=1 --rank=2",
    "analyse probe --probes=parsers": "analyse probe --model=$M --output=$OUT --input=one.conllu --eval=two.conllu --passes=1 "
    "--probes=parsers",
    "analyse compare": "analyse compare --model=$M --output=$OUT --input=text.txt --control=random-weights",
    "analyse compare layers": "analyse compare --model=$M --output=$OUT --input=text.txt --control=random-weights "
    "--divergence-words=0",
    "analyse vocabulary": "analyse vocabulary --model=$M --output=$OUT",
    "convert": "convert --from=$M --to=$OUT",
    "convert --format=tf1": "convert --from=$M --to=$OUT --format=tf1",
    "convert --format=word2vec": "convert --from=$M --to=$OUT --format=word2vec",
    "convert --format=stablehlo": "convert --from=$M --to=$OUT --format=stablehlo --platforms=cpu --length=8",
    **{
        f"convert --function={function}": f"convert --from=$M --to=$OUT --format=stablehlo --platforms=cpu --length=8 "
        f"--function={function}"
        for function in ("encode", "pretraining", "labels")
    },
    **{
        f"convert --new={part}": f"convert --from=$M --to=$OUT --new={part} {labels}"
        for part, labels in {
            "pooler": "", "mlm_head": "", "nsp_head": "", "softmax": "", "skip_gram_head": "", "sequence_head": "--labels=a,b",
            "token_head": "--labels=a,b", "span_head": "", "choice_head": "", "mention_head": "--labels=a,b,c",
        }.items()
    },
    **{
        f"convert --drop={part}": f"convert --from=$M --to=$OUT --drop={part}"
        for part in ("pooler", "mlm_head", "nsp_head", "softmax", "skip_gram_head", "sequence_head", "token_head")
    },
    **{
        f"convert {flag.split()[-1]}": f"convert --from=$M --to=$OUT {flag}"
        for flag in (
            "--layers=1", "--keep-layers=0", "--max-position=48", "--max-position=48 --new-positions=random", "--token-types=3",
            "--add-tokens=words.txt", "--replace-vocab=vocabulary", "--average=$M", "--dtype=bfloat16", "--labels=x,y",
            "--problem=multi_label", "--activation=relu",
        )
    },
    **{
        f"finetune own/{task}": f"{OWN} --workdir=$OUT --config.init_from=$M --config.task.name=own/{task} "
        f"--config.task.own.train={file}.jsonl --config.task.own.dev={file}-dev.jsonl"
        for task, file in (("sequence", "class"), ("token", "tag"), ("span", "span"), ("choice", "choice"))
    },
    "finetune gap": f"finetune --config={REPOSITORY}/experiments/finetune/gap.py --workdir=$OUT --config.init_from=$M "
    "--config.task.data_dir=pronouns --config.task.length=32",
    "pretrain": f"{PRETRAIN} --config.init_from=$M",
    "pretrain --config.teacher": f"{PRETRAIN} --config.teacher=$M",
}  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- how each ends
WORKS = "+"
ENDINGS = {
    "h": r"has no \w+, so it cannot .*; name a model that can$",
    "d": r"reads both sides of a token, so it cannot generate text; name a model trained with .*left_to_right$",
    "l": r"reads from left to right, so it cannot fill a \[MASK\]; name a model trained with config.model.direction=both$",
    "L": r"is a bilm model, which cannot generate text; name a left-to-right BERT$",
    "s": r"the same vector for a token in every text, so it cannot generate text; name a model trained with .*left_to_right$",
    "c": r"its \[CLS\] sees no text; give --pooling=mean, the mean over the text$",
    "0": r"--layers=1 is outside \[-1, 0\]: the model has 0 layers \(0: embeddings\)$",
    "t": r"(is a TensorFlow checkpoint|holds vectors.txt); convert it first: python -m bert_jax.convert --from=\w+ --to=DIR$",
    "a": r"is a (bilm|flair|cove|static) model, which has no attention .*; name a Transformer(, or .*)?$",
    "w": r"computes word vectors from characters, so it has no table of them; name another model, or compare the words of a text",
    "W": r"computes word vectors from characters; train a model with the new vocabulary instead$",
    "f": r"the format tf1 supports only (BERT, but \w+ is a \w+ model|direction=both and .*); choose another --format$",
    "F": r"the original has no \w+ head; drop the head, or choose another format$",
    "v": r"has layers, but word2vec's format only holds one vector per word; name a static model$",
    "x": r"the function \w+ does not use (skip_gram_head|pooler|decoder, lm_head); confirm with --function=\w+ or --drop=[\w,]+$",
    "i": r"needs the positions of the \w+, but the exported function has no such input; choose the function encode$",
    "e": r"this model has no (task|pretraining) head.*; choose the function encode$",
    "b": r"this model has no pretraining head that predicts tokens; choose the function labels or encode$",
    "B": r"this model has no task head, so it predicts no labels; choose the function pretraining or encode$",
    "k": r"is a [\w -]+ model, which has no \w+; the parts of its pretraining are \w+",
    "p": r"reads the pooler, but .* (has none|has no pooler); add (a pooler with )?(--drop=\w+ or )?--new=pooler(,\w+)?$",
    "P": r"reads the pooler, but \w+ has no pooler; a [\w -]+ model cannot have a pooler; name a BERT that reads both",
    "Q": r"reads the pooler, but the \[CLS\] of \w+ sees no text; a [\w -]+ model cannot use a pooler; name a BERT that reads",
    "o": r"already has a \w+; to replace it with a new head, drop it first$",
    "n": r"(--layers=1 is too many: the model has 0 layers, and layers cannot be added|a static model has no layers to keep .*)$",
    "r": r"(learned positions, but|--token-types=3:) a \w+ model (has none|reads no token types); leave the flag out$|"
    r"for learned positions, but this model has (rotary|sinusoidal_halves) ones; leave the flag out$",
    "u": r"(is not an encoder-decoder|whose decoder only serves to train the encoder), so it cannot translate.*; "
    r"name a model",
    "U": r"is an encoder-decoder, and its encoder reads no \[CLS\]; name an encoder, or use `predict translate` or .*$",
    "E": r"has an encoder and a decoder, .*; keep all layers, or train a model with fewer layers$",
    "m": r"holds documents, but translation needs pairs of a text and its translation; build a corpus of pairs with .*parallel:",
    "T": r"--token-types=3: \S+ has no table of token types; leave the flag out$",
    "j": r"--labels and --problem need a task head, but the model has none; add one with --new=sequence_head or "
    r"--new=token_head$",
    "y": r"the \w+_head needs \d labels?, one for each output, not 2$",
    "Y": r"a \w+ head has no labels",
    "q": r"--problem=multi_label is for a sequence head, not for a \w+ head; leave it out$",
    "A": r"--activation=relu is for checkpoints of the original BERT; leave it out for \w+$",
    "N": r"has no pooler, which a \w+_head reads; to start it from random weights, give --config.init_new=pooler$",
    "C": r"whose \[CLS\] does not represent the text.*; (set config.head.pooling=concat, or |name a Transformer)",
    "g": r"has no \w+( and no \w+)*; to start (it|them) from random weights, give --config.init_new=",
    "z": r"has no trained mlm_head, so it makes no predictions to learn from; use a pretrained model with one, or learn only",
    "Z": r"predicts other words than the student, since it has direction=\w+ and encoder=\w+, but the student has .*; name a",
    "S": r"has no token type for the second text of a pair; set config.examples.pairs=none$",
    "D": r"a choice head reads \[CLS\], but \w+ reads from left to right, so its \[CLS\] sees no text; name a model",
}
"""By letter: a pattern that the error has to match. WORKS is an exit status of 0."""
TABLE = """
predict fill-mask                  | + bert mlm bilm flair modern, h bare static class cove, l next lstm, U trans, t tf1 w2v
predict next-sentence              | + bert, h mlm bare class trans
predict score                      | + bert next chars lstm euro nomic, h bare static class cove, U trans
predict generate                   | + next, d bert bilm trans, s static, L lstm
predict translate                  | + trans, u bert next cove
predict embed                      | + bare static, U trans, t tf1
predict embed --words              | + bert static euro, U trans
predict embed --pooling=cls        | + bert bilm, c next lstm static, U trans
predict embed --pooling=pooler     | + bert mclass, h mlm bilm, c pool static, U trans
predict embed --layers=0,1         | + next bilm chars lstm flair cove modern euro nomic, 0 static, U trans
predict classify                   | + class value many mclass, h bert tag trans
predict tag                        | + tag crf mtag, h bert class
predict answer                     | + span, h bert class
predict choose                     | + choice, h bert class
predict resolve                    | + gap, h bert span
analyse attention                  | + bert next modern euro nomic trans tf1, a bilm static flair cove w2v
analyse heads                      | + bert next modern, a bilm static w2v, U trans
analyse neighbours                 | + bert static modern trans tf1 w2v, w chars flair
analyse neighbours --input         | + bert chars static euro, U trans
analyse dependencies               | + bert modern, a bilm static w2v, U trans
analyse coreference                | + bert, a bilm static, U trans
analyse probe                      | + bert bilm static, U trans
analyse probe --probes=parsers     | + bert, a bilm static, U trans
analyse compare                    | + bert, a bilm static, U trans
analyse compare layers             | + chars static flair, U trans
analyse vocabulary                 | + bert chars static flair modern trans w2v
convert                            | + *
convert --format=tf1               | + bert mlm bare class value many span tf1, f next bilm static modern nomic trans,
                                   | F tag crf choice gap
convert --format=word2vec          | + static w2v, v bert bilm trans
convert --format=stablehlo         | + bert bare next bilm chars class tag span choice modern euro nomic flair tf1,
                                   | x pool static trans cove, i crf gap
convert --function=encode          | + bert static cove trans
convert --function=pretraining     | + pool, e bare static trans, b class
convert --function=labels          | + class, B bert, e bare trans, i crf gap
convert --new=pooler               | + bert bare class modern tf1, k next bilm static trans w2v
convert --new=mlm_head             | + bare next class modern, k bilm static trans w2v
convert --new=nsp_head             | + bert class mclass, p mlm modern, k next bilm trans
convert --new=softmax              | + bilm flair, k bert next static cove trans
convert --new=skip_gram_head       | + static w2v, k bert bilm
convert --new=sequence_head        | + bert class value modern tf1, p mlm euro, P next bilm static trans w2v, Q pool, o tag
convert --new=token_head           | + bert bare chars static tag crf flair trans w2v, o class
convert --new=span_head            | + bert static span trans, o class
convert --new=choice_head          | + bert choice modern, p mlm, P next trans, Q pool, o class
convert --new=mention_head         | + bert gap trans, o span
convert --drop=pooler              | + mlm pool w2v, p bert class mclass tf1
convert --drop=mlm_head            | + bert bare static tf1 w2v
convert --drop=nsp_head            | + bert bare
convert --drop=softmax             | + bert bilm
convert --drop=skip_gram_head      | + bert static
convert --drop=sequence_head       | + bert class many
convert --drop=token_head          | + bert tag mtag
convert --layers=1                 | + bert bilm flair modern, n static w2v, E cove trans
convert --keep-layers=0            | + bert bilm modern, n static, E trans
convert --max-position=48          | + bert bilm static modern nomic trans
convert --new-positions=random     | + bert, r bilm static modern trans
convert --token-types=3            | + bert nomic, r bilm static, T modern trans
convert --add-tokens=words.txt     | + bert bilm static modern trans cove w2v, W chars flair
convert --replace-vocab=vocabulary | + bert bilm static modern trans cove w2v, W chars flair
convert --average=$M               | + bert chars flair class tf1 w2v
convert --dtype=bfloat16           | + bert chars flair static crf
convert --labels=x,y               | + class many tag crf, j bert w2v, y value gap, Y span choice
convert --problem=multi_label      | + class value, j bert w2v, q tag gap
convert --activation=relu          | + tf1, A bert trans w2v
finetune own/sequence              | + bert next lstm class value modern mclass, N mlm tag euro, C bilm static trans cove,
                                   | t tf1 w2v
finetune own/token                 | + bert bilm chars static tag crf flair cove nomic trans, t tf1
finetune own/span                  | + bert static span trans, t tf1
finetune own/choice                | + bert choice, N mlm, D next, C bilm static trans, t tf1
finetune gap                       | + bert gap, t tf1
pretrain                           | + bert next pool bilm chars static flair modern, g mlm bare class nomic, m cove trans,
                                   | t tf1 w2v
pretrain --config.teacher          | + bert mlm nomic, z bare class, Z next bilm trans, S modern, t tf1
"""
"""How each command ends on which kinds: a letter of ENDINGS, and its kinds; * is every kind. A kind is in the row of a command if
the command has a check, a program or a table for it that it does not have for another kind in the row. Each encoder and each
head computes in at least one row, and each refusal of a command is in its row."""


def only_begin() -> None:
    """Ends training before it would compile: the initial weights are made, and the step is traced, once for all kinds that train
    the same program. If another program has traced the gradient of the model, and another that of the head, the forward pass is
    traced. New weights are drawn by numpy. Probes stop after one step, and figures are blank."""
    programs: list[Any] = []
    derived: set[Any] = set()

    def traced(job: Job) -> None:
        with_own_head(job.start, job.config, job.head, job.experiment)
        program, new = job.program, {job.config, type(job.head)} - derived
        if any(program is other for other in programs):
            return
        programs.append(program)
        derived.update(new)
        state, batch, *others = job.arguments(program.state, job.rows(0))
        with nn.logical_axis_rules(ACTIVATION_RULES), jax.set_mesh(job.mesh):
            if new:
                jax.eval_shape(program.train_step, state, batch, *others)
            else:
                jax.eval_shape(program.evaluate, state.params, batch)

    def begun(experiment: Any, run: Any, splits: Any, *rest: Any) -> int:
        if experiment.init_from:
            pretraining_start(experiment, splits.train.vocabulary)
        return 0

    def one_run(experiment: Any, run: Any, train: Any, finish: Any) -> int:
        train(experiment, run.workdir, jax.devices())
        return 0

    def drawn(*parts: Any) -> Any:
        rng = np.random.default_rng(1)
        draw = drawing(*parts)
        return lambda key: jax.tree.map(lambda x: rng.standard_normal(x.shape, np.float32), jax.eval_shape(draw, key))

    drawing, huggingface._drawing = huggingface._drawing, drawn
    linear.ITERATIONS = 1
    bert_jax.finetune.finetune = traced
    bert_jax.finetune.sweep = one_run
    bert_jax.pretrain.pretrain = begun
    Folder.figure = lambda folder, name, figure: folder.write(name, b"")


def begin(base: pathlib.Path) -> None:
    """Writes the models in the process of the commands, which has then traced what it reads them with."""
    only_begin()
    vocabulary = make_vocabulary(base / "vocabulary", cased=False)
    train_bpe([[line] for line in FILES["text.txt"].splitlines()], 300, None, unused=8).save(base / "bytes")
    vocabularies = {kind: base / "bytes" if kind in BYTE_LEVEL else vocabulary for kind in KINDS}
    models = {kind: model_of(vocabularies[kind], *KINDS[kind]) for kind in KINDS}
    for kind, model in models.items():
        export_model(base / kind, model)
    bert = models["bert"]
    export_tf1(base / "tf1", bert.params, bert.config, bert.tokenizer)
    export_word2vec(base / "w2v", models["static"])


def outputs(base: pathlib.Path, command: str, kind: str) -> pathlib.Path:
    return base / "outputs" / str(list(COMMANDS).index(command)) / kind


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, dict[tuple[str, str], Done]]:
    """Returns (the directory of models and outputs, how every command of TABLE ended on the kinds of its row)."""
    base = tmp_path_factory.mktemp("kinds")
    return base, ends_of(base, [(command, kind) for kind in COLUMNS for command, row in rows().items() if kind in row])


def ends_of(base: pathlib.Path, cells: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Done]:
    """Makes the models in the directory `base` and returns how each command of the (command, kind) pairs ended there."""
    for name, content in FILES.items():
        (base / name).write_text(content)
        if name.endswith(".jsonl"):
            (base / name.replace(".", "-dev.")).write_text(content + content)
    write_text(base / "corpus.txt", documents=20)
    (base / "pronouns").mkdir()
    pronouns(base / "pronouns")
    lines = [
        f"corpus --source=text:corpus.txt --vocab={name} --output={name}-corpus --eval-fraction=0.3 --shards=2 --workers=1"
        for name in ("vocabulary", "bytes")
    ]
    for command, kind in cells:
        place = outputs(base, command, kind)
        place.mkdir(parents=True)
        corpus = "bytes-corpus" if kind in BYTE_LEVEL else "vocabulary-corpus"
        lines.append(COMMANDS[command].replace("$M", kind).replace("$OUT", str(place / "out")).replace("$C", corpus))
    words = [shlex.split(line) for line in lines]
    around = Surroundings(directory=base)
    first, second, *done = forked.run(base / "said", *words, prepare=functools.partial(begin, base), around=around, timeout=3_600)
    assert (first.status, second.status) == (0, 0), first.output + second.output
    return dict(zip(cells, done, strict=True))


def letter(end: Done) -> str:
    """Returns the letter in TABLE for how a command ended; if there is none, its message."""
    if end.status == 0:
        return WORKS
    said = [line for line in end.output.splitlines() if line.startswith("error: ")]
    if end.status == 2 and len(said) == 1 and "Traceback" not in end.output:
        return next((letter for letter, reason in ENDINGS.items() if re.search(reason, said[0])), said[0])
    return end.output


def rows() -> dict[str, dict[str, str]]:
    """Returns command -> kind -> letter."""
    found: dict[str, dict[str, str]] = {}
    row: dict[str, str] = {}
    for line in TABLE.strip().splitlines():
        name, _, ends = line.partition(" | ")
        row = found.setdefault(name.strip(), {}) if name.strip() else row  # a line without a name continues the row
        for letter, *kinds in map(str.split, ends.strip(",").split(", ")):
            row |= dict.fromkeys(COLUMNS if kinds == ["*"] else kinds, letter)
    return found


def test_the_table_has_a_row_for_each_command():
    assert list(rows()) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works_on_each_kind_of_model_or_says_why_not(ends, command):
    base, found = ends
    wanted = rows()[command]
    assert {kind: letter(found[command, kind]) for kind in wanted} == wanted
    for kind in wanted:
        left = [path.name for path in outputs(base, command, kind).iterdir()]
        assert left == [] or found[command, kind].status == 0, kind


@pytest.mark.slow  # 1,500 commands: 10 minutes
def test_every_other_command_and_kind_works_or_says_why_not(tmp_path):
    cells = [(command, kind) for kind in COLUMNS for command, row in rows().items() if kind not in row]
    found = ends_of(tmp_path, cells)
    assert {cell: told for cell, end in found.items() if (told := letter(end)) not in (WORKS, *ENDINGS)} == {}
    left = [cell for cell, end in found.items() if end.status and any(outputs(tmp_path, *cell).iterdir())]
    assert left == []


def test_analyses_of_a_windowed_model_report_what_each_head_sees_and_which_relations_fit(ends):
    base, found = ends
    of_heads, of_relations = ("analyse heads", "modern"), ("analyse dependencies", "modern")
    assert "the heads of layers 2, 3 see 2 tokens on each side, 5 in all" in found[of_heads].output
    header, *rows = table(outputs(base, *of_heads) / "out" / "windows.tsv")
    seen = [dict(zip(header, row, strict=True)) for row in rows]
    kinds = MODERN["layer_types"]
    assert [(row["layer"], row["attention"], row["tokens"]) for row in seen] == [
        (str(n), kind, "5" if kind == "sliding" else "all") for n, kind in enumerate(kinds, 1) for _ in range(2)
    ]
    header, *rows = table(outputs(base, *of_relations) / "out" / "dependency_windows.tsv")
    fits = {row["relation"]: row for row in (dict(zip(header, row, strict=True)) for row in rows)}
    assert 0 < int(fits["all"]["within_window"]) <= int(fits["all"]["n"])
    assert "dependents whose heads are within the window: " in found[of_relations].output


def table(path: pathlib.Path) -> list[list[str]]:
    """The lines of a table without its comments."""
    return [line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#")]

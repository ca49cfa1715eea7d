"""A tutorial in one sitting: BERT from raw text to masked words, a classifier, a look at a head, and generated text.

    python experiments/tutorial.py

Hardware: 2 CPU cores, 2 GiB: a laptop. Duration: about 4 minutes, without a download. `tutorial.ipynb` is the same as a notebook
with its output and figures; `python tests/notebook.py experiments/tutorial.py` makes it.
"""

# %% [markdown]
# # BERT from the inside
#
# This tutorial trains a small BERT from nothing and looks at every part on the way:
#
# 1. text → a vocabulary of subwords → token ids
# 2. token ids → vectors: the three embeddings
# 3. one Transformer layer, computed by hand and compared with the model's
# 4. the task of pretraining: masks, 80/10/10
# 5. pretraining, two minutes
# 6. fill-mask: what the model has learned
# 7. fine-tuning a classifier on 500 sentences
# 8. what a head looks at
# 9. a model that reads from left to right, and writes
#
# It takes about four minutes on two CPU cores and downloads nothing: the text is the English documentation that comes with Python
# and its packages. You need to know what a matrix product and a softmax are.
#
# Run the cells from top to bottom. On a machine without the package, such as Colab, first copy the repository there as the folder
# `bert_jax` (clone or upload it), and run this in a cell of its own:
#
#     !pip install --quiet ./bert_jax
#     %cd bert_jax

# %%
import pathlib

from bert_jax import corpus, finetune, pretrain

WORK = pathlib.Path("runs/tutorial")  # everything is written here; remove it to start again
STEPS = 1_000  # of pretraining
LEFT_TO_RIGHT_STEPS = 400
EPOCHS = 6  # of fine-tuning

# %% [markdown]
# Every command of the package is a function too: `corpus.main([...])` does what `python -m bert_jax.corpus ...` does in a
# terminal. If you run the tutorial again, each command finds its finished work in `WORK` and returns at once.
#
# ## 1. Text, subwords, ids
#
# A model reads numbers. `corpus` cleans the text, splits it into sentences, trains a vocabulary of 8,192 **subwords** on it
# (WordPiece), and stores every sentence as a list of ids. It sets 3 % of the documents aside: the model is evaluated on them, and
# never trained on them.

# %%
corpus.main(
    [
        "--source=embedded",  # the documentation of Python and its packages
        "--train-vocab=wordpiece",
        "--vocab-size=8192",
        "--alphabet=1000",
        "--lowercase",
        "--eval-fraction=0.03",
        "--workers=1",
        f"--output={WORK}/corpus",
    ]
)

# %% [markdown]
# A frequent word has an id of its own. A rare word is split into pieces, and `##` marks a piece that continues a word. So 8,192
# pieces cover nearly every word of the text: the report above counts only about 0.01 % as unknown.

# %%
from bert_jax.data.tokenizers.tokenizer import load_tokenizer

tokenizer = load_tokenizer(WORK / "corpus" / "tokenizer")
for text in ["The function returns an array.", "unbelievably multithreaded", "Schrödinger's cat"]:
    ids = tokenizer.encode(text)
    print(text, tokenizer.tokens(ids), ids, sep="\n    ")

# %% [markdown]
# The first five ids are special. `[CLS]` starts a row and `[SEP]` ends a sentence; `[MASK]` hides a word; `[PAD]` fills short
# rows, and `[UNK]` stands for a word that cannot be spelled. The corpus itself is one long array of ids, with the offsets at
# which sentences begin.

# %%
from bert_jax.data.corpus.store import open_corpus

train = open_corpus(WORK / "corpus", "train")
print(f"ids 0 to 4: {tokenizer.pieces[:5]}")
print(f"{train.num_tokens:,} tokens in {train.num_sentences:,} sentences of {train.num_documents:,} documents")
start, end = train.sentence_offsets[100:102]
print(f"sentence 100: {tokenizer.decode(train.tokens[start:end].tolist())}")

# %% [markdown]
# ## 2. Ids to vectors: the three embeddings
#
# BERT reads two sentences at a time, A and B. A row has three numbers for each token: its **id**, its **type** (0 in A, 1 in B)
# and its **position**. (`sequence_ids` distinguishes several examples in one row. Here there is one.)

# %%
import jax
import jax.numpy as jnp

from bert_jax.model.tokens import Tokens

a, b = tokenizer.encode("The function returns an array."), tokenizer.encode("It has two axes.")
ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
tokens = Tokens(
    ids=jnp.array([ids]),
    types=jnp.array([types]),
    positions=jnp.arange(len(ids))[None],
    sequence_ids=jnp.ones((1, len(ids)), int),
)
print(f"{'position':>8} {'type':>5} {'id':>6}  token")
for position, piece in enumerate(tokenizer.tokens(ids)):
    print(f"{position:8} {types[position]:5} {ids[position]:6}  {piece}")

# %% [markdown]
# The model is BERT-Tiny: 2 layers, vectors of 128 numbers, 2 attention heads. Its parameters are a tree of arrays, random at
# first. The axes have letters that are used from here on: B rows, L tokens, D width (128), H heads (2), K width of a head (64), V
# vocabulary, N layers.

# %%
import flax.linen as nn

from bert_jax.model.config import ModelConfig, published
from bert_jax.model.pretraining import initial_parameters

config = ModelConfig(**published("tiny"), vocab_size=tokenizer.size, initializer_range=0.09)
params = nn.unbox(initial_parameters(config, jax.random.key(0)))
for path, array in jax.tree.leaves_with_path(params):
    print(f"{array.shape!s:18} {jax.tree_util.keystr(path, simple=True, separator='/')}")
print(f"{sum(array.size for array in jax.tree.leaves(params)):,} parameters")

# %% [markdown]
# Two thirds of the parameters are one table: a vector for each piece of the vocabulary. The vector of a token is the sum of one
# row from each of three tables, followed by a LayerNorm: it gives every vector mean 0 and variance 1, then scales and shifts it.

# %%
from bert_jax.model.bert import Bert


def layer_norm(x: jax.Array, norm: dict[str, jax.Array]) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    x = x / jnp.sqrt((x**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    return x * norm["scale"] + norm["bias"]


tables = params["embeddings"]
of_words = tables["word_embeddings"]["embedding"][tokens.ids]  # [B, L, D]
of_positions = tables["position_embeddings"]["embedding"][tokens.positions]  # [B, L, D]
of_types = tables["token_type_embeddings"]["embedding"][tokens.types]  # [B, L, D]
x = layer_norm(of_words + of_positions + of_types, tables["layer_norm"])

last, hidden_states = Bert(config).apply({"params": params}, tokens, method="encode")  # the model's own
print(f"hidden states {hidden_states.shape}: the embeddings, then the output of each of 2 layers")
print(f"largest difference from the embeddings by hand: {abs(x - hidden_states[0]).max():.1e}")

# %% [markdown]
# ## 3. One layer by hand
#
# **Attention** lets each token collect information from the others. In every head, a token has three vectors of 64 numbers: a
# *query* (what it looks for), a *key* (what it is found by) and a *value* (what it hands over). The score of a pair of
# tokens is the product of query and key, divided by the square root of 64. A softmax turns the scores of a token into weights
# that sum to 1.

# %%
block = jax.tree.map(lambda stacked: stacked[0], params["encoder"]["layers"])  # the first of two
attention = block["attention"]


def project(x: jax.Array, dense: dict[str, jax.Array]) -> jax.Array:  # [B, L, D] -> [B, L, H, K]
    return jnp.einsum("BLD,DHK->BLHK", x, dense["kernel"]) + dense["bias"]


query, key, value = (project(x, attention[name]) for name in ("query", "key", "value"))
head = 0
scores = query[0, :, head] @ key[0, :, head].T / jnp.sqrt(64)  # [L, L]
weights = jax.nn.softmax(scores, axis=-1)
print(f"query {query.shape}, scores of one head {scores.shape}; the weights of a token sum to {weights[1].sum():.3f}")

# %% [markdown]
# The model computes the same weights.

# %%
from bert_jax.model.bert import attention_weights

own = attention_weights(params, config, tokens)  # for each layer [B, H, L, L]
print(f"largest difference from the model's weights: {abs(weights - own[0][0, head]).max():.1e}")

# %% [markdown]
# The rest of the layer is short. Each head computes the weighted sum of the values; a matrix mixes the heads; the result is
# added to the input and normalised. Then a small network with one hidden layer of 512 numbers works on each token alone, and
# its result is added and normalised too.

# %%
collected = jnp.einsum("BHQL,BLHK->BQHK", own[0], value)  # every head, [B, L, H, K]
mixed = jnp.einsum("BQHK,HKD->BQD", collected, attention["output"]["kernel"]) + attention["output"]["bias"]
middle = layer_norm(x + mixed, block["attention_layer_norm"])  # [B, L, D]

first, second = block["feed_forward"]["intermediate"], block["feed_forward"]["output"]
hidden = jax.nn.gelu(middle @ first["kernel"] + first["bias"], approximate=False)  # [B, L, F]
output = layer_norm(middle + hidden @ second["kernel"] + second["bias"], block["feed_forward_layer_norm"])
print(f"largest difference from the model's layer: {abs(output - hidden_states[1]).max():.1e}")

# %% [markdown]
# That is all of BERT: these layers one after another. What makes it useful is what it is trained on.
#
# ## 4. The task: masks, 80/10/10
#
# In every row 15 % of the tokens are chosen, and the model has to predict them (**masked language modelling**). Of the chosen
# tokens 80 % become `[MASK]`, 10 % a random token, and 10 % stay as they are, so that the model can trust no token blindly. In a
# second task it predicts whether B followed A in the text (**next sentence prediction**).
#
# A batch is a function of the step: `at(7)` is the batch of step 7, today and after a restart.

# %%
from bert_jax.data.batches import BatchSource
from bert_jax.data.config import ExampleConfig

source = BatchSource(train, ExampleConfig(length=32, max_predictions=5), batch_size=128, seed=0)
batch = source.at(0)
for name, array in batch.items():
    print(f"{name:17} {array.dtype} {array.shape}")

# %% [markdown]
# `masked_positions` has the positions of the chosen tokens in each row, and `masked_targets` the original tokens (-1: none).
# Here are four rows. Angle brackets mark the chosen tokens: what the model reads → what it has to predict.

# %%
for row in range(4):
    pieces = tokenizer.tokens(batch["input_ids"][row][batch["sequence_ids"][row] > 0])
    for position, target in zip(batch["masked_positions"][row], batch["masked_targets"][row], strict=True):
        if target >= 0:
            pieces[position] = f"<{pieces[position]} → {tokenizer.pieces[target]}>"
    print(" ".join(pieces), "| B follows A" if batch["nsp_labels"][row, 0] == 0 else "| B is random")

# %% [markdown]
# Counted over 50 batches, the three kinds have the proportions that the paper specifies.

# %%
import numpy as np

kinds = np.zeros(3)
for step in range(50):
    batch = source.at(step)
    chosen, target = np.take_along_axis(batch["input_ids"], batch["masked_positions"], axis=1), batch["masked_targets"]
    is_mask, is_kept = chosen == tokenizer.mask_id, chosen == target
    kinds += [(part & (target >= 0)).sum() for part in (is_mask, ~is_mask & ~is_kept, is_kept)]
print("[MASK] {:.1%}   random {:.1%}   kept {:.1%}".format(*kinds / kinds.sum()))

# %% [markdown]
# ## 5. Pretraining
#
# Now the whole model is trained: 1,000 steps of 128 rows, about two minutes. The experiment file holds the settings, and
# `--config.KEY=VALUE` changes one of them. Watch the *MLM accuracy* on the held-out documents. The number in parentheses is the
# accuracy of always answering the most frequent word: only the difference between the two comes from reading.

# %%
pretrain.main(
    [
        "--config=experiments/pretrain/quickstart.py",
        f"--workdir={WORK}/pretrain",
        f"--config.corpus.directory={WORK}/corpus",
        f"--config.steps={STEPS}",
        f"--config.evaluation.every={STEPS // 5}",
        f"--config.checkpoints.every={STEPS // 5}",
        f"--config.log_every={STEPS // 10}",
    ]
)

# %% [markdown]
# The workdir holds the numbers of the run (`metrics.jsonl`, one JSON object per line), a figure of them, checkpoints to continue
# from, and the trained model.

# %%
import json

import matplotlib.pyplot as plt

records = [json.loads(line) for line in (WORK / "pretrain" / "metrics.jsonl").read_text().splitlines()]


def curve(name: str) -> tuple[list[int], list[float]]:
    return [r["step"] for r in records if name in r], [r[name] for r in records if name in r]


figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
axes.plot(*curve("train/mlm_accuracy"), color="#9db7d9", label="rows that it is trained on")
axes.plot(*curve("eval/mlm_accuracy"), "o-", color="#1f4e9c", label="documents that it has never seen")
axes.axhline(curve("eval/unigram_accuracy")[1][-1], color="#c4622d", linestyle="--", label="the most frequent word")
axes.set(xlabel="step", ylabel="accuracy", title="masked words that are guessed right", ylim=(0, None))
axes.legend(frameon=False)
figure.savefig(WORK / "pretraining.png")

# %% [markdown]
# ## 6. Fill-mask
#
# The trained model guesses a masked word from the words on both sides. It knows the language of documentation and nothing else
# about the world.

# %%
from bert_jax.prediction.predictor import Predictor

predictor = Predictor.load(WORK / "pretrain")
texts = [
    "The function returns a [MASK] of strings.",
    "If the [MASK] is not found, an error is raised.",
    "The default [MASK] is None.",
    "Return the largest [MASK] of the array.",
]
for filled in predictor.fill_mask(texts, top_k=4):
    guesses = ", ".join(f"{guess.token} {guess.probability:.0%}" for guess in filled.masks[0])
    print(f"{filled.text}\n    {guesses}")

# %% [markdown]
# ## 7. Fine-tuning on 500 sentences
#
# The model is now trained for one task, with labels: **does a sentence document NumPy or Matplotlib?** The sentences are
# read from the installed packages, 500 to train on and 300 to evaluate on, from different files. Half of them are of each
# library, so a guess is right half of the time.

# %%
import csv
import random

import matplotlib

from bert_jax.data.corpus.embedded.prose import module_prose

random.seed(0)
sentences = {"train": [], "dev": []}
for library in (np, matplotlib):
    files = sorted(pathlib.Path(library.__file__).parent.rglob("*.py"))
    for split, own, size in (("train", files[::2], 250), ("dev", files[1::2], 150)):
        found = {text for file in own for text in module_prose(file) if 8 <= len(text.split()) <= 22}
        sentences[split] += [(text, library.__name__) for text in random.sample(sorted(found), size)]

for split, rows in sentences.items():
    with (WORK / f"{split}.csv").open("w", newline="") as table:
        csv.writer(table).writerows([("text", "label"), *rows])
for text, label in random.sample(sentences["train"], 6):
    print(f"{label:11} {text}")

# %% [markdown]
# `finetune` puts a new layer on the vector of `[CLS]`, which stands for the whole row, and trains it together with the rest of
# the model. An epoch of 16 steps reads all 500 sentences once.

# %%
finetune.main(
    [
        "--config=experiments/finetune/own_text.py",
        f"--workdir={WORK}/classifier",
        f"--config.init_from={WORK}/pretrain",
        f"--config.task.own.train={WORK}/train.csv",
        f"--config.task.own.dev={WORK}/dev.csv",
        "--config.task.length=32",
        "--config.training.learning_rate=3e-4",
        f"--config.training.epochs={EPOCHS}",
    ]
)

# %%
results = json.loads((WORK / "classifier" / "results.json").read_text())
print(f"one answer for all  {results['baseline']['dev']['accuracy']:.1%}")
print(f"the classifier      {results['scores']['dev']['accuracy']:.1%}")

classifier = Predictor.load(WORK / "classifier")
texts = [
    "The color of the line that is drawn around each bar.",
    "The number of decimals to use when rounding the elements.",
    "Set the labels of the ticks on the axis.",
    "The data type of the returned array.",
]
for text, answer in zip(texts, classifier.classify(texts), strict=True):
    print(f"{answer['label']:11} {answer['probability']:.0%}  {text}")

# %% [markdown]
# The model is kept as it was after its best epoch, so the score is the highest accuracy in the log. The probability of an
# answer shows how sure the classifier is: near 50 %, it is guessing.
#
# How reliable is that score? With 300 sentences it varies by a few points from one run to the next. For a claim, train several
# seeds (`--config.sweep.seeds=[0,1,2,3,4]`). And what did pretraining add? Compare with `--config.init_random=true`, the same
# model from random weights. On this task, random weights score nearly as well after fine-tuning, since single words, such as
# "color", give the answer away. BERT gains most on tasks where words must be understood together, and after days of pretraining
# instead of minutes.
#
# ## 8. What a head looks at
#
# `Analyser` reads the attention weights of the trained model. First, over a few hundred sentences: how much of its attention does
# each head give to the token itself, to its neighbours, and to the special tokens? Heads are named LAYER-HEAD, from 1.

# %%
from bert_jax.analysis.analyser import Analyser

analyser = Analyser.load(WORK / "pretrain")
statistics = analyser.heads(text for text, _ in sentences["dev"]).statistics  # [statistic, layer, head]
names = ("previous", "self", "next", "cls", "sep", "punctuation")
print(f"{'head':6}", *(f"{name:>11}" for name in names))
for layer in (1, 2):
    for head in (1, 2):
        shares = [float(statistics.sel(statistic=name, layer=layer, head=head).values) for name in names]
        print(f"{layer}-{head:<4}", *(f"{share:11.0%}" for share in shares))

# %% [markdown]
# One head has learned to attend to the next word, although no label asks for it. Here is the head that attends most to the
# neighbours of a word, on a pair of sentences: lines from each word to the words that it attends to, and the same weights as a
# map.

# %%
from bert_jax.analysis.attention.figures import head_figure

neighbours = statistics.sel(statistic="previous").values + statistics.sel(statistic="next").values  # [layer, head]
layer, head = (int(place) + 1 for place in np.unravel_index(neighbours.argmax(), neighbours.shape))
weights_of_words = analyser.attention("The function returns a copy of the array.", "The copy has the same shape.")
figure = head_figure(weights_of_words, layer, head)
figure.savefig(WORK / "head.png", bbox_inches="tight")
figure

# %% [markdown]
# `python -m bert_jax.analyse attention` makes a page of all heads that you can click through.
#
# ## 9. From left to right
#
# A model that guesses masks reads both sides, so it cannot write. If each token sees only the tokens before it and predicts the
# next one, the same layers are a language model like GPT. Nothing is masked, and a row is one text.

# %%
pretrain.main(
    [
        "--config=experiments/pretrain/quickstart.py",
        f"--workdir={WORK}/left_to_right",
        f"--config.corpus.directory={WORK}/corpus",
        "--config.model.direction=left_to_right",
        "--config.examples.pairs=none",
        "--config.phases.0.batch_size=32",
        "--config.phases.0.max_predictions=31",  # every token but the first
        f"--config.steps={LEFT_TO_RIGHT_STEPS}",
        f"--config.evaluation.every={LEFT_TO_RIGHT_STEPS}",
        f"--config.checkpoints.every={LEFT_TO_RIGHT_STEPS}",
        "--config.evaluation.rows=256",
        f"--config.log_every={LEFT_TO_RIGHT_STEPS // 5}",
    ]
)

# %% [markdown]
# The model writes one token at a time. If the most probable token is always taken, the text repeats itself. If each token is
# drawn at random from the 20 most probable tokens, the text has some grammar but no sense. That is what a minute of training
# buys.

# %%
writer = Predictor.load(WORK / "left_to_right")
prompts = ["The function", "If the array", "Return a", "This method"]
for title, options in [("most probable", {}), ("drawn", {"temperature": 0.6, "top_k": 20})]:
    print(title)
    for answer in writer.generate(prompts, tokens=25, **options):
        print("   ", answer["continued"])

# %% [markdown]
# ## Where to go from here
#
# - More text, a larger model: the same commands. `README.md` names them, and `experiments/README.md` lists the experiments.
# - Your own text: `--source='text:books/*.txt'` instead of `--source=embedded`. Your own labels: a `train.csv` as above.
# - A new objective, optimizer, schedule or kind of positions needs one file of your own: see `experiments/extensions`.
# - The trained models are Hugging Face directories: `transformers` loads `runs/tutorial/pretrain/model` as it is.

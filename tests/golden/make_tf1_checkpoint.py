"""Makes `tf1/`: checkpoints written by TensorFlow itself; and checks that TensorFlow reads the checkpoints that we write.

    PYTHON_WITH_TENSORFLOW tests/golden/make_tf1_checkpoint.py                 # writes tf1/
    PYTHON_WITH_TENSORFLOW tests/golden/make_tf1_checkpoint.py --check DIR     # compares a re-export of tf1/bert with it

The re-export is ours, without TensorFlow:

    from bert_jax.interop.tensorflow import export_tf1, import_tf1
    export_tf1("DIR", *import_tf1("tests/golden/tf1/bert")[:3])

- `bert/`: the directory of a run of the original's `run_pretraining.py`: `model.ckpt-1000` with the slots of its optimizer and
  the step, the file `checkpoint`, `bert_config.json`, `vocab.txt`. `expected.npz` has the variables (in float16, which is exact
  for them) under the names and in the layout of the original's `modeling.py`. A slot m is a quarter of its variable, v its
  square. `outputs.npz` has the results of the original's formulas for one text, by TensorFlow in float64 with the erf GELU.
- `assorted.*`: every type we read, a scalar, an empty tensor, non-ASCII and many similar names, in two shards.
- `partitioned.*`: one variable in two slices, and a whole one.
- `text.*`: a tensor of strings, which every TensorFlow 2 checkpoint has.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import string

import numpy as np
import tensorflow as tf

OUTPUT = pathlib.Path(__file__).parent / "tf1"
WIDTH, HEADS, LAYERS, FEED_FORWARD, POSITIONS, TYPES = 24, 3, 2, 16, 12, 2
STEP = 1000
TEXT = [2, 57, 58, 59, 57, 61, 3, 60, 7, 35, 65, 3]  # ids, of which the last five are segment B
SEGMENTS = [0] * 7 + [1] * 5
PIECES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *string.ascii_lowercase,
    *(f"##{letter}" for letter in string.ascii_lowercase),
    *("the", "capital", "of", "is", "paris", "france", "river", "é", ".", ","),
]
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "directionality": "bidi",
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": WIDTH,
    "initializer_range": 0.02,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "pooler_fc_size": WIDTH,
    "pooler_type": "first_token_transform",
    "type_vocab_size": TYPES,
    "vocab_size": len(PIECES),
}


def variable_shapes() -> dict[str, tuple[int, ...]]:
    """Returns name -> shape of the variables of the original's `BertModel` with both pretraining heads; kernels are [in, out]."""
    norm = {"LayerNorm/gamma": (WIDTH,), "LayerNorm/beta": (WIDTH,)}
    square = {"kernel": (WIDTH, WIDTH), "bias": (WIDTH,)}
    layer = {f"attention/self/{which}/{name}": s for which in ("query", "key", "value") for name, s in square.items()}
    layer |= {f"attention/output/dense/{name}": s for name, s in square.items()}
    layer |= {f"attention/output/{name}": s for name, s in norm.items()}
    layer |= {"intermediate/dense/kernel": (WIDTH, FEED_FORWARD), "intermediate/dense/bias": (FEED_FORWARD,)}
    layer |= {"output/dense/kernel": (FEED_FORWARD, WIDTH), "output/dense/bias": (WIDTH,)}
    layer |= {f"output/{name}": s for name, s in norm.items()}
    shapes: dict[str, tuple[int, ...]] = {
        "bert/embeddings/word_embeddings": (len(PIECES), WIDTH),
        "bert/embeddings/position_embeddings": (POSITIONS, WIDTH),
        "bert/embeddings/token_type_embeddings": (TYPES, WIDTH),
    }
    shapes |= {f"bert/embeddings/{name}": s for name, s in norm.items()}
    shapes |= {f"bert/encoder/layer_{n}/{name}": s for n in range(LAYERS) for name, s in layer.items()}
    shapes |= {f"bert/pooler/dense/{name}": s for name, s in square.items()}
    shapes |= {f"cls/predictions/transform/dense/{name}": s for name, s in square.items()}
    shapes |= {f"cls/predictions/transform/{name}": s for name, s in norm.items()}
    shapes |= {"cls/predictions/output_bias": (len(PIECES),)}
    shapes |= {"cls/seq_relationship/output_weights": (2, WIDTH), "cls/seq_relationship/output_bias": (2,)}
    return shapes


def make_values() -> dict[str, np.ndarray]:
    """Returns multiples of 2^-10 below 2: they are exact in float16, and so are their squares in float32."""
    rng = np.random.default_rng(3)
    values = {name: np.clip(0.4 * rng.standard_normal(s), -1.99, 1.99) for name, s in variable_shapes().items()}
    return {name: (np.round(x * 1024) / 1024).astype(np.float32) for name, x in values.items()}


def outputs(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns {"mlm_logits" [L, V], "nsp_logits" [2]} of TEXT, as `modeling.py` and `run_pretraining.py` compute them."""
    weights = {name: tf.constant(x, tf.float64) for name, x in values.items()}

    def dense(x: tf.Tensor, name: str) -> tf.Tensor:
        return tf.matmul(x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]

    def norm(x: tf.Tensor, name: str) -> tf.Tensor:
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, weights[f"{name}/beta"], weights[f"{name}/gamma"], 1e-12)

    def gelu(x: tf.Tensor) -> tf.Tensor:
        return x * 0.5 * (1.0 + tf.math.erf(x / np.sqrt(2.0)))

    words = weights["bert/embeddings/word_embeddings"]
    x = tf.gather(words, TEXT) + tf.gather(weights["bert/embeddings/token_type_embeddings"], SEGMENTS)
    x = norm(x + weights["bert/embeddings/position_embeddings"][: len(TEXT)], "bert/embeddings/LayerNorm")
    for n in range(LAYERS):
        layer = f"bert/encoder/layer_{n}"
        split = [dense(x, f"{layer}/attention/self/{which}") for which in ("query", "key", "value")]
        query, key, value = (tf.transpose(tf.reshape(part, [len(TEXT), HEADS, -1]), [1, 0, 2]) for part in split)
        probabilities = tf.nn.softmax(tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH // HEADS))
        context = tf.reshape(tf.transpose(tf.matmul(probabilities, value), [1, 0, 2]), [len(TEXT), WIDTH])
        x = norm(dense(context, f"{layer}/attention/output/dense") + x, f"{layer}/attention/output/LayerNorm")
        inner = gelu(dense(x, f"{layer}/intermediate/dense"))
        x = norm(dense(inner, f"{layer}/output/dense") + x, f"{layer}/output/LayerNorm")
    pooled = tf.tanh(dense(x[:1], "bert/pooler/dense"))
    nsp = tf.matmul(pooled, weights["cls/seq_relationship/output_weights"], transpose_b=True)
    transformed = norm(gelu(dense(x, "cls/predictions/transform/dense")), "cls/predictions/transform/LayerNorm")
    mlm = tf.matmul(transformed, words, transpose_b=True) + weights["cls/predictions/output_bias"]
    return {"mlm_logits": mlm.numpy(), "nsp_logits": (nsp + weights["cls/seq_relationship/output_bias"])[0].numpy()}


def slots(name: str, value: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the two moments under the names of the original's `AdamWeightDecayOptimizer`."""
    return {f"{name}/adam_m": value / 4, f"{name}/adam_v": value * value}


def write_bert(directory: pathlib.Path) -> None:
    values = make_values()
    everything = dict(values)
    for name, value in values.items():
        everything |= slots(name, value)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, value in everything.items():
            tf.compat.v1.get_variable(name, initializer=value)
        step = tf.compat.v1.train.get_or_create_global_step()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(step.assign(STEP))
        saver = tf.compat.v1.train.Saver(save_relative_paths=True)  # `checkpoint` without the path of this machine
        saver.save(session, str(directory / "model.ckpt"), global_step=STEP, write_meta_graph=False)
    (directory / "bert_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES), encoding="utf-8")
    np.savez_compressed(directory / "expected.npz", **{name: x.astype(np.float16) for name, x in values.items()})
    np.savez_compressed(directory / "outputs.npz", ids=TEXT, segments=SEGMENTS, **outputs(values))


def assorted() -> dict[str, np.ndarray]:
    bfloat16 = tf.bfloat16.as_numpy_dtype
    tensors = {
        "float32": np.float32([[1.5, -0.0], [np.inf, np.nan]]),
        "float16": np.float16([0.1, 65504]),
        "bfloat16": np.array([1.0, -3.0, 1e30]).astype(bfloat16),
        "float64": np.float64([[[np.pi]]]),
        "int32": np.int32([[-(2**31), 2**31 - 1]]),
        "int64": np.int64([-(2**63), 2**63 - 1]),
        "scalar": np.int64(7),
        "empty": np.zeros((0, 3), np.float32),
        "größe/ж": np.float32([1]),
    }
    return tensors | {f"many/names/that/begin/alike_{n}": np.float32([n, -n]) for n in range(40)}


def write_assorted(prefix: pathlib.Path) -> None:
    tensors = assorted()
    names = sorted(tensors)
    parts = [f"{prefix}.part-{n}" for n in range(2)]
    for n, part in enumerate(parts):
        mine = names[n::2]
        values = [tf.constant(tensors[name]) for name in mine]
        tf.raw_ops.SaveV2(prefix=part, tensor_names=mine, shape_and_slices=[""] * len(mine), tensors=values)
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=False)
    plain = {name: x.astype(np.float32) if x.dtype.name == "bfloat16" else x for name, x in tensors.items()}
    np.savez_compressed(f"{prefix}.npz", **{name.replace("/", "|"): x for name, x in plain.items()})


def write_partitioned(prefix: pathlib.Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["rows", "rows", "whole"],
        shape_and_slices=["4 2 0,2:-", "4 2 2,2:-", ""],
        tensors=[tf.constant(rows[:2]), tf.constant(rows[2:]), tf.constant(rows)],
    )


def write_text(prefix: pathlib.Path) -> None:
    tf.raw_ops.SaveV2(
        prefix=str(prefix),
        tensor_names=["_CHECKPOINTABLE_OBJECT_GRAPH", "number"],
        shape_and_slices=["", ""],
        tensors=[tf.constant(b"graph"), tf.constant(2.0)],
    )


def check(directory: pathlib.Path) -> None:
    """Checks that TensorFlow's reader and its Saver load `directory`/bert_model.ckpt with exactly the values of `make_values`."""
    prefix = str(directory / "bert_model.ckpt")
    values = make_values()
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_variable_to_shape_map() == {name: list(x.shape) for name, x in values.items()}
    for name, value in values.items():
        np.testing.assert_array_equal(reader.get_tensor(name).view(np.uint32), value.view(np.uint32), err_msg=name)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {name: tf.compat.v1.get_variable(name, x.shape, tf.float32) for name, x in values.items()}
        tf.compat.v1.train.Saver().restore(session, prefix)
        for name, value in session.run(variables).items():
            np.testing.assert_array_equal(value.view(np.uint32), values[name].view(np.uint32), err_msg=name)
    print(f"TensorFlow {tf.__version__} read {len(values)} tensors from {prefix}, all equal bit for bit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", type=pathlib.Path, metavar="DIR")
    directory = parser.parse_args().check
    if directory is not None:
        check(directory)
        return
    (OUTPUT / "bert").mkdir(parents=True, exist_ok=True)
    write_bert(OUTPUT / "bert")
    write_assorted(OUTPUT / "assorted")
    write_partitioned(OUTPUT / "partitioned")
    write_text(OUTPUT / "text")


if __name__ == "__main__":
    main()

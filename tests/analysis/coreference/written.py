"""Small documents with coreference, and a model whose heads attend to known words."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from bert_jax.interop.huggingface import Model
from tests.interop.tiny import as_model, make_model

FIELDS = "# global.Entity = GRP-etype-minspan\n"


def conllu(*sentences: str, name: str = "d", heads: bool = True) -> str:
    """Returns a document as CoNLL-U: each word is FORM/UPOS/HEAD or FORM/UPOS/HEAD/ENTITY."""
    text = f"# newdoc id = {name}\n{FIELDS}"
    for sentence in sentences:
        for i, word in enumerate(sentence.split(), 1):
            form, upos, head, *entity = word.split("/", 3)
            misc = f"Entity={entity[0]}" if entity else "_"
            head = head if heads else "_"
            text += f"{i}\t{form}\t{form.lower()}\t{upos}\t_\t_\t{head}\tdep\t_\t{misc}\n"
        text += "\n"
    return text


PARIS = conllu(
    "Paris/PROPN/2/(1-place-1) saw/VERB/0 the/DET/4/(2-place-2 river/NOUN/2/2) ./PUNCT/2",
    "It/PRON/2/(1-place-1) saw/VERB/0 France/PROPN/2/(3-place-1) ./PUNCT/2",
    "The/DET/2/(2-place-2 river/NOUN/5 of/ADP/4 France/PROPN/2/(3-place-1)2) is/VERB/0 its/PRON/7/(4-abstract-2(1-place-1) "
    "capital/NOUN/5/4) ./PUNCT/5",
)
"""A document with 4 mentions that have an antecedent: 2 pronouns ("It", "its"), one common noun ("The river of France"), one
name."""


def write(directory: pathlib.Path, text: str, name: str = "x.conllu") -> str:
    """Writes a file. Returns its path."""
    path = directory / name
    path.write_text(text)
    return str(path)


def conll2012(*sentences: Sequence[str], name: str = "(bc/x); part 000") -> str:
    """Returns a document as CoNLL-2012: each word is "FORM TAG PARSE NAMED COREFERENCE"."""
    text = f"#begin document {name}\n"
    for sentence in sentences:
        for i, word in enumerate(sentence):
            form, tag, parse, named, coreference = word.split()
            text += f"bc/x  0  {i}  {form}  {tag}  {parse}  -  -  -  speaker  {named}  *  {coreference}\n"
        text += "\n"
    return text + "#end document\n"


PARTS = """#begin document (nw/made/00/made_0001); part 000
nw/made/00/made_0001   0   0      Mary   NNP   (TOP(S(NP(NP*     -    -   -   Speaker#1   (PERSON)   (ARG0*   (1|(0
nw/made/00/made_0001   0   1        's   POS              *)     -    -   -   Speaker#1          *        *      0)
nw/made/00/made_0001   0   2   brother    NN              *)     -    -   -   Speaker#1          *        *)     1)
nw/made/00/made_0001   0   3    bought   VBD            (VP*   buy   01   1   Speaker#1          *      (V*)      -
nw/made/00/made_0001   0   4     bread    NN          (NP*))     -    -   -   Speaker#1          *   (ARG1*)    (2)
nw/made/00/made_0001   0   5         .     .             *))     -    -   -   Speaker#1          *        *       -

nw/made/00/made_0001   0   0     He   PRP   (TOP(S(NP*)      -    -   -   Speaker#1   *   (ARG0*)   *      (1)
nw/made/00/made_0001   0   1   gave   VBD          (VP*   give   01   1   Speaker#1   *      (V*)   *        -
nw/made/00/made_0001   0   2    her   PRP         (NP*)      -    -   -   Speaker#1   *   (ARG2*)   *      (0)
nw/made/00/made_0001   0   3   half    NN      (NP(NP*)      -    -   -   Speaker#1   *    (ARG1*   *       (3
nw/made/00/made_0001   0   4     of    IN          (PP*      -    -   -   Speaker#1   *         *   *        -
nw/made/00/made_0001   0   5     it   PRP      (NP*))))      -    -   -   Speaker#1   *         *)  *   (2)|3)
nw/made/00/made_0001   0   6      .     .           *))      -    -   -   Speaker#1   *         *   *        -

#end document
#begin document (nw/made/00/made_0001); part 001
nw/made/00/made_0001   1   0       Ada   NNP   (TOP(S(NP(NP*)   -   -   -   -   (PERSON)   (0|(0)
nw/made/00/made_0001   1   1   herself   PRP          (NP*))    -   -   -   -          *       0)
nw/made/00/made_0001   1   2      left   VBD           (VP*)    -   -   -   -          *        -
nw/made/00/made_0001   1   3         .     .             *))    -   -   -   -          *        -

nw/made/00/made_0001   1   0   Oh   UH   (TOP(INTJ*))   -   -   -   -   (0)

#end document
"""
"""Two parts of a text as in the files of CoNLL-2012. They have a varying number of predicate columns; nested mentions, also of
the same entity; mentions of one word; several mentions that start and end at one word; and entities that are numbered anew in
each part. The last sentence lacks a column."""


def looking_model(vocabulary: pathlib.Path, looks: Mapping[str, str]) -> Model:
    """Returns a model with one layer of two heads: for each pair (a, b) in `looks`, head 1-2 attends from piece a to piece b;
    head 1-1 attends uniformly."""
    width = 40
    params, config = make_model(vocabulary, hidden_size=2 * width, num_heads=2, num_layers=1, intermediate_size=4)
    params = jax.tree.map(np.zeros_like, params)
    layers, embeddings = params["encoder"]["layers"], params["embeddings"]
    for norm in (embeddings["layer_norm"], layers["attention_layer_norm"], layers["feed_forward_layer_norm"]):
        norm["scale"][:] = 1
    model = as_model(params, config, vocabulary)
    pieces = {piece: i for i, piece in enumerate(dict.fromkeys([*looks, *looks.values()]))}
    for piece, i in pieces.items():
        embeddings["word_embeddings"]["embedding"][model.tokenizer.encode(piece), i] = 1
    query, key = layers["attention"]["query"]["kernel"], layers["attention"]["key"]["kernel"]  # [N, D, H, K]
    for a, b in looks.items():
        query[0, pieces[a], 1, pieces[b]] = 10
        key[0, pieces[b], 1, pieces[b]] = 1
    return model

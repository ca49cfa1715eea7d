"""Measures the attention, the heads and the vocabulary of a model, as tables, pictures and arrays.

In: a Model, and texts. Out: arrays with named axes, TSV tables, figures, the files of a directory.

    named.py          NamedArray: an array whose axes have names
    words.py          texts -> words with their pieces, in windows of the position table's length
    treebank.py       CoNLL-U -> sentences: words, parts of speech, heads, relations
    maps.py           compiled: the attention of every layer and head, between pieces and between words
    divergence.py     Jensen-Shannon divergences between heads, their dendrogram and their coordinates in the plane
    behaviour.py      statistics of the attention of every head over any number of texts
    bootstrap.py      intervals from a bootstrap over sentences, in one pass
    controls.py       random weights, shuffled words, permuted heads
    dependency_hits.py  compiled: how often every head finds the head of a dependent
    dependencies.py   the heads that find each relation of a treebank, chosen on some sentences and measured on others
    clark.py          the published table of Clark et al., and its relations in Universal Dependencies
    dependency_figures.py  the tables and the picture of `dependencies`
    attention.py      the weights of every head for one text
    page.py           the weights of one text -> a page for the browser, from page.html
    folder.py         the directory of --output
    attention_figures.py  the pictures of `attention`
    head_figures.py   the tables and pictures of `heads`
    vocabulary.py     the pieces of a vocabulary by kind, script and length; the parameters of the model by part
    vocabulary_figures.py  the tables and pictures of `vocabulary`
    pieces.py         the pieces nearest to a word by their input embeddings
    neighbours.py     words in context: the nearest words of a text, the occurrences of a word, the cosine of any two words
    senses.py         the occurrences of a word as points in the plane and as clusters
    neighbour_figures.py  the tables and pictures of `neighbours`
    coreference/      the heads that find antecedents
    probing/          probes of the vectors and the attention of words: labels, trees, heads
    aligned.py        the same words for two models, each in its own pieces
    cka.py            centred kernel alignment of layers, from sums over words
    masked.py         the predictions of two models for the same masked words
    comparison.py     where two models differ: heads, layers, predictions
    comparison_figures.py  the tables and pictures of `compare`
    analyser.py       Analyser: the same from Python
    verbs/            the verbs of the command line
"""

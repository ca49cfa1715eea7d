"""Predictions of a trained model for texts.

In: texts, pairs or records, and a Model. Out: labels, tags, spans, filled masks, embeddings, in the order of the input.

    commands.py     the commands of `predict`: their flags, and where their questions are defined
    streams.py      opens the input: arguments, files, pipes, standard input
    fields.py       lines, JSON and tables -> records with the fields of a question
    questions.py    texts -> tokenised items; reports bad texts and continues
    packing.py      items -> packed batches of few shapes
    forwards.py     the jitted forward passes
    engine.py       Engine: runs items through a compiled function on all devices
    language.py     fill-mask, next-sentence, score
    decoding.py     generates tokens one at a time or by beam search, with a left-to-right model or an encoder-decoder
    generation.py   generate
    translating.py  translate, by an encoder-decoder; BLEU and chrF
    labelling.py    classify, tag, answer, choose
    pronouns.py     resolve
    embedding.py    embed
    answers.py      records in groups -> answers; Writer: lines or a file, VectorWriter: one .npy file
    predictor.py    Predictor: the Python API
"""

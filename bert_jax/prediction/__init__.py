"""Texts to answers: what a trained model predicts.

In: texts, pairs or records, and a Model. Out: labels, tags, spans, filled masks, embeddings, in the order of the input.

    streams.py     records from arguments, files or standard input
    questions.py   texts -> items, and how a bad text fails alone
    packing.py     items -> packed batches of few shapes
    forwards.py    the compiled functions
    engine.py      Engine: runs items through a compiled function on all devices
    language.py    fill-mask, next-sentence, score
    labels.py      classify, tag, answer, choose
    mentions.py    resolve
    embedding.py   embed
    vectors.py     embeddings -> one .npy file
    answers.py     answers -> lines or a file
    output.py      the file of the answers: whole or not there, and never the input
    predictor.py   Predictor: the same from Python
"""

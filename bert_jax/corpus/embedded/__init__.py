"""The embedded corpus: English prose that every Python installation holds. tfds takes a data set's name from the folder of its
builder, so the builder has a folder of its own.

In: reference texts and docstrings. Out: the tfds data set `embedded`, one document a module or topic.

    prose.py                      reference texts and docstrings -> paragraphs of prose
    embedded_dataset_builder.py   the tfds builder
"""

"""The embedded corpus: English prose from the documentation in every Python installation. It needs its own folder because tfds
names a data set after its builder's folder.

In: reference texts and docstrings. Out: the tfds data set `embedded`, one document per module or topic.

    prose.py                      reference texts and docstrings -> paragraphs of prose
    embedded_dataset_builder.py   the tfds builder
"""

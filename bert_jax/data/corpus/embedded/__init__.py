"""The embedded corpus: English prose from the documentation in every Python installation. A folder of its own, because tfds names
a data set after the folder of its builder.

In: reference texts and docstrings. Out: the tfds data set `embedded`, one document a module or topic.

    prose.py                      reference texts and docstrings -> paragraphs of prose
    embedded_dataset_builder.py   the tfds builder
"""

"""The embedded corpus is English prose from the documentation in every Python installation. The builder needs its own folder,
because tfds names a data set after the folder of the builder.

In: reference texts and docstrings. Out: the tfds data set `embedded`, one document per module or topic.

    prose.py                      reference texts and docstrings -> paragraphs of prose
    embedded_dataset_builder.py   the tfds builder
"""

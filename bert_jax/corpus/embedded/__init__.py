"""The embedded corpus: English prose that every installation already has. `embedded_dataset_builder` is its tfds builder,
`prose` its text.

tfds takes a data set's name from the folder its builder is in, so the builder has a folder of its own.
"""

"""Local disks and Google Cloud Storage buckets: the only folder that interprets paths. No jax.

In: a path, local or `gs://BUCKET/PATH`. Out: local files and directories; copies in the bucket of those that belong there.

    paths.py      which text is a path in a bucket, and which a mistake; the cache directory
    objects.py    objects in a bucket: lists, reads, writes; errors of the storage in one sentence
    fetching.py   local copies of inputs in a bucket, kept for the next start, with a record of their generations
    mirror.py     a local directory that is uploaded to one in a bucket
    lock.py       the lock of a directory in a bucket, which a dead process does not hold for long
    formats.py    the format of a file by its first bytes; opens compressed files
    records.py    files of text, tables, Parquet and Arrow -> lines and rows, in bounded memory
    checks.py     whether a local or mounted directory can do what a run needs
"""

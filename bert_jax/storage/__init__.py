"""Local disks and Google Cloud Storage buckets. The only folder that interprets paths; does not import jax.

In: a path, local or `gs://BUCKET/PATH`. Out: local files and directories; files written for a bucket are uploaded to it.

    paths.py      recognises paths in a bucket and mistakes; the cache directory
    objects.py    objects in a bucket: lists, reads, writes; errors of the storage in one sentence
    fetching.py   local copies of inputs in a bucket, kept for the next start, with a record of their generations
    mirror.py     a local directory that is uploaded to one in a bucket
    lock.py       the lock of a directory in a bucket, which expires if its process dies
    formats.py    recognises file formats; reads and writes compressed files
    records.py    files of text, tables, Parquet and Arrow -> lines and rows, in bounded memory
    checks.py     checks that a directory supports the operations of a run
"""

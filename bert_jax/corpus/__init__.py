"""Raw text -> tokenised documents: `python -m bert_jax.corpus`. No jax in this folder.

Read in the order the text flows: `sources` (what is read, and how it is cut into shards; data sets through `records`,
`catalogue` and `embedded`), `layouts` and `reading` (bytes become documents), `cleaning` and `sentences` (a document becomes
sentences), `tokenizer` with `wordpiece` and `unigram` (sentences become ids; `training` makes a new vocabulary), `shard` (one
worker writes one shard), `build` and `workers` (all shards, over processes and hosts), `survey` and `report` (what the
finished corpus looks like), `store` (how the rest of the project reads it), `integrity` and `verification` (whether it is what
was written). `files` is below all of them; `hub` finds the vocabulary that a person means.
"""

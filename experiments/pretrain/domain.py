r"""Continues a model on the text of a domain, and adds the domain's most frequent words to the vocabulary.

    tpu_scripts/run.sh corpus --source='text:papers/*.txt' --vocab=MODEL --output=runs/domain_before
    tpu_scripts/run.sh analyse vocabulary --model=MODEL --corpus=runs/domain_before --new-words=500 --output=runs/domain_words
    tpu_scripts/run.sh convert --from=MODEL --to=runs/domain_start --add-tokens=runs/domain_words/words.txt
    tpu_scripts/run.sh corpus --source='text:papers/*.txt' --vocab=runs/domain_start --output=runs/domain_corpus
    tpu_scripts/run.sh pretrain --config=experiments/pretrain/domain.py --workdir=runs/domain --config.init_from=runs/domain_start

`words.txt` has the words that the vocabulary splits into subwords. The embedding of a new word starts as the mean of the
embeddings of its old subwords, so training starts close to the old model. Whole words are masked. Each evaluation reports the
perplexity per word, which can be compared between vocabularies; the perplexity per subword cannot. The evaluation at step 0 is
the model before training. To train without new words: `--config.init_from=MODEL --config.corpus.directory=runs/domain_before`.

Hardware: 2 CPU cores, 2 GiB for a small model; a TPU for BERT-Base. Duration: 4 minutes of one core for 2 layers of width 128.
Expected: on the domain, a lower perplexity per word than before training, and fewer subwords per word."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        {
            "init_from": "runs/domain_start",
            "corpus": {"directory": "runs/domain_corpus"},
            "examples": {"masking": "words", "pairs": "none"},
            "optimizer": {"name": "bert_adam", "b2": 0.98},
            "phases": [
                {
                    "steps": 1_000,
                    "length": 64,
                    "batch_size": 64,
                    "max_predictions": 14,
                    "learning_rate": 3e-4,
                    "warmup_steps": 50,
                }
            ],
            "evaluation": {"every": 250, "rows": 1_024, "batch_size": 128},
            "checkpoints": {"every": 250},
            "log_every": 50,
        }
    )

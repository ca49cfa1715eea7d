"""Our parameters and those of others: Hugging Face directories, TensorFlow 1 checkpoints, StableHLO, and model surgery.

In: a model directory, a checkpoint, a hub name. Out: a Model in memory, and the same formats written.

    locate.py               what MODEL means: a directory, a workdir, a name on the hub
    huggingface_config.py   config.json <-> ModelConfig and TaskHead
    names.py                parameter tree <-> tensor names of Hugging Face's BERT
    weights.py              the tensors of a directory: safetensors or PyTorch's format
    directory.py            a model directory appears whole or not at all
    huggingface.py          Model; import_model and export_model
    sorted_table.py         LevelDB's table, which holds the index of a TensorFlow checkpoint
    tensor_bundle.py        TensorFlow's checkpoint format
    tensorflow.py           the original's checkpoints
    stablehlo.py            a forward pass with its weights in one file
    surgery.py              more positions, fewer layers, other vocabularies, averages
    conversion.py           the steps of `convert`: read, change, write, each with lines that describe it
"""

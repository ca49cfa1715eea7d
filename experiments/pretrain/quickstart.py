"""x"""
from ml_collections import ConfigDict
def get_config():
    return ConfigDict({"corpus":{"directory":"runs/embedded_corpus"},"model":{"num_layers":2,"hidden_size":128,"num_heads":2,"intermediate_size":512,"vocab_size":8192},
     "phases":[{"steps":300,"length":128,"batch_size":64,"max_predictions":20,"learning_rate":1e-3,"warmup_steps":50}],
     "evaluation":{"every":100,"rows":256,"batch_size":64},"checkpoints":{"every":100},"log_every":20})

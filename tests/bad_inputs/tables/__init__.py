"""The bad inputs of each verb. A new one is a line in the table of its verb."""

from __future__ import annotations

from tests.bad_inputs.tables import (
    analyse,
    aot,
    convert,
    corpus,
    doctor,
    finetune,
    finetune_data,
    finetune_keys,
    predict,
    predict_models,
    pretrain,
    pretrain_keys,
    study,
    submission,
    texts,
)

TABLES = [
    module.TABLE
    for module in (
        corpus,
        pretrain,
        pretrain_keys,
        finetune,
        finetune_data,
        finetune_keys,
        study,
        predict,
        predict_models,
        analyse,
        convert,
        aot,
        doctor,
        submission,
        texts,
    )
]

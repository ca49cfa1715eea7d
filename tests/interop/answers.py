"""Returns our model's outputs under transformers' names, for the tests that compare the two."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from bert_jax.data import INPUTS
from bert_jax.interop.huggingface import Model
from bert_jax.model.heads.bert_with_head import BertWithHead
from bert_jax.model.pretraining import BertForPreTraining
from bert_jax.model.tokens import Tokens
from bert_jax.objectives.model import Model as Encoder


def our_outputs(model: Model, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the outputs of PyTorch's class for this model, with transformers' names and shapes."""
    rows, length = batch["input_ids"].shape
    columns = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    first = np.zeros((rows, 1), np.int32)
    inputs = (batch["input_ids"], batch["token_type_ids"], columns, batch["attention_mask"])
    row = dict(zip(INPUTS, inputs, strict=True)) | {"cls_positions": first}
    if model.is_electra:
        net = Encoder(model.config)
        read = jax.jit(lambda params, head: net.replaced_logits(head, net.encode(params, row)))
        return {"logits": read(model.params, model.discriminator)}
    if model.head:
        module = BertWithHead(model.config, model.head)
        logits = jax.jit(lambda params: module.apply({"params": params}, row)["logits"])(model.params)
        match model.head.kind:
            case "span":
                return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
            case "choice":
                return {"logits": logits.reshape(1, rows)}
            case "sequence":
                return {"logits": logits[:, 0]}
        return {"logits": logits}

    def outputs(module: BertForPreTraining) -> dict[str, Any]:
        last, _ = module.encode(Tokens.of(row))
        pooled = module.pool(last, first) if "pooler" in model.params else None
        result = {}
        if "mlm_head" in model.params:
            result["prediction_logits"] = module.masked_logits(last, columns)[..., : model.config.vocab_size]
        if "nsp_head" in model.params:
            assert pooled is not None
            result["seq_relationship_logits"] = module.nsp_head(pooled)[:, 0]
        if result:
            return result if len(result) == 2 else {"logits": next(iter(result.values()))}
        return {"last_hidden_state": last} | ({} if pooled is None else {"pooler_output": pooled[:, 0]})

    apply = BertForPreTraining(model.config).apply
    return jax.jit(lambda params: apply({"params": params}, method=outputs))(model.params)

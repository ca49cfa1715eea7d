"""Makes `attention_golden.npz`: the attention weights of transformers' PyTorch BERT for the model and batch of `bert_golden.npz`.

    PYTHON_WITH_TORCH_AND_TRANSFORMERS tests/golden/make_attention_golden.py

`attentions` [N, B, H, L, L] is the result of `output_attentions=True`, computed in float64 and rounded once to float32. The
script prints how far PyTorch's own float32 is from it. `tests/model/test_attention_weights.py` compares ours with it.
"""

from __future__ import annotations

import pathlib

import make_bert_golden as bert
import numpy as np
import torch
import transformers

OUTPUT = pathlib.Path(__file__).parent / "attention_golden.npz"


def attentions(dtype: torch.dtype) -> np.ndarray:
    """Returns the weights of all layers in the model's own precision."""
    model, batch = bert.make_model("gelu", dtype), bert.make_batch()
    inputs = {name: torch.from_numpy(batch[name]) for name in ("input_ids", "attention_mask", "token_type_ids")}
    with torch.no_grad():
        outputs = model.bert(**inputs, output_attentions=True)
    return torch.stack(outputs.attentions).numpy()


def main() -> None:
    reference, single = attentions(torch.float64), attentions(torch.float32)
    print(f"{list(reference.shape)}; PyTorch's float32 is off by {np.abs(reference - single).max():.1e}")
    made_with = f"torch {torch.__version__}, transformers {transformers.__version__}"
    np.savez_compressed(OUTPUT, attentions=reference.astype(np.float32), made_with=np.array(made_with))
    print(f"{OUTPUT.name}: {OUTPUT.stat().st_size / 1000:.0f} kB, {made_with}")


if __name__ == "__main__":
    main()

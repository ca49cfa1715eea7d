"""The tasks and phases that the shipped studies share."""

from __future__ import annotations

import pytest

from bert_jax.studies.phases import every_token, modern_masks, modern_recipe
from bert_jax.studies.tasks import SMALL, TINY, paper_tasks, small_tasks


def test_arms_that_predict_every_token_have_a_target_for_each_token_but_the_first():
    assert every_token((128, 512)) == {"0": {"max_predictions": 127}, "1": {"max_predictions": 511}}
    assert every_token((32, 64), 1e-3) == {
        "0": {"max_predictions": 31, "steps": 28_000, "batch_size": 32, "warmup_steps": 800, "learning_rate": 1e-3},
        "1": {"max_predictions": 63, "learning_rate": 1e-3},
    }
    assert every_token((128, 512), accumulation=2)["1"] == {"max_predictions": 511, "accumulation": 2}


def test_modernberts_recipe_masks_30_percent_and_decays_in_the_last_fifth_of_the_last_phase():
    assert modern_masks(128) == {"masked_fraction": 0.3, "max_predictions": 38}
    assert modern_masks(512, packed=8) == {"masked_fraction": 0.3, "max_predictions": 153 + 4}  # each example rounds its own
    first, last = {"steps": 7, "length": 64}, {"steps": 40, "length": 128, "packed_examples": 2}
    found = modern_recipe([first, {**last, "warmup_steps": 5, "continue_schedule": True, "learning_rate": 0.1}])
    masks = {"masked_fraction": 0.3, "max_predictions": 39}
    assert found.pop("phases") == [
        {**first, "masked_fraction": 0.3, "max_predictions": 19},
        {**last, **masks, "steps": 32, "warmup_steps": 5, "continue_schedule": True, "learning_rate": 0.1},
        {**last, **masks, "steps": 8, "learning_rate": 0.1, "schedule": "1-sqrt"},
    ]
    optimizer = {"name": "stable_adamw", "b1": 0.9, "b2": 0.98, "epsilon": 1e-6, "weight_decay": 1e-5, "decouple_rate": True}
    optimizer |= {"clip_norm": 0.0, "schedule": "constant"}
    assert found == {"examples": {"pairs": "none"}, "optimizer": optimizer}
    assert [phase["steps"] for phase in modern_recipe([{"steps": 4, "length": 64}])["phases"]] == [3, 1]


def test_small_models_are_fine_tuned_with_a_large_learning_rate_and_keep_their_last_weights():
    training = {"learning_rate": 2e-4, "batch_size": 32, "epochs": 4, "schedule": "linear"}
    own = {"optimizer": {"name": "adamw"}, "selection": {"select": "last"}, "task": {"length": 64}}
    assert own | {"training": training} == SMALL
    assert own | {"training": training | {"learning_rate": 1e-3}} == TINY


def test_tasks_are_selected_by_name_and_conll_2003_only_if_it_is_named():
    small = {task["name"]: task.get("finetune") for task in small_tasks()}
    assert small == {
        "stsb": {"task": {"length": 96}}, "sick": None, "wnut17": None,
        "pos": {"task": {"train_rows": 4_000}, "training": {"epochs": 3}},
    }  # fmt: skip
    assert [task["name"] for task in small_tasks("pos", "stsb")] == ["pos", "stsb"]
    assert [task["name"] for task in paper_tasks()] == ["mnli", "qnli", "mrpc", "sst2", "squad"]
    assert [task["name"] for task in paper_tasks("ner")] == ["ner"]
    with pytest.raises(KeyError):
        small_tasks("mnli")

"""Configurations stored in workdirs are read even if keys have been added since."""

from __future__ import annotations

from bert_jax.configs.files import with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment

STORED = {"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2}, "fingerprint": "5e0c"}


def test_a_stored_configuration_has_the_defaults_of_younger_keys():
    completed = with_defaults(PretrainingExperiment, STORED, beside="fingerprint")
    asked = PretrainingExperiment.from_dict({"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2}})
    assert completed == asked.to_dict() | {"fingerprint": "5e0c"}


def test_what_is_no_experiment_stays_as_it_is():
    stored = {"phases": "many", "fingerprint": "5e0c"}
    assert with_defaults(PretrainingExperiment, stored, beside="fingerprint") == stored


def test_a_stored_objective_of_bert_is_the_one_that_follows_from_the_model_today():
    stored = {"phases": [{"steps": 10}], "objective": "bert", "examples": {"pairs": "none"}}
    today = PretrainingExperiment.from_dict({"phases": [{"steps": 10}], "examples": {"pairs": "none"}})
    assert with_defaults(PretrainingExperiment, stored, beside="fingerprint") == today.to_dict() | {"fingerprint": None}

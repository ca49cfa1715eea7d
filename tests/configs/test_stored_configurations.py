"""Configurations stored in workdirs are read even if keys have been added since."""

from __future__ import annotations

from bert_jax.configs.experiment_files import with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment

STORED = {"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2}, "fingerprint": "5e0c"}


def test_a_stored_configuration_gets_the_defaults_of_newer_keys():
    completed = with_defaults(PretrainingExperiment, STORED, extra_key="fingerprint")
    asked = PretrainingExperiment.from_dict({"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2}})
    assert completed == asked.to_dict() | {"fingerprint": "5e0c"}


def test_other_json_is_not_changed():
    stored = {"phases": "many", "fingerprint": "5e0c"}
    assert with_defaults(PretrainingExperiment, stored, extra_key="fingerprint") == stored


def test_the_stored_objective_bert_becomes_the_default_of_the_model():
    stored = {"phases": [{"steps": 10}], "objective": "bert", "examples": {"pairs": "none"}}
    today = PretrainingExperiment.from_dict({"phases": [{"steps": 10}], "examples": {"pairs": "none"}})
    assert with_defaults(PretrainingExperiment, stored, extra_key="fingerprint") == today.to_dict() | {"fingerprint": None}

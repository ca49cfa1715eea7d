"""Configurations that earlier versions have stored in workdirs."""

from __future__ import annotations

from bert_jax.configs.files import with_defaults
from bert_jax.configs.pretraining import PretrainingExperiment

STORED = {"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2, "spread_state": False}, "fingerprint": "5e0c"}


def test_a_stored_configuration_has_the_names_of_today_and_the_defaults_of_younger_keys():
    completed = with_defaults(PretrainingExperiment, STORED, beside="fingerprint")
    asked = PretrainingExperiment.from_dict(
        {"phases": [{"steps": 10, "length": 64}], "mesh": {"data": 2, "zero_sharding": False}}
    )
    assert completed == asked.to_dict() | {"fingerprint": "5e0c"}


def test_what_is_no_experiment_stays_as_it_is():
    stored = {"phases": "many", "fingerprint": "5e0c"}
    assert with_defaults(PretrainingExperiment, stored, beside="fingerprint") == stored

from __future__ import annotations

import dataclasses
import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.errors import UserError
from bert_jax.interop.huggingface import export_model, without_parts
from bert_jax.model.config import ModelConfig, Target
from bert_jax.prediction import forwards
from bert_jax.prediction.engine import Engine, compiled
from bert_jax.prediction.packing import Item
from bert_jax.prediction.predictor import Predictor
from bert_jax.runtime.profile import Profile
from tests.prediction.reference import WITHIN, engine_on, mixed_texts, pretrained_outputs, with_specials

pytestmark = pytest.mark.usefixtures("one_shape")
ALL = {"source": forwards.CombinedLayers((0, 1, 2), "concat")}


@pytest.fixture(scope="module")
def items(pretrained) -> list[Item]:
    texts = [*mixed_texts(200, longest=37), "the " * 38]  # as long as the table
    return [Item(with_specials(pretrained, text)[0], query_positions=(1, 2)) for text in texts]


@pytest.fixture(scope="module")
def engine(directory) -> Engine:
    return engine_on(directory, tokens=160)


@pytest.fixture(scope="module")
def on_eight(directory) -> Engine:
    return engine_on(directory, devices=8, tokens=160)


def test_hidden_states_of_packed_texts_equal_single_texts(engine, pretrained, items):
    found = engine.run(forwards.token_vectors, items, "token", **ALL)
    assert [x.shape[0] for x in found] == [len(item.ids) for item in items]
    for item, vectors in [*list(zip(items, found, strict=True))[::9], (items[-1], found[-1])]:
        hidden = pretrained_outputs(pretrained, item.ids)["hidden"]
        np.testing.assert_allclose(vectors, np.concatenate(list(hidden), axis=-1), atol=WITHIN)


def test_a_tuple_of_results_is_divided_by_item(predictor, items):
    engine = predictor.engine
    ids, probabilities = zip(*engine.run(forwards.candidates, items[:50], "position", top_k=5, kind="any"), strict=True)
    assert {x.shape for x in ids} == {(2, 5)}
    alone_ids, alone_p = engine.run(forwards.candidates, [items[7]], "position", top_k=5, kind="any")[0]
    np.testing.assert_array_equal(ids[7], alone_ids)
    np.testing.assert_allclose(probabilities[7], alone_p, atol=WITHIN)


def test_answers_keep_the_order_of_more_items_than_a_group(engine, items):
    short = [item for item in items if len(item.ids) < 9]
    many = random.Random(2).choices(short, k=engine.group_size + 5)
    static = {**ALL, "pooling": "mean", "normalise": True}
    of_one = {id(item): x for item, x in zip(short, engine.run(forwards.text_vectors, short, "text", **static), strict=True)}
    found = engine.run(forwards.text_vectors, many, "text", **static)
    np.testing.assert_allclose(found, [of_one[id(item)] for item in many], atol=WITHIN)


def test_a_stream_reads_only_one_window_ahead(engine, items):
    taken = itertools.count()
    endless = (Item([2, 7, 3]) for _ in taken)
    answers = engine.stream(lambda params, batch, **_: batch["starts"], endless, "text")
    for _ in range(engine.group_size):
        next(answers)
    assert next(taken) == engine.group_size


@pytest.mark.parametrize("count", [7, 256, 700])
def test_batches_hold_every_item_once(engine, items, count):
    @compiled
    def ids(params: Any, batch: Any, *, config: ModelConfig) -> Any:
        return batch["input_ids"] * (batch["sequence_ids"] > 0)

    some = [items[n % len(items)] for n in range(count)]
    wanted = np.bincount(np.concatenate([item.ids for item in some]))
    found = np.concatenate([np.ravel(batch) for batch in engine.batches(ids, some)])
    np.testing.assert_array_equal(np.bincount(found[found > 0], minlength=len(wanted)), wanted)


def test_an_error_in_the_items_of_batches_is_raised(engine, items):
    def broken() -> Iterator[Item]:
        yield from items[:5]
        raise UserError("line 6 is broken")

    with pytest.raises(UserError, match="line 6"):
        list(engine.batches(forwards.next_sentence, broken()))


def test_running_out_of_memory_is_one_sentence_with_remedies(engine, items, directory, monkeypatch):
    def shortage(*_: Any, **__: Any) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4770354232 bytes.")

    with pytest.raises(UserError) as running:
        engine.run(shortage, items, "text")
    assert str(running.value).splitlines()[:3] == [
        f"{engine.name} does not fit in memory: it asks for 4.44 GiB of memory at once, which is not free, with 160 tokens "
        "per batch and device.",
        "Each of these flags takes less memory:",
        "    from Python, engine.tokens below 160",
    ]
    monkeypatch.setattr(jax, "device_put", shortage)
    with pytest.raises(UserError, match=r" does not fit in memory: it asks for 4\.44 GiB .*, which is not free\.\nEnd other"):
        engine_on(directory)


def test_no_items_give_no_answers(engine):
    assert engine.run(forwards.next_sentence, [], "text") == []


@pytest.mark.parametrize(
    ("function", "per", "static"),
    [
        (forwards.token_vectors, "token", ALL),
        (forwards.text_vectors, "text", {**ALL, "pooling": "mean", "normalise": True}),
        (forwards.target_log_probabilities, "position", {}),
    ],
    ids=["tokens", "texts", "places"],
)
def test_eight_devices_answer_as_one_does(engine, on_eight, items, function, per, static):
    wanted = engine.run(function, items, per, **static)
    for found, expected in zip(on_eight.run(function, items, per, **static), wanted, strict=True):
        np.testing.assert_allclose(found, expected, atol=WITHIN)


def test_every_device_computes_different_rows(on_eight, items):
    seen = []

    def watched(params: Any, batch: Any, **static: Any) -> jax.Array:
        result = forwards.token_vectors(params, batch, **static)
        seen.append([(shard.device.id, shard.index[0].indices(result.shape[0])[:2]) for shard in result.addressable_shards])
        return result

    on_eight.run(watched, items, "token", **ALL)
    assert seen
    for shards in seen:
        assert sorted(device for device, _ in shards) == list(range(8))
        assert len({rows for _, rows in shards}) == 8


def test_every_local_device_is_used_without_kernels(directory):
    loaded = Engine.load(directory)
    assert loaded.mesh.size == len(jax.local_devices()) == 8
    assert loaded.config.target == Target("cpu", one_cpu=False)
    assert (loaded.tokens, loaded.group_size, loaded.batch_count) == (1024, 8 * 1024, 0)


def test_one_device_runs_two_batches_at_a_time_and_several_share_one_thread(engine, on_eight, items):
    meeting, threads = threading.Barrier(2, timeout=30), set()

    def meets(params: Any, batch: Any, **_: Any) -> jax.Array:
        meeting.wait()
        return batch["starts"]

    def notes(params: Any, batch: Any, **_: Any) -> jax.Array:
        threads.add(threading.current_thread().name)
        return batch["starts"]

    before = engine.batch_count
    assert len(engine.run(meets, items[-1:] * 8, "text")) == 8  # four rows a batch
    assert engine.batch_count == before + 2
    on_eight.run(notes, items, "text")
    assert len(threads) == 1


def test_a_profile_ends_after_its_batches_have_run(engine, items, tmp_path, monkeypatch):
    released, done, at_end = threading.Event(), [], []

    def slow(params: Any, batch: Any, **_: Any) -> jax.Array:
        released.wait()
        done.append(batch)
        return batch["starts"]

    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: at_end.append(len(done)))
    first = engine.batch_count
    with Profile(range(first, first + 2), tmp_path, "predict") as engine.profile:
        threading.Timer(0.1, released.set).start()
        engine.run(slow, items[-1:] * 8, "text")
    engine.profile = Profile()
    assert at_end == [2]


def test_ids_beyond_the_vocabulary_are_refused(engine):
    with pytest.raises(UserError, match="input_ids holds 999"):
        engine.run(forwards.token_vectors, [Item([2, 999, 3])], "token", **ALL)


def test_concurrent_programs_on_eight_devices_do_not_deadlock(on_eight, items):
    static = {**ALL, "pooling": "mean", "normalise": True}  # sums over devices
    few = [item for item in items if len(item.ids) < 12]
    wanted = on_eight.run(forwards.text_vectors, few, "text", **static)
    for _ in range(5):
        found = on_eight.run(forwards.text_vectors, few * 5, "text", **static)
    np.testing.assert_allclose(found[: len(few)], wanted, atol=WITHIN)


def test_a_second_input_of_the_same_kind_compiles_nothing(engine):
    predictor = Predictor(engine)
    texts = mixed_texts(200, seed=8)
    predictor.embed(texts)
    before = forwards.text_vectors._cache_size()
    for seed in (9, 10):
        predictor.embed(mixed_texts(200, seed=seed))
    assert forwards.text_vectors._cache_size() == before


def test_missing_parts_are_refused_with_the_available_ones(pretrained, tmp_path):
    export_model(tmp_path / "m", without_parts(pretrained, ["mlm_head"]))
    engine = engine_on(tmp_path / "m")
    with pytest.raises(UserError, match=r"/m has no mlm_head, so it cannot fly \(it has pooler, nsp_head\); name a model"):
        engine.require("mlm_head", "fly")
    bare = without_parts(pretrained, ["mlm_head", "nsp_head", "pooler"])
    with pytest.raises(UserError, match=r"this model has no nsp_head.*\(it has no head\)"):
        Engine(bare).require("nsp_head", "fly")


@pytest.mark.parametrize(
    ("part", "ask"),
    [
        ("mlm_head", lambda p: p.fill_mask(["[MASK]"])),
        ("mlm_head", lambda p: p.score(["the"])),
        ("nsp_head", lambda p: p.next_sentence([("the", "river")])),
        ("pooler", lambda p: p.next_sentence([("the", "river")])),
        ("pooler", lambda p: p.embed(["the"], pooling="pooler")),
    ],
    ids=["fill-mask", "score", "next-sentence", "its pooler", "embed"],
)
def test_an_untrained_part_is_refused(pretrained, tmp_path, part, ask):
    export_model(tmp_path / "m", dataclasses.replace(pretrained, untrained=frozenset([part])))
    with pytest.raises(UserError, match=f"the {part} of .*/m was never trained, so it cannot .*; train it first"):
        ask(Predictor(engine_on(tmp_path / "m")))

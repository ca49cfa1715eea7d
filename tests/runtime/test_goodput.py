from __future__ import annotations

import random
from typing import Any

import pytest

from bert_jax.data.prefetch import prefetch
from bert_jax.runtime.goodput import GoodputRecorder, TimeCategory, combined, goodput_line, sum_starts

BEGAN = 1_000_000.0


class Clock:
    """A clock that only a test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def never() -> bool:
    return False


def ledger_of(clock: Clock) -> GoodputRecorder:
    return GoodputRecorder(clock, lambda: BEGAN + clock.now)


def seconds(goodput: GoodputRecorder) -> dict[str, float]:
    """Returns the categories that took time."""
    spent: dict[str, float] = goodput.totals()["seconds"]
    return {name: value for name, value in spent.items() if value}


def test_a_block_within_a_block_counts_as_its_own_category():
    clock = Clock()
    goodput = ledger_of(clock)
    clock.now += 1
    with goodput.during(TimeCategory.EVALUATING):
        clock.now += 2
        with goodput.during(TimeCategory.COMPILING):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert seconds(goodput) == {"other": 17, "evaluating": 10, "compiling": 4}


def test_time_before_the_recorder_counts_for_its_start():
    clock = Clock(100.0)
    goodput = ledger_of(clock)
    goodput.continue_after([{"start": 1, "began": BEGAN, "step": 3, "seconds": {"training": 60.0}}])
    goodput.preceded_by(TimeCategory.DOWNLOADING, 30.0)
    clock.now += 5
    assert seconds(goodput) == {"training": 60, "downloading": 30, "other": 5, "between_starts": 10}


def test_the_outer_category_continues_after_an_error_in_a_block():
    clock = Clock()
    goodput = ledger_of(clock)

    def save() -> None:
        with goodput.during(TimeCategory.SAVING):
            clock.now += 3
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        save()
    clock.now += 1
    assert seconds(goodput) == {"saving": 3, "other": 1}


class Batches(prefetch[int]):
    """Batches that are ready at given times of a clock; waiting for one advances the clock."""

    def __init__(self, clock: Clock, moments: list[float]):
        super().__init__(int, 0, 0)
        self._clock, self._moments = clock, moments

    def is_ready(self, within: float = 0.0) -> bool:
        if not self._moments:
            return True
        self._clock.now = max(self._clock.now, min(self._clock.now + within, self._moments[0]))
        return self._clock.now >= self._moments[0]

    def __next__(self) -> int:
        if not self._moments:
            raise StopIteration
        self._clock.now = max(self._clock.now, self._moments.pop(0))
        return 0


@pytest.mark.parametrize(
    ("ready", "computed", "waited"),
    [
        (0.0, 0.0, 0.0),  # the batch was made before it was requested
        (0.0, 5.0, 0.0),
        (3.0, 0.0, 3.0),  # idle devices from the beginning
        (3.0, 5.0, 0.0),  # the batch comes while the devices still compute
        (5.0, 3.0, 2.0),  # the devices are idle for the last two seconds
    ],
)
def test_waiting_for_a_batch_counts_from_the_moment_the_devices_are_idle(ready: float, computed: float, waited: float):
    clock = Clock()
    goodput = ledger_of(clock)
    with goodput.training(Batches(clock, [ready]), lambda: clock.now < computed) as batches:
        for step, _ in enumerate(batches, 1):
            clock.now += 1
            goodput.step_done(step)
    spent = seconds(goodput)
    assert spent.get("waiting_for_data", 0) == pytest.approx(waited, abs=0.0011)
    assert sum(spent.values()) == pytest.approx(ready + 1)
    assert spent.keys() <= {"training", "waiting_for_data"}


def test_a_step_interrupted_by_an_error_counts_as_repeated():
    clock = Clock()
    goodput = ledger_of(clock)

    def train() -> None:
        with goodput.training(Batches(clock, [0, 0]), never) as batches:
            for step, _ in enumerate(batches, 1):
                clock.now += 3
                if step == 2:
                    raise KeyboardInterrupt
                goodput.step_done(step)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert seconds(goodput) == {"training": 3, "repeated_steps": 3}


def test_steps_of_an_earlier_start_count_as_repeated():
    clock = Clock()
    goodput = ledger_of(clock)
    goodput.continue_after([{"start": 1, "began": BEGAN - 50, "step": 7, "seconds": {"training": 40.0}}])
    with goodput.training(Batches(clock, [0] * 5), never) as batches:
        for step, _ in enumerate(batches, 5):
            clock.now += 2
            goodput.step_done(step)
    totals = goodput.totals()
    assert {name: spent for name, spent in totals["seconds"].items() if spent} == {
        "training": 40 + 2 * 2,  # steps 8 and 9
        "repeated_steps": 3 * 2,  # 5, 6, 7
        "between_starts": 10,
    }
    assert (totals["starts"], totals["goodput"]) == (2, round(44 / 60, 4))


def test_a_clock_set_back_between_two_starts_adds_no_time():
    records = [
        {"start": 1, "began": BEGAN, "step": 4, "seconds": {"training": 30.0}},
        {"start": 2, "began": BEGAN - 3600, "step": 9, "seconds": {"training": 10.0, "other": 10.0}},
    ]
    assert sum_starts(records)["seconds"]["between_starts"] == 0
    assert sum_starts(records)["goodput"] == 0.8


def test_goodput_without_records_is_undefined():
    assert (sum_starts([])["starts"], sum_starts([])["goodput"]) == (0, 0.0)


def test_a_sweep_adds_the_goodput_of_its_runs():
    one = sum_starts([{"start": 1, "began": BEGAN, "step": 4, "seconds": {"training": 30.0, "saving": 10.0}}])
    other = sum_starts([{"start": 1, "began": BEGAN, "step": 4, "seconds": {"training": 60.0}}])
    found = combined([one, other])
    assert (found["starts"], found["goodput"]) == (2, 0.9)
    assert (found["seconds"]["training"], found["seconds"]["saving"]) == (90, 10)


def test_the_line_lists_categories_from_half_a_second_longest_first():
    spent = {"training": 7440.0, "compiling": 121.0, "between_starts": 310.0, "saving": 0.4, "evaluating": 0.5}
    totals = sum_starts([{"start": 1, "began": BEGAN, "step": 4, "seconds": spent}])
    line = "goodput 94.5 % of 2h11m in 1 start: training 2h04m, between starts 5m10s, compiling 2m01s, evaluating 0s"
    assert goodput_line(totals) == line
    assert goodput_line(sum_starts([{"start": 1, "began": BEGAN, "step": 0, "seconds": {"saving": 0.4}}])).endswith("in 1 start")


def test_times_have_milliseconds_and_goodput_hundredths_of_a_percent():
    clock = Clock(0.0123456)
    goodput = ledger_of(clock)
    clock.now += 1.2345678
    assert (goodput.record()["began"], goodput.record()["seconds"]) == (round(BEGAN + 0.012, 3), {"other": 1.235})
    with goodput.training(Batches(clock, []), never):
        clock.now += 0.7654321
        goodput.step_done(1)
    totals = sum_starts([{"start": 1, "began": BEGAN, "step": 1, "seconds": {"training": 0.7654321, "other": 1.2345678}}])
    assert (totals["goodput"], totals["seconds"]["training"], totals["seconds"]["other"]) == (0.3827, 0.765, 1.235)


def test_time_of_an_unknown_category_is_not_lost():
    start = {"start": 1, "began": BEGAN, "step": 4, "seconds": {"training": 30.0, "of another version": 10.0}}
    totals = sum_starts([start])
    assert (totals["goodput"], totals["seconds"]["of another version"]) == (0.75, 10)
    assert combined([totals, totals])["seconds"]["of another version"] == 20


def test_steps_after_a_rollback_count_as_repeated():
    clock = Clock()
    goodput = ledger_of(clock)
    with goodput.training(Batches(clock, []), never):
        for step in (1, 2, 3):
            clock.now += 2
            goodput.step_done(step)
        goodput.rolled_back()
        for step in (2, 3, 4):
            clock.now += 5
            goodput.step_done(step)
        goodput.rolled_back()
        goodput.step_done(1)
        goodput.rolled_back()  # the furthest step remains 4, so step 4 is repeated again
        clock.now += 1
        goodput.step_done(4)
    assert seconds(goodput) == {"training": 6 + 5, "repeated_steps": 10 + 1}


# -------------------------------------------------------------------------------------- against an account of every single second
NESTED = [
    TimeCategory.EVALUATING,
    TimeCategory.SAVING,
    TimeCategory.COMPILING,
    TimeCategory.RESTORING,
    TimeCategory.WAITING,
    TimeCategory.DOWNLOADING,
]


def random_run(rng: random.Random) -> tuple[list[Any], list[str]]:
    """Returns (the lines of the file after a run with several killed starts, the category of each of its seconds)."""
    clock, lines, account, known = Clock(), [], [], False
    for _ in range(rng.randint(1, 4)):
        began = int(clock.now)
        goodput = ledger_of(clock)
        goodput.continue_after(list(lines))
        furthest = max((line["step"] for line in lines), default=0)
        step = rng.randint(0, furthest)  # the step of the checkpoint that is restored
        open_blocks: list[tuple[str, Any]] = []
        here: list[str] = []  # the seconds of this start; "step" for those of the current step
        told: list[str] | None = None  # the seconds as recorded in the last line of this start
        kind = "training"  # the category of the last step
        for _ in range(rng.randint(1, 60)):
            inside = [name for name, _ in open_blocks]
            match rng.choice(["pass", "pass", "open", "close", "train", "step", "write"]):
                case "pass":
                    elapsed = rng.randint(1, 9)
                    clock.now += elapsed
                    category = inside[-1] if inside else "other"
                    here += ["step" if category == "training" else category] * elapsed
                case "open":
                    category = rng.choice(NESTED)
                    open_blocks.append((category, goodput.during(category)))
                    open_blocks[-1][1].__enter__()
                case "train" if "training" not in inside:
                    open_blocks.append(("training", goodput.training(Batches(clock, []), never)))
                    open_blocks[-1][1].__enter__()
                case "step" if inside[-1:] == ["training"]:
                    step += 1
                    goodput.step_done(step)
                    kind = "repeated_steps" if step <= furthest else "training"
                    here = [kind if category == "step" else category for category in here]
                case "close" if open_blocks:
                    name, block = open_blocks.pop()
                    block.__exit__(None, None, None)
                    if name == "training":  # the rest of it belongs to the last step
                        here = [kind if category == "step" else category for category in here]
                case "write":
                    lines.append(goodput.record())
                    told = ["repeated_steps" if category == "step" else category for category in here]
        if told is not None:  # without a line, this start is not recorded
            account += ["between_starts" if known else "before"] * (began - len(account)) + told
            known = True
        clock.now += rng.randint(0, 20)
    return lines, [category for category in account if category != "before"]


@pytest.mark.parametrize("seed", range(60))
def test_the_totals_equal_a_second_by_second_account(seed: int):
    lines, account = random_run(random.Random(seed))
    spent = {name: value for name, value in sum_starts(lines)["seconds"].items() if value}
    assert spent == pytest.approx({name: account.count(name) for name in set(account)})

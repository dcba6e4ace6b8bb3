"""The one loop: a device for each process, verified pairs, one pair's failure, the budget, what is kept on Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from xstage_bench.errors import PairError
from xstage_bench.io.identity import Kernel
from xstage_bench.measure.rounds import Outcome, Progress, Work, run_rounds
from xstage_bench.measure.survey import take
from xstage_bench.schedule.device import Gpu, Node

NODE = Node((Gpu(0, "A", (0, 1), 2000.0), Gpu(1, "A", (0, 1), 2000.0)), ((0, 1), (1, 0)), 32.0, 478.0)


@dataclass
class Fake:
    """A device that notes what is asked of it; `bad` pairs fail when they are verified."""

    process: int
    log: list[str]
    bad: tuple[tuple[int, int], ...] = ()
    backend: str = "cuda"
    closed: bool = field(default=False)

    def node(self) -> Node:
        return NODE

    def verify(self, source: int, destination: int) -> None:
        self.log.append(f"{self.process} verify {source}>{destination}")
        if (source, destination) in self.bad:
            raise PairError(f"pair {source}>{destination}: a wrong word")

    def kernels(self) -> list[Kernel]:
        return [Kernel(source="burst.cu", arch="sm_90", compiler=None, identity=f"{self.process:024x}")]

    def close(self) -> None:
        self.log.append(f"{self.process} close")


def portions(log: list[str], what: str, count: int = 2) -> Iterator[int]:
    for i in range(count):
        log.append(f"{what} {i}")
        yield 10


def test_each_process_opens_verifies_measures_and_closes() -> None:
    log: list[str] = []
    seen: list[Progress] = []
    outcome = run_rounds(
        lambda process: Fake(process, log),
        2,
        lambda device, process: [Work(((0, 1),), lambda: portions(log, f"{process} run"), device.verify)],
        total=40,
        progress=seen.append,
    )
    assert log == [line for p in (0, 1) for line in (f"{p} verify 0>1", f"{p} run 0", f"{p} run 1", f"{p} close")]
    assert (outcome.executions, outcome.complete, outcome.failed_pairs) == (40, True, {})
    assert [(p.done, p.total, p.pair, p.process) for p in seen] == [(10 * i, 40, (0, 1), (i - 1) // 2) for i in (1, 2, 3, 4)]
    assert [k.identity for k in outcome.kernels] == [f"{p:024x}" for p in (0, 1)]
    log.clear()
    run_rounds(lambda p: Fake(p, log), 2, lambda d, p: [], first=Fake(0, log))
    assert log == ["1 close"], "a first device belongs to the caller"


def test_a_pair_that_fails_is_left_out_from_then_on_and_the_others_go_on() -> None:
    log: list[str] = []

    def work(device: Fake, process: int) -> list[Work]:
        return [Work((pair,), lambda pair=pair: portions(log, f"{process} {pair}"), device.verify) for pair in NODE.pairs]

    outcome = run_rounds(lambda process: Fake(process, log, bad=((0, 1),)), 2, work)
    assert outcome.failed_pairs == {"0>1": "pair 0>1: a wrong word"}
    assert outcome.executions == 40
    assert log.count("0 verify 0>1") == 1
    assert "1 verify 0>1" not in log


def test_of_several_pairs_at_once_those_named_fail_else_all() -> None:
    def broken(pairs: tuple[tuple[int, int], ...]) -> Iterator[int]:
        yield 1
        raise PairError("a wrong word", pairs=pairs)

    for named, failed in (((), {"0>1", "1>0"}), (((1, 0),), {"1>0"})):
        outcome = run_rounds(lambda p: Fake(p, []), 1, lambda d, p, named=named: [Work(NODE.pairs, lambda: broken(named))])
        assert set(outcome.failed_pairs) == failed
        assert outcome.executions == 1


def test_a_budget_is_shared_by_all_work_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10_000))
    monkeypatch.setattr("time.monotonic", lambda: float(next(now)))
    log: list[str] = []
    work = [Work((pair,), lambda pair=pair: portions(log, str(pair), 100)) for pair in NODE.pairs]
    outcome = run_rounds(lambda p: Fake(p, log), 2, lambda d, p: work, budget_s=40.0)
    counts = [sum(line.startswith(str(pair)) for line in log) for pair in NODE.pairs]
    assert all(10 <= count <= 25 for count in counts), "two processes, ten ticks each"
    assert outcome.notes == ["the budget of 40 s ended some sweeps early, at random"]


def test_an_interrupted_loop_flushes_and_closes_and_a_survey_hands_over_what_it_has() -> None:
    log: list[str] = []
    rows: list[dict[str, int]] = []
    kept: list[dict[str, object]] = []

    def stopped() -> Iterator[int]:
        rows.append({"n": 1})
        yield 3
        raise KeyboardInterrupt

    def work(device: Fake, process: int) -> list[Work]:
        return [Work(((0, 1),), stopped)]

    outcome = Outcome()
    with pytest.raises(KeyboardInterrupt):
        run_rounds(lambda p: Fake(p, log), 2, work, after_process=lambda: log.append("flush"), outcome=outcome)
    assert log == ["flush", "0 close"]
    assert (outcome.executions, outcome.complete) == (3, False)
    rows.clear()
    with pytest.raises(KeyboardInterrupt):
        take("t", lambda p: Fake(p, []), work, lambda n: {"rows": rows}, processes=2, keep=kept.append)
    (document,) = kept
    assert (document["complete"], document["finished"], document["rows"]) == (False, None, [{"n": 1}])
    assert document["counts"] == {"executions": 3}

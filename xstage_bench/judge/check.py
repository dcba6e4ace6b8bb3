"""What a careful reader would say against a recorded run before believing its numbers, and what to change. Rows in, findings out.

Thresholds stand beside what a clean recording gave (results/h200-x2/profile: 609 883 rows, both directions), so that a
node like it passes with room to spare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xstage_bench.io.identity import in_words
from xstage_bench.judge.line_rates import link_findings, rate_findings
from xstage_bench.judge.of_run import deltas_of_run, facts_of_run
from xstage_bench.machine.finding import Finding, Status
from xstage_bench.machine.gpus import REFERENCE_GPU, Default, borrowed, find_gpu, reference_gpu
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.headline import headline_entry, t0_at
from xstage_bench.model.resample import MIN_PROCESSES
from xstage_bench.model.stretches import LENGTH, bad_stretches
from xstage_bench.record.sound import IMPOSSIBLE

if TYPE_CHECKING:
    import pandas as pd

    from xstage_bench.record.reader import Run

#: Repetitions of a schedule, over all processes; with fewer the medians are those of a handful of values.
MIN_REPETITIONS = 9
#: Half of the 16-84 % range over the median, median over schedules: within a process (clean: 0.19 %) and between processes (0.28 %).
SPREAD_WITHIN, SPREAD_BETWEEN = 0.02, 0.02
#: Last against first third of the sentinel's executions within a process (clean: 0.05 %).
DRIFT, GREAT_DRIFT = 0.01, 0.05
#: Slowest against fastest valid execution (clean: 0.25 %).
CLOCK_RANGE = 0.02
#: Rows kept out of fits for their status, warm-ups apart.
SHARE_DROPPED = 0.01
#: Half an interval over its value: wider ones cannot tell a link from its neighbour.
WIDE_INTERVAL = 0.05
#: A store that wakes a link waits 105 to 177 us on H200 (results/h200-x2/sleep); nothing clean was late by 10.
WAKE_UP_US = 30.0
#: The probe that lets links sleep on purpose; no fit looks at it.
_SLEEPS = "sleep"
#: Cost of a byte in the largest bursts against that in those past the first knee (clean: 1.02).
SECOND_KNEE = 1.15
_MIN_SIZES = 3
_CLEAN = "results/h200-x2/profile"
#: What a finding is held against. They are wide on purpose; where the clean recording is of another kind of GPU, the findings say so.
LIMITS: tuple[Default, ...] = (
    Default(name="spread within a process", value=SPREAD_WITHIN, unit="", source=f"{_CLEAN}: 0.0019"),
    Default(name="spread between processes", value=SPREAD_BETWEEN, unit="", source=f"{_CLEAN}: 0.0028"),
    Default(name="drift", value=DRIFT, unit="", source=f"{_CLEAN}: 0.0005"),
    Default(name="great drift", value=GREAT_DRIFT, unit="", source=f"{_CLEAN}: 0.0005"),
    Default(name="clocks apart", value=CLOCK_RANGE, unit="", source=f"{_CLEAN}: 0.0025"),
    Default(name="cost of a byte past the knee", value=SECOND_KNEE, unit="times", source=f"{_CLEAN}: 1.02"),
    Default(name="late as by a wake-up from", value=WAKE_UP_US, low=10, high=105, unit="us", source="results/h200-x2/sleep"),
)


def criticise(run: Run, model: Model | None) -> list[Finding]:
    """Look for what makes the numbers of a run worth less than they seem.

    Parameters
    ----------
    run : Run
        Complete or interrupted.
    model : Model or None
        What was fitted on it; without one nothing is said about intervals and capacities, and that is said.

    Returns
    -------
    list of Finding
        ``fail``: a number that must not be used; ``warn``: one that is worse than it could be, with what to change.
    """
    samples = run.samples()
    samples = samples[samples["source"] != samples["destination"]]
    measured = samples[samples["kind"] == "measure"]
    valid = measured[(measured["status"] == "ok") & np.isfinite(measured["issue_mean_cycles"].to_numpy(dtype=float))]
    findings = [*_record(run), *_impossible(samples), *_statuses(measured, valid), *link_findings(run.manifest)]
    if valid.empty:
        return findings
    findings += [
        _repetitions(valid, run.manifest.stopping),
        *_spreads(valid),
        _drift(samples),
        _stretches(valid),
        _clock(valid),
        *_environment(run),
    ]
    names = list(dict.fromkeys(gpu.name for gpu in run.manifest.node.gpus))
    findings += [_sleep(valid, names), _second_knee(valid), *_limits(names)]
    if model is None:
        findings.append(Finding("model", "warn", "not fitted: capacities and intervals were not looked at", "xstage fit RUN"))
        return findings
    absent = sorted(set(_names(valid)) - {pair.pair for pair in model.pairs})
    findings += [Finding(f"pair {p} fit", "warn", "measured, and not in the model", "xstage fit RUN") for p in absent]
    return [*findings, *rate_findings(run.manifest, model), *(f for pair in model.pairs if not pair.is_local for f in _fitted(pair))]


def _record(run: Run) -> list[Finding]:
    m = run.manifest
    found = []
    if not m.complete:
        found.append(Finding("complete", "warn", "it was interrupted: fewer samples, wider intervals", "xstage run --resume --out RUN"))
    for name in run.changed():
        detail = "changed, lost or added after the run had written it: whose numbers these are is unknown"
        found.append(Finding(name, "fail", detail, "take the run from a copy, or measure again"))
    for pair, reason in m.failed_pairs.items():
        found.append(Finding(f"pair {pair}", "fail", f"not measured: {reason}", "xstage doctor; xstage topo"))
    if m.kernels:
        found.append(Finding("kernels", "ok", "; ".join(in_words(m.kernels))))
    elif not m.simulated:
        found.append(Finding("kernels", "ok", "recorded before kernels had identities: by which instrument is unknown"))
    if m.simulated:
        found.append(Finding("backend", "ok", f"SIMULATED ({m.backend}): nothing here was measured on a GPU"))
    return found


def _impossible(samples: pd.DataFrame) -> list[Finding]:
    """Rows that no instrument gives; they are in no fit."""
    bad = samples[samples["status"] == IMPOSSIBLE]
    if bad.empty:
        return []
    why = ", ".join(f"{n} x {reason}" for reason, n in bad["detail"].value_counts().items())
    words = f"{len(bad)} of {len(samples)} rows cannot be, and were left out: {why}"
    status: Status = "fail" if len(bad) > SHARE_DROPPED * len(samples) else "warn"
    return [Finding("impossible numbers", status, words, "the files were changed or the instrument is broken: measure again")]


def _statuses(measured: pd.DataFrame, valid: pd.DataFrame) -> list[Finding]:
    found = []
    for pair, rows in measured.groupby(_names(measured), sort=True):
        good = int((_names(valid) == pair).sum())
        bad = rows["status"].astype(str).value_counts().drop("ok", errors="ignore")
        if lost := int(len(rows) - good - bad.sum()):
            bad["ok, without a number"] = lost
        why = ", ".join(f"{count} {status}" for status, count in bad.items())
        if good == 0:
            found.append(Finding(f"pair {pair} samples", "fail", f"no valid one of {len(rows)} ({why})", "nvidia-smi -q -d PERFORMANCE"))
        elif bad.sum() > SHARE_DROPPED * len(rows):
            detail = f"{bad.sum()} of {len(rows)} rows were kept out of every fit ({why})"
            found.append(Finding(f"pair {pair} samples", "warn", detail, "measure again when the GPU is cool and alone"))
        else:
            found.append(Finding(f"pair {pair} samples", "ok", f"{good} valid rows of {len(rows)}"))
    return found or [Finding("samples", "fail", "the run holds no measured row of a pair", "xstage run")]


def _repetitions(valid: pd.DataFrame, stopping: dict[str, Any] | None) -> Finding:
    first = valid[valid["burst"] == 0]
    isolated = first[first["start"] == "isolated"]  # T0, R and Q come from these; sweeps of many bursts have fewer on purpose
    first = first if isolated.empty else isolated
    few = int(first.groupby(["schedule", "probe"], observed=True).size().median())
    processes = int(first["process"].nunique())
    if processes < MIN_PROCESSES:
        detail = f"{processes} process(es): intervals leave out the spread between processes, which is the larger one"
        return Finding("repetitions", "warn", detail, "run to the end, in 3 processes: xstage run without --budget")
    if stopping is not None:
        left = sum(len(cells) for p in stopping["pairs"].values() for rule in ("ceiling", "budget") for cells in p[rule].values())
        asked = f"+-{100 * stopping['until']:g} %"
        if left:
            hint = "more --repetitions, and no --budget; manifest.json names them under 'stopping'"
            return Finding("repetitions", "warn", f"{left} schedules are not known to {asked}", hint)
        return Finding("repetitions", "ok", f"every schedule is known to {asked}, in {processes} processes")
    if few < MIN_REPETITIONS:
        return Finding("repetitions", "warn", f"{few} executions of a schedule: too few samples", "xstage run --full, without --budget")
    return Finding("repetitions", "ok", f"{few} executions of a schedule in {processes} processes")


def _spreads(valid: pd.DataFrame) -> list[Finding]:
    """Spread of isolated bursts, which have no neighbour in time to be disturbed by."""
    isolated = valid[(valid["start"] == "isolated") & (valid["bytes"] > 0)]
    if isolated.empty:
        return []
    groups = isolated.groupby(["schedule", "burst", "process"], observed=True)["issue_mean_cycles"]
    low, middle, high = (groups.quantile(q) for q in (0.16, 0.5, 0.84))
    within = float(((high - low) / 2 / middle).median())
    per_process = middle.unstack("process")
    between = float((per_process.std(axis=1) / per_process.mean(axis=1)).median()) if per_process.shape[1] > 1 else 0.0
    more = "others may use the GPU or the link: xstage doctor; then measure more, in more processes"
    return [
        _above("spread within a process", within, SPREAD_WITHIN, "repetitions of a schedule differ by {}", more),
        _above("spread between processes", between, SPREAD_BETWEEN, "fresh processes differ by {}", more),
    ]


def _above(check: str, value: float, limit: float, words: str, hint: str) -> Finding:
    detail = words.format(f"{100 * value:.2f} %") + f" (limit {100 * limit:g} %)"
    return Finding(check, "warn" if value > limit else "ok", detail, hint if value > limit else None)


def _drift(samples: pd.DataFrame) -> Finding:
    """Trend of the sentinel within a process; a step between processes is their own spread and no drift."""
    sentinel = samples[(samples["kind"] == "sentinel") & (samples["status"] == "ok") & samples["issue_mean_cycles"].notna()]
    worst, where = 0.0, None
    for (source, destination, process), rows in sentinel.groupby(["source", "destination", "process"], observed=True):
        values = rows.sort_values("order")["issue_mean_cycles"].to_numpy(dtype=float)
        third = values.size // 3
        if third < 2:
            continue
        change = float(np.median(values[-third:]) / np.median(values[:third]) - 1)
        if where is None or abs(change) > abs(worst):
            worst, where = change, f" (pair {source}>{destination}, process {process})"
    if where is None:
        return Finding("drift", "ok", "not looked at: fewer than 6 executions of the sentinel in each process")
    detail = f"the sentinel changed by at most {100 * worst:+.2f} % within a process{where}"
    if abs(worst) <= DRIFT:
        return Finding("drift", "ok", detail)
    status: Status = "fail" if abs(worst) > GREAT_DRIFT else "warn"
    return Finding("drift", status, detail, "let the node reach a steady temperature, and measure again")


def _stretches(valid: pd.DataFrame) -> Finding:
    found = bad_stretches(valid)
    if not found.bad:
        return Finding("stretches", "ok", f"no stretch of {LENGTH} executions was disturbed")
    hint = "something else used the GPUs or their links now and then (xstage doctor): measure again"
    return Finding("stretches", "warn", f"{found.sentence()}; the fit left them out", hint)


def _clock(valid: pd.DataFrame) -> Finding:
    clock = valid["sm_clock_mhz"].dropna()
    if clock.empty:
        return Finding("SM clock", "warn", "the SM clock was not recorded")
    spread = float(clock.max() / clock.min() - 1)
    words = f"valid samples ran at {clock.min():.0f} to {clock.max():.0f} MHz, apart by {{}}"
    return _above("SM clock", spread, CLOCK_RANGE, words, "nvidia-smi -q -d PERFORMANCE; cool the node or lower its load")


def _environment(run: Run) -> list[Finding]:
    found = []
    for uuid, risen in deltas_of_run(run.manifest).items():
        counts = {k: risen[k] for k in risen if k != "links" and not k.startswith("bytes_") and risen[k]}
        if counts:
            detail = f"{uuid}: " + ", ".join(f"{n} {k}" for k, n in counts.items()) + f" during the run, links {', '.join(risen['links'])}"
            found.append(Finding("link errors", "warn", detail, "nvidia-smi nvlink -e; reseat or replace what stands behind these links"))
    for facts in facts_of_run(run.manifest):
        slow = [r for r in facts.get("clock_event_reasons") or () if "slowdown" in r or r == "sw_power_cap"]
        if slow:
            found.append(Finding(f"GPU {facts['index']} clocks", "warn", f"held down at the end by {', '.join(slow)}", "cool the node"))
    return found


def _limits(names: list[str]) -> list[Finding]:
    """Say which limits were set on another kind of GPU; nothing where all are of this one."""
    notes = [note for name in names if (note := borrowed(name, LIMITS)) is not None]
    return [Finding("limits", "ok", f"what is found is held against limits {'; '.join(notes)}")] if notes else []


def _sleep_after(names: list[str]) -> tuple[float, str]:
    """Return the silence after which links of these GPUs sleep, ns, and what to say where that is not known of them."""
    own = [facts.link.sleep_after_ms.value for name in names if (facts := find_gpu(name)) is not None]
    known = [ms for ms in own if ms is not None]
    if known and len(known) == len(names):
        return min(known) * 1e6, ""
    lent = reference_gpu().link.sleep_after_ms.value
    assert lent is not None
    return lent * 1e6, f" (when links sleep was measured on {REFERENCE_GPU}; this is {', '.join(names)})"


def _sleep(valid: pd.DataFrame, names: list[str]) -> Finding:
    """Silence that lets a link sleep, or executions late by what waking it costs, in probes whose rows enter fits."""
    sleep_after_ns, elsewhere = _sleep_after(names)
    entering = valid[valid["probe"] != _SLEEPS]
    silence_ns = (entering["gap_cycles"] * 1e3 / entering["sm_clock_mhz"]).max()
    usual = entering.groupby(["schedule", "burst"], observed=True)["issue_mean_cycles"].transform("median")
    late = int(((entering["issue_mean_cycles"] - usual) / entering["sm_clock_mhz"] > WAKE_UP_US).sum())
    if silence_ns > sleep_after_ns:
        detail = f"a gap of {silence_ns / 1e6:.0f} ms lets the link sleep: its wake-up is neither capacity nor recovery{elsewhere}"
        return Finding("link sleep", "warn", detail, f"keep gaps below {sleep_after_ns / 1e6:.0f} ms, or use the probe 'sleep'")
    if late:
        detail = f"{late} executions were late by more than {WAKE_UP_US:.0f} us, as a link that wakes up is{elsewhere}"
        return Finding("link sleep", "warn", detail, "another process may pause the GPU, or the host lets it idle: xstage doctor")
    return Finding(
        "link sleep", "ok", f"no silence above {sleep_after_ns / 1e6:.0f} ms, no execution late by {WAKE_UP_US:.0f} us{elsewhere}"
    )


def _second_knee(valid: pd.DataFrame) -> Finding:
    """Whether the largest bursts cost more for each byte than those just past the knee: translation reach, taken for nothing else."""
    isolated = valid[(valid["probe"] == "isolated") & (valid["start"] == "isolated") & (valid["bytes"] > 0)]
    worst: tuple[float, str] | None = None
    # With all SMs alone: with fewer, arbiters that fill one after another bend the curve too.
    most = isolated.groupby(["source", "destination"])["producers"].transform("max")
    for keys, rows in isolated[isolated["producers"] == most].groupby(["source", "destination", "producers", "warps"], observed=True):
        medians = rows.groupby("bytes")["issue_mean_cycles"].median()
        size, cycles = medians.index.to_numpy(dtype=float), medians.to_numpy(dtype=float)
        steps = np.diff(cycles) / np.diff(size)
        stalled = np.flatnonzero(steps > steps.max(initial=0.0) / 2)
        past = stalled[1 + stalled.size // 3 :] if stalled.size else stalled  # the knee itself is rounded
        if past.size < 2 * _MIN_SIZES:
            continue
        half = past.size // 2
        ratio = float(np.median(steps[past[half:]]) / np.median(steps[past[:half]]))
        if worst is None or ratio > worst[0]:
            source, destination, producers, warps = keys
            worst = ratio, f"pair {source}>{destination}, K = {producers}, W = {warps}, from {size[past[half]] / 1e3:.0f} kB per SM"
    if worst is None:
        return Finding("second knee", "ok", "no sweep reaches far enough past its knee to have a second one")
    detail = f"a byte costs {worst[0]:.2f} times as much in the largest bursts as past the knee ({worst[1]})"
    if worst[0] <= SECOND_KNEE:
        return Finding("second knee", "ok", detail)
    return Finding("second knee", "warn", detail, "the footprint outgrows address translation: leave out larger bursts")


def _fitted(pair: PairModel) -> list[Finding]:
    entry = headline_entry(pair)
    plain = (pair.flavour, pair.layout) == ("st.v4", "contiguous")
    name_of_pair = f"pair {pair.pair}" + ("" if plain else f" ({pair.flavour}, {pair.layout})")
    if entry is None:
        return [Finding(f"{name_of_pair} fit", "warn", "nothing was fitted", "xstage run --only isolated")]
    found = []
    for name, number in (("R", entry.drain_gb_per_s), ("Q", entry.capacity_bytes), ("T0", entry.t0_cycles)):
        at = t0_at(entry) if name == "T0" else f"K = {entry.producers}, W = {entry.warps}"
        check = f"{name_of_pair} {name}"
        if number.value is None:
            hint = "add larger bursts" if name == "Q" else "add burst sizes"
            found.append(Finding(check, "warn", f"not identified at {at}: {number.reason or 'no reason recorded'}", hint))
        elif number.low is None or number.high is None or number.value <= 0:
            found.append(Finding(check, "warn", f"no interval at {at}", "more processes and repetitions: xstage run --full"))
        else:
            half = (number.high - number.low) / 2 / number.value
            words = f"{100 * number.level:.0f} % interval at {at} is +-{{}}"
            found.append(_above(check, half, WIDE_INTERVAL, words, "too few samples: more processes and repetitions, xstage run --full"))
    return found


def _names(rows: pd.DataFrame) -> Any:
    return rows["source"].astype(str) + ">" + rows["destination"].astype(str)

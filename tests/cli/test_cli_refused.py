"""Calls that cannot be meant: exit 2, one clear line and a hint, and nothing is measured or written. Where no GPU is: exit 3."""

from __future__ import annotations

import h200
import pytest

from xstage_bench.machine.topology import read_topology

MODEL = str(h200.MODEL)
JOB = ("--bytes", "28672", "--tile-ns", "4190", "--tiles", "8")
#: Words that begin a call, and what may follow with what is said of it.
CALLS: dict[tuple[str, ...], list[tuple[str, str]]] = {
    (): [
        ("pofile", "did you mean 'profile'"),
        ("fit", "Missing argument"),
        ("predict one", "give a schedule file"),
        ("export . --format xml", "xml"),
        ("fit . --resamples 3", "3"),
        ("topo --backend gpu", "unknown backend 'gpu'"),
        ("probes --probe-path nowhere", "nowhere"),
        ("doctor surplus", "surplus"),
        ("fleet .", "no run"),
    ],
    ("run", "--backend", "sim"): [("--resume", "which run"), ("--resume --out nowhere", "nowhere"), ("--out -", "stdout")],
    ("advise", MODEL): [
        ("", "needed: --bytes, --tile-ns, --tiles"),
        ("--bytes 4096", "needed: --tile-ns, --tiles"),
        ("missing.json", "missing.json"),
    ],
    ("advise", MODEL, *JOB): [
        ("--tile-ns nan", "finite"),
        ("--tiles 0", "0"),
        ("--pair 0>5", "no pair 0>5"),
        ("--flavour st.v9", "st.v9"),
        ("--figure a.gif", ".png or .svg"),
        ("--figure nowhere/a.png", "no such folder"),
        ("--quiet-tile-ns 0 --quiet-tiles 6", "quiet tiles need both"),
    ],
    ("export", MODEL, "--table", "model", "--warps", "4"): [("", "together"), ("--producers 133", "has 132 SMs")],
    ("compare",): [
        ("", "0 runs were named"),
        (MODEL, "1 runs were named"),
        (f"{MODEL} {MODEL} --reference h200-nv18", "2 runs were named"),
        (f"{MODEL} --reference b300", "no reference node 'b300'"),
        (f"{MODEL} nowhere", "no such file"),
        (f"{MODEL} {MODEL} --margin nan", "not between 0 and 100"),
        (f"{MODEL} {MODEL} --across days", "days"),
    ],
    ("predict", MODEL): [
        ("", "give a schedule file, or --workload"),
        ("none.json", "no such file"),
        ("s.json --workload keye-vl-2", "give a schedule file, or --workload"),
        ("s.json --ep 8", "--ep belong to a workload"),
        ("--workload keye-vl-3", "did you mean 'keye-vl-2'"),
        ("--workload wan-1.3b-480p --sp 8", "does not divide the 12 heads"),
        ("--workload qwen3.5 --trace x.json", "not a workload"),
        ("--workload qwen3.5 --ep 7", "EP 7"),
    ],
    ("predict", MODEL, "--workload", "keye-vl-2"): [
        ("--sp 8", "above the 4 key-value heads"),
        ("--ep 5", "EP 5 does not divide the 128 experts"),
        ("--ep 16", "a node has"),
        ("--context 999999", "999999 tokens"),
    ],
    ("fused",): [
        ("ulyses", "did you mean 'ulysses'?"),
        ("ulysses --shape wan-14b-48p", "did you mean"),
        ("ulysses --shape flux.1 --sp 5", "24 heads cannot be dealt to 5 ranks"),
        ("ulysses --sp 1", "2<=x<=16"),
        ("ulysses --seq 0", "1<=x"),
        ("ulysses --budget nan", "positive"),
        ("ulysses --recorded no-such.json", "no-such.json"),
        ("ulysses --recorded ulysses.json", "is the recording itself"),
        ("ulysses --recorded x.json --sp 2", "has its cases already"),
        ("ulysses --recorded x.json --pairs", "has its cases already"),
    ],
    ("measure",): [
        ("compny", "did you mean 'company'"),
        ("processes", "no launch of several processes"),
        ("processes --compare nowhere.json", "no such file"),
        ("footprint --pairs 0-1", "0-1"),
        ("footprint --backend sim", "cannot deal bursts over large memory"),
        ("copies --out nowhere/copies.json", "no such folder"),
        ("copies --pairs one", "one"),
        ("visibility --only glimpse", "unknown part 'glimpse'"),
        ("visibility --pairs zero", "SOURCE:DESTINATION"),
        ("visibility --processes 0", "processes"),
        ("scenes --backend replay:nonesuch", "nonesuch"),
    ],
    ("measure", "scenes", "--backend", "sim"): [
        ("--pattern star", "star"),
        ("--study pulls", "knows nothing of company"),
        ("--bytes 30001", "scene 'pair A>B': schedules[0]: burst 0: 30001 bytes is not a multiple of 2048"),
        ("--destination 9 --pattern pair", "GPU 9 asked for"),
    ],
}


@pytest.mark.parametrize(
    ("words", "said"),
    [((*first, *rest.split()), said) for first, rows in CALLS.items() for rest, said in rows],
    ids=[" ".join((*first, rest)).replace(MODEL, "MODEL") for first, rows in CALLS.items() for rest, _ in rows],
)
def test_a_call_that_cannot_be_meant(xstage, tmp_path, words, said):
    xstage(*words, cwd=tmp_path).refused(2, said)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *((f"--budget {value}", value) for value in ("nan", "-3", "inf", "soon")),
        *((f"--seed {value}", value) for value in ("-1", "1.5")),
        *(
            (f"--pairs {pairs}", said)
            for pairs, said in (("0", "SOURCE:DESTINATION"), ("0:1,x:0", "'x:0'"), ("0:9", "0>9"), ("1:1", "1>1"))
        ),
        ("--only nonesuch", "nonesuch"),
        ("--probe-path no/such/folder", "no/such/folder"),
        ("--backend gpu", "unknown backend 'gpu'"),
        ("--backend sim:nonesuch", "nonesuch"),
        ("--backend replay:no/such/run", "no/such/run"),
        ("--colour red", "--colour"),
        ("surplus", "surplus"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run", "profile"])
def test_options_that_cannot_be_meant(xstage, tmp_path, verb, options, words):
    backend = () if "--backend" in options else ("--backend", "sim")
    done = xstage(verb, "--quick", *backend, *options.split(), *(() if verb == "plan" else ("--out", "out")), cwd=tmp_path)
    done.refused(2, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ("fused", "ulysses", "--shape", "wan-14b"),
        ("fused", "moe", "--suite"),
        ("measure", "visibility"),
        ("measure", "copies"),
        ("measure", "footprint"),
    ],
)
def test_without_gpus_nothing_is_measured_simulated_or_written(xstage, tmp_path, words):
    if read_topology().usable_pairs():
        pytest.skip("this machine has GPUs to measure")
    done = xstage(*words, "--out", tmp_path / "found.json", "--json")
    assert (done.code, done.document()["exit_code"]) == (3, 3), done.err
    assert "--backend sim" not in done.err, "no simulator answers here"
    assert "GB/s" not in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [(), ("measure",), ("fused",)])
def test_a_group_alone_prints_its_help(xstage, words):
    """On stdout with exit 0 by click before 8.2, on stderr with exit 2 since."""
    done = xstage(*words)
    assert done.code in (0, 2)
    text = done.err if done.code else done.out
    assert text.startswith("Usage: xstage")
    assert len(text.splitlines()) > 8
    assert "try:" not in text


def test_one_run_is_no_fleet_and_a_reference_is_no_recording(xstage, small_run, tmp_path):
    xstage("fleet", small_run).refused(2, "is one run")
    xstage("run", "--backend", "replay:h200-nv18", "--out", tmp_path / "out").refused(2, "holds no samples")
    assert list(tmp_path.iterdir()) == []


def test_all_that_keeps_two_runs_apart_is_said_at_once(xstage, small_run):
    done = xstage("compare", MODEL, small_run)
    done.refused(1, "gpu: ")
    assert "backend: " in done.err
    assert "--across backend --across gpu" in done.err

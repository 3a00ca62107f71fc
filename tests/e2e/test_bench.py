# SPDX-License-Identifier: Apache-2.0
"""The bench: its arithmetic on made-up samples, its documentation beside its scenarios, and a short run of it in the appliance.

No test here fails by a time: what is asserted is that rows are there, that noise is called noise, and that a difference is called one.
"""
import argparse
import io
import json
import os
import random
import re
import subprocess
import sys

import pytest
from conftest import TOP

BENCH = TOP / "bench"
sys.path.insert(0, str(BENCH))
import mb_daemon  # noqa: E402
import mb_measure  # noqa: E402
import mb_page  # noqa: E402
import mb_result  # noqa: E402
import mb_stats  # noqa: E402


def made_up(seed, shift=0.0, drift=0.0, n=30, passes=3):
    """A result of one scenario whose samples lie around 20 ms with a long tail."""
    rng = random.Random(seed)
    samples = [{"total": 20000 + shift + rng.expovariate(1 / 1500) + drift * (i % passes), "cpus": 900 + shift + rng.expovariate(1 / 200)} for i in range(n)]
    arm = {"samples": samples, "parts": [i % passes for i in range(n)], "rounds": [i // passes + 1 for i in range(n)], "failed": [], "absent": None}
    return {"host": {"cpu": "x"}, "command": "made up", "scenarios": {"restore": {
        "unit": "us", "what": "w", "start": "s", "stop": "e", "n": n, "passes": passes, "cut": [], "host": {}, "arms": {"mayfly-vmm": arm}}}}


def compare(tmp_path, a, b, *more):
    for name, res in (("a", a), ("b", b)):
        mb_result.write(res, str(tmp_path / name))
    r = subprocess.run([BENCH / "compare", tmp_path / "a", tmp_path / "b", *more], capture_output=True, text=True)
    return r.returncode, {l.split()[2]: l.split()[-1] for l in r.stdout.splitlines() if l.startswith("restore")}, r.stdout


def test_compare_finds_five_milliseconds_and_no_noise(tmp_path):
    wrong = 0
    for seed in range(8):
        _, verdicts, text = compare(tmp_path, made_up(seed), made_up(1000 + seed))
        wrong += verdicts["total"] != "noise"
        code, verdicts, text = compare(tmp_path, made_up(seed), made_up(1000 + seed, shift=5000), "--fail")
        assert verdicts == {"total": "slower", "cpus": "slower"} and code == 1, text
    assert wrong <= 1, f"{wrong} of 8 pairs of equal runs were called different"


def test_compare_calls_a_drift_of_the_machine_noise(tmp_path):
    # the passes of each run lie 2 ms apart, so a difference of 2 ms between runs says nothing; 20 ms does
    assert compare(tmp_path, made_up(1, drift=2000), made_up(2, drift=2000, shift=2000))[1]["total"] == "noise"
    assert compare(tmp_path, made_up(1, drift=2000), made_up(2, drift=2000, shift=20000))[1]["total"] == "slower"
    assert compare(tmp_path, made_up(1, drift=2000, shift=20000), made_up(2, drift=2000))[1]["total"] == "faster"


def with_floor(res, moved, seed):
    """Beside it the floor, on a machine that is slower by that part: everything is."""
    arm, rng = res["scenarios"]["restore"]["arms"]["mayfly-vmm"], random.Random(seed)
    for s in arm["samples"]:
        for k in s:
            s[k] *= 1 + moved
    floor = {**arm, "samples": [{"total": (9000 + rng.expovariate(1 / 500)) * (1 + moved)} for _ in arm["samples"]]}
    res["scenarios"]["restore"]["arms"]["floor"] = floor
    return res


def test_what_the_machine_did_between_two_runs_is_noise(tmp_path):
    wrong = 0
    for seed in range(8):
        a, b = with_floor(made_up(seed), 0, seed), with_floor(made_up(50 + seed), 0.4, seed)
        for name, res in (("a", a), ("b", b)):
            mb_result.write(res, str(tmp_path / name))
        text = subprocess.run([BENCH / "compare", tmp_path / "a", tmp_path / "b"], capture_output=True, text=True).stdout
        assert re.search(r"restore: the floor changed by \+(3|4)\d\.\d%", text), text
        wrong += bool(re.search("(slower|faster)$", text, re.M))
        # without the floor nothing tells
        for res in (a, b):
            del res["scenarios"]["restore"]["arms"]["floor"]
        assert compare(tmp_path, a, b)[1]["total"] == "slower"
    assert wrong <= 1, f"{wrong} of 8 pairs of equal runs were called different"
    # what is slower by more than the machine still is
    a, b = with_floor(made_up(1), 0, 1), with_floor(made_up(2, shift=5000), 0.05, 2)
    assert "restore        mayfly-vmm       total" in compare(tmp_path, a, b)[2] and compare(tmp_path, a, b)[0] == 0
    assert re.search("mayfly-vmm +total .*slower", compare(tmp_path, a, b)[2])


def taking_turns(seed, shift, wander):
    """The two results of one run that took turns: the machine's speed wanders, and neighbours share it."""
    rng, a, b = random.Random(seed), made_up(seed), made_up(seed + 5000, shift=shift)
    for x, y in zip(a["scenarios"]["restore"]["arms"]["mayfly-vmm"]["samples"], b["scenarios"]["restore"]["arms"]["mayfly-vmm"]["samples"]):
        now = rng.uniform(0, wander)
        for s in (x, y):
            s["total"] += now
    a["pair"] = b["pair"] = f"run {seed}"
    return a, b


def test_pairs_find_five_milliseconds_where_the_machine_wanders_by_forty(tmp_path):
    wrong = 0
    for seed in range(8):
        wrong += compare(tmp_path, *taking_turns(seed, 0, 40000))[1]["total"] != "noise"
        _, verdicts, text = compare(tmp_path, *taking_turns(seed, 5000, 40000))
        assert verdicts["total"] == "slower" and "99% of the difference" in text, text
    assert wrong <= 1, f"{wrong} of 8 equal builds were called different"
    # the same samples from two runs: neighbours mean nothing, and nothing is claimed
    a, b = taking_turns(1, 5000, 40000)
    del b["pair"]
    assert compare(tmp_path, a, b)[1]["total"] == "noise"


def test_the_interval_of_pairs_is_the_binomial_one():
    # by hand: P(Binomial(10, 1/2) <= 0) = 1/1024, <= 1: 11/1024; of 7 pairs not even the extremes are sure to 1%
    assert mb_stats.sign_interval(range(10)) == (0, 9) and mb_stats.sign_interval(range(7)) is None
    assert mb_stats.sign_interval(range(10), error=0.03) == (1, 8)
    rng, missed = random.Random(5), 0
    for _ in range(1000):
        lo, hi = mb_stats.sign_interval([rng.expovariate(1) - 0.6931471805599453 for _ in range(31)])
        missed += not lo <= 0 <= hi
    assert missed <= 25, f"{missed} of 1000 intervals missed the median; 1% is claimed"
    # a sample that failed on one side has no pair
    assert mb_stats.pairs({(0, 1): 5.0, (0, 2): 6.0}, {(0, 2): 9.0, (0, 3): 1.0}) == [3.0]


class Clock:
    """Time passes when an arm says so: what the measuring itself does, on a machine as busy as it likes."""
    now = 1000.0

    def monotonic(self):
        return self.now


class Fake:
    def __init__(self, name, seconds, fails=0, absent=None):
        outer = self

        class Arm:
            def __init__(self, ctx):
                if absent:
                    raise mb_measure.Absent(absent)

            def sample(self):
                mb_measure.time.now += seconds
                outer.calls += 1
                if fails and outer.calls % fails == 0:
                    raise mb_measure.Failed(f"call {outer.calls} came to nothing")
                return {"total": 1e6 * seconds, "half": 5e5 * seconds}
        Arm.name, self.calls, self.cls = name, 0, Arm


@pytest.fixture
def measured(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(mb_measure, "time", clock)
    return lambda *a, **kw: measure(clock, *a, **kw)


def measure(clock, fakes, minutes, samples=9, passes=3):
    """{scenario: arms} measured as bench/run does it, without a machine: the result, the seconds it took, what was said meanwhile."""
    scenarios = {n: {"what": "w", "start": "s", "stop": "e", "unit": "us", "where": "host", "seconds": sec, "arms": [f.cls for f in fs]}
                 for n, (sec, fs) in fakes.items()}
    a, out, notes = argparse.Namespace(samples=samples, passes=passes, minutes=minutes, against=None), io.StringIO(), []
    progress = argparse.Namespace(note=notes.append, part=lambda *_: None, step=lambda *_: None)
    began = clock.now
    mb_measure.Measure(argparse.Namespace(), scenarios, a, out).run(list(scenarios))
    took = clock.now - began
    return {"command": "made up", **mb_result.collect(out.getvalue().splitlines(), progress)}, took, notes


def test_a_run_keeps_to_its_time_and_says_what_it_left_out(measured):
    dear, cheap, later = Fake("floor", 20), Fake("floor", 0.01), Fake("floor", 0.1)
    res, took, _ = measured({"dear": (300, [dear]), "cheap": (5, [cheap]), "later": (50, [later])}, minutes=5, samples=90)
    assert 260 < took <= 300, took  # all of it would be 93 times 20 s
    n = {k: len(sc["arms"]["floor"]["samples"]) for k, sc in res["scenarios"].items()}
    assert n["cheap"] == n["later"] == 90 and 8 <= n["dear"] <= 12, n
    assert not res["scenarios"]["cheap"]["cut"] and re.search("pass 1 after . of its 30 rounds", mb_result.cut(res["scenarios"]["dear"]))
    assert "- `dear` was cut short" in mb_result.markdown(res) and "cut short, its share" in mb_page.page(res, "x")


def test_no_scenario_starves_behind_one_that_knows_no_measure(measured):
    # each sample of the first is as long as the whole run; of the others, each gets in once, or is said not to have been reached
    res, took, _ = measured({"huge": (10, [Fake("floor", 50)]), "small": (10, [Fake("floor", 1)])}, minutes=1, samples=30)
    huge, small = (res["scenarios"][k] for k in ("huge", "small"))
    assert took <= 105 and len(huge["arms"]["floor"]["samples"]) == 1
    assert "pass 1 not begun: the time of the run was over" in mb_result.cut(small) and "pass 2 not begun" in mb_result.cut(huge)
    # nothing shorter than its share is cut
    res, took, _ = measured({"a": (10, [Fake("floor", 1)]), "b": (10, [Fake("floor", 1)])}, minutes=20, samples=30)
    assert took == 66 and not any(sc["cut"] for sc in res["scenarios"].values())


def test_the_first_failure_of_a_row_is_shown_everywhere(measured, tmp_path, capsys):
    res, _, notes = measured({"fails": (5, [Fake("floor", 0.001, fails=2), Fake("qemu", 0, absent="no qemu here")])}, minutes=1, samples=4, passes=1)
    arm = res["scenarios"]["fails"]["arms"]["floor"]
    assert arm["failed"] == ["call 2 came to nothing", "call 4 came to nothing"] and len(arm["samples"]) == 2
    mb_result.table(res)
    mb_result.write(res, str(tmp_path / "r"))
    shown = [capsys.readouterr().out, mb_result.markdown(res), mb_page.page(res, "x")]
    assert all("1 of 4 failed: call 2 came to nothing" in text and "no qemu here" in text for text in shown), shown
    assert '"first_failure": "call 2 came to nothing"' in (tmp_path / "r").read_text()
    assert any("call 2 came to nothing" in n for n in notes)


def test_what_is_no_part_of_the_total_is_not_stacked():
    res = made_up(1)
    assert "<title>cpus:" in mb_page.page(res, "x")
    res["scenarios"]["restore"]["apart"] = ["cpus"]
    page = mb_page.page(res, "x")
    assert "<title>cpus:" not in page and "<td class='t'>cpus</td>" in page


def test_percentiles_are_measured_values():
    v = sorted(random.Random(3).uniform(0, 1e6) for _ in range(31))
    s = mb_stats.summary(v)
    assert s["n"] == 31 and s["p50_us"] == v[15] and s["p95_us"] == v[29] and s["p99_us"] == v[30] == s["max_us"]
    assert mb_stats.summary([])["p50_us"] is None and mb_stats.noise([1.0], [0]) is None
    assert mb_stats.noise([10.0, 10.0, 30.0, 30.0], [0, 0, 1, 1]) >= 20.0


def test_daemons_of_one_run_share_neither_group_nor_users():
    # with one group for all of them, the helper of one that ended slot 3 ended slot 3 of the others, too
    options = [dict(zip(argv[::2], argv[1::2])) for argv in map(mb_daemon.apart, range(1, 6))]
    assert len({o["--cgroup"] for o in options}) == 5
    users = [int(o["--uid-base"]) for o in options]
    assert all(b - a >= 5 * 4096 for a, b in zip(users, users[1:])), "a helper has five ranges of 4096 users"


def test_every_scenario_is_documented():
    text = (TOP / "docs" / "benchmarks.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \|(.*)$", text, re.M))
    for name, sc in mb_measure.load().items():
        assert name in rows, f"docs/benchmarks.md has no row for {name}: bench/run --lines prints them"
        assert sc["start"] in rows[name] and sc["stop"] in rows[name], f"docs/benchmarks.md says something else about {name}"


@pytest.fixture(scope="module")
def short_run(machine, tmp_path_factory):
    """Six samples of the cheapest scenario with a floor, in the appliance."""
    d = tmp_path_factory.mktemp("bench")
    r = subprocess.run([BENCH / "run", "--machine", machine.name, "restore-blank", "-n", "6", "--json", d / "r.jsonl", "--html", d / "r.html",
                        "--markdown", d / "r.md"], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return d, r


def test_a_run_is_whole(short_run):
    d, r = short_run
    rows = {(x["arm"], x["phase"]): x for x in map(json.loads, (d / "r.jsonl").read_text().splitlines())}
    for arm in ("floor", "mayfly-vmm"):
        x = rows[arm, "total"]
        assert x["n"] == 6 and x["failed"] == 0 and 0 < x["p50_us"] <= x["p95_us"] <= x["p99_us"] <= x["max_us"]
        assert x["scenario"] == "restore-blank" and x["host"]["virtualization"] == "emulated" and "restore-blank" in x["command"]
    assert {"tables", "map", "cpus", "run"} <= {p for a, p in rows if a == "mayfly-vmm"}
    assert "| restore-blank | floor | total | 6 | 0 |" in (d / "r.md").read_text()
    again = subprocess.run([BENCH / "report", d / "r.jsonl", "--markdown"], capture_output=True, text=True)
    assert again.stdout == (d / "r.md").read_text()


if os.environ.get("MAYFLY_STRESS"):  # it measures, so it wants a quiet machine
    def test_five_milliseconds_in_the_restore_path_are_found(machine):
        r = subprocess.run([BENCH / "selftest", "--machine", machine.name], capture_output=True, text=True, timeout=900)
        assert r.returncode == 0, r.stdout + r.stderr


def test_the_page_needs_no_network(short_run):
    page = (short_run[0] / "r.html").read_text()
    assert "<title>mayfly bench: inside the appliance, absolute numbers mean nothing</title>" in page
    assert not re.search(r'(src|href)="?https?:|url\(|@import|<script|<link', page)
    assert page.count("<svg") >= 2 and "prefers-color-scheme:dark" in page

# SPDX-License-Identifier: Apache-2.0
"""The outer half of a run: events to a result, a result to a table, to markdown, to files and back.

{"host", "checks", "command", "scenarios": {name: {"unit", "what", ..., "cut": [why], "arms": {arm: {"samples": [{"total", phase...}],
"parts": [pass of each], "rounds": [round of each], "failed": [why], "absent": why or None}}}}, "pair"}

"pair": the same in the two results of one run that took turns between two builds (bench/run --against).
"""
import json

import mb_stats


def collect(lines, progress):
    res = {"scenarios": {}}
    for line in lines:
        line = line.strip()
        if not line.startswith("{"):
            if line:
                progress.note(line)
            continue
        take(res, json.loads(line), progress)
    return res


def take(res, ev, progress):
    kind = ev["event"]
    if kind == "host":
        res.setdefault("host", ev["host"])
        res.setdefault("checks", ev["checks"])
        res["now"] = ev["host"]
        return
    name = ev["scenario"]
    if kind == "scenario":
        res["scenarios"][name] = {**{k: v for k, v in ev.items() if k not in ("event", "scenario")}, "host": res["now"], "cut": [], "arms": {}}
        return
    sc = res["scenarios"][name]
    if kind in ("prepare", "part"):
        progress.part(name, ev.get("part"))
        return
    if kind == "cut":
        sc["cut"].append(f"pass {ev['part'] + 1} after {ev['after']} of its {-(-sc['n'] // sc['passes'])} rounds" if ev["after"] else
                         f"pass {ev['part'] + 1} not begun" + (": the time of the run was over" if ev["over"] else ""))
        return
    arm = sc["arms"].setdefault(ev["arm"], {"samples": [], "parts": [], "rounds": [], "failed": [], "absent": None})
    if kind == "absent":
        arm["absent"] = ev["why"]
        progress.note(f"{name}: {ev['arm']} is absent: {ev['why']}")
    elif kind == "sample" and ev["i"] > 0:  # the first of each pass is dropped
        arm["samples"].append(ev["values"])
        arm["parts"].append(ev["part"])
        arm["rounds"].append(ev["i"])
    elif kind == "failed":
        arm["failed"].append(ev["why"])
        progress.note(f"{name}: {ev['arm']} failed: {ev['why']}")
    progress.step(name)


def rows(res):
    """(scenario, its dict, arm, its dict, phase, values, the pass of each value)"""
    for name, sc in res["scenarios"].items():
        for arm, a in sc["arms"].items():
            phases = []
            for s in a["samples"]:
                phases += [p for p in s if p not in phases]
            for phase in phases or ["total"]:
                got = [(s[phase], part) for s, part in zip(a["samples"], a["parts"]) if phase in s]
                yield name, sc, arm, a, phase, [v for v, _ in got], [p for _, p in got]


def unit_of(sc, phase):
    return (sc.get("phase_unit") or {}).get(phase, sc["unit"])


def failures(a):
    """["3 of 30 failed: why", ...]: each reason once, in the order in which they came."""
    asked = len(a["samples"]) + len(a["failed"])
    return [f"{a['failed'].count(why)} of {asked} failed: {why}" for why in dict.fromkeys(a["failed"])]


def cut(sc):
    return "; ".join(sc["cut"]) if sc.get("cut") else ""


def show(v, unit):
    return mb_stats.human(v) if unit == "us" else "-" if v is None else f"{v:,.0f} {unit}"


def rate(sc, phase, p50):
    """The median as a rate; "" if the scenario names none."""
    amount = sc.get("rate") if phase == "total" else None
    if phase in (sc.get("phase_rate") or {}):
        amount = (sc["phase_rate"][phase], (sc.get("rate") or (0, "MiB/s"))[1])
    if not amount or not p50:
        return ""
    return f"{mb_stats.short(amount[0] * 1e6 / p50)} {amount[1]}"


def cells(name, sc, arm, a, phase, values, parts):
    """One row as text: n, failed, p50, noise, p95, p99, max, rate"""
    s, unit = mb_stats.summary(values), unit_of(sc, phase)
    return [str(s["n"]), str(len(a["failed"])) if phase == "total" else "", show(s["p50_us"], unit), "± " + show(mb_stats.noise(values, parts), unit),
            show(s["p95_us"], unit), show(s["p99_us"], unit), show(s["max_us"], unit), rate(sc, phase, s["p50_us"])]


HEAD = ["n", "failed", "p50", "noise", "p95", "p99", "max", "rate"]


def table(res):
    print(f"{'scenario':14} {'arm':16} {'phase':20} {'n':>3} {'failed':>6} {'p50':>10} {'noise':>11} {'p95':>10} {'p99':>10} {'max':>10}  rate")
    last = None
    for name, sc, arm, a, phase, values, parts in rows(res):
        if a["absent"]:
            print(f"{name:14} {arm:16} absent: {a['absent']}")
            continue
        c = cells(name, sc, arm, a, phase, values, parts)
        shown = (name, arm) if (name, arm) != last else ("", "")
        last = (name, arm)
        print(f"{shown[0]:14} {shown[1]:16} {phase:20} {c[0]:>3} {c[1]:>6} {c[2]:>10} {c[3]:>11} {c[4]:>10} {c[5]:>10} {c[6]:>10}  {c[7]}")
        if phase == "total":
            for why in failures(a)[:3]:
                print(f"{'':14} ! {why}")
    for name, sc in res["scenarios"].items():
        if cut(sc):
            print(f"{name:14} cut short, its share of the time was over: {cut(sc)}")


def took(res):
    """How long the run took, and the load of the appliance's host; "" if the result does not have them."""
    o, said = res.get("outside"), []
    if "seconds" in res:
        said.append(f"{res['seconds'] / 60:.1f} minutes")
    if o:
        said.append(f"the appliance's host: {o['cpus']} CPUs, load {o['load']} at the start, {o['load_end']} at the end")
    return f" ({'; '.join(said)})" if said else ""


OTHERS = ("floor", "qemu", "krun", "firecracker", "cloud-hypervisor", "docker", "runc", "tar+mke2fs", "fork+exec+wait")


def beside(res):
    """Each of our arms compared with each arm of others, by the medians of one run: [(ratio, text)], worst first. None is left out."""
    out = []
    for name, sc in res["scenarios"].items():
        med = {arm: ([s["total"] for s in a["samples"]], a["parts"]) for arm, a in sc["arms"].items() if a["samples"]}
        for arm, other in ((x, y) for x in med if x not in OTHERS for y in med if y in OTHERS):
            diff, noise = mb_stats.difference(*med[other], *med[arm])
            mine, theirs = (mb_stats.summary(med[k][0])["p50_us"] for k in (arm, other))
            few = min(len(med[k][0]) for k in (arm, other)) < 5
            out.append((mine / theirs, f"`{name}`: `{arm}` takes {mine / theirs:.2f} times `{other}` ({show(mine, sc['unit'])}, {show(theirs, sc['unit'])})" + (
                "; few samples" if few else "; within the noise" if abs(diff) <= noise else "")))
    return sorted(out, reverse=True)


def markdown(res, phases=True):
    """The result as a page to paste: stamp, command, one table; nothing left out."""
    h = res.get("host", {})
    out = [f"{h.get('time', '')}: {h.get('cpu', '')}, {h.get('cpus', '')} CPUs, {h.get('memory_mib', '')} MiB, Linux {h.get('kernel', '')}, "
           f"virtualization: {h.get('virtualization', '')}, load {h.get('load', '')}.{took(res)}", "", "```", res.get("command", ""), "```", "",
           *(f"- {what}{': ' + effect if effect else ''}" for good, what, effect in res.get("checks", []) if not good), ""]
    out += ["| scenario | arm | phase | " + " | ".join(HEAD) + " |", "|---|---|---|" + "--:|" * len(HEAD)]
    absent = {}
    last = None
    for name, sc, arm, a, phase, values, parts in rows(res):
        if a["absent"]:
            absent.setdefault((arm, a["absent"]), []).append(name)
            continue
        if phase != "total" and not phases:
            continue
        c = cells(name, sc, arm, a, phase, values, parts)
        first = name if last != name else ""
        last = name
        bold = "**" if phase == "total" else ""
        out.append(f"| {first} | {arm if phase == 'total' else ''} | {phase} | {c[0]} | {c[1]} | {bold}{c[2]}{bold} | " + " | ".join(c[3:]) + " |")
    out += ["", *(f"- absent: `{arm}` in {', '.join(f'`{n}`' for n in names)}: {why}" for (arm, why), names in absent.items())]
    for name, sc in res["scenarios"].items():
        if cut(sc):
            out.append(f"- `{name}` was cut short, its share of the time was over: {cut(sc)}")
        for arm, a in sc["arms"].items():
            out += [f"- `{name}`, `{arm}`: {why}" for why in failures(a)[:3]]
    near = beside(res)
    out += ["", "Beside each other, worst first:", "", *(f"- {text}" for _, text in near)] if near else []
    return "\n".join(out) + "\n"


def split(res, mark):
    """Of a run that took turns between two builds: (the first's result, the second's, its arms under the first's names)."""
    def of(second):
        out = {**res, "scenarios": {}}
        for name, sc in res["scenarios"].items():
            arms = {arm.removesuffix(mark): a for arm, a in sc["arms"].items() if arm.endswith(mark) == second}
            out["scenarios"][name] = {**sc, "arms": arms}
        return out
    return of(False), of(True)


def write(res, path):
    """PATH: one line a row, as other programs read it; PATH.raw: the samples, and all that the page needs."""
    with open(path, "w") as out, open(path + ".raw", "w") as raw:
        for name, sc, arm, a, phase, values, parts in rows(res):
            s = mb_stats.summary(values)
            del s["min_us"]
            line = {"scenario": name, "arm": arm, "phase": phase, "failed": len(a["failed"]), **s, "noise_us": mb_stats.noise(values, parts),
                    "unit": unit_of(sc, phase), "host": sc["host"], "command": res.get("command", "")}
            if a["absent"]:
                line["absent"] = a["absent"]
            if a["failed"]:
                line["first_failure"] = a["failed"][0]
            out.write(json.dumps(line) + "\n")
        raw.write(json.dumps(res) + "\n")


def read(path):
    with open(path if path.endswith(".raw") else path + ".raw") as f:
        return json.loads(f.readline())

# SPDX-License-Identifier: Apache-2.0
"""What `make hardware` writes: the page names processor, microcode and kernel, every step, each one's reason for being skipped, and each failure
with its evidence. The steps are made up; `make hardware` itself runs the real ones, on hardware or with small numbers in the appliance."""
import importlib.machinery
import importlib.util

import pytest
from conftest import TOP

CPUINFO = "vendor_id\t: GenuineIntel\nmodel name\t: Some <Processor>\ncpu family\t: 6\nmodel\t\t: 85\nstepping\t: 7\nmicrocode\t: 0x5003604\n"


class Place:
    native = small = True

    def begin(self):
        pass

    end = begin

    def look(self, *words):
        return {"cat /proc/cpuinfo": CPUINFO, "uname -srv": "Linux 6.12.1 #1", "nproc": "16"}.get(" ".join(words), "")


@pytest.fixture
def hardware(tmp_path, monkeypatch):
    loader = importlib.machinery.SourceFileLoader("hardware", str(TOP / "tests" / "hardware"))
    m = importlib.util.module_from_spec(importlib.util.spec_from_loader("hardware", loader))
    loader.exec_module(m)
    # the page's place is named from the top
    monkeypatch.setattr(m, "TOP", tmp_path)
    monkeypatch.setattr(m, "OUT", tmp_path / "build" / "hardware")
    monkeypatch.setattr(m, "Place", Place)
    monkeypatch.delenv("STEPS", raising=False)
    return m


def shell(text):
    return lambda place: ["sh", "-c", text]


def made_up(m):
    def absent(place):
        raise m.Skip("needs root")
    return [
        ("works", "that it works", 60, shell("echo ok 7 of 7 restored; echo noise")),
        ("breaks", "that it breaks", 60, shell("echo 'FAILED: vCPU 3 < vCPU 4' >&2; exit 1")),
        ("hangs", "that it hangs", 2, shell("exec sleep 600")),
        ("absent", "that it is absent", 60, absent),
        ("cannot", "that it cannot", 60, shell("echo looked; echo this kernel has no such call; exit 77")),
        ("missing", "that it is missing", 60, lambda place: ["/nowhere/program"]),
    ]


def test_the_page_names_everything(hardware, capsys, monkeypatch):
    monkeypatch.setattr(hardware, "STEPS", made_up(hardware))
    with pytest.raises(SystemExit) as end:
        hardware.main()
    assert end.value.code == 1
    text, page = ((hardware.OUT / f"report.{x}").read_text() for x in ("md", "html"))
    assert "**1 steps passed, 3 failed, 2 skipped.**" in text
    for fact in ("Some <Processor> (family 6, model 85, stepping 7)", "0x5003604", "Linux 6.12.1 #1", "GenuineIntel"):
        assert fact in text
    rows = {line.split(" | ")[0].lstrip("| "): line for line in text.splitlines() if line.startswith("| ")}
    assert "| ok |" in rows["works"] and "skipped: needs root" in rows["absent"] and "skipped: this kernel has no such call" in rows["cannot"]
    for name in ("breaks", "hangs", "missing"):
        assert "**failed**" in rows[name]
    failures = text[text.index("## Failures"):text.index("## What the steps said")]
    for evidence in ("FAILED: vCPU 3 < vCPU 4", "(exit 1)", "(exit no end within 2 s)", "/nowhere/program"):
        assert evidence in failures
    assert "ok 7 of 7 restored" in text[text.index("## What the steps said"):] and "noise" not in text
    # the same as a page; what steps print is text there
    assert "Some &lt;Processor&gt;" in page and "vCPU 3 &lt; vCPU 4" in page and "<Processor>" not in page
    assert page.count('class="failed"') == 3 and page.count('class="skipped"') == 2
    assert (hardware.OUT / "breaks.log").read_text() == "FAILED: vCPU 3 < vCPU 4\n"
    assert "report.html" in capsys.readouterr().out


def test_steps_that_were_not_asked_for_are_named(hardware, monkeypatch):
    monkeypatch.setattr(hardware, "STEPS", made_up(hardware))
    monkeypatch.setenv("STEPS", "works")
    with pytest.raises(SystemExit) as end:
        hardware.main()
    assert end.value.code == 0
    text = (hardware.OUT / "report.md").read_text()
    assert "**1 steps passed, 0 failed, 5 skipped.**" in text and text.count("not asked for (STEPS)") == 5
    monkeypatch.setenv("STEPS", "works nosuch")
    with pytest.raises(SystemExit) as end:
        hardware.main()
    assert "no step named nosuch" in str(end.value.code)


def test_every_promised_step_is_there(hardware):
    """Sizes, boots, ends, restores in a row, rounds, snapshots under load, classes, images, the bench, and every platform test."""
    names = {s[0] for s in hardware.STEPS}
    assert {"doctor", "sizes", "boots", "ends", "model", "rate", "rounds", "busy", "disks", "classes", "images", "bench"} <= names
    assert {f"platform-{p.stem}" for p in (TOP / "tests" / "platform").glob("*.c")} <= names

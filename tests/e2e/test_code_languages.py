# SPDX-License-Identifier: Apache-2.0
"""Every language of the code-interpreter image, with its real kernel on this very host (test_code_host.py says how): state, isolation, errors, interrupts and
concurrency on the wire, and the official Python client. There is no JavaScript package of the code interpreter that could be tried."""
import asyncio
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import subprocess
import time
from datetime import timedelta

import pytest

from conftest import CACHE
from hostdaemon import HostDaemon
from jupyterkit import Jupyter
from test_code_host import LIMIT_S, Box, Cell, error, kinds, results, text


@dataclasses.dataclass
class Language:
    """What each test runs. `show` writes 42 after `keep`; `absent` fails in a context without `keep`; `meet` creates the file A and waits for the file B."""
    keep: str
    show: str
    fails: str
    ename: str
    spin: str
    meet: str
    odd: str
    sum: str
    sum_is_result: bool = False
    also: tuple = ()  # other loops that an interrupt must end; one with FLAG makes that file instead of writing "begun"


GO_WAIT = 'import ("fmt"; "os"; "time")\nos.Create("A")\nfor {\n  if _, err := os.Stat("B"); err == nil { break }\n  time.Sleep(20 * time.Millisecond)\n}\nfmt.Println("met")'
JS_WAIT = 'fs.writeFileSync("A", "")\nwhile (!fs.existsSync("B")) await new Promise((r) => setTimeout(r, 20))\nconsole.log("met")'
JS = Language(
    keep="let n = 41; function twice(x) { return 2 * x }", show="console.log(n + twice(1) - 1)", fails="throw new RangeError('boom')", ename="RangeError",
    spin="console.log('begun'); for (;;) {}",
    also=("console.log('begun'); await new Promise(() => {})", "await new Promise((r) => setTimeout(r, 1)); require('fs').writeFileSync('FLAG', ''); for (;;) {}"),
    meet="const fs = require('fs')\n" + JS_WAIT, odd=r"console.log('a\u2028\u{1F600}é')", sum="2 + 2")
LANGUAGES = {
    "python": Language(
        keep="n = 41", show="print(n + 1)", fails="1/0", ename="ZeroDivisionError", spin="print('begun', flush=True)\nwhile True: pass",
        also=("import time\nprint('begun', flush=True)\ntime.sleep(600)", "import subprocess\nprint('begun', flush=True)\nsubprocess.run(['sleep', '600'])"),
        meet="import os, time\nopen('A', 'w').close()\nwhile not os.path.exists('B'): time.sleep(.02)\nprint('met')",
        odd=r"print('a\u2028\U0001F600é')", sum="2 + 2", sum_is_result=True),
    "bash": Language(
        keep="n=41; twice() { echo $((2 * $1)); }", show="echo $((n + $(twice 1) - 1))", fails="ls /no/such/file", ename="ExecutionError",
        spin="echo begun; while :; do :; done", also=("echo begun; sleep 600",), meet="touch A; while [ ! -e B ]; do sleep .02; done; echo met",
        odd="printf 'a\\xe2\\x80\\xa8\\xf0\\x9f\\x98\\x80\\xc3\\xa9\\n'", sum="echo $((2 + 2))"),
    "javascript": JS,
    "typescript": dataclasses.replace(
        JS, keep="let n: number = 41; function twice(x: number): number { return 2 * x }",
        also=(JS.also[0], JS.also[1].replace("await", "import * as fs from 'fs'\nawait", 1).replace("require('fs')", "fs")), meet="import * as fs from 'fs'\n" + JS_WAIT),
    "java": Language(
        keep="int n = 41; int twice(int x) { return 2 * x; }", show="System.out.println(n + twice(1) - 1);", fails='throw new RuntimeException("boom");', ename="EvalException",
        spin='{ System.out.println("begun"); while (true) {} }',
        # an interrupt may come between two statements, or while the second one is compiled: the last of these loops is compiled for longer than an interrupt takes
        also=('{ System.out.println("begun"); Thread.sleep(600000); }', 'System.out.println("begun");\nwhile (true) {}',
              'System.out.println("begun");\nwhile (true) { ' + "Math.abs(1); " * 300 + "}"),
        meet='import java.nio.file.*;\nFiles.createFile(Path.of("A"));\nwhile (!Files.exists(Path.of("B"))) Thread.sleep(20);\nSystem.out.println("met");',
        odd=r'System.out.println("a\u2028\uD83D\uDE00é")', sum="2 + 2", sum_is_result=True),
    "go": Language(
        keep="func twice(x int) int { return 2 * x }\nvar n = 40", show='import "fmt"\nn++\nfmt.Println(n + twice(1) - 1)', fails="var none map[string]int\nnone[\"x\"] = 1", ename="panic",
        spin='import "fmt"\nfmt.Println("begun")\nfor {}',
        also=('import ("os"; "os/signal"; "syscall"; "fmt")\nc := make(chan os.Signal, 1)\nsignal.Notify(c, os.Interrupt, syscall.SIGTERM)\nfmt.Println("begun")\nselect {}',),
        meet=GO_WAIT, odd=r'import "fmt"' + '\n' + r'fmt.Println("a\u2028\U0001F600é")', sum='import "fmt"\nfmt.Println(2 + 2)'),
}
all_languages = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory):
    # Go's compiled standard library is kept between runs, as it is in the image
    os.environ["GOCACHE"] = str(CACHE / "e2e" / "go-cache")
    j = Jupyter(tmp_path_factory.mktemp("jupyter"), languages=("javascript", "typescript", "java", "go")).start()
    yield j
    j.stop()
    del os.environ["GOCACHE"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("daemon")).start({"runtime": {"templates": False}})
    d.plan(mkdir="make")
    yield d
    d.clean()


@pytest.fixture(scope="module")
def box(daemon, jupyter):
    return Box(daemon, **jupyter.env)


@pytest.fixture(scope="module")
def contexts(box):
    """Two contexts of each language, for all tests: a kernel takes seconds to start."""
    made = {}

    def two(language):
        if language not in made:
            made[language] = box.context(language), box.context(language)
        return made[language]
    return two


@all_languages
def test_state_is_kept_and_contexts_are_apart(box, contexts, language):
    code, (one, two) = LANGUAGES[language], contexts(language)
    e = box.events(code.keep, id=one)
    assert kinds(e)[-1] == "execution_complete", e
    for _ in range(2):  # Go: the declaration stays, and the value begins again
        e = box.events(code.show, id=one)
        assert text(e) == "42\n" and kinds(e)[-1] == "execution_complete", e
    e = box.events(code.show, id=two)
    assert "42\n" not in text(e), e


@all_languages
def test_a_sum_and_odd_text(box, contexts, language):
    code, (one, _) = LANGUAGES[language], contexts(language)
    e = box.events(code.sum, id=one)
    assert (results(e)[0]["text"] if code.sum_is_result else text(e).strip()) == "4", e
    assert text(box.events(code.odd, id=one)) == "a\u2028\U0001F600é\n"


@all_languages
def test_an_error_is_whole_and_the_next_cell_runs(box, contexts, language):
    code, (_, two) = LANGUAGES[language], contexts(language)
    for _ in range(2):
        e = error(box.events(code.fails, id=two))
        assert e["ename"] == code.ename and e["evalue"] and all(isinstance(line, str) for line in e["traceback"]) and e["traceback"], e
        e = box.events(code.sum, id=two)  # at once
        assert kinds(e)[-1] == "execution_complete", e


def cpu_ticks(pids):
    """Of the processes, with all that they have started: {pid and command name: ticks}."""
    found = {}
    for pid in pids:
        try:
            name, fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)
            children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            continue
        fields = fields.split()
        found[f"{name})"] = int(fields[11]) + int(fields[12])
        found |= cpu_ticks(children)
    return found


def jdk():
    """Of this host: 17 with Debian 12, 21 with Debian 13."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60).stderr
    return int(re.search(r'version "(\d+)', said)[1])


def until_idle(jupyter):
    """No kernel works: what was interrupted does not go on unseen. A tick is 10 ms. Later JDKs than 19 cannot stop a thread (docs/images.md)."""
    end, goes_on = time.monotonic() + LIMIT_S, "(java)" if jdk() > 19 else "none"
    while True:
        before = cpu_ticks(jupyter.kernels())
        time.sleep(0.5)
        used = {name: ticks - before.get(name, 0) for name, ticks in cpu_ticks(jupyter.kernels()).items() if ticks > before.get(name, 0) and goes_on not in name}
        if sum(used.values()) <= 3:
            return
        assert time.monotonic() < end, f"the kernels use {sum(used.values())} ticks in half a second: {used}"


@all_languages
def test_an_interrupt_ends_a_cell(box, jupyter, contexts, language, tmp_path):
    flag = tmp_path / "flag"
    code, (one, _) = LANGUAGES[language], contexts(language)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for loop in (code.spin, *code.also):
            cell = Cell(box, loop.replace("FLAG", str(flag)), one)
            if "FLAG" in loop:  # a loop of JavaScript after an `await` sends nothing
                end = time.monotonic() + LIMIT_S
                while not flag.exists():
                    assert time.monotonic() < end
                    time.sleep(0.02)
            else:
                cell.until("begun")
            begun = time.monotonic()
            rest = pool.submit(cell.rest)
            assert box.ask("DELETE", f"/code?id={one}") == (200, "")
            error(rest.result(LIMIT_S))
            took = time.monotonic() - begun
            print(f"{language}: interrupted after {took:.2f} s")
            assert took < 20  # 3 s on a machine that is not loaded
            e = box.events(code.sum, id=one)
            assert kinds(e)[-1] == "execution_complete", e
    until_idle(jupyter)


@all_languages
def test_two_cells_run_at_once(box, contexts, language, tmp_path):
    """Each waits for the other."""
    code, (one, two) = LANGUAGES[language], contexts(language)
    a, b = f"{tmp_path}/a", f"{tmp_path}/b"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        cells = [pool.submit(box.events, code.meet.replace("A", x, 1).replace('"B"', f'"{y}"').replace("'B'", f"'{y}'").replace("-e B", f"-e {y}"), id=c)
                 for c, x, y in ((one, a, b), (two, b, a))]
        for cell in cells:
            e = cell.result(LIMIT_S)
            assert text(e).endswith("met\n") and kinds(e)[-1] == "execution_complete", e


def test_the_official_client_runs_every_language(daemon, box):
    from code_interpreter import CodeInterpreter
    from opensandbox import Sandbox
    from opensandbox.config import ConnectionConfig

    async def go():
        config = ConnectionConfig(domain=f"127.0.0.1:{daemon.port}", request_timeout=timedelta(seconds=LIMIT_S))
        sandbox = await Sandbox.connect(box.id, connection_config=config, skip_health_check=True)
        async with sandbox:
            interpreter = await CodeInterpreter.create(sandbox, skip_health_check=True)
            for language, code in LANGUAGES.items():
                context = await interpreter.codes.create_context(language)
                assert context.language == language
                r = await interpreter.codes.run(code.keep, context=context)
                assert r.error is None, r.error
                r = await interpreter.codes.run(code.show, context=context)
                assert "".join(m.text for m in r.logs.stdout) == "42\n", r
                r = await interpreter.codes.run(code.fails, context=context)
                assert r.error.name == code.ename and r.error.value and r.error.traceback, r.error
                if code.sum_is_result:
                    r = await interpreter.codes.run(code.sum, context=context)
                    assert r.result[0].text == "4"
                await interpreter.codes.delete_context(context.id)
    asyncio.run(go())


def test_go_keeps_declarations(box, contexts):
    one, two = contexts("go")

    def go(code, id=one):
        return box.events(code, id=id)
    # as people copy programs: with its package and main()
    e = go('package main\nimport "fmt"\n\nfunc main() {\n\tfmt.Print("Hello")\n\tresult := 2 + 2\n\tfmt.Print(result)\n}')
    assert text(e) == "Hello4" and kinds(e)[-1] == "execution_complete", e
    e = go("import (\n  \"errors\"\n  str \"strings\"\n)\ntype T struct{ n int }\nfunc (t *T) Get() int { return t.n }\ntype G[K comparable] struct{ k K }\n"
           "func (g G[K]) Key() K { return g.k }\nconst (\n  A = iota\n  B\n)\nvar (\n  x, y = 1, 2\n  z = 3\n)")
    assert kinds(e)[-1] == "execution_complete", "imports that are not used are none of its errors"
    assert text(go('fmt.Println((&T{5}).Get(), G[string]{"k"}.Key(), A, B, x, y, z, str.ToUpper("up"), errors.New("e"))')) == "5 k 0 1 1 2 3 UP e\n"
    assert text(go('var x = 10\nfmt.Println(x)')) == "10\n" and text(go('fmt.Println(x, z)')) == "10 3\n"
    assert text(go('func() { fmt.Println(`raw\n"{`) }()\nif true {\n fmt.Println("{") } else {\n}\n/* } */ // }')) == 'raw\n"{\n{\n'
    assert text(go('import "strings"\n{\n  strings := T{3}\n  fmt.Println(strings.n)\n}')) == "3\n", "a variable with the name of a package"
    assert text(go('%%\nvar local = []int{1, 2}\nfmt.Println(local)')) == "[1 2]\n"
    e = error(go("fmt.Println(local)"))
    assert e["ename"] == "CompileError" and "undefined: local" in e["evalue"] and e["evalue"].startswith("cell"), e
    e = error(go("x := 1\nfunc broken( {"))
    assert e["ename"] == "CompileError" and e["traceback"], e
    assert text(go("fmt.Println(x)")) == "10\n", "what did not compile is not kept"
    e = error(go('import "os"\nfmt.Fprintln(os.Stderr, "err"); os.Exit(3)'))
    assert (e["ename"], e["evalue"]) == ("ExitError", "exit status 3")
    e = go("x := []int{}\nfmt.Println(x[3])")
    assert error(e)["ename"] == "panic" and "index out of range" in error(e)["evalue"] and "main.main()" in text(e, "stderr")
    assert "func (t *T) Get()" in text(go("%list"))
    assert kinds(go("%reset"))[-1] == "execution_complete"
    assert "undefined: T" in error(go("var t T"))["evalue"]


JAVA_MEMBER = """static Object member(Class<?> c, String name, Object in) throws Exception { var f = c.getDeclaredField(name); f.setAccessible(true); return f.get(in); }
static java.util.Random math(Class<?> c) throws Exception { return (java.util.Random) member(Class.forName(c.getName() + "$RandomNumberGeneratorHolder"), "randomNumberGenerator", null); }
static void seed(Class<?> c, String name) throws Exception { ((java.util.concurrent.atomic.AtomicLong) member(c, name, null)).set(42); }
static void fix() throws Exception {
  math(Math.class).setSeed(42); math(StrictMath.class).setSeed(42);
  seed(java.util.SplittableRandom.class, "defaultGen"); seed(java.util.concurrent.ThreadLocalRandom.class, "seeder");
  ((java.util.Random) member(java.util.Collections.class, "r", null)).setSeed(42);
}
static String draw() throws Exception {
  // other threads take seeds as well: which one is next is not known
  var next = ((java.util.concurrent.atomic.AtomicLong) member(java.util.concurrent.ThreadLocalRandom.class, "seeder", null)).get();
  var kept = false; for (int i = 0; i < 10000; i++) kept |= next == 42 + i * 0xbb67ae8584caa73bL;
  var list = new ArrayList<Integer>(); for (int i = 0; i < 100; i++) list.add(i);
  Collections.shuffle(list);
  return Math.random() + " " + StrictMath.random() + " " + new SplittableRandom().nextLong() + " " + kept + " " + list.hashCode();
}
Collections.shuffle(new ArrayList<>(List.of(1, 2)));"""
# What sets the generators of a prepared kernel, and what then draws from each of them; the cell before both.
GENERATORS = {
    "bash": ("", "RANDOM=42", "echo $RANDOM"),
    "java": (JAVA_MEMBER, "fix();", "System.out.println(draw());"),
}


def test_prepared_kernels_wait(daemon, tmp_path):
    """As in a template: one of each language. A restore brings a new machine id. Real clones: test_code.py and test_code_whole.py."""
    os.environ["GOCACHE"] = str(CACHE / "e2e" / "go-cache")
    j = Jupyter(tmp_path / "jupyter", languages=("javascript", "typescript", "java", "go")).start().wait()
    try:
        box = Box(daemon, **j.env)
        for _ in range(2):  # a probe may come again
            r = j.warm()
            assert r.returncode == 0, r.stderr
        kernels = j.kernels()
        assert len(kernels) == len(LANGUAGES)
        # nothing of the preparation is seen
        e = box.events("fmt.Println(1)", language="go")
        assert error(e)["ename"] == "CompileError" and "undefined: fmt" in error(e)["evalue"], e
        for language, code in LANGUAGES.items():
            e = box.events(code.sum, language=language)
            # tslab does not say which cell it took
            assert kinds(e)[-1] == "execution_complete" and e[1].get("execution_count", 1) == (2 if language == "go" else 1), e
        before = {}
        for language, (cell, fix, draw) in GENERATORS.items():
            assert not cell or kinds(box.events(cell, language=language))[-1] == "execution_complete"
            box.events(fix, language=language)
            before[language] = text(box.events(draw, language=language)).split()
            box.events(fix, language=language)
            assert text(box.events(draw, language=language)).split() == before[language], "the same machine, as after a resume: what was seeded stays"
            box.events(fix, language=language)
        j.machine_id.write_text("b" * 32)
        for language, (_, fix, draw) in GENERATORS.items():
            other = text(box.events(draw, language=language)).split()
            assert all(a != b for a, b in zip(before[language], other, strict=True)), f"{language}: {before[language]} {other}"
            box.events(fix, language=language)
            assert text(box.events(draw, language=language)).split() == before[language], "once: who seeds after that gets what was asked for"
            box.events(fix, language=language)
        j.machine_id.write_text("c" * 32)
        for language, (_, _, draw) in GENERATORS.items():
            assert text(box.events(draw, language=language)).split() == before[language], "a later snapshot is not a template"
        for language in ("javascript", "typescript"):
            e = box.events("console.log(Math.random() < 1)", language=language)
            assert text(e) == "true\n", e
        assert j.kernels() == kernels, "no other kernel was started"
    finally:
        j.stop()


@pytest.mark.parametrize("language", ["bash", "javascript", "java"])
def test_a_kernel_that_cannot_be_seeded_again_ends(daemon, prepared, language):
    prepared.machine_id.unlink(missing_ok=True)
    assert error(prepared.box.events(LANGUAGES[language].sum, language=language))["ename"] == "KernelDied"


@pytest.fixture(scope="module")
def prepared(daemon, tmp_path_factory):
    j = Jupyter(tmp_path_factory.mktemp("prepared"), languages=("javascript", "java")).start().wait()
    r = j.warm()
    assert r.returncode == 0, r.stderr
    j.box = Box(daemon, **j.env)
    yield j
    j.stop()


@pytest.mark.parametrize("language", ["javascript", "typescript"])
def test_files_of_the_working_directory_may_change(box, language, tmp_path):
    """The compiler watches it."""
    c = box.context(language, cwd=f"{tmp_path}/work")
    one = "import * as fs from 'fs'\nfs.mkdirSync('node_modules/later', { recursive: true }); fs.writeFileSync('node_modules/later/index.js', 'exports.value = 7'); fs.writeFileSync('x.ts', '')"
    for i in range(3):
        e = box.events(one, id=c)
        assert kinds(e)[-1] == "execution_complete", e
        (tmp_path / "work" / f"file{i}").mkdir()
        e = box.events("console.log(require('later').value)", id=c)
        assert text(e) == "7\n", e


def test_a_kernel_that_ends_itself(box):
    for language, code in (("javascript", "process.exit(3)"), ("java", "System.exit(3);"), ("bash", "kill -9 $PPID")):
        c = box.context(language)
        assert error(box.events(code, id=c))["ename"] == "KernelDied"
        end = time.monotonic() + LIMIT_S
        # the server cannot end a kernel while it starts that again
        while box.ask("DELETE", f"/code/contexts/{c}")[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.05)

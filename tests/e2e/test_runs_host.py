# SPDX-License-Identifier: Apache-2.0
"""Runs of the worker contract (POST /v1/mayfly/runs), with monitors that are played by fake/mayfly-vmm: the four statuses, idempotency, attempts, what a
full host, a timeout, a lost sandbox and a killed daemon leave. The fake's command prints its own text; "exit N" ends with N."""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import time

import pytest

from hostdaemon import HostDaemon, kill
from test_template_steps import TPL, built

CONF = {"runtime": {"templates": False}}


@pytest.fixture
def daemon(tmp_path):
    d = HostDaemon(tmp_path)
    yield d
    d.clean()


def given(run_id="r1", task="hello", context=None, **worker):
    return {"run_id": run_id, "task": task, "context": (context or {}) | {"worker": {"image": "tiny", "resource_limits": {"memory": "256Mi"}} | worker}}


def run(d, *args, headers=None, **more):
    status, answer, _ = d.ask("POST", "/v1/mayfly/runs", given(*args, **more), headers)
    assert sorted(answer) == ["result", "run_id", "status"], answer
    assert status == 200, answer
    return answer


def boots(d):
    return [s for _, s in d.steps()].count("boot")


def until_boots(d, n):
    end = time.monotonic() + 60
    while boots(d) < n:
        assert time.monotonic() < end, d.log()
        time.sleep(0.02)


def nothing_is_left(d):
    d.settled(0)
    d.cleared("blobs/*")
    assert d.ask("GET", "/v1/sandboxes")[1]["items"] == []


def test_ok(daemon):
    daemon.start(CONF)
    assert run(daemon) == {"run_id": "r1", "status": "ok", "result": {"attempts": 1, "exit_code": 0, "stdout": "hello\n", "stderr": ""}}
    nothing_is_left(daemon)
    text = '{"answer": [1, 2]}'
    assert run(daemon, "r2", text)["result"]["value"] == {"answer": [1, 2]}
    # the same run_id: the stored answer, and nothing is run
    assert boots(daemon) == 2
    assert run(daemon)["result"]["stdout"] == "hello\n" and boots(daemon) == 2
    # another input under it is refused, and changes nothing
    a = run(daemon, task="other")
    assert a["status"] == "invalid_request" and a["run_id"] == "r1" and "another input" in a["result"]["message"]
    assert run(daemon)["status"] == "ok" and boots(daemon) == 2
    assert "mayfly_runs_ok_total 2\n" in daemon.ask("GET", "/metrics")[1]


def test_a_task_that_fails_has_no_valid_output(daemon):
    daemon.start(CONF)
    a = run(daemon, task="exit 3")
    assert a["status"] == "invalid_output" and a["result"] == {"attempts": 1, "message": "The task ended with code 3.", "exit_code": 3, "stdout": "exit 3\n", "stderr": ""}
    assert run(daemon, task="exit 3") == a and boots(daemon) == 1
    a = run(daemon, "r2", "endless")
    assert a["status"] == "invalid_output" and "more than 256 KiB" in a["result"]["message"] and "stdout" not in a["result"]
    nothing_is_left(daemon)


OUTPUT = {"type": "object", "required": ["run_id", "status", "result"], "additionalProperties": False, "properties": {
    "run_id": {"type": "string"}, "status": {"enum": ["ok", "retryable_error", "invalid_request", "invalid_output"]},
    "result": {"type": "object", "required": ["value"], "properties": {"value": {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}}}}}
INPUT = {"type": "object", "required": ["run_id", "task", "context"], "additionalProperties": False, "properties": {
    "run_id": {"type": "string"}, "task": {"type": "string"}, "context": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 9}}}}}


def test_a_result_that_fails_its_schema(daemon):
    daemon.start(CONF)
    a = run(daemon, "good", '{"sum": 7}', output_schema=OUTPUT)
    assert a["status"] == "ok" and a["result"]["value"] == {"sum": 7}
    a = run(daemon, "bad", '{"sum": 7.5}', output_schema=OUTPUT)
    assert a["status"] == "invalid_output" and a["result"]["message"] == "output.result.value.sum is not of the type integer", a
    assert run(daemon, "none", "no JSON", output_schema=OUTPUT)["result"]["message"] == "output.result.value is missing"


def test_an_input_that_fails_its_schema_never_runs(daemon):
    daemon.start(CONF)
    a = run(daemon, context={"n": 10}, input_schema=INPUT)
    assert a["status"] == "invalid_request" and a["result"]["message"] == "input.context.n is outside of its schema's minimum and maximum"
    assert boots(daemon) == 0
    # nothing was run: the run_id may be used again
    assert run(daemon, context={"n": 9}, input_schema=INPUT)["status"] == "ok"


def test_a_message_that_is_cut_is_still_json(daemon):
    """A name is cut in the middle of a character: before the run, and in an answer that is stored."""
    daemon.start(CONF)
    name = "x" + "\u00e9" * 30
    a = run(daemon, input_schema={"required": [name]})
    assert a["status"] == "invalid_request" and a["result"]["message"] == "input.x" + "\u00e9" * 19 + "\ufffd is missing", a
    schema = {"properties": {"result": {"required": [name]}}}
    for _ in range(2):
        a = run(daemon, "r2", output_schema=schema)
        assert a["status"] == "invalid_output" and a["result"]["message"] == "output.result.x" + "\u00e9" * 19 + "\ufffd is missing", a


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"run_id":"a","run_id":"b"}', {}, {"run_id": "", "task": "x", "context": {}}, {"run_id": "a" * 129, "task": "x", "context": {}},
                                  {"run_id": 1, "task": "x", "context": {}}, {"run_id": "a", "task": "", "context": {}}, {"run_id": "a", "task": "x" * 100000, "context": {}},
                                  given() | {"more": 1}, {"run_id": "a", "task": "x", "context": {}}, given(image=None), given(template="tpl-x"), given(image="UPPER CASE"), given(language="cobol"),
                                  given(env={"A": 1}), given(env={"A=B": "1"}), given(env={"A": "x" * 40000}), given(timeout_seconds=0), given(timeout_seconds=3601), given(max_attempts=11),
                                  given(max_attempts="2"), given(unknown=1), given(resource_limits={"memory": "no"}), given(context={"x": "y" * 100000}), given(input_schema=[]),
                                  given(output_schema={"pattern": "x"}), given(output_schema={"properties": {"a": {"oneOf": []}}})], ids=lambda b: None)
def test_bad_requests(daemon, body):
    daemon.start(CONF)
    status, answer, _ = daemon.ask("POST", "/v1/mayfly/runs", body)
    assert status == 200 and answer["status"] == "invalid_request" and answer["result"]["message"], answer
    assert boots(daemon) == 0


def test_what_does_not_exist(daemon):
    daemon.start(CONF)
    body = {"run_id": "a", "task": "x", "context": {"worker": {"template": "tpl-00000000-0000-4000-8000-000000000000"}}}
    status, answer, _ = daemon.ask("POST", "/v1/mayfly/runs", body)
    assert status == 200 and answer["status"] == "invalid_request" and "not found" in answer["result"]["message"]


def test_from_a_template(daemon):
    daemon.start()
    status, tpl, _ = daemon.ask("POST", "/v1/templates", TPL)
    assert status == 201 and built(daemon, tpl["templateId"])["phase"] == "Succeeded", tpl
    n, body = boots(daemon), {"run_id": "t", "task": "hello", "context": {"worker": {"template": tpl["templateId"]}}}
    answer = daemon.ask("POST", "/v1/mayfly/runs", body)[1]
    assert answer["status"] == "ok" and answer["result"]["stdout"] == "hello\n" and boots(daemon) == n, answer
    # with what a create from a template may not have
    body["context"]["worker"]["resource_limits"] = {"cpu": "1"}
    assert daemon.ask("POST", "/v1/mayfly/runs", body | {"run_id": "u"})[1]["status"] == "invalid_request"


def test_a_timeout_is_tried_again_and_then_retryable(daemon):
    daemon.start(CONF)
    daemon.plan(agent="silent")
    a = run(daemon, timeout_seconds=2)
    # the fake never says that it began: so nothing is stored, and the same run_id runs again
    assert a == {"run_id": "r1", "status": "retryable_error", "result": {"message": "The task did not end within 2 s."}}
    assert boots(daemon) == 2
    daemon.plan()
    assert run(daemon, timeout_seconds=2)["status"] == "ok"
    nothing_is_left(daemon)


def test_a_task_that_never_ends(daemon):
    daemon.start(CONF)
    a = run(daemon, task="forever", timeout_seconds=1)
    assert a == {"run_id": "r1", "status": "retryable_error", "result": {"attempts": 2, "message": "The task did not end within 1 s."}}
    # it began: what it did is not done again under this run_id
    assert run(daemon, task="forever", timeout_seconds=1) == a and boots(daemon) == 2
    nothing_is_left(daemon)


def test_the_second_attempt_may_succeed(daemon):
    daemon.start(CONF)
    daemon.plan(boot=["error", "ok"])
    a = run(daemon)
    assert a["status"] == "ok" and a["result"]["attempts"] == 2
    nothing_is_left(daemon)


def test_a_full_host(daemon):
    daemon.start(CONF | {"limits": {"memory_mib": 300}})
    box = daemon.create()
    a = run(daemon, max_attempts=1)
    assert a["status"] == "retryable_error" and "This host is full" in a["result"]["message"]
    # nothing was run for it: the same run_id may try again
    assert daemon.ask("DELETE", f"/v1/sandboxes/{box}")[0] == 204
    daemon.settled(0)
    assert run(daemon, max_attempts=1)["status"] == "ok"


def until_runs(d):
    """Until the task's command was started: the fake logs what the agent is asked."""
    end = time.monotonic() + 60
    while "agent" not in [s for _, s in d.steps()]:
        assert time.monotonic() < end, d.log()
        time.sleep(0.02)


def test_a_lost_sandbox(daemon):
    daemon.start(CONF)
    daemon.plan(agent="silent")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run, daemon)
        until_runs(daemon)
        daemon.plan()
        for pid in daemon.monitors():
            os.kill(pid, signal.SIGKILL)
        a = answer.result()
    assert a["status"] == "ok" and a["result"]["attempts"] == 2, a
    nothing_is_left(daemon)


def test_twenty_with_one_run_id(daemon):
    daemon.start(CONF)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: json.dumps(run(daemon)), range(20)))
    assert len(set(answers)) == 1 and boots(daemon) == 1
    nothing_is_left(daemon)


def test_a_client_that_leaves_gets_the_answer_later(daemon):
    daemon.start(CONF)
    daemon.plan(setup="later")
    with pytest.raises(OSError):
        daemon.ask("POST", "/v1/mayfly/runs", given(), timeout=1)
    until_boots(daemon, 1)
    daemon.plan(go="yes")
    assert run(daemon)["status"] == "ok" and boots(daemon) == 1
    nothing_is_left(daemon)


def test_each_key_has_its_own(daemon):
    daemon.start(CONF | {f"server.keys.{n}": {"key": f"secret of {n}, long enough", "namespace": n} for n in ("alice", "bob")})
    heads = [{"OPEN-SANDBOX-API-KEY": f"secret of {n}, long enough"} for n in ("alice", "bob")]
    for h in heads:
        assert run(daemon, headers=h)["status"] == "ok"
    assert boots(daemon) == 2
    # one key's use of a run_id says nothing to another
    assert run(daemon, "r2", "one", headers=heads[0])["status"] == run(daemon, "r2", "two", headers=heads[1])["status"] == "ok"


def test_limits(daemon):
    daemon.start(CONF | {"runs": {"max_running": 1, "keep": 1}})
    daemon.plan(setup="later")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, daemon)
        until_boots(daemon, 1)
        a = run(daemon, "r2")
        assert a["status"] == "retryable_error" and "runs.max_running" in a["result"]["message"]
        daemon.plan(go="yes")
        assert first.result()["status"] == "ok"
    # the newest answer is kept, the older one is not
    assert run(daemon, "r2")["status"] == "ok" and boots(daemon) == 2
    assert run(daemon, "r2")["status"] == "ok" and boots(daemon) == 2
    assert run(daemon)["status"] == "ok" and boots(daemon) == 3


KEY, ROOT = {"OPEN-SANDBOX-API-KEY": "secret of a tenant, long enough"}, {"OPEN-SANDBOX-API-KEY": "root"}
SMALL = CONF | {"server.keys.tenant": {"key": KEY["OPEN-SANDBOX-API-KEY"], "namespace": "tenant"}, "limits": {"budget_key_mib": 4}}


def held(d, what="bytes", owner="tenant/tenant"):
    m = re.search(rf'(?m)^mayfly_held{{what="{what}",owner="{owner}"}} (\d+)$', d.ask("GET", "/metrics", headers=ROOT)[1])
    return int(m[1]) if m else 0


def test_long_answers_fit_into_their_key_s_budget(daemon):
    """Thirty requests wait for one run, and its answer is copied for each of them: for as many as the key's budget has room."""
    daemon.start(SMALL, api_key="root")
    daemon.plan(setup="later")
    body, n = given(task=json.dumps(["x" * 60000])), 30
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        asked = [pool.submit(daemon.ask, "POST", "/v1/mayfly/runs", body, KEY) for _ in range(n)]
        until_boots(daemon, 1)
        end = time.monotonic() + 60
        while held(daemon) < n * 60000:
            assert time.monotonic() < end, held(daemon)
            time.sleep(0.02)
        daemon.plan(go="yes")
        answers = [a.result()[:2] for a in asked]
    told = [a for status, a in answers if status == 200]
    assert told and all(a["status"] == "ok" for a in told)
    assert 0 < [status for status, _ in answers].count(429) == n - len(told), [status for status, _ in answers]
    # nothing is lost: the answer is stored
    assert run(daemon, headers=KEY, task=body["task"]) == told[0] and boots(daemon) == 1


def test_what_other_keys_hold_takes_no_answers_away(daemon):
    """All keys together have 12 MiB, and two of them fill it with requests that they do not finish, while a run of a third is in progress."""
    keys = {n: f"secret of {n}, long enough" for n in ("victim", "one", "other")}
    conf = CONF | {f"server.keys.{n}": {"key": k, "namespace": n} for n, k in keys.items()}
    daemon.start(conf | {"limits": {"budget_mib": 16, "budget_key_mib": 8}}, api_key="root")
    # beyond the MiB that every key has for itself
    victim = {"OPEN-SANDBOX-API-KEY": keys["victim"]}
    ids = [f"old{i}" for i in range(12)]
    for i in ids:
        assert run(daemon, i, json.dumps(["x" * 60000]), headers=victim)["status"] == "ok"
    daemon.plan(setup="later")
    with concurrent.futures.ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as open_ones:
        last = pool.submit(daemon.ask, "POST", "/v1/mayfly/runs", given("last", json.dumps(["x" * 60000])), victim)
        until_boots(daemon, 13)
        end = time.monotonic() + 60
        for n in ("one", "other"):
            while (left := min((12 << 20) - held(daemon, "tenants_bytes", ""), (8 << 20) - held(daemon, owner=f"{n}/{n}"))) > 60000:
                # beside its body, a request holds a little
                size, before = min(left - 30000, 900000), held(daemon, owner=f"{n}/{n}")
                s = open_ones.enter_context(socket.create_connection(("127.0.0.1", daemon.port)))
                s.sendall(f"POST /v1/sandboxes HTTP/1.1\r\nHost: a\r\nOPEN-SANDBOX-API-KEY: {keys[n]}\r\nContent-Length: {size + 1}\r\n\r\n".encode() + b" " * size)
                while held(daemon, owner=f"{n}/{n}") < before + size:
                    assert time.monotonic() < end, (n, left, size)
                    time.sleep(0.02)
        daemon.plan(go="yes")
        # there may be no room to give it, but it is stored
        assert last.result()[0] in (200, 429)
    end = time.monotonic() + 60
    while held(daemon, "tenants_bytes", "") > 8 << 20:
        assert time.monotonic() < end
        time.sleep(0.02)
    for i in [*ids, "last"]:
        assert run(daemon, i, json.dumps(["x" * 60000]), headers=victim)["status"] == "ok"
    assert boots(daemon) == 13, "each answer is there"


def test_a_run_that_writes_most_is_paused_when_the_disk_is_nearly_full(daemon):
    """And not its neighbour, which writes less."""
    daemon.start(CONF | {"limits": {"disk_reserve_mib": 0}})
    blobs = daemon.dir / "state" / "blobs"
    box = daemon.create()
    daemon.until(box, "Running")
    theirs = set(blobs.glob("*.data"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        answer = pool.submit(run, daemon, task="forever", timeout_seconds=600, max_attempts=1)
        until_boots(daemon, 2)
        until_runs(daemon)
        pid = int([p for p, s in daemon.steps() if s == "boot"][1])
        ours = set(blobs.glob("*.data")) - theirs
        daemon.reload(CONF | {"limits": {"disk_reserve_mib": 1 << 29}})
        end, at = time.monotonic() + 60, 0
        with contextlib.ExitStack() as files:
            writers = [(files.enter_context(open(f, "r+b")), mib) for fs, mib in ((ours, 2), (theirs, 1)) for f in fs]
            assert len(writers) == 2
            while not (m := re.search("MiB left: sandbox (.*), which writes most, is paused", daemon.log(4000))):
                assert time.monotonic() < end and at < 60, daemon.log()
                for f, mib in writers:
                    f.seek(at * mib << 20)
                    f.write(b"w" * (mib << 20))
                    f.flush()
                at += 1
                time.sleep(0.25)
        # the first that is paused; the neighbour may be the next
        assert m[1] != box
        daemon.reload(CONF | {"limits": {"disk_reserve_mib": 0}})
        os.kill(pid, signal.SIGKILL)
        assert answer.result()["status"] == "retryable_error"


def test_standard_error_that_is_dropped_is_slow(daemon):
    """A task prints without end where nobody reads: a MiB in each second, and what sockets hold."""
    daemon.start(CONF)
    a = run(daemon, task="noisy", timeout_seconds=3, max_attempts=1)
    assert a["status"] == "retryable_error" and "did not end within 3 s" in a["result"]["message"], a
    assert 0 < [s for _, s in daemon.steps()].count("noise") <= 10
    nothing_is_left(daemon)


def test_a_parsed_input_counts_as_what_it_takes(daemon):
    """Its text fits eight times into the records of the key, its parsed form does not."""
    daemon.start(SMALL, api_key="root")
    a = run(daemon, headers=KEY, input_schema={"default": [0] * 40000})
    assert a["status"] == "retryable_error" and "limits.budget_key_mib" in a["result"]["message"], a
    assert boots(daemon) == 0
    assert run(daemon, headers=KEY, input_schema={"default": [0] * 4000})["status"] == "ok"


def test_a_request_beyond_512_kib_is_refused(daemon):
    daemon.start(CONF)
    status, a, _ = daemon.ask("POST", "/v1/mayfly/runs", given(input_schema={"description": "x" * (512 << 10)}))
    assert status == 413 and "too long" in a["message"], a
    assert run(daemon, input_schema={"description": "x" * (511 << 10)})["status"] == "ok"


def test_so_many_wait_for_one_run(daemon):
    daemon.start(CONF)
    daemon.plan(setup="later")
    with concurrent.futures.ThreadPoolExecutor(35) as pool:
        asked = [pool.submit(run, daemon) for _ in range(35)]
        early = [a.result() for _, a in zip(range(3), concurrent.futures.as_completed(asked, timeout=60))]
        assert {a["status"] for a in early} == {"retryable_error"} and "may wait for this run" in early[0]["result"]["message"]
        daemon.plan(go="yes")
        answers = [a.result()["status"] for a in asked]
    assert sorted(answers) == ["ok"] * 32 + ["retryable_error"] * 3 and boots(daemon) == 1


def test_an_answer_that_cannot_be_stored(daemon):
    daemon.start(CONF)
    with daemon.unwritable("runs"):
        a = run(daemon)
        assert a["status"] == "retryable_error" and "cannot be stored" in a["result"]["message"]
    nothing_is_left(daemon)
    assert run(daemon)["status"] == "ok"


@pytest.mark.parametrize("step", ["boot", "setup", "agent"])
def test_a_killed_daemon_leaves_nothing_and_runs_again(daemon, step):
    daemon.start(CONF)
    stored = run(daemon, "before")
    daemon.plan(**{step: "silent" if step == "agent" else "later" if step == "setup" else "hang"})
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        lost = pool.submit(run, daemon)
        end = time.monotonic() + 60
        while [s for _, s in daemon.steps()].count(step) < 2:
            assert time.monotonic() < end, daemon.log()
            time.sleep(0.02)
        daemon.end()
        with pytest.raises((OSError, AssertionError)):
            lost.result()
    daemon.plan()
    # the helper ends the lost monitor, and there is none here
    for pid in daemon.monitors():
        kill(pid)
    daemon.again()
    nothing_is_left(daemon)
    with contextlib.closing(sqlite3.connect(daemon.dir / "state" / "state.db")) as db:
        end = time.monotonic() + 60
        while db.execute("SELECT count(*) FROM sandboxes").fetchone() != (0,):
            assert time.monotonic() < end, daemon.log()
            time.sleep(0.02)
    n = boots(daemon)
    assert run(daemon, "before") == stored and boots(daemon) == n, "what was answered is answered again"
    assert run(daemon)["status"] == "ok" and boots(daemon) == n + 1
    nothing_is_left(daemon)

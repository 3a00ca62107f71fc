# SPDX-License-Identifier: Apache-2.0
"""Many clients create, run and kill for a minute while the daemon is killed twice: no wrong answer, nothing acknowledged lost, nothing left over."""
import concurrent.futures
import http.client
import json
import os
import time
import urllib.error
import urllib.request
import uuid

STRESS = bool(os.environ.get("MAYFLY_STRESS"))
CLIENTS, SECONDS, KILLS = (200, 600, 10) if STRESS else (16, 60, 2)
SANDBOX = {"image": {"uri": "tiny"}, "entrypoint": ["tail", "-f", "/dev/null"], "resourceLimits": {"cpu": "1", "memory": "256Mi"}, "timeout": 900}
GONE = (urllib.error.URLError, ConnectionError, http.client.HTTPException, TimeoutError)


def ask(daemon, method, path, body=None, **headers):
    """One exchange: (status, text), or None when the daemon was not there to answer."""
    req = urllib.request.Request(daemon.url + path, method=method, data=None if body is None else json.dumps(body).encode(),
                                 headers={"OPEN-SANDBOX-API-KEY": daemon.api_key, "Content-Type": "application/json"} | headers)
    try:
        with urllib.request.urlopen(req, timeout=120) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()
    except GONE:
        return None


def until_answered(end, *args, **kw):
    while time.monotonic() < end:
        r = ask(*args, **kw)
        if r:
            return r
        time.sleep(0.2)
    raise AssertionError(f"no answer to {args[1:3]}")


def client(daemon, end, n):
    rounds, wrong = 0, []
    while time.monotonic() < end:
        limit = time.monotonic() + 120
        status, text = until_answered(limit, daemon, "POST", "/v1/sandboxes", SANDBOX, **{"Idempotency-Key": str(uuid.uuid4())})
        if status != 202:
            # the one that the kill interrupted is reported as what it is: not made
            wrong += [] if status in (429, 500, 503) else [(status, text)]
            continue
        sb = json.loads(text)["id"]
        r = ask(daemon, "POST", f"/{sb}/44772/command", {"command": f"echo {n}-{rounds}"})
        if r and r[0] == 200 and "execution_complete" in r[1] and f"{n}-{rounds}" not in r[1]:
            wrong.append(r)
        status, text = until_answered(limit, daemon, "GET", f"/v1/sandboxes/{sb}")
        if status != 200:
            wrong.append(("acknowledged and lost", sb, status, text))
        status, text = until_answered(limit, daemon, "DELETE", f"/v1/sandboxes/{sb}")
        if status not in (204, 404):
            wrong.append((status, text))
        rounds += 1
    return rounds, wrong


def monitors(daemon):
    return int(daemon.machine.run("sh", "-c", "pgrep -c mayfly-vmm || true").stdout or 0)


def test_clients_and_kills(daemon):
    end = time.monotonic() + SECONDS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        work = [pool.submit(client, daemon, end, n) for n in range(CLIENTS)]
        for _ in range(KILLS):
            time.sleep(SECONDS / (KILLS + 1))
            daemon.kill()
        done = [w.result() for w in work]
    rounds, wrong = sum(r for r, _ in done), [w for _, ws in done for w in ws]
    print(f"{rounds} rounds of {CLIENTS} clients in {SECONDS} s, {KILLS} kills")
    assert not wrong, wrong[:5]
    assert rounds >= CLIENTS
    # what an interrupted create left is recorded as failed, and goes with its record
    items = json.loads(until_answered(time.monotonic() + 60, daemon, "GET", "/v1/sandboxes?pageSize=200")[1])["items"]
    assert not [i for i in items if i["status"]["state"] not in ("Failed", "Terminated")], items
    for i in items:
        assert until_answered(time.monotonic() + 60, daemon, "DELETE", f"/v1/sandboxes/{i['id']}")[0] in (204, 404)
    limit = time.monotonic() + 60
    while monitors(daemon) > 4 and time.monotonic() < limit:  # the pool's blanks stay
        time.sleep(0.5)
    assert monitors(daemon) <= 4, daemon.machine.run("ps", "axo", "pid,args").stdout

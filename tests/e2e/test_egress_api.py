# SPDX-License-Identifier: Apache-2.0
"""The egress API of a sandbox: policies as clients send, change and read them (protocol, section 3), with a monitor without a machine. What a policy
does to connections is tried in test_net.py and test_net_guest.py."""
import json
import os
import subprocess
import time
import urllib.error
import urllib.request

import pytest

from conftest import MAYFLY
from hostdaemon import HostDaemon

ALLOW = {"action": "allow", "target": "good.example"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("egress"))
    d.start({"runtime": {"templates": False}})
    yield d
    d.clean()


def call(d, method, path, body=None, **headers):
    data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
    r = urllib.request.Request(d.url + path, data, d.headers | headers, method=method)
    try:
        with urllib.request.urlopen(r, timeout=30) as a:
            text = a.read().decode()
            return a.status, json.loads(text) if a.headers["Content-Type"] == "application/json" else text
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


@pytest.fixture
def box(daemon):
    return daemon.create(timeout=600)


def rules(d, box):
    status, a = call(d, "GET", f"/v1/sandboxes/{box}/networkpolicy")
    assert status == 200
    return a["policy"]["defaultAction"], [(r["action"], r.get("target"), r.get("ports")) for r in a["policy"]["egress"]]


def test_without_a_policy_all_is_allowed(daemon, box):
    assert call(daemon, "GET", f"/{box}/18080/policy") == (200, {"status": "ok", "mode": "allow_all", "enforcementMode": "dns+nft",
                                                                  "policy": {"defaultAction": "allow", "egress": []}})
    assert call(daemon, "GET", f"/{box}/18080/healthz") == (200, "ok")
    assert "headers" not in call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]


def test_a_policy_of_create_has_a_token(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW, {"target": "10.0.0.0/8"}]})
    endpoint = call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]
    token = endpoint["headers"]["OPENSANDBOX-EGRESS-AUTH"]
    assert "headers" not in call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080?use_server_proxy=true")[1]
    assert "headers" not in call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/8080")[1]
    for headers in ({}, {"OPENSANDBOX-EGRESS-AUTH": "x"}, {"OPENSANDBOX-EGRESS-AUTH": token[:-1] + "x"}):
        assert call(daemon, "GET", f"/{box}/18080/policy", **headers) == (401, "unauthorized")
        assert call(daemon, "PUT", f"/{box}/18080/policy", {}, **headers) == (401, "unauthorized")
    status, a = call(daemon, "GET", f"/{box}/18080/policy", **{"OPENSANDBOX-EGRESS-AUTH": token})
    assert (status, a["mode"]) == (200, "enforcing")
    assert rules(daemon, box) == ("deny", [("allow", "good.example", None), ("deny", "10.0.0.0/8", None)])


def test_put_replaces_and_resets(daemon, box):
    path = f"/{box}/18080/policy"
    for method in ("POST", "PUT"):
        assert call(daemon, method, path, {"defaultAction": "allow", "egress": [ALLOW]})[1] == {"status": "ok", "mode": "enforcing", "enforcementMode": "dns+nft"}
        for empty in (b"", b"null", b"{}", b" \n"):
            assert call(daemon, method, path, empty)[1] == {"status": "ok", "mode": "deny_all", "enforcementMode": "dns+nft", "reason": "policy reset to default deny-all"}
        assert rules(daemon, box) == ("deny", [])
    call(daemon, "PUT", path, {"defaultAction": "allow"})
    assert call(daemon, "GET", path)[1]["mode"] == "allow_all"


def test_patch_puts_rules_before_the_others(daemon, box):
    path = f"/v1/sandboxes/{box}/networkpolicy"
    call(daemon, "PUT", path, {"egress": [ALLOW, {"action": "deny", "target": "x.example"}]})
    assert call(daemon, "PATCH", path, [{"action": "deny", "target": "GOOD.example"}, {"action": "allow", "target": "y.example"}, {"action": "deny", "target": "y.example"}])[0] == 200
    assert rules(daemon, box) == ("deny", [("deny", "GOOD.example", None), ("allow", "y.example", None), ("deny", "x.example", None)])
    # a rule with ports is another rule than the one without
    call(daemon, "PATCH", path, [{"action": "allow", "target": "192.0.2.0/24", "ports": [443, 80]}, {"action": "allow", "target": "192.0.2.0/24"}, {"action": "deny", "ports": [25]}])
    assert rules(daemon, box)[1][:3] == [("allow", "192.0.2.0/24", [80, 443]), ("allow", "192.0.2.0/24", None), ("deny", None, [25])]
    assert call(daemon, "DELETE", path, ["192.0.2.0/24", ""])[0] == 200
    assert [r[1] for r in rules(daemon, box)[1]] == ["GOOD.example", "y.example", "x.example"]
    assert call(daemon, "DELETE", path, ["never.example"])[1]["reason"] == "no matching targets found"


@pytest.mark.parametrize("body,says", [
    (b"{", "JSON"), (b'{"egress":[]} x', "JSON"), (b"[]", "object"), ({"egress": {}}, "list"), ({"defaultAction": "maybe"}, "defaultAction"), ({"egress": [1]}, "rule 1"),
    ({"egress": [ALLOW, {"action": "permit", "target": "a.example"}]}, "rule 2"), ({"egress": [{"action": "allow", "target": ""}]}, "target"),
    ({"egress": [{"action": "allow"}]}, "rule 1"), ({"egress": [{"action": "allow", "target": "1.2.3.4/99"}]}, "1.2.3.4/99"), ({"egress": [{"action": "allow", "target": "a b"}]}, "a b"),
    ({"egress": [{"action": "allow", "target": "\u00e9.example"}]}, "rule 1"), ({"egress": [{"action": "allow", "target": "a.example", "ports": [80]}]}, "a.example"),
    ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": [0]}]}, "port"), ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": [80, 80]}]}, "twice"),
    ({"egress": [{"action": "allow", "target": "1.2.3.4", "ports": ["80"]}]}, "port"), ({"egress": [{"action": "allow", "target": "x" * 5000}]}, "too long")])
def test_bad_policies_are_refused_with_the_rule(daemon, box, body, says):
    before = rules(daemon, box)
    status, text = call(daemon, "PUT", f"/{box}/18080/policy", body)
    assert status == 400 and says in text, text
    status, text = call(daemon, "PUT", f"/v1/sandboxes/{box}/networkpolicy", body)
    assert status == 400 and json.loads(text)["code"] == "SANDBOX::INVALID_PARAMETER" and says in json.loads(text)["message"]
    assert rules(daemon, box) == before


def test_many_rules(daemon, box):
    path = f"/{box}/18080/policy"
    many = [{"action": "allow", "target": f"n{i}.example"} for i in range(10000)]
    assert call(daemon, "PUT", path, {"egress": many})[0] == 413
    assert call(daemon, "PUT", path, {"egress": many[:4096]})[0] == 200
    assert call(daemon, "PATCH", path, many[5000:5001])[0] == 413
    assert call(daemon, "PATCH", path, many[7:8])[0] == 200
    assert len(rules(daemon, box)[1]) == 4096
    for empty in (b"", [], {}):
        assert call(daemon, "PATCH", path, empty)[0] == 400
        assert call(daemon, "DELETE", path, empty)[0] == 400


def test_a_policy_survives_the_daemon(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    call(daemon, "PATCH", f"/v1/sandboxes/{box}/networkpolicy", [{"action": "allow", "target": "later.example"}])
    token = call(daemon, "GET", f"/v1/sandboxes/{box}/endpoints/18080")[1]["headers"]["OPENSANDBOX-EGRESS-AUTH"]
    daemon.end()
    daemon.again()
    assert [r[1] for r in rules(daemon, box)[1]] == ["later.example", "good.example"]
    assert call(daemon, "GET", f"/{box}/18080/policy", **{"OPENSANDBOX-EGRESS-AUTH": token})[0] == 200


def test_a_policy_is_bounded_in_work_and_memory(daemon, box):
    """4,096 rules and hundreds of thousands of targets to remove, or a million ports: refused, and nobody waits for it."""
    path = f"/v1/sandboxes/{box}/networkpolicy"
    many = [{"action": "deny", "target": f"n{i}.example"} for i in range(4096)]
    assert call(daemon, "PUT", path, {"egress": many})[0] == 200
    begun = time.monotonic()
    assert call(daemon, "DELETE", path, ["a"] * 200000)[0] == 413
    assert time.monotonic() - begun < 10  # it was minutes
    ports = [{"action": "deny", "target": f"10.0.{i}.0/24", "ports": list(range(1, 257))} for i in range(33)]
    status, text = call(daemon, "PUT", path, {"egress": ports})
    assert status == 413 and "ports together" in str(text)
    assert call(daemon, "PUT", path, {"egress": ports[:20]})[0] == 200
    assert call(daemon, "PATCH", path, [r | {"target": r["target"].replace("10.0", "10.1")} for r in ports[:20]])[0] == 413


def test_a_snapshot_brings_its_policy(daemon):
    box = daemon.create(timeout=600, networkPolicy={"egress": [ALLOW]})
    snap = call(daemon, "POST", f"/v1/sandboxes/{box}/snapshots", {})[1]["id"]
    end = time.monotonic() + 30
    while call(daemon, "GET", f"/v1/snapshots/{snap}")[1]["status"]["state"] != "Ready":
        assert time.monotonic() < end
        time.sleep(0.05)
    made = {"snapshotId": snap, "resourceLimits": {"memory": "256Mi"}}
    status, copy = call(daemon, "POST", "/v1/sandboxes", made)
    assert status == 202 and rules(daemon, copy["id"]) == ("deny", [("allow", "good.example", None)])
    # its own token, and nobody without it changes what the snapshot brought
    tokens = [call(daemon, "GET", f"/v1/sandboxes/{b}/endpoints/18080")[1]["headers"]["OPENSANDBOX-EGRESS-AUTH"] for b in (box, copy["id"])]
    assert len(set(tokens)) == 2
    assert call(daemon, "PUT", f"/{copy['id']}/18080/policy", {"defaultAction": "allow"})[0] == 401
    assert rules(daemon, copy["id"])[0] == "deny"
    status, copy = call(daemon, "POST", "/v1/sandboxes", made | {"networkPolicy": {"defaultAction": "allow"}})
    assert status == 202 and rules(daemon, copy["id"]) == ("allow", [])


def test_the_command_line(daemon):
    env = os.environ | {"OPEN_SANDBOX_DOMAIN": daemon.url.removeprefix("http://"), "OPEN_SANDBOX_API_KEY": daemon.headers.get("OPEN-SANDBOX-API-KEY", "")}

    def cli(*args):
        r = subprocess.run([MAYFLY, *args], env=env, capture_output=True, text=True, timeout=60)
        return r.returncode, r.stdout, r.stderr

    code, box, err = cli("create", "--allow", "a.example", "--deny", "10.0.0.0/8", "tiny")
    box = box.strip()
    assert code == 0, err
    assert rules(daemon, box) == ("deny", [("deny", "10.0.0.0/8", None), ("allow", "a.example", None)])
    assert cli("egress", "allow", box, "b.example", "*.c.example")[0] == 0
    assert cli("egress", "rm", box, "a.example")[0] == 0
    assert rules(daemon, box) == ("deny", [("allow", "b.example", None), ("allow", "*.c.example", None), ("deny", "10.0.0.0/8", None)])
    out = cli("egress", "show", box)[1]
    assert out.startswith("enforcing, default deny\n") and "b.example" in out
    assert json.loads(cli("egress", "show", "--json", box)[1])["seen"] == {"counters": {}, "denied": []}
    code, _, err = cli("egress", "allow", box, "no such/rule")
    assert code == 1 and "no such/rule" in err
    assert cli("egress", "set", box, "open")[0] == 0 and rules(daemon, box) == ("allow", [])
    assert cli("egress", "set", box, "sideways")[0] == 2
    for args in (("--network", "half"), ("--network", "none", "--allow", "x.example")):
        assert cli("create", *args, "tiny")[0] == 1
    for args, want in ((("--network", "none"), ("deny", [])), (("--network", "open", "--deny", "x.example"), ("allow", [("deny", "x.example", None)]))):
        assert rules(daemon, cli("create", *args, "tiny")[1].strip()) == want

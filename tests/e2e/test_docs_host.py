# SPDX-License-Identifier: Apache-2.0
"""The examples of README, CONTRIBUTING, docs/, bench/README and of every --help: each one is run by a test, or stands here with the reason why not. What
needs no virtual machine is run here, against a daemon whose monitors are played (hostdaemon.py). The others: test_docs.py, test_sdks.py."""
import json
import os
import re
import subprocess

import pytest

from conftest import BIN, MAYFLY, TOP
from hostdaemon import HostDaemon

PAGES = ["README.md", "CONTRIBUTING.md", "AGENTS.md", "bench/README.md", *sorted(f"docs/{p.name}" for p in (TOP / "docs").glob("*.md"))]
TESTS = TOP / "tests" / "e2e"

# page -> the first line of each block that no comment <!-- test: NAME --> marks -> the tests that run it, or "not run: " and why
BLOCKS = {
    "README.md": {
        "make quickstart ": "not run: it installs packages; its last step is test_docs::test_the_quickstart_page, and `make test` is what runs this test",
        'eval "$(build/bin/mayfly env)"; export PATH': "test_docs::test_the_five_things_of_the_readme",
        '# eval "$(build/bin/mayfly env)", pip': "test_sdks::test_readme_in_python",
        '// eval "$(build/bin/mayfly env)", npm': "test_sdks::test_readme_in_javascript",
    },
    "CONTRIBUTING.md": {"export MAYFLY_MACHINE=mine": "test_docs::test_the_appliance_of_contributing test_machine::test_terminal test_machine::test_data_lasts_the_root_does_not"},
    "bench/README.md": {
        "make bench ": "test_bench::test_a_run_is_whole test_bench::test_compare_finds_five_milliseconds_and_no_noise",
        "from mb_core import us_since": "not run: a pattern for a scenario; those of bench/scenarios have this form, and test_bench::test_a_run_is_whole runs one",
    },
    "docs/ARCHITECTURE.md": {" SDK / CLI / browser": "not run: a diagram"},
    "docs/benchmarks.md": {
        "bench/doctor ": "test_docs_host::test_the_bench_answers test_bench::test_a_run_is_whole test_bench::test_compare_finds_five_milliseconds_and_no_noise",
        "bench/run --machine bench": "not run: it takes 18 minutes; test_bench::test_a_run_is_whole runs the same with six samples",
        "scenario       arm ": "not run: the output of bench/compare",
    },
    "docs/configuration.md": {"# Configuration of mayflyd.": "test_daemon::test_the_page_of_the_configuration_has_every_key test_daemon::test_a_fresh_configuration_is_a_good_one"},
    "docs/images.md": {
        "mayfly image pull python:3.12": "test_pull::test_pull_from_a_real_registry test_pull::test_platforms_of_an_index test_images::test_every_kind_of_source_gives_the_same_tree "
                                         "test_images::test_recipes_equal_a_reference_unpacking test_images::test_names_pins_and_removal test_disk::test_flattened_is_the_same_disk",
        "POST /v1/templates {": "test_docs_host::test_the_warm_template_of_the_images_page test_code::test_twenty_clones_of_a_warm_template_draw_their_own_numbers",
    },
    "docs/ingress.md": {"[ingress]": "test_docs_host::test_a_configuration_of_the_docs"},
    "docs/network.md": {
        "mayfly run --allow pypi.org": "test_docs_host::test_policies_of_the_network_page",
        "mayfly egress show SANDBOX": "test_docs_host::test_policies_of_the_network_page",
        "[network]": "test_docs_host::test_a_configuration_of_the_docs",
    },
    "docs/quickstart.md": {
        "git clone URL-OF-THIS-REPOSITORY": "not run: it installs packages; see README.md",
        "export PATH=$PWD/build/bin:$PATH": "test_docs::test_the_five_things_of_the_readme",
        "make down ": "not run: it removes the caches and the sandboxes of whoever runs the tests",
    },
    "docs/sdk.md": {
        'eval "$(mayfly env)"': "test_docs::test_the_five_things_of_the_readme test_cli_host::test_env_is_for_a_shell_and_for_scripts",
        "from code_interpreter import": "not run: Jupyter may need longer than the 30 s that this waits for it on an emulated CPU; test_code::test_the_readme_example makes the same calls",
        '{"mcpServers":': "test_docs_host::test_the_agents_entry_of_the_sdk_page test_mcp::test_mcp_server",
    },
    "docs/volumes.md": {
        "mayfly volume create data": "test_docs::test_the_volumes_page",
        '{"name": "v", "pvc":': "test_docs::test_the_volumes_page",
        "[storage]": "test_docs_host::test_a_configuration_of_the_docs test_volumes::test_a_host_folder",
    },
}
# whole files -> their test
FILES = {
    "Tour.java": "test_sdks::test_tour_in_java", "Volumes.java": "test_sdks::test_volumes_in_java", "fork.mjs": "test_sdks::test_fork_in_javascript", "fork.py": "test_sdks::test_fork_in_python",
    "haproxy.cfg": "test_ingress_tls_host::test_https_and_a_new_certificate", "pom.xml": "test_sdks::test_tour_in_java", "quickstart.mjs": "test_sdks::test_quickstart_in_javascript",
    "quickstart.py": "test_sdks::test_quickstart_in_python", "tour.mjs": "test_sdks::test_tour_in_javascript", "tour.py": "test_sdks::test_tour_in_python",
    "volumes.mjs": "test_sdks::test_volumes_in_javascript", "volumes.py": "test_sdks::test_volumes_in_python", "worker.md": "test_runs::test_the_example_worker",
}
# what a --help names to be typed -> its test
IN_HELP = {
    'eval "$(mayfly env)"': "test_docs::test_the_five_things_of_the_readme test_cli_host::test_env_is_for_a_shell_and_for_scripts",
    "source <(mayfly completion bash)": "test_cli_host::test_a_shell_completes_commands_options_and_sandboxes",
    "source <(mayfly completion zsh)": "test_cli_host::test_a_shell_completes_commands_options_and_sandboxes",
    "mayfly completion fish | source": "test_cli_host::test_a_shell_completes_commands_options_and_sandboxes",
    "5432:/run/postgresql/.s.PGSQL.5432": "test_forward_host::test_a_unix_socket_of_the_sandbox",
    "mayfly exec -it": "test_docs::test_the_five_things_of_the_readme test_exec_it_host::test_attach_again",
    "run -it": "test_exec_it_host::test_a_terminal",
    "mayfly rm": "test_docs::test_the_quickstart_page",
    "mayfly logs": "test_cli::test_detached_commands_and_their_logs",
    "name = value": "test_vmm_cli::test_a_config_file_snapshot_and_restore",
    "task": "not run: the name of a field, which test_cli_host::test_worker gives",
}
PROGRAMS = ("mayflyd", "mayfly-vmm", "mayfly-priv")


def blocks(page):
    """(its first line, its text, whether a comment above it names a test) of each block."""
    found = re.findall(r"^(<!-- test: \w+ -->\n)?```\w*\n(.*?)^```$", (TOP / page).read_text(), re.M | re.S)
    return [(text.split("\n")[0], text, bool(mark)) for mark, text in found]


def block(page, first):
    return next(text for line, text, _ in blocks(page) if line.startswith(first))


def is_a_test(name):
    file, _, function = name.partition("::")
    return (TESTS / f"{file}.py").exists() and re.search(rf"^def {function}\(", (TESTS / f"{file}.py").read_text(), re.M)


def has_a_test(said):
    """A test for it, or a reason."""
    return said.startswith("not run: ") or all(map(is_a_test, said.split()))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    known = dict(BLOCKS.get(page, {}))
    for first, text, marked in blocks(page):
        if marked:
            assert page in ("docs/quickstart.md", "docs/sdk.md"), "the pages whose marked blocks test_docs.py runs"
            continue
        name = next((k for k in known if first.startswith(k)), None)
        assert name, f"{page}: run the block that begins with {first!r} in a test and name it here, or say here why not"
        said = known.pop(name)
        assert has_a_test(said), f"{page}: {first!r}: there is no such test: {said}"
    assert not known, f"{page} has no such blocks any more: {list(known)}"


def test_every_example_file_has_its_test():
    assert {p.name for p in (TOP / "docs" / "examples").iterdir()} == set(FILES)
    for name, said in FILES.items():
        assert has_a_test(said), name


@pytest.fixture(scope="module")
def helps():
    """words of a command -> its --help, for every program, command and subcommand. The man pages are made of these."""
    def ask(program, *words):
        r = subprocess.run([BIN / program, *words, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        assert r.returncode == 0 and not r.stderr, (program, words, r)
        return r.stdout

    found = {"mayfly": ask("mayfly")} | {p: ask(p) for p in PROGRAMS}
    for c in re.findall(r"^  ([a-z-]+) ", found["mayfly"], re.M):
        text = found[f"mayfly {c}"] = ask("mayfly", c)
        if text.startswith(f"usage: mayfly {c} COMMAND ...\n"):
            found |= {f"mayfly {c} {sub}": ask("mayfly", c, sub) for sub in re.findall(r"^  ([a-z-]+) ", text, re.M)}
    return found


def test_every_example_of_a_help_has_its_test(helps):
    examples = re.compile(r"`([^`]+)`|(eval \"[^\"]*\")|(source <\([^)]*\))|(mayfly [a-z]+ [a-z]+ \| [a-z]+)|\b(\d+:/\S+)|see (mayfly [a-z]+)")
    named = {next(filter(None, m.groups())) for text in helps.values() for m in examples.finditer(text)}
    assert named == set(IN_HELP), "run it in a test and name that here, or say here why not"
    for example, said in IN_HELP.items():
        assert has_a_test(said), (example, said)


def typed(text):
    """What a page names to be typed: its blocks' lines, and what stands between backticks, with comments cut off."""
    fences = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    rest = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.M | re.S)
    lines = [line for b in fences for line in b.splitlines()] + re.findall(r"`([^`\n]+)`", rest)
    return [part for line in lines for part in re.split(r"&&|\|\||;|\$\(", re.split(r"\s#\s|   ", line)[0])]


def test_pages_and_helps_name_commands_and_options_that_exist(helps):
    """Each `mayfly ...` and `make ...` of every page, also in the middle of a sentence."""
    texts = {page: (TOP / page).read_text() for page in PAGES} | {f"{name} --help": text for name, text in helps.items()}
    targets = set(re.findall(r"^([a-z][a-z-]*):", (TOP / "Makefile").read_text(), re.M)) | set(re.search(r"^\.PHONY: (.*?[^\\])$", (TOP / "Makefile").read_text(), re.M | re.S)[1].split())
    bad, seen = [], 0
    for where, text in texts.items():
        for line in typed(text):
            words = line.replace('"', "").split()
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                words.pop(0)
            if not words:
                continue
            program = words[0].removeprefix("build/bin/").removeprefix("$P/")
            if program == "make" and len(words) > 1 and re.fullmatch("[a-z-]+", words[1]):
                seen += 1
                if words[1] not in targets and not words[1].startswith("fuzz-"):
                    bad.append((where, line))
                continue
            if program not in helps or len(words) < 2:
                continue
            key, rest = program, words[1:]
            while rest and f"{key} {rest[0]}" in helps:
                key += " " + rest.pop(0)
            if key == "mayfly" and re.fullmatch("[a-z][a-z-]*", rest[0]) and rest[0] != "help":
                bad.append((where, line))
                continue
            own, text = rest[:rest.index("--")] if "--" in rest else rest, helps[key]
            if " | " in line:  # several subcommands in a line
                text = "".join(t for k, t in helps.items() if k.startswith(key.rsplit(" ", 1)[0]))
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(own)):
                # options of a command that a sandbox runs stand after its name
                if not re.search(rf"(?<![\w-]){option}(?![\w-])", text + " --help --version"):
                    bad.append((where, line, option))
            seen += 1
    assert not bad, bad
    assert seen > 100


# ---- what needs no machine

@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    d = HostDaemon(tmp_path_factory.mktemp("docs")).start(api_key="k")
    d.headers = {"OPEN-SANDBOX-API-KEY": "k"}
    for name in ("base", "python", "code-interpreter-python"):
        subprocess.run([MAYFLY, "image", "import", "--store", d.dir / "state" / "images", "--local", d.dir / "root.tar", name], check=True, capture_output=True)
    yield d
    d.clean()


@pytest.fixture
def env(daemon):
    return os.environ | {"OPEN_SANDBOX_DOMAIN": f"127.0.0.1:{daemon.port}", "OPEN_SANDBOX_API_KEY": "k", "PATH": f"{MAYFLY.parent}:{os.environ['PATH']}"}


def test_policies_of_the_network_page(daemon, env):
    """As they stand there. What the sandboxes reach then is tried in test_net_guest.py."""
    show = f"{block('docs/network.md', 'mayfly run --allow pypi.org')}\nmayfly egress show --json $ID; echo $ID"
    r = subprocess.run(["bash", "-ec", show], env=env, capture_output=True, text=True, timeout=60)
    assert r.returncode == 0 and r.stdout.startswith("pip\n"), r  # the played agent answers with the name of the program
    box = r.stdout.split()[-1]
    policy = json.loads(subprocess.run([MAYFLY, "egress", "show", "--json", box], env=env, capture_output=True, text=True, timeout=60).stdout)["policy"]
    assert policy == {"defaultAction": "deny", "egress": [{"action": "allow", "target": "example.com"}, {"action": "allow", "target": "10.20.0.0/16"}]}
    lines = [re.split("   +", line)[0].replace("SANDBOX", box) for line in block("docs/network.md", "mayfly egress show").splitlines()]
    assert [line.split()[1] for line in lines] == ["egress", "egress", "inspect"]
    for line in lines:
        # the second one ends by ^C, which is 124 of timeout(1); if it did not, it would be killed: 137
        r = subprocess.run(["timeout", "-k", "20", "-s", "INT", "1" if "watch" in line else "60", *line.split()], env=env, capture_output=True, text=True, timeout=90)
        assert r.returncode == (124 if "watch" in line else 0) and not r.stderr, r
    assert json.loads(r.stdout)["network"] == {"counters": {}, "denied": []}


def test_the_warm_template_of_the_images_page(daemon):
    method, path, body = block("docs/images.md", "POST /v1/templates").split(None, 2)
    status, made, _ = daemon.ask(method, path, json.loads(body))
    assert status == 201, made
    assert daemon.ask("DELETE", f"/v1/templates/{made['templateId']}")[0] == 204


@pytest.mark.parametrize("page,first,says", [("docs/ingress.md", "[ingress]", "secure_access"), ("docs/network.md", "[network]", "mirror.corp.example"),
                                             ("docs/volumes.md", "[storage]", "allowed_host_paths")])
def test_a_configuration_of_the_docs(tmp_path, page, first, says):
    text = block(page, first)
    assert says in text
    # the file begins with its first table; a key is a placeholder
    (tmp_path / "c.toml").write_text(text[text.index("["):].replace("BASE64", "QUJDREVGR0hJSktMTU5PUA=="))
    r = subprocess.run([BIN / "mayflyd", "--check", "--config", tmp_path / "c.toml"], capture_output=True, text=True, timeout=60)
    assert r.stdout == "ok\n", r


def test_the_agents_entry_of_the_sdk_page():
    """It is JSON, and its command takes these options. test_mcp.py starts it with them and uses every tool."""
    entry = json.loads(block("docs/sdk.md", '{"mcpServers"'))["mcpServers"]["sandbox"]
    assert entry["command"] == "opensandbox-mcp" and entry["args"][::2] == ["--domain", "--api-key"]


def test_the_bench_answers():
    """Those lines of docs/benchmarks.md that measure nothing."""
    lines = [re.split("   +", line)[0].split() for line in block("docs/benchmarks.md", "bench/doctor").splitlines()]
    for line in lines:
        if line in (["bench/doctor"], ["bench/run", "--list"]):
            r = subprocess.run(line, cwd=TOP, capture_output=True, text=True, timeout=60)
            assert r.returncode == 0 and len(r.stdout.splitlines()) > 3, r
    assert ["bench/doctor"] in lines and ["bench/run", "--list"] in lines

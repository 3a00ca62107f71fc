# SPDX-License-Identifier: Apache-2.0
"""Files and directories through the official Python SDK, in one real sandbox."""
import hashlib
import os
import time

import pytest

from opensandbox.exceptions import SandboxApiException
from opensandbox.models.filesystem import (
    ContentReplaceEntry, DirectoryListEntry, MoveEntry, SearchEntry, SetPermissionEntry, WriteEntry)


@pytest.fixture
def files(sandbox):
    sandbox.files.delete_directories(["/tmp/f"])
    sandbox.files.create_directories([WriteEntry(path="/tmp/f", mode=755)])
    return sandbox.files


def test_written_files_are_read_back(files):
    files.write_files([WriteEntry(path="/tmp/f/a/b/one.txt", data="first\nsecond\n", mode=644),
        WriteEntry(path="/tmp/f/empty", data=b""), WriteEntry(path="/tmp/f/ünïcödé name", data="é", mode=600)])
    assert files.read_file("/tmp/f/a/b/one.txt") == "first\nsecond\n"
    assert files.read_bytes("/tmp/f/empty") == b""
    assert files.read_file("/tmp/f/ünïcödé name") == "é"
    info = files.get_file_info(["/tmp/f/a/b/one.txt", "/tmp/f/ünïcödé name"])
    one = info["/tmp/f/a/b/one.txt"]
    assert (one.mode, one.owner, one.group, one.size) == (644, "root", "root", 13)
    assert abs((one.created_at - one.modified_at).total_seconds()) < 2
    assert abs(one.modified_at.timestamp() - time.time()) < 300
    assert info["/tmp/f/ünïcödé name"].mode == 600


def test_a_large_file_keeps_its_bytes(sandbox, files):
    data = os.urandom(8 << 20)
    files.write_files([WriteEntry(path="/tmp/f/large", data=data)])
    assert sandbox.commands.run("sha256sum </tmp/f/large").text.split()[0] == hashlib.sha256(data).hexdigest()
    assert hashlib.sha256(files.read_bytes("/tmp/f/large")).digest() == hashlib.sha256(data).digest()


def test_ranges(files):
    files.write_files([WriteEntry(path="/tmp/f/r", data="0123456789")])
    assert files.read_file("/tmp/f/r", range_header="bytes=2-4") == "234"
    assert files.read_file("/tmp/f/r", range_header="bytes=-3") == "789"
    with pytest.raises(SandboxApiException):
        files.read_file("/tmp/f/r", range_header="bytes=50-60")


def test_many_files_in_one_call(files):
    files.write_files([WriteEntry(path=f"/tmp/f/many/{i}", data=f"content {i}") for i in range(50)])
    assert len(files.list_directory(DirectoryListEntry(path="/tmp/f/many", depth=1))) == 50
    assert files.read_file("/tmp/f/many/37") == "content 37"


def test_permissions_and_owners_of_the_image(files):
    files.write_files([WriteEntry(path="/tmp/f/p", data="x")])
    files.set_permissions([SetPermissionEntry(path="/tmp/f/p", mode=640, owner="nobody", group="nogroup")])
    i = files.get_file_info(["/tmp/f/p"])["/tmp/f/p"]
    assert (i.mode, i.owner, i.group) == (640, "nobody", "nogroup")


def test_move_replace_search_delete(files):
    files.write_files([WriteEntry(path="/tmp/f/x.txt", data="one two one"), WriteEntry(path="/tmp/f/sub/y.txt", data="y")])
    assert files.replace_contents_detailed([ContentReplaceEntry(path="/tmp/f/x.txt", old_content="one", new_content="1")])[0].replaced_count == 2
    assert files.read_file("/tmp/f/x.txt") == "1 two 1"
    assert {e.path for e in files.search(SearchEntry(path="/tmp/f", pattern="*.txt"))} == {"/tmp/f/x.txt", "/tmp/f/sub/y.txt"}
    files.move_files([MoveEntry(src="/tmp/f/x.txt", dest="/tmp/f/new/z.txt")])
    with pytest.raises(SandboxApiException):
        files.move_files([MoveEntry(src="/tmp/f/sub/y.txt", dest="/tmp/f/new/z.txt")])
    with pytest.raises(SandboxApiException):
        files.read_file("/tmp/f/x.txt")
    files.delete_files(["/tmp/f/new/z.txt", "/tmp/f/was/never"])
    with pytest.raises(SandboxApiException):
        files.delete_files(["/tmp/f/sub"])
    files.delete_directories(["/tmp/f/sub"])
    assert [e.path for e in files.list_directory(DirectoryListEntry(path="/tmp/f", depth=5))] == ["/tmp/f/new"]


def test_another_user_has_his_own_rights(sandbox, files):
    files.write_files([WriteEntry(path="/tmp/f/secret", data="s", mode=600)])
    nobody = sandbox.files_with_identity(65534, 65534)
    with pytest.raises(SandboxApiException) as e:
        nobody.read_file("/tmp/f/secret")
    assert e.value.status_code == 403
    sandbox.commands.run("chmod 777 /tmp/f")
    nobody.write_files([WriteEntry(path="/tmp/f/mine", data="m")])
    assert files.get_file_info(["/tmp/f/mine"])["/tmp/f/mine"].owner == "nobody"

# SPDX-License-Identifier: Apache-2.0
"""opensandbox-mcp, unmodified, over stdio: an agent's view of a sandbox."""
import asyncio
import pathlib
import sys

MCP = pathlib.Path(sys.executable).parent / "opensandbox-mcp"


async def session_does_the_job(daemon, image):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    called = set()
    server = StdioServerParameters(command=str(MCP), args=["--domain", daemon.domain, "--api-key", daemon.api_key])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as s:
        await s.initialize()
        tools = {t.name: t for t in (await s.list_tools()).tools}

        async def tool(name, **args):
            called.add(name)
            r = await s.call_tool(name, args)
            text = "".join(c.text for c in r.content if c.type == "text")
            assert not getattr(r, "isError", getattr(r, "is_error", False)), f"{name}: {text}"
            return getattr(r, "structuredContent", None) or getattr(r, "structured_content", None) or {}, text

        made, text = await tool("sandbox_create", image=image)
        box = made.get("sandbox_id") or made.get("id") or made.get("result", {}).get("id")
        assert box, text
        _, text = await tool("command_run", sandbox_id=box, command="echo from-$((40 + 2)); pwd", working_directory="/usr")
        assert "from-42" in text and "/usr" in text
        _, text = await tool("command_run", sandbox_id=box, command="exit 3")
        assert "CommandExecError" in text
        bg, text = await tool("command_run", sandbox_id=box, command="sleep 100", background=True)
        await tool("command_interrupt", sandbox_id=box, execution_id=bg["id"])
        await tool("file_create_directories", sandbox_id=box, entries=[{"path": "/tmp/m", "mode": 755}])
        await tool("file_write", sandbox_id=box, path="/tmp/m/note", content="kept")
        _, text = await tool("file_read", sandbox_id=box, path="/tmp/m/note")
        assert "kept" in text
        _, text = await tool("file_replace_contents", sandbox_id=box, entries=[{"path": "/tmp/m/note", "old_content": "kept", "new_content": "changed"}])
        await tool("file_move", sandbox_id=box, entries=[{"source": "/tmp/m/note", "destination": "/tmp/m/other"}])
        _, text = await tool("file_search", sandbox_id=box, path="/tmp/m", pattern="o*")
        assert "/tmp/m/other" in text and "/tmp/m/note" not in text
        await tool("file_delete", sandbox_id=box, paths=["/tmp/m/other"])
        await tool("file_delete_directories", sandbox_id=box, paths=["/tmp/m"])
        _, text = await tool("sandbox_list")
        assert box in text
        _, text = await tool("sandbox_get_info", sandbox_id=box)
        assert "Running" in text
        await tool("sandbox_connect", sandbox_id=box)
        _, text = await tool("sandbox_healthcheck", sandbox_id=box)
        assert "true" in text.lower()
        _, text = await tool("sandbox_get_metrics", sandbox_id=box)
        assert "cpu_count" in text
        _, text = await tool("sandbox_get_endpoint", sandbox_id=box, port=8000)
        assert "8000" in text
        await tool("sandbox_renew", sandbox_id=box, timeout_seconds=1200)
        await tool("sandbox_kill", sandbox_id=box)
        return tools, called


def test_mcp_server(daemon, base_image):
    tools, called = asyncio.run(asyncio.wait_for(session_does_the_job(daemon, base_image), 240))
    assert len(tools) == 19 and called == set(tools), "each of its tools was called"

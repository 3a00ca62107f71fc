# SPDX-License-Identifier: Apache-2.0
"""opensandbox-mcp, unmodified, over stdio: an agent's view of a sandbox."""
import asyncio
import pathlib
import sys

MCP = pathlib.Path(sys.executable).parent / "opensandbox-mcp"


async def session_does_the_job(daemon, image):
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(command=str(MCP), args=["--domain", daemon.domain, "--api-key", daemon.api_key])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as s:
        await s.initialize()
        tools = {t.name: t for t in (await s.list_tools()).tools}

        async def tool(name, **args):
            r = await s.call_tool(name, args)
            text = "".join(c.text for c in r.content if c.type == "text")
            assert not getattr(r, "isError", getattr(r, "is_error", False)), f"{name}: {text}"
            return getattr(r, "structuredContent", None) or getattr(r, "structured_content", None) or {}, text

        made, text = await tool("sandbox_create", image=image)
        sandbox = made.get("sandbox_id") or made.get("id") or made.get("result", {}).get("id")
        assert sandbox, text
        _, text = await tool("command_run", sandbox_id=sandbox, command="echo from-$((40 + 2))")
        assert "from-42" in text
        await tool("file_write", sandbox_id=sandbox, path="/tmp/note", content="kept")
        _, text = await tool("file_read", sandbox_id=sandbox, path="/tmp/note")
        assert "kept" in text
        _, text = await tool("sandbox_list")
        assert sandbox in text
        await tool("sandbox_kill", sandbox_id=sandbox)
        return tools


def test_mcp_server(daemon, base_image):
    tools = asyncio.run(asyncio.wait_for(session_does_the_job(daemon, base_image), 240))
    assert {"sandbox_create", "command_run", "file_read", "sandbox_kill"} <= set(tools)

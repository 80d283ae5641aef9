"""The control API of the daemon: JSON-RPC over a local socket. docs/builders/control.md has all methods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from acp.connection import Connection

_LINE_BYTES_MAX = 64 * 1024 * 1024


class Control:
    """A connection to the daemon's control API."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    async def connect(cls, command: str = "epitome", env: Mapping[str, str] | None = None) -> Control:
        """Connects to the running daemon; fails if there is none."""
        pipe = asyncio.subprocess.PIPE
        status = await asyncio.create_subprocess_exec(command, "daemon", "status", "--json", stdout=pipe, env=env)
        out, _ = await status.communicate()
        try:
            path = Path(json.loads(out)["sockets"]["control"])
        except (ValueError, KeyError, TypeError):
            raise RuntimeError("no daemon is running: `async with Epitome()` starts one") from None
        reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_BYTES_MAX)
        control = cls(Connection(_refuse, writer, reader))
        await control.call("authenticate", token=path.with_name("token").read_text())
        return control

    async def call(self, method: str, **params: Any) -> Any:
        """Calls a method."""
        return await self._connection.send_request(method, params)

    async def list_sessions(self, cwd: str | None = None) -> list[dict[str, Any]]:
        """Lists sessions of the daemon and those on the disk, newest first."""
        listed = await self.call("sessions.list", **({} if cwd is None else {"cwd": cwd}))
        return list(listed["sessions"])

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Control:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _refuse(method: str, params: Any, is_notification: bool) -> None:
    """The daemon sends no requests; notifications of subscriptions are not used here."""

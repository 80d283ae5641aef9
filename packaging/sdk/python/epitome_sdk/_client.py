"""Sessions over the Agent Client Protocol, with the official SDK."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import acp
from acp.core import ClientSideConnection
from acp.schema import (
    AgentMessageChunk,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    Implementation,
    PermissionOption,
    RequestPermissionResponse,
    SessionInfo,
    TextContentBlock,
    ToolCallUpdate,
)

from ._control import Control

Mode = Literal["ask", "accept_edits", "auto", "read_only", "full"]
"""How much of a session runs without a permission request."""

PermissionAnswer = Literal["allow_once", "allow_always", "reject_once", "reject_always"]

OnPermission = Callable[[ToolCallUpdate], "PermissionAnswer | Awaitable[PermissionAnswer]"]

_LINE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True)
class PromptResult:
    """How a turn ended."""

    text: str
    """The text of the replies in the turn."""
    stop_reason: str
    usage: dict[str, int] | None
    outcome: dict[str, Any] = field(default_factory=dict)
    """The result of a slash command under its name, such as ``compaction`` or ``undo``."""


class Turn(AsyncIterator[Any]):
    """A prompt that is being answered: iterate over it for updates, and await it for the result."""

    def __init__(self) -> None:
        self._updates: asyncio.Queue[Any] = asyncio.Queue()
        self._text: list[str] = []
        self._task: asyncio.Task[PromptResult] | None = None

    def __await__(self) -> Any:
        assert self._task is not None
        return self._task.__await__()

    async def __anext__(self) -> Any:
        update = await self._updates.get()
        if update is None:
            # The next call ends as well.
            self._updates.put_nowait(None)
            await self
            raise StopAsyncIteration
        return update

    def _push(self, update: Any) -> None:
        if isinstance(update, AgentMessageChunk) and isinstance(update.content, TextContentBlock):
            self._text.append(update.content.text)
        self._updates.put_nowait(update)


class _Client:
    """What the agent calls."""

    def __init__(self, on_permission: OnPermission | None) -> None:
        self._on_permission = on_permission
        self.turns: dict[str, Turn] = {}

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        if turn := self.turns.get(session_id):
            turn._push(update)

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: Any
    ) -> RequestPermissionResponse:
        answer: PermissionAnswer = "reject_once"
        if self._on_permission is not None:
            try:
                given = self._on_permission(tool_call)
                answer = await given if inspect.isawaitable(given) else given
            except Exception:
                # A program that could not decide has not agreed.
                answer = "reject_once"
        # Some calls are only allowed or rejected once.
        kinds = (answer, answer.replace("always", "once"))
        option = next((option for kind in kinds for option in options if option.kind == kind), None)
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option.option_id))


class Session:
    """One conversation."""

    def __init__(self, session_id: str, connection: ClientSideConnection, turns: dict[str, Turn]) -> None:
        self.id = session_id
        self._connection = connection
        self._turns = turns

    def prompt(self, prompt: str | Sequence[Any]) -> Turn:
        """Sends a prompt: a text, or content blocks of the protocol. One turn at a time."""
        if self.id in self._turns:
            raise RuntimeError(f"a turn is already running in session {self.id}")
        blocks = [acp.text_block(prompt)] if isinstance(prompt, str) else list(prompt)
        turn = self._turns[self.id] = Turn()
        turn._task = asyncio.create_task(self._answer(turn, blocks))
        # A caller that only iterates gets the error there.
        turn._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return turn

    async def _answer(self, turn: Turn, blocks: list[Any]) -> PromptResult:
        try:
            try:
                response = await self._connection.prompt(session_id=self.id, prompt=blocks)
            except asyncio.CancelledError:
                # A program that gives up a turn must not leave the agent at work.
                with contextlib.suppress(Exception):
                    await self.cancel()
                raise
            meta = response.field_meta or {}
            text, outcome = "".join(turn._text), meta.get("epitome") or {}
            return PromptResult(text, response.stop_reason, meta.get("usage"), outcome)
        finally:
            del self._turns[self.id]
            turn._updates.put_nowait(None)

    async def _command(self, name: str, argument: str, outcome: str) -> Any:
        result = await self.prompt(f"/{name} {argument}".strip())
        return result.outcome.get(outcome)

    async def compact(self, focus: str = "") -> Any:
        """Summarizes the older part of the conversation; ``focus`` is what the summary must keep."""
        return await self._command("compact", focus, "compaction")

    async def undo(self, entry: str = "") -> Any:
        """Undoes the last compaction or other change of the history, or the one in ``entry`` (such as "e12")."""
        return await self._command("undo", entry, "undo")

    async def redo(self, entry: str = "") -> Any:
        """Redoes what was undone last, or the change in ``entry``."""
        return await self._command("redo", entry, "redo")

    async def set_mode(self, mode: Mode) -> None:
        await self._connection.set_session_mode(session_id=self.id, mode_id=mode)

    async def set_model(self, model: str) -> None:
        """Chooses a model, as PROVIDER/NAME."""
        await self._connection.set_config_option(config_id="model", session_id=self.id, value=model)

    async def cancel(self) -> None:
        """Cancels the running turn. Its result has the stop reason ``cancelled``."""
        await self._connection.cancel(session_id=self.id)

    async def close(self) -> None:
        """Detaches from the session. Its log stays."""
        await self._connection.close_session(session_id=self.id)


class Epitome:
    """A client of Epitome. ``epitome acp`` starts the daemon if none is running, and joins it otherwise.

    Use it as an asynchronous context manager.
    """

    def __init__(
        self,
        *,
        command: str = "epitome",
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        on_permission: OnPermission | None = None,
    ) -> None:
        """``on_permission`` answers permission requests. Without it, or if it fails, the answer is no."""
        self._command = command
        self._args = args
        self._env = dict(os.environ if env is None else env)
        self._client = _Client(on_permission)
        self._stack = AsyncExitStack()
        self._connection: ClientSideConnection | None = None

    async def __aenter__(self) -> Epitome:
        started = acp.spawn_agent_process(
            self._client,  # type: ignore[arg-type]
            self._command,
            "acp",
            *self._args,
            env=self._env,
            transport_kwargs={"limit": _LINE_BYTES_MAX},
        )
        connection, _ = await self._stack.enter_async_context(started)
        try:
            await connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(),
                client_info=Implementation(name="epitome-sdk", version="0.1.0"),
            )
        except BaseException:
            await self._stack.aclose()
            raise
        self._connection = connection
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def agent(self) -> ClientSideConnection:
        """The protocol's other requests."""
        if self._connection is None:
            raise RuntimeError("use `async with Epitome() as epitome`")
        return self._connection

    async def new_session(self, cwd: str | os.PathLike[str], *, mode: Mode | None = None, model: str | None = None) -> Session:
        """Opens a new session. ``cwd`` must be absolute."""
        opened = await self.agent.new_session(cwd=os.fspath(cwd))
        return await self._session(opened.session_id, mode, model)

    async def open_session(
        self, session_id: str, cwd: str | os.PathLike[str], *, mode: Mode | None = None, model: str | None = None
    ) -> Session:
        """Continues a session, without a replay of its messages."""
        await self.agent.resume_session(session_id=session_id, cwd=os.fspath(cwd))
        return await self._session(session_id, mode, model)

    async def list_sessions(self, cwd: str | os.PathLike[str] | None = None) -> list[SessionInfo]:
        """Lists sessions with messages, newest first; with ``cwd``, only those of this directory."""
        sessions: list[SessionInfo] = []
        cursor: str | None = None
        while True:
            page = await self.agent.list_sessions(cwd=None if cwd is None else os.fspath(cwd), cursor=cursor)
            sessions.extend(page.sessions)
            cursor = page.next_cursor
            if not cursor:
                return sessions

    async def control(self) -> Control:
        """Connects to the control API of the daemon."""
        return await Control.connect(self._command, self._env)

    async def _session(self, session_id: str, mode: Mode | None, model: str | None) -> Session:
        session = Session(session_id, self.agent, self._client.turns)
        if model is not None:
            await session.set_model(model)
        if mode is not None:
            await session.set_mode(mode)
        return session

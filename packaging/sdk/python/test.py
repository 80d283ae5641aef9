"""Drives the package with a program and its project: python test.py PROGRAM PROJECT.

The model obeys: it says what follows "say", and runs what follows "run".
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import acp
from epitome_sdk import Epitome, PermissionAnswer


async def main(command: str, project: Path) -> None:
    asked: list[str] = []

    async def on_permission(call: Any) -> PermissionAnswer:
        asked.append(call.title)
        if len(asked) == 3:
            raise ValueError("no decision")
        return "allow_once" if len(asked) == 1 else "reject_once"

    async with Epitome(command=command, on_permission=on_permission) as epitome:
        session = await epitome.new_session(project)

        # Updates are streamed, and the result has the text.
        turn = session.prompt("say hello")
        streamed = "".join(
            [update.content.text async for update in turn if update.session_update == "agent_message_chunk"]
        )
        result = await turn
        assert (streamed, result.text, result.stop_reason) == ("You said hello.", "You said hello.", "end_turn")
        assert result.usage and result.usage["outputTokens"] > 0, result

        # A permission request is answered by the program. A program that fails has not agreed.
        for name in ["allowed", "rejected", "undecided"]:
            await session.prompt(f"run touch {name}")
        assert len(asked) == 3
        assert [(project / name).exists() for name in ["allowed", "rejected", "undecided"]] == [True, False, False]
        await session.set_mode("full")
        await session.prompt("run touch full")
        assert (project / "full").exists() and len(asked) == 3

        # A running turn is cancelled.
        hanging = session.prompt("hang")
        await asyncio.sleep(0)
        await session.cancel()
        assert (await hanging).stop_reason == "cancelled"

        # So is one that the program gives up. The next prompt was read by the turn that went on.
        try:
            await asyncio.wait_for(session.prompt("hang"), 0.1)
            raise AssertionError("it does not end")
        except TimeoutError:
            pass
        assert (await session.prompt("say next")).text == "You said next."

        # Compaction, undo and redo.
        await session.prompt("say " + "much " * 2000)
        assert (await session.compact("the files"))["status"] == "compacted"
        assert (await session.undo())["status"] == "undone"
        assert (await session.redo())["status"] == "redone"

        # Another client joins the same daemon and continues the session.
        async with Epitome(command=command) as other:
            assert [one.session_id for one in await other.list_sessions(project)] == [session.id]
            continued = await other.open_session(session.id, project)
            assert (await continued.prompt("say more")).text == "You said more."

        async with await epitome.control() as control:
            listed = await control.list_sessions(str(project))
            assert [(one["session"], one["live"]) for one in listed] == [(session.id, True)]
            try:
                await control.call("sessions.show", session="s_00000000000000000000")
                raise AssertionError("it is refused")
            except acp.RequestError as error:
                assert "there is no session" in str(error)
    print("ok")


asyncio.run(main(sys.argv[1], Path(sys.argv[2])))

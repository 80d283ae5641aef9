// Drives the built package with a program and its project: node test.mjs PROGRAM PROJECT. The model obeys: it says what follows "say",
// and runs what follows "run".
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { Epitome } from "./dist/index.js";

const [command, project] = process.argv.slice(2);

await assert.rejects(Epitome.start({ command: join(project, "missing") }), /can't be started/);

const asked = [];
const onPermission = ({ toolCall }) => {
  asked.push(toolCall.title);
  if (asked.length === 3) throw new Error("no decision");
  return asked.length === 1 ? "allow_once" : "reject_once";
};
const epitome = await Epitome.start({ command, onPermission });
const session = await epitome.newSession(project);

// Updates are streamed, and the result has the text.
const turn = session.prompt("say hello");
assert.throws(() => session.prompt("say twice"), /already running/);
let streamed = "";
for await (const update of turn) {
  if (update.sessionUpdate === "agent_message_chunk") streamed += update.content.text;
}
const { text, stopReason, usage } = await turn.result;
assert.deepEqual([streamed, text, stopReason], ["You said hello.", "You said hello.", "end_turn"]);
assert.ok(usage.outputTokens > 0, JSON.stringify(usage));

// A permission request is answered by the program. A program that fails has not agreed.
await session.prompt("run touch allowed").result;
await session.prompt("run touch rejected").result;
await session.prompt("run touch undecided").result;
assert.equal(asked.length, 3);
assert.deepEqual(["allowed", "rejected", "undecided"].map((name) => existsSync(join(project, name))), [true, false, false]);
await session.setMode("full");
await session.prompt("run touch full").result;
assert.ok(existsSync(join(project, "full")));
assert.equal(asked.length, 3);

// A running turn is cancelled.
const hanging = session.prompt("hang");
await session.cancel();
assert.equal((await hanging.result).stopReason, "cancelled");

// Compaction, undo and redo.
await session.prompt(`say ${"much ".repeat(2000)}`).result;
assert.equal((await session.compact("the files")).status, "compacted");
assert.equal((await session.undo()).status, "undone");
assert.equal((await session.redo()).status, "redone");

// Another client joins the same daemon and continues the session.
const other = await Epitome.start({ command });
const [listed, ...more] = await other.listSessions(project);
assert.deepEqual([listed.sessionId, more], [session.id, []]);
const continued = await other.openSession(session.id, project);
assert.equal((await continued.prompt("say more").result).text, "You said more.");
await assert.rejects(other.openSession("s_00000000000000000000", project), /there is no such session/);

const control = await epitome.control();
assert.deepEqual((await control.listSessions(project)).map((one) => [one.session, one.live]), [[session.id, true]]);
await assert.rejects(control.call("sessions.show", { session: "s_00000000000000000000" }), /there is no session/);
control.close();

await other.close();
await epitome.close();
console.log("ok");

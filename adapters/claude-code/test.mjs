// Drives the real Claude Code with this plugin and a scripted model:
//   npm install @anthropic-ai/claude-code && cargo build -p epitome-compact
//   node adapters/claude-code/test.mjs node_modules/.bin/claude target/debug/epitome-compact
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { resolve } from "node:path";
import { createInterface } from "node:readline";
import { install } from "../install.mjs";
import { scriptedModel } from "../scripted-model.mjs";

const [claude, compact] = process.argv.slice(2).map((path) => resolve(path));
const { work, env, remove } = install(import.meta.dirname, compact);
const FACT = "Never touch `vendor/`: the release is called WALNUT-42.";

// The newest message of the user decides about the length of a reply.
const model = await scriptedModel((body) => {
  const messages = body ? JSON.parse(body).messages : []; // Claude Code also looks whether the server is there.
  return JSON.stringify(messages?.at(-1) ?? "").includes("LONG") ? "It is as it should be. ".repeat(1500) : "Done.";
});

const quiet = { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1", DISABLE_TELEMETRY: "1", DISABLE_AUTOUPDATER: "1", IS_SANDBOX: "1" };
const own = { ANTHROPIC_BASE_URL: model.url, ANTHROPIC_API_KEY: "sk-ant-x" };
const stream = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"];
const args = [...stream, "--model", "claude-sonnet-4-5", "--plugin-dir", import.meta.dirname];
const agent = spawn(claude, args, { cwd: work, env: { ...env, ...quiet, ...own }, stdio: ["pipe", "pipe", "inherit"] });
let ended;
createInterface({ input: agent.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "result") ended?.(message);
});

/** Sends a prompt, and returns the body of the last request that was made for it. */
async function prompt(content) {
  const result = new Promise((done) => (ended = done));
  agent.stdin.write(`${JSON.stringify({ type: "user", message: { role: "user", content } })}\n`);
  const { subtype } = await result;
  assert.equal(subtype, "success");
  return model.asked.body;
}
/** What the model is sent of the conversation. */
const conversation = (body) => JSON.stringify(JSON.parse(body).messages);

const giveUp = setTimeout(() => process.exit(1), 240_000);
try {
  await prompt(FACT);
  for (const part of [1, 2, 3]) await prompt(`LONG: look at part ${part}.`);
  const before = conversation(await prompt("And now?"));
  for (const round of [1, 2, 3, 4, 5]) {
    const asked = model.asked.count;
    await prompt("/compact keep the deadline");
    assert.equal(model.asked.count, asked, "no model is asked for a summary");
    const after = conversation(await prompt("What is the release called?"));
    assert(after.length < before.length / 2, `${before.length} -> ${after.length} characters`);
    assert.equal(after.split("WALNUT-42").length, 2, "the fact is in it once");
    assert.equal(after.split("[Epitome message").length, 2, "no message contains another one");
    assert(after.length < 60_000, `the message grows: ${after.length} characters`);
    await prompt(`LONG: look at part ${round + 3}.`);
  }
  console.log("Claude Code: ok");
} finally {
  clearTimeout(giveUp);
  agent.kill();
  model.close();
  remove();
}

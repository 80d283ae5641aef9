// Drives the real pi with this extension and a scripted model:
//   npm install @earendil-works/pi-coding-agent && cargo build -p epitome-compact
//   node adapters/pi/test.mjs node_modules/@earendil-works/pi-coding-agent/dist/cli.js target/debug/epitome-compact
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { install } from "../install.mjs";
import { scriptedModel } from "../scripted-model.mjs";

const [pi, compact] = process.argv.slice(2).map((path) => resolve(path));
const { home, work, env, remove } = install(import.meta.dirname, compact);
const FACT = "Never touch `vendor/`: the release is called WALNUT-42.";

const model = await scriptedModel();

/** A session of forty turns, the first of which states the fact. */
function session() {
  const stamp = (n) => new Date(Date.UTC(2026, 10, 28, 10, 0, n)).toISOString();
  const lines = [{ type: "session", version: 3, id: "s", timestamp: stamp(0), cwd: work }];
  const say = (message) => {
    const n = lines.length;
    const parentId = n > 1 ? `${n - 1}` : null;
    lines.push({ type: "message", id: `${n}`, parentId, timestamp: stamp(n), message: { timestamp: Date.UTC(2026, 10, 28), ...message } });
  };
  for (let turn = 0; turn < 40; turn += 1) {
    say({ role: "user", content: [{ type: "text", text: turn ? `Look at part ${turn}.` : FACT }] });
    const usage = { input: 10, output: 2, cacheRead: 0, cacheWrite: 0, totalTokens: 12, cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0, total: 0 } };
    const text = `Part ${turn} is as it should be. `.repeat(150);
    say({ role: "assistant", content: [{ type: "text", text }], api: "anthropic-messages", provider: "mock", model: "mock", usage, stopReason: "stop" });
  }
  return lines.map((line) => `${JSON.stringify(line)}\n`).join("");
}

const price = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
const models = [{ id: "mock", name: "mock", reasoning: false, input: ["text"], contextWindow: 200000, maxTokens: 8000, cost: price }];
const providers = { mock: { baseUrl: model.url, apiKey: "x", api: "anthropic-messages", models } };
writeFileSync(join(home, ".pi/agent/models.json"), JSON.stringify({ providers }));
const settings = { defaultProvider: "mock", defaultModel: "mock", enableInstallTelemetry: false };
writeFileSync(join(home, ".pi/agent/settings.json"), JSON.stringify(settings));
writeFileSync(join(work, "session.jsonl"), session());

const args = [pi, "--mode", "rpc", "--session", join(work, "session.jsonl")];
const offline = { PI_OFFLINE: "1", PI_SKIP_VERSION_CHECK: "1" };
const agent = spawn(process.execPath, args, { cwd: work, env: { ...env, ...offline }, stdio: ["pipe", "pipe", "inherit"] });
const waiting = new Map();
createInterface({ input: agent.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  const key = message.type === "response" ? message.id : message.type;
  waiting.get(key)?.(message);
  waiting.delete(key);
});
const next = (key) => new Promise((done) => waiting.set(key, done));
let calls = 0;
async function call(type, more = {}) {
  const id = `c${(calls += 1)}`;
  const answered = next(id);
  agent.stdin.write(`${JSON.stringify({ type, id, ...more })}\n`);
  const answer = await answered;
  assert(answer.success, JSON.stringify(answer));
  return answer.data;
}
async function prompt(message) {
  const ended = next("agent_end");
  await call("prompt", { message });
  await ended;
}
const context = async () => JSON.stringify((await call("get_messages")).messages);

const giveUp = setTimeout(() => process.exit(1), 120_000);
try {
  const before = await context();
  const { summary } = await call("compact");
  assert(summary.startsWith("[Epitome message") && summary.includes(FACT), summary);
  assert.equal(model.asked.count, 0, "no model is asked for a summary");
  assert((await context()).length < before.length * 0.75, "the older half is a message now");

  await call("prompt", { message: "/undo-compaction" });
  assert.equal(await context(), before, "undone at once, it is as if there had been none");

  await call("compact");
  await prompt("What is the release called?");
  assert(model.asked.body.includes("WALNUT-42") && model.asked.body.length < before.length, "the model gets the message");
  // pi can't compact again before there is enough to compact.
  await prompt(`Read this. ${"A line of a log. ".repeat(8000)}`);
  await prompt("And now?");
  await call("prompt", { message: "/undo-compaction" });
  const whole = await context();
  assert(whole.length > before.length + 100_000 && whole.includes("And now?"), "nothing said since is lost");

  for (let round = 0; round < 5; round += 1) {
    await prompt("Go on.");
    const again = (await call("compact")).summary;
    assert.equal(again.split(FACT).length, 2, "the fact is in it once");
    assert.equal(again.split("[Epitome message").length, 2, "no message contains another one");
    assert(again.length < 60_000, `the message grows: ${again.length} characters`);
    await prompt(`Read this. ${"A line of a log. ".repeat(8000)}`);
    assert(model.asked.body.includes("[Epitome message"), "the model gets the message");
  }
  console.log("pi: ok");
} finally {
  clearTimeout(giveUp);
  agent.kill();
  model.close();
  remove();
}

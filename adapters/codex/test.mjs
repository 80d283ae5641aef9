// Drives the real Codex with this hook and a scripted model:
//   npm install @openai/codex && cargo build -p epitome-compact
//   node adapters/codex/test.mjs node_modules/.bin/codex target/debug/epitome-compact
//
// The hook was once run alone, with sessions that went on behind the compaction. Codex runs it at the compaction, where the program
// found nothing to compact; it runs no hook that was not trusted, and showed the model 2,500 tokens of a message. So no message
// ever arrived.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { install } from "../install.mjs";
import { scriptedModel } from "../scripted-model.mjs";

const [codex, compact] = process.argv.slice(2).map((path) => resolve(path));
const { home, work, env, remove } = install(import.meta.dirname, compact);
const FACT = "Never touch `vendor/`: the release is called WALNUT-42.";
const LOG = "A line of a log. ".repeat(2000);

const model = await scriptedModel();
const provider = `name = "mock"\nbase_url = "${model.url}/v1"\nwire_api = "responses"\nenv_key = "MOCK_KEY"`;
writeFileSync(join(home, ".codex/config.toml"), `model = "m"\nmodel_provider = "mock"\n[model_providers.mock]\n${provider}\n`);
const own = { CODEX_HOME: join(home, ".codex"), MOCK_KEY: "x" };
const agent = spawn(codex, ["app-server"], { cwd: work, env: { ...env, ...own }, stdio: ["pipe", "pipe", "ignore"] });
const waiting = new Map();
createInterface({ input: agent.stdout }).on("line", (line) => {
  const message = JSON.parse(line);
  const key = message.id ?? message.method;
  waiting.get(key)?.(message);
  waiting.delete(key);
});
const next = (key) => new Promise((done) => waiting.set(key, done));
const send = (message) => agent.stdin.write(`${JSON.stringify(message)}\n`);
let calls = 0;
async function call(method, params) {
  const id = (calls += 1);
  const answered = next(id);
  send({ id, method, params });
  const { result, error } = await answered;
  assert(!error, JSON.stringify(error));
  return result;
}
/** Starts a turn, and waits for its end. */
async function turn(method, params) {
  const ended = next("turn/completed");
  await call(method, params);
  await ended;
}

const giveUp = setTimeout(() => process.exit(1), 180_000);
try {
  await call("initialize", { clientInfo: { name: "test", title: null, version: "1" }, capabilities: { experimentalApi: true } });
  send({ method: "initialized" });
  // `/hooks` in Codex does the same.
  const [{ hooks }] = (await call("hooks/list", { cwds: [work] })).data;
  const trusted = Object.fromEntries(hooks.map(({ key, currentHash }) => [key, { trusted_hash: currentHash }]));
  const edits = [{ keyPath: "hooks.state", value: trusted, mergeStrategy: "upsert" }];
  await call("config/batchWrite", { edits, filePath: null, expectedVersion: null, reloadUserConfig: true });

  const threadId = (await call("thread/start", { cwd: work })).thread.id;
  const say = (text) => turn("turn/start", { threadId, input: [{ type: "text", text }] });
  await say(FACT);
  for (let part = 1; part < 4; part += 1) await say(`Read part ${part}. ${LOG}`);
  for (let round = 0; round < 5; round += 1) {
    await turn("thread/compact/start", { threadId });
    await say("What is the release called?");
    const input = JSON.stringify(JSON.parse(model.asked.body).input);
    assert.equal(input.split("[Epitome message").length, 2, "the model gets the message, which contains no other one");
    assert.equal(input.split("WALNUT-42").length, 2, "the fact is in it once");
    assert(input.length < 250_000, `the message grows: ${input.length} characters`);
    await say(`Read part ${round + 4}. ${LOG}`);
  }
  console.log("Codex: ok");
} finally {
  clearTimeout(giveUp);
  agent.kill();
  model.close();
  remove();
}

// Drives the real opencode with this plugin and a scripted model:
//   npm install opencode-ai@1 && cargo build -p epitome-compact
//   node adapters/opencode/test.mjs node_modules/.bin/opencode target/debug/epitome-compact
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { install } from "../install.mjs";
import { scriptedModel } from "../scripted-model.mjs";

const [opencode, compact] = process.argv.slice(2).map((path) => resolve(path));
const { home, work, env, remove } = install(import.meta.dirname, compact);
const FACT = "Never touch `vendor/`: the release is called WALNUT-42.";

const model = await scriptedModel();
const limit = { context: 200000, output: 8000 };
const options = { baseURL: `${model.url}/v1`, apiKey: "x" };
const provider = { mock: { npm: "@ai-sdk/anthropic", name: "mock", options, models: { mock: { name: "mock", tool_call: true, limit } } } };
const settings = { model: "mock/mock", small_model: "mock/mock", autoupdate: false, share: "disabled", provider };
writeFileSync(join(home, ".config/opencode/opencode.json"), JSON.stringify(settings));

const off = ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE"].map((name) => [`OPENCODE_DISABLE_${name}`, "1"]);
const server = spawn(opencode, ["serve", "--port", "0"], { cwd: work, env: { ...env, ...Object.fromEntries(off) }, stdio: ["ignore", "pipe", "inherit"] });
const giveUp = setTimeout(() => process.exit(1), 180_000);
try {
  const address = await new Promise((found, failed) => {
    createInterface({ input: server.stdout }).on("line", (line) => {
      const url = line.match(/http:\/\/\S+/)?.[0];
      if (url) found(url);
    });
    server.on("exit", () => failed(new Error("opencode has ended")));
  });
  const call = async (method, path, body) => {
    const headers = { "content-type": "application/json" };
    const response = await fetch(`${address}${path}`, { method, headers, body: body && JSON.stringify(body) });
    assert(response.ok, `${method} ${path}: ${response.status} ${response.ok || (await response.text())}`);
    return response.json();
  };
  const text = (message) => message.parts.map((part) => part.text ?? "").join("");
  const { id } = await call("POST", "/session", {});
  const [providerID, modelID] = ["mock", "mock"];
  const say = (words) => call("POST", `/session/${id}/message`, { model: { providerID, modelID }, parts: [{ type: "text", text: words }] });
  const summarize = async () => {
    await call("POST", `/session/${id}/summarize`, { providerID, modelID });
    const messages = await call("GET", `/session/${id}/message`);
    return text(messages.filter((message) => message.info.summary).at(-1));
  };

  await say(FACT);
  for (let turn = 1; turn < 5; turn += 1) await say(`Read part ${turn}. ${"A line of a log. ".repeat(1000)}`);
  for (let round = 0; round < 5; round += 1) {
    const message = await summarize();
    assert(message.startsWith("[Epitome message"), message.slice(0, 500));
    assert.equal(message.split(FACT).length, 2, "the fact is in it once");
    assert.equal(message.split("[Epitome message").length, 2, "no message contains another one");
    assert(message.length < 60_000, `the message grows: ${message.length} characters`);
    await say(`And part ${round + 5}? ${"A line of a log. ".repeat(1000)}`);
    assert(model.asked.body.includes("[Epitome message"), "the model gets the message");
  }
  console.log("opencode: ok");
} finally {
  clearTimeout(giveUp);
  server.kill();
  model.close();
  remove();
}

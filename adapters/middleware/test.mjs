// Runs the middleware in the real Vercel AI SDK with a scripted model:
//   npm install ai && cargo build -p epitome-compact
//   PATH=$PWD/target/debug:$PATH node adapters/middleware/test.mjs node_modules/ai
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { epitome } from "./epitome-ai.mjs";

const directory = resolve(process.argv[2]);
const require = createRequire(join(directory, "package.json"));
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const [{ generateText }, testing] = await Promise.all([load("ai"), load("ai/test")]);
const FACT = "Never touch `vendor/`: the release is called WALNUT-42.";
const long = "It is as it should be. ".repeat(400);

const MockModel = testing.MockLanguageModelV4 ?? testing.MockLanguageModelV3;
const asked = [];
const model = new MockModel({
  doGenerate: async ({ prompt }) => {
    asked.push(prompt);
    const tokens = { total: 10, noCache: 10, cacheRead: 0, cacheWrite: 0, text: 10, reasoning: 0 };
    return {
      content: [{ type: "text", text: long }],
      finishReason: { unified: "stop", raw: "stop" },
      usage: { inputTokens: tokens, outputTokens: tokens },
      warnings: [],
    };
  },
});
// System prompts among the messages were once lost at the first compaction.
const SYSTEM = "You are a careful agent.";
const messages = [{ role: "system", content: SYSTEM }];
const text = ({ content }) => (typeof content === "string" ? content : content.map((part) => part.text).join(""));
for (let turn = 0; turn < 40; turn += 1) {
  messages.push({ role: "user", content: turn ? `Look at part ${turn}.` : FACT });
  const { response } = await generateText({ model, messages, allowSystemInMessages: true, prepareStep: epitome({ maxChars: 40_000 }) });
  messages.push(...response.messages);
  const texts = asked.at(-1).map(text);
  const request = texts.join("\n");
  assert.equal(texts[0], SYSTEM);
  assert.equal(request.split(FACT).length, 2, "the fact is in it once");
  assert(request.split("[Epitome message").length <= 2, "no message contains another one");
  assert(request.length < 120_000, `${request.length} characters`);
}
const last = asked.at(-1).map(text);
assert(last[1].startsWith("[Epitome message"), last[1].slice(0, 200));
assert.equal(last.at(-1), "Look at part 39.");
console.log("Vercel AI SDK: ok");

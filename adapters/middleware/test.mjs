// Runs the middleware in the real Vercel AI SDK with a scripted model:
//   npm install ai && cargo build -p epitome-compact
//   EPITOME_COMPACT=target/debug/epitome-compact node adapters/middleware/test.mjs node_modules/ai
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
      content: [{ type: "text", text: "Done." }],
      finishReason: { unified: "stop", raw: "stop" },
      usage: { inputTokens: tokens, outputTokens: tokens },
      warnings: [],
    };
  },
});
const messages = [{ role: "user", content: FACT }, { role: "assistant", content: long }];
for (let turn = 1; turn < 10; turn += 1) {
  messages.push({ role: "user", content: `Look at part ${turn}.` }, { role: "assistant", content: long });
}
messages.push({ role: "user", content: "What is the release called?" });
await generateText({ model, messages, prepareStep: epitome({ maxChars: 40_000 }) });
const texts = asked[0].map(({ content }) => content.map((part) => part.text).join(""));
assert(texts[0].startsWith("[Epitome message"), texts[0].slice(0, 200));
assert.equal(texts.join("\n").split(FACT).length, 2, "the fact is in it once");
assert.equal(texts.at(-1), "What is the release called?");
console.log("Vercel AI SDK: ok");

// Epitome as `prepareStep` of the Vercel AI SDK.
//
//   await generateText({ model, tools, messages, stopWhen, prepareStep: epitome({ maxChars: 400_000 }) })
//
// The model gets Epitome's message in place of the older ones. Needs `epitome-compact` on the PATH.
import { spawn } from "node:child_process";

/** Nobody waits longer for the program: it is ended. */
const TIME_MAX_MS = 60_000;

export function epitome({ maxChars = 400_000, keep = 6, program = process.env.EPITOME_COMPACT ?? "epitome-compact" } = {}) {
  return async ({ messages }) => {
    if (JSON.stringify(messages).length <= maxChars) return undefined;
    let cut = Math.max(messages.length - keep, 0);
    // A call and its results stay together.
    while (cut > 0 && messages[cut].role === "tool") cut -= 1;
    if (cut === 0) return undefined;
    const older = messages.slice(0, cut);
    const text = await compacted(program, older.flatMap(openai));
    // Nothing is gained.
    if (text === undefined) return undefined;
    const system = older.filter(({ role }) => role === "system");
    return { messages: [...system, { role: "user", content: text }, ...messages.slice(cut)] };
  };
}

function compacted(program, messages) {
  return new Promise((resolve, reject) => {
    const child = spawn(program, ["--from", "openai"], { timeout: TIME_MAX_MS, stdio: ["pipe", "pipe", "pipe"] });
    let [out, error] = ["", ""];
    child.stdout.setEncoding("utf8").on("data", (text) => (out += text));
    child.stderr.setEncoding("utf8").on("data", (text) => (error += text));
    child.stdin.on("error", () => {});
    child.on("error", reject);
    child.on("close", (code) => {
      if (code === 0) resolve(out.trimEnd());
      else if (code === 3) resolve(undefined);
      else reject(new Error(error.trim() || (code === null ? "it took too long" : `exit status ${code}`)));
    });
    child.stdin.end(JSON.stringify(messages));
  });
}

/** The messages of OpenAI's form for a message of the SDK. */
function openai({ role, content }) {
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
  const text = parts.filter((part) => part.type === "text").map((part) => part.text).join("\n\n");
  if (role === "tool") {
    return parts
      .filter((part) => part.type === "tool-result")
      .map(({ toolCallId, output }) => ({ role, tool_call_id: toolCallId, content: result(output) }));
  }
  const calls = parts
    .filter((part) => part.type === "tool-call")
    .map(({ toolCallId, toolName, input }) => ({
      id: toolCallId,
      type: "function",
      function: { name: toolName, arguments: JSON.stringify(input) },
    }));
  return [{ role, content: text || null, ...(calls.length > 0 && { tool_calls: calls }) }];
}

function result(output) {
  return typeof output?.value === "string" ? output.value : JSON.stringify(output?.value ?? output);
}

// A model for the tests of the adapters: Anthropic's Messages and OpenAI's Responses, streamed, with the reply "Done." unless a test
// has another.
import { createServer } from "node:http";

/** Its address, how often it was asked, and the body of the last request. */
export async function scriptedModel(reply = () => "Done.") {
  const asked = { count: 0, body: "" };
  const server = createServer((request, response) => {
    let body = "";
    request.setEncoding("utf8").on("data", (text) => (body += text));
    request.on("end", () => {
      Object.assign(asked, { count: asked.count + 1, body });
      response.setHeader("content-type", "text/event-stream");
      const events = request.url.endsWith("/responses") ? responses : messages;
      for (const event of events(`m${asked.count}`, reply(body))) {
        response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
      }
      response.end();
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { asked, url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

const usage = { input_tokens: 10, output_tokens: 2 };

const messages = (id, text) => [
  { type: "message_start", message: { id, type: "message", role: "assistant", model: "m", content: [], stop_reason: null, usage } },
  { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
  { type: "content_block_delta", index: 0, delta: { type: "text_delta", text } },
  { type: "content_block_stop", index: 0 },
  { type: "message_delta", delta: { stop_reason: "end_turn" }, usage },
  { type: "message_stop" },
];

function responses(id, text) {
  const item = { type: "message", id, role: "assistant", status: "completed", content: [{ type: "output_text", text, annotations: [] }] };
  return [
    { type: "response.created", response: { id: `r${id}` } },
    { type: "response.output_item.done", output_index: 0, item },
    { type: "response.completed", response: { id: `r${id}`, usage: { ...usage, total_tokens: 12 } } },
  ];
}

// A model for the tests of the adapters: Anthropic's Messages, streamed, with the reply "Done." unless a test has another.
import { createServer } from "node:http";

/** Its address, how often it was asked, and the body of the last request. */
export async function scriptedModel(reply = () => "Done.") {
  const asked = { count: 0, body: "" };
  const server = createServer((request, response) => {
    let body = "";
    request.setEncoding("utf8").on("data", (text) => (body += text));
    request.on("end", () => {
      Object.assign(asked, { count: asked.count + 1, body });
      const usage = { input_tokens: 10, output_tokens: 2 };
      const message = { id: `m${asked.count}`, type: "message", role: "assistant", model: "m", content: [], stop_reason: null, usage };
      response.setHeader("content-type", "text/event-stream");
      for (const event of [
        { type: "message_start", message },
        { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
        { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: reply(body) } },
        { type: "content_block_stop", index: 0 },
        { type: "message_delta", delta: { stop_reason: "end_turn" }, usage },
        { type: "message_stop" },
      ]) {
        response.write(`event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
      }
      response.end();
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return { asked, url: `http://127.0.0.1:${server.address().port}`, close: () => server.close() };
}

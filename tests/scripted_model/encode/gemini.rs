//! Streams of Gemini's `streamGenerateContent`.

use serde_json::{Value, json};

use super::{Call, Out, Part, Search, Usage, Voice};
use crate::ScriptedStop;
use crate::seal::Before;
use epitome_config::WireFormat;

pub(super) struct Gemini {
    model: String,
    usage: Usage,
    before: Before,
    /// Whether the request asked for thoughts.
    shows_thoughts: bool,
    thought: bool,
    called: bool,
    /// Whether the request asked for the parts of searches.
    shows_searches: bool,
    /// The queries and addresses of the searches.
    searches: Vec<(String, String)>,
}

impl Gemini {
    pub(super) fn new(model: &str, request: &Value, usage: Usage) -> Gemini {
        let before = Before::reply(WireFormat::Gemini, model, request);
        let shows_thoughts = request["generationConfig"]["thinkingConfig"]["includeThoughts"] == true;
        Gemini {
            model: model.to_owned(),
            usage,
            before,
            shows_thoughts,
            thought: false,
            called: false,
            shows_searches: request["toolConfig"]["includeServerSideToolInvocations"] == true,
            searches: Vec::new(),
        }
    }

    fn part(&self, part: &Value, out: &mut Out) {
        self.candidate(&json!({"content": {"role": "model", "parts": [part]}, "index": 0}), out);
    }

    fn candidate(&self, candidate: &Value, out: &mut Out) {
        let Usage { input, cached, output, thought } = self.usage;
        let mut usage = json!({"promptTokenCount": input, "candidatesTokenCount": output - thought,
            "totalTokenCount": input + output});
        // Gemini omits both when they are zero.
        if thought > 0 {
            usage["thoughtsTokenCount"] = thought.into();
        }
        if cached > 0 {
            usage["cachedContentTokenCount"] = cached.into();
        }
        out.data(&json!({"candidates": [candidate], "usageMetadata": usage, "modelVersion": self.model,
            "responseId": "scripted"}));
    }
}

impl Voice for Gemini {
    fn begin(&mut self, _: &mut Out) {}

    fn part_begins(&mut self, _: Part, _: &mut Out) {}

    fn delta(&mut self, part: Part, text: &str, out: &mut Out) {
        match part {
            Part::Text => self.part(&json!({ "text": text }), out),
            Part::Think if self.shows_thoughts => {
                self.part(&json!({"text": text, "thought": true}), out);
            }
            Part::Think => {}
        }
    }

    fn part_ends(&mut self, part: Part, whole: &str, _: &mut Out) {
        match part {
            Part::Text => self.before.add("model", &json!({ "text": whole })),
            Part::Think => self.thought = true,
        }
    }

    /// Calls are sent in one piece. The first of a step carries the signature of the thinking, even if none
    /// of that was shown.
    fn call(&mut self, call: &Call<'_>, out: &mut Out) {
        let function = json!({"id": call.id, "name": call.name, "args": call.input});
        let part = match self.called {
            true => json!({ "functionCall": function }),
            false => json!({"functionCall": function, "thoughtSignature": self.before.seal(call.name)}),
        };
        self.called = true;
        self.part(&part, out);
        self.before.add("model", &part);
    }

    fn search(&mut self, Search { id, query, url }: Search<'_>, out: &mut Out) {
        self.searches.push((query.to_owned(), url.to_owned()));
        if !self.shows_searches {
            return;
        }
        let kind = "GOOGLE_SEARCH_WEB";
        let call = json!({"toolType": kind, "id": id, "args": {"queries": [query]}});
        let response = json!({"toolType": kind, "id": id, "response": {"search_suggestions": "<div></div>"}});
        for (name, data) in [("toolCall", call), ("toolResponse", response)] {
            let part = json!({name: data, "thoughtSignature": self.before.seal("")});
            self.part(&part, out);
            self.before.add("model", &part);
        }
    }

    fn error(&mut self, body: &Value, out: &mut Out) {
        out.data(body);
    }

    /// The last chunk has an empty text, with the signature if the model thought before a final answer.
    fn end(&mut self, stop: Option<&ScriptedStop>, out: &mut Out) {
        let (reason, why) = match stop {
            Some(ScriptedStop::MaxTokens | ScriptedStop::Window) => ("MAX_TOKENS", ""),
            Some(ScriptedStop::Refusal(why)) => ("SAFETY", why.as_str()),
            Some(ScriptedStop::Pause) | None => ("STOP", ""),
        };
        let part = match self.thought && !self.called {
            true => json!({"text": "", "thoughtSignature": self.before.seal("")}),
            false => json!({"text": ""}),
        };
        let mut last =
            json!({"content": {"role": "model", "parts": [part]}, "finishReason": reason, "index": 0});
        if !why.is_empty() {
            last["finishMessage"] = why.into();
        }
        if !self.searches.is_empty() {
            let queries: Vec<&str> = self.searches.iter().map(|(query, _)| query.as_str()).collect();
            let chunk = |(_, url): &(String, String)| json!({"web": {"uri": url, "title": "example.org"}});
            let chunks: Vec<Value> = self.searches.iter().map(chunk).collect();
            last["groundingMetadata"] = json!({"webSearchQueries": queries, "groundingChunks": chunks,
                "groundingSupports": [{"segment": {"endIndex": 3, "text": "The"}, "groundingChunkIndices": [0]}],
                "searchEntryPoint": {"renderedContent": "<div></div>"}});
        }
        self.candidate(&last, out);
    }
}

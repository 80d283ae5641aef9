//! A conversation with two calls that each provider accepts, and modifications that make it invalid.

use serde_json::{Value, json};

use epitome_config::WireFormat::{self, AnthropicMessages, Gemini, OpenAiChat, OpenAiResponses};

/// Why the newest models would reject the body.
fn problems(wire: WireFormat, body: &Value) -> Vec<String> {
    super::problems(wire, "", body)
}

/// A question, two calls with their results, an answer, and another question.
fn whole(wire: WireFormat) -> Value {
    match wire {
        AnthropicMessages => json!({"system": [{"type": "text", "text": "Be brief."}],
            "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
            "messages": [
                {"role": "user", "content": "What is there?"},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": "s"},
                    {"type": "tool_use", "id": "a", "name": "look", "input": {}},
                    {"type": "tool_use", "id": "b", "name": "look", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "b", "content": "bread"},
                    {"type": "tool_result", "tool_use_id": "a", "content": "milk"},
                    {"type": "text", "text": "Quickly."}]},
                {"role": "assistant", "content": [{"type": "text", "text": "Both."}]},
                {"role": "user", "content": [{"type": "text", "text": "Thanks."}]}]}),
        OpenAiResponses => json!({"store": false,
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "input": [
                {"role": "user", "content": "What is there?"},
                {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "s"},
                {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                {"type": "function_call", "call_id": "b", "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "b", "output": "bread"},
                {"type": "function_call_output", "call_id": "a", "output": "milk"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
                {"role": "user", "content": [{"type": "input_text", "text": "Thanks."}]}]}),
        OpenAiChat => json!({
            "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is there?"},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}},
                    {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "b", "content": "bread"},
                {"role": "tool", "tool_call_id": "a", "content": "milk"},
                {"role": "assistant", "content": "Both."},
                {"role": "user", "content": "Thanks."}]}),
        Gemini => json!({
            "tools": [{"functionDeclarations": [{"name": "look", "parametersJsonSchema": {"type": "object"}}]}],
            "contents": [
                {"role": "user", "parts": [{"text": "What is there?"}]},
                {"role": "model", "parts": [
                    {"functionCall": {"id": "a", "name": "look", "args": {}}, "thoughtSignature": "s"},
                    {"functionCall": {"id": "b", "name": "look", "args": {}}}]},
                {"role": "user", "parts": [
                    {"functionResponse": {"id": "a", "name": "look", "response": {"output": "milk"}}},
                    {"functionResponse": {"id": "b", "name": "look", "response": {"output": "bread"}}}]},
                {"role": "model", "parts": [{"text": "Both."}]},
                {"role": "user", "parts": [{"text": "Thanks."}]}]}),
    }
}

/// The field with the messages.
fn field(wire: WireFormat) -> &'static str {
    match wire {
        AnthropicMessages | OpenAiChat => "messages",
        OpenAiResponses => "input",
        Gemini => "contents",
    }
}

fn messages(wire: WireFormat, body: &mut Value) -> &mut Vec<Value> {
    body[field(wire)].as_array_mut().expect("it is a list")
}

#[test]
fn valid_conversation_is_accepted() {
    for wire in WireFormat::ALL {
        assert_eq!(problems(wire, &whole(wire)), Vec::<String>::new(), "{wire:?}");
    }
}

#[test]
fn empty_conversation_is_rejected() {
    for wire in WireFormat::ALL {
        let mut body = whole(wire);
        messages(wire, &mut body).clear();
        assert_eq!(problems(wire, &body).len(), 1, "{wire:?}");
    }
}

/// A wire format and a JSON pointer into its valid body.
type At = (WireFormat, &'static str);

#[test]
fn removed_elements_are_detected() {
    // The pointer of a message, block or field to remove, and part of the provider's error.
    let table: [(At, &str); 19] = [
        ((AnthropicMessages, "/messages/0"), "first message must use the \"user\" role"),
        ((AnthropicMessages, "/messages/1"), "unexpected `tool_use_id` found in `tool_result` blocks: b"),
        ((AnthropicMessages, "/messages/2"), "without `tool_result` blocks immediately after: a, b"),
        ((AnthropicMessages, "/messages/4"), "does not support assistant message prefill"),
        ((AnthropicMessages, "/messages/1/content/1"), "unexpected `tool_use_id` found"),
        ((AnthropicMessages, "/messages/2/content/0"), "immediately after: b"),
        ((AnthropicMessages, "/messages/1/content/0/signature"), "signature: Field required"),
        ((OpenAiChat, "/messages/2"), "must be a response to a preceeding message"),
        ((OpenAiChat, "/messages/3"), "did not have response messages: b"),
        ((OpenAiChat, "/messages/2/tool_calls/0"), "must be a response to a preceeding message"),
        ((OpenAiChat, "/messages/5/content"), "expected a string, got null"),
        ((OpenAiResponses, "/input/2"), "No tool call found for function call output with call_id a."),
        ((OpenAiResponses, "/input/5"), "No tool output found for function call a."),
        ((OpenAiResponses, "/input/1/encrypted_content"), "Items are not persisted"),
        ((Gemini, "/contents/0"), "function call turn comes immediately after a user turn"),
        ((Gemini, "/contents/1"), "function response turn comes immediately after a function call turn"),
        ((Gemini, "/contents/2"), "number of function response parts is equal"),
        ((Gemini, "/contents/2/parts/1"), "number of function response parts is equal"),
        ((Gemini, "/contents/4"), "ends with a user role"),
    ];
    for ((wire, path), expected) in table {
        let mut body = whole(wire);
        let (parent, last) = path.rsplit_once('/').expect("it is below something");
        match body.pointer_mut(parent) {
            Some(Value::Array(members)) => {
                members.remove(last.parse().expect("a number"));
            }
            Some(Value::Object(fields)) => {
                fields.remove(last).expect("it was there");
            }
            other => panic!("{path}: {other:?}"),
        }
        let found = problems(wire, &body);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{wire:?} {path}: {found:?}");
    }
}

#[test]
fn misplaced_elements_are_detected() {
    let said = |wire| match wire {
        AnthropicMessages | OpenAiChat | OpenAiResponses => json!({"role": "user", "content": "And?"}),
        Gemini => json!({"role": "user", "parts": [{"text": "And?"}]}),
    };
    let table: [(WireFormat, usize, &str); 3] = [
        (AnthropicMessages, 2, "immediately after: a, b"),
        (OpenAiChat, 3, "did not have response messages: a, b"),
        (Gemini, 2, "number of function response parts is equal"),
    ];
    for (wire, at, expected) in table {
        let mut body = whole(wire);
        messages(wire, &mut body).insert(at, said(wire));
        let found = problems(wire, &body);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{wire:?}: {found:?}");
    }
    // Between reasoning and what it was generated for.
    let mut body = whole(OpenAiResponses);
    messages(OpenAiResponses, &mut body).insert(2, said(OpenAiResponses));
    let expected = "Item 'rs' of type 'reasoning' was provided without its required following item.";
    assert_eq!(problems(OpenAiResponses, &body), [expected]);
}

#[test]
fn malformed_fields_are_detected() {
    let table: [(At, Value, &str); 13] = [
        ((AnthropicMessages, "/messages/0/content"), json!(" "), "text content blocks must be non-empty"),
        ((AnthropicMessages, "/messages/3/content/0/text"), json!("\n"), "must be non-empty"),
        ((AnthropicMessages, "/messages/1/content/2/id"), json!("a"), "`tool_use` ids must be unique"),
        ((AnthropicMessages, "/messages/1/content/2/id"), json!("b.c"), "should match pattern"),
        ((AnthropicMessages, "/messages/3/content/0/type"), json!("image"), "only be in `user` messages"),
        ((AnthropicMessages, "/tools/0/name"), json!("a.b"), "tools.0.custom.name"),
        ((OpenAiChat, "/messages/2/tool_calls"), json!([]), "empty array"),
        ((OpenAiChat, "/messages/0/role"), json!("sys"), "Invalid value: 'sys'"),
        ((OpenAiResponses, "/input/7/content/0/type"), json!("output_text"), "Supported values are"),
        ((OpenAiResponses, "/input/2/arguments"), json!({}), "expected a string"),
        ((Gemini, "/contents/2/parts/0/functionResponse/name"), json!("see"), "names and ids match"),
        ((Gemini, "/contents/3/parts"), json!([]), "must not be empty"),
        ((Gemini, "/contents/3/role"), json!("assistant"), "valid role"),
    ];
    for ((wire, path), value, expected) in table {
        let mut body = whole(wire);
        *body.pointer_mut(path).expect("it is there") = value;
        let found = problems(wire, &body);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{wire:?} {path}: {found:?}");
    }
}

#[test]
fn refused_definitions_of_tools_are_detected() {
    let schema = |wire| match wire {
        AnthropicMessages => "/tools/0/input_schema",
        OpenAiChat => "/tools/0/function/parameters",
        OpenAiResponses => "/tools/0/parameters",
        Gemini => "/tools/0/functionDeclarations/0/parametersJsonSchema",
    };
    let alternatives = json!({"type": "object", "anyOf": [{"required": ["a"]}]});
    let pattern = json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "^\\p{L}"}}});
    for (wire, value, expected) in [
        (AnthropicMessages, &alternatives, "at the top level"),
        (AnthropicMessages, &json!({"type": "object", "properties": {"$.xgafv": {}}}), "Property keys"),
        (OpenAiChat, &alternatives, "at the top level"),
        (OpenAiResponses, &pattern, "is not a 'regex'"),
        (Gemini, &json!({"type": "object", "required": ["a"]}), "property is not defined"),
    ] {
        let mut body = whole(wire);
        *body.pointer_mut(schema(wire)).expect("it is there") = value.clone();
        let found = problems(wire, &body);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{wire:?} {value}: {found:?}");
    }
}

#[test]
fn fields_that_a_service_does_not_know_are_detected() {
    let function = |description: &str, parameters: Value| {
        let function = json!({"name": "look", "description": description, "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    let with = |name: &str, property: Value| {
        json!([function("Looks.", json!({"type": "object", "properties": { name: property }}))])
    };
    for (wire, model, field, value, is_refused) in [
        (OpenAiChat, "mistral-large-latest", "stream_options", json!({"include_usage": true}), true),
        (OpenAiChat, "gpt-4.1", "stream_options", json!({"include_usage": true}), false),
        (OpenAiResponses, "gpt-5-unverified", "reasoning", json!({"summary": "auto"}), true),
        (OpenAiResponses, "gpt-5", "reasoning", json!({"summary": "auto"}), false),
        (OpenAiChat, "moonshotai/kimi-k2", "tools", with("a", json!({"description": "Any."})), true),
        (
            OpenAiChat,
            "kimi-k2",
            "tools",
            with("a", json!({"type": "object", "anyOf": [{"type": "object"}]})),
            true,
        ),
        (
            OpenAiChat,
            "kimi-k2",
            "tools",
            with("a", json!({"anyOf": [{"type": "object"}, {"type": "null"}]})),
            false,
        ),
        (OpenAiChat, "nova-pro", "tools", json!([function("", json!({"type": "object"}))]), true),
        (OpenAiChat, "command-a", "tools", json!([{"function": {"name": "a", "strict": false}}]), true),
        (OpenAiChat, "compound", "tools", vec![function("A", json!({"type": "object"})); 129].into(), true),
        (OpenAiChat, "compound", "tools", vec![function("A", json!({"type": "object"})); 128].into(), false),
    ] {
        let mut body = whole(wire);
        body[field] = value;
        assert_eq!(!super::problems(wire, model, &body).is_empty(), is_refused, "{model}");
    }
}

#[test]
fn gemini_calls_of_the_current_turn_need_signatures() {
    let mut body = whole(Gemini);
    let signed = body.pointer_mut("/contents/1/parts/0").and_then(Value::as_object_mut).expect("a part");
    signed.remove("thoughtSignature");
    assert_eq!(problems(Gemini, &body), Vec::<String>::new(), "older turns are not looked at");
    messages(Gemini, &mut body).truncate(3);
    let found = problems(Gemini, &body);
    assert!(found.len() == 1 && found[0].contains("`default_api:look` , position 2"), "{found:?}");
}

#[test]
fn older_gemini_models_need_no_signature() {
    let mut body = whole(Gemini);
    messages(Gemini, &mut body).truncate(3);
    messages(Gemini, &mut body)[1]["parts"][0]["thoughtSignature"].take();
    assert_eq!(problems(Gemini, &body).len(), 1);
    assert_eq!(super::problems(Gemini, "gemini-2.5-pro", &body), Vec::<String>::new());
}

#[test]
fn reply_ending_with_thinking_is_rejected() {
    let mut body = whole(AnthropicMessages);
    let reply = messages(AnthropicMessages, &mut body)[3]["content"].as_array_mut().expect("blocks");
    reply.push(json!({"type": "thinking", "thinking": "", "signature": "s"}));
    let expected = "messages.3: The final block in an assistant message cannot be `thinking`.";
    assert_eq!(problems(AnthropicMessages, &body), [expected]);
}

#[test]
fn budgeted_thinking_requires_a_reply_that_began_with_it() {
    let mut body = whole(AnthropicMessages);
    body["max_tokens"] = 8192.into();
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 2048});
    messages(AnthropicMessages, &mut body).truncate(3);
    assert_eq!(problems(AnthropicMessages, &body), Vec::<String>::new());
    messages(AnthropicMessages, &mut body)[1]["content"].as_array_mut().expect("blocks").remove(0);
    assert!(problems(AnthropicMessages, &body)[0].starts_with("Expected `thinking`"));
}

#[test]
fn compaction_block_must_come_first() {
    let block = json!({"type": "compaction", "content": "Of old.", "signature": "s"});
    let mut body = whole(AnthropicMessages);
    messages(AnthropicMessages, &mut body).insert(0, json!({"role": "assistant", "content": [block]}));
    assert_eq!(problems(AnthropicMessages, &body), Vec::<String>::new());
    let moved = messages(AnthropicMessages, &mut body).remove(0);
    messages(AnthropicMessages, &mut body).insert(1, moved);
    let expected = "The `compaction` block must be the first block of the conversation.";
    assert_eq!(problems(AnthropicMessages, &body), [expected]);

    let item = json!({"type": "compaction", "id": "cmp", "encrypted_content": "s"});
    let mut body = whole(OpenAiResponses);
    messages(OpenAiResponses, &mut body).insert(0, item);
    assert_eq!(problems(OpenAiResponses, &body), Vec::<String>::new());
    messages(OpenAiResponses, &mut body)[0]["created_by"] = Value::Null;
    assert_eq!(problems(OpenAiResponses, &body), ["Unknown parameter: 'input[0].created_by'."]);
    messages(OpenAiResponses, &mut body)[0] = json!({"type": "compaction"});
    assert_eq!(
        problems(OpenAiResponses, &body),
        ["Missing required parameter: 'input[0].encrypted_content'."]
    );
}

#[test]
fn compaction_request_may_end_with_a_model_message() {
    let mut body = whole(AnthropicMessages);
    body["compaction"] = json!({"type": "summarize"});
    messages(AnthropicMessages, &mut body).truncate(4);
    assert_eq!(problems(AnthropicMessages, &body), Vec::<String>::new());
    messages(AnthropicMessages, &mut body).truncate(2);
    assert!(problems(AnthropicMessages, &body)[0].contains("immediately after: a, b"));
}

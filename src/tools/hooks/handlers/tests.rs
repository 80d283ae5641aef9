//! The answers of handlers to complete hook contexts, and their effects on the disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::hook_context::{
    EventData, HookCall, HookCallResult, HookRound, InvokedBy, PayloadBase, UsageFacts,
};
use crate::output::{HistoryAction, HistoryTail, ResultChange};
use epitome_thread::{
    Change, Content, Entry, Message, MessageId, Mode, ModelName, Origin, Seq, ToolKind, View,
};

pub(super) fn hook_context(what: EventData) -> HookContext {
    let base = PayloadBase {
        session: "s_01".to_owned(),
        cwd: "/w".into(),
        invoked_by: InvokedBy::Main,
        recipe: "compact".to_owned(),
        callback_args: Default::default(),
        callback_depth: 0,
        model: None,
        mode: Mode::Ask,
        revision: Seq(0),
        view: View::default(),
        at: 1_700_000_000_000,
        usage: UsageFacts { used: 50_000, size: 100_000, ..UsageFacts::default() },
        auto_compact: Some(0.8),
        context: Default::default(),
    };
    HookContext { base, what }
}

pub(super) fn said(response: &str) -> HookContext {
    hook_context(EventData::TurnEnd(HookRound {
        response: response.to_owned(),
        number: 1,
        ..HookRound::default()
    }))
}

pub(super) fn handler(name: &str, params: Value) -> Handler {
    let params = params.as_object().cloned().expect("an object");
    Handler { recipe: "compact".to_owned(), name: name.to_owned(), once: false, params }
}

fn called(text: &str, metadata: Option<Value>) -> HookContext {
    let input = json!({"command": "ls"}).as_object().cloned().expect("an object");
    let call = HookCall { id: "c1".to_owned(), tool: "bash".to_owned(), input, kind: ToolKind::Execute };
    let result = HookCallResult {
        success: true,
        error: None,
        metadata_type: None,
        metadata,
        text: text.to_owned(),
        milliseconds: 12,
        blocked: false,
    };
    hook_context(EventData::AfterToolCall { call, result })
}

fn workspace(cwd: &Path) -> HandlerContext {
    let workspace = Workspace::new(cwd.to_path_buf(), Vec::new(), Arc::default());
    HandlerContext { workspace: Arc::new(workspace), functions: Functions::default() }
}

/// Runs a handler. Returns its output or its failure message.
async fn ask(
    name: &str,
    params: Value,
    hook_context: &HookContext,
    cwd: &Path,
) -> Result<HookOutput, String> {
    match perform(&handler(name, params), hook_context, &workspace(cwd)).await {
        RawOutcome::Answered(output) => Ok(*output),
        RawOutcome::Failed(why) => Err(why),
        other => panic!("{other:?}"),
    }
}

async fn pure(name: &str, params: Value, hook_context: &HookContext) -> Result<HookOutput, String> {
    ask(name, params, hook_context, Path::new("/nowhere")).await
}

#[test]
fn every_name_is_a_built_in_handler() {
    for name in epitome_recipe::handlers::BUILT_IN {
        assert!(built_in(name).is_some(), "{name}");
    }
}

#[tokio::test]
async fn swap_context_strips_tags_from_the_reply() {
    let both = "<analysis>a <b></analysis>\n<summary>S</summary><notes>n</notes>";
    type ExpectedKeep = Result<(&'static str, HistoryTail), &'static str>;
    let cases: [(&str, Value, ExpectedKeep); 6] = [
        ("Plain.", json!({}), Ok(("Plain.", HistoryTail::Nothing))),
        (both, json!({}), Ok(("<summary>S</summary><notes>n</notes>", HistoryTail::Nothing))),
        (
            both,
            json!({"strip_tags": ["notes"], "preserve_recent": 2}),
            Ok(("<analysis>a <b></analysis>\n<summary>S</summary>", HistoryTail::Messages(2))),
        ),
        ("<analysis>not closed: S", json!({}), Ok(("<analysis>not closed: S", HistoryTail::Nothing))),
        (
            "<analysis>all</analysis>",
            json!({}),
            Err("the reply has no text to continue with; the history stays as it is"),
        ),
        (
            "S",
            json!({"preserve_recent": "many"}),
            Err("\"preserve_recent\" must be a whole number from 0 to 100000"),
        ),
    ];
    for (response, params, wanted) in cases {
        let action = pure("swap_context", params, &said(response)).await.map(|output| output.action);
        let wanted = wanted
            .map(|(summary, keep)| HistoryAction::Swap { summary: summary.to_owned(), keep })
            .map_err(str::to_owned);
        assert_eq!(action, wanted, "{response}");
    }
}

#[test]
fn max_summary_tokens_comes_from_the_recipe() {
    for (params, wanted) in [
        (json!({}), 4096),
        (json!({"max_summary_tokens": 500}), 500),
        (json!({"max_summary_tokens": 0}), 4096),
    ] {
        assert_eq!(max_summary_tokens(&handler("swap_context", params)), wanted);
    }
}

#[tokio::test]
async fn compact_context_requests_a_compaction_with_its_ratio() {
    for (params, keep) in [(json!({}), 0.40), (json!({"preserve_ratio": 0.1, "prune": true}), 0.1)] {
        let output = pure("compact_context", params, &said("")).await.expect("it answers");
        assert_eq!(
            output.action,
            HistoryAction::Compact { keep: HistoryTail::Ratio(keep), threshold: false }
        );
    }
    assert!(pure("compact_context", json!({"preserve_ratio": 1}), &said("")).await.is_err());
}

#[test]
fn compact_trigger_fires_at_the_threshold() {
    let cases = [
        (Some(0.8), 79_999, false),
        (Some(0.8), 80_000, true),
        (Some(0.5), 80_000, true),
        (Some(0.0), 80_000, false),
        (None, 99_999, false),
    ];
    for (threshold, used, wanted) in cases {
        let mut hook_context = said("x");
        hook_context.base.auto_compact = threshold;
        hook_context.base.usage.used = used;
        let asked = match compact_context::trigger(&hook_context).action {
            HistoryAction::Compact { keep, threshold } => {
                assert_eq!((keep, threshold), (HistoryTail::Ratio(0.40), true));
                true
            }
            _ => false,
        };
        assert_eq!(asked, wanted, "{threshold:?} {used}");
    }
}

#[tokio::test]
async fn append_context_adds_the_labeled_reply() {
    let output = pure("append_context", json!({"label": "Plan"}), &said(" one\ntwo ")).await;
    assert_eq!(output.expect("it answers").context, ["Plan:\none\ntwo"]);
    let long = "x".repeat(70_000);
    assert!(pure("append_context", json!({}), &said(&long)).await.expect_err("too long").contains("70000"));
}

#[tokio::test]
async fn redact_removes_matches_from_prompts_and_results() {
    let params = json!({"patterns": ["sk-[a-z0-9]+", r"\b\d{4}\b"]});
    let prompt = |message: &str| {
        hook_context(EventData::UserMessageSend { message: message.to_owned(), attachments: Vec::new() })
    };
    let output = pure("redact", params.clone(), &prompt("use sk-abc1 and 1234 and 12345")).await;
    let wanted = "use [redacted] and [redacted] and 12345".to_owned();
    assert_eq!(output, Ok(HookOutput { message: Some(wanted), ..HookOutput::default() }));
    assert_eq!(pure("redact", params.clone(), &prompt("nothing")).await, Ok(HookOutput::default()));

    let metadata = json!({"lines": ["key sk-1", "x"], "n": 1234});
    let output = pure("redact", params, &called("key sk-1", Some(metadata))).await.expect("it answers");
    assert_eq!(output.output_text.as_deref(), Some("key [redacted]"));
    let metadata = Some(json!({"lines": ["key [redacted]", "x"], "n": 1234}));
    assert_eq!(output.output, Some(ResultChange { metadata, ..ResultChange::default() }));
}

/// Regression: with a mistyped pattern, a recipe continued and passed on the secrets that it should have
/// removed.
#[tokio::test]
async fn a_failed_redaction_withholds_the_text() {
    let params = json!({"patterns": "(secret"});
    let output = pure("redact", params.clone(), &called("a secret", Some(json!({"line": "a secret"})))).await;
    let output = output.expect("it answers");
    let text = output.output_text.expect("another text");
    assert!(
        text.starts_with("[withheld, because it cannot be redacted: ") && !text.contains("a secret"),
        "{text}"
    );
    assert_eq!(output.output.and_then(|change| change.metadata), Some(Value::Null));

    let prompt =
        hook_context(EventData::UserMessageSend { message: "a secret".to_owned(), attachments: Vec::new() });
    let output = pure("redact", params.clone(), &prompt).await.expect("it answers");
    assert!(output.block.is_some());

    let hooks = json!({"after_tool_call": {"handler": "redact", "params": params}});
    let (table, problems) =
        declared("r", &hooks, &BTreeMap::new(), &Functions::default(), Path::new("/r.md"));
    assert_eq!((table.len(), problems.len()), (1, 1), "it is reported and kept");
}

/// A replacement such as `$0` would reinsert the removed text.
#[tokio::test]
async fn replacements_are_literal() {
    let params = json!({"patterns": "secret", "replacement": "$0"});
    let output = pure("redact", params, &called("a secret", None)).await.expect("it answers");
    assert_eq!(output.output_text.as_deref(), Some("a $0"));
}

#[tokio::test]
async fn an_invalid_reply_is_retried_once() {
    let schema =
        json!({"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}});
    let params = |on_fail: &str| json!({"schema": schema, "on_fail": on_fail});
    for fits in ["{\"title\": \"a\"}", "Here:\n```json\n{\"title\": \"a\"}\n```\nDone."] {
        let output = pure("validate_output", params("continue"), &said(fits)).await;
        assert_eq!(output, Ok(HookOutput::default()), "{fits}");
    }
    let mut hook_context = said("{\"title\": 3}");
    let output = pure("validate_output", params("continue"), &hook_context).await.expect("it answers");
    let [follow_up] = output.follow_ups.as_slice() else { panic!("{output:?}") };
    assert!(follow_up.text.contains("/title: want string, but got number"), "{}", follow_up.text);

    hook_context.base.view =
        view(&[("Make one", Origin::Person), (&follow_up.text, Origin::Hook { hook: "h".into() })]);
    let output = pure("validate_output", params("continue"), &hook_context).await.expect("it answers");
    assert!(output.follow_ups.is_empty());
    let notice = output.notice.expect("the user gets a notice");
    assert!(notice.starts_with("The reply does not fit its schema after 1 retry: /title"), "{notice}");

    let output = pure("validate_output", params("notice"), &said("no JSON")).await.expect("it answers");
    assert!(output.notice.is_some_and(|notice| notice.contains("not valid JSON")));
}

fn view(messages: &[(&str, Origin)]) -> View {
    let entries: Vec<Arc<Entry>> = messages
        .iter()
        .enumerate()
        .map(|(at, (text, origin))| {
            let id = MessageId(at as u64);
            let message =
                Message { id, content: vec![Content::Text { text: (*text).to_owned() }], author: None };
            let change = match text.strip_prefix("agent: ") {
                Some(_) => Change::Replied { message, model: ModelName("m".into()), usage: None, cut: None },
                None => Change::Said { message, origin: origin.clone() },
            };
            Arc::new(Entry { seq: Seq(at as u64), at: 0, change })
        })
        .collect();
    View::fold(&entries, &Default::default())
}

#[tokio::test]
async fn tool_results_are_validated_by_metadata_or_text() {
    let schema = json!({"type": "object", "required": ["ok"]});
    let checked = async |hook_context: HookContext, more: Value| {
        let mut params = json!({"schema": schema});
        params.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        pure("validate_tool_output", params, &hook_context).await.expect("it answers")
    };
    assert_eq!(checked(called("{\"ok\": 1}", None), json!({})).await, HookOutput::default());
    assert_eq!(checked(called("x", Some(json!({"ok": 1}))), json!({})).await, HookOutput::default());
    assert_eq!(checked(called("x", None), json!({"tool_name": "file_*"})).await, HookOutput::default());
    let expected = "The result of bash does not fit its schema: /: missing properties 'ok'";
    assert_eq!(checked(called("{}", None), json!({})).await.context, [expected]);
    assert_eq!(
        checked(called("{}", None), json!({"on_fail": "notice"})).await.notice.as_deref(),
        Some(expected)
    );
}

#[tokio::test]
async fn a_schema_may_be_a_file_of_the_workspace() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let outside = tempfile::tempdir().expect("a temporary directory");
    fs::write(folder.path().join("s.json"), r#"{"type": "array"}"#).expect("written");
    fs::write(folder.path().join("far.json"), r#"{"$ref": "https://example.org/s.json"}"#).expect("written");
    fs::write(outside.path().join("s.json"), "{}").expect("written");
    std::os::unix::fs::symlink(outside.path().join("s.json"), folder.path().join("link.json"))
        .expect("linked");
    let check = async |schema: &str| {
        ask("validate_output", json!({"schema": schema}), &said("[1]"), folder.path()).await
    };
    assert_eq!(check("s.json").await, Ok(HookOutput::default()));
    for (schema, why) in [
        ("missing.json", "There is no file missing.json"),
        ("link.json", "is outside of"),
        ("../s.json", "is outside of"),
        ("far.json", "this is not a usable JSON Schema"),
    ] {
        let error = check(schema).await.expect_err("it is refused");
        assert!(error.contains(why), "{schema}: {error}");
    }
}

/// Regression: because of floating-point division, a price of 19.99 was rejected where cents are required.
#[test]
fn decimal_fractions_satisfy_multiple_of() {
    let params = json!({"schema": {"items": {"anyOf": [{"type": "null"}, {"multipleOf": 0.01}]}}});
    let read = json::Schema::read(params.as_object().expect("an object"));
    let Ok(json::Schema::Inline(prices)) = read else { panic!("it is a schema of its own") };
    assert_eq!(json::faults_of(&json!([19.99, 0.07, 1234567.89, null]), &prices), Vec::<String>::new());
    assert_eq!(json::faults_of(&json!([19.991]), &prices).len(), 2);
}

#[test]
fn faults_are_listed_in_order_up_to_ten() {
    let params = json!({"schema": {
        "type": "array",
        "items": {"$ref": "#/$defs/name"},
        "$defs": {"name": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "null"}]}},
    }});
    let read = json::Schema::read(params.as_object().expect("an object"));
    let Ok(json::Schema::Inline(list)) = read else { panic!("it is a schema of its own") };
    assert_eq!(json::faults_of(&json!(["a", null]), &list), Vec::<String>::new());
    assert_eq!(
        json::faults_of(&json!([1, "A"]), &list),
        [
            "/0: want string, but got number",
            "/0: want null, but got number",
            "/1: 'A' does not match pattern '^[a-z]+$'",
            "/1: want null, but got string",
        ]
    );
    assert_eq!(json::faults_of(&json!([1, 2, 3, 4, 5, 6, 7]), &list).len(), 10);
}

#[tokio::test]
async fn export_overwrites_the_file_or_appends_replies() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let read = |path: &str| fs::read_to_string(folder.path().join(path)).expect("it was written");
    let mut hook_context = said("agent: Hi");
    hook_context.base.view = view(&[("Hello", Origin::Person), ("agent: Hi", Origin::Person)]);
    ask("export_markdown", json!({"path": "out/talk.md"}), &hook_context, folder.path())
        .await
        .expect("exported");
    assert_eq!(
        read("out/talk.md"),
        "# Conversation s_01\n\n## User\n\nHello\n\n## Agent (m)\n\nagent: Hi\n\n"
    );
    let long = "x".repeat(8 << 20);
    hook_context.base.view = view(&[(long.as_str(), Origin::Person), ("agent: Hi", Origin::Person)]);
    for _ in 0..2 {
        ask("export_markdown", json!({"path": "out/talk.md"}), &hook_context, folder.path())
            .await
            .expect("exported");
    }
    assert_eq!(
        read("out/talk.md"),
        "# Conversation s_01\n\n_The oldest 1 parts are left out._\n\n## Agent (m)\n\nagent: Hi\n\n"
    );
    for reply in ["one", "", "two"] {
        let params = json!({"path": "replies.md", "mode": "append"});
        ask("export_markdown", params, &said(reply), folder.path()).await.expect("exported");
    }
    assert_eq!(read("replies.md"), "## Agent\n\none\n\n## Agent\n\ntwo\n\n");
}

/// A recipe exported the conversation to the user's `notes.md`, whose content was then gone.
#[tokio::test]
async fn an_export_replaces_only_an_export() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let reply = said("Hi");
    let export = || ask("export_markdown", json!({"path": "notes.md"}), &reply, folder.path());
    fs::write(folder.path().join("notes.md"), "Mine").expect("written");
    let refused = Err("notes.md is not an export, so it is not overwritten; choose another path".to_owned());
    assert_eq!(export().await, refused);
    assert_eq!(fs::read(folder.path().join("notes.md")).expect("read"), b"Mine");
    fs::remove_file(folder.path().join("notes.md")).expect("removed");
    for _ in 0..2 {
        export().await.expect("exported");
    }
}

#[tokio::test]
async fn calls_are_logged_one_line_each() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let after = called("listing", None);
    let EventData::AfterToolCall { call, .. } = after.what.clone() else { panic!("{after:?}") };
    for hook_context in [hook_context(EventData::BeforeToolCall(call)), after] {
        ask("log_tool_usage", json!({}), &hook_context, folder.path()).await.expect("logged");
    }
    let text = fs::read_to_string(folder.path().join("tool-usage.jsonl")).expect("it was written");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["event"], "before_tool_call");
    assert_eq!(lines[0]["tool_input"], json!({"command": "ls"}));
    assert_eq!((&lines[1]["success"], &lines[1]["output_bytes"]), (&json!(true), &json!(7)));
}

#[tokio::test]
async fn unsafe_write_targets_are_refused() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let outside = tempfile::tempdir().expect("a temporary directory");
    std::os::unix::fs::symlink(outside.path(), folder.path().join("out")).expect("linked");
    std::os::unix::fs::symlink(outside.path().join("new.md"), folder.path().join("new.md")).expect("linked");
    let absolute = outside.path().join("a.md").display().to_string();
    for path in
        ["../a.md", "out/a.md", "new.md", absolute.as_str(), ".git/config", "a/.epitome/hooks/x", ".env"]
    {
        for mode in ["overwrite", "append"] {
            for session in [Mode::Ask, Mode::Full] {
                let mut hook_context = said("text");
                hook_context.base.mode = session;
                let params = json!({"path": path, "mode": mode});
                let result = ask("export_markdown", params, &hook_context, folder.path()).await;
                assert!(result.is_err(), "{path} {mode}");
            }
        }
    }
    assert_eq!(fs::read_dir(outside.path()).expect("listed").count(), 0);
    assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 2, "the two links");

    let mut hook_context = said("text");
    hook_context.base.mode = Mode::ReadOnly;
    let refused = ask("export_markdown", json!({}), &hook_context, folder.path()).await;
    assert_eq!(refused, Err("conversation.md was not written: the session is read-only".to_owned()));
}

#[tokio::test]
async fn unknown_or_misplaced_handlers_fail() {
    assert_eq!(
        pure("swap_contxt", json!({}), &said("S")).await,
        Err("no handler or script is called \"swap_contxt\": nothing was done".to_owned())
    );
    assert_eq!(
        pure("swap_context", json!({}), &called("x", None)).await,
        Err("it works at turn_end, not at after_tool_call".to_owned())
    );
}

#[tokio::test]
async fn a_registered_handler_overrides_the_built_in_one() {
    let mut at = workspace(Path::new("/nowhere"));
    at.functions.register_handler("swap_context", |handler: Handler, hook_context: HookContext| async move {
        let notice = Some(format!("{} in {}", handler.recipe, hook_context.base.session));
        Ok(HookOutput { notice, ..HookOutput::default() })
    });
    at.functions.register_handler("broken", |_, _| async { panic!("oh") });
    let ran = perform(&handler("swap_context", json!({})), &said("S"), &at).await;
    let notice = Some("compact in s_01".to_owned());
    assert_eq!(ran, RawOutcome::Answered(Box::new(HookOutput { notice, ..HookOutput::default() })));
    let ran = perform(&handler("broken", json!({})), &said("S"), &at).await;
    assert_eq!(ran, RawOutcome::Failed("the function \"broken\" failed: it panicked: oh".to_owned()));
}

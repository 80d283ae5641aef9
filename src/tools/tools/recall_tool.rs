//! `recall`: searches and reads the conversation's log, including entries that are no longer in the model's view. It
//! accesses nothing else, so it needs no permission.

use std::time::{Duration, Instant, SystemTime};

use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::schema::{self, InputKey};
use super::{
    BoxFuture, Needs, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input, truncate,
};
use epitome_recall::{self as recall, Clock, RecallError, RecallLog, RecallQuery, RecordKind};
use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, ToolKind, ToolSpec};

/// Timeout of one search. Even the largest logs take a fraction of it, whatever the expression.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(5);

const TITLE_BYTES_MAX: usize = 80;

pub use recall::NAME;

/// The definition of the tool.
pub fn spec() -> ToolSpec {
    schema::spec(
        recall::NAME,
        "Searches and reads this conversation from its beginning: also what was summarised, masked or cut out of \
             your view. Give `entry` alone to read; other conditions search, and combine.",
        [
            InputKey::text("entry", "e12, e12.2 or e12-e20"),
            InputKey::text("text", "Words that must all occur, in any case."),
            InputKey::new("regex", json!({"type": "string"})),
            InputKey::text("path", "File or directory that was touched."),
            InputKey::new("kind", json!({"type": "string", "enum": RecordKind::ALL.map(RecordKind::id)})),
            InputKey::text("since", "2026-01-31T10:00 or 2h ago"),
            InputKey::new("until", json!({"type": "string"})),
            InputKey::number("offset", "Bytes of a text, or matches, to skip."),
            InputKey::new("limit", json!({"type": "integer"})),
        ],
    )
}

pub struct RecallTool;

impl ParsedTool for RecallTool {
    type Call = RecallQuery;
    const NEEDS: Needs = Needs::Log;

    fn spec(&self) -> ToolSpec {
        spec()
    }

    fn display(&self, input: &Value, _: &Workspace) -> CallDisplay {
        let kind = ToolKind::Search;
        let keys = ["entry", "text", "regex", "path", "kind", "since", "until"];
        let given = keys.iter().filter_map(|key| input.get(key).and_then(Value::as_str));
        let words: Vec<&str> = given.map(str::trim).filter(|text| !text.is_empty()).collect();
        let title = match words.join(", ") {
            words if words.is_empty() => "Recall".to_string(),
            words => {
                let words = truncate::line(&words.replace('\n', " "), TITLE_BYTES_MAX);
                format!("Recall {}", name_in_title(kind, &words))
            }
        };
        CallDisplay { title, kind, locations: Vec::new() }
    }

    fn parse(&self, input: &Value, _: &Workspace) -> Result<RecallQuery, ToolError> {
        query(input)
    }

    fn run(&self, ask: RecallQuery, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| {
            answer(&context.log, &ask, &|| stop.requested())
                .map(ToolResult::with_file_text)
                .map_err(ToolError::from)
        })
    }
}

/// Answers a query with a text for the model, until `stop` is true or the time is up.
pub fn answer(log: &RecallLog, ask: &RecallQuery, stop: &dyn Fn() -> bool) -> Result<String, RecallError> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let clock = Clock { now, zone: TimeZone::system() };
    let begun = Instant::now();
    log.answer(ask, &clock, &|| stop() || begun.elapsed() > SEARCH_TIME_MAX)
}

/// Reads the input of a call.
pub fn query(input: &Value) -> Result<RecallQuery, ToolError> {
    let number = |key| {
        let number = input::whole(input, key)?;
        Ok::<_, ToolError>(number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)))
    };
    let ask = RecallQuery {
        range: input::optional_named(input, "entry")?.map(|text| text.parse()).transpose()?,
        text: input::optional_named(input, "text")?,
        regex: input::optional_named(input, "regex")?,
        path: input::optional_named(input, "path")?,
        kind: input::optional_named(input, "kind")?.map(|text| text.parse()).transpose()?,
        since: input::optional_named(input, "since")?,
        until: input::optional_named(input, "until")?,
        offset: number("offset")?.unwrap_or(0),
        limit: number("limit")?,
    };
    let asked = [&ask.text, &ask.regex, &ask.path, &ask.since, &ask.until];
    if ask.range.is_none() && ask.kind.is_none() && asked.iter().all(|asked| asked.is_none()) {
        return Err(ToolError::new("Give `entry`, or `text`, `regex`, `path`, `kind` or a time."));
    }
    Ok(ask)
}

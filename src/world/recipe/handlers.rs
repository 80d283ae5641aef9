//! The handler names that a recipe's `hooks` table can use. Pure.

use serde_json::{Map, Value};

use epitome_thread::problem::{nearest, position_in};

/// Built-in handlers, which are implemented in `hooks`.
pub const BUILT_IN: [&str; 8] = [
    "swap_context",
    "compact_context",
    "append_context",
    "export_markdown",
    "validate_output",
    "log_tool_usage",
    "validate_tool_output",
    "redact",
];

/// Placeholder for the hook scripts that are found on disk.
pub const EXTERNAL: &str = "external";

/// The threshold check of automatic compaction, which runs after everything else at the end of a round.
pub const COMPACT_TRIGGER: &str = "builtin:compact-trigger";

/// All names with a fixed meaning in every recipe.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    BUILT_IN.into_iter().chain([EXTERNAL, COMPACT_TRIGGER])
}

/// A handler name that is not built in. It may be the name of a hook on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownHandler {
    pub name: String,
    /// Line and column in the recipe's file, both 1-based.
    pub position: (u64, u64),
}

impl UnknownHandler {
    /// The known handler with the most similar name.
    pub fn nearest(&self) -> Option<&'static str> {
        nearest(&self.name, names())
    }
}

/// Returns the handlers of a `hooks` table that are not built in. `front` is the front matter, which starts
/// at the file's second line; `from` is the line of the file at which the table starts.
pub(super) fn unknown(hooks: &Value, front: &str, from: u64) -> Vec<UnknownHandler> {
    let begins = front.split_inclusive('\n').take(from.saturating_sub(2) as usize).map(str::len).sum();
    let mut unknown: Vec<UnknownHandler> = Vec::new();
    // `event: name`, `event: {handler: name}`, `event: {handlers: [name]}`, or a list of these.
    for name in hooks.as_object().into_iter().flat_map(Map::values).flat_map(handlers_of) {
        if names().any(|known| known == name) || unknown.iter().any(|handler| handler.name == name) {
            continue;
        }
        // The YAML parser reports no positions inside a table, so search the text.
        let offset = word_at(&front[begins..], name).map_or(begins, |at| begins + at);
        let (line, column) = position_in(front, offset);
        unknown.push(UnknownHandler { name: name.to_owned(), position: (line + 1, column) });
    }
    unknown
}

/// Finds the first occurrence of a name as a separate word.
fn word_at(text: &str, name: &str) -> Option<usize> {
    let part = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
    let ends = |at: usize| {
        let (before, behind) = (&text[..at], &text[at + name.len()..]);
        !before.ends_with(part) && !behind.starts_with(part)
    };
    text.match_indices(name).map(|(at, _)| at).find(|at| ends(*at))
}

fn handlers_of(value: &Value) -> Vec<&str> {
    match value {
        Value::String(name) => vec![name],
        Value::Array(items) => items.iter().flat_map(handlers_of).collect(),
        Value::Object(fields) => {
            let fields = ["handler", "handlers"].into_iter().filter_map(|field| fields.get(field));
            fields.flat_map(handlers_of).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_handlers_are_found_in_every_form() {
        let front = "name: x\nhooks:\n  turn_end:\n    handler: swap_contxt\n  agent_stop:\n    handlers: [external, lint]\n  after_turn:\n    - redact\n    - { handler: audit.sh, params: { handler: no } }\n";
        let hooks = serde_json::json!({
            "turn_end": { "handler": "swap_contxt" },
            "agent_stop": { "handlers": ["external", "lint"] },
            "after_turn": ["redact", { "handler": "audit.sh", "params": { "handler": "no" } }],
        });
        let found = unknown(&hooks, front, 3);
        let found: Vec<_> = found.iter().map(|h| (h.name.as_str(), h.position, h.nearest())).collect();
        assert_eq!(
            found,
            [
                ("swap_contxt", (5, 14), Some("swap_context")),
                ("lint", (7, 26), None),
                ("audit.sh", (10, 18), None),
            ]
        );
    }

    #[test]
    fn a_table_without_handlers_has_none_unknown() {
        for hooks in [serde_json::json!(null), serde_json::json!({}), serde_json::json!({"turn_end": 1})] {
            assert_eq!(unknown(&hooks, "hooks:\n", 2), []);
        }
    }
}

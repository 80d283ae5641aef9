//! Parses the `hooks` table of a recipe. Pure; everything that cannot be parsed is reported as a problem.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::{Handler, HandlerParams, built_in, check};
use crate::event::HookEvent;
use crate::functions::Functions;
use epitome_recipe::handlers::{BUILT_IN, EXTERNAL};
use epitome_thread::problem::{Problem, nearest};

/// Maximum handlers that one recipe may declare for all events. Real recipes declare a few.
const DECLARED_MAX: usize = 64;

/// One position in the order that a recipe declares for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum DeclaredHandler {
    Handler(Arc<Handler>),
    /// All discovered scripts that the recipe does not name itself.
    External {
        once: bool,
    },
    /// One script by its name.
    Script {
        name: String,
        once: bool,
    },
}

/// The declarations of a recipe by event, in its order.
pub type HandlerTable = BTreeMap<HookEvent, Vec<DeclaredHandler>>;

/// Parses a recipe's `hooks` table. Each event has `{handler, once, params}`, `{handlers: [..], once,
/// params}`, a single name, or a list of those.
///
/// `arguments` are those of the recipe call: `keep` is the `preserve_recent` of a `swap_context` that does
/// not set it. Invalid parts are left out, except for unknown handlers, which are kept so that their run
/// reports that nothing was done. Problems have no line: positions inside the table are unknown.
pub fn declared(
    recipe: &str,
    hooks: &Value,
    arguments: &BTreeMap<String, String>,
    functions: &Functions,
    path: &Path,
) -> (HandlerTable, Vec<Problem>) {
    let mut reader = HandlerReader {
        recipe,
        arguments,
        functions,
        path,
        found: Vec::new(),
        count: 0,
        problems: Vec::new(),
    };
    let mut table = HandlerTable::new();
    match hooks {
        Value::Null => {}
        Value::Object(events) => {
            for (name, value) in events {
                if let Some(event) = HookEvent::parse(name) {
                    reader.entries(event, name, value);
                    table.entry(event).or_default().append(&mut reader.found);
                } else {
                    let known = HookEvent::ALL.iter().flat_map(|event| event.names().iter().copied());
                    reader.problem(format!("no event is called {name:?}"), nearest(name, known));
                }
            }
        }
        _ => reader.problem("\"hooks\" must be a map from events to handlers".to_owned(), None),
    }
    table.retain(|_, declared| !declared.is_empty());
    (table, reader.problems)
}

struct HandlerReader<'a> {
    recipe: &'a str,
    arguments: &'a BTreeMap<String, String>,
    functions: &'a Functions,
    path: &'a Path,
    /// The declarations of the current event.
    found: Vec<DeclaredHandler>,
    /// The number of declarations of all events.
    count: usize,
    problems: Vec<Problem>,
}

impl HandlerReader<'_> {
    fn problem(&mut self, message: String, near: Option<&str>) {
        let hint = near.map(|name| format!("did you mean {name:?}?"));
        self.problems.push(Problem { hint, ..Problem::new(self.path, message) });
    }

    /// `name` is the event's name as written in the recipe.
    fn entries(&mut self, event: HookEvent, name: &str, value: &Value) {
        match value {
            Value::Null => {}
            Value::String(handler) => self.handler(event, handler, false, HandlerParams::new()),
            Value::Array(entries) => {
                for entry in entries {
                    match entry.is_array() {
                        true => self.problem(format!("{name:?} has a list in its list of handlers"), None),
                        false => self.entries(event, name, entry),
                    }
                }
            }
            Value::Object(fields) => self.entry(event, name, fields),
            Value::Bool(_) | Value::Number(_) => {
                self.problem(format!("{name:?} must name a handler"), None);
            }
        }
    }

    fn entry(&mut self, event: HookEvent, name: &str, fields: &HandlerParams) {
        const FIELDS: [&str; 4] = ["handler", "handlers", "once", "params"];
        for field in fields.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
            self.problem(format!("{name:?} has an unknown field {field:?}, ignored"), nearest(field, FIELDS));
        }
        let once = match fields.get("once") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(once)) => *once,
            // An unreadable limit must not be treated as no limit.
            Some(_) => return self.problem(format!("\"once\" of {name:?} must be true or false"), None),
        };
        let none = HandlerParams::new();
        let params = match fields.get("params") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(params)) => params,
            Some(_) => return self.problem(format!("\"params\" of {name:?} must be a map"), None),
        };
        match (fields.get("handler"), fields.get("handlers")) {
            (Some(Value::String(handler)), None) => self.handler(event, handler, once, params.clone()),
            (None, Some(Value::Array(handlers))) => {
                for handler in handlers {
                    match handler.as_str() {
                        Some(handler) => self.listed(event, handler, once, own(handler, handlers, params)),
                        None => {
                            self.problem(format!("\"handlers\" of {name:?} must be a list of names"), None);
                        }
                    }
                }
            }
            _ => self.problem(
                format!("{name:?} needs either \"handler\", a name, or \"handlers\", a list of names"),
                None,
            ),
        }
    }

    /// A name in a list, where scripts are allowed.
    fn listed(&mut self, event: HookEvent, name: &str, once: bool, params: HandlerParams) {
        if name == EXTERNAL || self.knows(name) {
            return self.handler(event, name, once, params);
        }
        // It may be a script: the scripts are known only after the session's hooks were discovered. A missing script
        // reports an error when it is run.
        if let Some(near) = self.nearest(name) {
            self.problem(format!("no handler is called {name:?}; it is taken for a script"), Some(&near));
        }
        self.push(DeclaredHandler::Script { name: name.to_owned(), once });
    }

    fn handler(&mut self, event: HookEvent, name: &str, once: bool, mut params: HandlerParams) {
        if name == EXTERNAL {
            return self.push(DeclaredHandler::External { once });
        }
        if name == "swap_context"
            && !params.contains_key("preserve_recent")
            && let Some(keep) =
                self.arguments.get("keep").map(|keep| keep.trim()).filter(|keep| !keep.is_empty())
        {
            let keep = keep.parse::<u64>().map_or_else(|_| Value::from(keep), Value::from);
            params.insert("preserve_recent".to_owned(), keep);
        }
        let handler = Handler { recipe: self.recipe.to_owned(), name: name.to_owned(), once, params };
        if !self.knows(name) {
            let near = self.nearest(name);
            self.problem(format!("no handler is called {name:?}: it does nothing"), near.as_deref());
        } else if !self.functions.has_handler(name) {
            let remark =
                |message: String, near: Option<&str>| self.problem(format!("{name}: {message}"), near);
            if let Err(message) = check(&handler, event, remark) {
                self.problem(format!("{name}: {message}"), None);
                // A broken redaction must still withhold the text (`redact::withhold`).
                if name != "redact" {
                    return;
                }
            }
        }
        self.push(DeclaredHandler::Handler(Arc::new(handler)));
    }

    fn push(&mut self, declared: DeclaredHandler) {
        self.count += 1;
        if self.count <= DECLARED_MAX {
            self.found.push(declared);
        } else if self.count == DECLARED_MAX + 1 {
            self.problem(format!("more than {DECLARED_MAX} handlers; the others do nothing"), None);
        }
    }

    fn knows(&self, name: &str) -> bool {
        BUILT_IN.contains(&name) || self.functions.has_handler(name)
    }

    fn nearest(&self, name: &str) -> Option<String> {
        nearest(name, BUILT_IN.into_iter().chain(self.functions.handler_names())).map(str::to_owned)
    }
}

/// The parameters of one handler in a list, without those that only another handler of the list accepts.
fn own(name: &str, list: &[Value], params: &HandlerParams) -> HandlerParams {
    let accepted = |handler: &str| built_in(handler).map_or(&[][..], |handler| handler.params);
    let others = || list.iter().filter_map(Value::as_str).filter(|other| *other != name);
    let own = params.iter().filter(|(param, _)| {
        let accepts = |handler: &str| accepted(handler).contains(&param.as_str());
        accepts(name) || accepted(name).is_empty() || !others().any(accepts)
    });
    own.map(|(param, value)| (param.clone(), value.clone())).collect()
}

#[cfg(test)]
#[path = "declared_tests.rs"]
mod tests;

//! Parses the `hooks` table of a recipe. Pure; everything that cannot be parsed is reported as a problem.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Handler, check, params_of};
use crate::event::HookEvent;
use crate::functions::Functions;
use epitome_problem::{Problem, nearest};
use epitome_recipe::handlers::{BUILT_IN, EXTERNAL};

/// Maximum handlers that one recipe may declare for all events. Real recipes declare a few.
const DECLARED_MAX: usize = 64;

/// One position in the order that a recipe declares for an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Declared {
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
pub type Table = BTreeMap<HookEvent, Vec<Declared>>;

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
) -> (Table, Vec<Problem>) {
    let mut reader = Reader { recipe, arguments, functions, path, count: 0, problems: Vec::new() };
    let mut table = Table::new();
    match hooks {
        Value::Null => {}
        Value::Object(events) => {
            for (name, value) in events {
                match HookEvent::parse(name) {
                    Some(event) => {
                        let mut found = Vec::new();
                        reader.entries(event, name, value, &mut found);
                        table.entry(event).or_default().extend(found);
                    }
                    None => {
                        let known = HookEvent::ALL.iter().flat_map(|event| event.names().iter().copied());
                        reader.problem(format!("no event is called {name:?}"), nearest(name, known));
                    }
                }
            }
        }
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            reader.problem("\"hooks\" must be a map from events to handlers".to_owned(), None);
        }
    }
    table.retain(|_, declared| !declared.is_empty());
    (table, reader.problems)
}

struct Reader<'a> {
    recipe: &'a str,
    arguments: &'a BTreeMap<String, String>,
    functions: &'a Functions,
    path: &'a Path,
    count: usize,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn problem(&mut self, message: String, near: Option<&str>) {
        let hint = near.map(|name| format!("did you mean {name:?}?"));
        self.problems.push(Problem { path: self.path.to_path_buf(), place: None, message, hint });
    }

    /// `name` is the event's name as written in the recipe.
    fn entries(&mut self, event: HookEvent, name: &str, value: &Value, found: &mut Vec<Declared>) {
        match value {
            Value::Null => {}
            Value::String(handler) => self.handler(event, handler, false, &Map::new(), found),
            Value::Array(entries) => {
                for entry in entries {
                    match entry {
                        Value::Array(_) => {
                            self.problem(format!("{name:?} has a list in its list of handlers"), None);
                        }
                        Value::Null
                        | Value::Bool(_)
                        | Value::Number(_)
                        | Value::String(_)
                        | Value::Object(_) => self.entries(event, name, entry, found),
                    }
                }
            }
            Value::Object(fields) => self.entry(event, name, fields, found),
            Value::Bool(_) | Value::Number(_) => {
                self.problem(format!("{name:?} must name a handler"), None);
            }
        }
    }

    fn entry(
        &mut self,
        event: HookEvent,
        name: &str,
        fields: &Map<String, Value>,
        found: &mut Vec<Declared>,
    ) {
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
        let none = Map::new();
        let params = match fields.get("params") {
            None | Some(Value::Null) => &none,
            Some(Value::Object(params)) => params,
            Some(_) => return self.problem(format!("\"params\" of {name:?} must be a map"), None),
        };
        match (fields.get("handler"), fields.get("handlers")) {
            (Some(Value::String(handler)), None) => self.handler(event, handler, once, params, found),
            (None, Some(Value::Array(handlers))) => {
                for handler in handlers {
                    match handler {
                        Value::String(handler) => {
                            let params = own(handler, handlers, params);
                            self.listed(event, handler, once, &params, found);
                        }
                        Value::Null
                        | Value::Bool(_)
                        | Value::Number(_)
                        | Value::Array(_)
                        | Value::Object(_) => {
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
    fn listed(
        &mut self,
        event: HookEvent,
        name: &str,
        once: bool,
        params: &Map<String, Value>,
        found: &mut Vec<Declared>,
    ) {
        if name == EXTERNAL || self.knows(name) {
            return self.handler(event, name, once, params, found);
        }
        // It may be a script: the scripts are known only once the session's hooks are. A missing script
        // reports an error when it is run.
        if let Some(near) = nearest(name, self.known()) {
            let near = near.to_owned();
            self.problem(format!("no handler is called {name:?}; it is taken for a script"), Some(&near));
        }
        self.push(Declared::Script { name: name.to_owned(), once }, found);
    }

    fn handler(
        &mut self,
        event: HookEvent,
        name: &str,
        once: bool,
        params: &Map<String, Value>,
        found: &mut Vec<Declared>,
    ) {
        if name == EXTERNAL {
            return self.push(Declared::External { once }, found);
        }
        let mut handler =
            Handler { recipe: self.recipe.to_owned(), name: name.to_owned(), once, params: params.clone() };
        if name == "swap_context"
            && !handler.params.contains_key("preserve_recent")
            && let Some(keep) = self.arguments.get("keep").filter(|keep| !keep.trim().is_empty())
        {
            let keep = keep.trim();
            let keep = keep.parse::<u64>().map_or_else(|_| Value::from(keep), Value::from);
            handler.params.insert("preserve_recent".to_owned(), keep);
        }
        if !self.knows(name) {
            let near = nearest(name, self.known()).map(str::to_owned);
            self.problem(format!("no handler is called {name:?}: it does nothing"), near.as_deref());
        } else if !self.functions.has_handler(name) {
            for fault in check(&handler, event) {
                let hint = fault.near.map(|near| format!("did you mean {near:?}?"));
                let message = format!("{name}: {}", fault.message);
                self.problems.push(Problem { path: self.path.to_path_buf(), place: None, message, hint });
                // A broken redaction must still withhold the text (`redact::held_back`).
                if fault.fatal && name != "redact" {
                    return;
                }
            }
        }
        self.push(Declared::Handler(Arc::new(handler)), found);
    }

    fn push(&mut self, declared: Declared, found: &mut Vec<Declared>) {
        self.count += 1;
        match self.count {
            ..=DECLARED_MAX => found.push(declared),
            count if count == DECLARED_MAX + 1 => {
                self.problem(format!("more than {DECLARED_MAX} handlers; the others do nothing"), None);
            }
            _ => {}
        }
    }

    fn knows(&self, name: &str) -> bool {
        BUILT_IN.contains(&name) || self.functions.has_handler(name)
    }

    fn known(&self) -> Vec<&str> {
        BUILT_IN.iter().copied().chain(self.functions.handler_names()).collect()
    }
}

/// The parameters of one handler in a list: without those that only another handler of the list accepts.
fn own(name: &str, list: &[Value], params: &Map<String, Value>) -> Map<String, Value> {
    let knows = |handler: &str, param: &str| params_of(handler).contains(&param);
    let others = || list.iter().filter_map(Value::as_str).filter(|other| *other != name);
    let own = params.iter().filter(|(param, _)| {
        knows(name, param) || params_of(name).is_empty() || !others().any(|other| knows(other, param))
    });
    own.map(|(param, value)| (param.clone(), value.clone())).collect()
}

#[cfg(test)]
#[path = "declared_tests.rs"]
mod tests;

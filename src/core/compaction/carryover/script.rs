//! The tool calls in a script of Codex, whose model writes JavaScript that calls its tools: `await tools.exec_command({cmd:
//! "cargo test"})`. Reads the literals in these calls and runs nothing: an argument that is computed is not known.

use std::collections::HashMap;

use serde_json::{Map, Number, Value};

/// The tool whose input is a script.
const TOOL: &str = "exec";

/// Maximum size of a script in bytes, and number of calls taken from it.
const SCRIPT_BYTES_MAX: usize = 512 * 1024;
const CALLS_MAX: usize = 32;
/// Maximum nesting of literals.
const DEPTH_MAX: u32 = 16;

/// The tools called by a script, with their arguments where these are literals; empty if the call is not a script.
pub(super) fn calls(tool: &str, input: &Value) -> Vec<(String, Value)> {
    let Some(script) = input.get("input").and_then(Value::as_str).filter(|_| tool == TOOL) else {
        return Vec::new();
    };
    let script = &script[..script.floor_char_boundary(SCRIPT_BYTES_MAX)];
    let mut reader = ScriptReader { rest: script, constants: HashMap::new() };
    let mut calls = Vec::new();
    while !reader.rest.is_empty() && calls.len() < CALLS_MAX {
        calls.extend(reader.next_call());
    }
    calls
}

struct ScriptReader<'a> {
    rest: &'a str,
    /// Constants with a literal value, by name.
    constants: HashMap<&'a str, Value>,
}

impl<'a> ScriptReader<'a> {
    /// Reads one token, or a call of a tool, which is returned.
    fn next_call(&mut self) -> Option<(String, Value)> {
        self.skip_space();
        if self.rest.starts_with(['"', '\'', '`']) {
            self.string();
            return None;
        }
        match self.name()? {
            "const" | "let" | "var" => {
                let name = self.name().filter(|_| self.takes("="))?;
                let before = self.rest;
                match self.literal(DEPTH_MAX) {
                    Some(value) => drop(self.constants.insert(name, value)),
                    None => self.rest = before,
                }
                None
            }
            "tools" if self.takes(".") => {
                let tool = self.name().filter(|_| self.takes("("))?.to_owned();
                let before = self.rest;
                let argument = self.literal(DEPTH_MAX);
                // The calls in an argument that is computed are read as well.
                if argument.is_none() {
                    self.rest = before;
                }
                Some((tool, argument.unwrap_or(Value::Null)))
            }
            _ => None,
        }
    }

    /// A literal, or a constant with the value of one. What is computed from one is not known.
    fn literal(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        self.skip_space();
        let value = match self.rest.chars().next()? {
            '"' | '\'' | '`' => self.string().map(Value::String),
            '{' => self.object(depth).map(Value::Object),
            '[' => self.array(depth).map(Value::Array),
            '-' | '0'..='9' => {
                let end = self.rest.find(|c: char| !(c.is_alphanumeric() || "-+._".contains(c)));
                let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest;
                digits.replace('_', "").parse::<Number>().ok().map(Value::Number)
            }
            _ => match self.name()? {
                "true" => Some(Value::Bool(true)),
                "false" => Some(Value::Bool(false)),
                "null" | "undefined" => Some(Value::Null),
                name => self.constants.get(name).cloned(),
            },
        };
        value.filter(|_| !self.is_before(['.', '+']))
    }

    fn object(&mut self, depth: u32) -> Option<Map<String, Value>> {
        let mut fields = Map::new();
        self.takes("{").then_some(())?;
        while !self.takes("}") {
            self.skip_space();
            let key = match self.rest.starts_with(['"', '\'']) {
                true => self.string()?,
                false => self.name()?.to_owned(),
            };
            let value = match self.takes(":") {
                true => self.literal(depth),
                false => self.constants.get(key.as_str()).cloned(),
            };
            // An unknown value ends where the next field begins.
            match value.filter(|_| self.is_before([',', '}'])) {
                Some(value) => drop(fields.insert(key, value)),
                None => self.skip_expression(),
            }
            self.takes(",");
        }
        Some(fields)
    }

    fn array(&mut self, depth: u32) -> Option<Vec<Value>> {
        let mut items = Vec::new();
        self.takes("[").then_some(())?;
        while !self.takes("]") {
            items.push(self.literal(depth)?);
            if !self.takes(",") && !self.is_before([']', ']']) {
                return None;
            }
        }
        Some(items)
    }

    /// Skips the rest of an expression up to the comma or bracket that ends it.
    fn skip_expression(&mut self) {
        let mut depth = 0_u32;
        loop {
            self.skip_space();
            match self.rest.chars().next() {
                None => return,
                Some('"' | '\'' | '`') => drop(self.string()),
                Some(',' | '}' | ')' | ']') if depth == 0 => return,
                Some(c) => {
                    match c {
                        '{' | '(' | '[' => depth += 1,
                        '}' | ')' | ']' => depth -= 1,
                        _ => {}
                    }
                    self.rest = &self.rest[c.len_utf8()..];
                }
            }
        }
    }

    /// A string in quotes, without its escapes. Expressions in a template are not known.
    fn string(&mut self) -> Option<String> {
        self.skip_space();
        let quote = self.rest.chars().next().filter(|c| "\"'`".contains(*c))?;
        let mut text = String::new();
        let mut is_known = true;
        let mut characters = self.rest[1..].char_indices();
        while let Some((at, c)) = characters.next() {
            match c {
                _ if c == quote => {
                    self.rest = &self.rest[at + 2..];
                    return is_known.then_some(text);
                }
                '\\' => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    '0' => text.push('\0'),
                    '\n' => {}
                    kind @ ('u' | 'x') => {
                        let digits: String = match characters.as_str().strip_prefix('{') {
                            Some(braced) => braced.chars().take_while(char::is_ascii_hexdigit).collect(),
                            None => {
                                characters.as_str().chars().take(if kind == 'u' { 4 } else { 2 }).collect()
                            }
                        };
                        let braces = if characters.as_str().starts_with('{') { 2 } else { 0 };
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.unwrap_or(char::REPLACEMENT_CHARACTER));
                        characters.by_ref().take(digits.len() + braces).for_each(drop);
                    }
                    other => text.push(other),
                },
                '$' if quote == '`' && characters.as_str().starts_with('{') => is_known = false,
                c => text.push(c),
            }
        }
        self.rest = "";
        None
    }

    /// Reads an identifier; otherwise skips one character.
    fn name(&mut self) -> Option<&'a str> {
        self.skip_space();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'));
        let end = end.unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        if name.is_empty() {
            let mut characters = rest.chars();
            characters.next();
            self.rest = characters.as_str();
            return None;
        }
        self.rest = rest;
        Some(name)
    }

    fn takes(&mut self, token: &str) -> bool {
        self.skip_space();
        let rest = self.rest.strip_prefix(token);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn is_before(&mut self, ends: [char; 2]) -> bool {
        self.skip_space();
        self.rest.starts_with(ends)
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("//") {
                self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.rest.starts_with("/*") {
                self.rest = self.rest.split_once("*/").map_or("", |(_, rest)| rest);
            } else {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::calls;

    #[test]
    fn the_calls_of_a_script_are_read() {
        for (script, wanted) in [
            (
                r#"const r = await tools.exec_command({cmd:"sed -n '1,9p' \"a b.rs\"\nls","workdir":"/w",n:10_000,}); text(r.output);"#,
                json!([["exec_command", {"cmd": "sed -n '1,9p' \"a b.rs\"\nls", "workdir": "/w", "n": 10000}]]),
            ),
            (
                "// @exec: {}\nconst patch = \"*** Add File: x\\n+it\\u0027s\\n\";\ntext(await tools.apply_patch(patch));",
                json!([["apply_patch", "*** Add File: x\n+it's\n"]]),
            ),
            (
                "const [a, b] = await Promise.all([tools.exec_command({cmd: 'a'}), /* then */ tools.exec_command({cmd: `b`})]);",
                json!([["exec_command", {"cmd": "a"}], ["exec_command", {"cmd": "b"}]]),
            ),
            (
                "const cmd = ['a', 'b'].join(\" && \") + ' c'; tools.exec_command({cmd, on: new Date(1, {}), n: -1})",
                json!([["exec_command", {"n": -1}]]),
            ),
            (
                "for (const f of files) tools.exec_command({cmd: `cat ${f}`, n: 1}); text(`tools.x(1)`)",
                json!([["exec_command", {"n": 1}]]),
            ),
            ("tools.a(f(tools.b({x: true})))", json!([["a", null], ["b", {"x": true}]])),
            ("const x = \"unfinished", json!([])),
            ("tools.a({x: [1, [2", json!([["a", null]])),
        ] {
            let found = calls("exec", &json!({ "input": script }));
            assert_eq!(json!(found), wanted, "{script}");
        }
        assert_eq!(calls("bash", &json!({ "input": "tools.a(1)" })), []);
    }
}

//! The tool calls in a script of Codex, whose model writes JavaScript that calls its tools: `await tools.exec_command({cmd:
//! "cargo test"})`. Reads the literals in these calls and runs nothing: an argument that is computed is not known.

use std::collections::HashMap;

use serde_json::{Map, Value};

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

/// Reads tokens from what is left of a script.
struct ScriptReader<'a> {
    rest: &'a str,
    /// Constants with a literal value, by name.
    constants: HashMap<&'a str, Value>,
}

/// A part of a script: a string without its escapes, which is not known if it has expressions; a name or number; a sign.
enum ScriptToken<'a> {
    Text(Option<String>),
    Name(&'a str),
    Sign(char),
}

impl<'a> ScriptReader<'a> {
    /// Reads one token, or a call of a tool, which is returned.
    fn next_call(&mut self) -> Option<(String, Value)> {
        let ScriptToken::Name(name) = self.token()? else { return None };
        match name {
            "const" | "let" | "var" => {
                let ScriptToken::Name(name) = self.token()? else { return None };
                if self.takes('=')
                    && let Some(value) = self.known()
                {
                    self.constants.insert(name, value);
                }
                None
            }
            "tools" if self.takes('.') => {
                let ScriptToken::Name(tool) = self.token()? else { return None };
                self.takes('(').then(|| (tool.to_owned(), self.known().unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// The value of a literal. An expression that is computed is not known, and is read again for the calls in it.
    fn known(&mut self) -> Option<Value> {
        let before = self.rest;
        let value = self.value(DEPTH_MAX);
        if value.is_none() {
            self.rest = before;
        }
        value
    }

    /// A literal, or a constant with the value of one, up to the sign that ends its expression.
    fn value(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        let value = match self.token()? {
            ScriptToken::Text(text) => text.map(Value::String),
            ScriptToken::Sign('{') => self.object(depth),
            ScriptToken::Sign('[') => self.array(depth),
            ScriptToken::Sign(_) => None,
            ScriptToken::Name("undefined") => Some(Value::Null),
            // Also a number, `true`, `false` or `null`.
            ScriptToken::Name(name) => {
                let constant = self.constants.get(name).cloned();
                constant.or_else(|| serde_json::from_str(&name.replace('_', "")).ok())
            }
        };
        value.filter(|_| !matches!(self.peek(), Some('.' | '+')))
    }

    fn object(&mut self, depth: u32) -> Option<Value> {
        let mut fields = Map::new();
        while !self.takes('}') {
            let key = match self.token()? {
                ScriptToken::Text(key) => key?,
                ScriptToken::Name(name) => name.to_owned(),
                ScriptToken::Sign(_) => return None,
            };
            let value = match self.takes(':') {
                true => self.value(depth),
                false => self.constants.get(key.as_str()).cloned(),
            };
            // An unknown value ends where the next field begins.
            match value.filter(|_| matches!(self.peek(), Some(',' | '}'))) {
                Some(value) => drop(fields.insert(key, value)),
                None => self.skip_expression()?,
            }
            self.takes(',');
        }
        Some(Value::Object(fields))
    }

    fn array(&mut self, depth: u32) -> Option<Value> {
        let mut items = Vec::new();
        while !self.takes(']') {
            items.push(self.value(depth)?);
            if !self.takes(',') && self.peek() != Some(']') {
                return None;
            }
        }
        Some(Value::Array(items))
    }

    /// Skips the rest of an expression up to the comma or bracket that ends it.
    fn skip_expression(&mut self) -> Option<()> {
        let mut depth = 0_u32;
        while depth > 0 || !matches!(self.peek(), Some(',' | '}' | ')' | ']')) {
            match self.token()? {
                ScriptToken::Sign('{' | '(' | '[') => depth += 1,
                ScriptToken::Sign('}' | ')' | ']') => depth = depth.checked_sub(1)?,
                _ => {}
            }
        }
        Some(())
    }

    fn token(&mut self) -> Option<ScriptToken<'a>> {
        let first = self.peek()?;
        if matches!(first, '"' | '\'' | '`') {
            return Some(ScriptToken::Text(self.string(first)));
        }
        let is_number = first.is_ascii_digit() || first == '-';
        let is_of_name =
            |c: char| c.is_alphanumeric() || matches!(c, '_' | '$') || is_number && "-+.".contains(c);
        let end = self.rest.find(|c| !is_of_name(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end.max(first.len_utf8()));
        self.rest = rest;
        Some(if end > 0 { ScriptToken::Name(token) } else { ScriptToken::Sign(first) })
    }

    /// Reads a string, which is not known if it is a template with expressions, or has no end.
    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut is_known = true;
        let mut characters = self.rest[1..].chars();
        while let Some(c) = characters.next() {
            let next = match c {
                _ if c == quote => {
                    self.rest = characters.as_str();
                    return is_known.then_some(text);
                }
                '\\' => match characters.next() {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some('0') => '\0',
                    Some('\n') => continue,
                    Some(kind @ ('u' | 'x')) => {
                        let rest = characters.as_str();
                        let (digits, taken) =
                            match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
                                Some((digits, _)) => (digits, digits.chars().count() + 2),
                                None => {
                                    let count = if kind == 'u' { 4 } else { 2 };
                                    (rest.get(..count).unwrap_or_default(), count)
                                }
                            };
                        characters.by_ref().take(taken).for_each(drop);
                        let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
                        code.unwrap_or(char::REPLACEMENT_CHARACTER)
                    }
                    other => other?,
                },
                c => c,
            };
            is_known &= !(c == '$' && quote == '`' && characters.as_str().starts_with('{'));
            text.push(next);
        }
        self.rest = "";
        None
    }

    /// The next character that is neither white space nor in a comment.
    fn peek(&mut self) -> Option<char> {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("//") {
                self.rest = self.rest.split_once('\n').map_or("", |(_, rest)| rest);
            } else if self.rest.starts_with("/*") {
                self.rest = self.rest.split_once("*/").map_or("", |(_, rest)| rest);
            } else {
                return self.rest.chars().next();
            }
        }
    }

    fn takes(&mut self, sign: char) -> bool {
        let is_next = self.peek() == Some(sign);
        self.rest = &self.rest[if is_next { sign.len_utf8() } else { 0 }..];
        is_next
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

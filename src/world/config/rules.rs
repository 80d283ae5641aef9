//! The grammar of permission rules: `bash(cargo test *)`, `file_edit(src/**)`, `mcp__tracker__*`. Pure;
//! `tools::permission` matches rules against calls.
//!
//! The syntax follows Claude Code's permission rules: the name of a tool, optionally followed by an argument
//! in parentheses.

use std::fmt;
use std::path::PathBuf;

use epitome_thread::named_enum;
use epitome_thread::problem::nearest;

/// Maximum size of a rule in bytes; a longer one was probably pasted by mistake.
const RULE_BYTES_MAX: usize = 4 * 1024;

named_enum! {
    /// The effect of a permission rule or of a hook's answer, from lenient to strict.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum PermissionDecision {
        Allow = "allow",
        Ask = "ask",
        Deny = "deny",
    }
}

/// The calls that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulePattern {
    /// The name of a tool, with `*` for any text, or an alias for several tools: `Bash`, `Read`, `Edit`,
    /// `Write`, `WebFetch`, `WebSearch`.
    pub tool: String,
    /// A command, a path, a host, or the name of a skill or an agent, depending on the tool; `None` matches every call of
    /// the tool.
    pub about: Option<String>,
}

/// A rule in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRule {
    pub word: PermissionDecision,
    pub pattern: RulePattern,
    /// The file, and the line in it, from 1.
    pub path: PathBuf,
    pub line: u64,
    /// The mistake in the file, if this rule takes the place of restrictions that could not be read.
    pub mistake: Option<String>,
}

impl fmt::Display for RulePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.about {
            Some(about) => write!(f, "{}({about})", self.tool),
            None => f.write_str(&self.tool),
        }
    }
}

impl fmt::Display for WrittenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word.id(), self.pattern)
    }
}

/// The kind of argument in the parentheses of a rule.
#[derive(Clone, Copy)]
enum ArgumentKind {
    Nothing,
    Command,
    Host,
    Path,
    /// The name of an agent or a skill.
    Name,
}

/// Tools for which typos are detected; of two equally similar names the first is suggested. Capitalized names are
/// Claude Code's aliases, which cover all tools of that kind.
const TOOLS: [(&str, ArgumentKind); 25] = [
    ("bash", ArgumentKind::Command),
    ("bash_output", ArgumentKind::Nothing),
    ("bash_kill", ArgumentKind::Nothing),
    ("file_read", ArgumentKind::Path),
    ("file_write", ArgumentKind::Path),
    ("file_edit", ArgumentKind::Path),
    ("apply_patch", ArgumentKind::Path),
    ("glob_tool", ArgumentKind::Path),
    ("grep_tool", ArgumentKind::Path),
    ("diagnostics", ArgumentKind::Path),
    ("web_fetch", ArgumentKind::Host),
    ("web_search", ArgumentKind::Host),
    ("view_image", ArgumentKind::Path),
    ("memory", ArgumentKind::Nothing),
    ("todo_write", ArgumentKind::Nothing),
    ("recall", ArgumentKind::Nothing),
    ("task", ArgumentKind::Name),
    ("skill", ArgumentKind::Name),
    ("ask_user", ArgumentKind::Nothing),
    ("Bash", ArgumentKind::Command),
    ("Read", ArgumentKind::Path),
    ("Edit", ArgumentKind::Path),
    ("Write", ArgumentKind::Path),
    ("WebFetch", ArgumentKind::Host),
    ("WebSearch", ArgumentKind::Host),
];

/// An error in a rule, and a suggested fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})")))]
pub struct RuleError {
    pub message: String,
    pub hint: Option<String>,
}

fn wrong<T>(message: String, hint: impl Into<String>) -> Result<T, RuleError> {
    Err(RuleError { message, hint: Some(hint.into()) })
}

/// Begins a pattern for paths in which brackets enclose characters, one of which matches.
pub const GLOB_PREFIX: &str = "glob:";

/// A pattern in which brackets match only themselves.
pub fn literal_brackets(pattern: &str) -> String {
    pattern.chars().map(|c| if matches!(c, '[' | ']') { format!("[{c}]") } else { c.to_string() }).collect()
}

/// Parses a rule.
pub fn parse(text: &str) -> Result<RulePattern, RuleError> {
    let text = text.trim();
    let form = "a rule is a tool's name, optionally with a pattern: \"bash(cargo test *)\"";
    if text.is_empty() {
        return wrong("this rule is empty".to_owned(), form);
    }
    if text.len() > RULE_BYTES_MAX {
        return wrong(format!("this rule has more than {RULE_BYTES_MAX} bytes"), form);
    }
    if let Some(c) = text.chars().find(|c| c.is_control() || (c.is_whitespace() && *c != ' ')) {
        return wrong(
            format!("this rule has the character {c:?}"),
            "write a rule on one line, with plain blanks",
        );
    }
    let (tool, about) = match text.split_once('(') {
        None => (text, None),
        Some((tool, rest)) => match rest.strip_suffix(')') {
            Some(about) => (tool, Some(about.trim())),
            None => return wrong(format!("the rule {text:?} has no closing parenthesis at its end"), form),
        },
    };
    if tool.is_empty() || !tool.chars().all(|c| c.is_ascii_alphanumeric() || "_-*.".contains(c)) {
        return wrong(format!("{tool:?} is not the name of a tool"), form);
    }
    if !is_known(tool)
        && let Some(near) = nearest(tool, TOOLS.iter().map(|(name, _)| *name))
    {
        return wrong(format!("there is no tool {tool:?}"), format!("did you mean {near:?}?"));
    }
    let named = if is_server(tool) { format!("{tool}__*") } else { tool.to_owned() };
    let Some(about) = about else { return Ok(RulePattern { tool: named, about: None }) };
    if about.is_empty() {
        return wrong(
            format!("the parentheses of {text:?} are empty"),
            "leave them out for every call of the tool",
        );
    }
    // A name with `*` may be that of several tools; then the pattern is compared with what each is about.
    let is_compared = |kind: &ArgumentKind| !matches!(kind, ArgumentKind::Nothing);
    let about = match kind_of(tool) {
        _ if tool.contains('*')
            && TOOLS.iter().any(|(name, kind)| may_be(tool, name) && is_compared(kind)) =>
        {
            Some(about.to_owned())
        }
        ArgumentKind::Nothing => {
            let what = if is_known(tool) { "takes nothing in parentheses" } else { "is unknown" };
            return wrong(format!("the tool {tool:?} {what}"), format!("write \"{tool}\""));
        }
        ArgumentKind::Command => command(about),
        ArgumentKind::Host => Some(host(about)?),
        ArgumentKind::Path => Some(path(about)?),
        ArgumentKind::Name => Some(about.to_owned()),
    };
    Ok(RulePattern { tool: named, about })
}

/// All calls that a rule with a mistake may be about: those of the tool that it names, or else all.
pub fn covered(text: &str) -> RulePattern {
    let tool = text.split('(').next().unwrap_or_default().trim();
    let named = parse(tool).ok().filter(|pattern| is_known(&pattern.tool));
    named.unwrap_or_else(|| RulePattern { tool: "*".to_owned(), about: None })
}

/// Whether a name is that of an MCP server, such as `mcp__github`, which means all of its tools, as in Claude Code.
fn is_server(tool: &str) -> bool {
    let server = tool.strip_prefix("mcp__");
    server.is_some_and(|server| !server.is_empty() && !server.contains("__") && !server.contains('*'))
}

/// The kind of argument of a tool. Tools of servers and of programs that embed Epitome have none.
fn kind_of(tool: &str) -> ArgumentKind {
    let known = TOOLS.iter().find(|(name, _)| *name == tool);
    known.map_or(ArgumentKind::Nothing, |(_, kind)| *kind)
}

/// Whether a pattern with `*` for any text may match a name: its parts occur in it, in order.
fn may_be(pattern: &str, name: &str) -> bool {
    let mut rest = Some(name);
    pattern.split('*').for_each(|part| {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, behind)| behind);
    });
    rest.is_some() && name.starts_with(pattern.split('*').next().unwrap_or_default())
}

/// Whether a tool can have this name: a built-in tool, one of an MCP server, or a name with `*`.
fn is_known(tool: &str) -> bool {
    tool.contains('*') || tool.starts_with("mcp__") || TOOLS.iter().any(|(known, _)| *known == tool)
}

impl RulePattern {
    /// Whether the rule may be about a tool of this name.
    pub fn may_be_of(&self, tool: &str) -> bool {
        self.tool == tool || (self.tool.contains('*') && may_be(&self.tool, tool))
    }

    /// Returns an error if Epitome has no tool of this name. Such a rule is accepted, because programs that embed
    /// Epitome have additional tools, but it is probably a mistake.
    pub fn check_tool(&self) -> Result<(), RuleError> {
        match is_known(&self.tool) {
            true => Ok(()),
            false => wrong(
                format!("there is no tool {:?}, so this rule matches nothing", self.tool),
                format!("tools are {}", TOOLS.map(|(name, _)| name).join(", ")),
            ),
        }
    }
}

/// Normalizes a command: `cargo test:*` is equivalent to `cargo test *`, and `*` to no argument.
fn command(about: &str) -> Option<String> {
    let about = match about.strip_suffix(":*") {
        Some(begin) => format!("{} *", begin.trim_end()),
        None => about.to_owned(),
    };
    (about != "*").then_some(about)
}

fn host(about: &str) -> Result<String, RuleError> {
    let host = about.strip_prefix("domain:").unwrap_or(about).to_ascii_lowercase();
    let is_host = host.chars().all(|c| c.is_alphanumeric() || "-._*:[]".contains(c));
    match is_host && !host.is_empty() {
        true => Ok(host),
        false => wrong(
            format!("{about:?} is not a host"),
            "write the host alone: \"web_fetch(docs.rs)\" or \"web_fetch(*.example.com)\"",
        ),
    }
}

fn path(about: &str) -> Result<String, RuleError> {
    if about.starts_with('/') && !about.starts_with("//") {
        let below = about.trim_start_matches('/');
        return wrong(
            format!("it is not clear where {about:?} begins"),
            format!(
                "an absolute path begins with two slashes (\"/{about}\"), one in the workspace with none ({below:?})"
            ),
        );
    }
    if about.split('/').any(|part| part == "..") {
        return wrong(
            format!("{about:?} has .. in it"),
            "write where it leads: ~/, // or a path in the workspace",
        );
    }
    if about.starts_with('~') && !about.starts_with("~/") {
        return wrong(format!("{about:?} names another user's home"), "~/ is yours; others begin with //");
    }
    let glob = about.strip_prefix(GLOB_PREFIX).map_or_else(|| literal_brackets(about), str::to_owned);
    if let Err(error) = globset::Glob::new(&glob) {
        return wrong(
            format!("{about:?} is not a pattern for paths: {}", error.kind()),
            "for example src/**",
        );
    }
    Ok(about.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_parsed_into_tool_and_argument() {
        for (text, tool, about) in [
            ("bash", "bash", None),
            ("bash(cargo test *)", "bash", Some("cargo test *")),
            (" bash( git status ) ", "bash", Some("git status")),
            ("Bash(npm run:*)", "Bash", Some("npm run *")),
            ("bash(*)", "bash", None),
            ("bash(echo (a))", "bash", Some("echo (a)")),
            ("file_edit(src/**)", "file_edit", Some("src/**")),
            ("Read(~/notes/*.md)", "Read", Some("~/notes/*.md")),
            ("Read(//etc/hosts)", "Read", Some("//etc/hosts")),
            ("web_fetch(domain:Docs.rs)", "web_fetch", Some("docs.rs")),
            ("mcp__tracker__*", "mcp__tracker__*", None),
            // It was accepted and matched nothing, so a server that was denied could be used.
            ("mcp__tracker", "mcp__tracker__*", None),
            ("file_*(a)", "file_*", Some("a")),
        ] {
            let wanted = RulePattern { tool: tool.to_owned(), about: about.map(str::to_owned) };
            assert_eq!(parse(text), Ok(wanted), "{text}");
        }
    }

    /// `allow = ["Foo"]` was accepted silently.
    #[test]
    fn a_rule_for_an_unknown_tool_is_parsed_and_can_be_reported() {
        for known in ["bash(ls)", "Read", "mcp__tracker__*", "file_*(a)"] {
            assert_eq!(parse(known).expect(known).check_tool(), Ok(()), "{known}");
        }
        let unknown = parse("Foo").expect("programs that embed this one have their own tools");
        let error = unknown.check_tool().expect_err("no tool has this name");
        assert!(error.message.contains("no tool \"Foo\""), "{error:?}");
        assert!(error.hint.is_some_and(|hint| hint.contains("bash, ")));
    }

    #[test]
    fn a_rule_with_a_mistake_covers_its_tool_or_all() {
        for (text, tool) in [
            ("bash(rm *", "bash"),
            ("Edit(a[)", "Edit"),
            ("mcp__a(x)", "mcp__a__*"),
            ("bsh(ls)", "*"),
            ("bash tool(ls)", "*"),
            ("(ls)", "*"),
            ("", "*"),
        ] {
            assert_eq!(covered(text), RulePattern { tool: tool.to_owned(), about: None }, "{text:?}");
        }
    }

    #[test]
    fn errors_include_a_suggestion() {
        for (text, message, hint) in [
            ("", "this rule is empty", "a tool's name"),
            ("bash(ls", "no closing parenthesis", "bash(cargo test *)"),
            ("(ls)", "not the name of a tool", "a tool's name"),
            ("bash tool(ls)", "not the name of a tool", "a tool's name"),
            ("bash()", "are empty", "leave them out"),
            ("bsh(ls)", "no tool \"bsh\"", "\"bash\""),
            ("file_reed", "no tool \"file_reed\"", "\"file_read\""),
            ("mcp__a__b(x)", "nothing in parentheses", "mcp__a__b"),
            ("mcp__a(x)", "nothing in parentheses", "mcp__a"),
            ("todo_write(x)", "nothing in parentheses", "todo_write"),
            ("bash_kill(x)", "nothing in parentheses", "bash_kill"),
            ("bash_*(x)", "nothing in parentheses", "bash_*"),
            ("Foo(x)", "is unknown", "Foo"),
            ("file_read(/etc/**)", "not clear", "//etc/**"),
            ("file_read(../x)", "has .. in it", "//"),
            ("Edit(~root/x)", "another user's", "~/"),
            ("Edit(glob:a[)", "not a pattern for paths", "src/**"),
            ("web_fetch(https://docs.rs/x)", "not a host", "web_fetch(docs.rs)"),
            ("bash(a\nb)", "the character '\\n'", "one line"),
        ] {
            let wrong = parse(text).expect_err(text);
            assert!(wrong.message.contains(message), "{text}: {}", wrong.message);
            assert!(wrong.hint.as_deref().unwrap_or_default().contains(hint), "{text}: {:?}", wrong.hint);
        }
    }
}

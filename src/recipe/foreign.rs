//! Commands and skills in the formats of other agents. Pure.
//!
//! Only fields that affect the prompt's text are read. `allowed-tools` of a Claude Code command *grants*
//! tools; a file from a repository grants nothing here, so the field is ignored and the session's permissions
//! apply. File references (`@path`) are left as they are: the agent reads files itself.

use super::command::split_words;
use super::parse::{Recipe, RecipeSource, RecipeSyntax, SplitFile, split};
use super::render::{Rendered, RenderedPrompt, ShellCall, ShellOutputs};
use super::template::SHELL_CALLS_MAX;
use epitome_problem::Problem;

/// Reads a file of `.claude/commands`. The front matter is read line by line, since in practice it is often
/// not valid YAML (`argument-hint: [a] [b]`).
pub fn claude_command(id: &str, source: RecipeSource, text: &str) -> Recipe {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (front, body, line) = front_and_body(text);
    let mut recipe = Recipe::plain(id, source, RecipeSyntax::ClaudeCommand, body, line);
    for (name, value) in lines_of(front) {
        match name {
            "description" => recipe.description = value,
            "argument-hint" => recipe.argument_hint = Some(value),
            _ => {}
        }
    }
    if id.contains('/') {
        recipe.aliases.push(id.replace('/', ":"));
    }
    recipe
}

/// Reads a `SKILL.md`. `directory` contains the files that it refers to.
pub fn skill(folder: &str, directory: &str, source: RecipeSource, text: &str) -> Recipe {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (front, body, line) = front_and_body(text);
    let body =
        format!("Files that these instructions name are below `{directory}`.\n\n{}", body.trim_start());
    let mut recipe = Recipe::plain(folder, source, RecipeSyntax::Plain, &body, line);
    recipe.description = format!("Use the {folder} skill");
    recipe.callable_by.agent = true;
    for (name, value) in lines_of(front) {
        match name {
            "name" if !value.contains(char::is_whitespace) => recipe.id = value,
            "description" => recipe.description = value,
            "disable-model-invocation" => recipe.callable_by.agent = value != "true",
            "user-invocable" => recipe.hidden = value == "false",
            _ => {}
        }
    }
    recipe.name = recipe.id.clone();
    recipe
}

/// Reads a file of `.gemini/commands`.
pub fn gemini_command(id: &str, source: RecipeSource, text: &str) -> Result<Recipe, Problem> {
    let problem = |place, message: String| Problem {
        path: source.path().to_path_buf(),
        place,
        message,
        hint: Some("a Gemini command has `prompt = \"…\"` and `description = \"…\"`".to_owned()),
    };
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let place = error.span().map(|span| epitome_problem::place_in(text, span.start));
        problem(place, format!("the command is not valid TOML: {}", error.message()))
    })?;
    let prompt = table.get("prompt").and_then(toml::Value::as_str);
    let prompt = prompt.ok_or_else(|| problem(None, "the command has no prompt".to_owned()))?;
    let mut recipe = Recipe::plain(id, source.clone(), RecipeSyntax::GeminiCommand, prompt, 1);
    if let Some(description) = table.get("description").and_then(toml::Value::as_str) {
        recipe.description = description.to_owned();
    }
    if id.contains('/') {
        recipe.aliases.push(id.replace('/', ":"));
    }
    Ok(recipe)
}

fn front_and_body(text: &str) -> (&str, &str, u64) {
    match split(text) {
        Some(SplitFile { front, body: Some((body, line)) }) => (front, body, line),
        Some(SplitFile { body: None, .. }) | None => ("", text, 1),
    }
}

/// Parses unindented `name: value` lines; indented continuation lines and `>` or `|` blocks are joined to one
/// line.
fn lines_of(front: &str) -> Vec<(&str, String)> {
    let mut fields: Vec<(&str, String)> = Vec::new();
    for line in front.lines() {
        if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                let space = if value.is_empty() { "" } else { " " };
                *value = format!("{value}{space}{}", line.trim());
            }
        } else if let Some((name, value)) = line.split_once(':') {
            let value = value.trim();
            let block = matches!(value, ">" | ">-" | "|" | "|-");
            fields.push((name.trim(), if block { String::new() } else { unquoted(value).to_owned() }));
        }
    }
    fields
}

fn unquoted(value: &str) -> &str {
    ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote)).unwrap_or(value)
}

/// Expands `$ARGUMENTS`, `$1` to `$9` and ``!`command` ``. The flag is whether the body uses the free text.
pub fn render_claude(body: &str, free: &str, outputs: &ShellOutputs) -> (Rendered, bool) {
    let mut filled = Filled::new(free, outputs);
    let mut rest = body;
    while let Some(at) = rest.find(['$', '!']) {
        filled.text.push_str(&rest[..at]);
        rest = &rest[at..];
        let command = rest.strip_prefix("!`").and_then(|behind| behind.split_once('`'));
        if let Some((line, behind)) = command.filter(|(line, _)| !line.trim().is_empty()) {
            let line = filled.with_arguments(line);
            filled.run(line);
            rest = behind;
        } else if rest.starts_with('$') {
            rest = filled.argument(rest);
        } else {
            filled.text.push('!');
            rest = &rest[1..];
        }
    }
    filled.text.push_str(rest);
    filled.finish()
}

/// Expands `{{args}}` and `!{command}`; arguments inside a command are shell-quoted. The flag is whether the
/// body uses the free text.
pub fn render_gemini(body: &str, free: &str, outputs: &ShellOutputs) -> (Rendered, bool) {
    const ARGS: &str = "{{args}}";
    let mut filled = Filled::new(free, outputs);
    let mut rest = body;
    while let Some(at) = rest.find(['{', '!']) {
        filled.text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(behind) = rest.strip_prefix(ARGS) {
            filled.takes_input = true;
            filled.text.push_str(free);
            rest = behind;
        } else if let Some((line, behind)) = rest.strip_prefix("!{").and_then(balanced) {
            filled.takes_input |= line.contains(ARGS);
            filled.run(line.replace(ARGS, &shell_quoted(free)));
            rest = behind;
        } else {
            filled.text.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
    filled.text.push_str(rest);
    filled.finish()
}

/// Splits at the closing brace that matches an already consumed opening brace.
fn balanced(text: &str) -> Option<(&str, &str)> {
    let mut depth = 1_usize;
    for (at, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], &text[at + 1..]));
        }
    }
    None
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

struct Filled<'a> {
    text: String,
    free: &'a str,
    words: Vec<String>,
    outputs: &'a ShellOutputs,
    needs: Vec<ShellCall>,
    takes_input: bool,
    warnings: Vec<String>,
}

impl<'a> Filled<'a> {
    fn new(free: &'a str, outputs: &'a ShellOutputs) -> Filled<'a> {
        Filled {
            text: String::new(),
            free,
            words: split_words(free),
            outputs,
            needs: Vec::new(),
            takes_input: false,
            warnings: Vec::new(),
        }
    }

    /// Expands the argument at the dollar sign that starts `rest`; returns the remaining text.
    fn argument<'t>(&mut self, rest: &'t str) -> &'t str {
        const ALL: &str = "$ARGUMENTS";
        if let Some(behind) = rest.strip_prefix(ALL) {
            self.takes_input = true;
            self.text.push_str(self.free);
            return behind;
        }
        let digits = rest[1..].bytes().take_while(u8::is_ascii_digit).count();
        // `$10` is more likely a price than the tenth argument.
        if digits == 1 && !rest.starts_with("$0") {
            let index = usize::from(rest.as_bytes()[1] - b'1');
            self.takes_input = true;
            self.text.push_str(self.words.get(index).map_or("", String::as_str));
            return &rest[2..];
        }
        self.text.push('$');
        &rest[1..]
    }

    fn with_arguments(&mut self, line: &str) -> String {
        let outer = std::mem::take(&mut self.text);
        let mut rest = line;
        while let Some(at) = rest.find('$') {
            self.text.push_str(&rest[..at]);
            rest = self.argument(&rest[at..]);
        }
        self.text.push_str(rest);
        std::mem::replace(&mut self.text, outer)
    }

    fn run(&mut self, line: String) {
        let call = ShellCall::Line(line);
        if let Some(output) = self.outputs.get(&call) {
            self.text.push_str(output.trim_end_matches(['\n', '\r']));
        } else if self.outputs.len() + self.needs.len() >= SHELL_CALLS_MAX {
            self.warnings.push(format!("only the first {SHELL_CALLS_MAX} commands were run"));
        } else if !self.needs.contains(&call) {
            self.needs.push(call);
        }
    }

    fn finish(mut self) -> (Rendered, bool) {
        self.warnings.dedup();
        let prompt = RenderedPrompt { text: self.text, warnings: self.warnings };
        let rendered =
            if self.needs.is_empty() { Rendered::Done(prompt) } else { Rendered::Needs(self.needs) };
        (rendered, self.takes_input)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(text: &str, takes_input: bool) -> (Rendered, bool) {
        (Rendered::Done(RenderedPrompt { text: text.to_owned(), warnings: Vec::new() }), takes_input)
    }

    fn needs(line: &str, takes_input: bool) -> (Rendered, bool) {
        (Rendered::Needs(vec![ShellCall::Line(line.to_owned())]), takes_input)
    }

    fn knows(line: &str, output: &str) -> ShellOutputs {
        ShellOutputs::from([(ShellCall::Line(line.to_owned()), output.to_owned())])
    }

    #[test]
    fn a_claude_command_takes_all_or_single_arguments() {
        let none = ShellOutputs::new();
        assert_eq!(render_claude("Fix $ARGUMENTS!", "issue 7", &none), done("Fix issue 7!", true));
        assert_eq!(render_claude("$1 and $2, $3.", "a 'b c'", &none), done("a and b c, .", true));
        assert_eq!(
            render_claude("Costs $10 or $x {{.a}}", "a", &none),
            done("Costs $10 or $x {{.a}}", false)
        );
    }

    #[test]
    fn a_claude_command_needs_its_shell_output() {
        assert_eq!(render_claude("Now: !`git status`", "", &ShellOutputs::new()), needs("git status", false));
        let known = knows("git log $x main", "abc\n");
        assert_eq!(render_claude("!`git log $x $1`.", "main", &known), done("abc.", true));
        assert_eq!(render_claude("Wow! `code`", "", &known), done("Wow! `code`", false));
    }

    /// Pasted text must not become a command.
    #[test]
    fn arguments_and_outputs_are_not_expanded_again() {
        let none = ShellOutputs::new();
        assert_eq!(render_claude("$ARGUMENTS", "!`rm` $1", &none), done("!`rm` $1", true));
        assert_eq!(render_claude("!`a`", "", &knows("a", "!`b`")), done("!`b`", false));
        assert_eq!(render_gemini("{{args}}", "!{rm}", &none), done("!{rm}", true));
    }

    #[test]
    fn a_gemini_command_quotes_arguments_in_its_shell_lines() {
        let none = ShellOutputs::new();
        assert_eq!(render_gemini("Fix {{args}} {x}", "it", &none), done("Fix it {x}", true));
        assert_eq!(
            render_gemini("!{grep {{args}} .}", "it's; rm", &none),
            needs(r"grep 'it'\''s; rm' .", true)
        );
        assert_eq!(render_gemini("!{awk '{print}'}", "", &none), needs("awk '{print}'", false));
    }

    #[test]
    fn a_gemini_command_is_toml_with_a_prompt() {
        let recipe = gemini_command(
            "git/pr",
            RecipeSource::BuiltIn,
            "description = \"D\"\nprompt = \"\"\"\nP\"\"\"\n",
        );
        let recipe = recipe.expect("it is sound");
        assert_eq!((recipe.description.as_str(), recipe.body.as_str()), ("D", "P"));
        assert_eq!(recipe.aliases, ["git:pr"]);
        let problem =
            gemini_command("x", RecipeSource::BuiltIn, "a = 1\nprompt =").expect_err("it is broken");
        assert_eq!(problem.place.map(|(line, _)| line), Some(2));
    }

    #[test]
    fn descriptions_over_several_lines_are_joined() {
        let recipe =
            skill("pdf", "/s/pdf", RecipeSource::BuiltIn, "---\ndescription: >\n  Reads\n  PDFs\n---\nBody");
        assert_eq!(recipe.description, "Reads PDFs");
    }
}

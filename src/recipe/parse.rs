//! Reads one recipe file: Markdown with optional YAML front matter. Pure: it gets text, not a path to
//! open.
//!
//! A file that cannot be understood whole is refused, never half-read: a recipe whose `allowed_tools`
//! is mistyped must not run with all tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use serde_saphyr::Spanned;

use super::template;
use crate::problem::Problem;

/// Nodes of one front matter. The longest recipe known has about a hundred.
const FRONT_MATTER_NODES_MAX: usize = 4096;
/// Nesting of one front matter; section 13 of the contract needs six levels.
const FRONT_MATTER_DEPTH_MAX: usize = 32;
/// Events that aliases in one front matter may add.
const FRONT_MATTER_ALIASES_MAX: usize = 1024;

/// A recipe, all defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The slash command: the path below its folder, without `.md`.
    pub id: String,
    pub name: String,
    pub description: String,
    pub source: Source,
    pub syntax: Syntax,
    /// What follows the front matter.
    pub body: String,
    /// The line of the file, from 1, on which the body begins.
    pub body_line: u64,
    pub aliases: Vec<String>,
    /// Works when typed, is not listed.
    pub hidden: bool,
    /// `None` inherits the session's; an empty list is no tool at all.
    pub allowed_tools: Option<Vec<String>>,
    /// As `allowed_tools`, for command lines.
    pub allowed_commands: Option<Vec<String>>,
    /// Declared arguments; those of the older `defaults` map are among them.
    pub arguments: BTreeMap<String, Argument>,
    /// Shown instead of the hint that the arguments make (`argument-hint` of other formats).
    pub argument_hint: Option<String>,
    /// The `hooks` table as it stands in the file; `Null` where there is none.
    pub hooks: Value,
    pub output: Output,
    /// `None`: in the session by hand, isolated as a callback.
    pub context: Option<Context>,
    pub history: History,
    pub model: ModelChoice,
    pub max_turns: Option<u32>,
    pub callable_by: CallableBy,
    pub run_hooks: bool,
}

/// Where a recipe comes from, and with it how far it is trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    BuiltIn,
    /// From a folder of the person's own.
    Person(PathBuf),
    /// Came with a repository: its shell calls run only when the person trusts it.
    Repository(PathBuf),
}

impl Source {
    /// The file; built-in recipes have a name that says so.
    pub fn path(&self) -> &Path {
        match self {
            Source::BuiltIn => Path::new("(built in)"),
            Source::Person(path) | Source::Repository(path) => path,
        }
    }
}

/// How the body becomes a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Go's `text/template`.
    Template,
    /// `$ARGUMENTS`, `$1`, ``!`command` ``.
    ClaudeCommand,
    /// `{{args}}`, `!{command}`.
    GeminiCommand,
    /// Taken as it is (skills).
    Plain,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Argument {
    pub description: String,
    pub default: Option<String>,
    pub required: bool,
    /// Empty allows anything.
    pub choices: Vec<String>,
}

/// What a callback does with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Message,
    Mutate,
    Append,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    Session,
    Isolated,
    None,
}

/// How the history is given to a side run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum History {
    Native,
    Flat,
    Auto,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelChoice {
    Main,
    Small,
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallableBy {
    pub user: bool,
    pub hook: bool,
    pub agent: bool,
}

impl Default for CallableBy {
    fn default() -> CallableBy {
        CallableBy { user: true, hook: true, agent: false }
    }
}

impl Recipe {
    /// A recipe that is its body and nothing else.
    pub fn plain(id: &str, source: Source, syntax: Syntax, body: &str, body_line: u64) -> Recipe {
        Recipe {
            id: id.to_owned(),
            name: id.to_owned(),
            description: format!("Run the {id} recipe"),
            source,
            syntax,
            body: body.to_owned(),
            body_line,
            aliases: Vec::new(),
            hidden: false,
            allowed_tools: None,
            allowed_commands: None,
            arguments: BTreeMap::new(),
            argument_hint: None,
            hooks: Value::Null,
            output: Output::Message,
            context: None,
            history: History::Auto,
            model: ModelChoice::Main,
            max_turns: None,
            callable_by: CallableBy::default(),
            run_hooks: true,
        }
    }
}

/// A recipe that can be used, and remarks on its file: unknown fields, fields without effect.
#[derive(Clone, Debug, PartialEq)]
pub struct Parsed {
    pub recipe: Recipe,
    pub notes: Vec<Problem>,
}

/// Reads a recipe file. `id` is what its place says; the error's place is a line of the file.
pub fn parse(id: &str, source: Source, text: &str) -> Result<Parsed, Problem> {
    let path = source.path().to_path_buf();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let parsed = match split(text) {
        None => Parsed { recipe: Recipe::plain(id, source, Syntax::Template, text, 1), notes: Vec::new() },
        Some(Split { body: None, .. }) => {
            return Err(Problem {
                path,
                place: Some((1, 1)),
                message: "the front matter is not closed".to_owned(),
                hint: Some("end it with a line `---`".to_owned()),
            });
        }
        Some(Split { front, body: Some((body, body_line)) }) => {
            let fields = read_fields(front, &path)?;
            let recipe = Recipe::plain(id, source, Syntax::Template, body, body_line);
            Reader { path: &path, recipe, notes: Vec::new() }.read(fields)?
        }
    };
    check_template(&parsed.recipe)?;
    Ok(parsed)
}

/// Whether a file begins with front matter.
pub fn has_front_matter(text: &str) -> bool {
    split(text.strip_prefix('\u{feff}').unwrap_or(text)).is_some()
}

/// A file with front matter; `body` is missing when nothing ends it.
pub(super) struct Split<'a> {
    pub front: &'a str,
    pub body: Option<(&'a str, u64)>,
}

/// Splits at the lines `---`. `None`: the file has no front matter and is all body.
pub(super) fn split(text: &str) -> Option<Split<'_>> {
    let mut lines = text.split_inclusive('\n');
    let first = lines.next()?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut at = first.len();
    for (index, line) in lines.enumerate() {
        if line.trim_end() == "---" {
            let front = &text[first.len()..at];
            return Some(Split { front, body: Some((&text[at + line.len()..], index as u64 + 3)) });
        }
        at += line.len();
    }
    // A lone rule at the top of a Markdown file, or a front matter whose end was forgotten: it is the
    // latter if its first line reads like a field.
    let looks_like_fields = text[first.len()..].lines().next().is_some_and(|line| line.contains(": "));
    looks_like_fields.then_some(Split { front: &text[first.len()..], body: None })
}

type Fields = BTreeMap<String, Spanned<Value>>;

/// Reads YAML with bounds; its lines are counted from the file's second.
fn read_fields(front: &str, path: &Path) -> Result<Fields, Problem> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: FRONT_MATTER_NODES_MAX,
            max_depth: FRONT_MATTER_DEPTH_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: FRONT_MATTER_ALIASES_MAX },
        with_snippet: false,
    };
    if front.trim().is_empty() {
        return Ok(Fields::new());
    }
    serde_saphyr::from_str_with_options::<Option<Fields>>(front, options)
        .map(Option::unwrap_or_default)
        .map_err(|error| {
            let place = error.location().map(|place| (place.line() + 1, place.column()));
            Problem {
                path: path.to_path_buf(),
                place: place.filter(|(line, _)| *line > 1).or(Some((2, 1))),
                message: format!("the front matter is not valid YAML: {}", first_line(&error.to_string())),
                hint: Some("put quotes around text that holds `: `, `[`, `{`, `#` or `*`".to_owned()),
            }
        })
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn check_template(recipe: &Recipe) -> Result<(), Problem> {
    match recipe.syntax {
        Syntax::Template => template::compile(&recipe.body)
            .map(|_| ())
            .map_err(|error| template_problem(recipe, &error, "cannot parse the template")),
        Syntax::ClaudeCommand | Syntax::GeminiCommand | Syntax::Plain => Ok(()),
    }
}

/// A fault in a recipe's body, at its place in the file.
pub(super) fn template_problem(recipe: &Recipe, error: &template::TemplateError, trying: &str) -> Problem {
    let (line, column) = error.place(&recipe.body);
    Problem {
        path: recipe.source.path().to_path_buf(),
        place: Some((line + recipe.body_line - 1, column)),
        message: format!("{trying}: {}", error.message),
        hint: error.hint.clone(),
    }
}

struct Reader<'a> {
    path: &'a Path,
    recipe: Recipe,
    notes: Vec<Problem>,
}

/// A field's value that is of the wrong kind: what was wanted instead.
type Wanted = String;

impl Reader<'_> {
    fn read(mut self, fields: Fields) -> Result<Parsed, Problem> {
        let mut defaults = BTreeMap::new();
        let mut output = None;
        for (name, field) in &fields {
            let place = (field.referenced.line() + 1, field.referenced.column());
            self.field(name, &field.value, &mut defaults, &mut output).map_err(|wanted| Problem {
                path: self.path.to_path_buf(),
                place: Some(place),
                message: format!("{name:?} must be {wanted}"),
                hint: None,
            })?;
            if let Some((message, hint)) = remark(name) {
                let path = self.path.to_path_buf();
                self.notes.push(Problem { path, place: Some(place), message, hint });
            }
        }
        for (name, default) in defaults {
            self.recipe.arguments.entry(name).or_default().default.get_or_insert(default);
        }
        let by_handler = if declares_swap(&self.recipe.hooks) { Output::Mutate } else { Output::Message };
        self.recipe.output = output.unwrap_or(by_handler);
        Ok(Parsed { recipe: self.recipe, notes: self.notes })
    }

    fn field(
        &mut self,
        name: &str,
        value: &Value,
        defaults: &mut BTreeMap<String, String>,
        output: &mut Option<Output>,
    ) -> Result<(), Wanted> {
        if value.is_null() {
            return Ok(());
        }
        let recipe = &mut self.recipe;
        match name {
            "name" => recipe.name = text(value)?,
            "description" => recipe.description = text(value)?,
            "aliases" => {
                let names = names(value)?.into_iter();
                recipe.aliases = names.map(|alias| alias.trim_start_matches('/').to_owned()).collect();
            }
            "hidden" => recipe.hidden = truth(value)?,
            "allowed_tools" => recipe.allowed_tools = Some(names(value)?),
            "allowed_commands" => recipe.allowed_commands = Some(names(value)?),
            "arguments" => recipe.arguments = arguments(value)?,
            "argument-hint" | "argument_hint" => recipe.argument_hint = Some(text(value)?),
            "defaults" => *defaults = text_map(value)?,
            "hooks" if value.is_object() => recipe.hooks = value.clone(),
            "hooks" => return Err("a map from events to handlers".to_owned()),
            "output" => {
                let kinds = [
                    ("message", Output::Message),
                    ("mutate", Output::Mutate),
                    ("append", Output::Append),
                    ("none", Output::None),
                ];
                *output = Some(choice(value, &kinds)?);
            }
            "context" => {
                let kinds =
                    [("session", Context::Session), ("isolated", Context::Isolated), ("none", Context::None)];
                recipe.context = Some(choice(value, &kinds)?);
            }
            "history" => {
                let kinds = [("native", History::Native), ("flat", History::Flat), ("auto", History::Auto)];
                recipe.history = choice(value, &kinds)?;
            }
            "model" => {
                recipe.model = match text(value)?.as_str() {
                    "main" => ModelChoice::Main,
                    "small" => ModelChoice::Small,
                    name => ModelChoice::Named(name.to_owned()),
                }
            }
            "max_turns" => {
                let turns =
                    value.as_u64().and_then(|turns| u32::try_from(turns).ok()).filter(|turns| *turns > 0);
                recipe.max_turns = Some(turns.ok_or_else(|| "a whole number above 0".to_owned())?);
            }
            "callable_by" => recipe.callable_by = callable_by(value)?,
            "run_hooks" => recipe.run_hooks = truth(value)?,
            _ => {}
        }
        Ok(())
    }
}

/// The fields of a recipe file, for "did you mean".
const FIELDS: [&str; 18] = [
    "name",
    "description",
    "aliases",
    "hidden",
    "allowed_tools",
    "allowed_commands",
    "arguments",
    "argument-hint",
    "argument_hint",
    "defaults",
    "hooks",
    "output",
    "context",
    "history",
    "model",
    "max_turns",
    "callable_by",
    "run_hooks",
];

/// What there is to say about a field that has no effect.
fn remark(name: &str) -> Option<(String, Option<String>)> {
    if FIELDS.contains(&name) {
        return None;
    }
    if matches!(name, "workflow" | "profile") {
        return Some((format!("{name:?} has no effect here"), None));
    }
    let hint = nearest(name, FIELDS).map(|field| format!("did you mean {field:?}?"));
    Some((format!("unknown field {name:?}, ignored"), hint))
}

/// The known name that is a slip of the keyboard away, if there is one.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let name = plain(name);
    // A third of the letters: more, and short names are all alike.
    let most = (name.chars().count() / 3).max(1);
    known
        .into_iter()
        .map(|candidate| (edit_distance(&name, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, remove or replace to get from one word to the other.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

fn text(value: &Value) -> Result<String, Wanted> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(truth) => Ok(truth.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => Err("text".to_owned()),
    }
}

fn truth(value: &Value) -> Result<bool, Wanted> {
    match value {
        Value::Bool(truth) => Ok(*truth),
        Value::String(text) if text == "true" || text == "yes" => Ok(true),
        Value::String(text) if text == "false" || text == "no" => Ok(false),
        _ => Err("true or false".to_owned()),
    }
}

/// A list, or text with commas; `none` is the empty list.
fn names(value: &Value) -> Result<Vec<String>, Wanted> {
    let wanted = || "a list of names, or names with commas between them".to_owned();
    match value {
        Value::String(all) if all.trim() == "none" => Ok(Vec::new()),
        Value::String(all) => {
            Ok(all.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
        }
        Value::Array(items) => items.iter().map(|item| text(item).map_err(|_| wanted())).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Err(wanted()),
    }
}

fn text_map(value: &Value) -> Result<BTreeMap<String, String>, Wanted> {
    let wanted = || "a map from names to text".to_owned();
    let map = value.as_object().ok_or_else(wanted)?;
    map.iter().map(|(name, value)| Ok((name.clone(), text(value).map_err(|_| wanted())?))).collect()
}

fn arguments(value: &Value) -> Result<BTreeMap<String, Argument>, Wanted> {
    let map = value.as_object().ok_or_else(|| "a map from names to arguments".to_owned())?;
    map.iter()
        .map(|(name, value)| {
            let argument =
                argument(value).map_err(|wanted| format!("a map in which {name:?} is {wanted}"))?;
            Ok((name.clone(), argument))
        })
        .collect()
}

fn argument(value: &Value) -> Result<Argument, Wanted> {
    let mut argument = Argument::default();
    let fields = match value {
        Value::Null => return Ok(argument),
        Value::String(description) => return Ok(Argument { description: description.clone(), ..argument }),
        Value::Object(fields) => fields,
        Value::Bool(_) | Value::Number(_) | Value::Array(_) => {
            return Err("a map of description, default, required, choices".to_owned());
        }
    };
    for (name, value) in fields {
        let with_name = |wanted: Wanted| format!("an argument whose {name:?} is {wanted}");
        match name.as_str() {
            _ if value.is_null() => {}
            "description" => argument.description = text(value).map_err(with_name)?,
            "default" => argument.default = Some(text(value).map_err(with_name)?),
            "required" => argument.required = truth(value).map_err(with_name)?,
            "choices" => argument.choices = names(value).map_err(with_name)?,
            _ => {}
        }
    }
    Ok(argument)
}

fn choice<T: Copy>(value: &Value, kinds: &[(&str, T)]) -> Result<T, Wanted> {
    let chosen = value.as_str().and_then(|name| kinds.iter().find(|(known, _)| *known == name));
    chosen.map(|(_, kind)| *kind).ok_or_else(|| {
        let known: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
        format!("one of {}", known.join(", "))
    })
}

fn callable_by(value: &Value) -> Result<CallableBy, Wanted> {
    let mut callable = CallableBy { user: false, hook: false, agent: false };
    for name in names(value)? {
        match name.as_str() {
            "user" => callable.user = true,
            "hook" => callable.hook = true,
            "agent" => callable.agent = true,
            _ => return Err("a list of user, hook, agent".to_owned()),
        }
    }
    Ok(callable)
}

/// Whether a hook of the recipe replaces the history; then its text is meant for that.
fn declares_swap(hooks: &Value) -> bool {
    match hooks {
        Value::String(handler) => matches!(handler.as_str(), "swap_context" | "compact_context"),
        Value::Array(items) => items.iter().any(declares_swap),
        Value::Object(fields) => fields.iter().any(|(name, value)| name != "params" && declares_swap(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Parsed {
        parse("x", Source::BuiltIn, text).unwrap_or_else(|problem| panic!("{problem}"))
    }

    fn refused(text: &str) -> (Option<(u64, u64)>, String) {
        let problem = parse("x", Source::BuiltIn, text).expect_err("it is refused");
        (problem.place, problem.message)
    }

    #[test]
    fn a_file_without_front_matter_is_all_body() {
        let recipe = read("# Title\n\n---\n\nText").recipe;
        assert_eq!(
            recipe,
            Recipe::plain("x", Source::BuiltIn, Syntax::Template, "# Title\n\n---\n\nText", 1)
        );
        assert_eq!(recipe.description, "Run the x recipe");
        assert_eq!(read("---\n\nA rule opens this page.\n").recipe.body_line, 1);
        assert_eq!(read("").recipe.body, "");
    }

    #[test]
    fn every_field_is_read() {
        let parsed = read(
            "---\nname: PR\ndescription: Open it\naliases: [/p, q]\nhidden: true\nallowed_tools: [bash, grep]\n\
             allowed_commands: git *, gh *\narguments:\n  target:\n    description: branch\n    default: main\n    \
             required: true\n    choices: [main, dev]\n  note: free\ndefaults: {old: 1}\nhooks:\n  after_turn: {handler: log}\n\
             output: append\ncontext: isolated\nhistory: flat\nmodel: small\nmax_turns: 3\n\
             callable_by: [user, agent]\nrun_hooks: no\n---\nBody {{.target}}\n",
        );
        assert_eq!(parsed.notes, []);
        let target = Argument {
            description: "branch".to_owned(),
            default: Some("main".to_owned()),
            required: true,
            choices: vec!["main".to_owned(), "dev".to_owned()],
        };
        let note = Argument { description: "free".to_owned(), ..Argument::default() };
        let old = Argument { default: Some("1".to_owned()), ..Argument::default() };
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let wanted = Recipe {
            name: "PR".to_owned(),
            description: "Open it".to_owned(),
            aliases: list(&["p", "q"]),
            hidden: true,
            allowed_tools: Some(list(&["bash", "grep"])),
            allowed_commands: Some(list(&["git *", "gh *"])),
            arguments: [("target", target), ("note", note), ("old", old)]
                .map(|(name, argument)| (name.to_owned(), argument))
                .into(),
            hooks: serde_json::json!({"after_turn": {"handler": "log"}}),
            output: Output::Append,
            context: Some(Context::Isolated),
            history: History::Flat,
            model: ModelChoice::Small,
            max_turns: Some(3),
            callable_by: CallableBy { user: true, hook: false, agent: true },
            run_hooks: false,
            ..Recipe::plain(
                "x",
                Source::BuiltIn,
                Syntax::Template,
                "Body {{.target}}\n",
                parsed.recipe.body_line,
            )
        };
        assert_eq!(parsed.recipe, wanted);
    }

    #[test]
    fn no_tools_is_not_the_same_as_no_word_on_tools() {
        assert_eq!(read("---\nname: a\n---\n").recipe.allowed_tools, None);
        for none in ["[]", "none", "\"\""] {
            assert_eq!(
                read(&format!("---\nallowed_tools: {none}\n---\n")).recipe.allowed_tools,
                Some(Vec::new())
            );
        }
    }

    #[test]
    fn a_swap_handler_makes_the_output_a_mutation() {
        let output = |front: &str| read(&format!("---\n{front}\n---\n")).recipe.output;
        assert_eq!(output("hooks: {turn_end: {handler: swap_context}}"), Output::Mutate);
        assert_eq!(output("hooks: {turn_end: [{handlers: [external, compact_context]}]}"), Output::Mutate);
        assert_eq!(output("hooks: {turn_end: {handler: swap_context}}\noutput: none"), Output::None);
        assert_eq!(output("hooks: {turn_end: {handler: log, params: {a: swap_context}}}"), Output::Message);
    }

    #[test]
    fn unknown_fields_are_noted_with_their_place() {
        let notes = read("---\nname: a\nalowed_tools: []\nworkflow: x\n---\n").notes;
        let told: Vec<_> = notes.iter().map(|n| (n.place, n.message.as_str(), n.hint.as_deref())).collect();
        assert_eq!(
            told,
            [
                (
                    Some((3, 15)),
                    "unknown field \"alowed_tools\", ignored",
                    Some("did you mean \"allowed_tools\"?")
                ),
                (Some((4, 11)), "\"workflow\" has no effect here", None),
            ]
        );
    }

    #[test]
    fn a_value_of_the_wrong_kind_refuses_the_file_at_its_place() {
        let wanted = "\"max_turns\" must be a whole number above 0".to_owned();
        assert_eq!(refused("---\nname: a\nmax_turns: many\n---\n"), (Some((3, 12)), wanted));
        let wanted = "\"output\" must be one of message, mutate, append, none".to_owned();
        assert_eq!(refused("---\noutput: all\n---\n"), (Some((2, 9)), wanted));
    }

    #[test]
    fn front_matter_that_is_no_yaml_is_told_in_lines_of_the_file() {
        let (place, message) = refused("---\nname: a\ndescription: b: c\n---\nText");
        assert_eq!(place.map(|(line, _)| line), Some(3), "{message}");
        assert_eq!(refused("---\nname: a\nText").1, "the front matter is not closed");
        assert!(refused("---\n- a\n---\n").1.contains("not valid YAML"));
    }

    #[test]
    fn a_fault_of_the_template_is_told_in_lines_of_the_file() {
        let (place, message) = refused("---\nname: a\n---\n\nHello {{name}}\n");
        assert_eq!(place, Some((5, 9)));
        assert!(message.starts_with("cannot parse the template: "), "{message}");
    }

    /// Nine levels of nine references to the level below are a billion nodes.
    #[test]
    fn front_matter_that_unfolds_without_end_is_refused() {
        let mut front = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (level, below) in ('b'..='i').zip('a'..) {
            front += &format!("{level}: &{level} [{}]\n", vec![format!("*{below}"); 9].join(", "));
        }
        assert!(refused(&format!("---\n{front}---\n")).1.contains("not valid YAML"));
        let deep = format!("---\na: {}{}\n---\n", "[".repeat(5000), "]".repeat(5000));
        assert!(refused(&deep).1.contains("not valid YAML"));
    }

    #[test]
    fn windows_line_ends_and_a_byte_order_mark_are_fine() {
        let recipe = read("\u{feff}---\r\nname: a\r\n---\r\nBody\r\n").recipe;
        assert_eq!((recipe.name.as_str(), recipe.body.as_str(), recipe.body_line), ("a", "Body\r\n", 4));
    }
}

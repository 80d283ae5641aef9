//! Subagent definitions: Markdown files with front matter in the format documented by Claude Code
//! (code.claude.com/docs/en/sub-agents), and the two built-in agents.
//!
//! A file specifies an agent's prompt and tools; nothing in it is executed. Front matter that is not valid YAML
//! is read line by line, since Claude Code accepts such agents, including some of its own examples. A field with a
//! wrong value is an error, and the file defines no agent: one with mistyped `tools` must not run with all tools.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::definition::{AGENT_DEFAULT, RecipeModel, RecipeOwner, RecipeSource};
use super::fields::{self, ExpectedKind, names, positive, text};
use super::foreign;
use super::front_matter::{LINES_BEFORE, split};
use super::lenient;
use super::plugins::{Plugin, PluginCatalog};
use super::walk::{ENTRIES_MAX, FolderWalk};
use epitome_files::paths::Paths;
use epitome_thread::problem::Problem;

/// Maximum size of an agent file in bytes; every request of the agent includes it.
const AGENT_BYTES_MAX: u64 = 64 * 1024;
/// Maximum agents per session. Every request lists all of them, at least by name.
pub const AGENTS_MAX: usize = 500;
/// Maximum number of problems, and of remarks, that are kept.
pub const PROBLEMS_MAX: usize = 1_000;
/// Maximum length of a name in bytes; permission prompts show it.
const NAME_BYTES_MAX: usize = 64;

/// The default agent for tasks that name none.
pub const GENERAL: &str = AGENT_DEFAULT;

/// The read-only agent for exploration.
pub const EXPLORE: &str = "explore";

/// Tools of `explore` if the session offers them. None of them can change anything in the workspace.
const EXPLORE_TOOLS: [&str; 6] =
    ["file_read", "glob_tool", "grep_tool", "view_image", "todo_write", "recall"];

const EXPLORE_PROMPT: &str = "You look around in files for another agent. Change nothing. Search widely first, then \
read what matters. Report what was asked for and nothing else: name files by path and line, quote the few lines \
that decide, and say what you did not find.";

const GENERAL_PROMPT: &str = "You carry out a piece of work for another agent, from its beginning to its end. Report \
what you did, what you checked and what is left, with the paths of what you changed.";

/// A subagent definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentDefinition {
    pub name: String,
    /// When to use the agent; shown to the model.
    pub description: String,
    /// The only allowed tools, as named in the file; `None` allows all.
    pub tools: Option<Vec<String>>,
    /// Tools that are removed.
    pub without: Vec<String>,
    pub model: RecipeModel,
    /// Limit of model calls, if the file sets one below that of the settings.
    pub max_rounds: Option<u32>,
    /// Read-only (plan mode), whatever its tools.
    pub plans: bool,
    /// The role prompt.
    pub prompt: String,
    pub source: RecipeSource,
}

impl AgentDefinition {
    /// An agent with all tools and the conversation's model.
    fn plain(name: &str, description: &str, prompt: &str, source: RecipeSource) -> AgentDefinition {
        AgentDefinition {
            name: name.to_owned(),
            description: description.to_owned(),
            tools: None,
            without: Vec::new(),
            model: RecipeModel::Main,
            max_rounds: None,
            plans: false,
            prompt: prompt.to_owned(),
            source,
        }
    }
}

/// The agents of a session; the first definition of a name wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCatalog {
    pub agents: Vec<AgentDefinition>,
    /// Files that define no agent.
    pub problems: Vec<Problem>,
    /// Parts of files that have no effect.
    pub remarks: Vec<Problem>,
    /// Files whose name is taken by an earlier one.
    pub shadowed: Vec<PathBuf>,
}

impl AgentCatalog {
    /// Loads agents in order of precedence: from the user's folders, since a repository must not replace an agent
    /// that the user knows, from the directory and its repository, from plugins, then the built-in ones. Blocks on
    /// disk I/O.
    pub fn load(cwd: &Path, paths: &Paths) -> AgentCatalog {
        let roots = paths.repository_roots(cwd);
        let mut walk = FolderWalk::new(&roots);
        let mut all = AgentCatalog::default();
        for (folder, owner) in positions(&roots, paths) {
            all.folder(&mut walk, &folder, owner, None);
        }
        for plugin in &PluginCatalog::of_roots(&roots, paths).plugins {
            all.plugin(&mut walk, plugin);
        }
        built_in().into_iter().for_each(|agent| all.add(agent));
        all
    }

    /// Loads the given files and folders only. Blocks on disk I/O.
    pub fn named(given: &[PathBuf]) -> AgentCatalog {
        let mut all = AgentCatalog::default();
        for path in given {
            all.folder(&mut FolderWalk::new(&[]), path, RecipeOwner::User, None);
        }
        all
    }

    /// Loads the agents that a plugin brings. Blocks on disk I/O.
    pub fn of_plugin(plugin: &Plugin) -> AgentCatalog {
        let mut all = AgentCatalog::default();
        all.plugin(&mut FolderWalk::new(plugin.repository.as_slice()), plugin);
        all
    }

    pub fn find(&self, name: &str) -> Option<&AgentDefinition> {
        self.agents.iter().find(|agent| agent.name == name)
    }

    fn plugin(&mut self, walk: &mut FolderWalk, plugin: &Plugin) {
        for folder in &plugin.agents {
            self.folder(walk, folder, plugin.owner(), Some(&plugin.name));
        }
    }

    /// Adds the agents of a folder or file.
    fn folder(&mut self, walk: &mut FolderWalk, folder: &Path, owner: RecipeOwner, plugin: Option<&str>) {
        let mut files = Vec::new();
        if folder.is_dir() {
            walk.below(owner, folder, 1, &mut |path, is_folder| files.extend((!is_folder).then_some(path)));
        } else {
            files.push(folder.to_path_buf());
        }
        if walk.is_spent(owner) {
            let message = format!("more than {ENTRIES_MAX} files; agents from here on are not read");
            self.problem(Problem::new(folder, message));
        }
        for path in files.into_iter().filter(|path| is_agent_file(path)) {
            match read(walk, owner, &path) {
                Ok((mut agent, remarks)) => {
                    let kept = PROBLEMS_MAX.saturating_sub(self.remarks.len());
                    self.remarks.extend(remarks.into_iter().take(kept));
                    if let Some(plugin) = plugin {
                        agent.name = format!("{plugin}:{}", agent.name);
                    }
                    self.add(agent);
                }
                Err(problem) => self.problem(problem),
            }
        }
    }

    fn add(&mut self, agent: AgentDefinition) {
        if let Some(first) = self.find(&agent.name) {
            if let (RecipeSource::User(user), RecipeSource::Repository(path)) = (&first.source, &agent.source)
                && self.remarks.len() < PROBLEMS_MAX
            {
                let message = format!("not used: your own agent {} has its name", user.display());
                self.remarks.push(Problem::new(path, message));
            }
            if agent.source != RecipeSource::BuiltIn && self.shadowed.len() < PROBLEMS_MAX {
                self.shadowed.push(agent.source.path().to_path_buf());
            }
            return;
        }
        if self.agents.len() >= AGENTS_MAX && agent.source != RecipeSource::BuiltIn {
            let message = format!("more than {AGENTS_MAX} agents; this one is left out");
            return self.problem(Problem::new(agent.source.path(), message));
        }
        self.agents.push(agent);
    }

    fn problem(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }
}

/// Folders to search, in order of precedence.
fn positions(roots: &[PathBuf], paths: &Paths) -> Vec<(PathBuf, RecipeOwner)> {
    let homes = [Some(paths.home.clone()), paths.user_home.as_ref().map(|home| home.join(".claude"))];
    let of_user: Vec<PathBuf> = homes.into_iter().flatten().map(|home| home.join("agents")).collect();
    let of_repository: Vec<PathBuf> = roots
        .iter()
        .flat_map(|root| [root.join(".epitome/agents"), root.join(".claude/agents")])
        // If the session is in the home directory, these folders are the user's own.
        .filter(|folder| !of_user.contains(folder))
        .collect();
    let of_user = of_user.into_iter().map(|folder| (folder, RecipeOwner::User));
    of_user.chain(of_repository.into_iter().map(|folder| (folder, RecipeOwner::Repository))).collect()
}

/// Whether a file defines an agent. A README describes a folder.
fn is_agent_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
        && path.file_stem().is_some_and(|stem| !stem.eq_ignore_ascii_case("readme"))
}

fn read(
    walk: &FolderWalk,
    owner: RecipeOwner,
    path: &Path,
) -> Result<(AgentDefinition, Vec<Problem>), Problem> {
    parse(owner.source(path), &walk.read(owner, path, "an agent", AGENT_BYTES_MAX)?)
}

/// Fields with an effect, and known fields without one: `color`, and those that describe the file.
const FIELDS: &str = "name description tools disallowedTools disallowed_tools model maxTurns max_turns permissionMode \
    color category tags author version license metadata";
/// Fields of Claude Code that have no effect here.
const INEFFECTIVE: [&str; 8] =
    ["skills", "mcpServers", "hooks", "memory", "background", "effort", "isolation", "initialPrompt"];

/// Parses one file. Settings without effect are returned as remarks.
pub fn parse(source: RecipeSource, text: &str) -> Result<(AgentDefinition, Vec<Problem>), Problem> {
    let path = source.path().to_path_buf();
    let at_start = |message: &str| Problem::new(&path, message).at((1, 1));
    let Some(split) = split(text) else {
        let hint = "begin with a line `---`, then name: and description:, then a line `---`";
        return Err(at_start("an agent needs front matter").with_hint(hint));
    };
    let Some((body, _)) = split.body else {
        return Err(at_start("the front matter is not closed").with_hint("end it with a line `---`"));
    };
    let by_file = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let mut agent = AgentDefinition::plain(&by_file, "", body.trim(), source);
    let is_field = |name: &str| INEFFECTIVE.contains(&name) || FIELDS.split(' ').any(|known| known == name);
    let fields = fields::from_yaml(split.front, &path, LINES_BEFORE, "the front matter")
        .unwrap_or_else(|_| lenient::as_fields(split.front, LINES_BEFORE, is_field));
    let ineffective = |name: &str| format!("{name:?} has no effect here");
    let remarks = fields::set_all(&fields, &path, FIELDS, ineffective, |name, field| {
        set(&mut agent, name, &field.value)
    })?;
    if agent.description.trim().is_empty() {
        let problem = at_start("an agent needs a description: the model chooses by it");
        return Err(problem.with_hint("description: When to use it"));
    }
    Ok((agent, remarks))
}

/// Sets a field; returns a remark if part of the value has no effect.
fn set(agent: &mut AgentDefinition, name: &str, value: &Value) -> Result<Option<String>, ExpectedKind> {
    match name {
        "name" => {
            agent.name = text(value)?;
            let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ' | ':');
            if agent.name.is_empty() || agent.name.len() > NAME_BYTES_MAX || !agent.name.chars().all(is_plain)
            {
                return Err(format!("a name of letters, digits and -, at most {NAME_BYTES_MAX} bytes"));
            }
        }
        "description" => {
            agent.description = text(value)?.split_whitespace().collect::<Vec<_>>().join(" ");
        }
        "tools" => {
            let (tools, remark) = tool_names(value)?;
            let is_all = tools.iter().any(|tool| tool == "*");
            agent.tools = (!is_all).then_some(tools);
            return Ok(remark);
        }
        "disallowedTools" | "disallowed_tools" => {
            let (tools, remark) = tool_names(value)?;
            agent.without = tools;
            return Ok(remark);
        }
        "model" => agent.model = foreign::model(&text(value)?),
        "maxTurns" | "max_turns" => {
            agent.max_rounds = Some(positive(value)?);
        }
        "permissionMode" => match text(value)?.as_str() {
            "plan" => agent.plans = true,
            "default" => {}
            wider => {
                return Ok(Some(format!(
                    "{wider:?} has no effect: an agent may do what its session may, and nothing more"
                )));
            }
        },
        _ => {}
    }
    Ok(None)
}

/// The names of tools. A pattern in parentheses after a name (`Bash(git *)`) limits its calls in Claude Code; here
/// the session's permissions apply, so it becomes a remark.
fn tool_names(value: &Value) -> Result<(Vec<String>, Option<String>), ExpectedKind> {
    let mut limit = None;
    let mut plain = |text: &str| {
        let mut depth = 0_usize;
        let outside = text.chars().filter(|c| {
            depth = if *c == ')' { depth.saturating_sub(1) } else { depth + usize::from(*c == '(') };
            depth == 0 && *c != ')'
        });
        let outside: String = outside.collect();
        if outside.len() < text.len() {
            limit.get_or_insert_with(|| text.to_owned());
        }
        outside
    };
    let plain = match value {
        Value::String(text) => Value::from(plain(text)),
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map_or(item.clone(), |text| plain(text).into())).collect()
        }
        other => other.clone(),
    };
    let names = names(&plain)?;
    let remark = limit
        .map(|text| format!("the patterns in {text:?} have no effect: the session's permissions decide"));
    Ok((names, remark))
}

fn built_in() -> [AgentDefinition; 2] {
    let explore = "Finds things out in the files and changes nothing: where something is, how it works. Good for \
                   searches that would fill your own context.";
    let general = "Carries out a whole piece of work with all tools.";
    [
        AgentDefinition {
            tools: Some(EXPLORE_TOOLS.map(str::to_owned).to_vec()),
            model: RecipeModel::Small,
            ..AgentDefinition::plain(EXPLORE, explore, EXPLORE_PROMPT, RecipeSource::BuiltIn)
        },
        AgentDefinition::plain(GENERAL, general, GENERAL_PROMPT, RecipeSource::BuiltIn),
    ]
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn of(text: &str) -> (AgentDefinition, Vec<String>) {
        let (agent, remarks) = parse(RecipeSource::User("/home/agents/checker.md".into()), text)
            .unwrap_or_else(|problem| panic!("{problem}"));
        (agent, remarks.into_iter().map(|remark| remark.to_string()).collect())
    }

    #[test]
    fn claude_code_agent_files_are_read() {
        let (agent, remarks) =
            of("---\nname: code-reviewer\ndescription: Reviews code.\n  Use it after changes.\n\
             tools: Read, Grep, Bash\ndisallowedTools: [Bash]\nmodel: haiku\ncolor: red\nmaxTurns: 7\n\
             permissionMode: plan\n---\n\nYou review code.\n");
        assert_eq!(remarks, Vec::<String>::new());
        let wanted = AgentDefinition {
            name: "code-reviewer".to_owned(),
            description: "Reviews code. Use it after changes.".to_owned(),
            tools: Some(["Read", "Grep", "Bash"].map(str::to_owned).to_vec()),
            without: vec!["Bash".to_owned()],
            model: RecipeModel::Small,
            max_rounds: Some(7),
            plans: true,
            prompt: "You review code.".to_owned(),
            source: agent.source.clone(),
        };
        assert_eq!(agent, wanted);
    }

    #[test]
    fn missing_fields_use_the_session_defaults() {
        let (agent, _) = of("---\ndescription: Checks.\n---\nCheck.");
        assert_eq!((agent.name.as_str(), agent.tools, agent.model), ("checker", None, RecipeModel::Main));
        let (agent, _) = of("---\ndescription: Checks.\ntools: none\nmodel: openai/gpt-6-luna\n---\nCheck.");
        assert_eq!(agent.tools, Some(Vec::new()), "no tools is not the same as no word on tools");
        assert_eq!(agent.model, RecipeModel::Named("openai/gpt-6-luna".to_owned()));
    }

    /// Each row is a file and the expected problem; an invalid file defines no agent.
    #[test]
    fn errors_are_reported_with_their_position() {
        for (file, wanted) in [
            ("You review.", "1:1: an agent needs front matter"),
            ("---\nname: a\n", "1:1: the front matter is not closed"),
            ("---\nname: a\n---\n", "1:1: an agent needs a description"),
            ("---\ndescription: a\ntools: {Read: true}\n---\n", "3:8: \"tools\" must be a list of names"),
            ("---\nname: a/b\ndescription: a\n---\n", "2:7: \"name\" must be a name of letters"),
            ("---\ndescription: a\nmaxTurns: 0\n---\n", "3:11: \"maxTurns\" must be a whole number above 0"),
        ] {
            let parsed = parse(RecipeSource::User("/a.md".into()), file).map(|(agent, _)| agent.name);
            let error = parsed.expect_err("it is refused").to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    /// Regression: 39 of 966 published agents were rejected, among them nine of the fourteen that Anthropic publishes
    /// with Claude Code: an unquoted description with a colon is not valid YAML.
    #[test]
    fn front_matter_that_is_not_yaml_is_read_line_by_line() {
        let (agent, remarks) = of(
            "---\nname: creator\ndescription: Use this agent when asked. Examples: <example>\n\
             user: \"Make one\"\nassistant: \"I will\"\n</example>\nmodel: haiku\ntools: [\"Read\", \"Write\"]\n\
             maxTurns: 7\ncolor: magenta\n---\n\nYou create.\n",
        );
        assert_eq!(remarks, Vec::<String>::new());
        assert_eq!((agent.name.as_str(), &agent.model), ("creator", &RecipeModel::Small));
        assert!(agent.description.starts_with("Use this agent when asked. Examples: <example> user:"));
        assert!(agent.description.ends_with("</example>"), "{}", agent.description);
        assert_eq!(agent.tools, Some(vec!["Read".to_owned(), "Write".to_owned()]));
        assert_eq!((agent.max_rounds, agent.prompt.as_str()), (Some(7), "You create."));
    }

    #[test]
    fn patterns_behind_tools_are_remarked() {
        for tools in ["Bash(git diff:*, git log), Read", "[\"Bash(git *)\", Read]"] {
            let (agent, remarks) = of(&format!("---\ndescription: a\ntools: {tools}\n---\n"));
            assert_eq!(agent.tools, Some(vec!["Bash".to_owned(), "Read".to_owned()]), "{tools}");
            assert!(
                remarks.len() == 1 && remarks[0].contains("the session's permissions decide"),
                "{remarks:?}"
            );
        }
    }

    #[test]
    fn agents_in_folders_and_of_plugins_are_found() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let write = |path: &str, text: &str| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        write("home/.claude/agents/core/one.md", "---\ndescription: One\n---\n");
        write("home/.claude/agents/core/README.md", "# Agents");
        write("home/.epitome/plugins/fmt/.claude-plugin/plugin.json", "{}");
        write("home/.epitome/plugins/fmt/agents/two.md", "---\ndescription: Two\n---\n");
        let home = directory.path().join("home");
        let paths = Paths { user_home: Some(home.clone()), ..Paths::below(&home.join(".epitome")) };
        let found = AgentCatalog::load(directory.path(), &paths);
        let names: Vec<&str> = found.agents.iter().map(|agent| agent.name.as_str()).collect();
        assert_eq!((names, &found.problems), (vec!["one", "fmt:two", EXPLORE, GENERAL], &vec![]));
    }

    #[test]
    fn fields_without_effect_are_remarked() {
        let (_, remarks) = of("---\ndescription: a\npermissionMode: bypassPermissions\ntool: Read\n---\n");
        assert_eq!(remarks.len(), 2, "{remarks:?}");
        assert!(remarks[0].contains("may do what its session may, and nothing more"), "{remarks:?}");
        assert!(remarks[1].contains("\"tool\" has no effect") && remarks[1].contains("tools"), "{remarks:?}");
    }

    /// A repository's `code-reviewer` silently replaced the user's: a clone could choose what reviews its code.
    #[test]
    fn the_users_definition_wins_and_escaping_links_are_refused() {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let position = |path: &str| directory.path().join(path);
        let write = |path: &str, text: &str| {
            let path = position(path);
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        let file = |description: &str| format!("---\ndescription: {description}\n---\nDo.");
        fs::create_dir_all(position("w/.git")).expect("a directory");
        write("w/.claude/agents/one.md", &file("the repository's"));
        write("w/.claude/agents/notes.txt", "no agent");
        write("home/.epitome/agents/one.md", &file("the person's"));
        write("home/.claude/agents/two.md", &file("of Claude Code"));
        write("home/secret.md", &file("secret"));
        std::os::unix::fs::symlink(position("home/secret.md"), position("w/.claude/agents/leak.md"))
            .expect("a link");
        let paths = Paths { user_home: Some(position("home")), ..Paths::below(&position("home/.epitome")) };
        let found = AgentCatalog::load(&position("w"), &paths);
        let listed: Vec<_> =
            found.agents.iter().map(|agent| (agent.name.as_str(), agent.description.as_str())).collect();
        assert_eq!(listed[..2], [("one", "the person's"), ("two", "of Claude Code")]);
        assert!(found.remarks[0].message.starts_with("not used: your own agent "), "{:?}", found.remarks);
        assert_eq!(listed[2..].iter().map(|(name, _)| *name).collect::<Vec<_>>(), [EXPLORE, GENERAL]);
        assert_eq!(found.problems.len(), 1);
        assert!(found.problems[0].to_string().contains("leads out of the repository"));
    }
}

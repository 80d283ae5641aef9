//! The arguments of `epitome run` and `epitome compact`, and the request that they and other commands make to a session.

use std::io::{self, BufRead, IsTerminal, Read};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use super::host_input::instructions;
use crate::cli::overrides::OverrideArgs;
use crate::cli::{CliContext as _, CliError};
use crate::recipe::catalog::RecipeCatalog;
use crate::session::registry::Overrides;
use crate::thread::ClientInstructions;

/// Maximum bytes of text that are read from stdin. More does not fit into the window of any model.
const STDIN_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// How long stdin may be silent before it is given up, or the user is informed that the command is waiting for it.
const STDIN_SILENCE: Duration = Duration::from_secs(1);

/// Run one prompt in this terminal
///
/// Text on stdin is appended to the prompt; if the arguments have a prompt, stdin is ignored after a second of silence.
/// Permission questions are asked on the terminal; without a terminal, calls that need permission are denied.
/// Ctrl-C cancels the turn, a second Ctrl-C ends the process at once.
/// If a daemon runs, the session may be open elsewhere too; the turns of other clients continue.
#[derive(Debug, clap::Args)]
#[command(after_long_help = RUN_DETAILS)]
pub struct RunArgs {
    /// The prompt, or the arguments of the recipe
    prompt: Vec<String>,
    /// Run a recipe (a slash command)
    #[arg(short, long, value_name = "RECIPE")]
    recipe: Option<String>,
    /// Work in a Git worktree of this name, which is made if it does not exist
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    worktree: Option<String>,
    #[command(flatten)]
    program: ProgramArgs,
    #[command(flatten)]
    options: PromptOptions,
}

/// Options of `run` for programs.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "For programs")]
struct ProgramArgs {
    /// Read the prompt as text, or prompts and answers as JSON lines in the format of SDKs
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    input_format: InputFormat,
    /// Require a reply that matches this JSON Schema, and print only checked replies
    #[arg(long, value_name = "FILE|JSON")]
    json_schema: Option<String>,
    /// With --output stream-json: also print text while it is streamed
    #[arg(long)]
    include_partial_messages: bool,
    /// With --input-format stream-json: let the program answer permission questions
    #[arg(long, value_name = "WHERE", value_parser = ["stdio"])]
    permission_prompt_tool: Option<String>,
    /// Instructions for the session, in place of the description of Epitome's role
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// Instructions for the session, in addition to Epitome's own
    #[arg(long, value_name = "TEXT")]
    append_system_prompt: Option<String>,
    /// Another directory that the session may work in; can be repeated
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    add_dir: Vec<PathBuf>,
    /// MCP servers of this run, as {"mcpServers": {NAME: ...}} or a file with that; can be repeated
    #[arg(long, value_name = "FILE|JSON")]
    mcp_config: Vec<String>,
    /// Has no effect: SDKs pass it
    #[arg(long, hide = true)]
    verbose: bool,
}

/// How stdin is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum InputFormat {
    // Text that is appended to the prompt.
    #[default]
    Text,
    // The lines of `host_input`.
    StreamJson,
}

const RUN_DETAILS: &str = "\
Examples:
  epitome run \"why does the build fail?\"
  epitome run --follow \"and on Windows?\"
  git diff | epitome run \"review this\"
  epitome run --allow \"bash(cargo test *)\" --max-rounds 20 \"make the tests pass\"
  epitome run -r compact --follow
  epitome run --worktree fix \"repair the parser\"
  epitome run --json-schema schema.json \"list the failing tests\"

Exit codes:
  0    the turn ended normally
  1    it failed, or a command was refused
  2    wrong usage
  3    the budget is used up
  130  cancelled

--output stream-json, with --input-format stream-json, is the format of SDKs of Claude Code; see
docs/builders/integrate.md. With --json-schema and text output, only the checked JSON is printed;
the other formats have it as structured_output.

--output json prints one object at the end: session, reason, text (of the last reply), usage and
cost; for a command, its result; with the reason failed, error and hint.

--output jsonl, or --json, prints an object with a \"type\" per line. Later versions only add fields.
  text, thinking  message, text (in pieces; those of one message have the same id)
  tool_call       id, name, title, input
  permission      id, name, title, decision (allow_once, allow_always, reject),
                  by (person, nobody), reason (what the person said)
  tool_result     id, status (completed, failed, denied, interrupted), text
  usage           used, size (tokens in context and of the window), cost (US dollars of the
                  session, if known)
  notice          severity (info, warning, error), text
  compaction      entry, trigger (manual, overflow, threshold, must, hook), pre_tokens,
                  post_tokens, kept, masked, summarised (entries), quoted (entries quoted
                  verbatim), shortened (entries quoted without their middle), facts (lines of
                  tables computed from the log), left_out (entries without room), fallback (why
                  there is no model summary)
  hook            hook, event, asked (what it requested), verdict (nothing, done, refused,
                  failed, skipped), remarks (texts); hooks without effect have no line
  done            session, reason (end_turn, max_tokens, max_rounds, refusal, cancelled, failed),
                  and usage (input, output, thinking; cache_read and cache_write of the input) or
                  error and hint; for a command its result under the command's name (compaction,
                  undo, redo, pin, unpin, history, rewind, checkpoints, permissions, rename).
                  Always the last line";

/// Summarize the older part of a session
///
/// Does what /compact does in an editor. Compacts the newest session of this directory unless another one is named.
/// `epitome sessions undo latest` undoes it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  epitome compact                        the newest session of this directory
  epitome compact keep the parser notes  with a focus for the summary
  epitome compact above e40              only the entries before e40
  epitome compact --dry-run --json       what it would do, as one JSON object

With --from FORMAT [FILE], it compacts a transcript of another agent into one message instead.
`epitome compact --from auto --help` lists the options for that.

Exit codes: 0 done or nothing to do, 1 failed or refused, 2 wrong usage, 130 cancelled.")]
pub struct CompactArgs {
    /// What the summary must keep; `above ENTRY` limits the compaction to what precedes the entry
    focus: Vec<String>,
    /// Show what would be kept, shortened, quoted and summarized, with tokens and prices
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    options: PromptOptions,
}

/// Options of everything that sends a prompt to a session.
#[derive(Debug, clap::Args)]
struct PromptOptions {
    /// Attach an image (PNG, JPEG, GIF, WebP) or a PDF; can be repeated
    #[arg(long, visible_alias = "image", value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    attach: Vec<PathBuf>,
    /// Continue the newest session of this directory, unless --resume is given
    #[arg(long, alias = "continue")]
    follow: bool,
    /// Use the session with this ID or unique ID prefix
    // The alias and the short name are those of another agent's command line.
    #[arg(long, short = 'c', visible_alias = "conversation-id", value_name = "ID")]
    resume: Vec<String>,
    /// Print JSON instead of text: the same as --output jsonl
    #[arg(long)]
    json: bool,
    /// Print text, one JSON object at the end, or a line of JSON for each event
    #[arg(long, visible_alias = "output-format", value_name = "FORMAT", value_enum, conflicts_with = "json")]
    output: Option<OutputFormat>,
    /// Print replies as they are, without rendering Markdown on a terminal
    #[arg(long)]
    plain: bool,
    /// Work in this directory instead of the current one
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    cwd: Option<PathBuf>,
    /// Run in this process even if a daemon is running
    #[arg(long)]
    standalone: bool,
    #[command(flatten)]
    overrides: OverrideArgs,
}

/// One prompt to one session.
#[derive(Debug, Default, PartialEq)]
pub struct PromptRequest {
    words: Vec<String>,
    /// Files that are attached to the prompt.
    pub attached: Vec<PathBuf>,
    pub recipe: Option<String>,
    pub session: SessionChoice,
    pub overrides: Overrides,
    pub output: OutputFormat,
    pub program: HostOptions,
    /// Whether Markdown is printed unchanged.
    pub plain: bool,
    /// The directory of the session, if not the current one.
    pub cwd: Option<PathBuf>,
    /// The name of a Git worktree of that directory's repository to work in.
    pub worktree: Option<String>,
    /// Whether text on stdin is appended to the prompt.
    stdin: bool,
    /// Whether the session runs in this process even if a daemon is running.
    pub standalone: bool,
    /// A notice that is shown before anything is done.
    pub notice: Option<&'static str>,
}

/// The options of a program that starts a run.
#[derive(Debug, Default, PartialEq)]
pub struct HostOptions {
    /// Whether stdin brings prompts and answers in the format of SDKs.
    pub reads_stream: bool,
    /// Whether the program answers permission questions.
    pub decides: bool,
    /// Whether text is printed while it is streamed.
    pub is_partial: bool,
    /// A JSON Schema, or the path of one.
    pub schema: Option<String>,
    pub instructions: Option<ClientInstructions>,
    /// Further directories of the session.
    pub directories: Vec<PathBuf>,
    /// MCP servers, each as JSON or the path of a file.
    pub mcp_servers: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub enum SessionChoice {
    #[default]
    New,
    Newest,
    Named(String),
}

/// How a run prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    #[default]
    Text,
    // One object: the result of the command, or of the turn.
    Json,
    // All events of the turn, one object per line.
    Jsonl,
    // The format of SDKs.
    StreamJson,
}

impl OutputFormat {
    /// The equivalent format for a command that has a single result.
    fn result(self) -> OutputFormat {
        match self {
            OutputFormat::Text => OutputFormat::Text,
            OutputFormat::Json | OutputFormat::Jsonl | OutputFormat::StreamJson => OutputFormat::Json,
        }
    }
}

impl RunArgs {
    pub fn request(self) -> Result<PromptRequest, CliError> {
        let recipe = self.recipe.map(|name| name.trim_start_matches('/').to_owned());
        let needs_history = recipe.as_deref().is_some_and(is_compaction);
        let mut request = self.options.request(recipe, self.prompt)?;
        if needs_history {
            request = request.on_newest();
        }
        request.program = self.program.options(request.output)?;
        request.worktree = self.worktree;
        if request.program.reads_stream {
            if !request.words.is_empty() || request.recipe.is_some() || !request.attached.is_empty() {
                let message = "with --input-format stream-json, prompts come from stdin: give no other one";
                return Err(CliError::usage(message));
            }
            request.stdin = false;
        }
        Ok(request)
    }
}

/// Whether this is the name of a built-in compaction, for which a new session has nothing.
fn is_compaction(name: &str) -> bool {
    RecipeCatalog::built_in().find(name).is_some_and(|recipe| recipe.is_compaction())
}

impl ProgramArgs {
    fn options(self, output: OutputFormat) -> Result<HostOptions, CliError> {
        let is_stream = output == OutputFormat::StreamJson;
        let reads_stream = self.input_format == InputFormat::StreamJson;
        for (is_given, option) in [
            (reads_stream, "--input-format stream-json"),
            (self.include_partial_messages, "--include-partial-messages"),
        ] {
            if is_given && !is_stream {
                return Err(CliError::usage(format!("{option} needs --output stream-json")));
            }
        }
        if self.permission_prompt_tool.is_some() && !reads_stream {
            return Err(CliError::usage("--permission-prompt-tool stdio needs --input-format stream-json"));
        }
        let (system, appended) = (self.system_prompt, self.append_system_prompt);
        Ok(HostOptions {
            reads_stream,
            decides: self.permission_prompt_tool.is_some(),
            is_partial: self.include_partial_messages,
            schema: self.json_schema,
            instructions: instructions(system.unwrap_or_default(), appended.unwrap_or_default()),
            directories: self.add_dir,
            mcp_servers: self.mcp_config,
        })
    }
}

impl CompactArgs {
    pub fn request(self) -> Result<PromptRequest, CliError> {
        let mut request = self.options.request(Some("compact".to_owned()), self.focus)?;
        if self.dry_run {
            request.words.insert(0, "dry".to_owned());
            request.output = request.output.result();
        }
        Ok(request.on_newest())
    }
}

impl PromptOptions {
    fn request(self, recipe: Option<String>, words: Vec<String>) -> Result<PromptRequest, CliError> {
        let mut ids = self.resume.into_iter();
        let (session, notice) = match (ids.next(), self.follow) {
            (Some(id), follow) => {
                let notice = follow.then_some("--follow has no effect together with --resume");
                (SessionChoice::Named(id), notice)
            }
            (None, true) => (SessionChoice::Newest, None),
            (None, false) => (SessionChoice::New, None),
        };
        if ids.next().is_some() {
            return Err(CliError::usage("--resume was given twice: it takes one session"));
        }
        Ok(PromptRequest {
            words,
            attached: self.attach,
            recipe,
            session,
            overrides: self.overrides.into(),
            output: match self.output {
                None if self.json => OutputFormat::Jsonl,
                output => output.unwrap_or_default(),
            },
            plain: self.plain,
            cwd: self.cwd,
            stdin: true,
            standalone: self.standalone,
            notice,
            ..PromptRequest::default()
        })
    }
}

impl PromptRequest {
    /// Creates a command for the session with this id.
    pub fn command(session: String, name: &str, words: Vec<String>, json: bool) -> PromptRequest {
        PromptRequest {
            words,
            recipe: Some(name.to_owned()),
            session: SessionChoice::Named(session),
            output: if json { OutputFormat::Json } else { OutputFormat::Text },
            ..PromptRequest::default()
        }
    }

    /// Whether the prompt is a slash command as it was typed.
    pub fn is_slash(&self) -> bool {
        self.recipe.is_none() && self.words.first().is_some_and(|word| word.starts_with('/'))
    }

    /// Selects the newest session of the directory unless one is named.
    fn on_newest(mut self) -> PromptRequest {
        if self.session == SessionChoice::New {
            self.session = SessionChoice::Newest;
        }
        self
    }

    /// Whether this changes what the model sees of a session, for a user who reads the result.
    pub fn changes_history(&self) -> bool {
        let is_preview = self.words.first().is_some_and(|word| word == "dry");
        let is_change = matches!(self.recipe.as_deref(), Some("compact" | "undo" | "redo" | "rewind"));
        is_change && !is_preview && self.output == OutputFormat::Text
    }

    /// Returns the text of the prompt: the arguments, then stdin if it is not a terminal.
    pub fn prompt(&self) -> Result<String, CliError> {
        let stdin = io::stdin();
        let has_prompt = !self.words.is_empty() || self.recipe.is_some();
        let piped = match self.stdin && !stdin.is_terminal() {
            true => read_stdin(has_prompt)?,
            false => String::new(),
        };
        self.prompt_with(&piped)
    }

    fn prompt_with(&self, piped: &str) -> Result<String, CliError> {
        let words = self.words.join(" ");
        let parts = [words.trim(), piped.trim_end()];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.trim().is_empty()).collect();
        let prompt = parts.join("\n\n");
        match &self.recipe {
            Some(recipe) => Ok(format!("/{recipe} {prompt}").trim_end().to_owned()),
            None if prompt.is_empty() && self.program.reads_stream => Ok(prompt),
            None if prompt.is_empty() && self.attached.is_empty() => {
                Err(CliError::usage("there is no prompt: give it as an argument or on stdin"))
            }
            None => Ok(prompt),
        }
    }
}

/// Reads stdin to its end. A program that starts us may leave a pipe open and never write to it: with a prompt on the command
/// line, such a pipe is not waited for, and otherwise the user is informed of the wait.
fn read_stdin(has_prompt: bool) -> Result<String, CliError> {
    let (began, begins) = mpsc::sync_channel(1);
    let (sender, receiver) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        // An error is met again below.
        drop(began.send(stdin.fill_buf().map(|_| ())));
        let mut bytes = Vec::new();
        let read = stdin.take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
        drop(sender.send(read.map(|_| bytes)));
    });
    if has_prompt && begins.recv_timeout(STDIN_SILENCE).is_err() {
        note!(
            "epitome: nothing came from stdin for a second; continuing without it (to send it, give the prompt on stdin as well)"
        );
        return Ok(String::new());
    }
    let read = receiver.recv_timeout(STDIN_SILENCE).or_else(|_| {
        note!("epitome: waiting for the end of stdin (redirect it from /dev/null if it has no input)");
        receiver.recv()
    });
    let bytes = read
        .unwrap_or_else(|_| Err(io::Error::other("the reading thread ended")))
        .context("stdin can't be read")?;
    if bytes.len() as u64 > STDIN_BYTES_MAX {
        let megabytes = STDIN_BYTES_MAX / (1024 * 1024);
        return Err(CliError::failed(format!("stdin has more than {megabytes} MiB"))
            .hint("put it into a file and mention the file in the prompt"));
    }
    String::from_utf8(bytes).map_err(|_| {
        CliError::failed("stdin is not UTF-8 text")
            .hint("put it into a file and mention the file in the prompt")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::{parsed, usage_error};
    use crate::cli::{Cli, CliCommand};
    use crate::config::{CompactionThreshold, HookTrust, Settings};

    fn request(line: &[&str]) -> PromptRequest {
        let request = match parsed(line) {
            Cli { command: CliCommand::Run(args) } => args.request(),
            Cli { command: CliCommand::Compact(args) } => args.request(),
            other => panic!("not a prompt: {other:?}"),
        };
        request.expect("good arguments")
    }

    fn prompt(request: &PromptRequest) -> String {
        request.prompt_with("").expect("a prompt")
    }

    #[test]
    fn a_recipe_run_sends_what_a_user_would_type() {
        let by_name = request(&["run", "-r", "compact", "keep", "the plan"]);
        assert_eq!(by_name.session, SessionChoice::Newest, "a new session has nothing to compact");
        assert_eq!(prompt(&by_name), "/compact keep the plan");
        assert_eq!(prompt(&request(&["run", "-r", "/compact"])), "/compact");
    }

    #[test]
    fn stdin_follows_the_prompt() {
        let explain = request(&["run", "explain", "this"]);
        assert_eq!(explain.prompt_with("a\nb\n").expect("a prompt"), "explain this\n\na\nb");
        let empty = request(&["run"]);
        assert_eq!(empty.prompt_with("only this\n").expect("a prompt"), "only this");
        assert_eq!(empty.prompt_with(" \n").expect_err("nothing was said").code, 2);
    }

    #[test]
    fn files_may_be_all_that_is_sent() {
        let request = request(&["run", "--image", "a.png", "--attach", "b.pdf"]);
        assert_eq!(request.attached, [PathBuf::from("a.png"), PathBuf::from("b.pdf")]);
        assert_eq!(prompt(&request), "");
    }

    #[test]
    fn a_named_session_takes_precedence_over_follow() {
        for option in ["--resume", "--conversation-id", "-c"] {
            let named = request(&["run", option, "s_1", "x"]);
            assert_eq!(
                (named.session, named.notice),
                (SessionChoice::Named("s_1".to_owned()), None),
                "{option}"
            );
            let both = request(&["run", "--follow", option, "s_1", "x"]);
            assert_eq!(both.session, SessionChoice::Named("s_1".to_owned()), "{option}");
            assert!(both.notice.is_some_and(|notice| notice.contains("--follow")), "{option}");
        }
        let CliCommand::Run(twice) = parsed(&["run", "--resume", "s_1", "-c", "s_2", "x"]).command else {
            panic!("it is a run");
        };
        assert!(twice.request().is_err_and(|error| error.message.contains("twice")));
    }

    #[test]
    fn overrides_apply_to_the_settings() {
        let options = ["--no-hooks", "--trust-hooks", "--disable-auto-compact", "--compact-ratio", "0.7"];
        let line = [&["run"], &options[..], &["x"]].concat();
        let settings = request(&line).overrides.over(Settings::default());
        assert!(!settings.hooks.enabled && !settings.compaction.auto);
        assert_eq!(settings.hooks.trust, HookTrust::Run);
        assert_eq!(settings.compaction.threshold, CompactionThreshold::Ratio(0.7));
        let dirs = request(&["run", "--recipe-dir", "a", "--fragment-dirs", "b,c", "x"]).overrides;
        assert_eq!(dirs.recipe_dirs, ["a", "b", "c"].map(PathBuf::from));
        let untouched = request(&["run", "x"]).overrides.over(Settings::default());
        assert_eq!(untouched, Settings::default());
    }

    #[test]
    fn a_script_allows_what_it_needs_and_no_more() {
        let line = [
            "run",
            "--allow",
            "bash(cargo test *)",
            "--allow",
            "Edit",
            "--thought",
            "low",
            "--max-rounds",
            "9",
            "x",
        ];
        let settings = request(&line).overrides.over(Settings::default());
        let rules: Vec<String> = settings.permissions.iter().map(ToString::to_string).collect();
        assert_eq!(rules, ["allow bash(cargo test *)", "allow Edit"]);
        assert_eq!((settings.thought.id(), settings.max_rounds), ("low", 9));
        usage_error(&["run", "--allow", "bsh(ls)", "x"], "did you mean \"bash\"?");
        usage_error(&["run", "--allow", "Foo", "x"], "there is no tool \"Foo\"");
        usage_error(&["run", "--max-rounds", "0", "x"], "--max-rounds");
        usage_error(&["run", "--thought", "lots", "x"], "off, low, medium, high, max");
    }

    #[test]
    fn json_is_the_same_as_output_jsonl() {
        for (option, output) in [
            (&["--json"][..], OutputFormat::Jsonl),
            (&["--output", "jsonl"], OutputFormat::Jsonl),
            (&["--output", "json"], OutputFormat::Json),
            (&["--output", "text"], OutputFormat::Text),
        ] {
            assert_eq!(request(&[&["run"], option, &["x"]].concat()).output, output, "{option:?}");
        }
        usage_error(&["run", "--json", "--output", "text", "x"], "cannot be used with");
        let elsewhere = request(&["run", "--cwd", "/w", "--plain", "x"]);
        assert_eq!((elsewhere.cwd.as_deref(), elsewhere.plain), (Some(std::path::Path::new("/w")), true));
    }

    #[test]
    fn compact_runs_its_recipe_on_the_newest_or_a_named_session() {
        let newest = request(&["compact", "the", "parser"]);
        assert_eq!(
            (&newest.session, prompt(&newest).as_str()),
            (&SessionChoice::Newest, "/compact the parser")
        );
        assert_eq!(request(&["compact", "-c", "s_1"]).session, SessionChoice::Named("s_1".to_owned()));
        usage_error(&["compact", "-r", "review"], "unexpected argument '-r'");
    }

    #[test]
    fn a_dry_run_is_compact_dry_with_one_result() {
        let dry = request(&["compact", "--dry-run", "--json", "above", "e4"]);
        assert_eq!(prompt(&dry), "/compact dry above e4");
        assert_eq!(dry.output, OutputFormat::Json);
        assert_eq!(request(&["compact", "--json"]).output, OutputFormat::Jsonl);
        usage_error(&["run", "--dry-run", "x"], "--dry-run");
    }

    #[test]
    fn errors_name_the_option_and_what_it_takes() {
        usage_error(&["run", "--compact-ratio", "80", "x"], "a number from 0 to 1");
        usage_error(&["run", "--mode", "wild", "x"], "ask, accept_edits, auto, read_only, full");
        usage_error(&["run", "--model", "nonsense", "x"], "`epitome models` lists them");
        // Regression: a user who typed a part of a name, as in `/model opus`, was not given the names.
        usage_error(&["run", "--model", "Opus", "x"], "anthropic/claude-opus-5-5, anthropic/claude-opus-5,");
        usage_error(&["run", "--colour", "x"], "--colour");
        usage_error(&["run", "--resume"], "--resume");
    }
}

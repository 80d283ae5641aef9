//! `epitome-compact`: compacts a conversation of any coding agent into one message.

#[cfg(feature = "stored")]
mod store;

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use serde_json::json;

use epitome_compact::{
    AgentTranscript, CompactError, CompactOptions, CompactedTranscript, TOKENS_MIN, compact,
};
use epitome_thread::problem::Problem;
use epitome_transfer::ImportSource;

/// Texts of the repository that each message keeps, relative to a directory of it.
const PINS: &str = ".epitome/pins.md";

/// Compact a conversation of any coding agent into one message
///
/// Reads a session file or the messages of a request, calls no model, and stores nothing. The message contains what the user
/// said word for word, the plan, the files and the commands. A message of Epitome in the conversation is recognized and made
/// anew, not quoted.
#[derive(Parser)]
#[command(
    name = "epitome compact",
    bin_name = "epitome compact",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  epitome compact --from claude-code session.jsonl
  epitome compact --from openai --to messages --keep 4 < request.json

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing is gained, so that the conversation should stay as it is."
)]
struct CompactCli {
    /// The agent or the format that the conversation is from
    #[arg(long, value_enum, default_value = "auto", value_name = "FORMAT")]
    from: SourceFormat,
    /// What to print: the message alone, or what an agent takes
    #[arg(long, value_enum, default_value = "message", value_name = "FORMAT")]
    to: ResultFormat,
    /// Limit for the message, in tokens. With this option, there is a message even if little is gained
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(TOKENS_MIN..))]
    max_tokens: Option<u64>,
    /// Leave the newest messages as they are
    #[arg(long, value_name = "MESSAGES", default_value_t = 0, conflicts_with = "before")]
    keep: usize,
    /// Compact what precedes this entry: its id, or in a request the number of messages before it
    #[arg(long, value_name = "ID")]
    before: Option<String>,
    /// Keep a text, or that of a file, word for word; can be repeated. That of the repository's .epitome/pins.md is always kept
    #[arg(long, value_name = "TEXT|@FILE")]
    pin: Vec<String>,
    /// Keep an instruction file; can be repeated
    #[arg(long, value_name = "FILE")]
    instructions: Vec<PathBuf>,
    /// What the user wants the message to keep in mind; it is quoted
    #[arg(long, value_name = "TEXT")]
    focus: Option<String>,
    /// Import the session into Epitome, or add what is new in it: what leaves the view can be searched there
    #[cfg_attr(feature = "stored", arg(long, requires = "file"))]
    #[cfg_attr(not(feature = "stored"), arg(skip))]
    store: bool,
    /// Store nothing, as without --store
    #[cfg_attr(feature = "stored", arg(long = "stateless", overrides_with = "store"))]
    #[cfg_attr(not(feature = "stored"), arg(long = "stateless"))]
    _stateless: bool,
    /// What the message says about finding what is no longer in view [default: cli with --store]
    #[arg(long, value_enum, value_name = "WAY")]
    recall: Option<RecallWay>,
    /// Directory of a conversation that names none
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Print sizes and counts instead of the message
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// The session file; stdin without one
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SourceFormat {
    Auto,
    ClaudeCode,
    Codex,
    Pi,
    Opencode,
    Gemini,
    Cline,
    Anthropic,
    Openai,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ResultFormat {
    /// The text of the message
    Message,
    /// The messages of a request from now on
    Messages,
    /// The result of pi's `session_before_compact`
    Pi,
    /// The result of `session.compact` in Claude Code
    ClaudeCode,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RecallWay {
    /// The tool `recall` of `epitome mcp serve`
    Mcp,
    /// The commands of Epitome
    Cli,
    /// Nothing
    None,
}

fn main() -> ExitCode {
    let cli = CompactCli::parse();
    match run(&cli) {
        Ok(text) => {
            let mut out = std::io::stdout().lock();
            match writeln!(out, "{text}").and_then(|()| out.flush()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            }
        }
        Err(error) => {
            eprintln!("epitome compact: {error}");
            ExitCode::from(match error {
                CompactError::Unreadable(_) => 1,
                CompactError::Usage(_) => 2,
                CompactError::NoGain(_) => 3,
            })
        }
    }
}

fn run(cli: &CompactCli) -> Result<String, CompactError> {
    let path = cli.file.as_deref().filter(|file| *file != Path::new("-"));
    let text = match path {
        Some(path) => read(path)?,
        None => {
            let mut bytes = Vec::new();
            let read = std::io::stdin().lock().read_to_end(&mut bytes);
            read.map_err(|error| unreadable(Path::new("stdin"), &error))?;
            text_of(Path::new("stdin"), bytes)
        }
    };
    let path = path.unwrap_or(Path::new("stdin"));
    let is_request = cli.from.is_request(path, &text)?;
    let here = std::env::current_dir().unwrap_or_default();
    let cwd = cli.cwd.as_deref().unwrap_or(&here);
    let folder = cli.file.as_deref().filter(|file| *file != Path::new("-")).and_then(Path::parent);
    let sibling = |name: &Path| folder.and_then(|folder| epitome_import::read_sibling(folder, name));
    let transcript = AgentTranscript {
        path,
        text: &text,
        cwd,
        is_request,
        read_sibling: &sibling,
        before: cli.before.as_deref(),
    };
    let focus = cli.focus.iter().map(|focus| Ok(format!("Asked for when this was compacted: {focus}")));
    let pins = cli.pin.iter().map(|pin| match pin.strip_prefix('@') {
        Some(file) => read(Path::new(file)),
        None => Ok(pin.clone()),
    });
    let instructions = cli.instructions.iter().map(|file| Ok((file.clone(), read(file)?)));
    if cli.recall.is_some_and(|way| way != RecallWay::None) && !cli.store {
        return Err(CompactError::Usage("--recall mcp and cli need --store".to_owned()));
    }
    #[cfg(feature = "stored")]
    let stored = if cli.store { Some(store::stored(path, is_request, cwd)?) } else { None };
    #[cfg(not(feature = "stored"))]
    let stored: Option<(String, Vec<String>)> = None;
    let (session, pinned) = stored.unzip();
    let pins = pins.chain(focus).chain(pins_of_repository(cwd).map(|file| read(&file)));
    let pins = pins.chain(pinned.into_iter().flatten().map(Ok));
    let recall = session.and_then(|session| match cli.recall {
        Some(RecallWay::Mcp) => Some(format!(
            "the tool `recall` of the MCP server `epitome` finds and reads them, with the session {session}"
        )),
        Some(RecallWay::Cli) | None => Some(format!(
            "`epitome sessions search WORDS` and `epitome sessions show {session}` find and show them"
        )),
        Some(RecallWay::None) => None,
    });
    let options = CompactOptions {
        max_tokens: cli.max_tokens,
        keep: cli.keep,
        pins: pins.collect::<Result<_, _>>()?,
        instructions: instructions.collect::<Result<_, _>>()?,
        recall,
    };
    let made = compact(&transcript, &options)?;
    if !cli.json {
        made.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    cli.printed(made)
}

impl CompactCli {
    fn printed(&self, made: CompactedTranscript) -> Result<String, CompactError> {
        let json = |value: serde_json::Value| Ok(value.to_string());
        if self.dry_run && !self.json {
            let CompactedTranscript {
                entries, tokens_before, tokens_after, quoted, shortened, left_out, ..
            } = made;
            return Ok(format!(
                "{entries} messages, replies and results: {tokens_before} → {tokens_after} tokens; of the user's \
                 messages {quoted} word for word, {shortened} shortened, {left_out} left out"
            ));
        }
        match self.to {
            ResultFormat::Messages => match &made.messages {
                Some(messages) if !self.json => json(json!(messages)),
                Some(_) => json(json!(made)),
                None => Err(CompactError::Usage(
                    "--to messages needs the messages of a request (--from anthropic or openai)".to_owned(),
                )),
            },
            _ if self.json => json(json!(CompactedTranscript { messages: None, ..made })),
            ResultFormat::Message => Ok(made.message),
            ResultFormat::Pi => json(json!({
                "summary": made.message,
                "tokensBefore": made.tokens_before,
                "estimatedTokensAfter": made.tokens_after,
                "details": { "compactor": "epitome", "digest": made.digest, "entries": made.entries },
            })),
            ResultFormat::ClaudeCode => json(json!({
                "messages": [{ "role": "user", "text": made.message, "toolUses": [] }],
                "tokensBefore": made.tokens_before,
                "tokensAfter": made.tokens_after,
            })),
        }
    }
}

impl SourceFormat {
    /// Whether the text is the messages of a request. An error if it is not in the requested format.
    fn is_request(self, path: &Path, text: &str) -> Result<bool, CompactError> {
        let found = epitome_import::detect(text);
        let wanted = match self {
            SourceFormat::Auto => return Ok(found == Some(ImportSource::Messages)),
            SourceFormat::Anthropic | SourceFormat::Openai => return Ok(true),
            SourceFormat::ClaudeCode => ImportSource::ClaudeCode,
            SourceFormat::Codex => ImportSource::Codex,
            SourceFormat::Pi => ImportSource::Pi,
            SourceFormat::Opencode => ImportSource::Opencode,
            SourceFormat::Gemini => ImportSource::Gemini,
            SourceFormat::Cline => ImportSource::Cline,
        };
        match found.filter(|found| *found != wanted) {
            Some(found) => {
                let message = format!("this is {}, not {}", found.words(), wanted.words());
                Err(CompactError::Unreadable(Problem::new(path, message)))
            }
            None => Ok(false),
        }
    }
}

/// The file `.epitome/pins.md` of the directory, or of the nearest one above it in its repository. A link is not followed, since it
/// may lead out of the repository.
fn pins_of_repository(cwd: &Path) -> Option<PathBuf> {
    let depth = cwd.ancestors().position(|directory| directory.join(".git").exists()).unwrap_or(0);
    let mut files = cwd.ancestors().take(depth + 1).map(|directory| directory.join(PINS));
    files.find(|file| file.symlink_metadata().is_ok_and(|file| file.is_file()))
}

fn read(path: &Path) -> Result<String, CompactError> {
    let bytes = std::fs::read(path).map_err(|error| unreadable(path, &error))?;
    Ok(text_of(path, bytes))
}

/// The text of a file or of stdin, in which bytes that are not UTF-8 are replaced. A note on stderr says so.
fn text_of(path: &Path, bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        eprintln!("note: {}: bytes that are not UTF-8 are replaced", path.display());
        String::from_utf8_lossy(error.as_bytes()).into_owned()
    })
}

fn unreadable(path: &Path, error: &std::io::Error) -> CompactError {
    CompactError::Unreadable(Problem::unreadable(path, error))
}

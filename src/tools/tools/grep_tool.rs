//! `grep_tool`: finds lines by a regular expression, with ripgrep's libraries. Skips binary files, files
//! matched by `.gitignore` and files that usually contain secrets.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use serde_json::Value;

use epitome_thread::titles::name_in_title;
use epitome_thread::{CallDisplay, Location, ToolKind, ToolSpec};

use super::disk::CancelFlag;
use super::schema::{self, InputKey};
use super::secret_paths::is_secret_name;
use super::walk::{self, Ignored, PathPattern};
use super::{
    Access, BoxFuture, ParsedTool, ToolContext, ToolError, ToolResult, Workspace, disk, input, truncate,
};

/// Default maximum number of matching lines.
pub const RESULTS: u64 = 100;

/// Maximum number of matching lines that the model may request.
pub const RESULTS_MAX: u64 = 1_000;

/// Maximum number of context lines that the model may request.
pub const SURROUND_MAX: u64 = 20;

/// Maximum bytes displayed per line, around the match, so that results for minified files stay small.
const LINE_BYTES_MAX: usize = 400;

/// Maximum bytes of one line that a search keeps in memory.
const HEAP_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Maximum size in bytes of a compiled pattern; nested repetitions could otherwise grow without limit.
const PATTERN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum size in bytes of the lazy DFA's cache. Beyond it, matching gets slower.
const PATTERN_CACHE_BYTES_MAX: usize = 64 * 1024 * 1024;

pub struct GrepTool;

impl ParsedTool for GrepTool {
    type Call = GrepCall;

    fn spec(&self) -> ToolSpec {
        let description = format!(
            "Searches the lines of files for a regular expression (Rust syntax, no look-around) and lists \
             them by file with their numbers. At most {RESULTS} matching lines unless max_results says \
             otherwise (up to {RESULTS_MAX}). Leaves out binary files, what .gitignore names and files with \
             secrets."
        );
        let surround = format!("Lines to show before and after each match, up to {SURROUND_MAX}.");
        schema::spec(
            "grep_tool",
            description,
            [
                InputKey::text("pattern", "The regular expression, for one line.").required(),
                InputKey::text(
                    "path",
                    "The directory or file to search; the workspace's directory if left out.",
                ),
                InputKey::text(
                    "include",
                    "A glob that files must match, such as `*.rs` or `src/**/*.{ts,tsx}`.",
                ),
                InputKey::flag("ignore_case", "Ignore case."),
                InputKey::flag("fixed_strings", "Take the pattern literally, not as a regular expression."),
                InputKey::number("surround_lines", &surround),
                InputKey::number("max_results", "The most matching lines to list."),
            ],
        )
    }

    fn display(&self, input: &Value, workspace: &Workspace) -> CallDisplay {
        let kind = ToolKind::Search;
        let Ok(call) = self.parse(input, workspace) else {
            return CallDisplay { title: "Search in files".to_string(), kind, locations: Vec::new() };
        };
        let pattern = truncate::line(&call.pattern, LINE_BYTES_MAX);
        let mut title = format!("Search for {}", name_in_title(kind, &pattern));
        if call.root != workspace.cwd {
            title.push_str(&format!(" in {}", workspace.describe(&call.root, kind)));
        }
        if let Some(include) = &call.include {
            title.push_str(&format!(" ({})", name_in_title(kind, include)));
        }
        // Editors show a location in place of the title, and can't open a directory.
        let file = Some(workspace.target(&call.root)).filter(|path| path.is_file());
        let locations = file.into_iter().map(|path| Location { path, line: None }).collect();
        CallDisplay { title, kind, locations }
    }

    fn parse(&self, input: &Value, workspace: &Workspace) -> Result<GrepCall, ToolError> {
        let pattern = input::text(input, "pattern")?;
        if pattern.is_empty() {
            return Err(ToolError::new(
                "`pattern` is empty. Give the text or regular expression to look for.",
            ));
        }
        let path = input::optional_named(input, "path")?;
        let results = input::whole(input, "max_results")?.filter(|results| *results > 0);
        Ok(GrepCall {
            pattern,
            root: workspace.resolve(path.as_deref().unwrap_or(".")),
            include: input::optional_named(input, "include")?,
            ignore_case: input::flag(input, "ignore_case")?,
            fixed: input::flag(input, "fixed_strings")?,
            surround: input::whole(input, "surround_lines")?.unwrap_or(0).min(SURROUND_MAX) as usize,
            results: results.unwrap_or(RESULTS).min(RESULTS_MAX),
        })
    }

    fn access(&self, call: GrepCall, _: &Workspace) -> Result<Access, ToolError> {
        call.matcher()?;
        call.files()?;
        Ok(Access::Read(vec![super::real_path(&call.root)]))
    }

    fn run(&self, call: GrepCall, context: ToolContext) -> BoxFuture<ToolResult> {
        disk::run(context, move |context, stop| search(&call, context, stop))
    }
}

pub struct GrepCall {
    pattern: String,
    root: PathBuf,
    include: Option<String>,
    ignore_case: bool,
    fixed: bool,
    surround: usize,
    results: u64,
}

impl GrepCall {
    fn matcher(&self) -> Result<RegexMatcher, ToolError> {
        RegexMatcherBuilder::new()
            .case_insensitive(self.ignore_case)
            .fixed_strings(self.fixed)
            .line_terminator(Some(b'\n'))
            .size_limit(PATTERN_BYTES_MAX)
            .dfa_size_limit(PATTERN_CACHE_BYTES_MAX)
            .build(&self.pattern)
            .map_err(|error| {
                let advice = if self.pattern.contains('\n') || self.pattern.contains("\\n") {
                    "Matches can't span lines; search for a part within one line."
                } else {
                    "Put a backslash before characters that are meant literally ( ( ) [ ] { } . * + ? | ), or \
                     set fixed_strings to true. Look-around and back-references are not supported."
                };
                let text = format!("`pattern` is not a regular expression that can be searched for: {error}\n{advice}");
                ToolError::caused(text, error)
            })
    }

    fn files(&self) -> Result<Option<PathPattern>, ToolError> {
        let Some(include) = &self.include else { return Ok(None) };
        // Models write comma-separated lists; commas have another meaning only within braces.
        let patterns: Vec<&str> = match include.contains('{') {
            true => vec![include.trim()],
            false => include.split(',').map(str::trim).filter(|pattern| !pattern.is_empty()).collect(),
        };
        PathPattern::new(&patterns).map(Some)
    }
}

fn search(call: &GrepCall, context: &ToolContext, stop: &CancelFlag) -> Result<ToolResult, ToolError> {
    let (workspace, hidden) = (&*context.workspace, &*context.hidden);
    let matcher = call.matcher()?;
    let include = call.files()?;
    let root = context.permitted_path(&call.root)?;
    let trouble = |error: io::Error| disk::trouble("search", &call.root, workspace, error);
    let metadata = workspace.roots().entry(&root).and_then(|entry| entry.metadata()).map_err(trouble)?;
    let mut searcher = SearcherBuilder::new()
        .line_number(true)
        .before_context(call.surround)
        .after_context(call.surround)
        .binary_detection(BinaryDetection::quit(0))
        .heap_limit(Some(HEAP_BYTES_MAX))
        .build();
    let mut found = GrepMatches { results: call.results, ..GrepMatches::default() };
    let mut end = walk::WalkEnd::Complete;
    if metadata.is_dir() {
        let secrets = workspace.secrets().below(&root);
        let walked = walk::files(&root, workspace.roots(), Ignored::LeftOut, stop, |file| {
            let (path, relative) = (file.path, file.relative);
            if include.as_ref().is_some_and(|include| !include.matches(relative)) {
                return true;
            }
            if is_secret_name(path) || secrets.contain(path) {
                found.secrets += 1;
                return true;
            }
            if hidden.hides(path) {
                found.hidden += 1;
                return true;
            }
            let name = workspace.display(&call.root.join(relative));
            let opened = file.open().map_err(|error| disk::trouble("search", path, workspace, error));
            found.search(&mut searcher, &matcher, opened, name, stop);
            found.full.is_none()
        });
        end = walked.map_err(trouble)?;
    } else {
        // A file that is named explicitly is searched even if it is ignored or secret.
        let opened = disk::open(&root, workspace).map(|(file, _)| file);
        found.search(&mut searcher, &matcher, opened, workspace.display(&call.root), stop);
        if let Some(error) = found.trouble.as_ref().filter(|_| found.matches == 0) {
            return Err(error.clone());
        }
    }
    let text = found.text(call, workspace, end.note());
    Ok(ToolResult::with_file_text(text))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum GrepLimit {
    Results,
    Bytes,
}

#[derive(Default)]
struct GrepMatches {
    text: String,
    matches: u64,
    results: u64,
    full: Option<GrepLimit>,
    secrets: u64,
    /// Number of files skipped because of the user's permission rules.
    hidden: u64,
    unreadable: u64,
    /// The error for the first unreadable file.
    trouble: Option<ToolError>,
}

impl GrepMatches {
    fn search(
        &mut self,
        searcher: &mut Searcher,
        matcher: &RegexMatcher,
        opened: Result<File, ToolError>,
        name: String,
        stop: &CancelFlag,
    ) {
        let file = match opened {
            Ok(file) => disk::Stoppable { file, stop },
            Err(error) => return self.unreadable(error),
        };
        let mut sink = FileSink { found: self, matcher, name: name.clone(), headed: false };
        let searched = searcher.search_reader(matcher, file, &mut sink);
        if let Err(error) = searched {
            self.unreadable(ToolError::caused(format!("Cannot search {name}: {error}."), error));
        }
    }

    fn unreadable(&mut self, error: ToolError) {
        self.unreadable += 1;
        self.trouble.get_or_insert(error);
    }

    fn text(mut self, call: &GrepCall, workspace: &Workspace, walk_note: Option<String>) -> String {
        if self.matches == 0 {
            let place = workspace.display(&call.root);
            let include = call.include.as_ref().map(|include| format!(" ({include})")).unwrap_or_default();
            self.text = format!("No line in {place}{include} matches `{}`.\n", call.pattern);
        }
        let mut notes: Vec<String> = Vec::new();
        match self.full {
            Some(GrepLimit::Results) => notes.push(format!(
                "[the first {} matching lines; there are more: narrow pattern, path or include, or raise max_results]",
                self.matches
            )),
            Some(GrepLimit::Bytes) => notes.push(format!(
                "[cut at {} bytes after {} matching lines; there may be more: narrow pattern, path or include]",
                truncate::OUTPUT_BYTES_MAX,
                self.matches
            )),
            None => {}
        }
        if self.secrets > 0 {
            notes.push(format!("[{} files that are likely to hold secrets were not searched]", self.secrets));
        }
        if self.hidden > 0 {
            notes.push(format!("[{} files were not searched, because of a permission rule]", self.hidden));
        }
        if let Some(first) = &self.trouble {
            notes.push(format!("[{} files could not be searched; the first: {first}]", self.unreadable));
        }
        notes.extend(walk_note);
        self.text.push_str(&notes.join("\n"));
        self.text.trim_end().to_string()
    }
}

struct FileSink<'a> {
    found: &'a mut GrepMatches,
    matcher: &'a RegexMatcher,
    name: String,
    headed: bool,
}

impl FileSink<'_> {
    /// Lists a line, if it is too long the part at `shown`.
    fn line(&mut self, number: Option<u64>, mark: char, bytes: &[u8], shown: usize) -> bool {
        if self.found.text.len() >= truncate::OUTPUT_BYTES_MAX {
            self.found.full = Some(GrepLimit::Bytes);
            return false;
        }
        if !self.headed {
            self.headed = true;
            let gap = if self.found.text.is_empty() { "" } else { "\n" };
            self.found.text.push_str(&format!("{gap}{}\n", self.name));
        }
        let at = String::from_utf8_lossy(&bytes[..shown]).len();
        let text = String::from_utf8_lossy(bytes);
        let text = truncate::line_at(text.trim_end_matches(['\n', '\r']), at, LINE_BYTES_MAX);
        self.found.text.push_str(&format!("{}{mark} {text}\n", number.unwrap_or_default()));
        true
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        if self.found.matches >= self.found.results {
            self.found.full = Some(GrepLimit::Results);
            return Ok(false);
        }
        let start = self.matcher.find(found.bytes()).ok().flatten().map_or(0, |found| found.start());
        if !self.line(found.line_number(), ':', found.bytes(), start) {
            return Ok(false);
        }
        self.found.matches += 1;
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.line(context.line_number(), '-', context.bytes(), 0))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.found.text.push_str("--\n");
        Ok(true)
    }
}

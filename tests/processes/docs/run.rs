//! Runs the blocks of one page, in order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use epitome::config::{McpServer, McpSource, Settings};
use epitome::hooks::claude;
use epitome::hooks::event::HookEvent;
use epitome::hooks::functions::Functions;
use epitome::hooks::handlers;
use epitome::hooks::hook::HookOrigin;
use epitome::hooks::manifest::{self, Given, ManifestSyntax, ParsedManifest};
use epitome::hooks::normalise::normalise;
use epitome::hooks::output::{HookOutput, ProcessExit, RawOutcome};
use epitome::hooks::process::{self, HookProgram, ProcessSpec};
use epitome::hooks::read::{ParsedStdout, read};
use epitome::problem::Problem;
use epitome::recipe::agents;
use epitome::recipe::catalog::RecipeCatalog;
use epitome::recipe::parse::RecipeSource;
use epitome::tools::reaper::Reaper;
use serde_json::{Map, Value};

use super::home::Home;
use super::page::{Block, blocks};
use super::sample;

/// State after the preceding blocks of a page.
struct Reader {
    home: Home,
    /// The hook of the last `stdin` block, its event and its output.
    printed: Option<(String, HookEvent, Vec<u8>)>,
    /// Problems reported for the last settings.
    reported: Vec<String>,
    faults: Vec<String>,
    /// Line and new text of blocks that differ from the actual output.
    renewed: Vec<(usize, String)>,
}

/// Runs all blocks of a page and reports all faults together.
pub fn page(path: &Path) {
    page_with(path, &[]);
}

/// Runs all blocks of a page, with additional environment variables for console blocks.
pub fn page_with(path: &Path, environment: &[(&str, String)]) {
    let content = super::text(path);
    let blocks = blocks(&content);
    let mut reader = Reader {
        home: Home::with(environment),
        printed: None,
        reported: Vec::new(),
        faults: Vec::new(),
        renewed: Vec::new(),
    };
    for block in &blocks {
        let before = reader.faults.len();
        let file = reader.home.install(block);
        reader.block(block, file.as_deref());
        for fault in &mut reader.faults[before..] {
            *fault = format!("{}:{}: {fault}", path.display(), block.line);
        }
    }
    if std::env::var_os("UPDATE").is_some() {
        update(path, &content, &reader.renewed);
    }
    assert!(reader.faults.is_empty(), "{}", reader.faults.join("\n\n"));
}

/// Replaces the texts of blocks, the last one first so that line numbers stay valid.
fn update(path: &Path, content: &str, renewed: &[(usize, String)]) {
    let mut lines: Vec<String> = content.lines().map(str::to_owned).collect();
    for (line, text) in renewed.iter().rev() {
        let from = line - 1;
        let length = lines[from..].iter().take_while(|line| !line.starts_with("```")).count();
        lines.splice(from..from + length, text.lines().map(str::to_owned));
    }
    std::fs::write(path, lines.join("\n") + "\n").expect("the page is ours");
}

impl Reader {
    fn block(&mut self, block: &Block, file: Option<&Path>) {
        let says = |name: &str| block.get(name);
        match block.language.as_str() {
            "sh" if says("hook").is_some() => self.installed(file.expect("it was put somewhere")),
            "yaml" if says("declarative").is_some() => {
                let file = file.expect("it was put somewhere");
                drop(self.declared(manifest::read_file(
                    file,
                    &block.text,
                    ManifestSyntax::Yaml,
                    given("docs"),
                )));
            }
            "json" if says("manifest").is_some() => {
                drop(self.declared(manifest::read_answer(Path::new("docs"), &block.text, given("docs"))));
            }
            "json" if says("payload").is_some() => self.payload(block),
            "json" if says("stdin").is_some() => self.stdin(block),
            "json" if says("stdout").is_some() => self.stdout(block),
            "json" if says("result").is_some() => self.result(block),
            "json" if says("settings").is_some() => self.settings(block),
            "json" if says("mcp").is_some() => self.mcp(&block.text),
            "text" if says("problems").is_some() => self.expect(block, &self.reported.join("\n")),
            "text" if says("protocol").is_some() => self.protocol(block),
            "text" => {}
            "markdown" | "toml"
                if ["recipe", "command", "skill", "gemini"].iter().any(|name| says(name).is_some()) =>
            {
                self.recipe(file.expect("it was put somewhere"));
            }
            "markdown" if says("agent").is_some() => self.agent(&block.text),
            "toml" if says("config").is_some() => self.config(),
            "console" => self.console(block),
            other => self.faults.push(format!("no test runs a block of this kind: {other:?}")),
        }
    }

    fn report(&mut self, problems: &[Problem]) {
        self.faults.extend(problems.iter().map(Problem::to_string));
    }

    fn declared(&mut self, declared: Result<ParsedManifest, Problem>) -> Option<ParsedManifest> {
        match declared {
            Ok(declared) => {
                self.report(&declared.notes);
                Some(declared)
            }
            Err(problem) => {
                self.report(&[problem]);
                None
            }
        }
    }

    // ── Scripts ────────────────────────────────────────────────────────────────────────────────

    fn hook(&mut self, file: &Path) -> Option<ParsedManifest> {
        let answer = self.ran(file, "hook", "");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        self.declared(manifest::read_answer(file, &answer, given("docs")))
    }

    /// Installs a hook and runs it at each of its events. The hook of a guide ended with an error at every call.
    fn installed(&mut self, file: &Path) {
        let Some(declared) = self.hook(file) else { return };
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (event, _) in &declared.events {
            let payload = sample::of(*event, &name, declared.manifest.messages);
            self.ran(file, "run", &format!("{payload}\n"));
        }
    }

    /// The stdout of a script. A nonzero exit status is a fault.
    fn ran(&mut self, file: &Path, argument: &str, stdin: &str) -> Vec<u8> {
        let order = ProcessSpec {
            program: HookProgram::File { path: file.to_path_buf(), arguments: vec![argument.into()] },
            stdin: stdin.as_bytes().to_vec(),
            cwd: self.home.app(),
            environment: Arc::new(self.home.environment()),
            more: Vec::new(),
            limit: Duration::from_secs(30),
            reaper: Arc::new(Reaper::disabled()),
            sandbox: None,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let ran = runtime.expect("a runtime").block_on(process::run(order));
        match ran {
            Ok(RawOutcome::Ended { exit: ProcessExit::Code(0), stdout, .. }) => stdout,
            other => {
                self.faults.push(format!("called with {argument} it ended otherwise: {other:?}"));
                Vec::new()
            }
        }
    }

    fn stdin(&mut self, block: &Block) {
        let name = block.get("stdin").expect("the block is one of these").to_owned();
        let folders = [self.home.app(), self.home.paths().home.join("..")];
        let file = folders.iter().map(|folder| folder.join(".epitome/hooks").join(&name));
        let Some(file) = file.into_iter().find(|file| file.exists()) else {
            return self.faults.push(format!("no block is the hook {name}"));
        };
        let Some(declared) = self.hook(&file) else { return };
        let events = declared.events.iter().map(|(event, _)| *event);
        let shown = self.object(&block.text);
        let wanted = shown.get("canonical_event").and_then(Value::as_str).and_then(HookEvent::parse);
        let event = wanted.or(events.into_iter().next()).expect("a hook has an event");
        let mut payload = sample::of(event, &name, declared.manifest.messages);
        for (field, value) in shown {
            // A page must not show fields that occur in no payload.
            if payload.get(&field).is_none() {
                self.faults.push(format!("no payload of {event} has {field:?}"));
            }
            payload[field] = value;
        }
        let stdout = self.ran(&file, "run", &format!("{payload}\n"));
        self.printed = Some((name, event, stdout));
    }

    fn stdout(&mut self, block: &Block) {
        let name = block.get("stdout").expect("the block is one of these");
        let Some((_, event, printed)) = self.printed.take_if(|(hook, ..)| hook == name) else {
            return self.faults.push(format!("{name} was given nothing"));
        };
        match read(&printed) {
            ParsedStdout::Nothing => self.expect(block, ""),
            ParsedStdout::Object { object, warnings } => {
                let output = normalise(event, &object);
                self.faults.extend(warnings.into_iter().chain(output.warnings));
                self.expect(block, &Value::Object(object).to_string());
            }
            ParsedStdout::Invalid(why) => self.faults.push(why),
        }
    }

    // ── Payloads and results ───────────────────────────────────────────────────────────────────

    fn payload(&mut self, block: &Block) {
        let name = block.get("payload").expect("the block is one of these");
        let event = HookEvent::parse(name).unwrap_or_else(|| panic!("there is no event {name}"));
        let mut payload = sample::of(event, "no-force", None);
        let payload = payload.as_object_mut().expect("a payload is an object");
        if block.get("adds").is_some() {
            let base = sample::of(HookEvent::SessionStart, "no-force", None);
            payload.retain(|field, _| field == "source" || base.get(field).is_none());
        }
        if self.object(&block.text) != *payload {
            self.differs(block, &wrapped(payload));
        }
    }

    fn result(&mut self, block: &Block) {
        let name = block.get("result").expect("the block is one of these");
        let event = HookEvent::parse(name).unwrap_or_else(|| panic!("there is no event {name}"));
        let mut meanings: Vec<(String, HookOutput)> = Vec::new();
        for line in block.text.lines().filter(|line| !line.trim().is_empty()) {
            let output = normalise(event, &self.object(line));
            self.faults.extend(output.warnings.iter().map(|warning| format!("{line}: {warning}")));
            if block.get("nothing").is_none() && output == HookOutput::default() {
                self.faults.push(format!("{line}: it means nothing"));
            }
            meanings.push((line.to_owned(), output));
        }
        if block.get("same").is_some() {
            let odd = meanings.iter().filter(|(_, output)| *output != meanings[0].1);
            self.faults.extend(odd.map(|(line, _)| format!("{line}: it means something else")));
        }
    }

    fn object(&mut self, text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap_or_else(|error| {
            self.faults.push(format!("it is no JSON object: {error}"));
            Map::new()
        })
    }

    // ── Files ──────────────────────────────────────────────────────────────────────────────────

    fn settings(&mut self, block: &Block) {
        let app = self.home.app();
        let file = app.join(".claude/settings.json");
        let (hooks, problems) = claude::parse(&file, &block.text, HookOrigin::User, &app);
        if hooks.is_empty() {
            self.faults.push("there is no hook in it".to_owned());
        }
        self.reported = problems.iter().map(|problem| problem.message.clone()).collect();
        if block.get("reported").is_none() {
            self.report(&problems);
        }
    }

    /// The lines occur in the module that implements the protocol, whose tests run them.
    fn protocol(&mut self, block: &Block) {
        let source = super::text(&super::root().join("src/tools/hooks/resident.rs"));
        let strange = block.text.lines().filter(|line| !source.contains(&format!("//! {line}\n")));
        self.faults.extend(strange.map(|line| format!("the protocol has no such line: {line}")));
    }

    fn recipe(&mut self, file: &Path) {
        let catalog = RecipeCatalog::load(&self.home.app(), &self.home.paths(), &[]);
        self.report(&catalog.problems);
        let Some(recipe) = catalog.recipes.iter().find(|recipe| recipe.source.path() == file) else {
            return self.faults.push("it is not among the recipes".to_owned());
        };
        let functions = Functions::default();
        let none = Default::default();
        let (_, problems) = handlers::declared(&recipe.id, &recipe.hooks, &none, &functions, file);
        self.report(&problems);
    }

    fn agent(&mut self, text: &str) {
        match agents::parse(RecipeSource::User("docs".into()), text) {
            Ok((_, remarks)) => self.report(&remarks),
            Err(problem) => self.report(&[problem]),
        }
    }

    fn config(&mut self) {
        let (_, problems) = Settings::load(&self.home.paths(), None, |_| None);
        self.report(&problems);
    }

    fn mcp(&mut self, text: &str) {
        let repository = tempfile::tempdir().expect("a scratch directory");
        std::fs::write(repository.path().join(".mcp.json"), text).expect("a file");
        let (settings, problems) = Settings::load(&self.home.paths(), Some(repository.path()), |_| None);
        self.report(&problems);
        let of_repository = |server: &McpServer| server.from != McpSource::Person;
        if !settings.mcp.servers.iter().any(of_repository) {
            self.faults.push("no server of the repository's is read".to_owned());
        }
    }

    // ── Console ────────────────────────────────────────────────────────────────────────────────

    fn console(&mut self, block: &Block) {
        let mut came = String::new();
        for line in block.text.lines().filter_map(|line| line.strip_prefix("$ ")) {
            came += &format!("$ {line}\n{}", self.home.typed(line));
            // Output may end without a line break.
            if !came.ends_with('\n') {
                came.push('\n');
            }
        }
        let is_near = block.get("nearly").is_some()
            && near(&without_digests(block.text.trim_end()), &without_digests(came.trim_end()));
        if !is_near {
            self.expect(block, came.trim_end());
        }
    }

    /// Asserts that a block equals the output, where `…` matches anything.
    fn expect(&mut self, block: &Block, came: &str) {
        let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        let shown = lines(&block.text);
        let as_json = || serde_json::from_str::<Value>(&block.text).ok();
        let equal_json = as_json().is_some_and(|shown| serde_json::from_str(came).ok() == Some(shown));
        if !equal_json && !fits_lines(&shown, &lines(came)) {
            self.differs(block, came);
        }
    }

    fn differs(&mut self, block: &Block, came: &str) {
        self.faults.push(format!("the page says\n{}and it is\n{came}", block.text));
        self.renewed.push((block.line, came.to_owned()));
    }
}

fn given(name: &str) -> Given<'_> {
    Given { timeout: Duration::from_secs(30), overrides: None, name }
}

/// Maximum relative deviation of a number: token counts include the name of the scratch directory.
const NUMBER_OFF_MAX: f64 = 0.1;

/// Integers below this are counts and entry numbers, which have to be exact.
const COUNT_MAX: f64 = 100.0;

/// Whether two texts are equal except for small deviations of numbers.
fn near(shown: &str, came: &str) -> bool {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let parts = |text: &str| -> Vec<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut was_number = None;
        for c in text.chars() {
            if was_number.replace(is_number(c)) != Some(is_number(c)) {
                parts.push(String::new());
            }
            parts.last_mut().expect("one was begun").push(c);
        }
        parts
    };
    let is_near = |(shown, came): (&String, &String)| match (shown.parse::<f64>(), came.parse::<f64>()) {
        (Ok(one), Ok(other)) if one < COUNT_MAX && !shown.contains('.') => one == other,
        (Ok(one), Ok(other)) => (one - other).abs() <= NUMBER_OFF_MAX * one.max(other),
        (Ok(_), Err(_)) | (Err(_), Ok(_)) | (Err(_), Err(_)) => shown == came,
    };
    let (shown, came) = (parts(shown), parts(came));
    shown.len() == came.len() && shown.iter().zip(&came).all(is_near)
}

/// Removes the digests in brackets at the end of dry runs, which depend on the name of the scratch directory, and the ids of
/// sessions.
fn without_digests(text: &str) -> String {
    let digest = regex::Regex::new(r"\([0-9a-f]{12}\)|\bs_(?:[0-9a-z]+|…)").expect("a valid pattern");
    digest.replace_all(text, "").into_owned()
}

/// A line that is just `…` matches any lines.
fn fits_lines(shown: &[String], came: &[String]) -> bool {
    match shown.split_first() {
        None => came.is_empty(),
        Some((first, rest)) if first.trim() == "…" => {
            (0..=came.len()).any(|at| fits_lines(rest, &came[at..]))
        }
        Some((first, rest)) => {
            came.split_first().is_some_and(|(line, others)| fits(first, line) && fits_lines(rest, others))
        }
    }
}

/// `…` within a line matches any characters.
fn fits(shown: &str, came: &str) -> bool {
    match shown.split_once('…') {
        None => shown == came,
        Some((before, behind)) => came.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| fits(behind, &rest[at..]))
        }),
    }
}

/// Formats an object in lines of at most the page's width; longer fields are not split.
fn wrapped(object: &Map<String, Value>) -> String {
    const WIDTH: usize = 100;
    let mut lines = vec!["{".to_owned()];
    let mut fields = object.iter().peekable();
    while let Some((name, value)) = fields.next() {
        let end = if fields.peek().is_some() { "," } else { "}" };
        let field = format!("{name:?}: {value}{end}");
        let line = lines.last_mut().expect("there is a first line");
        match line.trim_start_matches('{').is_empty() {
            true => line.push_str(&field),
            false if line.chars().count() + 1 + field.chars().count() <= WIDTH => {
                line.push(' ');
                line.push_str(&field);
            }
            false => lines.push(format!(" {field}")),
        }
    }
    lines.join("\n")
}

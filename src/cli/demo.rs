//! `epitome demo`: a demonstration that needs no API key.
//!
//! It uses a real daemon, a real client over real pipes, and a real kill; only the model is scripted. Each step is
//! checked, so the demo also tests the installation. All files are in a scratch directory that is removed at the end.

mod client;
mod model;
mod screen;
mod story;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use epitome_client::{ContextUsage, PromptEnd, SessionRequest};

use super::scratch::{self, Scratch};
use super::terminal::Style;
use super::{CliContext as _, CliError, EXIT_CANCELLED, serve};
use crate::thread::{OutcomeStatus, SessionId, StopReason, text};
use client::DemoClient;
use epitome_platform::os::SYSTEM_VARIABLES;
use epitome_platform::signals::Interrupts;
use model::DemoModel;
use screen::Screen;

/// Length of the longest bar of the plot, in characters.
const BAR_CHARS: usize = 40;

/// Watch a demonstration; needs no API key
///
/// Runs a scripted model, a daemon and a client of its protocol in a scratch directory. The exit code is 1 if any step
/// went wrong.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Skip the pauses for reading
    #[arg(long)]
    fast: bool,
}

pub fn main(args: DemoArgs) -> Result<i32, CliError> {
    let style = Style::for_stdout();
    let began = Instant::now();
    let scratch = Scratch::new("demo").context("no scratch directory could be made")?;
    remove_on_interrupt(&scratch)?;
    let screen = Screen::new(style, style.is_terminal() && !args.fast);
    let mut demo = Demo::begin(&scratch, screen).map_err(|what| wrong("the start", &what))?;
    demo.introduction();
    for (step, perform) in STEPS {
        demo.screen.heading(step);
        perform(&mut demo).map_err(|what| wrong(step, &what))?;
    }
    let Demo { mut screen, .. } = demo;
    drop(scratch);
    next_steps(&mut screen, began);
    Ok(0)
}

fn wrong(step: &str, what: &str) -> CliError {
    CliError::failed(format!("the demo went wrong at \"{step}\": {what}"))
        .hint("this should not happen; please report it with the output above")
}

type DemoStep = fn(&mut Demo) -> Result<(), String>;

const STEPS: [(&str, DemoStep); 7] = [
    ("1. An editor starts the daemon and gives it a task", Demo::task),
    ("2. A fact is pinned, and a preview shows what a compaction would keep", Demo::preview),
    ("3. The conversation is compacted, and explains what happened to it", Demo::compact),
    ("4. Undo restores everything", Demo::undo),
    ("5. The daemon is killed in the middle of an answer", Demo::kill),
    ("6. A new daemon loads the same session", Demo::load),
    ("7. And continues", Demo::go_on),
];

/// The error of a step that runs without a daemon.
const NO_DAEMON: &str = "no daemon is running";

/// The state of the demo.
struct Demo {
    screen: Screen,
    model: DemoModel,
    workspace: PathBuf,
    environment: Vec<(String, OsString)>,
    program: PathBuf,
    /// `None` between the kill and the next start.
    client: Option<DemoClient>,
    session: SessionId,
    /// Tokens in context after each of these commands.
    measured: Vec<(&'static str, u64)>,
}

impl Demo {
    fn begin(scratch: &Scratch, screen: Screen) -> Result<Demo, String> {
        let cannot = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let workspace = scratch.path().join("greeter");
        let home = scratch.path().join("home");
        story::write_files(&workspace, &home)
            .map_err(|error| cannot("the files can't be written", &error))?;
        let model = DemoModel::start(story::MODEL_AT_SERVER, story::WINDOW, story::reply)
            .map_err(|error| cannot("the scripted model can't listen on loopback", &error))?;
        let program = std::env::current_exe()
            .map_err(|error| cannot("this program's own path is not known", &error))?;
        let mut environment: Vec<(String, OsString)> = vec![
            ("EPITOME_HOME".to_owned(), home.clone().into()),
            ("HOME".to_owned(), home.into()),
            ("EPITOME_MODEL".to_owned(), story::MODEL.into()),
            ("EPITOME_LOCAL_URL".to_owned(), model.url().into()),
            // Loopback connections must not use a proxy.
            ("NO_PROXY".to_owned(), "127.0.0.1".into()),
        ];
        let kept = ["PATH", "TMPDIR"].into_iter().chain(SYSTEM_VARIABLES.iter().copied());
        environment.extend(kept.filter_map(|name| Some((name.to_owned(), std::env::var_os(name)?))));
        let (session, measured) = (SessionId(String::new()), Vec::new());
        Ok(Demo { screen, model, workspace, environment, program, client: None, session, measured })
    }

    fn introduction(&mut self) {
        for line in [
            "epitome demo: the first minute, without a key",
            "",
            "  real      the daemon (a process of its own), the Agent Client Protocol over its pipes,",
            "            the tools, the files, the permission, the journal on disk, the kill",
            "  scripted  the model's replies: a mock server answers over HTTP on loopback",
            "            No model is called, and nothing leaves this machine. Prices are examples.",
        ] {
            self.screen.line(line);
        }
    }

    fn task(&mut self) -> Result<(), String> {
        let process = self.start()?;
        let request = self.opening();
        let (client, screen) = self.client()?;
        self.session = client.create(&request, screen)?;
        self.screen.narrate(&format!("daemon: process {process}, session {}", self.session));
        self.prompt(story::TASK)?;

        let seen = &self.screen.seen;
        let asked = &seen.permissions;
        expect(asked.len() == 2, || format!("two permissions were to be asked, not {asked:?}"))?;
        let all_done = seen.calls.len() == 6
            && seen.calls.iter().all(|(_, status)| *status == Some(OutcomeStatus::Completed));
        expect(all_done, || format!("six calls were to be completed, not {:?}", seen.calls))?;
        let script = std::fs::read_to_string(self.workspace.join(story::SCRIPT))
            .map_err(|error| format!("{} can't be read: {error}", story::SCRIPT))?;
        expect(script == story::SCRIPT_AFTER, || format!("{} was not edited: {script:?}", story::SCRIPT))?;
        self.measure("the task")
    }

    fn preview(&mut self) -> Result<(), String> {
        self.prompt(&format!("/pin {}", story::PINNED))?;
        let requests = self.model.requests();
        let end = self.prompt("/compact dry")?;
        self.screen.pause_to_read();
        let (before, after) = compacted(&end)?;
        expect(after * 2 < before, || format!("a compaction from {before} to {after} tokens was previewed"))?;
        expect(self.model.requests() == requests, || "the preview called the model".to_owned())
    }

    fn compact(&mut self) -> Result<(), String> {
        let end = self.prompt("/compact")?;
        self.measure("/compact")?;
        let (before, after) = self.last_two()?;
        expect(after < before, || format!("the context meter went from {before} to {after} tokens"))?;
        let (before, after) = compacted(&end)?;
        expect(after * 2 < before, || format!("the context went from {before} to {after} tokens only"))?;
        let entry = self.screen.seen.compaction.ok_or("the session has no entry of the compaction")?;
        self.prompt(&format!("/why {entry}"))?;
        self.screen.pause_to_read();
        let why = &self.screen.seen.text;
        expect(why.contains("quoted word for word"), || format!("/why {entry} explained {why:?}"))
    }

    fn undo(&mut self) -> Result<(), String> {
        self.prompt("/undo")?;
        self.measure("/undo")?;
        let (before, after) = self.last_two()?;
        expect(after > before, || format!("the context meter went from {before} to {after} tokens"))?;
        self.screen.narrate("\ntokens in context after");
        let most = self.measured.iter().map(|(_, tokens)| *tokens).max().unwrap_or(1).max(1);
        for (label, tokens) in &self.measured {
            let bar = "█".repeat((*tokens as usize * BAR_CHARS).div_ceil(most as usize));
            self.screen.line(&format!("  {label:<8}  {bar} {}", text::tokens(*tokens)));
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), String> {
        self.screen.typed(story::INTERRUPTED);
        let session = self.session.clone();
        let (client, screen) = self.client()?;
        client.send_prompt(&session, story::INTERRUPTED);
        client.watch(story::LAST_WORDS, screen)?;
        let client = self.client.take().ok_or(NO_DAEMON)?;
        let process = client.process();
        client.kill()?;
        self.screen.narrate(&format!("kill -9 {process}"));
        Ok(())
    }

    fn load(&mut self) -> Result<(), String> {
        let process = self.start()?;
        let calls_before = std::mem::take(&mut self.screen.seen).calls;
        let (request, session) = (self.opening(), self.session.clone());
        let (client, screen) = self.client()?;
        client.resume(&session, &request, screen)?;

        let seen = &self.screen.seen;
        expect(seen.calls == calls_before, || {
            format!("the calls came back as {:?} and were {calls_before:?}", seen.calls)
        })?;
        for prompt in [story::TASK, story::INTERRUPTED] {
            let is_there = seen.prompts.iter().any(|replayed| replayed == prompt);
            expect(is_there, || format!("the prompt {prompt:?} did not come back"))?;
        }
        let compaction = seen.text.find("Compacted").zip(seen.text.find("Undone"));
        let in_order = compaction.is_some_and(|(compacted, undone)| compacted < undone);
        expect(in_order, || format!("the compaction did not come back in its place: {:?}", seen.text))?;
        let interrupted = seen.text.find("Interrupted").map(|at| seen.text[at..].to_owned());
        let (prompts, calls) = (seen.prompts.len(), seen.calls.len());
        self.screen.narrate(&format!(
            "daemon: process {process}; it loaded {prompts} prompts, {calls} tool calls with their results,"
        ));
        self.screen.narrate("the compaction in its place, and where it was interrupted:");
        self.screen.line(&format!("agent ▸ {}", interrupted.unwrap_or_default()));
        self.screen.narrate("(At most the last second of a streaming answer is lost.)");
        Ok(())
    }

    fn go_on(&mut self) -> Result<(), String> {
        self.prompt(story::LAST)?;
        let text = &self.screen.seen.text;
        expect(text.contains(story::LAST_ANSWER), || format!("the last answer was {text:?}"))?;
        let sent = self.model.last_request().ok_or("the model was never asked")?.to_string();
        for (part, what) in
            [(story::TASK, "what was said before the kill"), (story::LOG_LINE, "what the undo restored")]
        {
            expect(sent.contains(part), || format!("the model was not sent {what}"))?;
        }
        self.client.take().ok_or(NO_DAEMON)?.close()
    }

    /// Starts a daemon, initializes the connection, and returns the process id.
    fn start(&mut self) -> Result<u32, String> {
        let client = DemoClient::start(&self.program, &self.workspace, &self.environment)?;
        let process = client.process();
        self.client = Some(client);
        Ok(process)
    }

    fn opening(&self) -> SessionRequest {
        SessionRequest { cwd: self.workspace.clone(), ..SessionRequest::default() }
    }

    fn client(&mut self) -> Result<(&mut DemoClient, &mut Screen), &'static str> {
        Ok((self.client.as_mut().ok_or(NO_DAEMON)?, &mut self.screen))
    }

    /// Sends a prompt and shows its turn, which must succeed.
    fn prompt(&mut self, text: &str) -> Result<PromptEnd, String> {
        self.screen.typed(text);
        let session = self.session.clone();
        let (client, screen) = self.client()?;
        let end = client.prompt(&session, text, screen)?;
        self.screen.end_line();
        expect(end.reason == Some(StopReason::EndTurn), || format!("{text:?} ended with {end:?}"))?;
        Ok(end)
    }

    fn measure(&mut self, label: &'static str) -> Result<(), String> {
        let ContextUsage { used, size, .. } =
            self.screen.seen.context.ok_or("the daemon did not report how full the context is")?;
        let meter = format!("context: {} of {} tokens", text::tokens(used), text::round(size));
        self.screen.narrate(&meter);
        self.measured.push((label, used));
        Ok(())
    }

    fn last_two(&self) -> Result<(u64, u64), String> {
        match self.measured.as_slice() {
            [.., (_, before), (_, after)] => Ok((*before, *after)),
            [] | [_] => Err("the context was not measured twice".to_owned()),
        }
    }
}

/// Returns the tokens before and after a compaction, as counted by the compaction. The context meter is not
/// comparable: it adds estimates to the provider's count.
fn compacted(end: &PromptEnd) -> Result<(u64, u64), String> {
    let tokens = |name: &str| end.result.get("compaction")?[name].as_u64();
    tokens("pre_tokens")
        .zip(tokens("post_tokens"))
        .ok_or_else(|| format!("/compact ended without the tokens before and after it: {end:?}"))
}

fn next_steps(screen: &mut Screen, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    screen.heading(&format!("Everything worked, in {seconds:.1} s. The scratch directory is removed."));
    for line in [
        "The model was scripted; everything else is real. To use a real model, do one of these:",
        "",
        "  epitome login                     or      export ANTHROPIC_API_KEY=...",
        "  ollama serve                      or      export EPITOME_LOCAL_URL=http://127.0.0.1:8080/v1",
        "",
        "Then try it here:     epitome run \"what is in this directory?\"",
        "and in your editor:   the command is `epitome`, its argument `acp`",
    ] {
        screen.line(line);
    }
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// Ctrl-C ends the demo; the daemon ends when its pipes close.
fn remove_on_interrupt(scratch: &Scratch) -> Result<(), CliError> {
    let runtime = serve::runtime()?;
    let path = scratch.path().to_path_buf();
    let inside = runtime.enter();
    let interrupts = Interrupts::new();
    drop(inside);
    let mut interrupts = interrupts.context("Ctrl-C can't be handled")?;
    std::thread::spawn(move || {
        runtime.block_on(interrupts.recv());
        scratch::remove(&path);
        std::process::exit(EXIT_CANCELLED);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The demo once compared the context meter before and after. With the pauses for readers, the vocabulary was
    /// loaded in between, the estimate rose, and the demo failed on nearly every second terminal.
    #[test]
    fn a_compaction_is_judged_by_its_own_count() {
        let end = |result: Value| -> PromptEnd {
            serde_json::from_value(json!({ "request": 1, "reason": "end_turn", "result": result }))
                .expect("an end")
        };
        let compaction = json!({ "status": "compacted", "pre_tokens": 8_700, "post_tokens": 646 });
        assert_eq!(compacted(&end(json!({ "compaction": compaction }))), Ok((8_700, 646)));
        let without = compacted(&end(json!({}))).expect_err("it reports nothing");
        assert!(without.contains("EndTurn"), "{without}");
    }
}

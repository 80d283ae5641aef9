//! Runs a fixture against an agent, line by line, and compares the agent's messages.
//!
//! Messages of the agent and requests to the model are each compared in order. The order between the two can't be
//! observed from outside and is not compared.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use epitome_scripted_model::WireFormat;
use epitome_transcript::agent::{Comparison, Expected, update_of};
use epitome_transcript::book::Shorthand;
use epitome_transcript::editor::EditorAct;
use epitome_transcript::setup::{FileLocation, Setup};
use epitome_transcript::update::{ExpectedUpdate, FREE, chunk_of, is_open, word_for};
use epitome_transcript::{Fixture, FixtureLine, LineContent, MessageDirection, words};
use serde_json::Value;

use super::agent::{AgentConnection, AgentEnvironment, AgentHome, EXIT_WITHIN, Launch};
use super::fixture_model::FixtureModel;
use super::model::ModelVariables;
use super::outcome::{AUTH_REQUIRED, FixtureFailure, FixtureOutcome, Halt, RunTranscript};

/// Timeout for one line of the agent. Generous, because the machine may be busy; a passing run never takes that long.
pub const LINE_WITHIN: Duration = Duration::from_secs(20);

/// The agent and the model with which a fixture is run.
pub struct Setting<'a> {
    pub agent: &'a dyn Launch,
    pub home: AgentHome,
    /// The formats of the scripted model, none if the agent uses its own.
    pub model: ModelVariables,
    pub line_within: Duration,
}

/// Runs a fixture in a scratch workspace.
pub fn run_fixture(fixture: &Fixture, setting: &Setting<'_>) -> FixtureOutcome {
    if let Some(why) = not_meant(fixture, setting) {
        return FixtureOutcome::NotMeant(why);
    }
    let mut story = match Story::begin(fixture, setting) {
        Ok(story) => story,
        Err(error) => return FixtureOutcome::Failed(could_not(&error)),
    };
    match story.run_lines(fixture) {
        Ok(()) => FixtureOutcome::Passed,
        Err(Halt::NotOffered(what)) => FixtureOutcome::NotOffered(what),
        Err(Halt::NeedsLogin) => FixtureOutcome::NotMeant("it needs a login".to_owned()),
        Err(Halt::Failed(mut failure)) => {
            failure.notes.extend(story.notes());
            failure.transcript = story.transcript.last_messages();
            FixtureOutcome::Failed(*failure)
        }
    }
}

pub fn could_not(error: &io::Error) -> FixtureFailure {
    FixtureFailure::new(1, "a workspace and an agent", format!("the test could not be set up: {error}"))
}

/// Returns why a fixture does not apply to a setting; `None` if it does.
pub fn not_meant(fixture: &Fixture, setting: &Setting<'_>) -> Option<String> {
    if setting.model.formats.is_empty() {
        let is_possible = fixture.is_for_any_agent() && !fixture.setups().any(|it| *it == Setup::NoModel);
        return (!is_possible).then(|| "it needs the scripted model".into());
    }
    formats(fixture, setting).is_empty().then(|| "it is about another format of models".into())
}

/// The formats with which a fixture is run.
fn formats(fixture: &Fixture, setting: &Setting<'_>) -> Vec<WireFormat> {
    let is_meant = |format: &WireFormat| {
        fixture.setups().all(|setup| !matches!(setup, Setup::Only(only) if only != format.id()))
    };
    setting.model.formats.iter().copied().filter(is_meant).collect()
}

/// A running fixture.
pub struct Story<'a> {
    pub setting: &'a Setting<'a>,
    surroundings: AgentEnvironment,
    pub book: Shorthand,
    pub model: Option<FixtureModel>,
    transcript: RunTranscript,
    connection: Option<AgentConnection>,
    next_id: u64,
    /// The fixture is not about Epitome.
    is_general: bool,
    needs: Vec<String>,
    aside: Vec<String>,
    /// Messages that were received but not compared yet.
    received: VecDeque<Value>,
    /// Expectations that may be met in any order before the editor's next line.
    free: Vec<(usize, String, Expected)>,
    /// A streamed message whose remaining chunks are ignored, because a pattern has matched it.
    swallow: Option<Value>,
    /// Dropped last, when the agent has ended and writes no more files.
    _scratch: tempfile::TempDir,
}

impl<'a> Story<'a> {
    pub fn begin(fixture: &Fixture, setting: &'a Setting<'a>) -> io::Result<Story<'a>> {
        let (mut surroundings, scratch) = AgentEnvironment::create(&setting.home)?;
        let mut book = Shorthand::default();
        book.names.bind_place("$DIR", &surroundings.workspace.display().to_string());
        book.names.bind_place("$HOME", &surroundings.home.display().to_string());
        let mut variables: Vec<(String, OsString)> =
            vec![("EPITOME_HOME".into(), surroundings.home.join("epitome").into())];
        let mut model = None;
        if !fixture.setups().any(|setup| *setup == Setup::NoModel) {
            let formats = formats(fixture, setting);
            let wanted = ModelVariables { formats, named: setting.model.named.clone() };
            if !wanted.formats.is_empty() {
                let side = FixtureModel::start(fixture, &book.names)?;
                side.prepare(&wanted, &surroundings.home)?;
                model = Some(side);
            }
            variables.extend(wanted.of(model.as_ref().map(FixtureModel::server)));
        }
        let (mut needs, mut aside) = (Vec::new(), Vec::new());
        for setup in fixture.setups() {
            match setup {
                Setup::Needs(capability) => needs.push(capability.clone()),
                Setup::Aside(kinds) => aside.extend(kinds.iter().cloned()),
                Setup::Env { name, value } => variables.push((name.clone(), value.into())),
                Setup::AnyAgent
                | Setup::Only(_)
                | Setup::NoModel
                | Setup::File { .. }
                | Setup::ThenFile { .. }
                | Setup::ThenNoFile { .. }
                | Setup::Restart
                | Setup::Kill => {}
            }
        }
        // An agent may send these at any time, and an author who does not know of them need not name them.
        aside.extend(FREE.into_iter().filter(|kind| !fixture.expects(kind)).map(str::to_owned));
        surroundings.variables.extend(variables);
        Ok(Story {
            setting,
            surroundings,
            book,
            model,
            transcript: RunTranscript::default(),
            connection: None,
            next_id: 1,
            is_general: fixture.setups().any(|setup| *setup == Setup::AnyAgent),
            needs,
            aside,
            received: VecDeque::new(),
            free: Vec::new(),
            swallow: None,
            _scratch: scratch,
        })
    }

    fn run_lines(&mut self, fixture: &Fixture) -> Result<(), Halt> {
        for (at, line) in fixture.lines.iter().enumerate() {
            match &line.what {
                LineContent::Blank | LineContent::Comment => {}
                LineContent::Setup(setup) => {
                    if *setup == Setup::Restart {
                        self.end_segment()?;
                        self.end_of_input(line.number)?;
                    } else if matches!(setup, Setup::Kill | Setup::ThenFile { .. } | Setup::ThenNoFile { .. })
                    {
                        self.end_segment()?;
                    }
                    self.perform(line, setup)?;
                }
                LineContent::Editor(_, act) => {
                    self.end_segment()?;
                    self.send(line.number, act)?;
                    self.free = free_lines(&fixture.lines[at + 1..]);
                }
                LineContent::Agent(words, expected) => {
                    self.expect(line.number, &words::write("agent<", words, None), expected)?;
                }
                LineContent::AgentFree(..) => {}
                LineContent::Sees(_) => {
                    if let Some(model) = &mut self.model {
                        model.compare(line.number, &mut self.book.names, self.setting.line_within)?;
                    }
                }
                LineContent::Says(_) => {
                    if let Some(model) = &self.model {
                        model.reached(line.number);
                    }
                }
            }
        }
        self.end_segment()?;
        let last = fixture.lines.last().map_or(1, |line| line.number);
        self.end_of_input(last)?;
        match self.model.as_ref().and_then(FixtureModel::note) {
            None => Ok(()),
            Some(note) => Err(Halt::wrong(last, "a call of the model for each of its replies", note)),
        }
    }

    /// Carries out a setup line: writes and checks files, and resets the agent.
    pub fn perform(&mut self, line: &FixtureLine, setup: &Setup) -> Result<(), Halt> {
        let shown = line.to_string();
        let failed = |error: io::Error| Halt::wrong(line.number, shown.clone(), error.to_string());
        match setup {
            Setup::File { place, path, body } => {
                let root = match place {
                    FileLocation::Workspace => self.surroundings.workspace.clone(),
                    FileLocation::Home => self.surroundings.home.join("epitome"),
                };
                write_file(root.join(path), &body.text()).map_err(failed)
            }
            Setup::ThenFile { path, body } => {
                let text = std::fs::read_to_string(self.surroundings.workspace.join(path)).map_err(failed)?;
                match text == body.text() {
                    true => Ok(()),
                    false => Err(Halt::wrong(line.number, shown, format!("{text:?}"))),
                }
            }
            Setup::ThenNoFile { path } => match self.surroundings.workspace.join(path).exists() {
                true => Err(Halt::wrong(line.number, shown, "the file is there")),
                false => Ok(()),
            },
            Setup::Restart | Setup::Kill => {
                self.connection = None;
                self.book.restarted();
                self.swallow = None;
                Ok(())
            }
            // They concern the start.
            Setup::AnyAgent
            | Setup::Needs(_)
            | Setup::Only(_)
            | Setup::NoModel
            | Setup::Aside(_)
            | Setup::Env { .. } => Ok(()),
        }
    }

    /// Sends the editor's message, starting the agent if it isn't running.
    pub fn send(&mut self, line: usize, act: &EditorAct) -> Result<(), Halt> {
        if self.connection.is_none() {
            let running = self.setting.agent.launch(&self.surroundings);
            let running =
                running.map_err(|error| Halt::wrong(line, "an agent that starts", error.to_string()))?;
            self.connection = Some(AgentConnection::begin(running));
        }
        let (bytes, message) = act
            .line(&self.book, self.next_id)
            .map_err(|error| Halt::wrong(line, "a line that can be sent", error))?;
        self.next_id += 1;
        if let Some(message) = message {
            self.book.record_editor_message(&message);
        }
        if let Some(connection) = &self.connection {
            self.transcript.record(MessageDirection::ToAgent, &bytes);
            connection.send(bytes);
        }
        Ok(())
    }

    /// Waits for one expected line.
    fn expect(&mut self, line: usize, shown: &str, expected: &Expected) -> Result<(), Halt> {
        let mut message = self.next_bound(line, shown)?;
        loop {
            match expected.compare(&message, &mut self.book) {
                Comparison::Same => {
                    self.accept(&message)?;
                    let open = matches!(expected, Expected::Update { update: ExpectedUpdate::Chunk { text, .. }, .. } if is_open(text));
                    self.swallow = open.then_some(message);
                    return Ok(());
                }
                Comparison::Part(length) => {
                    let rest = split_chunk(&mut message, length);
                    self.received.push_front(rest);
                    return Ok(());
                }
                Comparison::More => {
                    let so_far = self.shown(&message);
                    let next = self.next_bound(line, shown).map_err(|halt| match halt {
                        Halt::Failed(failure) => {
                            Halt::wrong(line, shown, format!("{so_far}\nand then {}", failure.got))
                        }
                        other => other,
                    })?;
                    if !join_chunk(&mut message, &next) {
                        let then = self.shown(&next);
                        return Err(Halt::wrong(line, shown, format!("{so_far}\n{then}")));
                    }
                }
                Comparison::Different if self.is_general && message["error"]["code"] == AUTH_REQUIRED => {
                    return Err(Halt::NeedsLogin);
                }
                Comparison::Different => {
                    let got = self.shown(&message);
                    return Err(Halt::wrong(line, shown, got));
                }
            }
        }
    }

    /// Returns the next message that matches no unordered expectation.
    fn next_bound(&mut self, line: usize, shown: &str) -> Result<Value, Halt> {
        let deadline = Instant::now() + self.setting.line_within;
        loop {
            if let Some(message) = self.receive(line, shown, deadline)? {
                return Ok(message);
            }
        }
    }

    /// Waits for all unordered expectations before the editor continues.
    fn end_segment(&mut self) -> Result<(), Halt> {
        while let Some((line, shown, _)) = self.free.first().cloned() {
            let deadline = Instant::now() + self.setting.line_within;
            if let Some(message) = self.receive(line, &shown, deadline)? {
                let got = self.shown(&message);
                return Err(Halt::wrong(line, shown, got));
            }
        }
        Ok(())
    }

    /// Receives one message and returns it, or `None` if it met an unordered expectation. `line` and `shown` identify
    /// the expected line in errors.
    fn receive(&mut self, line: usize, shown: &str, deadline: Instant) -> Result<Option<Value>, Halt> {
        let got = match self.next(deadline) {
            NextMessage::Message(message) => Ok(message),
            NextMessage::Nothing => Err(format!("nothing within {:?}", self.setting.line_within)),
            NextMessage::End => Err("the end of the agent's output".to_owned()),
            NextMessage::NoMessage(text) => Err(format!("a line that is not a message: {text:?}")),
        };
        let message = got.map_err(|got| Halt::wrong(line, shown, got))?;
        self.book.learn(&message);
        let taken = self
            .free
            .iter()
            .position(|(_, _, expected)| expected.compare(&message, &mut self.book) == Comparison::Same);
        let Some(at) = taken else { return Ok(Some(message)) };
        self.free.remove(at);
        self.accept(&message)?;
        Ok(None)
    }

    /// Returns the next message that the fixture does not ignore.
    pub fn next(&mut self, deadline: Instant) -> NextMessage {
        loop {
            let message = match self.received.pop_front() {
                Some(message) => message,
                None => {
                    let Some(connection) = &self.connection else { return NextMessage::End };
                    match connection.receive(deadline.saturating_duration_since(Instant::now())) {
                        Err(RecvTimeoutError::Timeout) => return NextMessage::Nothing,
                        Err(RecvTimeoutError::Disconnected) => return NextMessage::End,
                        Ok(line) => {
                            self.transcript.record(MessageDirection::ToEditor, &line);
                            match serde_json::from_slice::<Value>(&line) {
                                Ok(message @ Value::Object(_)) => message,
                                Ok(_) | Err(_) => {
                                    let text = String::from_utf8_lossy(&line).into_owned();
                                    return NextMessage::NoMessage(text);
                                }
                            }
                        }
                    }
                }
            };
            if self.swallow.as_ref().is_some_and(|begun| same_chunk(begun, &message)) {
                continue;
            }
            let aside = update_of(&message)
                .is_some_and(|update| self.aside.iter().any(|kind| kind == word_for(update)));
            // An agent may send notifications of its own.
            let is_own = |message: &Value| {
                message["method"].as_str().is_some_and(|method| method.starts_with('_'))
                    && message.get("id").is_none()
            };
            let is_ignored = aside || (self.is_general && is_own(&message));
            if !is_ignored {
                return NextMessage::Message(message);
            }
        }
    }

    /// Records an expected message. The response to `initialize` must have the required capabilities.
    pub fn accept(&mut self, message: &Value) -> Result<(), Halt> {
        let answers_initialize = self
            .book
            .editor_open
            .iter()
            .any(|(id, method)| method == "initialize" && message.get("id") == Some(id));
        self.book.record_agent_message(message);
        if answers_initialize && message.get("result").is_some() {
            for capability in &self.needs {
                let path = format!("/result/agentCapabilities/{}", capability.replace('.', "/"));
                let offered = message.pointer(&path).is_some_and(|value| !value.is_null() && value != false);
                if !offered {
                    return Err(Halt::NotOffered(capability.clone()));
                }
            }
        }
        Ok(())
    }

    /// Closes the agent's input and waits for its end; a further message is an error.
    pub fn end_of_input(&mut self, line: usize) -> Result<(), Halt> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.close();
        let got = match self.next(Instant::now() + EXIT_WITHIN) {
            NextMessage::End => return Ok(()),
            // Whether other agents end is another rule.
            NextMessage::Nothing if self.is_general => return Ok(()),
            NextMessage::Nothing => {
                let got = format!("the agent still runs {EXIT_WITHIN:?} after its input was closed");
                return Err(Halt::wrong(line, "the agent's end after this line", got));
            }
            NextMessage::Message(message) => {
                self.book.learn(&message);
                self.shown(&message)
            }
            NextMessage::NoMessage(text) => format!("no message: {text:?}"),
        };
        Err(Halt::wrong(line, "nothing more after this line", got))
    }

    pub fn shown(&self, message: &Value) -> String {
        let detail = epitome_transcript::agent::WriteDetail { ids: true, calls: true };
        let words = epitome_transcript::agent::words_of(message, &mut self.book.clone(), detail);
        words::write("agent<", &words, None)
    }

    fn notes(&self) -> Vec<String> {
        let calls = self.model.as_ref().and_then(FixtureModel::note);
        let errors =
            self.connection.as_ref().map(AgentConnection::errors).filter(|errors| !errors.is_empty());
        calls.into_iter().chain(errors.map(|errors| format!("the agent's error output: {errors}"))).collect()
    }
}

pub enum NextMessage {
    Message(Value),
    /// A line that is not a JSON object.
    NoMessage(String),
    Nothing,
    End,
}

/// Returns the unordered expectations before the editor's next line.
fn free_lines(lines: &[FixtureLine]) -> Vec<(usize, String, Expected)> {
    let is_end = |line: &&FixtureLine| {
        matches!(line.what, LineContent::Editor(..) | LineContent::Setup(Setup::Restart | Setup::Kill))
    };
    let free = lines.iter().take_while(|line| !is_end(line)).filter_map(|line| {
        let LineContent::AgentFree(words, expected) = &line.what else { return None };
        Some((line.number, words::write("agent~", words, None), expected.clone()))
    });
    free.collect()
}

/// Whether both are chunks of the same streamed message.
pub fn same_chunk(first: &Value, second: &Value) -> bool {
    let key = |message: &Value| {
        let chunk = chunk_of(update_of(message)?)?;
        let session = message.pointer("/params/sessionId")?.as_str()?.to_owned();
        Some((session, chunk.kind as u8, chunk.message.map(str::to_owned)))
    };
    key(first).is_some_and(|first| key(second) == Some(first))
}

/// Appends the text of the next chunk; returns false if it belongs to another message.
pub fn join_chunk(message: &mut Value, next: &Value) -> bool {
    if !same_chunk(message, next) {
        return false;
    }
    let more = next.pointer("/params/update/content/text").and_then(Value::as_str).unwrap_or("");
    if let Some(Value::String(text)) = message.pointer_mut("/params/update/content/text") {
        text.push_str(more);
    }
    true
}

/// Truncates a chunk to `length` bytes and returns a chunk with the rest.
pub fn split_chunk(message: &mut Value, length: usize) -> Value {
    let mut rest = message.clone();
    if let Some(Value::String(text)) = rest.pointer_mut("/params/update/content/text") {
        *text = text.split_off(length);
    }
    if let Some(Value::String(text)) = message.pointer_mut("/params/update/content/text") {
        text.truncate(length);
    }
    rest
}

fn write_file(path: PathBuf, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(path, text)
}

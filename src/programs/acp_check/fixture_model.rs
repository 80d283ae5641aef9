//! The model's part of a fixture: groups lines into replies and compares the content of each call.

use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use epitome_scripted_model::{RecordedRequest, ScriptedModel, WireFormat, all_news, news};
use epitome_transcript::names::Names;
use epitome_transcript::setup::Setup;
use epitome_transcript::{Fixture, LineContent, ModelStep, SeenPart, words};

use super::model::{ModelVariables, reply};
use super::outcome::Halt;

/// Maximum number of queued model calls.
const CALLS_WAITING_MAX: usize = 4096;

/// One call of the model in the fixture.
#[derive(Clone, Debug, Default)]
pub struct ScriptedExchange {
    /// `model?` lines with their numbers; empty if the fixture does not specify the call's content.
    pub sees: Vec<(usize, SeenPart)>,
    pub steps: Vec<ModelStep>,
    /// Lines where the reply continues after a `wait`.
    goes_on: Vec<usize>,
    /// The line of the first step.
    pub first_step: usize,
}

pub struct FixtureModel {
    model: ScriptedModel,
    pub exchanges: Vec<ScriptedExchange>,
    /// The fixture doesn't script the model of another agent, which may call it when it likes.
    answers_anything: bool,
    arrivals: Receiver<RecordedRequest>,
    calls: Vec<RecordedRequest>,
}

impl FixtureModel {
    pub(crate) fn start(fixture: &Fixture, names: &Names) -> io::Result<FixtureModel> {
        let mut exchanges = exchanges(fixture);
        for step in exchanges.iter_mut().flat_map(|exchange| &mut exchange.steps) {
            *step = step.filled(names).map_err(io::Error::other)?;
        }
        let answers_anything =
            exchanges.is_empty() && fixture.setups().any(|setup| *setup == Setup::AnyAgent);
        let (arrive, arrivals) = mpsc::sync_channel(CALLS_WAITING_MAX);
        let replies: Vec<Vec<ModelStep>> = exchanges.iter().map(|exchange| exchange.steps.clone()).collect();
        let script = move |request: &RecordedRequest| {
            // The receiver is gone when the fixture is over.
            let _ = arrive.try_send(request.clone());
            let message = Some("the fixture has no more replies of the model".to_owned());
            let unexpected = || vec![ModelStep::Error { status: 400, retry_after: None, message }];
            replies.get(request.number).cloned().unwrap_or_else(unexpected)
        };
        let model = match answers_anything {
            true => ScriptedModel::start_lenient(reply),
            false => ScriptedModel::start(script),
        };
        Ok(FixtureModel { model: model?, exchanges, answers_anything, arrivals, calls: Vec::new() })
    }

    pub(crate) fn server(&self) -> &ScriptedModel {
        &self.model
    }

    /// Writes the settings with which an Epitome with this home uses the preferred format.
    pub(crate) fn prepare(&self, variables: &ModelVariables, home: &Path) -> io::Result<()> {
        if variables.formats.first() != Some(&WireFormat::OpenAiResponses) {
            return Ok(());
        }
        std::fs::create_dir_all(home.join("epitome"))?;
        std::fs::write(home.join("epitome/config.toml"), "[providers.openai]\nwire = \"openai_responses\"\n")
    }

    /// Waits for a call and returns its new messages.
    pub fn news(&mut self, number: usize, within: Duration) -> Option<Vec<SeenPart>> {
        while self.calls.len() <= number {
            match self.arrivals.recv_timeout(within) {
                Ok(call) => self.calls.push(call),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
        let now = self.calls[number].seen();
        let Some(before) = number.checked_sub(1) else { return Some(all_news(&now)) };
        Some(news(&self.calls[before].seen(), &self.exchanges[before].steps, &now))
    }

    /// The number of calls so far.
    pub fn count(&self) -> usize {
        self.model.requests().len()
    }

    /// Continues a reply that waits until this line is reached.
    pub fn reached(&self, line: usize) {
        if self.exchanges.iter().any(|exchange| exchange.goes_on.contains(&line)) {
            self.model.release();
        }
    }

    /// Compares a call with the `model?` lines that begin at this line, if any.
    pub(crate) fn compare(&mut self, line: usize, names: &mut Names, within: Duration) -> Result<(), Halt> {
        let first =
            |exchange: &ScriptedExchange| exchange.sees.first().is_some_and(|(number, _)| *number == line);
        let Some(at) = self.exchanges.iter().position(first) else { return Ok(()) };
        let sees = self.exchanges[at].sees.clone();
        let shown = |seen: &SeenPart| words::write("model?", &seen.words(), None);
        let Some(news) = self.news(at, within) else {
            let got = format!("no such call of the model within {within:?}");
            return Err(Halt::wrong(line, shown(&sees[0].1), got));
        };
        for (at, (number, expected)) in sees.iter().enumerate() {
            let actual = news.get(at);
            if !actual.is_some_and(|actual| expected.matches(actual, names)) {
                let got = actual.map(|actual| shown(&actual.with_names(&mut names.clone())));
                let got = got.unwrap_or_else(|| "nothing more in this call".into());
                return Err(Halt::wrong(*number, shown(expected), got));
            }
        }
        if let Some(surplus) = news.get(sees.len()) {
            let got = shown(&surplus.with_names(&mut names.clone()));
            return Err(Halt::wrong(line, "nothing more in this call of the model", got));
        }
        Ok(())
    }

    /// Describes a mismatch between calls and replies at the end of a fixture.
    pub(crate) fn note(&self) -> Option<String> {
        let (calls, replies) = (self.count(), self.exchanges.len());
        (calls != replies && !self.answers_anything)
            .then(|| format!("the model was called {calls} times; the fixture has {replies} replies"))
    }
}

/// Groups lines: `model?` lines and the `model!` lines after them are one exchange. Without `model?` lines, each run of
/// `model!` lines is an exchange, unless the previous run ended with `wait`.
fn exchanges(fixture: &Fixture) -> Vec<ScriptedExchange> {
    let mut all: Vec<ScriptedExchange> = Vec::new();
    let mut in_sees = false;
    let mut in_run = false;
    for line in &fixture.lines {
        match &line.what {
            LineContent::Sees(seen) => {
                if !in_sees {
                    all.push(ScriptedExchange::default());
                }
                if let Some(exchange) = all.last_mut() {
                    exchange.sees.push((line.number, seen.clone()));
                }
                (in_sees, in_run) = (true, false);
            }
            LineContent::Says(step) => {
                let waits = |exchange: &ScriptedExchange| exchange.steps.last() == Some(&ModelStep::Wait);
                let fresh = |exchange: &ScriptedExchange| exchange.steps.is_empty();
                let goes_on = !in_sees && all.last().is_some_and(waits);
                if !all.last().is_some_and(|last| in_run || waits(last) || fresh(last)) {
                    all.push(ScriptedExchange::default());
                }
                if let Some(exchange) = all.last_mut() {
                    if exchange.steps.is_empty() {
                        exchange.first_step = line.number;
                    }
                    if goes_on {
                        exchange.goes_on.push(line.number);
                    }
                    exchange.steps.push(step.clone());
                }
                (in_sees, in_run) = (false, true);
            }
            LineContent::Blank | LineContent::Comment => {}
            LineContent::Setup(_)
            | LineContent::Editor(..)
            | LineContent::Agent(..)
            | LineContent::AgentFree(..) => in_run = false,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_of(text: &str) -> Vec<usize> {
        let fixture = Fixture::parse(text).expect("the fixture is well formed");
        exchanges(&fixture).iter().map(|exchange| exchange.steps.len()).collect()
    }

    #[test]
    fn steps_in_a_row_are_one_reply() {
        assert_eq!(steps_of("model!  text \"a\"\nmodel!  call b {}\n"), [2]);
    }

    #[test]
    fn another_line_between_them_makes_two_replies() {
        assert_eq!(steps_of("model!  call b {}\nagent<  result *\nmodel!  text \"a\"\n"), [1, 1]);
        assert_eq!(steps_of("model!  call b {}\nmodel?  result b \"x\"\nmodel!  text \"a\"\n"), [1, 1]);
    }

    #[test]
    fn a_reply_that_waits_goes_on_at_the_next_step() {
        let text = "model!  text \"a\"\nmodel!  wait\nagent<  result *\nmodel!  text \"b\"\n";
        assert_eq!(steps_of(text), [3]);
        let fixture = Fixture::parse(text).expect("the fixture is well formed");
        assert_eq!(exchanges(&fixture)[0].goes_on, [4]);
    }
}

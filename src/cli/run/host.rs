//! The program that runs this one with `--input-format stream-json`: its prompts and requests, and its answers to
//! permission questions.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde_json::{Value, json};

use super::drive::{PromptRun, RunEnd, RunRequest};
use super::event_printer::EventPrinter;
use super::host_input::{HostLine, HostRequest, HostSetup};
use super::stream_json::suggestion;
use crate::cli::CliError;
use crate::cli::overrides::mode_named;
use crate::session::{AskId, PermissionRequest, UserDecision};
use crate::thread::Content;
use epitome_client::SessionChoices;

/// Maximum number of prompts that wait for the running one.
const PROMPTS_MAX: usize = 1_000;

/// The connection to the program.
pub struct HostLink {
    /// Whether stdin may bring more.
    is_open: bool,
    /// Whether the program answers permission questions.
    decides: bool,
    /// The id of the unanswered `initialize`.
    setup: Option<String>,
    /// Questions to the program, by the id of their request.
    asked: BTreeMap<String, (AskId, Arc<PermissionRequest>)>,
    /// The number of requests that the session has not answered.
    pending: usize,
    /// Options that were set before the session was open: request, option, value.
    early: Vec<(String, &'static str, String)>,
    /// The number of questions so far.
    count: u64,
}

impl HostLink {
    pub fn new(decides: bool, setup: Option<String>) -> HostLink {
        HostLink {
            is_open: true,
            decides,
            setup,
            asked: BTreeMap::new(),
            pending: 0,
            early: Vec::new(),
            count: 0,
        }
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Reads nothing more.
    pub fn close(&mut self) {
        self.is_open = false;
    }

    /// The session is gone, so nothing is answered any more.
    pub fn give_up(&mut self) {
        self.is_open = false;
        (self.setup, self.pending) = (None, 0);
    }

    /// Whether everything that the program asked for has its answer.
    pub fn is_answered(&self) -> bool {
        self.setup.is_none() && self.pending == 0
    }
}

impl PromptRun {
    /// Takes a line of the program.
    pub(super) fn host_wrote(&mut self, line: Result<HostLine, String>) -> io::Result<Option<RunEnd>> {
        match line {
            Ok(HostLine::Prompt(content)) => return Ok(self.queue_prompt(content)),
            Ok(HostLine::Request { id: _, request: HostRequest::Initialize(setup) })
                if *setup != HostSetup::default() =>
            {
                self.stop();
                let message = "options of `initialize` can only be given in the first line of stdin";
                return Ok(Some(RunEnd::Error(CliError::usage(message))));
            }
            Ok(HostLine::Request { id, request }) => self.host_requested(id, request)?,
            Ok(HostLine::Answer { id, answer }) => self.host_answered(&id, answer)?,
            Ok(HostLine::Nothing) => {}
            Err(message) => {
                let error =
                    CliError::usage(message).hint("docs/builders/integrate.md has the format of the lines");
                self.stop();
                return Ok(Some(RunEnd::Error(error)));
            }
        }
        Ok(None)
    }

    fn queue_prompt(&mut self, content: Vec<Content>) -> Option<RunEnd> {
        if self.prompts.len() >= PROMPTS_MAX {
            self.stop();
            let message = format!("{PROMPTS_MAX} prompts are already waiting");
            return Some(RunEnd::Error(
                CliError::failed(message).hint("wait for a `result` line before you send more"),
            ));
        }
        self.prompts.push_back(content);
        self.send_prompt().map(RunEnd::Error)
    }

    fn host_requested(&mut self, id: String, request: HostRequest) -> io::Result<()> {
        let (option, value) = match request {
            HostRequest::Initialize(_) => return self.respond(&id, &Ok(json!({}))),
            HostRequest::Interrupt => {
                self.cancel();
                return self.respond(&id, &Ok(json!({ "still_queued": [] })));
            }
            HostRequest::SetMode(mode) => match mode_named(&mode) {
                Ok(mode) => ("mode", mode.id().to_owned()),
                Err(why) => return self.respond(&id, &Err(why)),
            },
            HostRequest::SetModel(model) => ("model", model),
            HostRequest::Unsupported(subtype) => {
                return self.respond(&id, &Err(format!("Epitome does not support the request {subtype:?}")));
            }
        };
        if let Some(host) = &mut self.host {
            host.pending += 1;
            host.early.push((id, option, value));
        }
        if self.options.is_some() {
            self.send_early();
        }
        Ok(())
    }

    /// Sets the options that the program has chosen, once the session is open.
    pub(super) fn send_early(&mut self) {
        let Some(host) = &mut self.host else { return };
        for (id, option, value) in std::mem::take(&mut host.early) {
            self.client.set_option(&self.session, option, &value, RunRequest::Host(id));
        }
    }

    /// Passes a session's answer on to the program.
    pub(super) fn answer_host(&mut self, id: &str, answer: &Result<Value, String>) -> io::Result<()> {
        if let Some(host) = &mut self.host {
            host.pending = host.pending.saturating_sub(1);
        }
        self.respond(id, answer)
    }

    /// Answers `initialize` as soon as the session's models and commands are known.
    pub(super) fn introduce(&mut self) -> io::Result<()> {
        let (Some(commands), Some(options), Some(host)) = (&self.commands, &self.options, &mut self.host)
        else {
            return Ok(());
        };
        let Some(id) = host.setup.take() else { return Ok(()) };
        let EventPrinter::Stream(lines) = &mut self.sink else { return Ok(()) };
        let answer = Ok(lines.introduction(commands, &models(options)));
        lines.respond(&id, &answer)
    }

    /// Asks the program for permission; returns `false` if there is no program that answers.
    pub(super) fn ask_host(&mut self, ask: AskId, permission: &Arc<PermissionRequest>) -> io::Result<bool> {
        let EventPrinter::Stream(lines) = &mut self.sink else { return Ok(false) };
        let Some(host) = self.host.as_mut().filter(|host| host.decides && host.is_open) else {
            return Ok(false);
        };
        host.count += 1;
        let id = format!("epitome_{}", host.count);
        lines.ask(&id, permission)?;
        host.asked.insert(id, (ask, permission.clone()));
        Ok(true)
    }

    /// Withdraws the question from the program.
    pub(super) fn withdraw_from_host(&mut self, ask: AskId) -> io::Result<()> {
        let (Some(host), EventPrinter::Stream(lines)) = (&mut self.host, &mut self.sink) else {
            return Ok(());
        };
        let mut withdrawn = host.asked.extract_if(.., |_, (asked, _)| *asked == ask);
        withdrawn.try_for_each(|(id, _)| lines.withdraw(&id))
    }

    /// The program is gone: nobody answers its questions.
    pub(super) fn host_left(&mut self) {
        let Some(host) = &mut self.host else { return };
        host.close();
        for (ask, permission) in std::mem::take(&mut host.asked).into_values() {
            self.absent(ask, permission);
        }
    }

    fn host_answered(&mut self, id: &str, answer: Result<Value, String>) -> io::Result<()> {
        let asked = self.host.as_mut().and_then(|host| host.asked.remove(id));
        let Some((ask, permission)) = asked else { return Ok(()) };
        let interrupts = answer.as_ref().is_ok_and(|answer| answer["interrupt"] == true);
        self.decide(ask, &permission, decision(&permission, answer))?;
        if interrupts {
            self.cancel();
        }
        Ok(())
    }

    fn respond(&mut self, id: &str, answer: &Result<Value, String>) -> io::Result<()> {
        if let EventPrinter::Stream(lines) = &mut self.sink {
            lines.respond(id, answer)?;
        }
        Ok(())
    }
}

fn models(options: &SessionChoices) -> Vec<Value> {
    let model = |name: &str, about: &str| json!({ "value": name, "displayName": name, "description": about });
    options.models.iter().map(|(name, about)| model(name, about)).collect()
}

/// The decision in a program's answer. Anything but a clear yes is a no.
fn decision(asked: &PermissionRequest, answer: Result<Value, String>) -> UserDecision {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return UserDecision::RejectBecause(error),
    };
    if answer["behavior"] != "allow" {
        return match answer["message"].as_str().filter(|why| !why.trim().is_empty()) {
            Some(why) => UserDecision::RejectBecause(why.to_owned()),
            None => UserDecision::Reject,
        };
    }
    // The call runs as the model wrote it. Running it without the changes would do what the program prevented.
    if answer.get("updatedInput").is_some_and(|input| !input.is_null() && !is_same(input, &asked.input)) {
        let why = "the program wanted to change the arguments of this call, which Epitome does not support";
        return UserDecision::RejectBecause(why.to_owned());
    }
    match (suggestion(asked), answer["updatedPermissions"].as_array().map(Vec::as_slice)) {
        (Some(suggested), Some([accepted])) if *accepted == suggested => UserDecision::AllowAlways,
        _ => UserDecision::AllowOnce,
    }
}

/// Whether two values are the same for JavaScript, which has one type of numbers and writes 1.0 as 1.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| is_same(a, b)))
        }
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::{CallDisplay, CallId};

    #[test]
    fn only_a_clear_yes_to_the_same_arguments_allows() {
        let asked = PermissionRequest {
            call: CallId("c1".to_owned()),
            tool: "bash".to_owned(),
            input: json!({ "command": "make" }),
            card: CallDisplay::default(),
            preview: Vec::new(),
            because: None,
            always: Some("bash(make *)".to_owned()),
            never: None,
            agent: None,
        };
        let because = |why: &str| UserDecision::RejectBecause(why.to_owned());
        let suggested = suggestion(&asked).expect("it can be remembered");
        for (answer, expected) in [
            (json!({ "behavior": "allow" }), UserDecision::AllowOnce),
            (json!({ "behavior": "allow", "updatedInput": { "command": "make" } }), UserDecision::AllowOnce),
            (json!({ "behavior": "allow", "updatedPermissions": [suggested] }), UserDecision::AllowAlways),
            (
                json!({ "behavior": "allow", "updatedPermissions": [{ "type": "setMode", "mode": "plan" }] }),
                UserDecision::AllowOnce,
            ),
            (json!({ "behavior": "deny", "message": "not now" }), because("not now")),
            (json!({ "behavior": "deny", "message": "" }), UserDecision::Reject),
            (json!({ "behavior": "ask" }), UserDecision::Reject),
            (json!(null), UserDecision::Reject),
        ] {
            assert_eq!(decision(&asked, Ok(answer.clone())), expected, "{answer}");
        }
        let changed = json!({ "behavior": "allow", "updatedInput": { "command": "make clean" } });
        assert!(
            matches!(decision(&asked, Ok(changed)), UserDecision::RejectBecause(why) if why.contains("arguments"))
        );
        assert_eq!(decision(&asked, Err("the callback failed".to_owned())), because("the callback failed"));
    }

    /// Regression: a program in JavaScript allowed a call as it was, with 30 for the 30.0 of the model. The call was denied,
    /// because the program had changed its arguments.
    #[test]
    fn numbers_may_be_written_as_javascript_writes_them() {
        let of_model = json!({ "command": "make", "timeout": 30.0, "lines": [{ "from": 1e3 }] });
        let of_program = json!({ "command": "make", "timeout": 30, "lines": [{ "from": 1000 }] });
        assert!(is_same(&of_program, &of_model));
        for changed in [
            json!({ "command": "make", "timeout": 31, "lines": [{ "from": 1000 }] }),
            json!({ "command": "make", "timeout": 30, "lines": [{ "from": 1000 }], "x": null }),
            json!({ "command": "make", "timeout": "30", "lines": [{ "from": 1000 }] }),
            json!({ "command": "make", "timeout": 30, "lines": [] }),
        ] {
            assert!(!is_same(&changed, &of_model), "{changed}");
        }
    }
}

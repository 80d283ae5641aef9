//! Runs the scripts in `tests/turn/`: as written, and cancelled after every line.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeStatus, PartId, ReplyCut, Seq, SessionId, StopReason, Thread, ToolCall, ToolOutcome, Trigger,
    ViewEdit, Withheld,
};
use epitome::turn::{
    CompactionResult, Effect, EffectResult, HookPoint, HooksResult, ModelResult, NextStep, Permit, ReplyEnd,
    Turn, TurnLimits,
};

#[test]
fn every_script_runs_as_written() {
    for (name, script) in scripts() {
        let mut play = Play::new(&name);
        for line in &script {
            play.line(line);
        }
        play.must_be_done("the script's end");
        assert!(play.ended.is_some(), "{name}: the script does not lead to the turn's end");
    }
}

#[test]
fn every_script_can_be_cancelled_after_every_line() {
    let mut runs = 0;
    for (name, script) in scripts() {
        for upto in 1..=script.len() {
            // A line of the turn is not a separate point in time: it belongs to the preceding input.
            if script.get(upto).is_some_and(|line| line.starts_with('<')) {
                continue;
            }
            let mut play = Play::new(&name);
            for line in &script[..upto] {
                play.line(line);
            }
            if play.turn.is_none() {
                continue;
            }
            play.cancel();
            play.check_invariants(&format!("{name} cancelled behind line {upto}"));
            runs += 1;
        }
    }
    assert!(runs > 40, "only {runs} cancelled runs: the scripts were not found");
}

#[test]
fn answers_after_a_cancel_change_nothing() {
    let mut play = Play::new("late answers");
    for line in [
        "> prompt \"go\"",
        "< commit said \"go\"",
        "< ask model",
        "> reply \"\" calls=a",
        "< commit replied \"\"",
        "< ask permission a",
        "> allow a",
        "< ask run a",
    ] {
        play.line(line);
    }
    play.cancel();
    let entries = play.thread.entries().len();
    play.handle(EffectResult::Tool(CallId("a".into()), Box::new(outcome("a", OutcomeStatus::Completed))));
    play.handle(EffectResult::Permission(CallId("a".into()), Permit::Allowed));
    play.pump();
    assert_eq!(play.thread.entries().len(), entries);
}

/// Regression: a long search filled the window, so the conversation was compacted while the provider had paused the reply.
/// The reply was then sent back as the end of the request, but without its thinking, which is only valid after the
/// conversation for which it was signed. Anthropic refused that, and the turn failed.
#[test]
fn a_reply_is_no_longer_paused_after_a_compaction() {
    let mut play = Play::new("paused and compacted");
    let is_paused = |play: &Play| play.turn.as_ref().is_some_and(Turn::is_paused);
    for line in [
        "> prompt \"go\"",
        "< commit said \"go\"",
        "< ask model",
        "> reply \"searching on\" end=paused",
        "< commit replied \"searching on\"",
        "< ask model",
    ] {
        play.line(line);
    }
    assert!(is_paused(&play));
    for line in ["> must compact", "< ask compact", "> compacted", "< commit compacted", "< ask model"] {
        play.line(line);
    }
    assert!(!is_paused(&play));
}

/// The scripts by name, without comments and blank lines.
fn scripts() -> Vec<(String, Vec<String>)> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/turn");
    let mut scripts: Vec<(String, Vec<String>)> = std::fs::read_dir(directory)
        .expect("the scripts are next to this file")
        .map(|entry| entry.expect("a readable directory").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a readable script");
            let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
            (
                path.file_stem().expect("a name").to_string_lossy().into_owned(),
                lines.map(str::to_owned).collect(),
            )
        })
        .collect();
    scripts.sort();
    scripts
}

/// A turn with its thread, and the output that the script has not read yet.
struct Play {
    name: String,
    thread: Thread,
    turn: Option<Turn>,
    /// Number of turns so far.
    begun: usize,
    said: Vec<String>,
    ended: Option<StopReason>,
    messages: u64,
    /// Whether the script includes hooks; otherwise no hooks exist, and their requests are not shown.
    hooks: bool,
    /// Whether the script answers each stage of a compaction, the session-start hooks and the hooks that run after a
    /// tool. Otherwise a compaction is one request, and the hooks return nothing.
    stages: bool,
    /// Whether the turn is the first of its session.
    starts: bool,
    /// Number of consecutive rounds that may repeat each other.
    repeats: u32,
    /// The prompt that hooks see.
    greeted: Option<Change>,
}

impl Play {
    fn new(name: &str) -> Play {
        let opened = Change::Opened {
            format: FORMAT_VERSION,
            session: SessionId("s_00000000000000000000".into()),
            cwd: PathBuf::from("/w"),
        };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let thread = Thread::replay([entry]).expect("an opened thread");
        let name = name.to_owned();
        Play {
            name,
            thread,
            turn: None,
            begun: 0,
            said: Vec::new(),
            ended: None,
            messages: 0,
            hooks: false,
            stages: false,
            starts: false,
            repeats: 0,
            greeted: None,
        }
    }

    fn limits(&self, rounds: u32) -> TurnLimits {
        TurnLimits { rounds, repeats: self.repeats }
    }

    fn line(&mut self, line: &str) {
        if let Some(input) = line.strip_prefix("> ") {
            self.must_be_done(line);
            self.feed(input);
            self.pump();
        } else if let Some(expected) = line.strip_prefix("< ") {
            assert!(!self.said.is_empty(), "{}: {line} was expected, and the turn waits", self.name);
            assert_eq!(self.said.remove(0), expected, "{}", self.name);
        } else {
            panic!("{}: a line begins with neither > nor <: {line}", self.name);
        }
    }

    fn must_be_done(&self, before: &str) {
        assert!(self.said.is_empty(), "{}: before {before:?} the turn also said {:?}", self.name, self.said);
    }

    fn feed(&mut self, input: &str) {
        let (limit, input) = match input.strip_prefix("limit=").and_then(|rest| rest.split_once(' ')) {
            Some((limit, rest)) => (limit.parse().expect("a number"), rest),
            None => (10, input),
        };
        let (verb, rest) = input.split_once(' ').unwrap_or((input, ""));
        match verb {
            "prompt" => {
                let message = self.message(quoted(rest));
                let said = Change::Said { message, origin: Origin::Person };
                self.begin(Turn::prompt(said, &self.thread, self.limits(limit)));
            }
            "compact" => {
                let message = self.fresh();
                let commanded = Change::Commanded { message, typed: "/compact".into() };
                self.begin(Turn::compact(commanded, self.limits(limit)));
            }
            "repeats" => self.repeats = rest.parse().expect("a number"),
            "hooks" => self.hooks = true,
            "stages" => (self.hooks, self.stages) = (true, true),
            "start" => self.starts = true,
            "started" => {
                let commits = if rest.is_empty() { Vec::new() } else { vec![self.context(quoted(rest))] };
                self.handle(EffectResult::Started(commits));
            }
            "planned" if rest == "old" => self.handle(EffectResult::Planned(Seq(0))),
            "planned" => self.handle(EffectResult::Planned(self.thread.view().revision())),
            "edited" => {
                let at = self.thread.entries().last().expect("an entry").seq.to_string();
                let edit = ViewEdit::Mask { at: at.parse().expect("a part"), note: String::new() };
                self.commit(Change::Edited { by: "h".into(), edits: vec![edit] });
            }
            "instructed" => self.handle(EffectResult::Instructed { edited: rest == "edited" }),
            "summarised" => self.handle(EffectResult::Summarised),
            "composed" => {
                let change = self.compacted();
                self.handle(EffectResult::Composed(Box::new(change)));
            }
            "eased" => self.handle(EffectResult::Eased(None)),
            "after" => {
                let outcome = outcome(rest, OutcomeStatus::Completed);
                self.handle(EffectResult::Tool(CallId(rest.into()), Box::new(outcome)));
            }
            "let" => {
                let commits = vec![self.greeted.take().expect("hooks see a prompt")];
                self.handle(EffectResult::Greeted { commits, enters: true });
            }
            "keep" => {
                let Some(Change::Said { message, .. }) = self.greeted.take() else {
                    panic!("hooks see a prompt")
                };
                let why = Withheld::Blocked { hook: "h".into(), reason: "no".into() };
                let commits = vec![Change::Withheld { message, note: self.fresh(), why }];
                self.handle(EffectResult::Greeted { commits, enters: false });
            }
            "seen" => self.handle(EffectResult::ToolSeen(CallId(rest.into()), Vec::new())),
            "stopped" => {
                let outcome = outcome(rest, OutcomeStatus::Denied);
                self.handle(EffectResult::Ran(Box::new(outcome)));
            }
            "want" => {
                let answer = self.wanted(rest);
                self.handle(EffectResult::Hooks(answer));
            }
            "queue" => {
                let message = self.message(quoted(rest));
                self.commit(Change::Queued { message });
            }
            "reply" => {
                let answer = self.reply(rest);
                self.handle(EffectResult::Model(answer));
            }
            "must" => self.handle(EffectResult::Model(ModelResult::MustCompact)),
            "too" => self.handle(EffectResult::Model(ModelResult::TooLong("too long".into()))),
            "failed" => self.handle(EffectResult::Model(ModelResult::Failed(quoted(rest)))),
            "allow" => self.handle(EffectResult::Permission(CallId(rest.into()), Permit::Allowed)),
            "deny" => self.handle(EffectResult::Permission(CallId(rest.into()), Permit::Denied("no".into()))),
            "impossible" => {
                self.handle(EffectResult::Permission(CallId(rest.into()), Permit::Impossible("no".into())))
            }
            "done" => {
                let (call, text) = rest.split_once(' ').unwrap_or((rest, "\"output\""));
                let text = quoted(text);
                let outcome = ToolOutcome::text(CallId(call.into()), OutcomeStatus::Completed, text);
                self.handle(EffectResult::Ran(Box::new(outcome)));
            }
            "compacted" if self.stages => {
                let change = self.compacted();
                self.handle(EffectResult::Compacted(CompactionResult::Done(Box::new(change))));
            }
            "compacted" => self.handle(EffectResult::Planned(self.thread.view().revision())),
            "nothing" => self.handle(EffectResult::Compacted(CompactionResult::Nothing)),
            "not" => self.handle(EffectResult::Compacted(CompactionResult::Failed("no model".into()))),
            other => panic!("{}: unknown input {other:?}", self.name),
        }
    }

    fn begin(&mut self, mut turn: Turn) {
        if self.starts {
            turn.start_session();
        }
        self.turn = Some(turn);
        (self.begun, self.ended) = (self.begun + 1, None);
    }

    fn reply(&mut self, rest: &str) -> ModelResult {
        let close = rest[1..].find('"').expect("a closing quote") + 1;
        let mut stop = ReplyEnd::Finished;
        let mut content = vec![Content::Text { text: rest[1..close].to_owned() }];
        for word in rest[close + 1..].split_whitespace() {
            match word.split_once('=').expect("a word is key=value") {
                ("calls", ids) => content.extend(ids.split(',').map(|id| {
                    Content::Call(ToolCall {
                        id: CallId(id.into()),
                        name: "tool".into(),
                        input: serde_json::json!({}),
                        card: CallDisplay::default(),
                    })
                })),
                ("end", "broken") => stop = ReplyEnd::Broken,
                ("end", "max_tokens") => stop = ReplyEnd::MaxTokens,
                ("end", "refused") => stop = ReplyEnd::Refused,
                ("end", "paused") => stop = ReplyEnd::Paused,
                other => panic!("{}: a reply has no {other:?}", self.name),
            }
        }
        let message = Message { id: self.fresh(), content, author: None };
        let replied = Change::Replied { message, model: ModelName("a/b".into()), usage: None, cut: None };
        ModelResult::Reply { replied: Box::new(replied), stop }
    }

    fn compacted(&mut self) -> Change {
        Change::Compacted {
            through: self.thread.entries().last().expect("an entry").seq,
            summary: self.message("summary".into()),
            trigger: Trigger::Manual,
            focus: None,
            tokens_before: 10,
            tokens_after: 1,
            window: None,
            model: None,
            usage: None,
            masks: Vec::new(),
            account: Default::default(),
        }
    }

    fn context(&mut self, text: String) -> Change {
        let message = self.message(text);
        Change::Said { message, origin: Origin::Context { by: "h".into() } }
    }

    /// The result of the hooks: `nothing`, or any of the words `go_on`, `compact`, `halt`, `replaced`, `pin`, `replace`,
    /// `say`.
    fn wanted(&mut self, words: &str) -> HooksResult {
        let mut answer = HooksResult::default();
        for word in words.split_whitespace() {
            match word {
                "nothing" => {}
                "go_on" => answer.go_on = true,
                "compact" => answer.compact = Some(Trigger::Hook),
                "halt" => answer.halt = true,
                "replaced" => answer.replaced = true,
                "pin" => answer.commits.push(edit(|at| ViewEdit::Pin { at })),
                "replace" => answer.commits.push(edit(|at| ViewEdit::Replace { at, content: Vec::new() })),
                "say" => {
                    let message = self.message("from a hook".into());
                    let origin = Origin::Hook { hook: "h".into() };
                    answer.commits.push(Change::Said { message, origin });
                }
                other => panic!("{}: hooks want no {other:?}", self.name),
            }
        }
        answer
    }

    /// Shows a request if the script answers it; otherwise answers it immediately.
    fn ask(&mut self, is_played: bool, ask: String, else_answer: EffectResult) {
        match is_played {
            true => self.said.push(format!("ask {ask}")),
            false => self.handle(else_answer),
        }
    }

    fn handle(&mut self, answer: EffectResult) {
        self.turn.as_mut().expect("a turn runs").handle(answer, &self.thread);
    }

    /// Advances the turn until it waits or ends, like a session does.
    fn pump(&mut self) {
        loop {
            let Some(turn) = &mut self.turn else { return };
            match turn.next(&self.thread) {
                NextStep::Commit(change) => {
                    self.said.push(format!("commit {}", in_words(&change)));
                    self.commit(*change);
                }
                NextStep::Run(ask) => self.asked(ask),
                NextStep::Wait => return,
                NextStep::End(reason) => {
                    if self.ended.is_none() {
                        self.said.push(format!("end {}", word(&reason)));
                    }
                    self.ended = Some(reason);
                    return;
                }
            }
        }
    }

    fn asked(&mut self, ask: Effect) {
        let (hooks, stages) = (self.hooks, self.stages);
        let nothing = || EffectResult::Hooks(HooksResult::default());
        match ask {
            Effect::CallModel => self.said.push("ask model".into()),
            Effect::Permission(id) => self.said.push(format!("ask permission {id}")),
            Effect::RunTool(id) => self.said.push(format!("ask run {id}")),
            Effect::Report(stuck) => {
                self.said.push(format!("ask report {}", stuck.id()));
                let note = Change::Noted { message: self.fresh(), text: stuck.sentence() };
                self.handle(EffectResult::Reported(Box::new(note)));
            }
            Effect::Ease { edited } => {
                let ask = if edited { "ease edited" } else { "ease" };
                self.ask(stages, ask.into(), EffectResult::Eased(None));
            }
            Effect::PlanCompaction(_) => {
                self.said.push(if stages { "ask plan" } else { "ask compact" }.into());
            }
            Effect::Summarise => self.ask(stages, "summarise".into(), EffectResult::Summarised),
            Effect::Compose => {
                let change = self.compacted();
                self.ask(stages, "compose".into(), EffectResult::Composed(Box::new(change)));
            }
            Effect::AbandonCompaction(why) => {
                self.ask(stages, "abandon".into(), EffectResult::Compacted(CompactionResult::Failed(why)));
            }
            Effect::RunHooks(HookPoint::SessionStart) => self.said.push("ask start".into()),
            Effect::RunHooks(HookPoint::Prompt(said)) => {
                self.greeted = Some((*said).clone());
                let ask = format!("greet {}", in_words(&said));
                self.ask(hooks, ask, EffectResult::Greeted { commits: vec![*said], enters: true });
            }
            Effect::RunHooks(HookPoint::BeforeTool(id)) => {
                self.ask(hooks, format!("before {id}"), EffectResult::ToolSeen(id.clone(), Vec::new()));
            }
            Effect::RunHooks(HookPoint::AfterTool(outcome)) => {
                let id = outcome.call.clone();
                self.ask(stages, format!("after {id}"), EffectResult::Tool(id.clone(), outcome));
            }
            Effect::RunHooks(HookPoint::RoundEnd { last }) => {
                let ask = if last { "round_end last" } else { "round_end" };
                self.ask(hooks, ask.into(), nothing());
            }
            Effect::RunHooks(HookPoint::Stop(reason)) => {
                self.ask(hooks, format!("stop {}", word(&reason)), nothing());
            }
            Effect::RunHooks(HookPoint::PreCompact) => {
                self.ask(stages, "pre_compact".into(), EffectResult::Instructed { edited: false });
            }
            Effect::RunHooks(HookPoint::Composed(change)) => {
                let done = EffectResult::Compacted(CompactionResult::Done(change));
                self.ask(stages, "composed".into(), done);
            }
            Effect::RunHooks(HookPoint::PostCompact) => self.ask(hooks, "swapped".into(), nothing()),
            Effect::RunHooks(HookPoint::Restart) => {
                self.ask(stages, "restart".into(), EffectResult::Started(Vec::new()));
            }
        }
    }

    fn cancel(&mut self) {
        let partial = Change::Replied {
            message: self.message("partly".into()),
            model: ModelName("a/b".into()),
            usage: None,
            cut: Some(ReplyCut::Cancelled),
        };
        self.turn.as_mut().expect("a turn runs").cancel(Some(partial.clone()));
        self.pump();
        // The hooks that see its outcomes go on, until they have answered or the user cancels again.
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.is_cancelling()) {
            turn.cancel(Some(partial));
            self.pump();
        }
    }

    fn check_invariants(&self, run: &str) {
        let mut ends = 0;
        let mut outcomes: HashMap<&CallId, usize> = HashMap::new();
        let mut calls = Vec::new();
        for entry in self.thread.entries() {
            match &entry.change {
                Change::TurnEnded { .. } => ends += 1,
                Change::ToolFinished { outcome } => *outcomes.entry(&outcome.call).or_default() += 1,
                Change::Replied { message, .. } => calls.extend(message.calls().map(|call| &call.id)),
                _ => {}
            }
        }
        assert_eq!(ends, self.begun, "{run}: the turns have {ends} ends");
        for call in calls {
            assert_eq!(outcomes.get(call), Some(&1), "{run}: call {call}");
        }
        assert!(self.thread.open_calls().is_empty(), "{run}");
        assert!(!self.thread.in_turn(), "{run}");
    }

    fn commit(&mut self, change: Change) {
        let entry = Entry { seq: self.thread.next_seq(), at: 0, change };
        self.thread.apply(Arc::new(entry));
    }

    fn fresh(&mut self) -> MessageId {
        self.messages += 1;
        MessageId(self.messages)
    }

    fn message(&mut self, text: String) -> Message {
        Message { id: self.fresh(), content: vec![Content::Text { text }], author: None }
    }
}

/// An edit of the first entry.
fn edit(make: impl Fn(PartId) -> ViewEdit) -> Change {
    Change::Edited { by: "h".into(), edits: vec![make(PartId { entry: Seq(0), part: None })] }
}

fn outcome(call: &str, status: OutcomeStatus) -> ToolOutcome {
    ToolOutcome::text(CallId(call.into()), status, "output")
}

fn quoted(text: &str) -> String {
    text.trim_matches('"').to_owned()
}

fn in_words(change: &Change) -> String {
    match change {
        Change::Said { message, .. } => format!("said {:?}", message.text()),
        Change::Replied { message, .. } => format!("replied {:?}", message.text()),
        Change::ToolFinished { outcome } => format!("outcome {} {}", outcome.call, word(&outcome.status)),
        Change::Compacted { .. } => "compacted".into(),
        Change::Edited { .. } => "edited".into(),
        Change::Withheld { message, .. } => format!("withheld {:?}", message.text()),
        Change::Noted { text, .. } => format!("noted {text:?}"),
        Change::Commanded { typed, .. } => format!("commanded {typed:?}"),
        Change::TurnEnded { reason, .. } => format!("turn_ended {}", word(reason)),
        other => panic!("a turn does not commit {other:?}"),
    }
}

fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).expect("a word")
}

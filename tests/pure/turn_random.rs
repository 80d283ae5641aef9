//! A turn with arbitrary inputs at any time: it ends exactly once, and never waits without an open request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use epitome::thread::{
    CallDisplay, CallId, Change, Content, Entry, FORMAT_VERSION, Message, MessageId, ModelName, Origin,
    OutcomeStatus, Seq, SessionId, Thread, ToolCall, ToolOutcome, Trigger,
};
use epitome::turn::{
    CompactionResult, Effect, EffectResult, HookPoint, HooksResult, ModelResult, NextStep, Permit, ReplyEnd,
    Turn, TurnLimits,
};
use proptest::prelude::*;

/// More steps than a turn of a few rounds with all possible inputs can take.
const STEPS_MAX: usize = 2_000;

const LIMITS: TurnLimits = TurnLimits { rounds: 5, repeats: 3 };

struct Play {
    thread: Thread,
    turn: Turn,
    /// Requests of the turn that are not answered yet.
    open: Vec<Effect>,
    messages: u64,
    calls: u64,
    /// The next inputs; after the last one, each request gets its simplest answer.
    choices: VecDeque<u8>,
}

impl Play {
    fn new(choices: Vec<u8>, compact: bool) -> Play {
        let session = SessionId("s_00000000000000000000".into());
        let opened = Change::Opened { format: FORMAT_VERSION, session, cwd: "/w".into() };
        let entry = Arc::new(Entry { seq: Seq(0), at: 0, change: opened });
        let thread = Thread::replay([entry]).expect("an opened thread");
        let commanded = Change::Commanded { message: MessageId(0), typed: "/compact".into() };
        let said = Change::Said { message: message(0), origin: Origin::Person };
        let mut turn = match compact {
            true => Turn::compact(commanded, LIMITS),
            false => Turn::prompt(said, &thread, LIMITS),
        };
        if choices.first().is_some_and(|first| first % 2 == 0) {
            turn.start_session();
        }
        Play { thread, turn, open: Vec::new(), messages: 0, calls: 0, choices: choices.into() }
    }

    fn choice(&mut self) -> u8 {
        self.choices.pop_front().unwrap_or(0)
    }

    fn fresh(&mut self) -> Message {
        self.messages += 1;
        message(self.messages)
    }

    fn commit(&mut self, change: Change) {
        let entry = Entry { seq: self.thread.next_seq(), at: 0, change };
        self.thread.apply(Arc::new(entry));
    }

    fn play(&mut self) {
        for _ in 0..STEPS_MAX {
            match self.turn.next(&self.thread) {
                NextStep::Commit(change) => self.commit(*change),
                NextStep::Run(ask) => self.open.push(ask),
                NextStep::End(_) => return,
                NextStep::Wait => {
                    assert!(!self.open.is_empty(), "it waits, and nothing is asked: {:?}", self.turn);
                    self.happen();
                }
            }
        }
        panic!("it does not end: {:?}", self.turn);
    }

    fn happen(&mut self) {
        match self.choice() {
            1..=9 => {
                let message = self.fresh();
                self.commit(Change::Queued { message });
            }
            10..=14 => {
                if let Some(queued) = self.thread.queued().first() {
                    self.turn.withdraw(queued);
                }
            }
            15..=18 => {
                self.turn.cancel(None);
                // It ends the requests in progress, except for hooks that see outcomes: these go on until the next cancel.
                let goes_on = self.turn.is_cancelling();
                let sees_outcome = |open: &Effect| matches!(open, Effect::RunHooks(HookPoint::AfterTool(_)));
                self.open.retain(|open| goes_on && sees_outcome(open));
            }
            // Answers that no request is waiting for.
            19..=24 => self.turn.handle(EffectResult::Hooks(HooksResult::default()), &self.thread.clone()),
            25..=28 => {
                let stale = EffectResult::Permission(CallId("c0".into()), Permit::Allowed);
                self.turn.handle(stale, &self.thread.clone());
            }
            _ => self.answer(),
        }
    }

    fn answer(&mut self) {
        let at = usize::from(self.choice()) % self.open.len();
        let ask = self.open.remove(at);
        let how = self.choice();
        let answer = match ask {
            Effect::CallModel => EffectResult::Model(self.reply(how)),
            Effect::Permission(id) => EffectResult::Permission(
                id,
                match how % 3 {
                    0 => Permit::Allowed,
                    1 => Permit::Denied("no".into()),
                    _ => Permit::Impossible("no".into()),
                },
            ),
            Effect::RunTool(id) => EffectResult::Ran(Box::new(outcome(id))),
            Effect::Ease { .. } => EffectResult::Eased(None),
            Effect::AbandonCompaction(why) => EffectResult::Compacted(CompactionResult::Failed(why)),
            Effect::Report(stuck) => {
                let message = self.fresh().id;
                EffectResult::Reported(Box::new(Change::Noted { message, text: stuck.sentence() }))
            }
            Effect::PlanCompaction(_)
            | Effect::Summarise
            | Effect::Compose
            | Effect::RunHooks(HookPoint::PreCompact)
                if how % 8 == 1 =>
            {
                EffectResult::Compacted(CompactionResult::Nothing)
            }
            Effect::PlanCompaction(_) | Effect::Summarise | Effect::Compose if how % 8 == 2 => {
                EffectResult::Compacted(CompactionResult::Failed("no".into()))
            }
            Effect::PlanCompaction(_) if how % 8 == 3 => {
                EffectResult::Compacted(CompactionResult::Done(Box::new(self.compacted())))
            }
            // The view has changed since the request.
            Effect::PlanCompaction(_) if how % 8 == 4 => EffectResult::Planned(Seq(1_000_000)),
            Effect::PlanCompaction(_) => EffectResult::Planned(self.thread.view().revision()),
            Effect::Summarise => EffectResult::Summarised,
            Effect::Compose => EffectResult::Composed(Box::new(self.compacted())),
            Effect::RunHooks(hooks) => self.hooks(hooks, how),
        };
        self.turn.handle(answer, &self.thread.clone());
    }

    fn hooks(&mut self, ask: HookPoint, how: u8) -> EffectResult {
        match ask {
            HookPoint::SessionStart | HookPoint::Restart => EffectResult::Started(Vec::new()),
            HookPoint::Prompt(_) if how % 4 == 1 => {
                EffectResult::Greeted { commits: Vec::new(), enters: false }
            }
            HookPoint::Prompt(said) => EffectResult::Greeted { commits: vec![*said], enters: true },
            HookPoint::BeforeTool(id) if how % 4 == 1 => EffectResult::Ran(Box::new(outcome(id))),
            HookPoint::BeforeTool(id) => EffectResult::ToolSeen(id, Vec::new()),
            HookPoint::AfterTool(outcome) => EffectResult::Tool(outcome.call.clone(), outcome),
            HookPoint::PreCompact => EffectResult::Instructed { edited: how & 16 != 0 },
            HookPoint::Composed(change) => EffectResult::Compacted(CompactionResult::Done(change)),
            HookPoint::RoundEnd { .. } | HookPoint::Stop(_) | HookPoint::PostCompact => {
                EffectResult::Hooks(HooksResult {
                    commits: Vec::new(),
                    go_on: how & 1 != 0,
                    compact: (how & 2 != 0).then_some(Trigger::Hook),
                    halt: how & 12 == 12,
                    replaced: how & 16 != 0,
                    swap: (how & 96 == 96).then(|| Box::new(self.compacted())),
                })
            }
        }
    }

    fn reply(&mut self, how: u8) -> ModelResult {
        match how % 15 {
            11 if self.turn.may_compact_before_call() => return ModelResult::MustCompact,
            12 => return ModelResult::TooLong("too long".into()),
            13 => return ModelResult::Failed("no".into()),
            _ => {}
        }
        let stop = [
            ReplyEnd::Finished,
            ReplyEnd::Paused,
            ReplyEnd::MaxTokens,
            ReplyEnd::WindowFull,
            ReplyEnd::Refused,
            ReplyEnd::Filtered,
            ReplyEnd::Other,
            ReplyEnd::Broken,
        ][usize::from(how) % 8];
        let mut message = self.fresh();
        for _ in 0..how / 64 {
            self.calls += 1;
            message.content.push(Content::Call(ToolCall {
                id: CallId(format!("c{}", self.calls)),
                name: "tool".into(),
                input: serde_json::json!({}),
                card: CallDisplay::default(),
            }));
        }
        let model = ModelName("a/b".into());
        let replied = Box::new(Change::Replied { message, model, usage: None, cut: None });
        ModelResult::Reply { replied, stop }
    }

    fn compacted(&mut self) -> Change {
        Change::Compacted {
            through: self.thread.entries().last().expect("an entry").seq,
            summary: self.fresh(),
            trigger: Trigger::Hook,
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
}

fn message(id: u64) -> Message {
    Message { id: MessageId(id), content: vec![Content::Text { text: "words".into() }], author: None }
}

fn outcome(call: CallId) -> ToolOutcome {
    ToolOutcome::text(call, OutcomeStatus::Completed, "output")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_turn_ends_exactly_once_whatever_its_inputs(
        choices in prop::collection::vec(any::<u8>(), 0..120),
        compact in any::<bool>(),
    ) {
        let mut play = Play::new(choices, compact);
        play.play();
        let entries = play.thread.entries().len();
        for late in [EffectResult::Hooks(HooksResult::default()), EffectResult::Model(ModelResult::Failed("late".into()))] {
            play.turn.handle(late, &play.thread.clone());
            prop_assert!(matches!(play.turn.next(&play.thread), NextStep::End(_)));
        }
        prop_assert_eq!(play.thread.entries().len(), entries);
        let mut ends = 0;
        let mut outcomes: HashMap<CallId, u32> = HashMap::new();
        for entry in play.thread.entries() {
            match &entry.change {
                Change::TurnEnded { .. } => ends += 1,
                Change::ToolFinished { outcome } => *outcomes.entry(outcome.call.clone()).or_default() += 1,
                _ => {}
            }
        }
        prop_assert_eq!(ends, 1);
        prop_assert!(play.thread.open_calls().is_empty() && !play.thread.in_turn());
        prop_assert!(outcomes.len() as u64 == play.calls && outcomes.values().all(|count| *count == 1));
        let replayed = Thread::replay(play.thread.entries().iter().cloned()).expect("the same log");
        prop_assert_eq!(replayed.view().entries(), play.thread.view().entries());
    }
}

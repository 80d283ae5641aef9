//! Runs a child session until it answers, reaches a limit or fails.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{ChildFailure, ChildOutcome, PreparedChild};
use crate::{ClientId, SessionAnswer, SessionCommand, SessionError, SubagentEnd, Ticket};
use epitome_thread::{Change, Content, StopReason, Usage, named_enum};

/// Time that a stopped agent has for each of its last two steps: to end its current work, and to report its findings.
pub(super) const LAST_WORDS_TIME: Duration = Duration::from_secs(90);

/// The ticket of the prompt that asks a stopped agent for its final report.
pub(super) const LAST_WORDS: Ticket = Ticket(1);

named_enum! {
    /// The limit that stopped an agent before it was done.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum AgentLimit {
        Rounds = "rounds",
        Repeats = "repeats",
        Tokens = "tokens",
        Time = "time",
    }
}

impl AgentLimit {
    /// The limit's name, to complete "it reached its limit of …".
    pub fn what(self) -> &'static str {
        match self {
            AgentLimit::Rounds => "model calls (agents.max_rounds)",
            AgentLimit::Repeats => "rounds that repeat each other (max_repeats)",
            AgentLimit::Tokens => "tokens (agents.max_tokens)",
            AgentLimit::Time => "time (agents.timeout_s)",
        }
    }
}

type ChildAnswer = Result<SessionAnswer, SessionError>;

impl PreparedChild {
    /// Runs until the prompt is answered, or until a limit stops the agent and it has written its final report.
    pub(super) async fn live(self) -> Result<ChildOutcome, ChildFailure> {
        let PreparedChild {
            mut session,
            outlet,
            answered,
            prompt,
            max_output: _,
            time,
            is_agent,
            commands,
            mut gone,
        } = self;
        session.prompt(prompt);
        let (handed, wraps_up) = (session.lineage().handed.clone(), session.lineage().wraps_up.clone());
        let mut bound = None;
        let mut life = std::pin::pin!(session.run());
        let mut answered = std::pin::pin!(answered);
        // A callback has no limits here; its caller ends it.
        let mut answer: Option<ChildAnswer> = tokio::select! {
            answer = &mut answered => answer.ok(),
            _ = &mut life => None,
            () = tokio::time::sleep(time), if is_agent => { bound = Some(AgentLimit::Time); None }
            () = outlet.has_spent_all(), if is_agent => { bound = Some(AgentLimit::Tokens); None }
        };
        if bound.is_some() && commands.send(SessionCommand::Cancel).await.is_ok() {
            answer = tokio::select! {
                answer = &mut answered => answer.ok(),
                _ = &mut life => None,
                () = tokio::time::sleep(LAST_WORDS_TIME) => None,
            };
            // The last reply and the limit may coincide.
            if matches!(&answer, Some(Ok(SessionAnswer::TurnEnded { reason: StopReason::EndTurn, .. }))) {
                bound = None;
            }
        }
        if let Some(Ok(SessionAnswer::TurnEnded { reason: StopReason::MaxRounds, meta, .. })) = &answer
            && is_agent
        {
            let is_stuck = meta.as_ref().is_some_and(|meta| meta["epitome"]["stopped"].is_string());
            bound = Some(if is_stuck { AgentLimit::Repeats } else { AgentLimit::Rounds });
        }
        let mut words = None;
        if let (Some(bound), Some(Ok(_))) = (bound, &answer) {
            wraps_up.store(true, Ordering::Relaxed);
            let (sender, last) = oneshot::channel();
            outlet.await_answer(LAST_WORDS, sender);
            let text = format!(
                "You reached your limit of {}. No more calls are run. Report now what you have found and done so \
                 far, and what is missing.",
                bound.what()
            );
            let content = vec![Content::Text { text }];
            let asked =
                SessionCommand::Prompt { ticket: LAST_WORDS, client: ClientId(0), content, key: None };
            if commands.send(asked).await.is_ok() {
                words = tokio::select! {
                    last = last => last.ok(),
                    _ = &mut life => None,
                    () = tokio::time::sleep(LAST_WORDS_TIME) => None,
                };
            }
        }
        drop(commands);
        let kept = outlet.take();
        let (reason, mut usage, failure) = match answer {
            Some(Ok(SessionAnswer::TurnEnded { reason, usage, .. })) => match reason {
                StopReason::EndTurn | StopReason::MaxTokens | StopReason::MaxRounds => (reason, usage, None),
                StopReason::Cancelled if bound.is_some() => (StopReason::MaxRounds, usage, None),
                StopReason::Refusal => (reason, usage, Some("its prompt was declined".to_owned())),
                // Only the user can have cancelled it: a cancel of the parent ends the child entirely.
                StopReason::Cancelled => (reason, usage, Some("the user cancelled it".to_owned())),
                StopReason::Interrupted | StopReason::Failed => {
                    (reason, usage, Some("it was cancelled".to_owned()))
                }
            },
            Some(Err(SessionError::TooLong(why))) => {
                gone.end = SubagentEnd::Failed(why.clone());
                return Err(ChildFailure::TooLong { why, window: kept.window });
            }
            Some(Err(error)) => (StopReason::Failed, Usage::default(), Some(error.to_string())),
            Some(Ok(
                SessionAnswer::Attached { .. }
                | SessionAnswer::Options(_)
                | SessionAnswer::Steered(_)
                | SessionAnswer::Accepted
                | SessionAnswer::Closed,
            )) => (StopReason::Failed, Usage::default(), Some("it ended before it could answer".to_owned())),
            // An agent that does not end its work in time is stopped anyway.
            None if bound.is_some() => (StopReason::MaxRounds, Usage::default(), None),
            None => {
                (StopReason::Failed, Usage::default(), Some("it ended before it could answer".to_owned()))
            }
        };
        gone.end = match (&failure, reason) {
            (None, _) | (Some(_), StopReason::Cancelled | StopReason::Refusal) => {
                SubagentEnd::Stopped(reason)
            }
            (Some(why), _) => SubagentEnd::Failed(why.clone()),
        };
        drop(gone);
        if let Some(why) = &failure
            && !is_agent
        {
            return Err(ChildFailure::Ended(why.clone()));
        }
        if let Some(Ok(SessionAnswer::TurnEnded { usage: last, .. })) = &words {
            usage.add(last);
        }
        let entries = outlet.entries();
        let replies: Vec<String> = entries
            .iter()
            .filter_map(|entry| match &entry.change {
                Change::Replied { message, .. } => Some(message.text()),
                _ => None,
            })
            .collect();
        let rounds = u32::try_from(replies.len()).unwrap_or(u32::MAX);
        // The result of a callback is its last reply. An agent may have been stopped before that reply contained text.
        let has_words = |text: &&String| !is_agent || !text.trim().is_empty();
        let text = replies.iter().rev().find(has_words).cloned().unwrap_or_default();
        let (notices, handed) = (kept.notices, handed.take());
        Ok(ChildOutcome { text, reason, stopped_by: bound, failure, usage, rounds, entries, notices, handed })
    }
}

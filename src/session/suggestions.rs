//! Suggestions for the user's next prompt, for clients that show them: a request to a small model after each turn that
//! ended well. Off by default, because every request costs money. They are not part of the conversation.

use super::actor::Session;
use super::complete::{Completion, CompletionModel};
use epitome_hooks::output::Utterance;
use epitome_thread::visible::visible_line;
use epitome_thread::{Change, Role, Seq, StopReason, Thread};

/// Maximum number of suggestions.
const PROMPTS_MAX: usize = 3;
/// Maximum characters of a suggestion; longer ones are dropped.
const PROMPT_CHARS_MAX: usize = 200;
/// Bytes that the model is shown of the end of the prompt, and of the reply.
const SHOWN_BYTES_MAX: usize = 4 * 1024;
/// Maximum tokens of the model's answer.
const TOKENS_MAX: u32 = 300;
/// Names the cost in the log.
const BY: &str = "prompt suggestions";

const SYSTEM: &str = "You are shown the end of a conversation between a person and a coding agent. Write what the person \
    will probably say next: at most three short instructions in the person's language and from the person's view, one on \
    each line, the most likely first. No numbers, no quotation marks, nothing else. If the work is done and nothing \
    suggests itself, answer with an empty line.";

/// Requests suggestions after a turn, if the user wants them and a client shows them.
pub(super) fn ask(session: &mut Session, reason: StopReason) {
    let core = &session.core;
    let is_wanted = core.settings.prompt_suggestions
        && reason == StopReason::EndTurn
        && core.clients.show_suggestions()
        && !core.lineage.is_child()
        && !session.inbox.has_prompts();
    let Some((at, conversation)) = last_turn(&core.thread).filter(|_| is_wanted) else { return };
    let model = CompletionModel::of(session, true);
    let said = |role, text: &str| Utterance { role, text: text.to_owned() };
    let messages = [said(Role::System, SYSTEM), said(Role::User, &conversation)];
    let asking = async move { model.complete(&messages, TOKENS_MAX, BY.to_owned()).await };
    session.core.start(asking, move |session, answer| came(session, at, answer));
}

/// Shows suggestions that have arrived, unless the user has said something since.
fn came(session: &mut Session, at: Seq, answer: Result<Completion, String>) {
    let is_current = session.work.is_none()
        && !session.inbox.has_prompts()
        && last_turn(&session.core.thread).is_some_and(|(last, _)| last == at);
    match answer {
        Ok(completion) if is_current => session.core.clients.suggest(prompts(&completion.text)),
        Ok(_) => {}
        Err(why) => tracing::info!(session = %session.core.id(), why, "there are no prompt suggestions"),
    }
}

/// The end of the last turn, and what was said in it: its last prompt and its last reply.
fn last_turn(thread: &Thread) -> Option<(Seq, String)> {
    let mut entries = thread.entries().iter().rev();
    let end = entries.find(|entry| matches!(entry.change, Change::TurnEnded { .. }))?.seq;
    let (mut reply, mut prompt) = (String::new(), None);
    for entry in entries {
        match &entry.change {
            Change::Replied { message, .. } if reply.is_empty() => reply = message.text(),
            Change::Said { message, .. } if entry.change.is_said_by_user() => {
                prompt = Some(message.text());
                break;
            }
            _ => {}
        }
    }
    let (prompt, reply) = (prompt?, reply);
    let end_of =
        |text: &str| text[text.ceil_char_boundary(text.len().saturating_sub(SHOWN_BYTES_MAX))..].to_owned();
    (!reply.trim().is_empty()).then(|| {
        (end, format!("The person said:\n{}\n\nThe agent answered:\n{}", end_of(&prompt), end_of(&reply)))
    })
}

/// The suggestions in a model's answer.
fn prompts(answer: &str) -> Vec<String> {
    let lines = answer.lines().map(|line| {
        let text = line.trim().trim_start_matches(|c: char| c.is_ascii_digit() || "-*•.) ".contains(c));
        visible_line(text.trim_matches(['"', '“', '”', '`', ' '])).into_owned()
    });
    lines.filter(|line| (1..=PROMPT_CHARS_MAX).contains(&line.chars().count())).take(PROMPTS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_models_answer_becomes_short_prompts() {
        let answer = "1. Run the tests\n\n- \"Commit this\"\n* `Explain the change`\nOne more\n";
        assert_eq!(prompts(answer), ["Run the tests", "Commit this", "Explain the change"]);
        assert_eq!(prompts(&"x".repeat(PROMPT_CHARS_MAX + 1)), Vec::<String>::new());
        assert_eq!(prompts("\n  \n"), Vec::<String>::new());
    }
}

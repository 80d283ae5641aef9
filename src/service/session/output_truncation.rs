//! Truncates incoming outcomes: one that is too large for its share of the window is cut for the view, and its full
//! text is kept in the log, where `recall` reads it. Pure, except for the session's own numbers.

use super::core::Core;
use super::tool_host::ToolHost;
use epitome_provider::models;
use epitome_recall as recall;
use epitome_secrets::Masker;
use epitome_thread::{Change, OutcomeContent, Seq, Thread, ToolDisplay, ToolOutcome};
use epitome_tokens::Ruler;
use epitome_tools::{task, truncate};

/// Divisor of the window that limits one outcome.
const WINDOW_PART: u64 = 8;

/// Divisor of the free tokens that limits all outcomes of one reply together.
const FREE_PART: u64 = 2;

/// Bytes that are always shown: less would be useless, and this much fits wherever a model can work.
const SHOWN_BYTES_MIN: usize = 1024;

/// Maximum bytes of an outcome in the largest window: a tool's output limit plus room for its remarks.
const SHOWN_BYTES_MAX: usize = truncate::OUTPUT_BYTES_MAX + 1024;

/// Maximum bytes of all full outcome texts in a thread's log: they are read when it is opened, and stay in memory
/// while it is live.
const WHOLES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// How often a text is measured until it fits. Each time it is shortened by its excess.
const MEASURED_MAX: u32 = 4;

/// Bytes per token, for a rough estimate of what earlier outcomes took.
const TOKEN_BYTES: u64 = 3;

/// The limits for the next outcome, in tokens except `keep_bytes`.
#[derive(Clone, Copy, Debug)]
struct OutcomeBudget {
    window: u64,
    /// Free tokens when the calls were made, and how many of them the outcomes since have taken.
    free: u64,
    taken: u64,
    /// Calls without an outcome, including this one.
    open: u64,
    /// Bytes of full text that may still be stored.
    keep_bytes: usize,
}

impl OutcomeBudget {
    /// Tokens that one outcome may take.
    fn share(&self) -> u64 {
        let of_free = (self.free / FREE_PART).saturating_sub(self.taken) / self.open.max(1);
        of_free.min(self.window / WINDOW_PART)
    }
}

/// The source of an outcome. An outcome of `recall` was read from the log and is not stored again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutcomeSource {
    Tool,
    Recall,
    /// A subagent: its text is the report, its full text the agent's work.
    Agent,
}

impl Core {
    /// Bytes that one `recall` may return with the model in use.
    pub(super) fn recall_bytes(&self) -> usize {
        usize::try_from(self.model.window() / WINDOW_PART * TOKEN_BYTES).unwrap_or(usize::MAX)
    }
}

impl ToolHost {
    /// Prepares a change for its commit: an outcome gets the record of who decided about its call, is masked, and is
    /// cut to its share.
    pub(super) fn truncated_outcome(&mut self, core: &mut Core, mut change: Change) -> Change {
        if let Change::ToolFinished { outcome } = &mut change {
            outcome.decided = self.call(&outcome.call).decided.take();
            // Only for texts of hooks: a tool's output was masked when it ended, and may have several megabytes.
            if let Some(masker) = self.masker(core) {
                mask_hook_texts(outcome, &masker);
            }
        }
        match change {
            Change::ToolFinished { outcome } if text_bytes(&outcome) > SHOWN_BYTES_MIN => {
                let name = core.thread.call(&outcome.call).map(|call| call.name.as_str());
                let source = match name {
                    Some(recall::NAME) => OutcomeSource::Recall,
                    Some(task::NAME) => OutcomeSource::Agent,
                    Some(_) | None => OutcomeSource::Tool,
                };
                let room = self.room_for_outcome(core);
                let outcome = cut(&core.ruler(), outcome, source, core.thread.next_seq(), &room);
                Change::ToolFinished { outcome }
            }
            other => other,
        }
    }

    fn room_for_outcome(&mut self, core: &mut Core) -> OutcomeBudget {
        let used = core.tokens_in_context();
        let (window, max_output) = match core.model.endpoint() {
            Some(endpoint) => (endpoint.window, u64::from(endpoint.max_output)),
            None => (models::WINDOW_DEFAULT, 0),
        };
        let taken = taken(&core.thread);
        let free = window.saturating_sub(used + max_output.min(window / 4)) + taken;
        let open = core.thread.open_calls().len() as u64;
        let keep_bytes = WHOLES_BYTES_MAX.saturating_sub(self.stored_bytes(&core.thread));
        OutcomeBudget { window, free, taken, open, keep_bytes }
    }
}

/// Masks keys in all texts of an outcome.
pub(super) fn mask(outcome: &mut ToolOutcome, masker: &Masker) {
    mask_hook_texts(outcome, masker);
    for shown in &mut outcome.shown {
        match shown {
            ToolDisplay::Text { text } => drop(masker.mask_in(text)),
            ToolDisplay::Diff { old, new, .. } => {
                masker.mask_in(new);
                old.as_mut().map(|old| masker.mask_in(old));
            }
        }
    }
    outcome.whole.as_mut().map(|whole| masker.mask_in(whole));
}

/// Masks keys in the texts that a hook can set: those that the model reads, and the raw result.
fn mask_hook_texts(outcome: &mut ToolOutcome, masker: &Masker) {
    for content in &mut outcome.content {
        match content {
            OutcomeContent::Text { text } => drop(masker.mask_in(text)),
            OutcomeContent::Image { .. } | OutcomeContent::Document { .. } => {}
        }
    }
    outcome.raw.as_mut().map(|raw| masker.mask_json(raw));
}

/// Estimated tokens of the outcomes that follow the newest reply.
fn taken(thread: &Thread) -> u64 {
    let newest = thread.view().entries().iter().rev().map_while(|entry| match &entry.change {
        Change::ToolFinished { outcome } => Some(outcome.model_text().len() as u64),
        _ => None,
    });
    newest.sum::<u64>() / TOKEN_BYTES
}

/// Bytes of an outcome's text, shown or not.
fn text_bytes(outcome: &ToolOutcome) -> usize {
    outcome.whole.as_ref().map_or(0, String::len).max(outcome.model_text().len())
}

/// Cuts an outcome to its share. One that fits stays as it is.
fn cut(
    ruler: &Ruler,
    mut outcome: ToolOutcome,
    source: OutcomeSource,
    entry: Seq,
    room: &OutcomeBudget,
) -> ToolOutcome {
    let work = outcome.whole.take_if(|_| source == OutcomeSource::Agent);
    let was_part = outcome.whole.is_some();
    let text = all_text(&outcome);
    outcome.whole = None;
    let keep = text.len().min(room.keep_bytes).min(truncate::WHOLE_BYTES_MAX);
    let is_kept = match source {
        OutcomeSource::Tool => keep == text.len() || keep > SHOWN_BYTES_MAX,
        OutcomeSource::Agent => work.as_ref().is_some_and(|work| work.len() <= room.keep_bytes),
        OutcomeSource::Recall => false,
    };
    let rest = match source {
        OutcomeSource::Recall => "recall less at once, with `limit`".to_owned(),
        OutcomeSource::Tool | OutcomeSource::Agent if is_kept => {
            format!("recall with entry \"{entry}\" reads all of it")
        }
        OutcomeSource::Tool | OutcomeSource::Agent => "it is not stored; ask for less at once".to_owned(),
    };
    if source == OutcomeSource::Agent {
        // The report is at the end of the work.
        if let Some(shown) = fitting(ruler, &text, room.share(), &rest) {
            outcome = with_text(outcome, shown);
        }
        outcome.whole = work.filter(|_| is_kept);
        return outcome;
    }
    match fitting(ruler, &text, room.share(), &rest) {
        Some(shown) => {
            if is_kept {
                outcome.whole = Some(truncate::head_and_tail(&text, keep, keep / 2, truncate::KEPT_NOWHERE));
            }
            with_text(outcome, shown)
        }
        None if was_part => with_text(outcome, text),
        None => outcome,
    }
}

/// The text cut to a share; `None` if all of it fits.
fn fitting(ruler: &Ruler, text: &str, share: u64, rest: &str) -> Option<String> {
    let mut bytes = SHOWN_BYTES_MAX;
    for _ in 0..MEASURED_MAX {
        let is_whole = text.len() <= bytes;
        let cut = truncate::head_and_tail(text, bytes, head_of(bytes), rest);
        // A token is at least one byte.
        let tokens = if cut.len() as u64 <= share { 0 } else { ruler.text(&cut) };
        if tokens <= share || bytes == SHOWN_BYTES_MIN {
            return (!is_whole).then_some(cut);
        }
        let next = bytes.min(text.len()) as u64 * share / tokens;
        bytes = usize::try_from(next).unwrap_or(usize::MAX).min(bytes - 1).max(SHOWN_BYTES_MIN);
    }
    Some(truncate::head_and_tail(text, bytes, head_of(bytes), rest)).filter(|_| text.len() > bytes)
}

/// Bytes of the head in a cut text, in the same proportion as in the largest one.
fn head_of(bytes: usize) -> usize {
    bytes * truncate::OUTPUT_HEAD_BYTES / truncate::OUTPUT_BYTES_MAX
}

/// Joins all texts: the tool's full text, and the hooks' remarks about the call.
fn all_text(outcome: &ToolOutcome) -> String {
    let mut texts: Vec<&str> = outcome.content.iter().filter_map(OutcomeContent::as_text).collect();
    if let (Some(whole), Some(first)) = (&outcome.whole, texts.first_mut()) {
        *first = whole;
    }
    texts.join("\n")
}

/// Replaces all texts by one; images and documents stay.
fn with_text(mut outcome: ToolOutcome, text: String) -> ToolOutcome {
    outcome.content.retain(|content| !matches!(content, OutcomeContent::Text { .. }));
    outcome.content.insert(0, OutcomeContent::Text { text });
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_thread::{CallId, OutcomeStatus};

    const LARGE: OutcomeBudget =
        OutcomeBudget { window: 200_000, free: 180_000, taken: 0, open: 1, keep_bytes: WHOLES_BYTES_MAX };

    fn outcome(text: String) -> ToolOutcome {
        ToolOutcome::text(CallId("c".to_owned()), OutcomeStatus::Completed, text)
    }

    fn arrives(outcome: ToolOutcome, room: &OutcomeBudget) -> ToolOutcome {
        cut(&Ruler::for_model(None), outcome, OutcomeSource::Tool, Seq(7), room)
    }

    #[test]
    fn an_outcome_has_its_part_of_the_window_and_of_what_is_free() {
        for (story, room, share) in [
            ("alone in an empty window", LARGE, 25_000),
            ("one of four", OutcomeBudget { open: 4, ..LARGE }, 22_500),
            ("the last of four", OutcomeBudget { open: 1, taken: 67_500, ..LARGE }, 22_500),
            ("those before took all", OutcomeBudget { taken: 100_000, ..LARGE }, 0),
            ("a small window", OutcomeBudget { window: 8_000, free: 6_000, ..LARGE }, 1_000),
            ("nearly full", OutcomeBudget { free: 1_000, ..LARGE }, 500),
        ] {
            assert_eq!(room.share(), share, "{story}");
        }
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let mut image = outcome("A picture.".to_owned());
        image.content.insert(0, OutcomeContent::Image { mime_type: "image/png".into(), data: "aGk=".into() });
        for small in [outcome("all is well\n".repeat(1_000)), outcome(String::new()), image] {
            assert_eq!(arrives(small.clone(), &LARGE), small);
        }
        let full = OutcomeBudget { free: 0, ..LARGE };
        let short = outcome("x".repeat(SHOWN_BYTES_MIN));
        assert_eq!(arrives(short.clone(), &full), short);
    }

    #[test]
    fn the_view_gets_head_and_tail_and_the_log_all_of_it() {
        let lines: Vec<String> = (0..20_000).map(|number| format!("line {number} of the build\n")).collect();
        let text = lines.concat();
        for (room, bytes) in [
            (LARGE, SHOWN_BYTES_MAX + 200),
            (OutcomeBudget { window: 16_000, ..LARGE }, 12_000),
            (OutcomeBudget { free: 0, ..LARGE }, 1_300),
        ] {
            let cut = arrives(outcome(text.clone()), &room);
            let shown = cut.model_text();
            assert!(shown.len() <= bytes && shown.len() > bytes / 3, "{} of {bytes}", shown.len());
            assert!(shown.starts_with("line 0 of") && shown.ends_with("line 19999 of the build\n"));
            assert!(shown.contains("recall with entry \"e7\" reads all of it"), "{shown}");
            assert_eq!(cut.whole.as_deref(), Some(text.as_str()));
            let tokens = Ruler::for_model(None).text(&shown);
            assert!(tokens <= room.share().max(SHOWN_BYTES_MIN as u64), "{tokens} tokens");
        }
    }

    #[test]
    fn what_a_tool_kept_whole_and_what_hooks_said_of_the_call_come_together() {
        let mut part = outcome("the beginning […] the end".to_owned());
        part.whole = Some("word ".repeat(20_000));
        part.content.push(OutcomeContent::Text { text: "A hook's note.".to_owned() });
        let cut = arrives(part, &LARGE);
        assert!(cut.model_text().ends_with("\nA hook's note."));
        assert_eq!(cut.whole, Some("word ".repeat(20_000) + "\nA hook's note."));

        let mut fits = outcome("the beginning […]".to_owned());
        fits.whole = Some("all of it".to_owned());
        assert_eq!(arrives(fits, &LARGE), outcome("all of it".to_owned()));
    }

    #[test]
    fn what_is_kept_is_bounded_and_says_so() {
        let text = "0123456789abcde\n".repeat(truncate::WHOLE_BYTES_MAX / 16 + 1_000);
        let whole = arrives(outcome(text.clone()), &LARGE).whole.expect("it is kept");
        assert!(whole.len() < truncate::WHOLE_BYTES_MAX + 200 && whole.contains(truncate::KEPT_NOWHERE));

        let full = OutcomeBudget { keep_bytes: 100, ..LARGE };
        let cut = arrives(outcome(text.clone()), &full);
        assert_eq!(cut.whole, None);
        assert!(cut.model_text().contains("not stored"));

        let recalled =
            super::cut(&Ruler::for_model(None), outcome(text), OutcomeSource::Recall, Seq(7), &LARGE);
        assert_eq!(recalled.whole, None, "it is in the log already");
        assert!(recalled.model_text().contains("`limit`"));
    }
}

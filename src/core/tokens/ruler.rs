//! Counts the tokens of a request to a model. Pure.

use std::fmt;
use std::sync::Arc;

use super::adjust::{adjust, margin_percent};
use super::calibration::Calibration;
use super::counter::Count;
use super::estimate::estimate;
use super::media;
use super::tally::Tally;
use crate::model_name::Family;
use epitome_thread::{
    Change, Content, ContextSizes, Entry, Message, ModelName, Native, OutcomeContent, Seq, Thread,
    ToolOutcome, ToolSpec, View, ViewEdit,
};

/// Tokens of a message, call or tool in addition to its text.
const MESSAGE_TOKENS: u64 = 4;

/// Bytes of an encrypted form per token, as for plain text; the actual encoding is not known.
const SEALED_BYTES_PER_TOKEN: u64 = 4;

/// The possible excess over an estimate, in percent: estimates are within a fifth of a count.
const ESTIMATE_MARGIN_PERCENT: u64 = 25;

/// The possible excess over Epitome's count, in percent, even after the model has replied: no ratio is right for
/// every kind of text, and smaller vocabularies need 5 % more tokens for base64.
const KIND_MARGIN_PERCENT: u64 = 6;

/// Counts tokens for a model. Cheap to clone.
///
/// Results are in the model's tokens, if its calibration is known. The `tally_…` functions return unscaled sizes, for
/// callers that cache them: a calibration changes with each reply.
#[derive(Clone, Debug)]
pub struct Ruler {
    /// `None` if no model is chosen; the ruler then accepts the reports of any model.
    model: Option<ModelName>,
    family: Family,
    calibration: Calibration,
    /// If `None`, text is estimated.
    vocabulary: Option<Arc<dyn ExactCounter>>,
}

/// Counts the tokens of a text. Behind a trait, so that programs that only estimate don't contain a tokenizer.
pub trait ExactCounter: fmt::Debug + Send + Sync {
    fn count(&self, text: &str) -> u64;
}

impl Ruler {
    /// The ruler for a model before its first reply; `None` if no model is chosen.
    pub fn for_model(model: Option<&ModelName>) -> Ruler {
        let family = model.map_or(Family::Other, |model| Family::detect(&model.0));
        Ruler { model: model.cloned(), family, calibration: Calibration::start(family), vocabulary: None }
    }

    /// Uses the calibration learned from the model's replies.
    pub fn calibrated(self, calibration: Calibration) -> Ruler {
        Ruler { calibration, ..self }
    }

    /// Uses a vocabulary, if available.
    pub fn exact(self, vocabulary: Option<Arc<dyn ExactCounter>>) -> Ruler {
        Ruler { vocabulary, ..self }
    }

    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    pub fn text(&self, text: &str) -> u64 {
        self.fit(self.tally_text(text))
    }

    /// Tokens of a message in a request.
    pub fn message(&self, message: &Message) -> u64 {
        self.fit(self.tally_message(message))
    }

    /// Tokens of an entry in a request; zero if it is not in the model's view.
    pub fn entry(&self, entry: &Entry) -> u64 {
        self.fit(self.tally_entry(entry))
    }

    /// Tokens of a view, without the frame.
    pub fn view(&self, view: &View) -> u64 {
        view.entries().iter().map(|entry| self.entry(entry)).sum()
    }

    /// Tokens of the system prompt and the tool definitions.
    pub fn frame(&self, system: &str, tools: &[ToolSpec]) -> u64 {
        self.fit(self.tally_frame(system, tools))
    }

    /// Tokens of a thread's frame; zero before its first model call.
    pub fn frame_of(&self, thread: &Thread) -> u64 {
        thread.frame().map_or(0, |(system, tools)| self.frame(system, tools))
    }

    /// Estimated tokens of the images and documents in a thread's view.
    pub fn media_of(&self, thread: &Thread) -> u64 {
        thread.view().entries().iter().map(|entry| self.tally_entry(entry).media).sum()
    }

    /// Returns the tokens of the next request: the size that the log contains for the context up to an entry, if the
    /// view has only grown since, plus a count of everything after it.
    pub fn in_context(&self, thread: &Thread) -> u64 {
        let (from, known) = match self.known(thread) {
            Some((at, tokens)) => (Some(at), tokens),
            None => (None, self.request_overhead(thread)),
        };
        let behind = thread.view().entries().iter().filter(|entry| Some(entry.seq) > from);
        known + behind.map(|entry| self.entry(entry)).sum::<u64>()
    }

    /// Returns the tokens of the next request after a change of the view, given the tokens `now` and Epitome's count
    /// of the view `before` and `after`.
    ///
    /// Epitome's count may differ from the provider's by the same amount before and after, so only the difference
    /// matters. If the provider counts less, the difference is scaled down accordingly; otherwise, a view that
    /// shrinks could seem to need nothing.
    pub fn in_context_then(&self, thread: &Thread, now: u64, (before, after): (u64, u64)) -> u64 {
        let ours = self.request_overhead(thread).saturating_add(before).max(1);
        let gone = before.saturating_sub(after);
        let scaled = u128::from(gone) * u128::from(now) / u128::from(ours);
        let gone = u64::try_from(scaled).unwrap_or(u64::MAX).min(gone);
        now.saturating_sub(gone).saturating_add(after.saturating_sub(before))
    }

    /// Tokens of each request of a thread in addition to its view.
    fn request_overhead(&self, thread: &Thread) -> u64 {
        match thread.frame() {
            Some((system, tools)) => self.calibration.overhead() + self.frame(system, tools),
            None => 0,
        }
    }

    /// Returns the largest likely size of a request, for deciding whether it fits. Tokens reported by the provider
    /// are certain; the margin on Epitome's count is larger before the model has replied.
    pub fn at_most(&self, count: Count) -> u64 {
        let of_text = if self.is_exact() { 0 } else { ESTIMATE_MARGIN_PERCENT };
        let of_model = if self.calibration.is_learnt() { 0 } else { margin_percent(self.family) };
        let margin = count.counted.saturating_mul(KIND_MARGIN_PERCENT + of_text + of_model) / 100;
        count.tokens().saturating_add(margin)
    }

    /// Returns the newest entry for which the provider reported the context size, with that size, if it is for this
    /// model and the view has only grown since. `None` after a compaction or a change of model.
    pub(super) fn reported(&self, thread: &Thread) -> Option<(Seq, u64)> {
        thread.newest_unchanged(|entry| self.report(entry))
    }

    /// Like `reported`, but also accepts the size stored by a compaction, as shown to clients.
    pub(super) fn known(&self, thread: &Thread) -> Option<(Seq, u64)> {
        thread.newest_unchanged(|entry| match entry.change.context_sizes() {
            Some(ContextSizes { after, window: Some(_), .. }) => {
                self.was_used_at(thread, entry.seq).then_some(after)
            }
            _ => self.report(entry),
        })
    }

    fn report(&self, entry: &Entry) -> Option<u64> {
        let Change::Replied { model, usage: Some(usage), .. } = &entry.change else { return None };
        self.is_of(model).then(|| usage.input_context().saturating_add(usage.output))
    }

    /// Whether the thread used this model when the entry was added.
    fn was_used_at(&self, thread: &Thread, entry: Seq) -> bool {
        let before = thread.entries().before(entry).rev();
        let mut models = before.filter_map(|other| match &other.change {
            Change::Replied { model, .. } | Change::ModelChosen { model } => Some(model),
            _ => None,
        });
        models.next().is_none_or(|model| self.is_of(model))
    }

    fn is_of(&self, model: &ModelName) -> bool {
        self.model.as_ref().is_none_or(|own| own == model)
    }

    /// Whether text is counted instead of estimated.
    pub fn is_exact(&self) -> bool {
        self.vocabulary.is_some()
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// Scales a tally to the model's tokens.
    pub fn fit(&self, tally: Tally) -> u64 {
        self.calibration.fit(tally)
    }

    pub fn tally_frame(&self, system: &str, tools: &[ToolSpec]) -> Tally {
        let tools = tools.iter().map(|tool| {
            self.tally_text(&tool.name)
                + self.tally_text(&tool.description)
                + self.tally_text(&tool.schema.to_string())
                + Tally::from_text(MESSAGE_TOKENS)
        });
        self.tally_text(system) + tools.sum()
    }

    pub fn tally_entry(&self, entry: &Entry) -> Tally {
        match &entry.change {
            Change::Said { message, .. } | Change::Replied { message, .. } => self.tally_message(message),
            Change::Compacted { summary, .. } => self.tally_message(summary),
            Change::ToolFinished { outcome } => self.tally_outcome(outcome),
            // Occurs only in a log; the view contains the messages.
            Change::Edited { edits, .. } => edits
                .iter()
                .filter_map(|edit| match edit {
                    ViewEdit::Append { message, .. } => Some(self.tally_message(message)),
                    ViewEdit::Pin { .. }
                    | ViewEdit::Unpin { .. }
                    | ViewEdit::Mask { .. }
                    | ViewEdit::Drop { .. }
                    | ViewEdit::Replace { .. } => None,
                })
                .sum(),
            _ => Tally::default(),
        }
    }

    fn tally_message(&self, message: &Message) -> Tally {
        let parts = message.content.iter().map(|content| match content {
            Content::Text { text } => self.tally_text(text),
            Content::Thinking { text, native } => match native {
                Some(native) => self.tally_text(text) + tally_sealed(native),
                None => Tally::default(),
            },
            Content::Search(search) => match &search.native {
                Some(native) => self.tally_text(&search.text()) + tally_sealed(native),
                None => self.tally_text(&search.text()),
            },
            Content::Image { data, .. } => self.tally_image(data),
            Content::Document { data, .. } => self.tally_document(data),
            Content::Resource { uri, text } => self.tally_text(uri) + self.tally_text(text),
            Content::ResourceLink { uri, name } => self.tally_text(uri) + self.tally_text(name),
            Content::Call(call) => {
                let input = self.tally_text(&call.input.to_string());
                self.tally_text(&call.name) + input + Tally::from_text(MESSAGE_TOKENS)
            }
        });
        Tally::from_text(MESSAGE_TOKENS) + parts.sum()
    }

    /// Tallies the thinking in an entry.
    pub(super) fn tally_thinking(&self, entry: &Entry) -> Tally {
        let Change::Replied { message, .. } = &entry.change else { return Tally::default() };
        let parts = message.content.iter().map(|content| match content {
            Content::Thinking { text, native: Some(native) } => self.tally_text(text) + tally_sealed(native),
            _ => Tally::default(),
        });
        parts.sum()
    }

    fn tally_outcome(&self, outcome: &ToolOutcome) -> Tally {
        let parts = outcome.content.iter().map(|content| match content {
            OutcomeContent::Text { text } => self.tally_text(text),
            OutcomeContent::Image { data, .. } => self.tally_image(data),
            OutcomeContent::Document { data, .. } => self.tally_document(data),
        });
        Tally::from_text(MESSAGE_TOKENS) + parts.sum()
    }

    fn tally_text(&self, text: &str) -> Tally {
        let tokens = match &self.vocabulary {
            Some(vocabulary) => vocabulary.count(text),
            None => estimate(text),
        };
        Tally::from_text(adjust(self.family, text, tokens))
    }

    fn tally_document(&self, data: &str) -> Tally {
        Tally::from_media(media::document_tokens(self.family, data))
    }

    fn tally_image(&self, data: &str) -> Tally {
        Tally::from_media(media::image_tokens(self.family, data))
    }
}

/// Tallies a conversation in a provider's encrypted form: base64 of bytes that count like text. The readable part is
/// stored separately and counted there.
fn tally_sealed(native: &Native) -> Tally {
    let letters = native.data["compaction"]["encrypted_content"].as_str().map_or(0, str::len);
    Tally::from_text(letters as u64 * 3 / 4 / SEALED_BYTES_PER_TOKEN)
}

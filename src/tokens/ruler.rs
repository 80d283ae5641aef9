//! Counts what a request to one model takes. Pure: data in, number out.

use std::sync::Arc;

use super::adjust::{adjust, margin_percent};
use super::calibration::Calibration;
use super::counter::Count;
use super::estimate::estimate;
use super::media;
use super::tally::Tally;
use super::vocabulary::Vocabulary;
use crate::family::Family;
use epitome_thread::{
    Change, Content, Edit, Entry, Message, ModelName, Native, OutcomeContent, Seq, Thread, ToolOutcome,
    ToolSpec, View,
};

/// Tokens that the frame of a message, a call or a tool takes beside its text.
const MESSAGE_TOKENS: u64 = 4;

/// Bytes of a sealed form for each of its tokens, as of plain text; how it is packed is not known.
const SEALED_BYTES_PER_TOKEN: u64 = 4;

/// What a text may take more than its estimate, in per cent: an estimate is within a fifth of a count.
const ESTIMATE_MARGIN_PERCENT: u64 = 25;

/// What a text may take more than what we count, in per cent, also where the model has answered: no ratio
/// holds for each kind of text, and of base64 smaller vocabularies make 5 % more than ours.
const KIND_MARGIN_PERCENT: u64 = 6;

/// What a model's tokens are counted with. Cheap to clone.
///
/// All numbers are the model's tokens as far as they are known. `tally_…` are those before the fit, for
/// who keeps them: a calibration changes with each reply.
#[derive(Clone, Debug)]
pub struct Ruler {
    /// `None` where no model is chosen, and for any.
    model: Option<ModelName>,
    family: Family,
    calibration: Calibration,
    /// Without it, text is estimated.
    vocabulary: Option<Arc<Vocabulary>>,
}

impl Ruler {
    /// The ruler of a model that has not answered yet; `None` where no model is chosen.
    pub fn of(model: Option<&ModelName>) -> Ruler {
        let family = model.map_or(Family::Other, |model| Family::of(&model.0));
        Ruler { model: model.cloned(), family, calibration: Calibration::start(family), vocabulary: None }
    }

    /// With what was learnt from the model's replies.
    pub fn calibrated(self, calibration: Calibration) -> Ruler {
        Ruler { calibration, ..self }
    }

    /// With a vocabulary, where there is one.
    pub fn exact(self, vocabulary: Option<Arc<Vocabulary>>) -> Ruler {
        Ruler { vocabulary, ..self }
    }

    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    pub fn text(&self, text: &str) -> u64 {
        self.fit(self.tally_text(text))
    }

    /// What a message takes in a request.
    pub fn message(&self, message: &Message) -> u64 {
        self.fit(self.tally_message(message))
    }

    /// What an entry takes in a request; nothing, where the model does not see it.
    pub fn entry(&self, entry: &Entry) -> u64 {
        self.fit(self.tally_entry(entry))
    }

    /// A whole view, without the frame.
    pub fn view(&self, view: &View) -> u64 {
        view.entries().iter().map(|entry| self.entry(entry)).sum()
    }

    /// The system text and the tools.
    pub fn frame(&self, system: &str, tools: &[ToolSpec]) -> u64 {
        self.fit(self.tally_frame(system, tools))
    }

    /// The frame of a thread; nothing before its first reply.
    pub fn frame_of(&self, thread: &Thread) -> u64 {
        thread.frame().map_or(0, |(system, tools)| self.frame(system, tools))
    }

    /// The tokens of the images and documents of a thread's view, as we suppose them to be.
    pub fn media_of(&self, thread: &Thread) -> u64 {
        thread.view().entries().iter().map(|entry| self.tally_entry(entry).media).sum()
    }

    /// The tokens that the next request takes: what the log says of the context up to and with an entry, where the view
    /// has only grown since, and a count of what came behind it.
    pub fn in_context(&self, thread: &Thread) -> u64 {
        let (from, known) = match self.known(thread) {
            Some((at, tokens)) => (Some(at), tokens),
            None => (None, self.around(thread)),
        };
        let behind = thread.view().entries().iter().filter(|entry| Some(entry.seq) > from);
        known + behind.map(|entry| self.entry(entry)).sum::<u64>()
    }

    /// The tokens that the next request takes, of `now`, once what the view takes is no longer `before` but `after`, by
    /// our count of both.
    ///
    /// What a provider counts otherwise than we do is the same in both, so that their difference is what counts. Where
    /// it counts less than we do, so much less of it goes: else a view that shrinks could seem to take nothing.
    pub fn in_context_then(&self, thread: &Thread, now: u64, (before, after): (u64, u64)) -> u64 {
        let ours = self.around(thread).saturating_add(before).max(1);
        let gone = before.saturating_sub(after);
        let scaled = u128::from(gone) * u128::from(now) / u128::from(ours);
        let gone = u64::try_from(scaled).unwrap_or(u64::MAX).min(gone);
        now.saturating_sub(gone).saturating_add(after.saturating_sub(before))
    }

    /// What each request of a thread takes beside its view.
    fn around(&self, thread: &Thread) -> u64 {
        match thread.frame() {
            Some((system, tools)) => self.calibration.overhead() + self.frame(system, tools),
            None => 0,
        }
    }

    /// What a request takes at most, as far as one can know: for who decides whether it fits. Of what the
    /// provider reported nothing is doubtful, of what we count more so before the model has answered.
    pub fn at_most(&self, count: Count) -> u64 {
        let of_text = if self.is_exact() { 0 } else { ESTIMATE_MARGIN_PERCENT };
        let of_model = if self.calibration.is_learnt() { 0 } else { margin_percent(self.family) };
        let margin = count.counted.saturating_mul(KIND_MARGIN_PERCENT + of_text + of_model) / 100;
        count.tokens().saturating_add(margin)
    }

    /// The newest entry of which the provider reported what the context takes up to and with it, if it is this model's
    /// and the view has only grown since: behind a compaction or a change of model there is none.
    pub(super) fn reported(&self, thread: &Thread) -> Option<(Seq, u64)> {
        thread.newest_unchanged(|entry| self.report(entry))
    }

    /// The same, where what a compaction has made of such a number counts as well, as clients were shown it.
    pub(super) fn known(&self, thread: &Thread) -> Option<(Seq, u64)> {
        thread.newest_unchanged(|entry| match &entry.change {
            Change::Compacted { tokens_after, window: Some(_), .. }
            | Change::Pruned { tokens_after, window: Some(_), .. }
            | Change::Mutated { tokens_after, window: Some(_), .. } => {
                self.was_used_at(thread, entry.seq).then_some(*tokens_after)
            }
            _ => self.report(entry),
        })
    }

    fn report(&self, entry: &Entry) -> Option<u64> {
        let Change::Replied { model, usage: Some(usage), .. } = &entry.change else { return None };
        self.is_of(model).then(|| usage.input.saturating_add(usage.output))
    }

    /// Whether the model of the thread was this one when the entry was made.
    fn was_used_at(&self, thread: &Thread, entry: Seq) -> bool {
        let before = thread.entries().iter().rev().skip_while(|other| other.seq >= entry);
        let mut models = before.into_iter().filter_map(|other| match &other.change {
            Change::Replied { model, .. } | Change::ModelChosen { model } => Some(model),
            _ => None,
        });
        models.next().is_none_or(|model| self.is_of(model))
    }

    fn is_of(&self, model: &ModelName) -> bool {
        self.model.as_ref().is_none_or(|own| own == model)
    }

    /// Whether text is counted and not estimated.
    pub fn is_exact(&self) -> bool {
        self.vocabulary.is_some()
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    /// The model's tokens for a tally.
    pub fn fit(&self, tally: Tally) -> u64 {
        self.calibration.fit(tally)
    }

    pub fn tally_frame(&self, system: &str, tools: &[ToolSpec]) -> Tally {
        let tools = tools.iter().map(|tool| {
            self.tally_text(&tool.name)
                + self.tally_text(&tool.description)
                + self.tally_text(&tool.schema.to_string())
                + Tally::of_text(MESSAGE_TOKENS)
        });
        self.tally_text(system) + tools.sum()
    }

    pub fn tally_entry(&self, entry: &Entry) -> Tally {
        match &entry.change {
            Change::Said { message, .. } | Change::Replied { message, .. } => self.tally_message(message),
            Change::Compacted { summary, .. } => self.tally_message(summary),
            Change::ToolFinished { outcome } => self.tally_outcome(outcome),
            // In a log; the view has them as messages.
            Change::Edited { edits, .. } => edits.iter().map(|edit| self.tally_edit(edit)).sum(),
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
            Content::Image { data, .. } => self.tally_image(data),
            Content::Document { data, .. } => self.tally_document(data),
            Content::Resource { uri, text } => self.tally_text(uri) + self.tally_text(text),
            Content::ResourceLink { uri, name } => self.tally_text(uri) + self.tally_text(name),
            Content::Call(call) => {
                let input = self.tally_text(&call.input.to_string());
                self.tally_text(&call.name) + input + Tally::of_text(MESSAGE_TOKENS)
            }
        });
        Tally::of_text(MESSAGE_TOKENS) + parts.sum()
    }

    fn tally_outcome(&self, outcome: &ToolOutcome) -> Tally {
        let parts = outcome.content.iter().map(|content| match content {
            OutcomeContent::Text { text } => self.tally_text(text),
            OutcomeContent::Image { data, .. } => self.tally_image(data),
            OutcomeContent::Document { data, .. } => self.tally_document(data),
        });
        Tally::of_text(MESSAGE_TOKENS) + parts.sum()
    }

    /// What an edit adds at the end of the view.
    fn tally_edit(&self, edit: &Edit) -> Tally {
        match edit {
            Edit::Append { message, .. } => self.tally_message(message),
            Edit::Pin { .. }
            | Edit::Unpin { .. }
            | Edit::Mask { .. }
            | Edit::Drop { .. }
            | Edit::Replace { .. } => Tally::default(),
        }
    }

    fn tally_text(&self, text: &str) -> Tally {
        let tokens = match &self.vocabulary {
            Some(vocabulary) => vocabulary.count(text),
            None => estimate(text),
        };
        Tally::of_text(adjust(self.family, text, tokens))
    }

    fn tally_document(&self, data: &str) -> Tally {
        Tally::of_media(media::of_document(self.family, data))
    }

    fn tally_image(&self, data: &str) -> Tally {
        Tally::of_media(media::of_image(self.family, data))
    }
}

/// What its provider has made of a conversation in a form that nobody else reads: of four letters of it three
/// are bytes, and those take what text takes. What can be read of it stands beside it and is counted there.
fn tally_sealed(native: &Native) -> Tally {
    let letters = native.data["compaction"]["encrypted_content"].as_str().map_or(0, str::len);
    Tally::of_text(letters as u64 * 3 / 4 / SEALED_BYTES_PER_TOKEN)
}

//! A pause in which the provider forgets the conversation: the first request after it reads everything anew. While the
//! cache is warm, a summary is cheap, so a compaction is offered or made then (`compaction.before_break`).

use std::sync::Arc;
use std::time::Duration;

use super::Session;
use crate::background::BackgroundResult;
use crate::commands;
use crate::cpu_worker;
use crate::responder::{QueuedPrompt, Responder};
use crate::{Attachment, EventSink, NoticeSeverity, SessionEvent, Ticket};
use epitome_compaction::{self as compaction, Budget, CompactionRequest, KeptTail, Preview};
use epitome_config::BeforeBreak;
use epitome_thread::{Content, Seq, SessionId, Trigger};

/// How long before the provider forgets the conversation the session acts. A summary may take that long.
const MARGIN: Duration = Duration::from_secs(60);

/// The command that the session gives itself.
const COMMAND: &str = "/compact";

/// Receives the answer to that command.
struct NobodyWaits;

impl EventSink for NobodyWaits {
    fn put(&self, _: &SessionId, _: SessionEvent) {}
}

impl Session {
    /// A turn ended with this entry as the next one: waits until the provider is about to forget the conversation.
    pub(super) fn watch_cache(&mut self, at: Seq) {
        let is_off = self.core.settings.compaction.before_break == BeforeBreak::Nothing;
        let kept = self.core.model.endpoint().and_then(|endpoint| endpoint.cache_lifetime());
        let Some(kept) = kept.filter(|_| !is_off && !self.core.lineage.is_child()) else { return };
        let pause = kept.saturating_sub(MARGIN).min(self.core.services.suspend_after);
        self.core.start(tokio::time::sleep(pause), move |()| BackgroundResult::CacheExpires { at });
    }

    fn is_paused_since(&self, at: Seq) -> bool {
        self.work.is_none() && !self.inbox.has_prompts() && self.core.thread.next_seq() == at
    }

    pub(super) fn preview_before_break(&mut self, at: Seq) {
        if !self.is_paused_since(at) {
            return;
        }
        let request = CompactionRequest {
            trigger: Trigger::Manual,
            keep: KeptTail::default(),
            focus: None,
            summary: true,
        };
        let used = Some(self.core.tokens_in_context());
        let (ruler, thread) = (self.core.ruler(), self.core.thread.clone());
        let budget = Budget { used, ..self.core.budget(None) };
        let previewing = move || (compaction::preview(&ruler, &thread, &budget, &request), budget);
        self.core.start(cpu_worker::run(previewing), move |previewed| match previewed {
            Some((preview, budget)) => BackgroundResult::BreakPreviewed { at, budget, preview },
            None => BackgroundResult::Done,
        });
    }

    pub(super) fn before_break(&mut self, at: Seq, budget: &Budget, preview: &Preview) {
        let Some(client) = self.core.clients.ids().next().filter(|_| self.is_paused_since(at)) else {
            return;
        };
        let Some(offer) = commands::offer_before_break(&mut self.core, preview, budget) else { return };
        if self.core.settings.compaction.before_break == BeforeBreak::Offer {
            return self.core.notify(NoticeSeverity::Info, format!("{offer} {COMMAND} does that."));
        }
        self.core.notify(NoticeSeverity::Info, format!("{offer} It is compacted now; /undo takes it back."));
        let attachment = Attachment { client, outlet: Arc::new(NobodyWaits) };
        let content = vec![Content::Text { text: COMMAND.to_owned() }];
        let responder = Responder::new(Ticket(0), self.core.id().clone(), attachment);
        self.prompt(QueuedPrompt { responder, client, content });
    }
}

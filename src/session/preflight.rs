//! Whether a provider takes a request: what is asked before a call that may be too long, and what is done
//! about thinking that it would not take back.

use super::core::Core;
use super::effects::Counting;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::Http;
use epitome_provider::wire::Purpose;
use epitome_provider::{ProviderError, count};
use epitome_thread::{Change, Content, Seq};

/// From this share of the room on, in per cent, an estimate is not enough: it may be wrong by the rest.
const RISKY_PERCENT: u64 = 90;

impl Core {
    /// Leaves the model's own thinking out of all requests from now on, as the provider would not take it
    /// back. `false` where none was sent: then that is not what is wrong, and asking again is no use.
    pub(super) fn drop_thinking(&mut self, error: &ProviderError) -> bool {
        let is_own = |content: &Content| matches!(content, Content::Thinking { native: Some(_), .. });
        let sent = self.thread.view().entries().iter().any(|entry| match &entry.change {
            Change::Replied { message, .. } | Change::Compacted { summary: message, .. } => {
                message.content.iter().any(is_own)
            }
            _ => false,
        });
        let through = Seq(self.thread.next_seq().0.saturating_sub(1));
        let dropped = Change::ThinkingDropped { through, why: error.message.clone() };
        sent && match self.commit(dropped) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(session = %self.id(), %error, "that thinking is dropped could not be written");
                false
            }
        }
    }
}

impl Core {
    /// The count to make before a call, where the request may not fit, the provider tells, and a compaction may
    /// happen by itself. The caller knows whether the turn allows one: behind one, and where one has gained nothing, the call is made in any case: the
    /// provider's own refusal has the last word.
    pub(super) fn count_before_call(&mut self, endpoint: &Endpoint) -> Option<Counting> {
        if endpoint.count_url().is_none() || self.auto_compact_at(endpoint.window).is_none() {
            return None;
        }
        let reserve = u64::from(self.settings.compaction.output_reserve)
            .min(u64::from(endpoint.max_output))
            .min(endpoint.window / 4);
        let room = endpoint.window - reserve;
        if self.tokens_at_most() < room / 100 * RISKY_PERCENT {
            return None;
        }
        let encoded = self.encode(endpoint, Purpose::Count);
        let (http, counted_for): (Http, Endpoint) = (self.services.http.clone(), endpoint.clone());
        let count = Box::pin(async move { count::count(&http, &counted_for, &encoded).await });
        Some(Counting { count, room })
    }
}

//! Pre-flight checks of a model call: counts the tokens of a request that may not fit, and drops thinking blocks that
//! the provider rejects.

use super::compacting::must_compact_at;
use super::core::Core;
use super::effects::Counting;
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::Http;
use epitome_provider::wire::Purpose;
use epitome_provider::{ProviderError, count};
use epitome_thread::{Change, Content, Seq};

/// Per cent of the window's room from which an estimate is not accurate enough.
const RISKY_PERCENT: u64 = 90;

impl Core {
    /// Drops the model's native thinking blocks from all requests from now on, because the provider rejects them.
    /// Returns `false` if none was sent: then they are not the cause, and trying again is useless.
    pub(super) fn drop_thinking(&mut self, error: &ProviderError) -> bool {
        let sent = self.thread.view().entries().iter().any(|entry| match &entry.change {
            Change::Replied { message, .. } | Change::Compacted { summary: message, .. } => {
                message.content.iter().any(Content::has_native)
            }
            _ => false,
        });
        let through = Seq(self.thread.next_seq().0.saturating_sub(1));
        let dropped = Change::ThinkingDropped { through, why: error.message.clone() };
        sent && self.commit(dropped).is_ok()
    }

    /// Returns the count to make before a call, if the request may not fit, the provider can count tokens, and
    /// automatic compaction is on. The caller checks whether the turn allows a compaction. After one, or after one
    /// that freed nothing, the call is made anyway, and the provider decides.
    pub(super) fn count_before_call(&mut self, endpoint: &Endpoint) -> Option<Counting> {
        endpoint.count_url()?;
        let room = (must_compact_at(self, endpoint.window)? * endpoint.window as f64) as u64;
        if self.tokens_at_most() < room / 100 * RISKY_PERCENT {
            return None;
        }
        let encoded = self.encode(endpoint, Purpose::Count);
        let (http, counted_for): (Http, Endpoint) = (self.services.http.clone(), endpoint.clone());
        let count = Box::pin(async move { count::count(&http, &counted_for, &encoded).await });
        Some(Counting { count, room })
    }
}

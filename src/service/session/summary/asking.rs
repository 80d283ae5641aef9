//! A single model call outside of turns, mainly for a summary: sends the request, forwards the stream, reads the reply.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{SummaryJob, max_output};
use epitome_compaction::{self as compaction, Summary};
use epitome_provider::collect::{Collector, ModelReply, ReplyPiece, TextKind};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::Http;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::Encoded;
use epitome_provider::{ErrorClass, ProviderError, ReplyStop, retry};
use epitome_thread::{Message, MessageId, ModelName, Usage};

/// Requests a summary; transient errors are retried, up to `tries_max` attempts in total. The usage of a reply that is no
/// summary is added to `spent`. The reply streams only if somebody sees that, or the service refuses it in one piece.
pub(super) async fn ask(
    job: &SummaryJob,
    endpoint: &Endpoint,
    encode: impl Fn(Purpose<'static>) -> Encoded,
    tries_max: u32,
    shown: bool,
    spent: &mut Vec<(ModelName, Usage)>,
) -> Result<Summary, ProviderError> {
    let pieces = shown.then_some(&job.pieces);
    let work = async {
        if !job.streams && !endpoint.is_plan {
            let request = encode(Purpose::Whole);
            match delivered(&job.http, endpoint, &request, tries_max, Delivery::Whole).await {
                Err(error) if matches!(error.class, ErrorClass::Refused) => {}
                done => return done,
            }
        }
        let request = encode(Purpose::Reply);
        delivered(&job.http, endpoint, &request, tries_max, Delivery::Streamed(pieces)).await
    };
    let reply = timeout(job.time.0, work).await.unwrap_or_else(|_| Err(too_slow(job.time.0)))?;
    let usage = reply.usage;
    let summary = summary_of(job, endpoint, reply);
    if summary.is_err() {
        spent.extend(usage.map(|usage| (endpoint.name.clone(), usage)));
    }
    summary
}

/// How a reply arrives.
#[derive(Clone, Copy)]
enum Delivery<'a> {
    Whole,
    /// In pieces. The text of a summary is sent to the channel.
    Streamed(Option<&'a mpsc::Sender<String>>),
}

/// Returns the complete reply to a request, which streams; transient errors are retried, up to `tries_max` attempts in
/// total.
pub(crate) async fn answer(
    http: &Http,
    endpoint: &Endpoint,
    request: &Encoded,
    tries_max: u32,
) -> Result<ModelReply, ProviderError> {
    delivered(http, endpoint, request, tries_max, Delivery::Streamed(None)).await
}

async fn delivered(
    http: &Http,
    endpoint: &Endpoint,
    request: &Encoded,
    tries_max: u32,
    delivery: Delivery<'_>,
) -> Result<ModelReply, ProviderError> {
    let mut tries = 0;
    loop {
        let mut is_shown = false;
        let error = match collect(http, endpoint, request, delivery, &mut is_shown).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        // Text that was shown can't be shown again.
        tries = if is_shown { tries_max } else { tries + 1 };
        match retry::delay(&error.class, tries, fastrand::f64()) {
            Some(delay) if tries < tries_max => tokio::time::sleep(delay).await,
            Some(_) | None => return Err(error),
        }
    }
}

async fn collect(
    http: &Http,
    endpoint: &Endpoint,
    request: &Encoded,
    delivery: Delivery<'_>,
    is_shown: &mut bool,
) -> Result<ModelReply, ProviderError> {
    let mut collector = Collector::new(&endpoint.name);
    let Delivery::Streamed(pieces) = delivery else {
        for event in http.whole(endpoint, request).await? {
            collector.feed(event);
        }
        return Ok(collector.finish());
    };
    let mut stream = http.start(endpoint, request)?.await?;
    let mut between = BetweenTags::default();
    while let Some(events) = stream.next().await? {
        for event in events {
            let Some(ReplyPiece::Text { kind: TextKind::Reply, text, .. }) = collector.feed(event) else {
                continue;
            };
            if let Some((piece, pieces)) = between.take(&text).zip(pieces) {
                *is_shown = true;
                // A session that does not show it has dropped the receiver.
                let _ = pieces.send(piece).await;
            }
        }
    }
    Ok(collector.finish())
}

/// The text between `<summary>` tags of a streaming reply, returned as soon as it is certain.
#[derive(Debug, Default)]
struct BetweenTags {
    text: String,
    /// Bytes of `text` that were returned; `None` before the opening tag.
    given: Option<usize>,
    closed: bool,
}

impl BetweenTags {
    const OPEN: &'static str = "<summary>";
    const CLOSE: &'static str = "</summary>";

    fn take(&mut self, more: &str) -> Option<String> {
        if self.closed {
            return None;
        }
        self.text.push_str(more);
        let from = match self.given {
            Some(from) => from,
            None => self.text.find(Self::OPEN)? + Self::OPEN.len(),
        };
        let rest = &self.text[from..];
        let to = match rest.find(Self::CLOSE) {
            Some(end) => {
                self.closed = true;
                from + end
            }
            None => self.text.len() - begun(rest, Self::CLOSE),
        };
        self.given = Some(to);
        let piece = self.text[from..to].to_owned();
        (!piece.is_empty()).then_some(piece)
    }
}

/// Number of bytes at the end of a text that may begin a tag.
fn begun(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|length| text.ends_with(&tag[..*length])).unwrap_or(0)
}

fn summary_of(job: &SummaryJob, endpoint: &Endpoint, reply: ModelReply) -> Result<Summary, ProviderError> {
    if let Some(ReplyStop::Refused { reason }) = &reply.stop {
        let why = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        return Err(broken(&format!("the model declined to summarise{why}")));
    }
    let message = Message { id: MessageId(0), content: reply.content, author: None };
    if message.calls().next().is_some() {
        return Err(broken("the model called a tool instead of writing a summary"));
    }
    let expected = ExpectedSummary {
        is_tagged: job.instruction.contains(BetweenTags::OPEN),
        is_cut_off: matches!(reply.stop, Some(ReplyStop::MaxTokens | ReplyStop::WindowExceeded)),
        tokens_max: max_output(job, endpoint),
    };
    let text = expected.in_reply(&message.text())?;
    let by = Some((endpoint.name.clone(), reply.usage.unwrap_or_default()));
    Ok(Summary { text: Some(text), by, ..Summary::default() })
}

/// A shorter reply without the requested tags is an apology or the like. It must not replace an earlier summary.
const UNTAGGED_CHARS_MIN: usize = 200;

/// A shorter beginning of a summary that was cut off is not used: what an earlier summary has is more.
const CUT_OFF_CHARS_MIN: usize = 2_000;

/// The known properties of a summary before its text.
struct ExpectedSummary {
    /// Whether the instruction asks for tags. Those of users need not.
    is_tagged: bool,
    /// Whether the reply reached its limit.
    is_cut_off: bool,
    tokens_max: u32,
}

impl ExpectedSummary {
    /// The summary in a reply, or why there is none.
    fn in_reply(&self, reply: &str) -> Result<String, ProviderError> {
        let Some(mut text) = compaction::extract(reply) else {
            return Err(broken("the model wrote an empty summary"));
        };
        if compaction::is_tagged(reply) {
            return Ok(text);
        }
        let chars = text.chars().count();
        if self.is_tagged && chars < UNTAGGED_CHARS_MIN {
            return Err(broken(&format!("the model wrote {text:?} instead of a summary")));
        }
        if self.is_cut_off {
            // With a low limit, even one character for each token is a summary.
            if chars < CUT_OFF_CHARS_MIN.min(self.tokens_max as usize) {
                return Err(broken("the model's summary was cut off soon after its beginning"));
            }
            text = format!("{text}\n{}", compaction::CUT_OFF);
        }
        Ok(text)
    }
}

pub(super) fn broken(message: &str) -> ProviderError {
    ProviderError::new(ErrorClass::Broken, message)
}

pub(super) fn too_slow(time: Duration) -> ProviderError {
    broken(&format!("the model wrote no summary within {} s", time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_shown_from_its_tag_to_its_end_however_it_streams() {
        let reply = "<analysis>hm < summary</analysis>\n<summary>\nA <b> é\n</summary> more";
        for size in 1..reply.len() {
            let mut between = BetweenTags::default();
            let mut shown = String::new();
            let mut rest = reply;
            while !rest.is_empty() {
                let (piece, more) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
                shown.extend(between.take(piece));
                rest = more;
            }
            assert_eq!(shown, "\nA <b> é\n", "in pieces of {size}");
        }
        let mut between = BetweenTags::default();
        assert_eq!(between.take("no tags at all"), None);
    }

    /// Regression: "I'm sorry, I can't help with that." and the first words of a summary replaced the summary of the
    /// compaction before, and the result was reported as a success.
    #[test]
    fn an_apology_or_a_stub_is_no_summary() {
        let long = |words: &str, chars: usize| words.repeat(chars / words.len() + 1);
        let untagged = long("They talked. ", 200);
        let begun = format!("<summary>{}", long("They talked. ", 2_000));
        for (reply, is_tagged, is_cut_off, tokens_max, is_summary) in [
            ("I'm sorry, I can't help with that.", true, false, 8_000, false),
            ("<summary>only begun", true, false, 8_000, false),
            ("<analysis>hm <summary> tag</analysis>", true, false, 8_000, false),
            ("<summary>cut he", true, true, 8_000, false),
            (&begun[..1_500], true, true, 8_000, false),
            // A short conversation has a short summary.
            ("<summary>They said hello.</summary>", true, false, 8_000, true),
            // Small models leave out the tags, and the instructions of users need not ask for them.
            (untagged.as_str(), true, false, 8_000, true),
            ("They said hello.", false, false, 8_000, true),
            // The limit may be low.
            (&begun[..1_500], true, true, 400, true),
            (begun.as_str(), true, true, 8_000, true),
            ("<summary>They said hello.</summary> And now", true, true, 8_000, true),
        ] {
            let expected = ExpectedSummary { is_tagged, is_cut_off, tokens_max };
            let summary = expected.in_reply(reply);
            assert_eq!(summary.is_ok(), is_summary, "{reply}: {summary:?}");
            let is_marked = summary.is_ok_and(|text| text.ends_with(compaction::CUT_OFF));
            assert_eq!(is_marked, is_summary && is_cut_off && !reply.contains("</summary>"), "{reply}");
        }
    }
}

//! Timeouts of calls. A reply may take any time (an hour is possible); only silence is limited.

use std::time::Duration;

use crate::address::{host_of, is_loopback};
use crate::endpoint::Endpoint;
use epitome_config::WireFormat;

/// Timeout for connecting, including name resolution, TCP, proxy and TLS. Providers' front ends answer in well under a
/// second, or little more over a satellite link.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// Timeout for the response headers, including the upload of a long conversation over a slow connection. Anthropic
/// sends them when it starts or finishes reading the prompt, which takes up to a minute.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(5 * 60);

/// Maximum silence of Anthropic's own service, which sends pings while the model thinks: after this time, several pings
/// are overdue.
const PINGED_SILENCE_MAX: Duration = Duration::from_secs(2 * 60);

/// Maximum silence of other hosted services, both before the headers and in the stream. OpenAI's and Gemini's models
/// think for minutes without sending anything; the vendors' clients time out after the same time. Keep-alive detects
/// dead connections much earlier.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// Maximum silence of servers on this machine, which may load a model and process a long prompt on a slow CPU before
/// the first token. A server that stops running is detected immediately.
const LOCAL_SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// Maximum time without progress of a reply, regardless of pings and comments: a proxy may send those forever for a
/// dead stream. Models that hide their thinking may be silent for minutes.
const CONTENT_SILENCE_MAX: Duration = SILENCE_MAX;

/// Calls that took longer than this are not retried automatically, because up to five retries would each cost the user
/// the same time again.
pub(super) const TRIED_AGAIN_MAX: Duration = FIRST_BYTE_MAX;

/// Timeouts of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimeouts {
    pub connect: Duration,
    /// From the start of the call to the response headers.
    pub first_byte: Duration,
    /// Between two chunks of the response, including pings.
    pub silence: Duration,
    /// Between two pieces of the reply. The user can set it per model.
    pub content: Duration,
}

impl CallTimeouts {
    /// The timeouts for an endpoint's service.
    pub fn for_endpoint(endpoint: &Endpoint) -> CallTimeouts {
        let is_local = is_loopback(host_of(&endpoint.base_url));
        let content =
            endpoint.silence.unwrap_or(if is_local { LOCAL_SILENCE_MAX } else { CONTENT_SILENCE_MAX });
        let is_pinged = !is_local && endpoint.own_api && endpoint.wire == WireFormat::AnthropicMessages;
        let (first_byte, silence) = match is_pinged {
            true => (FIRST_BYTE_MAX, PINGED_SILENCE_MAX),
            false => (content, content),
        };
        CallTimeouts { connect: CONNECT_MAX, first_byte, silence, content }
    }
}

/// For requests that aren't model calls.
impl Default for CallTimeouts {
    fn default() -> CallTimeouts {
        CallTimeouts {
            connect: CONNECT_MAX,
            first_byte: FIRST_BYTE_MAX,
            silence: SILENCE_MAX,
            content: CONTENT_SILENCE_MAX,
        }
    }
}

/// Formats a duration for users.
pub(super) fn format_duration(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds if seconds >= 120 && seconds % 60 == 0 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::test_endpoint;

    #[test]
    fn maximum_silence_depends_on_the_service() {
        let minutes = |endpoint: &Endpoint| CallTimeouts::for_endpoint(endpoint).silence.as_secs() / 60;
        let mut anthropic = test_endpoint("anthropic/claude-sonnet-5-5");
        assert_eq!(minutes(&anthropic), 2);
        anthropic.own_api = false;
        assert_eq!(minutes(&anthropic), 10);
        let mut openai = test_endpoint("openai/gpt-5.4");
        assert_eq!(minutes(&openai), 10);
        openai.base_url = "http://127.0.0.1:8080/v1".into();
        assert_eq!(minutes(&openai), 15);
    }

    #[test]
    fn the_user_can_set_how_long_a_reply_may_make_no_progress() {
        let mut anthropic = test_endpoint("anthropic/claude-sonnet-5-5");
        assert_eq!(CallTimeouts::for_endpoint(&anthropic).content, CONTENT_SILENCE_MAX);
        anthropic.silence = Some(Duration::from_secs(1_800));
        let limits = CallTimeouts::for_endpoint(&anthropic);
        assert_eq!((limits.content.as_secs(), limits.silence), (1_800, PINGED_SILENCE_MAX));
        let mut local = test_endpoint("openai/gpt-5.4");
        local.base_url = "http://127.0.0.1:8080/v1".into();
        local.silence = Some(Duration::from_secs(3_600));
        let limits = CallTimeouts::for_endpoint(&local);
        assert_eq!(
            [limits.first_byte, limits.silence, limits.content].map(|limit| limit.as_secs()),
            [3_600; 3]
        );
    }

    #[test]
    fn durations_are_shown_in_readable_units() {
        for (millis, expected) in [(50, "50 ms"), (10_000, "10 s"), (90_000, "90 s"), (600_000, "10 minutes")]
        {
            assert_eq!(format_duration(Duration::from_millis(millis)), expected);
        }
    }
}

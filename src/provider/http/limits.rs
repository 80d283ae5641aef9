//! How long a call waits for what. There is no limit on a whole reply, which may take an hour; only on
//! silence.

use std::time::Duration;

use crate::address::{host_of, is_loopback};
use crate::endpoint::Endpoint;
use epitome_config::WireFormat;

/// The longest wait for a connection: name, TCP, proxy and TLS together. A provider's front answers in well
/// under one second, also over a satellite.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// The longest wait for the response's headers, the upload of a long conversation over a slow line
/// included. Anthropic sends them when it begins to read the prompt, or is done with it: a minute for
/// the longest.
const FIRST_BYTE_MAX: Duration = Duration::from_secs(5 * 60);

/// The longest silence of a service that sends pings while its model thinks (Anthropic's own): several
/// in a row are then missing.
const PINGED_SILENCE_MAX: Duration = Duration::from_secs(2 * 60);

/// The longest silence of any other hosted service, before the headers and in the stream. OpenAI's and
/// Gemini's models think for minutes and send nothing; these companies' own clients give up after this
/// time. A connection that is dead is noticed much earlier, by keep-alive.
const SILENCE_MAX: Duration = Duration::from_secs(10 * 60);

/// The same for a server on this machine, which may load a model and read a long prompt on a slow processor
/// before its first word. Whether it is still there, this machine knows at once.
const LOCAL_SILENCE_MAX: Duration = Duration::from_secs(15 * 60);

/// What took longer than this is not tried again by itself: another try would cost a person as much time
/// again, five times over.
pub(super) const TRIED_AGAIN_MAX: Duration = FIRST_BYTE_MAX;

/// What a call waits for at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connect: Duration,
    /// From the beginning of the call to the response's headers.
    pub first_byte: Duration,
    /// Between two pieces of the response.
    pub silence: Duration,
}

impl Limits {
    /// What suits the service at an endpoint.
    pub fn of(endpoint: &Endpoint) -> Limits {
        let (first_byte, silence) = match endpoint.wire {
            _ if is_loopback(host_of(&endpoint.base_url)) => (LOCAL_SILENCE_MAX, LOCAL_SILENCE_MAX),
            WireFormat::AnthropicMessages if endpoint.own_api => (FIRST_BYTE_MAX, PINGED_SILENCE_MAX),
            WireFormat::AnthropicMessages
            | WireFormat::OpenAiResponses
            | WireFormat::OpenAiChat
            | WireFormat::Gemini => (SILENCE_MAX, SILENCE_MAX),
        };
        Limits { connect: CONNECT_MAX, first_byte, silence }
    }
}

/// For what is no model call.
impl Default for Limits {
    fn default() -> Limits {
        Limits { connect: CONNECT_MAX, first_byte: FIRST_BYTE_MAX, silence: SILENCE_MAX }
    }
}

/// A time as it is said to a person.
pub(super) fn spoken(time: Duration) -> String {
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
    fn silence_is_borne_as_long_as_the_service_may_think() {
        let minutes = |endpoint: &Endpoint| Limits::of(endpoint).silence.as_secs() / 60;
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
    fn times_are_said_in_what_people_count() {
        for (millis, expected) in [(50, "50 ms"), (10_000, "10 s"), (90_000, "90 s"), (600_000, "10 minutes")]
        {
            assert_eq!(spoken(Duration::from_millis(millis)), expected);
        }
    }
}

//! Lines from editors, messages from the daemon, and protocol fixtures.

use std::io::Read;

use epitome_acp::envelope::{self, Incoming};
use epitome_acp::from_wire::{self, ClientTraits, RequestParams};
use epitome_acp::model::AcpVersion;
use epitome_daemon::messages::{MessageKind, MessageReader};
use epitome_transcript::Fixture;
use serde_json::Value;
use serde_json::value::RawValue;

/// Reads any bytes as a line from an editor. The response to it is valid JSON.
pub fn acp_line(line: &[u8]) {
    match envelope::read(line) {
        Incoming::Request { id, params, .. } => {
            assert!(is_json(id), "the id of an answer is JSON");
            parse_params(params);
        }
        Incoming::Notification { params, .. } => parse_params(params),
        Incoming::Response { id, result, error } => {
            assert!(is_json(id), "the id is JSON");
            if let Some(result) = result.and_then(|result| serde_json::from_str::<Value>(result.get()).ok()) {
                from_wire::elicited(&result);
                from_wire::editor_text(result);
            }
            error.map(from_wire::unfulfilled);
        }
        Incoming::Invalid { id, .. } => assert!(is_json(id), "the id of an error is JSON"),
        Incoming::Blank => {}
    }
}

/// Not parsed as a `Value`: `1e999` is valid JSON, but too large for its numbers.
fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

fn parse_params(params: Option<&RawValue>) {
    ClientTraits::from_initialize(params, AcpVersion::V1);
    ClientTraits::from_initialize(params, AcpVersion::V2);
    let Ok(params) = RequestParams::read(params) else { return };
    let errors = [
        params.prompt().err(),
        params.mcp_servers(AcpVersion::V1).err(),
        params.mcp_servers(AcpVersion::V2).err(),
        params.cwd().err(),
        params.directories().err(),
        params.session_id().err(),
    ];
    for error in errors.into_iter().flatten() {
        assert!(!error.0.is_empty() && !error.0.contains('\n'), "an error is one sentence: {:?}", error.0);
    }
}

/// Reads any bytes as messages from the daemon. The result does not depend on how the bytes are split.
pub fn daemon_messages(bytes: &[u8]) {
    let all_at_once = messages(InPieces { bytes, piece: bytes.len() });
    for piece in [1, 7] {
        assert_eq!(all_at_once, messages(InPieces { bytes, piece }), "in pieces of {piece}");
    }
}

/// The messages until the end or the first error, as text. Adjacent notifications may be in one message. Those just before
/// an error are left out: whether they arrive depends on how the bytes are split, and the next daemon sends them again.
fn messages(from: InPieces<'_>) -> Vec<String> {
    let mut reader = MessageReader::new(from);
    let (mut all, mut sure) = (Vec::new(), 0);
    loop {
        match reader.message() {
            Ok(Some(message)) => {
                let is_joined = matches!(message.kind, MessageKind::Notifications | MessageKind::Step);
                let lines = message.lines.split_inclusive(|byte| *byte == b'\n');
                all.extend(lines.map(|line| format!("{:?} {} {line:?}", message.kind, message.id)));
                all.extend(message.steps.iter().map(|step| format!("{step:?}")));
                sure = if is_joined { sure } else { all.len() };
            }
            Ok(None) => return all,
            Err(error) => {
                all.truncate(sure);
                all.push(error.to_string());
                return all;
            }
        }
    }
}

struct InPieces<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Read for InPieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.piece.min(self.bytes.len()).min(into.len());
        let (now, later) = self.bytes.split_at(count);
        into[..count].copy_from_slice(now);
        self.bytes = later;
        Ok(count)
    }
}

/// Parses a recorded session, which users pass to `epitome check` and `sessions import`.
pub fn fixture(bytes: &[u8]) {
    if let Err(error) = Fixture::parse(&String::from_utf8_lossy(bytes)) {
        assert!(!error.to_string().is_empty());
    }
}

//! Changes of a newer version: preserved as the stored JSON, and never interpreted.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::change::{Change, Entry, Seq};

/// The stored fields of a change whose kind or content this build does not understand.
#[derive(Clone, Debug, PartialEq)]
pub struct Opaque {
    fields: Map<String, Value>,
}

impl Opaque {
    /// The kind of change, as named by the newer version.
    pub fn kind(&self) -> &str {
        self.fields.get("change").and_then(Value::as_str).unwrap_or_default()
    }

    /// The id of its message, if it is where all other changes have it. No later message may get this id.
    pub(super) fn message(&self) -> Option<u64> {
        let message = self.fields.get("message")?;
        message.as_u64().or_else(|| message.get("id")?.as_u64())
    }
}

/// Parses an entry without understanding its change; `None` if it is not an entry, or opens a log.
pub(super) fn entry(json: Value) -> Option<Entry> {
    let Value::Object(mut fields) = json else { return None };
    let seq = Seq(fields.shift_remove("seq")?.as_u64()?);
    let at = fields.shift_remove("at")?.as_u64()?;
    let opaque = Opaque { fields };
    let is_opaque = !matches!(opaque.kind(), "" | "opened");
    is_opaque.then_some(Entry { seq, at, change: Change::Unknown(opaque) })
}

/// Serializes a change as fields of its entry.
pub(super) fn serialize<S: Serializer>(change: &Change, serializer: S) -> Result<S::Ok, S::Error> {
    match change {
        Change::Unknown(opaque) => opaque.fields.serialize(serializer),
        known => known.serialize(serializer),
    }
}

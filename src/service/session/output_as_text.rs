//! Output of calls as text, for events that leave the process: only this process shows bytes.

use epitome_thread::CallOutput;
use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(output: &CallOutput, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&output.text)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CallOutput, D::Error> {
    String::deserialize(deserializer).map(CallOutput::from)
}

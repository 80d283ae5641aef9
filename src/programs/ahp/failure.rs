//! Why requests of clients fail. Pure.

use ahp::ahp_types::PROTOCOL_VERSION;
use ahp::ahp_types::errors::{ahp_error_codes, json_rpc_error_codes};
use ahp::ahp_types::version::SUPPORTED_PROTOCOL_VERSIONS;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Why a request failed.
pub struct RequestFailure {
    code: i32,
    message: String,
    data: Option<Value>,
}

impl RequestFailure {
    pub fn new(code: i32, message: impl Into<String>) -> RequestFailure {
        RequestFailure { code, message: message.into(), data: None }
    }

    /// The `error` of the answer.
    pub fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

impl std::fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

pub fn read<T: DeserializeOwned>(params: Value) -> Result<T, RequestFailure> {
    serde_json::from_value(params).map_err(|error| invalid(format!("invalid parameters: {error}")))
}

pub fn not_found(channel: &str) -> RequestFailure {
    let name: String = channel.chars().take(200).collect();
    RequestFailure::new(ahp_error_codes::SESSION_NOT_FOUND, format!("there is no channel {name:?}"))
}

pub fn invalid(why: String) -> RequestFailure {
    RequestFailure::new(json_rpc_error_codes::INVALID_PARAMS, why)
}

/// The message is not a valid request, or it comes at the wrong time.
pub fn misplaced(why: &str) -> RequestFailure {
    RequestFailure::new(json_rpc_error_codes::INVALID_REQUEST, why)
}

pub fn too_many(limit: usize) -> RequestFailure {
    let why = format!("{limit} sessions are followed or busy already");
    RequestFailure::new(json_rpc_error_codes::INTERNAL_ERROR, why)
}

/// An error of the daemon.
pub fn failure(error: &Value) -> RequestFailure {
    RequestFailure::new(json_rpc_error_codes::INTERNAL_ERROR, words(error))
}

pub fn words(error: &Value) -> String {
    error["message"].as_str().unwrap_or("the daemon refused it").to_owned()
}

/// None of the client's versions is spoken here.
pub fn unsupported_version() -> RequestFailure {
    let supported: Vec<String> =
        SUPPORTED_PROTOCOL_VERSIONS.iter().map(|version| format!("^{version}")).collect();
    RequestFailure {
        data: Some(json!({ "supportedVersions": supported })),
        ..RequestFailure::new(
            ahp_error_codes::UNSUPPORTED_PROTOCOL_VERSION,
            format!("this host speaks version {PROTOCOL_VERSION} of the protocol"),
        )
    }
}

//! Clients that redirect the requests to a provider through a gateway (`providers/list` and `providers/set`). A
//! redirect applies to sessions that the connection opens afterwards, and is not stored. Of its settings, only the
//! address is ever returned, because headers contain keys.

use std::collections::BTreeMap;

use agent_client_protocol::v1::schema as wire;

use super::{AcpServer, Routed};
use crate::answers;
use crate::from_wire::{BadParams, RequestParams};
use crate::requests::RequestKind;
use epitome_session_api::port::StoredSessionPort;
use epitome_session_api::{ProviderSettings, WireFormat};

/// The number of headers per provider, and their total length in bytes.
const HEADERS_MAX: usize = 64;
const HEADERS_BYTES_MAX: usize = 64 * 1024;

/// A provider whose requests can be redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderRoute {
    /// The part of a model's name before the slash.
    pub id: String,
    pub wire: WireFormat,
    /// The base URL without user, password and query.
    pub base_url: String,
}

/// The protocol's name for a format; `None` if there is no name for it.
pub fn api_type(format: WireFormat) -> Option<wire::LlmProtocol> {
    match format {
        WireFormat::AnthropicMessages => Some(wire::LlmProtocol::Anthropic),
        WireFormat::OpenAiResponses | WireFormat::OpenAiChat => Some(wire::LlmProtocol::OpenAi),
        WireFormat::Gemini => None,
    }
}

/// The error for disabling a provider: requests can be redirected, not turned off.
pub(super) fn is_required() -> wire::Error {
    answers::bad_params(&BadParams("`providerId`: every provider of this agent is required".to_owned()))
}

impl<P: StoredSessionPort> AcpServer<P> {
    pub(super) fn list_providers(&self, id: &str) -> Result<Routed, wire::Error> {
        let login = self.config.login.clone();
        self.in_background(id, RequestKind::Read, move |_| {
            let shown = |route: &ProviderRoute| {
                let kind = api_type(route.wire)?;
                let current = wire::ProviderCurrentConfig::new(kind.clone(), route.base_url.as_str());
                Some(wire::ProviderInfo::new(route.id.clone(), vec![kind], true, current))
            };
            let providers = login.routes().iter().filter_map(shown).collect();
            answers::raw(&wire::ListProvidersResponse::new(providers))
        })
    }

    /// Runs on the reader thread although it reads the settings, because it applies to the requests that follow,
    /// including those that a front end repeats for a new daemon.
    pub(super) fn route_provider(&self, params: &RequestParams<'_>) -> Result<Routed, wire::Error> {
        let provider: String = params.required("providerId")?;
        let asked: wire::LlmProtocol = params.required("apiType")?;
        let base_url: String = params.required("baseUrl")?;
        let headers: BTreeMap<String, String> = params.optional("headers")?.unwrap_or_default();
        let wrong = |why: &str| Err(BadParams(why.to_owned()).into());
        if !["http://", "https://"].iter().any(|scheme| base_url.starts_with(scheme)) {
            return wrong("`baseUrl` must begin with https:// or http://");
        }
        let length: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if headers.len() > HEADERS_MAX || length > HEADERS_BYTES_MAX {
            return wrong("`headers` has too many headers, or they are too long");
        }
        let is_text = |text: &str| text.bytes().all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
        let is_name = |name: &str| !name.is_empty() && is_text(name) && !name.contains([' ', ':', '\t']);
        if !headers.iter().all(|(name, value)| is_name(name) && is_text(value)) {
            return wrong("`headers` has an invalid header");
        }
        let login = &self.config.login;
        let known = login.routes().into_iter().find(|route| route.id == provider);
        let Some(known) = known else { return wrong("`providerId` names no provider of this agent") };
        if api_type(known.wire) != Some(asked) {
            return wrong("`apiType` is not one that this provider supports");
        }
        let to = ProviderSettings { wire: known.wire, base_url, key_variable: None, headers };
        login.route(provider, to);
        Ok(Routed::Now(Ok(answers::empty())))
    }
}

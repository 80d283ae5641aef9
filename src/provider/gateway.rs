//! Models that a server calls for other machines, which have no keys: `describe` says what a client has to know of an
//! endpoint, and `Endpoint::behind_gateway` makes an endpoint of it. A client sends the same requests as to the provider,
//! below an address of the server for each model, and the server sends their bodies to its own endpoint.

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::abilities::Abilities;
use super::address::{beneath, escaped};
use super::credential::{Credential, GatewayAccess};
use super::environment::EnvironmentPairs;
use super::failure;
use super::http::Http;
use super::model_endpoint::{Endpoint, Quirks, ToolForm};
use super::models::{self, NO_MODEL};
use super::network::Network;
use super::wire;
use super::{ErrorClass, ProviderError};
use epitome_config::{
    EditTools, GatewayModels, GatewaySettings, ModelSettings, PriceSettings, Settings, WireFormat,
};
use epitome_files::atomic_file::replace_in_private_directory;
use epitome_platform::blocking;
use epitome_thread::ModelName;

/// The path of a server at which it lists its models, and below which they are called.
pub const GATEWAY_PATH: &str = "/gateway";

/// Maximum bytes of a server's list.
const LIST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Timeout of a request for it.
const LIST_TIME_MAX: Duration = Duration::from_secs(10);

/// Longest text of a refusal that is shown, in bytes.
const REFUSAL_BYTES_MAX: usize = 300;

/// The type of a server's error about a token that has no right to call models.
pub const TOKEN_ERROR: &str = "epitome_token";

/// What to do about a token that is not accepted.
pub(super) const TOKEN_HINT: &str = "The token of [gateway] in config.toml needs the scope `work`, and may have expired or \
     been revoked: `epitome token list` on the server shows all.";

/// What a client has to know of an endpoint.
#[derive(Debug, Serialize, Deserialize)]
struct EndpointDescription {
    model: String,
    wire: WireFormat,
    own_api: bool,
    quirks: Quirks,
    is_plan: bool,
    form: ToolForm,
    window: u64,
    max_output: u32,
    #[serde(flatten)]
    abilities: Abilities,
    edit_tools: EditTools,
    native_compaction: bool,
    silence: Option<Duration>,
    price: Option<PriceSettings>,
}

/// Describes an endpoint, with all that is known of it, to clients.
pub fn describe(settings: &Settings, endpoint: &Endpoint) -> Value {
    let description = EndpointDescription {
        model: endpoint.model.clone(),
        wire: endpoint.wire,
        own_api: endpoint.own_api,
        quirks: endpoint.quirks,
        is_plan: endpoint.is_plan,
        form: endpoint.form,
        window: endpoint.window,
        max_output: endpoint.max_output,
        abilities: endpoint.abilities.clone(),
        edit_tools: endpoint.edit_tools,
        native_compaction: endpoint.native_compaction,
        silence: endpoint.silence,
        // Clients know the prices of the table.
        price: settings.models.get(&endpoint.name.0).and_then(|model| model.price),
    };
    serde_json::to_value(description).expect("plain data")
}

/// The price that a server has configured for a model.
pub(super) fn price(gateway: &GatewaySettings, model: &ModelName) -> Option<PriceSettings> {
    PriceSettings::deserialize(gateway.offered.find(&model.0)?.get("price")?).ok()
}

/// The path of a server below which it calls a model.
pub fn path_of_model(model: &ModelName) -> String {
    format!("{GATEWAY_PATH}/{}", escaped(&model.0))
}

impl Endpoint {
    /// Calls the model through a server that describes it like this.
    pub(super) fn behind_gateway(
        &mut self,
        gateway: &GatewaySettings,
        description: &Value,
        configured: Option<&ModelSettings>,
        env: &EnvironmentPairs,
    ) -> Result<(), ProviderError> {
        let described = EndpointDescription::deserialize(description).map_err(|error| {
            let message = format!(
                "The server {} describes {} in a way that this version does not know: {error}.",
                gateway.address, self.name
            );
            ProviderError::new(ErrorClass::Refused, message)
                .with_hint("Install the same version of Epitome on both machines.")
        })?;
        self.model = described.model;
        self.wire = described.wire;
        self.base_url = format!("{}{}", gateway.address, path_of_model(&self.name));
        self.credential = Credential::Gateway(Box::new(GatewayAccess::of(gateway, env)));
        self.own_api = described.own_api;
        self.quirks = described.quirks;
        self.is_plan = described.is_plan;
        self.form = described.form;
        if models::configured_window(&self.name, configured).is_none() {
            self.window = described.window;
        }
        if configured.and_then(|model| model.max_output).is_none() {
            self.max_output = described.max_output;
        }
        self.set_what_is_known(configured);
        self.abilities = match configured {
            Some(configured) => described.abilities.with(configured),
            None => described.abilities,
        };
        self.edit_tools = configured.and_then(|model| model.edit_tools).unwrap_or(described.edit_tools);
        self.silence = self.silence.or(described.silence);
        // Only the server can ask for the beta feature.
        self.native_compaction = described.native_compaction;
        Ok(())
    }

    /// The endpoint and the URL that a client's path stands for; `None` unless this endpoint sends such requests.
    /// `path`: with the query.
    pub fn call_of_client(
        &self,
        path: &str,
        configured: Option<&ModelSettings>,
    ) -> Option<(Endpoint, String)> {
        let at = |path: &str| Url::parse(&format!("http://server{path}")).ok();
        let wanted = at(path)?;
        let forms: &[ToolForm] = match self.wire {
            WireFormat::OpenAiChat | WireFormat::OpenAiResponses => {
                &[ToolForm::Usual, ToolForm::Responses, ToolForm::WithoutReasoning]
            }
            WireFormat::AnthropicMessages | WireFormat::Gemini => &[ToolForm::Usual],
        };
        forms.iter().find_map(|form| {
            let mut own = self.clone();
            own.take_form(*form, configured);
            let base_url = format!("http://server{}", path_of_model(&self.name));
            let clients = Endpoint { base_url, ..own.clone() };
            let urls =
                |endpoint: &Endpoint| [Some(endpoint.url()), endpoint.count_url(), endpoint.compact_url()];
            let mut pairs = urls(&clients).into_iter().zip(urls(&own));
            let (_, url) = pairs.find(|(theirs, _)| {
                theirs.as_ref().and_then(|url| Url::parse(url).ok()).as_ref() == Some(&wanted)
            })?;
            Some((own, url?))
        })
    }

    /// Checks that a client's request has nothing that could choose another model or another price. The error is a
    /// sentence.
    pub fn check_body(&self, body: &[u8]) -> Result<(), String> {
        let names = wire::field_names(self.wire);
        let fields: BodyFields =
            serde_json::from_slice(body).map_err(|error| format!("The body is no request: {error}."))?;
        if let Some(other) = fields.names.iter().find(|name| !names.contains(&name.as_str())) {
            return Err(format!(
                "The server does not pass on the field {other:?}, which its version of Epitome does not send."
            ));
        }
        match &fields.model {
            Some(model) if *model != self.model => {
                Err(format!("The body is for the model {model:?}, and the address for {:?}.", self.model))
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The fields of a body, of which none may occur twice: readers differ in which one they take.
struct BodyFields {
    names: Vec<String>,
    model: Option<String>,
}

impl<'de> Deserialize<'de> for BodyFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BodyFields, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = BodyFields;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BodyFields, A::Error> {
                let mut fields = BodyFields { names: Vec::new(), model: None };
                while let Some(name) = map.next_key::<String>()? {
                    if fields.names.contains(&name) {
                        return Err(serde::de::Error::custom(format!("{name:?} occurs twice")));
                    }
                    match name.as_str() {
                        "model" => fields.model = Some(map.next_value()?),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                    fields.names.push(name);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Asks the server for its models, and keeps the answer.
pub async fn refresh(
    http: &Http,
    access: &GatewayAccess,
    network: &Network,
) -> Result<Arc<GatewayModels>, ProviderError> {
    let gateway = access.settings();
    let address = &gateway.address;
    let mut server = Endpoint::without_place(&ModelName(format!("gateway/{NO_MODEL}")), NO_MODEL, None);
    server.base_url = address.clone();
    server.credential = Credential::Gateway(Box::new(access.clone()));
    server.network = network.trusting(gateway.tls_ca.as_deref());
    let failed = |class: ErrorClass, why: &str| {
        ProviderError::new(class, format!("The server {address} does not say which models it has: {why}."))
    };
    let answer =
        http.ask(&server, &beneath(address, GATEWAY_PATH), None, LIST_BYTES_MAX, LIST_TIME_MAX).await?;
    let text = failure::message_of(&String::from_utf8_lossy(&answer.body));
    let text = failure::cut(&text, REFUSAL_BYTES_MAX).trim_end_matches('.');
    match answer.status {
        200 => {}
        401 => return Err(failed(ErrorClass::Auth, "it does not accept the token").with_hint(TOKEN_HINT)),
        403 => return Err(failed(ErrorClass::Auth, text).with_hint(TOKEN_HINT)),
        status @ (404 | 405) => {
            let why = format!("it has none for other machines (HTTP {status})");
            let hint = "It has to be an `epitome serve` of the same version.";
            return Err(failed(ErrorClass::Refused, &why).with_hint(hint));
        }
        status => {
            let error = failed(ErrorClass::Retry { after: None }, &format!("HTTP {status}, {text}"));
            return Err(error.with_hint("Try again in a moment."));
        }
    }
    let mut offered = serde_json::from_slice::<GatewayModels>(&answer.body)
        .map_err(|error| failed(ErrorClass::Broken, &format!("its list is wrong, {error}")))?;
    offered.address = address.clone();
    let (file, json) = (gateway.file.clone(), serde_json::to_vec(&offered).expect("plain data"));
    let written = blocking::run(move || replace_in_private_directory(&file, &json)).await;
    if let Err(error) = written {
        // Asked again by the next session.
        tracing::warn!(%error, "the models of the gateway could not be kept");
    }
    Ok(Arc::new(offered))
}

#[cfg(test)]
#[path = "gateway_tests.rs"]
mod tests;

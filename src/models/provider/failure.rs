//! Classifies providers' error responses: maps status, headers and body to a class and a sentence. Pure.
//!
//! Status, types and codes are decisive, because vendors reserve the right to change the wording. Wording is matched
//! only where several vendors have no code: requests that are too long, rejected reasoning, accounts without credit.
//! Secrets are removed from the result, because it is shown to users and logged.

mod body;
mod overflow;
mod secrets;

use std::time::Duration;

use super::model_endpoint::{CredentialOrigin, Endpoint, named_field};
use super::models::{self, NO_MODEL};
use super::resolve::provider_title;
use super::retry::RETRY_AFTER_MAX;
use super::{ErrorClass, ProviderError, Remedy};
use body::ErrorBody;
use epitome_config::WireFormat;

pub(super) use body::is_binary;
pub(super) use secrets::scrub;

/// Maximum bytes of the provider's own message that are passed on; some providers echo the entire request.
pub const PROVIDER_MESSAGE_BYTES_MAX: usize = 1_000;

/// Hint for a request that is too long, shown after a compaction did not help.
const TOO_LONG: &str = "/context shows what takes the room; instructions (AGENTS.md), pins and tools can be \
                            made fewer. Or choose a model with a larger window.";

/// Words of refusals that are about an attachment, and not about what the documentation says.
const ATTACHMENTS: [&str; 5] = ["image", "pdf", ".document", "document ", "audio"];

/// Maximum number of models suggested when the requested one doesn't exist.
const MODELS_NAMED_MAX: usize = 6;

/// Types and codes for an unpaid account or a spending cap. Some arrive with the status of a rate limit.
const BILLING: &str = "exceeded_current_quota_error billing_error contract_spend_limit_reached enforced_spend_limit_reached \
    linked_organization_billing_unavailable linked_organization_spend_limit_reached \
    user_profile_billing_not_authorized user_profile_not_billable insufficient_quota \
    credit_balance_exhausted billing_not_active billing_hard_limit_reached usage_limit_exceeded \
    project_spend_limit_exceeded organization_spend_limit_exceeded organization_usage_limit_exceeded \
    BILLING_DISABLED insufficient_balance 1113";

/// Words for an account without money, and for what is wrong with it, in the sentences of services that have no code.
const MONEY: &str = "credit|balance|billing|spending limit|spend limit|funds|payment|api usage limits|余额";
const LACKING: &str = "insufficient|too low|not enough|no credit|purchase|recharge|used all|reached|exceeded|raise|\
    enable|have any|suspended|required|ran out|不足";

/// Words of a key that is not accepted, with a status that does not say that.
const BAD_KEY: &str = "incorrect|invalid|not valid|missing|expired|not found|no api key";

/// Words of a refusal because of what a conversation contains.
const POLICY: &str = "polic|guideline|moderation|flagged|safety|harmful|violat|content filter";

/// Words of a refusal because of where a request comes from.
const PLACE: &str = "country|region";

/// Hint for a conversation that a service will refuse with each further prompt.
pub const REWIND_HINT: &str = "Each prompt sends the conversation again. If something in it is what is refused, /rewind takes the last \
                          turn out of it, and /rewind with an entry, such as e12, everything from there on.";

/// Words of a refusal of the model's name, with a status that does not say that.
const UNKNOWN_MODEL: &str =
    "invalid model|model not found|not a valid model|model names are|model does not exist|unknown model";

/// Codes for a reply that the service could not parse: a mistake of the model.
const UNUSABLE_REPLY: &str = "tool_use_failed output_parse_failed json_validate_failed";

const AUTH: &str = "authentication_error permission_error invalid_api_key account_deactivated API_KEY_INVALID \
    API_KEY_SERVICE_BLOCKED SERVICE_DISABLED UNAUTHENTICATED PERMISSION_DENIED";

/// Types and codes of transient errors inside a stream, where there is no status.
const MOMENTARY: &str = "overloaded_error rate_limit_error api_error timeout_error compaction_unavailable server_error \
    internal_error rate_limit_exceeded slow_down server_is_overloaded server_overloaded \
    service_unavailable_error flex_unavailable request_timeout RESOURCE_EXHAUSTED INTERNAL UNAVAILABLE \
    DEADLINE_EXCEEDED";

/// Codes for rejected content that was sent back to the provider: reasoning, or its own compaction.
const BAD_SIGNATURES: &str = "invalid_encrypted_content compaction_block_ambiguous compaction_block_misplaced \
    compaction_content_mismatch compaction_signature_invalid compaction_tool_changes_mismatch";

/// Wording for rejected reasoning: of Anthropic, of OpenAI's Responses and of Gemini.
const BAD_REASONING: &str = "invalid signature in thinking block|bound to a different conversation|\
    blocks in the latest assistant message cannot be modified|blocks cannot be modified|\
    expected thinking or redacted_thinking, but found|\
    of type reasoning was provided without its required following item|\
    was provided without its required reasoning item|\
    items are not persisted when store is set to false|encrypted content could not be|\
    missing a thought_signature|thought signature is not valid|invalid thought signature|\
    corrupted thought signature";

/// A response that isn't a reply.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorResponse<'a> {
    /// 200 for an error inside a stream.
    pub status: u16,
    pub retry_after: Option<Duration>,
    /// The `x-should-retry` header, which overrides the other rules.
    pub should_retry: Option<bool>,
    pub request_id: Option<&'a str>,
    pub body: &'a str,
}

/// Returns the class of a failure and a sentence that explains it.
pub fn classify(endpoint: &Endpoint, failure: &ErrorResponse<'_>) -> ProviderError {
    let body = ErrorBody::read(failure.body);
    // An error inside a stream may contain the status of the corresponding response.
    let status = match (failure.status, body.status) {
        (200, Some(status @ 400..=599)) => status,
        (status, _) => status,
    };
    let failure = ErrorResponse { status, retry_after: failure.retry_after.or(body.retry_after), ..*failure };
    let class = class(endpoint, &failure, &body);
    let remedy = remedy(endpoint, &class, status, &body);
    let may_be_too_long = class == ErrorClass::Refused && remedy == Some(Remedy::Shorten { is_likely: true });
    let what = match class {
        ErrorClass::Refused if may_be_too_long => "refused the request, which may be too long for the model",
        ErrorClass::Refused if status == 404 && is_unsupported(endpoint, &body) => "refused the request",
        _ => verdict(&class, status, &body),
    };
    let mut message = format!("{} {what}", subject(endpoint));
    if !body.message.is_empty() {
        // Scrub before cutting: a partial secret would not be recognized.
        let message_of_provider = scrub(endpoint, body.message.trim());
        message.push_str(": ");
        message.push_str(cut(&message_of_provider, PROVIDER_MESSAGE_BYTES_MAX));
    }
    message.push_str(" (");
    if status != 200 {
        message.push_str(&format!("HTTP {status}, "));
    }
    message.push_str(&format!("model {}", endpoint.name));
    if let Some(id) = failure.request_id.or(body.request_id.as_deref()) {
        let id = scrub(endpoint, id);
        message.push_str(&format!(", request {}", cut(&id, 100)));
    }
    message.push(')');
    let hint = match may_be_too_long {
        true => Some(TOO_LONG.to_owned()),
        false => hint(endpoint, &class, &failure, &body),
    };
    ProviderError { class, message, hint, remedy }.scrubbed(endpoint)
}

/// A change that may make the service accept the request. A refusal that is understood needs none.
fn remedy(endpoint: &Endpoint, class: &ErrorClass, status: u16, body: &ErrorBody) -> Option<Remedy> {
    let shorten = || Remedy::Shorten { is_likely: body.mentions_length() };
    match (class, status) {
        (ErrorClass::Retry { .. }, 500) => Some(shorten()),
        (ErrorClass::Refused, _) if is_unknown_model(endpoint, status, body) => None,
        (ErrorClass::Refused, 404 | 415) if body.mentions(&ATTACHMENTS) => Some(Remedy::OmitAttachments),
        (ErrorClass::Refused, 200 | 400 | 422) => {
            // A service that wants more of a field does not want less of it.
            let is_missing = body.mentions(&["missing", "required", "must be passed"]);
            let is_omitted = |field: &str| is_missing || endpoint.omits(field);
            named_field(endpoint.wire, &body.paths, &body.message, is_omitted)
                .map(Remedy::OmitField)
                .or_else(|| body.named_tool().map(Remedy::OmitTool))
                .or_else(|| body.mentions(&ATTACHMENTS).then_some(Remedy::OmitAttachments))
                .or_else(|| (!body.says(POLICY)).then(shorten))
        }
        _ => None,
    }
}

/// An error as one sentence. `what` is the predicate without a full stop; service and model are added.
pub(super) fn error(
    endpoint: &Endpoint,
    class: ErrorClass,
    what: &str,
    hint: Option<String>,
) -> ProviderError {
    let model = match endpoint.model == NO_MODEL {
        true => String::new(),
        false => format!(" (model {})", endpoint.name),
    };
    let message = format!("{} {what}{model}.", subject(endpoint));
    ProviderError { class, message, hint, remedy: None }.scrubbed(endpoint)
}

fn class(endpoint: &Endpoint, failure: &ErrorResponse<'_>, body: &ErrorBody) -> ErrorClass {
    let retry = ErrorClass::Retry { after: failure.retry_after };
    if is_bad_reasoning(failure.status, body) {
        return ErrorClass::BadReasoning;
    }
    if let Some(class) = overflow::too_long(failure.status, body) {
        return class;
    }
    if is_tool_form(endpoint, failure.status, body) {
        return ErrorClass::ToolForm;
    }
    if is_billing(failure.status, failure.retry_after, body) {
        return ErrorClass::Auth;
    }
    if body.is(UNUSABLE_REPLY) || body.has_failed_generation {
        return retry;
    }
    if body.is(PLAN_LIMIT) {
        return ErrorClass::Refused;
    }
    match failure.should_retry {
        Some(true) => return retry,
        Some(false) if !matches!(failure.status, 401..=403) => return ErrorClass::Refused,
        Some(false) | None => {}
    }
    match failure.status {
        403 if body.says(POLICY) || body.says(PLACE) => ErrorClass::Refused,
        _ if body.is(AUTH) || (body.mentions(&["api key"]) && body.says(BAD_KEY)) => ErrorClass::Auth,
        401..=403 => ErrorClass::Auth,
        429 if body.is_daily => ErrorClass::Refused,
        // Anthropic's spending caps look like rate limits, but have no retry time.
        429 if endpoint.own_api
            && endpoint.wire == WireFormat::AnthropicMessages
            && failure.retry_after.is_none() =>
        {
            ErrorClass::Refused
        }
        // An unimplemented operation or version, or a network that wants a login, is the same a moment later.
        501 | 505 | 511 => ErrorClass::Refused,
        408 | 409 | 425 | 429 | 500.. => retry,
        200 if body.is(MOMENTARY) => retry,
        _ => ErrorClass::Refused,
    }
}

fn is_bad_reasoning(status: u16, body: &ErrorBody) -> bool {
    body.is(BAD_SIGNATURES) || (matches!(status, 200 | 400 | 404 | 422) && body.says(BAD_REASONING))
}

/// Whether tools are refused because the model reasons. Identified by the parameter, or by OpenAI's message if a
/// gateway passes on only that.
fn is_tool_form(endpoint: &Endpoint, status: u16, body: &ErrorBody) -> bool {
    endpoint.wire == WireFormat::OpenAiChat
        && matches!(status, 200 | 400 | 422)
        && (body.paths.iter().any(|path| path == "reasoning_effort") && body.mentions(&["tool"])
            || body.mentions(&["tools with reasoning_effort"]))
}

/// Advice to buy more is also part of rate limits, which say when they end.
fn is_billing(status: u16, retry_after: Option<Duration>, body: &ErrorBody) -> bool {
    let is_rate_limit = retry_after.is_some() && matches!(status, 200 | 429) || body.is("RESOURCE_EXHAUSTED");
    let lacks_money = !is_rate_limit && body.says(MONEY) && body.says(LACKING);
    status == 402 || body.is(BILLING) || (matches!(status, 200 | 400 | 403 | 429) && lacks_money)
}

/// Whether the service has no model or server for what a request contains: tools, images, parameters.
fn is_unsupported(endpoint: &Endpoint, body: &ErrorBody) -> bool {
    body.mentions(&["support"]) && (endpoint.model.is_empty() || !body.message.contains(&endpoint.model))
}

/// OpenAI's code for a ChatGPT plan without usage left. It may arrive in the middle of a stream.
const PLAN_LIMIT: &str = "subscription_sharing_usage_limit_exceeded";

/// Whether the service doesn't know the model. A wrong URL yields the same status, but its error doesn't mention
/// models.
fn is_unknown_model(endpoint: &Endpoint, status: u16, body: &ErrorBody) -> bool {
    let is_named = !endpoint.model.is_empty() && body.message.contains(&endpoint.model);
    let is_about_models = is_named || body.mentions(&["model"]) && !is_unsupported(endpoint, body);
    body.is("model_not_found")
        || (status == 404 && is_about_models)
        || (is_named && body.says(UNKNOWN_MODEL) && !body.mentions_length())
}

pub(super) fn subject(endpoint: &Endpoint) -> String {
    match endpoint.provider() {
        "gemini" => "Gemini".into(),
        "local" => format!("The local server at {}", endpoint.shown_url()),
        other => provider_title(other).to_owned(),
    }
}

fn verdict(class: &ErrorClass, status: u16, body: &ErrorBody) -> &'static str {
    match class {
        ErrorClass::Retry { .. } if body.is(UNUSABLE_REPLY) || body.has_failed_generation => {
            "could not use what the model wrote"
        }
        ErrorClass::Retry { .. }
            if status == 429 || body.is("rate_limit_error rate_limit_exceeded RESOURCE_EXHAUSTED") =>
        {
            "limits the rate of requests"
        }
        ErrorClass::Retry { .. }
            if status == 529 || status == 503 || body.is("overloaded_error UNAVAILABLE") =>
        {
            "is overloaded"
        }
        ErrorClass::Retry { .. } => "could not answer just now",
        ErrorClass::Auth if is_billing(status, body.retry_after, body) => {
            "wants the account's billing settled"
        }
        ErrorClass::Auth => "did not accept the key",
        ErrorClass::TooLong { .. } => "says that the conversation is too long for the model",
        ErrorClass::Empty => "answered with nothing at all",
        ErrorClass::ToolForm => "does not take tools in this form",
        ErrorClass::Budget => "was not asked",
        ErrorClass::BadReasoning => "rejects the model's earlier reasoning",
        ErrorClass::Refused | ErrorClass::Broken if status == 404 => "does not know this model or address",
        ErrorClass::Refused | ErrorClass::Broken if status == 407 => {
            "was not reached: the network's proxy wants a user and a password"
        }
        ErrorClass::Refused | ErrorClass::Broken => "refused the request",
    }
}

fn hint(
    endpoint: &Endpoint,
    class: &ErrorClass,
    failure: &ErrorResponse<'_>,
    body: &ErrorBody,
) -> Option<String> {
    match class {
        ErrorClass::Retry { after: Some(after) } if *after > RETRY_AFTER_MAX => Some(format!(
            "It asks to wait {} seconds, which is longer than we wait. Try again then, or choose another model.",
            after.as_secs()
        )),
        // The caller adds hints once all retries have failed, and when a reply breaks off in the middle.
        ErrorClass::Retry { .. } => None,
        ErrorClass::Auth if is_billing(failure.status, failure.retry_after, body) => {
            Some("Look at the account's plan, its credit and its spending limits.".into())
        }
        ErrorClass::Auth => Some(check_key(endpoint, failure, body)),
        ErrorClass::TooLong { window: false, .. } if failure.status == 413 => Some(format!(
            "{TOO_LONG} If there is a proxy before {}, the limit may be its own.",
            endpoint.shown_url()
        )),
        ErrorClass::TooLong { .. } => Some(TOO_LONG.into()),
        ErrorClass::BadReasoning => {
            Some("Run /compact, after which none of it is sent, or choose another model.".into())
        }
        ErrorClass::ToolForm => Some(format!(
            "Its Responses API was tried too. Choose another model; where the service has the Responses API at another \
             address, put that and wire = \"openai_responses\" into [providers.{}] of config.toml.",
            endpoint.provider()
        )),
        ErrorClass::Refused if is_unknown_model(endpoint, failure.status, body) => {
            Some(other_models(endpoint))
        }
        ErrorClass::Refused if failure.status == 404 && is_unsupported(endpoint, body) => None,
        ErrorClass::Refused if failure.status == 404 => {
            Some(format!("Check the model's name and the base URL {}.", endpoint.shown_url()))
        }
        ErrorClass::Refused if matches!(failure.status, 300..400) => Some(format!(
            "It redirects elsewhere, which is not followed: check the base URL {}.",
            endpoint.shown_url()
        )),
        ErrorClass::Refused if failure.status == 407 => {
            let variable = endpoint.network.variable_of(&endpoint.base_url).unwrap_or("HTTP_PROXY");
            Some(format!("Set {variable}=http://user:password@host:port in the editor's environment."))
        }
        ErrorClass::Refused if body.is(PLAN_LIMIT) => {
            Some("The limit of your ChatGPT plan is reached: https://chatgpt.com/settings/usage".into())
        }
        ErrorClass::Refused if body.is_daily => {
            Some("The day's quota is used up. Choose another model, or look at the account's plan.".into())
        }
        ErrorClass::Refused if failure.status == 429 => {
            Some("A limit with no end given is most often a spending cap of the account.".into())
        }
        ErrorClass::Refused if body.says(POLICY) => Some(REWIND_HINT.to_owned()),
        ErrorClass::Budget | ErrorClass::Empty | ErrorClass::Refused | ErrorClass::Broken => None,
    }
}

/// Names the source of the key, the service it was sent to, and a proxy that may have rejected the request.
fn check_key(endpoint: &Endpoint, failure: &ErrorResponse<'_>, body: &ErrorBody) -> String {
    let place = if endpoint.own_api { String::new() } else { format!(" at {}", endpoint.shown_url()) };
    let mut hint = match &endpoint.key_variable {
        None if endpoint.credential.is_stored() => {
            format!(
                "The stored login was rejected: run `epitome login {}` in a terminal.",
                endpoint.provider()
            )
        }
        None if matches!(endpoint.credential_origin(), CredentialOrigin::Cloud(_)) => {
            format!("Check the credentials of the cloud: the service{place} rejected them.")
        }
        Some(variable) => format!("Check {variable}: it must be a key of the service{place}."),
        None => format!(
            "No key was sent to the service{place}. Run `epitome login {provider}`, or name the variable with the \
             key: key_variable in [providers.{provider}] of config.toml, with wire and base_url.",
            provider = endpoint.provider()
        ),
    };
    // Corporate proxies block addresses with this status and their own HTML page.
    if failure.status == 403
        && body.message.is_empty()
        && let Some(variable) = endpoint.network.variable_of(&endpoint.base_url)
    {
        hint.push_str(&format!(" If it is, the proxy of {variable} may be what refuses."));
    }
    hint
}

/// Suggests other models and how to list them all.
fn other_models(endpoint: &Endpoint) -> String {
    let known: Vec<&str> =
        models::provider_models(endpoint.provider()).take(MODELS_NAMED_MAX).map(|known| known.name).collect();
    match known.as_slice() {
        [] => "`epitome models` lists the models that there are.".into(),
        known => format!("There are {}; `epitome models` lists them all.", known.join(", ")),
    }
}

/// Returns the longest prefix of at most `max` bytes that ends at a character boundary.
pub(super) fn cut(text: &str, max: usize) -> &str {
    &text[..text.floor_char_boundary(max)]
}

#[cfg(test)]
#[path = "failure_tests.rs"]
mod tests;

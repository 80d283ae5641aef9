//! Writes the summary of a compaction. The methods in order; each is tried if those before it fail:
//!
//! ```text
//!  the provider's own compaction, if enabled
//!  flat text, by the model configured for summaries, in parts if it is longer than the model's window
//!  the session's next request plus an instruction, which reuses the provider's cached prefix
//!  flat text, by the session's own model
//!  none: only the computed tables, which always works
//! ```

mod asking;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

pub(super) use asking::answer;
use asking::{ask, broken, too_slow};

use super::complete::find_endpoint;
use super::effects::{self, RequestSnapshot};
use super::services::SessionServices;
use epitome_compaction::{self as compaction, Summary};
use epitome_config::{Settings, Summariser};
use epitome_provider::compact::{NativeCompaction, compact};
use epitome_provider::endpoint::Endpoint;
use epitome_provider::http::Http;
use epitome_provider::wire::Purpose;
use epitome_provider::wire::encoding::Encoding;
use epitome_provider::{ErrorClass, ModelRequest, ProviderError, models, retry};
use epitome_thread::{Content, Message, MessageId, ModelName, ThoughtLevel, Usage, ViewItem};

/// Tries for a summary with the cached prefix. A local server can fail every time: since the request includes the
/// tools, a small model may write output that doesn't match their grammar, which the server reports as an internal
/// error. The flat method has no tools.
const CACHED_TRIES_MAX: u32 = 2;

/// Tries for a summary from flat text, each with at most half the window of the one before. This many suffice even if
/// the window is assumed a hundred times too large.
const FLAT_ATTEMPTS_MAX: u32 = 8;

/// Maximum number of parts, one call each, into which a conversation longer than the model's window is split. A
/// longer conversation is shortened instead.
const PARTS_MAX: usize = 6;

/// Capacity of the channel that carries pieces of a summary to the session.
pub const PIECES_MAX: usize = 64;

/// Divisor of the window that limits a summary: in a small window it must leave room for the conversation.
const OUTPUT_PART: u64 = 4;

/// Typical size of a summary in tokens, used only to compare prices.
const SUMMARY_TOKENS: u64 = 2_000;

/// The result of trying to write a summary.
#[derive(Debug)]
pub struct SummaryAttempt {
    /// If all methods failed, the error of the last one.
    pub summary: Result<Summary, ProviderError>,
    /// Windows in tokens that providers reported when they refused a request, even if a shorter request then
    /// succeeded.
    pub limits: Vec<(ModelName, u64)>,
    /// The usage of calls that were answered, besides that of the summary.
    pub spent: Vec<(ModelName, Usage)>,
}

impl SummaryAttempt {
    /// An attempt without a result, as after a panic.
    pub fn unfinished() -> SummaryAttempt {
        SummaryAttempt { summary: Err(effects::internal_error()), limits: Vec::new(), spent: Vec::new() }
    }

    fn learn(&mut self, endpoint: &Endpoint, error: &ProviderError) {
        if let ErrorClass::TooLong { limit: Some(limit), window: true, .. } = error.class {
            self.limits.push((endpoint.name.clone(), limit));
        }
    }
}

/// Everything needed to write a summary.
pub struct SummaryJob {
    pub http: Http,
    /// The session's own model.
    pub main: Endpoint,
    /// Another model that is to write the summary. If it fails, the session's own model is used.
    pub writer: Option<Endpoint>,
    /// The conversation to summarize.
    pub snapshot: RequestSnapshot,
    pub instruction: String,
    /// Whether the instruction includes a focus from the user or a recipe, in addition to the standard text.
    pub focus: bool,
    /// Whether somebody sees the summary while it is written.
    pub streams: bool,
    pub message_chars: usize,
    /// Time limits: for one model call, and for all of them together.
    pub time: (Duration, Duration),
    /// Receives the summary as it is written; the receiver may be closed.
    pub pieces: mpsc::Sender<String>,
}

/// The endpoint of the model that [`writer_name`] selects; `None` if there is none or it can't be called.
pub async fn writer(
    services: &SessionServices,
    settings: &Settings,
    environment: &[(std::ffi::OsString, std::ffi::OsString)],
    main: &Endpoint,
    tokens: u64,
) -> Option<Endpoint> {
    let name = writer_name(settings, main, tokens)?;
    match find_endpoint(services, Some(&name), settings, environment).await {
        Ok(endpoint) => Some(endpoint),
        Err(error) => {
            tracing::warn!(%error, model = %name, "the model that is to write summaries can't be called");
            None
        }
    }
}

/// The model that the settings choose to summarize a conversation of `tokens` tokens; `None` if it is `main` or if
/// there is none.
pub fn writer_name(settings: &Settings, main: &Endpoint, tokens: u64) -> Option<ModelName> {
    let small = || models::small(settings, Some(main));
    let name = match &settings.compaction.model {
        Summariser::Main | Summariser::None => None,
        Summariser::Small => small(),
        Summariser::Named(name) => Some(ModelName(name.clone())),
        Summariser::Cheapest => small().filter(|small| {
            let fits = models::known(small).is_none_or(|known| tokens <= known.window);
            fits && is_cheaper(settings, &main.name, small, tokens)
        }),
    };
    name.filter(|name| *name != main.name)
}

/// Whether a summary by the small model costs less than one by the main model. If a price is unknown, the small model is
/// one that the user has named.
fn is_cheaper(settings: &Settings, main: &ModelName, small: &ModelName, tokens: u64) -> bool {
    let usage = Usage { input: tokens, output: SUMMARY_TOKENS, ..Usage::default() };
    let costs = models::cost(settings, main, &usage).zip(models::cost(settings, small, &usage));
    costs.is_none_or(|(main, small)| small < main)
}

/// Appends to the instruction the tables that are kept in addition to the summary.
pub fn with_tables(instruction: String, tables: &str) -> String {
    if tables.is_empty() {
        return instruction;
    }
    format!(
        "{instruction}\n\nThe user's messages and the following tables, computed from the log, are kept \
         together with your summary. Do not repeat them. Write about what they don't show: reasons, decisions, \
         what was tried and ruled out, and the state of the work.\n\n<tables>\n{tables}\n</tables>"
    )
}

/// Writes the summary, by the first method that succeeds.
pub async fn write(job: &SummaryJob) -> SummaryAttempt {
    let mut attempt = SummaryAttempt::unfinished();
    let mut summary = by_some_way(job, &mut attempt).await;
    if let Ok(Summary { by: Some((model, usage)), .. }) = &mut summary {
        for (_, spent) in attempt.spent.extract_if(.., |(by, _)| by == model) {
            usage.add(&spent);
        }
    }
    attempt.summary = summary;
    attempt
}

async fn by_some_way(job: &SummaryJob, attempt: &mut SummaryAttempt) -> Result<Summary, ProviderError> {
    let deadline = Instant::now() + job.time.1;
    let mut last = None;
    for way in ways(job) {
        let work = async {
            match way {
                SummaryMethod::Native => native(job).await,
                SummaryMethod::Prefix => summarise_with_prefix(job, attempt).await,
                SummaryMethod::Flat(endpoint) => flat(job, endpoint, attempt).await,
            }
        };
        match timeout_at(deadline, work).await {
            Ok(Ok(summary)) => return Ok(summary),
            Ok(Err(error)) => {
                tracing::info!(%error, ?way, "no summary this way");
                // The flat method has already recorded its own errors.
                if let SummaryMethod::Native | SummaryMethod::Prefix = way {
                    attempt.learn(&job.main, &error);
                }
                last = Some(error);
            }
            Err(_) => return Err(too_slow(job.time.1)),
        }
    }
    Err(last.expect("there is always a way, and it left its error"))
}

#[derive(Clone, Copy, Debug)]
enum SummaryMethod<'a> {
    Native,
    Prefix,
    Flat(&'a Endpoint),
}

fn ways(job: &SummaryJob) -> Vec<SummaryMethod<'_>> {
    let said = instruction(&job.instruction);
    let reserve = u64::from(output_behind_prefix(job));
    let taken = job.snapshot.tokens() + job.snapshot.ruler.message(&said) + reserve;
    let fits = taken <= job.main.window;
    let mut ways = Vec::new();
    if job.main.native_compaction && fits {
        ways.push(SummaryMethod::Native);
    }
    if let Some(other) = &job.writer {
        ways.push(SummaryMethod::Flat(other));
    }
    if fits {
        ways.push(SummaryMethod::Prefix);
    }
    ways.push(SummaryMethod::Flat(&job.main));
    ways
}

/// Uses the provider's own compaction.
async fn native(job: &SummaryJob) -> Result<Summary, ProviderError> {
    let max_output = output_behind_prefix(job);
    let request = ModelRequest { max_output, ..job.snapshot.request(None) };
    // A custom instruction invalidates the provider's cache and replaces its own prompt.
    let purpose = Purpose::Compact { instruction: job.focus.then_some(job.instruction.as_str()) };
    let encoded = job.snapshot.encoding.clone().encode(&job.main, &request, purpose);
    let made = timeout(job.time.0, compact(&job.http, &job.main, &encoded))
        .await
        .unwrap_or_else(|_| Err(too_slow(job.time.0)))?;
    let NativeCompaction { parts, text, usage } = made;
    Ok(Summary { text, native: parts, by: Some((job.main.name.clone(), usage)), ..Summary::default() })
}

/// Asks for the summary with the session's next request plus one instruction.
async fn summarise_with_prefix(
    job: &SummaryJob,
    attempt: &mut SummaryAttempt,
) -> Result<Summary, ProviderError> {
    let said = instruction(&job.instruction);
    let max_output = output_behind_prefix(job);
    let request = ModelRequest { max_output, ..job.snapshot.request(Some(&said)) };
    let encode = |purpose: Purpose| job.snapshot.encoding.clone().encode(&job.main, &request, purpose);
    ask(job, &job.main, encode, CACHED_TRIES_MAX, true, &mut attempt.spent).await
}

/// Writes the summary from flat text, which is shortened until it fits.
async fn flat(
    job: &SummaryJob,
    endpoint: &Endpoint,
    attempt: &mut SummaryAttempt,
) -> Result<Summary, ProviderError> {
    let mut window = endpoint.window;
    let mut last = None;
    for _ in 0..FLAT_ATTEMPTS_MAX {
        match in_parts(job, endpoint, bytes_for(job, window), &mut attempt.spent).await {
            Err(error) if matches!(error.class, ErrorClass::TooLong { .. } | ErrorClass::Empty) => {
                attempt.learn(endpoint, &error);
                window = narrowed(window, &error).min(window / 2);
                last = Some(error);
            }
            done => return done,
        }
    }
    Err(last.expect("a conversation that was too long left its error"))
}

/// Makes one call, or one for each part of a long conversation; each updates the summary of the parts before it.
async fn in_parts(
    job: &SummaryJob,
    endpoint: &Endpoint,
    bytes: usize,
    spent: &mut Vec<(ModelName, Usage)>,
) -> Result<Summary, ProviderError> {
    let mut parts = compaction::pieces(&job.snapshot.view, job.message_chars, bytes);
    if parts.len() > PARTS_MAX {
        parts = vec![compaction::flat(&job.snapshot.view, bytes)];
    }
    let last = parts.len().saturating_sub(1);
    let mut so_far: Option<Summary> = None;
    for (at, part) in parts.iter().enumerate() {
        let before = so_far.as_ref().and_then(|summary| summary.text.as_deref());
        let text = part_text(part, at, parts.len(), before, &job.instruction);
        let said = instruction(&text);
        let request = ModelRequest {
            system: "You write summaries of conversations between users and coding agents.",
            tools: &[],
            items: vec![ViewItem::User(&said)],
            thought: ThoughtLevel::Off,
            max_output: max_output(job, endpoint),
            cache_key: &job.snapshot.cache_key,
            basis: None,
        };
        let encode = |purpose: Purpose| Encoding::default().encode(endpoint, &request, purpose);
        let summary = ask(job, endpoint, encode, retry::ATTEMPTS_MAX, at == last, spent).await?;
        if at < last {
            spent.extend(summary.by.clone());
        }
        so_far = Some(summary);
    }
    so_far.ok_or_else(|| broken("there is nothing to summarise"))
}

fn part_text(part: &str, at: usize, parts: usize, before: Option<&str>, instruction: &str) -> String {
    let mut text = match parts {
        1 => "Below is a conversation between a user and a coding agent.".to_owned(),
        _ => format!(
            "Below is part {} of {parts} of a conversation between a user and a coding agent.",
            at + 1
        ),
    };
    if let Some(before) = before {
        text.push_str(&format!(
            " This is the summary of the parts before; carry over all of it that still applies, and bring \
             it up to date.\n\n<summary_so_far>\n{before}\n</summary_so_far>"
        ));
    }
    format!("{text}\n\n<conversation>\n{part}\n</conversation>\n\n{instruction}")
}

fn instruction(text: &str) -> Message {
    Message { id: MessageId(0), content: vec![Content::Text { text: text.to_owned() }], author: None }
}

/// Output limit in tokens for a summary by this model.
fn max_output(job: &SummaryJob, endpoint: &Endpoint) -> u32 {
    let share = u32::try_from(endpoint.window / OUTPUT_PART).unwrap_or(u32::MAX).max(1);
    job.snapshot.max_output.min(endpoint.max_output).min(share)
}

/// Output limit in tokens for a summary after the cached prefix. If thinking has a budget, it must be the budget of
/// the earlier replies, or Anthropic reads no message from its cache; and a budget is at most half of the output
/// limit.
fn output_behind_prefix(job: &SummaryJob) -> u32 {
    let endpoint = &job.main;
    let budget = endpoint.abilities.thinking.budget(job.snapshot.thought, endpoint.max_output);
    let least = budget.map_or(0, |budget| budget.saturating_mul(2));
    job.snapshot.max_output.max(least).min(endpoint.max_output)
}

/// Bytes of conversation that fit in a window of `window` tokens in addition to the instruction and the summary.
fn bytes_for(job: &SummaryJob, window: u64) -> usize {
    let instruction = u64::try_from(job.instruction.len()).unwrap_or(u64::MAX);
    let half = u64::try_from(effects::half_of(window)).unwrap_or(u64::MAX);
    usize::try_from(half.saturating_sub(instruction).max(half / 4)).unwrap_or(usize::MAX)
}

/// The window, lowered to the limit that the provider reports in its error, if any.
fn narrowed(window: u64, error: &ProviderError) -> u64 {
    if let ErrorClass::TooLong { limit: Some(limit), .. } = error.class { window.min(limit) } else { window }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epitome_provider::endpoint::resolve;

    /// Without `models.small` only the session's model wrote summaries, however expensive it was.
    #[test]
    fn the_small_model_is_the_cheapest_current_one_of_the_provider() {
        let settings = Settings::default();
        let small = |name: &str, base: Option<&str>| {
            let mut env =
                vec![("ANTHROPIC_API_KEY".into(), "k".into()), ("OPENAI_API_KEY".into(), "k".into())];
            env.extend(base.map(|base| ("ANTHROPIC_BASE_URL".into(), base.into())));
            let main = resolve(&ModelName(name.into()), &settings, &env).expect("its key is there");
            models::small(&settings, Some(&main)).map(|name| name.0)
        };
        assert_eq!(small("anthropic/claude-opus-5-5", None).as_deref(), Some("anthropic/claude-haiku-5-5"));
        assert_eq!(small("openai/gpt-6-astra", None).as_deref(), Some("openai/gpt-6-luna"));
        assert_eq!(small("anthropic/claude-opus-5-5", Some("https://gateway.example")), None);
        let configured = Settings { small_model: Some("a/b".into()), ..Settings::default() };
        assert_eq!(models::small(&configured, None), Some(ModelName("a/b".into())));
    }

    #[test]
    fn the_small_model_writes_where_it_costs_less_and_holds_the_conversation() {
        let env = [("ANTHROPIC_API_KEY".into(), "k".into())];
        for (small, tokens, is_writer) in [
            ("openai/gpt-6-luna", 100_000, true),
            ("anthropic/claude-haiku-5-5", 100_000, true),
            ("anthropic/claude-haiku-5-5", 100_000_000, false),
            ("anthropic/claude-opus-4-8", 100_000, false),
            ("somebody/unknown", 100_000, true),
        ] {
            let settings = Settings { small_model: Some(small.into()), ..Settings::default() };
            let main = ModelName("anthropic/claude-sonnet-5-5".into());
            let main = resolve(&main, &settings, &env).expect("its key is there");
            assert_eq!(writer_name(&settings, &main, tokens).is_some(), is_writer, "{small} of {tokens}");
        }
    }
}

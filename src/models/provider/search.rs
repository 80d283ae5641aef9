//! Web search with a service that the user configured. It gets one request per query,
//! without anything else about the user or the conversation. Each has a function for its request and one for its answer,
//! both pure.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use reqwest::Url;
use serde_json::{Value, json};

use super::environment::{EnvironmentPairs, value_of};
use super::http::{Http, HttpError};
use super::network::Network;
use super::secret::Secret;
use epitome_config::SearchChoice;

/// Results that are requested, and at most returned.
pub const RESULTS_MAX: usize = 10;

/// Maximum characters of a result's text, where a service lets them be chosen.
const TEXT_CHARS_MAX: usize = 500;

/// Timeout of a search. Metasearch waits for the slowest of its engines.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(20);

/// Maximum bytes of an answer.
const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The variable with the address of the user's SearXNG server.
pub const SEARXNG_VARIABLE: &str = "SEARXNG_URL";

/// A query, and the hosts to search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchQuery {
    pub words: String,
    /// Only pages of these hosts and their subdomains, unless empty.
    pub domains: Vec<String>,
}

/// A page that was found. All texts are the service's, or those of the page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    pub title: String,
    pub url: String,
    pub text: String,
    pub date: Option<String>,
}

/// A service that is known by name.
#[derive(Debug)]
struct KnownService {
    choice: SearchChoice,
    name: &'static str,
    /// The variable with its key, or, for a server of the user's, with its address.
    variable: &'static str,
    /// `None` for a server of the user's.
    base: Option<&'static str>,
    request: fn(&SearchService, &SearchQuery) -> Option<ServiceRequest>,
    /// The results in an answer; `None` if it has another form.
    results: fn(&Value) -> Option<Vec<SearchResult>>,
}

const SERVICES: [KnownService; 4] = [
    KnownService {
        choice: SearchChoice::Searxng,
        name: "SearXNG",
        variable: SEARXNG_VARIABLE,
        base: None,
        request: searxng,
        results: |answer| list(&answer["results"], ["title", "url", "content", "publishedDate"]),
    },
    KnownService {
        choice: SearchChoice::Brave,
        name: "Brave Search",
        variable: "BRAVE_API_KEY",
        base: Some("https://api.search.brave.com"),
        request: brave,
        // Without any result, there is no list.
        results: |answer| match answer.get("web") {
            Some(web) => list(&web["results"], ["title", "url", "description", "age"]),
            None => answer.get("query").map(|_| Vec::new()),
        },
    },
    KnownService {
        choice: SearchChoice::Tavily,
        name: "Tavily",
        variable: "TAVILY_API_KEY",
        base: Some("https://api.tavily.com"),
        request: tavily,
        results: |answer| list(&answer["results"], ["title", "url", "content", "published_date"]),
    },
    KnownService {
        choice: SearchChoice::Exa,
        name: "Exa",
        variable: "EXA_API_KEY",
        base: Some("https://api.exa.ai"),
        request: exa,
        results: |answer| list(&answer["results"], ["title", "url", "text", "publishedDate"]),
    },
];

/// The variables with keys of search services.
pub fn key_variables() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().filter(|service| service.base.is_some()).map(|service| service.variable)
}

/// A configured search service.
#[derive(Clone, Debug)]
pub struct SearchService {
    known: &'static KnownService,
    base: Url,
    key: Option<Secret>,
    network: Network,
}

/// A request, without what all requests have.
struct ServiceRequest {
    url: Url,
    /// The header with the key.
    key_header: Option<(&'static str, String)>,
    /// A POST has one.
    body: Option<Value>,
}

/// Why a service can't be used. Its text is a clause.
#[derive(Debug, thiserror::Error)]
pub enum SearchSetupError {
    #[error("its key is missing; set {variable}")]
    NoKey { variable: &'static str },
    #[error("its address is missing; set {variable}")]
    NoAddress { variable: &'static str },
    #[error("{variable} is not an address; it looks like http://127.0.0.1:8888")]
    Address { variable: &'static str },
}

/// Why a search brought nothing. Its text is a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{service} at {host} {source}.")]
pub struct SearchError {
    service: &'static str,
    host: String,
    source: SearchFault,
}

#[derive(Debug, thiserror::Error)]
enum SearchFault {
    #[error("has no usable address")]
    Address,
    #[error("can't be asked with the characters in its key")]
    Key,
    #[error("could not be reached: {0}")]
    Unreachable(#[from] HttpError),
    #[error("{0}")]
    Refused(String),
    #[error("did not answer with JSON, so it is probably another server")]
    NotJson(#[source] serde_json::Error),
    #[error("answered in an unknown form, so it is probably another server")]
    UnknownForm,
}

impl SearchService {
    /// The service of a choice; `None` if the choice names none.
    ///
    /// `Auto` only uses the user's own server: a key in the environment may be there for another program, and does not
    /// mean that its service may see the user's queries.
    pub fn find(
        choice: SearchChoice,
        env: &EnvironmentPairs,
    ) -> Result<Option<SearchService>, SearchSetupError> {
        let named = if choice == SearchChoice::Auto { SearchChoice::Searxng } else { choice };
        let Some(known) = SERVICES.iter().find(|service| service.choice == named) else { return Ok(None) };
        let Some(value) = value_of(env, known.variable) else {
            let variable = known.variable;
            return match (choice, known.base) {
                (SearchChoice::Auto, _) => Ok(None),
                (_, Some(_)) => Err(SearchSetupError::NoKey { variable }),
                (_, None) => Err(SearchSetupError::NoAddress { variable }),
            };
        };
        let (base, key) = match known.base {
            Some(base) => (base.to_owned(), Some(Secret::new(value))),
            None => (value, None),
        };
        let base =
            Url::parse(&base).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let base = base.ok_or(SearchSetupError::Address { variable: known.variable })?;
        Ok(Some(SearchService { known, base, key, network: Network::read(env) }))
    }

    /// The service's name, for the user.
    pub fn name(&self) -> &'static str {
        self.known.name
    }

    /// The address without user and password.
    pub fn address(&self) -> String {
        let path = self.base.path().trim_end_matches('/');
        format!("{}://{}{path}", self.base.scheme(), self.host())
    }

    /// The host, with the port unless it is the default.
    pub fn host(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        self.base.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Searches. At most `RESULTS_MAX` results, all of them of the query's domains. Dropping the
    /// future cancels the request.
    pub async fn search(&self, query: &SearchQuery) -> Result<Vec<SearchResult>, SearchError> {
        let failed = |source| SearchError { service: self.name(), host: self.host(), source };
        let request = (self.known.request)(self, query).ok_or_else(|| failed(SearchFault::Address))?;
        let request = request.build().ok_or_else(|| failed(SearchFault::Key))?;
        let http = Http::new().within(self.network.clone());
        let answer = http.exchange(request, ANSWER_BYTES_MAX, SEARCH_TIME_MAX).await;
        let answer = answer.map_err(|error| failed(error.into()))?;
        let status = answer.status().as_u16();
        if status != 200 {
            return Err(failed(SearchFault::Refused(self.refusal(status))));
        }
        let json: Value =
            serde_json::from_slice(answer.body()).map_err(|error| failed(SearchFault::NotJson(error)))?;
        let results = (self.known.results)(&json).ok_or_else(|| failed(SearchFault::UnknownForm))?;
        let fits = |result: &SearchResult| query.domains.is_empty() || is_below(&result.url, &query.domains);
        let mut results: Vec<SearchResult> = results.into_iter().filter(fits).take(RESULTS_MAX).collect();
        for result in &mut results {
            result.text = result.text.chars().take(TEXT_CHARS_MAX).collect();
        }
        Ok(results)
    }

    fn refusal(&self, status: u16) -> String {
        let variable = self.known.variable;
        match status {
            403 if self.key.is_none() => {
                "answers only with web pages: add json to search.formats in its settings.yml".to_owned()
            }
            401 | 403 => format!("refused the key in {variable} (status {status})"),
            402 | 432 | 433 => format!("has no searches left for the key in {variable} (status {status})"),
            429 => "had too many requests; wait before the next search".to_owned(),
            status => format!("answered with status {status}"),
        }
    }

    /// The address of a resource of the service.
    fn at(&self, path: &[&str]) -> Option<Url> {
        let mut url = self.base.clone();
        url.path_segments_mut().ok()?.pop_if_empty().extend(path);
        Some(url)
    }

    fn key(&self) -> String {
        self.key.as_ref().map(|key| key.expose().to_owned()).unwrap_or_default()
    }
}

impl ServiceRequest {
    fn build(self) -> Option<hyper::Request<Vec<u8>>> {
        let method = if self.body.is_some() { "POST" } else { "GET" };
        let mut request = hyper::Request::builder().method(method).uri(self.url.as_str());
        request = request.header("accept", "application/json");
        if let Some((name, key)) = self.key_header {
            let mut key = hyper::header::HeaderValue::from_str(&key).ok()?;
            key.set_sensitive(true);
            request = request.header(name, key);
        }
        if self.body.is_some() {
            request = request.header("content-type", "application/json");
        }
        request.body(self.body.map(|body| body.to_string().into_bytes()).unwrap_or_default()).ok()
    }
}

fn searxng(service: &SearchService, query: &SearchQuery) -> Option<ServiceRequest> {
    let mut url = service.at(&["search"])?;
    url.query_pairs_mut().append_pair("q", &with_sites(query)).append_pair("format", "json");
    // A server behind a proxy may have a user and a password in its address.
    let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let user = (!url.username().is_empty()).then(|| plain(url.username()));
    let login = user.map(|user| format!("{user}:{}", plain(url.password().unwrap_or_default())));
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    let key_header = login.map(|login| ("authorization", format!("Basic {}", BASE64_STANDARD.encode(login))));
    Some(ServiceRequest { url, key_header, body: None })
}

fn brave(service: &SearchService, query: &SearchQuery) -> Option<ServiceRequest> {
    let mut url = service.at(&["res", "v1", "web", "search"])?;
    url.query_pairs_mut()
        .append_pair("q", &with_sites(query))
        .append_pair("count", &RESULTS_MAX.to_string())
        .append_pair("text_decorations", "false");
    Some(ServiceRequest { url, key_header: Some(("x-subscription-token", service.key())), body: None })
}

fn tavily(service: &SearchService, query: &SearchQuery) -> Option<ServiceRequest> {
    let mut body = json!({ "query": query.words, "max_results": RESULTS_MAX });
    if !query.domains.is_empty() {
        body["include_domains"] = json!(query.domains);
    }
    let key_header = Some(("authorization", format!("Bearer {}", service.key())));
    Some(ServiceRequest { url: service.at(&["search"])?, key_header, body: Some(body) })
}

fn exa(service: &SearchService, query: &SearchQuery) -> Option<ServiceRequest> {
    let mut body = json!({
        "query": query.words, "numResults": RESULTS_MAX,
        "contents": { "text": { "maxCharacters": TEXT_CHARS_MAX } },
    });
    if !query.domains.is_empty() {
        body["includeDomains"] = json!(query.domains);
    }
    let key_header = Some(("x-api-key", service.key()));
    Some(ServiceRequest { url: service.at(&["search"])?, key_header, body: Some(body) })
}

/// The words of a query for a service that takes domains only there.
fn with_sites(query: &SearchQuery) -> String {
    let sites: Vec<String> = query.domains.iter().map(|domain| format!("site:{domain}")).collect();
    match sites.as_slice() {
        [] => query.words.clone(),
        [site] => format!("{} {site}", query.words),
        _ => format!("{} ({})", query.words, sites.join(" OR ")),
    }
}

/// The results of a list whose members have title, URL, text and date under these names. Members without a URL are left
/// out.
fn list(results: &Value, [title, url, text, date]: [&str; 4]) -> Option<Vec<SearchResult>> {
    let result = |found: &Value| {
        let string = |name: &str| found[name].as_str().map(str::to_owned);
        Some(SearchResult {
            url: string(url).filter(|url| !url.is_empty())?,
            title: string(title).unwrap_or_default(),
            text: string(text).unwrap_or_default(),
            date: string(date),
        })
    };
    Some(results.as_array()?.iter().filter_map(result).collect())
}

/// Whether a page is on one of these hosts or their subdomains.
fn is_below(url: &str, domains: &[String]) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let host = url.host_str().unwrap_or_default();
    domains.iter().any(|domain| {
        host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    })
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;

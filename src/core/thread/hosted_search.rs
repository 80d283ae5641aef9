//! Web searches that a provider ran for its model, in a form that is independent of the provider.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::message::{
    CallDisplay, CallId, MessageId, Native, OutcomeStatus, SEARCH_TOOL, ToolCall, ToolDisplay, ToolKind,
    ToolOutcome,
};
use super::titles::name_in_title;
use super::visible::{code, one_line};

/// Maximum characters of a title or a query, where it is shown.
const TITLE_CHARS_MAX: usize = 200;

/// A search by the provider with its result, or the sources that the text before it cites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostedSearch {
    /// The provider's id of the search; `None` for the sources of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    /// The pages that were found, or that are cited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<FoundPage>,
    /// Why the search failed: the provider's code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Whether the result is missing, because the reply was paused before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_open: bool,
    /// The original block, which its provider gets back unchanged. Without it, the model reads `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<Native>,
}

/// A web page, as the provider names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundPage {
    pub title: String,
    pub url: String,
}

impl HostedSearch {
    /// A search with this id, or the sources of a text.
    pub fn new(call: Option<&str>) -> HostedSearch {
        let (call, query) = (call.map(str::to_owned), String::new());
        HostedSearch { call, query, pages: Vec::new(), failure: None, is_open: false, native: None }
    }

    /// The search in words, for models of other providers and for exports.
    pub fn text(&self) -> String {
        if self.call.is_none() {
            return self.sources().trim_start().to_owned();
        }
        let about = format!("Web search for {:?}", one_line(&self.query, TITLE_CHARS_MAX));
        match &self.failure {
            Some(why) => format!("[{about}: failed ({})]", one_line(why, TITLE_CHARS_MAX)),
            // Some providers don't name the pages of a single search.
            None if self.pages.is_empty() => format!("[{about}]"),
            None => format!("[{about}: {}]", self.links(", ")),
        }
    }

    /// The sources of a text, as they are shown after it; empty for a search.
    pub fn sources(&self) -> String {
        match self.call.is_none() && !self.pages.is_empty() {
            true => format!("\n\nSources: {}", self.links(", ")),
            false => String::new(),
        }
    }

    /// The search as clients show it: as a tool call with its result. `None` for the sources of a text, and for a search
    /// whose result is in the next reply.
    pub fn as_call(&self, message: MessageId, part: usize) -> Option<(ToolCall, ToolOutcome)> {
        self.call.as_ref().filter(|_| !self.is_open)?;
        let id = CallId(format!("{message}_search{part}"));
        let kind = ToolKind::Search;
        let title = match one_line(&self.query, TITLE_CHARS_MAX) {
            query if query.is_empty() => "Search the web".to_owned(),
            query => format!("Search the web for {}", name_in_title(kind, &query)),
        };
        let card = CallDisplay { title, kind, locations: Vec::new() };
        let input = json!({ "query": self.query });
        let call = ToolCall { id: id.clone(), name: SEARCH_TOOL.to_owned(), input, card };
        let status = if self.failure.is_some() { OutcomeStatus::Failed } else { OutcomeStatus::Completed };
        let lines = self.pages.iter().map(|page| format!("- {} <{}>\n", code(page.title()), page.url));
        let shown = vec![ToolDisplay::Text { text: lines.collect() }];
        let shown = if self.pages.is_empty() { Vec::new() } else { shown };
        Some((call, ToolOutcome { shown, ..ToolOutcome::text(id, status, self.text()) }))
    }

    fn links(&self, between: &str) -> String {
        let links = self.pages.iter().map(|page| {
            let title = page.title().replace(['[', ']', '\\'], "");
            format!("[{}]({})", one_line(&title, TITLE_CHARS_MAX), address(&page.url))
        });
        links.collect::<Vec<_>>().join(between)
    }
}

/// An address that can't end the link around it.
fn address(url: &str) -> String {
    url.replace(' ', "%20").replace('(', "%28").replace(')', "%29")
}

impl FoundPage {
    /// Reads an object with `url` and possibly `title`; `None` if it is no web page.
    pub fn read(found: &Value) -> Option<FoundPage> {
        let title = found["title"].as_str().unwrap_or_default().to_owned();
        let url = found["url"].as_str()?;
        let is_web = url.starts_with("https://") || url.starts_with("http://");
        is_web.then(|| FoundPage { title, url: url.to_owned() })
    }

    /// Reads a list of pages, each once.
    pub fn read_all<'a>(found: impl Iterator<Item = &'a Value>) -> Vec<FoundPage> {
        let mut pages: Vec<FoundPage> = Vec::new();
        for page in found.filter_map(FoundPage::read) {
            if pages.iter().all(|known| known.url != page.url) {
                pages.push(page);
            }
        }
        pages
    }

    /// The title, or the address if there is none.
    fn title(&self) -> &str {
        if self.title.trim().is_empty() { &self.url } else { &self.title }
    }
}
